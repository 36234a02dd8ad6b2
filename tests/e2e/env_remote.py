#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 180
"""
The kinds remote and cloud against a server of their protocol (lib/remoteserver.py): each row of the
protocol, errors and their types, servers that misbehave; and, where Chimera's own RemoteEnvironment
and CloudEnvironment can be had, the same calls by both, request by request and byte by byte.
"""
import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plylib
import remoteserver
import venv

# Nothing here may go over a proxy.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"


class Pair:
    """A server and an environment on it."""

    def __init__(self, t, **options):
        self.server = remoteserver.Server(t.at("server"))
        self.options = options

    def __enter__(self):
        self.server.__enter__()
        self.env = plylib.Env("remote", host="127.0.0.1", port=str(self.server.port),
                              **self.options)
        self.env.setup()
        self.setup_requests = self.server.taken()
        return self.server, self.env

    def __exit__(self, *exc):
        self.env.cleanup()
        self.env.free()
        self.server.__exit__(*exc)


def fails(status, function, *args, says=""):
    try:
        function(*args)
    except plylib.Error as e:
        assert e.status == status and says in e.sentence, "%s: %s" % (e.status, e.sentence)
        return e.sentence
    raise AssertionError("%r did not fail" % (args,))


def only(server):
    requests = server.taken()
    assert len(requests) == 1, requests
    return requests[0].method, requests[0].target, requests[0].body


# ---- the protocol, row by row ----

def test_remote_setup(t):
    pair = Pair(t)
    with pair as (server, env):
        assert [(r.method, r.target, r.body) for r in pair.setup_requests] == [
            ("GET", "/health", b"")]
        assert env.workdir == "/workspace"


def test_remote_read_file(t):
    with Pair(t) as (server, env):
        ply.write(server.work + "/d/a b&c=ü.txt", "text\0 with ü\r\n".encode())
        assert env.read_file("d/a b&c=ü.txt") == "text\0 with ü\r\n".encode()
        assert only(server) == ("GET", "/files/read?path=d%2Fa+b%26c%3D%C3%BC.txt", b"")
        ply.write(server.work + "/empty", "")
        assert env.read_file("empty") == b""


def test_remote_write_file(t):
    with Pair(t) as (server, env):
        env.write_file("new/dir/f.txt", 'line\n"ü"\t\\/')
        assert only(server) == ("POST", "/files/write",
                                '{"path":"new/dir/f.txt","content":"line\\n\\"ü\\"\\t\\\\/"}'
                                .encode())
        assert ply.read(server.work + "/new/dir/f.txt") == 'line\n"ü"\t\\/'
        env.write_file("empty", b"")
        env.write_file("nul", b"a\0b")
        assert ply.read(server.work + "/nul") == "a\0b"


def test_remote_list_files(t):
    with Pair(t) as (server, env):
        ply.make_tree(server.work, {"a.py": "", "d/b.py": "", "d/c.txt": ""})
        assert env.list_files("**/*") == ["a.py", "d/b.py", "d/c.txt"]
        assert only(server) == ("GET", "/files/list?pattern=%2A%2A%2F%2A", b"")
        assert env.list_files("**/*.py") == ["a.py", "d/b.py"]
        assert env.list_files("no*") == []


def test_remote_run_command(t):
    with Pair(t) as (server, env):
        got = env.run("echo out; echo err >&2; exit 7")
        assert (got.out, got.err, got.exit_code, got.timed_out) == (b"out\n", b"err\n", 7, False)
        assert only(server) == ("POST", "/execute", b'{"cmd":"echo out; echo err >&2; exit 7",'
                                b'"timeout":120,"shell_name":"main"}')
        env.run("true", timeout=1.2, shell="other")
        assert only(server)[2] == b'{"cmd":"true","timeout":2,"shell_name":"other"}'
        big = env.run("head -c 3000000 /dev/zero | tr '\\0' x")
        assert big.out == b"x" * 3000000


def test_remote_run_command_timeout_is_a_result(t):
    with Pair(t) as (server, env):
        got = env.run("sleep 20", timeout=1)
        assert (got.out, got.err, got.exit_code, got.timed_out) == (
            b"", b"Command timed out", 124, True)


