/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of struct cfs_engine_ops in SQL, sql_op_<member>, and the functions that the
 * operation files share. `e` is a struct sql_db. Contracts: meta/engine/engine.h.
 */
#ifndef CFS_META_SQL_OPS_H
#define CFS_META_SQL_OPS_H

#include "meta/engine/engine.h"
#include "meta/sql/sql.h"

#define CFS_CTX const struct cfs_ctx *ctx
#define CFS_ENG struct cfs_engine *e

#define DECLARE(member) CFS_ENGINE_DECLARE(sql_op_##member, member);
CFS_ENGINE_OPS(DECLARE)
DECLARE(sync)
DECLARE(commit_group)
#undef DECLARE

/*
 * The result of a commit whose slice exists. -EINPROGRESS: an earlier attempt may have committed
 * it; -EEXIST: the id is in use (logged).
 */
int sql_slice_in_use(const struct cfs_commit *c);
/*
 * Adds to a counter that may not exist. *ret_old: the first number that is added; on another server
 * than before, one behind those that the server may have forgotten.
 */
int sql_add_counter(struct sql_conn *c, const struct cfs_ctx *ctx, const char *name, int64_t n,
		    int64_t *ret_old);
/* Notes the server that the counters of a new volume begin on. */
int sql_mark_counters(struct sql_conn *c);

/* Reads the rule of that id; the caller frees users and groups. -ENODATA: no such rule. */
int sql_get_acl(struct sql_conn *c, uint32_t id, struct cfs_acl *ret);
/* The id of a rule with this content, stored when there is none. */
int sql_put_acl(struct sql_conn *c, const struct cfs_acl *acl, uint32_t *ret_id);
/* Removes every lock of the session. */
int sql_clean_session_locks(struct sql_conn *c, uint64_t sid);
/* Ends every sustained inode of the session, each in its own transaction. */
int sql_end_sustained_all(struct sql_db *db, const struct cfs_ctx *ctx, uint64_t sid);

/* -- stored times: microseconds, and the remaining nanoseconds -- */
static inline int64_t sql_us(struct timespec t)
{
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static inline int64_t sql_sub_us(struct timespec t)
{
	return t.tv_nsec % 1000;
}
struct timespec sql_time(int64_t us, int64_t sub_us);

/* The values of the columns {NODE}, for statements that write a whole row. */
#define SQL_NODE_VALUES(a)                                                                         \
	(int64_t)(a)->type, (int64_t)(a)->flags, (int64_t)(a)->mode, (int64_t)(a)->uid,            \
		(int64_t)(a)->gid, sql_us((a)->atime), sql_us((a)->mtime), sql_us((a)->ctime),     \
		sql_sub_us((a)->atime), sql_sub_us((a)->mtime), sql_sub_us((a)->ctime),            \
		(int64_t)(a)->nlink, (int64_t)(a)->length, (int64_t)(a)->rdev,                     \
		(int64_t)(a)->parent, (int64_t)(a)->access_acl, (int64_t)(a)->default_acl,         \
		(int64_t)(a)->tier

/* The (id, size) pairs of a delayed entry. */
#define SQL_PAIR_BYTES 12

/* Adds a change of length from old_length: usage of the volume and of every parent of the file. */
int sql_usage_length(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr,
		     uint64_t old_length, struct cfs_usage *u);

/* -- names.c -- */
/* Replaces the access rule attr->access_acl by one that fits the changed mode. */
int sql_chmod_acl(struct sql_conn *c, struct cfs_attr *attr);
/* Writes the changelog line of a setattr, when there is a changelog. */
int sql_log_setattr(struct sql_conn *c, CFS_CTX, cfs_ino_t ino, uint32_t set,
		    const struct cfs_attr *attr);

/* -- remove.c -- */
/* The attributes of an edge whose node is missing. */
struct cfs_attr sql_missing_node(const struct sql_edge *edge);
/*
 * Decides and stores the outcome for an inode whose edge (req->parent, req->name) was removed:
 * trash, sustained or deleted. v->ino and v->attr are inputs, the rest is filled in. has_data:
 * whether a file has chunks; -1: not known.
 */
int sql_dispose(struct sql_conn *c, CFS_CTX, const struct cfs_engine_remove *req, int has_data,
		struct cfs_removed *v);
/*
 * Adds nlink_d to the directory's link count and updates its times. Does nothing when nlink_d is 0,
 * and in the trash.
 */
int sql_touch_dir(struct sql_conn *c, CFS_CTX, cfs_ino_t dir, int nlink_d);
/* 1: the file has left chunks, which are recorded for deletion; 0: it has none. */
int sql_put_delfile(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length);
/* Writes nlink, parent and ctime of *attr. */
int sql_move_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr);

