#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
script.py swe-agent|mini-swe-agent: the answers of solve.md, as the model that stands in for one in that
agent wants them: SWE-agent's replay model a line of JSON, mini-swe-agent's deterministic model a
piece of configuration.
"""
import json
import os
import re
import sys

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "solve.md")) as f:
    answers = f.read().split("\n---\n")
if sys.argv[1] == "swe-agent":
    script = {"bug": answers}
else:
    # There is no tool to submit with: it is what a command prints.
    answers = [re.sub(r"(?m)^submit$", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; git diff", a)
               for a in answers]
    outputs = [{"role": "assistant", "content": a, "extra": {"cost": 0, "actions": [
        {"command": c} for c in re.findall(r"(?ms)^```bash\n(.*?)\n```$", a)]}} for a in answers]
    script = {"model": {"model_class": "deterministic", "model_name": "script", "cost_per_call": 0,
                        "outputs": outputs}}
print(json.dumps(script))
