/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying trees by reference (volume-format section 11). The copy grows detached, without a name,
 * and gets its name when it is complete. Memory: 16 bytes for each directory still to be visited.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "meta/api/call.h"
#include "meta/api/clone.h"
#include "meta/api/core.h"
#include "meta/api/dirtimes.h"
#include "meta/api/jobs.h"
#include "meta/engine/rules.h"

struct pair {
	cfs_ino_t src, dst;
};

struct work {
	struct cfs_meta *m;
	const struct cfs_ctx *who;
	const struct cfs_clone *req;
	struct pair *todo;
	size_t n, cap;
	int64_t space, inodes; /* copied so far, the top included */
};

static struct cfs_ctx step_ctx(const struct work *w)
{
	struct cfs_ctx ctx = *w->who;

	ctx.now = cfs_wall();
	ctx.deadline = cfs_deadline_in(w->m->conf.timeout_ms);
	return ctx;
}

static int push(struct work *w, cfs_ino_t src, cfs_ino_t dst)
{
	if (CFS_ARRAY_ROOM(w->todo, w->n, w->cap) < 0)
		return -ENOMEM;
	w->todo[w->n++] = (struct pair){src, dst};
	return 0;
}

/* ---- copying ---- */

/* Checks quotas. A copy counts in the volume at once, in directories when it gets its name. */
static int charge(struct work *w, const struct cfs_ctx *ctx, const struct cfs_attr *attr)
{
	int64_t space = cfs_weight_of(attr);
	struct cfs_charge all = {
		.owned = true,
		.uid = w->req->preserve ? attr->uid : w->who->uid,
		.gid = w->req->preserve ? attr->gid : w->who->gid,
		.space = space,
		.inodes = 1,
	};
	struct cfs_charge dirs = {
		.dir = w->req->parent,
		.dir_only = true,
		.space = w->space + space,
		.inodes = w->inodes + 1,
	};
	int rc = cfs_quotas_check(w->m->quotas, ctx, &all);

	return rc ? rc : cfs_quotas_check(w->m->quotas, ctx, &dirs);
}

/*
 * Permission checks where the kernel makes none, because callers are mapped to another user. That
 * user may copy files that it can read, and owns the copies.
 */
static int may_copy(struct work *w, const struct cfs_ctx *ctx, cfs_ino_t src,
		    const struct cfs_attr *attr)
{
	const struct cfs_ctx *who = w->who;

	if (!who->check || who->uid == 0)
		return 0;
	if (w->req->preserve && (attr->uid != who->uid || !cfs_ctx_in_group(who, attr->gid)))
		return -EPERM;
	if (attr->type == CFS_TYPE_DIR)
		return cfs_core_access(w->m, ctx, src, R_OK | X_OK, attr);
	return attr->type == CFS_TYPE_FILE ? cfs_core_access(w->m, ctx, src, R_OK, attr) : 0;
}

/* name NULL: the top. */
static int copy_inode(struct work *w, cfs_ino_t src, cfs_ino_t parent, const char *name, size_t len,
		      struct cfs_entry *ret)
{
	struct cfs_ctx ctx = step_ctx(w);
	struct cfs_usage usage = {0};
	struct cfs_attr attr;
	uint64_t ino;
	int rc = w->m->eng->ops->getattr(w->m->eng, &ctx, src, &attr);

	if (!rc)
		rc = may_copy(w, &ctx, src, &attr);
	if (!rc)
		rc = charge(w, &ctx, &attr);
	if (!rc)
		rc = cfs_core_check_room(w->m);
	if (!rc)
		rc = cfs_ids_next(w->m, &w->m->inode_ids, &ctx, &ino);
	if (rc)
		return rc;
	cfs_quotas_begin(w->m->quotas);
	rc = w->m->eng->ops->clone_ino(w->m->eng, &ctx, src, ino, parent, name, len,
				       w->req->preserve, ret, &usage);
	cfs_quotas_end(w->m->quotas, &ctx, rc ? NULL : &usage);
	if (rc)
		return rc;
	w->space += cfs_weight_of(&ret->attr);
	w->inodes++;
	return w->req->step ? w->req->step(w->req->arg, (uint64_t)w->inodes) : 0;
}

