# SPDX-License-Identifier: Apache-2.0
"""What a view's ioctls take and give (fs/ioctl.h), for scripts that need no program of ours."""
import fcntl
import os
import struct

ID_SIZE, LABEL_SIZE, NAME_SIZE = 16, 256, 64
CHECKPOINT_SYNC, CHECKPOINT_SAME = 1, 2

CHECKPOINT = struct.Struct("=II%ds%ds" % (LABEL_SIZE, ID_SIZE))
RESTORE = struct.Struct("=%dsIIQ%ds" % (LABEL_SIZE, ID_SIZE))
FORK = struct.Struct("=%ds" % NAME_SIZE)
INFO = struct.Struct("=II%ds%dsQ40s4096s" % (NAME_SIZE, ID_SIZE))
CALL = struct.Struct("=IiQ8192s")
READ = struct.Struct("=QiIII12288s")
MOVED = struct.Struct("=QII12288s")


def _ioc(direction, number, layout):
    return direction << 30 | layout.size << 16 | ord("p") << 8 | number


IOC_CHECKPOINT = _ioc(3, 0x40, CHECKPOINT)
IOC_RESTORE = _ioc(3, 0x41, RESTORE)
IOC_UNDO = _ioc(3, 0x42, RESTORE)
IOC_FORK = _ioc(3, 0x43, FORK)
IOC_INFO = _ioc(2, 0x44, INFO)
IOC_CALL = _ioc(3, 0x45, CALL)
IOC_READ = _ioc(3, 0x46, READ)
IOC_MOVED = _ioc(3, 0x48, MOVED)


def _text(raw):
    return raw.split(b"\0", 1)[0].decode()


def ioctl(fd, number, layout, *values):
    """The answer's fields; OSError as the kernel gives it."""
    buf = bytearray(layout.pack(*values))
    fcntl.ioctl(fd, number, buf, True)
    return layout.unpack(bytes(buf))


def ioctl_checkpoint(fd, label="", flags=0):
    a = ioctl(fd, IOC_CHECKPOINT, CHECKPOINT, flags, 0, label.encode(), b"")
    return _text(a[3])


def ioctl_restore(fd, snap):
    a = ioctl(fd, IOC_RESTORE, RESTORE, snap.encode(), 0, 0, 0, b"")
    return {"id": _text(a[0]), "mode": a[1], "changed": a[3], "left": _text(a[4])}


def ioctl_undo(fd):
    a = ioctl(fd, IOC_UNDO, RESTORE, b"", 0, 0, 0, b"")
    return {"id": _text(a[0]), "mode": a[1], "changed": a[3], "left": _text(a[4])}


def ioctl_moved(fd):
    """Of all answers, the paths."""
    paths, at = [], 0
    while True:
        at, size, _, raw = ioctl(fd, IOC_MOVED, MOVED, at, 0, 0, b"")
        assert size <= len(raw) and raw[:size].endswith(b"\0" * bool(size)), size
        paths += [p.decode() for p in raw[:size].split(b"\0")[:-1]]
        if not at:
            return paths


def ioctl_fork(fd, name):
    ioctl(fd, IOC_FORK, FORK, name.encode())


def ioctl_info(fd):
    a = ioctl(fd, IOC_INFO, INFO, 0, 0, b"", b"", 0, b"", b"")
    return {"version": a[0], "read_only": bool(a[1]), "branch": _text(a[2]), "head": _text(a[3]),
            "changes": a[4], "uuid": _text(a[5]), "store": _text(a[6])}


def ioctl_call(fd, *words):
    """A verb through the view: its exit code, stdout and stderr."""
    args = b"".join(os.fsencode(w) + b"\0" for w in words)
    handle = ioctl(fd, IOC_CALL, CALL, len(args), 0, 0, args)[2]
    out = err = b""
    while True:
        _, status, more, n_out, n_err, data = ioctl(fd, IOC_READ, READ, handle, 0, 0, 0, 0, b"")
        out += data[:n_out]
        err += data[n_out:n_out + n_err]
        if not more:
            return status, out.decode(), err.decode()
