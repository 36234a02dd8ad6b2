/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Output streams of a verb: to the client's descriptors, or to a buffer that an ioctl reads. */

#include <stdbool.h>
#include <stdio.h>

/*
 * A stream that writes to fd (borrowed; -1: drops everything). Writing stops with an error soon
 * after *cancel became true, also when nobody reads the pipe. A pipe whose reader has left sets
 * *unread and *cancel: nobody wants the answer any more. unread NULL: it is talk, which goes line
 * by line and need not be heard. NULL when out of memory.
 */
FILE *stream_to_fd(int fd, bool *unread, bool *cancel);

/* How wide to print: the client's COLUMNS, its terminal, else 80. */
unsigned stream_columns(const char *columns, int out_fd, int err_fd);
