#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: daemon
# timeout: 240
"""The life of mounts and of the daemon behind them."""
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def test_what_was_imported_is_seen_in_the_view(t):
    view = t.view({"a": "1", "d/b": "22", "d/e/c": b"\0\1\2" * 5000})
    assert view.ls() == ["a", "d"], view.ls()
    assert view.read("d/b") == "22"
    ply.assert_same_tree(t.at("source"), view.path)


def test_the_daemon_starts_on_demand_and_ends_after_its_last_view(t):
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    view = store.mount()
    pid = store.daemon()
    assert pid and ply.alive(pid)
    view.unmount()
    ply.wait_for("the daemon to end by itself", lambda: not (pid and ply.alive(pid)))
    assert not os.path.exists(os.path.join(store.path, "sock"))
    again = store.mount()
    assert store.daemon() != pid
    assert again.read("a") == "1"


def test_limits_of_who_starts_a_daemon_are_not_its_own(t):
    store = t.store()
    store.import_(t.tree({"a": "1"}))

    def end():
        pid = store.daemon()
        ply.wait_for("the daemon's end", lambda: not (pid and ply.alive(pid)))
    end()
    mnt = t.at("mnt")
    os.mkdir(mnt)

    def mount(limit, soft, hard, **kw):
        return store.ply("mount", "--at", mnt, **kw,
                         preexec_fn=lambda: resource.setrlimit(limit, (soft, hard)))

    def soft_and_hard(limit, value, told):
        """As `ulimit -S` has it, then as harnesses do, which root alone may lift."""
        mount(limit, value, resource.getrlimit(limit)[1])
        with open(mnt + "/large", "wb") as f:
            f.write(b"x" * (2 << 20))
        store.ply("unmount", mnt)
        end()
        p = mount(limit, value, value, check=False)
        assert p.returncode == 0 or p.stderr.endswith(told + "\n"), p
        if p.returncode == 0:
            store.ply("unmount", mnt)
        end()
    # A MiB: the index and what views write need more.
    soft_and_hard(resource.RLIMIT_FSIZE, 1 << 20, ": File too large; see ulimit -f")
    if not ply.sanitized():  # 4 GiB of addresses: an index alone takes more
        soft_and_hard(resource.RLIMIT_AS, 4 << 30, ": Cannot allocate memory; see ulimit -v")
        soft_and_hard(resource.RLIMIT_DATA, 20 << 20, ": Resource temporarily unavailable; see "
                      "ulimit -u and -d, and pids.max of its cgroup")
        # Of so little the kernel starts no program (execve kills it), or its loader no library.
        soft_and_hard(resource.RLIMIT_DATA, 1000 << 10, "; see ulimit -v and -d")
        soft_and_hard(resource.RLIMIT_AS, 8 << 20, "; see ulimit -v and -d")
    for n in 14, 19, 22:  # for the store not enough, for who calls, for what he sends
        soft_and_hard(resource.RLIMIT_NOFILE, n, ": Too many open files; see ulimit -n")


def test_an_import_beyond_a_limit_says_which(t):
    store = t.store()
    tree = t.tree({"large": os.urandom(24 << 20)})
    size = 16 << 20, 16 << 20  # enough for the index, not for that file's pack
    p = store.ply("import", tree, check=False,
                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, size))
    assert p.returncode == 0 or p.stderr.endswith(": File too large; see ulimit -f\n"), p


def test_who_finds_no_descriptor_for_a_client_waits_asleep(t):
    if ply.sanitized():
        ply.skip("a sanitizer has descriptors of its own")
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    view = store.mount()
    pid = store.daemon()

    def descriptors():
        return len(os.listdir("/proc/%d/fd" % pid))
    idle = descriptors()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (idle + 4,) * 2)

    def sleeps():
        with open("/proc/%d/status" % pid) as f:
            return int(next(x for x in f if x.startswith("voluntary")).split()[1])
    clients = []
    for _ in range(20):
        clients.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        clients[-1].connect(store.path + "/sock")
    last = "/proc/%d/fd/%d" % (pid, resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] - 1)
    ply.wait_for("all descriptors to be taken", lambda: os.path.lexists(last))
    before = sleeps()
    ply.wait_for("the main thread's sleep", lambda: sleeps() > before + 20)
    for c in clients:
        c.close()
    ply.wait_for("the clients' descriptors", lambda: descriptors() <= idle)  # else log is told that there are none
    store.ply("log")
    view.unmount()


