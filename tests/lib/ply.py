# SPDX-License-Identifier: Apache-2.0
"""
What the end-to-end tests share: the built programs, stores and views that are always cleaned up,
the control ioctls (viewioctl.py), tree makers and digests. Python's standard library only.

A test script is a handful of functions named as facts, each taking a Bench (a temporary directory
with everything hanging off it), and `ply.main(__name__)` at the end:

    def test_a_restore_brings_back_what_was_deleted(t):
        view = t.view({"a": "1"})
        ...
        assert view.read("a") == "1"

Each runs in a directory of its own; exit 0, 1, or 77 when all were skipped (ply.skip(reason)).
`SCRIPT NAME...` runs only tests whose names contain a NAME.
"""
import collections
import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import mmap
import multiprocessing
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

from viewioctl import (CALL, CHECKPOINT, CHECKPOINT_SYNC, IOC_CALL, IOC_CHECKPOINT, IOC_READ, READ, ioctl,
                       ioctl_call, ioctl_checkpoint, ioctl_fork, ioctl_info, ioctl_moved, ioctl_restore,
                       ioctl_undo)

SOURCE = os.environ.get("PLYFS_SOURCE") or os.path.dirname(os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PLYFS_BUILD") or os.path.join(SOURCE, "build")
PLYFS = os.path.join(BUILD, "tools", "plyfs")
PLYFSD = os.path.join(BUILD, "tools", "plyfsd")
TREEDIGEST = os.path.join(BUILD, "tests", "treedigest")
FAULTS = os.path.join(BUILD, "tests", "faults.so")
LONG = bool(os.environ.get("PLYFS_TEST_LONG"))
# Names of chunks collide all the time (store/hash.h): a second run of some scripts, on small trees.
COLLIDE = "PLYFS_TEST_HASH_BITS" in os.environ
ID = re.compile(r"[0-9a-f]{12}\Z")

# Python 3.14 would begin another interpreter, to which what a fact has defined cannot be handed.
multiprocessing.set_start_method("fork")


class Skip(Exception):
    pass


def skip(reason):
    raise Skip(reason)


def need_root():
    if os.geteuid() != 0:
        skip("needs root")


def need_tool(*names):
    for name in names:
        if not shutil.which(name):
            skip("needs " + name)


def libarchive():
    """3.7.5 is 3007005."""
    return ctypes.CDLL("libarchive.so.13").archive_version_number()


def has_epochs():
    """Can the kernel do what large restores and views that outlive their daemon need (fs/README.md)?"""
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 16)


def need_followed_daemon():
    if not has_epochs():
        skip("before Linux 6.16 a view ends with its daemon")


def need_mount_namespaces():
    """For root; there are none in a plain chroot, for instance."""
    need_root()
    if run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/tmp"], check=False).returncode:
        skip("no mount namespaces here")


def is_sanitized(program, by=("asan", "tsan")):
    """Was it, or a library, built with one of these sanitizers?"""
    with open(program, "rb") as f:
        content = f.read()
    return any(b"__%s_init" % name.encode() in content for name in by)


NO_LEAKS = ":detect_leaks=0"


def loads(library):
    """
    Can this process load it? A sanitizer's runtime must be in a process before all else: so Python
    starts once more, with it, and without it for the programs that it starts. Python's own leaks are
    left out.
    """
    with open(library, "rb") as f:
        runtime = re.search(rb"lib(a|t)san\.so\.\d+", f.read())
    if not runtime:
        return not is_sanitized(library)
    options = os.environ.get("ASAN_OPTIONS", "").removesuffix(NO_LEAKS)
    if hasattr(ctypes.CDLL(None), "__%ssan_init" % runtime[1].decode()):
        del os.environ["LD_PRELOAD"]
        os.environ["ASAN_OPTIONS"] = options
        return True
    sys.stdout.flush()
    os.environ.update(LD_PRELOAD=runtime[0].decode(), ASAN_OPTIONS=options + NO_LEAKS)
    os.execv(sys.executable, sys.orig_argv)


