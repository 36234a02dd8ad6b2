#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 240
"""Bad input of every kind: one clear line, the right exit code, nothing harmed."""
import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


# ---- sources ----

def test_why_a_source_cannot_be_read_is_told_once(t):
    store = t.store()
    ply.write(t.at("no.tar"), "no archive\n")
    os.mkdir(t.at("dir"))
    for words, why in ((["no.tar"], "opening the archive: Unrecognized archive format"),
                       (["--oci", "dir"], "this is no OCI image layout: it has no index.json"),
                       (["dir#main"], "repository '%s': could not find repository " % t.at("dir"))):
        said = store.fails("import", *words, cwd=t.path)
        assert why in said and "the source cannot be read" not in said, said


# ---- mount points ----

def test_a_missing_mount_point(t):
    view = t.view()
    view.store.fails("mount", "--at", t.at("nowhere"), "--branch", "main",
                     says="no such|not exist|missing")


def test_a_mount_point_that_is_a_file(t):
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    ply.write(t.at("file"), "")
    store.fails("mount", "--at", t.at("file"), says="not a directory")


def test_a_mount_point_that_is_not_empty(t):
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    ply.write(t.at("full/file"), "keep me")
    store.fails("mount", "--at", t.at("full"), says="not empty")
    assert os.listdir(t.at("full")) == ["file"]


def test_the_short_form_is_not_missed_unawares(t):
    store, full = t.store(), t.tree({"x": "1"}, "full")
    store.fails("mount", full, says="not empty; PLYFS_STORE names a store; unset it")
    for words in (["mount", "--at", full], ["--store", store.path, "mount", full],
                  ["fork", full, "--at", full]):
        assert "PLYFS_STORE" not in store.fails(*words, says="not empty"), words


def test_a_mount_point_that_is_a_view_already(t):
    view = t.view()
    view.store.ply("fork", "other", cwd=view.path)
    view.store.fails("mount", "--branch", "other", "--at", view.path,
                     says="mount|view|busy|empty")
    assert view.read("a.txt") == "one\n"


def test_a_branch_that_is_mounted_already(t):
    view = t.view()
    os.mkdir(t.at("second"))
    says = view.store.fails("mount", "--branch", "main", "--at", t.at("second"), says="mounted")
    assert view.path in says, says
    assert not ply.mounts_below(t.at("second"))


def test_unmounting_what_is_no_view(t):
    view = t.view()
    view.store.fails("unmount", t.at("source"), says="not|no ")
    view.store.fails("unmount", t.at("nowhere"), says="no such|not")
    assert view.read("a.txt") == "one\n"


def test_of_two_who_unmount_one_is_told_that_nothing_is_mounted(t):
    store = t.store()
    store.import_(t.tree({"f": "1"}))
    for _ in range(40):
        view = store.mount()
        two = [subprocess.Popen([ply.PLYFS, "unmount", view.path], env=t.env, stderr=subprocess.PIPE,
                                text=True) for _ in range(2)]
        said = sorted(p.communicate(timeout=60)[1] for p in two)
        assert said[0] == "" and said[1] in ("", "plyfs unmount: no plyfs view is mounted on '%s'; "
                                             "'mount -t fuse.plyfs' lists them\n" % view.path), said


def test_no_dev_fuse(t):
    ply.need_mount_namespaces()
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    os.mkdir(t.at("mnt"))
    # A private /dev without fuse, as in an ordinary container.
    script = """
mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 &&
exec "$0" mount --at "$1"
"""
    p = t.run(["unshare", "-m", "sh", "-c", script, ply.PLYFS, t.at("mnt")], check=False,
              env=dict(t.env, PLYFS_STORE=store.path))
    assert p.returncode == 1, p
    assert "/dev/fuse" in p.stderr and re.search("modprobe|--device", p.stderr), p.stderr
    assert len(p.stderr.strip().splitlines()) <= 2, p.stderr


def test_where_a_container_forbids_root_to_mount_the_cure_is_told(t):
    """Played: AppArmor's profile of docker's (EACCES), and what a container may not by itself (EPERM)."""
    ply.need_root()
    ply.need_tool("cc")
    store = t.store()
    os.mkdir(t.at("mnt"))
    for error, says in ("EPERM", "--cap-add SYS_ADMIN"), ("EACCES", "apparmor=unconfined"):
        ply.write(t.at("no.c"), "#include <errno.h>\nint mount(void) { errno = %s; return -1; }" % error)
        t.run(["cc", "-fno-builtin", "-shared", "-fPIC", "-o", t.at("no.so"), t.at("no.c")])
        p = t.run([ply.PLYFS, "--store", store.path, "mount", "--at", t.at("mnt")], check=False,
                  env=dict(t.env, LD_PRELOAD=t.at("no.so"), ASAN_OPTIONS=t.env.get("ASAN_OPTIONS", "") +
                           ":verify_asan_link_order=0"))
        assert p.returncode == 1 and p.stderr.count("\n") == 1 and says in p.stderr, (error, p)


