/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

/*
 * Opens the log in the store; stdout and stderr go there, too. owned: the store's lock is ours, so
 * the log may be made, and begun anew when it grew long; else only an existing one is used.
 */
int log_open(int dir_fd, bool owned);
