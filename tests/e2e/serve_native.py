#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 240
"""
The protocol of our own (/v1/...) of `plyfs serve`: each endpoint, its errors, streams, metrics; and
openapi.json, against the sources' tables and against what the endpoints answer.
"""
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import server

FILES = {"a.txt": "one\n", "dir/b.txt": "two\n"}
DOCUMENT = os.path.join(ply.SOURCE, "env", "serve", "openapi.json")


# ---- a document that holds: every answer of these tests is measured by it ----

with open(DOCUMENT) as f:
    API = json.load(f)


def resolve(node):
    while "$ref" in node:
        at = API
        for key in node["$ref"].split("/")[1:]:
            at = at[key]
        node = at
    return node


KINDS = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict,
         "number": (int, float)}


def fit(value, schema, where="body"):
    schema = resolve(schema)
    if "oneOf" in schema:
        errors = []
        for one in schema["oneOf"]:
            try:
                return fit(value, one, where)
            except AssertionError as e:
                errors.append(str(e))
        raise AssertionError("; ".join(errors))
    if value is None:
        assert schema.get("nullable"), "%s is null" % where
        return None
    kind = KINDS[schema["type"]]
    assert isinstance(value, kind) and (schema["type"] == "boolean" or value is not True), \
        "%s is %r, not %s" % (where, value, schema["type"])
    assert "enum" not in schema or value in schema["enum"], "%s is %r" % (where, value)
    for name in schema.get("required", []):
        assert name in value, "%s has no %s" % (where, name)
    for name, sub in schema.get("properties", {}).items():
        if name in value:
            fit(value[name], sub, where + "." + name)
    for item in value if kind is list else []:
        fit(item, schema["items"], where + "[]")
    return None


