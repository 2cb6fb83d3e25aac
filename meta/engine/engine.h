/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A metadata engine: a table of whole operations. Each engine implements an operation in its
 * cheapest way, as one atomic step. It retries conflicts itself (busy, deadlock, lost connection
 * where the outcome is known) until ctx->deadline; then it returns -ETIMEDOUT.
 *
 * The core has done before the call: names checked, "." and ".." answered, special and trash names
 * refused, read-only mounts refused, ids allocated, quotas judged from memory. The engine checks
 * inside its transaction, with the functions of rules.h: existence, type, emptiness, inode flags,
 * sticky bit and (ctx->check) permissions, because they need rows it reads anyway.
 *
 * Usage: every change of space and inodes is described in a struct cfs_usage. An engine with
 * `inline_usage` also writes it (counters, dir_stats) in the same transaction; for others the core
 * batches it. Directory, user and group quota usage is always batched by the core.
 *
 * Outputs are written only on success unless a member says otherwise.
 */
#ifndef CFS_META_ENGINE_H
#define CFS_META_ENGINE_H

#include <cachefs/meta.h>
#include <stddef.h>

#include "base/text/url.h"
#include "meta/engine/host.h"

struct cfs_engine;

/* The usage that an operation changed. dirs[]: direct children of a directory only (dir_stats). */
struct cfs_usage {
	int64_t space, inodes; /* of the volume */
	struct cfs_usage_dir {
		cfs_ino_t dir;
		int64_t length, space, inodes;
	} dirs[8]; /* further names of one file are left to the repair of dir_stats */
	unsigned n_dirs;
	/*
	 * Usage of the inode's owner. A chown reports the previous owner and the inode's whole
	 * size; the core moves that usage to the owner in the resulting attributes.
	 */
	uint32_t uid, gid;
	int64_t owner_space, owner_inodes;
};
void cfs_usage_add_dir(struct cfs_usage *u, cfs_ino_t dir, int64_t length, int64_t space,
		       int64_t inodes);

/* A script on Redis takes some thousand arguments at most. */
enum { CFS_QUOTAS_AT_ONCE = 1000 };

struct cfs_engine_conf {
	const struct cfs_url *url;
	const struct cfs_meta_conf *meta;
	struct cfs_engine_host *host; /* outlives the engine */
};

/* A request of remove operations; trash is 0 for immediate deletion. */
struct cfs_engine_remove {
	cfs_ino_t parent;
	const char *name;
	size_t name_len;
	cfs_ino_t trash; /* hour directory */
	bool from_trash; /* parent is inside the trash: permissions differ (volume-format 5) */
};

struct cfs_engine_rename {
	struct cfs_rename r;
	cfs_ino_t trash; /* for the victim */
};

/* An ACL rule (volume-format section 10). */
struct cfs_acl_entry {
	uint32_t id;
	uint16_t perm;
};
struct cfs_acl {
	uint16_t owner, group, mask, other; /* 0xFFFF: unset */
	uint32_t n_users, n_groups;
	struct cfs_acl_entry *users, *groups; /* owned */
};

/*
 * The time of the last change of names in a directory, and the ctime up to which its record may be
 * overwritten.
 */
struct cfs_dir_time {
	cfs_ino_t dir;
	struct timespec time, until; /* until >= time */
};

struct cfs_dead_slice {
	uint64_t id;
	uint32_t size;
};

/* The position of a scan, in the engine's own numbers. */
struct cfs_scan_pos {
	uint64_t a, b, c, d;
};

/* One edge of an inode; name is valid during the callback. */
typedef int (*cfs_engine_parent_fn)(void *arg, cfs_ino_t parent, const char *name, size_t len);
typedef int (*cfs_engine_slice_fn)(void *arg, uint64_t id, uint32_t size);
typedef int (*cfs_engine_delfile_fn)(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s);
typedef int (*cfs_engine_quota_fn)(void *arg, const struct cfs_quota *q);

#define CFS_PUT_ROWS 1024

#define CFS_CTX const struct cfs_ctx *ctx
#define CFS_ENG struct cfs_engine *e

