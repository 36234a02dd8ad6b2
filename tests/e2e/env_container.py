#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 240
"""
The container kind of environment: isolated commands and sessions on a view, as its root or as a
folder in the machine's own root; what gets out of hand is contained and reported; checkpoints and
restores are of the whole root. The long form installs a package in a root that debootstrap made.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ocilayout
import ply
import plylib
from plylib import Env
from smallroot import small_root

def need_runtime(t, **options):
    """Skips where no container can run, with the library's own words."""
    t.surroundings()
    env = Env("container", workdir=t.tree({}, "probe"), **options)
    try:
        env.setup()
    except plylib.Error as e:
        if e.status != "PLY_NOT_HERE":
            raise
        ply.skip(e.sentence)
    else:
        env.cleanup()
    finally:
        env.free()


def folder(t, files=None, **options):
    need_runtime(t)
    t.tree(files if files is not None else {"a": "1\n"}, "work")
    return Env("container", bench=t, workdir=t.at("work"), **options).setup()


def root(t, view=None, **options):
    need_runtime(t)
    if view is None:
        view = t.view(small_root(t.at("root")))
    return Env("container", bench=t, workdir=view.path, root="1", **options).setup()


def ok(env, command, **kw):
    r = env.run(command, **kw)
    assert r.exit_code == 0, (command, r.exit_code, r.stdout, r.stderr)
    return r.stdout


# ---- work folder ----

def test_the_view_is_a_folder_in_the_machines_own_root_which_is_read_only(t):
    env = folder(t)
    assert ok(env, "pwd; cat a; echo new > b; mkdir -p c/d; readlink -f .") == \
        "/workspace\n1\n/workspace\n"
    assert env.read_file("b") == b"new\n" == env.read_file("/workspace/b")
    env.write_file("/workspace/c/e", b"from outside")
    assert ok(env, "cat c/e") == "from outside"
    assert env.list_files("**/*") == ["a", "b", "c/e"]
    for place in ("/usr/x", "/etc/x", "/x", "/root/x", "/proc/sys/kernel/core_pattern"):
        r = env.run("echo x > " + place)
        assert r.exit_code != 0, place
        assert re.search("ead-only|denied" if os.geteuid() else "ead-only", r.stderr), r.stderr
    mine = "/tmp/%s.x" % os.path.basename(t.path)
    assert ok(env, "echo x > %s; echo x > /run/x; cat %s" % (mine, mine)) == "x\n"
    assert ok(env, "ls %s 2>/dev/null || echo gone" % mine) == "gone\n", \
        "/tmp is each command's own"
    assert not os.path.exists(mine)
    ok(env, "ln -s /workspace/a here; ln -s /workspace c/up; ln -s /etc/passwd out; ln -s ../x back")
    assert env.read_file("here") == b"1\n" == env.read_file("c/up/here")
    env.write_file("c/up/b", "through")
    assert ok(env, "cat b") == "through"
    for way in ("out", "back", "/etc/passwd", "../x", "/workspace/../etc/passwd"):
        try:
            raise AssertionError(env.read_file(way))
        except plylib.Error as e:
            assert e.status == "PLY_DENIED", (way, e)
    other = folder(t, at="/somewhere/else")
    assert ok(other, "pwd") == "/somewhere/else\n"


def test_nothing_of_the_caller_but_the_folder_is_within_reach(t):
    os.environ["PLYFS_TEST_SECRET"] = "do not tell"
    env = folder(t)
    assert "do not tell" not in ok(env, "env; cat /proc/*/environ 2>/dev/null")
    seen = ok(env, "ls /proc").split()
    assert len([p for p in seen if p.isdigit()]) < 8, seen
    assert ok(env, "hostname") == "plyfs\n"
    store = t.stores[-1].path if t.stores else None
    assert store and not ok(env, "ls -A '%s' 2>/dev/null || :" % store), "its store is within reach"
    words = ok(env, "grep -E 'CapEff|NoNewPrivs' /proc/self/status").split()
    caps = int(words[1], 16)
    assert words[3] == "1"
    for number, name in ((21, "SYS_ADMIN"), (27, "MKNOD"), (19, "SYS_PTRACE"), (12, "NET_ADMIN"),
                         (17, "SYS_RAWIO"), (16, "SYS_MODULE"), (22, "SYS_BOOT")):
        assert not caps >> number & 1 or os.geteuid() != 0, name


