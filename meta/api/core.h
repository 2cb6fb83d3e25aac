/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open volume: the state that the files of this folder share (engines see none of it), and the
 * checks that most calls begin with.
 *
 * Lock order: every lock here is a leaf: no second lock is taken and no engine call is made while
 * one is held.
 */
#ifndef CFS_META_CORE_H
#define CFS_META_CORE_H

#include <cachefs/meta.h>
#include <pthread.h>
#include <stdatomic.h>

#include "meta/api/ids.h"
#include "meta/engine/engine.h"
#include "meta/quota/inomap.h"
#include "meta/quota/quota.h"

struct cfs_acl_cache;
struct cfs_dirtimes;
struct cfs_jobs;
struct cfs_locks;
struct cfs_sessions;

struct cfs_meta {
	struct cfs_engine *eng;
	struct cfs_engine_host host;
	struct cfs_url url;
	char masked_url[256];
	struct cfs_meta_conf conf; /* mount_point is our copy */
	char *mount_point;
	char *cache_dir; /* cfs_meta_set_cache_dir() */
	bool writeback;
	bool trace; /* CFS_TRACE=meta: each call is a line of the debug log */

	cfs_meta_copy_fn copy; /* replication; NULL: there is none */
	void *copy_arg;
	bool copy_in_sync;

	struct cfs_meta_hooks hooks;
	_Atomic bool started;	    /* hooks are valid */
	_Atomic bool gone;	    /* as cfs_meta_is_gone() */
	_Atomic uint64_t unseen_ms; /* cfs_meta_check_volume() got no answer; as cfs_boot_ms() */

	pthread_mutex_t setting_lock; /* protects setting and setting_text */
	struct cfs_setting *setting;
	char *setting_text;
	char *load_text, *loaded_text; /* the setting during a load of ours, and after it */
	/* Copies of its fields for hot paths. */
	_Atomic int trash_days;
	_Atomic bool enable_acl;

	struct cfs_ids inode_ids, slice_ids;

	pthread_mutex_t trash_lock; /* protects the cached hour directory */
	char trash_name[16];
	cfs_ino_t trash_ino;

	pthread_mutex_t unclosed_lock; /* protects unclosed */
	struct cfs_inomap unclosed;    /* of cfs_ino_t: the engine failed to close them; file.h */

	_Atomic int64_t clock_off_s;  /* database's clock minus CLOCK_BOOTTIME; 0: not read yet */
	_Atomic int64_t clock_told_s; /* difference logged last */
	/* database's clock minus CLOCK_MONOTONIC; 0: not read yet */
	_Atomic int64_t clock_steady_s;
	_Atomic uint64_t clock_jumped_ms; /* CLOCK_MONOTONIC; 0: never */

	uint64_t resume_sid; /* session to continue; 0: none */
	uint64_t ended_sid;  /* session that others have ended; 0: none */
	struct cfs_acl_cache *acls;
	struct cfs_dirtimes *dirtimes;
	struct cfs_jobs *jobs;
	struct cfs_locks *locks;
	struct cfs_quotas *quotas;
	struct cfs_sessions *sessions;
};

/* Whether this setting belongs to an unfinished load. */
bool cfs_load_unfinished(const char *setting);
/* Makes `s`, encoded as `text`, the current setting. Copies both. */
int cfs_core_adopt_setting(struct cfs_meta *m, const char *text, const struct cfs_setting *s);
/* 0 or negative: no entry can have that name. */
int cfs_core_check_name(const char *name, size_t len);
bool cfs_core_trash_on(struct cfs_meta *m);
/* 0 or -EROFS */
int cfs_core_check_writable(const struct cfs_meta *m);
/* Before inodes and slices are added. -ENOSPC: what the database has left is for removals. */
int cfs_core_check_room(const struct cfs_meta *m);
/* rwx permission of ctx on an inode, ACL included; reads the inode when attr is NULL. */
int cfs_core_access(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask,
		    const struct cfs_attr *attr);
/*
 * With ctx->check: the permission on a directory with an access ACL, which engines do not check
 * (rules.h). Else 0.
 */
int cfs_core_check_acl(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask);

#endif
