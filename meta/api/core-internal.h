/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's own state, shared by the files of meta/ (engines see none of it).
 *
 * Lock order: every lock here is a leaf: no second lock is taken and no engine call is made while
 * one is held.
 */
#ifndef CFS_META_CORE_INTERNAL_H
#define CFS_META_CORE_INTERNAL_H

#include <cachefs/meta.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/workers.h"
#include "meta/engine/engine.h"
#include "meta/quota/inomap.h"
#include "meta/quota/quota.h"

struct cfs_acl_cache;
struct cfs_dirtimes;
struct cfs_jobs;
struct cfs_locks;
struct cfs_sessions;

/* Ids from a batch that the engine has allocated. */
struct cfs_ids {
	const char *counter;
	int64_t batch;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t refilled;
	uint64_t next, end;
	bool refilling;
};

struct cfs_meta {
	struct cfs_engine *eng;
	struct cfs_engine_host host;
	struct cfs_url url;
	char masked_url[256];
	struct cfs_meta_conf conf; /* mount_point is our copy */
	char *mount_point;
	bool trace; /* CFS_TRACE=meta: each call is a line of the debug log */

	struct cfs_meta_hooks hooks;
	_Atomic bool started; /* hooks are valid */

	pthread_mutex_t setting_lock; /* protects setting and setting_text */
	struct cfs_setting *setting;
	char *setting_text;
	char *load_text, *loaded_text; /* the setting during an own load, and after it */
	/* Copies of its fields for hot paths. */
	_Atomic int trash_days;
	_Atomic bool enable_acl;

	struct cfs_ids inode_ids, slice_ids;

	pthread_mutex_t trash_lock; /* protects the cached hour directory */
	char trash_name[16];
	cfs_ino_t trash_ino;

	pthread_mutex_t unclosed_lock; /* protects unclosed */
	struct cfs_inomap unclosed;    /* of cfs_ino_t: closes that failed in the engine */

	_Atomic int64_t clock_off_s; /* of the database, ahead of this host's; clock.c */
	int64_t clock_told_s;	     /* as logged last; used by the heartbeat only */

	uint64_t resume_sid; /* session to continue; 0: none */
	struct cfs_acl_cache *acls;
	struct cfs_dirtimes *dirtimes;
	struct cfs_jobs *jobs;
	struct cfs_locks *locks;
	struct cfs_quotas *quotas;
	struct cfs_sessions *sessions;
};

/* One call of the public interface: measured, and with permission checks on when the mount wants
 * them. */
struct cfs_call {
	struct cfs_meta *m;
	enum cfs_meta_op op;
	uint64_t start_ns;
	const struct cfs_ctx *ctx;
	struct cfs_ctx checking;
};
void cfs_call_begin(struct cfs_call *c, struct cfs_meta *m, enum cfs_meta_op op,
		    const struct cfs_ctx *ctx);
/* Counts, turns -ETIMEDOUT and -ENOTCONN into -EIO (with a log line), returns the result. */
ssize_t cfs_call_end(struct cfs_call *c, ssize_t rc);

/*
 * clock.c: times that mounts share (the expiry of a session, an hour of the trash) are also
 * compared with the database's clock, so that a host with a wrong clock neither considers others
 * dead nor empties the trash early. Until that clock has been read, this host's is used.
 */
void cfs_clock_read(struct cfs_meta *m);
int64_t cfs_clock_s(const struct cfs_meta *m); /* the database's, in seconds */
/*
 * earliest: the clock that is behind, for judging that a time is due. latest: the clock that is
 * ahead, for times that must last.
 */
int64_t cfs_clock_earliest_s(const struct cfs_meta *m);
int64_t cfs_clock_latest_s(const struct cfs_meta *m);

/* Whether this setting belongs to an unfinished load. */
bool cfs_load_unfinished(const char *setting);
/* Makes a setting that was just read or written the current one. */
int cfs_core_adopt_setting(struct cfs_meta *m, const char *text, const struct cfs_setting *s);
/* 0, or an errno for a name that cannot exist. */
int cfs_core_check_name(const char *name, size_t len);
bool cfs_core_trash_on(struct cfs_meta *m);
/* 0 or -EROFS */
int cfs_core_check_writable(const struct cfs_meta *m);
/* rwx permission of ctx on an inode, ACL included; reads the inode when attr is NULL. */
int cfs_core_access(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask,
		    const struct cfs_attr *attr);
/*
 * Under ctx->check: permission on a directory that carries an access ACL, which engines do not
 * check (rules.h). 0 at once otherwise.
 */
int cfs_core_check_acl(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask);

/* ids.c */
int cfs_ids_init(struct cfs_ids *ids, const char *counter, int64_t batch);
void cfs_ids_destroy(struct cfs_ids *ids);
int cfs_ids_next(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, uint64_t *ret);

/* file.c: retries failed calls of cfs_meta_close_ino, for about for_ms */
void cfs_core_close_again(struct cfs_meta *m, uint64_t for_ms);

/* trash.c: the directory of this hour; 0 in *ret when removal is immediate. */
int cfs_core_trash_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent, bool skip,
		       cfs_ino_t *ret);