def test_other_views_are_out_of_reach(t):
    """Their ioctls would restore them, also through a mount that is read-only."""
    env = folder(t)
    home = "/var/lib" if os.geteuid() == 0 else os.path.expanduser("~")
    top = tempfile.mkdtemp(prefix="plyfs-test-", dir=home)  # not below /tmp, which is hidden
    place, bound, file = (os.path.join(top, n) for n in ("view", "bound", "file"))
    far = os.path.join(top, *[" " * 250] * 9)
    os.mkdir(place)
    store = t.store()
    store.import_(t.tree({"precious": "1\n"}, "other"))
    try:
        view = store.mount(at=place)
        assert ok(env, "cat a; ls -A %s" % place) == "1\n"
        again = Env("container", bench=t, workdir=view.path).setup()
        assert ok(again, "cat precious %s/precious" % place) == "1\n1\n", "its own is seen"
        again.cleanup()
        if os.geteuid() == 0:
            os.mkdir(bound)
            ply.write(file, "beneath\n")
            t.run(["mount", "--bind", "-o", "ro", place, bound])
            t.run(["mount", "--bind", os.path.join(place, "precious"), file])
            assert ply.read(file) == "1\n"
            assert ok(env, "cat a; ls -A %s; cat %s 2>/dev/null; true" % (bound, file)) == "1\n"
            # A space is four bytes in the kernel's list, whose line is then longer than two paths.
            os.makedirs(far)
            t.run(["mount", "--bind", place, far])
            assert os.listdir(far) == ["precious"]
            assert ok(env, "cat a; find '%s' -name precious" % top) == "1\n"
    finally:
        for mounted in (far, file, bound, place):
            if os.path.ismount(mounted):
                t.run(["umount", mounted], check=False)
        t.run([ply.PLYFS, "unmount", place], check=False)
        shutil.rmtree(top)


def test_a_view_that_does_not_answer_holds_nobody_up_for_longer_than_he_waits(t):
    ply.need_root()
    t.unsupervised()
    env = folder(t)
    place = tempfile.mkdtemp(prefix="plyfs-test-", dir="/var/lib")  # not below /tmp, which is hidden
    t.clean.append(lambda: os.rmdir(place))
    t.clean.append(lambda: t.run(["umount", "--lazy", place], check=False))
    store = t.store()
    store.import_(t.tree({"precious": "1\n"}, "other"))
    view, pid = store.mount(at=place), store.daemon()
    view.write("new", "x")  # who looks at the directory asks for its attributes again
    goes_on = threading.Timer(30, os.kill, (pid, signal.SIGCONT))
    goes_on.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert env.run("echo on", timeout=3).exit_code == 124 and goes_on.is_alive()
    finally:
        goes_on.cancel()
        os.kill(pid, signal.SIGCONT)
    assert ok(env, "ls -A %s; echo on" % place) == "on\n"
    os.kill(pid, signal.SIGKILL)
    ply.wait_for("the end", lambda: not os.path.exists("/proc/%d" % pid))
    assert ok(env, "ls -A %s 2>/dev/null; echo on" % place) == "on\n"


def test_there_is_no_network_but_loopback(t):
    env = folder(t)
    assert ok(env, "cat /proc/net/dev | tail -n +3 | wc -l") == "1\n"
    # A server of ours, on this machine, is as far away as any.
    import socket
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        call = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/%d' && echo reached" % port
        r = env.run(call)
        assert r.exit_code != 0 and "reached" not in r.stdout and "refused" in r.stderr, r.stderr
        with_network = folder(t, network="1")
        assert ok(with_network, call) == "reached\n"


# ---- root ----

