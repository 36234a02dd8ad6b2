#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 120
"""Views of ordinary users: mounted by fusermount3, in namespaces, and closed to everybody else."""
import contextlib
import ctypes
import json
import os
import pwd
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND = 0x1000


def need_dev_fuse(t):
    """Where no udev cares for it, /dev/fuse is open to root alone: one for all, in here only."""
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        return
    ply.need_root()
    node = t.at("fuse")
    os.mknod(node, 0o20666, os.makedev(10, 229))
    os.chmod(node, 0o666)
    if not ply.own_mounts or libc.mount(node.encode(), b"/dev/fuse", None, MS_BIND, None) < 0:
        ply.skip("/dev/fuse is open to root alone")


class User:
    """nobody (or whoever runs this, when that is not root), with a directory and the programs."""

    def __init__(self, t):
        ply.need_tool("fusermount3")
        need_dev_fuse(t)
        self.t = t
        self.groups = []
        self.uid = os.geteuid() or pwd.getpwnam("nobody").pw_uid
        self.gid = os.getegid() or pwd.getpwnam("nobody").pw_gid
        self.home = t.at("user")
        os.chmod(t.path, 0o755)
        os.mkdir(self.home)
        # Where the user can reach them, wherever the sources are.
        for program in (ply.PLYFS, ply.PLYFSD):
            shutil.copy(program, t.at(os.path.basename(program)))
        self.own(self.home)
        self.env = dict(t.env, HOME=self.home, XDG_DATA_HOME=self.home + "/data",
                        PLYFS_STORE=self.at("store"))
        self.env.pop("PLYFS_BUILD", None)
        t.clean.append(self.end)

    def at(self, *names):
        return os.path.join(self.home, *names)

    def own(self, path):
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)

    def run(self, argv, check=True, **kw):
        if os.geteuid() == 0 and "preexec_fn" not in kw:
            kw.update(user=self.uid, group=self.gid, extra_groups=self.groups)
        kw.setdefault("cwd", self.home)
        return ply.run(argv, check=check, env=self.env, **kw)

    def ply(self, *args, **kw):
        return self.run([self.t.at("plyfs"), *args], **kw)

    def sh(self, script, **kw):
        return self.run(["sh", "-euc", script], **kw).stdout

    def view(self, name="mnt"):
        """A store with two files, mounted."""
        self.ply("init", self.at("store"))
        self.sh("mkdir -p source/d; echo one >source/a; echo two >source/d/b; mkdir " + name)
        self.ply("import", self.at("source"))
        self.ply("mount", "--at", self.at(name))
        return self.at(name)

    def end(self):
        for where in ply.mounts_below(self.home, "fuse"):
            self.ply("unmount", where, check=False)
        with contextlib.suppress(Exception):
            pid = json.loads(self.ply("status", "--json").stdout)["daemon"]["pid"]
            os.kill(pid, 15)
            ply.wait_for("the daemon's end", lambda: not ply.alive(pid))


def test_an_ordinary_user_mounts_works_and_goes_back(t):
    u = User(t)
    view = u.view()
    first = u.ply("checkpoint", view).stdout.strip()
    u.sh("""
        cd mnt
        echo more >>a; mkdir n; echo three >n/c; ln a n/hard; ln -s ../a n/soft; rm -r d
        chmod 4711 n/c; mkfifo n/pipe; touch -d @5.5 n/c
        test "$(stat -c '%a %h %Y' n/c n/hard | tr '\\n' ' ')" != ''
    """)
    assert u.sh("stat -c '%u %a %h' mnt/n/c") == "%d 4711 1\n" % u.uid
    second = u.ply("checkpoint", view).stdout.strip()
    u.ply("restore", first, view)
    assert u.sh("cd mnt; cat a d/b; ls") == "one\ntwo\na\nd\n"
    u.ply("restore", second, view)
    assert u.sh("cd mnt; cat n/soft; stat -c %h a; ls n") == "one\nmore\n2\nc\nhard\npipe\nsoft\n"
    u.sh("mkdir fork; cd mnt; %s fork idea --at ../fork" % t.at("plyfs"))
    u.sh("echo only here >fork/x; test ! -e mnt/x")
    u.ply("unmount", u.at("fork"))
    # Who ignores SIGCHLD hears nothing of fusermount3's end.
    u.sh("python3 -c 'import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
         "os.execv(sys.argv[1], sys.argv[1:])' %s unmount %s" % (t.at("plyfs"), view))
    assert u.sh("ls mnt") == ""
    u.ply("check")
    u.ply("mount", "--at", view)
    assert u.sh("cat mnt/n/hard") == "one\nmore\n"
    u.ply("mount", "--snapshot", first, "--at", u.at("fork"))
    p = u.run(["touch", u.at("fork/x")], check=False)
    assert "Read-only" in p.stderr, p.stderr


