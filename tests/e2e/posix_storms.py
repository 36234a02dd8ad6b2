#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 240
"""Long random work on one file and on one tree: lib/filemodel.c, lib/treestorm.c, stress-ng, pages with names."""
import errno
import mmap
import os
import random
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

FILEMODEL = os.path.join(ply.BUILD, "tests", "filemodel")
TREESTORM = os.path.join(ply.BUILD, "tests", "treestorm")
SEED = os.environ.get("PLYFS_TEST_SEED") or str(int(time.time()))

# Parts of stress-ng's filesystem class for a short run.
STRESSORS = ("access chdir chmod chown dentry dir fallocate fcntl filename flock fpunch hdd "
             "iomix lease link lockf lockofd rename symlink sync-file utime xattr").split()


def exercise(*argv, timeout=7200):
    p = ply.run(list(map(str, argv)), check=False, timeout=timeout)
    assert p.returncode == 0, "%s\n%s%s" % (" ".join(p.args), p.stdout, p.stderr)
    print("# " + p.stdout.splitlines()[-1])


def test_a_file_is_what_its_model_is(t):
    view = t.view({"x": ""})
    exercise(FILEMODEL, "--seed", SEED, "--ops", 1000000 if ply.LONG else 12000, view.path)
    assert view.store.ply("check").returncode == 0


def test_a_file_is_what_its_model_is_across_checkpoints_and_restores(t):
    view = t.view({"x": ""})
    every = ("500", "5000") if ply.LONG else ("50", "250")
    exercise(FILEMODEL, "--seed", SEED, "--ops", 1000000 if ply.LONG else 10000,
             "--checkpoint-every", every[0], "--restore-every", every[1], view.path)
    assert view.store.ply("check").returncode == 0


def test_a_small_file_is_what_its_model_is(t):
    # Around the size up to which a file lives in its inode's item, and one block.
    view = t.view({"x": ""})
    exercise(FILEMODEL, "--seed", SEED, "--ops", 300000 if ply.LONG else 6000, "--max", 8192,
             "--checkpoint-every", 100, "--restore-every", 1000, view.path)


def drop_caches():
    if os.geteuid() == 0:  # else what is cached is judged
        ply.drop_caches()


def test_a_tree_is_sound_after_a_storm(t):
    view = t.view({"x": ""})
    inodes = view.inodes()
    os.mkdir(view.at("s"))
    exercise(TREESTORM, "--seed", SEED, "--processes", 8 if ply.LONG else 4,
             "--seconds", 600 if ply.LONG else 3, view.at("s"))
    drop_caches()
    exercise(TREESTORM, "--judge", view.at("s"))
    before = view.digest()
    snap = view.checkpoint()

    # The same tree in each way in which it can come back.
    exercise(TREESTORM, "--seed", SEED, "--seconds", 1, view.at("s"))
    view.restore(snap)
    exercise(TREESTORM, "--judge", view.at("s"))
    assert view.digest() == before
    view.unmount()
    view.store.stop()
    view = view.store.mount()
    exercise(TREESTORM, "--judge", view.at("s"))
    assert view.digest() == before
    old = view.store.mount(snapshot=snap)
    assert old.digest() == before
    old.unmount()
    assert view.store.ply("check").returncode == 0

    subprocess.run(["rm", "-rf", view.at("s")], check=True)
    assert view.ls() == ["x"] and os.stat(view.path).st_nlink == 2
    drop_caches()
    ply.wait_for("no inode but those with a name", lambda: view.inodes() == inodes)
    assert view.store.ply("check").returncode == 0