def test_a_root_that_has_no_room_for_the_networks_files_says_so(t):
    need_runtime(t)
    view = t.view(small_root(t.at("root")))
    # An inode for its root, and no other.
    ply.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "none", view.at("etc")])
    try:
        root(t, view, network="1")
    except plylib.Error as e:
        assert "/etc/resolv.conf" in e.sentence and "No space left" in e.sentence, e.sentence
    else:
        assert False, "nothing was said"
    finally:
        ply.run(["umount", view.at("etc")])
    assert ok(root(t, view, network="1"), "test -e /etc/resolv.conf; echo on") == "on\n"


def test_the_view_is_the_root_and_is_not_changed_by_running_in_it(t):
    env = root(t)
    env.checkpoint()
    assert ok(env, "pwd; ls /; cat /etc/passwd; id -u; echo $HOME; echo > /dev/null") == \
        "/\nbin\ndev\netc\n%sproc\nroot\nsys\ntmp\nusr\nroot:x:0:0:root:/root:/bin/bash\n0\n/root\n" % (
            "".join(sorted(n + "\n" for n in os.listdir(env.workdir) if n.startswith("lib"))))
    assert env.diff() == "", env.diff()
    ok(env, "ln -s /etc/passwd /root/link; echo deep > /root/file; ln -s ../../../root /etc/up")
    assert env.read_file("/root/link").startswith(b"root:")
    assert env.read_file("etc/up/file") == b"deep\n" == env.read_file("../../root/file")
    env.write_file("/etc/up/made", b"x")
    assert os.path.exists(os.path.join(env.workdir, "root/made"))
    assert "root/made" in env.list_files("root/*")
    assert env.run("echo > /sys/x || echo x > /proc/sys/kernel/core_pattern").exit_code != 0


def test_a_root_without_programs_is_set_up_and_says_so_when_something_runs(t):
    env = root(t, t.view({"etc/motd": "hello\n"}))
    r = env.run("true")
    assert r.exit_code != 0 and "/bin/sh" in r.stderr, (r.exit_code, r.stderr)
    assert env.read_file("/etc/motd") == b"hello\n"


def test_restore_brings_back_the_whole_root_under_a_live_session(t):
    env = root(t)
    first = env.checkpoint()
    env.start_session()

    def say(command):
        r = env.run_in_session(command, timeout=200)
        assert r.exit_code == 0, (command, r.stdout)
        return r.stdout

    assert say("cd /root; x=kept; ls /usr/bin/ls") == "/usr/bin/ls"
    # More names than are told one by one when nothing lies in the view.
    say("mkdir /etc/many; for i in $(seq 3000); do : > /etc/many/$i; done; echo done")
    full = env.checkpoint()
    say("rm -rf /usr /etc/* 2>/dev/null; echo gone")
    assert env.run_in_session("ls", timeout=30).exit_code == 127
    env.restore(full)
    assert say("ls /usr/bin/ls; echo $x; pwd; ls /etc/many | wc -l") == "/usr/bin/ls\nkept\n/root\n3000"
    assert say("echo > /dev/null; grep -c . /proc/self/stat; ls /sys | grep kernel") == "1\nkernel"
    env.restore(first)
    assert say("ls /etc/many 2>/dev/null || echo none") == "none"
    assert say("cat /proc/self/comm") == "cat"
    env.undo()
    assert say("ls /etc/many | wc -l") == "3000"
    assert ok(env, "ls /usr/bin/ls") in ("/usr/bin/ls\n", "/usr/bin/ls")
    env.end_session()
    assert ok(env, "ls /usr/bin/ls") == "/usr/bin/ls\n"


def test_a_session_has_its_terminal_and_job_control(t):
    env = folder(t)
    env.start_session()

    def say(command):
        return env.run_in_session(command, timeout=30).stdout

    os.environ["PLYFS_TEST_SECRET"] = "do not tell"
    assert say("pwd; tty 2>/dev/null | grep -c pts") in ("/workspace\n1", "/workspace\n0")
    assert "do not tell" not in say("env")
    assert say("set -m; sleep 100 & jobs -r | grep -c sleep").endswith("1")
    assert say("kill %1; wait 2>/dev/null; echo ended").endswith("ended")
    r = env.run_in_session("sleep 60", timeout=1)
    assert r.exit_code == 124
    assert say("echo still here") == "still here"


