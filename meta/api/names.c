/* SPDX-License-Identifier: Apache-2.0 */
/* Creation, lookup and removal of names. Each function makes one engine call on its usual path. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "meta/api/call.h"
#include "meta/api/core.h"
#include "meta/api/dirtimes.h"
#include "meta/api/jobs.h"
#include "meta/api/trash.h"
#include "meta/engine/rules.h"

static bool name_is(const char *name, size_t len, const char *text)
{
	return strlen(text) == len && memcmp(name, text, len) == 0;
}

static bool is_dot(const char *name, size_t len)
{
	return name_is(name, len, ".");
}

static bool is_dotdot(const char *name, size_t len)
{
	return name_is(name, len, "..");
}

/* Names in the root that clients answer themselves, plain and with the prefix ".jfs". */
static bool is_special(cfs_ino_t parent, const char *name, size_t len)
{
	static const char *const names[] = {".control", ".accesslog", ".stats", ".config",
					    ".trash"};
	const char prefix[] = ".jfs";
	const size_t skip = sizeof(prefix) - 1;
	size_t i;

	if (parent != CFS_ROOT_INO || len < 6 || name[0] != '.')
		return false;
	if (len > skip && memcmp(name, prefix, skip) == 0) {
		name += skip;
		len -= skip;
	}
	for (i = 0; i < CFS_ARRAY_SIZE(names); i++)
		if (name_is(name, len, names[i]))
			return true;
	return false;
}

/* ---- reading ---- */

static int lookup_self(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct cfs_entry *ret)
{
	int rc = m->eng->ops->getattr(m->eng, ctx, ino, &ret->attr);

	if (!rc) {
		ret->ino = ino;
		cfs_dirtimes_show(m, ctx, ino, &ret->attr);
	}
	return rc;
}

static int lookup(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		  size_t len, struct cfs_entry *ret)
{
	struct cfs_entry dir;
	int rc = cfs_core_check_name(name, len);

	if (rc)
		return rc;
	if (ctx->check) {
		rc = cfs_core_access(m, ctx, parent, X_OK, NULL);
		if (rc)
			return rc;
	}
	if (is_dot(name, len) || is_dotdot(name, len)) {
		rc = lookup_self(m, ctx, parent, &dir);
		if (rc)
			return rc;
		if (dir.attr.type != CFS_TYPE_DIR)
			return -ENOTDIR;
		if (is_dotdot(name, len) && parent != CFS_ROOT_INO)
			return lookup_self(m, ctx, dir.attr.parent, ret);
		*ret = dir;
		return 0;
	}
	if (parent == CFS_ROOT_INO &&
	    (name_is(name, len, ".trash") || name_is(name, len, ".jfs.trash")))
		return lookup_self(m, ctx, CFS_TRASH_INO, ret);
	rc = m->eng->ops->lookup(m->eng, ctx, parent, name, len, ret);
	if (!rc)
		cfs_dirtimes_show(m, ctx, ret->ino, &ret->attr);
	return rc;
}

int cfs_meta_lookup(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t name_len, struct cfs_entry *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_lookup, ctx,
			     lookup(m, c.ctx, parent, name, name_len, ret));
}

int cfs_meta_getattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret)
{
	struct cfs_call c;
	int rc;

	cfs_call_begin(&c, m, CFS_META_OP_getattr, ctx);
	rc = m->eng->ops->getattr(m->eng, c.ctx, ino, ret);
	if (!rc)
		cfs_dirtimes_show(m, c.ctx, ino, ret);
	return (int)cfs_call_end(&c, rc);
}

int cfs_meta_readlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      char buf[CFS_SYMLINK_MAX + 1])
{
	return (int)CFS_CALL(c, m, CFS_META_OP_readlink, ctx,
			     m->eng->ops->readlink(m->eng, c.ctx, ino, buf));
}

int cfs_meta_access(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask,
		    const struct cfs_attr *attr)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_getattr, ctx,
			     cfs_core_access(m, c.ctx, ino, mask, attr));
}

struct listing {
	struct cfs_meta *m;
	const struct cfs_ctx *ctx;
	cfs_dirent_fn fn;
	void *arg;
};

static int show_times(void *arg, const struct cfs_dirent *e)
{
	const struct listing *l = arg;
	struct cfs_dirent dir;

	if (e->type != CFS_TYPE_DIR)
		return l->fn(l->arg, e);
	dir = *e;
	cfs_dirtimes_show(l->m, l->ctx, e->entry.ino, &dir.entry.attr);
	return l->fn(l->arg, &dir);
}

