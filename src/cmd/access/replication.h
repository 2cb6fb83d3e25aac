/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a volume's metadata is replicated into its bucket (include/cachefs/replica.h). JuiceFS drops
 * fields of the setting that it does not know, so this is a record of cachefs's own.
 */
#ifndef CFS_CMD_REPLICATION_H
#define CFS_CMD_REPLICATION_H

#include <cachefs/meta.h>
#include <cachefs/object.h>
#include <cachefs/replica.h>
#include <stdbool.h>
#include <stdint.h>

enum replication_mode { REPLICATION_OFF, REPLICATION_ASYNC, REPLICATION_SYNC };
extern const char *const replication_modes[]; /* their names; ends with NULL */

#define REPLICATION_KEEP_S 86400

struct replication {
	enum replication_mode mode;
	uint64_t keep_s;
	bool conditional; /* the bucket refuses to create an object twice */
	/* The database may go on with the chain of another one: always, or from this place. */
	bool take_over;
	struct cfs_replica_place from;
};

/* Off when there is no record. -EBADMSG: it is none of this version. */
int replication_read(struct cfs_meta *m, struct replication *ret);
/*
 * Switches it on or off, for the next mount. Only SQLite is replicated; sync needs a bucket that
 * refuses to create an object twice, async warns when it does not. Negative with err.
 */
int replication_set(struct cfs_meta *m, struct cfs_object_store *objects, const char *volume,
		    enum replication_mode mode, uint64_t keep_s, char err[256]);
/* 0, or -EINVAL with err: the metadata is not in SQLite. */
int replication_check_engine(struct cfs_meta *m, char err[256]);
/*
 * Makes the database file `path`, which must not exist, of a volume's replica as it was at
 * until_ms (INT64_MAX: the last state), or after until_entry, if that is not 0. The database goes on
 * with the replica when it is mounted, if no other has done so by then. Negative with err; no file
 * is left then.
 */
int replication_restore(const struct cfs_setting *s, const char *path, int64_t until_ms,
			uint64_t until_entry, struct cfs_replica_state *ret, char err[256]);
/*
 * A copy of the database must not take the replica over again: its record says so. For the callback
 * `taken` of the replica. A failure is logged.
 */
void replication_note_taken(struct cfs_meta *m, const char *volume);
/* The database file of a META-URL; malloc'ed. NULL: it is none of SQLite, or out of memory. */
char *replication_path(const char *url);

#endif