/* -- chunks.c -- */
/* The records of a chunk list; *ret is NULL when there are none. -EIO: it is damaged. */
int sql_decode_records(const uint8_t *p, size_t len, cfs_ino_t ino, uint32_t indx,
		       struct cfs_slice **ret, size_t *ret_n);
/* Writes length and times of a file whose length was old_length, and the usage of the change. */
int sql_finish_change(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr,
		      uint64_t old_length, struct cfs_usage *usage);
/* A commit of a slice, and its result. */
struct sql_commit {
	struct cfs_commit *req;
	/* result */
	struct cfs_attr attr;
	unsigned records;
	struct cfs_usage usage;
};
/* Fills req->known_length, from the cache if possible. Called before an engine's own statement. */
int sql_prepare_commit(struct sql_conn *c, struct sql_commit *a);
/* Returns the results of a commit, and caches the attributes. */
int sql_committed(struct sql_db *db, const struct sql_commit *a, unsigned *ret_records,
		  struct cfs_usage *ret_usage);
/* The commits of a group, of different files, and their results: err[i], and v[i] without error. */
struct sql_group {
	size_t n;
	struct sql_commit v[CFS_COMMITS_MAX];
	int err[CFS_COMMITS_MAX];
};
/*
 * Makes the commits in one transaction. 0: each has its result. -EINPROGRESS, -ETIMEDOUT, -EIO: they
 * may have been made. Other values: none was made.
 */
typedef int (*sql_group_fn)(struct sql_db *db, CFS_CTX, struct sql_group *g);
/*
 * The member commit_group by `run`. An engine with optimistic operations gets files with one name and
 * no ACL whose attributes are in its cache; it counts no usage for other ones.
 */
size_t sql_commit_group(CFS_ENG, CFS_CTX, struct cfs_commit *const *commits, size_t n,
			struct cfs_committed *ret, sql_group_fn run);
/* Appends encoded records to a chunk list; creates a missing list. */
int sql_append_records(struct sql_conn *c, cfs_ino_t ino, uint32_t indx, const void *records,
		       size_t bytes);
/* Locks the file, and checks it with cfs_rules_change_file(). */
int sql_lock_file(struct sql_conn *c, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret);

/* -- references of slices (refs.c) -- */
struct sql_ref {
	uint64_t id;
	uint32_t size;
	uint32_t n; /* records */
};
struct sql_refs {
	struct sql_ref *v;
	size_t n, cap;
};
/* Adds a reference; id 0 (a zero record) has none. */
int sql_refs_add(struct sql_refs *l, uint64_t id, uint32_t size);
/* Adds the references of encoded chunk records. -EIO: not a list of records. */
int sql_refs_add_records(struct sql_refs *l, const void *records, size_t bytes);
/* Adds those of the pairs of a delayed entry. */
int sql_refs_add_pairs(struct sql_refs *l, const void *pairs, size_t bytes);
/* Adds n to the count of each slice, in the order of ids. -EIO: a slice has no row. */
int sql_refs_raise(struct sql_conn *c, struct sql_refs *l);
/* Subtracts n; the list then contains only the slices without references. */
int sql_refs_drop(struct sql_conn *c, struct sql_refs *l);
/* Calls fn for each slice, until it returns another value than 0, which is returned. */
int sql_refs_each(const struct sql_refs *l, cfs_engine_slice_fn fn, void *arg);
void sql_refs_clear(struct sql_refs *l); /* keeps the memory */
void sql_refs_free(struct sql_refs *l);

#undef CFS_CTX
#undef CFS_ENG

#endif