int cfs_meta_readdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		     size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct listing l = {.m = m, .ctx = ctx, .fn = fn, .arg = arg};
	struct cfs_call c;
	int rc = 0;

	cfs_call_begin(&c, m, CFS_META_OP_readdir, ctx);
	if (c.ctx->check)
		rc = cfs_core_access(m, c.ctx, dir, R_OK, NULL);
	if (!rc && attrs && cfs_dirtimes_any(m))
		rc = m->eng->ops->readdir(m->eng, c.ctx, dir, true, limit, cursor, show_times, &l);
	else if (!rc)
		rc = m->eng->ops->readdir(m->eng, c.ctx, dir, attrs, limit, cursor, fn, arg);
	return (int)cfs_call_end(&c, rc);
}

/* ---- attributes ---- */

static int setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		   const struct cfs_attr *in, struct cfs_attr *ret)
{
	struct cfs_usage usage = {0};
	int rc = cfs_core_check_writable(m);

	if (rc)
		return rc;
	if (ino == CFS_TRASH_INO)
		return -EPERM;
	if (cfs_host_is_open(&m->host, ino))
		set |= CFS_SET_IS_OPEN;
	else
		set &= ~(uint32_t)CFS_SET_IS_OPEN;
	if (set & (CFS_SET_ATIME_NOW | CFS_SET_MTIME_NOW)) {
		rc = cfs_core_check_acl(m, ctx, ino, W_OK);
		if (rc)
			return rc;
	}
	rc = m->eng->ops->setattr(m->eng, ctx, ino, set, in, ret, &usage);
	if (rc)
		return rc;
	if (set & (CFS_SET_UID | CFS_SET_GID))
		cfs_quotas_chown(m->quotas, &usage, ret);
	cfs_dirtimes_set(m, ctx, ino, ret, set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW));
	cfs_dirtimes_show(m, ctx, ino, ret);
	return 0;
}

int cfs_meta_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_setattr, ctx, setattr(m, c.ctx, ino, set, in, ret));
}

int cfs_meta_keep_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, uint32_t set,
			  const struct cfs_attr *in, struct cfs_attr *attr)
{
	const uint32_t owner = CFS_SET_UID | CFS_SET_GID;
	const uint32_t kept = owner | CFS_SET_MODE | CFS_SET_ATIME | CFS_SET_ATIME_NOW |
			      CFS_SET_MTIME | CFS_SET_MTIME_NOW;
	int rc;

	if (!(set & kept) || (set & ~(kept | CFS_SET_KILL_SUID)) || ctx->check ||
	    m->conf.read_only || cfs_host_changelog(&m->host))
		return -EAGAIN;
	if (attr->type != CFS_TYPE_FILE || attr->access_acl || attr->flags ||
	    cfs_ino_is_trash(attr->parent))
		return -EAGAIN;
	/* The usage of owners moves in the transaction; some databases refuse large numbers. */
	if ((set & owner) && cfs_quotas_on_owners(m->quotas))
		return -EAGAIN;
	if (((set & CFS_SET_UID) && in->uid > INT32_MAX) ||
	    ((set & CFS_SET_GID) && in->gid > INT32_MAX))
		return -EAGAIN;
	rc = cfs_rules_setattr(ctx, set, in, attr);
	return rc < 0 ? rc : 0;
}

/* ---- making ---- */

static int check_name(struct cfs_meta *m, const char *name, size_t len)
{
	int rc = cfs_core_check_writable(m);

	return rc ? rc : cfs_core_check_name(name, len);
}

/* Checks a name to be created in `parent`. */
static int check_new_name(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
			  const char *name, size_t len)
{
	int rc = check_name(m, name, len);

	if (rc)
		return rc;
	if (is_dot(name, len) || is_dotdot(name, len) || is_special(parent, name, len))
		return -EEXIST;
	if (cfs_ino_is_trash(parent))
		return -EPERM;
	return cfs_core_check_acl(m, ctx, parent, W_OK | X_OK);
}

static int check_target(const struct cfs_mknod *req)
{
	if (req->target_len == 0 || memchr(req->target, '\0', req->target_len))
		return -EINVAL;
	return req->target_len > CFS_SYMLINK_MAX ? -ENAMETOOLONG : 0;
}

/*
 * Reserves quota. The group of a setgid parent is read only when owners have limits. Directories
 * count names, so an inode without one counts in none.
 */
