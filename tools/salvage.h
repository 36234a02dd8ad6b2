/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

/*
 * `plyfs salvage`, and what `plyfs check --repair` begins with: makes a store's index anew. No
 * daemon can run on such a store, so the daemon's program does it by itself; answers go to stdout.
 * if_broken: only when the store would not open; then all goes to stderr. The program's exit code.
 */
int salvage_main(const char *path, bool if_broken, bool json);

/* Waiting for another daemon that begins or ends: that one may have gigabytes to seal. */
#define BUSY_WAIT_MS 30000
#define BUSY_STEP_MS 5
