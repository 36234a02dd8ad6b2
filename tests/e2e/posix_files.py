#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 240
"""What POSIX programs rely on, seen through the kernel."""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import socket
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE, INSERT = 1, 2, 8, 16, 32


def renameat2(a, b, flags):
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags) < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def fallocate(fd, mode, off, length):
    if libc.fallocate(fd, mode, ctypes.c_int64(off), ctypes.c_int64(length)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def test_names(t):
    v = t.view({"a": "1"})
    v.write("n" * 255, "x")
    assert "n" * 255 in v.ls()
    ply.raises(errno.ENAMETOOLONG, v.write, "n" * 256, "x")
    ply.raises(errno.ENAMETOOLONG, os.stat, v.at("m" * 256))
    ply.raises(errno.ENOENT, os.stat, v.at("missing"))
    ply.raises(errno.ENOTDIR, os.stat, v.at("a/b"))
    ply.raises(errno.EEXIST, os.mkdir, v.at("a"))


def test_unlinked_open_files_live_on(t):
    v = t.view({"f": "x"})
    with open(v.at("f"), "r+b", buffering=0) as f:
        os.unlink(v.at("f"))
        assert os.fstat(f.fileno()).st_nlink == 0
        f.write(b"y" * 100000)
        f.seek(0)
        assert f.read() == b"y" * 100000
        os.fchmod(f.fileno(), 0o600)
        f.truncate(10)
        assert os.fstat(f.fileno()).st_size == 10
    assert v.ls() == []


def test_unnamed_files(t):
    v = t.view({"f": "x"})
    fd = os.open(v.path, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"unnamed")
    assert v.ls() == ["f"] and os.fstat(fd).st_nlink == 0
    # Python's os.link does not follow the link of /proc.
    assert libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, v.at("named").encode(), 0x400) == 0
    os.close(fd)
    assert v.read("named") == "unnamed" and os.stat(v.at("named")).st_nlink == 1


def test_hard_links(t):
    v = t.view({"a": "1", "d/x": ""})
    os.link(v.at("a"), v.at("d/b"))
    assert os.stat(v.at("a")).st_ino == os.stat(v.at("d/b")).st_ino
    assert os.stat(v.at("a")).st_nlink == 2
    v.write("d/b", "22")
    assert v.read("a") == "22"
    os.unlink(v.at("a"))
    assert os.stat(v.at("d/b")).st_nlink == 1 and v.read("d/b") == "22"
    ply.raises(errno.EPERM, os.link, v.at("d"), v.at("e"))


def test_renames(t):
    v = t.view({"a": "A", "b": "B", "d/x": "", "e/y": "", "empty": None})
    renameat2(v.at("a"), v.at("b"), EXCHANGE)
    assert v.read("a") == "B" and v.read("b") == "A"
    ply.raises(errno.EEXIST, renameat2, v.at("a"), v.at("b"), NOREPLACE)
    renameat2(v.at("a"), v.at("c"), NOREPLACE)
    os.rename(v.at("b"), v.at("c"))
    assert v.read("c") == "A" and "b" not in v.ls()
    ply.raises(errno.ENOTEMPTY, os.rename, v.at("d"), v.at("e"))
    os.rename(v.at("d"), v.at("empty"))
    assert v.ls("empty") == ["x"]
    ply.raises(errno.EINVAL, os.rename, v.at("e"), v.at("e/inside"))
    ply.raises(errno.ENOTDIR, os.rename, v.at("e"), v.at("c"))
    ply.raises(errno.EISDIR, os.rename, v.at("c"), v.at("e"))
    renameat2(v.at("c"), v.at("e"), EXCHANGE)
    assert v.ls("c") == ["y"] and v.read("e") == "A"


def test_directory_link_counts_and_dot_dot(t):
    v = t.view({"d/s1": None, "d/s2": None, "e": None})
    assert os.stat(v.at("d")).st_nlink == 4
    os.rename(v.at("d/s1"), v.at("e/s1"))
    assert os.stat(v.at("d")).st_nlink == 3 and os.stat(v.at("e")).st_nlink == 3
    assert os.stat(v.at("e/s1/..")).st_ino == os.stat(v.at("e")).st_ino
    os.rmdir(v.at("e/s1"))
    assert os.stat(v.at("e")).st_nlink == 2