def operation(method, path):
    for known, methods in API["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path):
            return methods.get(method.lower())
    return None


def check_answer(method, path, answer):
    """What the document says of it."""
    where = operation(method, path.split("?")[0])
    assert where, "%s %s is not in the document" % (method, path)
    response = where["responses"].get(str(answer.status))
    assert response, "%s %s: %d is not in the document" % (method, path, answer.status)
    kind = answer.headers["Content-Type"].split(";")[0]
    content = resolve(response)["content"]
    assert kind in content, (method, path, kind)
    if kind == "application/json":
        fit(answer.json, content[kind]["schema"])


class Native:
    """A server whose answers are all measured."""

    def __init__(self, t, *options, files=FILES, **kw):
        self.view = t.view(files)
        self.server = server.serve(t, self.view, *options, **kw)

    def call(self, method, path, body=None, status=200, **kw):
        a = self.server.call(method, path, body, **kw)
        assert a.status == status, (method, path, a)
        check_answer(method, path, a)
        return a.json if a.headers["Content-Type"] == "application/json" else a.body.decode()

    def get(self, path, status=200, **kw):
        return self.call("GET", path, None, status, **kw)

    def post(self, path, body=None, status=200, **kw):
        return self.call("POST", path, body, status, **kw)


def test_the_document_names_just_what_there_is(t):
    tables = set()
    for name in os.listdir(os.path.dirname(DOCUMENT)):
        if name.endswith(".c"):
            text = ply.read(os.path.join(os.path.dirname(DOCUMENT), name))
            for method, path, below in re.findall(
                    r'\{ "(GET|POST|DELETE)", "(/[^"]*)", (true|false), \w+(?:, true)? \}', text):
                tables.add((method, path + "{id}" if below == "true" else path))
    named = {(m.upper(), path) for path, methods in API["paths"].items() for m in methods}
    assert len(tables) > 30 and tables == named, tables ^ named
    n = Native(t, "--cloud")
    served = n.get("/v1/openapi.json")
    assert served == API
    for method, path in named:
        if "{" in path:
            continue
        a = n.server.call("PATCH", path)
        assert a.status == 405, (path, a)
    n.server.stop()


def test_checkpoint_restore_undo(t):
    n = Native(t)
    first = n.post("/v1/checkpoint", {"label": "first"})["id"]
    n.view.write("a.txt", "changed")
    second = n.post("/v1/checkpoint")["id"]
    assert first != second
    assert n.post("/v1/checkpoint", {})["id"] != first
    assert n.post("/v1/restore", {"id": first}) == {}
    assert n.view.read("a.txt") == "one\n"
    n.post("/v1/undo")
    assert n.view.read("a.txt") == "changed"
    n.post("/v1/undo")
    snapshots = n.get("/v1/snapshots")["snapshots"]
    assert any(s["label"].endswith("first") for s in snapshots)
    n.post("/v1/restore", {"id": snapshots[0]["id"][:8]})
    assert "not found" in n.post("/v1/restore", {"id": "4711"}, status=404)["detail"]
    n.post("/v1/restore", {"id": 3}, status=400)
    n.post("/v1/restore", status=400)
    n.post("/v1/checkpoint", {"label": "x" * 300}, status=400)
    n.server.stop()


def test_undo_with_nothing_to_undo(t):
    n = Native(t)
    assert "no restore" in n.post("/v1/undo", status=409)["detail"]


def test_fork_tree_drop(t):
    n = Native(t)
    first = n.post("/v1/checkpoint")["id"]
    n.view.write("late", "x")
    assert n.post("/v1/fork", {"name": "topic1"}) == {"name": "topic1"}
    n.post("/v1/fork", {"name": "topic2", "from": "main"})
    assert "exists" in n.post("/v1/fork", {"name": "topic1"}, status=400)["detail"]
    for none in ("none", "--help", "--"):  # the last two are no options of the verb
        n.post("/v1/fork", {"name": "topic3", "from": none}, status=400)
    n.post("/v1/fork", {"name": "--at"}, status=400)
    n.post("/v1/fork", {}, status=400)
    tree = n.get("/v1/tree")
    assert {b["name"] for b in tree["branches"]} == {"main", "topic1", "topic2"}
    assert [b["mountpoint"] for b in tree["branches"] if b["name"] == "main"] == [n.view.path]
    ids = {s["id"] for s in tree["snapshots"]}
    assert {s["id"] for s in n.get("/v1/snapshots")["snapshots"]} == ids
    assert len(n.get("/v1/snapshots?count=1")["snapshots"]) == 1
    n.get("/v1/snapshots?branch=topic1")
    n.get("/v1/snapshots?count=many", status=400)
    for none in ("none", "--help", "--"):
        assert "no branch" in n.get("/v1/snapshots?branch=" + none, status=400)["detail"]
    n.post("/v1/drop", {"name": "topic1"})
    n.post("/v1/drop", {"name": "topic2", "with_snapshots": True})
    n.post("/v1/drop", {"name": "topic1"}, status=400)
    n.post("/v1/drop", {"name": "main"}, status=400)
    assert {b["name"] for b in n.get("/v1/tree")["branches"]} == {"main"}
    n.post("/v1/restore", {"id": first})
    assert n.view.ls() == ["a.txt", "dir"]


def test_drop_takes_a_branch_or_a_snapshot_as_it_is_told(t):
    n = Native(t)
    n.post("/v1/checkpoint")
    snapshot = n.get("/v1/snapshots")["snapshots"][0]["id"]
    looks_like_it = snapshot[:6]

    def are(snapshots, branches):
        tree = n.get("/v1/tree")
        assert [s["id"] for s in tree["snapshots"] if s["id"] == snapshot] == snapshots
        assert {b["name"] for b in tree["branches"]} == branches
    assert "no branch" in n.post("/v1/drop", {"name": looks_like_it}, status=400)["detail"]
    assert "no branch" in n.post("/v1/drop", {"name": snapshot}, status=400)["detail"]
    are([snapshot], {"main"})
    n.post("/v1/fork", {"name": looks_like_it})
    assert "whole id" in n.post("/v1/drop", {"snapshot": looks_like_it}, status=400)["detail"]
    assert "whole id" in n.post("/v1/drop", {"snapshot": "main"}, status=400)["detail"]
    are([snapshot], {"main", looks_like_it})
    n.post("/v1/drop", {"name": looks_like_it})
    are([snapshot], {"main"})
    n.post("/v1/fork", {"name": snapshot})
    n.post("/v1/drop", {"snapshot": snapshot})
    are([], {"main", snapshot})
    for body in ({}, {"name": None}, {"name": "main", "snapshot": snapshot},
                 {"snapshot": snapshot, "with_snapshots": True}):
        n.post("/v1/drop", body, status=400)


def at_once(functions):
    """Each in a thread, with one list for all; raises what one of them raised."""
    said, errors = [], []

    def guarded(f):
        try:
            f(said)
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    if errors:
        raise errors[0]
    return said


def test_diff(t):
    n = Native(t)
    first = n.post("/v1/checkpoint")["id"]
    n.view.write("a.txt", "two\n")
    n.view.write("new/f", "n\n")
    changes = n.get("/v1/diff")["changes"]
    assert {(c["status"], c["path"]) for c in changes} >= {("M", "a.txt"), ("A", "new/f")}, changes
    assert "+two" in n.get("/v1/diff?form=patch")["text"]
    assert "A\tnew/f" in n.get("/v1/diff?form=name-status")["text"]
    assert "a.txt" in n.get("/v1/diff?form=stat")["text"]
    n.post("/v1/checkpoint")
    assert n.get("/v1/diff")["changes"] == []
    assert n.get("/v1/diff?a=%s" % first)["changes"] == changes
    n.get("/v1/diff?form=haiku", status=400)
    assert "none" in n.get("/v1/diff?a=none", status=404)["detail"]


def test_large_diffs_at_once(t):
    n = Native(t)
    n.post("/v1/checkpoint")
    files = 1200  # 300 KB of JSON
    for i in range(files):
        n.view.write("d/%s-%d" % ("name" * 8, i), "x")

    def ask(answers):
        for _ in range(3):
            answers.append(len(n.get("/v1/diff")["changes"]))
    answers = at_once([ask] * 16)
    assert len(answers) == 48 and min(answers) >= files, answers


def test_diff_while_states_come_and_go(t):
    """The last snapshot is an automatic one half of the time, which the next restore ends."""
    n = Native(t)
    first = n.post("/v1/checkpoint")["id"]

    def change(answers):
        for i in range(40):
            n.view.write("a.txt", "%d\n" % i)
            n.post("/v1/restore", {"id": first})
            n.post("/v1/undo")

    def ask(answers):
        for i in range(40):
            answers.append(n.get("/v1/diff%s" % ("", "?b=main")[i % 2]))
    assert len(at_once([change] + [ask] * 6)) == 240


def test_exec(t):
    n = Native(t, "--timeout", "30")

    def does(body, out="", err="", code=0, **more):
        a = n.post("/v1/exec", body)
        assert (a["stdout"], a["stderr"], a["exit_code"]) == (out, err, code), (body, a)
        for name, value in more.items():
            assert a[name] == value, (name, a)
    does({"command": "echo o; echo e >&2; exit 3"}, "o\n", "e\n", 3, timed_out=False)
    does({"command": ["echo", "a b", "$x"]}, "a b $x\n")
    does({"command": "pwd"}, n.view.path + "\n")
    does({"command": "pwd", "cwd": "dir"}, n.view.path + "/dir\n")
    does({"command": "pwd", "cwd": "/"}, "/\n")
    does({"command": "echo o; echo e >&2", "merge": True}, "o\ne\n")
    does({"command": "echo $A $HOME", "env": {"A": "1"}}, "1 %s\n" % t.env["HOME"])
    does({"command": "cat", "stdin": "in\0\u00fc"}, "in\0\u00fc")
    does({"command": "cat"})
    does({"command": "printf '\\377'"}, "\\xff")
    does({"command": "echo a; sleep 30", "timeout": 2}, "a\n", "", 124, timed_out=True)
    does({"command": "kill -9 $$"}, code=-9)
    does({"command": "echo $PLYFS_TOKEN"}, "\n")
    for body in ({}, {"command": []}, {"command": [1]}, {"command": ["nope"]}, {"command": "x\0"},
                 {"command": "x", "cwd": "none"}, {"command": "x", "env": {"a=b": "c"}},
                 {"command": "x", "timeout": "soon"}, [], "x"):
        n.post("/v1/exec", body, status=400)
    n.call("POST", "/v1/exec", b"{nonsense", 400)


def events(response, count=None):
    """[(event, data, when)] of a stream."""
    found, event = [], None
    while line := response.readline():
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            event = line[7:]
        elif line.startswith("data: "):
            found.append((event, json.loads(line[6:]), time.monotonic()))
            if len(found) == count:
                break
    return found


def stream(n, body, headers=None, count=None):
    c = n.server.connection(60)
    c.request("POST", "/v1/exec", json.dumps(body), {"X-API-Key": n.server.token, **(headers or {})})
    r = c.getresponse()
    assert r.status == 200 and r.headers["Content-Type"] == "text/event-stream", r.read()
    return c, events(r, count)


def test_exec_as_a_stream(t):
    n = Native(t)
    for body, headers in (({"stream": True}, {}), ({}, {"Accept": "text/event-stream"})):
        body["command"] = "echo one; echo err >&2; sleep 0.7; printf 'two\\303'; sleep 0.2; printf '\\274'; exit 5"
        for _ in range(5):  # one who sleeps meanwhile gets all at once
            c, found = stream(n, body, headers)
            c.close()
            if found[-1][2] - found[0][2] > 0.5:
                break
        else:
            raise AssertionError("it came at once: %s" % found)
        text = {k: "".join(d["data"] for e, d, _ in found if e == k) for k in ("stdout", "stderr")}
        assert text == {"stdout": "one\ntwo\u00fc", "stderr": "err\n"}, found
        assert found[-1][:2] == ("exit", {"exit_code": 5, "timed_out": False})
    c, found = stream(n, {"command": "echo a; sleep 30", "stream": True, "timeout": 2})
    assert [(e, d) for e, d, _ in found] == [
        ("stdout", {"data": "a\n"}), ("exit", {"exit_code": 124, "timed_out": True})]
    c, found = stream(n, {"command": "cat; (sleep 40.7; echo late) &", "stream": True, "stdin": "in"})
    assert found[-1][0] == "exit" and found[0][1] == {"data": "in"}
    # What goes on in the background may print, though nobody reads it any more.
    for name in ("streamed", "whole"):
        n.post("/v1/exec", {"command": "(sleep 0.3; seq 1 90000; echo x >&2; : >%s) &" % name,
                            "stream": name == "streamed"})
        ply.wait_for("a background process",
                     lambda: os.path.exists(os.path.join(n.view.path, name)))
    c, found = stream(n, {"command": "seq 1 200000", "stream": True, "merge": True})
    assert "".join(d["data"] for e, d, _ in found if e == "stdout").split()[-1] == "200000"
    n.post("/v1/exec", {"command": ["nope"], "stream": True}, status=400)


def test_a_client_that_goes_away_ends_its_stream(t):
    n = Native(t)
    for command in ("echo begun; (setsid sleep 41.3 &); sleep 41.3", "while :; do echo 41.3; done"):
        c, found = stream(n, {"command": command, "stream": True}, count=1)
        assert found
        c.sock.shutdown(socket.SHUT_RDWR) if c.sock else None
        c.close()
        ply.wait_for("the end of its command",
                     lambda: not [x for _, x in n.server.children() if "41.3" in x])
    assert n.get("/health") == {"status": "ok"}


def test_a_timeout_passes_for_a_client_that_does_not_read(t):
    n = Native(t)
    c = n.server.connection(120)
    c.connect()
    c.request("POST", "/v1/exec", json.dumps({"command": ": >begun; exec yes 41.7", "timeout": 2, "stream": True}),
              {"X-API-Key": n.server.token})

    def runs():
        return [x for _, x in n.server.children() if "41.7" in x]
    ply.wait_for("the command", lambda: os.path.exists(n.view.at("begun")))
    ply.wait_for("its end", lambda: not runs())
    events = c.getresponse().read().decode().split("\n\n")
    assert events[0] == "event: stdout\ndata: " + events[0].split("data: ")[1] and events[-1] == "", events[0]
    assert events[-2] == 'event: exit\ndata: {"exit_code":124,"timed_out":true}', events[-2]
    assert all(e.startswith("event: stdout\ndata: {") and e.endswith("}") for e in events[:-2])
    c.close()


def test_a_client_that_goes_away_ends_its_command(t):
    n = Native(t, "--test-command", "sh slow.sh", files={"slow.sh": "sleep 41.4"})

    def begin(path, body, **headers):
        c = n.server.connection()
        c.request("POST", path, json.dumps(body), {"X-API-Key": n.server.token, **headers})
        return c

    def sleeps():
        return [x for _, x in n.server.children() if "41.4" in x]
    for path, body in (("/v1/exec", {"command": "(setsid sleep 41.4 &); sleep 41.4"}),
                       ("/execute", {"cmd": "sleep 41.4"}), ("/execute", {"command": ["sleep", "41.4"]}),
                       ("/tests/run", {})):
        c = begin(path, body)
        ply.wait_for("the command", sleeps)
        c.close()
        ply.wait_for("its end", lambda: not sleeps())
    # Who gave the request an id may come back for the answer.
    again = {"X-Request-ID": "again"}
    for path, name, body in (
            ("/v1/exec", "v1", {"command": "echo x >> v1; sleep 1; cat v1"}),
            ("/execute", "chimera", {"cmd": "echo x >> chimera; sleep 1; cat chimera"}),
            ("/execute", "rex", {"command": "echo x >> rex; sleep 1; cat rex", "shell": True})):
        c = begin(path, body, **again)
        ply.wait_for("the command", lambda: os.path.exists(n.view.at(name)))
        c.close()
        assert n.post(path, body, headers=again)["stdout"] == "x\n"
        again = {"X-Request-ID": again["X-Request-ID"] + "+"}
    n.server.stop()


def numbers(text):
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if not line.startswith("#")}


