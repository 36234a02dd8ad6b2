# SPDX-License-Identifier: Apache-2.0
"""
The one virtual environment of the tests that need packages from PyPI (tests/e2e/requirements.txt,
pinned). It is made when a test first asks for it, is named after the pins and the Python, and is kept
for the next run in the build directory (PLYFS_TEST_VENV names another place). A test that needs
it begins with venv.enter(), which goes on inside of it. Without a registry to install from, tests
are skipped.
"""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

SOURCE = os.environ.get("PLYFS_SOURCE") or os.path.dirname(os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PLYFS_BUILD") or os.path.join(SOURCE, "build")
REQUIREMENTS = os.path.join(SOURCE, "tests", "e2e", "requirements.txt")


def skip(reason):
    print("skip: " + reason)
    sys.exit(77)


def place():
    """Where it is to be: another one for other pins or another Python."""
    with open(REQUIREMENTS, "rb") as f:
        key = f.read() + sys.version.encode() + os.path.realpath(sys.executable).encode()
    top = os.environ.get("PLYFS_TEST_VENV") or os.path.join(BUILD, "tests", "venv")
    return os.path.join(top, hashlib.sha256(key).hexdigest()[:12])


def make(path):
    """Complete or not at all."""
    shutil.rmtree(path, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", path], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if made.returncode:
        skip("no virtual environment (apt: python3-venv): " + made.stdout.strip()[-200:])
    pip = subprocess.run(
        [os.path.join(path, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
         "--requirement", REQUIREMENTS],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if pip.returncode:
        shutil.rmtree(path, ignore_errors=True)
        skip("the packages cannot be installed: " + pip.stdout.strip()[-400:])
    with open(os.path.join(path, "complete"), "w"):
        pass


def python():
    """The path of its interpreter; makes it when it is not there. Skips the script if it must."""
    if sys.version_info < (3, 11):
        skip("needs Python 3.11 or newer")
    path = place()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(path, "complete")):
            make(path)
    return os.path.join(path, "bin", "python3")


def enter():
    """Goes on with this script in the environment's interpreter."""
    wanted = python()
    if os.path.dirname(sys.executable) != os.path.dirname(wanted):
        os.environ["PATH"] = os.path.dirname(wanted) + os.pathsep + os.environ["PATH"]
        os.execv(wanted, [wanted, *sys.argv])