def test_times_to_the_nanosecond(t):
    v = t.view({"f": "x"})
    for ns in (1, 999999999, 1234567890123456789, -1, -2147483648 * 10**9, 15032385535 * 10**9):
        os.utime(v.at("f"), ns=(ns, ns))
        assert os.stat(v.at("f")).st_mtime_ns == ns
    before = os.stat(v.path).st_mtime_ns
    v.write("g", "")
    assert os.stat(v.path).st_mtime_ns > before
    m = os.stat(v.at("g")).st_mtime_ns
    os.chmod(v.at("g"), 0o600)
    s = os.stat(v.at("g"))
    assert s.st_mtime_ns == m and s.st_ctime_ns > m


def test_holes_are_told_in_whole_blocks(t):
    """As by a disk: bmaptool copies no more than the blocks that lie in the data it is told of."""
    v = t.view({"x": ""})
    rng = ply.seeded()
    for size in (1 << 20, (1 << 20) - 5000):
        blocks = set()
        with open(v.at("f"), "w+b", buffering=0) as f:
            fd = f.fileno()
            os.ftruncate(fd, size)
            for _ in range(40):
                at, n = rng.randrange(size), rng.choice((1, 12, 600, 5000, 20000))
                n = os.pwrite(fd, b"d" * min(n, size - at), at)
                blocks.update(range(at // 4096, (at + n - 1) // 4096 + 1))
            data = [i in blocks for i in range((size + 4095) // 4096)]
            for off in sorted({o for b in range(len(data)) for o in (b * 4096, b * 4096 + 1234)
                               if o < size}):
                if True in data[off // 4096:]:
                    want = max(off, data.index(True, off // 4096) * 4096)
                    assert os.lseek(fd, off, os.SEEK_DATA) == want, off
                else:
                    ply.raises(errno.ENXIO, os.lseek, fd, off, os.SEEK_DATA)
                hole = (data + [False]).index(False, off // 4096) * 4096
                assert os.lseek(fd, off, os.SEEK_HOLE) == min(max(off, hole), size), off
            ply.raises(errno.ENXIO, os.lseek, fd, size, os.SEEK_HOLE)
            ply.raises(errno.ENXIO, os.lseek, fd, size, os.SEEK_DATA)


def test_what_is_stored_through_a_mapping_lies_in_no_hole(t):
    """Before it is written back: cp and tar read only what they are told is data."""
    v = t.view({"x": ""})
    for name, size, stores in (("one", 1 << 20, [300000]), ("last", 1 << 20, [(1 << 20) - 1]),
                               ("some", 8 << 20, range(5000, 8 << 20, 999983))):
        with open(v.at(name), "w+b", buffering=0) as f:
            os.ftruncate(f.fileno(), size)
            with mmap.mmap(f.fileno(), size) as m:
                assert m[0] == m[size // 2] == 0  # pages of the hole are there, and clean
                for at in stores:
                    m[at] = 33
                    data = os.lseek(f.fileno(), at & -4096, os.SEEK_DATA)
                    assert data == at & -4096, (name, at, data)
                    hole = os.lseek(f.fileno(), at & -4096, os.SEEK_HOLE)
                    assert at < hole <= (at & -4096) + 131072, (name, at, hole)
                    m[at] = 34
                t.run(["cp", v.at(name), t.at("copy")])
                with open(t.at("copy"), "rb") as copy:
                    assert copy.read() == m[:], name
                ply.raises(errno.ENXIO, os.lseek, f.fileno(), size, os.SEEK_DATA)


def test_sparse_files_and_holes(t):
    v = t.view({"x": ""})
    with open(v.at("f"), "w+b", buffering=0) as f:
        f.truncate(1 << 30)
        os.pwrite(f.fileno(), b"data", 500 << 20)
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) <= 500 << 20
        assert os.lseek(f.fileno(), 500 << 20, os.SEEK_DATA) == 500 << 20
        hole = os.lseek(f.fileno(), 500 << 20, os.SEEK_HOLE)
        assert (500 << 20) + 4 <= hole <= (500 << 20) + 131072
        ply.raises(errno.ENXIO, os.lseek, f.fileno(), hole, os.SEEK_DATA)
        assert os.fstat(f.fileno()).st_blocks * 512 < 1 << 20
        assert os.pread(f.fileno(), 8, (500 << 20) - 2) == b"\0\0data\0\0"
        fallocate(f.fileno(), PUNCH_HOLE | KEEP_SIZE, 500 << 20, 4096)
        assert os.pread(f.fileno(), 4, 500 << 20) == b"\0" * 4
        assert os.fstat(f.fileno()).st_size == 1 << 30


def test_a_file_of_16_tib(t):
    v = t.view({"x": ""})
    end = (16 << 40) - 4096
    with open(v.at("f"), "w+b", buffering=0) as f:
        os.pwrite(f.fileno(), b"far", end - 3)
        assert os.fstat(f.fileno()).st_size == end
        assert os.pread(f.fileno(), 10, end - 3) == b"far"
        assert os.pread(f.fileno(), 3, 8 << 40) == b"\0\0\0"
        snap = v.checkpoint()
        os.ftruncate(f.fileno(), 5)
    v.restore(snap)
    assert os.stat(v.at("f")).st_size == end
    with open(v.at("f"), "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 10, end - 3) == b"far"


def test_fallocate_modes(t):
    v = t.view({"x": ""})
    with open(v.at("f"), "w+b", buffering=0) as f:
        f.write(b"a" * 4096 + b"b" * 4096 + b"c" * 4096)
        fallocate(f.fileno(), 0, 0, 20000)
        assert os.fstat(f.fileno()).st_size == 20000
        fallocate(f.fileno(), KEEP_SIZE, 0, 50000)
        assert os.fstat(f.fileno()).st_size == 20000
        fallocate(f.fileno(), ZERO_RANGE, 4096, 4096)
        assert os.pread(f.fileno(), 2, 4095) == b"a\0"
        with contextlib.suppress(OSError):
            fallocate(f.fileno(), COLLAPSE, 4096, 4096)
            assert os.pread(f.fileno(), 2, 4095) == b"ac"


def test_copy_file_range_shares(t):
    v = t.view({"x": ""})
    data = os.urandom(5 << 20)
    with open(v.at("a"), "wb") as f:
        f.write(data)
    with open(v.at("a"), "rb") as a, open(v.at("b"), "wb") as b:
        done = 0
        while done < len(data):
            n = os.copy_file_range(a.fileno(), b.fileno(), len(data) - done)
            assert n > 0
            done += n
    assert open(v.at("b"), "rb").read() == data
    with open(v.at("b"), "r+b") as b:
        b.write(b"changed")
    assert open(v.at("a"), "rb").read() == data


def test_appends_from_many_writers(t):
    v = t.view({"log": ""})
    def work(i):
        with open(v.at("log"), "ab", buffering=0) as f:
            for n in range(200):
                f.write(b"%02d %04d\n" % (i, n))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [th.start() for th in threads]
    [th.join() for th in threads]
    lines = v.read("log").splitlines()
    assert len(lines) == 800 and len(set(lines)) == 800


def test_shared_mappings_and_reads_agree(t):
    v = t.view({"f": "x" * 10000})
    with open(v.at("f"), "r+b", buffering=0) as f, mmap.mmap(f.fileno(), 10000) as m:
        m[5000:5003] = b"map"
        assert os.pread(f.fileno(), 3, 5000) == b"map"
        os.pwrite(f.fileno(), b"wri", 6000)
        assert m[6000:6003] == b"wri"
        m.flush()
    assert v.read("f")[5000:5003] == "map"


def test_xattrs(t):
    v = t.view({"f": "x", "d": None})
    os.setxattr(v.at("f"), "user.a", b"1")
    ply.raises(errno.EEXIST, os.setxattr, v.at("f"), "user.a", b"2", os.XATTR_CREATE)
    ply.raises(errno.ENODATA, os.setxattr, v.at("f"), "user.b", b"2", os.XATTR_REPLACE)
    ply.raises(errno.ENODATA, os.getxattr, v.at("f"), "user.b")
    os.setxattr(v.at("f"), "user.big", b"z" * 60000)
    assert os.getxattr(v.at("f"), "user.big") == b"z" * 60000
    assert sorted(os.listxattr(v.at("f"))) == ["user.a", "user.big"]
    os.removexattr(v.at("f"), "user.big")
    os.setxattr(v.at("d"), "user.d", b"")
    assert os.getxattr(v.at("d"), "user.d") == b""


def test_only_root_is_told_of_trusted_xattrs(t):
    ply.need_root()
    v = t.view({"f": "x"})
    os.chmod(t.path, 0o755)
    os.chmod(v.path, 0o755)
    for name in ("trusted.overlay.opaque", "user.a", "trusted.b", "user.trusted."):
        os.setxattr(v.at("f"), name, b"1")
    assert len(os.listxattr(v.at("f"))) == 4

    def user():
        os.setgid(65534)
        os.setuid(65534)
        assert sorted(os.listxattr(v.at("f"))) == ["user.a", "user.trusted."]

    assert ply.ended_well(ply.child(user))


def test_acls_are_kept_and_enforced(t):
    ply.need_root()
    ply.need_tool("setfacl", "getfacl")
    v = t.view({"f": "secret", "d": None})
    os.chmod(t.path, 0o755)
    os.chmod(v.path, 0o755)
    os.chmod(v.at("f"), 0o600)
    as_user = lambda: subprocess.run(["cat", v.at("f")], user=1234, group=1234, extra_groups=[],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
    assert as_user() == b""
    t.run(["setfacl", "-m", "u:1234:r", v.at("f")])
    assert as_user() == b"secret"
    os.chmod(v.at("f"), 0o600)  # masks the entry
    assert as_user() == b""
    t.run(["setfacl", "-d", "-m", "u:1234:rwx", v.at("d")])
    v.write("d/new", "x")
    assert "user:1234:rwx" in t.run(["getfacl", "-cp", v.at("d/new")]).stdout
    snap = v.checkpoint()
    t.run(["setfacl", "-b", v.at("d/new")])
    v.restore(snap)
    assert "user:1234:rwx" in t.run(["getfacl", "-cp", v.at("d/new")]).stdout


def test_which_list_of_who_is_not_in_the_group_takes_sgid(t):
    """Of a directory as well, and only the access list, though the kernel says the same of both."""
    ply.need_root()
    ply.need_tool("setfacl")
    v = t.view({"d": None})
    for path in t.path, v.path:
        os.chmod(path, 0o755)
    os.chown(v.at("d"), 1234, 77)
    os.chmod(v.at("d"), 0o2775)
    for option, sgid in ("-dm", stat.S_ISGID), ("-m", 0):
        t.run(["setfacl", option, "u:5:rwx", v.at("d")], user=1234, group=1234, extra_groups=[], cwd="/")
        assert os.stat(v.at("d")).st_mode & stat.S_ISGID == sgid, option


def test_permissions_of_other_users(t):
    ply.need_root()
    v = t.view({"open/f": "1", "closed/f": "1"})
    os.chmod(t.path, 0o755)
    os.chmod(v.path, 0o755)
    os.chmod(v.at("closed"), 0o700)
    os.chmod(v.at("open"), 0o777 | stat.S_ISVTX)
    os.chmod(v.at("open/f"), 0o644)
    def user(script):
        return subprocess.run(["sh", "-c", script], cwd=v.at("open"), user=1234, group=1234,
                              extra_groups=[], stderr=subprocess.DEVNULL).returncode
    assert user("cat f >/dev/null") == 0
    assert user("echo x >f") != 0 and user("rm -f f") != 0  # sticky
    assert user("cat ../closed/f") != 0
    assert user("echo x >mine") == 0 and os.stat(v.at("open/mine")).st_uid == 1234
    os.chmod(v.at("open/f"), 0o4755)
    os.chown(v.at("open/f"), 1234, 1234)
    os.chmod(v.at("open/f"), 0o6755)
    assert user("echo y >>f") == 0
    assert os.stat(v.at("open/f")).st_mode & 0o6000 == 0, "a write clears suid and sgid"
    os.chmod(v.at("open"), 0o2777)
    os.chown(v.at("open"), 0, 77)
    assert user("mkdir sub; echo >sub/f") == 0
    assert os.stat(v.at("open/sub")).st_gid == 77 == os.stat(v.at("open/sub/f")).st_gid
    assert os.stat(v.at("open/sub")).st_mode & stat.S_ISGID


def test_special_files(t):
    v = t.view({"x": ""})
    os.mkfifo(v.at("fifo"))
    reader = subprocess.Popen(["cat", v.at("fifo")], stdout=subprocess.PIPE)
    with open(v.at("fifo"), "w") as f:
        f.write("through a fifo")
    assert reader.communicate()[0] == b"through a fifo"
    here = os.open(v.path, os.O_RDONLY)
    s = socket.socket(socket.AF_UNIX)
    s.bind("/proc/self/fd/%d/sock" % here)
    s.listen()
    c = socket.socket(socket.AF_UNIX)
    c.connect("/proc/self/fd/%d/sock" % here)
    s.close()
    c.close()
    os.close(here)


def test_locks_between_processes(t):
    v = t.view({"f": "x"})
    code = ("import fcntl, sys; f = open(%r, 'r+'); op = getattr(fcntl, sys.argv[1])\n"
            "try: op(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "except OSError: sys.exit(9)" % v.at("f"))
    other = lambda kind: subprocess.run([sys.executable, "-c", code, kind]).returncode
    with open(v.at("f"), "r+") as f:
        for kind in ("flock", "lockf"):
            getattr(fcntl, kind)(f, fcntl.LOCK_EX)
            assert other(kind) == 9
            getattr(fcntl, kind)(f, fcntl.LOCK_UN)
            assert other(kind) == 0


def test_a_listing_is_stable_while_names_change(t):
    v = t.view(ply.make_bulk(t.at("source"), 0))
    os.mkdir(v.at("d"))
    n = 100000 if ply.LONG else 10000
    for i in range(n):
        os.close(os.open(v.at("d/keep%06d" % i), os.O_CREAT | os.O_WRONLY))
    stop = threading.Event()
    def churn():
        i = 0
        while not stop.is_set():
            i += 1
            os.close(os.open(v.at("d/churn%d" % i), os.O_CREAT | os.O_WRONLY))
            os.rename(v.at("d/churn%d" % i), v.at("d/moved%d" % i))
            os.unlink(v.at("d/moved%d" % i))
    th = threading.Thread(target=churn)
    th.start()
    try:
        for _ in range(5):
            seen = [x for x in os.listdir(v.at("d")) if x.startswith("keep")]
            assert len(seen) == n == len(set(seen)), (len(seen), len(set(seen)))
    finally:
        stop.set()
        th.join()
    subprocess.run(["rm", "-r", v.at("d")], check=True)
    assert v.ls() == []


def test_random_operations_like_on_an_ordinary_file(t):
    # As fsx: one file here, one on an ordinary filesystem, the same operations, equal always.
    v = t.view({"x": ""})
    seed = int(os.environ.get("PLYFS_TEST_SEED") or time.time())
    rng = random.Random(seed)
    print("# seed %d" % seed)
    a = os.open(v.at("f"), os.O_RDWR | os.O_CREAT)
    b = os.open(t.at("f"), os.O_RDWR | os.O_CREAT)
    limit = 600000
    history = []
    for i in range(20000 if ply.LONG else 1500):
        kind = rng.choice("wwwwtpzmcrks")
        off, n = rng.randrange(limit), rng.randrange(1, 70000)
        history.append((kind, off, n))
        if kind == "w":
            data = rng.randbytes(n)
            assert os.pwrite(a, data, off) == os.pwrite(b, data, off)
        elif kind == "t":
            os.ftruncate(a, off), os.ftruncate(b, off)
        elif kind == "p":
            for fd in (a, b):
                fallocate(fd, PUNCH_HOLE | KEEP_SIZE, off, n)
        elif kind == "z":
            fallocate(a, ZERO_RANGE, off, n)
            try:
                fallocate(b, ZERO_RANGE, off, n)
            except OSError as e:  # a tmpfs has no such call
                assert e.errno == errno.EOPNOTSUPP, e
                os.pwrite(b, bytes(n), off)
        elif kind == "m":
            size = os.fstat(b).st_size
            if size > 10:
                at = rng.randrange(size - 5)
                for fd in (a, b):
                    with mmap.mmap(fd, size) as m:
                        m[at:at + 5] = b"mmap!"
        elif kind == "c":
            size = os.fstat(b).st_size
            dst = rng.randrange(limit)
            src = rng.randrange(max(size, 1))
            n = min(n, max(size - src, 0), abs(dst - src))
            if n > 0:
                for fd in (a, b):
                    left, s, d = n, src, dst
                    while left:
                        k = os.copy_file_range(fd, fd, left, s, d)
                        assert k > 0
                        left, s, d = left - k, s + k, d + k
        elif kind == "k" and rng.random() < 0.2:
            v.checkpoint()
        elif kind == "s" and rng.random() < 0.2:
            os.posix_fadvise(a, 0, 0, os.POSIX_FADV_DONTNEED)
            os.fsync(a)
        else:
            assert os.pread(a, n, off) == os.pread(b, n, off), (seed, history[-20:])
        assert os.fstat(a).st_size == os.fstat(b).st_size, (seed, history[-20:])
        if i % 100 == 0:
            os.posix_fadvise(a, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(a, limit * 2, 0) == os.pread(b, limit * 2, 0), (seed, history[-120:])
    assert os.pread(a, limit * 2, 0) == os.pread(b, limit * 2, 0), (seed, history[-120:])


def test_statfs_and_fsync(t):
    v = t.view({"x": ""})
    s = os.statvfs(v.path)
    assert s.f_bsize == 4096 and s.f_blocks >= s.f_bavail > 0 and s.f_namemax == 255
    assert (s.f_files, s.f_ffree, s.f_favail) == (0, 0, 0), s  # not counted, and not limited
    line = t.run(["df", "--output=itotal,iused,iavail", v.path]).stdout.splitlines()[-1]
    assert line.split() in (["-", "-", "-"], ["0", "0", "0"]), line
    with open(v.at("f"), "w") as f:
        f.write("x")
        f.flush()
        os.fsync(f.fileno())
        os.fdatasync(f.fileno())
    fd = os.open(v.path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


if __name__ == "__main__":
    ply.main()
