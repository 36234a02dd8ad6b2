#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 180
"""
Who makes a file, and may only write to it, writes past the kernel's cache (lever write-around): all
others see each write when it has returned, however they look, and nothing else is different.
"""
import ctypes
import errno
import fcntl
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

libc = ctypes.CDLL(None, use_errno=True)
PAGE = 4096


def make(view, name, flags=0, mode=0o666):
    """A descriptor as the shell's > has it."""
    return os.open(view.at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, mode)


def content(path):
    with open(path, "rb") as f:
        return f.read()


# ---- readers beside the maker ----

SLOTS = 4096  # of 8 bytes: 8 pages
RACE_S = 3


def look_by_read(path):
    fd = os.open(path, os.O_RDONLY)
    return lambda slot: os.pread(fd, 8, slot * 8)


def look_by_mapping(path):
    fd = os.open(path, os.O_RDONLY)
    m = mmap.mmap(fd, SLOTS * 8, mmap.MAP_SHARED, mmap.PROT_READ)
    return lambda slot: m[slot * 8:slot * 8 + 8]


def look_at_all(path):
    """Reads ahead, and what is behind the pages that just changed."""
    fd = os.open(path, os.O_RDONLY)
    return lambda slot: os.pread(fd, SLOTS * 8, 0)[slot * 8:slot * 8 + 8]


def watch(look, written, end, rand):
    """written: for each slot what was in it for sure. What is read is that or newer."""
    looks = 0
    while not end[0] or looks <= 10:  # it may have begun late
        slot = rand.randrange(SLOTS)
        least = struct.unpack_from("q", written, slot * 8)[0]
        found = struct.unpack("q", look(slot))[0]
        assert found >= least, "slot %d: %d, and %d was written" % (slot, found, least)
        looks += 1


def test_readers_and_mappings_see_each_write_when_it_has_returned(t):
    v = t.view({})
    fd = make(v, "f")
    os.write(fd, b"\0" * SLOTS * 8)
    written, end = mmap.mmap(-1, SLOTS * 8), mmap.mmap(-1, 1)
    t.clean.append(lambda: end.__setitem__(0, 1))
    rand = ply.seeded()
    kinds = (look_by_read, look_by_mapping, look_at_all)
    pids = [ply.child(lambda k, r: watch(k(v.at("f")), written, end, r), kind,
                      random.Random(rand.random())) for kind in kinds]
    until, n = time.monotonic() + RACE_S, 0
    while time.monotonic() < until:
        n += 1
        slot = rand.randrange(SLOTS)
        assert os.pwrite(fd, struct.pack("q", n), slot * 8) == 8
        struct.pack_into("q", written, slot * 8, n)
    end[0] = 1
    assert all(map(ply.ended_well, pids))
    os.close(fd)
    assert content(v.at("f")) == written[:] and n > 100, n


def follow(path, told, end):
    """
    As tail -f: everything up to the size that the maker told is there, and no zeros. That size may
    have what somebody else is about to have appended (fs/README.md), so it is there soon.
    """
    fd = os.open(path, os.O_RDONLY)
    seen = 0
    until = time.monotonic() + 10 * RACE_S
    while not end[0] or not seen:  # it may have begun late
        size = struct.unpack_from("q", told, 0)[0]
        text = b""
        while len(text) < size - seen:
            more = os.pread(fd, size - seen - len(text), seen + len(text))
            assert more or time.monotonic() < until, "ends at %d of %d" % (seen + len(text), size)
            text += more
        assert b"\0" not in text, "zeros at %d" % (seen + text.index(b"\0"))
        seen = size


def poll_growing(path, end, begun, number):
    """As who shows a log while it grows: what is there is text, whichever way its end is learnt."""
    looks = moments = 0
    while not end[0]:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        for _ in range(20):
            if looks % 2:
                os.fstat(fd)
            text = os.pread(fd, 2 * PAGE, 0)
            if b"\0" in text:  # a page that is no more, and a newer size (fs/README.md)
                moments += 1
                again = os.pread(fd, 2 * PAGE, 0)[:len(text)]  # behind that may be what is another moment's
                assert b"\0" not in again, (text.index(b"\0"), len(text), again.index(b"\0"))
            looks += 1
        os.close(fd)
        begun[number] = looks > 100
    assert moments <= 3 + looks / 10000, (looks, moments)


