/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of cachefs's own in the metadata, which other clients of the format ignore, and leases,
 * which are records that are renewed. Any thread.
 *
 * Errors are negative errno values, as in meta.h.
 */
#ifndef CFS_RECORDS_H
#define CFS_RECORDS_H

#include <cachefs/meta.h>

/*
 * A record has a name in a table: its key is "TABLE/NAME". The first '/' ends the table, and
 * neither is empty. A table exists while it has records.
 */
#define CFS_RECORD_KEY_MAX 127 /* printable bytes */
#define CFS_RECORD_MAX	   8192

/* How the metadata is replicated; with it, SQLite's log stays when the last connection closes. */
#define CFS_REPLICATION_RECORD "replica/setting"

/* fresh: -EEXIST when the key exists; its value is unchanged. */
int cfs_meta_put_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			const void *value, size_t len, bool fresh);
/*
 * Compare and swap: replaces the value where it is `old`. -ESTALE: it differs, or there is no
 * record; also possible after a success, when the call was repeated because its answer was lost.
 */
int cfs_meta_swap_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			 const void *old, size_t old_len, const void *value, size_t len);
int cfs_meta_drop_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key);
/* fn calls no cfs_meta function. */
typedef int (*cfs_record_fn)(void *arg, const char *key, const void *value, size_t len);
/* Calls fn once and returns its result. -ENOENT: there is no such record. */
int cfs_meta_get_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			cfs_record_fn fn, void *arg);
/*
 * Delivers the records of one table ("TABLE"), and reads no others. In any order, a record possibly
 * twice. A non-zero return of fn ends it and is returned.
 */
int cfs_meta_each_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *table,
			 cfs_record_fn fn, void *arg);

/*
 * A lease: mutual exclusion between commands on a volume, on any hosts. It is a record (`key`) that
 * a thread renews until it is dropped. The lease of a killed holder expires after twice the
 * deadline of an operation (conf.timeout_ms). holder: one line for messages, up to 127 bytes.
 * -EBUSY: another holder has it; busy names it and the remaining time.
 */
struct cfs_lease;
int cfs_meta_take_lease(struct cfs_meta *m, const char *key, const char *holder,
			struct cfs_lease **ret, char busy[256]);
/*
 * 0: an operation that begins at once, with conf.timeout_ms as its deadline, ends while the lease
 * is valid. -ESTALE: another holder has it; other errors: it could not be renewed.
 */
int cfs_lease_check(struct cfs_lease *l);
/* NULL is allowed. */
void cfs_lease_drop(struct cfs_lease *l);

#endif