def test_what_was_written_is_there_after_unmount_and_a_new_daemon(t):
    view = t.view()
    store = view.store
    view.write("new/file", "kept" * 10000)
    os.unlink(view.at("a.txt"))
    pid = store.daemon()
    before = view.digest()
    view.unmount()
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid))
    assert store.mount().digest() == before


def test_all_views_of_a_store_live_in_one_daemon(t):
    view = t.view()
    pid = view.store.daemon()
    others = [view.fork("b%d" % i) for i in range(5)]
    assert view.store.daemon() == pid
    assert len(view.store.status()["views"]) == 6
    for v in others:
        v.unmount()
    assert view.read("a.txt") == "one\n"
    assert ply.alive(pid)


def test_two_clients_that_start_a_daemon_at_once_both_succeed(t):
    store = t.store()
    for _ in range(5):
        store.stop()
        results = []
        threads = [threading.Thread(target=lambda: results.append(store.ply("log", check=False)))
                   for _ in range(6)]
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        assert all(p.returncode == 0 for p in results), [p.stderr for p in results]


def test_no_mount_is_left_behind_when_the_daemon_is_killed(t):
    t.unsupervised()
    view = t.view()
    second = view.fork("other")
    view.store.kill()
    ply.wait_for("the mounts to vanish", lambda: not ply.mounts_below(t.path))
    assert os.listdir(view.path) == [] and os.listdir(second.path) == []


def test_after_a_kill_the_store_opens_and_durable_snapshots_are_there(t):
    t.unsupervised()
    view = t.view()
    store = view.store
    view.write("a.txt", "changed")
    snap = store.out("checkpoint", "--sync", "-m", "safe", view.path)
    view.write("a.txt", "later")
    store.kill()
    ply.wait_for("the mounts to vanish", lambda: not ply.mounts_below(t.path))
    again = store.mount(snapshot=snap)
    assert again.read("a.txt") == "changed"
    store.ply("check", "--read-data")


def test_a_dead_mount_is_taken_away_by_the_next_mount(t):
    # As after a crash of daemon and supervisor together: the mount is there, nobody answers.
    ply.need_root()
    view = t.view()
    pid = view.store.daemon()
    family = family_of(pid)
    for p in family:
        os.kill(p, signal.SIGSTOP)
    for p in family:
        os.kill(p, signal.SIGKILL)
    ply.wait_for("the daemon's death", lambda: not any(map(ply.alive, family)))
    if not ply.mounts_below(view.path):
        ply.skip("the mount went with its daemon")
    view.store.ply("mount", "--at", view.path)
    assert view.read("a.txt") == "one\n"


def test_who_mounts_while_a_dead_view_is_taken_off_is_not_in_its_way(t):
    t.unsupervised()
    view, rng = t.view(), ply.seeded()
    for _ in range(150):  # one in forty of them met
        os.kill(view.store.daemon(), signal.SIGKILL)
        time.sleep(rng.random() * 0.02)
        view.store.ply("mount", "--at", view.path)
    assert view.read("a.txt") == "one\n"


def family_of(pid):
    """The daemon and its supervisor: the parent or the children that run the same program."""
    def parent(p):
        return int(ply.read("/proc/%d/stat" % p).rsplit(")", 1)[1].split()[1])
    found = [pid]
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "plyfsd" not in ply.read("/proc/%s/cmdline" % p):
                continue
            if parent(int(p)) == pid or parent(pid) == int(p):
                found.append(int(p))
        except OSError:
            pass
    return sorted(found)


def test_sigterm_unmounts_and_loses_nothing(t):
    view = t.view()
    view.write("x", "just written")
    pid = view.store.daemon()
    os.kill(pid, signal.SIGTERM)
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid))
    assert not ply.mounts_below(t.path)
    assert view.store.mount().read("x") == "just written"


def test_sigterm_takes_off_its_views_where_they_are_and_no_others(t):
    ply.need_followed_daemon()  # before, the kernel does not tell which mount it is
    view = t.view(at=t.at("up/view"))
    os.rename(t.at("up"), t.at("moved"))
    other = t.store("other")
    other.import_(t.at("source"))
    other.mount(at=t.at("up/view"))
    view.store.stop()
    assert ply.mounts_below(t.path, "fuse") == [t.at("up/view")]
    assert os.listdir(t.at("moved/view")) == [] and ply.read(t.at("up/view/a.txt")) == "one\n"


