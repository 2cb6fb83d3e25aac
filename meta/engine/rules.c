/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/engine/rules.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"

/* The superuser has all permissions, except to execute a file without any execute bit. */
static int access_root(const struct cfs_attr *attr, int mask)
{
	if ((mask & X_OK) && attr->type != CFS_TYPE_DIR && !(attr->mode & 0111))
		return -EACCES;
	return 0;
}

int cfs_rules_access(const struct cfs_ctx *ctx, const struct cfs_attr *attr, int mask)
{
	unsigned bits = attr->mode;

	if (ctx->uid == 0)
		return access_root(attr, mask);
	if (attr->access_acl)
		return 0;
	if (ctx->uid == attr->uid)
		bits >>= 6;
	else if (cfs_ctx_in_group(ctx, attr->gid))
		bits >>= 3;
	return (bits & (unsigned)mask & 7) == ((unsigned)mask & 7) ? 0 : -EACCES;
}

int cfs_acl_access(const struct cfs_ctx *ctx, const struct cfs_attr *attr,
		   const struct cfs_acl *rule, int mask)
{
	bool group_matched = false;
	uint32_t i;

	if (ctx->uid == 0)
		return access_root(attr, mask);
	if (ctx->uid == attr->uid)
		return (rule->owner & mask) == mask ? 0 : -EACCES;
	for (i = 0; i < rule->n_users; i++)
		if (rule->users[i].id == ctx->uid)
			return (rule->users[i].perm & rule->mask & mask) == mask ? 0 : -EACCES;
	if (cfs_ctx_in_group(ctx, attr->gid)) {
		if ((rule->group & rule->mask & mask) == mask)
			return 0;
		group_matched = true;
	}
	for (i = 0; i < rule->n_groups; i++) {
		if (!cfs_ctx_in_group(ctx, rule->groups[i].id))
			continue;
		if ((rule->groups[i].perm & rule->mask & mask) == mask)
			return 0;
		group_matched = true;
	}
	if (group_matched)
		return -EACCES;
	return (rule->other & mask) == mask ? 0 : -EACCES;
}

int cfs_rules_add_entry(const struct cfs_ctx *ctx, cfs_ino_t dir, const struct cfs_attr *attr)
{
	if (attr->type != CFS_TYPE_DIR)
		return -ENOTDIR;
	if (cfs_ino_is_trash(dir) || cfs_ino_is_trash(attr->parent))
		return -ENOENT;
	if (attr->flags & CFS_FLAG_IMMUTABLE)
		return -EPERM;
	return ctx->check ? cfs_rules_access(ctx, attr, W_OK | X_OK) : 0;
}

int cfs_rules_remove_entry(const struct cfs_ctx *ctx, cfs_ino_t dir, const struct cfs_attr *attr,
			   const struct cfs_attr *victim)
{
	const uint8_t fixed = CFS_FLAG_IMMUTABLE | CFS_FLAG_APPEND;
	int rc;

	if (attr->type != CFS_TYPE_DIR)
		return -ENOTDIR;
	if ((cfs_ino_is_trash(dir) || cfs_ino_is_trash(attr->parent)) && ctx->uid != 0)
		return -EPERM;
	if (attr->flags & fixed)
		return -EPERM;
	if (ctx->check) {
		rc = cfs_rules_access(ctx, attr, W_OK | X_OK);
		if (rc)
			return rc;
	}
	if (!victim)
		return 0;
	if ((attr->mode & S_ISVTX) && ctx->uid != 0 && ctx->uid != attr->uid &&
	    ctx->uid != victim->uid)
		return -EACCES;
	return victim->flags & fixed ? -EPERM : 0;
}