def test_metrics(t):
    n = Native(t, "--cloud")
    n.post("/v1/checkpoint")
    n.post("/v1/restore", {"id": "nope"}, status=404)
    n.post("/execute", {"cmd": "true"})
    n.post("/execute", {"command": ["true"]})
    n.server.get("/", token=False)
    n.server.get("/nope")
    n.post("/create_session", {"session_type": "bash", "startup_timeout": 60})
    box = n.post("/sandboxes", {"working_dir": "/w"})["sandbox_id"]
    text = n.get("/v1/metrics")
    m = numbers(text)
    assert m['plyfs_requests_total{protocol="native",status="200"}'] == 1
    assert m['plyfs_requests_total{protocol="native",status="404"}'] == 1
    assert m['plyfs_requests_total{protocol="chimera",status="200"}'] == 1
    assert m['plyfs_requests_total{protocol="swe-rex",status="200"}'] == 2
    assert m['plyfs_requests_total{protocol="cloud",status="200"}'] == 1
    assert m['plyfs_requests_total{protocol="none",status="403"}'] == 1
    assert m['plyfs_requests_total{protocol="none",status="404"}'] == 1
    assert (m["plyfs_sessions"], m["plyfs_sandboxes"], m["plyfs_commands_total"]) == (1, 1, 2)
    assert m["plyfs_requests_running"] == 1 and m["plyfs_connections"] >= 1
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{[^}]*\})? [0-9.e+]+", line), line
    assert n.get("/sandboxes/" + box)["status"] == "ready"
    n.call("DELETE", "/sandboxes/" + box)
    n.call("DELETE", "/sandboxes/" + box, status=404)
    assert numbers(n.get("/v1/metrics"))["plyfs_sandboxes"] == 0