def small_disk(t, megabytes=96, kind="ext4"):
    """Mounts a filesystem of that size at "disk", with a test's directory; its path."""
    need_root()
    need_tool("mkfs." + kind)
    image, where = t.at("disk.img"), t.at("disk")
    os.mkdir(where)
    with open(image, "wb") as f:
        f.truncate(megabytes << 20)
    t.run(["mkfs." + kind, "-q", *(["-m", "0"] if kind == "ext4" else []), image])
    if t.run(["mount", "-o", "loop", image, where], check=False).returncode:
        skip("no loop devices here, or no " + kind)
    return where


def raises(code, f, *args, **kw):
    """The call fails with this errno."""
    try:
        f(*args, **kw)
    except OSError as e:
        assert e.errno == code, "wanted %s, got %s" % (errno.errorcode[code], e)
    else:
        raise AssertionError("wanted " + errno.errorcode[code])


@contextlib.contextmanager
def overtaken():
    """Restores that follow each other at once may take a name away, or overtake a call twice (fs/README.md)."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ESTALE):
            raise


def room(path):
    """Free bytes, as df shows them."""
    st = os.statvfs(path)
    return st.f_bavail * st.f_frsize


_libc = ctypes.CDLL(None, use_errno=True)


def syncfs(fd):
    if _libc.syncfs(fd) < 0:
        raise OSError(ctypes.get_errno(), "syncfs")


# ---- processes and mounts ----

def run(argv, check=True, timeout=120, **kw):
    """subprocess.run with text output; a failure shows both streams."""
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    kw.setdefault("stdin", subprocess.DEVNULL if "input" not in kw else None)
    if kw["stdin"] is None:
        del kw["stdin"]
    kw.setdefault("text", True)
    if kw["text"]:
        kw.setdefault("errors", "surrogateescape")
    p = subprocess.run(argv, timeout=timeout, **kw)
    if check and p.returncode:
        raise AssertionError("%s: exit %d\nstdout: %s\nstderr: %s" % (
            " ".join(map(str, argv)), p.returncode, p.stdout, p.stderr))
    return p


def mounts_below(path, kind=""):
    """Mount points at or below a path, deepest first; kind: only of this filesystem type."""
    found = []
    prefix = os.path.realpath(path) if not os.path.ismount(path) else os.path.abspath(path)
    prefix = prefix.rstrip("/")  # of the root
    with open("/proc/self/mountinfo", errors="surrogateescape") as f:
        for line in f:
            where = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
            if where == prefix or where.startswith(prefix + "/"):
                if line.split(" - ")[1].split()[0].startswith(kind):
                    found.append(where)
    return sorted(found, key=len, reverse=True)


own_mounts = False  # the test's: see main


def enter_mount_namespace():
    """
    What this process mounts from now on is seen by it and its children alone. False: not permitted.
    Views that are there already are taken off here: they would be held until this process ends.
    """
    private = 0x44000  # MS_REC | MS_PRIVATE
    if _libc.unshare(0x20000) < 0 or _libc.mount(b"none", b"/", None, private, None) < 0:
        return False
    for where in mounts_below("/", "fuse.plyfs"):
        _libc.umount2(os.fsencode(where), 2)  # MNT_DETACH
    return True


DROP_CACHES = "/proc/sys/vm/drop_caches"


def drop_caches():
    """The whole machine forgets names and inodes that nobody uses, and their pages."""
    need_root()
    with open(DROP_CACHES, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.write("2")


@contextlib.contextmanager
def caches_stay():
    """Meanwhile no other test drops them: for counting what the kernel asks for."""
    try:
        f = open(DROP_CACHES, "w")
    except OSError:
        yield  # not root
        return
    with f:
        fcntl.flock(f, fcntl.LOCK_SH)
        yield


def alive(pid):
    """Or dying: a first thread is a zombie as long as others have not closed their files yet."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            stat = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return stat[0] not in "ZX" or int(stat[17]) > 1  # its threads


