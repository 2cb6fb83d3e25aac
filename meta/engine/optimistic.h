/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache for optimistic operations, which save a first round trip: attributes of directories, the
 * inode of a name, attributes of files. Entries may be stale: the statement of an operation checks
 * the values that the decision was based on, and does nothing when one has changed. Any thread.
 */
#ifndef CFS_META_OPTIMISTIC_H
#define CFS_META_OPTIMISTIC_H

#include <pthread.h>

#include "meta/engine/engine.h"

#define CFS_OPTIMISTIC_DIRS  1024
#define CFS_OPTIMISTIC_FILES 16384
#define CFS_OPTIMISTIC_NAMES 65536
struct cfs_optimistic {
	pthread_mutex_t lock; /* protects the rest; taken for copies only */
	struct cfs_optimistic_dir {
		struct cfs_entry entry;
		uint64_t read_ms; /* in the database */
	} dir[CFS_OPTIMISTIC_DIRS];
	struct cfs_entry file[CFS_OPTIMISTIC_FILES];
	struct {
		uint64_t hash;
		cfs_ino_t ino;
	} name[CFS_OPTIMISTIC_NAMES];
};

/* Initialises zeroed memory. */
void cfs_optimistic_init(struct cfs_optimistic *s);
void cfs_optimistic_destroy(struct cfs_optimistic *s);

bool cfs_optimistic_dir_known(struct cfs_optimistic *s, cfs_ino_t ino, struct cfs_attr *ret);
void cfs_optimistic_dir_remember(struct cfs_optimistic *s, cfs_ino_t ino,
				 const struct cfs_attr *attr);
void cfs_optimistic_dir_forget(struct cfs_optimistic *s, cfs_ino_t ino);
/* nlink and times as read. Rows arrive in any order; the one with the latest change stays. */
void cfs_optimistic_dir_times(struct cfs_optimistic *s, cfs_ino_t ino, const struct cfs_attr *attr);
/*
 * True when the directory was not read for CFS_OPTIMISTIC_MS; counts as a read for other threads.
 */
enum { CFS_OPTIMISTIC_MS = 100 };
bool cfs_optimistic_dir_ask(struct cfs_optimistic *s, cfs_ino_t ino);

/* 0: not known. */
cfs_ino_t cfs_optimistic_name(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
			      size_t len);
void cfs_optimistic_name_remember(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
				  size_t len, cfs_ino_t ino);
/* Attributes of a non-directory, by its name. */
bool cfs_optimistic_file_known(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
			       size_t len, struct cfs_entry *ret);
/* Stores the name and attributes of a non-directory. */
void cfs_optimistic_file_remember(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
				  size_t len, const struct cfs_entry *entry);
/* The same, by its inode. */
bool cfs_optimistic_file_attr(struct cfs_optimistic *s, cfs_ino_t ino, struct cfs_attr *ret);
/* The cached attributes of an inode of any type. */
bool cfs_optimistic_attr(struct cfs_optimistic *s, cfs_ino_t ino, struct cfs_attr *ret);
/* Stores the attributes of a directory; updates those of a file if they are cached. */
void cfs_optimistic_attr_changed(struct cfs_optimistic *s, cfs_ino_t ino,
				 const struct cfs_attr *attr);
/* Updates the attributes of a file if they are cached. */
void cfs_optimistic_file_changed(struct cfs_optimistic *s, cfs_ino_t ino,
				 const struct cfs_attr *attr);
void cfs_optimistic_file_forget(struct cfs_optimistic *s, cfs_ino_t ino);

#endif
