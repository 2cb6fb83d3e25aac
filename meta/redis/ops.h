/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of struct cfs_engine_ops on Redis, rds_op_<member>, and what the operation files lend
 * each other. `e` is a struct rds. Contracts: meta/engine.h.
 */
#ifndef CFS_META_REDIS_OPS_H
#define CFS_META_REDIS_OPS_H

#include "meta/redis/redis-internal.h"

#define CFS_CTX const struct cfs_ctx *ctx
#define CFS_ENG struct cfs_engine *e

/* A file of more chunks than that is not looked through by number (lib/chunks.lua). */
enum { RDS_CHUNKS_ONE_BY_ONE = 16384 };

int rds_op_create(CFS_ENG, CFS_CTX, const char *setting, bool trash);
int rds_op_upgrade(CFS_ENG, CFS_CTX);
int rds_op_get_setting(CFS_ENG, CFS_CTX, char **ret);
int rds_op_put_setting(CFS_ENG, CFS_CTX, const char *setting);
int rds_op_destroy(CFS_ENG, CFS_CTX);
int rds_op_add_counter(CFS_ENG, CFS_CTX, const char *name, int64_t n, int64_t *ret_old);
int rds_op_get_counters(CFS_ENG, CFS_CTX, int64_t *ret_used_space, int64_t *ret_inodes);
int rds_op_claim_job(CFS_ENG, CFS_CTX, const char *name, int64_t now_s, int64_t interval_s);
int rds_op_new_session(CFS_ENG, CFS_CTX, const char *info, int64_t expire_s, uint64_t *ret_sid);
int rds_op_refresh_session(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
int rds_op_resume_session(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
int rds_op_clean_session(CFS_ENG, CFS_CTX, uint64_t sid);
int rds_op_each_session(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit, cfs_session_fn fn,
			void *arg);
int rds_op_lookup(CFS_ENG, CFS_CTX, cfs_ino_t parent, const char *name, size_t len,
		  struct cfs_entry *ret);
int rds_op_getattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret);
int rds_op_setattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t set, const struct cfs_attr *in,
		   struct cfs_attr *ret, struct cfs_usage *ret_usage);
int rds_op_touch_atime(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct timespec atime);
int rds_op_readlink(CFS_ENG, CFS_CTX, cfs_ino_t ino, char buf[CFS_SYMLINK_MAX + 1]);
int rds_op_mknod(CFS_ENG, CFS_CTX, const struct cfs_mknod *req, cfs_ino_t ino,
		 struct cfs_entry *ret, struct cfs_usage *ret_usage);
int rds_op_link(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name, size_t len,
		struct cfs_attr *ret, struct cfs_usage *ret_usage);
int rds_op_unlink(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req, struct cfs_removed *ret,
		  struct cfs_usage *ret_usage);
int rds_op_rmdir(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req, struct cfs_removed *ret,
		 struct cfs_usage *ret_usage);
int rds_op_rename(CFS_ENG, CFS_CTX, const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		  struct cfs_usage *ret_usage);
int rds_op_readdir(CFS_ENG, CFS_CTX, cfs_ino_t dir, bool attrs, size_t limit,
		   struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg);
int rds_op_trash_dir(CFS_ENG, CFS_CTX, const char *name, cfs_ino_t *ret);
int rds_op_each_parent(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_parent_fn fn, void *arg);
ssize_t rds_op_read_chunk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx, struct cfs_slice **ret);
int rds_op_commit_slice(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx, const struct cfs_slice *s,
			struct timespec mtime, struct cfs_attr *ret, unsigned *ret_records,
			struct cfs_usage *ret_usage);
int rds_op_truncate(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length, struct cfs_attr *ret,
		    struct cfs_usage *ret_usage);
int rds_op_fallocate(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned mode, uint64_t off, uint64_t len,
		     struct cfs_attr *ret, struct cfs_usage *ret_usage);