/* Of an inode with a name and of one without. */
typedef int cfs_engine_mknod_fn(CFS_ENG, CFS_CTX, const struct cfs_mknod *req, cfs_ino_t ino,
				struct cfs_entry *ret, struct cfs_usage *ret_usage);
typedef int cfs_engine_link_fn(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name,
			       size_t len, struct cfs_attr *ret, struct cfs_usage *ret_usage);

struct cfs_engine_ops {
	const char *name; /* "sqlite3" */
	bool inline_usage;

	/* -- life and volume -- */
	int (*open)(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256]);
	void (*close)(CFS_ENG);
	/*
	 * Creates schema, counters, root and (trash) the trash directory in an empty database.
	 * -EEXIST: it holds a volume.
	 */
	int (*create)(CFS_ENG, CFS_CTX, const char *setting, bool trash);
	/*
	 * Adds the tables, indexes and columns of a newer schema. Called once by a writable
	 * session.
	 */
	int (*upgrade)(CFS_ENG, CFS_CTX);
	/* *ret is malloc'ed text. -ENODATA: no volume here. */
	int (*get_setting)(CFS_ENG, CFS_CTX, char **ret);
	int (*put_setting)(CFS_ENG, CFS_CTX, const char *setting);
	/* Makes acknowledged changes durable. NULL: the server's settings decide. */
	int (*sync)(CFS_ENG, CFS_CTX);
	/*
	 * For deletion, which is not urgent: when this returns 0, the changes acknowledged so far,
	 * to any client, survive a crash of the server's host. NULL: sync does that.
	 */
	int (*settle)(CFS_ENG, CFS_CTX);
	/* Removes everything of the volume. */
	int (*destroy)(CFS_ENG, CFS_CTX);

	/* -- counters: names of volume-format section 3, SQL meaning -- */
	/* Adds n atomically; *ret_old is the value before (the first id of a batch). */
	int (*add_counter)(CFS_ENG, CFS_CTX, const char *name, int64_t n, int64_t *ret_old);
	int (*get_counters)(CFS_ENG, CFS_CTX, int64_t *ret_used_space, int64_t *ret_inodes);
	/* The server's wall clock; of an engine without a server this host's. */
	int (*clock)(CFS_ENG, CFS_CTX, int64_t *ret_s);
	/*
	 * 1 and the counter set to `now` when it was <= now - interval, or is so far ahead that
	 * only a host with a wrong clock can have set it; else 0.
	 */
	int (*claim_job)(CFS_ENG, CFS_CTX, const char *name, int64_t now_s, int64_t interval_s);

	/* -- sessions -- */
	int (*new_session)(CFS_ENG, CFS_CTX, const char *info, int64_t expire_s, uint64_t *ret_sid);
	/* Re-inserts a record that vanished. */
	int (*refresh_session)(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
	/* Replaces info and expiry in the session's record. -ENOENT: there is none. */
	int (*resume_session)(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
	/* Removes locks, finishes sustained inodes, then removes the record. */
	int (*clean_session)(CFS_ENG, CFS_CTX, uint64_t sid);
	/* Sessions with expire < before_s (0: all), at most limit. */
	int (*each_session)(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit, cfs_session_fn fn,
			    void *arg);

	/* -- names and attributes -- */
	int (*lookup)(CFS_ENG, CFS_CTX, cfs_ino_t parent, const char *name, size_t len,
		      struct cfs_entry *ret);
	int (*getattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret);
	int (*setattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t set, const struct cfs_attr *in,
		       struct cfs_attr *ret, struct cfs_usage *ret_usage);
	/* Stores atime only. */
	int (*touch_atime)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct timespec atime);
	int (*readlink)(CFS_ENG, CFS_CTX, cfs_ino_t ino, char buf[CFS_SYMLINK_MAX + 1]);
	/*
	 * Where a directory has a ctime <= until, and no mtime in (time, until]: mtime = time, and
	 * ctime = time unless it is later. Microseconds are compared. Other directories are left
	 * alone, as are removed ones. Never waits for the lock of one directory while holding
	 * another's.
	 */
	int (*touch_dirs)(CFS_ENG, CFS_CTX, const struct cfs_dir_time *v, size_t n);
	/*
	 * Names: a change of a directory's nlink also updates its times. Other changes of its names
	 * leave its record alone (the core stores the times by touch_dirs).
	 */
	/* ino: allocated by the core. -EEXIST fills *ret. */
	cfs_engine_mknod_fn *mknod;
	cfs_engine_link_fn *link;
	int (*unlink)(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req,
		      struct cfs_removed *ret, struct cfs_usage *ret_usage);
	int (*rmdir)(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req, struct cfs_removed *ret,
		     struct cfs_usage *ret_usage);
	int (*rename)(CFS_ENG, CFS_CTX, const struct cfs_engine_rename *req,
		      struct cfs_renamed *ret, struct cfs_usage *ret_usage);
	/* As cfs_meta_readdir. */
	int (*readdir)(CFS_ENG, CFS_CTX, cfs_ino_t dir, bool attrs, size_t limit,
		       struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg);
	/*
	 * The hour directory of that name in the trash ("": only the trash itself), created when
	 * missing; so is the trash. A created hour directory counts as usage like any other inode,
	 * its owner's too; the trash itself and its statistics do not.
	 */
	int (*trash_dir)(CFS_ENG, CFS_CTX, const char *name, cfs_ino_t *ret,
			 struct cfs_usage *ret_usage);
	int (*each_parent)(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_parent_fn fn, void *arg);
	/* As cfs_meta_make_unnamed: a sustained entry of this session stands for the name. */
	cfs_engine_mknod_fn *make_unnamed;
	/*
	 * As cfs_meta_link_unnamed. The sustained entry goes in the same transaction: JuiceFS ends
	 * the inodes of a dead session without a look at their links.
	 */
	cfs_engine_link_fn *link_unnamed;

	/* -- data -- */
	/* Raw records: *ret malloc'ed, count * 24 bytes; returns the count. */
	ssize_t (*read_chunk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx,
			      struct cfs_slice **ret);
	/* As cfs_meta_open_file. */
	int (*open_file)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret,
			 struct cfs_slice **ret_recs, ssize_t *ret_n);
	/*
	 * As cfs_meta_read_heads; the results are zeros before. On error they are freed by the
	 * core.
	 */
	int (*read_heads)(CFS_ENG, CFS_CTX, struct cfs_head *heads, size_t n);
	/*
	 * *ret_records: how many records the chunk has afterwards. -EINPROGRESS: the answer of an
	 * attempt was lost; its outcome is that of find_commit. -EEXIST: the slice's id is in use
	 * already; with `repeated`, that is -EINPROGRESS, too.
	 */
	int (*commit_slice)(CFS_ENG, CFS_CTX, struct cfs_commit *c, unsigned *ret_records,
			    struct cfs_usage *ret_usage);
	/*
	 * The outcome of a commit whose answer was lost. 1: it was carried out; 0: the metadata has
	 * no trace of it: it was not, or the slice was released since. released: the caller knows
	 * that it was.
	 */
	int (*find_commit)(CFS_ENG, CFS_CTX, struct cfs_commit *c, bool released,
			   struct cfs_usage *ret_usage);
	int (*truncate)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length, struct cfs_attr *ret,
			struct cfs_usage *ret_usage);
	int (*fallocate)(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned mode, uint64_t off, uint64_t len,
			 struct cfs_attr *ret, struct cfs_usage *ret_usage);
	int (*copy_range)(CFS_ENG, CFS_CTX, const struct cfs_copy_range *req, uint64_t *ret_copied,
			  struct cfs_attr *ret_dst, struct cfs_usage *ret_usage);
	/*
	 * As cfs_meta_compact_chunk; on -EAGAIN nothing has changed and the merged slice is
	 * recorded with no reference. With trash the replaced slices become a delayed entry;
	 * without, slices left without references go to dead().
	 */
	int (*compact_chunk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx,
			     const struct cfs_slice *head, size_t head_n, size_t skipped,
			     const struct cfs_slice *merged, bool trash, cfs_engine_slice_fn dead,
			     void *arg);

	/* -- deletion (volume-format section 9) -- */
	/*
	 * The inode's last handle was closed: its sustained entry becomes a delfile. *ret_length:
	 * of the file; UINT64_MAX when it had no chunk and so needs no delfile.
	 */
	int (*end_sustained)(CFS_ENG, CFS_CTX, uint64_t sid, cfs_ino_t ino, uint64_t *ret_length,
			     struct cfs_usage *ret_usage);
	int (*each_delfile)(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit,
			    cfs_engine_delfile_fn fn, void *arg);
	/*
	 * Removes one chunk of a deleted file, dropping references; slices left without references
	 * go to dead() after the commit. Returns 1 when no chunk is left, else 0: call again.
	 */
	int (*delete_chunk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_slice_fn dead, void *arg);
	int (*drop_delfile)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length);
	/* Slices without references whose objects still have to be removed. */
	int (*each_dead_slice)(CFS_ENG, CFS_CTX, size_t limit, cfs_engine_slice_fn fn, void *arg);
	/*
	 * A slice that was stored and will never be committed: recorded without reference, for
	 * each_dead_slice. -EBUSY: a record names it.
	 */
	int (*orphan_slice)(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
	/* Removes the slice's record, after its objects. */
	int (*drop_slice)(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
	/*
	 * Expires one delayed entry (delslices) older than before_s: drops its references; slices
	 * without references go to the callback. 1: none left.
	 */
	int (*expire_delayed)(CFS_ENG, CFS_CTX, int64_t before_s, cfs_engine_slice_fn dead,
			      void *arg);
	/* Every slice that a record, a delayed entry or a reference row names (duplicates
	 * possible). */
	int (*each_slice)(CFS_ENG, CFS_CTX, cfs_engine_slice_fn fn, void *arg);

	/* -- extended attributes, ACL -- */
	/* *ret malloc'ed; returns the length. */
	ssize_t (*getxattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, void **ret);
	/* NUL-separated names, *ret malloc'ed; returns the length. */
	ssize_t (*listxattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, char **ret);
	int (*setxattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, const void *value,
			size_t size, int flags);
	int (*removexattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name);
	/* Caller frees users and groups. */
	int (*get_acl)(CFS_ENG, CFS_CTX, uint32_t id, struct cfs_acl *ret);
	/* The id of a rule with this content, stored when new. */
	int (*put_acl)(CFS_ENG, CFS_CTX, const struct cfs_acl *rule, uint32_t *ret_id);
	/* Sets the rule id (0: none) and, for the access rule, the mode. */
	int (*set_acl_id)(CFS_ENG, CFS_CTX, cfs_ino_t ino, bool is_default, uint32_t id,
			  int mode /* -1: keep */, struct cfs_attr *ret);

	/* -- locks: one attempt, -EAGAIN on conflict -- */
	int (*flock)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		     enum cfs_lock_type type);
	int (*setlk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		     const struct cfs_plock *lock);
	/* The first lock of another owner in conflict with *lock; *ret_sid and *ret_owner name it.
	 */
	int (*getlk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		     struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner);

	/* -- dir stats and quotas -- */
	int (*get_dir_stat)(CFS_ENG, CFS_CTX, cfs_ino_t dir,
			    struct cfs_dir_stat *ret); /* -ENODATA */
	int (*set_dir_stat)(CFS_ENG, CFS_CTX, cfs_ino_t dir, const struct cfs_dir_stat *st);
	/*
	 * Relative; for batched usage. Rows that do not exist are left alone.
	 *
	 * mark: the session's info with a value that no other write has, or NULL. An engine that
	 * may lose the answer to a commit stores it in the session's record with the change; a
	 * write whose mark is found there changes nothing.
	 */
	int (*add_usage)(CFS_ENG, CFS_CTX, const char *mark, int64_t space, int64_t inodes,
			 const struct cfs_usage_dir *dirs, size_t n);
	int (*each_quota)(CFS_ENG, CFS_CTX, cfs_engine_quota_fn fn, void *arg);
	int (*put_quota)(CFS_ENG, CFS_CTX,
			 const struct cfs_quota *q); /* limits and usage, absolute */
	int (*del_quota)(CFS_ENG, CFS_CTX, enum cfs_quota_kind kind, uint64_t key);
	/*
	 * used += delta for each of at most CFS_QUOTAS_AT_ONCE, in the order given (the caller
	 * sorts: no deadlocks). mark: as for add_usage.
	 */
	int (*add_quota_usage)(CFS_ENG, CFS_CTX, const char *mark, const struct cfs_quota *deltas,
			       size_t n);

	/* -- clone -- */
	/* Copies one inode (attributes, xattrs, symlink, chunks with references) as `ino` under
	 * parent/name; name NULL: detached. */
	int (*clone_ino)(CFS_ENG, CFS_CTX, cfs_ino_t src, cfs_ino_t ino, cfs_ino_t parent,
			 const char *name, size_t len, bool preserve, struct cfs_entry *ret,
			 struct cfs_usage *ret_usage);
	int (*attach)(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name,
		      size_t len, struct cfs_usage *ret_usage);

	/*
	 * Removes a detached inode that will not be attached and has no entries. A file becomes a
	 * delfile.
	 */
	int (*drop_detached)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_usage *ret_usage);

	/* -- administration; contracts as the cfs_meta function of that name -- */
	/*
	 * Delivers one page of a table behind *pos and advances it; zeros are the beginning. 1: the
	 * end.
	 */
	int (*scan)(CFS_ENG, CFS_CTX, enum cfs_meta_table table, struct cfs_scan_pos *pos,
		    cfs_row_fn fn, void *arg);
	ssize_t (*list_chunks)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t first,
			       struct cfs_chunk_len ret[1024]);
	int (*check_inode)(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned repair, struct cfs_check *ret,
			   struct cfs_usage *ret_usage);
	/* In one consistent snapshot, or with a mark that no other call returns. */
	int (*check_usage)(CFS_ENG, CFS_CTX, struct cfs_sums *ret);
	int (*fix_refs)(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size, int64_t have, int64_t want);
	int (*clear_dir_stats)(CFS_ENG, CFS_CTX);
	/*
	 * The opposite of scan, for load: writes n rows (at most CFS_PUT_ROWS) of one table of a
	 * volume that no client uses yet; atomically where the engine can, in as few round trips as
	 * it can. It runs after create() and finds the rows made there. It writes the rows as scan
	 * of the same table delivers them, except:
	 *	NODE	root and trash are there already and are overwritten
	 *	REF	refs is added to what the slice has; no row: made with refs
	 *	PARENT	nothing to do where the directories are found from the inode anyway (SQL
	 *		edges)
	 *	EDGE	only the entry of its directory; nlink, parent, PARENT, DIR_STAT and
	 *		counters come on their own
	 *	COUNTER	absolute, by SQL name and meaning
	 *	ACL	with the id given; later ids are larger
	 * DELAYED and DETACHED do not occur. Quotas are written by put_quota, sessions by
	 * refresh_session.
	 */
	int (*put_rows)(CFS_ENG, CFS_CTX, enum cfs_meta_table table, const struct cfs_row *rows,
			size_t n);

	/* -- changelog housekeeping -- */
	int (*trim_changelog)(CFS_ENG, CFS_CTX, int64_t before_s, int64_t max_lines);

	/*
	 * -- records of cachefs's own: as the cfs_meta function of that name --
	 * Where other clients do not look (volume-format section 16, rules 5 and 6): SQL a table
	 * {cachefs_record} made at the first put, Redis a hash "zcachefs:record:TABLE".
	 */
	int (*put_record)(CFS_ENG, CFS_CTX, const char *key, const void *value, size_t len,
			  bool fresh);
	int (*swap_record)(CFS_ENG, CFS_CTX, const char *key, const void *old, size_t old_len,
			   const void *value, size_t len);
	int (*drop_record)(CFS_ENG, CFS_CTX, const char *key);
	int (*get_record)(CFS_ENG, CFS_CTX, const char *key, cfs_record_fn fn, void *arg);
	int (*each_record)(CFS_ENG, CFS_CTX, const char *table, cfs_record_fn fn, void *arg);

	/* As cfs_meta_advise, with the functions below. NULL: -ENOTSUP. */
	int (*advise)(CFS_ENG, CFS_CTX, cfs_advice_fn fn, void *arg);
	/* As cfs_meta_dead_locks. NULL: the end of a session removes all its locks. */
	int (*dead_locks)(CFS_ENG, CFS_CTX, bool repair, cfs_dead_lock_fn fn, void *arg);
};