def test_stress_ng_verifies(t):
    ply.need_tool("stress-ng")
    view = t.view({"x": ""})
    which = ["--class", "filesystem", "--sequential", "2", "--timeout", "6"] if ply.LONG else [
        x for s in STRESSORS for x in ("--" + s, "1")] + [
            x for s in ("fallocate", "hdd", "iomix")
            for x in ("--%s-bytes" % s, "16m")] + ["--timeout", "3"]
    p = ply.run(["stress-ng", *which, "--verify", "--temp-path", view.path, "--metrics-brief"],
                check=False, timeout=3600, cwd=view.path)
    said = p.stdout + p.stderr
    bad = [x for x in said.splitlines() if "fail:" in x or "error:" in x.lower()]
    # 0: all well; 3: some stressors are not for this machine.
    assert p.returncode in (0, 3) and not bad, "exit %d\n%s" % (p.returncode,
                                                              "\n".join(bad) or said)
    # Its `open` leaves one where descriptors run out between two opens of it; on ext4 as well.
    left = [x for x in view.ls() if not x.startswith("stress-open-") or os.path.getsize(view.at(x))]
    assert left == ["x"], "stress-ng leaves files: %s" % left


# ---- pages that say what they are ----

PAGE = 4096
REQUEST = 256  # pages of the largest one
PAGES = 384    # of a file, which is more
WRITE_MAX = 96 # of one write, which is one request wherever it begins
FIXED = 2      # files whose size stays; behind them are as many that grow, are cut and come anew


def pages(file, first, count, version):
    return b"".join(struct.pack("<4Q", file + 1, n, version, ~version & (1 << 64) - 1) * (PAGE // 32)
                    for n in range(first, first + count))


def written(file, version):
    """Where a file was written with this version: the first page and how many. Often in place."""
    rng = random.Random(file << 32 | version)
    count = rng.choice([1, 2, 3, 4, 5, rng.randrange(1, WRITE_MAX + 1)])
    return rng.randrange(8 if count < 6 else PAGES - count + 1), count


class Judge:
    """Of what one reads. sees_all: what it read later is no earlier state."""

    def __init__(self, sees_all):
        self.sees_all = sees_all
        self.known = [[0] * (PAGES + 1) for _ in range(FIXED)]  # each page's version, and the last

    def whole(self, file, first, versions):
        """They are what the last write left, and the one before it, and so on."""
        last, known = max(versions), self.known[file]
        if not self.sees_all:
            begin, count = written(file, last) if last else (first, 0)
            wrong = [n for n in range(max(begin, first), min(begin + count, first + len(versions)))
                     if versions[n - first] != last]
        else:
            while known[PAGES] < last:
                known[PAGES] += 1
                begin, count = written(file, known[PAGES])
                known[begin:begin + count] = [known[PAGES]] * count
            wrong = [first + i for i, v in enumerate(versions) if v != known[first + i]]
        assert not wrong, "version %d of file %d: pages %s are of versions %s" % (
            last, file, wrong, [versions[n - first] for n in wrong])

    def read(self, file, first, data, at_once):
        """at_once: it was one request."""
        versions = []
        for i in range(0, len(data), PAGE):
            page, n = data[i:i + PAGE], first + i // PAGE
            if file >= FIXED and page == bytes(PAGE):
                continue  # a restore cut it before a write behind its end
            # Who writes into a page of the cache does not keep it from who reads it.
            head = page[:32] if at_once else struct.pack("<2Q", file + 1, n)
            f, number, version, inverse = struct.unpack_from("<4Q", page)
            assert (f, number) == (file + 1, n) and page.count(head) == PAGE // 32, (
                "page %d of file %d is page %d of file %d, version %d, or some of it" % (
                    n, file, number, f - 1, version))
            assert not at_once or version ^ inverse == (1 << 64) - 1, (version, inverse)
            versions.append(version)
        if at_once and file < FIXED:
            self.whole(file, first, versions)


