#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 200
"""
`plyfs serve` under Chimera's own clients (PyPI: chimera-run): each method of RemoteEnvironment and
of CloudEnvironment, over HTTP and HTTPS, and the errors as they see them. Then the same server under
our own kinds remote and cloud.
"""
import os
import socket
import ssl
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import plylib
import server
import venv

os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
venv.enter()
import httpx
from chimera.env.cloud import CloudEnvironment
from chimera.env.remote import RemoteEnvironment

warnings.simplefilter("ignore")
FILES = {"a.txt": "one\n", "dir/b.py": "two\r\nlines\r", ".dot/c": "3\n",
         "test_it.py": "def test_a():\n    pass\n\n\ndef test_b():\n    assert False\n"}
TESTS = sys.executable + " -m pytest -q -p no:cacheprovider"


def remote(s, **kw):
    return RemoteEnvironment(host="127.0.0.1", port=s.port, tls=False, **kw)


def status(code, function, *args, **kw):
    try:
        function(*args, **kw)
    except httpx.HTTPStatusError as e:
        assert e.response.status_code == code, e
        assert isinstance(e.response.json()["detail"], (str, list)), e.response.text
        return e.response.json()["detail"]
    raise AssertionError("%d did not come" % code)


def every_method(t, env, read, ls):
    """env: set up, over FILES. read, ls: what is really there."""
    env = server.Watched(env)
    assert env.read_file("a.txt") == "one\n"
    assert env.read_file("dir/b.py") == "two\nlines\n"
    env.write_file("new/d\u00fc r/x.txt", "text\0 \u00fc\r\n")
    assert read("new/d\u00fc r/x.txt") == "text\0 \u00fc\r\n"
    assert env.list_files() == [".dot/c", "a.txt", "dir/b.py", "new/d\u00fc r/x.txt", "test_it.py"]
    assert env.list_files("**/*.py") == ["dir/b.py", "test_it.py"]
    assert env.list_files("nothing*") == []
    r = env.run_command("echo out; echo err >&2; exit 3")
    assert (r.stdout, r.stderr, r.exit_code, r.success) == ("out\n", "err\n", 3, False)
    assert env.run_command("echo x", shell_name="other").stdout == "x\n"
    r = env.run_command("echo a; sleep 20", timeout=1)
    assert r.exit_code == 124 and "Command timed out" in r.stderr
    for none in (None, 0):
        assert env.run_command("echo a", timeout=none).stdout == "a\n"
    r = env.run_command("sleep 20", timeout=-1)
    assert r.exit_code == 124 and "Command timed out" in r.stderr
    first = env.checkpoint()
    env.run_command("rm -rf dir; echo later > later; echo two > a.txt")
    second = env.checkpoint()
    assert first != second and "dir" not in ls()
    env.restore(first)
    assert env.read_file("a.txt") == "one\n" and "later" not in ls() and "dir" in ls()
    env.restore(second)
    assert env.read_file("a.txt") == "two\n" and "later" in ls()
    env.restore(first)
    tests = env.run_tests()
    assert (tests.passed, tests.failed, tests.errors, tests.total) == (1, 1, 0, 2), tests
    assert "1 failed, 1 passed" in tests.output and not tests.all_passed
    data = bytes(range(256)) * 5000
    ply.write(t.at("local"), data)
    env.upload_file(t.at("local"), "up/file.bin")
    env.download_file("up/file.bin", t.at("back"))
    assert open(t.at("back"), "rb").read() == data
    status(404, env.read_file, "nope")
    status(403, env.read_file, "../../etc/passwd")
    status(403, env.write_file, "/etc/x", "x")
    status(400, env.read_file, "dir")
    status(400, env.read_file, "up/file.bin")
    status(400, env.list_files, "")
    status(404, env.restore, "4711")
    status(404, env.download_file, "nope", t.at("none"))
    status(400, env.run_command, "echo x > a\0; echo y > b")
    status(400, env.write_file, "nul\0.txt", "x")
    status(400, env.restore, first + "\0zz")
    assert not {"a", "b", "nul"} & set(ls())
    try:
        env.clone()
    except NotImplementedError:
        pass  # by the client: the protocol has nothing for it
    env.assert_all_called(but=("setup", "cleanup"))


def test_remote_environment(t):
    view = t.view(FILES)
    s = server.serve(t, view, "--test-command", TESTS, token=None)
    env = remote(s)
    with env:
        every_method(t, env, lambda p: open(view.at(p), newline="").read(), view.ls)
    s.stop()


def test_remote_environment_of_a_fork_that_goes(t):
    view = t.view(FILES)
    store = view.store
    env = {"PLYFS_TEST_MARK": os.path.basename(t.path)}
    s = server.Server(t, [ply.PLYFS, "--store", store.path, "serve", "--from", "main",
                          "--test-command", TESTS], token=None, env=env)
    e = remote(s)
    with e:
        where = e.run_command("pwd").stdout.strip()
        assert where != view.path
        every_method(t, e, lambda p: open(os.path.join(where, p), newline="").read(),
                     lambda: sorted(os.listdir(where)))
    assert view.ls() == [".dot", "a.txt", "dir", "test_it.py"]
    s.stop()
    assert not os.path.exists(where)
    assert [b["name"] for b in store.json("tree")["branches"]] == ["main"]