def test_remote_a_timeout_after_words(t):
    with Pair(t) as (server, env):
        server.tricks["/execute"] = lambda h: h.answer(
            200, b'{"stdout":"","stderr":"so far\\nCommand timed out","exit_code":124}')
        assert env.run("sleep 20", timeout=1).timed_out
        server.tricks["/execute"] = lambda h: h.answer(
            200, b'{"stdout":"","stderr":"not a Command timed out","exit_code":124}')
        assert not env.run("exit 124").timed_out


def test_remote_a_command_may_take_longer_than_the_option(t):
    with Pair(t, timeout="3") as (server, env):  # which is also what its setup may take
        assert env.run("sleep 3.5; echo done", timeout=60).out == b"done\n"
        server.tricks["/files/read"] = lambda h: time.sleep(5)
        fails("PLY_TIMEOUT", env.read_file, "a", says="/files/read")


def test_remote_run_tests(t):
    with Pair(t) as (server, env):
        ply.write(server.work + "/report.txt", "== 3 passed, 1 failed, 2 errors in 0.1s ==\n")
        got = env.run_tests()
        assert (got.passed, got.failed, got.errors) == (3, 1, 2)
        assert got.output == b"== 3 passed, 1 failed, 2 errors in 0.1s ==\n"
        assert not got.all_passed and got.pass_rate == 0.5
        assert only(server) == ("POST", "/tests/run", b"")


def test_remote_checkpoint_and_restore(t):
    with Pair(t) as (server, env):
        env.write_file("a", "one")
        server.taken()
        first = env.checkpoint()
        assert only(server) == ("POST", "/checkpoint", b"")
        env.write_file("a", "two")
        env.write_file("b", "new")
        server.taken()
        env.restore(first)
        assert only(server) == ("POST", "/restore", b'{"checkpoint_id":"cp-0"}')
        assert env.read_file("a") == b"one" and env.list_files() == ["a"]
        server.taken()
        env.checkpoint("before the change")
        assert only(server)[2] == b'{"label":"before the change"}'


def test_remote_upload_file(t):
    with Pair(t) as (server, env):
        data = bytes(range(256)) * 1000 + b"\r\n--boundary\r\n"
        ply.write(t.at("local.bin"), data)
        env.upload(t.at("local.bin"), "d/remote ü.bin")
        request = server.taken()[0]
        assert request.method == "POST" and request.target == "/files/upload"
        parts = remoteserver.form(request.headers, request.body)
        assert parts[0][0] == "path" and parts[0][2] == "d/remote ü.bin".encode(), parts[0]
        assert parts[1][0] == "file" and parts[1][2] == data
        with open(server.work + "/d/remote ü.bin", "rb") as f:
            assert f.read() == data


def test_remote_download_file(t):
    with Pair(t) as (server, env):
        data = bytes(range(256)) * 1000
        ply.write(server.work + "/d/r.bin", data)
        ply.write(server.work + "/empty", "")
        env.download("d/r.bin", t.at("local.bin"))
        assert only(server) == ("GET", "/files/download?path=d%2Fr.bin", b"")
        with open(t.at("local.bin"), "rb") as f:
            assert f.read() == data
        assert os.stat(t.at("local.bin")).st_mode & 0o777 == 0o666 & ~umask()
        env.download("empty", t.at("local.bin"))
        assert ply.read(t.at("local.bin")) == ""


def umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_remote_cleanup(t):
    pair = Pair(t)
    with pair as (server, env):
        env.cleanup()
        assert server.taken() == []
        fails("PLY_STATE", env.read_file, "a")
        env.setup()
        assert only(server)[1] == "/health"


def test_remote_what_the_protocol_has_not(t):
    with Pair(t) as (server, env):
        for call in (env.undo, env.clone, env.diff):
            fails("PLY_UNSUPPORTED", call, says="remote environments do not support")
        assert server.taken() == []


# ---- errors ----