def change(view, file, end):
    """The only one who writes to this file and to its neighbour that is not of fixed size."""
    rng, version, other = random.Random(file), 0, file + FIXED
    while time.monotonic() < end:
        version += 1
        first, count = written(file, version)
        with open(view.at("p%d" % file), "r+b", buffering=0) as f:
            assert f.seek(first * PAGE) + f.write(pages(file, first, count, version)) == (
                first + count) * PAGE
        if rng.random() < 0.7:
            continue
        try:
            fd = os.open(view.at("p%d" % other), os.O_RDWR | os.O_CREAT, 0o600)
            with open(fd, "r+b", buffering=0) as f:
                size = f.seek(0, os.SEEK_END) // PAGE
                if size + WRITE_MAX < PAGES:
                    f.write(pages(other, size, rng.randrange(1, WRITE_MAX + 1), version))
                elif rng.random() < 0.5:
                    f.truncate(rng.randrange(size) * PAGE)
                else:
                    os.unlink(view.at("p%d" % other))
        except OSError as e:  # a restore took the name, or the file, between two calls
            assert e.errno in (errno.ENOENT, errno.ESTALE), e


def read_past_cache(fd, first, buf):
    return bytes(buf[:os.preadv(fd, [buf], first * PAGE)])


def read_uncached(fd, first, buf):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(fd, len(buf), first * PAGE)


def send_uncached(fd, first, buf):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with open(os.memfd_create("copy"), "r+b", buffering=0) as copy:
        at, n = 0, 1
        while at < len(buf) and n > 0:  # it ends early where a restore takes a page away
            n = os.sendfile(copy.fileno(), fd, first * PAGE + at, len(buf) - at)
            at += n
        return os.pread(copy.fileno(), at, 0)


def look(view, seed, end, judge):
    rng, buf = random.Random(seed), mmap.mmap(-1, REQUEST * PAGE)
    done = 0
    while time.monotonic() < end or not done:  # it may have begun late
        how = rng.choice([read_past_cache] * 4 + [read_uncached, send_uncached])
        past = how == read_past_cache
        file = rng.randrange(2 * FIXED if past else FIXED)
        first = rng.choice([0, rng.randrange(PAGES // 2)])
        try:
            fd = os.open(view.at("p%d" % file), os.O_RDONLY | (os.O_DIRECT if past else 0))
            try:
                data = how(fd, first, buf)
            finally:
                os.close(fd)
        except OSError as e:
            assert e.errno in (errno.ENOENT, errno.ESTALE) and file >= FIXED, "%s: file %d: %s" % (
                how.__name__, file, e)
            continue
        if file < FIXED:
            assert len(data) == min(REQUEST, PAGES - first) * PAGE, "%s: %d bytes" % (
                how.__name__, len(data))
        judge.read(file, first, data, past)
        done += 1


def look_and_change(view, rng, disturb, sees_all):
    end = time.monotonic() + (60 if ply.LONG else 2)
    pids = [ply.child(change, view, file, end) for file in range(FIXED)]
    pids += [ply.child(look, view, rng.random(), end, Judge(sees_all)) for _ in range(4)]
    while time.monotonic() < end:
        disturb()
    assert all([ply.ended_well(pid) for pid in pids])
    assert view.store.ply("check").returncode == 0


def view_of_pages(t):
    return t.view({"p%d" % file: pages(file, 0, PAGES, 0) for file in range(FIXED)})


def test_what_is_read_at_once_was_there_at_once_and_is_of_that_file(t):
    view, rng = view_of_pages(t), ply.seeded()

    def checkpoint():
        time.sleep(rng.random() / 2)
        view.checkpoint()

    look_and_change(view, rng, checkpoint, sees_all=True)


def test_so_it_is_while_states_come_back(t):
    view, rng, kept = view_of_pages(t), ply.seeded(), []

    def to_and_fro():
        kept.append(view.checkpoint())
        time.sleep(rng.random() / 5)
        if rng.random() < 0.5:
            view.restore(rng.choice(kept[-5:]))

    look_and_change(view, rng, to_and_fro, sees_all=False)


def test_so_it_is_with_one_daemon_after_the_other(t):
    t.deaths()
    view, rng = view_of_pages(t), ply.seeded()

    def kill():
        time.sleep(rng.random() / 2)
        view.store.kill()
        view.checkpoint()

    look_and_change(view, rng, kill, sees_all=True)


if __name__ == "__main__":
    ply.main()
