/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

struct cmd;

/*
 * The snapshot that a write-back compares with: the newest on branch main that an import or a
 * write-back marked as what the directory holds. 0 when there is none.
 */
int writeback_base(struct cmd *c, uint64_t *ret_id);