def test_a_view_of_roots_is_open_unless_it_is_private(t):
    ply.need_root()
    view = t.view({"a": "one"})
    os.chmod(t.path, 0o755)
    fork, mnt = t.at("fork"), t.at("private")
    os.mkdir(fork)
    os.mkdir(mnt)
    view.store.ply("fork", "--private", "idea", "--at", fork, cwd=view.path)
    view.store.ply("fork", "other", cwd=view.path)
    p = view.store.ply("mount", "--private", "--allow-other", "--branch", "other", "--at", mnt,
                       check=False)
    assert p.returncode == 2 and "either --private or --allow-other" in p.stderr, p
    view.store.ply("mount", "--private", "--branch", "other", "--at", mnt)
    for at, code in (view.path, 0), (fork, 1), (mnt, 1):
        for uid in (0, 1234):
            p = ply.run(["cat", at + "/a"], check=False, user=uid, group=uid, extra_groups=[])
            assert p.returncode == (code if uid else 0), (at, uid, p)
            assert uid == 0 or code == 0 or "Permission denied" in p.stderr, p


@contextlib.contextmanager
def fuse_conf(t, text):
    """What /etc/fuse.conf says, in here only."""
    if not ply.own_mounts or not os.path.exists("/etc/fuse.conf"):
        ply.skip("needs a mount namespace of its own and /etc/fuse.conf")
    ours = t.at("fuse.conf")
    with open(ours, "w") as f:
        f.write(text)
    os.chmod(ours, 0o644)
    assert libc.mount(ours.encode(), b"/etc/fuse.conf", None, MS_BIND, None) == 0
    try:
        yield
    finally:
        assert libc.umount2(b"/etc/fuse.conf", 0) == 0


def test_an_ordinary_user_opens_a_view_to_others(t):
    ply.need_root()
    u = User(t)
    view = u.view()
    u.sh("mkdir fork other; mkdir -m 700 mnt/closed; echo three >mnt/closed/c")
    fork = ["fork", "--allow-other", "idea", "--at", u.at("fork")]
    with fuse_conf(t, "mount_max = 1000\n"):
        p = u.ply(*fork, check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p
        assert "as root: echo user_allow_other >>/etc/fuse.conf" in p.stderr, p
    with fuse_conf(t, "user_allow_other\n"):
        u.ply(*fork)
        u.ply("fork", "plain")
        u.ply("mount", "--allow-other", "--branch", "plain", "--at", u.at("other"))
    for at in u.at("fork"), u.at("other"):
        for uid in (0, 1234):
            p = ply.run(["cat", at + "/a"], user=uid, group=uid, extra_groups=[])
            assert p.stdout == "one\n"
        # Owners and modes count, as on a disk.
        p = ply.run(["cat", at + "/closed/c"], check=False, user=1234, group=1234, extra_groups=[])
        assert p.returncode == 1 and "Permission denied" in p.stderr, p
        assert ply.run(["cat", at + "/closed/c"]).stdout == "three\n"
        # The one it was not asked for is the user's alone still.
        p = ply.run(["cat", view + "/a"], check=False)
        assert "Permission denied" in p.stderr, p
    at = u.at("fork")
    good = u.ply("checkpoint", at).stdout.strip()
    ply.run(["sh", "-euc", "echo root >d/r; chmod 600 d/r; echo more >>a; rm closed/c"], cwd=at)
    assert u.sh("stat -c '%u %a' fork/d/r") == "0 600\n"
    p = u.run(["cat", "fork/d/r"], check=False)
    assert "Permission denied" in p.stderr, p
    p = ply.run([t.at("plyfs"), "checkpoint", at], check=False, env=u.env, user=1234, group=1234,
                extra_groups=[])
    assert p.returncode == 1, p
    left = ply.run([t.at("plyfs"), "checkpoint", at], env=dict(t.env)).stdout.strip()
    u.ply("restore", good, at)
    assert u.sh("cat fork/a fork/closed/c; ls fork/d") == "one\nthree\nb\n"
    u.ply("restore", left, at)
    assert ply.run(["cat", "d/r", "a"], cwd=at).stdout == "root\none\nmore\n"


def test_what_an_ordinary_user_may_not(t):
    ply.need_root()
    u = User(t)
    view = u.view()
    for script in ("chown 0 mnt/a", "chgrp 0 mnt/a", "mknod mnt/dev c 1 3",
                   "setfattr -n trusted.x -v 1 mnt/a", "mount -o remount,suid mnt"):
        p = u.run(["sh", "-c", script], check=False)
        assert p.returncode != 0, script + ": allowed"
    u.sh("mkdir other")
    for option in ("--suid", "--dev"):
        p = u.ply("mount", option, "--branch", "main", "--at", u.at("other"), check=False)
        assert p.returncode == 1 and option + " is for root" in p.stderr, p
    u.sh("chmod 777 mnt; chmod 666 mnt/a; chgrp %d mnt/a; setfattr -n user.x -v 1 mnt/a" % u.gid)
    # It is that user's alone: neither another one nor root looks in.
    for uid in (0, 1234):
        p = ply.run(["cat", view + "/a"], check=False, user=uid, group=uid, extra_groups=[])
        assert "Permission denied" in p.stderr, (uid, p.stderr)
    # But root can take it away.
    ply.run(["umount", view])
    assert u.sh("ls mnt") == ""


def daemon_of(u):
    return json.loads(u.ply("status", "--json").stdout)["daemon"]["pid"]


def goes_on_after_a_kill(u, call):
    """call: plyfs as whoever mounts."""
    call("mount", "--at", u.at("mnt"))
    u.sh("echo before >mnt/x")
    pid = daemon_of(u)
    os.kill(pid, 9)
    assert u.sh("cd mnt; echo after >>x; cat x; cat d/b") == "before\nafter\ntwo\n"
    assert daemon_of(u) != pid
    assert int(call("daemon", "--replace").stdout) == daemon_of(u)
    assert u.sh("cat mnt/x") == "before\nafter\n"
    pid = daemon_of(u)
    call("unmount", u.at("mnt"))
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid))


