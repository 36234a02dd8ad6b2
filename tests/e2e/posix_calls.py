#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 120
"""What each call about paths answers, to each kind of user: as on a tmpfs, line by line."""
import errno
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

CALLTABLE = os.path.join(ply.BUILD, "tests", "calltable")
SEED = os.environ.get("PLYFS_TEST_SEED") or str(int(time.time()))
# One case of so many; all of them (some 95,000) take several minutes.
EVERY = 1 if ply.LONG else 60

# (what a line of tmpfs holds, what the view may say instead): where a FUSE filesystem cannot know.
ALLOWED = [
    # Since Linux 6.2 sgid without group execute goes too when somebody outside the group changes
    # a file. Who is in a group is not told to a FUSE filesystem, so it stays as it did before.
    ("sgid-nox 100666", lambda line: line.replace("sgid-nox 100666", "sgid-nox")),
    ("chown_nobody sgid-nox: EPERM", lambda line: line.replace("EPERM", "0; sgid-nox ctime")),
    # chown(2) to nobody new and fallocate(2) look the same to us; so who may write may do both.
    ("chown_nobody sgid: EPERM", lambda line: line.replace("EPERM", "0; sgid 100777 ctime")),
]


def shown(line):
    """Without the owner of a whiteout, ours belong to the directory's: overlayfs does not look."""
    return re.sub(r"(is new 020000) \d+:\d+", r"\1", line)


def tmpfs(t, name):
    """The yardstick: a tmpfs mounted as views are."""
    ply.need_root()
    where = t.at(name)
    os.mkdir(where)
    t.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev,noatime,mode=755", "tmpfs", where])
    t.clean.append(lambda: subprocess.run(["umount", where]))
    # Before 6.6 it has no user attributes: another yardstick then.
    try:
        os.setxattr(where, "user.probe", b"1")
        os.removexattr(where, "user.probe")
    except OSError:
        ply.skip("the tmpfs of this kernel has no user.* attributes")
    return where


def two_changes_show(where):
    """Are two changes of ctime right after another told apart here?"""
    for _ in range(20):
        a = os.stat(where).st_ctime_ns
        os.chmod(where, 0o755)
        if os.stat(where).st_ctime_ns == a:
            return False
    return True


def calltable(where, *args):
    p = ply.run([CALLTABLE, *map(str, args), where], check=False, timeout=7200)
    assert p.returncode == 0, p.stdout[-2000:] + p.stderr
    return p.stdout.splitlines()


def compare(lines, like):
    assert len(lines) == len(like), (len(lines), len(like))
    wrong = []
    for a, b in zip(map(shown, like), map(shown, lines)):
        if a != b and not any(x in a and f(a) == b for x, f in ALLOWED):
            wrong.append("tmpfs: %s\nview:  %s" % (a, b))
    assert not wrong, "seed %s: %d of %d cases differ\n%s" % (SEED, len(wrong), len(lines),
                                                           "\n".join(wrong[:20]))
    print("# seed %s: %d cases alike" % (SEED, len(lines)))


def test_calls_answer_as_on_tmpfs(t):
    like = tmpfs(t, "tmpfs")
    view = t.view({"x": ""})
    os.mkdir(view.at("t"))
    args = ["--every", EVERY, "--seed", SEED]
    if not two_changes_show(like):
        args.append("--no-ctime")
    compare(calltable(view.at("t"), *args), calltable(like, *args))


