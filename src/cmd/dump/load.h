/* SPDX-License-Identifier: Apache-2.0 */
/* Rows on their way into an empty volume, and what is counted while they pass. */
#ifndef CFS_CMD_LOAD_H
#define CFS_CMD_LOAD_H

#include <cachefs/meta.h>

#include "cmd/dump/dump.h"
#include "cmd/dump/stream.h"
#include "cmd/usage/owners.h"

#define LOAD_TABLES (CFS_TABLE_COUNTER + 1)

struct load_batch;
struct load {
	struct cfs_meta *meta;
	struct stream_in *in;
	bool restart;
	const char *key_path; /* what the dump lacks, NULL */
	struct progress p;
	char *setting; /* text, stored at the end */
	bool dir_stats, owner_quotas;
	bool begun, secrets_removed; /* and not given again */
	struct load_batch *batches[LOAD_TABLES];
	uint64_t inodes, entries, slices;
	/* of the dump; raised to what its rows need */
	int64_t counters[COUNTER_COUNT];
	uint64_t *sids; /* of sustained inodes: few */
	size_t n_sids;
	struct cfs_quota *limits; /* of users and groups */
	size_t n_limits;
	struct owners owners;
	char err[256];
};

/* The setting is known: the database becomes a volume to be. Takes over the text. */
int load_setting(struct load *l, char *text);
/* Copies the row; what is full is written. */
int load_row(struct load *l, enum cfs_meta_table table, const struct cfs_row *row);
/* The limits of a user or a group. What it uses is counted. */
int load_owner_quota(struct load *l, const struct cfs_quota *q);
/* Everything that is left, quotas of owners, counters, sessions, setting. */
int load_finish(struct load *l);
void load_free(struct load *l);

/* Puts secrets that were removed from a setting back, as far as they are given. Replaces *text. */
int load_secrets(struct load *l, char **text);

int load_binary(struct load *l);
int load_json(struct load *l);

#endif