static int charge_new_inode(struct cfs_meta *m, const struct cfs_ctx *ctx,
			    const struct cfs_mknod *req, struct cfs_reservation *ret)
{
	struct cfs_charge charge = {
		.dir = req->name_len ? req->parent : 0,
		.owned = true,
		.uid = ctx->uid,
		.gid = ctx->gid,
		.space = cfs_space_of(0),
		.inodes = 1,
	};
	struct cfs_attr dir;

	if (cfs_quotas_on_owners(m->quotas) &&
	    !m->eng->ops->getattr(m->eng, ctx, req->parent, &dir) && (dir.mode & 02000))
		charge.gid = dir.gid;
	return cfs_quotas_reserve(m->quotas, ctx, &charge, ret);
}

/* Called after the checks. */
static int make_inode(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		      struct cfs_entry *ret)
{
	struct cfs_usage usage = {0};
	struct cfs_reservation reserved;
	uint64_t ino;
	int rc = cfs_core_check_room(m);

	if (!rc)
		rc = cfs_ids_next(m, &m->inode_ids, ctx, &ino);
	if (!rc && req->note_ino)
		atomic_store(req->note_ino, ino);
	if (!rc)
		rc = charge_new_inode(m, ctx, req, &reserved);
	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->mknod(m->eng, ctx, req, ino, ret, &usage);
	cfs_quotas_end_reserved(m->quotas, ctx, 0, &reserved, rc ? NULL : &usage);
	if (rc == -EEXIST)
		cfs_dirtimes_show(m, ctx, ret->ino, &ret->attr);
	return rc;
}

static int do_mknod(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		    struct cfs_entry *ret)
{
	int rc;

	if (req->type < CFS_TYPE_FILE || req->type > CFS_TYPE_SOCKET)
		return -EINVAL;
	rc = check_new_name(m, ctx, req->parent, req->name, req->name_len);
	if (!rc && req->type == CFS_TYPE_SYMLINK)
		rc = check_target(req);
	if (!rc)
		rc = make_inode(m, ctx, req, ret);
	if (rc)
		return rc;
	if (req->type == CFS_TYPE_DIR)
		cfs_quotas_learn_parent(m->quotas, ret->ino, req->parent);
	else
		cfs_dirtimes_changed(m, ctx, req->parent, req->ret_parent);
	if (req->ret_parent)
		cfs_dirtimes_show(m, ctx, req->parent, req->ret_parent);
	return 0;
}

int cfs_meta_mknod(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		   struct cfs_entry *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_mknod, ctx, do_mknod(m, c.ctx, req, ret));
}

static int do_make_unnamed(struct cfs_meta *m, const struct cfs_ctx *ctx,
			   const struct cfs_mknod *req, struct cfs_entry *ret)
{
	int rc = cfs_core_check_writable(m);

	if (!rc && !cfs_host_sid(&m->host))
		rc = -EROFS;
	if (!rc && (req->type != CFS_TYPE_FILE || req->name_len))
		rc = -EINVAL;
	if (!rc && cfs_ino_is_trash(req->parent))
		rc = -EPERM;
	if (!rc)
		rc = cfs_core_check_acl(m, ctx, req->parent, W_OK | X_OK);
	return rc ? rc : make_inode(m, ctx, req, ret);
}

int cfs_meta_make_unnamed(struct cfs_meta *m, const struct cfs_ctx *ctx,
			  const struct cfs_mknod *req, struct cfs_entry *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_mknod, ctx, do_make_unnamed(m, c.ctx, req, ret));
}

/* Reserves quota for a second name, which counts in its directory's quotas, not in the volume. */
static int charge_link(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       cfs_ino_t parent, struct cfs_reservation *ret)
{
	struct cfs_charge charge = {.dir = parent, .inodes = 1, .dir_only = true};
	struct cfs_attr attr;
	int rc;

	if (!cfs_quotas_on_dirs(m->quotas))
		return 0;
	rc = m->eng->ops->getattr(m->eng, ctx, ino, &attr);
	if (rc)
		return rc;
	charge.space = cfs_weight_of(&attr);
	return cfs_quotas_reserve(m->quotas, ctx, &charge, ret);
}

static int do_link(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_engine_link *req,
		   struct cfs_attr *ret)
{
	struct cfs_usage usage = {0};
	struct cfs_reservation reserved = {0};
	int rc = check_new_name(m, ctx, req->parent, req->name, req->len);

