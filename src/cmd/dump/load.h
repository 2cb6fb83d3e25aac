/* SPDX-License-Identifier: Apache-2.0 */
/* Writes rows into an empty volume, and counts while they pass. */
#ifndef CFS_CMD_LOAD_H
#define CFS_CMD_LOAD_H

#include <cachefs/meta.h>

#include "cmd/access/progress.h"
#include "cmd/dump/dumpnames.h"
#include "cmd/dump/stream.h"
#include "cmd/usage/owners.h"

#define LOAD_TABLES (CFS_TABLE_COUNTER + 1)

struct load_batch;
struct load {
	struct cfs_meta *meta;
	struct stream_in *in;
	bool restart;
	const char *key_path; /* file of the key that the dump lacks, or NULL */
	struct progress p;
	char *setting; /* text, stored at the end */
	bool dir_stats, owner_quotas;
	bool begun, secrets_removed; /* and not given by the caller */
	struct load_batch *batches[LOAD_TABLES];
	uint64_t inodes, entries, slices;
	/* from the dump; raised to what its rows need */
	int64_t counters[COUNTER_COUNT];
	uint64_t *sids; /* of sustained inodes: few */
	size_t n_sids, cap_sids;
	struct cfs_quota *limits; /* of users and groups */
	size_t n_limits, cap_limits;
	struct owners owners;
	char err[256];
};

/*
 * Called when the setting is known: marks the database as an unfinished volume. Takes over the
 * text.
 */
int load_setting(struct load *l, char *text);
/* Copies the row into a buffer; a full buffer is written. */
int load_row(struct load *l, enum cfs_meta_table table, const struct cfs_row *row);
/* Stores the limits of a user or a group. Its usage is counted. */
int load_owner_quota(struct load *l, const struct cfs_quota *q);
/* Writes everything that is left: quotas of owners, counters, sessions, setting. */
int load_finish(struct load *l);
void load_free(struct load *l);

/* Restores secrets that were removed from a setting, as far as they are given. Replaces *text. */
int load_secrets(struct load *l, char **text);

/* The key of key_path, malloc'ed; an error with l->err. */
int load_read_key(struct load *l, char **ret);

int load_binary(struct load *l);
int load_json(struct load *l);

#endif