def test_every_other_endpoint_as_the_document_has_it(t):
    n = Native(t)
    n.get("/")
    n.get("/is_alive")
    n.get("/health")
    n.get("/files/read?path=a.txt")
    n.get("/files/read", status=400)
    n.get("/files/list?pattern=*")
    n.get("/files/download?path=a.txt")
    n.post("/files/write", {"path": "w", "content": "x"})
    n.post("/files/write", {"path": "w"}, status=400)
    n.post("/tests/run")
    first = n.post("/checkpoint")["checkpoint_id"]
    n.post("/restore", {"checkpoint_id": first})
    n.post("/restore", {"checkpoint_id": "no"}, status=404)
    n.post("/execute", {"cmd": "exit 3"})
    n.post("/execute", {"cmd": 3}, status=400)
    n.post("/execute", {"command": 3}, status=422)
    n.post("/execute", {"command": "nope"}, status=511)
    n.post("/create_session", {"session_type": "bash", "startup_timeout": 60})
    n.post("/run_in_session", {"action_type": "bash", "command": "echo x"})
    n.post("/run_in_session", {"action_type": "bash", "command": "(a"}, status=511)
    n.post("/close_session", {"session_type": "bash"})
    n.post("/close_session", {"session_type": "bash"}, status=511)
    n.post("/write_file", {"path": "w2", "content": "x"})
    n.post("/read_file", {"path": "w2"})
    n.post("/close")
    n.call("GET", "/health", status=403, token=False)
    n.call("GET", "/health", status=401, token=False, headers={"X-API-Key": "x"})