def test_write_back_where_others_work_and_where_all_is_read_only(t):
    ply.need_root()
    u = User(t)
    u.groups = [1]
    del u.env["PLYFS_STORE"]
    work = u.at("work")
    u.sh("mkdir -p work/cache/gone work/theirs; cd work; echo 1 >shared; chmod 664 shared;"
         "echo 1 >cache/f; echo 1 >cache/gone/f; chmod 555 cache/gone cache")
    os.chown(work + "/shared", -1, 1)
    os.chown(work + "/theirs", 0, 1)
    os.chmod(work + "/theirs", 0o2775)
    os.setxattr(work + "/cache", "user.gone", b"1")
    u.ply("mount", work)
    u.sh("cd work; echo 2 >shared; echo 2 >theirs/f; touch new; chgrp 1 new; ln -s x ln; chgrp -h 1 ln;"
         "chmod -R u+w cache; echo 2 >cache/f; mkdir cache/d; rm -r cache/gone;"
         "python3 -c 'import os; os.setxattr(\"cache/f\", \"user.a\", b\"1\");"
         "os.chmod(\"cache/f\", 0o444); os.removexattr(\"cache\", \"user.gone\")';"
         "chmod 555 cache")
    p = u.ply("unmount", "--write-back", work)
    assert p.stderr == "", p
    assert os.getxattr(work + "/cache/f", "user.a") == b"1" and os.listxattr(work + "/cache") == []
    assert u.sh("cd work; stat -c '%n %a %u %g' shared theirs theirs/f new cache cache/f") == """\
shared 664 {0} 1
theirs 2775 0 1
theirs/f 644 {0} 1
new 644 {0} 1
cache 555 {0} {1}
cache/f 444 {0} {1}
""".format(u.uid, u.gid)
    assert os.lstat(work + "/ln").st_gid == 1
    assert u.sh("cd work; cat shared cache/f; ls cache") == "2\n2\nd\nf\n"
    assert u.ply("writeback", "--dry-run", work).stdout == ""