def grows_while_it_is_polled(t, flags=0, seconds=RACE_S):
    v = t.view({})
    end, begun = mmap.mmap(-1, 1), mmap.mmap(-1, 3)
    t.clean.append(lambda: end.__setitem__(0, 1))
    pids = [ply.child(poll_growing, v.at("log"), end, begun, number) for number in range(3)]
    began, n = time.monotonic(), 0
    while time.monotonic() < began + seconds or n < 20 or (
            not all(begun) and time.monotonic() < began + 30):
        n += 1
        fd = make(v, "log", flags | (os.O_APPEND if n % 2 else 0))
        for _ in range(30):
            os.write(fd, b"a" * 200)
        os.close(fd)
        os.unlink(v.at("log"))
    end[0] = 1
    assert all(map(ply.ended_well, pids)) and all(begun), begun[:]


def test_who_polls_a_growing_file_meets_no_zeros(t):
    grows_while_it_is_polled(t)


def test_nor_does_he_where_its_maker_wished_for_direct_io(t):
    grows_while_it_is_polled(t, os.O_DIRECT, 4 * RACE_S)  # a file in 700 had some, for good


def append(path, count, end):
    """Somebody else's >>, whose writes go through the cache."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    n = 0
    while not end[0] or not n:
        n += 1
        os.write(fd, b"other %d\n" % n)
    struct.pack_into("q", count, 0, n)


def test_who_follows_a_log_reads_what_was_appended(t):
    v = t.view({})
    fd = make(v, "log", os.O_APPEND)
    told, count, end = (mmap.mmap(-1, 8) for _ in range(3))
    t.clean.append(lambda: end.__setitem__(0, 1))
    pids = [ply.child(follow, v.at("log"), told, end) for _ in range(2)]
    pids.append(ply.child(append, v.at("log"), count, end))
    until, n = time.monotonic() + RACE_S, 0
    while time.monotonic() < until:
        n += 1
        os.write(fd, b"line %d\n" % n)
        struct.pack_into("q", told, 0, os.fstat(fd).st_size)
    end[0] = 1
    assert all(map(ply.ended_well, pids))
    lines = content(v.at("log")).splitlines()
    for name, last in (b"line", n), (b"other", struct.unpack_from("q", count)[0]):
        assert [s for s in lines if s.startswith(name)] == [b"%s %d" % (name, i + 1)
                                                            for i in range(last)], name
        assert last > 0
    os.close(fd)


def test_many_who_append_while_others_read_wait_for_each_other_not_for_ever(t):
    """More files than the daemon has threads: each write waits for a page whose reader comes later."""
    v = t.view({})
    pid, files, threads, done = v.store.daemon(), [], [], []

    def start(work):
        for f in files:
            threads.append(threading.Thread(target=lambda f=f: done.append(work(f))))
            threads[-1].start()
        time.sleep(1)  # until all have asked

    for i in range(120):  # the daemon has at most 16 + 64 + 1
        fd = make(v, "f%d" % i)
        os.write(fd, b"x" * 100)
        files.append((fd, os.open(v.at("f%d" % i), os.O_RDONLY)))
        assert os.pread(files[-1][1], 100, 0) == b"x" * 100
        os.fstat(files[-1][1])  # the read below asks for nothing but the page
    # Ends them when they would not end; started now, as one who waits so cannot start anything.
    ender = subprocess.Popen(["bash", "-c", "read -rt 90 || umount -fc \"$0\"", v.path],
                             stdin=subprocess.PIPE)
    os.kill(pid, signal.SIGSTOP)
    try:
        start(lambda f: os.pwrite(f[0], b"y" * 100, 100))
        start(lambda f: len(os.pread(f[1], 100, 0)))
    finally:
        os.kill(pid, signal.SIGCONT)
    for thread in threads:
        thread.join()
    ender.communicate(b"\n")
    assert done == [100] * 2 * len(files), len(done)
    for fd, reader in files:
        assert os.pread(reader, 300, 0) == b"x" * 100 + b"y" * 100
        os.close(fd)
        os.close(reader)


def test_who_reads_what_another_just_wrote_meets_restores_at_once(t):
    """The sizes that the kernel is told meanwhile are those that it takes."""
    v = t.view({})

    def write(length):
        fd = os.open(v.at("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, b"%d" % length * length)

    os.close(make(v, "log"))
    snaps = []
    for n in 5000, 3, 9000:
        os.unlink(v.at("log"))
        assert ply.ended_well(ply.child(write, n))
        assert os.stat(v.at("log")).st_size == n * len("%d" % n)
        assert content(v.at("log")) == b"%d" % n * n
        snaps.append((v.checkpoint(), n))
    for snap, n in snaps + snaps[::-1]:
        v.restore(snap)
        assert os.stat(v.at("log")).st_size == n * len("%d" % n)
        assert content(v.at("log")) == b"%d" % n * n
        with open(v.at("log"), "ab") as f:
            f.write(b"+")
        assert content(v.at("log")) == b"%d" % n * n + b"+"


def test_what_was_stored_through_a_mapping_stays(t):
    v = t.view({})
    fd = make(v, "f")
    os.write(fd, b"-" * 2 * PAGE)
    other = os.open(v.at("f"), os.O_RDWR)
    with mmap.mmap(other, 2 * PAGE) as m:
        for i in range(200):
            m[10 + i] = ord("m")  # in the page that is written next, not written back before
            assert os.pwrite(fd, b"w", 1000 + i) == 1
            assert m[1000 + i] == ord("w") and m[10 + i] == ord("m")
        os.pwrite(other, b"o", 2000)
        assert m[2000] == ord("o")
        m.flush()
    want = bytearray(b"-" * 2 * PAGE)
    want[10:210] = b"m" * 200
    want[1000:1200] = b"w" * 200
    want[2000] = ord("o")
    assert content(v.at("f")) == want
    os.close(fd)
    os.close(other)


# ---- as any other descriptor ----

def test_large_odd_and_scattered_writes(t):
    v = t.view({})
    rand = ply.seeded()
    fd = make(v, "f")
    want = bytearray()
    for length in (1, 4095, 4097, 131072, 1048576, 1048577, 3000001, 7):
        data = mmap.mmap(-1, length + 3)  # never at a page's beginning
        data[:] = rand.randbytes(length + 3)
        assert os.write(fd, memoryview(data)[3:]) == length
        want += data[3:]
    assert os.writev(fd, [b"a", b"", b"b" * 5000, b"c"]) == 5002
    want += b"a" + b"b" * 5000 + b"c"
    pos = len(want) + 100000
    assert os.pwrite(fd, b"behind a hole", pos) == 13
    want += bytes(100000) + b"behind a hole"
    assert os.pwrite(fd, b"in the midst", 2000000) == 12
    want[2000000:2000012] = b"in the midst"
    os.ftruncate(fd, 2500000)
    assert content(v.at("f")) == want[:2500000]
    os.lseek(fd, 0, os.SEEK_END)
    # From a pipe, from another file, and from the file's own pages.
    r, w = os.pipe()
    os.write(w, b"piped")
    assert os.splice(r, fd, 5) == 5
    os.close(r)
    os.close(w)
    src = os.open(v.at("f"), os.O_RDONLY)
    assert os.sendfile(fd, src, 1000, 50000) == 50000
    assert os.copy_file_range(src, fd, 60000, 0) == 60000
    with mmap.mmap(src, 100000, mmap.MAP_SHARED, mmap.PROT_READ) as m:
        assert os.write(fd, memoryview(m)[7:90007]) == 90000
    want = want[:2500000] + b"piped" + want[1000:51000] + want[:60000] + want[7:90007]
    assert content(v.at("f")) == want
    os.close(src)
    os.close(fd)
    v.unmount()
    assert content(v.store.mount().at("f")) == want


def test_what_write_refuses(t):
    v = t.view({})
    fd = make(v, "f")
    assert libc.write(fd, ctypes.c_void_p(8), 10) == -1 and ctypes.get_errno() == errno.EFAULT
    assert os.write(fd, b"") == 0 and os.fstat(fd).st_size == 0
    assert libc.read(fd, ctypes.create_string_buffer(1), 1) == -1
    assert ctypes.get_errno() == errno.EBADF

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
        assert os.write(fd, b"x" * 12000) == 10000
        try:
            os.write(fd, b"x")
        except OSError as e:
            assert e.errno == errno.EFBIG
        else:
            raise AssertionError("beyond the limit")

    assert ply.ended_well(ply.child(limited))
    assert os.stat(v.at("f")).st_size == 10000
    for prot in (mmap.PROT_READ, mmap.PROT_WRITE):
        try:
            mmap.mmap(fd, PAGE, mmap.MAP_SHARED, prot)
        except PermissionError:
            continue
        raise AssertionError("mapped")
    os.close(fd)


def test_unnamed_files_and_direct_io_by_wish(t):
    v = t.view({})
    fd = os.open(v.path, os.O_TMPFILE | os.O_WRONLY, 0o644)
    os.write(fd, b"unnamed")
    os.link("/proc/self/fd/%d" % fd, v.at("named"), src_dir_fd=0, follow_symlinks=True)
    assert v.read("named") == "unnamed"
    os.write(fd, b" once")
    assert v.read("named") == "unnamed once"
    os.close(fd)
    page = mmap.mmap(-1, PAGE)
    page[:] = b"d" * PAGE
    fd = make(v, "direct", os.O_DIRECT)
    assert os.write(fd, page) == PAGE
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    assert os.write(fd, b"not aligned") == 11
    os.close(fd)
    assert v.read("direct") == "d" * PAGE + "not aligned"


def test_a_descriptor_goes_on_after_checkpoints_and_restores(t):
    v = t.view({})
    fd = make(v, "f")
    os.write(fd, b"one")
    one = v.checkpoint()
    os.write(fd, b" two")
    assert v.read("f") == "one two"
    two = v.checkpoint()
    v.restore(one)
    assert v.read("f") == "one"
    v.restore(two)
    assert v.read("f") == "one two"
    again = os.open(v.at("f"), os.O_WRONLY | os.O_APPEND)
    os.write(again, b" three")
    assert v.read("f") == "one two three"
    os.close(again)
    os.close(fd)


# ---- rights that a write takes ----

def test_what_a_user_writes_does_not_run_with_the_rights_of_its_owner(t):
    """
    He keeps the descriptor while root makes the file root's, with set-uid: his next write takes
    that, and nobody asks for the mode before the file is run. (Through the cache it is refused.)
    """
    ply.need_root()
    around = "are written around" in t.run([ply.PLYFS, "doctor"], check=False).stdout
    store = t.store()
    store.import_(t.tree({}))
    os.chmod(t.path, 0o755)
    v = store.mount(None, None, None, "--suid")
    os.chmod(v.path, 0o777)
    program, path = content(shutil.which("id")), v.at("id")
    ready, go = os.pipe(), os.pipe()

    def user():
        os.setgid(65534)
        os.setuid(65534)
        fd = make(v, "id", mode=0o755)
        os.write(fd, program[:-1])
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        if around:
            os.write(fd, program[-1:])
        else:
            ply.raises(errno.EPERM, os.write, fd, program[-1:])

    pid = ply.child(user)
    os.close(ready[1])
    assert os.read(ready[0], 1) == b"1"
    os.chown(path, 0, 0)
    os.chmod(path, 0o4755)
    assert os.stat(path).st_mode & 0o4000  # so the kernel knows
    os.write(go[1], b"1")
    assert ply.ended_well(pid)
    if around:
        who = t.run([path, "-u"], user=65534, group=65534, extra_groups=[], cwd="/").stdout
        assert who == "65534\n", who
        assert os.stat(path).st_mode & 0o7777 == 0o755
    else:
        assert content(path) == program[:-1]
    for end in (ready[0], *go):
        os.close(end)


def test_an_access_list_holds_at_once_after_a_write(t):
    """
    What mode a list makes the kernel does not know, and has to ask us, who tell it attributes that it
    must not take while the writer may not have his answer (which with a sync is long).
    """
    ply.need_root()
    v = t.view({})
    for path in t.path, v.path:
        os.chmod(path, 0o755)
    path, ready, go = v.at("f"), os.pipe(), os.pipe()

    def writer():
        os.close(go[1])
        fd = make(v, "f", mode=0o644)
        os.pwritev(fd, [b"text"], 0, os.RWF_DSYNC)
        os.write(ready[1], b"1")
        os.read(go[0], 1)

    pid = ply.child(writer)
    assert os.read(ready[0], 1) == b"1"
    for others in 0, 4, 0:
        os.setxattr(path, "system.posix_acl_access", struct.pack(
            "<I" + "HHi" * 3, 2, 1, 6, -1, 4, 0, -1, 32, others, -1))
        read = t.run(["cat", path], user=65534, group=65534, extra_groups=[], cwd="/", check=False)
        assert read.stdout == ("text" if others else ""), (others, read)
    os.write(go[1], b"1")
    assert ply.ended_well(pid)
    for end in *ready, *go:
        os.close(end)


def test_a_write_ends_file_capabilities(t):
    ply.need_root()
    v = t.view({})
    fd = make(v, "f", mode=0o755)
    os.write(fd, b"one")
    os.setxattr(v.at("f"), "security.capability",
                struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
    os.write(fd, b"two")
    assert os.listxattr(v.at("f")) == []
    os.close(fd)


if __name__ == "__main__":
    ply.main()
