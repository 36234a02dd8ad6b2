# SPDX-License-Identifier: Apache-2.0
"""
Runs in an interpreter that has swe-rex and SWE-agent: the real SWEEnv over a real server. Reads a
script of calls (JSON, see tests/e2e/env_swe_real.py) from stdin, prints what each gave.
"""
import contextlib
import io
import json
import logging
import sys
import types

# SWE-agent's module on GitHub issues wants a client that nothing here uses.
sys.modules["ghapi"] = types.ModuleType("ghapi")
sys.modules["ghapi.all"] = types.ModuleType("ghapi.all")
sys.modules["ghapi.all"].GhApi = object


def main():
    with contextlib.redirect_stdout(io.StringIO()):
        from pydantic import TypeAdapter
        from sweagent.environment.hooks.abstract import EnvHook
        from sweagent.environment.swe_env import EnvironmentConfig, SWEEnv
        logging.disable(logging.CRITICAL)

    class Hook(EnvHook):
        def __init__(self):
            self.seen = []

        def on_init(self, *, env):
            self.seen.append("init")

        def on_start_deployment(self):
            self.seen.append("start_deployment")

        def on_copy_repo_started(self, repo):
            self.seen.append("copy_repo")

        def on_environment_startup(self):
            self.seen.append("environment_startup")

        def on_close(self):
            self.seen.append("close")

    asked = json.load(sys.stdin)
    hook = Hook()
    results = []
    with contextlib.redirect_stdout(io.StringIO()):
        env = SWEEnv.from_config(TypeAdapter(EnvironmentConfig).validate_python(asked["config"]))
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