def test_remote_missing_and_forbidden_files(t):
    with Pair(t) as (server, env):
        for call in (env.read_file, lambda p: env.download(p, t.at("x"))):
            fails("PLY_NOT_FOUND", call, "no/such", says="File not found: no/such")
            fails("PLY_DENIED", call, "../out", says="Path escapes workdir: ../out")
        fails("PLY_DENIED", env.write_file, "../out", "x")
        fails("PLY_UNKNOWN_ID", env.restore, "nope", says="Checkpoint nope not found")
        assert os.listdir(t.path).count("x") == 0
        assert not [n for n in os.listdir(t.path) if n.endswith(".part")]


def test_remote_download_that_fails_leaves_the_old_file(t):
    with Pair(t) as (server, env):
        ply.write(t.at("x"), "old")
        ply.write(server.work + "/f", "new")

        def cut(h):
            h.send_response(200)
            h.send_header("Content-Length", "1000000")
            h.end_headers()
            h.wfile.write(b"x" * 1000)
            h.close_connection = True
        server.tricks["/files/download"] = cut
        fails("PLY_REMOTE", env.download, "f", t.at("x"))
        assert ply.read(t.at("x")) == "old" and sorted(os.listdir(t.path)) == [
            "home", "server", "x"]
        fails("PLY_NOT_FOUND", env.download, "f", t.at("no/dir/x"))


def test_remote_bytes_that_are_no_text(t):
    with Pair(t) as (server, env):
        says = "the content is not UTF-8, and the protocol carries text only; upload carries bytes"
        fails("PLY_ENCODING", env.write_file, "f", b"\xff\xfe", says=says)
        fails("PLY_ENCODING", env.write_file, "f", b"\xed\xa0\x80")
        fails("PLY_ENCODING", env.run, b"echo \xff", says="the command is not UTF-8")
        assert server.taken() == []


def test_remote_upload_of_what_is_no_file(t):
    with Pair(t) as (server, env):
        os.mkfifo(t.at("fifo"))
        fails("PLY_NOT_FOUND", env.upload, t.at("none"), "x", says="none: No such file")
        fails("PLY_IS_DIRECTORY", env.upload, t.path, "x")
        fails("PLY_INVALID", env.upload, t.at("fifo"), "x", says="not a regular file")
        assert server.taken() == []


def test_remote_the_servers_own_words(t):
    answers = [
        (500, b'{"detail":"disk full"}', "PLY_REMOTE", "status 500: disk full"),
        (503, b"try\x1b[31m later\nplease", "PLY_REMOTE", "status 503: try [31m later please"),
        (400, b'{"error":"bad glob"}', "PLY_REMOTE", "status 400: bad glob"),
        (500, b"", "PLY_REMOTE", "status 500"),
        (401, b'{"detail":"no"}', "PLY_DENIED", "does not accept the api_key: no"),
        (403, b'{"message":"not you"}', "PLY_DENIED", "status 403: not you"),
        (302, b"", "PLY_REMOTE", "status 302"),
        (500, b"x" * 3000000, "PLY_REMOTE", "x" * 400),
    ]
    with Pair(t) as (server, env):
        for status, body, name, says in answers:
            server.tricks["/files/list"] = lambda h: h.answer(
                status, body, headers=[("Location", "http://127.0.0.1:1/")])
            said = fails(name, env.list_files, says=says)
            assert len(said) < 600 and "\n" not in said, said


