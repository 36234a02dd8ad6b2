# SPDX-License-Identifier: Apache-2.0
"""Views that outlive their daemon, and daemons that die below them."""
import os
import random
import signal
import threading
import time

import ply


def supervised(t, files=None):
    t.deaths()
    return t.view(files)


def kill(view):
    """The daemon dies, and the next one answers."""
    os.kill(view.store.daemon(), signal.SIGKILL)
    os.statvfs(view.path)


def over(view, *others):
    """All views end, and then daemon and supervisor."""
    pid = view.store.daemon()
    parent = int(ply.read("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[1])
    for v in (view, *others):
        v.unmount()
    ply.wait_for("their end", lambda: not ply.alive(pid) and not ply.alive(parent))


class Beside(threading.Thread):
    """What goes on beside a test, until `over` is set at the end of the with block."""

    def __init__(self):
        super().__init__()
        self.over = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *what):
        self.over.set()
        self.join()


class Killer(Beside):
    """Kills the daemon again and again until stopped; counts."""

    def __init__(self, view, seed, most=0.05):
        super().__init__()
        self.view, self.rng, self.most, self.kills = view, random.Random(seed), most, 0

    def run(self):
        while not self.over.is_set():
            time.sleep(self.rng.random() * self.most)
            pid = self.view.store.daemon()
            if pid:
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
            os.statvfs(self.view.path)


def seed_of_run():
    seed = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(1 << 30))
    print("# PLYFS_TEST_SEED=%d" % seed)
    return seed