def test_root_makes_and_changes_nothing_by_links_in_a_users_store(t):
    """Its supervisor has the lock and, after a death, tells the log: both are the user's to put there."""
    ply.need_root()
    ply.need_followed_daemon()
    u = User(t)
    u.view()
    u.ply("unmount", u.at("mnt"))
    root = lambda *args, **kw: ply.run([t.at("plyfs"), "--store", u.at("store"), *args], env=u.env, **kw)
    ends = lambda pid: (os.kill(pid, 15), ply.wait_for("the daemon's end", lambda: not ply.alive(pid)))
    ends(daemon_of(u))
    os.unlink(u.at("store/lock"))
    root("log")
    assert os.stat(u.at("store/lock")).st_uid == u.uid  # else that user could use it no more
    ends(daemon_of(u))
    os.unlink(u.at("store/lock"))
    os.symlink(t.at("planted"), u.at("store/lock"))
    p = root("log", check=False)
    assert not os.path.exists(t.at("planted")) and "lock: Permission denied" in p.stderr, p
    os.unlink(u.at("store/lock"))
    ply.write(t.at("victim"), "root's\n")
    os.chmod(t.at("victim"), 0o600)
    root("mount", "--at", u.at("mnt"))
    pid = daemon_of(u)
    os.rename(u.at("store/daemon.log"), u.at("store/kept.log"))
    os.symlink(t.at("victim"), u.at("store/daemon.log"))
    os.kill(pid, 9)
    ply.wait_for("the end of its daemons", lambda: "Input/output error" in ply.run(
        ["ls", u.at("mnt")], check=False).stderr)  # which want a log of their own
    assert ply.read(t.at("victim")) == "root's\n"
    root("unmount", u.at("mnt"))


# A daemon of somebody's own making: greets, notes what its client hands over, and says what fd 1 got.
LISTENER = """
import json, os, socket, struct, sys
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen(1)
print("listens", flush=True)
c = s.accept()[0]
answer = lambda text: c.send(struct.pack("=IIii", 0x504c5957, 1, 0, os.getpid()) + text.encode() + bytes(1))
answer("0")
_, fds, _, _ = socket.recv_fds(c, 1 << 17, 8)
cwd = fds[0]
try:
    found = sorted(os.listdir(cwd))
except OSError as e:
    found = e.strerror
print(json.dumps({"terminals": [os.ttyname(fd) for fd in fds[1:] if os.isatty(fd)], "found": found}))
os.write(fds[2], b"said\\n")
answer("")
"""


def on_a_terminal(argv, **kw):
    """What is written to a terminal of its own, and that terminal's name."""
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    p = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, **kw)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: all have closed it
        while True:
            said += os.read(ours, 4096)
    os.close(ours)
    assert p.wait() == 0, said
    return said.decode().replace("\r\n", "\n"), name


def test_root_keeps_terminal_and_directory_from_a_users_daemon(t):
    """A descriptor of the terminal would read what root types, one of the directory what only root may list."""
    ply.need_root()
    u = User(t)
    u.ply("init", u.at("store"))
    os.mkdir(t.at("roots"), 0o700)
    ply.write(t.at("roots/secret"), "")
    argv = [t.at("plyfs"), "--store", u.at("store")]
    kw = {"env": dict(u.env, TERM="xterm"), "cwd": t.at("roots")}
    with subprocess.Popen([sys.executable, "-c", LISTENER, u.at("store/sock"), str(u.uid), str(u.gid)],
                          stdout=subprocess.PIPE, text=True) as p:
        p.stdout.readline()
        said, terminal = on_a_terminal(argv + ["log"], **kw)
        seen = json.loads(p.stdout.read())
    assert said == "said\n", said
    assert terminal not in seen["terminals"] and seen["found"] == "Bad file descriptor", (terminal, seen)
    os.unlink(u.at("store/sock"))
    # The user's true daemon draws for root as ever.
    ply.write(u.at("tree/file"), "1")
    said, _ = on_a_terminal(argv + ["import", u.at("tree")], **kw)
    assert re.fullmatch(r"(\r.*\x1b\[K)+[0-9a-f]{12}\n", said), said


def test_a_view_outlives_its_daemon(t):
    ply.need_followed_daemon()
    u = User(t)
    u.view()
    u.ply("unmount", u.at("mnt"))
    goes_on_after_a_kill(u, u.ply)
    if os.geteuid() == 0:  # for the user's store: the supervisor is root's, the daemon the user's
        goes_on_after_a_kill(u, lambda *a: ply.run([t.at("plyfs"), *a], env=u.env))


