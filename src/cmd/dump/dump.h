/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both forms of a dump. */
#ifndef CFS_CMD_DUMP_H
#define CFS_CMD_DUMP_H

#include <cachefs/meta.h>

#include "cmd/access/backup.h"
#include "cmd/access/progress.h"
#include "cmd/dump/stream.h"

struct dump {
	struct cfs_meta *meta;
	char *setting; /* text; secrets are removed unless they are wanted */
	struct stream_out *out;
	bool skip_trash; /* JSON only */
	struct progress p;
	uint64_t inodes, entries;
	bool renamed;  /* an extended attribute has another name in the dump */
	char err[256]; /* description of a fault in the volume, when an errno says too little */
};

/* Reports that the list of slices of a row cannot be read, and returns -EBADMSG. */
int dump_damaged(struct dump *d, const struct cfs_row *row);

/*
 * Copies the name of an extended attribute. Bytes that are not UTF-8 become %XX: strings of
 * protobuf are UTF-8, and JuiceFS refuses a whole dump with another one. The first such name is
 * logged. Returns the length, CFS_NAME_MAX at most.
 */
size_t dump_xattr_name(struct dump *d, const struct cfs_row *row, char ret_name[CFS_NAME_MAX + 1]);

/* Reads the setting; without keep, its secrets are removed. */
int dump_setting(struct dump *d, bool keep);
struct dump_backup {
	struct cfs_meta *meta;
	const struct cfs_setting *setting;
	struct cfs_object_store *objects;
	int64_t when_s; /* gives the name */
	bool skip_trash;
	bool elsewhere; /* in a place that was given: it may have backups only */
	bool rotate;	/* remove others by rule, once this one is stored and read back */
	/* results */
	char name[BACKUP_NAME_LEN + 1];
	uint64_t size, entries;
	char err[512]; /* may be empty: the log says it */
};
/*
 * Dumps into an unnamed temporary file and stores that as a backup. 0, or an error; a failed
 * rotation is a warning.
 */
int dump_backup(struct dump_backup *job);
/* The process that a mount starts with backup_spawn(): returns the exit status. */
int dump_child(void);

int dump_binary(struct dump *d);
int dump_json(struct dump *d);

#endif
