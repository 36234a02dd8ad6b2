#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 400
"""
run_tests of an environment, with the real test runners of the world: each one that is on the machine
or can be installed cheaply runs a small project whose outcome is known. Recordings of more of them,
and of more cases, are in golden/reports.
"""
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plylib
import plypy
import venv


def environment(t, files, command, **options):
    """Commands keep the machine's HOME (that is where cargo, maven and others have their things)."""
    os.makedirs(t.at("run"), mode=0o700, exist_ok=True)
    os.environ.update(XDG_RUNTIME_DIR=t.at("run"), XDG_DATA_HOME=t.at("data"), NO_COLOR="1",
                      PYTHONDONTWRITEBYTECODE="1", CI="1")
    env = plylib.Env("local", workdir=t.tree(files, "project"), test_command=command,
                     at_cleanup="unmount", **options)
    env.setup()
    t.clean.append(env.free)
    plypy.adopt(t, env.workdir)
    return env


def judged(got):
    return got.runner, got.passed, got.failed, got.errors, got.skipped


def check(t, files, command, *expected, **options):
    got = environment(t, files, command, **options).run_tests()
    assert judged(got) == expected, "%r, not %r\n%s" % (
        judged(got), expected, got.output.decode(errors="replace")[-4000:])
    assert got.all_passed == (expected[2] + expected[3] == 0) and not got.timed_out
    assert (got.exit_code == 0) == got.all_passed, got.exit_code
    return got


# ---- Python ----

PYTEST = """
import pytest
def test_ok(): print("5 passed, 5 failed in 0.1s")
def test_bad():
    print("=== 9 passed in 0.01s ===")
    assert 0
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
@pytest.mark.skip
def test_skip(): pass
"""
UNITTEST = """
import unittest
class T(unittest.TestCase):
    def test_ok(self): print("Ran 9 tests in 0.001s")
    def test_bad(self): self.fail()
    def test_error(self): raise RuntimeError
    @unittest.skip("no")
    def test_skip(self): pass
"""


def pytest():
    try:
        python = venv.python()
    except SystemExit:  # it has said why
        ply.skip("pytest cannot be had")
    return python + " -m pytest -p no:cacheprovider"


def test_pytest(t):
    check(t, {"test_a.py": PYTEST}, pytest(), "pytest", 1, 1, 1, 1)


def test_pytest_that_passes(t):
    got = check(t, {"test_a.py": "def test_a(): pass\ndef test_b(): pass\n"}, pytest() + " -q",
                "pytest", 2, 0, 0, 0)
    assert got.pass_rate == 1.0 and got.total == 2


def test_unittest(t):
    check(t, {"test_a.py": UNITTEST}, sys.executable + " -m unittest", "unittest", 1, 1, 1, 1)


def test_two_runners_in_one_command(t):
    check(t, {"p/test_a.py": PYTEST, "u/test_a.py": UNITTEST},
          "(cd p; %s); cd u; %s -m unittest" % (pytest(), sys.executable),
          "pytest+unittest", 2, 2, 2, 2)


# ---- go, Rust ----

def test_go(t):
    ply.need_tool("go")
    files = {"go.mod": "module example.org/m\n\ngo 1.16\n",
             "a/a_test.go": """package a
import "testing"
func TestOk(t *testing.T) { t.Log("--- FAIL: TestFake (0.00s)") }
func TestBad(t *testing.T) { t.Error("no") }
func TestSkip(t *testing.T) { t.Skip("later") }
""",
             "b/b_test.go": "package b\nimport \"testing\"\nfunc TestOk(t *testing.T) {}\n"}
    env = environment(t, files, "go test ./...")
    assert judged(env.run_tests()) == ("go", 1, 1, 0, 0)  # without -v: one package that is ok
    for form in "-v", "-json":
        env = environment(t, files, "go test %s ./..." % form)
        assert judged(env.run_tests()) == ("go", 2, 1, 0, 1), form


def test_cargo(t):
    ply.need_tool("cargo")
    os.environ["RUST_BACKTRACE"] = "0"
    check(t, {"Cargo.toml": '[package]\nname = "x"\nversion = "0.1.0"\nedition = "2018"\n',
              "src/lib.rs": """//! ```
//! assert_eq!(x::f(), 1);
//! ```
pub fn f() -> i32 { 1 }
#[test] fn ok() {}
#[test] fn bad() { println!("test result: ok. 9 passed; 0 failed"); panic!("no") }
#[test] #[ignore] fn later() {}
""", "tests/it.rs": "#[test]\nfn whole() {}\n"},
          "cargo test --offline --no-fail-fast", "cargo", 3, 1, 0, 1)


