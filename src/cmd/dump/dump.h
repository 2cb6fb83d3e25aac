/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both forms of a dump. */
#ifndef CFS_CMD_DUMP_H
#define CFS_CMD_DUMP_H

#include <cachefs/meta.h>

#include "cmd/access/progress.h"
#include "cmd/dump/stream.h"

struct dump {
	struct cfs_meta *meta;
	char *setting; /* text; secrets are removed unless they are wanted */
	struct stream_out *out;
	struct progress p;
	uint64_t inodes, entries;
	char err[256]; /* description of a fault in the volume, when an errno says too little */
};

/* Reports that the list of slices of a row cannot be read, and returns -EBADMSG. */
int dump_damaged(struct dump *d, const struct cfs_row *row);

int dump_binary(struct dump *d);
int dump_json(struct dump *d);

/* The counters in a dump; other counters are times of background jobs. */
enum dump_counter {
	COUNTER_SPACE,
	COUNTER_INODES,
	COUNTER_NEXT_INODE,
	COUNTER_NEXT_CHUNK,
	COUNTER_NEXT_SESSION,
	COUNTER_NEXT_TRASH,
	COUNTER_COUNT,
};
extern const char *const dump_counter_names[COUNTER_COUNT];	 /* in tables and binary dumps */
extern const char *const dump_counter_json_names[COUNTER_COUNT]; /* in JSON dumps */
/* Names of enum cfs_type in JSON dumps. */
extern const char *const dump_type_names[CFS_TYPE_SOCKET + 1];
/* Returns COUNTER_COUNT for an unknown name. */
enum dump_counter dump_counter_find(const char *const names[COUNTER_COUNT], const char *name,
				    size_t len);

#endif