def test_remote_answers_that_make_no_sense(t):
    with Pair(t) as (server, env):
        bad = [b"", b"null", b"[]", b"{", b'{"files":"a"}', b'{"files":[1]}', b"\xff", b'{"a":1}',
               b"[" * 100000]
        for body in bad:
            server.tricks["/files/list"] = lambda h: h.answer(200, body)
            fails("PLY_REMOTE", env.list_files)
        for body in (b"{}", b'{"stdout":1,"stderr":"","exit_code":0}',
                     b'{"stdout":"","stderr":"","exit_code":"0"}',
                     b'{"stdout":"","stderr":"","exit_code":4294967296}',
                     b'{"stdout":"","stderr":"","exit_code":-9223372036854775808}',
                     b'{"stdout":"\\udc80","stderr":"","exit_code":0}'):
            server.tricks["/execute"] = lambda h: h.answer(200, body)
            fails("PLY_REMOTE", env.run, "true")
        many = 2**63 - 1
        for body in (b'{"passed":-1,"failed":0,"errors":0,"output":""}', b'{"passed":1}',
                     b'{"passed":%d,"failed":%d,"errors":3,"output":""}' % (many, many)):
            server.tricks["/tests/run"] = lambda h: h.answer(200, body)
            fails("PLY_REMOTE", env.run_tests)
        server.tricks["/checkpoint"] = lambda h: h.answer(200, b'{"checkpoint_id":7}')
        fails("PLY_REMOTE", env.checkpoint, says="no text 'checkpoint_id'")


def test_remote_headers_without_end(t):
    """Behind a body libcurl has no limit for them, and keeps them all."""
    with Pair(t) as (server, env):
        def before(h):
            h.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X-A: aaaa\r\n" * 1000000)

        def behind(h):
            h.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" +
                          b"X-A: aaaa\r\n" * 1000000 + b"\r\n")
        for trick in before, behind:
            server.tricks["/files/list"] = trick
            fails("PLY_REMOTE", env.list_files, says="eaders")
        server.tricks.clear()
        assert env.run("echo again").out == b"again\n"


def test_remote_nobody_answers(t):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    env = plylib.Env("remote", host="127.0.0.1", port=port)
    fails("PLY_REMOTE", env.setup, says="http://127.0.0.1:%s/health: " % port)
    fails("PLY_STATE", env.read_file, "a")
    env.free()


def test_remote_a_server_that_hangs_up(t):
    with Pair(t) as (server, env):
        def hang_up(h):
            h.close_connection = True
        server.tricks["/execute"] = hang_up
        fails("PLY_REMOTE", env.run, "true")
        server.tricks.clear()
        assert env.run("echo again").out == b"again\n"


def test_remote_what_got_no_answer_is_not_done_twice(t):
    """Over a connection that was kept, where libcurl would ask again."""
    with Pair(t) as (server, env):
        for path, call in (("/execute", lambda: env.run("true")), ("/checkpoint", env.checkpoint),
                           ("/files/write", lambda: env.write_file("a", "b")), ("/tests/run", env.run_tests)):
            def hang_up(h):
                h.close_connection = True
            server.tricks[path] = hang_up
            server.taken()
            fails("PLY_REMOTE", call, says="%s: the server hung up without an answer" % path)
            assert only(server)[1] == path
            server.tricks.clear()
            assert env.run("echo again").out == b"again\n"
        once = []

        def hang_up_once(h):
            once.append(h)
            if len(once) == 1:
                h.close_connection = True
            else:
                h.answer(200, b'{"content":"read"}')
        server.tricks["/files/read"] = hang_up_once
        assert env.read_file("a") == b"read" and len(once) == 2  # changes nothing


def test_remote_options(t):
    for options, says in (
            ({}, "needs the option 'host'"),
            ({"host": "http://x"}, "is no host"), ({"host": "a b"}, "is no address"),
            ({"host": "user@x"}, "is no address"),
            ({"host": "192.0.2.1", "api_key": "k"}, "without TLS"),
            ({"host": "127.0.0.1.example.org", "api_key": "k"}, "without TLS"),
            ({"host": "localhost.example.org", "api_key": "k"}, "without TLS"),
            ({"host": "[::2]", "api_key": "k"}, "without TLS"),
            ({"host": "localhost", "api_key": "a\r\nX: y"}, "control character")):
        env = plylib.Env("remote", **options)
        fails("PLY_INVALID", env.setup, says=says)
        env.free()
    env = plylib.Env("remote")
    for name, value in (("port", "0"), ("port", "x"), ("tls", "2"), ("timeout", "-1"),
                        ("workdir", "/x")):
        fails("PLY_INVALID", env.set, name, value)
    assert [env.get(n) for n in ("port", "tls", "timeout", "working_dir")] == [
        "8080", "0", "120", "/workspace"]
    env.free()


