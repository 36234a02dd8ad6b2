/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The memory that we share with the programs of our container (cgroup). Neither asks for any. */

#include <stdint.h>

/* How many bytes they and we may use at most: what the machine has, or the cgroup's limit. */
uint64_t memory_limit(void);
/* How many processes of our cgroup the kernel killed for want of memory; 0: nobody can tell. */
uint64_t memory_kills(void);
