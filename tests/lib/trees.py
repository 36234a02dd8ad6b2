# SPDX-License-Identifier: Apache-2.0
"""Big trees made from what a machine has, and everything odd that a filesystem allows."""
import contextlib
import os
import shutil
import socket
import stat
import subprocess

# Where a Debian has files: in order of how likely they are small and many.
PLACES = ("/usr/share", "/usr/include", "/usr/lib", "/etc", "/usr/local", "/var/lib/dpkg", "/opt",
          "/root/.pyenv", "/home")
LARGEST = 256 << 10  # of a copied file: many files are the point, not many bytes


def real_tree(top, count):
    """
    Copies files of the machine (with modes, times, symlinks) until there are `count`; a machine
    with fewer gets further copies with their content changed a little. Returns the number.
    """
    os.makedirs(top)
    found = links = 0
    for place in PLACES:
        if found >= count or not os.path.isdir(place):
            continue
        for folder, dirs, names in os.walk(place):
            dirs.sort()
            if folder.startswith(("/usr/local/.pyenv",)) or found >= count:
                dirs[:] = []
            picked = []
            for n in sorted(names):
                p = os.path.join(folder, n)
                try:
                    s = os.lstat(p)
                except OSError:
                    continue
                if stat.S_ISLNK(s.st_mode) or stat.S_ISREG(s.st_mode) and s.st_size <= LARGEST:
                    picked.append((p, n, s))
            if not picked:
                continue
            to = top + folder
            os.makedirs(to, exist_ok=True)
            for p, n, s in picked:
                if found >= count:
                    break
                target = os.path.join(to, n)
                with contextlib.suppress(OSError):
                    if stat.S_ISLNK(s.st_mode):
                        os.symlink(os.readlink(p), target)
                        os.utime(target, ns=(s.st_atime_ns, s.st_mtime_ns), follow_symlinks=False)
                        links += 1
                    else:
                        shutil.copyfile(p, target)
                        os.chmod(target, stat.S_IMODE(s.st_mode) & 0o777 | 0o400)
                        os.utime(target, ns=(s.st_atime_ns, s.st_mtime_ns))
                        found += 1
    extra = 0
    originals = None
    while found < count:
        # A minimal machine: more of the same with other content.
        if originals is None:
            originals = [os.path.join(d, n) for d, _, ns in os.walk(top) for n in ns
                         if not os.path.islink(os.path.join(d, n))]
        if not originals:
            break
        extra += 1
        to = os.path.join(top, "again%d" % extra)
        for i, p in enumerate(originals[:count - found]):
            target = to + p[len(top):]
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(p, target)
            with open(target, "ab") as f:
                f.write(b"%d %d\n" % (extra, i))
            found += 1
    return found