def test_an_images_environment_and_directory_are_used(t):
    need_runtime(t)
    top = small_root(t.at("root"))
    data = ply.run(["tar", "-C", top, "-c", "."], text=False).stdout
    layout = ocilayout.Layout(t.at("img"))
    layout.add(layout.manifest([(data, ""), (ocilayout.tar(
        ocilayout.member("app"), ocilayout.member("app/f", b"in the image\n")), "gzip")],
        run={"Env": ["PATH=/usr/bin", "GREETING=hello = you", "HOME=/app"], "WorkingDir": "/app"}))
    store = t.store()
    store.out("import", "--oci", layout.path)
    env = Env("container", bench=t, store=store.path, **{"from": "main"}, root="1").setup()
    assert ok(env, "pwd; cat f; echo $GREETING $PATH $HOME") == \
        "/app\nin the image\nhello = you /usr/bin /app\n"
    assert env.read_file("f") == b"in the image\n" and env.list_files("*") == ["f"]
    assert env.run("ls /proc/self /dev/null /sys").exit_code == 0
    env.cleanup()
    # One that cannot be read is not none: commands would lack what it says.
    view = store.mount()
    whole = os.getxattr(view.path, "user.plyfs.oci")
    os.setxattr(view.path, "user.plyfs.oci", whole[:-1])
    env = Env("container", bench=t, workdir=view.path, root="1")
    try:
        raise AssertionError(env.setup().run("pwd").stdout)
    except plylib.Error as e:
        assert e.status == "PLY_INVALID" and "no image's configuration" in e.sentence, e
    os.setxattr(view.path, "user.plyfs.oci", whole)
    assert ok(env.setup(), "pwd") == "/app\n"
    env.cleanup()


# ---- out of hand ----

def test_a_fork_bomb_is_contained_and_reported(t):
    env = folder(t, processes="60")
    r = env.run("f() { f | f & }; f; sleep 1", timeout=20)  # by sh: bash would try for 15 s
    if not r.too_many_processes and os.geteuid() == 0 and not groups_here():
        ply.skip("no control groups for processes here, and rlimits do not hold root")
    assert "fork" in r.stderr, r.stderr[:300]
    assert r.too_many_processes or not groups_here(), r.exit_code
    assert ok(env, "echo alive") == "alive\n"


def test_a_memory_hog_is_contained_and_reported(t):
    env = folder(t, memory=str(64 << 20))
    r = env.run("tail /dev/zero", timeout=60)
    assert r.exit_code != 0 and not r.timed_out, r.exit_code
    if groups_here():
        assert r.out_of_memory, (r.exit_code, r.stderr)
    assert ok(env, "echo alive") == "alive\n"
    # A file in /tmp is memory, too.
    r = env.run("head -c 500M /dev/zero > /tmp/big", timeout=60)
    assert r.exit_code != 0
    assert ok(env, "echo alive") == "alive\n"


def groups_here():
    """Can we make control groups with limits?"""
    for at in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        try:
            kinds = ply.read("/sys/fs/cgroup/cgroup.controllers").split()
        except OSError:
            kinds = []
        if os.access(at, os.W_OK) and (at.endswith("memory") or "memory" in kinds):
            return True
    return False


def test_a_timeout_ends_everything_inside(t):
    env = folder(t)
    mark = "9%d" % os.getpid()
    r = env.run("(setsid sleep 1%s &); sleep 1%s" % (mark, mark), timeout=1)
    assert r.timed_out and r.exit_code == 124
    ply.wait_for("the end of every process", lambda: subprocess.run(
        ["pgrep", "-f", "sleep 1%s$" % mark], stdout=subprocess.PIPE).returncode == 1)


# ---- what is left, and what is not possible ----

