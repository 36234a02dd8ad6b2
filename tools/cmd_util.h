/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Small conversions for the output of verbs. */

#include <jansson.h>
#include <stdint.h>

/* A string of any bytes: jansson takes UTF-8 only; other bytes become U+0080..U+00FF. */
json_t *json_text(const char *s);
/* A snapshot's id as text; null for 0. */
json_t *json_id(uint64_t id);

#define TIME_TEXT_SIZE 40
/* UTC, as ISO 8601 to the second. */
char *time_to_text(int64_t ns, char buf[static TIME_TEXT_SIZE]);

#define SIZE_TEXT_SIZE 24
/* "17 B", "1.4 MiB" */
char *size_to_text(uint64_t bytes, char buf[static SIZE_TEXT_SIZE]);
