# SPDX-License-Identifier: Apache-2.0
"""
Runs in an interpreter that has swe-rex, and SWE-agent or not: the real SWEEnv, or a stand-in for it, over
a real server. Reads a script of calls (JSON, see sweenv.py) from stdin, prints what each gave.
"""
import asyncio
import contextlib
import importlib.util
import io
import json
import logging
import os
import shlex
import sys
import types

from swerex.deployment.remote import RemoteDeployment
from swerex.runtime.abstract import (
    BashAction, BashInterruptAction, Command, CreateBashSessionRequest, ReadFileRequest,
    UploadRequest, WriteFileRequest)

import sweenv

RESET = ["git fetch", "git status", "git restore .", "git reset --hard", "git checkout HEAD",
         "git clean -fdq"]


class StandIn:
    """The requests that SWE-agent's SWEEnv makes, in its order, by the same client. That it is so is
    tested where there is a SWE-agent (tests/e2e/serve_sweenv.py)."""

    def __init__(self, config):
        deployment = {k: v for k, v in config["deployment"].items() if k != "type"}
        self.deployment = RemoteDeployment(**deployment)
        self.repo = config["repo"]
        self.name = self.repo.get("repo_name") or os.path.basename(self.repo["path"])
        self.post_startup = config.get("post_startup_commands", [])
        self.hook = None

    def add_hook(self, hook):
        self.hook = hook
        hook.on_init(env=self)

    def ask(self, method, request):
        return asyncio.run(getattr(self.deployment.runtime, method)(request))

    def start(self):
        self.hook.on_start_deployment()
        asyncio.run(self.deployment.start())
        self.ask("create_session", CreateBashSessionRequest(startup_source=["/root/.bashrc"],
                                                            startup_timeout=10))
        self.set_env_variables({"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
                                "PIP_PROGRESS_BAR": "off", "PAGER": "cat"})
        self.reset()
        for command in self.post_startup:
            self.communicate(command, 500, check="raise")

    def reset(self):
        self.communicate("cd /", check="raise")
        # One word a line is what it hopes for; a terminal gets columns, so it copies again.
        if self.name not in self.communicate("ls", check="raise").split("\n"):
            self.hook.on_copy_repo_started(self.repo)
            if self.repo["type"] == "local":
                self.ask("upload", UploadRequest(source_path=self.repo["path"],
                                                 target_path="/" + self.name))
                r = self.ask("execute", Command(command="chown -R root:root /" + self.name,
                                                shell=True))
                assert r.exit_code == 0, r
        self.communicate(" && ".join(["cd /" + self.name, "export ROOT=$(pwd -P)", *RESET]), 120,
                         check="raise", error_msg="Failed to clean repository")
        self.hook.on_environment_startup()

    def hard_reset(self):
        self.close()
        self.start()

    def close(self):
        asyncio.run(self.deployment.stop())
        self.hook.on_close()

    def interrupt_session(self):
        self.ask("run_in_session", BashInterruptAction())

    def communicate(self, input, timeout=25, *, check="ignore", error_msg="Command failed"):
        r = self.ask("run_in_session", BashAction(command=input, timeout=timeout, check="silent"))
        if check == "raise" and r.exit_code != 0:
            self.close()
            raise RuntimeError("Command %r failed (r.exit_code=%r): %s" % (
                input, r.exit_code, error_msg))
        return r.output

    def set_env_variables(self, variables):
        if variables:
            self.communicate(" && ".join("export %s=%s" % (k, shlex.quote(str(v)))
                                         for k, v in variables.items()), check="raise")

    def read_file(self, path):
        return self.ask("read_file", ReadFileRequest(path=path)).content

    def write_file(self, path, content):
        self.ask("write_file", WriteFileRequest(path=path, content=content))

    def execute_command(self, command, shell=True, check=False, env=None, cwd=None):
        self.ask("execute", Command(command=command, shell=shell, check=check, env=env, cwd=cwd))


def real(config):
    # SWE-agent's module on GitHub issues wants a client that nothing here uses.
    sys.modules["ghapi"] = types.ModuleType("ghapi")
    sys.modules["ghapi.all"] = types.ModuleType("ghapi.all")
    sys.modules["ghapi.all"].GhApi = object
    from pydantic import TypeAdapter
    from sweagent.environment.swe_env import EnvironmentConfig, SWEEnv
    return SWEEnv.from_config(TypeAdapter(EnvironmentConfig).validate_python(config))


def main():
    asked = json.load(sys.stdin)
    hook = sweenv.Recorder()
    results = []
    with contextlib.redirect_stdout(io.StringIO()):
        env = (real if importlib.util.find_spec("sweagent") else StandIn)(asked["config"])
        logging.disable(logging.CRITICAL)
        env.add_hook(hook)
        for name, args, kwargs in asked["calls"]:
            try:
                results.append(["ok", getattr(env, name)(*args, **kwargs)])
            except Exception as e:
                results.append([type(e).__name__, str(e)])
        with contextlib.suppress(Exception):
            env.close()
    print(json.dumps({"results": results, "hooks": hook.seen}))


main()
