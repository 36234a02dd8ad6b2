#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: daemon
# timeout: 180
"""A container's memory limit (a cgroup's), in which the daemon lives together with who works in its views."""
import contextlib
import io
import json
import os
import re
import signal
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

MIB = 1 << 20
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


def make_cgroup():
    """A new one, and the name of its limit; both versions have memory at one of two places."""
    ply.need_root()
    for top, limit in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
        path = "%s/plyfs-test-%d" % (top, os.getpid())
        try:
            if top == V2 and os.path.exists(V2 + "/cgroup.subtree_control"):
                ply.write(V2 + "/cgroup.subtree_control", "+memory")
            os.mkdir(path)
        except OSError:
            continue
        if os.path.exists(os.path.join(path, limit)):
            return path, os.path.join(path, limit)
        os.rmdir(path)
    ply.skip("no cgroup with a memory limit can be made here")


class Cgroup:
    def __init__(self, t, mib):
        self.path, self.limit = make_cgroup()
        t.clean.append(self.remove)
        ply.write(self.limit, str(mib * MIB))

    def remove(self):
        for pid in ply.read(os.path.join(self.path, "cgroup.procs")).split():
            with contextlib.suppress(OSError):  # it has just ended
                ply.write(os.path.join(os.path.dirname(self.path), "cgroup.procs"), pid)
        ply.wait_for("the cgroup to be empty", self.is_gone)

    def is_gone(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
        return not os.path.exists(self.path)

    def enter(self):
        ply.write(os.path.join(self.path, "cgroup.procs"), str(os.getpid()))

    def mount(self, store):
        """By somebody in it, who starts the daemon."""
        def work():
            self.enter()
            store.ply("mount", "--at", store.bench.at("view"))

        store.stop()
        os.makedirs(store.bench.at("view"), exist_ok=True)
        assert ply.ended_well(ply.child(work))
        assert str(store.daemon()) in ply.read(os.path.join(self.path, "cgroup.procs")).split()
        return ply.View(store, store.bench.at("view"))

    def hog(self):
        """Somebody in it asks for more than it has, and is killed."""
        def work():
            self.enter()
            bytearray(1024 * MIB)

        end = os.waitpid(ply.child(work), 0)[1]
        assert os.WIFSIGNALED(end) and os.WTERMSIG(end) == signal.SIGKILL, end


def log(view):
    return ply.read(os.path.join(view.store.path, "daemon.log"))


def kill_daemon(view, deaths):
    os.kill(view.store.daemon(), signal.SIGKILL)
    ply.wait_for("another daemon", lambda: log(view).count(" goes on with 1 view") == deaths)


def imported(t):
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    return store


def test_what_is_kept_in_memory_follows_the_limit(t):
    group, store = Cgroup(t, 128), imported(t)
    budget = lambda: store.status()["sizes"]["node_budget"] // MIB
    view = group.mount(store)
    assert budget() == 32, budget()
    view.unmount()
    t.env["PLYFSD_NODE_MEMORY"] = "48"  # who says something else is heard
    view = group.mount(store)
    assert budget() == 48, budget()


def test_a_death_for_want_of_memory_is_told_as_one(t):
    ply.need_followed_daemon()
    group = Cgroup(t, 128)
    words = "were killed for want of memory, of which it may use 128 MiB"
    view = group.mount(imported(t))
    kill_daemon(view, 1)
    assert words not in log(view), log(view)
    group.hog()  # the daemon is the smaller one, and lives
    kill_daemon(view, 2)
    assert log(view).count(words) == 1, log(view)
    kill_daemon(view, 3)
    assert log(view).count(words) == 1, log(view)


def anonymous_mib(pid):
    return int(re.search("RssAnon: *(\\d+)", ply.read("/proc/%d/status" % pid).replace("\t", " "))[1]) // 1024


def many_files(path, count):
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            entry = tarfile.TarInfo("d%d/a_name_of_some_length_%d" % (i // 100, i))
            entry.size = 80
            tar.addfile(entry, io.BytesIO(b"%080d" % i))
    return path


def need_malloc():
    if ply.sanitized():
        ply.skip("a sanitizer has an allocator of its own, which keeps all, and shadows of all that is touched")


def test_what_was_let_go_of_is_given_back(t):
    """Malloc would keep it. Of 17.6 MiB of nodes, so that it happens once, however long the walk takes."""
    need_malloc()
    t.env["PLYFSD_NODE_MEMORY"] = "16"
    view = t.view(many_files(t.at("many.tar"), 60000))
    pid, most = view.store.daemon(), 0
    for folder, _, files in os.walk(view.path):
        for name in files:
            os.stat(os.path.join(folder, name))
        most = max(most, anonymous_mib(pid))
    # What remains is what the kernel still knows the names of.
    ply.wait_for("memory to be given back", lambda: anonymous_mib(pid) < most - 6, 20)


def most_mib(pid):
    return int(re.search("VmHWM: *(\\d+)", ply.read("/proc/%d/status" % pid).replace("\t", " "))[1]) // 1024


def test_an_import_keeps_to_its_share(t):
    """Its tree is nobody's yet, so that no round of the sealer makes chunks of it."""
    need_malloc()
    t.env["PLYFSD_NODE_MEMORY"] = "4"
    view = imported(t).mount()
    before = most_mib(view.store.daemon())
    view.store.import_(many_files(t.at("many.tar"), 60000), "--branch", "many")
    grown = most_mib(view.store.daemon()) - before
    assert grown < 16, grown  # of 26 MiB of nodes; the rest is what lies around them
    many = view.store.mount("many")
    assert len(os.listdir(many.path)) == 600
    assert ply.read(many.at("d599/a_name_of_some_length_59999")) == "%080d" % 59999


def most_beside(view, *verb):
    """How much more than before the daemon has at the most, in MiB, while the verb runs; and what that prints."""
    pid = view.store.daemon()
    ply.write("/proc/%d/clear_refs" % pid, "5")  # the most begins anew
    before = most_mib(pid)
    out = view.store.ply(*verb).stdout
    return most_mib(pid) - before, out


def test_who_compares_or_exports_keeps_to_his_share(t):
    """He holds a state, all of which he looks at, so that nothing in it goes while he does."""
    need_malloc()
    t.env["PLYFSD_NODE_MEMORY"] = "2"
    files = 30000
    view = t.view(many_files(t.at("many.tar"), files))
    view.checkpoint()
    for folder, _, names in os.walk(view.path):
        for name in names:
            with open(os.path.join(folder, name), "a") as f:
                f.write("more")
    view.checkpoint()
    # Of 13 MiB of nodes in each state; two lists of 30,000 paths are 5.
    grown, out = most_beside(view, "diff", "main~1", "main~0")
    assert len(out.splitlines()) == files
    assert grown < 14, grown
    grown, out = most_beside(view, "diff", "main~1", "main~0", "--json")
    assert len(json.loads(out)) == files
    assert grown < 14, grown
    view.unmount()  # whatever it had of a state is gone
    view.store.mount("main")
    grown, _ = most_beside(view, "export", "main~1", "--tar", t.at("out.tar"))
    with tarfile.open(t.at("out.tar")) as tar:
        assert sum(m.isfile() for m in tar) == files
    assert grown < 8, grown


def test_views_that_wait_keep_no_large_buffers(t):
    """Each has somebody who waits for its requests, and who has just answered a large one."""
    need_malloc()
    ply.need_followed_daemon()
    views = 32
    store = t.store()
    store.import_(t.tree({"large": os.urandom(4 * MIB)}))
    mounted = [store.mount("main")]
    for i in range(views):
        store.ply("fork", "f%d" % i)
        mounted.append(store.mount("f%d" % i))
    before = anonymous_mib(store.daemon())
    for view in mounted:
        with open(view.at("large"), "rb") as large:
            assert len(large.read()) == 4 * MIB
    # Some stay as they are, to be quick, and the cache of chunks has the file.
    ply.wait_for("memory to be given back", lambda: anonymous_mib(store.daemon()) < before + views // 2 + 4, 10)


if __name__ == "__main__":
    ply.main()