def test_a_nul_is_refused_where_it_would_cut_a_string(t):
    n = Native(t)
    first = n.post("/v1/checkpoint", {"label": "first"})["id"]
    for path in ("/files/read?path=a.txt%00x", "/files/download?path=a.txt%00x",
                 "/files/list?pattern=*%00x", "/v1/snapshots?branch=main%00x",
                 "/v1/snapshots?count=1%002", "/v1/diff?form=json%00x", "/v1/diff?a=@first%00x",
                 "/v1/diff?a=%s&b=@first%%00x" % first, "/files/read?path=%00%ff"):
        detail = n.get(path, status=400)["detail"][0]
        assert detail["msg"] == "Value error, embedded null byte", (path, detail)
        assert detail["loc"][0] == "query" and detail["loc"][1] + "=" in path, (path, detail)
    n.get("/is_alive?x=%00")
    n.get("/files/read?x=%00&path=a.txt")

    def upload(where, status, **more):
        body = b"".join(b"--b\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n" %
                        (name.encode(), value) for name, value in more.items())
        body += (b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
                 b"new\r\n--b--")
        answer = n.call("POST", where, body, status,
                        headers={"Content-Type": "multipart/form-data; boundary=b"})
        return answer["detail"][0]
    detail = upload("/files/upload", 400, path=b"a.txt\0x")
    assert detail["loc"] == ["body", "path"] and "null byte" in detail["msg"], detail
    detail = upload("/upload", 422, target_path=n.view.at("a.txt").encode(), unzip=b"no\0x")
    assert detail["loc"] == ["body", "unzip"] and detail["type"] == "bool_parsing", detail
    assert n.view.read("a.txt") == "one\n"


def test_a_container_is_served_as_its_commands_see_it(t):
    ply.need_tool("bwrap")
    top = t.tree(FILES, "boxed")
    os.symlink("/etc/passwd", top + "/out")
    env = dict(t.env, XDG_RUNTIME_DIR=t.at("run"), XDG_STATE_HOME=t.at("state"))
    os.mkdir(t.at("run"), 0o700)
    made = t.run([ply.PLYFS, "env", "create", "--kind", "container", "box", top], check=False, env=env)
    if made.returncode and "no container can run" in made.stderr:
        ply.skip(made.stderr.strip())
    assert made.returncode == 0, made
    t.clean.append(lambda: t.run([ply.PLYFS, "env", "destroy", "--force", "box"], env=env))
    s = server.serve(t, None, "--in", top)

    def ok(path, body):
        a = s.post(path, body)
        assert a.status == 200, (path, body, a)
        return a.json
    assert ok("/execute", {"command": ["pwd"]})["stdout"] == "/workspace\n"
    assert ok("/execute", {"command": ["pwd"], "cwd": "/tmp"})["stdout"] == "/tmp\n"
    assert ok("/execute", {"command": ["env"], "env": {"A": "1"}})["stdout"] == "A=1\n"
    assert ok("/execute", {"cmd": "pwd; cat a.txt"})["stdout"] == "/workspace\none\n"
    assert ok("/v1/exec", {"command": "pwd; echo $Q", "cwd": "dir", "env": {"Q": "q"}})["stdout"] == \
        "/workspace/dir\nq\n"
    ok("/create_session", {"session_type": "bash", "startup_timeout": 20})
    assert ok("/run_in_session", {"action_type": "bash", "command": "cd dir; pwd"})["output"] == \
        "/workspace/dir\n"
    for path in ("a.txt", "/workspace/a.txt", "./dir/../a.txt"):
        assert ok("/read_file", {"path": path}) == {"content": "one\n"}
    ok("/write_file", {"path": "/workspace/new/x", "content": "x"})
    assert ply.read(top + "/new/x") == "x"
    for path in ("out", "/etc/shadow", "/workspace/../etc/shadow", "../../etc/shadow"):
        a = s.post("/read_file", {"path": path})
        assert a.json["swerexception"]["class_path"] == "builtins.PermissionError", (path, a)
    a = s.post("/write_file", {"path": "out", "content": "x"})
    assert a.json["swerexception"]["class_path"] == "builtins.PermissionError", a
    first = ok("/v1/checkpoint", {})["id"]
    ok("/run_in_session", {"action_type": "bash", "command": "rm -r /workspace/new"})
    ok("/v1/restore", {"id": first})
    assert ply.read(top + "/new/x") == "x"
    s.stop()