def wait_for(what, condition, seconds=30):
    """
    The limit is for what never comes: a machine that does other work may be slow, and one look take all
    of that time (drop_caches waits for those who count); so it looks some more times all the same.
    """
    end, looks = time.monotonic() + seconds, 0
    while True:
        got, looks = condition(), looks + 1
        if got:
            return got
        if time.monotonic() > end and looks > 5:
            raise AssertionError("after %d s still not: %s" % (seconds, what))
        time.sleep(0.02)


# ---- trees ----

def treedigest(path, *options):
    """Content, modes, owners, ns times, links, xattrs, holes of everything below a directory."""
    return run([TREEDIGEST, "-j", "2", *options, path], timeout=900).stdout.split()[0]


def treelist(path, *options):
    return run([TREEDIGEST, "--list", *options, path], timeout=900, text=False).stdout


def assert_same_tree(a, b, *options):
    """Two directories are equal in everything; a failure shows the first lines that differ."""
    if treedigest(a, *options) == treedigest(b, *options):
        return
    la = treelist(a, *options).splitlines()
    lb = treelist(b, *options).splitlines()
    import difflib
    lines = list(difflib.unified_diff([repr(x) for x in la], [repr(x) for x in lb],
                                      os.fspath(a), os.fspath(b), n=0, lineterm=""))
    raise AssertionError("the trees differ:\n" + "\n".join(lines[:40]))


