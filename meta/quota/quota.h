/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits and usage of a volume, of directories and of owners, checked in memory. Any thread may
 * call. A call that takes a ctx may read from the engine; no lock is held meanwhile.
 */
#ifndef CFS_META_QUOTA_H
#define CFS_META_QUOTA_H

#include "meta/engine/engine.h"

struct cfs_quotas;

/* Limits of the setting. Without one, and at most: CFS_USAGE_MAX. */
struct cfs_volume_limits {
	_Atomic uint64_t capacity, max_inodes; /* 0: none */
	_Atomic bool user_group_quota;
};

int cfs_quotas_create(struct cfs_quotas **ret);
void cfs_quotas_destroy(struct cfs_quotas *q);
/* Reads counters and quotas again. An error keeps the limits and the pending usage. */
int cfs_quotas_load(struct cfs_quotas *q, const struct cfs_ctx *ctx);
/*
 * The info of the session, a JSON object that outlives its use, or NULL. Without one, a flush whose
 * answer is lost cannot be recognised as stored.
 */
void cfs_quotas_set_session(struct cfs_quotas *q, const char *info);
/* Writes pending deltas, each exactly once. The next call writes those that this one could not. */
int cfs_quotas_flush(struct cfs_quotas *q, const struct cfs_ctx *ctx);
/* True when a directory, or an owner, has a limit. */
bool cfs_quotas_on_dirs(struct cfs_quotas *q);
bool cfs_quotas_on_owners(struct cfs_quotas *q);
/* A planned increase of usage: of the volume, of an owner and of the directories above an entry. */
struct cfs_charge {
	cfs_ino_t dir; /* 0: no directory */
	bool owned;    /* uid and gid count */
	uint32_t uid, gid;
	int64_t space, inodes;
	bool dir_only; /* the volume's and owners' usage does not change */
};
/* 0; -ENOSPC: a limit of the volume would be exceeded; -EDQUOT: one of a directory or an owner. */
int cfs_quotas_check(struct cfs_quotas *q, const struct cfs_ctx *ctx, const struct cfs_charge *c);
/* Directories that have a limit. */
struct scopes {
	cfs_ino_t *v;
	size_t n;
};
/*
 * Space and inodes that are reserved for an operation until it ends. Concurrent checks count them
 * as used. All zero: no reservation.
 */
struct cfs_reservation {
	bool active;
	bool volume, owned; /* limits of the volume and of the owner count it */
	uint32_t uid, gid;
	int64_t space, inodes;
	struct scopes dirs;
};
/* Checks like cfs_quotas_check and reserves. On success cfs_quotas_end_reserved must follow. */
int cfs_quotas_reserve(struct cfs_quotas *q, const struct cfs_ctx *ctx, const struct cfs_charge *c,
		       struct cfs_reservation *ret);
/* The same for a file that may grow to `end`. */
int cfs_quotas_reserve_end(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint64_t end, struct cfs_reservation *ret);
/* Checks whether a file may grow to `end`. Reads its attributes only when a limit is near. */
int cfs_quotas_check_end(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint64_t end);
/*
 * Called before and after an engine call that changes usage, so that a load notices concurrent
 * calls. u: the change of usage, NULL when the call failed.
 */
void cfs_quotas_begin(struct cfs_quotas *q);
void cfs_quotas_end(struct cfs_quotas *q, const struct cfs_ctx *ctx, const struct cfs_usage *u);
/*
 * Like cfs_quotas_end; also ends the reservation of the operation (NULL: none), and turns the space
 * reserved for the file `ino` (0: none) into usage.
 */
void cfs_quotas_end_reserved(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     struct cfs_reservation *reserved, const struct cfs_usage *u);
/* Moves the usage of an inode from the owner in `u` to the owner in `now`. */
void cfs_quotas_chown(struct cfs_quotas *q, const struct cfs_usage *u, const struct cfs_attr *now);
void cfs_quotas_learn_parent(struct cfs_quotas *q, cfs_ino_t dir, cfs_ino_t parent);
/* A tree that moves from one directory to another. */
struct cfs_tree_move {
	cfs_ino_t from, to;
	int64_t space, inodes; /* of the entries below the moved directory, without itself */
};
/* -EDQUOT when the entry does not fit below `to`; fills *ret for cfs_quotas_moved. */
int cfs_quotas_check_move(struct cfs_quotas *q, const struct cfs_ctx *ctx,
			  const struct cfs_entry *entry, cfs_ino_t from, cfs_ino_t to,
			  struct cfs_tree_move *ret);
void cfs_quotas_moved(struct cfs_quotas *q, const struct cfs_ctx *ctx,
		      const struct cfs_tree_move *move);
/* Sets the engine to read and write. The caller keeps ownership. */
void cfs_quotas_attach(struct cfs_quotas *q, struct cfs_engine *eng);
struct cfs_volume_limits *cfs_quotas_volume(struct cfs_quotas *q);
/* Usage of the volume, this mount's changes included; below zero when counters are damaged. */
int64_t cfs_quotas_used_space(struct cfs_quotas *q);
int64_t cfs_quotas_used_inodes(struct cfs_quotas *q);
/* The limit and usage of a directory, unwritten changes included; false: it has no limit. */
bool cfs_quotas_get(struct cfs_quotas *q, cfs_ino_t dir, struct cfs_quota *ret);
/* The directory and its ancestors that have a limit, nearest first. Caller frees ret->v. */
int cfs_quotas_scopes(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      struct scopes *ret);

/* As the next one, but reserves nothing. */
int cfs_quotas_check_growth(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length);
/* cfs_meta_claim_space() and cfs_meta_release_space(). */
int cfs_quotas_reserve_file(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length);
void cfs_quotas_release_file(struct cfs_quotas *q, cfs_ino_t ino);

#endif