def test_remote_a_key_on_this_machine(t):
    with Pair(t, api_key="sésame") as (server, env):
        server.token = "sésame".encode().decode("latin-1")  # how http.server reads headers
        assert env.run("echo in").out == b"in\n"
        server.token = "another"
        fails("PLY_DENIED", env.run, "true", says="does not accept the api_key: wrong token")


def test_remote_a_proxy_is_not_for_this_machine(t):
    try:
        os.environ["http_proxy"] = "http://127.0.0.1:1"
        del os.environ["NO_PROXY"], os.environ["no_proxy"]
        with Pair(t, api_key="k") as (server, env):
            assert env.run("echo in").out == b"in\n"
    finally:
        del os.environ["http_proxy"]
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"


# ---- a SWE-ReX server ----

def swe_of(server):
    config = json.dumps({"deployment": {"type": "remote", "auth_token": "k",
                                        "port": server.port}}).encode()
    lib, swe = plylib.lib(), ctypes.c_void_p()
    plylib.check(lib.ply_swe_from_config(config, ctypes.c_size_t(len(config)), ctypes.byref(swe)))
    return lib, swe


def test_swe_an_exception_keeps_its_class_however_long_it_is(t):
    exception = {"message": "x" * 200000, "class_path": "swerex.exceptions.SessionExistsError",
                 "traceback": "", "extra_info": {}}
    with remoteserver.Server(t.at("server")) as server:
        server.tricks["/create_session"] = lambda h: h.answer(
            511, json.dumps({"swerexception": exception}).encode())
        lib, swe = swe_of(server)
        fails("PLY_EXISTS", lambda: plylib.check(lib.ply_swe_start(swe)), says="x" * 1000)
        lib.ply_swe_free(swe)


def test_swe_an_exit_code_that_is_not_said_is_not_0(t):
    with remoteserver.Server(t.at("server")) as server:
        for path in ("/create_session", "/run_in_session", "/close_session", "/close"):
            server.tricks[path] = lambda h: h.answer(200, b'{"output":"","exit_code":0}')
        lib, swe = swe_of(server)
        plylib.check(lib.ply_swe_start(swe))
        for body in (b"{}", b'{"stdout":"a","stderr":"","exit_code":null}', b'{"exit_code":4294967296}'):
            server.tricks["/execute"] = lambda h: h.answer(200, body)
            for check in (False, True):
                fails("PLY_NO_EXIT_CODE", lambda: plylib.check(lib.ply_swe_execute(
                    swe, b"true", check, None, ctypes.c_size_t(0), None, None)), says="exit code")
        lib.ply_swe_free(swe)


def test_swe_what_json_cannot_say_is_told(t):
    with remoteserver.Server(t.at("server")) as server:
        for path in ("/create_session", "/run_in_session", "/close_session", "/close"):
            server.tricks[path] = lambda h: h.answer(200, b'{"output":"","exit_code":0}')
        server.tricks["/execute"] = lambda h: h.answer(
            200, b'{"stdout":"","stderr":"","exit_code":0}')
        lib, swe = swe_of(server)
        plylib.check(lib.ply_swe_start(swe))

        def execute(command, env, cwd):
            words = (ctypes.c_char_p * 1)(env)
            plylib.check(lib.ply_swe_execute(swe, command, False, words, ctypes.c_size_t(1), cwd,
                                             None))
        server.taken()
        execute(b"true", "A=ü".encode(), b"/")
        sent = json.loads(server.taken()[0].body)
        assert (sent["env"], sent["cwd"], sent["timeout"]) == ({"A": "ü"}, "/", None), sent
        for what in ((b"\xff", b"A=b", b"/"), (b"true", b"A=\xff", b"/"), (b"true", b"\xff=b", b"/"),
                     (b"true", b"A=b", b"/\xff")):
            fails("PLY_ENCODING", execute, *what, says="is not UTF-8")
        assert server.taken() == []
        lib.ply_swe_free(swe)


# ---- more than one at once, and much ----