/*
 * password.c: the password of the environment, for a URL that has none: META_PASSWORD, else the
 * first line of META_PASSWORD_FILE, without blanks around it. *ret stays NULL when there is none.
 * -EACCES: the file cannot be read; err: one line.
 */
int cfs_engine_password(char **ret, char err[256]);

/* advice.c: the messages of engines */
__attribute__((format(printf, 5, 6))) void cfs_advise(cfs_advice_fn fn, void *arg,
						      enum cfs_advice level, const char *what,
						      const char *fmt, ...);
/* there_us: the server's wall clock, read at some time after `before`. */
void cfs_advise_clock(cfs_advice_fn fn, void *arg, int64_t there_us, struct timespec before);
void cfs_advise_connections(cfs_advice_fn fn, void *arg, int64_t used, int64_t max);

#undef CFS_CTX
#undef CFS_ENG

/* Every engine embeds this first. */
struct cfs_engine {
	const struct cfs_engine_ops *ops;
	struct cfs_engine_host *host;
};

/*
 * Built in. Others are modules (base/module.h) whose table is a struct cfs_engine_ops; they take
 * the functions of base and meta from the program.
 */
extern const struct cfs_engine_ops cfs_engine_sqlite;

/*
 * The members of struct cfs_engine_ops that every engine has, for declarations and tables:
 * X(member). NAME_OPS are those for which an engine on SQL may have an optimised implementation.
 */
