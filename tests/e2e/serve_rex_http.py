#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 200
"""
The SWE-ReX protocol as HTTP, of the installed swerex-remote and `plyfs serve`: who may speak, paths,
bodies and forms of any make, and what may happen at the same time.
"""
import asyncio
import contextlib
import http.client
import io
import os
import re
import resource
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import server
import venv

venv.enter()
import aiohttp
import pexpect
from swerex.runtime.abstract import CloseBashSessionRequest, Command
from swerex.runtime.remote import RemoteRuntime

from rexclient import create, form, quick, raises, rex, run


def test_who_may_speak_comes_first(t):
    s = rex(t)
    for path in ("/", "/is_alive", "//is_alive", "/nope", "/v1/metrics"):
        for method in ("GET", "POST"):
            a = s.call(method, path, token=False)
            assert (a.status, a.json) == (403, {"detail": "Not authenticated"}), (path, a)
            a = s.call(method, path, headers={"X-API-Key": ""}, token=False)
            assert a.status == 403, a
            a = s.call(method, path, headers={"X-API-Key": "wrong"}, token=False)
            assert (a.status, a.json) == (401, {"detail": "Invalid API Key"}), (path, a)
    assert s.call("GET", "/", headers={"Authorization": "Bearer " + s.token}, token=False).status == 200
    assert s.call("GET", "/", headers={"Authorization": "Bearer x"}, token=False).status == 401
    for blanks in (" ", "\t ", " \t\t"):
        for header, word in (("X-API-Key", ""), ("Authorization", "Bearer ")):
            a = s.call("GET", "/", headers={header: word + s.token + blanks}, token=False)
            assert a.status == 200, (header, blanks, a)

    async def client():
        wrong = RemoteRuntime(port=s.port, auth_token="wrong", timeout=30)
        alive = await wrong.is_alive()
        assert not alive and "Status code 401" in alive.message, alive
        try:
            await wrong.execute(Command(command=["true"]))
        except aiohttp.ClientResponseError as e:
            assert e.status == 401
        else:
            raise AssertionError
    run(client())