def test_unmounting_and_the_helper_tell_what_is_wrong(t):
    u = User(t)
    view = u.view()
    sleeper = subprocess.Popen(
        ["sh", "-c", "cd %s && exec sleep 100" % view], env=u.env,
        **(dict(user=u.uid, group=u.gid, extra_groups=[]) if os.geteuid() == 0 else {}))
    t.clean.append(lambda: (sleeper.kill(), sleeper.wait()))
    ply.wait_for("cwd", lambda: ply.read("/proc/%d/comm" % sleeper.pid) == "sleep\n")
    p = u.ply("unmount", view, check=False)
    assert p.returncode == 1 and "%d (sleep)" % sleeper.pid in p.stderr, p.stderr
    sleeper.kill()
    sleeper.wait()
    u.ply("unmount", view)
    if os.geteuid() == 0:
        os.mkdir(t.at("roots"))
        p = u.ply("mount", "--at", t.at("roots"), check=False)
        assert p.returncode == 1 and "roots" in p.stderr and p.stderr.count("\n") == 1, p.stderr


def test_commands_that_cannot_be_run_end_as_with_env(t):
    """A directory of PATH that may not be searched may have the command: env(1) and its like say 126, shells 127."""
    u = User(t)
    u.view()
    u.sh("mkdir closed; chmod 0 closed; cp /dev/null plain")
    inside = ["sh", "-c", 'cd mnt && exec "$@"', "sh"]
    for closed in ([], [u.at("closed")]):
        u.env["PATH"] = ":".join(closed + [u.at(), "/usr/bin", "/bin"])
        for command in ("nosuch", "plain", "./a", "/nosuch/x", ""):
            wanted = u.run([*inside, "env", command], check=False)
            assert wanted.returncode in (126, 127), wanted
            for how in ([], ["--timeout", "60"]):
                p = u.run([*inside, t.at("plyfs"), "run", *how, "--", command], check=False)
                assert p.returncode == wanted.returncode and p.stderr.count("\n") == 1, (how, p, wanted)
    u.sh("chmod 700 closed")


def test_what_may_not_be_done_is_told_as_it_is(t):
    ply.need_mount_namespaces()
    u = User(t)
    view = t.view({"a": "one"})
    os.chmod(t.path, 0o755)
    for words in ((), ("--lazy",)):
        p = u.ply("unmount", *words, view.path, check=False)
        assert p.returncode == 1 and "was mounted by another user" in p.stderr, p.stderr
    p = u.ply("unmount", "--write-back", view.path, check=False)
    assert p.returncode == 1 and "another user" in p.stderr, p.stderr
    os.mkdir(t.at("closed"), 0o700)
    store = u.env.pop("PLYFS_STORE")
    p = u.run([t.at("plyfs"), "mount", view.path], check=False)
    assert p.returncode == 1 and p.stderr.endswith(" already (another user's)\n"), p.stderr
    for verb in ("checkpoint", "mount"):
        p = u.run([t.at("plyfs"), verb, t.at("closed")], check=False)
        assert p.returncode == 1 and p.stderr.endswith("closed': Permission denied\n"), p.stderr
    p = u.run([t.at("plyfs"), "checkpoint", view.path], check=False)
    assert p.returncode == 1 and "only root and the owner" in p.stderr, p.stderr

    os.chmod(view.store.path, 0o755)
    p = u.run([t.at("plyfs"), "--store", view.store.path, "log"], cwd="/", check=False)
    assert p.returncode == 1 and "only root and the owner of the store" in p.stderr, p.stderr
    u.env["PLYFS_STORE"] = store
    u.ply("init", store)
    u.sh("mkdir source")
    u.ply("import", u.at("source"))
    for words in (("drop", "main"), ("diff",), ("import", "--replace", view.path), ("fork", "f")):
        p = u.ply(*words, cwd=view.path, check=False)  # as in any view, not of PLYFS_STORE
        assert p.returncode == 1 and p.stderr.count("\n") == 1, (words, p)
        assert "another user" in p.stderr or "only root and the owner" in p.stderr, (words, p)
    assert u.ply("tree", "--names").stdout == u.ply("tree", "--names", "--store", store,
                                                    cwd=view.path).stdout == "main\n"
    os.mkdir(t.at("mnt"))
    u.own(t.at("mnt"))
    closed = """
        mount -t tmpfs none /dev
        mknod -m 666 /dev/null c 1 3
        mknod -m 600 /dev/fuse c 10 229
        exec setpriv --reuid %d --regid %d --clear-groups "$@"
    """ % (u.uid, u.gid)
    for words in (("mount", "--at", t.at("mnt")), ("doctor",)):
        p = ply.run(["unshare", "-m", "sh", "-euc", closed, "sh", t.at("plyfs"), *words],
                    env=u.env, cwd=u.home, check=False)
        assert p.returncode == 1 and "as root: chmod 666 /dev/fuse" in p.stdout + p.stderr, p