/* clang-format off */
#define CFS_ENGINE_BASE_OPS(X) \
	X(create) X(upgrade) X(get_setting) X(put_setting) X(destroy) X(add_counter) \
	X(get_counters) X(clock) X(claim_job) X(new_session) X(refresh_session) X(resume_session) \
	X(clean_session) X(each_session) X(getattr) X(readlink) X(trash_dir) X(each_parent) \
	X(make_unnamed) X(link_unnamed) \
	X(read_chunk) X(open_file) X(read_heads) X(find_commit) X(truncate) X(fallocate) X(copy_range) X(compact_chunk) \
	X(end_sustained) X(each_delfile) X(delete_chunk) X(drop_delfile) X(each_dead_slice) X(orphan_slice) \
	X(drop_slice) X(expire_delayed) X(each_slice) X(getxattr) X(listxattr) X(setxattr) \
	X(removexattr) X(get_acl) X(put_acl) X(set_acl_id) X(flock) X(setlk) X(getlk) \
	X(get_dir_stat) X(set_dir_stat) X(add_usage) X(each_quota) X(put_quota) X(del_quota) \
	X(add_quota_usage) X(clone_ino) X(attach) X(drop_detached) X(scan) X(put_rows) \
	X(list_chunks) X(check_inode) X(check_usage) X(fix_refs) X(clear_dir_stats) \
	X(trim_changelog) X(touch_dirs) X(put_record) X(swap_record) \
	X(drop_record) X(get_record) X(each_record)
#define CFS_ENGINE_NAME_OPS(X) \
	X(lookup) X(setattr) X(touch_atime) X(mknod) X(link) X(unlink) X(rmdir) X(rename) \
	X(readdir) X(commit_slice)
/* clang-format on */
#define CFS_ENGINE_OPS(X) CFS_ENGINE_BASE_OPS(X) CFS_ENGINE_NAME_OPS(X)

/* The function `name` is as the member says. */
#define CFS_ENGINE_DECLARE(name, member) __typeof__(*((struct cfs_engine_ops *)NULL)->member) name

#endif