def test_without_a_token_anybody_but_web_pages(t):
    s = rex(t, token="")
    assert s.get("/is_alive").json == {"is_alive": True, "message": ""}
    for headers, status in [
        ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403),
        ({"Origin": s.url}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403), ({"Sec-Fetch-Site": "same-origin"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200), ({"Host": "evil.example:%d" % s.port}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403), ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "[::1].evil.example"}, 403), ({"Host": "x" * 300}, 403), ({"Host": "[::1"}, 403),
        ({"Host": "127.0.0.1:80.evil.example"}, 403), ({"Host": ""}, 403),
        ({"Host": "localhost:%d" % s.port}, 200), ({"Host": "LOCALHOST"}, 200),
        ({"Host": "[::1]:%d" % s.port}, 200), ({"Host": "10.1.2.3:80"}, 200),
    ]:
        for method, path in (("GET", "/is_alive"), ("POST", "/close")):
            a = s.call(method, path, headers=headers)
            assert a.status == status, (method, headers, a)
            if status == 403:
                assert "without a token" in a.json["detail"], a
            assert a.headers["X-Content-Type-Options"] == "nosniff"
    assert b" 200 " in s.raw(b"GET /is_alive HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    s = rex(t)  # with a token, a page would have to know it
    assert s.get("/is_alive", headers={"Host": "sandbox.example", "Origin": "x"}).status == 200
    s = rex(t, "--host", "0.0.0.0", token="")  # where others come from, it has names
    assert s.get("/is_alive", headers={"Host": "sandbox.example"}).status == 200
    assert s.get("/is_alive", headers={"Origin": "http://evil.example"}).status == 403


def test_paths_and_methods(t):
    s = rex(t)
    a = s.get("/")
    assert a.json == {"message": "hello world"}
    assert a.headers["Content-Type"] == "application/json"
    for method, path, status, detail in [
        ("GET", "/nope", 404, "Not Found"), ("GET", "//is_alive", 404, "Not Found"),
        ("POST", "/is_alive", 405, "Method Not Allowed"), ("GET", "/execute", 405, "Method Not Allowed"),
        ("DELETE", "/close", 405, "Method Not Allowed"),
    ]:
        a = s.call(method, path)
        assert (a.status, a.json) == (status, {"detail": detail}), (path, a)
        assert a.headers["Content-Type"] == "application/json"
        assert (a.headers["Allow"] is not None) == (status == 405)
    a = s.get("/is_alive/")
    assert a.status == 307 and a.headers["Location"] == s.url + "/is_alive"
    for query in ("?x=1%26%20&y&z=&x=%C3%BC~", "?" + "y" * 1000):
        a = s.get("/is_alive/" + query)
        assert a.status == 307 and a.headers["Location"] == s.url + "/is_alive" + query, a.headers["Location"]
    assert s.get("/is_alive/?").headers["Location"] == s.url + "/is_alive"
    assert s.get("/is_alive?x=1&y").status == 200
    assert s.get("/is_alive", headers={"X-Long": "x" * 60000}).status == 200
    assert s.get("/is_alive?x=" + "y" * 60000).status == 200


def test_a_body_that_does_not_fit_is_422(t):
    s = rex(t)
    for path, body in [
        ("/execute", {}), ("/execute", []), ("/execute", {"command": 5}), ("/execute", {"command": [1]}),
        ("/execute", {"command": "x", "timeout": "soon"}), ("/execute", {"command": "x", "shell": "maybe"}),
        ("/execute", {"command": "x", "env": {"a": 1}}), ("/execute", {"command": "x", "env": []}),
        ("/execute", {"command": "x", "cwd": 3}), ("/read_file", {"path": None}), ("/read_file", {}),
        ("/write_file", {"path": "x"}), ("/create_session", {"session_type": "zsh"}),
        ("/create_session", {"session_type": "bash", "startup_timeout": None}),
        ("/run_in_session", {"action_type": "bash"}), ("/run_in_session", {"action_type": "dash"}),
        ("/run_in_session", {"action_type": "bash", "command": "x", "check": "perhaps"}),
        ("/run_in_session", {"action_type": "bash_interrupt", "n_retry": 1.5}),
        ("/run_in_session", {"action_type": "bash", "command": "x", "expect": "y"}),
        ("/execute", {"command": "x", "cwd": "/tmp\0/nope"}), ("/create_session", {"session": "a\0b"}),
        ("/create_session", {"startup_source": ["/dev/null\0x"]}), ("/close_session", {"session": "a\0b"}),
        ("/run_in_session", {"command": "x", "session": "a\0b"}),
        ("/run_in_session", {"command": "x", "expect": ["a\0b"]}),
        ("/run_in_session", {"command": "x", "check": "silent\0"}),
        ("/run_in_session", {"action_type": "bash_interrupt\0"}), ("/read_file", {"path": "x", "encoding": "utf-8\0"}),
        ("/execute", b"{"), ("/execute", b""), ("/execute", b"\xff"), ("/execute", b"{\"command\": 1e999}"),
    ]:
        a = s.post(path, body) if not isinstance(body, bytes) else s.call(
            "POST", path, body, {"Content-Type": "application/json"})
        assert a.status == 422 and a.json["detail"][0]["msg"], (path, body, a)
        assert set(a.json["detail"][0]) >= {"type", "loc", "msg", "input"}, a
    for body in (b'{"command": "exit 3", "shell": true, "timeout": Infinity}',
                 b'{"command": ["sh", "-c", "exit 3"], "timeout": NaN}'):  # Python's own JSON
        assert s.call("POST", "/execute", body).json["exit_code"] == 3, body
    for body in ({"command": "exit 3", "shell": "yes", "timeout": "5", "check": 0},
                 {"command": "exit 3", "shell": 1, "timeout": True, "unknown": 1}):
        assert s.post("/execute", body).json["exit_code"] == 3, body
    body, headers = form([("target_path", None, b"/x")])
    assert s.call("POST", "/upload", body, headers).status == 422
    body, headers = form([("file", None, b"text"), ("target_path", None, b"/x")])
    assert s.call("POST", "/upload", body, headers).status == 422


def test_forms_as_clients_may_write_them(t):
    s = rex(t)
    body = (b"preamble\r\n--a b\r\nCONTENT-DISPOSITION: form-data; name=target_path\r\n\r\n"
            + t.at("q").encode() + b"\r\n--a b\r\ncontent-type: text/plain\r\nContent-Transfer-Encoding: "
            b"binary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a%22b\"\r\n"
            b"Content-Length: 5\r\n\r\n--a \r\r\n--a b--\r\nepilogue")
    a = s.call("POST", "/upload", body, {"Content-Type": "multipart/form-data; boundary=\"a b\""})
    assert a.status == 200 and open(t.at("q"), "rb").read() == b"--a \r", a


def test_the_same_request_is_served_once(t):
    s = rex(t)
    count = {"command": "echo x >> count; sleep 0.5; wc -l < count", "shell": True}
    answers = []

    def ask():
        answers.append(s.post("/execute", count, headers={"X-Request-ID": "r1"}).json["stdout"])
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    ask()
    assert answers == ["1\n"] * 4, answers
    assert s.post("/execute", count, headers={"X-Request-ID": "r2"}).json["stdout"] == "2\n"
    assert s.post("/execute", count).json["stdout"] == "3\n"
    for n in (4, 5):
        a = s.post("/execute", count, headers={"X-Request-ID": ""})
        assert a.json["stdout"] == "%d\n" % n, "an empty id is none"
    a = s.post("/execute", count, headers={"X-Request-ID": "r1"}, token=False)
    assert a.status == 403, "a replay needs the token"
    assert s.post("/read_file", {"path": "count"}, headers={"X-Request-ID": "r1"}).json == {
        "content": "x\n" * 5}, "another path is another request"
    a = s.post("/read_file", {"path": "later"}, headers={"X-Request-ID": "r3"})
    assert a.status == 511
    ply.write(t.at("later"), "now")
    assert s.post("/read_file", {"path": "later"}, headers={"X-Request-ID": "r3"}).status == 200
    for path, status, header in (("/close/", 307, "Location"), ("/is_alive", 405, "Allow")):
        first, again = [s.post(path, headers={"X-Request-ID": "r4"}) for _ in range(2)]
        assert first.status == again.status == status, (first, again)
        assert first.headers[header] and first.headers[header] == again.headers[header], path


def test_of_answers_that_are_kept_the_oldest_go(t):
    """16 MiB of them are kept: eight of these."""
    s = rex(t)
    much = {"command": "echo x >> count; head -c 2000000 /dev/zero | tr '\\0' y; wc -l < count",
            "shell": True}

    def ask(n):
        return s.post("/execute", much, headers={"X-Request-ID": "r%d" % n}).json["stdout"][2000000:]
    assert [ask(n) for n in range(10)] == ["%d\n" % n for n in range(1, 11)]
    assert ask(9) == "10\n", "it was kept, large as it is"
    assert ask(4) == "5\n"
    assert ask(0) == "11\n", "it was served again"


def test_a_slow_command_blocks_nobody(t):
    async def go():
        s = rex(t)
        r = s.runtime
        names = ["s%d" % i for i in range(8)]
        await asyncio.gather(*(r.create_session(create(n)) for n in names))
        wait = "until [ -e %s ]; do sleep 0.1; done; echo " % t.at("go")
        slow = [asyncio.create_task(r.run_in_session(quick(wait + n, session=n))) for n in names]
        slow += [asyncio.create_task(r.execute(Command(command=wait + "x", shell=True))) for n in names]
        began = time.monotonic()
        strict = RemoteRuntime(port=s.port, auth_token=s.token, timeout=20)
        while time.monotonic() - began < 1:
            assert await strict.is_alive()
            assert (await r.execute(Command(command=["echo", "q"]))).stdout == "q\n"
        assert not any(x.done() for x in slow)
        ply.write(t.at("go"), "")
        done = await asyncio.gather(*slow)
        assert [o.output for o in done[:8]] == [n + "\n" for n in names]
        # One session serves one after the other, in order.
        both = await asyncio.gather(*(r.run_in_session(quick("echo %d" % i, session="s0"))
                                      for i in range(5)))
        assert [o.output for o in both] == ["%d\n" % i for i in range(5)]
    run(go())


def test_sixty_four_busy_connections_hold_up_nobody(t):
    s = rex(t)
    stop, wrong, count = threading.Event(), [], [0] * 64

    def work(i):
        c = s.connection()
        name = {"session": "s%d" % i, "session_type": "bash", "startup_timeout": 60}
        calls = [("/execute", {"command": ["echo", str(i)]}, "stdout")] if i % 4 else [
            ("/run_in_session", {"action_type": "bash", "command": "echo %d" % i,
                                 "session": name["session"]}, "output"),
            ("/execute", {"command": "sleep 1; echo %d" % i, "shell": True}, "stdout")]
        if len(calls) == 2 and s.post("/create_session", name, connection=c).status != 200:
            wrong.append(name)
        while not stop.is_set() and not wrong:
            for path, body, key in calls:
                a = s.post(path, body, connection=c)
                if a.status != 200 or a.json[key] != "%d\n" % i:
                    wrong.append(a)
                count[i] += 1
        c.close()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for x in threads:
        x.start()
    for _ in range(40):
        assert s.get("/is_alive", timeout=20).json["is_alive"]
        time.sleep(0.1)
    ply.wait_for("each to have had its turn", lambda: min(count) > 0 or wrong, 60)
    stop.set()
    for x in threads:
        x.join()
    assert not wrong, wrong[:3]


def test_a_session_may_be_closed_while_it_is_busy(t):
    async def go():
        s = rex(t)
        await s.runtime.create_session(create())
        busy = asyncio.create_task(s.runtime.run_in_session(quick("sleep 33.3")))
        while not [c for _, c in s.children() if c == "sleep 33.3"]:
            await asyncio.sleep(0.05)
        await s.runtime.close_session(CloseBashSessionRequest())
        await raises(pexpect.exceptions.EOF, busy)
        ply.wait_for("its end", lambda: not [c for _, c in s.children() if "33.3" in c])
    run(go())


def test_sessions_are_closed_at_the_same_time(t):
    """Each waits, for the tenth of a second that it has (so not always long enough), for the other's last words."""
    s = rex(t)

    def see_each_other():
        for mine, other in ("ab", "ba"):
            s.post("/create_session", {"session": mine, "startup_timeout": 60})
            a = s.post("/run_in_session", {"session": mine, "command": "trap '>bye-%s; until [[ -e bye-%s ]]; do :; "
                                           "done; >seen-%s' EXIT" % (mine, other, mine)})
            assert a.json["exit_code"] == 0, a
        assert s.post("/close").status == 200
        found = [name for name in ("bye-a", "bye-b", "seen-a", "seen-b") if os.path.exists(t.at(name))]
        for name in found:
            os.unlink(t.at(name))
        return len(found) == 4
    assert any(see_each_other() for _ in range(100))


def test_too_many_sessions_are_told(t):
    s = server.serve(t, t.view(), "--max-sessions", "2", "--cloud")
    box = s.post("/sandboxes", {}).json["sandbox_id"]
    for port in s.port, s.get("/sandboxes/" + box).json["port"]:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for n in "ab":
            assert s.post("/create_session", {"session": n, "session_type": "bash",
                                              "startup_timeout": 60}, connection=c).status == 200
        a = s.post("/create_session", {"session": "c", "session_type": "bash"}, connection=c)
        assert a.status == 511 and "2 sessions" in a.json["swerexception"]["message"], a
        c.close()
    s.stop()


def started_with_few_descriptors(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        return start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_of_descriptors_is_for_commands_only(t):
    view = t.view()
    for start in (lambda: rex(t), lambda: server.serve(t, view)):
        s = started_with_few_descriptors(start)
        for n in range(40):
            a = s.post("/create_session", {"session": str(n), "session_type": "bash",
                                           "startup_timeout": 60})
            assert a.status == 200, (n, a)
        with contextlib.ExitStack() as idle:
            for _ in range(150):
                idle.enter_context(socket.create_connection(("127.0.0.1", s.port), 10))
            a = s.post("/execute", {"command": "ulimit -Sn; ulimit -Hn", "shell": True})
            soft, hard = a.json["stdout"].split()
            assert (soft, hard == "128") == ("128", False), a
            a = s.post("/run_in_session", {"session": "39", "action_type": "bash",
                                           "command": "ulimit -Sn", "timeout": 60})
            assert a.json["output"] == "128\n", a
        s.stop()


def test_bodies_in_chunks_and_after_100_continue(t):
    s = rex(t)
    key = b"X-API-Key: " + s.token.encode() + b"\r\n"
    body = b'{"command": ["echo", "chunky"]}'
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 5]), body[i:i + 5])
                      for i in range(0, len(body), 5)) + b"0\r\n\r\n"
    a = s.raw(b"POST /execute HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + key +
              b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert b" 200 " in a.split(b"\r\n")[0] and b"chunky" in a, a
    with socket.create_connection(("127.0.0.1", s.port), 10) as c:
        c.sendall(b"POST /execute HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + key +
                  b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        a = c.recv(65536)  # with a body there already, newer libmicrohttpd leave it away
        assert a.startswith(b"HTTP/1.1 100"), a
        c.sendall(body)
        a = b"".join(iter(lambda: c.recv(65536), b""))
        assert b" 200 " in a and b"chunky" in a, a
    a = s.raw(b"post /execute HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert a.split(b" ")[1] in (b"403", b"405", b"501"), a


def test_who_asks_before_the_body_hears_a_refusal_at_once(t):
    s = server.serve(t, t.view(), "--max-body", "1000")
    right = b"X-API-Key: " + s.token.encode() + b"\r\n"
    for key, length, status in ((b"", 10, b"403"), (b"X-API-Key: wrong\r\n", 10, b"401"), (right, 1001, b"413"),
                                (right, 1 << 62, b"413")):
        a = s.raw(b"POST /execute HTTP/1.1\r\nHost: x\r\n" + key + b"Expect: 100-Continue\r\n"
                  b"Content-Length: %d\r\n\r\n" % length)
        assert a.split(b" ")[1] == status and a.count(b"HTTP/1.1") == 1, (key, a)
        assert b"\r\nConnection: close\r\n" in a and a.endswith(b'"}'), a
    s.stop()


def test_one_connection_serves_many_requests(t):
    s = rex(t)
    c = s.connection()
    for i in range(20):
        a = s.post("/execute", {"command": ["echo", str(i)]}, connection=c)
        assert a.json["stdout"] == "%d\n" % i
        assert s.get("/nope", connection=c).status == 404
        assert s.post("/read_file", {"path": "/nope"}, connection=c).status == 511
    c.close()


def test_garbage_breaks_nothing(t):
    s = rex(t)
    key = b"X-API-Key: " + s.token.encode() + b"\r\n"
    for data in [
        b"\0" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff\xfe\r\n\r\n" * 50,
        b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 200000 + b"\r\n\r\n",
        b"POST /execute HTTP/1.1\r\nHost: x\r\n" + key + b"Content-Length: nonsense\r\n\r\n{}",
        b"POST /execute HTTP/1.1\r\nHost: x\r\n" + key + b"Content-Length: 99999999999999999999\r\n\r\n",
        b"POST /execute HTTP/1.1\r\nHost: x\r\n" + key + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /upload HTTP/1.1\r\nHost: x\r\n" + key + b"Content-Type: multipart/form-data\r\n"
        b"Content-Length: 3\r\n\r\nabc",
        b"POST /upload HTTP/1.1\r\nHost: x\r\n" + key + b"Content-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 30\r\n\r\n" + b"--b\r\nno headers at all" + b"x" * 8,
        b"POST /execute HTTP/1.1\r\nHost: x\r\n" + key + b"Content-Length: 100\r\n\r\n{\"comm",
    ]:
        s.raw(data, timeout=0.5)
        assert s.get("/is_alive").status == 200, data[:50]
    deep = b"[" * 100000
    assert s.call("POST", "/execute", deep).status == 422
    s.stop()


def test_a_request_that_may_end_at_two_places_is_refused_and_is_the_last(t):
    s = rex(t)
    key = b"X-API-Key: %s\r\n" % s.token.encode()
    second = b"GET /is_alive HTTP/1.1\r\nHost: x\r\n" + key + b"\r\n"
    n = len(b"{}" + second)
    for headers, rest in [
        (b"Content-Length: 2\r\nContent-Length: %d\r\n" % n, b"{}"),
        (b"Content-Length: %d\r\nContent-Length: 2\r\n" % n, b"{}"),
        (b"Content-Length: 3\r\nTransfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
        (b"Content-Length\t: 0\r\nContent-Length: 2\r\n", b"{}"),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n", b"{}"),
        (b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    ]:
        got = s.raw(b"POST /close HTTP/1.1\r\nHost: x\r\n" + key + headers + b"\r\n" + rest + second)
        # 501: libmicrohttpd 1.0.10, of gzip
        assert re.findall(rb"HTTP/1\.1 (\d+) ", got) in ([b"400"], [b"501"]), (headers, got)
        assert b"\r\nConnection: close\r\n" in got, got
    # What is folded, or has a CR, is no header for libmicrohttpd 0.9; newer ones unfold it, or refuse it.
    second = second.replace(b"Host", b"Connection: close\r\nHost")  # the last, for who waits for its end
    for headers, rest in [
        (b"Content-Length:\r\n 2\r\n", b"{}"),
        (b"Content-Length: \r\n\t2\r\n", b"{}"),
        (b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
        (b"A: b\rContent-Length: 2\r\n", b"{}"),
        (b"A: b\rTransfer-Encoding: chunked\r\nContent-Length: 2\r\n", b"{}"),
    ]:
        got = s.raw(b"POST /close HTTP/1.1\r\nHost: x\r\n" + key + headers + b"\r\n" + rest + second)
        said = [x[1:4] for x in got.split(b"HTTP/1.1")[1:]]
        assert said in ([b"400"], [b"200", b"200"]), (headers, got)
    old = s.raw(b"POST /close HTTP/1.0\r\nConnection: keep-alive\r\n" + key +
                b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second)
    assert old.split(b" ")[1] == b"400" and old.count(b"HTTP/1.") == 1, old
    same = s.raw(b"POST /close HTTP/1.1\r\nHost: x\r\n" + key + b"Content-Length: 2\r\n" * 2 +
                 b"Connection: close\r\n\r\n{}")
    assert same.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), same  # libmicrohttpd 1.0.10 refuses it


def test_a_request_names_one_host(t):
    """Who stands in front of us may have looked at the other. Of none, libmicrohttpd 1.0 tells itself, in HTML,
    and 1.0.10 of two."""
    s = rex(t)
    key = b"X-API-Key: %s\r\n" % s.token.encode()
    for version, hosts, status in [
        (b"1.1", b"", 400), (b"1.1", b"Host: a\r\nHost: b\r\n", 400), (b"1.1", b"Host: a\r\nhost: a\r\n", 400),
        (b"1.0", b"Host: a\r\nHost: b\r\n", 400), (b"1.0", b"", 200), (b"1.0", b"Host: a\r\n", 200),
        (b"1.1", b"Host:\r\n", 200), (b"1.1", b"Host: a\r\n", 200),
    ]:
        got = s.raw(b"GET /is_alive HTTP/" + version + b"\r\n" + hosts + key + b"Connection: close\r\n\r\n")
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), (version, hosts, got)
        assert b"Host" in body or status == 200, got
        assert b"\r\nContent-Type: application/json" in head or status == 400, got


def test_the_target_of_a_request_is_its_path(t):
    s = rex(t)
    key = b"Host: x\r\nConnection: close\r\nX-API-Key: %s\r\n\r\n" % s.token.encode()
    for target, status in [
        (b"http://x/is_alive", 200), (b"HTTPS://x:80/is_alive?a=http://y/z", 200), (b"http://x", 200),
        (b"http://x?q=/is_alive", 200), (b"http://x/nope", 404), (b"http:/is_alive", 404),
        (b"/http://x/is_alive", 404), (b"is_alive", 404), (b"*", 404), (b"/is%5falive", 200),
        (b"/is_alive%00", 404), (b"/is_alive%00x", 404), (b"/%00", 404), (b"%00/is_alive", 404),
        (b"/is_alive?a=%00", 200), (b"/is_alive%2500", 404),
    ]:
        got = s.raw(b"GET " + target + b" HTTP/1.1\r\n" + key)
        bad = b"%00" in target.split(b"?")[0] and got.startswith(b"HTTP/1.1 400 ")  # libmicrohttpd 1.0.10
        assert bad or got.startswith(b"HTTP/1.1 %d " % status), (target, got)
        assert (b"hello world" in got) == (target in (b"http://x", b"http://x?q=/is_alive")), got


def test_a_body_that_is_more_than_there_is_memory_for(t):
    if ply.is_sanitized(server.SWEREX_REMOTE, by=("asan", "tsan")):
        ply.skip("a sanitizer takes all addresses that there are")
    s = server.Server(t, ["sh", "-c", "ulimit -v 614400; exec \"$@\"", "sh", server.SWEREX_REMOTE,
                          "--host", "127.0.0.1"])
    said = []
    for size in (50 << 20, 150 << 20):
        body = b'{"path": "%s", "content": "%s"}' % (t.at("w").encode(), b"x" * size)
        a = s.call("POST", "/write_file", body, timeout=60)
        said.append((a.status, a.json))
    assert said == [(200, {}), (500, {"detail": "out of memory"})], said
    assert os.path.getsize(t.at("w")) == 50 << 20
    s.stop()


def test_a_body_of_hundreds_of_megabytes_takes_no_memory(t):
    s = rex(t)
    size = 300 << 20 if ply.LONG else 100 << 20

    class Zeros(io.RawIOBase):
        left = size

        def readinto(self, b):
            n = min(len(b), self.left)
            self.left -= n
            b[:n] = b"z" * n
            return n
        readable = lambda self: True
    head, tail = (b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n",
                  b"\r\n--B\r\nContent-Disposition: form-data; name=\"target_path\"\r\n\r\n" +
                  t.at("huge").encode() + b"\r\n--B--\r\n")
    c = s.connection(120)
    c.putrequest("POST", "/upload")
    c.putheader("X-API-Key", s.token)
    c.putheader("Content-Type", "multipart/form-data; boundary=B")
    c.putheader("Content-Length", str(len(head) + size + len(tail)))
    c.endheaders(head)
    zeros = Zeros()
    while piece := zeros.read(1 << 16):
        c.send(piece)
    c.send(tail)
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    c.close()
    assert os.path.getsize(t.at("huge")) == size
    assert s.memory("RssAnon") < 40 << 10, "%d KiB of memory" % s.memory("RssAnon")


if __name__ == "__main__":
    with installed.programs():
        ply.main(__name__)