static int copy_item(struct work *w, const struct cfs_name *i, cfs_ino_t dst)
{
	struct cfs_entry copy;
	int rc = copy_inode(w, i->ino, dst, i->name, i->len, &copy);

	if (rc == -ENOENT)
		return 0; /* removed from the source meanwhile */
	if (rc || copy.attr.type != CFS_TYPE_DIR)
		return rc;
	return push(w, i->ino, copy.ino);
}

/* Counts a directory's entries again: they may have changed after its attributes were copied. */
static int settle(struct work *w, cfs_ino_t dst)
{
	struct cfs_ctx ctx = step_ctx(w);
	struct cfs_usage usage = {0};
	struct cfs_check c;
	const unsigned repair = CFS_DAMAGE_NLINK | CFS_DAMAGE_STAT | CFS_DAMAGE_LENGTH;

	return w->m->eng->ops->check_inode(w->m->eng, &ctx, dst, repair, &c, &usage);
}

static int copy_entries(struct work *w, struct cfs_names *p, const struct pair *dir)
{
	struct cfs_cursor cursor = {0};
	bool last = false;
	size_t i;
	int rc = 0;

	while (!rc && !last) {
		struct cfs_ctx ctx = step_ctx(w);

		p->n = 0;
		rc = w->m->eng->ops->readdir(w->m->eng, &ctx, dir->src, false, CFS_NAMES_MAX,
					     &cursor, cfs_names_add, p);
		last = rc == 1;
		rc = rc < 0 ? rc : 0;
		for (i = 0; i < p->n && !rc; i++)
			rc = copy_item(w, &p->v[i], dir->dst);
	}
	if (rc == -ENOENT) /* the source directory was removed: the entries copied so far stay */
		rc = 0;
	return rc ? rc : settle(w, dir->dst);
}

static int copy_tree(struct work *w, cfs_ino_t src, cfs_ino_t dst)
{
	struct cfs_names *p = malloc(sizeof(*p));
	int rc = p ? push(w, src, dst) : -ENOMEM;

	while (!rc && w->n) {
		struct pair dir = w->todo[--w->n];

		rc = copy_entries(w, p, &dir);
	}
	free(p);
	return rc;
}

/* ---- giving up ---- */

/* Removes an entry of a detached tree, whose usage was not counted in directories. */
static int remove_entry(struct cfs_meta *m, cfs_ino_t dir, const struct cfs_name *i)
{
	const struct cfs_engine_remove req = {
		.dir = i->type == CFS_TYPE_DIR,
		.parent = dir,
		.name = i->name,
		.name_len = i->len,
	};
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	struct cfs_usage usage = {0};
	struct cfs_removed gone;
	int rc;

	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->remove(m->eng, &ctx, &req, &gone, &usage);
	usage.n_dirs = 0; /* rows of directories that are removed too */
	cfs_quotas_end(m->quotas, &ctx, rc ? NULL : &usage);
	if (!rc && gone.outcome == CFS_REMOVED_DELETED && gone.attr.type == CFS_TYPE_FILE)
		cfs_jobs_delete_file(m, gone.ino, gone.attr.length);
	return rc == -ENOENT ? 0 : rc;
}

/*
 * Removes the content of a directory bottom up. `path` leads to the current directory. Entries are
 * removed as they are read, so each listing starts at the beginning.
 */
static int empty(struct cfs_meta *m, cfs_ino_t top)
{
	size_t depth = 0, cap = 0, i;
	struct cfs_names *p = malloc(sizeof(*p));
	struct cfs_name *path = NULL;
	cfs_ino_t dir = top;
	int rc = p ? 0 : -ENOMEM;
	bool down, last;

	while (!rc) {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
		struct cfs_cursor cursor = {0};

		p->n = 0;
		rc = m->eng->ops->readdir(m->eng, &ctx, dir, false, CFS_NAMES_MAX, &cursor,
					  cfs_names_add, p);
		last = rc == 1;
		rc = rc < 0 ? rc : 0;
		down = false;
		for (i = 0; i < p->n && !rc && !down; i++) {
			rc = remove_entry(m, dir, &p->v[i]);
			if (rc != -ENOTEMPTY)
				continue;
			rc = 0;
			down = true;
			rc = CFS_ARRAY_ROOM(path, depth, cap);
			if (rc)
				break;
			path[depth++] = p->v[i];
			dir = p->v[i].ino;
		}
		if (rc || down || !last)
			continue;
		if (!depth)
			break;
		/* The empty directory is removed when its parent is listed again. */
		dir = --depth ? path[depth - 1].ino : top;
	}
	free(path);
	free(p);
	return rc;
}