void cfs_rules_new_inode(const struct cfs_ctx *ctx, const struct cfs_mknod *req,
			 const struct cfs_attr *parent, struct cfs_attr *ret)
{
	struct cfs_attr a = {
		.type = req->type,
		.flags = parent->flags & CFS_FLAG_SKIP_TRASH,
		.tier = parent->tier,
		.mode = req->mode & ~req->umask & 07777,
		.uid = ctx->uid,
		.gid = ctx->gid,
		.nlink = req->name_len > 0,
		.rdev = req->rdev,
		.atime = ctx->now,
		.mtime = ctx->now,
		.ctime = ctx->now,
		.parent = req->parent,
	};

	if (req->type == CFS_TYPE_DIR) {
		a.nlink = 2;
		a.length = CFS_DIR_LENGTH;
	} else if (req->type == CFS_TYPE_SYMLINK) {
		a.mode = 0777;
		a.length = req->target_len;
	}
	if (parent->mode & S_ISGID) {
		a.gid = parent->gid;
		if (req->type == CFS_TYPE_DIR)
			a.mode |= S_ISGID;
		else if ((a.mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && ctx->check &&
			 ctx->uid != 0 && !cfs_ctx_in_group(ctx, parent->gid))
			a.mode &= ~S_ISGID;
	}
	*ret = a;
}

struct cfs_attr cfs_rules_directory(const struct cfs_ctx *ctx, uint16_t mode, cfs_ino_t parent)
{
	return (struct cfs_attr){
		.type = CFS_TYPE_DIR,
		.mode = mode,
		.nlink = 2,
		.atime = ctx->now,
		.mtime = ctx->now,
		.ctime = ctx->now,
		.length = CFS_DIR_LENGTH,
		.parent = parent,
	};
}

/* The mode of a non-directory after a chown: clears set-id bits as ext4 does. */
static uint16_t mode_after_chown(const struct cfs_ctx *ctx, uint16_t mode)
{
	if (ctx->uid != 0 || (mode & S_IXGRP))
		return mode & ~(S_ISUID | S_ISGID);
	return mode & ~S_ISUID;
}

static int check_owner_change(const struct cfs_ctx *ctx, uint32_t set, const struct cfs_attr *in,
			      const struct cfs_attr *cur)
{
	if (!ctx->check || ctx->uid == 0)
		return 0;
	if ((set & CFS_SET_UID) && (in->uid != cur->uid || ctx->uid != cur->uid))
		return -EPERM;
	if ((set & CFS_SET_GID) &&
	    (ctx->uid != cur->uid || (in->gid != cur->gid && !cfs_ctx_in_group(ctx, in->gid))))
		return -EPERM;
	return 0;
}

/* The kernel sets these by itself; a program has not asked for them. */
static const uint32_t kernel_flags = CFS_SET_KILL_SUID | CFS_SET_KILL_SGID | CFS_SET_IS_OPEN;

static int check_setattr(const struct cfs_ctx *ctx, uint32_t set, const struct cfs_attr *in,
			 const struct cfs_attr *cur)
{
	const uint32_t now_only = CFS_SET_ATIME_NOW | CFS_SET_MTIME_NOW;
	uint32_t asked = set & ~kernel_flags;

	if (cfs_ino_is_trash(cur->parent) && !(set & CFS_SET_IS_OPEN))
		return -EPERM;
	if (asked & ~CFS_SET_FLAGS) {
		if (cur->flags & CFS_FLAG_IMMUTABLE)
			return -EPERM;
		if ((cur->flags & CFS_FLAG_APPEND) && (asked & ~(now_only | CFS_SET_FLAGS)))
			return -EPERM;
	}
	if (!ctx->check || ctx->uid == 0)
		return 0;
	if (set & (CFS_SET_FLAGS | CFS_SET_TIER))
		return -EPERM;
	if ((set & CFS_SET_MODE) && ctx->uid != cur->uid)
		return -EPERM;
	if ((set & (CFS_SET_ATIME | CFS_SET_MTIME)) && ctx->uid != cur->uid)
		return -EPERM;
	if ((set & now_only) && ctx->uid != cur->uid) {
		int rc = cfs_rules_access(ctx, cur, W_OK);

		if (rc)
			return rc;
	}
	return check_owner_change(ctx, set, in, cur);
}

int cfs_rules_setattr(const struct cfs_ctx *ctx, uint32_t set, const struct cfs_attr *in,
		      struct cfs_attr *attr)
{
	struct cfs_attr a = *attr;
	int rc = check_setattr(ctx, set, in, attr);

	if (rc)
		return rc;
	if (set & CFS_SET_MODE) {
		a.mode = in->mode & 07777;
		if ((a.mode & S_ISGID) && ctx->check && ctx->uid != 0 &&
		    !cfs_ctx_in_group(ctx, a.gid))
			a.mode &= ~S_ISGID;
	}
	if (set & (CFS_SET_UID | CFS_SET_GID)) {
		if (a.type != CFS_TYPE_DIR)
			a.mode = mode_after_chown(ctx, a.mode);
		if (set & CFS_SET_UID)
			a.uid = in->uid;
		if (set & CFS_SET_GID)
			a.gid = in->gid;
	}
	if ((set & CFS_SET_KILL_SUID) && a.type != CFS_TYPE_DIR) {
		if ((a.mode & S_IXGRP) || (set & CFS_SET_KILL_SGID))
			a.mode &= ~S_ISGID;
		a.mode &= ~S_ISUID;
	}
	if (set & CFS_SET_FLAGS)
		a.flags = in->flags;
	if (set & CFS_SET_TIER)
		a.tier = in->tier;
	if (set & (CFS_SET_ATIME | CFS_SET_ATIME_NOW))
		a.atime = cfs_rules_time(ctx, set & CFS_SET_ATIME_NOW, in->atime);
	if (set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW))
		a.mtime = cfs_rules_time(ctx, set & CFS_SET_MTIME_NOW, in->mtime);
	if (!(set & ~kernel_flags) && a.mode == attr->mode)
		return 0;
	a.ctime = set & CFS_SET_CTIME ? in->ctime : ctx->now;
	*attr = a;
	return 1;
}