/* Whether a name is of an hour directory that a mount may still move files into. */
bool cfs_trash_in_use(const struct cfs_meta *m, cfs_ino_t parent, const char *name, size_t len);
/* Empties and removes the hours that are older than the volume keeps them. */
int cfs_trash_expire(struct cfs_meta *m, cfs_deadline_t end, const _Atomic bool *stop);

/* clone.c: removes a tree that has no name */
int cfs_clone_discard(struct cfs_meta *m, cfs_ino_t top);

/* dirtimes.c: times of directories whose names this mount changes, until they are stored */
int cfs_dirtimes_create(struct cfs_dirtimes **ret);
void cfs_dirtimes_destroy(struct cfs_dirtimes *t);
/*
 * A name came or went at ctx->now. seen: the directory as the engine has it, NULL when that is not
 * known. The times are stored after conf.skip_dir_mtime_ms, or before the call returns when that is
 * 0.
 */
void cfs_dirtimes_changed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_attr *seen);
/*
 * Takes the attributes after any other change that moves the ctime of an inode. mtime: the change
 * set the mtime. Does nothing unless the inode is a directory.
 */
void cfs_dirtimes_set(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      const struct cfs_attr *attr, bool mtime);
/* Overlays unstored times on attributes that the engine returned to a call with that ctx. */
void cfs_dirtimes_show(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		       struct cfs_attr *attr);
/* True when a directory has times to overlay. */
bool cfs_dirtimes_any(struct cfs_meta *m);
/* Stores all; what could not be stored is kept. */
int cfs_dirtimes_store(struct cfs_meta *m, const struct cfs_ctx *ctx);
/*
 * The same at the end of the mount: times that cannot be stored are lost. A later change starts the
 * thread again.
 */
void cfs_dirtimes_stop(struct cfs_meta *m, const struct cfs_ctx *ctx);

/*
 * rootstat.c: the root's row of dir_stats, which no mkdir makes, from its entries. Runs before this
 * client changes anything, and only without other clients: their batched usage would be counted
 * twice. Failures are not reported: without the row, each query lists the entries.
 */
void cfs_core_make_root_stat(struct cfs_meta *m);

/* session.c */
int cfs_sessions_start(struct cfs_meta *m);
/* leave: the record stays. */
int cfs_sessions_stop(struct cfs_meta *m, bool leave);

/* jobs.c */
int cfs_jobs_create(struct cfs_meta *m, struct cfs_jobs **ret);
void cfs_jobs_destroy(struct cfs_jobs *j);
int cfs_jobs_start(struct cfs_meta *m);
void cfs_jobs_stop(struct cfs_meta *m);
/*
 * Removes files that other mounts left in the table of deleted files at once, not within the hour.
 */
void cfs_jobs_sweep(struct cfs_meta *m);
/*
 * Removes the objects of all slices without references. Failures are left to the next hourly run.
 */
int cfs_jobs_clean_slices(struct cfs_meta *m, cfs_deadline_t end);
/* Removes the data of a deleted file soon, or leaves it to the hourly job. */
void cfs_jobs_delete_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length);
/*
 * Releases a slice without references soon, or leaves it to the hourly job. committed: a record has
 * named it.
 */
void cfs_jobs_delete_slice(struct cfs_meta *m, uint64_t id, uint32_t size, bool committed);
/* True when the mount ends and no time is left for deletions. */
bool cfs_jobs_cut_short(struct cfs_meta *m);

/*
 * release.c: the single path for deleting slices that have lost their last reference, for any
 * reason. The rows of such slices record the work left.
 */
struct cfs_release { /* zeroed: empty */
	struct cfs_dead_slice *v;
	size_t n, cap;
};
/* arg: a struct cfs_release. -ENOMEM */
int cfs_release_add(void *arg, uint64_t id, uint32_t size);
/*
 * Settles the volume once for the whole batch if a record has named the slices (committed). Then
 * removes the objects of each slice, and after them its row. Returns the number removed, and
 * empties the list. Calls the object store and the engine; any number of threads.
 */
size_t cfs_release_slices(struct cfs_meta *m, struct cfs_release *r, bool committed);
void cfs_release_free(struct cfs_release *r);

/* acl.c */
int cfs_acl_cache_create(struct cfs_acl_cache **ret);
void cfs_acl_cache_destroy(struct cfs_acl_cache *c);
/* The rule of an id, from the cache or the engine; the copy is the caller's. */
int cfs_acl_get(struct cfs_meta *m, const struct cfs_ctx *ctx, uint32_t id, struct cfs_acl *ret);
bool cfs_acl_is_name(const char *name, bool *ret_default);
ssize_t cfs_acl_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 bool is_default, void **ret);
int cfs_acl_setxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, bool is_default,
		     const void *value, size_t size);

/* locks.c */
int cfs_locks_create(struct cfs_locks **ret);
void cfs_locks_destroy(struct cfs_locks *l);
/* Retries, for about for_ms, the unlocks that failed while the engine did not answer. */
void cfs_locks_undo(struct cfs_meta *m, uint64_t for_ms);

/*
 * engines.c: the engine of that name (cfs_url.engine), its module loaded when it is not built in.
 * -EINVAL: NULL; else as cfs_module_load.
 */
int cfs_engine_find(const char *engine, const struct cfs_engine_ops **ret, char err[256]);

#endif