# ---- names ----

def test_unknown_ids(t):
    view = t.view()
    for verb in (["restore", "ffffffffffff", view.path], ["diff", "ffffffffffff"],
                 ["export", "nosuch", "--dir", t.at("out")], ["drop", "nosuch"],
                 ["mount", "--snapshot", "ffffffffffff", "--at", t.at("home")],
                 ["fork", "--from", "nosuch", "x"], ["restore", "@nolabel", view.path],
                 ["restore", "main~50", view.path], ["mount", "--branch", "no", "--at",
                                                     t.at("home")]):
        view.store.fails(*verb, says="no such|unknown|not found|no snapshot|no branch")
    with view.fd() as fd:
        for wrong in ("ffffffffffff", "", "zz"):
            try:
                ply.ioctl_restore(fd, wrong)
                raise AssertionError("restored " + wrong)
            except OSError as e:
                assert e.errno in (2, 22), e


def test_more_ids_than_one_call_takes(t):
    view = t.view()
    view.store.fails("drop", *["%012x" % i for i in range(9000)], says="give fewer at once")
    view.store.fails("drop", *["f" * 60 + "%04x" % i for i in range(2000)], says="give fewer at once")


def test_names_in_a_store_that_is_empty(t):
    store = t.store()
    for verb in (["fork", "x"], ["fork", "--from", "y", "x"], ["diff", "a"], ["drop", "x"], ["log", "--branch", "x"],
                 ["export", "x", "--dir", t.at("out")], ["mount", "--branch", "x", "--at", t.at("home")],
                 ["mount", "--snapshot", "ffffffffffff", "--at", t.at("home")]):
        says = store.fails(*verb, says="nothing in the store yet; 'plyfs import'")
        assert "plyfs tree" not in says and len(says.splitlines()) == 1, says
    assert store.json("tree") == {"snapshots": [], "branches": []}


def test_ambiguous_ids(t):
    view = t.view({"f": ""})
    ids = []
    for i in range(20):
        view.write("f", str(i))
        ids.append(view.checkpoint())
    firsts = [i[0] for i in ids]
    prefix = next(c for c in firsts if firsts.count(c) > 1)
    view.store.fails("restore", prefix, view.path, says="ambiguous|several|more than one")
    assert view.read("f") == "19"
    unique = ids[3]
    for n in range(1, 13):
        if sum(i.startswith(unique[:n]) for i in ids) == 1 and n >= 6:
            assert view.restore(unique[:n])["id"] == unique
            break


def test_restore_outside_any_view(t):
    store = t.store()
    snap = store.import_(t.tree({"a": "1"}))
    env = {"PLYFS_STORE": ""}
    says = store.fails("restore", snap, t.at("source"), env=env, says="view")
    assert len(says.strip().splitlines()) == 1, says
    says = store.fails("checkpoint", t.at("source"), env=env, says="view")
    says = store.fails("undo", t.at("source"), env=env, says="view")
    assert os.listdir(t.at("source")) == ["a"]


