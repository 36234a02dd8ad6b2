#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hide_symbols.sh ARCHIVE: run by `meson install` on the static library. What is hidden in the
# shared one (everything but ply_*) becomes local here, too, so that a program that is linked with
# it may have a fail() of its own.
set -eu

archive=${MESON_INSTALL_DESTDIR_PREFIX:-}${MESON_INSTALL_DESTDIR_PREFIX:+/}$1
[ -z "${MESON_INSTALL_DRY_RUN:-}" ] && [ -f "$archive" ] || exit 0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
ld -r --whole-archive "$archive" -o "$dir/plyfs.o"
objcopy --localize-hidden "$dir/plyfs.o"
ar rcs "$dir/plyfs.a" "$dir/plyfs.o"
cat "$dir/plyfs.a" >"$archive"
