#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fault
# timeout: 180
"""
While the daemon starts, one call of the C library after the other fails in it, whoever makes it: it
starts, or says in words why not; the next start finds everything that was acknowledged. Behind a
mount that outlives it, nobody sees more than a pause.
"""
import errno
import os
import shutil
import signal
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

PATIENCE = 60
SOME = 12  # of a start's calls, in the short form


def asked(store, *args):
    """Exit 0, or 1 and one line of words."""
    p = store.ply(*args, check=False, timeout=PATIENCE)
    shown = "%s: exit %d\n%s%s" % (args, p.returncode, p.stdout, p.stderr)
    assert p.returncode in (0, 1), shown
    assert p.returncode == 0 or p.stderr.startswith("plyfs "), shown
    assert p.returncode == 0 or len(p.stderr.splitlines()) == 1, shown
    return p.returncode == 0


def test_a_store_is_made_or_can_be_made(t):
    faults = ply.Faults(t)

    def attempt(n):
        store = t.store("store%d" % n, init=False)
        with faults.armed(n):
            good = asked(store, "init", store.path)
        if not good:
            # Nothing of it stays; before it is sure that the directory is its own, it removes nothing.
            left = os.listdir(store.path) if os.path.exists(store.path) else []
            assert left in ([], ["lock"]), left
            store.ply("init", store.path)
        store.ply("check", "--read-data")
        shutil.rmtree(store.path)
        t.stores.remove(store)
        return good

    faults.tried(SOME, attempt)


def test_who_may_open_no_more_files_is_told_of_the_limit(t):
    store = t.store()
    store.stop()
    faults = ply.Faults(t)
    os.mkdir(t.at("view"))

    def attempt(n):
        with faults.armed(n, error=errno.EMFILE, kinds=faults.CALLS):
            p = store.ply("mount", "--at", t.at("view"), check=False, timeout=PATIENCE)
        if p.returncode == 0:
            store.ply("unmount", t.at("view"))
            store.stop()
        elif "Too many open files" in p.stderr:
            assert p.stderr.endswith(": Too many open files; see ulimit -n\n"), p
        return p.returncode == 0

    faults.tried(SOME, attempt)


def killed(t):
    """A store whose daemon was killed with work in the journal; the digest of its tree."""
    t.unsupervised()
    t.env["PLYFSD_COMMIT_INTERVAL"] = "3000"
    view = t.view()
    for i in range(40):
        view.write("d%d/f%d" % (i % 5, i), "x" * i * 100)
    view.checkpoint("here")
    os.rename(view.at("d1"), view.at("moved"))
    os.truncate(view.at("d2/f37"), 5000)
    os.setxattr(view.at("d2/f37"), "user.x", b"1")
    digest = view.digest()
    view.store.kill()
    t.run(["umount", "-l", view.path], check=False)  # if the supervisor has not
    return view.store, digest


def test_a_journal_is_replayed_by_this_daemon_or_the_next(t):
    template, digest = killed(t)
    faults = ply.Faults(t)
    os.mkdir(t.at("view"))
    for name in ("PLYFSD_SUPERVISE_OFF", "PLYFSD_COMMIT_INTERVAL"):
        del t.env[name]

    def attempt(n):
        store = t.store("copy%d" % n, init=False)
        shutil.copytree(template.path, store.path, ignore=lambda *a: ["sock"])
        with faults.armed(n):
            good = asked(store, "mount", "--at", t.at("view"))
        if not good:
            store.ply("mount", "--at", t.at("view"))
        store.daemon()
        assert ply.treedigest(t.at("view")) == digest, store.log_tail()
        store.ply("check", "--read-data")
        store.ply("unmount", t.at("view"))
        store.stop()
        shutil.rmtree(store.path)
        t.stores.remove(store)
        return good

    faults.tried(SOME, attempt)


def test_behind_a_mount_the_next_one_tries_again(t):
    t.deaths()
    faults = ply.Faults(t)
    view = t.view()
    made = 0

    def attempt(n):
        nonlocal made
        made += 1
        view.write("f%d" % made, str(made))
        pid = view.store.daemon()
        with faults.armed(n, where=faults.OUTSIDE_REQUESTS):
            os.kill(pid, signal.SIGKILL)
            result = []

            def use():
                try:
                    os.mkdir(view.at("d%d" % made))
                    result.append(view.read("f%d" % made))
                except OSError as e:
                    result.append(e)

            user = threading.Thread(target=use, daemon=True)
            user.start()
            user.join(PATIENCE)
        if user.is_alive():
            ply.write("/sys/fs/fuse/connections/%d/abort" % os.stat(view.path).st_dev, "1")
            raise AssertionError("no answer for %d s\n%s" % (PATIENCE, view.store.log_tail()))
        assert result == [str(made)], (result, view.store.log_tail())
        return True

    faults.tried(SOME, attempt)
    digest = view.digest()
    view.store.ply("check", "--read-data")
    view.unmount()
    view.store.stop()
    view.store.mount(at=view.path)
    assert view.digest() == digest


if __name__ == "__main__":
    ply.main(__name__)
