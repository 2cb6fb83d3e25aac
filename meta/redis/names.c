/* SPDX-License-Identifier: Apache-2.0 */
/* Names and attributes. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/redis/ops.h"

/* ---- reads ---- */

static int entry_reply(const redisReply *entry, const redisReply *attr, struct cfs_entry *ret)
{
	struct cfs_entry e;
	uint8_t type;
	int r;

	if (!rds_is_bytes(entry))
		return -EIO;
	r = rds_entry_decode(entry->str, entry->len, &type, &e.ino);
	if (!r)
		r = rds_attr_reply(attr, &e.attr);
	if (!r)
		*ret = e;
	return r;
}

int rds_op_lookup(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t parent,
		  const char *name, size_t len, struct cfs_entry *ret)
{
	RDS_REQUEST(q, e);
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_lookup, &rds_lookup_lua, &a, "ub", parent, name,
			   len);

	if (!r)
		r = a->elements == 3 ? entry_reply(a->element[1], a->element[2], ret) : -EIO;
	if (!r)
		rds_cache_name(rds_of(e), parent, name, len, ret, a->element[2]);
	return r;
}

int rds_op_getattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		   struct cfs_attr *ret)
{
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_getattr, "sk", "GET", "i", ino);

	if (!r)
		r = rds_attr_reply(q.reply[0], ret);
	if (!r)
		rds_cache_attr(rds_of(e), ino, q.reply[0], ret);
	return r;
}

int rds_op_readlink(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    char buf[CFS_SYMLINK_MAX + 1])
{
	struct cfs_attr attr;
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_readlink, "sk", "GET", "s", ino);

	if (!r && rds_is_nil(q.reply[0])) {
		r = rds_op_getattr(e, ctx, ino, &attr);
		if (!r)
			r = attr.type == CFS_TYPE_SYMLINK ? -EIO : -EINVAL;
	} else if (!r && (!rds_is_bytes(q.reply[0]) || q.reply[0]->len > CFS_SYMLINK_MAX)) {
		r = -EIO;
	} else if (!r) {
		memcpy(buf, q.reply[0]->str, q.reply[0]->len);
		buf[q.reply[0]->len] = '\0';
	}
	return r;
}

/* ---- mknod, link ---- */

static int mknod_reply(struct rds *rds, const struct cfs_mknod *req, cfs_ino_t ino,
		       const redisReply *a, struct cfs_attr *ret, struct cfs_attr *ret_parent)
{
	int r = a->elements == 3 ? rds_attr_reply(a->element[1], ret) : -EIO;

	if (!r)
		r = rds_attr_reply(a->element[2], ret_parent);
	if (r)
		return r;
	rds_cache_attr(rds, ino, a->element[1], ret);
	rds_cache_attr(rds, req->parent, a->element[2], ret_parent);
	return 0;
}

/* The part of the changelog line between the name and the last field. */
static char *mknod_line(struct rds *rds, const struct cfs_ctx *ctx, const struct cfs_mknod *req)
{
	cfs_auto_free char *target = NULL;
	char *line = NULL;

	if (!cfs_host_changelog(rds->engine.host))
		return strdup("");
	target = malloc(3 * req->target_len + 1);
	if (!target)
		return NULL;
	cfs_changelog_name(req->target, req->target_len, target);
	if (asprintf(&line, "%u,%u,%u,%u,%u,%s,linux,", ctx->uid, ctx->gid, (unsigned)req->type,
		     (unsigned)req->mode, (unsigned)req->umask, target) < 0)
		return NULL;
	return line;
}

/* The script that applies the rules itself. -EEXIST: *ret is the existing entry. */
static int mknod_by_rules(struct cfs_engine *e, const struct cfs_ctx *ctx,
			  const struct cfs_mknod *req, cfs_ino_t ino, struct cfs_entry *ret,
			  struct cfs_attr *ret_parent)
{
	const struct cfs_attr plain = {.type = CFS_TYPE_DIR};
	struct rds *rds = rds_of(e);
	uint8_t record[CFS_ATTR_BYTES_MAX];
	cfs_auto_free char *line = mknod_line(rds, ctx, req);
	struct cfs_attr attr;
	RDS_REQUEST(q, e);
	redisReply *a = NULL;
	size_t len;
	int r;

	if (!line)
		return -ENOMEM;
	cfs_rules_new_inode(ctx, req, &plain, &attr);
	len = cfs_attr_encode(&attr, record);
	r = rds_script(&q, ctx, CFS_META_OP_mknod, &rds_mknod_lua, &a, "u8bu8bwtsubsu", req->parent,
		       req->parent, req->name, req->name_len, ino, ino, record, len, ctx, ctx->now,
		       rds_stats(rds), (uint64_t)req->mode, req->target ? req->target : "",
		       req->target ? req->target_len : 0, line, cfs_host_sid(e->host));
	if (!r) {
		r = mknod_reply(rds, req, ino, a, &ret->attr, ret_parent);
	} else if (r == -EEXIST && a->elements == 3) {
		/* A name whose inode is missing exists too. */
		entry_reply(a->element[1], a->element[2], ret);
	}
	return r;
}

