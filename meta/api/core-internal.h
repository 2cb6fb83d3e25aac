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

/* Ids handed out from a batch that the engine gave us. */
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
	char *load_text, *loaded_text; /* the setting while a load of ours goes on, and after it */
	/* What hot paths need of it. */
	_Atomic int trash_days;
	_Atomic bool enable_acl;

	struct cfs_ids inode_ids, slice_ids;

	pthread_mutex_t trash_lock; /* protects the cached hour directory */
	char trash_name[16];
	cfs_ino_t trash_ino;

	pthread_mutex_t unclosed_lock; /* protects unclosed */
	struct cfs_inomap unclosed;    /* of cfs_ino_t: closes that the engine did not take */

	_Atomic int64_t clock_off_s; /* of the database, ahead of this host's; clock.c */
	int64_t clock_told_s;	     /* as logged last; only the heartbeat looks at it */

	uint64_t resume_sid; /* to go on with; 0: none */
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
 * clock.c: what mounts tell each other the time of (the end of a session, an hour of the trash) is
 * held against the database's clock too, so that a host whose own is wrong does not take others for
 * dead or empty the trash early. Until it has been read, this host's is taken for right.
 */
void cfs_clock_read(struct cfs_meta *m);
int64_t cfs_clock_s(const struct cfs_meta *m); /* the database's, in seconds */
/* Of both the one that is behind, for what is due; the one that is ahead, for what has to last. */
int64_t cfs_clock_earliest_s(const struct cfs_meta *m);
int64_t cfs_clock_latest_s(const struct cfs_meta *m);

/* Whether this setting is that of a load that did not end. */
bool cfs_load_unfinished(const char *setting);
/* The result of a setting that was just read or written becomes the current one. */
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
 * judge (rules.h). 0 at once otherwise.
 */
int cfs_core_check_acl(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask);

/* ids.c */
int cfs_ids_init(struct cfs_ids *ids, const char *counter, int64_t batch);
void cfs_ids_destroy(struct cfs_ids *ids);
int cfs_ids_next(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, uint64_t *ret);

/* file.c: tries again, for about for_ms, what cfs_meta_close_ino could not do */
void cfs_core_close_again(struct cfs_meta *m, uint64_t for_ms);

/* trash.c: the directory of this hour; 0 in *ret when things are really removed. */
int cfs_core_trash_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent, bool skip,
		       cfs_ino_t *ret);
/* Whether a name is that of an hour whose directory somebody may still put files in. */
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
 * known. Stored when conf.skip_dir_mtime_ms have passed; before it returns when that is 0.
 */
void cfs_dirtimes_changed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_attr *seen);
/*
 * What the engine made of an inode that was changed other than by names in it: for each change that
 * moves its ctime. mtime: that was set. Nothing is done unless it is a directory.
 */
void cfs_dirtimes_set(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      const struct cfs_attr *attr, bool mtime);
/* Puts what is not stored yet into attributes that the engine gave to a call of that ctx. */
void cfs_dirtimes_show(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		       struct cfs_attr *attr);
/* Is there anything to show? */
bool cfs_dirtimes_any(struct cfs_meta *m);
/* Stores all; what could not be stored is kept. */
int cfs_dirtimes_store(struct cfs_meta *m, const struct cfs_ctx *ctx);
/* The same, for good unless there are more changes. What cannot be stored is lost. */
void cfs_dirtimes_stop(struct cfs_meta *m, const struct cfs_ctx *ctx);

/*
 * rootstat.c: the root's row of dir_stats, which no mkdir makes, from its entries. Before this
 * client changes anything, and only while no other client is there: what they have changed and not
 * yet counted would be counted twice. Others are told of no failure: without the row the entries
 * are listed whenever somebody asks.
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
/* Files that others have left in the table of deleted files go now, not within the hour. */
void cfs_jobs_sweep(struct cfs_meta *m);
/* Removes the objects of all slices that nothing names. What fails is left to the next hour. */
int cfs_jobs_clean_slices(struct cfs_meta *m, cfs_deadline_t end);
/* Removes the data of a deleted file soon, or leaves it to the hourly job. */
void cfs_jobs_delete_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length);
/*
 * Releases a slice without references soon, or leaves it to the hourly job. committed: a record has
 * named it.
 */
void cfs_jobs_delete_slice(struct cfs_meta *m, uint64_t id, uint32_t size, bool committed);
/* The mount ends, and there is no time left for deletions. */
bool cfs_jobs_cut_short(struct cfs_meta *m);

/*
 * release.c: the one way to deletion of slices that have lost their last reference, by whatever did
 * that. Rows of slices without references remember what is not done.
 */
struct cfs_release { /* zeroed: empty */
	struct cfs_dead_slice *v;
	size_t n, cap;
};
/* arg: a struct cfs_release. -ENOMEM */
int cfs_release_add(void *arg, uint64_t id, uint32_t size);
/*
 * Settles the volume once for all of them, if a record has named them (committed), then removes
 * their objects and, each after its objects, their rows. Returns how many are gone; the list is
 * empty then. Calls the object store and the engine; any number of threads.
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
/* Gives up again, for about for_ms, what was given up while the engine did not answer. */
void cfs_locks_undo(struct cfs_meta *m, uint64_t for_ms);

/*
 * engines.c: the engine of a URL's scheme, its module loaded when it is not built in. -EINVAL: no
 * such scheme; else as cfs_module_load.
 */
int cfs_engine_find(const char *scheme, const struct cfs_engine_ops **ret, char err[256]);

#endif