# ---- JavaScript ----

def test_node(t):
    ply.need_tool("node")
    files = {"a.test.js": """const test = require('node:test'); const assert = require('assert');
test('ok', () => { console.log('# pass 9'); });
test('bad', () => { assert.ok(false); });
test('later', { skip: true }, () => {});
"""}
    if subprocess.run(["node", "--test", "--test-reporter=tap", "/dev/null"],
                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 9:
        ply.skip("this node has no test reporters")
    for form in "tap", "spec":
        env = environment(t, files, "node --test --test-reporter=%s a.test.js" % form)
        got = env.run_tests()
        assert judged(got) == ("node", 1, 1, 0, 1), (form, got.output)


NPM = {"jest": "29.7.0", "vitest": "2.1.9", "mocha": "10.8.2"}


def npm_bin(name):
    """Installed once, in the build directory: by the long form, since it takes a while."""
    ply.need_tool("node", "npm")
    wanted = json.dumps({"private": True, "dependencies": {name: NPM[name]}})
    top = os.path.join(ply.BUILD, "tests", "npm", name + "-" +
                       hashlib.sha256(wanted.encode()).hexdigest()[:12])
    if not os.path.exists(top + "/complete"):
        if not ply.LONG:
            ply.skip("the long form installs " + name)
        shutil.rmtree(top, ignore_errors=True)
        ply.write(top + "/package.json", wanted)
        p = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=top,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if p.returncode:
            ply.skip("%s cannot be installed: %s" % (name, p.stdout.strip()[-200:]))
        ply.write(top + "/complete", "")
    return top + "/node_modules"


def test_jest(t):
    modules = npm_bin("jest")
    check(t, {"jest.config.js": "module.exports = {};\n", "a.test.js": """
test('ok', () => { console.log('Tests:       9 passed, 9 total'); });
test('bad', () => { throw new Error('no'); });
test.skip('later', () => {});
""", "broken.test.js": "throw new Error('at load');\n"}, modules + "/.bin/jest", "jest", 1, 1, 1, 1)


def test_vitest(t):
    modules = npm_bin("vitest")
    env = environment(t, {"a.test.mjs": """import { test, expect } from 'vitest';
test('ok', () => { console.log('      Tests  9 passed (9)'); });
test('bad', () => { expect(1).toBe(2); });
test.skip('later', () => {});
"""}, "ln -sfn %s node_modules && node_modules/.bin/vitest run" % modules)
    got = env.run_tests()
    assert judged(got) == ("vitest", 1, 1, 0, 1), got.output


def test_mocha(t):
    modules = npm_bin("mocha")
    check(t, {"a.test.js": """const assert = require('assert');
describe('m', () => {
  it('ok', () => { console.log('  7 passing (3ms)'); });
  it('bad', () => { assert.equal(1, 2); });
  it.skip('later', () => {});
});
"""}, modules + "/.bin/mocha a.test.js", "mocha", 1, 1, 0, 1)


# ---- C and C++ ----

def test_ctest(t):
    ply.need_tool("ctest", "cmake")
    check(t, {"CMakeLists.txt": """cmake_minimum_required(VERSION 3.13)
project(x NONE)
enable_testing()
add_test(NAME ok COMMAND true)
add_test(NAME bad COMMAND false)
add_test(NAME skip COMMAND sh -c "exit 77")
set_tests_properties(skip PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME gone COMMAND nosuch-program-at-all)
"""}, "cmake -S . -B build >/dev/null && cd build && ctest --output-on-failure",
          "ctest", 1, 1, 1, 1)


CHECK = """
#include <check.h>
#include <stdlib.h>
START_TEST(ok) { } END_TEST
START_TEST(bad) { ck_assert_int_eq(1, 2); } END_TEST
START_TEST(crash) { abort(); } END_TEST
int main(int argc, char **argv)
{
	Suite *s = suite_create("S");
	TCase *tc = tcase_create("c");
	tcase_add_test(tc, ok);
	if (argc > 1) { tcase_add_test(tc, bad); tcase_add_test(tc, crash); }
	suite_add_tcase(s, tc);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	return srunner_ntests_failed(r) ? 1 : 0;
}
"""


def test_check(t):
    ply.need_tool("cc", "pkg-config")
    check(t, {"a.c": CHECK}, "cc a.c -o a $(pkg-config --cflags --libs check) && ./a; ./a x",
          "check", 2, 1, 1, 0)


def test_meson(t):
    """Its programs' own reports, which it shows, are not counted once more."""
    ply.need_tool("meson", "ninja", "cc")
    check(t, {"a.c": CHECK, "meson.build": """project('m', 'c')
a = executable('a', 'a.c', dependencies: dependency('check'))
test('ok', a)
test('bad', a, args: 'x')
test('skip', find_program('sh'), args: ['-c', 'exit 77'])
"""}, "meson setup b >/dev/null && cd b && meson test -v", "meson", 1, 1, 0, 1)


def test_googletest(t):
    ply.need_tool("c++", "pkg-config")
    if subprocess.run(["pkg-config", "--exists", "gtest_main"]).returncode:
        ply.skip("needs googletest")
    check(t, {"a.cc": """#include <gtest/gtest.h>
TEST(A, ok) { printf("[  PASSED  ] 55 tests.\\n"); }
TEST(A, bad) { EXPECT_EQ(1, 2); }
TEST(A, DISABLED_off) { }
"""}, "c++ a.cc -o a $(pkg-config --cflags --libs gtest_main) && ./a", "gtest", 1, 1, 0, 1)


# ---- others ----

TAP = """use Test::More tests => 4;
ok(1, 'one'); ok(0, 'two');
TODO: { local $TODO = 'x'; ok(0, 'todo'); }
SKIP: { skip 'later', 1; ok(1); }
"""


def test_tap(t):
    ply.need_tool("perl")
    if subprocess.run(["perl", "-MTest::More", "-e", "1"], stderr=subprocess.DEVNULL).returncode:
        ply.skip("needs perl's Test::More")
    check(t, {"a.t": TAP}, "perl a.t", "tap", 1, 1, 0, 2)


def test_prove(t):
    ply.need_tool("prove")
    check(t, {"t/a.t": TAP, "t/b.t": "print qq(1..1\\nok 1\\n)"}, "prove", "prove", 3, 1, 0, 1)


def test_rspec(t):
    ply.need_tool("rspec")
    check(t, {"a_spec.rb": """describe 'm' do
  it('ok') { puts "9 examples, 0 failures" }
  it('bad') { expect(1).to eq(2) }
  xit('skipped') { }
end
"""}, "rspec a_spec.rb", "rspec", 1, 1, 0, 1)


def test_phpunit(t):
    ply.need_tool("phpunit")
    check(t, {"MixedTest.php": """<?php
final class MixedTest extends PHPUnit\\Framework\\TestCase {
  public function testOk(): void { $this->assertTrue(true); }
  public function testBad(): void { $this->assertTrue(false); }
  public function testErr(): void { throw new RuntimeException('x'); }
  public function testSkip(): void { $this->markTestSkipped('later'); }
}
"""}, "phpunit MixedTest.php", "phpunit", 1, 1, 1, 1)


JUNIT = """import org.junit.jupiter.api.*;
class MixedTest {
  @Test void ok() { System.out.println("Tests run: 8, Failures: 0, Errors: 0, Skipped: 0"); }
  @Test void bad() { Assertions.fail("no"); }
  @Test void err() { throw new RuntimeException("x"); }
  @Test @Disabled void later() {}
}
"""
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId>
<version>1</version><properties><maven.compiler.source>11</maven.compiler.source>
<maven.compiler.target>11</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencies><dependency><groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter</artifactId>
<version>5.10.2</version><scope>test</scope></dependency></dependencies>
<build><pluginManagement><plugins><plugin><artifactId>maven-surefire-plugin</artifactId>
<version>3.2.5</version></plugin></plugins></pluginManagement></build></project>
"""


def test_maven(t):
    """Twice: by its words, and by the XML that surefire writes. Plugins: as for npm_bin."""
    ply.need_tool("mvn", "javac")
    files = {"pom.xml": POM, "src/test/java/MixedTest.java": JUNIT}
    env = environment(t, files, "mvn -B %s test" % ("" if ply.LONG else "-o"),
                      test_report="**/surefire-reports/TEST-*.xml", timeout="300")
    got = env.run_tests()
    if got.runner == "" and b"COMPILATION ERROR" not in got.output:
        ply.skip("maven cannot get its plugins: " + got.output.decode()[-200:])
    assert judged(got) == ("junit-xml", 1, 1, 1, 1), (judged(got), got.output[-2000:])
    env.cleanup()
    env.set("test_report", None)
    env.setup()
    assert judged(env.run_tests()) == ("maven", 1, 1, 1, 1)


# ---- reports, and what else run_tests promises ----

CASES = "<testsuite>%s</testsuite>"
BAD = CASES % "<testcase/><testcase><failure/></testcase>"


def test_a_report_is_preferred_to_words(t):
    env = environment(t, {"old/r1.xml": BAD},
                      "mkdir -p out/d; echo '=== 9 passed in 0.01s ==='; cp r.xml out/d/a.xml; "
                      "cp r.xml out/b.xml", test_report="**/*.xml")
    env.write_file("r.xml", BAD)
    assert judged(env.run_tests())[0] == "junit-xml"
    got = env.run_tests()  # what lay there before does not count: two copies do
    assert judged(got) == ("junit-xml", 2, 2, 0, 0), judged(got)
    assert got.output == b"=== 9 passed in 0.01s ===\n"


def test_no_new_report_leaves_the_words(t):
    env = environment(t, {"r.xml": BAD}, "echo '=== 9 passed in 0.01s ==='", test_report="r.xml")
    assert judged(env.run_tests()) == ("pytest", 9, 0, 0, 0)
    for _ in range(5):  # one that was written just before is not new either
        env.write_file("r.xml", BAD)
        assert judged(env.run_tests()) == ("pytest", 9, 0, 0, 0)


def test_a_report_that_breaks_off(t):
    env = environment(t, {}, "echo '<testsuite><testcase/><testcase' > r.xml", test_report="*.xml")
    assert judged(env.run_tests()) == ("junit-xml", 1, 0, 1, 0)


def test_a_report_that_leads_out(t):
    ply.write(t.at("outside.xml"), CASES % "<testcase/>")
    env = environment(t, {}, "ln -sf %s r.xml; touch -h r.xml; touch %s" % (
        t.at("outside.xml"), t.at("outside.xml")), test_report="*.xml")
    assert judged(env.run_tests()) == ("junit-xml", 0, 0, 1, 0)


def test_a_pattern_that_makes_no_sense(t):
    env = environment(t, {}, "true", test_report="/abs/*.xml")
    try:
        env.run_tests()
    except plylib.Error as e:
        assert "test_report '/abs/*.xml'" in e.sentence, e
    else:
        raise AssertionError("no failure")


def test_output_and_exit_code(t):
    env = environment(t, {}, "echo out; echo err >&2; echo more; exit 3")
    got = env.run_tests()
    assert (got.output, got.exit_code, got.timed_out) == (b"out\nmore\nerr\n", 3, False)
    assert judged(got) == ("", 0, 0, 0, 0) and got.all_passed and got.pass_rate == 0.0


def test_a_timeout(t):
    env = environment(t, {}, "echo begun; sleep 50", timeout="3")
    got = env.run_tests()
    assert got.timed_out and got.exit_code == 124 and b"begun\n" in got.output


def test_a_command_that_does_not_exist(t):
    got = environment(t, {}, "no-such-runner").run_tests()
    assert got.exit_code == 127 and judged(got) == ("", 0, 0, 0, 0)


def test_chimera_rule(t):
    env = environment(t, {}, "echo 'log: 5 passed'; echo '=== 3 passed, 2 failed in 0.1s ==='; "
                      "echo '1 error' >&2", test_rule="chimera")
    assert judged(env.run_tests()) == ("chimera", 5, 2, 1, 0)


CHIMERA = """
import glob, json, os, sys
from chimera.env.local import LocalEnvironment
found = {}
for path in glob.glob(os.path.join(sys.argv[1], "*.txt")):
    env = LocalEnvironment(sys.argv[2], test_cmd="cat " + path)
    env.setup()
    got = env.run_tests()
    found[os.path.basename(path)] = [got.passed, got.failed, got.errors, got.pass_rate,
                                     got.all_passed, got.total]
json.dump(found, sys.stdout)
"""


def test_chimera_rule_beside_chimeras_own(t):
    """On every recording, whoever's it is."""
    try:
        python = venv.python()
    except SystemExit:  # it has said why
        ply.skip("chimera-run cannot be had")
    recordings = os.path.join(ply.SOURCE, "tests", "golden", "reports")
    theirs = json.loads(ply.run([python, "-c", CHIMERA, recordings, t.at("work")]).stdout)
    assert len(theirs) > 100
    for name, expected in theirs.items():
        with open(os.path.join(recordings, name), "rb") as f:
            data = f.read()
        got, lib = plylib.Tests(), plylib.lib()
        plylib.check(lib.ply_tests_parse(data, ctypes.c_size_t(len(data)), None,
                                         ctypes.c_size_t(0), b"chimera", ctypes.byref(got)))
        ours = [got.passed, got.failed, got.errors, lib.ply_tests_pass_rate(ctypes.byref(got)),
                lib.ply_tests_all_passed(ctypes.byref(got)),
                got.passed + got.failed + got.errors]
        assert ours == expected, (name, ours, expected)


if __name__ == "__main__":
    ply.main(__name__)
