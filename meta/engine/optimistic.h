/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache for optimistic operations, which save a first round trip: attributes of directories,
 * inodes of names, attributes of files. Entries may be stale: the statement of an operation checks
 * the values that the client has used, and does nothing when one has changed. Any thread may call.
 */
#ifndef CFS_META_OPTIMISTIC_H
#define CFS_META_OPTIMISTIC_H

#include <pthread.h>

#include "meta/engine/engine.h"

#define CFS_OPTIMISTIC_DIRS  1024
#define CFS_OPTIMISTIC_FILES 16384
#define CFS_OPTIMISTIC_NAMES 65536
struct cfs_optimistic {
	pthread_mutex_t lock; /* protects the rest; held only while entries are copied */
	struct cfs_optimistic_dir {
		struct cfs_entry entry;
		uint64_t read_ms; /* when the attributes were read from the database */
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
/* Updates nlink and times, unless the cached ctime is later: rows arrive in any order. */
void cfs_optimistic_dir_times(struct cfs_optimistic *s, cfs_ino_t ino, const struct cfs_attr *attr);
/*
 * True when the caller should read the directory: it was not read for CFS_OPTIMISTIC_MS, or is not
 * cached. Other threads then get false for that long.
 */
enum { CFS_OPTIMISTIC_MS = 100 };
bool cfs_optimistic_dir_ask(struct cfs_optimistic *s, cfs_ino_t ino);

/* The inode of a name; 0: not cached. */
cfs_ino_t cfs_optimistic_name(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
			      size_t len);
void cfs_optimistic_name_remember(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
				  size_t len, cfs_ino_t ino);
/* Inode and attributes of a non-directory, by its name. */
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
