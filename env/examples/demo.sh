#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# demo.sh swe-agent CHECKOUT
# demo.sh mini-swe-agent
#
# An agent on plyfs from beginning to end, without a network: with a script (bug/solve.md) in the model's
# place it mends the bug of bug/ in a view. Then the tree of its steps, what they changed, and the
# tests before and after. CHECKOUT is SWE-agent's source. plyfs and sweagent or mini are in PATH.
# What is made goes away again.
set -eu

agent=${1:-}
case $agent-$# in
swe-agent-2) checkout=$(cd "$2" && pwd) ;;
mini-swe-agent-1) ;;
*) sed -n '4,5s/^# /usage: /p' "$0" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
cleanup() {
	status=$?
	trap - EXIT
	cd /
	[ -z "$server" ] || { kill "$server" && wait "$server"; } || :
	! mountpoint -q "$work/view" || plyfs unmount "$work/view"
	# The daemon ends by itself after its last view.
	while [ -e "$work/store/sock" ]; do sleep 0.1; done
	rm -rf "$work"
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# A repository with a bug, in a view.
mkdir "$work/repo" "$work/view"
cp "$here"/bug/clock.py "$here"/bug/test_clock.py "$work/repo"
git -C "$work/repo" init -q
git -C "$work/repo" add -A
git -C "$work/repo" -c user.name=demo -c user.email=demo@localhost commit -qm first
export PLYFS_STORE="$work/store" PYTHONDONTWRITEBYTECODE=1
plyfs init "$work/store"
plyfs import "$work/repo" >"$work/log"
plyfs mount --at "$work/view" >>"$work/log"

# The server. SWE-agent puts its tools into /root, so it gets a /root of its own, where nothing of
# yours is to be seen either.
: >"$work/server"
user=
[ "$(id -u)" = 0 ] || user=--map-root-user
PLYFS_TOKEN=demo unshare --mount $user sh -c 'mount -t tmpfs none /root && exec "$@"' sh \
	plyfs serve --in "$work/view" --port 0 >"$work/server" &
server=$!
until port=$(sed -n 's/^listening at [^ ]*:\([0-9]*\),.*/\1/p' "$work/server") && [ "$port" ]; do
	kill -0 "$server"
	sleep 0.1
done

# The agent. In earnest you would copy the bundle into the checkout, or plyfs_mini.py to your other
# modules, and name a model.
"$here/bug/script.py" "$agent" >"$work/script.yaml"
case $agent in
swe-agent)
	mkdir -p "$work/root/tools"
	ln -s "$checkout"/tools/* "$here/swe-agent/plyfs" "$work/root/tools"
	SWE_AGENT_CONFIG_ROOT="$work/root" sweagent run \
		--config "$here/swe-agent/plyfs.yaml" --config "$here/swe-agent/scripted.yaml" \
		--agent.model.replay_path="$work/script.yaml" \
		--env.deployment.port="$port" --env.deployment.auth_token=demo \
		--env.repo.repo_name="${work#/}/view" \
		--problem_statement.path="$here/bug/bug.md" --problem_statement.id=bug \
		--output_dir="$work/out"
	cp "$work/out/bug/bug.patch" "$work/submission"
	python3 -c 'import json, sys
for step in json.load(sys.stdin)["trajectory"]:
	print(step["state"]["snapshot"], step["action"].strip())' \
		<"$work/out/bug/bug.traj" >"$work/steps"
	;;
mini-swe-agent)
	PLYFS_TOKEN=demo PYTHONPATH="$here/mini-swe-agent${PYTHONPATH:+:$PYTHONPATH}" \
	MSWEA_CONFIGURED=1 mini --agent-class default -c mini.yaml \
		-c "$here/mini-swe-agent/plyfs.yaml" -c "environment.url=http://127.0.0.1:$port" \
		-c environment.timeout=5 -c "$work/script.yaml" \
		-t "$(cat "$here/bug/bug.md")" -o "$work/trajectory.json"
	python3 -c 'import json, sys
print(json.load(sys.stdin)["info"]["submission"], end="")' \
		<"$work/trajectory.json" >"$work/submission"
	python3 -c 'import json, sys
for message in json.load(sys.stdin)["messages"]:
	extra = message.get("extra", {})
	for action in extra.get("actions", []):
		command = action["command"]
	if "snapshot" in extra:
		print(extra["snapshot"], command)' <"$work/trajectory.json" >"$work/steps"
	;;
esac

# What it did: the trajectory names the checkpoint after each step. Step 5 is the one before the
# submission, for which SWE-agent puts everything into git's index.
cd "$work/view"
echo
cat "$work/steps"
plyfs tree
first=$(plyfs tree | awk '/ step 0/ { print $1 }')
last=$(plyfs tree | awk '/ step 5/ { print $1 }')
plyfs diff "$first" "$last"
plyfs diff --patch "$first" "$last" | cmp - "$work/submission"
echo "what was submitted is what differs between step 0 and step 5"
for step in "$first" "$last"; do
	plyfs restore "$step" >>"$work/log"
	echo "at $step:"
	plyfs test --timeout 5 -- python3 -m unittest || :
done
