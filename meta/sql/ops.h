/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of struct cfs_engine_ops in SQL, sql_op_<member>, and what the operation files lend
 * each other. `e` is a struct sql_db. Contracts: meta/engine.h.
 */
#ifndef CFS_META_SQL_OPS_H
#define CFS_META_SQL_OPS_H

#include "meta/sql/sql.h"

#define CFS_CTX const struct cfs_ctx *ctx
#define CFS_ENG struct cfs_engine *e

/* setting.c counters.c session.c names.c readdir.c trashdir.c changelog.c */
int sql_op_create(CFS_ENG, CFS_CTX, const char *setting, bool trash);
int sql_op_upgrade(CFS_ENG, CFS_CTX);
int sql_op_get_setting(CFS_ENG, CFS_CTX, char **ret);
int sql_op_put_setting(CFS_ENG, CFS_CTX, const char *setting);
int sql_op_sync(CFS_ENG, CFS_CTX);
int sql_op_destroy(CFS_ENG, CFS_CTX);
int sql_op_add_counter(CFS_ENG, CFS_CTX, const char *name, int64_t n, int64_t *ret_old);
int sql_op_get_counters(CFS_ENG, CFS_CTX, int64_t *ret_used_space, int64_t *ret_inodes);
int sql_op_claim_job(CFS_ENG, CFS_CTX, const char *name, int64_t now_s, int64_t interval_s);
int sql_op_new_session(CFS_ENG, CFS_CTX, const char *info, int64_t expire_s, uint64_t *ret_sid);
int sql_op_refresh_session(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
int sql_op_resume_session(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
int sql_op_clean_session(CFS_ENG, CFS_CTX, uint64_t sid);
int sql_op_each_session(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit, cfs_session_fn fn,
			void *arg);
int sql_op_lookup(CFS_ENG, CFS_CTX, cfs_ino_t parent, const char *name, size_t len,
		  struct cfs_entry *ret);
int sql_op_getattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret);
int sql_op_setattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t set, const struct cfs_attr *in,
		   struct cfs_attr *ret, struct cfs_usage *ret_usage);
int sql_op_touch_atime(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct timespec atime);
int sql_op_readlink(CFS_ENG, CFS_CTX, cfs_ino_t ino, char buf[CFS_SYMLINK_MAX + 1]);
int sql_op_mknod(CFS_ENG, CFS_CTX, const struct cfs_mknod *req, cfs_ino_t ino,
		 struct cfs_entry *ret, struct cfs_usage *ret_usage);
int sql_op_link(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name, size_t len,
		struct cfs_attr *ret, struct cfs_usage *ret_usage);
int sql_op_readdir(CFS_ENG, CFS_CTX, cfs_ino_t dir, bool attrs, size_t limit,
		   struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg);
int sql_op_trash_dir(CFS_ENG, CFS_CTX, const char *name, cfs_ino_t *ret);
int sql_op_each_parent(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_parent_fn fn, void *arg);
int sql_op_trim_changelog(CFS_ENG, CFS_CTX, int64_t before_s, int64_t max_lines);

/* records.c */
int sql_op_put_record(CFS_ENG, CFS_CTX, const char *key, const void *value, size_t len, bool fresh);
int sql_op_drop_record(CFS_ENG, CFS_CTX, const char *key);
int sql_op_each_record(CFS_ENG, CFS_CTX, const char *prefix, cfs_record_fn fn, void *arg);

/* Adds to a counter that may not exist. */
int sql_add_counter(struct sql_conn *c, const char *name, int64_t n, int64_t *ret_old);

/*
 * remove.c rename.c chunks.c copy.c deletion.c xattr.c acl.c locks.c quota.c dirstat.c clone.c
 */
int sql_op_unlink(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req, struct cfs_removed *ret,
		  struct cfs_usage *ret_usage);
int sql_op_rmdir(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req, struct cfs_removed *ret,
		 struct cfs_usage *ret_usage);
int sql_op_rename(CFS_ENG, CFS_CTX, const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		  struct cfs_usage *ret_usage);
ssize_t sql_op_read_chunk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx, struct cfs_slice **ret);
int sql_op_commit_slice(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx, const struct cfs_slice *s,
			struct timespec mtime, struct cfs_attr *ret, unsigned *ret_records,
			struct cfs_usage *ret_usage);
int sql_op_truncate(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length, struct cfs_attr *ret,
		    struct cfs_usage *ret_usage);