def test_nothing_is_left_behind_also_when_the_caller_is_killed(t):
    need_runtime(t)

    def bundles():  # six letters; the directories of oci.py have eight
        there = os.listdir("/tmp") + os.listdir(os.environ["XDG_RUNTIME_DIR"])
        return {n for n in there if re.match(r"plyfs-oci-\w{6}$", n)}

    before = bundles()
    t.tree({"a": "1"}, "work")
    with Env("container", bench=None, workdir=t.at("work")) as env:
        ok(env, "sleep 1000 >/dev/null 2>&1 & echo x > b")
    assert not ply.mounts_below(t.path, "fuse.plyfs")
    assert ply.read(t.at("work/b")) == "x\n"
    script = ("import os, sys; sys.path.insert(0, %r); import plylib\n"
              "e = plylib.Env('container', workdir=%r).setup()\n"
              "e.run('sleep 77%d >/dev/null 2>&1 &'); print('ready', flush=True)\n"
              "e.run('sleep 100')\n" % (os.path.dirname(plylib.__file__), t.at("work"), os.getpid()))
    p = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    p.kill()
    p.wait()
    p.stdout.close()
    ply.wait_for("the end of its processes", lambda: subprocess.run(
        ["pgrep", "-f", "sleep 77%d$" % os.getpid()], stdout=subprocess.PIPE).returncode == 1)
    ply.wait_for("the view to go", lambda: not ply.mounts_below(t.path, "fuse.plyfs"))
    ply.wait_for("the bundles to go", lambda: bundles() <= before)


def test_where_it_is_not_possible_one_sentence_says_what_to_do(t):
    t.surroundings()
    path = os.environ["PATH"]
    t.tree({"a": "1"}, "work")

    def refused(*words):
        env = Env("container", bench=t, workdir=t.at("work"))
        try:
            env.setup()
        except plylib.Error as e:
            assert e.status == "PLY_NOT_HERE", e
            for w in words:
                assert w in e.sentence, (w, e.sentence)
            assert "\n" not in e.sentence
        else:
            raise AssertionError("it was set up")
        assert not ply.mounts_below(t.at("work"), "fuse.plyfs") and os.listdir(t.at("work")) == ["a"]

    try:
        os.environ["PATH"] = t.at("bin")
        os.mkdir(t.at("bin"))
        if shutil.which("fusermount3", path=path):  # ordinary users mount with it
            os.symlink(shutil.which("fusermount3", path=path), t.at("bin/fusermount3"))
        refused("bwrap: not installed", "crun: not installed", "runc: not installed",
                "Install bubblewrap")
        ply.write(t.at("bin/bwrap"), "#!/bin/sh\necho 'bwrap: No permissions to create new "
                  "namespace' >&2\necho more >&2\nexit 1\n")
        os.chmod(t.at("bin/bwrap"), 0o755)
        refused("bwrap: bwrap: No permissions to create new namespace;", "as root", "sysctl")
    finally:
        os.environ["PATH"] = path
    for option, value in (("at", "relative"), ("at", "/a/../b"), ("at", "/"), ("at", "/a/")):
        env = Env("container", bench=t, workdir=t.at("work"), **{option: value})
        try:
            env.setup()
        except plylib.Error as e:
            assert e.status == "PLY_INVALID" and "at:" in e.sentence, e
        else:
            raise AssertionError(value)


def test_a_symlink_for_dev_does_not_lead_the_runtime_outside(t):
    env = root(t)
    first = env.checkpoint()
    os.rmdir(os.path.join(env.workdir, "dev"))
    os.symlink("/oldroot" + t.at("outside"), os.path.join(env.workdir, "dev"))
    os.mkdir(t.at("outside"))
    try:
        env.run("true")
    except plylib.Error as e:
        assert e.status == "PLY_STATE" and "/dev is no directory" in e.sentence, e
    else:
        raise AssertionError("it ran")
    assert os.listdir(t.at("outside")) == []
    env.restore(first)
    assert ok(env, "echo back") == "back\n"


