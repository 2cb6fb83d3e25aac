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
	 * The bucket's directory; -1 until it exists. syncfs(2) reports errors since its last call
	 * on the same description, or since the description was opened, so they are opened before
	 * the first put. Syncs alternate between two descriptions: if the process dies in a sync to
	 * which the kernel has reported a failure, the other one reports it to the successor.
	 */
	_Atomic int fd[2];
	pthread_mutex_t open_lock; /* of the threads that open them */
	_Atomic bool used;	   /* an object was found or put: the bucket stays where it is */
	pthread_mutex_t
		use_lock; /* of the thread that opens them again before; outside open_lock */
	unsigned turn;
	bool both; /* the next sync calls syncfs(2) on both */
};

/*
 * -ENODEV: the disk of a bucket in use was unmounted, or another one mounted over it: its
 * path tells nothing about its objects.
 */
int cfs_object_file_present(struct cfs_object_file *o);
/* An object is there. */
void cfs_object_file_found(struct cfs_object_file *o);
int cfs_object_file_list(struct cfs_object_store *base, const char *prefix, const char *after,
			 cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline);

#endif