def is_clean(text):
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_strangers_names_do_not_act_on_a_terminal(t):
    t.surroundings()
    odd = "no\n\x1b]0;st\x07\x9bore"
    p = t.run([ply.PLYFS, "--store", odd, "log"], check=False)
    assert p.returncode == 1 and p.stderr.count("\n") == 1 and is_clean(p.stderr), p
    store = t.store(odd)
    store.import_(t.tree({"a": "1"}))
    view = store.mount(at=t.at("m\n\x1bnt"))
    said = store.fails("salvage", says="unmount its views")
    assert said.count("\n") == 1 and is_clean(said), said
    store.ply("env", "create", "e", view.path)
    store.ply("session", "start", "s", cwd=view.path)
    for words, lines in ((["status"], 6), (["tree"], 2), (["env", "list"], 1),
                         (["session", "list"], 1)):
        said = store.out(*words)
        assert said.count("\n") == lines - 1 and is_clean(said), (words, said)
    store.ply("env", "destroy", "e")

    # A process's name is its own choice.
    p = subprocess.Popen([sys.executable, "-c", "import ctypes, sys\n"
                          "ctypes.CDLL(None).prctl(15, b'\\x1b[31mred\\x07')\n"
                          "print(flush=True)\nsys.stdin.read()"], cwd=view.path,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    p.stdout.readline()
    said = store.fails("unmount", view.path, says=r"in use by %d \(\?\[31mred\?\)" % p.pid)
    assert said.count("\n") == 1 and is_clean(said), said
    p.communicate()
    view.unmount()
    store.stop()
    assert store.out("status").count("\n") == 2
    assert is_clean(ply.read(store.path + "/daemon.log"))


def test_labels_and_names_do_not_act_on_a_terminal(t):
    # U+009B is the beginning of an escape sequence, too: a terminal that reads UTF-8 may take it so.
    odd, shown = "l\x9b31m\x1b[31m\n\xc2 \xe9", "l?31m?[31m?\xc2 \xe9"
    store = t.store()
    store.import_(t.tree({odd: "0123456789" * 1000}), "--label", odd)
    for words in (["log"], ["tree"], ["tree", "--labels"]):
        assert shown in store.out(*words) and is_clean(store.out(*words)), words
    for words in (["dump"], ["dump", "main"], ["diff", "@" + odd]):
        assert is_clean(store.out(*words)), words
    p = t.run([ply.PLYFS, "restore", "@" + odd], check=False)
    assert p.returncode and "plyfs restore $'@l\\302\\23331m\\033[31m\\012" in p.stderr and is_clean(p.stderr), p
    store.stop()
    pack = packs(store)[0]
    data = open(pack, "rb").read()
    flip(pack, data.find(b"0123456789") + 5)
    said = check_names_damage(store, "--read-data")
    assert is_clean(said) and '"l\\302\\23331m\\033[31m\\n' in said, said


def test_hints_can_be_pasted(t):
    def paste(hint):
        assert is_clean(hint), hint
        return t.run(["bash", "-c", hint], env=dict(t.env, PATH=os.path.dirname(ply.PLYFS) +
                                                    ":" + t.env["PATH"]), check=False)

    for name in ("it's a dir", "$(touch x)", "new\nline's \x1b \\"):
        work = os.path.dirname(ply.make_tree(t.at(name), {"a": "old\n"}) + "/")
        t.run([ply.PLYFS, "mount", work])
        t.adopt(work)
        ply.write(work + "/a", "new\n")
        said = t.run([ply.PLYFS, "unmount", work]).stderr
        ply.write(work + "/a", "theirs\n")
        said = paste(re.search("plyfs --store .*", said)[0]).stderr
        assert ply.read(work + "/a") == "theirs\n", said
        paste(re.search("plyfs --store .*", said)[0])
        assert ply.read(work + "/a") == "new\n", said

        # What init says is for people only.
        ours, theirs = os.openpty()
        p = t.run([ply.PLYFS, "init", name + "-store"], stderr=theirs)
        os.close(theirs)
        said = os.read(ours, 4096).decode().replace("\r", "")
        os.close(ours)
        t.store(name + "-store", init=False)
        p = paste(re.search("plyfs --store .*", said)[0].replace("SOURCE", "*line*/.. --help"))
        assert p.returncode == 0 and p.stdout.startswith("usage: plyfs import"), (said, p)
    assert not os.path.exists(t.at("x"))
    p = t.run([ply.PLYFS, "restore", "@a b"], check=False)
    assert "plyfs restore '@a b' DIR" in p.stderr, p


def test_wrong_words_are_misuse(t):
    store = t.store()
    for args in (["frobnicate"], ["log", "--frobnicate"], ["restore"], ["fork"],
                 ["mount", "--at"], ["export"], ["log", "-n", "many"]):
        store.fails(*args, code=2)


def test_an_empty_store_name_is_misuse(t):
    view = t.view({"f": "1"})
    run = lambda *args, **kw: t.run([ply.PLYFS, *args], check=False, **kw)
    for words in ("status", "log", "checkpoint", "doctor", "env list", "session list", "mount d",
                  "run true", "init", "test", "serve"):
        for args in (["--store", "", *words.split()], ["--store=", *words.split()],
                     [*words.split()[:1], "--store", "", *words.split()[1:]]):
            p = run(*args, cwd=view.path)
            assert (p.returncode, p.stdout, p.stderr) == (2, "", "plyfs: --store wants a value\n"), p
    for where, code in ((t.path, 2), (view.path, 0)):  # as if it were not set
        p = run("log", cwd=where, env=dict(t.env, PLYFS_STORE=""))
        assert p.returncode == code and ("which store?" in p.stderr) == (code == 2), p


def test_options_of_a_mount_are_not_for_a_fork_without_one(t):
    view = t.view({"f": "1"})
    for how, kw in (([], {}), (["--from", "main"], {}), ([], {"cwd": view.path})):
        for option in (["--private"], ["--io-uring"], ["--without", "cache"]):
            said = view.store.fails("fork", *how, "new", *option, code=2, **kw)
            assert said == "plyfs fork: %s goes with --at\n" % option[0], said
    assert {b["name"] for b in view.store.json("tree")["branches"]} == {"main"}


def test_empty_names_are_misuse(t):
    view = t.view({"f": "1"})
    os.mkdir(t.at("at"))
    for args in (["mount", "--branch", "", "--at", "at"], ["mount", "--snapshot=", "--at", "at"],
                 ["mount", "--at", ""], ["checkpoint", "--branch", ""], ["restore", "--branch", "", "main"],
                 ["undo", "--branch", ""], ["log", "--branch", ""], ["fork", "--from", "", "new"],
                 ["fork", "new", "--at", ""], ["import", "--branch", "", "source"],
                 ["import", "--rev", "", "source"], ["export", "main", "--dir", ""],
                 ["export", "main", "--tar", ""], ["export", "main", "--git", ""]):
        option = next(a for a in args if a.startswith("--") and (a.endswith("=") or args[args.index(a) + 1] == ""))
        said = view.store.fails(*args, code=2)
        assert said == "plyfs %s: %s wants a value (try 'plyfs %s --help')\n" % (
            args[0], option.rstrip("="), args[0]), said
    assert {b["name"] for b in view.store.json("tree")["branches"]} == {"main"}


def test_wrong_words_in_the_environment_of_the_daemon(t):
    store = t.store()
    store.stop()
    for name, value in (("PLYFSD_IDLE", "soon"), ("PLYFSD_COMMIT_INTERVAL", "-1"),
                        ("PLYFSD_NODE_MEMORY", "1G")):
        env = dict(t.env, PLYFS_STORE=store.path, **{name: value})
        p = t.run([ply.PLYFS, "log"], env=env, check=False)
        assert p.returncode == 1 and name in p.stderr and value in p.stderr, p
        assert len(p.stderr.splitlines()) == 1, p
    # All that seconds may be: none of them is taken for "never".
    env = dict(t.env, PLYFS_STORE=store.path, PLYFSD_COMMIT_INTERVAL="1e9", PLYFSD_IDLE="0")
    assert "main" not in t.run([ply.PLYFS, "tree"], env=env).stdout


def test_bad_branch_names(t):
    view = t.view()
    for name in ("", "a/b", "a b", "..", ".", "-x", "x" * 64, "a\nb", "a~1", "@x"):
        p = view.store.ply("fork", "--", name, cwd=view.path, check=False)
        assert p.returncode in (1, 2) and p.stderr.strip(), (name, p)
    view.store.fails("fork", "main", cwd=view.path, says="exists")


# ---- stores ----

def damaged(t):
    """A store with some snapshots, closed."""
    store = t.store()
    store.import_(ply.make_bulk(t.at("source"), 600, size=12000))
    view = store.mount()
    for i in range(3):
        view.write("d000/s0000/f%03d.txt" % i, "checkpoint %d\n" % i * 500)
        store.ply("checkpoint", "--sync", "-m", "c%d" % i, view.path)
    view.unmount()
    store.stop()
    return store


def test_no_store_and_not_a_store(t):
    store = t.store(init=False)
    store.fails("log", says="no such|not exist|no store")
    os.mkdir(store.path)
    store.fails("log", says="not a (plyfs )?store|no (plyfs )?store")
    ply.write(os.path.join(store.path, "precious"), "x")
    store.fails("init", store.path, says="not empty")
    good = t.store("good")
    good.fails("init", good.path, says="already|exists")
    other = t.store("other", init=False)
    os.mkdir(other.path)
    with open(os.path.join(other.path, "lock"), "w") as lock:  # as two do at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert other.fails("init", other.path).endswith(": another process is making a store there\n")


def test_a_store_of_a_newer_version_is_refused_and_not_touched(t):
    store = damaged(t)
    path = os.path.join(store.path, "format")
    text = open(path).read()
    assert re.search(r"^version \d+$", text, re.M), text
    before = sorted((p, os.path.getsize(p)) for p in glob.glob(store.path + "/**", recursive=True)
                    if os.path.isfile(p) and "daemon.log" not in p)
    os.chmod(path, 0o600)
    newer = re.sub(r"^version \d+$", "version 999", text, flags=re.M)
    # Versions are told before checksums: a newer program may compute those differently.
    ply.write(path, newer)
    says = store.fails("log", says="newer")
    assert "999" in says or "version" in says, says
    ply.write(path, text)
    after = sorted((p, os.path.getsize(p)) for p in glob.glob(store.path + "/**", recursive=True)
                   if os.path.isfile(p) and "daemon.log" not in p)
    assert before == after
    store.ply("check", "--read-data")


def test_a_damaged_or_missing_format_file(t):
    store = damaged(t)
    path = os.path.join(store.path, "format")
    text = open(path, "rb").read()
    for wrong in (b"", b"\0" * 100, text[:20], text.replace(b"uuid", b"xuid"), b"hello\n", None):
        if wrong is None:
            os.unlink(path)
        else:
            with open(path, "wb") as f:
                f.write(wrong)
        for words in (["log"], ["init"], ["init", store.path]):
            store.fails(*words, says="format file is damaged or gone; 'plyfs salvage'")
    assert store.fails("status") == ("plyfs status: opening store '%s': the format file is damaged or gone; "
                                     "'plyfs salvage' writes it anew\n" % store.path)
    store.ply("salvage")
    store.ply("log")


def test_what_cannot_be_opened_is_named(t):
    store = damaged(t)
    for name in ("packs", "stage"):
        path = os.path.join(store.path, name)
        os.rename(path, path + ".away")
        ply.write(path, "no directory")
        assert store.fails("log") == "plyfs log: opening store '%s': %s: Not a directory\n" % (store.path, name)
        os.unlink(path)
        os.rename(path + ".away", path)
    store.ply("log")


def test_a_store_on_a_disk_that_is_read_only(t):
    ply.need_root()
    where = t.at("disk")
    os.mkdir(where)
    t.run(["mount", "-t", "tmpfs", "none", where])
    store = t.store("disk/store")
    store.import_(t.tree({"a": "1"}))
    store.stop()
    # The daemon's supervisor sees its end, and has the lock's file open until then.
    remount = ["mount", "-o", "remount,ro", where]
    ply.wait_for("nobody who could write", lambda: not t.run(remount, check=False).returncode)
    os.mkdir(t.at("view"))
    for words in (["log"], ["check"], ["export", "main", "--dir", t.at("out")], ["mount", "--at", t.at("view")]):
        says = store.fails(*words)
        assert says == ("plyfs %s: opening store '%s': lock: Read-only file system; even reading a store writes to "
                        "it: copy it to another disk, or mount an overlayfs above it\n" % (words[0], store.path)), says
    says = store.fails("salvage")
    assert says == ("plyfs salvage: '%s': lock: Read-only file system; copy it to another disk first\n"
                    % store.path), says
    copy = t.store("copy", init=False)
    t.run(["cp", "-a", store.path, copy.path])
    copy.ply("check", "--read-data")


def test_a_filesystem_that_maps_no_files_is_told(t):
    ply.need_root()
    ply.need_tool("bindfs")
    os.mkdir(t.at("below"))
    os.mkdir(t.at("disk"))
    # bindfs 1.14 has the one option, 1.18 the other.
    t.sh("bindfs -o direct_io below disk 2>/dev/null || bindfs --direct-io below disk")
    t.clean.append(lambda: t.run(["umount", t.at("disk")], check=False))
    store = t.store("disk/store", init=False)
    assert store.fails("init", store.path).endswith(
        "index/data.mdb: No such device; it cannot be mapped there: a store wants another kind of filesystem\n")


def test_the_status_of_what_is_no_store(t):
    for words in (["status"], ["status", "--json"]):
        p = t.run([ply.PLYFS, "--store", t.path, *words], check=False)
        assert (p.returncode, p.stdout, p.stderr) == (1, "", "plyfs status: opening store '%s': not a "
                                                      "plyfs store; make one with 'plyfs init'\n" % t.path), p


def flip(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)
        f.seek(offset)
        f.write(bytes([byte[0] ^ 0x40]))


def packs(store):
    return sorted(glob.glob(os.path.join(store.path, "packs", "*")))


def check_names_damage(store, *args):
    p = store.ply("check", *args, check=False)
    assert p.returncode == 1, (p.returncode, p.stdout, p.stderr)
    return p.stdout + p.stderr


def test_a_flipped_byte_in_a_pack_is_found_and_named(t):
    store = damaged(t)
    store.ply("check", "--read-data")
    store.stop()
    # The marker stands in exactly one file's data, stored plain.
    needle = open(t.at("source/d000/s0005/f010.txt"), "rb").read()[100:160]
    for pack in packs(store):
        data = open(pack, "rb").read()
        where = data.find(needle)
        if where >= 0:
            flip(pack, where + 5)
            break
    else:
        raise AssertionError("the data is in no pack")
    text = check_names_damage(store, "--read-data")
    assert "d000/s0005/f010.txt" in text, text
    # Everything else is still readable, the damaged file is an error and not wrong bytes.
    view = store.mount()
    try:
        view.read("d000/s0005/f010.txt")
        raise AssertionError("damaged data was read")
    except OSError as e:
        assert e.errno == 5, e
    bad = 0
    for folder, _, names in os.walk(view.path):
        for n in names:
            try:
                with open(os.path.join(folder, n), "rb") as f:
                    f.read()
            except OSError:
                bad += 1
    assert bad == 1, "%d files unreadable" % bad


def test_flipped_bytes_anywhere_in_a_pack_never_crash(t):
    store = damaged(t)
    pack = packs(store)[0]
    size = os.path.getsize(pack)
    good = open(pack, "rb").read()
    for i in range(12):
        flip(pack, (i * 7919 * 131 + 17 * i) % size)
    p = store.ply("check", "--read-data", check=False)
    assert p.returncode in (0, 1), p
    p = store.ply("log", check=False)
    assert p.returncode in (0, 1), p
    os.mkdir(t.at("m"))
    p = store.ply("mount", "--at", t.at("m"), check=False)
    if p.returncode == 0:
        subprocess.run(["find", t.at("m"), "-type", "f", "-exec", "cat", "{}", "+"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert store.daemon(), "the daemon is gone"
        store.ply("unmount", t.at("m"))
    store.stop()
    with open(pack, "wb") as f:
        f.write(good)
    store.ply("check", "--read-data")


def test_a_flipped_byte_in_a_tree_node_is_found(t):
    store = damaged(t)
    # Nodes are records of their own kind in the packs; dump tells where one lies.
    text = store.out("check")
    found = node_place(store)
    if not found:
        ply.skip("no node record recognised")
    store.stop()
    pack, offset = found
    flip(pack, offset)
    text = check_names_damage(store)
    assert re.search("node", text, re.I), text


def node_place(store):
    """Somewhere in the payload of a node record of the first pack: see store/FORMAT.md."""
    for pack in packs(store):
        data = open(pack, "rb").read()
        # A zstd frame's magic starts the payload of a compressed node: data chunks lie plain.
        where = data.find(b"\x28\xb5\x2f\xfd")
        if where > 0:
            return pack, where + 24
    return None


def test_a_truncated_pack_is_found(t):
    store = damaged(t)
    pack = packs(store)[0]
    os.truncate(pack, os.path.getsize(pack) * 2 // 3)
    text = check_names_damage(store)
    assert re.search("pack|truncat|missing|short", text, re.I), text


def test_a_missing_pack_is_found(t):
    store = damaged(t)
    os.unlink(packs(store)[0])
    p = store.ply("check", check=False)
    assert p.returncode == 1 and re.search("pack", p.stdout + p.stderr), p


def index_files(store):
    return [p for p in glob.glob(os.path.join(store.path, "index", "*")) if "lock" not in p]


def test_a_truncated_index_is_refused_without_a_crash(t):
    store = damaged(t)
    path = index_files(store)[0]
    good = open(path, "rb").read()
    # The file may be longer than what is used of it; these cut into that.
    for size in (4096 * 3, 4096, 100, 0):
        with open(path, "wb") as f:
            f.write(good[:size])
        p = store.ply("log", check=False)
        assert p.returncode == 1, (size, p)
        assert re.search("index|damaged|not a store", p.stderr, re.I), (size, p.stderr)
        assert len(p.stderr.strip().splitlines()) <= 3, p.stderr
    with open(path, "wb") as f:
        f.write(good)
    store.ply("check", "--read-data")


def read_all(path, what):
    """In another process: what is read may never come."""
    p = subprocess.Popen(["find", path, "-type", "f", "-exec", "cat", "{}", "+"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ply.wait_for(what, lambda: p.poll() is not None)
    finally:
        p.kill()
        p.wait()


def test_a_mapped_file_that_is_cut_ends_the_daemon_with_one_line(t):
    t.unsupervised()
    store = damaged(t)
    os.mkdir(t.at("m"))
    store.mount(at=t.at("m"))
    pid = store.daemon()
    path = index_files(store)[0]
    good = open(path, "rb").read()
    os.truncate(path, 8192)
    read_all(t.at("m"), "an answer of a view without a daemon")
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid))
    lines = [s for s in ply.read(os.path.join(store.path, "daemon.log")).splitlines()
             if "error" in s]
    assert len(lines) == 1 and "index/data.mdb" in lines[0] and "plyfs check" in lines[0], lines
    with open(path, "wb") as f:
        f.write(good)
    store.ply("check", "--read-data")


def test_flipped_bytes_in_the_index_never_give_wrong_data(t):
    store = damaged(t)
    path = index_files(store)[0]
    good = open(path, "rb").read()
    refused = 0
    # Entries lie in the leaf pages; spread over the file, several per run so that one must hit.
    for start in range(0, 6):
        with open(path, "r+b") as f:
            f.write(good)
        for page in range(2 + start, len(good) // 4096, 6):
            flip(path, page * 4096 + 4096 - 40 - start * 8)
        p = store.ply("check", check=False)
        assert p.returncode in (0, 1), "check crashed: %r" % (p,)
        refused += p.returncode
        os.makedirs(t.at("m"), exist_ok=True)
        p = store.ply("mount", "--at", t.at("m"), check=False)
        if p.returncode == 0:
            subprocess.run(["find", t.at("m"), "-type", "f", "-exec", "cat", "{}", "+"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
            for folder, _, names in os.walk(t.at("m")):
                for n in names:
                    rel = os.path.relpath(os.path.join(folder, n), t.at("m"))
                    if rel.startswith("d000/s0000"):
                        continue
                    with contextlib.suppress(OSError):
                        with open(os.path.join(folder, n), "rb") as f:
                            data = f.read()
                        assert data == open(t.at("source", rel), "rb").read(), rel
            store.ply("unmount", t.at("m"), check=False)
        store.stop()
    assert refused > 0, "no flipped byte was ever noticed"


def test_a_second_daemon_on_the_same_store(t):
    view = t.view()
    pid = view.store.daemon()
    # The socket vanished (someone tidied): the lock still tells.
    os.rename(os.path.join(view.store.path, "sock"), t.at("sock"))
    view.store.fails("log", says="another daemon has the store open; it does not listen: ")
    assert ply.alive(pid)
    os.rename(t.at("sock"), os.path.join(view.store.path, "sock"))
    assert view.read("a.txt") == "one\n"
    # By hand.
    p = t.run([ply.PLYFSD, "--store", view.store.path], check=False)
    says = "plyfsd: opening store '%s': a daemon serves it already\n" % view.store.path
    assert (p.returncode, p.stderr) == (1, says), p


def test_a_stale_socket_is_replaced(t):
    import socket
    store = t.store()
    store.stop()
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.path.join(store.path, "sock")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    s.bind(path)
    s.close()
    store.ply("log")


def test_secrets_of_the_environment_stay_with_the_client(t):
    """A daemon is the store owner's, a client may be root's."""
    import socket
    import struct
    store = t.store()
    store.stop()
    path = os.path.join(store.path, "sock")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(path)
        s.listen()
        s.settimeout(60)
        client = subprocess.Popen([ply.PLYFS, "--store", store.path, "log"], stderr=subprocess.PIPE,
                                  env=dict(t.env, PLYFS_TOKEN="secret", COLUMNS="77"))
        with s.accept()[0] as daemon:
            daemon.send(struct.pack("=IIii", 0x504c5957, 1, 0, os.getpid()) + b"0.1.0\0")
            request = daemon.recv(1 << 17)
        assert b"log\0" in request and b"COLUMNS=77\0" in request, request
        assert b"secret" not in request, request
        assert b"ended before it answered" in client.communicate()[1]
        assert client.returncode == 1


def test_nonsense_on_the_socket_harms_nobody(t):
    import socket
    view = t.view()
    path = os.path.join(view.store.path, "sock")
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        for message in (b"", b"\0", b"\xff" * 3000, os.urandom(4000), b"GET / HTTP/1.0\r\n\r\n"):
            s = socket.socket(socket.AF_UNIX, kind)
            s.settimeout(1)
            with contextlib.suppress(OSError):
                s.connect(path)
                s.send(message)
                s.recv(100)
            s.close()
    assert view.store.daemon()
    view.store.ply("log")
    assert view.read("a.txt") == "one\n"


def test_nonsense_ioctls_harm_nobody(t):
    import random
    view = t.view()
    rng = random.Random(5)
    with view.fd() as fd:
        for number in range(0x40, 0x49):
            for direction in (0, 1, 2, 3):
                for size in (0, 1, 64, 280, 288, 4232, 8208, 12304, 12312):
                    code = direction << 30 | size << 16 | ord("p") << 8 | number
                    if number == 0x40 and size == ply.CHECKPOINT.size and direction == 3:
                        continue
                    with contextlib.suppress(OSError):
                        fcntl.ioctl(fd, code, bytearray(rng.randbytes(max(size, 1))), True)
        try:
            ply.ioctl_checkpoint(fd, "x" * 255)
        except OSError as e:
            assert e.errno == 22
        # A label without its NUL, and one with a newline in it.
        raw = bytearray(ply.CHECKPOINT.pack(0, 0, b"y" * 256, b""))
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, ply.IOC_CHECKPOINT, raw, True)
    assert view.store.daemon()
    assert view.read("a.txt") == "one\n"
    view.store.ply("log")


def test_no_program_is_run_for_an_ioctl(t):
    """Whoever sits in a sandbox has the view, and would have it run outside."""
    view = t.view()
    ran = t.at("ran")
    view.write("program", f"#!/bin/sh\n: > '{ran}'\n")
    os.chmod(view.at("program"), 0o755)
    with view.fd() as fd:
        try:
            ply.ioctl_call(fd, "daemon", "--replace", "--program", view.at("program"))
            raise AssertionError(f"it was taken; run: {os.path.exists(ran)}")
        except OSError as e:
            assert e.errno == errno.EOPNOTSUPP


def test_through_an_ioctl_there_is_nothing_of_the_clients(t):
    view = t.view()
    with view.fd() as fd:
        for words in (["unmount", "/tmp"], ["unmount", view.path], ["mount", "--at", "/tmp"],
                      ["run", "true"], ["doctor"], ["writeback", "/tmp"], ["nosuch"]):
            try:
                raise AssertionError((words, ply.ioctl_call(fd, *words)))
            except OSError as e:
                assert e.errno == errno.EOPNOTSUPP, words
        for words in (["log", "--help"], ["log", "-h"], ["drop", "x", "--help"]):
            status, out, err = ply.ioctl_call(fd, *words)
            assert status == 0 and out.startswith("usage: plyfs " + words[0]) and not err, out


def test_other_users_are_refused(t):
    ply.need_root()
    view = t.view()
    os.chmod(t.path, 0o755)
    os.chmod(view.path, 0o777)
    # Where another user can reach it, wherever the sources are.
    program = shutil.copy(ply.PLYFS, t.at("plyfs"))
    before = view.info()

    def as_nobody(*args, cwd):
        return t.run([program, *args], check=False, user=65534, group=65534, extra_groups=[],
                     cwd=cwd, env={})
    assert view.read("a.txt") == "one\n"
    for args in (["checkpoint"], ["restore", before["head"]], ["undo"], ["fork", "mine"], ["log"],
                 ["drop", "main"], ["gc"]):
        p = as_nobody(*args, cwd=view.path)
        assert p.returncode == 1 and p.stderr, (args, p)
        assert re.search("permi|owner|another user", p.stderr), (args, p)
        p = as_nobody("--store", view.store.path, *args, cwd="/")
        assert p.returncode == 1 and p.stderr, (args, p)
    assert view.info() == before


# ---- imports ----

def test_importing_what_is_not_there_or_unreadable(t):
    store = t.store()
    store.fails("import", t.at("nowhere"), says="no such|not exist")
    ply.write(t.at("junk.tar"), os.urandom(5000))
    store.fails("import", t.at("junk.tar"), says="tar|archive|format|unrecog")
    ply.write(t.at("cut.txt"), "just a text\n" * 100)
    store.fails("import", t.at("cut.txt"))
    store.import_(t.tree({"a": "1"}))
    assert store.mount().ls() == ["a"]


def test_half_an_installation_is_told(t):
    for program in ply.PLYFS, ply.PLYFSD:
        t.sh('mkdir -p bin && cp "$0" bin'.replace("$0", program))
    store = t.store()
    t.sh("mkdir d && tar -cf some.tar d")
    p = store.bench.run([t.at("bin/plyfs"), "import", t.at("some.tar")], check=False,
                        env=dict(t.env, PLYFS_STORE=store.path))
    assert p.returncode == 1 and p.stderr.count("\n") == 1, p
    assert "plyfs-tar, which belongs beside plyfsd: install plyfs anew" in p.stderr, p.stderr


def test_a_truncated_tar_changes_nothing(t):
    store = t.store()
    ply.make_bulk(t.at("source"), 50, size=9000)
    t.sh("tar -C source -cf whole.tar . && head -c 100000 whole.tar >cut.tar")
    store.fails("import", t.at("cut.tar"))
    assert "main" not in store.out("tree", check=False)
    store.import_(t.at("whole.tar"))
    store.ply("check", "--read-data")


def test_import_into_an_existing_branch_wants_replace(t):
    view = t.view({"a": "1"})
    other = t.tree({"b": "2"}, "other")
    view.store.fails("import", other, says="replace|exists|mounted")
    view.unmount()
    view.store.fails("import", other, says="--replace")
    view.store.import_(other, "--replace")
    assert view.store.mount().ls() == ["b"]


def test_export_into_a_full_directory(t):
    view = t.view()
    ply.write(t.at("out/file"), "precious")
    view.store.fails("export", "main", "--dir", t.at("out"), says="not empty")
    assert os.listdir(t.at("out")) == ["file"]


if __name__ == "__main__":
    ply.main()