def errno_as(uid, f, *args):
    """Calls f as a user: its errno, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            f(*args)
            code = 0
        except OSError as e:
            code = e.errno
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_not_everybody_takes_suid_from_a_file_by_chown_to_nobody_new(t):
    ply.need_root()
    view = t.view({"f": "x", "plain": "x"})
    os.chmod(t.path, 0o755)
    os.chmod(view.path, 0o755)
    os.chown(view.at("f"), 1000, 1000)
    chown_nobody = lambda uid, name: errno_as(uid, os.chown, view.at(name), -1, -1)
    for mode in (0o4755, 0o2755, 0o6755):
        os.chmod(view.at("f"), mode)
        assert chown_nobody(1001, "f") == errno.EPERM, oct(mode)
        assert os.stat(view.at("f")).st_mode & 0o7777 == mode
        for uid in (1000, 0):
            os.chmod(view.at("f"), mode)
            assert chown_nobody(uid, "f") == 0
            assert os.stat(view.at("f")).st_mode & 0o6000 == 0
    assert chown_nobody(1001, "plain") == 0, "where nothing is lost, anybody may"
    # Who may write takes them by that, whichever call it is.
    allocate = lambda: os.posix_fallocate(os.open(view.at("f"), os.O_WRONLY), 0, 5000)
    os.chmod(view.at("f"), 0o4777)
    assert errno_as(1001, allocate) == 0
    assert os.stat(view.at("f")).st_mode & 0o7777 == 0o777


def test_a_snapshot_view_answers_as_a_read_only_tmpfs(t):
    like = tmpfs(t, "tmpfs")
    view = t.view({"x": ""})
    os.mkdir(view.at("t"))
    calltable(view.at("t"), "--make")
    calltable(like, "--make")
    t.run(["mount", "-o", "remount,ro", like])
    old = view.store.mount(snapshot=view.checkpoint())
    args = ["--read-only", "--every", 1 if ply.LONG else 30, "--seed", SEED]
    lines = calltable(old.at("t"), *args)
    compare(lines, calltable(like, *args))
    refused = {x.split()[1] for x in lines if x.endswith(": EROFS")}
    assert len(refused) > 50, refused


def opened(path, f):
    fd = os.open(path, os.O_RDWR)
    try:
        f(fd)
    finally:
        os.close(fd)


# Whatever changes something, on what is there or on a new name in a directory that is there.
MUTATIONS = {
    "write": lambda p: os.open(p, os.O_WRONLY),
    "append": lambda p: os.open(p, os.O_WRONLY | os.O_APPEND),
    "read and write": lambda p: os.open(p, os.O_RDWR),
    "cut while opening": lambda p: os.open(p, os.O_RDONLY | os.O_TRUNC),
    "create": lambda p: os.open(p + "-new", os.O_CREAT | os.O_WRONLY),
    "create unnamed": lambda p: os.open(os.path.dirname(p), os.O_TMPFILE | os.O_RDWR),
    "mkdir": lambda p: os.mkdir(p + "-new"),
    "mkfifo": lambda p: os.mkfifo(p + "-new"),
    "mknod": lambda p: os.mknod(p + "-new"),
    "symlink": lambda p: os.symlink("x", p + "-new"),
    "link": lambda p: os.link(p, p + "-new"),
    "rename": lambda p: os.rename(p, p + "-new"),
    "unlink": lambda p: os.unlink(p),
    "rmdir": lambda p: os.rmdir(os.path.dirname(p)),
    "truncate": lambda p: os.truncate(p, 0),
    "fallocate": lambda p: opened(p, lambda fd: os.posix_fallocate(fd, 0, 10)),
    "copy_file_range": lambda p: opened(p, lambda fd: os.copy_file_range(fd, fd, 1, 0, 1)),
    "chmod": lambda p: os.chmod(p, 0o600),
    "chown": lambda p: os.chown(p, 1, 1),
    "chown to nobody new": lambda p: os.chown(p, -1, -1),
    "lchown": lambda p: os.lchown(p, 1, 1),
    "utime": lambda p: os.utime(p),
    "utime to a time": lambda p: os.utime(p, ns=(1, 1)),
    "utime of a link": lambda p: os.utime(p, follow_symlinks=False),
    "setxattr": lambda p: os.setxattr(p, "user.a", b"1"),
    "removexattr": lambda p: os.removexattr(p, "user.kept"),
}


def test_every_change_of_a_snapshot_view_is_refused_with_erofs(t):
    view = t.view({"d/f": "1", "d/g": "2"})
    os.setxattr(view.at("d/f"), "user.kept", b"1")
    old = view.store.mount(snapshot=view.checkpoint())
    before = old.digest()
    for name, change in MUTATIONS.items():
        try:
            change(old.at("d/f"))
        except OSError as e:
            assert e.errno == errno.EROFS, "%s: %s" % (name, e)
        else:
            raise AssertionError(name + " was allowed")
    # The kernel refuses by the mount's flag; without it (a remount) the daemon does. Asked for as
    # mount(8) does where there is a mount.fuse(8), which seeks an installed plyfs.
    if os.geteuid() == 0:
        t.run([ply.PLYFS, "plyfs", old.path, "-o", "remount,rw"])
        for name, change in MUTATIONS.items():
            try:
                fd = change(old.at("d/f"))
                # Opening is not told to the daemon: what is done then is.
                if name in ("write", "append", "read and write"):
                    with os.fdopen(fd, "wb", buffering=0) as f:
                        f.write(b"x")
            except OSError as e:
                assert e.errno == errno.EROFS, "%s, not by the mount: %s" % (name, e)
            else:
                raise AssertionError(name + " was allowed by the daemon")
    assert old.digest() == before


def test_paths_longer_than_path_max(t):
    # 40 directories with names of 255 bytes: 10,200 bytes, two and a half times PATH_MAX.
    v = t.view({"x": ""})
    name, depth = "n" * 255, 40
    fd = os.open(v.path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    with os.fdopen(os.open("f", os.O_CREAT | os.O_RDWR, dir_fd=fd), "w") as f:
        f.write("down here")
    os.link("f", "g", src_dir_fd=fd, dst_dir_fd=fd)
    os.rename("g", "h", src_dir_fd=fd, dst_dir_fd=fd)
    os.symlink("f", "l", dir_fd=fd)
    assert os.stat("l", dir_fd=fd).st_nlink == 2
    # The kernel cannot say where that is; the C library finds out by walking up.
    p = t.run([sys.executable, "-c", "import os; print(len(os.getcwd()), open('f').read())"],
              preexec_fn=lambda: os.fchdir(fd), cwd=None, pass_fds=[fd])
    assert p.stdout == "%d down here\n" % (len(v.path) + depth * 256), p.stdout
    snap = v.checkpoint()
    os.unlink("f", dir_fd=fd)
    v.restore(snap)
    assert os.stat("f", dir_fd=fd).st_size == 9
    os.close(fd)
    # A path as one string is refused from 4,096 bytes on, by the kernel.
    long = v.at(*[name] * 15)
    assert os.path.isdir(long)
    try:
        os.stat(v.at(*[name] * 16))
        raise AssertionError("a path of more than PATH_MAX bytes")
    except OSError as e:
        assert e.errno == errno.ENAMETOOLONG
    out = v.store.out("diff", snap, v.info()["head"])
    assert out == "", out
    before = v.digest()
    v.unmount()
    v = v.store.mount()
    assert v.digest() == before
    assert v.store.ply("check").returncode == 0
    subprocess.run(["rm", "-rf", v.at(name)], check=True)
    assert v.ls() == ["x"]


if __name__ == "__main__":
    ply.main()
