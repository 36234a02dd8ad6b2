/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which boot of which kernel this is: as long as it is the same, the page cache has survived. */

#include <stdint.h>

#define BOOT_BYTES 16

/* Without /proc each call counts as another boot. -errno. */
int boot_id(uint8_t ret[static BOOT_BYTES]);