int sql_op_fallocate(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned mode, uint64_t off, uint64_t len,
		     struct cfs_attr *ret, struct cfs_usage *ret_usage);
int sql_op_copy_range(CFS_ENG, CFS_CTX, const struct cfs_copy_range *req, uint64_t *ret_copied,
		      struct cfs_attr *ret_dst, struct cfs_usage *ret_usage);
int sql_op_compact_chunk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx,
			 const struct cfs_slice *head, size_t head_n, size_t skipped,
			 const struct cfs_slice *merged, bool trash, cfs_engine_slice_fn dead,
			 void *arg);
int sql_op_end_sustained(CFS_ENG, CFS_CTX, uint64_t sid, cfs_ino_t ino, uint64_t *ret_length,
			 struct cfs_usage *ret_usage);
int sql_op_each_delfile(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit, cfs_engine_delfile_fn fn,
			void *arg);
int sql_op_delete_chunk(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_slice_fn dead, void *arg);
int sql_op_drop_delfile(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length);
int sql_op_each_dead_slice(CFS_ENG, CFS_CTX, size_t limit, cfs_engine_slice_fn fn, void *arg);
int sql_op_orphan_slice(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
int sql_op_drop_slice(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
int sql_op_expire_delayed(CFS_ENG, CFS_CTX, int64_t before_s, cfs_engine_slice_fn dead, void *arg);
int sql_op_each_slice(CFS_ENG, CFS_CTX, cfs_engine_slice_fn fn, void *arg);
ssize_t sql_op_getxattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, void **ret);
ssize_t sql_op_listxattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, char **ret);
int sql_op_setxattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, const void *value,
		    size_t size, int flags);
int sql_op_removexattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name);
int sql_op_get_acl(CFS_ENG, CFS_CTX, uint32_t id, struct cfs_acl *ret);
int sql_op_put_acl(CFS_ENG, CFS_CTX, const struct cfs_acl *rule, uint32_t *ret_id);
int sql_op_set_acl_id(CFS_ENG, CFS_CTX, cfs_ino_t ino, bool is_default, uint32_t id, int mode,
		      struct cfs_attr *ret);
int sql_op_flock(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		 enum cfs_lock_type type);
int sql_op_setlk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		 const struct cfs_plock *lock);
int sql_op_getlk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		 struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner);
int sql_op_get_dir_stat(CFS_ENG, CFS_CTX, cfs_ino_t dir, struct cfs_dir_stat *ret);
int sql_op_set_dir_stat(CFS_ENG, CFS_CTX, cfs_ino_t dir, const struct cfs_dir_stat *st);
int sql_op_add_usage(CFS_ENG, CFS_CTX, int64_t space, int64_t inodes,
		     const struct cfs_usage_dir *dirs, size_t n);
int sql_op_each_quota(CFS_ENG, CFS_CTX, cfs_engine_quota_fn fn, void *arg);
int sql_op_put_quota(CFS_ENG, CFS_CTX, const struct cfs_quota *q);
int sql_op_del_quota(CFS_ENG, CFS_CTX, enum cfs_quota_kind kind, uint64_t key);
int sql_op_add_quota_usage(CFS_ENG, CFS_CTX, const struct cfs_quota *deltas, size_t n);
int sql_op_clone_ino(CFS_ENG, CFS_CTX, cfs_ino_t src, cfs_ino_t ino, cfs_ino_t parent,
		     const char *name, size_t len, bool preserve, struct cfs_entry *ret,
		     struct cfs_usage *ret_usage);
int sql_op_attach(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name, size_t len,
		  struct cfs_usage *ret_usage);

/* scan.c repair.c */
int sql_op_drop_detached(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_usage *ret_usage);
int sql_op_scan(CFS_ENG, CFS_CTX, enum cfs_meta_table table, struct cfs_scan_pos *pos,
		cfs_row_fn fn, void *arg);
int sql_op_put_rows(CFS_ENG, CFS_CTX, enum cfs_meta_table table, const struct cfs_row *rows,
		    size_t n);
ssize_t sql_op_list_chunks(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t first,
			   struct cfs_chunk_len ret[1024]);
int sql_op_check_inode(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned repair, struct cfs_check *ret,
		       struct cfs_usage *ret_usage);
int sql_op_check_usage(CFS_ENG, CFS_CTX, int64_t *ret_space, int64_t *ret_inodes);
int sql_op_fix_refs(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size, int64_t have, int64_t want);
int sql_op_clear_dir_stats(CFS_ENG, CFS_CTX);

