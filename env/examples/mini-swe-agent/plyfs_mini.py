# SPDX-License-Identifier: Apache-2.0
"""
An environment of mini-swe-agent: commands run in the plyfs view of a `plyfs serve`, and before the first
one and after each one is a checkpoint, labelled "step N". Its id is in the trajectory as `snapshot`,
and for the observation's template `output.extra.snapshot`. The server's token is $PLYFS_TOKEN.

Else the agent is told what mini's own environments tell it, but for bytes that are not UTF-8: they are
\\xNN, not U+FFFD. A command ends when it has ended, whatever of it goes on in the background. What the
server refuses, or that it is not there, is told as theirs tell of a command that could not be started, and
a checkpoint that failed in `exception_info`; only without the first one there is no environment.
"""
import json
import os
import subprocess
import urllib.error
import urllib.request

from minisweagent.environments.local import LocalEnvironment, LocalEnvironmentConfig


class PlyfsEnvironmentConfig(LocalEnvironmentConfig):
    url: str = "http://127.0.0.1:8000"


class PlyfsEnvironment(LocalEnvironment):
    def __init__(self, **kwargs):
        super().__init__(config_class=PlyfsEnvironmentConfig, **kwargs)
        self.steps = 0
        self.snapshot = self._checkpoint()

    def _post(self, path, body, timeout=60):
        request = urllib.request.Request(
            self.config.url + path, json.dumps(body).encode(),
            {"Content-Type": "application/json", "X-API-Key": os.environ.get("PLYFS_TOKEN", "")})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:  # the server's own words say more than its status
            e.msg = f"{e.msg}: {e.read().decode(errors='replace').strip()}"
            raise

    def _checkpoint(self):
        return self._post("/v1/checkpoint", {"label": "step %d" % self.steps})["id"]

    @staticmethod
    def _told(output, e, doing):
        output["exception_info"] = f"An error occurred while {doing}: {e}"
        output["extra"] |= {"exception_type": type(e).__name__, "exception": str(e)}

    def execute(self, action, cwd="", *, timeout=None):
        timeout = timeout or self.config.timeout
        output = {"output": "", "returncode": -1, "exception_info": "", "extra": {}}
        try:
            r = self._post("/v1/exec", {
                "command": action.get("command", ""), "cwd": cwd or self.config.cwd or None,
                "env": self.config.env, "timeout": timeout, "merge": True}, timeout + 60)
            output["output"] = r["stdout"].replace("\r\n", "\n").replace("\r", "\n")
            if r["timed_out"]:
                raise subprocess.TimeoutExpired(action.get("command", ""), timeout)
            output["returncode"] = r["exit_code"]
        except Exception as e:  # as LocalEnvironment has it
            self._told(output, e, "executing the command")
        self.steps += 1
        self.snapshot = None
        try:
            self.snapshot = self._checkpoint()
        except Exception as e:
            if not output["exception_info"]:
                self._told(output, e, "making a checkpoint")
        output["extra"] |= {"step": self.steps, "snapshot": self.snapshot}
        self._check_finished(output)
        return output
