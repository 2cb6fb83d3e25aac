/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of directories, usage and quotas (volume-format section 10). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/redis/ops.h"

/* unpack() in a script takes some thousand values at most. */
enum { LIMIT_BYTES = 16, ONE_SCRIPT = 1000 };

static const char *const hashes[] = {
	[CFS_QUOTA_DIR] = "dirQuota",
	[CFS_QUOTA_USER] = "userQuota",
	[CFS_QUOTA_GROUP] = "groupQuota",
};

/* ---- directories ---- */

int rds_op_get_dir_stat(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir,
			struct cfs_dir_stat *ret)
{
	RDS_REQUEST(q, e);
	int r;

	rds_command(&q, "sKu", "HGET", "dirDataLength", dir);
	rds_command(&q, "sKu", "HGET", "dirUsedSpace", dir);
	rds_command(&q, "sKu", "HGET", "dirUsedInodes", dir);
	r = rds_run(&q, ctx, CFS_META_OP_other);
	if (!r && rds_is_nil(q.reply[2]))
		r = -ENODATA;
	if (!r)
		*ret = (struct cfs_dir_stat){
			.length = rds_int(q.reply[0]),
			.space = rds_int(q.reply[1]),
			.inodes = rds_int(q.reply[2]),
		};
	return r;
}

int rds_op_clear_dir_stats(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	return rds_change(e, ctx, CFS_META_OP_other, &rds_clear_dir_stats_lua, "");
}

static int add_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t space, int64_t inodes,
		     const struct cfs_usage_dir *dirs, size_t n)
{
	RDS_REQUEST(q, e);
	size_t i;

	rds_script_begin(&q, ctx, &rds_add_usage_lua, 2 + 4 * n);
	rds_words(&q, "ii", space, inodes);
	for (i = 0; i < n; i++)
		rds_words(&q, "uiii", dirs[i].dir, dirs[i].length, dirs[i].space, dirs[i].inodes);
	return rds_script_run(&q, ctx, CFS_META_OP_other, NULL);
}

int rds_op_add_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
		     int64_t space, int64_t inodes, const struct cfs_usage_dir *dirs, size_t n)
{
	size_t i = CFS_MIN(n, (size_t)ONE_SCRIPT);
	int r = add_usage(e, ctx, space, inodes, dirs, i);

	for (; i < n && !r; i += ONE_SCRIPT)
		r = add_usage(e, ctx, 0, 0, dirs + i, CFS_MIN(n - i, (size_t)ONE_SCRIPT));
	return r;
}

/* ---- quotas ---- */

static int deliver(enum cfs_quota_kind kind, const redisReply *limits, const redisReply *space,
		   const redisReply *inodes, cfs_engine_quota_fn fn, void *arg)
{
	size_t i, n = limits->elements / 2;
	int r = 0;

	for (i = 0; i < n && !r; i++) {
		const redisReply *v = limits->element[2 * i + 1];
		struct cfs_quota q = {
			.kind = kind,
			.key = strtoull(limits->element[2 * i]->str, NULL, 10),
			.used_space = rds_int(rds_element(space, i)),
			.used_inodes = rds_int(rds_element(inodes, i)),
		};

		if (v->len != LIMIT_BYTES)
			continue;
		q.max_space = (int64_t)cfs_get_be64(v->str);
		q.max_inodes = (int64_t)cfs_get_be64(v->str + 8);
		r = fn(arg, &q);
	}
	return r;
}

static void ask_usage(struct rds_request *q, const char *hash, const char *what,
		      const redisReply *limits)
{
	char name[40];
	size_t i;

	snprintf(name, sizeof(name), "%s%s", hash, what);
	rds_command_begin(q, 2 + limits->elements / 2);
	rds_words(q, "sK", "HMGET", name);
	for (i = 0; i + 1 < limits->elements; i += 2)
		rds_words(q, "b", limits->element[i]->str, limits->element[i]->len);
}

int rds_op_each_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
		      void *arg)
{
	RDS_REQUEST(limits, e);
	RDS_REQUEST(used, e);
	size_t k, at = 0;
	int r;

	for (k = 0; k < CFS_ARRAY_SIZE(hashes); k++)
		rds_command(&limits, "sK", "HGETALL", hashes[k]);
	r = rds_run(&limits, ctx, CFS_META_OP_other);
	for (k = 0; k < CFS_ARRAY_SIZE(hashes) && !r; k++) {
		if (!limits.reply[k]->elements)
			continue;
		ask_usage(&used, hashes[k], "UsedSpace", limits.reply[k]);
		ask_usage(&used, hashes[k], "UsedInodes", limits.reply[k]);
	}
	if (!r && used.n)
		r = rds_run(&used, ctx, CFS_META_OP_other);
	for (k = 0; k < CFS_ARRAY_SIZE(hashes) && !r; k++) {
		if (!limits.reply[k]->elements)
			continue;
		r = deliver((enum cfs_quota_kind)k, limits.reply[k], used.reply[at],
			    used.reply[at + 1], fn, arg);
		at += 2;
	}
	return r;
}

static void encode(int64_t space, int64_t inodes, uint8_t out[LIMIT_BYTES])
{
	cfs_put_be64(out, (uint64_t)space);
	cfs_put_be64(out + 8, (uint64_t)inodes);
}

int rds_op_put_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_quota *v)
{
	uint8_t limits[LIMIT_BYTES];
	char line[128];

	encode(v->max_space, v->max_inodes, limits);
	snprintf(line, sizeof(line), "%d,%" PRIu64 ",%" PRId64 ",%" PRId64, (int)v->kind, v->key,
		 v->max_space, v->max_inodes);
	return rds_change(e, ctx, CFS_META_OP_other, &rds_put_quota_lua, "subiis", hashes[v->kind],
			  v->key, limits, sizeof(limits), v->used_space, v->used_inodes, line);
}

int rds_op_del_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_quota_kind kind,
		     uint64_t key)
{
	uint8_t limits[LIMIT_BYTES];
	char line[64];

	encode(-1, -1, limits);
	snprintf(line, sizeof(line), "%d,%" PRIu64, (int)kind, key);
	return rds_change(e, ctx, CFS_META_OP_other, &rds_del_quota_lua, "subs", hashes[kind], key,
			  limits, kind == CFS_QUOTA_DIR ? (size_t)0 : sizeof(limits), line);
}

int rds_op_add_quota_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
			   const struct cfs_quota *deltas, size_t n)
{
	uint8_t limits[LIMIT_BYTES];
	RDS_REQUEST(q, e);
	size_t i;

	encode(-1, -1, limits);
	rds_script_begin(&q, ctx, &rds_add_quota_usage_lua, 2 + 5 * n);
	rds_words(&q, "us", cfs_host_sid(e->host), mark ? mark : "");
	for (i = 0; i < n; i++)
		rds_words(&q, "suiib", hashes[deltas[i].kind], deltas[i].key, deltas[i].used_space,
			  deltas[i].used_inodes, limits,
			  deltas[i].kind == CFS_QUOTA_DIR ? (size_t)0 : sizeof(limits));
	return rds_script_run(&q, ctx, CFS_META_OP_other, NULL);
}