def test_why_a_store_does_not_open_is_told_whatever_it_is_called(t):
    store = t.store("two\nlines\x1b[31m", init=False)
    os.mkdir(store.path)
    assert store.fails("log") == "plyfs log: opening store '%s': not a plyfs store; make one with " \
        "'plyfs init'\n" % store.path.replace("\n", "?").replace("\x1b", "?")


def test_status_says_where_the_log_is(t):
    view = t.view()
    status = view.store.status()
    assert os.path.isfile(status["log"]), status
    text = view.store.out("status")
    assert status["log"] in text
    assert str(view.store.daemon()) in text
    assert view.path in text


def ply_(t, *args, **kw):
    return t.run([ply.PLYFS, *args], **kw)


def test_a_store_that_is_moved_while_it_is_mounted_stays_its_views(t):
    view = t.view({"a": "1"})
    store, old = view.store, view.store.path
    store.ply("fork", "branch")
    store.path = t.at("moved")
    os.rename(old, store.path)
    other = t.store()  # where it was
    other.import_(t.tree({"b": "2"}, "elsewhere"))
    other.ply("fork", "branch")

    def judge():
        ply_(t, "checkpoint", cwd=view.path)
        assert ply_(t, "log", cwd=view.path).stdout == store.ply("log").stdout
        status = json.loads(ply_(t, "status", "--json", cwd=view.path).stdout)
        assert status["store"] == store.path and status["log"] == store.path + "/daemon.log", status
        assert [v["mountpoint"] for v in status["views"]] == [view.path], status
        ply_(t, "fork", "new", cwd=view.path)
        ply_(t, "drop", "new", cwd=view.path)
    judge()
    ply_(t, "drop", "branch", cwd=view.path)
    store.ply("daemon", "--replace")
    judge()
    assert view.read("a") == "1"
    assert {b["name"] for b in store.json("tree")["branches"]} == {"main"}
    assert {b["name"] for b in other.json("tree")["branches"]} == {"main", "branch"}


