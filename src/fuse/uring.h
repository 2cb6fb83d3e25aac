/* SPDX-License-Identifier: Apache-2.0 */
/* The io_urings of a ring's threads. One thread uses each of them: the one that enables it. */
#ifndef CFS_FUSE_URING_H
#define CFS_FUSE_URING_H

#include <liburing.h>

/* It has to be enabled before use. */
int uring_open(struct io_uring *ret);
int uring_enable(struct io_uring *u);
/*
 * Whether this process may use io_uring, and the kernel offers rings. why: one line, on failure.
 */
int uring_check(char why[200]);

#endif