int cfs_clone_discard(struct cfs_meta *m, cfs_ino_t top)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	struct cfs_usage usage = {0};
	struct cfs_attr attr;
	int rc = m->eng->ops->getattr(m->eng, &ctx, top, &attr);

	if (!rc && attr.type == CFS_TYPE_DIR)
		rc = empty(m, top);
	if (rc && rc != -ENOENT)
		return rc;
	ctx = cfs_ctx_internal(m->conf.timeout_ms);
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->drop_detached(m->eng, &ctx, top, &usage);
	cfs_quotas_end(m->quotas, &ctx, rc ? NULL : &usage);
	if (!rc && attr.type == CFS_TYPE_FILE)
		cfs_jobs_delete_file(m, top, attr.length);
	return rc == -ENOENT ? 0 : rc;
}

/* ---- a clone ---- */

static int attach(struct work *w, struct cfs_entry *top)
{
	const struct cfs_clone *req = w->req;
	struct cfs_ctx ctx = step_ctx(w);
	struct cfs_usage usage = {0};
	int64_t own = cfs_weight_of(&top->attr);
	struct cfs_tree_move below = {.to = req->parent};
	int rc;

	cfs_quotas_begin(w->m->quotas);
	rc = w->m->eng->ops->attach(w->m->eng, &ctx, top->ino, req->parent, req->name,
				    req->name_len, &usage);
	cfs_quotas_end(w->m->quotas, &ctx, rc ? NULL : &usage);
	if (rc)
		return rc;
	if (top->attr.type != CFS_TYPE_DIR)
		cfs_dirtimes_changed(w->m, &ctx, req->parent, NULL);
	below.space = w->space - own;
	below.inodes = w->inodes - 1;
	cfs_quotas_moved(w->m->quotas, &ctx, &below);
	top->attr.parent = req->parent;
	return 0;
}

static int copy_all(struct work *w, struct cfs_entry *ret)
{
	const struct cfs_clone *req = w->req;
	struct cfs_ctx ctx = step_ctx(w);
	struct cfs_entry top, there;
	int rc, rc2;

	if (cfs_ino_is_trash(req->src) || cfs_ino_is_trash(req->parent))
		return -EPERM;
	rc = w->m->eng->ops->lookup(w->m->eng, &ctx, req->parent, req->name, req->name_len, &there);
	if (rc != -ENOENT)
		return rc ? rc : -EEXIST;
	/* The engine copies records: unstored times must be in them. */
	rc = req->preserve ? cfs_dirtimes_store(w->m, &ctx) : 0;
	if (rc)
		return rc;
	rc = copy_inode(w, req->src, req->parent, NULL, 0, &top);
	if (!w->inodes) /* there is nothing to discard */
		return rc;
	if (!rc && top.attr.type == CFS_TYPE_DIR)
		rc = copy_tree(w, req->src, top.ino);
	if (!rc)
		rc = attach(w, &top);
	if (!rc) {
		*ret = top;
		return 0;
	}
	rc2 = cfs_clone_discard(w->m, top.ino);
	if (rc2)
		cfs_warn("an unfinished clone is left for gc: inode=%llu error=%s",
			 (unsigned long long)top.ino, cfs_errname(rc2));
	return rc;
}

int cfs_meta_clone(struct cfs_meta *m, const struct cfs_ctx *who, const struct cfs_clone *req,
		   struct cfs_entry *ret)
{
	struct work w = {.m = m, .who = who, .req = req};
	struct cfs_call c;
	int rc = cfs_core_check_writable(m);

	cfs_call_begin(&c, m, CFS_META_OP_other, who);
	if (!rc)
		rc = cfs_core_check_name(req->name, req->name_len);
	if (!rc && who->check)
		rc = cfs_core_access(m, who, req->parent, W_OK | X_OK, NULL);
	if (!rc)
		rc = copy_all(&w, ret);
	free(w.todo);
	return (int)cfs_call_end(&c, rc);
}
