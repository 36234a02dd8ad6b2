# SPDX-License-Identifier: Apache-2.0
"""
Our servers, for the tests that talk to them: `plyfs serve` on a view and swerex-remote beside it;
plain HTTP to them; and upstream's own test suite, from the source archive on PyPI.
"""
import http.client
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile

import ply

TOKEN = "a token"
SWEREX_REMOTE = os.path.join(ply.BUILD, "tools", "swerex-remote")


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return "%d %r" % (self.status, self.body[:300])


class Server:
    """A running server. argv: its program and options, but for the port."""

    def __init__(self, t, argv, token=TOKEN, cwd=None, env=None):
        self.env = dict(t.env, XDG_RUNTIME_DIR=t.at("run"), XDG_STATE_HOME=t.at("state"),
                        TERM="dumb", **(env or {}))
        # The library finds the keeper beside the build's programs.
        os.makedirs(t.at("run"), mode=0o700, exist_ok=True)
        self.token = token
        words = [*argv, "--port", "0"] + (["--auth-token", token] if token is not None else [])
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=self.env, cwd=cwd or t.path)
        t.clean.append(self.kill)
        self.said = t.said
        line = self.process.stdout.readline()
        found = re.match(r"listening at (?:\S+ port |https?://[^/ ]*:)(\d+)", line)
        assert found, "%r %s" % (line, self.process.stderr.read() if not line else "")
        self.line, self.port = line, int(found[1])
        self.url = "http://127.0.0.1:%d" % self.port

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        # Of a sanitizer; its children may have it open still, so what is there now.
        if not self.process.stderr.closed:
            os.set_blocking(self.process.stderr.fileno(), False)
            err = self.process.stderr.read() or ""
            if ply.SAID.search(err):
                self.said.append(err)

    def stop(self, seconds=60):
        """As an administrator does it."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0 and not err, (self.process.returncode, err)

    def await_read(self, connection):
        """Until the server has read what was sent so far (a socket)."""
        ours, its = b"%04X" % connection.getsockname()[1], b"%04X" % self.port

        def is_read():
            waiting = {}
            with open("/proc/net/tcp", "rb") as f:
                for line in list(f)[1:]:
                    _, local, remote, _, queues, *_ = line.split()
                    waiting[local[-4:], remote[-4:]] = queues.split(b":")
            sent, got = waiting.get((ours, its)), waiting.get((its, ours))
            return sent and got and int(sent[0], 16) == 0 == int(got[1], 16)
        ply.wait_for("the server to read", is_read)

    def connection(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(self, method, path, body=None, headers=None, token=True, timeout=60, connection=None):
        """One request; a body that is no bytes is sent as JSON."""
        headers = dict(headers or {})
        if token and self.token:
            headers.setdefault("X-API-Key", self.token)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        c = connection or self.connection(timeout)
        try:
            c.request(method, path, body, headers)
            r = c.getresponse()
            return Answer(r.status, r.headers, r.read())
        finally:
            if not connection:
                c.close()

    def get(self, path, **kw):
        return self.call("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.call("POST", path, {} if body is None else body, **kw)

    def raw(self, data, timeout=10, token=True):
        """Bytes as they are, and all that comes back until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as s:
            s.sendall(data)
            answer = b""
            try:
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    answer += piece
            except (TimeoutError, ConnectionResetError):
                pass
        return answer

    def memory(self, field):
        """KiB, of /proc/PID/status; 0 in a build with a sanitizer, whose own there is."""
        if ply.is_sanitized("/proc/%d/exe" % self.process.pid):
            return 0
        with open("/proc/%d/status" % self.process.pid) as f:
            return [int(x.split()[1]) for x in f if x.startswith(field + ":")][0]

    def children(self):
        """Processes that it, or its keeper, has started and that live: (pid, command line)."""
        return descendants(self.marker())

    def marker(self):
        return "PLYFS_TEST_MARK=%s" % self.env.get("PLYFS_TEST_MARK", "")


def descendants(marker):
    """Processes with this in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as f:
                if marker.encode() not in f.read().split(b"\0"):
                    continue
            with open("/proc/%s/cmdline" % name, "rb") as f:
                line = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
            if line:
                found.append((int(name), line))
        except OSError:
            pass
    return found


def rex(t, *options, **kw):
    """swerex-remote in the test's directory."""
    env = {"PLYFS_TEST_MARK": os.path.basename(t.path), **kw.pop("env", {})}
    return Server(t, [SWEREX_REMOTE, "--host", "127.0.0.1", *options], env=env, **kw)


def serve(t, view, *options, **kw):
    """plyfs serve of a view (ply.View), or with options alone."""
    env = {"PLYFS_TEST_MARK": os.path.basename(t.path), **kw.pop("env", {})}
    where = ["--in", view.path] if view is not None else []
    return Server(t, [ply.PLYFS, "serve", *where, *options], env=env, **kw)


def shows(s, secret):
    """Whether /proc has it: to everybody in a server's words, to its user in its variables."""
    for name in ("cmdline", "environ"):
        with open("/proc/%d/%s" % (s.process.pid, name), "rb") as f:
            if secret.encode() in f.read():
                return True
    return False


def form(parts, boundary="XX"):
    body = b""
    for name, filename, data in parts:
        body += ("--%s\r\nContent-Disposition: form-data; name=\"%s\"" % (boundary, name)).encode()
        body += ("; filename=\"%s\"" % filename).encode() if filename else b""
        body += b"\r\n\r\n" + data + b"\r\n"
    return body + ("--%s--\r\n" % boundary).encode(), \
        {"Content-Type": "multipart/form-data; boundary=" + boundary}


class Watched:
    """An object of a client's class; what of it was called is remembered."""

    def __init__(self, what):
        self.what, self.called = what, set()

    def __getattr__(self, name):
        self.called.add(name)
        return getattr(self.what, name)

    def assert_all_called(self, but=()):
        """Every public method of its class."""
        public = {n for n, _ in inspect.getmembers(type(self.what), callable) if n[0] != "_"}
        assert public - set(but) <= self.called, public - set(but) - self.called


def sdist(name, version, python=sys.executable):
    """The unpacked source archive of a package, kept beside the virtual environment, whose
    interpreter `python` is; None when it cannot be had."""
    place = os.path.join(os.path.dirname(os.path.dirname(python)), "sdist")
    target = os.path.join(place, "%s-%s" % (name, version))
    if not os.path.isdir(target):
        p = subprocess.run(
            [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-binary", ":all:", "--no-deps", "--dest", place, "%s==%s" % (name, version)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        archives = [f for f in os.listdir(place) if f.endswith(".tar.gz")] \
            if os.path.isdir(place) else []
        match = [f for f in archives if re.sub("[-_.]+", "-", f).startswith(
            re.sub("[-_.]+", "-", "%s-%s" % (name, version)))]
        if not match:
            print("# no source archive of %s: %s" % (name, p.stdout.strip()[-300:]))
            return None
        temporary = target + ".%d" % os.getpid()
        with tarfile.open(os.path.join(place, match[0])) as tar:
            tar.extractall(temporary, filter="data")
        os.rename(os.path.join(temporary, os.listdir(temporary)[0]), target)
        os.rmdir(temporary)
    return target
