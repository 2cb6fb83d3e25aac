/* SPDX-License-Identifier: Apache-2.0 */
/* The channel over /dev/fuse. */
#ifndef CFS_FUSE_DEVICE_H
#define CFS_FUSE_DEVICE_H

#include "channel.h"

struct cfs_device {
	struct cfs_channel channel; /* must be the first member */
	int fd;			    /* borrowed */
};
/* max_io: bytes of data in one request. */
void device_init(struct cfs_device *d, int fd, size_t max_io);
/*
 * Whether the kernel waits for the answer to a request (request_number()) that was read and is not
 * sent again since.
 */
bool device_has_unanswered(struct cfs_device *d, uint64_t number);

#endif