def test_of_several_that_mount_at_once_one_has_the_view_and_keeps_it(t):
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    at = t.at("at")
    os.mkdir(at)
    for n in range(5):
        words = [["mount"]] * 8 if n % 2 else [["fork", "f%d-%d" % (n, i)] for i in range(8)]
        clients = [subprocess.Popen([ply.PLYFS, "--store", store.path, *w, "--at", at], env=t.env,
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for w in words]
        said = sorted((c.communicate()[1], c.returncode) for c in clients)
        assert said[0] == ("", 0) and ply.read(os.path.join(at, "a")) == "1", said
        for line, code in said[1:]:
            assert code == 1 and "is a mounted plyfs view already" in line, said
        store.ply("unmount", at)
        assert os.listdir(at) == []


def hold_unlinked(at, count):
    for _ in range(count):
        os.open(at, os.O_TMPFILE | os.O_RDWR)  # closed by our end


def test_a_branch_is_free_when_its_view_was_unmounted_whoever_did_it(t):
    """umount(8) does not wait for the daemon, which has what nobody has open any more to remove."""
    view = t.view()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(hard, 20000) - 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    t.clean.append(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
    for again in (lambda: view.store.ply("mount", "--at", view.path),
                  lambda: view.store.ply("drop", "main")):
        for pid in [ply.child(hold_unlinked, view.path, count) for _ in range(3)]:
            assert ply.ended_well(pid)
        ply.run(["umount", view.path])
        again()


@contextlib.contextmanager
def readers_stopped(pid):
    """The daemon's threads that take the kernel's requests stand still; all others go on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000
    tasks = "/proc/%d/task" % pid
    held = [int(tid) for tid in os.listdir(tasks) if "reader" in ply.read(os.path.join(tasks, tid, "comm"))]
    assert held, os.listdir(tasks)
    for tid in held:
        if libc.ptrace(seize, tid, None, None) < 0:
            ply.skip("no ptrace here")
        libc.ptrace(interrupt, tid, None, None)
        os.waitpid(tid, wall)
    try:
        yield
    finally:
        for tid in held:
            libc.ptrace(detach, tid, None, None)


def test_a_branch_is_free_at_once_where_its_daemon_has_yet_to_hear_of_the_unmount(t):
    ply.need_root()
    view, libc = t.view(), ctypes.CDLL(None, use_errno=True)
    for words in (["mount", "--at", view.path], ["drop", "main"]):
        with readers_stopped(view.store.daemon()):
            assert libc.umount2(view.path.encode(), 0) == 0, os.strerror(ctypes.get_errno())
            verb = subprocess.Popen([ply.PLYFS, "--store", view.store.path, *words], env=t.env,
                                    stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                verb.wait(0.5)  # where it does not wait it has failed by then
        err = verb.communicate()[1]
        assert verb.returncode == 0, err


def test_status_tells_what_chunks_that_were_read_take(t):
    t.env["PLYFSD_NODE_MEMORY"] = "48"  # MiB; a quarter of it for chunks
    names = {"f%d" % i: random.randbytes(15000) for i in range(1200)}  # of larger ones none is kept
    ply.make_tree(t.at("from"), names)
    store = t.store()
    store.ply("import", t.at("from"))
    view = store.mount()
    sizes = lambda: store.status()["sizes"]
    assert sizes()["cache_bytes"] == 0 and sizes()["cache_limit"] == 12 << 20, sizes()
    for name in names:
        with open(view.at(name), "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(f.fileno(), 1, 0)  # one that is read whole need not be kept
    assert 11 << 20 < sizes()["cache_bytes"] <= 12 << 20, sizes()
    assert "of chunks that were read (at most 12.0 MiB)" in store.out("status")


def test_tree_nodes_beyond_the_budget_are_let_go(t):
    t.env["PLYFSD_NODE_MEMORY"] = "0"
    names = {"d%d/f%d" % (i % 20, i): "%d\n" % i for i in range(2000)}
    view = t.view(names)
    sizes = lambda: view.store.status()["sizes"]
    assert sizes()["node_budget"] == 0
    view.write("d0/new", "1")
    # Of half a megabyte; the sealer looks each five seconds.
    ply.wait_for("the nodes to go", lambda: sizes()["node_bytes"] < 50000)
    first = view.checkpoint()
    view.write("d0/new", "2")
    view.restore(first)
    for name, text in [*names.items(), ("d0/new", "1")]:
        with open(view.at(name), "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # not from the kernel
            assert f.read().decode() == text


def test_status_needs_no_daemon_and_starts_none(t):
    store = t.store()
    store.stop()
    p = store.ply("status")
    assert p.returncode == 0 and store.daemon() is None, p.stdout + p.stderr


def test_unmount_of_a_busy_view_says_so_and_lazy_works(t):
    view = t.view()
    child = subprocess.Popen(["sleep", "60"], cwd=view.at("dir"))
    t.clean.append(child.kill)
    says = view.store.fails("unmount", view.path, says="busy|in use")
    assert "--lazy" in says, says
    assert view.read("a.txt") == "one\n"
    assert "detached" not in view.store.out("status")
    view.store.ply("unmount", "--lazy", view.path)
    assert os.listdir(view.path) == []
    # The branch is not free yet, which is no riddle.
    view.store.fails("mount", "--at", view.path, says="branch main is in use.*detached from")
    view.store.fails("drop", "main", says="branch main is in use.*detached from")
    assert re.search("^view .* branch main.*, detached", view.store.out("status"), re.M)
    assert view.store.status()["views"][0]["detached"]
    # Whoever is in it is told by what he has of it, for no path leads there any more.
    if ply.has_epochs():
        who = "%d (sleep)" % child.pid
        assert re.search("^view .* detached.*, in use by %s$" % re.escape(who),
                         view.store.out("status"), re.M)
        assert view.store.status()["views"][0]["users"] == who
        view.store.fails("mount", "--at", view.path, says="in use by %s in" % re.escape(who))
    child.kill()
    child.wait()
    ply.wait_for("the view's end", lambda: not view.store.status()["views"])
    view.store.mount(at=view.path)


def test_who_unmounts_the_view_that_he_is_in_is_not_in_his_own_way(t):
    view = t.view()
    view.store.ply("unmount", view.path, cwd=view.at("dir"))
    assert os.listdir(view.path) == []


SYS_PIDFD_GETFD = 438


def socket_fds(pid):
    """{socket: descriptor}: a client before may just be closed, and its number be another's."""
    found = {}
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError):
            link = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            if link.startswith("socket:"):
                found[link] = int(fd)
    return found


def test_a_client_is_forgotten_when_it_is_served_whoever_holds_its_socket(t):
    """
    As who looks into /proc/PID/fd does for a moment: epoll then goes on with it. Only a build with a
    sanitizer tells that what it says is of memory that was freed.
    """
    store = t.view({"a": "1"}).store
    pid = store.daemon()
    before = socket_fds(pid)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(os.path.join(store.path, "sock"))
    s.recv(4000)  # it greets
    now = socket_fds(pid)
    theirs, = now.keys() - before.keys()
    held = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, os.pidfd_open(pid), now[theirs], 0)
    if held < 0:
        ply.skip("no descriptor of another process can be had here")
    s.send(b"nonsense")
    ply.wait_for("its end", lambda: theirs not in socket_fds(pid))
    s.close()
    store.ply("log")  # the daemon has heard of it
    os.close(held)


