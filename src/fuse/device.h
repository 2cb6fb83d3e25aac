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

#endif