def test_remote_connections_are_kept_and_shared(t):
    with Pair(t) as (server, env):
        for _ in range(20):
            env.run("true")
        assert len(server.connections) == 1
        barrier, found = threading.Barrier(8, timeout=30), []
        real = server.execute

        def together(command, timeout):
            barrier.wait()
            return real(command, timeout)
        server.execute = together
        threads = [threading.Thread(target=lambda i=i: found.append(
            env.run("echo %d" % i).out)) for i in range(8)]
        for x in threads:
            x.start()
        for x in threads:
            x.join()
        assert sorted(found) == [b"%d\n" % i for i in range(8)]
        assert len(server.connections) <= 8


def test_remote_a_cancelled_command(t):
    with Pair(t) as (server, env):
        r, w = os.pipe()
        plylib.lib().ply_cancel_on(r)
        timer = threading.Timer(0.2, os.write, (w, b"x"))
        timer.start()
        fails("PLY_CANCELLED", env.run, "sleep 20")
        os.read(r, 1)
        assert env.run("echo next").out == b"next\n"
        plylib.lib().ply_cancel_on(-1)
        os.close(r)
        os.close(w)


def test_remote_large_files_pass_in_pieces(t):
    size = 192 << 20
    with Pair(t) as (server, env):
        server.digest_uploads = True
        with open(t.at("big"), "wb") as f:
            f.truncate(size - 4)
            f.seek(size - 4)
            f.write(b"end.")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        env.upload(t.at("big"), "big")
        request = server.taken()[0]
        assert b"end." in request.body and int(request.headers["Content-Length"]) > size

        def send(h):
            h.send_response(200)
            h.send_header("Content-Length", str(size))
            h.end_headers()
            for _ in range(size >> 20):
                h.wfile.write(bytes(1 << 20))
        server.tricks["/files/download"] = send
        env.download("big", t.at("copy"))
        assert os.path.getsize(t.at("copy")) == size
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 << 10, "%d KiB more" % grown


# ---- the cloud ----

class Cloud(Pair):
    def __enter__(self):
        self.server.__enter__()
        self.server.token = "key"
        self.env = plylib.Env("cloud", **dict(
            {"url": "http://127.0.0.1:%d//" % self.server.port, "api_key": "key"},
            **self.options))
        return self.server, self.env


def requests(server):
    return [(r.method, r.target, r.body) for r in server.taken()]


def test_cloud_setup_and_cleanup(t):
    with Cloud(t, image="python:3.11-slim", working_dir="/w") as (server, env):
        assert env.get("sandbox_id") == ""
        env.setup()
        assert env.get("sandbox_id") == "sb-0" and env.workdir == "/w"
        assert requests(server) == [
            ("POST", "/sandboxes", b'{"working_dir":"/w","image":"python:3.11-slim"}'),
            ("GET", "/sandboxes/sb-0", b""), ("GET", "/health", b"")]
        assert env.run("echo in the cloud").out == b"in the cloud\n"
        server.taken()
        env.cleanup()
        assert requests(server) == [("DELETE", "/sandboxes/sb-0", b"")]
        assert env.get("sandbox_id") == "" and server.sandboxes == {}
        env.cleanup()
        assert requests(server) == []


def test_cloud_waits_until_ready(t):
    with Cloud(t) as (server, env):
        server.status = lambda name: {"status": "ready" if server.polls > 2 else "creating"}
        env.setup()
        assert server.polls == 3
        assert server.taken()[0].body == b'{"working_dir":"/workspace"}'


def test_cloud_that_never_gets_ready(t):
    with Cloud(t, init_timeout="0.5") as (server, env):
        server.status = lambda name: {"status": "creating"}
        fails("PLY_TIMEOUT", env.setup, says="Sandbox sb-0 not ready within 0.5s")
        assert server.polls >= 1 and server.sandboxes == {}  # nothing is left to pay for
        server.status = lambda name: {"status": "error"}
        fails("PLY_REMOTE", env.setup, says="Sandbox sb-0 entered error state")
        assert server.sandboxes == {} and env.get("sandbox_id") == ""