def write(path, data, mode="w"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(data, bytes):
        mode = mode.replace("b", "") + "b"
    with open(path, mode) as f:
        f.write(data)


def read(path):
    with open(path, errors="surrogateescape") as f:
        return f.read()


def child(work, *args):
    """Runs work(*args) in a process of its own, which exits 0 when that returns: its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def ended_well(pid):
    return os.waitpid(pid, 0)[1] == 0


def make_tree(top, files):
    """{"a/b": "text" | bytes | None (directory)}"""
    os.makedirs(top, exist_ok=True)
    for name, data in files.items():
        if data is None:
            os.makedirs(os.path.join(top, name), exist_ok=True)
        else:
            write(os.path.join(top, name), data)
    return top


def make_bulk(top, count, per_dir=50, seed=1, size=1500):
    """`count` small files with different contents, in directories two levels deep."""
    rng = random.Random(seed)
    os.makedirs(top, exist_ok=True)
    made = 0
    group = 0
    while made < count:
        d = os.path.join(top, "d%03d" % (group // 20), "s%04d" % group)
        os.makedirs(d)
        for i in range(min(per_dir, count - made)):
            with open(os.path.join(d, "f%03d.txt" % i), "wb") as f:
                f.write(b"%d\n" % made + rng.randbytes(rng.randrange(size) // 2).hex().encode())
            made += 1
        group += 1
    return top


# ---- a test's surroundings ----

class View:
    """A mounted view. Paths given to its methods are relative to its root."""

    def __init__(self, store, path):
        self.store, self.top, self.path = store, store.top, os.fspath(path)

    def at(self, *names):
        return os.path.join(self.path, *names)

    @contextlib.contextmanager
    def fd(self):
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def checkpoint(self, label=""):
        with self.fd() as fd:
            syncfs(fd)
            return ioctl_checkpoint(fd, label)

    def restore(self, snap):
        with self.fd() as fd:
            syncfs(fd)
            return ioctl_restore(fd, snap)

    def undo(self):
        with self.fd() as fd:
            syncfs(fd)
            return ioctl_undo(fd)

    def fork(self, name, mountpoint=None):
        """A mounted view of a new branch that continues this one's present state."""
        with self.fd() as fd:
            syncfs(fd)
            ioctl_fork(fd, name)
        return self.store.mount(branch=name, at=mountpoint)

    def info(self):
        with self.fd() as fd:
            return ioctl_info(fd)

    def read(self, name):
        return read(self.at(name))

    def write(self, name, data):
        write(self.at(name), data)

    def ls(self, name="."):
        return sorted(os.listdir(self.at(name)))

    def inodes(self):
        """How many inodes the tree has, those without a name included."""
        os.utime(self.path)  # that files went which had no names is no change
        return len(re.findall("^ *inode ", self.store.out("dump", self.checkpoint()), re.M))

    def unmount(self):
        self.store.ply("unmount", self.path)

    def digest(self, *options):
        return treedigest(self.path, *options)


class Store:
    def __init__(self, bench, name="store", init=True):
        self.top, self.bench = bench, bench
        self.path = bench.at(name)
        self.views = 0
        self.pids = set()
        if init:
            self.ply("init", self.path)

    def ply(self, *args, check=True, **kw):
        """plyfs ARGS with this store in the environment."""
        env = dict(self.bench.env, PLYFS_STORE=self.path)
        env.update(kw.pop("env", {}))
        kw.setdefault("cwd", self.bench.path)
        return run([PLYFS, *map(os.fspath, args)], check=check, env=env, **kw)

    def out(self, *args, **kw):
        return self.ply(*args, **kw).stdout.strip()

    def json(self, *args, **kw):
        return json.loads(self.ply(*args, "--json", **kw).stdout)

    def fails(self, *args, code=1, says=(), **kw):
        """The command fails with this exit code and one line; returns what it said."""
        p = self.ply(*args, check=False, **kw)
        shown = "plyfs %s: exit %d\n%s%s" % (" ".join(map(str, args)), p.returncode,
                                            p.stdout, p.stderr)
        assert p.returncode == code, shown + "wanted exit %d" % code
        for word in [says] if isinstance(says, str) else says:
            assert re.search(word, p.stderr, re.I), shown + "does not say %r" % word
        assert p.stderr.strip(), shown + "says nothing"
        return p.stderr

    def import_(self, source, *args):
        snap = self.out("import", *args, source, timeout=900)
        assert ID.match(snap), "import printed %r" % snap
        return snap

    def mount(self, branch=None, snapshot=None, at=None, *more):
        if at is None:
            self.views += 1
            at = self.bench.at("mnt-%s-%d" % (os.path.basename(self.path), self.views))
        os.makedirs(at, exist_ok=True)
        args = ["mount", "--at", at]
        args += ["--branch", branch] if branch else []
        args += ["--snapshot", snapshot] if snapshot else []
        self.ply(*args, *more)
        view = View(self, at)
        self.daemon()
        return view

    def status(self):
        return self.json("status")

    def daemon(self):
        """pid of the running daemon, or None. Remembered, so that only our own is ever ended."""
        p = self.ply("status", "--json", check=False)
        pid = None
        if p.returncode == 0:
            daemon = json.loads(p.stdout).get("daemon")
            pid = daemon.get("pid") if isinstance(daemon, dict) else daemon
        if pid:
            self.pids.add(int(pid))
            return int(pid)
        return None

    def is_daemon(self, pid):
        """It still is one of ours. Numbers come again: it may be somebody else's by now."""
        try:
            return alive(pid) and bool({self.path, os.path.realpath(self.path)} &
                                       set(read("/proc/%d/cmdline" % pid).split("\0")))
        except OSError:
            return False  # it ended just now

    def stop(self, seconds=60):
        """Ends the daemon kindly and waits; views must be unmounted before."""
        pid = self.daemon()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            wait_for("the daemon's end", lambda: not alive(pid), seconds)

    def kill(self):
        """
        The daemon dies at once. Returns when it is gone; its views go on. If not (Bench.unsupervised),
        its supervisor has taken them off and let go of the store, too.
        """
        pid = self.daemon()
        assert pid, "no daemon to kill"
        os.kill(pid, signal.SIGKILL)
        wait_for("the daemon's death", lambda: not alive(pid))
        if "PLYFSD_SUPERVISE_OFF" in self.bench.env:
            wait_for("the end of its supervisor", self.is_let_go)
        return pid

    def is_let_go(self):
        with open(os.path.join(self.path, "lock")) as f:
            try:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def log_tail(self):
        try:
            return "".join(open(os.path.join(self.path, "daemon.log"), errors="replace")
                           .readlines()[-30:])
        except OSError:
            return ""


    def sanitizer_reports(self):
        """From the first report on; "" for none. The daemon's stderr is its log."""
        try:
            with open(os.path.join(self.path, "daemon.log"), errors="replace") as f:
                text = f.read()
        except OSError:
            return ""
        found = SAID.search(text)
        return text[found.start():][:SAID_MAX] if found else ""


SANITIZER_OPTIONS = "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"
# The last is what is said where the file for it (Bench.reports) cannot be made.
SAID = re.compile(r"^.*((Address|Leak|Thread)Sanitizer|runtime error:|Can't open file: .*/report)", re.M)
SAID_MAX = 6000  # characters of each: what one report takes, and some of the next


class Bench:
    """A test's temporary directory, stores and views."""

    def __init__(self, name):
        base = os.environ.get("PLYFS_TEST_DIR") or os.environ.get("TMPDIR") or "/tmp"
        self.path = tempfile.mkdtemp(prefix="plyfs-%s-" % name[:30], dir=base)
        self.stores = []
        self.clean = []
        self.said = []  # by sanitizers, in other programs than daemons
        home = self.at("home")
        os.mkdir(home)
        keep = ("PATH", "LANG", "LD_LIBRARY_PATH", "PLYFS_BUILD", *SANITIZER_OPTIONS,
                "TMPDIR", "PLYFS_TEST_HASH_BITS", "PYENV_VERSION", "PYENV_ROOT")
        self.env = {k: os.environ[k] for k in keep if k in os.environ}
        # Whoever it is that is told about, and whatever became of what it prints.
        self.reports = tempfile.mkdtemp(prefix="plyfs-said-", dir=base) if sanitized() else None
        if self.reports:
            os.chmod(self.reports, 0o1777)
            for k in SANITIZER_OPTIONS:
                self.env[k] = "%s:log_path=%s/report" % (self.env.get(k, ""), self.reports)
        self.env.update(HOME=home, XDG_DATA_HOME=os.path.join(home, "data"), LC_ALL="C.UTF-8",
                        GIT_CONFIG_NOSYSTEM="1", GIT_TERMINAL_PROMPT="0", NO_COLOR="1",
                        GIT_AUTHOR_NAME="t", GIT_AUTHOR_EMAIL="t@example.org",
                        GIT_COMMITTER_NAME="t", GIT_COMMITTER_EMAIL="t@example.org")

    def at(self, *names):
        return os.path.join(self.path, *names)

    def unsupervised(self):
        """Views die with their daemon: for tests of what is in the store then."""
        self.env["PLYFSD_SUPERVISE_OFF"] = "1"
        self.clean.append(lambda: os.environ.pop("PLYFSD_SUPERVISE_OFF", None))  # plylib

    def deaths(self):
        """The daemon will die often, within 10 s or not, and is followed each time."""
        need_followed_daemon()
        self.env["PLYFSD_DEATHS"] = "100000"

    def run(self, argv, **kw):
        kw.setdefault("env", self.env)
        kw.setdefault("cwd", self.path)
        return run(argv, **kw)

    def sh(self, script, **kw):
        return self.run(["sh", "-euc", script], **kw)

    def store(self, name="store", init=True):
        s = Store(self, name, init)
        self.stores.append(s)
        return s

    def tree(self, files, name="source"):
        return make_tree(self.at(name), files)

    def view(self, files=None, **kw):
        """A store with one imported tree, mounted."""
        store = self.store()
        if files is None:
            files = {"a.txt": "one\n", "dir/b.txt": "two\n", "dir/sub/c.txt": "three\n"}
        store.import_(self.tree(files) if isinstance(files, dict) else files)
        return store.mount(**kw)

    def surroundings(self):
        """The test's own home and runtime directory, for what this process itself does from now on."""
        run = self.at("run")
        os.makedirs(run, mode=0o700, exist_ok=True)
        os.environ.pop("PLYFS_STORE", None)
        os.environ.update(self.env, XDG_RUNTIME_DIR=run)
        self.env["XDG_RUNTIME_DIR"] = run

    def adopt(self, path):
        """A view that a library mounted: its store's daemon ends with the test."""
        store = Store(self, init=False)
        with View(store, path).fd() as fd:
            store.path = ioctl_info(fd)["store"]
        if all(s.path != store.path for s in self.stores):
            self.stores.append(store)
            store.daemon()

    def cleanup(self, keep=False):
        """Takes everything away; returns what sanitizers said, if anything."""
        for f in reversed(self.clean):
            with contextlib.suppress(Exception):
                f()
        for where in mounts_below(self.path, "fuse"):
            if subprocess.run(["umount", where], stderr=subprocess.DEVNULL).returncode:
                if subprocess.run(["fusermount3", "-u", where],
                                  stderr=subprocess.DEVNULL).returncode:
                    subprocess.run(["umount", "-l", where], stderr=subprocess.DEVNULL)
        for s in self.stores:
            with contextlib.suppress(Exception):
                s.stop()
            for pid in s.pids:
                with contextlib.suppress(AssertionError):  # ThreadSanitizer sleeps 1 s before its last report
                    wait_for("a daemon's end", lambda: not s.is_daemon(pid), 10)
                if s.is_daemon(pid):
                    os.kill(pid, signal.SIGKILL)
                    print("# the daemon %d did not end by itself; killed" % pid)
        said = "".join([*self.said, *(s.sanitizer_reports() for s in self.stores), *self.reported()])
        for where in mounts_below(self.path):
            if subprocess.run(["umount", where], stderr=subprocess.DEVNULL).returncode:
                subprocess.run(["umount", "-l", where])
        if not keep:
            remove(self.path)
        return said

    def reported(self):
        """What sanitizers said of all that was started with our environment; once."""
        if not self.reports:
            return
        for name in sorted(os.listdir(self.reports)):
            yield read(os.path.join(self.reports, name))[:SAID_MAX]
        remove(self.reports)


@functools.cache
def sanitized():
    """Was the daemon built with a sanitizer?"""
    return any(word in run(["ldd", PLYFSD]).stdout for word in ("asan", "tsan"))


def seeded():
    seed = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(1 << 32))
    print("# PLYFS_TEST_SEED=%d" % seed)
    return random.Random(seed)