	if (!rc)
		rc = charge_link(m, ctx, req->ino, req->parent, &reserved);
	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->link(m->eng, ctx, req, ret, &usage);
	cfs_quotas_end_reserved(m->quotas, ctx, 0, &reserved, rc ? NULL : &usage);
	if (!rc)
		cfs_dirtimes_changed(m, ctx, req->parent, NULL);
	return rc;
}

int cfs_meta_link(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		  const char *name, size_t name_len, struct cfs_attr *ret)
{
	struct cfs_engine_link req = {ino, parent, name, name_len, 0};

	return (int)CFS_CALL(c, m, CFS_META_OP_link, ctx, do_link(m, c.ctx, &req, ret));
}

int cfs_meta_link_unnamed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  cfs_ino_t parent, const char *name, size_t name_len, struct cfs_attr *ret)
{
	struct cfs_engine_link req = {ino, parent, name, name_len, cfs_host_sid(&m->host)};

	if (!req.sid)
		return -ENOENT;
	return (int)CFS_CALL(c, m, CFS_META_OP_link, ctx, do_link(m, c.ctx, &req, ret));
}

/* ---- removing ---- */

/* The data of a deleted file is removed in the background. */
static void after_removal(struct cfs_meta *m, const struct cfs_removed *r)
{
	if (r->outcome == CFS_REMOVED_DELETED && r->has_data)
		cfs_jobs_delete_file(m, r->ino, r->attr.length);
}

static int check_old_name(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
			  const char *name, size_t len)
{
	int rc = check_name(m, name, len);

	if (rc)
		return rc;
	if (is_special(parent, name, len))
		return -EPERM;
	if (cfs_ino_is_trash(parent) && ctx->uid != 0)
		return -EPERM;
	return cfs_core_check_acl(m, ctx, parent, W_OK | X_OK);
}

/* Called after the checks. An rmdir changes the parent's record: the engine stores its times. */
static int remove_name(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		       const char *name, size_t len, unsigned flags, bool dir,
		       struct cfs_removed *ret)
{
	struct cfs_engine_remove req = {
		.dir = dir,
		.parent = parent,
		.name = name,
		.name_len = len,
	};
	struct cfs_usage usage = {0};
	int rc = cfs_core_trash_dir(m, ctx, parent, flags & CFS_REMOVE_SKIP_TRASH, &req.trash);

	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->remove(m->eng, ctx, &req, ret, &usage);
	cfs_quotas_end(m->quotas, ctx, rc ? NULL : &usage);
	if (rc)
		return rc;
	if (!dir)
		cfs_dirtimes_changed(m, ctx, parent, &ret->parent);
	cfs_dirtimes_show(m, ctx, parent, &ret->parent);
	return 0;
}

static int do_unlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		     const char *name, size_t len, unsigned flags, struct cfs_removed *ret)
{
	int rc = check_old_name(m, ctx, parent, name, len);

	if (!rc && (is_dot(name, len) || is_dotdot(name, len)))
		rc = -EISDIR;
	if (!rc)
		rc = remove_name(m, ctx, parent, name, len, flags, false, ret);
	if (!rc)
		after_removal(m, ret);
	return rc;
}

int cfs_meta_unlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t name_len, unsigned flags, struct cfs_removed *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_unlink, ctx,
			     do_unlink(m, c.ctx, parent, name, name_len, flags, ret));
}

static int do_rmdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t len, unsigned flags, struct cfs_removed *ret)
{
	int rc;

	if (is_dot(name, len))
		return -EINVAL;
	if (is_dotdot(name, len))
		return -ENOTEMPTY;
	rc = check_old_name(m, ctx, parent, name, len);
	if (!rc && cfs_trash_in_use(m, parent, name, len))
		rc = -EBUSY;
	return rc ? rc : remove_name(m, ctx, parent, name, len, flags, true, ret);
}

int cfs_meta_rmdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		   const char *name, size_t name_len, unsigned flags, struct cfs_removed *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_rmdir, ctx,
			     do_rmdir(m, c.ctx, parent, name, name_len, flags, ret));
}

/* ---- renaming ---- */

