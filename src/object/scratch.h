/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in which filters transform whole objects: recycled, because first touches are slow, and
 * bounded in bytes, because it is not part of the mount's pool. (Were it, an upload would need
 * memory to free memory.)
 */
#ifndef CFS_OBJECT_SCRATCH_H
#define CFS_OBJECT_SCRATCH_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

/* Of one filter, handed out and kept. A single larger request is granted when it is alone. */
#define CFS_SCRATCH_MAX ((size_t)32 << 20)

struct cfs_scratch_buf {
	struct cfs_scratch_buf *next;
	size_t size;
	uint8_t data[];
};

struct cfs_scratch {
	pthread_mutex_t lock; /* protects what follows; a leaf */
	pthread_cond_t changed;
	size_t used, kept; /* bytes in use, bytes in `free` */
	struct cfs_scratch_buf *free;
};

int cfs_scratch_init(struct cfs_scratch *s);
void cfs_scratch_fini(struct cfs_scratch *s);
/* -ETIMEDOUT, -ENOMEM. */
int cfs_scratch_get(struct cfs_scratch *s, size_t size, cfs_deadline_t deadline,
		    struct cfs_scratch_buf **ret);
void cfs_scratch_put(struct cfs_scratch *s, struct cfs_scratch_buf *buf); /* NULL is fine */

#endif
