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

#endif
