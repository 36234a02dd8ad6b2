#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 150
"""
Random commands in sessions give what `bash -c` gives in a fresh process on a terminal of the same
modes: the same bytes, the same exit code. Also many sessions at once, and much output.

PLYFS_TEST_LONG=1: 10,000 commands, 200 sessions, 100 MB. PLYFS_TEST_SEED=n repeats a run. `bench`
as a word prints round trips of `true` and times of large outputs.
"""
import os
import pty
import random
import re
import subprocess
import sys
import termios
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plypy

plyfs = plypy.package()

COMMANDS = 10000 if ply.LONG else 300
SESSIONS = 200 if ply.LONG else 40
# Commands per session: state must not pile up so that one disturbs another.
PER_SESSION = 100


def environment(t):
    home = t.at("home")
    os.makedirs(home, exist_ok=True)
    return {"HOME": home, "LC_ALL": "C.UTF-8", "PWD": t.path, "BASH_ENV": "", "ENV": ""}


def session(t, name="random"):
    s = plyfs.Session(name, cwd=t.path, startup_timeout=60, env=environment(t))
    s.start()
    return s


# ---- the other side: a fresh bash on a terminal ----


def fresh(t, command):
    """bash -c command on a terminal with a session's modes: output and exit code."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[0] &= ~termios.IXON
    modes[1] &= ~termios.OPOST
    modes[3] = modes[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    termios.tcsetwinsize(slave, (24, 80))
    argv = ["bash", "-c", command, "bash"]
    if len(command) > 100000:  # an argument is at most 128 KiB
        with open(t.at("command"), "wb") as f:
            f.write(command)
        argv = ["bash", "-c", "mapfile -d '' c < command; eval \"$c\"", "bash"]
    env = dict(os.environ, TERM="dumb", PS1="SHELLPS1PREFIX", PS2="", PS0="", **environment(t))
    p = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=t.path, env=env,
                         executable="/bin/bash", start_new_session=True,
                         preexec_fn=lambda: __import__("fcntl").ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    out = []
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        out.append(data)
    os.close(master)
    return b"".join(out), p.wait()


# How bash names itself: an interactive one leaves out "line N: ", a function of `bash -c` lies in
# "environment"; warnings name lines of the terminal. The rest of a message has to be the same.
PREFIX = re.compile(rb"(?:environment|bash): (?:-c: |eval: )?(command substitution: )?"
                    rb"(?:line \d+: )?")
AT_LINE = re.compile(rb"at line \d+ delimited")


def normal(output):
    return AT_LINE.sub(b"at line N delimited", PREFIX.sub(rb"bash: \1", output))


# ---- random commands ----

WORDS = ["a", "bc", "x y", "  lead", "trail ", "tab\there", "q'uote", 'd"ouble', "$dollar", "`tick`",
         "back\\slash", "*", "?", "[a]", "~", "#no", "!bang", "{b,c}", "é", "日本", "\x01\x02", "\x03",
         "\x04", "\x1a\x1c", "\x7f\x08", "\r", "\x1b[31mred\x1b[0m", "\x11\x13", "", "-n", "--", "%s",
         "EOF", "done", "fi", "}", ")", "esac", "&&", ";;", "\\", "a\nb", "\n", "$(", "${", "'"]


class Maker:
    """Commands that end by themselves, the same every time, and leave no state that others see."""

    def __init__(self, rng):
        self.rng = rng
        self.names = 0

    def name(self):
        self.names += 1
        return "v%d_%d" % (self.names, self.rng.randrange(10 ** 9))

    def word(self):
        w = "".join(self.rng.choice(WORDS) for _ in range(self.rng.randrange(1, 4)))
        return self.quote(w)

    def quote(self, w):
        how = self.rng.randrange(4)
        if how == 0:
            return "'" + w.replace("'", "'\\''") + "'"
        if how == 1:
            return '"' + re.sub(r'([\\"$`])', r"\\\1", w) + '"'
        if how == 2:
            return "$'" + "".join("\\x%02x" % b if b < 32 or b in (39, 92) else chr(b)
                                  if b < 127 else "\\x%02x" % b for b in w.encode()) + "'"
        return "".join("\\" + c if c.isascii() and not c.isalnum() and c not in "\n_" else
                       "'\n'" if c == "\n" else c for c in w) or "''"

    def lines(self, n=4):
        # A word may bring a line of its own: none is to be the delimiter.
        return "".join("%s\n" % re.sub(r"(?m)^EOF", "xEOF", self.rng.choice(WORDS) +
                                       self.rng.choice(WORDS))
                       for _ in range(self.rng.randrange(n)))

    def small(self):
        return self.rng.randrange(1, 6)

    # Each returns a list of lines of a script; what may follow on the same line is not known.

    def echo(self, depth):
        return "printf '%%s\\n' %s" % " ".join(self.word() for _ in range(self.small()))

    def stderr(self, depth):
        return "echo %s >&2" % self.word()

    def here(self, depth):
        # Unquoted: only what expands to itself.
        body = "".join("%s $((%d + 1)) ${#PWD} \\$x\n" % (self.rng.choice(["a", "x y", "é", "}", ")"]),
                                                    self.small()) for _ in range(self.rng.randrange(4)))
        return self.rng.choice(["cat <<EOF\n%sEOF", "cat <<-EOF | tr a-z A-Z\n\t%sEOF",
                                "cat <<EOF && echo after\n%sEOF"]) % body

    def here_quoted(self, depth):
        return self.rng.choice(["cat <<'EOF'\n%sEOF", "cat <<\\EOF | wc -c\n%sEOF",
                                'cat <<"EOF" 1>&2\n%sEOF', "cat - <<'EOF' ; echo $?\n%sEOF"]) \
            % self.lines()

    def two_heres(self, depth):
        return "cat <<'EOF'; cat <<'EOF'\n%sEOF\n%sEOF" % (self.lines(), self.lines())

    def here_string(self, depth):
        return self.rng.choice(["cat <<<%s", "read -r x <<<%s; echo \"[$x]\"; unset x",
                                "wc -c <<<%s"]) % self.word()

    def arithmetic(self, depth):
        a, b = self.rng.randrange(1000), self.rng.randrange(1, 50)
        return self.rng.choice(["echo $((%d * %d)) $((%d %% %d))" % (a, b, a, b),
                                "(( %d > %d ))" % (a, b * 20), "let 'q = %d'; echo $q; unset q" % a,
                                "echo $(( (%d << 3) | %d ? 5 : 6 ))" % (a, b)])

    def array(self, depth):
        n = self.name()
        return "%s=(%s); echo ${#%s[@]}; printf '<%%s>' \"${%s[@]}\"; unset %s" % (
            n, " ".join(self.word() for _ in range(self.small())), n, n, n)

    def assoc(self, depth):
        n = self.name()
        return "declare -A %s; %s[k]=%s; %s['a b']=2; echo \"${%s[k]}\" ${%s['a b']}; unset %s" % (
            n, n, self.word(), n, n, n, n)

    def function(self, depth):
        n = self.name()
        return "%s() {\n%s\nreturn %d\n}\n%s %s\necho $?; unset -f %s" % (
            n, self.script(depth + 1), self.rng.randrange(256), n, self.word(), n)

    def pipeline(self, depth):
        # Not 2>&1 | sort: what bash says begins otherwise in a session, and would be in another place.
        # Nor past the pipe: who is first at the terminal is a matter of luck.
        return self.rng.choice(["{ %s\n} 2>/dev/null | cat", "{ %s\n} 2>/dev/null |\n cat",
                                "{ %s\n} 2>/dev/null | cat -A | head -n 3",
                                "! { %s\n} 2>/dev/null | wc -l",
                                "{ %s\n} 2>/dev/null | sort"]) % self.one(depth + 1)

    def failing(self, depth):
        return self.rng.choice(["false", "(exit %d)" % self.rng.randrange(256), "true | false | true",
                                "set -o pipefail; false | true; r=$?; set +o pipefail; (exit $r)",
                                "ls /nonexistent-%d" % self.rng.randrange(10), "nosuchcommand_xyz",
                                "cat < /nosuchfile", "test -d /nosuch", "[[ a == b ]]",
                                "echo $((1/0))", "cd /nosuch", "false && echo no || echo yes",
                                "false; echo $?", "false | true; echo ${PIPESTATUS[*]}",
                                "kill -l 999", "/", "return 3", "exec 9< /nosuch"])

    def subshell(self, depth):
        return self.rng.choice(["( %s\n)", "( set -e\n%s\nfalse\necho not reached )",
                                "( cd /tmp && %s\n)", "(\n%s\n)", "echo \"$( %s\n)\"",
                                "( ( %s\n) )"]) % self.script(depth + 1)

    def loop(self, depth):
        n = self.name()
        return self.rng.choice([
            "for %(n)s in %(w)s %(v)s; do echo \"$%(n)s\"; %(s)s\ndone; unset %(n)s",
            "for ((%(n)s = 0; %(n)s < %(k)d; %(n)s++)); do [[ $%(n)s == 1 ]] && continue\n%(s)s\n"
            "done; unset %(n)s",
            "%(n)s=0; while (( %(n)s++ < %(k)d )); do %(s)s\ndone; unset %(n)s",
            "%(n)s=0; until [ $%(n)s -ge %(k)d ]; do %(n)s=$((%(n)s + 1)); break; done; unset %(n)s",
            "printf '%%s\\n' 1 2 3 | while read -r %(n)s; do echo \"=$%(n)s\"; done",
        ]) % {"n": n, "w": self.word(), "v": self.word(), "k": self.small(),
              "s": self.one(depth + 1)}

    def case(self, depth):
        return "case %s in\n a*) echo A;;\n *x*|*y*) %s\n;;\n *) echo other;& \n z) echo Z\nesac" % (
            self.word(), self.one(depth + 1))

    def condition(self, depth):
        return "if %s\nthen %s\nelif [ -t 1 ]; then echo tty\nelse %s\nfi" % (
            self.one(depth + 1), self.one(depth + 1), self.one(depth + 1))

    def connected(self, depth):
        return "%s %s { %s\n}" % (self.rng.choice(["true", "false", "[[ x ]]", "(exit 3)"]),
                                  self.rng.choice(["&&", "||", "&&\n", "||\n", ";"]),
                                  self.one(depth + 1))

    def group(self, depth):
        return "{ %s\n} %s" % (self.script(depth + 1),
                               self.rng.choice(["", "2>&1", ">&2", "2>/dev/null", "< /dev/null",
                                                "3>&1", "2>/dev/null | cat"]))

    def comment(self, depth):
        return self.rng.choice(["# a comment ' \" $( `", "echo a # }", "\n\n", ": # )", "true #\\"])

    def tty(self, depth):
        return self.rng.choice(["[ -t 0 ] && echo in", "[ -t 2 ] && echo err", "stty size",
                                "stty -a | grep -o -e '-\\?opost' -e '-\\?echo '", "ls -d / /usr /bin",
                                "sh -c '[ -t 1 ]'; echo $?", "tput cols"])

    def params(self, depth):
        return self.rng.choice(["set -- %s %s; echo $# \"$1\"; set --", "x=%s; echo \"${x^^}\" ${#x}; "
                                "y=%s; echo \"${y:1:3}\"; unset x y",
                                "x=%s; y=%s; echo \"${x//a/b}${y#*x}\" \"${x:-d}\"; unset x y",
                                "echo {1..5} {a,b}{c,d}; : %s %s",
                                "printf '%%q ' %s %s"]) % (self.word(), self.word())

    def bytes(self, depth):
        return self.rng.choice(["printf '\\0\\1\\377\\376\\0'", "head -c %d /dev/zero" %
                                self.rng.randrange(3000), "printf 'no newline'",
                                "printf '\\r\\n\\r\\n'", "printf '\\303'", "printf '\\n\\n\\n'",
                                "for i in {0..255}; do printf \"\\\\x$(printf %x $i)\"; done; unset i"])

    def much(self, depth):
        n = int(10 ** self.rng.uniform(3, 6.7))  # to 5 MB
        return self.rng.choice(["head -c %d /dev/zero | tr '\\0' x" % n, "yes 0123456 | head -c %d" % n,
                                "seq 1 %d" % (n // 7), "head -c %d /dev/zero" % n,
                                "seq 1 %d | sed 's/^/  /'; echo end >&2" % (n // 9)])

    def long(self, depth):
        n = int(10 ** self.rng.uniform(3, 5))
        return "echo '%s' | wc -c" % ("".join(self.rng.choice(["abc", "\t", "\n", "\x03", "é", "}"])
                                              for _ in range(n)))

    def timed(self, depth):
        return self.rng.choice(["TIMEFORMAT=; time true", "sleep 0.001", "true &>/dev/null",
                                "cat <(echo sub) <( %s\n)",
                                "eval 'echo ev; false'", "wait", "command -v cd", "type -t echo",
                                "( trap 'echo bye' EXIT; exit 4 )", "local x", "shopt -q nosuch",
                                "echo a;", "exec 7>&1; echo x >&7; exec 7>&-"]) \
            .replace("%s", self.one(depth + 1) if depth < 3 else "true")

    SMALL = [echo, stderr, arithmetic, failing, here_string, params, bytes, tty, comment, here,
             here_quoted]
    LARGE = [two_heres, array, assoc, function, pipeline, subshell, loop, case, condition, connected,
             group, timed]
    RARE = [much, long]

    def one(self, depth=0):
        """One command, which a newline ends."""
        if depth == 0 and self.rng.random() < 0.03:
            return self.rng.choice(self.RARE)(self, depth)
        kind = self.SMALL if depth > 2 or self.rng.random() < 0.4 else self.LARGE
        text = self.rng.choice(kind)(self, depth)
        # A comment or a here-document cannot be part of what goes on behind it on its line.
        if depth and ("#" in text.split("\n")[-1] or text.endswith("\\") or not text.strip()):
            return "true"
        return text if depth == 0 or "\nEOF" not in text else "{ %s\n}" % text

    def script(self, depth=0):
        return "\n".join(self.one(depth) for _ in range(self.rng.randrange(1, 4)))


# Two processes of a pipeline that both write to the terminal do so in any order.
TRIES = 8


def compare(t, s, command):
    """A sentence about what differs each time, or None."""
    for _ in range(TRIES):
        wrong = compare_once(t, s, command)
        if wrong is None:
            return None
    return wrong


def compare_once(t, s, command):
    raw = command.encode()
    s.run("true")  # $? at its begin is 0
    try:
        o = s.run(raw, timeout=120)
        got = (o.raw, o.exit_code)
        wrong = None
    except plyfs.BashSyntaxError as e:
        got, wrong = None, e
    p = subprocess.run(["bash", "-n"], input=raw, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    if (p.returncode != 0) != (wrong is not None):
        return "bash -n says %d, the session: %r" % (p.returncode, wrong or got)
    if wrong:
        return None
    output, code = fresh(t, raw)
    if got[1] != code:
        return "exit code %d, not %d; output %r, not %r" % (got[1], code, got[0][-300:], output[-300:])
    a, b = normal(got[0]), normal(output)
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        return "output differs at %d: %r, not %r" % (at, a[max(at - 60, 0):at + 60],
                                                     b[max(at - 60, 0):at + 60])
    return None


def test_random_commands_give_what_a_fresh_bash_gives(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(10 ** 9))
    s = None
    syntax = 0
    for i in range(COMMANDS):
        rng = random.Random(seed * 100000 + i)
        command = Maker(rng).script()
        if rng.random() < 0.03 and command.strip():  # mostly no command any more
            cut = rng.randrange(len(command))
            command = command[:cut] + rng.choice(["(", "'", "}", ";;", "done", "", "`"]) + \
                command[cut + rng.randrange(3):]
            if subprocess.run(["bash", "-n"], input=command.encode(), stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL).returncode == 0:
                continue  # what it does now, nobody knows
            syntax += 1
        if s is None or i % PER_SESSION == 0:
            if s:
                s.close()
            s = session(t)
        wrong = compare(t, s, command)
        assert wrong is None, "seed %d, command %d: %s\n%s" % (seed, i, wrong, command[:3000])
    s.close()
    print("%d commands, %d of them no syntax; seed %d" % (COMMANDS, syntax, seed))


def test_many_sessions_run_at_once(t):
    sessions = [session(t, "s%d" % i) for i in range(SESSIONS)]
    wrong = []

    def use(i, s):
        for n in range(3):
            o = s.run("N=$((${N-%d} + 1)); cd /; sleep 0.%d; echo $N" % (i, n), timeout=120)
            if (o.output, o.exit_code) != ("%d\n" % (i + n + 1), 0):
                wrong.append((i, n, o))

    threads = [threading.Thread(target=use, args=(i, s)) for i, s in enumerate(sessions)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    for s in sessions:
        s.close()
    assert not wrong, wrong[:3]


def test_much_output_comes_whole(t):
    s = session(t)
    size = 100000000 if ply.LONG else 10000000
    o = s.run("head -c %d /dev/zero | tr '\\0' y; printf end" % size, timeout=120)
    raw = o.raw
    assert len(raw) == size + 3 and raw.endswith(b"yend") and raw.count(b"y") == size
    s.close()


ply.main(__name__)