def test_a_pack_that_may_not_be_read_is_named_and_is_no_damage(t):
    """As after a copy that root made in part."""
    ply.need_root()
    u = User(t)
    u.ply("unmount", u.view())
    pack = "packs/00000001.pack"
    os.chown(os.path.join(u.at("store"), pack), 0, 0)
    what = pack + ": Permission denied\n"
    for verb, says in ((["check"], "the check could not be done: "), (["salvage"], "'%s': " % u.at("store")),
                       (["check", "--repair"], "the repair could not be done: ")):
        u.end()
        p = u.ply(*verb, check=False)
        assert (p.returncode, p.stdout, p.stderr) == (1, "", "plyfs %s: %s%s" % (verb[0], says, what)), p


def test_the_quick_start_shows_it_on_a_tree_of_others(t):
    ply.need_root()
    u = User(t)
    tree = t.tree({"d/%d" % i: str(i) for i in range(9)})
    for name in ("tools/plyfs", "tools/plyfsd", "tests/treedigest"):
        os.makedirs(os.path.dirname(t.at("build", name)), exist_ok=True)
        shutil.copy(os.path.join(ply.BUILD, name), t.at("build", name))
    shutil.copy(os.path.join(ply.SOURCE, "tools", "quickstart"), t.path)
    u.env.update(BUILD_DIR=t.at("build"), PLYFS_NO_SETUP="1", TMPDIR=u.home)
    out = u.run([t.at("quickstart"), tree]).stdout
    assert "a copy of " + tree in out and "Everything is back" in out, out
    assert os.listdir(u.home) == [], os.listdir(u.home)