void cfs_rules_apply(const struct cfs_attr_change *change, struct cfs_attr *attr)
{
	uint32_t set = change ? change->set : 0;

	if (set & CFS_SET_MODE)
		attr->mode = change->mode;
	if (set & CFS_SET_UID)
		attr->uid = change->uid;
	if (set & CFS_SET_GID)
		attr->gid = change->gid;
	if (set & CFS_SET_ATIME)
		attr->atime = change->atime;
}

int cfs_rules_write(const struct cfs_ctx *ctx, const struct cfs_attr *attr, bool append)
{
	if (attr->flags & CFS_FLAG_IMMUTABLE)
		return -EPERM;
	if ((attr->flags & CFS_FLAG_APPEND) && !append)
		return -EPERM;
	return 0;
}

int cfs_rules_record(uint32_t indx, const struct cfs_slice *s)
{
	if (s->len > CFS_CHUNK_SIZE || s->pos > CFS_CHUNK_SIZE - s->len)
		return -EINVAL;
	return ((uint64_t)indx << CFS_CHUNK_BITS) + s->pos + s->len >= CFS_FILE_MAX ? -EFBIG : 0;
}

int cfs_rules_change_file(const struct cfs_ctx *ctx, struct cfs_engine_host *host, cfs_ino_t ino,
			  const struct cfs_attr *attr)
{
	if (attr->type != CFS_TYPE_FILE)
		return attr->type == CFS_TYPE_DIR ? -EISDIR : -EINVAL;
	/* A file in the trash stays writable on clients that have it open. */
	if (cfs_ino_is_trash(attr->parent) && !cfs_host_is_open(host, ino))
		return -EPERM;
	return cfs_rules_write(ctx, attr, false);
}

size_t cfs_rules_trash_name(cfs_ino_t parent, cfs_ino_t ino, const char *name, size_t len,
			    char out[CFS_NAME_MAX + 1])
{
	int n = snprintf(out, CFS_NAME_MAX + 1, "%" PRIu64 "-%" PRIu64 "-", parent, ino);
	size_t used = (size_t)n;
	size_t take = CFS_MIN(len, CFS_NAME_MAX - used);

	memcpy(out + used, name, take);
	out[used + take] = '\0';
	return used + take;
}

static const uint64_t chunk_mask = CFS_CHUNK_SIZE - 1;

static int zero_whole(uint64_t first, uint64_t end, cfs_zero_fn fn, void *arg)
{
	struct cfs_zero z = {
		.indx = (uint32_t)first,
		.last = (uint32_t)(end - 1),
		.len = (uint32_t)CFS_CHUNK_SIZE,
		.only_existing = true,
	};

	return first < end ? fn(arg, &z) : 0;
}

static int zero_part(uint64_t indx, uint64_t pos, uint64_t len, bool only_existing, cfs_zero_fn fn,
		     void *arg)
{
	struct cfs_zero z = {
		.indx = (uint32_t)indx,
		.last = (uint32_t)indx,
		.pos = (uint32_t)pos,
		.len = (uint32_t)len,
		.only_existing = only_existing,
	};

	return len ? fn(arg, &z) : 0;
}

int cfs_rules_truncate_zeros(uint64_t old_length, uint64_t new_length, cfs_zero_fn fn, void *arg)
{
	uint64_t left = CFS_MIN(old_length, new_length);
	uint64_t right = CFS_MAX(old_length, new_length);
	uint64_t first = left >> CFS_CHUNK_BITS;
	uint64_t last = right >> CFS_CHUNK_BITS;
	uint64_t pos = left & chunk_mask;
	int rc;

	if (left == right)
		return 0;
	rc = zero_part(first, pos, CFS_MIN(right - left, CFS_CHUNK_SIZE - pos), false, fn, arg);
	if (rc || last == first)
		return rc;
	rc = zero_whole(first + 1, last, fn, arg);
	if (rc)
		return rc;
	return zero_part(last, 0, right & chunk_mask, false, fn, arg);
}

