/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of volume-format section 5 as pure functions on attributes, shared by all engines: they
 * are called inside transactions, with the rows just read.
 */
#ifndef CFS_META_RULES_H
#define CFS_META_RULES_H

#include <cachefs/meta.h>

#include "meta/engine.h"

/*
 * May an entry be made in, or removed from, this directory? -ENOTDIR, -EPERM (immutable, append for
 * removal), -ENOENT (trash), -EACCES when ctx->check.
 */
int cfs_rules_add_entry(const struct cfs_ctx *ctx, cfs_ino_t dir, const struct cfs_attr *attr);
int cfs_rules_remove_entry(const struct cfs_ctx *ctx, cfs_ino_t dir, const struct cfs_attr *attr,
			   const struct cfs_attr *victim);
/* Attributes of a new inode; the rule for an inherited ACL is the caller's (parent->default_acl). */
void cfs_rules_new_inode(const struct cfs_ctx *ctx, const struct cfs_mknod *req,
			 const struct cfs_attr *parent, struct cfs_attr *ret);
/* Merges a setattr; 1 when something changed, 0 when nothing, -EPERM, -EACCES. *attr in, out. */
int cfs_rules_setattr(const struct cfs_ctx *ctx, uint32_t set, const struct cfs_attr *in,
		      struct cfs_attr *attr);
/* May data or length be changed? -EPERM: immutable, append-only (when not appending), in the trash. */
int cfs_rules_write(const struct cfs_ctx *ctx, const struct cfs_attr *attr, bool append);
/* Must the parent's times move for this change? */
bool cfs_rules_touch_parent(const struct cfs_ctx *ctx, const struct cfs_attr *parent,
			    uint64_t skip_ms, bool nlink_changes);
/* 0 or -EACCES for a rwx mask (4 2 1) without ACL. */
int cfs_rules_access(const struct cfs_ctx *ctx, const struct cfs_attr *attr, int mask);
bool cfs_ctx_in_group(const struct cfs_ctx *ctx, uint32_t gid);
/* "<parent>-<ino>-<name>" cut to 255 bytes; returns the length. */
size_t cfs_rules_trash_name(cfs_ino_t parent, cfs_ino_t ino, const char *name, size_t len,
			    char out[CFS_NAME_MAX + 1]);

/* Zero records of a length change or hole (volume-format section 6), one per affected chunk. */
struct cfs_zero {
	uint32_t indx;
	uint32_t pos, len;
	bool only_existing; /* skip when the chunk has no row */
};
typedef int (*cfs_zero_fn)(void *arg, const struct cfs_zero *z);
int cfs_rules_truncate_zeros(uint64_t old_length, uint64_t new_length, cfs_zero_fn fn, void *arg);
int cfs_rules_hole_zeros(uint64_t off, uint64_t len, cfs_zero_fn fn, void *arg);

/* POSIX lock lists: applies `lock` to a sorted list of one owner. Returns the new count in a malloc'ed list. */
ssize_t cfs_rules_plock_apply(const struct cfs_plock *list, size_t n, const struct cfs_plock *lock,
			      struct cfs_plock **ret);
/* First lock of the list in conflict with `lock`, or NULL. */
const struct cfs_plock *cfs_rules_plock_conflict(const struct cfs_plock *list, size_t n,
						 const struct cfs_plock *lock);

#endif
