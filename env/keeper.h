/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The keeper's side of proc.h. A function, so that a program that stands alone (no helper program
 * to be found) can be its own keeper: it forks before it has threads and calls this in the child.
 */

/* Serves the socket until its other end is closed; returns the exit code. Has no threads. */
int keeper_main(int sock);
