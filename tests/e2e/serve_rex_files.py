#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 300
"""
Files of the installed swerex-remote under swe-rex's own client (PyPI): reads, writes and uploads, of
pipes and terminals, too, and what holds up nobody. The other methods are in serve_rex.py.
"""
import fcntl
import io
import json
import os
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import server
import venv

venv.enter()
from swerex import exceptions as ex
from swerex.runtime.abstract import ReadFileRequest, UploadRequest, WriteFileRequest

from rexclient import form, raises, rex, run


def test_files_are_read_and_written_as_python_does(t):
    async def go():
        r = rex(t).runtime
        path = t.at("new", "dir", "f.txt")
        await r.write_file(WriteFileRequest(path=path, content="a\r\nb\0\u00fc\U0001f600"))
        assert open(path, "rb").read() == "a\r\nb\0\u00fc\U0001f600".encode()
        assert (await r.read_file(ReadFileRequest(path=path))).content == "a\nb\0\u00fc\U0001f600"
        for data, kw, content in [
            (b"a\xffb", dict(errors="backslashreplace"), "a\\xffb"),
            (b"a\xffb", dict(errors="replace"), "a\ufffdb"), (b"a\xffb", dict(errors="ignore"), "ab"),
            (b"\xe9\n", dict(encoding="Latin_1"), "\u00e9\n"), (b"\x80", dict(encoding="cp1252"), "\u20ac"),
            ("\u00fcx".encode("utf-16"), dict(encoding="utf-16"), "\u00fcx"),
            ("\u00fcx".encode("utf-32-be"), dict(encoding="UTF-32BE"), "\u00fcx"),
            (b"\xef\xbb\xbfx", dict(encoding="utf-8-sig"), "x"), (b"\xef\xbb\xbfx", {}, "\ufeffx"),
        ]:
            open(path, "wb").write(data)
            got = (await r.read_file(ReadFileRequest(path=path, **kw))).content
            assert got == content, (data, kw, got)
        open(path, "wb").write(b"a\xff")
        await raises(ex.SwerexException, r.read_file(ReadFileRequest(path=path)),
                     "'utf-8' codec can't decode byte 0xff in position 1: invalid start byte")
        await raises(LookupError, r.read_file(ReadFileRequest(path=path, encoding="klingon")),
                     "unknown encoding: klingon")
        await raises(LookupError, r.read_file(ReadFileRequest(path=path, errors="pray")),
                     "unknown error handler name 'pray'")
        await raises(FileNotFoundError, r.read_file(ReadFileRequest(path="/no'pe")),
                     "[Errno 2] No such file or directory: \"/no'pe\"")
        await raises(IsADirectoryError, r.read_file(ReadFileRequest(path="")), "'.'")
        await raises(ValueError, r.read_file(ReadFileRequest(path="a\0")), "embedded null byte")
        await raises(IsADirectoryError, r.write_file(WriteFileRequest(path=t.path, content="")))
        await raises(FileExistsError, r.write_file(WriteFileRequest(path=path + "/x", content="")),
                     "[Errno 17] File exists: '%s'" % path)
        await raises(NotADirectoryError, r.write_file(WriteFileRequest(path=path + "/x/y", content="")),
                     "[Errno 20] Not a directory: '%s/x'" % path)
        os.chmod(path, 0o640)
        os.link(path, t.at("hard"))
        os.symlink(path, t.at("soft"))
        await r.write_file(WriteFileRequest(path=t.at("soft"), content="through"))
        assert ply.read(t.at("hard")) == "through" and os.stat(path).st_mode & 0o777 == 0o640
        for before, after in ("old", "new"), ("old", ""), ("", "new"), ("", ""):
            ply.write(path, before)
            os.utime(path, (1, 2))
            await r.write_file(WriteFileRequest(path=path, content=after))
            st = os.stat(path)  # as open(path, "w") leaves them: written, not read
            assert st.st_atime == 1 and st.st_mtime > 2, (before, after, st)
        await r.write_file(WriteFileRequest(path="relative", content="r"))
        assert ply.read(t.at("relative")) == "r"
    run(go())


def test_a_pipe_waits_for_nobody_who_may_never_come(t):
    s = rex(t)
    path = t.at("pipe")
    os.mkfifo(path)
    assert s.post("/read_file", {"path": path}, timeout=10).json == {"content": ""}
    refused = s.post("/write_file", {"path": path, "content": "x"}, timeout=10)
    assert refused.status == 511 and "[Errno 6]" in refused.json["swerexception"]["message"], refused
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("pipe", "x")
    body, headers = form([("file", "f", archive.getvalue()), ("target_path", None, t.path.encode()),
                          ("unzip", None, b"true")])
    refused = s.call("POST", "/upload", body, headers, timeout=10)
    assert refused.status == 511 and "[Errno 6]" in refused.json["swerexception"]["message"], refused
    # With somebody at the other end it is a pipe like any other.
    got = []
    reader = threading.Thread(target=lambda: got.append(s.post("/execute", {"command": ["cat", path]})))
    reader.start()
    ply.wait_for("the reader", lambda: s.post("/write_file", {
        "path": path, "content": "y" * 300000}).status == 200)
    reader.join()
    assert got[0].json["stdout"] == "y" * 300000
    s.stop()


