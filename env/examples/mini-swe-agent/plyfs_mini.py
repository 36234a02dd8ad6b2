# SPDX-License-Identifier: Apache-2.0
"""
An environment of mini-swe-agent: commands run in the plyfs view of a `plyfs serve`, and before the first
one and after each one is a checkpoint, labelled "step N". Its id is in the trajectory as `snapshot`,
and for the observation's template `output.extra.snapshot`. The server's token is $PLYFS_TOKEN.

Else the agent is told what mini's own environments tell it, but for bytes that are not UTF-8: they are
\\xNN, not U+FFFD. A command ends when it has ended, whatever of it goes on in the background.
"""
import json
import os
import subprocess
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
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def _checkpoint(self):
        return self._post("/v1/checkpoint", {"label": "step %d" % self.steps})["id"]

    def execute(self, action, cwd="", *, timeout=None):
        timeout = timeout or self.config.timeout
        r = self._post("/v1/exec", {
            "command": action.get("command", ""), "cwd": cwd or self.config.cwd or None,
            "env": self.config.env, "timeout": timeout, "merge": True}, timeout + 60)
        self.steps += 1
        self.snapshot = self._checkpoint()
        output = {"output": r["stdout"].replace("\r\n", "\n").replace("\r", "\n"),
                  "returncode": r["exit_code"], "exception_info": "",
                  "extra": {"step": self.steps, "snapshot": self.snapshot}}
        if r["timed_out"]:
            e = subprocess.TimeoutExpired(action.get("command", ""), timeout)
            output["returncode"] = -1
            output["exception_info"] = f"An error occurred while executing the command: {e}"
            output["extra"] |= {"exception_type": type(e).__name__, "exception": str(e)}
        self._check_finished(output)
        return output
