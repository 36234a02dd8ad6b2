#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 600
"""
swerex-remote beside the server that swe-rex (PyPI) brings: the same calls to both, listed ones and
random ones (PLYFS_TEST_SEED), and every answer compared. What differs on purpose is in DIFFERENCES,
with its reason; each of these has to be seen by a listed call, so none outlives its cause.
"""
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import server
import venv

venv.enter()

# name, kind, reason. BETTER: the reference is defective. QUIRK: how it is made, of no use to anybody.
DIFFERENCES = {
    "no key": ("QUIRK", "a newer FastAPI answers a missing key with 401; upstream's test wants 403"),
    "no JSON": ("QUIRK", "the parser's words for what is none, and how far it had come"),
    "no file": ("QUIRK", "FastAPI's empty ctx beside a field where a file should be"),
    "content type": ("BETTER", "JSON is read whatever Content-Type says: curl -d calls it a form"),
    "tag": ("BETTER", "a body without its tag is a bash one"),
    "marker": ("QUIRK", "expect_string is the reference's marker where it could not parse a command"),
    "first prompt": ("QUIRK", "create_session's output ends with the prompt of bash's startup files"),
    "scrubbed": ("BETTER", "the reference cuts its prompt's words out of whatever a command prints"),
    "timeout text": ("QUIRK", "a timeout's message has the command as it was typed to the shell; "
                              "ours has what the client sent"),
    "partial output": ("BETTER", "extra_info has what was printed before a timeout"),
    "tab": ("BETTER", "a TAB is a TAB: the reference's readline completes it away"),
    "bang": ("BETTER", "no history expansion in what agents send"),
    "heredocs": ("BETTER", "here-documents with something behind them are run as written"),
    "line ends": ("BETTER", "a line that ends in ; or & may be followed by another"),
    "status": ("BETTER", "$? is the last command's, not that of a probe"),
    "idle interrupt": ("QUIRK", "an interrupt of an idle shell: the reference reads an echoed ^C"),
    "left behind": ("BETTER", "a closed session leaves no process, nohup or setsid or not"),
    "closed": ("BETTER", "after /close names are free again"),
    "interactive flags": ("BETTER", "both flags: refused before anything runs, in words"),
    "modes": ("BETTER", "execute bits of an archive are kept"),
    "dead shell": ("QUIRK", "the words of pexpect's exceptions, which dump its insides"),
    "surrogates": ("QUIRK", "which code of the reference stumbles over a lone surrogate"),
    "escape": ("BETTER", "an archive's entry that a symlink would lead out of the target is refused"),
    "methods": ("QUIRK", "bzip2 and LZMA in an archive, which no client makes, are refused"),
    "empty directory": ("BETTER", "an archive of an empty directory makes one"),
    "unzip onto a file": ("QUIRK", "which path the message names"),
}
SEEN = set()
MARKER, PROMPT = "UNIQUESTRING29234", "SHELLPS1PREFIX"