def test_a_read_that_waits_holds_up_neither_the_end_nor_a_slow_writer(t):
    s = rex(t)
    path = t.at("pipe")
    os.mkfifo(path)
    got = []

    def read(path, **headers):
        x = threading.Thread(target=lambda: got.append(s.post("/read_file", {"path": path},
                                                              headers=headers)))
        x.start()
        return x
    writer = os.open(path, os.O_RDWR)
    reader = read(path)
    for word in (b"slow ", b"but ", b"sure"):
        time.sleep(0.2)
        os.write(writer, word)
    ply.wait_for("the reader", lambda: int.from_bytes(
        fcntl.ioctl(writer, termios.FIONREAD, bytes(4)), sys.byteorder) == 0)
    os.close(writer)
    reader.join()
    assert got.pop().json == {"content": "slow but sure"}

    def reading():
        fds = "/proc/%d/fd" % s.process.pid
        return sum(os.path.realpath(os.path.join(fds, f)).endswith("ptmx") for f in os.listdir(fds))
    for also in (b"", b"X-Request-ID: \r\n"):
        s.raw(b"POST /read_file HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n%sContent-Length: 21\r\n\r\n"
              b'{"path": "/dev/ptmx"}' % (s.token.encode(), also), timeout=1)
        ply.wait_for("the end of a read without a client", lambda: reading() == 0)
    threads = [read("/dev/ptmx"), read("/dev/ptmx", **{"X-Request-ID": "1"})]
    ply.wait_for("their reading", lambda: reading() == 2)
    s.stop()
    for x in threads:
        x.join()
    assert [a.status for a in got] == [511, 511], got
    assert "[Errno 125]" in got[0].json["swerexception"]["message"], got


def test_a_write_that_waits_holds_up_neither_the_end_nor_a_slow_reader(t):
    s = rex(t)
    path, much = t.at("pipe"), "y" * 300000
    os.mkfifo(path)
    holder = os.open(path, os.O_RDWR)  # and reads nothing
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w") as z:
        z.writestr("pipe", much)
    body, headers = form([("file", "z", buf.getvalue()), ("target_path", None, t.path.encode()),
                          ("unzip", None, b"true")])
    got = []

    def writing():
        fds = "/proc/%d/fd" % s.process.pid
        return sum(os.path.realpath(os.path.join(fds, f)) == path for f in os.listdir(fds))

    def begin(call):
        x = threading.Thread(target=lambda: got.append(call()))
        x.start()
        ply.wait_for("a pipe that is full", lambda: writing() and int.from_bytes(
            fcntl.ioctl(holder, termios.FIONREAD, bytes(4)), sys.byteorder) == 65536)
        return x

    def write(**headers):
        return s.post("/write_file", {"path": path, "content": much}, headers=headers)

    def drain(n):
        while n > 0:
            n -= len(os.read(holder, n))
    for call in (write, lambda: s.call("POST", "/upload", body, headers)):
        slow = begin(call)
        drain(len(much))
        slow.join()
        assert got.pop().status == 200
    text = b'{"path": "%s", "content": "%s"}' % (path.encode(), much.encode())
    begin(lambda: s.raw(b"POST /write_file HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n"
                        b"Content-Length: %d\r\n\r\n%s" % (s.token.encode(), len(text), text),
                        timeout=1)).join()
    ply.wait_for("the end of a write without a client", lambda: writing() == 0)
    got.clear()
    drain(65536)
    threads = [begin(lambda: write(**{"X-Request-ID": "1"})),
               begin(lambda: s.call("POST", "/upload", body, headers))]
    ply.wait_for("their writing", lambda: writing() == 2)
    s.stop()
    for x in threads:
        x.join()
    assert [a.status for a in got] == [511, 511], got
    for a in got:
        assert "[Errno 125]" in a.json["swerexception"]["message"], got