def test_cloud_keep_alive_and_an_existing_sandbox(t):
    with Cloud(t, keep_alive="1") as (server, env):
        env.setup()
        env.cleanup()
        assert [r.method for r in server.taken()] == ["POST", "GET", "GET"]
        assert env.get("sandbox_id") == "sb-0"
        env.setup()  # the same again
        assert requests(server)[0] == ("GET", "/sandboxes/sb-0", b"")
        other = plylib.Env("cloud", url="http://127.0.0.1:%d" % server.port, api_key="key",
                           sandbox_id="odd/id x")
        other.setup()
        assert requests(server)[0][1] == "/sandboxes/odd%2Fid%20x"
        other.free()
        assert requests(server)[-1] == ("DELETE", "/sandboxes/odd%2Fid%20x", b"")


def test_cloud_services_that_make_no_sense(t):
    with Cloud(t) as (server, env):
        for status, says in (({"status": 1}, "no text 'status'"), ({"status": "ready", "port": 0},
                             "names no port"), ({"status": "ready", "port": "80x"}, "no port"),
                             ({"status": "ready", "host": 3}, "names no host"),
                             ({"status": "ready", "host": "a/b"}, "is no host"),
                             ({"status": "ready", "host": "192.0.2.1"}, "without TLS")):
            server.status = lambda name: status
            try:
                env.setup()
            except plylib.Error as e:
                assert says in e.sentence, e
            else:
                raise AssertionError(status)
            assert server.sandboxes == {}
        server.token = "other"
        fails("PLY_DENIED", env.setup, says="wrong token")


def test_cloud_options(t):
    for options, says in (({}, "needs the option 'url'"), ({"url": "http://x"}, "'api_key'"),
                          ({"url": "ftp://x", "api_key": "k"}, "is no address"),
                          ({"url": "http://", "api_key": "k"}, "is no address"),
                          ({"url": "http://cloud.example.org", "api_key": "k"}, "without TLS")):
        env = plylib.Env("cloud", **options)
        fails("PLY_INVALID", env.setup, says=says)
        env.free()


# ---- beside Chimera's own ----

STEPS = [
    ["write_file", "d/a b&c=ü~_.-.txt", 'tab\t "quoted" \\ / ü €\r\nend'],
    ["write_file", "empty", ""],
    ["read_file", "d/a b&c=ü~_.-.txt"],
    ["read_file", "no/such"],
    ["read_file", "../out"],
    ["list_files", "**/*"],
    ["list_files", "d/*[!x]?.txt"],
    ["run_command", "echo 'out ü'; echo err >&2; exit 3", 30, "main"],
    ["run_command", "sleep 9", 1, "other"],
    ["write_file", "report.txt", "== 2 passed, 1 failed in 0.1s =="],
    ["run_tests"],
    ["checkpoint"],
    ["write_file", "later", "x"],
    ["restore", "cp-0"],
    ["restore", "unknown"],
    ["list_files", "*"],
    ["upload_file", "LOCAL", "up/f \"x\".bin"],
    ["download_file", "up/f \"x\".bin", "LOCAL.2"],
    ["download_file", "no/such", "LOCAL.3"],
]

THEIRS = r"""
import json, sys
from chimera.env.remote import RemoteEnvironment
from chimera.env.cloud import CloudEnvironment
job = json.load(sys.stdin)
env = {"remote": RemoteEnvironment, "cloud": CloudEnvironment}[job["kind"]](**job["options"])
env.setup()
found = []
for name, *args in job["steps"]:
    try:
        value = getattr(env, name)(*args)
        found.append(vars(value) if hasattr(value, "__dict__") else value)
    except Exception as e:
        response = getattr(e, "response", None)
        found.append({"failed": response.status_code if response is not None else repr(e)})
env.cleanup()
json.dump(found, sys.stdout)
"""


def chimera_python():
    try:
        return venv.python()
    except SystemExit:  # it has said why
        ply.skip("chimera-run cannot be had")


def theirs(kind, options, steps):
    p = subprocess.run([chimera_python(), "-c", THEIRS], input=json.dumps(
        {"kind": kind, "options": options, "steps": steps}), text=True, timeout=100,
        stdout=subprocess.PIPE)
    assert p.returncode == 0
    return json.loads(p.stdout)