# ---- the program ----

def test_what_plyfs_serve_refuses(t):
    view = t.view(FILES)
    at = ["--in", view.path, "--port", "0"]
    ply.write(t.at("blank"), "behind it \n")
    for words, code, says in [
        (["--host", "0.0.0.0"], 2, "token"), (["--host", "::"], 2, "token"),
        (["--port", "70000"], 2, "--port"), (["--port", "x"], 2, "number"),
        (["--auth-token", ""], 2, "wants a value"), (["--token-file="], 2, "wants a value"),
        (["--host", "no.such"], 2, "token"), (["--host", "no.such", "--auth-token", "x"], 1, "no address"),
        (["--certificate", "x"], 2, "--key"), (["--token-file", t.at("none")], 1, "No such file"),
        (["--from", "x"], 2, "--in"), (["--timeout", "x"], 2, "timeout"), (["word"], 2, "wants"),
        (["--nonsense"], 2, "nonsense"), (["--auth-token", " x"], 1, "the token"), (["--auth-token", "x\t"], 1, "the token"),
        (["--auth-token", "x\ny"], 1, "the token"), (["--auth-token", "x\x7f"], 1, "the token"),
        (["--token-file", t.at("blank")], 1, "the token"), (["--certificate", t.at("blank"), "--key", t.at("blank")], 1, "PEM"),
    ]:
        p = t.run([ply.PLYFS, "serve", *at, *words], check=False)
        assert p.returncode == code and re.search(says, p.stderr), (words, p)
        assert p.stderr.count("\n") == 1 and not p.stdout, p
    p = t.run([ply.PLYFS, "serve", "--in", t.path], check=False)
    assert p.returncode == 1 and "not in a plyfs view" in p.stderr, p
    ply.write(t.at("empty"), "\n")
    p = t.run([ply.PLYFS, "serve", *at, "--token-file", t.at("empty")], check=False)
    assert p.returncode == 1 and "empty" in p.stderr
    s = server.serve(t, view, "--host", "0.0.0.0")
    s.stop()
    s = server.serve(t, view, "--host", "0.0.0.0", "--insecure", token=None)
    assert s.get("/health").status == 200
    s.stop()
    ply.write(t.at("token"), "from the file\nnot this\n")
    s = server.serve(t, view, "--token-file", t.at("token"), token=None)
    assert s.get("/health", headers={"Authorization": "bearer from the file"}).status == 200
    assert s.get("/health").status == 403
    s.stop()
    s = server.serve(t, view, token=None, env={"PLYFS_TOKEN": "of the environment"})
    assert s.get("/health", headers={"X-API-Key": "of the environment"}).status == 200
    a = s.post("/v1/exec", {"command": "env"}, headers={"X-API-Key": "of the environment"})
    assert "of the environment" not in a.json["stdout"]
    assert not server.shows(s, "of the environment")
    s.stop()
    s = server.serve(t, view, token="of the words")
    assert s.get("/health").status == 200 and not server.shows(s, "of the words")
    s.stop()
    # One that does not count, for whoever else it is.
    for more, token in ((), "of the words"), (("--token-file", t.at("token")), None):
        s = server.serve(t, view, *more, token=token, env={"PLYFS_TOKEN": "of the environment"})
        a = s.post("/v1/exec", {"command": "env"}, headers={"X-API-Key": token or "from the file"})
        assert a.status == 200 and "of the environment" not in a.json["stdout"], a
        assert not server.shows(s, "of the environment"), more
        s.stop()


def test_a_server_without_a_cloud_says_how_to_have_one(t):
    n = Native(t)
    for body in (None, {"working_dir": "/w"}):
        assert "start it with --cloud" in n.post("/sandboxes", body, status=404)["detail"]
    assert "plyfs_sandboxes" not in n.get("/v1/metrics")
    n.server.stop()