class Faults:
    """
    Lets one call of the C library fail in the programs of that name which this test starts from now
    on (lib/faults.c): in a test's with block, `with faults.armed(n): ...`. but: the name of a library
    begins so that gets all memory it asks for.
    """
    ALLOCATIONS, CALLS, KILLED = 1, 2, 4  # the last: the program, just before the call
    ANYWHERE, IN_REQUESTS, OUTSIDE_REQUESTS = 0, 1, 2

    def __init__(self, t, program="plyfsd", but=None):
        if b"__tsan_init" in open(PLYFSD, "rb").read():
            skip("ThreadSanitizer wants to stand where the faults do")
        path = t.at("faults-" + program)
        with open(path, "wb") as f:
            f.truncate(4096)
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 4096)
        library = t.at("faults.so")  # a list of names with spaces between cannot have any
        if not os.path.islink(library):
            os.symlink(FAULTS, library)
        t.env.update(LD_PRELOAD=library, PLYFS_FAULTS=path, PLYFS_FAULTS_IN=program)
        if but:
            t.env["PLYFS_FAULTS_BUT"] = but
        t.env["ASAN_OPTIONS"] = t.env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        self.sites = collections.Counter()

    def _get(self, index):
        return struct.unpack_from("=i", self.map, 4 * index)[0]

    def _put(self, index, value):
        struct.pack_into("=i", self.map, 4 * index, value)

    @contextlib.contextmanager
    def armed(self, n, error=errno.EIO, kinds=3, where=0, repeat=1):
        """The n-th call from here on fails; n < 0: none, they are counted (ticks)."""
        first = n if n >= 0 else 1 << 30
        for i, value in enumerate((kinds, where, first, first + repeat, error, 0, 0)):
            self._put(1 + i, value)
        self._put(0, 1)
        try:
            yield self
        finally:
            self._put(0, 0)
            if self.failed:
                self.sites[self.what] += 1

    @property
    def ticks(self):
        return self._get(6)

    @property
    def failed(self):
        return self._get(7)

    @property
    def what(self):
        """The call that failed last, who made it, and the opcode of the request meanwhile."""
        return self.map[32:144].split(b"\0", 1)[0].decode() if self.failed else ""

    def tried(self, some, attempt):
        """
        attempt(n) for n = -1, which counts the calls, then for the number of each call, or in the short
        form for some of them. It returns whether all went well, or raises what is wrong.
        """
        rng = seeded()
        attempt(-1)
        calls, failed = self.ticks, 0
        for n in range(calls) if LONG else sorted(rng.sample(range(calls), min(calls, some))):
            try:
                failed += not attempt(n)
            except (AssertionError, OSError) as e:
                raise AssertionError("call %d of %d (%s): %s" % (n, calls, self.what, e)) from e
        print("# %d calls, %d told; %s" % (calls, failed, self.told()))

    def told(self):
        calls = collections.Counter()
        for site, n in self.sites.items():
            calls[site.split()[0]] += n
        return "%d failures at %d places: %s" % (sum(self.sites.values()), len(self.sites), ", ".join(
            "%s %d" % c for c in calls.most_common()))