def certificate(t):
    ply.need_tool("openssl")
    t.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
           "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
           "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"])
    return t.at("cert.pem"), t.at("key.pem")


def test_with_a_key_over_tls(t):
    cert, key = certificate(t)
    view = t.view(FILES)
    s = server.serve(t, view, "--certificate", cert, "--key", key, "--test-command", TESTS)
    os.environ["SSL_CERT_FILE"] = cert
    env = RemoteEnvironment(host="127.0.0.1", port=s.port, api_key=s.token, tls=True)
    with env:
        every_method(t, env, lambda p: open(view.at(p), newline="").read(), view.ls)
    wrong = RemoteEnvironment(host="127.0.0.1", port=s.port, api_key="wrong", tls=True)
    status(401, wrong.setup)
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        context = ssl.create_default_context()
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            try:
                old = context.wrap_socket(c, server_hostname="localhost").version()
            except (ssl.SSLError, ConnectionResetError):
                old = None
        assert old == ("TLSv1.2" if version == ssl.TLSVersion.TLSv1_2 else None), old
    s.stop()
    for certificate_, key_ in ((key, key), (cert, t.at("none")), (cert, cert)):
        p = t.run([ply.PLYFS, "serve", "--in", view.path, "--port", "0", "--certificate",
                   certificate_, "--key", key_], check=False)
        assert p.returncode == 1 and p.stderr.startswith("plyfs serve:"), p


def test_cloud_environment(t):
    cert, key = certificate(t)
    view = t.view(FILES)
    s = server.serve(t, view, "--cloud", "--certificate", cert, "--key", key, "--test-command",
                     TESTS)
    os.environ["SSL_CERT_FILE"] = cert
    url = "https://127.0.0.1:%d/" % s.port

    def mounts():
        return len(ply.mounts_below(t.at("run"), "fuse"))
    env = CloudEnvironment(url, s.token)
    env.setup()
    assert env.sandbox_id.startswith("sb-") and mounts() == 1
    where = env.run_command("pwd").stdout.strip()
    every_method(t, env, lambda p: open(os.path.join(where, p), newline="").read(),
                 lambda: sorted(os.listdir(where)))
    assert view.read("a.txt") == "one\n" and view.ls() == [".dot", "a.txt", "dir", "test_it.py"]
    # Another one beside it; and one that stays and is come back to.
    other = CloudEnvironment(url, s.token, keep_alive=True)
    other.setup()
    other.write_file("mine", "x")
    assert "mine" not in env.list_files() and mounts() == 2
    name = other.sandbox_id
    other.cleanup()
    assert mounts() == 2
    again = CloudEnvironment(url, s.token, sandbox_id=name)
    again.setup()
    assert again.read_file("mine") == "x"
    again.cleanup()
    assert mounts() == 1
    env.cleanup()
    assert mounts() == 0
    # An image is a snapshot.
    view.checkpoint("prepared")
    view.write("a.txt", "changed")
    image = CloudEnvironment(url, s.token, image="@prepared")
    image.setup()
    assert image.read_file("a.txt") == "one\n"
    image.cleanup()
    status(404, CloudEnvironment(url, s.token, image="no-such").setup)
    status(404, CloudEnvironment(url, s.token, sandbox_id="sb-none").setup)
    status(401, CloudEnvironment(url, "wrong").setup)
    # What is left goes with the server.
    last = CloudEnvironment(url, s.token, keep_alive=True)
    last.setup()
    s.stop()
    assert mounts() == 0
    assert [b["name"] for b in view.store.json("tree")["branches"]] == ["main"]


def test_a_test_run_that_timed_out_says_so(t):
    s = server.serve(t, t.view(FILES), "--test-command", "echo begun; sleep 30", "--timeout", "3")
    env = plylib.Env("remote", host="127.0.0.1", port=str(s.port), api_key=s.token)
    env.setup()
    got = env.run_tests()
    assert got.timed_out and b"begun" in got.output, got.exit_code
    env.cleanup()
    env.free()
    s.stop()


def test_our_own_kinds_on_it(t):
    view = t.view(FILES)
    s = server.serve(t, view, "--cloud", "--test-command", TESTS)
    env = plylib.Env("remote", host="127.0.0.1", port=str(s.port), api_key=s.token)
    env.setup()
    assert env.read_file("a.txt") == b"one\n"
    env.write_file("x/y", b"z")
    assert view.read("x/y") == "z"
    assert env.run("echo hi").out == b"hi\n"
    first = env.checkpoint()
    env.run("rm -r x")
    env.restore(first)
    assert view.read("x/y") == "z"
    env.checkpoint("before the change")
    env.run("rm -r x")
    env.restore("@before the change")
    assert view.read("x/y") == "z"
    env.cleanup()
    env.free()
    for body, code in ((b"", 200), (b"{}", 200), ({"label": None}, 200), ({"label": 5}, 400)):
        assert s.call("POST", "/checkpoint", body).status == code, body
    cloud = plylib.Env("cloud", url=s.url, api_key=s.token)
    cloud.setup()
    cloud.write_file("only/here", b"1")
    assert "only/here" in cloud.list_files("**/*") and "only" not in view.ls()
    cloud.cleanup()
    cloud.free()
    s.stop()


if __name__ == "__main__":
    with installed.programs():
        ply.main(__name__)