def test_links_to_ones_own_descriptors_do_not_lead_to_the_daemons(t):
    """Else '--tar >(gzip)', which is /dev/fd/63, wrote into the store, and '--tar /dev/stdout' into its log."""
    view = t.view({"f": "1"})
    store = view.store
    fds = "/proc/%d/fd/" % store.daemon()
    index = next(n for n in os.listdir(fds) if os.readlink(fds + n) == store.path + "/index/data.mdb")
    os.symlink("/dev/stdout", t.at("link"))
    size = lambda: os.stat(store.path + "/index/data.mdb").st_size
    before, log = size(), ply.read(store.path + "/daemon.log")
    for to in ("/dev/fd/" + index, "/dev/fd/4000", "/dev/stdout", t.at("link"), "/proc/self/cwd/x.tar"):
        store.fails("export", "main", "--tar", to, says="'%s': .* give '-', redirect|symbolic links" % to)
    store.fails("export", "main", "--dir", "/proc/self/cwd/x", says="symbolic links")
    for source in ("/dev/stdin", "/dev/fd/" + index, "/dev/fd/4000", "/proc/self/cwd/tmp"):
        store.fails("import", "--branch", "b", source, says="'%s': .* give '-', redirect" % source)
    assert size() == before and ply.read(store.path + "/daemon.log") == log
    store.import_("/proc/%d/root%s" % (os.getpid(), t.at("source")), "--branch", "b")
    assert store.ply("check").returncode == 0


def test_a_snapshot_view_is_read_only(t):
    view = t.view()
    snap = view.checkpoint()
    view.write("a.txt", "changed")
    old = view.store.mount(snapshot=snap)
    assert old.read("a.txt") == "one\n"
    for attempt in (lambda: old.write("n", ""), lambda: os.unlink(old.at("a.txt")),
                    lambda: old.restore(snap), lambda: os.chmod(old.at("a.txt"), 0o600)):
        try:
            attempt()
        except OSError as e:
            assert e.errno == 30, e
        else:
            raise AssertionError("a read-only view was changed")
    assert old.info()["read_only"]


def test_a_view_inside_another_view(t):
    view = t.view()
    os.mkdir(view.at("inner"))
    inner = view.fork("inner", view.at("inner"))
    assert inner.read("a.txt") == "one\n"
    inner.write("only-inner", "")
    assert "only-inner" not in view.ls()
    inner.unmount()


def test_the_mount_looks_as_it_should(t):
    view = t.view()
    with open("/proc/self/mountinfo") as f:
        line = next(line for line in f if " %s " % view.path in line)
    kind = line.split(" - ")[1].split()
    assert kind[0] == "fuse.plyfs", line
    assert "nosuid" in line and "nodev" in line, line
    s = os.statvfs(view.path)
    assert s.f_namemax == 255 and s.f_bavail > 0


def dies_before_it_reads(store):
    """
    Stands on the store's socket for one client: greets it as the daemon does, lets it ask, and is gone;
    the daemon is there again.
    """
    sock = os.path.join(store.path, "sock")
    os.rename(sock, sock + ".real")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as real:
        real.connect(sock + ".real")
        hello = real.recv(4096)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sock)
    listener.listen()

    def serve():
        client, _ = listener.accept()
        client.send(hello)
        select.select([client], [], [])  # it has asked
        os.rename(sock + ".real", sock)
        listener.close()
        client.close()
    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_verb_that_a_dying_daemon_did_not_read_is_asked_of_the_next(t):
    view = t.view({"a": "1"})
    for args in (["log"], ["fork", "--from", "main", "other"], ["check"]):
        thread = dies_before_it_reads(view.store)
        view.store.ply(*args)
        thread.join()
    other = t.at("other")
    os.mkdir(other)
    thread = dies_before_it_reads(view.store)
    view.store.ply("mount", "--branch", "other", "--at", other)
    thread.join()
    assert ply.read(os.path.join(other, "a")) == "1"
    view.store.ply("unmount", other)


if __name__ == "__main__":
    ply.main()