/* The rule of that id; the caller frees users and groups. -ENODATA: no such rule. */
int sql_get_acl(struct sql_conn *c, uint32_t id, struct cfs_acl *ret);
/* The id of a rule with this content, stored when there is none. */
int sql_put_acl(struct sql_conn *c, const struct cfs_acl *acl, uint32_t *ret_id);
/* Removes every lock of the session. */
int sql_clean_session_locks(struct sql_conn *c, uint64_t sid);
/* Ends every sustained inode of the session, each in its own transaction. */
int sql_end_sustained_all(struct sql_db *db, const struct cfs_ctx *ctx, uint64_t sid);

/* -- times as stored: microseconds, and the nanoseconds below -- */
static inline int64_t sql_us(struct timespec t)
{
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static inline int64_t sql_sub_us(struct timespec t)
{
	return t.tv_nsec % 1000;
}
struct timespec sql_time(int64_t us, int64_t sub_us);

/* -- what an inode weighs -- */
/* In dir_stats: bytes of data; in dir_stats and in the volume: space. */
static inline int64_t sql_length_of(const struct cfs_attr *attr)
{
	return attr->type == CFS_TYPE_FILE ? (int64_t)attr->length : 0;
}
static inline int64_t sql_space_of(const struct cfs_attr *attr)
{
	return cfs_space_of((uint64_t)sql_length_of(attr));
}
/* One name of the inode comes to (sign 1) or leaves (-1) the directory. */
void sql_usage_entry(struct cfs_usage *u, cfs_ino_t dir, const struct cfs_attr *attr, int sign);
/* The inode comes to (1) or leaves (-1) the volume. */
void sql_usage_inode(struct cfs_usage *u, const struct cfs_attr *attr, int sign);
/* The file's length was old_length: in the volume and in every directory that names it. */
int sql_usage_length(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr,
		     uint64_t old_length, struct cfs_usage *u);

/* -- remove.c -- */
/* The node behind an edge, locked; a node that is missing looks like an empty one. */
int sql_lock_victim(struct sql_conn *c, const struct sql_edge *edge, struct cfs_attr *ret);
struct cfs_attr sql_missing_node(const struct sql_edge *edge);
/*
 * Disposes of an object whose edge (req->parent, req->name) is gone: trash, sustained or deleted.
 * v->ino and v->attr are given, the rest is filled in. has_data: whether a file has chunks, -1: to
 * be looked for.
 */
int sql_dispose(struct sql_conn *c, CFS_CTX, const struct cfs_engine_remove *req, int has_data,
		struct cfs_removed *v, struct cfs_usage *u);
/* Moves the times of a directory when they are due or its nlink changes. Not in the trash. */
int sql_touch_dir(struct sql_conn *c, CFS_CTX, cfs_ino_t dir, const struct cfs_attr *attr,
		  int nlink_d);
/* 1: the file has left chunks, which are remembered for deletion; 0: there are none. */
int sql_put_delfile(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length);
/* nlink, parent and ctime of *attr. */
int sql_move_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr);

/* -- chunks.c -- */
/* Appends encoded records to a chunk, created when absent. */
int sql_append_records(struct sql_conn *c, cfs_ino_t ino, uint32_t indx, const void *records,
		       size_t bytes);
/* length, mtime and ctime of *attr. */
int sql_set_written(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr);
/* The file to be changed, locked; judged by cfs_rules_write. */
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
/* id 0 (zeros) is left out. */
int sql_refs_add(struct sql_refs *l, uint64_t id, uint32_t size);
/* Encoded chunk records. -EIO: not a list of records. */
int sql_refs_add_records(struct sql_refs *l, const void *records, size_t bytes);
/* The (id, size) pairs of a delayed entry. */
int sql_refs_add_pairs(struct sql_refs *l, const void *pairs, size_t bytes);
/* refs + n of each, in the order of ids. -EIO: a slice has no row. */
int sql_refs_raise(struct sql_conn *c, struct sql_refs *l);
/* refs - n of each; only slices that have none left stay in the list. */
int sql_refs_drop(struct sql_conn *c, struct sql_refs *l);
/* Until fn returns non-zero, which is returned. */
int sql_refs_each(const struct sql_refs *l, cfs_engine_slice_fn fn, void *arg);
void sql_refs_clear(struct sql_refs *l); /* keeps the memory */
void sql_refs_free(struct sql_refs *l);

#undef CFS_CTX
#undef CFS_ENG

#endif
