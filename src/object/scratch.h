/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in which filters transform whole objects. Buffers are reused, because the first touch of
 * memory is slow. They are bounded here and not part of the mount's pool, because uploads, which free
 * the pool's memory, must not wait for it.
 */
#ifndef CFS_OBJECT_SCRATCH_H
#define CFS_OBJECT_SCRATCH_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

/* Limit per filter, of buffers in use and kept. A larger request is granted when no other is. */
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