static int check_rename(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *r)
{
	const unsigned known = CFS_RENAME_NOREPLACE | CFS_RENAME_EXCHANGE | CFS_RENAME_RESTORE;
	const unsigned both = CFS_RENAME_NOREPLACE | CFS_RENAME_EXCHANGE;
	const unsigned whiteout = 1 << 2;
	int rc;

	if (r->flags & whiteout)
		return -EOPNOTSUPP;
	if ((r->flags & ~known) || (r->flags & both) == both)
		return -EINVAL;
	rc = check_old_name(m, ctx, r->src_parent, r->src_name, r->src_len);
	if (!rc)
		rc = cfs_core_check_name(r->dst_name, r->dst_len);
	if (rc)
		return rc;
	if (is_dot(r->src_name, r->src_len) || is_dotdot(r->src_name, r->src_len) ||
	    is_dot(r->dst_name, r->dst_len) || is_dotdot(r->dst_name, r->dst_len) ||
	    cfs_trash_in_use(m, r->src_parent, r->src_name, r->src_len))
		return -EBUSY;
	if (is_special(r->dst_parent, r->dst_name, r->dst_len))
		return -EPERM;
	if (cfs_ino_is_trash(r->dst_parent) && !(r->flags & CFS_RENAME_RESTORE))
		return -EPERM;
	if (r->dst_parent == r->src_parent)
		return 0;
	return cfs_core_check_acl(m, ctx, r->dst_parent, W_OK | X_OK);
}

/* Checks that moved trees fit into the quotas of their targets. Without quotas: no engine call. */
static int check_moves(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *r,
		       struct cfs_tree_move *ret_there, struct cfs_tree_move *ret_back)
{
	struct cfs_entry e;
	int rc;

	if (r->src_parent == r->dst_parent || !cfs_quotas_on_dirs(m->quotas))
		return 0;
	rc = m->eng->ops->lookup(m->eng, ctx, r->src_parent, r->src_name, r->src_len, &e);
	if (!rc)
		rc = cfs_quotas_check_move(m->quotas, ctx, &e, r->src_parent, r->dst_parent,
					   ret_there);
	if (rc || !(r->flags & CFS_RENAME_EXCHANGE))
		return rc;
	rc = m->eng->ops->lookup(m->eng, ctx, r->dst_parent, r->dst_name, r->dst_len, &e);
	if (!rc)
		rc = cfs_quotas_check_move(m->quotas, ctx, &e, r->dst_parent, r->src_parent,
					   ret_back);
	return rc;
}

/* Completes the attributes of an inode that was renamed. */
static void show_moved(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct cfs_attr *attr)
{
	cfs_dirtimes_set(m, ctx, ino, attr, false);
	cfs_dirtimes_show(m, ctx, ino, attr);
}

static void renamed(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *r,
		    struct cfs_renamed *ret)
{
	/* When both names were of one inode, nothing has changed. */
	if (cfs_timespec_cmp(ret->moved.attr.ctime, ctx->now) >= 0) {
		cfs_dirtimes_changed(m, ctx, r->src_parent, NULL);
		if (r->dst_parent != r->src_parent)
			cfs_dirtimes_changed(m, ctx, r->dst_parent, NULL);
	}
	show_moved(m, ctx, ret->moved.ino, &ret->moved.attr);
	if (r->flags & CFS_RENAME_EXCHANGE)
		show_moved(m, ctx, ret->victim.ino, &ret->victim.attr);
}

static int do_rename(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *r,
		     struct cfs_renamed *ret)
{
	struct cfs_engine_rename req = {.r = *r};
	struct cfs_tree_move there = {0}, back = {0};
	struct cfs_usage usage = {0};
	int rc = check_rename(m, ctx, r);

	if (!rc)
		rc = check_moves(m, ctx, r, &there, &back);
	if (!rc && !(r->flags & (CFS_RENAME_NOREPLACE | CFS_RENAME_EXCHANGE)))
		rc = cfs_core_trash_dir(m, ctx, r->dst_parent, false, &req.trash);
	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->rename(m->eng, ctx, &req, ret, &usage);
	cfs_quotas_end(m->quotas, ctx, rc ? NULL : &usage);
	if (rc)
		return rc;
	cfs_quotas_moved(m->quotas, ctx, &there);
	cfs_quotas_moved(m->quotas, ctx, &back);
	if (ret->moved.attr.type == CFS_TYPE_DIR)
		cfs_quotas_learn_parent(m->quotas, ret->moved.ino, r->dst_parent);
	if ((r->flags & CFS_RENAME_EXCHANGE) && ret->victim.attr.type == CFS_TYPE_DIR)
		cfs_quotas_learn_parent(m->quotas, ret->victim.ino, r->src_parent);
	renamed(m, ctx, r, ret);
	after_removal(m, &ret->victim);
	return 0;
}

int cfs_meta_rename(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *req,
		    struct cfs_renamed *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_rename, ctx, do_rename(m, c.ctx, req, ret));
}
