#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# group: project
# timeout: 180
# serial: yes
#
# tools/quickstart on a small directory: says what it did, changes nothing, leaves nothing mounted.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
[ -r /dev/fuse ] && [ -w /dev/fuse ] || { echo "skip: /dev/fuse cannot be opened"; exit 77; }
tmp=$(mktemp -d "${TMPDIR:-/tmp}/plyfs-quickstart-test-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/tree/d" "$tmp/tmp"
for i in 1 2 3 4 5 6 7 8 9; do echo "file $i" >"$tmp/tree/d/$i"; done
before=$(cd "$tmp/tree" && find . -type f -exec cksum {} + | sort | cksum)

BUILD_DIR=${PLYFS_BUILD:-$top/build} TMPDIR="$tmp/tmp" PLYFS_NO_SETUP=1 \
	"$top/tools/quickstart" "$tmp/tree" >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
cat "$tmp/out"

for word in import mount checkpoint diff restore digest; do
	grep -qi "$word" "$tmp/out" || { echo "FAILED: does not say '$word'"; exit 1; }
done
after=$(cd "$tmp/tree" && find . -type f -exec cksum {} + | sort | cksum)
[ "$before" = "$after" ] || { echo "FAILED: the source changed"; exit 1; }
! grep -q "$tmp" /proc/self/mountinfo || { echo "FAILED: something is still mounted"; exit 1; }
[ -z "$(ls -A "$tmp/tmp")" ] || { echo "FAILED: left behind:"; ls -A "$tmp/tmp"; exit 1; }