def add_odd_things(top):
    """Everything odd; returns the names of what this machine let us make."""
    os.makedirs(top)
    raw = os.fsencode(top)
    made = []
    at = lambda *n: os.path.join(top, *n)

    @contextlib.contextmanager
    def may_fail(what):
        try:
            yield
            made.append(what)
        except (OSError, subprocess.CalledProcessError, FileNotFoundError):
            pass

    def touch(p, data=b""):
        with open(p, "wb") as f:
            f.write(data)
        return p

    # Names.
    names = [b"new\nline", b"n" * 255, b"\xff\xfe not utf-8 \x80", b" leading space", b"trailing ",
             b"-dash", b"quote\"'`", b"back\\slash", b"*?[glob]", b"\x01\x7f control",
             "gr\u00fc\u00dfe-\u65e5\u672c-\U0001f600".encode(), b"...", b"..hidden", b"a" * 63,
             b"tab\t", b"nul", b"COM1", b"x.", "e\u0301 decomposed".encode()]
    os.mkdir(at("names"))
    for n in names:
        with may_fail("name"):
            touch(os.path.join(raw, b"names", n), n)
    os.mkdir(os.path.join(raw, b"names", b"dir\nwith \xff"))
    touch(os.path.join(raw, b"names", b"dir\nwith \xff", b"f"), b"x")
    made[:] = ["%d names" % len(made)]

    # Hard links: within and across directories, of a symlink and a fifo too.
    os.makedirs(at("hard/other"))
    touch(at("hard/a"), b"linked")
    for n in ("hard/b", "hard/other/c", "hard/other/d"):
        os.link(at("hard/a"), at(n))
    made.append("hard links")
    os.symlink("a", at("hard/sym"))
    with may_fail("hard-linked symlink"):
        os.link(at("hard/sym"), at("hard/other/sym"), follow_symlinks=False)

    # Symlinks.
    os.mkdir(at("sym"))
    for n, target in (("dangling", "nowhere/at/all"), ("absolute", "/etc/passwd"), ("up", "../.."),
                      ("self", "self"), ("dir", ".")):
        os.symlink(target, at("sym", n))
    try:
        os.symlink("t" * 4000, at("sym", "long"))
    except OSError:
        os.symlink("t" * 1023, at("sym", "long"))  # XFS_SYMLINK_MAXLEN is 1024
    os.symlink(b"\xff\xfe\n", os.path.join(raw, b"sym", b"bytes"))
    made.append("symlinks")

    # Kinds.
    os.mkfifo(at("fifo"), 0o640)
    made.append("fifo")
    with may_fail("socket"):
        here = os.open(top, os.O_RDONLY)
        s = socket.socket(socket.AF_UNIX)
        try:
            s.bind("/proc/self/fd/%d/socket" % here)
        finally:
            s.close()
            os.close(here)
    with may_fail("devices"):
        os.mknod(at("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(at("block"), stat.S_IFBLK | 0o600, os.makedev(259, 1048575))

    # Modes and owners.
    os.mkdir(at("modes"))
    for mode in (0o000, 0o400, 0o777, 0o4755, 0o2755, 0o1777, 0o7777, 0o100):
        os.chmod(touch(at("modes/%04o" % mode), b"m"), mode)
        os.mkdir(at("modes/d%04o" % mode))
        os.chmod(at("modes/d%04o" % mode), mode | 0o700)
    with may_fail("owners"):
        os.chown(touch(at("owner")), 12345, 54321)
        os.chown(touch(at("owner32")), 4000000000, 4000000001)
        os.symlink("x", at("owned-link"))
        os.lchown(at("owned-link"), 7, 8)

    # Extended attributes and ACLs.
    with may_fail("xattrs"):
        p = touch(at("xattr"), b"x")
        os.setxattr(p, "user.empty", b"")
        os.setxattr(p, "user.bin", bytes(range(256)))
        os.setxattr(p, "user." + "n" * 250, b"long name")
        os.mkdir(at("xattr-dir"))
        os.setxattr(at("xattr-dir"), "user.d", b"on a directory")
    with may_fail("large xattr"):
        os.setxattr(touch(at("xattr-large")), "user.large", os.urandom(3500))
    with may_fail("trusted xattrs"):
        os.setxattr(at("xattr"), "trusted.t", b"trusted")
        os.symlink("x", at("xattr-link"))
        os.setxattr(at("xattr-link"), "trusted.l", b"on a link", follow_symlinks=False)
    with may_fail("security xattrs"):
        # cap_net_raw+ep: version 2, effective.
        touch(at("caps"), b"#!/bin/sh\n")
        os.chmod(at("caps"), 0o755)
        os.setxattr(at("caps"), "security.capability",
                    bytes.fromhex("0100000200200000000000000000000000000000"))
    with may_fail("ACLs"):
        touch(at("acl"))
        subprocess.run(["setfacl", "-m", "u:1234:rw,g:4321:r,m::rwx", at("acl")], check=True,
                       stderr=subprocess.DEVNULL)
        os.mkdir(at("acl-dir"))
        subprocess.run(["setfacl", "-d", "-m", "u:1234:rwx,o::-", at("acl-dir")], check=True,
                       stderr=subprocess.DEVNULL)

    # Sparse files: holes at the beginning, between, at the end; all hole; large.
    def sparse(name, size, pieces):
        with open(at(name), "wb") as f:
            for off, data in pieces:
                f.seek(off)
                f.write(data)
            f.truncate(size)
    sparse("sparse-all", 5 << 20, [])
    sparse("sparse-mixed", 3 << 20, [(0, b"head"), (1 << 20, os.urandom(8192)),
                                     ((2 << 20) + 4096, b"x" * 4096)])
    sparse("sparse-end", (1 << 20) + 3, [(1 << 20, b"end")])
    sparse("sparse-large", 64 << 30, [(40 << 30, b"far out")])
    sparse("sparse-tail", 300000, [(0, b"d" * 8192)])
    made.append("sparse files")

    # Sizes around what stores cut at.
    os.mkdir(at("sizes"))
    for n in (0, 1, 511, 512, 513, 1023, 1024, 4095, 4096, 4097, 65535, 65536, 65537, 131071,
              131072, 131073, 1 << 20, (1 << 20) + 1, (4 << 20) + 5):
        touch(at("sizes/%d" % n), (b"%d " % n * (n // 3 + 1))[:n])
    made.append("sizes")

    # Empty things and many entries.
    os.makedirs(at("empty/dir/in/dir"))
    os.mkdir(at("many"))
    for i in range(2000):
        touch(at("many/%d" % i))
    made.append("many entries")

    # Times last: making things touches their directories.
    os.mkdir(at("times"))
    times = {"1901": -2147483648 * 10**9, "1969": -1, "1970": 0, "ns": 1234567890123456789,
             "2038": 2147483648 * 10**9 + 1, "2446": 15032385534 * 10**9 + 999999999,
             "2106": 4294967296 * 10**9 + 7}
    for n, when in times.items():
        touch(at("times", n))
        os.utime(at("times", n), ns=(when, when))
        os.mkdir(at("times", n + ".d"))
        os.utime(at("times", n + ".d"), ns=(when, when))
        os.symlink("x", at("times", n + ".l"))
        os.utime(at("times", n + ".l"), ns=(when, when), follow_symlinks=False)
        kept = os.stat(at("times", n)).st_mtime_ns == when
        if kept:
            made.append(n)
    for folder, dirs, _ in os.walk(top, topdown=False):
        os.utime(folder, ns=(10**18, 10**18 + len(folder)))
    for n, when in times.items():
        os.utime(at("times", n + ".d"), ns=(when, when))
    return made