int rds_op_copy_range(CFS_ENG, CFS_CTX, const struct cfs_copy_range *req, uint64_t *ret_copied,
		      struct cfs_attr *ret_dst, struct cfs_usage *ret_usage);
int rds_op_compact_chunk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx,
			 const struct cfs_slice *head, size_t head_n, size_t skipped,
			 const struct cfs_slice *merged, bool trash, cfs_engine_slice_fn dead,
			 void *arg);
int rds_op_end_sustained(CFS_ENG, CFS_CTX, uint64_t sid, cfs_ino_t ino, uint64_t *ret_length,
			 struct cfs_usage *ret_usage);
int rds_op_each_delfile(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit, cfs_engine_delfile_fn fn,
			void *arg);
int rds_op_delete_chunk(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_slice_fn dead, void *arg);
int rds_op_drop_delfile(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length);
int rds_op_each_dead_slice(CFS_ENG, CFS_CTX, size_t limit, cfs_engine_slice_fn fn, void *arg);
int rds_op_orphan_slice(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
int rds_op_drop_slice(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
int rds_op_expire_delayed(CFS_ENG, CFS_CTX, int64_t before_s, cfs_engine_slice_fn dead, void *arg);
int rds_op_each_slice(CFS_ENG, CFS_CTX, cfs_engine_slice_fn fn, void *arg);
ssize_t rds_op_getxattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, void **ret);
ssize_t rds_op_listxattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, char **ret);
int rds_op_setxattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, const void *value,
		    size_t size, int flags);
int rds_op_removexattr(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name);
int rds_op_get_acl(CFS_ENG, CFS_CTX, uint32_t id, struct cfs_acl *ret);
int rds_op_put_acl(CFS_ENG, CFS_CTX, const struct cfs_acl *rule, uint32_t *ret_id);
int rds_op_set_acl_id(CFS_ENG, CFS_CTX, cfs_ino_t ino, bool is_default, uint32_t id, int mode,
		      struct cfs_attr *ret);
int rds_op_flock(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		 enum cfs_lock_type type);
int rds_op_setlk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		 const struct cfs_plock *lock);
int rds_op_getlk(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		 struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner);
int rds_op_get_dir_stat(CFS_ENG, CFS_CTX, cfs_ino_t dir, struct cfs_dir_stat *ret);
int rds_op_set_dir_stat(CFS_ENG, CFS_CTX, cfs_ino_t dir, const struct cfs_dir_stat *st);
int rds_op_add_usage(CFS_ENG, CFS_CTX, int64_t space, int64_t inodes,
		     const struct cfs_usage_dir *dirs, size_t n);
int rds_op_each_quota(CFS_ENG, CFS_CTX, cfs_engine_quota_fn fn, void *arg);
int rds_op_put_quota(CFS_ENG, CFS_CTX, const struct cfs_quota *q);
int rds_op_del_quota(CFS_ENG, CFS_CTX, enum cfs_quota_kind kind, uint64_t key);
int rds_op_add_quota_usage(CFS_ENG, CFS_CTX, const struct cfs_quota *deltas, size_t n);
int rds_op_clone_ino(CFS_ENG, CFS_CTX, cfs_ino_t src, cfs_ino_t ino, cfs_ino_t parent,
		     const char *name, size_t len, bool preserve, struct cfs_entry *ret,
		     struct cfs_usage *ret_usage);
int rds_op_attach(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name, size_t len,
		  struct cfs_usage *ret_usage);
int rds_op_drop_detached(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_usage *ret_usage);
int rds_op_scan(CFS_ENG, CFS_CTX, enum cfs_meta_table table, struct cfs_scan_pos *pos,
		cfs_row_fn fn, void *arg);
ssize_t rds_op_list_chunks(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t first,
			   struct cfs_chunk_len ret[1024]);
int rds_op_check_inode(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned repair, struct cfs_check *ret,
		       struct cfs_usage *ret_usage);
