#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# example.sh REPOSITORY
set -eu

plyfs mount "$1"
cd "$1"
plyfs test -- python3 -m unittest
good=$(plyfs checkpoint -m good)
echo 'add = max' >calc.py
plyfs test -- python3 -m unittest || echo "broken"
plyfs restore "$good"
plyfs test -- python3 -m unittest && echo "restored"
cd - >/dev/null
plyfs unmount --write-back "$1"
