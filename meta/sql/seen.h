/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was last seen, for operations that would otherwise ask first: attributes of directories,
 * which inode a name led to, attributes of files. It may be stale: the statement that uses it names
 * what the decision was made by and finds no row when that has changed. Any thread.
 */
#ifndef CFS_META_SQL_SEEN_H
#define CFS_META_SQL_SEEN_H

#include <pthread.h>

#include "meta/engine.h"

#define SQL_SEEN_DIRS  1024
#define SQL_SEEN_FILES 16384
#define SQL_SEEN_NAMES 65536
struct sql_seen {
	pthread_mutex_t lock; /* protects the rest; taken for copies only */
	struct sql_seen_dir {
		struct cfs_entry entry;
		uint64_t seen_ms; /* in the database */
	} dir[SQL_SEEN_DIRS];
	struct cfs_entry file[SQL_SEEN_FILES];
	struct {
		uint64_t hash;
		cfs_ino_t ino;
	} name[SQL_SEEN_NAMES];
};

/* Of zeroed memory. */
void sql_seen_init(struct sql_seen *s);
void sql_seen_destroy(struct sql_seen *s);

bool sql_seen_dir_known(struct sql_seen *s, cfs_ino_t ino, struct cfs_attr *ret);
void sql_seen_dir_remember(struct sql_seen *s, cfs_ino_t ino, const struct cfs_attr *attr);
void sql_seen_dir_forget(struct sql_seen *s, cfs_ino_t ino);
/* nlink and times as read: of rows that come in any order, the one with the latest change stays. */
void sql_seen_dir_times(struct sql_seen *s, cfs_ino_t ino, const struct cfs_attr *attr);
/* Whether the directory was not seen for SQL_SEEN_MS; others are told that it is seen now. */
enum { SQL_SEEN_MS = 100 };
bool sql_seen_dir_ask(struct sql_seen *s, cfs_ino_t ino);

/* 0: not known. */
cfs_ino_t sql_seen_name(struct sql_seen *s, cfs_ino_t parent, const char *name, size_t len);
void sql_seen_name_remember(struct sql_seen *s, cfs_ino_t parent, const char *name, size_t len,
			    cfs_ino_t ino);
/* Of what is no directory, by its name. */
bool sql_seen_file_known(struct sql_seen *s, cfs_ino_t parent, const char *name, size_t len,
			 struct cfs_entry *ret);
/* The name, and the attributes of what is no directory. */
void sql_seen_file_remember(struct sql_seen *s, cfs_ino_t parent, const char *name, size_t len,
			    const struct cfs_entry *entry);
/* Of a file that may be known. */
void sql_seen_file_changed(struct sql_seen *s, cfs_ino_t ino, const struct cfs_attr *attr);
void sql_seen_file_forget(struct sql_seen *s, cfs_ino_t ino);

#endif