int cfs_rules_hole_zeros(uint64_t off, uint64_t len, cfs_zero_fn fn, void *arg)
{
	uint64_t end = off + len;
	uint64_t first = off >> CFS_CHUNK_BITS;
	uint64_t last = end >> CFS_CHUNK_BITS;
	uint64_t pos = off & chunk_mask;
	int rc;

	/* A hole in a hole needs no record. */
	if (!len)
		return 0;
	if (last == first)
		return zero_part(first, pos, len, true, fn, arg);
	if (pos) {
		rc = zero_part(first, pos, CFS_CHUNK_SIZE - pos, true, fn, arg);
		if (rc)
			return rc;
		first++;
	}
	rc = zero_whole(first, last, fn, arg);
	if (rc)
		return rc;
	return zero_part(last, 0, end & chunk_mask, true, fn, arg);
}

void cfs_usage_add_dir(struct cfs_usage *u, cfs_ino_t dir, int64_t length, int64_t space,
		       int64_t inodes)
{
	unsigned i;

	for (i = 0; i < u->n_dirs; i++)
		if (u->dirs[i].dir == dir)
			break;
	if (i == CFS_ARRAY_SIZE(u->dirs))
		return;
	if (i == u->n_dirs)
		u->dirs[u->n_dirs++] = (struct cfs_usage_dir){.dir = dir};
	/* The sum of the lengths of many names may wrap: it is that of the changes, all the same. */
	u->dirs[i].length = (int64_t)((uint64_t)u->dirs[i].length + (uint64_t)length);
	u->dirs[i].space = (int64_t)((uint64_t)u->dirs[i].space + (uint64_t)space);
	u->dirs[i].inodes += inodes;
}

void cfs_usage_entry(struct cfs_usage *u, cfs_ino_t dir, const struct cfs_attr *attr, int sign)
{
	cfs_usage_add_dir(u, dir, sign * cfs_length_of(attr), sign * cfs_weight_of(attr), sign);
}

void cfs_usage_inode(struct cfs_usage *u, const struct cfs_attr *attr, int sign)
{
	u->space += sign * cfs_weight_of(attr);
	u->inodes += sign;
	u->uid = attr->uid;
	u->gid = attr->gid;
	u->owner_space += sign * cfs_weight_of(attr);
	u->owner_inodes += sign;
}

void cfs_usage_made(struct cfs_usage *u, cfs_ino_t parent, const struct cfs_attr *attr)
{
	*u = (struct cfs_usage){0};
	cfs_usage_inode(u, attr, 1);
	if (parent)
		cfs_usage_entry(u, parent, attr, 1);
}

void cfs_usage_linked(struct cfs_usage *u, cfs_ino_t parent, const struct cfs_attr *attr)
{
	*u = (struct cfs_usage){.uid = attr->uid, .gid = attr->gid};
	cfs_usage_entry(u, parent, attr, 1);
}

void cfs_usage_renamed(struct cfs_usage *u, const struct cfs_engine_rename *req,
		       const struct cfs_renamed *v)
{
	const struct cfs_rename *q = &req->r;
	bool other_dir = q->src_parent != q->dst_parent;

	*u = (struct cfs_usage){0};
	if (q->flags & CFS_RENAME_EXCHANGE && other_dir) {
		cfs_usage_entry(u, q->src_parent, &v->victim.attr, 1);
		cfs_usage_entry(u, q->dst_parent, &v->victim.attr, -1);
	} else if (!(q->flags & CFS_RENAME_EXCHANGE) && v->victim.outcome != CFS_REMOVED_NONE) {
		cfs_usage_removed(u, q->dst_parent, req->trash, &v->victim);
	}
	if (other_dir) {
		cfs_usage_entry(u, q->src_parent, &v->moved.attr, -1);
		cfs_usage_entry(u, q->dst_parent, &v->moved.attr, 1);
	}
}

void cfs_usage_removed(struct cfs_usage *u, cfs_ino_t parent, cfs_ino_t trash,
		       const struct cfs_removed *v)
{
	cfs_usage_entry(u, parent, &v->attr, -1);
	if (v->outcome == CFS_REMOVED_TRASHED)
		cfs_usage_entry(u, trash, &v->attr, 1);
	else if (v->outcome == CFS_REMOVED_DELETED)
		cfs_usage_inode(u, &v->attr, -1);
}

void cfs_usage_owner(struct cfs_usage *u, const struct cfs_attr *old, const struct cfs_attr *now)
{
	*u = (struct cfs_usage){.uid = old->uid, .gid = old->gid};
	if (now->uid != old->uid || now->gid != old->gid) {
		u->owner_space = cfs_weight_of(old);
		u->owner_inodes = 1;
	}
}

void cfs_rules_moved(const struct cfs_ctx *ctx, cfs_ino_t to, struct cfs_attr *attr)
{
	attr->ctime = ctx->now;
	if (attr->parent)
		attr->parent = to;
}
