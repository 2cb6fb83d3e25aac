/* SPDX-License-Identifier: Apache-2.0 */
/* The cleanup attribute for the owners that are common enough to deserve it. */
#ifndef CFS_CLEANUP_H
#define CFS_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void cfs_freep(void *p)
{
	free(*(void **)p);
}

static inline void cfs_closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#define cfs_auto_free  __attribute__((cleanup(cfs_freep)))
#define cfs_auto_close __attribute__((cleanup(cfs_closep)))

#endif