int rds_op_check_usage(CFS_ENG, CFS_CTX, int64_t *ret_space, int64_t *ret_inodes);
int rds_op_fix_refs(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size, int64_t have, int64_t want);
int rds_op_clear_dir_stats(CFS_ENG, CFS_CTX);
int rds_op_put_rows(CFS_ENG, CFS_CTX, enum cfs_meta_table table, const struct cfs_row *rows,
		    size_t n);
int rds_op_trim_changelog(CFS_ENG, CFS_CTX, int64_t before_s, int64_t max_lines);
int rds_op_put_record(CFS_ENG, CFS_CTX, const char *key, const void *value, size_t len, bool fresh);
int rds_op_drop_record(CFS_ENG, CFS_CTX, const char *key);
int rds_op_each_record(CFS_ENG, CFS_CTX, const char *prefix, cfs_record_fn fn, void *arg);

/* advice.c */
int rds_op_advise(CFS_ENG, CFS_CTX, cfs_advice_fn fn, void *arg);

/* names.c: what a name was last known to stand for; 0 or another inode when that is not known. */
void rds_remember_name(struct rds *r, cfs_ino_t parent, const char *name, size_t len,
		       cfs_ino_t ino);
cfs_ino_t rds_guess(struct rds *r, cfs_ino_t parent, const char *name, size_t len);

/* data.c */
int rds_records_reply(const redisReply *list, cfs_ino_t ino, uint32_t indx, struct cfs_slice **ret);
int rds_change_reply(const redisReply *attr, const redisReply *old8, const redisReply *parents,
		     struct cfs_meta *core, struct cfs_attr *ret, struct cfs_usage *ret_usage);
/* Numbers of all chunks of the inode, u32 big-endian each, from a walk over the whole database. */
int rds_find_chunks(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct rds_bytes *ret);
int rds_compare_be32(const void *a, const void *b);
/* How many chunks the file may have. */
int rds_chunk_end(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t *ret);
bool rds_wants_chunks(CFS_ENG, CFS_CTX, cfs_ino_t ino, int *r, const redisReply *a,
		      struct rds_bytes *seen, struct rds_bytes *found);

/* delete.c: a deleted file, and the length under which it stands in `delfiles`. */
void rds_doomed_add(struct rds *r, cfs_ino_t ino, uint64_t length);
/* A commit whose outcome nobody knows, by the key and token of its request. */
void rds_doubt_add(struct rds *r, uint64_t slice, const char *key, const char *token);
/* Looks for the inode in delfiles; -ENOENT. */
int rds_find_delfile(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t *ret_length);
void rds_commit_note(struct rds *r, uint64_t slice);
int rds_end_sustained_all(CFS_ENG, CFS_CTX, uint64_t sid);
bool rds_parse_ref(const char *p, size_t len, uint64_t *ret_id, uint32_t *ret_size);

/* session.c: the key of a counter; what its value is short of the SQL one. */
const char *rds_counter_key(const char *name, int64_t *ret_shift);

/* scan.c: the keys of one page of SCAN that are `letter` and a number, with that number. */
typedef int (*rds_key_fn)(void *arg, uint64_t n, const char *rest, size_t rest_len);
int rds_scan_keys(CFS_ENG, CFS_CTX, const char *name, uint64_t *cursor, rds_key_fn fn, void *arg);

/* apply.c: conditions, and commands that are done when all of them hold (apply.lua). */
struct rds_apply {
	struct rds_request words;
	size_t n_words, conditions;
};
void rds_apply_begin(struct rds_apply *a, CFS_ENG);
void rds_apply_end(struct rds_apply *a);
/* Before any command. The words are a reading command; expected: its answer as bytes, "" for none.
 */
void rds_apply_if(struct rds_apply *a, const void *expected, size_t len, const char *fmt, ...);
void rds_apply_do(struct rds_apply *a, const char *fmt, ...);
/* -EBUSY: a condition does not hold */
int rds_apply_run(struct rds_apply *a, CFS_ENG, CFS_CTX, enum cfs_meta_op op);

#undef CFS_CTX
#undef CFS_ENG

#endif
