#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: crash
# timeout: 240
"""
The daemon is killed at random instants under writers that note outside the view what was answered.
They see a pause and no error, and afterwards each writer's files are exactly those of its answered
operations. Without a supervisor the mount dies as well: then they are those of the answered
operations with or without the one that was under way. PLYFS_TEST_LONG: 1,000 instants.
"""
import contextlib
import errno
import os
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

NAMES = ["a", "b", "c", "d/a", "d/b", "e/f/a", "e/f/b", "e/c"]
DIRS = ["d", "e", "e/f"]
FILE_MAX = 400 * 1024


# ---- what a writer does, and what must be there then: the same steps on a model ----

class Node:
    """A file of the model; hard links share one."""

    def __init__(self):
        self.data, self.mode, self.xattrs = bytearray(), 0o600, {}


class Model:
    def __init__(self, seed):
        self.rng, self.dirs, self.files, self.links = random.Random(seed), set(), {}, {}

    def parent_is_there(self, name):
        return "/" not in name or os.path.dirname(name) in self.dirs

    def next(self):
        """The next operation: one system call that changes something and must succeed."""
        rng = self.rng
        while True:
            name = rng.choice(NAMES)
            there = name in self.files
            kind = rng.choice(["write"] * 8 + ["append"] * 5 + ["mkdir", "rmdir", "truncate", "unlink",
                              "rename", "link", "symlink", "chmod", "xattr", "checkpoint"])
            if kind == "mkdir":
                d = rng.choice(DIRS)
                if d not in self.dirs and self.parent_is_there(d):
                    return "mkdir", d
            elif kind == "rmdir":
                d = rng.choice(DIRS)
                inside = [n for n in [*self.files, *self.links, *self.dirs] if n.startswith(d + "/")]
                if d in self.dirs and not inside:
                    return "rmdir", d
            elif kind == "checkpoint":
                return ("checkpoint",)
            elif name in self.links:
                if kind == "unlink":
                    return "unlink", name
            elif not self.parent_is_there(name):
                continue
            elif not there:
                if kind == "symlink":
                    return "symlink", "to " + name, name
                if kind in ("write", "append"):
                    return "create", name
            elif kind == "write":
                size = len(self.files[name].data)
                off = rng.choice([0, rng.randrange(size + 1), rng.randrange(size + 20000)])
                n = min(rng.choice([1, 100, 4096, 30000, 100000]), FILE_MAX - min(off, FILE_MAX))
                if n:
                    return "write", name, off, rng.randrange(1 << 30), n
            elif kind == "append":
                size = len(self.files[name].data)
                n = min(rng.choice([10, 700, 5000, 100000]), FILE_MAX - size)
                if n > 0:
                    return "write", name, size, rng.randrange(1 << 30), n
            elif kind == "truncate":
                return "truncate", name, rng.randrange(len(self.files[name].data) + 10000)
            elif kind == "unlink":
                return "unlink", name
            elif kind == "chmod":
                return "chmod", name, rng.choice([0o600, 0o640, 0o755])
            elif kind == "xattr":
                return "xattr", name, "user.x%d" % rng.randrange(2), rng.choice([1, 50, 3000])
            elif kind in ("rename", "link"):
                other = rng.choice(NAMES)
                if other != name and self.parent_is_there(other) and other not in self.links:
                    if kind == "rename" and self.files[name] is not self.files.get(other):
                        return "rename", name, other
                    if kind == "link" and other not in self.files:
                        return "link", name, other

    def apply(self, op, done=None):
        """done: only so many bytes of a write."""
        kind = op[0]
        if kind == "mkdir":
            self.dirs.add(op[1])
        elif kind == "rmdir":
            self.dirs.remove(op[1])
        elif kind == "create":
            self.files[op[1]] = Node()
        elif kind == "write":
            data = self.files[op[1]].data
            if len(data) < op[2] and done != 0:
                data.extend(bytes(op[2] - len(data)))
            done = op[4] if done is None else done
            data[op[2]:op[2] + done] = content(op[3], op[4])[:done]
        elif kind == "truncate":
            data = self.files[op[1]].data
            if len(data) < op[2]:
                data.extend(bytes(op[2] - len(data)))
            del data[op[2]:]
        elif kind == "unlink":
            (self.files if op[1] in self.files else self.links).pop(op[1])
        elif kind == "rename":
            self.files[op[2]] = self.files.pop(op[1])
        elif kind == "link":
            self.files[op[2]] = self.files[op[1]]
        elif kind == "symlink":
            self.links[op[2]] = op[1]
        elif kind == "chmod":
            self.files[op[1]].mode = op[2]
        elif kind == "xattr":
            self.files[op[1]].xattrs[op[2]] = bytes([op[3] % 251]) * op[3]

    def state(self):
        """Everything as comparable values, like state_of."""
        seen = {n: (bytes(f.data), f.mode, f.xattrs,
                    tuple(sorted(m for m in self.files if self.files[m] is f)))
                for n, f in self.files.items()}
        return self.dirs, self.links, seen


