# SPDX-License-Identifier: Apache-2.0
"""
A server of Chimera's environment protocol, and of its cloud's, over a directory: as plain as can be,
so that it is plainly right. It writes down every request, and can be told to misbehave.
"""
import email.parser
import hashlib
import http.server
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import urllib.parse


class Refused(Exception):
    def __init__(self, status, words):
        self.status, self.words = status, words


class Request:
    """What a client sent, as it came over the wire."""

    def __init__(self, method, target, headers, body):
        self.method, self.target, self.headers, self.body = method, target, headers, body

    def comparable(self):
        """All that the protocol speaks of: equal for two clients when they mean the same."""
        kind = self.headers.get("Content-Type")
        body = self.body
        if kind and kind.startswith("multipart/form-data"):
            kind, body = "multipart/form-data", form(self.headers, body)
        return (self.method, self.target, self.headers.get("Authorization"), kind, body,
                kind == "multipart/form-data" or self.headers.get("Content-Length"))


def form(headers, body):
    """[(name, filename, content)] of a multipart body."""
    text = ("Content-Type: %s\r\n\r\n" % headers["Content-Type"]).encode() + body
    message = email.parser.BytesParser().parsebytes(text)
    return [(part.get_param("name", header="content-disposition"), part.get_filename(),
             part.get_payload(decode=True)) for part in message.get_payload()]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", kind="application/json", headers=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        server = self.server.owner
        length = int(self.headers.get("Content-Length") or 0)
        if server.digest_uploads and self.path == "/files/upload":
            body = server.swallow(self.rfile, length)
        else:
            body = self.rfile.read(length)
        request = Request(self.command, self.path, self.headers, body)
        with server.lock:
            server.requests.append(request)
            server.connections.add(self.client_address)
        path = urllib.parse.urlsplit(self.path).path
        if path in server.tricks:
            return server.tricks[path](self)
        try:
            if server.token and self.headers.get("Authorization") != "Bearer " + server.token:
                raise Refused(401, "wrong token")
            value = server.serve(request)
        except Refused as e:
            return self.answer(e.status, json.dumps({"detail": e.words}).encode())
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as e:
            return self.answer(500, json.dumps({"detail": repr(e)}).encode())
        if isinstance(value, bytes):
            return self.answer(200, value, "application/octet-stream")
        return self.answer(200, json.dumps(value).encode())

    do_GET = do_POST = do_DELETE = handle_any


