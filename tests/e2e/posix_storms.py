#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 240
"""Long random work on one file and on one tree: lib/filemodel.c, lib/treestorm.c, stress-ng."""
import os
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


if __name__ == "__main__":
    ply.main()