def test_limits_have_words(t):
    view = t.view(FILES)
    s = server.serve(t, view, "--max-body", "100000", "--max-connections", "3")
    a = s.post("/files/write", {"path": "x", "content": "y" * 200000})
    assert (a.status, a.json) == (413, {"detail": "the body of this request is too large"})
    assert not os.path.exists(view.at("x"))
    assert s.post("/files/write", {"path": "x", "content": "y" * 90000}).status == 200
    held = [s.connection() for _ in range(3)]
    for c in held:  # those of before may not be quite gone
        ply.wait_for("a place", lambda: s.get("/health", connection=c).status == 200)
    a = s.get("/health")
    assert a.status == 503 and "too many connections" in a.json["detail"], a
    assert a.headers["Connection"] == "close", "it would be one too many also when there is room"
    with socket.create_connection(("127.0.0.1", s.port), 10):
        ply.wait_for("one too many", lambda: "plyfs_connections 4\n" in s.get(
            "/v1/metrics", connection=held[0]).body.decode())
        for c in held:  # whoever was there first is not refused for it
            assert s.get("/health", connection=c).status == 200
    for c in held:
        c.close()
    ply.wait_for("room again", lambda: s.get("/health").status == 200)
    s.stop()
    for option, value, says in (("max-connections", "0", "1 to 100000"), ("max-sessions", "0", "1 to 100000"),
                                ("max-connections", "100001", "1 to 100000"), ("max-body", "0", "1 or more"),
                                ("max-output", "0", "1 or more")):
        view.store.fails("serve", "--in", view.path, "--port", "0", "--" + option, value, code=2,
                         says="^plyfs serve: --%s is %s, not %s\n" % (option, says, value))
    s = server.serve(t, view, env={"TMPDIR": t.at("none")})
    a = s.post("/files/write", {"path": "y", "content": "y" * 300000})
    assert (a.status, a.json) == (507, {"detail": "no room for the body of this request"})
    assert s.post("/files/write", {"path": "y", "content": "y" * 200000}).status == 200
    s.stop()


def test_output_has_a_limit(t):
    n = Native(t, "--max-output", "100000")
    much = "echo begin; head -c 5000000 /dev/zero | tr '\\0' x"
    n.post("/create_session", {"session_type": "bash", "startup_timeout": 60})

    def run(command, status=200, **kw):
        return n.post("/run_in_session", {"action_type": "bash", "command": command, **kw}, status)
    for a in (run(much, 511), n.post("/execute", {"command": much, "shell": True}, status=511)):
        e = a["swerexception"]
        assert e["class_path"] == "builtins.MemoryError", e
        assert "more than 100000 bytes; send its output to a file" in e["message"], e
    assert run("echo next")["output"] == "next\n"
    e = run("yes", 511, timeout=2)["swerexception"]
    assert e["class_path"].endswith("CommandTimeoutError")
    told = e["extra_info"]["partial_output"]  # the two ends, and a sentence
    assert 100000 < len(told) < 100100 and "more than" in told, told[49900:50100]
    a = n.post("/run_in_session", {"action_type": "bash_interrupt"})
    assert len(a["output"]) <= 100000 and "missing" in a["failure_reason"], a["failure_reason"]
    assert run("echo next")["output"] == "next\n"
    for a in (n.post("/v1/exec", {"command": much}), n.post("/execute", {"cmd": much})):
        assert a["truncated"] and len(a["stdout"]) == 100000 and a["exit_code"] == 0
        assert a["stdout"].startswith("begin\n")
    c, found = stream(n, {"command": much, "stream": True})  # kept nowhere, so whole
    assert sum(len(d["data"]) for e, d, _ in found if e == "stdout") == 5000006
    n.server.stop()


def test_a_large_file_is_downloaded_without_memory(t):
    n = Native(t)
    size = 200 << 20
    with open(n.view.at("large"), "wb") as f:
        for _ in range(size >> 20):
            f.write(os.urandom(1 << 10) * (1 << 10))
    c = n.server.connection()
    c.request("GET", "/files/download?path=large", headers={"X-API-Key": n.server.token})
    r = c.getresponse()
    got = 0
    while piece := r.read(1 << 20):
        got += len(piece)
    assert got == size
    assert n.server.memory("VmHWM") < size >> 11, "%d KiB of memory" % n.server.memory("VmHWM")
    n.server.stop()


def test_a_file_that_grows_shorter_while_it_is_sent(t):
    """What was promised cannot come: the client hears of it, and waits no longer."""
    n = Native(t)
    n.view.write("large", b"x" * (50 << 20))
    c = n.server.connection(20)
    c.request("GET", "/files/download?path=large", headers={"X-API-Key": n.server.token})
    r = c.getresponse()
    assert r.read(1000) == b"x" * 1000
    os.truncate(n.view.at("large"), 0)
    try:
        r.read()
    except (http.client.IncompleteRead, ConnectionResetError):
        pass
    else:
        raise AssertionError("all of it came")
    c.close()
    empty = n.server.get("/files/download?path=large")
    assert (empty.status, empty.body, empty.headers["Content-Length"]) == (200, b"", "0"), empty
    n.server.stop()