class TCP(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that went away: tests do that


class Server:
    """with Server(directory) as s: s.port; s.requests."""

    def __init__(self, top, token=None, certificate=None):
        self.top, self.token, self.lock = top, token, threading.Lock()
        self.work, self.saved = os.path.join(top, "work"), os.path.join(top, "saved")
        os.makedirs(self.work)
        os.makedirs(self.saved)
        self.requests, self.connections, self.tricks = [], set(), {}
        self.polls, self.sandboxes, self.checkpoints = 0, {}, 0
        self.digest_uploads = False
        self.test_command = "cat report.txt"
        self.tcp = TCP(("127.0.0.1", 0), Handler)
        self.tcp.owner = self
        self.port = self.tcp.server_address[1]
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.tcp.socket = context.wrap_socket(self.tcp.socket, server_side=True)

    def __enter__(self):
        threading.Thread(target=self.tcp.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.tcp.shutdown()
        self.tcp.server_close()

    def taken(self):
        """The requests since the last call."""
        with self.lock:
            found, self.requests = self.requests, []
        return found

    def swallow(self, stream, length):
        """A large body: only its end and a digest of it."""
        digest, tail = hashlib.sha256(), b""
        while length:
            piece = stream.read(min(length, 1 << 16))
            if not piece:
                raise Refused(400, "cut off")
            length -= len(piece)
            digest.update(piece)
            tail = (tail + piece)[-200:]
        self.upload_digest = digest
        return tail

    # ---- the protocol ----

    def serve(self, request):
        url = urllib.parse.urlsplit(request.target)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        name = request.method + " " + url.path
        if url.path.startswith("/sandboxes"):
            return self.cloud(request, url.path)
        given = {}
        if (request.headers.get("Content-Type") or "") == "application/json":
            given = json.loads(request.body)
        verb = {
            "GET /health": lambda: {"status": "ok"},
            "GET /files/read": lambda: {"content": self.read(query["path"]).decode()},
            "GET /files/download": lambda: self.read(query["path"]),
            "GET /files/list": lambda: {"files": self.list(query["pattern"])},
            "POST /files/write": lambda: self.write(given["path"], given["content"].encode()),
            "POST /files/upload": lambda: self.upload(request),
            "POST /execute": lambda: self.execute(given["cmd"], given["timeout"]),
            "POST /tests/run": self.run_tests,
            "POST /checkpoint": self.checkpoint,
            "POST /restore": lambda: self.restore(given["checkpoint_id"]),
        }.get(name)
        if not verb:
            raise Refused(404, "no such endpoint")
        return verb()

    def inside(self, path):
        full = os.path.realpath(os.path.join(self.work, path))
        if full != self.work and not full.startswith(self.work + "/"):
            raise Refused(403, "Path escapes workdir: " + path)
        return full

    def read(self, path):
        try:
            with open(self.inside(path), "rb") as f:
                return f.read()
        except FileNotFoundError:
            raise Refused(404, "File not found: " + path)

    def write(self, path, data):
        full = self.inside(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as f:
            f.write(data)
        return {}

    def upload(self, request):
        if self.digest_uploads:
            return {}
        parts = {name: (filename, content)
                 for name, filename, content in form(request.headers, request.body)}
        return self.write(parts["path"][1].decode(), parts["file"][1])

    def list(self, pattern):
        found = [os.path.relpath(os.path.join(d, n), self.work)
                 for d, _, names in os.walk(self.work) for n in names]
        rule = re.compile("".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(p) or re.escape(p)
                                  for p in re.split(r"(\*\*/|\*)", pattern)))
        return sorted(f for f in found if rule.fullmatch(f))

    def execute(self, command, timeout):
        try:
            p = subprocess.run(["/bin/sh", "-c", command], cwd=self.work, timeout=timeout,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired:
            return {"stdout": "", "stderr": "Command timed out", "exit_code": 124}
        return {"stdout": p.stdout.decode(), "stderr": p.stderr.decode(),
                "exit_code": p.returncode}

    def run_tests(self):
        got = self.execute(self.test_command, 60)
        output = got["stdout"] + got["stderr"]
        count = {}
        for key, word in (("passed", "passed"), ("failed", "failed"), ("errors", "error")):
            m = re.search(r"(\d+) " + word, output)
            count[key] = int(m[1]) if m else 0
        return dict(count, output=output)

    def checkpoint(self):
        name = "cp-%d" % self.checkpoints
        self.checkpoints += 1
        shutil.copytree(self.work, os.path.join(self.saved, name), symlinks=True)
        return {"checkpoint_id": name}

    def restore(self, name):
        saved = os.path.join(self.saved, name)
        if "/" in name or not os.path.isdir(saved):
            raise Refused(404, "Checkpoint ID not found")
        shutil.rmtree(self.work)
        shutil.copytree(saved, self.work, symlinks=True)
        return {}

    # ---- the cloud's ----

    def cloud(self, request, path):
        if request.method == "POST" and path == "/sandboxes":
            name = "sb-%d" % len(self.sandboxes)
            self.sandboxes[name] = json.loads(request.body)
            return {"sandbox_id": name}
        name = urllib.parse.unquote(path[len("/sandboxes/"):])
        if request.method == "DELETE":
            self.sandboxes.pop(name, None)
            return {}
        self.polls += 1
        return dict({"host": "127.0.0.1", "port": self.port}, **self.status(name))

    def status(self, name):
        return {"status": "ready"}


def certificate(directory):
    """(certificate, key) for 127.0.0.1, made by openssl."""
    files = [os.path.join(directory, n) for n in ("cert.pem", "key.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-out", files[0], "-keyout", files[1]], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return files