def test_root_is_told_what_he_cannot_know_of_a_users_view(t):
    """It is closed to him: neither its store nor its branch is known, nor what differs."""
    ply.need_root()
    u = User(t)
    u.env.pop("PLYFS_STORE")
    u.sh("mkdir work; echo one >work/a")
    u.ply("mount", u.at("work"))
    u.sh("echo two >work/a")
    root = lambda *words: ply.run([t.at("plyfs"), *words], env=u.env, cwd="/", check=False)
    p = root("mount", "--store", u.at("nosuch"), "--at", u.at("work"))
    assert p.returncode == 1 and p.stderr.endswith(" already (another user's)\n"), p.stderr
    for words in ("checkpoint", "undo", "test --in", "shell --in", "session start x --in"):
        p = ply.run([ply.PLYFS, *words.split(), u.at("work")], env=t.env, cwd="/", check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, (words, p.stderr)
        assert "' is mounted by another user, whose views are closed to all others, root too: " in p.stderr, p.stderr
        assert "--allow-other" in p.stderr, p.stderr
    for words in (("--write-back",), ("--write-back", "--dry-run"), ("--write-back", "--force")):
        p = root("unmount", *words, u.at("work"))
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p.stderr
        assert "is another user's view" in p.stderr and "short" not in p.stderr, p.stderr
    p = root("unmount", u.at("work"))
    assert p.returncode == 0 and p.stderr.count("\n") == 1, p.stderr
    assert "is unmounted; its view was closed to us, so it was not waited" in p.stderr, p.stderr
    assert u.sh("cat work/a") == "one\n"
    ply.wait_for("the view's end", lambda: u.ply("writeback", u.at("work"), check=False).returncode == 0)
    assert u.sh("cat work/a") == "two\n"


def test_why_a_directory_is_not_mounted_is_the_last_line_for_the_library(t):
    """Who mounts by hand is told of the empty store as well; either is told where else a store may lie."""
    ply.need_root()
    u = User(t)
    u.env.pop("PLYFS_STORE")
    for name, words, n in (("d", (), 2), ("e", ("--update",), 1)):
        u.sh("mkdir %s; echo one >%s/a" % (name, name))
        os.chmod(u.at(name, "a"), 0o600)
        os.chown(u.at(name, "a"), 0, 0)
        p = u.ply("mount", *words, u.at(name), check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == n, p.stderr
        assert ("Permission denied" in p.stderr.splitlines()[-1]) == (n == 1), p.stderr
        assert ("the next try uses the empty store" in p.stderr) == (n == 2), p.stderr
    u.env["XDG_DATA_HOME"] = t.at("closed")
    p = u.ply("mount", u.at("d"), check=False)
    assert p.returncode == 1 and "making '%s': " % t.at("closed") in p.stderr, p.stderr
    assert p.stderr.endswith("set XDG_DATA_HOME\n"), p.stderr


def test_why_fusermount3_can_do_nothing_is_told(t):
    ply.need_root()
    u = User(t)
    u.ply("init", u.at("store"))
    os.mkdir(u.at("mnt"))
    os.chmod(u.home, 0o777)
    os.chmod(u.at("store"), 0o700)
    u.own(u.at("mnt"))
    stranger = next(uid for uid in range(12345, 60000) if uid not in {p.pw_uid for p in pwd.getpwall()})
    for uid, more, says in ((u.uid, ["--no-new-privs"], "no_new_privs"), (stranger, [], "/etc/passwd")):
        run = ["setpriv", "--reuid", str(uid), "--regid", str(u.gid), "--clear-groups", *more, t.at("plyfs")]
        store, mnt = u.at("store-%d" % uid), u.at("mnt-%d" % uid)
        for words in (["init", store], ["doctor"], ["mount", "--store", store, "--at", mnt]):
            if words[0] == "mount":
                os.mkdir(mnt)
                os.chown(mnt, uid, u.gid)
            p = ply.run([*run, *words], env=u.env, cwd=u.home, check=False)
            if words[0] == "init":
                assert p.returncode == 0, p
            else:
                assert p.returncode == 1 and says in (p.stdout if words[0] == "doctor" else p.stderr), (uid, p)


def user_who_is_refused(t, why):
    """With a store, a mount point, and a fusermount3 in bin that says so."""
    u = User(t)
    u.ply("init", u.at("store"))
    os.mkdir(u.at("mnt"))
    u.own(u.at("mnt"))
    ply.write(u.at("bin/fusermount3"), "#!/bin/sh\necho 'fusermount3: mount failed: %s' >&2\nexit 1\n" % why)
    os.chmod(u.at("bin/fusermount3"), 0o755)
    os.chmod(u.at("bin"), 0o755)
    return u


def test_where_apparmor_forbids_a_mount_the_cure_is_told(t):
    # As Ubuntu does from 25.04 on. Played by a helper that is refused, as there is AppArmor nowhere.
    ply.need_mount_namespaces()
    u = user_who_is_refused(t, "Permission denied")
    script = """
        cp /etc/passwd /etc/group . && mount -t tmpfs none /etc && cp passwd group /etc || exit
        [ $2 = no ] || { mkdir /etc/apparmor.d && touch /etc/apparmor.d/fusermount3; }
        PATH=$PWD/bin:$PATH
        exec setpriv --reuid %d --regid %d --clear-groups "$1" mount --at "$PWD/mnt"
    """ % (u.uid, u.gid)
    for profile, says in ("yes", "/etc/apparmor.d/local/fusermount3"), ("no", "Permission denied"):
        p = ply.run(["unshare", "-m", "sh", "-uc", script, "sh", t.at("plyfs"), profile], env=u.env,
                    cwd=u.home, check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1 and says in p.stderr, (profile, p)


def test_why_a_mount_is_refused_is_left_to_doctor(t):
    u = user_who_is_refused(t, "Operation not permitted")
    u.env["PATH"] = u.at("bin") + ":" + u.env["PATH"]
    for words, refers in (["mount", "--at", u.at("mnt")], True), (["doctor"], False):
        p = u.ply(*words, check=False)
        said = p.stdout + p.stderr
        assert p.returncode == 1 and "not permitted" in said and ("see 'plyfs doctor'" in said) == refers, said


def test_where_fusermount3_cannot_unmount_the_cure_is_told(t):
    # It wants /etc/mtab, which a root of debootstrap's does not have.
    ply.need_mount_namespaces()
    u = User(t)
    u.ply("init", u.at("store"))
    os.mkdir(u.at("mnt"))
    u.own(u.at("mnt"))
    p = ply.run(["unshare", "-m", "sh", "-uc", """
        cp /etc/passwd /etc/group . && mount -t tmpfs none /etc && cp passwd group /etc || exit
        plyfs="setpriv --reuid %d --regid %d --clear-groups $1"
        $plyfs mount --at "$PWD/mnt" || exit 1
        $plyfs unmount "$PWD/mnt"
        $plyfs unmount --lazy "$PWD/mnt"
        $plyfs doctor # and no trial mount, which would stay
        umount "$PWD/mnt"
    """ % (u.uid, u.gid), "sh", t.at("plyfs")], env=u.env, cwd=u.home, check=False)
    assert p.stderr.count("without /etc/mtab; as root: ln -s") == 2, p.stdout + p.stderr
    assert "BAD   no /etc/mtab: ordinary users cannot unmount" in p.stdout, p.stdout + p.stderr
    assert "trial" not in p.stdout and "views cannot be mounted here" in p.stdout, p.stdout
    assert p.returncode == 0, p.stdout + p.stderr


def test_a_mount_namespace_of_its_own(t):
    # As in a container whose process is an ordinary user: only it sees the view.
    ply.need_root()
    u = User(t)
    u.view()
    u.ply("unmount", u.at("mnt"))

    def enter():
        if not ply.enter_mount_namespace():
            os._exit(77)
        os.setgroups([])
        os.setgid(u.gid)
        os.setuid(u.uid)
    p = u.run(["sh", "-euc", """
        plyfs=$1
        $plyfs mount --at "$PWD/mnt"
        echo inside >mnt/a
        id=$($plyfs checkpoint mnt)
        echo later >mnt/a
        (cd mnt; $plyfs restore $id)
        cat mnt/a
        $plyfs unmount "$PWD/mnt"
    """, "sh", t.at("plyfs")], check=False, preexec_fn=enter)
    assert p.returncode == 0 and p.stdout.endswith("inside\n"), p.stdout + p.stderr


def in_user_namespace(u, script, map_line, uid):
    """Runs a script in a user and a mount namespace, as a user of it: its status and output."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        out = os.open(u.t.at("out"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        try:
            if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0:
                os._exit(77)
            os.write(ready[1], b"1")
            os.read(go[0], 1)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.chdir(u.home)
            os.execvpe("sh", ["sh", "-euc", script, "sh", u.t.at("plyfs")], u.env)
        finally:
            os._exit(1)
    os.close(ready[1])
    if os.read(ready[0], 1) == b"1":
        for name in ("uid_map", "gid_map"):
            ply.write("/proc/%d/%s" % (pid, name), map_line)
    os.write(go[1], b"1")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for fd in (ready[0], *go):
        os.close(fd)
    return status, ply.read(u.t.at("out"))


USE = """
    plyfs=$1
    id -u
    $plyfs init "$PWD/inner"
    export PLYFS_STORE=$PWD/inner
    mkdir -p src at; echo one >src/a; $plyfs import src >/dev/null
    $plyfs mount --at "$PWD/at" >/dev/null
    first=$($plyfs checkpoint at)
    echo two >at/a; ln at/a at/b; stat -c '%u %h' at/b
    (cd at; $plyfs restore $first >/dev/null 2>&1)
    cat at/a; ls at
    $plyfs unmount "$PWD/at"; ls at
    grep -q " $PWD/at " /proc/self/mountinfo || echo gone
"""


def test_a_user_namespace_where_one_is_an_ordinary_user(t):
    # All numbers are mapped to themselves: fusermount3 is root's there, and so of use.
    ply.need_root()
    u = User(t)
    status, out = in_user_namespace(u, USE, "0 0 65536\n", u.uid if u.uid < 65536 else 1)
    if status == 77:
        ply.skip("no user namespaces here")
    if "fusermount3" in out and "Operation not permitted" in out:
        ply.skip("fusermount3 may not mount in a user namespace here: " + out)
    assert out == "%d\n%d 2\none\na\ngone\n" % (u.uid, u.uid) and status == 0, out


def test_a_user_namespace_where_one_is_root(t):
    # An ordinary user of the machine, root in here, mounts without fusermount3.
    ply.need_root()
    u = User(t)
    status, out = in_user_namespace(u, USE, "0 %d 1\n" % u.uid, 0)
    if status == 77:
        ply.skip("no user namespaces here")
    assert out == "0\n0 2\none\na\ngone\n" and status == 0, out


if __name__ == "__main__":
    ply.main()
