/* SPDX-License-Identifier: Apache-2.0 */
/* Records of cachefs itself: one hash per table. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "meta/redis/ops.h"

#define PREFIX "zcachefs:record:"

/* The hash and the field of the record "table/name"; of a table alone, the hash. */
struct place {
	char hash[sizeof(PREFIX) + CFS_RECORD_KEY_MAX];
	const char *field;
};

static struct place place_of(const char *key)
{
	const char *slash = strchr(key, '/');
	struct place p = {.field = slash ? slash + 1 : NULL};

	snprintf(p.hash, sizeof(p.hash), PREFIX "%.*s", slash ? (int)(slash - key) : -1, key);
	return p;
}

int rds_op_put_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
		      const void *value, size_t len, bool fresh)
{
	struct place p = place_of(key);

	return rds_change(e, ctx, CFS_META_OP_other, &rds_put_record_lua, "ssbs", p.hash, p.field,
			  value, len, fresh ? "1" : "0");
}

int rds_op_swap_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
		       const void *old, size_t old_len, const void *value, size_t len)
{
	struct place p = place_of(key);

	return rds_change(e, ctx, CFS_META_OP_other, &rds_swap_record_lua, "ssbb", p.hash, p.field,
			  old, old_len, value, len);
}

int rds_op_drop_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key)
{
	struct place p = place_of(key);
	RDS_REQUEST(q, e);

	if (rds_of(e)->read_only)
		return -EROFS;
	return rds_ask(&q, ctx, CFS_META_OP_other, "sKs", "HDEL", p.hash, p.field);
}

int rds_op_get_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
		      cfs_record_fn fn, void *arg)
{
	struct place p = place_of(key);
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_other, "sKs", "HGET", p.hash, p.field);

	if (r == 0 && q.reply[0]->type != REDIS_REPLY_STRING)
		r = -ENOENT;
	if (r == 0)
		r = fn(arg, key, q.reply[0]->str, q.reply[0]->len);
	return r;
}

int rds_op_each_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *table,
		       cfs_record_fn fn, void *arg)
{
	struct place p = place_of(table);
	char key[CFS_RECORD_KEY_MAX + 1];
	RDS_REQUEST(q, e);
	size_t i;
	int r = rds_ask(&q, ctx, CFS_META_OP_other, "sK", "HGETALL", p.hash);

	for (i = 0; !r && i + 1 < q.reply[0]->elements; i += 2) {
		const redisReply *f = q.reply[0]->element[i], *v = q.reply[0]->element[i + 1];

		if ((size_t)snprintf(key, sizeof(key), "%s/%s", table, f->str) < sizeof(key))
			r = fn(arg, key, v->str, v->len);
	}
	return r;
}