int rds_op_mknod(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		 cfs_ino_t ino, struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct cfs_attr parent;
	int r = 0;

	if (req->name_len)
		r = rds_mknod_optimistic(e, ctx, req, ino, &ret->attr, &parent);
	if (!r)
		r = mknod_by_rules(e, ctx, req, ino, ret, &parent);
	if (r < 0)
		return r;
	ret->ino = ino;
	cfs_usage_made(ret_usage, req->name_len ? req->parent : 0, &ret->attr);
	if (req->name_len)
		cfs_optimistic_file_remember(&rds_of(e)->optimistic, req->parent, req->name,
					     req->name_len, ret);
	if (req->ret_parent)
		*req->ret_parent = parent;
	return 0;
}

int rds_op_link(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_engine_link *req,
		struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct rds *rds = rds_of(e);
	RDS_REQUEST(q, e);
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_link, &rds_link_lua, &a, "uu88bwtsu", req->parent,
			   req->ino, req->parent, req->ino, req->name, req->len, ctx, ctx->now,
			   rds_stats(rds), req->sid);

	if (!r)
		r = rds_attr_reply(a->element[1], ret);
	if (!r) {
		cfs_usage_linked(ret_usage, req->parent, ret);
		rds_cache_name(rds, req->parent, req->name, req->len,
			       &(struct cfs_entry){.ino = req->ino, .attr = *ret}, a->element[1]);
	}
	return r;
}

/* ---- setattr ---- */

int rds_op_setattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		   const struct cfs_attr *in, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	uint8_t uid[4], gid[4];
	RDS_REQUEST(q, e);
	struct cfs_attr old;
	redisReply *a;
	int r;

	cfs_put_be32(uid, in->uid);
	cfs_put_be32(gid, in->gid);
	r = rds_script(&q, ctx, CFS_META_OP_setattr, &rds_setattr_lua, &a, "uuubbuutttwtu", ino,
		       (uint64_t)set, (uint64_t)(in->mode & 07777), uid, (size_t)4, gid, (size_t)4,
		       (uint64_t)in->flags, (uint64_t)in->tier,
		       cfs_rules_time(ctx, false, in->atime), cfs_rules_time(ctx, false, in->mtime),
		       in->ctime, ctx, ctx->now, (uint64_t)cfs_changelog_set_bits(set));
	if (!r)
		r = rds_attr_reply(a->element[1], ret);
	if (!r)
		r = rds_attr_reply(a->element[2], &old);
	if (!r) {
		rds_cache_attr(rds_of(e), ino, a->element[1], ret);
		cfs_usage_owner(ret_usage, &old, ret);
	}
	return r;
}

int rds_op_touch_atime(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct timespec atime)
{
	int r = rds_change(e, ctx, CFS_META_OP_setattr, &rds_touch_atime_lua, "ut", ino, atime);

	cfs_optimistic_file_forget(&rds_of(e)->optimistic, ino);
	return r;
}

/* Few, because the server does nothing else while a script runs. */
enum { DIRS_PER_SCRIPT = 100 };

static int touch_dirs(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_dir_time *v,
		      size_t n)
{
	RDS_REQUEST(q, e);

	rds_script_begin(&q, ctx, &rds_touch_dirs_lua, 3 * n);
	for (size_t i = 0; i < n; i++)
		rds_words(&q, "utt", v[i].dir, v[i].time, v[i].until);
	return rds_script_run(&q, ctx, CFS_META_OP_other, NULL);
}

int rds_op_touch_dirs(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_dir_time *v,
		      size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && !r; i += DIRS_PER_SCRIPT)
		r = touch_dirs(e, ctx, v + i, CFS_MIN(n - i, (size_t)DIRS_PER_SCRIPT));
	return r;
}

/* ---- hour directories of the trash ---- */

int rds_op_trash_dir(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
		     cfs_ino_t *ret, struct cfs_usage *ret_usage)
{
	const struct cfs_attr attr = cfs_rules_directory(ctx, 0555, 0);
	struct rds *rds = rds_of(e);
	uint8_t record[CFS_ATTR_BYTES_MAX];
	size_t len = cfs_attr_encode(&attr, record);
	RDS_REQUEST(q, e);
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_mknod, &rds_trash_dir_lua, &a, "u88uusbs",
			   CFS_TRASH_INO, CFS_TRASH_INO, CFS_ROOT_INO, CFS_TRASH_INO >> 32,
			   CFS_TRASH_INO & 0xFFFFFFFF, name, record, len, rds_stats(rds));

	if (!r) {
		*ret = a->element[1]->len == 8 ? cfs_get_be64(a->element[1]->str) : 0;
		r = cfs_ino_is_trash(*ret) ? 0 : -EIO;
	}
	if (!r && a->elements > 2)
		cfs_usage_inode(ret_usage, &attr, 1);
	return r;
}