def test_nothing_that_begins_late_or_again_holds_up_the_end(t):
    s = rex(t)
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("zeros", bytes(8 << 20))
        z.filelist *= 10000  # 80 GB, into one file
    body, headers = form([("file", "z", buf.getvalue()), ("target_path", None, t.at("z").encode()),
                          ("unzip", None, b"true")])
    endless = {"command": ["sleep", "60.7"], "check": True}
    text = json.dumps(endless).encode()
    got = []
    threads = [threading.Thread(target=lambda: got.append(s.call("POST", "/upload", body, headers)))]
    # The second asks for the first's answer, which is none to be kept: so it begins, too.
    threads += [threading.Thread(target=lambda: got.append(
        s.post("/execute", endless, headers={"X-Request-ID": "1"}))) for _ in range(2)]
    for x in threads:
        x.start()
    ply.wait_for("the archive", lambda: os.path.exists(t.at("z", "zeros")))
    ply.wait_for("the command", lambda: any("sleep 60.7" in c for _, c in s.children()))
    with socket.create_connection(("127.0.0.1", s.port), 10) as late:
        late.sendall(b"POST /execute HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nX-Request-ID: 2\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (s.token.encode(), len(text), text[:5]))
        s.await_read(late)  # only so has it begun
        s.process.send_signal(signal.SIGTERM)
        for x in threads:
            x.join(60)
        late.sendall(text[5:])
        assert late.recv(100).startswith(b"HTTP/1.1 503 "), "a command that begins behind the end"
    s.stop()
    assert [a.status for a in got] == [511] * 3, got
    said = sorted(a.json["swerexception"]["message"] for a in got)
    assert said[0].startswith("Command ['sleep', '60.7'] failed with exit code -9"), said
    assert said[0] == said[1] and "[Errno 125]" in said[2], said


def test_a_terminal_that_is_read_is_not_the_servers(t):
    s = server.Server(t, ["setsid", server.SWEREX_REMOTE, "--host", "127.0.0.1"])
    main, side = os.openpty()
    path = os.ttyname(side)
    os.write(main, b"line\n\x04")
    assert s.post("/read_file", {"path": path}).json == {"content": "line\n"}
    os.close(main)  # hangs up whose terminal it is
    os.close(side)
    time.sleep(0.3)
    assert s.get("/is_alive").status == 200
    s.stop()


def test_a_body_that_fills_its_filesystem_to_the_last_byte(t):
    ply.need_root()
    tmp = t.at("tmp")
    os.mkdir(tmp)
    s = rex(t, env={"TMPDIR": tmp})  # first: ThreadSanitizer has a file of its own in there
    t.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", tmp])
    t.clean.append(lambda: t.run(["umount", tmp], check=False))
    for size, status in ((508 << 10, 511), (512 << 10, 507), (516 << 10, 507)):
        body, headers = form([("file", "f", b"x"), ("target_path", None, b"a" * size)])
        a = s.call("POST", "/upload", body, headers)
        assert a.status == status, (size, a)
    s.stop()


def small_tmpfs(t):
    ply.need_root()
    target = t.at("small")
    os.mkdir(target)
    t.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", target])
    t.clean.append(lambda: t.run(["umount", target], check=False))
    return target


def test_an_archive_that_finds_no_room_takes_none(t):
    target = small_tmpfs(t)
    s = rex(t)
    for size, status in ((1 << 20, 511), (400 << 10, 200)):
        buf = io.BytesIO()
        with zipfile.ZipFile(buf, "w") as z:
            z.writestr("d/f%d" % size, bytes(size))
        body, headers = form([("file", "z", buf.getvalue()), ("target_path", None, target.encode()),
                              ("unzip", None, b"true")])
        a = s.call("POST", "/upload", body, headers)
        assert a.status == status and (status == 200 or "[Errno 28]" in a.json["swerexception"]["message"]), a
    assert os.path.getsize(target + "/d/f%d" % (1 << 20)) == 0


def test_a_text_that_finds_no_room_leaves_the_old_one(t):
    target = small_tmpfs(t)
    s = rex(t)
    ply.write(target + "/f", "old" * 1000)
    os.link(target + "/f", target + "/g")
    for text, status in (("n" * (1 << 20), 511), ("new", 200), ("m" * (400 << 10), 200), ("", 200)):
        a = s.post("/write_file", {"path": target + "/f", "content": text})
        assert a.status == status and (status == 200 or "[Errno 28]" in a.json["swerexception"]["message"]), a
        assert ply.read(target + "/g") == (text if status == 200 else "old" * 1000)
    s.stop()


def test_so_it_is_where_room_cannot_be_set_aside(t):
    target = ply.small_disk(t, 1, "ext2")  # knows no fallocate
    s = rex(t)
    old = "".join("%d old\n" % i for i in range(10000))
    ply.write(target + "/f", old)
    a = s.post("/write_file", {"path": target + "/f", "content": "n" * (2 << 20)})
    assert a.status == 511 and "[Errno 28]" in a.json["swerexception"]["message"], a
    assert ply.read(target + "/f") == old
    s.stop()


def test_a_limit_of_file_sizes_ends_no_server(t):
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("f", bytes(2 << 20))
    body, headers = form([("file", "z", buf.getvalue()), ("target_path", None, b"d"), ("unzip", None, b"true")])
    for s in rex(t), server.serve(t, t.view({"a": "a"})):
        t.run(["prlimit", "--fsize=%d" % (1 << 20), "--pid", str(s.process.pid)])
        a = s.post("/write_file", {"path": "f", "content": "x" * (2 << 20)})
        assert a.status == 507, a  # of its body
        a = s.call("POST", "/upload", body, headers)
        assert a.status == 511 and "[Errno 27]" in a.json["swerexception"]["message"], a
        a = s.post("/execute", {"command": ["grep", "SigIgn", "/proc/self/status"]})
        assert a.json["stdout"] == "SigIgn:\t%016x\n" % 0, a
        s.stop()


def test_uploads(t):
    source = t.tree({"run.sh": "#!/bin/sh\n", "d/\u00fc.txt": "u", ".hidden": "h", "e/f/g": "g" * 100000})
    os.chmod(t.at("source", "run.sh"), 0o755)
    os.makedirs(t.at("source", "empty"))

    async def go():
        r = rex(t).runtime
        await r.upload(UploadRequest(source_path=source, target_path=t.at("up", "tree")))
        assert sorted(os.listdir(t.at("up", "tree"))) == [".hidden", "d", "e", "empty", "run.sh"]
        assert os.stat(t.at("up", "tree", "run.sh")).st_mode & 0o777 == 0o755  # BETTER
        assert ply.read(t.at("up", "tree", "d", "\u00fc.txt")) == "u"
        ply.write(t.at("up", "tree", "mine"), "stays")
        await r.upload(UploadRequest(source_path=source, target_path=t.at("up", "tree")))
        assert ply.read(t.at("up", "tree", "mine")) == "stays"
        for _ in range(2):
            await r.upload(UploadRequest(source_path=t.at("source", "empty"), target_path=t.at("up", "none")))
            assert os.listdir(t.at("up", "none")) == []
        one = t.at("source", "run.sh")
        await r.upload(UploadRequest(source_path=one, target_path=t.at("up", "x", "one")))
        assert os.stat(t.at("up", "x", "one")).st_mode & 0o777 == 0o644
        os.symlink(t.at("nowhere"), t.at("link"))
        await r.upload(UploadRequest(source_path=one, target_path=t.at("link")))
        assert not os.path.islink(t.at("link")) and not os.path.exists(t.at("nowhere"))
        await r.upload(UploadRequest(source_path=one, target_path=t.at("up")))
        assert ply.read(t.at("up", "temp_file_transfer")) == "#!/bin/sh\n"
        await raises(shutil.Error, r.upload(
            UploadRequest(source_path=one, target_path=t.at("up"))), "already exists")
        big = os.urandom(1 << 20) * 40
        ply.write(t.at("big"), big)
        await r.upload(UploadRequest(source_path=t.at("big"), target_path=t.at("big2")))
        assert open(t.at("big2"), "rb").read() == big
    run(go())


def test_no_archive_gets_out_of_its_target(t):
    s = rex(t)
    os.makedirs(t.at("in", "deep"))
    os.symlink(t.path, t.at("in", "out"))
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w") as z:
        for name in ("../up", "/abs", "a/../../b", "deep/../c", "./d"):
            z.writestr(name, name)
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        z.writestr(link, "/etc/passwd")
    body, headers = form([("file", "z", buf.getvalue()), ("target_path", None, t.at("in").encode()),
                          ("unzip", None, b"true")])
    a = s.call("POST", "/upload", body, headers)
    assert a.status == 200, a
    assert sorted(os.listdir(t.at("in"))) == ["a", "abs", "d", "deep", "link", "out", "up"], \
        os.listdir(t.at("in"))
    assert ply.read(t.at("in", "a", "b")) == "a/../../b"
    assert ply.read(t.at("in", "link")) == "/etc/passwd" and not os.path.islink(t.at("in", "link"))
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w") as z:
        z.writestr("out/escaped", "x")
    body, headers = form([("file", "z", buf.getvalue()), ("target_path", None, t.at("in").encode()),
                          ("unzip", None, b"1")])
    a = s.call("POST", "/upload", body, headers)
    assert a.status == 511 and a.json["swerexception"]["class_path"] == "builtins.PermissionError", a
    assert not os.path.exists(t.at("escaped"))
    body, headers = form([("file", "z", b"PK no zip"), ("target_path", None, t.at("z").encode()),
                          ("unzip", None, b"true")])
    a = s.call("POST", "/upload", body, headers)
    assert a.json["swerexception"]["class_path"] == "zipfile.BadZipFile", a
    assert a.json["swerexception"]["message"] == "File is not a zip file"


if __name__ == "__main__":
    with installed.programs():
        ply.main(__name__)
