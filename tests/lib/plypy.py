# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: finding it, errors."""
import contextlib
import os
import sys
import weakref

import ply

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(ply.SOURCE, "env", "python")
LIBRARY = os.path.join(ply.BUILD, "env", "libplyfs.so.0")


def need_plain_build():
    """Ends the script (77) where the library is one of a sanitizer: other Pythons are to load it."""
    if ply.is_sanitized(LIBRARY):
        print("skip: a sanitizer's library needs a program that was built with it")
        sys.exit(77)


def package():
    """The package from the source tree, over the library of the build; ends the script (77) where
    it cannot be loaded."""
    if sys.version_info < (3, 11):
        print("skip: the Python package needs Python 3.11")
        sys.exit(77)
    if ply.is_sanitized(LIBRARY, by=("tsan",)) or not ply.loads(LIBRARY):
        print("skip: ThreadSanitizer does not bear that the package's callers fork")
        sys.exit(77)
    os.environ["PLYFS_LIBRARY"] = LIBRARY
    sys.dont_write_bytecode = True
    sys.path.insert(0, PACKAGE)
    import plyfs
    return plyfs


def adopt(t, where):
    """A workspace (or a mount point): its store's daemon ends with the test."""
    if isinstance(where, str):
        t.adopt(where)
    else:
        t.adopt(where.workdir)
        t.clean.append(close_if_alive(where))
    return where


def close_if_alive(workspace):
    ref = weakref.ref(workspace)

    def close():
        ws = ref()
        if ws is not None:
            ws.close()
    return close


class Raised:
    value = None


@contextlib.contextmanager
def raises(*classes, says=""):
    """The block raises something that is of all these classes, and says this."""
    seen = Raised()
    try:
        yield seen
    except BaseException as e:
        for c in classes:
            if not isinstance(e, c):
                raise AssertionError("%r is no %s" % (e, c.__name__)) from e
        assert says in str(e), "%r does not say %r" % (e, says)
        seen.value = e
        return
    raise AssertionError("nothing was raised, wanted %s" % classes[0].__name__)


def cmdline(pid):
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