def remove(path):
    """rm -rf that gets over directories without permissions."""
    if subprocess.run(["rm", "-rf", "--one-file-system", path],
                      stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["chmod", "-R", "u+rwx", path], stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", "--one-file-system", path])


def main(module="__main__"):
    names = sys.argv[1:]
    tests = [(n, f) for n, f in vars(sys.modules[module]).items()
             if n.startswith("test_") and callable(f)]
    script = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    tests = [(n, f) for n, f in tests if not names or any(w in n for w in names)]
    done = failed = skipped = 0
    # A test that takes too long is ended by SIGTERM: what it mounted goes all the same.
    signal.signal(signal.SIGTERM, lambda *a: sys.exit(1))
    # nohup, and a script's `&`, have them ignored, and so would be what tests start and send them to.
    for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(sig) == signal.SIG_IGN:
            signal.signal(sig, signal.SIG_DFL)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    # A namespace that another test makes meanwhile (a container, a cage) has none of our mounts in it:
    # it would hold our views beyond their unmounting. Where it is not permitted no other may, either.
    global own_mounts
    own_mounts = enter_mount_namespace()
    for p in (PLYFS, PLYFSD, TREEDIGEST):
        if not os.access(p, os.X_OK):
            print("not built: %s (set PLYFS_BUILD, or run tools/test)" % p)
            return sys.exit(1)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("skip: /dev/fuse cannot be opened")
        sys.exit(77)
    for name, function in tests:
        began = time.monotonic()
        t = Bench(script)
        bad = good = False
        try:
            function(t)
            good = True
        except Skip as why:
            skipped += 1
            print("skip %s: %s" % (name, why))
        except BaseException as e:
            bad = True
            failed += 1
            print("FAILED %s" % name)
            print("".join(traceback.format_exception(e)[-6:]))
            for s in t.stores:
                if s.log_tail():
                    print("-- end of the daemon's log:\n" + s.log_tail())
            if isinstance(e, (KeyboardInterrupt, SystemExit)):
                sys.exit(1)  # after the cleanup
        finally:
            keep = bad and bool(os.environ.get("PLYFS_TEST_KEEP"))
            said = t.cleanup(keep)
            if said:
                print("-- a sanitizer in %s:\n%s" % (name, said))
            if good and said:
                failed += 1
                print("FAILED " + name)
            elif good:
                done += 1
                print("ok %s (%.1f s)" % (name, time.monotonic() - began))
            if keep:
                print("-- kept: " + t.path)
    print("%d ok, %d failed, %d skipped" % (done, failed, skipped))
    sys.exit(1 if failed else 77 if skipped and not done else 0)
