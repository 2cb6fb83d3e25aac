/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache for optimistic operations, which save a first round trip: attributes of directories, the
 * inode of a name, attributes of files. Entries may be stale: the statement of an operation checks
 * the values that the decision was based on, and does nothing when one has changed. Any thread.
 */
#ifndef CFS_META_SEEN_H
#define CFS_META_SEEN_H

#include <pthread.h>

#include "meta/engine/engine.h"

#define CFS_SEEN_DIRS  1024
#define CFS_SEEN_FILES 16384
#define CFS_SEEN_NAMES 65536
struct cfs_seen {
	pthread_mutex_t lock; /* protects the rest; taken for copies only */
	struct cfs_seen_dir {
		struct cfs_entry entry;
		uint64_t seen_ms; /* in the database */
	} dir[CFS_SEEN_DIRS];
	struct cfs_entry file[CFS_SEEN_FILES];
	struct {
		uint64_t hash;
		cfs_ino_t ino;
	} name[CFS_SEEN_NAMES];
};

/* Initialises zeroed memory. */
void cfs_seen_init(struct cfs_seen *s);
void cfs_seen_destroy(struct cfs_seen *s);

bool cfs_seen_dir_known(struct cfs_seen *s, cfs_ino_t ino, struct cfs_attr *ret);
void cfs_seen_dir_remember(struct cfs_seen *s, cfs_ino_t ino, const struct cfs_attr *attr);
void cfs_seen_dir_forget(struct cfs_seen *s, cfs_ino_t ino);
/* nlink and times as read. Rows arrive in any order; the one with the latest change stays. */
void cfs_seen_dir_times(struct cfs_seen *s, cfs_ino_t ino, const struct cfs_attr *attr);
/* True when the directory was not read for CFS_SEEN_MS; counts as a read for other threads. */
enum { CFS_SEEN_MS = 100 };
bool cfs_seen_dir_ask(struct cfs_seen *s, cfs_ino_t ino);

/* 0: not known. */
cfs_ino_t cfs_seen_name(struct cfs_seen *s, cfs_ino_t parent, const char *name, size_t len);
void cfs_seen_name_remember(struct cfs_seen *s, cfs_ino_t parent, const char *name, size_t len,
			    cfs_ino_t ino);
/* Attributes of a non-directory, by its name. */
bool cfs_seen_file_known(struct cfs_seen *s, cfs_ino_t parent, const char *name, size_t len,
			 struct cfs_entry *ret);
/* Stores the name and attributes of a non-directory. */
void cfs_seen_file_remember(struct cfs_seen *s, cfs_ino_t parent, const char *name, size_t len,
			    const struct cfs_entry *entry);
/* Updates the attributes of a file if they are cached. */
void cfs_seen_file_changed(struct cfs_seen *s, cfs_ino_t ino, const struct cfs_attr *attr);
void cfs_seen_file_forget(struct cfs_seen *s, cfs_ino_t ino);

#endif