STATUS = {"PLY_NOT_FOUND": 404, "PLY_UNKNOWN_ID": 404, "PLY_DENIED": 403}


def ours(kind, options, steps):
    env = plylib.Env(kind, **options)
    env.setup()
    found = []
    for name, *args in steps:
        try:
            found.append(our_step(env, name, *args))
        except plylib.Error as e:
            found.append({"failed": STATUS.get(e.status, e.sentence)})
    env.cleanup()
    env.free()
    return found


def our_step(env, name, *args):
    if name == "run_command":
        got = env.run(*args)
        return {"stdout": got.stdout, "stderr": got.stderr, "exit_code": got.exit_code}
    if name == "run_tests":
        got = env.run_tests()
        return {"passed": got.passed, "failed": got.failed, "errors": got.errors,
                "output": got.output.decode()}
    if name in ("upload_file", "download_file"):
        return getattr(env, name[:-5])(*args)
    value = getattr(env, name)(*args)
    return value.decode() if isinstance(value, bytes) else value


def both(t, kind, their_options, our_options, token=None, certificate=None):
    """The same steps by both, on a server each; every answer and every request is compared."""
    seen = []
    for who in "theirs", "ours":
        os.mkdir(t.at(who))
        local = t.at(who, "local")
        ply.write(local, bytes(range(256)) * 40)
        steps = [[s.replace("LOCAL", local) if isinstance(s, str) else s for s in step]
                 for step in STEPS]
        with remoteserver.Server(t.at(who, "server"), token, certificate) as server:
            options = (their_options if who == "theirs" else our_options)(server)
            if who == "theirs":
                found = theirs(kind, options, steps)
            else:
                found = ours(kind, options, steps)
            assert ply.read(local + ".2") == ply.read(local)
            assert not os.path.exists(local + ".3")
            seen.append((found, [r.comparable() for r in server.taken()]))
    for step, a, b in zip(STEPS, seen[0][0], seen[1][0]):
        assert a == b, "%r: %r, ours %r" % (step, a, b)
    for a, b in zip(seen[0][1], seen[1][1]):
        assert a == b, "\n%r\nours:\n%r" % (a, b)
    assert len(seen[0][1]) == len(seen[1][1]) > len(STEPS)


def test_beside_chimeras_remote_environment(t):
    both(t, "remote",
         lambda s: {"host": "127.0.0.1", "port": s.port, "tls": False},
         lambda s: {"host": "127.0.0.1", "port": str(s.port)})


def with_certificate(t):
    ply.need_tool("openssl")
    files = remoteserver.certificate(t.path)
    os.environ["SSL_CERT_FILE"] = files[0]
    t.clean.append(lambda: os.environ.pop("SSL_CERT_FILE", None))
    return files


def test_beside_chimeras_remote_environment_with_a_key(t):
    both(t, "remote",
         lambda s: {"host": "127.0.0.1", "port": s.port, "api_key": "secret"},
         lambda s: {"host": "127.0.0.1", "port": str(s.port), "api_key": "secret", "tls": "1"},
         "secret", with_certificate(t))


def test_beside_chimeras_cloud_environment(t):
    both(t, "cloud",
         lambda s: {"cloud_api_url": "https://127.0.0.1:%d/" % s.port, "cloud_api_key": "secret",
                    "image": "python:3.11-slim"},
         lambda s: {"url": "https://127.0.0.1:%d/" % s.port, "api_key": "secret",
                    "image": "python:3.11-slim"}, "secret", with_certificate(t))


def test_a_certificate_that_nobody_vouches_for(t):
    files = with_certificate(t)
    os.environ.pop("SSL_CERT_FILE")
    with remoteserver.Server(t.at("server"), None, files) as server:
        env = plylib.Env("remote", host="127.0.0.1", port=str(server.port), tls="1")
        fails("PLY_REMOTE", env.setup, says="certificate")
        assert server.taken() == []
        env.free()


if __name__ == "__main__":
    ply.main(__name__)