class Reference:
    """The package's own server."""

    def __init__(self, t, cwd, token):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        env = dict(t.env, TERM="dumb", PATH=os.environ["PATH"])
        self.token, self.env = token, env
        self.process = subprocess.Popen(
            [os.path.join(os.path.dirname(sys.executable), "swerex-remote"), "--host", "127.0.0.1",
             "--port", str(self.port), "--auth-token", token], cwd=cwd, env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        t.clean.append(self.kill)
        ply.wait_for("the reference", self.is_up, 60)

    def is_up(self):
        assert self.process.poll() is None, "the reference ended"
        try:
            return self.get("/is_alive").status == 200
        except OSError:
            return False

    kill = server.Server.kill
    connection, call, get = server.Server.connection, server.Server.call, server.Server.get


class Pair:
    def __init__(self, t):
        self.t = t
        self.dirs = [t.at("ref"), t.at("our")]
        for d in self.dirs:
            os.mkdir(d)
        ply.write(t.at("home", ".bashrc"), "")
        self.ref = Reference(t, self.dirs[0], "the token")
        self.our = server.rex(t, token="the token", cwd=self.dirs[1])
        self.count, self.wrong = 0, []

    def files(self, name, data):
        for d in self.dirs:
            ply.write(os.path.join(d, name), data)

    def both(self, method, path, body=None, token=True, headers=None):
        """Two answers, as far as they can be compared. {D} stands for the server's directory."""
        answers = []
        for s, d in zip((self.ref, self.our), self.dirs):
            b = json.loads(json.dumps(body).replace("{D}", d)) if not isinstance(body, bytes) \
                else body.replace(b"{D}", d.encode())
            a = s.call(method, path, b, headers=headers, token=token, timeout=60)
            text = a.body.decode().replace(json.dumps(d)[1:-1], "{D}")
            value = json.loads(text)
            if a.status == 511:
                raised = value["swerexception"]
                raised.pop("traceback")
                # Ours is of before Python 3.13.
                m = re.fullmatch(r"'utf-(\d\d)' codec .*: Stream does not start with BOM", raised["message"])
                if m:
                    raised.update(class_path="builtins.UnicodeError",
                                  message="UTF-%s stream does not start with BOM" % m[1])
            if a.status == 200 and value.get("expect_string") == MARKER:
                value["expect_string"] = PROMPT
                SEEN.add("marker")
            if a.status == 200 and path == "/create_session" and re.search(r"[#$] $", value["output"]):
                value["output"] = re.sub(r"[^\n]*[#$] $", "", value["output"])
                SEEN.add("first prompt")
            answers.append((a.status, value))
        return answers

    def same(self, call, expected=None, also=None):
        """expected: the difference that there has to be; also: one that there may be."""
        assert {expected, also} <= {None, *DIFFERENCES}
        ref, our = self.both(*call)
        self.count += 1
        if ref == our:
            if expected:
                self.wrong.append("%r: no longer %r" % (call, expected))
            return our
        if expected or also:
            SEEN.add(expected or also)
            return our
        self.wrong.append("%r\n   ref %r\n  ours %r" % (call, ref, our))
        return our

    def done(self):
        assert not self.wrong, "%d of %d differ:\n%s" % (len(self.wrong), self.count,
                                                         "\n".join(self.wrong[:25]))
        print("# %d calls compared" % self.count)


def bash(command, session="default", **kw):
    return ("POST", "/run_in_session", dict(action_type="bash", command=command, session=session,
                                            timeout=kw.pop("timeout", 10), **kw))


def create(session="default", **kw):
    return ("POST", "/create_session", dict(session_type="bash", session=session,
                                            startup_timeout=10, **kw))


def close(session="default"):
    return ("POST", "/close_session", dict(session_type="bash", session=session))


def execute(command, **kw):
    return ("POST", "/execute", dict(command=command, timeout=kw.pop("timeout", 10), **kw))


# ---- listed calls ----

COMMANDS = [
    "echo a", "echo a; echo b >&2", "printf x", "printf '\\n\\n x \\n\\n'", "echo ''", "echo  '  a'",
    "true", "false", "nosuchcommand", "cd /usr; pwd", "pwd", "export A=1 B='two words'",
    "echo \"$A\" \"$B\"", "f() { echo f$1; return $2; }", "f 1 0", "f 2 3", "alias al='echo alias'", "al x",
    "echo one\necho two", "\n\necho x\n\n\necho y\n", "# comment", "echo a # comment\n# another\necho b", "",
    "   ", "\n", "for i in 1 2 3; do\n  echo $i\ndone", "if true; then echo yes; else echo no; fi",
    "while read -r l; do echo \"<$l>\"; done < <(printf 'a\\nb\\n')", "case x in\nx) echo is;;\nesac",
    "echo 'multi\nline'", "echo \"a\nb\" | wc -l", "echo a \\\n  b", "[[ x == x ]] && echo yes",
    "a=(1 2 3); echo ${a[1]} ${#a[@]}", "echo $((6 * 7))", "(exit 9)", "{ echo g; }", "! true",
    "cat <<EOF\nplain $A\nEOF", "cat <<'EOF'\nquoted $A\nEOF", "cat <<-'EOF'\n\ttabbed\n\tEOF",
    "cat <<<here", "python3 - <<'EOF'\nprint('py')\nEOF", "cat <<'A' && echo after\nx\nA",
    "echo a | tr a-z A-Z", "false | true", "set -o pipefail; false | true", "set +o pipefail",
    "printf 'a\\033[31mred\\033[0m\\n'", "printf 'cr\\rlf\\r\\nend'", "printf 'x\\377y\\n'", "printf '\\303\\274\\n'",
    "echo \u00fc\u20ac\U0001f600", "seq 1 3000", "printf 'tab\\there'", "ls /usr | head -3", "stty size", "tty -s; echo $?",
    "kill -INT $$; echo alive", "sh -c 'kill -9 $$'", "sh -c 'exit 200'", "sleep 0.1; echo slept",
    "echo \"q'q\" 'd\"d'", "echo $PS1", "printf '%s' \"$PS2\"", "umask", "echo ${-//[^h]/}", "ulimit -n >/dev/null",
    "time_() { echo t; }; time_", "(a", "a='", "for", "echo 'unterminated", "if true", "echo )", "}", "echo a &&",
    "(sleep 5 &) ", "echo x > {D}/redirected; cat {D}/redirected", "read -r v <<< val; echo $v", "echo *", "echo \\$A",
    "trap 'echo trapped' USR1; kill -USR1 $$", "unset A; echo ${A-unset}", "eval 'echo evaluated'", "type f | head -1",
    "exec 10>{D}/ten; echo hi >&10; cat {D}/ten", "echo more >&10; cat {D}/ten", "exec 11</etc/passwd; read -r l <&11",
    "read -r l <&11; echo \"$l\"", "exec 10>&- 11<&-", "flock 10 echo held 10>{D}/lock",
    "printf '\\a\\b'", "printf 'osc \\033]0;title\\007end'", "printf '\\033(B'", "echo a;;", "echo `echo tick`",
    "PATH=/opt/nowhere", "echo a \\\n  b", "(a", "echo {} \\\n)", "PATH=/usr/bin:/bin",
]


def test_sessions(t):
    p = Pair(t)
    p.same(create())
    p.same(create())
    for i, command in enumerate(COMMANDS):
        for check in ("silent", "raise") if ply.LONG else (("silent", "raise")[i % 2],):
            p.same(bash(command, check=check), "scrubbed" if command == "echo $PS1" else None)
    p.same(bash("false", check="raise", error_msg="what's up"))
    p.same(bash("echo a\0b"))
    p.same(bash("echo a", check="ignore"))
    p.same(bash("echo b"))
    p.same(bash("x", session="it's"))
    p.same(close("it's \"q\" \u00fc\n"))
    p.same(close())
    p.same(close())
    p.same(bash("x"))
    for session in ("", "a b", "\u00fc"):
        p.same(create(session))
        p.same(bash("echo $0", session))
        p.same(close(session))
    p.files("src.sh", "export SOURCED=1\necho from the file\n")
    made = p.both(*create("s", startup_source=["{D}/src.sh", "{D}/none"]))
    assert all("from the file" in a[1]["output"] for a in made), made
    p.same(bash("echo $SOURCED", "s"))
    p.same(bash("exit 3", "s"), "dead shell")
    p.same(close("s"))
    p.done()


def test_what_is_better_in_sessions(t):
    """Each in a session of its own: what the reference does may leave it out of step."""
    p = Pair(t)
    for i, (name, calls) in enumerate([
        ("tab", [bash("echo 'a\tb'")]),
        ("bang", [bash("echo \"wow!x\"")]),
        ("heredocs", [bash("cat <<EOF\na\nEOF\ncat <<EOF\nd\nEOF", timeout=4)]),
        ("line ends", [bash("echo a;\necho b")]),
        ("status", [bash("(exit 5)", check="silent"), bash("echo $?")]),
        ("partial output", [bash("echo begun; sleep 3", timeout=2)]),
        ("timeout text", [bash("echo a\nsleep 3", timeout=2)]),
        ("idle interrupt", [{}]),
        ("interactive flags", [bash("x", is_interactive_command=True, is_interactive_quit=True)]),
    ]):
        session = "b%d" % i
        p.both(*create(session))
        for k, call in enumerate(calls):
            call = call or ("POST", "/run_in_session", {"action_type": "bash_interrupt"})
            call[2]["session"] = session
            p.same(call, name if k + 1 == len(calls) else None)
    leaves = "nohup sleep 300 >/dev/null 2>&1 & echo $! >pid"
    p.both(*create("leaves"))
    p.both(*bash(leaves, "leaves"))
    p.both(*close("leaves"))
    p.both(*create("finds"))
    p.same(bash("kill $(cat pid) 2>/dev/null && echo alive || echo gone", "finds"), "left behind")
    p.both(*create("closed"))
    p.both("POST", "/close")
    p.same(create("closed"), "closed")
    p.done()


def test_patterns_of_ordinary_commands(t):
    """The wait goes on for the command's end, for a second. Each in a session of its own, since the
    reference may be out of step afterwards."""
    p = Pair(t)
    ready = "echo one; sleep 0.2; echo READY; sleep 0.2; echo two"
    for i, (command, check) in enumerate([
        (c, check) for check in ("silent", "raise")
        for c in (ready, ready + "; (exit 7)", "echo READY", "echo never", "(exit 3)",
                  "echo READY; sleep 1.7; echo tail")
    ]):
        wrong = len(p.wrong)
        for k in range(5):  # who gets no CPU for most of that second sees less: on a busy machine once more
            del p.wrong[wrong:]
            session = "p%d.%d" % (i, k)
            p.both(*create(session))
            p.same(bash(command, session, expect=["nope", "READ."], check=check))
            if "tail" not in command:
                p.same(bash("echo next", session))
            if len(p.wrong) == wrong:
                break
    for check, expected in (("raise", "dead shell"), ("silent", None)):
        p.both(*create(check))
        p.same(bash("echo READY; sleep 0.3; exit", check, expect=["READY"], check=check), expected)
    p.done()


def test_a_shell_within_the_shell(t):
    """Each by a command of the kinds that start it, and that run something in it."""
    p = Pair(t)
    for i, (shell, typed, kw) in enumerate([
        (shell, typed, kw) for shell in ("sh", "bash --norc")
        for typed in ({}, {"is_interactive_command": True}) for kw in (typed, {})
    ]):
        session = "n%d" % i
        p.both(*create(session))
        p.same(bash(shell, session, **typed))
        for command in ("echo hi", "echo a; echo b", "cd /usr && pwd", "sleep 0.3; echo slept", "sh",
                        "echo inner", "exit"):
            p.same(bash(command, session, **kw))
        if not kw:
            p.same(bash("(exit 7)", session, check="silent"))
            p.same(bash("(exit 7)", session, check="raise"))
            p.same(bash("echo a\necho b", session))
        p.same(bash("echo begun; sleep 20", session, timeout=2, **kw), "partial output")
        p.same(("POST", "/run_in_session", {"action_type": "bash_interrupt", "session": session,
                                            "timeout": 1.0}))
        p.same(bash("echo after", session, **kw))
        p.same(bash("exit", session))
        p.same(bash("echo back", session))
    p.done()


def test_interrupts_and_timeouts(t):
    p = Pair(t)
    p.same(create())
    for command in ("sleep 20", "echo begun; sleep 20", "python3 -c 'import time; time.sleep(20)'"):
        ref, our = p.both(*bash(command, timeout=2.5))  # so that it sleeps by then
        assert ref[0] == our[0] == 511
        assert len({a[1]["swerexception"]["class_path"] for a in (ref, our)}) == 1, (ref, our)
        head = "timeout after 2.5 seconds while running command "
        assert all(a[1]["swerexception"]["message"].startswith(head) for a in (ref, our)), (ref, our)
        p.same(("POST", "/run_in_session", {"action_type": "bash_interrupt", "timeout": 1.0}))
        p.same(bash("echo after"))
    p.same(bash("python3 -q -i", is_interactive_command=True, expect=[">>> "]))
    p.same(bash("print(6 * 7)", is_interactive_command=True, expect=[">>> "]))
    p.same(bash("print('x' * 5)", is_interactive_command=True, expect=["x{3}", ">>> "]))
    p.both(*bash("1", is_interactive_command=True, expect=[">>> "]))
    ref, our = p.both(*bash("quit()\n", is_interactive_quit=True))
    assert ref[0] == our[0] == 200 and ref[1]["exit_code"] == our[1]["exit_code"] == 0
    p.same(bash("echo back"))
    p.done()


def test_execute(t):
    p = Pair(t)
    os.mkdir(p.dirs[0] + "/sub")
    os.mkdir(p.dirs[1] + "/sub")
    p.files("noexec", "#!/bin/sh\n")
    for call in [
        execute(["echo", "a b"]), execute("echo hi"), execute("true"), execute("pwd", cwd="{D}/sub"),
        execute("echo o; echo e >&2; exit 3", shell=True), execute("kill -9 $$", shell=True),
        execute("kill -TERM $$", shell=True), execute("", shell=True), execute(""), execute([]), execute([""]),
        execute("echo a; echo b >&2; echo c", shell=True, merge_output_streams=True),
        execute(["echo $0-$1", "x", "y"], shell=True), execute("printf 'a\\377\\r\\nb'", shell=True),
        execute(["/usr/bin/env"], env={"A": "1", "B": "\u00fc"}), execute(["/usr/bin/env"], env={}),
        execute(["/usr/bin/env"], env={"A=B": "c"}),
        # Python refuses it since 3.13; ours is of before that.
        *([execute(["/usr/bin/env"], env={"": "x"})] if sys.version_info < (3, 13) else []),
        execute(["env"], env={"PATH": "/nowhere"}), execute(["env"], env={"X": "1"}), execute("cat", shell=True),
        execute("nope"), execute(["{D}/noexec"]), execute(["{D}"]), execute("pwd", cwd="{D}/none"),
        execute("pwd", cwd="{D}/noexec"), execute(["a\0b"]), execute("sleep 9", shell=True, timeout=0.3),
        execute("(sleep 0.4; echo late; echo e >&2) & echo now; exit 3", shell=True),
        execute("sleep 5 & echo now", shell=True, timeout=0.5), execute("sleep 5 >/dev/null 2>&1 & echo now", shell=True),
        execute("sleep 9", shell=True, timeout=0.25), execute("exit 4", shell=True, check=True),
        execute("echo \"it's\"; exit 4", shell=True, check=True, error_msg="m"),
        execute(["sh", "-c", "exit 5"], check=True), execute("exit 0", shell=True, check=True),
        execute("sh -c 'exit 300'", shell=True), execute("tty; echo $?", shell=True),
        execute("read x; echo $?", shell=True), execute("[[ a ]] 2>/dev/null; echo $?", shell=True),
        execute("echo $BASH_VERSION", shell=True), execute("seq 1 100000 | tail -1", shell=True),
        execute("trap", shell=True), execute("ls /proc/self/fd | wc -l", shell=True),
        execute("echo a", shell="yes"), execute("echo a", shell=1, timeout="5"), execute("echo a", shell=True, extra=1),
        execute(["./sub/../noexec"]), execute(["echo", "\u00fc\U0001f600\n\t"]), execute(["echo", ""]),
        execute("exit 3", shell=True, check="off"), execute("true", timeout=None), execute("false", timeout=True),
        execute("pwd", cwd=""), execute(["/bin/echo", "x" * 140000]), execute("x" * 140000, shell=True), execute(["a" * 5000]),
        execute(["{D}/noexec/x"]), execute("printf 'a\\377'; printf '\\303' >&2; exit 1", shell=True, check=True),
    ]:
        p.same(call)
    p.done()


def test_files(t):
    p = Pair(t)
    texts = {"plain": b"a\nb\n", "crlf": b"a\r\nb\rc\n\r\n", "bad": b"a\xffb\xe2\x82z", "bom": b"\xef\xbb\xbfx\r\n",
             "cut": b"ab\xe2\x82", "latin": b"caf\xe9\x80\x81", "nul": b"a\0b", "empty": b"", "u16": "\u00fc\r\nx".encode("utf-16"),
             "u16le": "\u00fc\r\nx".encode("utf-16-le"), "u32": "\u00fc\U0001f600".encode("utf-32"), "odd": b"abc",
             "surr": b"\xed\xa0\x80x"}
    for name, data in texts.items():
        p.files(name, data)
    for d in p.dirs:
        os.makedirs(d + "/dir")
        os.symlink("plain", d + "/link")
        os.symlink("nowhere", d + "/broken")
    for name in texts:
        for encoding in (None, "utf-8", "UTF_8_SIG", "ascii", "latin1", "cp1252", "utf-16", "utf-16-le", "utf-16-be",
                         "utf-32", "klingon"):
            for errors in (None, "strict", "ignore", "replace", "backslashreplace", "surrogateescape", "pray"):
                if encoding not in (None, "utf-8", "ascii") and errors not in (None, "replace"):
                    continue
                also = "surrogates" if errors == "surrogateescape" else None
                p.same(("POST", "/read_file", {"path": "{D}/" + name, "encoding": encoding, "errors": errors}), also=also)
    for path in ("", ".", "{D}", "{D}/none", "{D}/plain/x", "plain", "{D}/link", "{D}/broken", "a\0b", "x" * 300, "~/x", "/root/no\ud800"):
        p.same(("POST", "/read_file", {"path": path}), also="surrogates" if "\ud800" in path else None)
    for path in ("{D}/new", "{D}/a/b/c", "{D}/plain", "{D}/link", "{D}/broken", "{D}/dir", "{D}/plain/x", "{D}/plain/x/y",
                 "", "relative", "{D}/dir/", "a\0b", "{D}/" + "n" * 300, "{D}//double//slash", "{D}/dir/../up"):
        p.same(("POST", "/write_file", {"path": path, "content": "x\r\n\u00fc\0"}))
    p.same(execute("cd {D}; find . -printf '%P %m %y %s\\n' | LC_ALL=C sort", shell=True))
    p.done()


def form(parts):
    body = b"".join(b"--B\r\nContent-Disposition: form-data; name=\"%s\"%s\r\n\r\n%s\r\n" % (
        n.encode(), b"; filename=\"%s\"" % f.encode() if f is not None else b"", d) for n, f, d in parts)
    return body + b"--B--\r\n", {"Content-Type": "multipart/form-data; boundary=B"}


def archive(entries, method=zipfile.ZIP_DEFLATED):
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w", method) as z:
        for name, mode, data in entries:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            info.compress_type = method
            z.writestr(info, data)
    return buf.getvalue()


def test_uploads(t):
    p = Pair(t)
    for d in p.dirs:
        os.makedirs(d + "/dir")
        os.symlink("dir", d + "/tolink")
    p.files("old", "old")

    def upload(parts, expected=None):
        body, headers = form(parts)
        return p.same(("POST", "/upload", body, True, headers), expected)
    for target in ("{D}/one", "{D}/a/b/one", "{D}/old", "{D}/tolink", "{D}/dir/", "rel", "{D}/old/x"):
        upload([("file", "f", b"data\0\r\n\xff"), ("target_path", None, target.encode())])
    again = p.both("POST", "/upload", *(lambda b, h: (b, True, h))(*form(
        [("file", "f", b"x"), ("target_path", None, b"{D}/tolink")])))
    assert [a[1]["swerexception"]["class_path"] for a in again] == ["shutil.Error"] * 2, again
    plain = archive([("f.txt", 0o100644, b"f"), ("d/", 0o40755, b""), ("d/g", 0o100600, b"g" * 10000), ("\u00fc", 0o100644, b"u")])
    odd = archive([("../up", 0o100644, b"1"), ("/abs", 0o100644, b"2"), ("a/../../b", 0o100644, b"3"), ("./c", 0o100644, b"4"),
                   ("l", 0o120777, b"/etc/passwd"), ("d//e", 0o100644, b"5")])
    for data in (plain, odd, plain):
        for unzip in (b"true", b"1", b"YES"):
            upload([("file", "z.zip", data), ("target_path", None, b"{D}/unzipped"), ("unzip", None, unzip)])
    upload([("file", "z.zip", plain), ("target_path", None, b"{D}/kept.zip"), ("unzip", None, b"")])
    upload([("file", "z.zip", plain), ("target_path", None, b"{D}/kept2.zip"), ("unzip", None, b"no")])
    upload([("file", "z", b"no zip"), ("target_path", None, b"{D}/bad"), ("unzip", None, b"true")])
    for data in (archive([]), archive([])[:21]):
        upload([("file", "z", data), ("target_path", None, b"{D}/a/empty"), ("unzip", None, b"true")])
    p.same(execute("rmdir {D}/a/empty", shell=True), "empty directory")
    upload([("file", "z", plain), ("target_path", None, b"{D}/old"), ("unzip", None, b"true")],
           "unzip onto a file")
    upload([("file", "z", b""), ("target_path", None, b"{D}/zero")])
    upload([("target_path", None, b"{D}/q"), ("unzip", None, b"false"), ("file", "late", b"order")])
    upload([("file", "f", b"first"), ("target_path", None, b"{D}/r"), ("target_path", None, b"{D}/s"), ("file", "f", b"last")])
    p.same(execute("cat {D}/r {D}/s", shell=True))
    for parts in ([("file", "f", b"x")], [("target_path", None, b"x")], [],
                  [("file", "f", b"x"), ("target_path", None, b"{D}/m"), ("unzip", None, b"maybe")]):
        upload(parts)
    got = upload([("file", None, b"x"), ("target_path", None, b"x")], "no file")
    assert got[0] == 422 and "Expected UploadFile" in got[1]["detail"][0]["msg"], got
    p.same(execute("cd {D}; find . ! -name '*.sh' -printf '%P %m %y %s\\n' | LC_ALL=C sort", shell=True))
    upload([("file", "z", archive([("run.sh", 0o100755, b"#!/bin/sh\n")])), ("target_path", None, b"{D}/x"), ("unzip", None, b"1")])
    p.same(execute("stat -c %a {D}/x/run.sh", shell=True), "modes")
    for names in (["a", "a/b"], ["b/c", "b"], ["n" * 300]):
        upload([("file", "z", archive([(n, 0o100644, b"x") for n in names])), ("target_path", None, b"{D}/clash"),
                ("unzip", None, b"1")])
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        p.files("packed/old", "old")
        upload([("file", "z", archive([("old", 0o100644, b"new" * 100)], method)), ("target_path", None, b"{D}/packed"),
                ("unzip", None, b"1")], "methods" if method else None)
        p.same(execute("cat {D}/packed/old", shell=True), "methods" if method else None)
        assert ply.read(p.dirs[1] + "/packed/old") == ("old" if method else "new" * 100)
    for d in p.dirs:
        os.makedirs(d + "/esc")
        os.symlink("..", d + "/esc/out")
    upload([("file", "z", archive([("out/escaped", 0o100644, b"x")])), ("target_path", None, b"{D}/esc"), ("unzip", None, b"1")],
           "escape")
    p.done()


def test_http(t):
    p = Pair(t)
    key = {"X-API-Key": "wrong"}
    for method, path in [("GET", "/"), ("GET", "/is_alive"), ("GET", "/nope"), ("POST", "/nope"), ("GET", "/execute"),
                         ("POST", "/is_alive"), ("DELETE", "/"), ("PUT", "/upload"), ("GET", "//is_alive"), ("GET", "/is_alive?x=1")]:
        p.same((method, path))
        p.same((method, path, None, False, key))
        p.same((method, path, None, False), "no key")
    bad = [("/execute", {}), ("/execute", {"command": 5}), ("/execute", {"command": "x", "timeout": "soon"}),
           ("/execute", {"command": "x", "shell": "maybe"}), ("/execute", {"command": "x", "env": {"a": 1}}),
           ("/execute", {"command": "x", "env": []}), ("/execute", {"command": "x", "cwd": 3}), ("/execute", []), ("/execute", 5),
           ("/execute", {"command": "x", "error_msg": None}), ("/execute", {"command": "true", "shell": 2}),
           ("/read_file", {}), ("/read_file", {"path": None}), ("/read_file", {"path": 5}), ("/write_file", {"path": "x"}),
           ("/write_file", {"content": "x"}), ("/create_session", {"session_type": "zsh"}), ("/create_session", []),
           ("/create_session", {"session_type": "bash", "startup_timeout": None}),
           ("/create_session", {"session_type": "bash", "startup_source": "x"}), ("/create_session", {"session_type": "bash", "session": 5}),
           ("/run_in_session", {"action_type": "bash"}), ("/run_in_session", {"action_type": "dash", "command": "x"}),
           ("/run_in_session", {"action_type": "bash", "command": "x", "check": "perhaps"}),
           ("/run_in_session", {"action_type": "bash", "command": "x", "expect": "y"}),
           ("/run_in_session", {"action_type": "bash", "command": "x", "expect": [1]}),
           ("/run_in_session", {"action_type": "bash", "command": "x", "is_interactive_command": 7}),
           ("/run_in_session", {"action_type": "bash_interrupt", "n_retry": 1.5}),
           ("/run_in_session", {"action_type": "bash_interrupt", "n_retry": "x"}),
           ("/run_in_session", {"action_type": "bash_interrupt", "timeout": None}),
           ("/close_session", {"session_type": "zsh"}), ("/close_session", {"session_type": "bash", "session": None}),
           ("/execute", {"command": None}), ("/execute", {"command": ["a", 1, 2]}), ("/execute", {"command": {"a": 1}}),
           ("/execute", {"command": "x", "timeout": ""}), ("/execute", {"command": "x", "shell": None}),
           ("/execute", {"command": "x", "shell": 1.5}), ("/execute", {"command": "x", "shell": 2.0}),
           ("/execute", {"command": "x", "env": {"a": 1, "b": 2}}), ("/execute", {"command": "x", "env": "s"}),
           ("/execute", {"command": 5, "shell": 2, "cwd": []}), ("/execute", "s"), ("/execute", None),
           ("/read_file", {"path": 5, "encoding": 4, "errors": True}), ("/write_file", {}),
           ("/create_session", {"session_type": 5}),
           ("/create_session", {"session_type": "bash", "startup_source": ["a", 1, None]}),
           ("/run_in_session", {"action_type": "bash", "command": 1, "timeout": "x", "session": None}),
           ("/run_in_session", {"action_type": "bash", "command": "x", "check": None}),
           ("/run_in_session", {"action_type": "bash", "command": "x", "expect": {"a": "b"}}),
           ("/run_in_session", {"action_type": "bash_interrupt", "n_retry": "1.5"}),
           ("/run_in_session", {"action_type": "bash_interrupt", "n_retry": []})]
    for path, body in bad:
        got = p.same(("POST", path, body))
        assert got[0] == 422, (path, body, got)
    p.same(("POST", "/run_in_session", {"action_type": "bash_interrupt", "n_retry": 1 << 40}))
    p.same(("POST", "/execute", b"", True, {"Content-Type": "application/json"}))
    for body in (b"{", b"\xff", b"nonsense", b"{\"command\": }"):
        got = p.same(("POST", "/execute", body, True, {"Content-Type": "application/json"}), "no JSON")
        (detail,) = got[1]["detail"]
        assert got[0] == 422 and detail["type"] == "json_invalid" and detail["ctx"]["error"], got
    p.same(("POST", "/execute", b'{"command": ["echo", "x"]}', True,
            {"Content-Type": "application/x-www-form-urlencoded"}), "content type")
    p.same(("POST", "/create_session", {"session": "t", "startup_timeout": 10}), "tag")
    p.same(("POST", "/close"))
    p.same(("POST", "/close"))
    p.done()


# ---- random ones ----

WORDS = ["a", "b c", "$X", "'s'", "\"d\"", "\\$", "*", "~", "#", "\u00fc", "x=1", "-n", "%s", "\\", "\"'\"", "`", "()", "{}"]


def quoted(rng):
    return "'%s'" % rng.choice(WORDS).replace("'", "'\\''")


def simple(rng):
    return rng.choice([
        lambda: "echo " + " ".join(quoted(rng) for _ in range(rng.randrange(4))),
        lambda: "printf '%s\\n' " + quoted(rng),
        lambda: "printf " + quoted(rng).replace("%s", "").replace("\\", "") if rng.random() < .3 else "printf end",
        lambda: "true", lambda: "false", lambda: "(exit %d)" % rng.randrange(256),
        lambda: "X=%s" % quoted(rng), lambda: "echo \"$X\"", lambda: "cd /%s" % rng.choice(["", "usr", "tmp", "nope"]),
        lambda: "pwd", lambda: "echo err >&2", lambda: "seq %d" % rng.randrange(200),
        lambda: "printf '\\n'", lambda: "test %s = %s" % (quoted(rng), quoted(rng)),
        lambda: "sh -c 'exit %d'" % rng.randrange(256), lambda: "nosuch%d" % rng.randrange(9),
    ])()


def command(rng, depth=0):
    kind = rng.randrange(12)
    if depth > 2 or kind < 4:
        return simple(rng)
    inner = lambda: command(rng, depth + 1)
    return [
        lambda: inner() + "\n" + inner(), lambda: inner() + " && " + simple(rng), lambda: inner() + " || " + simple(rng),
        lambda: simple(rng) + " | cat", lambda: "for i in 1 2; do\n%s\ndone" % inner(), lambda: "(%s)" % simple(rng),
        lambda: "if %s; then\n%s\nfi" % (simple(rng), inner()), lambda: "g() {\n%s\n}\ng" % inner(),
    ][kind - 4]()


def test_random_commands(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(1 << 30))
    print("# seed %d" % seed)
    rng = random.Random(seed)
    p = Pair(t)
    p.same(create())
    for _ in range(2000 if ply.LONG else 60):
        p.same(bash(command(rng), check=rng.choice(["silent", "raise"]), error_msg=rng.choice(["", "m"])))
        if rng.random() < .2:
            p.same(execute(command(rng), shell=True, check=rng.random() < .3, merge_output_streams=rng.random() < .3))
    p.done()


def test_each_difference_was_seen(t):
    if len(sys.argv) > 1:
        ply.skip("not all of them ran")
    assert SEEN == set(DIFFERENCES), SEEN ^ set(DIFFERENCES)


if __name__ == "__main__":
    ply.main(__name__)