def content(seed, n):
    block = random.Random(seed).randbytes(min(n, 1000))
    return (block * (n // len(block) + 1))[:n]


def do(op):
    """The same on the filesystem, below the working directory."""
    kind = op[0]
    if kind == "create":
        os.close(os.open(op[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    elif kind == "write":
        fd = os.open(op[1], os.O_WRONLY)
        try:
            if os.pwrite(fd, content(op[3], op[4]), op[2]) != op[4]:
                raise OSError(errno.ENOTCONN, "the second of the kernel's two requests failed")
        finally:
            os.close(fd)
    elif kind == "xattr":
        os.setxattr(op[1], op[2], bytes([op[3] % 251]) * op[3])
    elif kind == "checkpoint":
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return ply.ioctl_checkpoint(fd)
        finally:
            os.close(fd)
    else:
        {"mkdir": os.mkdir, "rmdir": os.rmdir, "truncate": os.truncate, "unlink": os.unlink,
         "rename": os.rename, "link": os.link, "symlink": os.symlink, "chmod": os.chmod}[kind](*op[1:])
    return ""


def state_of(top):
    dirs, links, files, inodes = set(), {}, {}, {}
    for where, sub, names in os.walk(top):
        rel = os.path.relpath(where, top)
        for n in sub + names:
            path, name = os.path.join(where, n), os.path.normpath(os.path.join(rel, n))
            if os.path.islink(path):
                links[name] = os.readlink(path)
            elif os.path.isdir(path):
                dirs.add(name)
            else:
                st = os.lstat(path)
                xattrs = {x: os.getxattr(path, x) for x in os.listxattr(path)}
                with open(path, "rb") as f:
                    files[name] = (f.read(), st.st_mode & 0o7777, xattrs)
                inodes.setdefault(st.st_ino, set()).add(name)
    groups = {n: tuple(sorted(g)) for g in inodes.values() for n in g}
    return dirs, links, {n: (*v, groups[n]) for n, v in files.items()}


def writer(top, log, seed, survives):
    """
    Runs until the filesystem goes away, or, if that survives, until the file `log`.stop is there; a
    line in the log for each answer.
    """
    model = Model(seed)
    os.chdir(top)  # when the mount goes, so do these names: nothing lands below it
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while not os.path.exists(log + ".stop"):
            op = model.next()
            model.apply(op)
            answer = do(op)
            os.write(out, (answer + "\n").encode())
    except OSError as e:
        if survives:
            raise
        gone = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT, errno.ECONNREFUSED,
                errno.ESHUTDOWN)
        if e.errno not in gone or not dead("."):
            raise


def dead(path):
    """Is the filesystem behind this gone? It may be dying while its last answer comes."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.stat(path)
            os.listdir(path)
        except OSError:
            return True
        time.sleep(0.01)
    return False


# ---- the tests ----

def difference(want, got):
    lines = []
    for what, w, g in zip(("directories", "symlinks", "files"), want, got):
        if w == g:
            continue
        for n in sorted(set(w) | set(g)):
            a, b = (x.get(n) if isinstance(x, dict) else n in x for x in (w, g))
            if a != b:
                lines.append("%s %s: wanted %.200r, is %.200r" % (what, n, a, b))
    return "\n".join(lines)


def bytes_done(op, got):
    """How much of a write there is: the kernel may make several requests of it."""
    if op[0] != "write" or op[1] not in got[2]:
        return None
    new, there = content(op[3], op[4]), got[2][op[1]][0][op[2]:op[2] + op[4]]
    return next((i for i, (a, b) in enumerate(zip(new, there)) if a != b), min(len(new), len(there)))


class Round:
    """Some writers in a view, each in a directory of its own."""

    def __init__(self, t, view, number, seed, survives=False, writers=4):
        self.view, self.procs, self.survives = view, [], survives
        for i in range(writers):
            top, log = "r%d-%d" % (number, i), t.at("log-%d-%d" % (number, i))
            os.mkdir(view.at(top))
            open(log, "w").close()
            pid = ply.child(writer, view.at(top), log, seed + i, survives)
            self.procs.append((pid, top, log, seed + i))

    def begin(self):
        """All have begun."""
        ply.wait_for("the writers", lambda: all(os.path.getsize(p[2]) for p in self.procs))

    def end(self):
        for pid, top, log, _ in self.procs:
            open(log + ".stop", "w").close()
        for pid, top, log, _ in self.procs:
            assert ply.ended_well(pid), "writer %s failed" % top

    def verify(self, view, snapshots=None):
        """Every answered operation is there and no other; if the mount died, the one under way may."""
        answered = 0
        for _, top, log, seed in self.procs:
            answers = ply.read(log).split("\n")[:-1]
            answered += len(answers)
            model = Model(seed)
            for answer in answers:
                model.apply(model.next())
                if answer and snapshots is not None:
                    snapshots.append((answer, top, seed, len(answers)))
            got = state_of(view.at(top))
            want = model.state()
            if got == want:
                continue
            assert not self.survives, "%s, seed %d, after %d answers:\n%s" % (
                top, seed, len(answers), difference(want, got))
            op = model.next()
            model.apply(op, bytes_done(op, got))
            assert got == model.state(), "%s, seed %d, after %d answers (under way: %r):\n%s" % (
                top, seed, len(answers), op, difference(want, got))
        return answered


def kill(t, store, pid):
    os.kill(pid, signal.SIGKILL)
    ply.wait_for("the daemon's death", lambda: not ply.alive(pid))
    ply.wait_for("the mounts to vanish", lambda: not ply.mounts_below(t.path, "fuse"))


def seed_of_run():
    seed = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(1 << 40))
    print("# PLYFS_TEST_SEED=%d" % seed)
    return seed


def pause(view, pid):
    """Kills the daemon; how long it took until the next one answered, in ms."""
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    os.statvfs(view.path)  # the kernel keeps no answer to that
    return (time.monotonic() - began) * 1000


def verify_all(r, view, snapshots):
    """Operations and checkpoints that were answered, and what nobody touched."""
    answered = r.verify(view, snapshots)
    known = view.store.out("log")
    for snap, top, _, _ in snapshots:
        assert snap in known, "checkpoint %s of %s is gone" % (snap, top)
    assert view.read("keep") == "x"
    return answered


def test_writers_in_the_mount_see_a_pause_and_nothing_else(t):
    kills, per_round, seed = 1000 if ply.LONG else 40, 5, seed_of_run()
    rng = random.Random(seed)
    t.deaths()
    view = t.view({"keep": "x"})
    store, pid = view.store, view.store.daemon()
    answered, pauses = 0, []
    for n in range(kills // per_round):
        r = Round(t, view, n, seed + 10 * n, survives=True)
        r.begin()
        for k in range(per_round):
            time.sleep(rng.random() ** 2 * (1.5 if (n + k) % 10 == 9 else 0.3))
            pauses.append(pause(view, pid))
            pid = store.daemon()
        r.end()
        ids = []
        answered += verify_all(r, view, ids)
        if ply.LONG or n % 4 == 3:
            store.ply("check", "--read-data", timeout=600)
        for p in r.procs:
            ply.run(["rm", "-rf", view.at(p[1])])
        if ids:  # or the store of 1,000 kills has 40 GB, and each check reads all of it
            store.ply("drop", *{snap for snap, *_ in ids})
        if n % 10 == 9:
            store.ply("gc", timeout=600)
    assert store.status()["daemon"]["deaths"] == kills
    view.unmount()
    store.ply("check", "--read-data", timeout=600)
    print("# %d kills, %d answered operations; pauses in ms: median %.1f, worst %.1f" % (
        kills, answered, statistics.median(pauses), max(pauses)))


def test_nothing_answered_is_lost_when_the_mount_dies_as_well(t):
    rounds, seed = 200 if ply.LONG else 15, seed_of_run()
    rng = random.Random(seed)
    t.unsupervised()
    view = t.view({"keep": "x"})
    store, at, pid = view.store, view.path, view.store.daemon()
    answered = 0
    for n in range(rounds):
        r = Round(t, view, n, seed + 10 * n)
        r.begin()
        time.sleep(rng.random() ** 2 * (1.5 if n % 10 == 9 else 0.3))
        kill(t, store, pid)
        r.end()
        view = store.mount(at=at)
        pid = store.daemon()
        answered += verify_all(r, view, [])
        if n % 8 == 7:
            store.ply("check", "--read-data", timeout=600)
        for p in r.procs:
            ply.run(["rm", "-rf", view.at(p[1])])
            os.unlink(p[2])
    store.ply("check", "--read-data", timeout=600)
    print("# %d rounds, %d answered operations" % (rounds, answered))


def test_what_was_answered_and_not_copied_is_there_when_all_died(t):
    if b"PLYFS_TEST_DIE_BEHIND" not in open(ply.PLYFSD, "rb").read():
        ply.skip("a release build")
    where = t.run(["stat", "-f", "-c", "%T", t.path]).stdout.strip()
    if where not in ("ext2/ext3", "xfs", "tmpfs"):  # as stat calls what os_overwrites() does not give up
        ply.skip("all is copied before it is answered on " + where)
    die = t.env["PLYFS_TEST_DIE_BEHIND"] = t.at("die")
    view = t.view({"keep": "x"})
    store, at, files = view.store, view.path, {}
    for n in range(3):
        for k in range(8):  # a reader that has much to do has a slot
            view.write("warm%d" % k, "w" * (1 << 20))
        pid = store.daemon()
        ply.write(die, "")
        for k in range(20):  # while the sealer reads, it may have made the copies before
            name, data = "f%d-%d" % (n, k), os.urandom(300000)
            fd = os.open(view.at(name), os.O_WRONLY | os.O_CREAT, 0o644)
            assert os.pwrite(fd, data, 0) == len(data)
            files[name] = data
            time.sleep(0.2)  # he dies at once, or not by this one
            with contextlib.suppress(OSError):
                os.close(fd)
            if not os.path.exists(die):
                break
        assert not os.path.exists(die)
        ply.wait_for("the daemon's death", lambda: not ply.alive(pid))
        store.ply("unmount", at)
        view = store.mount(at=at)
        for name, data in files.items():
            with open(view.at(name), "rb") as f:
                assert f.read() == data, name
    view.unmount()
    store.ply("check", "--read-data")


def survives_the_daemon(t, store):
    """Whether both branches were recovered; all is there, recovered or sealed before."""
    view = store.mount()
    at, pid = view.path, store.daemon()
    first = view.checkpoint("first")
    view.write("a", "second")
    view.write("new", "n" * 70000)
    second = view.checkpoint("second")
    view.write("a", "third")
    with view.fd() as fd:
        ply.ioctl_fork(fd, "idea")
    view.restore(first)
    view.write("late", "later")
    kill(t, store, pid)

    view, pid = store.mount(at=at), store.daemon()
    sizes = store.status()["sizes"]
    if sizes["recovered_operations"]:
        assert "recovered" in store.out("status") and "recovered" in store.log_tail()
    assert view.read("a") == "first" and view.read("late") == "later"
    assert view.ls() == ["a", "d", "late"], view.ls()
    idea = store.mount(branch="idea")
    assert idea.read("a") == "third" and idea.read("new") == "n" * 70000
    assert store.mount(snapshot=second).read("a") == "second"
    # The state that the restore left is there to undo it, after another death as well.
    kill(t, store, pid)
    view = store.mount(at=at)
    view.undo()
    assert view.read("a") == "third" and view.ls() == ["a", "d", "new"]
    store.ply("check", "--read-data")
    view.unmount()
    return sizes["recovered_operations"] > 0 and sizes["recovered_branches"] == 2


def test_checkpoints_restores_and_forks_survive_the_daemon(t):
    t.unsupervised()
    t.tree({"a": "first", "d/b": "b" * 100000})
    for n in range(20):  # what is frozen is sealed 20 ms later, what is live each 5 s (store/seal.c)
        store = t.store("store%d" % n)
        store.import_(t.at("source"))
        if survives_the_daemon(t, store):
            return
    raise AssertionError("each time the sealer came first")


def test_a_branch_and_snapshots_that_were_dropped_stay_dropped(t):
    t.unsupervised()
    view = t.view({"a": "x"})
    store, at, pid = view.store, view.path, view.store.daemon()
    snap = view.checkpoint("gone")
    view.write("a", "y")
    kept = view.checkpoint("kept")
    with view.fd() as fd:
        ply.ioctl_fork(fd, "dead")
    store.ply("drop", snap)
    store.ply("drop", "dead")
    kill(t, store, pid)
    view = store.mount(at=at)
    log = store.out("log")
    assert snap not in log and kept in log
    assert "dead" not in store.out("tree")
    assert view.read("a") == "y"


def write_synced(path, how):
    flags = {"O_SYNC": os.O_SYNC, "O_DSYNC": os.O_DSYNC}.get(how, 0)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | flags)
    os.pwritev(fd, [b"synced" * 3000], 0, os.RWF_DSYNC if how == "RWF_DSYNC" else 0)
    if how == "fsync":
        os.fsync(fd)
    os.close(fd)


def synced_is_kept(t, how):
    t.env["PLYFSD_COMMIT_INTERVAL"] = "0"
    t.unsupervised()
    view = t.view({"a": "x"})
    store, at, pid = view.store, view.path, view.store.daemon()
    write_synced(view.at("f"), how)
    # As after a loss of power: another boot, where only what was synced counts.
    t.env["PLYFS_TEST_BOOT_ID"] = "another"
    view.write("g", "not synced")
    kill(t, store, pid)
    view = store.mount(at=at)
    assert "f" in view.ls() and view.read("f") == "synced" * 3000
    assert view.ls() in (["a", "f"], ["a", "f", "g"]), view.ls()
    assert view.ls() == ["a", "f"] or view.read("g") in ("", "not synced")


def test_fsync_is_kept_without_the_background_commit_or_the_sealer(t):
    synced_is_kept(t, "fsync")


def test_so_is_what_a_descriptor_syncs_with_each_write(t):
    synced_is_kept(t, "O_SYNC")


def test_or_only_its_bytes(t):
    synced_is_kept(t, "O_DSYNC")


def test_or_one_write_syncs(t):
    synced_is_kept(t, "RWF_DSYNC")


def test_so_is_what_was_in_a_view_that_was_unmounted(t):
    t.env["PLYFSD_COMMIT_INTERVAL"] = "0"
    t.unsupervised()
    view = t.view({"a": "x"})
    store, at, pid = view.store, view.path, view.store.daemon()
    for i in range(100):
        view.write(f"f{i}", str(i) * 20000)  # more than the sealer has stored by the time
    store.ply("unmount", at)
    t.env["PLYFS_TEST_BOOT_ID"] = "another"
    kill(t, store, pid)
    view = store.mount(at=at)
    assert len(view.ls()) == 101, view.ls()
    for i in range(100):
        assert view.read(f"f{i}") == str(i) * 20000


def test_nobody_waits_for_a_disk_to_give_a_fork_up(t):
    """What a fork held need not be durable to be dropped; a commit would have saved all views'."""
    t.env["PLYFSD_COMMIT_INTERVAL"] = "0"
    t.unsupervised()
    view = t.view({"a": "x"})
    store, at = view.store, view.path
    t.clean.append(lambda: store.ply("env", "destroy", "--force", "e", check=False))
    for n in range(10):  # the sealer may have been there before
        pid = store.daemon()
        fork = ply.View(store, store.out("env", "create", "e", "--from", "main").strip())
        fork.write("g", "x" * 20000)
        view.write(f"f{n}", str(n) * 20000)
        store.ply("env", "destroy", "e")
        store.ply("run", "--fork", "--drop", "--", "mkdir", "d", cwd=at)
        store.ply("unmount", "--no-sync", at)
        t.env["PLYFS_TEST_BOOT_ID"] = f"boot {n}"
        kill(t, store, pid)
        view = store.mount(at=at)
        if f"f{n}" not in view.ls():
            return
    assert False, "somebody waited"


if __name__ == "__main__":
    ply.main(__name__)