def runtime_facts(t, runtime):
    try:
        need_runtime(t, runtime=runtime)
    except ply.Skip as why:
        ply.skip(str(why)[:300])
    t.tree({"a": "1\n"}, "work")
    env = Env("container", bench=t, workdir=t.at("work"), runtime=runtime,
              processes="200").setup()
    assert ok(env, "pwd; cat a; echo x > b; cat /proc/net/dev | tail -n +3 | wc -l; hostname") == \
        "/workspace\n1\n1\nplyfs\n"
    assert env.read_file("b") == b"x\n"
    r = env.run("exit 7")
    assert r.exit_code == 7
    assert env.run("echo x > /usr/x").exit_code != 0
    assert env.run("echo x > /proc/sys/kernel/core_pattern").exit_code != 0
    assert env.run("sleep 60", timeout=1).timed_out
    try:
        env.start_session()
    except plylib.Error as e:
        assert e.status == "PLY_UNSUPPORTED" and "bubblewrap" in e.sentence, e
    else:
        raise AssertionError("a session")
    env.cleanup()
    inside = Env("container", bench=t, workdir=t.view(small_root(t.at("root"))).path,
                 runtime=runtime, root="1").setup()
    first = inside.checkpoint()
    assert ok(inside, "ls /usr/bin/ls; id -u; echo > /dev/null") == "/usr/bin/ls\n0\n"
    assert inside.diff() == ""
    ok(inside, "rm -rf /usr")
    assert inside.run("ls").exit_code != 0
    inside.restore(first)
    assert ok(inside, "ls /usr/bin/ls") == "/usr/bin/ls\n"
    inside.cleanup()
    assert not bundles()
    killed_after_a_restore_with_exclude(t, runtime)


def bundles():
    return [n for n in os.listdir(os.environ["XDG_RUNTIME_DIR"]) if n.startswith("plyfs-oci")]


def killed_after_a_restore_with_exclude(t, runtime):
    """Such a restore mounts, and then has to remember what else is to go."""
    script = ("import os, sys; sys.path.insert(0, %r); import plylib\n"
              "e = plylib.Env('container', workdir=%r, runtime=%r, exclude='kept').setup()\n"
              "e.checkpoint(); e.write_file('kept/f', 'x'); e.restore('0')\n"
              "assert e.read_file('kept/f') == b'x'; os.kill(os.getpid(), 9)\n" % (
                  os.path.dirname(plylib.__file__), t.at("work"), runtime))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    ply.wait_for("the view to go", lambda: not ply.mounts_below(t.at("work"), "fuse.plyfs"))
    ply.wait_for("the bundles to go", lambda: not bundles())


def test_crun_does_the_same(t):
    runtime_facts(t, "crun")


def test_runc_does_the_same(t):
    runtime_facts(t, "runc")


def test_a_package_is_installed_in_a_debian_root_and_outlives_rm_rf_usr(t):
    if not ply.LONG:
        ply.skip("the long form: it makes a root with debootstrap")
    ply.need_root()
    ply.need_tool("debootstrap")
    need_runtime(t)
    kept = os.path.join(ply.BUILD, "debian-root.tar")
    if not os.path.exists(kept):
        top = t.at("debian")
        p = ply.run(["debootstrap", "--variant=minbase", "stable", top], check=False, timeout=1500)
        if p.returncode:
            ply.skip("debootstrap: " + (p.stdout + p.stderr)[-300:])
        for name in ("apt.conf", "apt.conf.d"):  # how this machine reaches the archive
            if os.path.exists("/etc/apt/" + name):
                ply.run(["cp", "-a", "/etc/apt/" + name, os.path.join(top, "etc/apt/")])
        ply.run(["tar", "-C", top, "--numeric-owner", "-cf", kept + ".new", "."], timeout=600)
        os.rename(kept + ".new", kept)
        ply.remove(top)
    store = t.store()
    store.import_(kept)
    env = root(t, store.mount(), network="1", timeout="900")
    ok(env, "apt-get update && apt-get install -y --no-install-recommends hello")
    assert ok(env, "hello") == "Hello, world!\n"
    installed = env.checkpoint()
    env.start_session()
    assert env.run_in_session("hello; x=1", timeout=30).stdout == "Hello, world!"
    assert env.run_in_session("rm -rf /usr; echo $?", timeout=300).exit_code == 0
    assert env.run_in_session("hello", timeout=30).exit_code == 127
    env.restore(installed)
    assert env.run_in_session("hello; echo $x", timeout=30).stdout == "Hello, world!\n1"
    env.end_session()
    assert ok(env, "hello && dpkg --verify hello && dpkg --audit") == "Hello, world!\n"
    ok(env, "apt-get remove -y hello")
    assert env.run("hello").exit_code == 127


if __name__ == "__main__":
    ply.main()
