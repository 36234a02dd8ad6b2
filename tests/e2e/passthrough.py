#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""
mount --passthrough: the kernel reads large files of a snapshot by itself, from copies. What is read is
the same, it goes on without the daemon, views share it, and where there is no room it is read as ever.
"""
import concurrent.futures
import contextlib
import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

MIB = 1 << 20
OPEN, RELEASE = 14, 18  # opcodes


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def passing(store, snap, *more):
    """A view of the snapshot, with --passthrough where that can be."""
    ply.need_root()
    store.views += 1
    at = store.bench.at("pass-%d" % store.views)
    os.mkdir(at)
    p = store.ply("mount", "--snapshot", snap, "--passthrough", "--at", at, *more, check=False)
    for why in ("does not offer", "root on the machine", "on an overlay"):
        if why in p.stderr:
            ply.skip(p.stderr.strip())
    assert p.returncode == 0, p.stderr
    store.daemon()
    return ply.View(store, at)


def made(t, files, *more):
    """A store with a tree, and a view of it."""
    store = t.store()
    return passing(store, store.import_(t.tree(files)), *more)


def shown(view):
    return next(v for v in view.store.json("status", "--ops")["views"]
                if v["mountpoint"] == view.path)


def passed(view):
    return shown(view)["passthrough"]


def sizes(view):
    return view.store.json("status")["sizes"]


def copies(view):
    """Inode numbers of what is copied."""
    folder = os.path.join(view.store.path, "copies")
    return {int(name.split("-")[1], 16) for name in os.listdir(folder)} \
        if os.path.isdir(folder) else set()


def content(path):
    with open(path, "rb") as f:
        return f.read()


def supervisor_of(pid):
    return int(ply.read("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[1])


def kill(view):
    """The daemon dies, and the next one answers."""
    os.kill(view.store.daemon(), signal.SIGKILL)
    os.statvfs(view.path)


def test_the_tree_is_the_same_and_the_kernel_reads_it(t):
    source = t.tree({"small": "x" * 1000, "dir/large": noise(3 * MIB + 17), "just": noise(MIB),
                     "below": noise(MIB - 1), "empty": ""})
    with open(os.path.join(source, "sparse"), "wb") as f:
        f.truncate(40 * MIB)
        f.seek(20 * MIB + 5)
        f.write(b"in the middle")
        f.seek(30 * MIB)
        f.write(b"and behind another hole")
    os.link(os.path.join(source, "just"), os.path.join(source, "link"))
    store = t.store()
    view = passing(store, store.import_(source))
    with ply.caches_stay():
        ply.assert_same_tree(source, view.path)
        first, ops = passed(view), shown(view)["ops"]
        assert first["opens"] >= 4 and first["other_opens"] == 0, first
        assert 4 * MIB + 17 <= first["copied_bytes"] < 6 * MIB, first
        assert ops["READ"] < 20, ops  # of small files
        assert len(copies(view)) == 3 and sizes(view)["copies"] == 3
        assert sizes(view)["copy_bytes"] < 6 * MIB, sizes(view)  # holes stay holes
        ply.assert_same_tree(source, view.path)
        again = passed(view)
        assert again["opens"] == 2 * first["opens"], (first, again)
        assert again["copied_bytes"] == first["copied_bytes"]
        # Reading changes no attribute that the kernel would have to ask for again.
        assert shown(view)["ops"].get("GETATTR", 0) == ops.get("GETATTR", 0)
    assert ", passthrough\n" in store.out("status")
    assert "%d passed through, 0 not" % again["opens"] in store.out("status", "--ops")


def test_views_share_a_copy(t):
    view = made(t, {"large": noise(2 * MIB)})
    assert content(view.at("large")) == noise(2 * MIB)
    other = passing(view.store, shown(view)["snapshot"])
    assert content(other.at("large")) == noise(2 * MIB)
    assert passed(other) == {"opens": 1, "other_opens": 0, "copied_bytes": 0}
    assert copies(view) == {os.stat(view.at("large")).st_ino}


def test_snapshots_share_what_they_have_alike(t):
    store = t.store()
    store.import_(t.tree({"large": noise(2 * MIB), "other": noise(2 * MIB, 2), "small": "1"}))
    main = store.mount()
    snaps = [main.checkpoint()]
    main.write("small", "2")
    snaps.append(main.checkpoint())
    with open(main.at("other"), "r+b") as f:
        f.seek(MIB)
        f.write(b"one byte less")
    snaps.append(main.checkpoint())
    changed = content(main.at("other"))
    assert len(set(snaps)) == 3
    got = []
    for snap in snaps:
        view = passing(store, snap)
        assert content(view.at("large")) == noise(2 * MIB)
        assert content(view.at("other")) == (changed if snap == snaps[2] else noise(2 * MIB, 2))
        got.append(passed(view)["copied_bytes"] // MIB)
    assert got == [4, 0, 2], got
    # Another history has the same inode numbers.
    more = store.import_(t.tree({"large": noise(2 * MIB, 3), "other": noise(2 * MIB, 4)}, "more"),
                         "--branch", "more")
    view = passing(store, more)
    assert content(view.at("large")) == noise(2 * MIB, 3)
    assert content(view.at("other")) == noise(2 * MIB, 4)
    assert passed(view) == {"opens": 2, "other_opens": 0, "copied_bytes": 4 * MIB}
    assert 9 * MIB < sizes(view)["copy_bytes"] < 11 * MIB, sizes(view)
    assert sizes(view)["copies"] == 8


def is_unused(view):
    """Is there no copy that somebody has open?"""
    folder = os.path.join(view.store.path, "copies")
    for copy in os.listdir(folder):
        with open(os.path.join(folder, copy)) as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


def test_many_who_open_it_at_once_make_one_copy(t):
    view = made(t, {"large": noise(8 * MIB), "other": noise(2 * MIB, 2)})
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        names = ["large", "other"] * 8
        got = list(pool.map(lambda name: content(view.at(name)), names))
    for name, data in zip(names, got):
        assert data == (noise(8 * MIB) if name == "large" else noise(2 * MIB, 2)), name
    assert passed(view) == {"opens": 16, "other_opens": 0, "copied_bytes": 10 * MIB}
    ply.wait_for("all opens to be given back", lambda: is_unused(view))


def test_who_opens_something_else_does_not_wait_for_a_copy(t):
    """Once in some tries: whoever looks may get no CPU before the copy is there."""
    size, tries = 32 * MIB, 8
    data = noise(size)
    view = made(t, {name: data if name[0] == "l" else "small"
                    for n in range(tries) for name in ("large%d" % n, "small%d" % n)})
    for n in range(tries):
        opening = threading.Thread(target=content, args=(view.at("large%d" % n),))
        opening.start()
        ply.wait_for("the copy to be begun", lambda: passed(view)["copied_bytes"] > n * size)
        os.stat(view.at("small%d" % n))
        was_first = passed(view)["copied_bytes"] < (n + 1) * size
        opening.join()
        if was_first:
            return
    raise AssertionError("each stat came when the copy was done")


def test_programs_run_and_files_are_mapped(t):
    data = noise(4 * MIB)
    program = content(ply.PLYFSD)
    source = t.tree({"data": data, "plyfsd": program + bytes(max(0, MIB - len(program)))})
    shutil.copymode(ply.PLYFSD, os.path.join(source, "plyfsd"))
    store = t.store()
    view = passing(store, store.import_(source))
    assert t.run([view.at("plyfsd"), "--version"]).stdout.startswith("plyfsd ")
    rng = random.Random(2)
    with open(view.at("data"), "rb") as f:
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        try:
            mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            raise AssertionError("mapped for writing")
        except PermissionError:
            pass
    for _ in range(300):  # the descriptor is closed
        at = rng.randrange(len(data))
        assert m[at:at + 100] == data[at:at + 100], at
    assert passed(view)["other_opens"] == 0 and "READ" not in shown(view)["ops"]
    # What was forgotten by us is still what is mapped.
    store.ply("check", "--read-data")
    assert not copies(view)
    assert m[:] == data
    m.close()


def test_an_overlay_lies_on_it(t):
    data = noise(3 * MIB)
    view = made(t, {"large": data})
    upper, at = t.at("upper"), t.at("overlay")
    for name in (upper, t.at("work"), at):
        os.mkdir(name)
    p = t.run(["mount", "-t", "overlay", "overlay", at, "-o",
               "lowerdir=%s,upperdir=%s,workdir=%s" % (view.path, upper, t.at("work"))], check=False)
    if p.returncode:
        ply.skip("no overlay here: " + p.stderr.strip())
    with open(os.path.join(at, "large"), "rb") as f:
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            assert m[:] == data
        assert f.read() == data
        with open(os.path.join(at, "large"), "r+b") as g:  # copied up
            g.write(b"changed")
        assert content(os.path.join(at, "large")) == b"changed" + data[7:]
    assert content(view.at("large")) == data and content(os.path.join(upper, "large"))[:7] == b"changed"
    assert passed(view)["other_opens"] == 0
    t.run(["umount", at])


def test_reading_goes_on_without_the_daemon(t):
    t.deaths()
    data = noise(3 * MIB)
    view = made(t, {"large": data})
    want = t.run(["sha1sum"], stdin=open(os.path.join(t.at("source"), "large"), "rb")).stdout
    with open(view.at("large"), "rb") as f:
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        daemon = view.store.daemon()
        supervisor = supervisor_of(daemon)
        os.kill(daemon, signal.SIGSTOP)
        try:
            assert t.run(["sha1sum"], stdin=f).stdout == want
            os.kill(supervisor, signal.SIGSTOP)
            os.kill(daemon, signal.SIGKILL)
            f.seek(0)
            assert t.run(["sha1sum"], stdin=f).stdout == want
            assert m[:] == data
        finally:
            os.kill(supervisor, signal.SIGCONT)
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGCONT)
        m.close()
    assert content(view.at("large")) == data


def test_the_next_daemon_answers_opens_alike(t):
    """The kernel refuses (EIO) to have one file open in two ways."""
    t.deaths()
    view = made(t, {"large": noise(2 * MIB), "other": noise(2 * MIB, 2)})
    with open(view.at("large"), "rb") as f:
        kill(view)
        assert content(view.at("large")) == noise(2 * MIB)
        assert f.read() == noise(2 * MIB)
        kill(view)
        with open(view.at("large"), "rb") as g:
            f.close()
            view.store.ply("daemon", "--replace")
            assert content(view.at("large")) == g.read() == noise(2 * MIB)
    # Copies are good for the next one; only what is new is copied.
    kill(view)
    assert content(view.at("large")) == noise(2 * MIB)
    assert content(view.at("other")) == noise(2 * MIB, 2)
    assert passed(view) == {"opens": 2, "other_opens": 0, "copied_bytes": 2 * MIB}


def test_a_daemon_that_dies_answering_opens_and_closes(t):
    t.deaths()
    t.env["PLYFS_TEST_DIE"] = die = t.at("die")
    os.mkdir(die)
    view = made(t, {"large": noise(2 * MIB), "other": noise(2 * MIB, 2)})
    if ply.read("/proc/%d/environ" % view.store.daemon()).find("PLYFS_TEST_DIE") < 0:
        ply.skip("the environment did not reach the daemon")
    for opcode in (OPEN, RELEASE):
        with open(view.at("other"), "rb") as held:
            for _ in range(4):
                pid = view.store.daemon()
                at = os.path.join(die, str(opcode))
                ply.write(at, "")
                assert content(view.at("large")) == noise(2 * MIB)
                assert content(view.at("other")) == noise(2 * MIB, 2)
                if opcode == OPEN and os.path.exists(at):
                    ply.skip("a release build")
                ply.wait_for("a close to be answered", lambda: not os.path.exists(at))
                ply.wait_for("the next daemon", lambda: view.store.daemon() not in (None, pid))
            assert held.read() == noise(2 * MIB, 2)
    assert passed(view)["other_opens"] == 0


def test_opens_through_many_deaths(t):
    """Counts of opens are right enough whatever a death comes between."""
    t.deaths()
    files = {"f%d" % i: noise((1 + i) * MIB, i) for i in range(3)}
    view = made(t, {**files, "small": "1"})
    kills, over = 40 if ply.LONG else 12, threading.Event()

    def work(seed):
        rng, held, done = random.Random(seed), [], 0
        while not over.is_set():
            name = rng.choice(list(files))
            f = open(view.at(name), "rb")
            at = rng.randrange(len(files[name]) - 100)
            f.seek(at)
            assert f.read(100) == files[name][at:at + 100], (name, at)
            assert content(view.at("small")) == b"1"
            held.append(f)
            if len(held) > 4 or rng.random() < 0.5:
                held.pop(rng.randrange(len(held))).close()
            done += 1
        for f in held:
            f.close()
        return done

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, seed) for seed in range(4)]
        rng = random.Random(9)
        try:
            for _ in range(kills):
                time.sleep(rng.random() * 0.05)
                kill(view)
        finally:
            over.set()
        assert sum(w.result() for w in workers) > 0
    for name, data in files.items():
        assert content(view.at(name)) == data
    assert passed(view)["other_opens"] == 0


def test_nothing_can_be_written(t):
    view = made(t, {"large": noise(MIB), "small": "1"})
    held = open(view.at("large"), "rb")
    for _ in range(2):
        for name in ("large", "small"):
            for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
                try:
                    os.close(os.open(view.at(name), flags))
                    raise AssertionError((name, flags))
                except OSError as e:
                    assert e.errno == errno.EROFS, (name, flags, e)
        # Now the kernel asks us.
        t.env["LIBMOUNT_FORCE_MOUNT2"] = "always"  # as in posix_sharing.py
        t.run(["mount", "-i", "-o", "remount,rw", view.path])
    assert held.read() == content(view.at("large")) == noise(MIB)
    assert passed(view)["other_opens"] == 0


def test_old_copies_make_room_for_new_ones(t):
    disk = ply.small_disk(t)
    store = t.store("disk/store")
    files = {"f%d" % i: noise(4 * MIB, i) for i in range(10)}
    view = passing(store, store.import_(t.tree(files)))
    inode = {name: os.stat(view.at(name)).st_ino for name in files}
    with open(view.at("f0"), "rb") as held:
        held.read(1)
        for name, data in files.items():
            assert content(view.at(name)) == data, name
        now = copies(view)
        assert inode["f0"] in now and inode["f9"] in now and inode["f1"] not in now, (inode, now)
        st = os.statvfs(disk)
        assert sizes(view)["copy_bytes"] <= st.f_bfree * st.f_frsize
        assert held.read() == files["f0"][1:]
    assert passed(view)["other_opens"] == 0, passed(view)
    assert content(view.at("f1")) == files["f1"] and inode["f1"] in copies(view)


def test_without_room_it_is_read_as_ever(t):
    t.deaths()
    ply.small_disk(t)
    store = t.store("disk/store")
    large = noise(36 * MIB)
    view = passing(store, store.import_(t.tree({"large": large, "other": noise(2 * MIB, 2)})))
    with open(view.at("large"), "rb") as f:
        assert f.read() == content(view.at("large")) == large
        assert passed(view) == {"opens": 0, "other_opens": 2, "copied_bytes": 0}
        kill(view)
        assert content(view.at("large")) == large  # opened in that way still
        assert content(view.at("other")) == noise(2 * MIB, 2)
    now = passed(view)
    assert now["opens"] == 1 and now["other_opens"] == 1, now
    assert "passthrough: a copy of a file of %d bytes" % len(large) in store.log_tail()
    assert "of a file" in store.log_tail()


def test_copies_give_way_when_the_disk_fills(t):
    disk = ply.small_disk(t)
    store = t.store("disk/store")
    view = passing(store, store.import_(t.tree({"large": noise(12 * MIB), "held": noise(2 * MIB, 2)})))
    main = store.mount()
    with open(view.at("held"), "rb") as held, open(os.path.join(disk, "filler"), "wb") as filler:
        assert content(view.at("large")) == noise(12 * MIB) and held.read() == noise(2 * MIB, 2)
        assert len(copies(view)) == 2
        st = os.statvfs(disk)
        os.posix_fallocate(filler.fileno(), 0, st.f_bavail * st.f_frsize - 12 * MIB)
        main.write("a", "a change, for the sealer to wake")
        ply.wait_for("room", lambda: copies(view) == {os.stat(view.at("held")).st_ino}, 60)
    assert passed(view)["other_opens"] == 0


def test_damage_is_read_as_ever(t):
    """A copy of a file that cannot be read whole is none; the rest of the file is there."""
    view = made(t, {"large": noise(2 * MIB)})
    pack, = [p for p in os.listdir(os.path.join(view.store.path, "packs"))]
    path = os.path.join(view.store.path, "packs", pack)
    middle = noise(2 * MIB)[MIB:MIB + 100]
    at = content(path).index(middle)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(bytes(100))
    with open(view.at("large"), "rb") as f:
        assert f.read(1000) == noise(2 * MIB)[:1000]
        f.seek(MIB)
        try:
            f.read(1000)
            raise AssertionError("damage was not seen")
        except OSError as e:
            assert e.errno == errno.EIO, e
    assert passed(view)["other_opens"] == 1 and not copies(view)


def test_an_open_survives_whatever_fails(t):
    """One call of the C library after the other fails: the file is opened all the same (P3)."""
    faults = ply.Faults(t)
    data = noise(MIB + 1)
    view = made(t, {"large": data})
    n, spared = 0, 0
    while spared < 3:  # more than once, as not all is done each time
        spared += 1
        for there in (False, True):  # the copy
            # The kernel tells of a close when it likes; gc leaves what is open.
            ply.wait_for("the last close", lambda: view.store.ply("gc") and not copies(view))
            if there:
                assert content(view.at("large")) == data
                ply.wait_for("the last close", lambda: is_unused(view))
            fd, why = None, None
            with faults.armed(n, errno.EIO, where=faults.IN_REQUESTS):
                try:
                    fd = os.open(view.at("large"), os.O_RDONLY)
                except OSError as e:
                    why = e
            if faults.failed:
                spared = 0
            # Without memory for the request, or the file's size, there is no open.
            assert not why or faults.failed and why.errno == errno.ENOMEM, (n, why, faults.what)
            if fd is not None:
                assert os.pread(fd, 2 * MIB, 0) == data, (n, faults.what)
                os.close(fd)
            assert content(view.at("large")) == data, (n, faults.what)
        n += 1
    print("# %s" % faults.told())
    assert n > 10 and not [name for name in os.listdir(os.path.join(view.store.path, "copies"))
                           if name.endswith(".new")]
    before = passed(view)
    assert content(view.at("large")) == data
    assert passed(view)["opens"] == before["opens"] + 1


def test_gc_and_check_remove_copies(t):
    view = made(t, {"large": noise(2 * MIB), "other": noise(2 * MIB, 2)})
    content(view.at("other"))
    with open(view.at("large"), "rb") as f:
        # The kernel tells of a close when it likes.
        ply.wait_for("the other to go", lambda: view.store.ply("gc") and
                     copies(view) == {os.stat(view.at("large")).st_ino})
        # What the disk did to a copy is not noticed; check --read-data makes an end of it.
        copy, = os.listdir(os.path.join(view.store.path, "copies"))
        with open(os.path.join(view.store.path, "copies", copy), "r+b") as c:
            c.write(b"damaged")
        assert f.read(7) == b"damaged"
        view.store.ply("check", "--read-data")
        assert not copies(view)
        assert f.read(10) == noise(2 * MIB)[7:17]
    ply.wait_for("the right bytes", lambda: content(view.at("large")) == noise(2 * MIB))


def test_copies_end_with_their_views(t):
    view = made(t, {"large": noise(2 * MIB)})
    content(view.at("large"))
    assert copies(view)
    mode = os.stat(os.path.join(view.store.path, "copies")).st_mode
    assert mode & 0o777 == 0o700, oct(mode)
    pid, name = view.store.daemon(), os.listdir(os.path.join(view.store.path, "copies"))[0]
    view.unmount()
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid))
    assert not copies(view)
    # What one left that was killed with nobody to follow it is not believed.
    ply.write(os.path.join(view.store.path, "copies", name), "left")
    view.store.mount()
    assert not copies(view)


def test_it_is_refused_where_it_cannot_be(t):
    ply.need_root()
    store = t.store()
    snap = store.import_(t.tree({"a": "1"}))
    at = t.at("m")
    os.mkdir(at)
    for args in (("--branch", "main"), (), ("--snapshot", snap, "--io-uring")):
        store.fails("mount", "--passthrough", "--at", at, *args, code=2, says="--snapshot")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if shutil.which("setpriv") and os.stat(t.path).st_mode:
        os.chmod(t.path, 0o755)
        p = t.run([*nobody, ply.PLYFS, "--store", store.path, "mount", "--passthrough",
                   "--snapshot", snap, "--at", at], check=False)
        assert p.returncode == 1 and "--passthrough is for root" in p.stderr, p
    assert "passthrough" in t.run([ply.PLYFS, "completion", "bash"]).stdout
    # The kernel would let a copy on FUSE be emptied by an open with O_TRUNC.
    on_fuse = ply.Store(t, store.mount().at("store"))
    t.stores.insert(0, on_fuse)
    on_fuse.fails("mount", "--passthrough", "--snapshot", on_fuse.import_(t.at("source")), "--at", at,
                  says="or on FUSE|does not offer|root on the machine")
    on_fuse.stop()
    store.stop()
    if t.run(["unshare", "-Urm", "true"], check=False).returncode:
        return
    script = '"$0" init inner; s=$("$0" --store inner import source); mkdir -p n; ' \
        'exec "$0" --store inner mount --passthrough --snapshot "$s" --at n'
    inner = ply.Store(t, "inner", init=False)
    t.stores.append(inner)
    p = t.run(["unshare", "-Urm", "sh", "-euc", script, ply.PLYFS], check=False)
    assert p.returncode == 1 and "--passthrough: " in p.stderr, p
    assert "root on the machine" in p.stderr or "does not offer" in p.stderr, p


ply.main(__name__)
