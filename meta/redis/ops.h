/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of struct cfs_engine_ops on Redis, rds_op_<member>, and the functions that the
 * operation files share. `e` is a struct rds. Contracts: meta/engine/engine.h.
 */
#ifndef CFS_META_REDIS_OPS_H
#define CFS_META_REDIS_OPS_H

#include "meta/engine/engine.h"
#include "meta/redis/redis-internal.h"

#define CFS_CTX const struct cfs_ctx *ctx
#define CFS_ENG struct cfs_engine *e

/* The largest number of chunk lists that are looked up one by one (MAX_LOOP of lib/chunks.lua). */
enum { RDS_CHUNKS_ONE_BY_ONE = 16384 };

/* The context of one page of a scan: each page has its own deadline (meta.h). */
static inline struct cfs_ctx rds_page_ctx(void)
{
	return cfs_ctx_internal(30000);
}

#define DECLARE(member) CFS_ENGINE_DECLARE(rds_op_##member, member);
CFS_ENGINE_OPS(DECLARE)
DECLARE(advise)
DECLARE(commit_group)
DECLARE(dead_locks)
#undef DECLARE

/*
 * optimistic.c: updates the optimistic cache with a record just read, of a directory or of a cached
 * file.
 */
void rds_cache_attr(struct rds *r, cfs_ino_t ino, const redisReply *record,
		    const struct cfs_attr *attr);
/* The same, and the name of the inode. */
void rds_cache_name(struct rds *r, cfs_ino_t parent, const char *name, size_t len,
		    const struct cfs_entry *entry, const redisReply *record);
/*
 * The optimistic path. 1: done; 0: nothing was done, because the case is not simple or the cached
 * attributes are outdated; or a negative errno.
 */
int rds_mknod_optimistic(CFS_ENG, CFS_CTX, const struct cfs_mknod *req, cfs_ino_t ino,
			 struct cfs_attr *ret, struct cfs_attr *ret_parent);
int rds_unlink_optimistic(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req,
			  struct cfs_removed *ret);

/* ---- data.c ---- */
/* The records of a chunk list; *ret is malloc'ed, NULL when there are none. -EIO: damaged. */
int rds_records_reply(const redisReply *list, cfs_ino_t ino, uint32_t indx, struct cfs_slice **ret);
/*
 * Reads the answer of a change of data: the attributes after it, the length before it, and for a file
 * with several names each directory and the number of its names there.
 */
int rds_change_reply(struct cfs_engine *e, cfs_ino_t ino, const redisReply *a, struct cfs_attr *ret,
		     struct cfs_usage *ret_usage);
/*
 * Numbers of all chunks of the inode, u32 big-endian each, ascending, found by a scan of the whole
 * database.
 */
int rds_find_chunks(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct rds_bytes *ret);
/*
 * Handles the answer EBUSY of lib/chunks.lua: finds the chunks. True: run the script again with *k
 * as arguments. False: *r is the result, and *k was freed.
 */
struct rds_chunks {
	struct rds_bytes expected, found;
};
bool rds_wants_chunks(CFS_ENG, CFS_CTX, cfs_ino_t ino, int *r, const redisReply *a,
		      struct rds_chunks *k);

/* advice.c: the value of a line "name:value" of INFO. False: there is no such line. */
bool rds_info_field(const char *info, const char *name, char *buf, size_t size);
CFS_ENGINE_DECLARE(rds_op_settle, settle);

/*
 * delete.c: reads the answer of a script that has deleted an inode. *ret_length: its length in
 * `delfiles`, which is cached; UINT64_MAX when it has left no data.
 */
int rds_deleted_reply(struct rds *r, cfs_ino_t ino, const redisReply *a, uint64_t *ret_length,
		      struct cfs_usage *ret_usage);
/* Caches the length of a deleted file in `delfiles`. */
void rds_deletions_add(struct rds *r, cfs_ino_t ino, uint64_t length);
/*
 * Notes a commit whose answer was lost: key and token of its request, and when it was first sent.
 */
void rds_unknown_commit_add(struct rds *r, uint64_t slice, uint64_t begun_ms, const char *key,
			    const char *token);
/*
 * Finds the key and token of such a commit; both are "" when it was not noted. True: the server
 * still keeps the stored answer, if the commit has run.
 */
bool rds_unknown_commit_find(struct rds *r, uint64_t slice, char key[RDS_KEY_MAX], char token[17]);
/* Scans delfiles for the inode; -ENOENT. */
int rds_find_delfile(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t *ret_length);
/* Notes a committed slice, which orphan_slice then refuses. */
void rds_commit_note(struct rds *r, uint64_t slice);
int rds_end_sustained_all(CFS_ENG, CFS_CTX, uint64_t sid);
bool rds_parse_ref(const char *p, size_t len, uint64_t *ret_id, uint32_t *ret_size);

/* session.c: the key of a counter; *ret_shift: the difference to the value in SQL. */
const char *rds_counter_key(const char *name, int64_t *ret_shift);

/*
 * scan.c: delivers the keys of one page of SCAN that are `name` and a number, with that number and
 * the text behind it.
 */
typedef int (*rds_key_fn)(void *arg, uint64_t n, const char *rest, size_t rest_len);
int rds_scan_keys(CFS_ENG, CFS_CTX, const char *name, struct rds_cursor *cursor, rds_key_fn fn,
		  void *arg);
struct rds_numbers {
	uint64_t *v;
	size_t n, cap;
};
int rds_note_number(struct rds_numbers *to, uint64_t n);
/* A rds_key_fn that notes the numbers of keys with nothing behind them in a struct rds_numbers. */
int rds_note_key(void *arg, uint64_t n, const char *rest, size_t rest_len);

/* scan.c: calls fn for each entry of a directory from a position on; HSCAN may return one twice. */
typedef int (*rds_entry_fn)(void *arg, cfs_ino_t dir, const redisReply *name,
			    const redisReply *value);
int rds_each_entry(CFS_ENG, cfs_ino_t dir, struct rds_cursor from, rds_entry_fn fn, void *arg);

/*
 * inode-names.c: 1 and a name of the inode in that directory, which has it at this moment; 0: there is
 * none. name: CFS_NAME_MAX bytes.
 */
int rds_inode_name(CFS_ENG, CFS_CTX, cfs_ino_t dir, cfs_ino_t ino, char *name, size_t *ret_len);
struct rds_inode_names *rds_inode_names_create(void);
void rds_inode_names_destroy(struct rds_inode_names *names); /* or NULL */

/* apply.c: conditions, and commands that are executed when all of them hold (apply.lua). */
struct rds_apply {
	struct rds_request words; /* .words.r: the engine; ends with rds_end */
	size_t n_words, conditions;
};
/*
 * Adds a condition, before all commands: a command that reads, and its expected answer, "" for nil.
 */
void rds_apply_if(struct rds_apply *a, const void *expected, size_t len, const char *fmt, ...);
void rds_apply_do(struct rds_apply *a, const char *fmt, ...);
/* -EBUSY: a condition does not hold */
int rds_apply_run(struct rds_apply *a, CFS_ENG, CFS_CTX, enum cfs_meta_op op);

#undef CFS_CTX
#undef CFS_ENG

#endif