def test_the_end_lets_answers_through(t):
    n = Native(t)
    size = 30 << 20
    with open(n.view.at("large"), "wb") as f:
        f.write(b"x" * size)
    answers = []
    busy = threading.Thread(target=lambda: answers.append(
        n.server.post("/v1/exec", {"command": ": >begun; sleep 1; echo done"})))
    busy.start()
    ply.wait_for("the command", lambda: os.path.exists(n.view.at("begun")))
    slow = n.server.connection()
    slow.request("GET", "/files/download?path=large", headers={"X-API-Key": n.server.token})
    r = slow.getresponse()
    held = n.server.connection()
    assert n.server.get("/health", connection=held).status == 200
    begun = n.server.connection()
    begun.request("POST", "/files/write", b'{"path": "w", ', {"X-API-Key": n.server.token,
                                                              "Content-Length": "29"})
    n.server.await_read(begun.sock)  # only what it has read has begun
    n.server.process.send_signal(signal.SIGTERM)
    refused = []

    def is_refused():
        refused.append(n.server.get("/health", connection=held))
        return refused[-1].status == 503
    ply.wait_for("the end's beginning", is_refused)
    a = refused[-1]
    assert "about to end" in a.json["detail"], a
    begun.send(b'"content": "x"}')
    answer = begun.getresponse()
    assert answer.status == 200, (answer.status, answer.read())
    assert n.view.read("w") == "x", repr(n.view.read("w"))
    assert len(r.read()) == size
    busy.join()
    assert answers[0].json["stdout"] == "done\n", answers
    assert n.server.process.wait(60) == 0


def test_all_protocols_at_once_and_a_slow_one_blocks_nobody(t):
    n = Native(t)
    stop, wrong, count = threading.Event(), [], [0] * 12
    n.post("/create_session", {"session_type": "bash", "startup_timeout": 60})
    slow = threading.Thread(target=lambda: n.server.post(
        "/run_in_session", {"action_type": "bash", "command": "sleep 2"}))
    slow.start()

    def work(i):
        c = n.server.connection()
        while not stop.is_set():
            path, body, key, want = [
                ("/execute", {"cmd": "echo %d" % i}, "stdout", "%d\n" % i),
                ("/execute", {"command": ["echo", str(i)]}, "stdout", "%d\n" % i),
                ("/v1/exec", {"command": ["cat"], "stdin": "%d" % i}, "stdout", "%d" % i),
                ("/write_file", {"path": "w%d" % i, "content": "x"}, None, None)][i % 4]
            a = n.server.post(path, body, connection=c)
            if a.status != 200 or (key and a.json[key] != want):
                wrong.append(a)
            count[i] += 1
        c.close()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for x in threads:
        x.start()
    began = time.monotonic()

    def enough():
        assert n.server.get("/is_alive").status == 200
        return time.monotonic() - began > 2 and (min(count) > 3 or wrong)
    try:
        ply.wait_for("each to have had some turns", enough)
    finally:
        stop.set()
    for x in [*threads, slow]:
        x.join()
    assert not wrong, wrong[:3]


def test_the_end_by_a_signal_leaves_nothing(t):
    view = t.view(FILES)
    for sig in (signal.SIGTERM, signal.SIGINT):
        s = server.serve(t, view, "--cloud")
        s.post("/create_session", {"session_type": "bash", "startup_timeout": 60})
        s.post("/run_in_session", {"action_type": "bash", "command": "sleep 42.9 &"})
        box = s.post("/sandboxes", {}).json["sandbox_id"]
        assert s.get("/sandboxes/" + box).status == 200
        answers = []
        busy = threading.Thread(target=lambda: answers.append(
            s.post("/v1/exec", {"command": "sleep 42.9"})))
        busy.start()
        c = s.connection()
        c.request("POST", "/v1/exec", json.dumps({"command": "echo x; sleep 42.9", "stream": True}),
                  {"X-API-Key": s.token})
        assert events(c.getresponse(), 1)
        ply.wait_for("the sleeps",
                     lambda: sum("sleep 42.9" in x and "sh" not in x for _, x in s.children()) == 3)
        s.process.send_signal(sig)
        assert s.process.wait(60) == 0
        busy.join()
        assert answers and answers[0].json["exit_code"] == -9, answers
        ply.wait_for("the end of all", lambda: not [x for _, x in s.children() if "plyfsd" not in x])
        assert not ply.mounts_below(t.at("run"), "fuse")
        assert view.read("a.txt") == "one\n"


def test_the_end_waits_for_all_sandboxes_at_once(t):
    """One after the other, with the time that each gives what it serves, these took over a minute."""
    s = server.serve(t, t.view(FILES), "--cloud")
    answers, many = [], 40

    def busy(port):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        c.request("POST", "/execute", json.dumps({"cmd": "sleep 43.1"}), {"X-API-Key": s.token})
        answers.append(json.loads(c.getresponse().read())["exit_code"])
        c.close()
    threads = []
    for _ in range(many):
        box = s.post("/sandboxes", {}).json["sandbox_id"]
        port = s.get("/sandboxes/" + box).json["port"]
        threads.append(threading.Thread(target=busy, args=(port,)))
        threads[-1].start()
    ply.wait_for("the sleeps", lambda: sum(x == "sleep 43.1" for _, x in s.children()) == many)
    s.stop(60)
    for x in threads:
        x.join()
    assert answers == [-9] * many, answers
    assert not ply.mounts_below(t.at("run"), "fuse")


if __name__ == "__main__":
    ply.main(__name__)
