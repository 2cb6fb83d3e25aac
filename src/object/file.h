/* SPDX-License-Identifier: Apache-2.0 */
/* The file store, for its two source files. */
#ifndef CFS_OBJECT_FILE_H
#define CFS_OBJECT_FILE_H

#include <pthread.h>
#include <stdatomic.h>

#include "object-internal.h"

/* Temporary files are PREFIX name INFIX random. */
#define CFS_FILE_TMP_PREFIX ".jfs."
#define CFS_FILE_TMP_INFIX  ".tmp."

struct cfs_object_file {
	struct cfs_object_store base;
	char *bucket; /* absolute, ends in '/' */
	/*
	 * The bucket, -1 until there is one. syncfs(2) reports the errors since its last call for
	 * the same description, or since that was opened: before the first put. Syncs alternate
	 * between two descriptions. A process that dies in a sync, after the kernel has reported a
	 * failure to it, leaves one behind that reports the failure to its successor.
	 */
	_Atomic int fd[2];
	pthread_mutex_t open_lock; /* of the threads that open them */
	_Atomic bool used;	   /* by a put: the bucket stays on its file system */
	unsigned turn;
	bool both; /* the next sync is to hear both */
};

int cfs_object_file_list(struct cfs_object_store *base, const char *prefix, const char *after,
			 cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline);

#endif
