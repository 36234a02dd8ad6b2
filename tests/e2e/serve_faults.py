#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 300
"""
The server while a call of the C library, ours, libmicrohttpd's or jansson's, fails: each kind of
request is answered, with an error or not, or its connection closed; the next ones are served as if
nothing had been, and nothing is left open.
"""
import http.client
import io
import os
import sys
import time
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import server


def archive():
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("a/b", "b" * 10000)
        z.writestr("c", "c")
    return buf.getvalue()


def upload(path, *fields):
    body, headers = server.form(fields)
    return lambda s: s.call("POST", path, body, headers, timeout=20)


def post(path, body=None, **headers):
    return lambda s: s.post(path, body, headers=headers, timeout=20)


def get(path):
    return lambda s: s.get(path, timeout=20)


BIG = b"B" * 400000  # lies in a file
REQUESTS = {
    "nothing": get("/nope"),
    "redirect": get("/is_alive/"),
    "method": get("/execute"),
    "metrics": get("/v1/metrics"),
    # Of libjansson's buffers, which 2.14 does not look at: what lacks room is the closing quote.
    **{"text of %d" % n: post("/execute", {"command": "x" * n, "shell": 5}) for n in (14, 30)},
    "wrong body": post("/execute", {"command": 1, "shell": "x"}),
    "no body": post("/read_file", {}),
    "create": post("/create_session", {"session": "t"}),
    "run": post("/run_in_session", {"action_type": "bash", "session": "s", "timeout": 10,
                                    "command": "echo x; false", "check": "raise"}),
    "execute": post("/execute", {"command": ["echo", "x"], "env": {"A": "b"}, "cwd": "/"}),
    "execute once": lambda s: s.post("/execute", {"command": "exit 3", "shell": True, "check": True},
                                     headers={"X-Request-ID": os.urandom(8).hex()}, timeout=20),
    "rex read": post("/read_file", {"path": "a.txt", "encoding": "utf-16", "errors": "replace"}),
    "rex write": post("/write_file", {"path": "x/y/z", "content": "\u00fc"}),
    "rex upload": upload("/upload", ("file", "f", BIG), ("target_path", None, b"up/file")),
    "rex unzip": upload("/upload", ("file", "f", archive()), ("target_path", None, b"up/zip"),
                        ("unzip", None, b"true")),
    "chimera execute": post("/execute", {"cmd": "echo x >&2", "timeout": 10}),
    "chimera read": get("/files/read?path=a.txt"),
    "chimera write": post("/files/write", {"path": "w", "content": "x"}),
    "chimera list": get("/files/list"),
    "chimera upload": upload("/files/upload", ("path", None, b"u"), ("file", "f", BIG)),
    "chimera download": get("/files/download?path=a.txt"),
    "tests": post("/tests/run"),
    "checkpoint and restore": lambda s: s.post("/restore", {
        "checkpoint_id": s.post("/checkpoint").json.get("checkpoint_id", "none")}, timeout=20),
    "undo": post("/v1/undo"),
    "tree": get("/v1/tree"),
    "diff": get("/v1/diff"),
    "snapshots": get("/v1/snapshots"),
    "exec": post("/v1/exec", {"command": ["cat"], "stdin": "x", "env": {"A": "b"}}),
    "stream": post("/v1/exec", {"command": "echo a; pwd", "stream": True}),
}


def run_on(s):
    return s.post("/run_in_session", {"session": "s", "action_type": "bash", "timeout": 20,
                                      "command": "echo on"})


def fds(s):
    return len(os.listdir("/proc/%d/fd" % s.process.pid))


def test_every_request_survives_every_call_that_fails(t):
    faults = ply.Faults(t, "plyfs-env")
    ply.write(t.at("lsan"), "leak:libminizip\n")  # of 1.2.8, when it opens what it cannot read
    s = server.serve(t, t.view({"a.txt": "one\n"}), "--test-command", "echo 1 passed",
                     env={"LSAN_OPTIONS": "print_suppressions=0:suppressions=" + t.at("lsan")})
    s.post("/create_session", {"session": "s", "startup_timeout": 20})
    for call in REQUESTS.values():
        call(s)
    s.post("/close_session", {"session": "t"})
    time.sleep(0.5)  # until the last connection is closed
    before = fds(s)
    for name, call in REQUESTS.items():
        def attempt(n):
            with faults.armed(n):
                try:
                    a = call(s)
                except (http.client.HTTPException, ConnectionError):
                    a = None  # it was closed: there was nothing to answer with
            assert s.process.poll() is None, "it has ended: %s" % s.process.returncode
            s.post("/close_session", {"session": "t"})  # whether or not it was made
            if a and a.headers["Content-Type"] == "application/json":
                assert a.json is not None
            after = s.post("/execute", {"command": ["echo", "x"]}, timeout=20)
            assert after.json == {"stdout": "x\n", "stderr": "", "exit_code": 0}, after
            if name == "run":
                on = run_on(s)
                assert on.status == 200 and on.json["output"].endswith("on\n"), on
            return a is not None and a.status < 500
        print("#", name)
        faults.tried(100 if name == "run" or name.startswith("text") else 12, attempt)
        ply.wait_for("%d descriptors" % before, lambda: fds(s) <= before)
    a = run_on(s)
    assert a.json["output"] == "on\n", a
    s.stop()


if __name__ == "__main__":
    ply.main(__name__)
