/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Looks through the pages of an LMDB file before LMDB does: LMDB 0.9 believes every length, offset
 * and page number that it reads, so one flipped bit could end the process, or let the next commit
 * write over pages in use. Private to index_env.c; index_verify.c says what is looked at.
 */

#include <stdint.h>

struct noter;

/*
 * Every page of the last commit, read from fd. Nobody may commit meanwhile.
 * 0; -ERR_INDEX_BROKEN after a note that names the page and what is wrong; or what the system said.
 */
int index_verify(int fd, const struct noter *noter);
