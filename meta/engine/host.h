/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the core for a metadata engine that it has opened. Any thread may call, also inside
 * a transaction: nothing here blocks unless it says so. The core owns the structure and sets its
 * members; engines use the functions.
 */
#ifndef CFS_META_HOST_H
#define CFS_META_HOST_H

#include <cachefs/meta.h>
#include <stdatomic.h>

struct cfs_op_counters {
	_Atomic uint64_t calls, errors, round_trips, time_ns;
};

struct cfs_engine_host {
	/* Set before `opens`. `opens`: files may be open on this mount. */
	bool (*is_open)(void *arg, cfs_ino_t ino);
	void *is_open_arg;
	_Atomic bool opens;

	_Atomic bool refuse_changes; /* changes fail with -EROFS */
	/*
	 * When this volume was last seen in its place, as cfs_boot_ms(), and how long that is good
	 * for; 0: for ever. See cfs_host_check_volume().
	 */
	_Atomic uint64_t seen_ms, seen_for_ms;
	int (*see)(void *arg, const struct cfs_ctx *ctx); /* set before seen_for_ms */
	void *see_arg;
	_Atomic bool dir_stats, changelog; /* of the volume's setting */
	_Atomic uint64_t sid;		   /* 0: no session */
	_Atomic uint64_t txn_number;
	_Atomic uint64_t connections; /* cfs_host_connected(): calls so far */

	struct cfs_op_counters op[CFS_META_OP_COUNT];
	_Atomic uint64_t retries;
	_Atomic uint64_t log_bytes; /* of SQLite's write-ahead log, as of the last commit */
};

bool cfs_host_is_open(struct cfs_engine_host *host, cfs_ino_t ino);
/*
 * Engines call it before each attempt of a change. A process that was stopped, or whose machine was
 * suspended, must not continue into a volume that was made meanwhile in the place of its own: when no
 * heartbeat has seen the volume for so long, this reads the setting (and blocks). 0; -EROFS: it is
 * another volume, or none; or the error of reading.
 */
int cfs_host_check_volume(struct cfs_engine_host *host, const struct cfs_ctx *ctx);
uint64_t cfs_host_sid(struct cfs_engine_host *host);
bool cfs_host_dir_stats(struct cfs_engine_host *host);
bool cfs_host_changelog(struct cfs_engine_host *host);
uint64_t cfs_host_txn_number(struct cfs_engine_host *host); /* 1, 2, ... for changelog lines */
/* Called by an engine on SQL before a connection is used. */
void cfs_host_connected(struct cfs_engine_host *host);
void cfs_host_count(struct cfs_engine_host *host, enum cfs_meta_op op, unsigned round_trips,
		    unsigned retries);

/*
 * Hash of a name in a directory, for the caches of engines. Any bits of it can serve as an index.
 */
uint64_t cfs_name_hash(cfs_ino_t parent, const char *name, size_t len);

#endif
