/* SPDX-License-Identifier: Apache-2.0 */
/* The volume as a whole, its counters and its sessions. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "meta/redis/ops.h"

/* ---- setting ---- */

int rds_op_get_setting(struct cfs_engine *e, const struct cfs_ctx *ctx, char **ret)
{
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_other, "sK", "GET", "setting");

	if (!r && !rds_is_bytes(q.reply[0]))
		r = -ENODATA;
	if (!r) {
		*ret = strndup(q.reply[0]->str, q.reply[0]->len);
		r = *ret ? 0 : -ENOMEM;
	}
	return r;
}

int rds_op_put_setting(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *setting)
{
	RDS_REQUEST(q, e);

	if (rds_of(e)->read_only)
		return -EROFS;
	return rds_ask(&q, ctx, CFS_META_OP_other, "sKs", "SET", "setting", setting);
}

int rds_op_create(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *setting, bool trash)
{
	struct cfs_attr attr = cfs_rules_directory(ctx, 0777, CFS_ROOT_INO);
	uint8_t root[CFS_ATTR_BYTES_MAX], other[CFS_ATTR_BYTES_MAX];
	size_t root_len = cfs_attr_encode(&attr, root), other_len;

	attr.mode = 0555;
	other_len = cfs_attr_encode(&attr, other);
	return rds_change(e, ctx, CFS_META_OP_other, &rds_create_lua, "suubb", setting,
			  CFS_ROOT_INO, CFS_TRASH_INO, root, root_len, other,
			  trash ? other_len : 0);
}

int rds_op_upgrade(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	return 0;
}

/* A cluster may hold other volumes. */
static int delete_by_prefix(struct cfs_engine *e)
{
	RDS_REQUEST(q, e);
	RDS_REQUEST(del, e);
	const redisReply *page;
	struct rds_cursor cursor = {0};
	char pattern[40];
	size_t i;
	int r;

	snprintf(pattern, sizeof(pattern), "%s*", rds_of(e)->prefix);
	do {
		struct cfs_ctx own = rds_page_ctx();

		r = rds_page(&q, &own, CFS_META_OP_other, &cursor, 1000, pattern, &page, "s",
			     "SCAN");
		if (r || !page->elements)
			continue;
		rds_reset(&del);
		rds_command_begin(&del, 1 + page->elements);
		rds_words(&del, "s", "DEL");
		for (i = 0; i < page->elements; i++)
			rds_words(&del, "b", page->element[i]->str, page->element[i]->len);
		r = rds_run(&del, &own, CFS_META_OP_other);
	} while (!r && cursor.at);
	return r;
}

int rds_op_destroy(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	RDS_REQUEST(q, e);

	if (rds_of(e)->target.cluster)
		return delete_by_prefix(e);
	return rds_ask(&q, ctx, CFS_META_OP_other, "s", "FLUSHDB");
}

/* ---- counters ---- */

/* The two keys with a shift hold the last allocated number, not the next one. */
const char *rds_counter_key(const char *name, int64_t *ret_shift)
{
	*ret_shift = 0;
	if (strcmp(name, "nextInode") == 0) {
		*ret_shift = 1;
		return "nextinode";
	}
	if (strcmp(name, "nextChunk") == 0) {
		*ret_shift = 1;
		return "nextchunk";
	}
	return strcmp(name, "nextSession") == 0 ? "nextsession" : name;
}

int rds_op_add_counter(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name, int64_t n,
		       int64_t *ret_old)
{
	RDS_REQUEST(q, e);
	redisReply *a;
	int64_t shift;
	const char *key = rds_counter_key(name, &shift);
	int r = rds_script(&q, ctx, CFS_META_OP_counter, &rds_add_counter_lua, &a, "sis", key, n,
			   name);

	if (!r)
		*ret_old = rds_int(a->element[1]) - n + shift;
	return r;
}

int rds_op_get_counters(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_used_space,
			int64_t *ret_inodes)
{
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_counter, "sKK", "MGET", "usedSpace", "totalInodes");

	if (!r && q.reply[0]->elements != 2)
		r = -EIO;
	if (!r) {
		*ret_used_space = rds_int(q.reply[0]->element[0]);
		*ret_inodes = rds_int(q.reply[0]->element[1]);
	}
	return r;
}

int rds_op_claim_job(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
		     int64_t now_s, int64_t interval_s)
{
	return rds_change(e, ctx, CFS_META_OP_counter, &rds_claim_job_lua, "siii", name, now_s,
			  now_s - interval_s, now_s + interval_s);
}

int rds_op_clock(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_s)
{
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_other, "s", "TIME");

	if (!r && (q.reply[0]->type != REDIS_REPLY_ARRAY || !q.reply[0]->elements))
		r = -EIO;
	if (!r)
		*ret_s = rds_int(q.reply[0]->element[0]);
	return r;
}

/* ---- sessions ---- */

int rds_op_new_session(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *info,
		       int64_t expire_s, uint64_t *ret_sid)
{
	RDS_REQUEST(q, e);
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_session, &rds_new_session_lua, &a, "ssi", "", info,
			   expire_s);

	if (!r) {
		*ret_sid = strtoull(a->element[1]->str, NULL, 10);
		r = *ret_sid ? 0 : -EIO;
	}
	return r;
}

int rds_op_refresh_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			   const char *info, int64_t expire_s)
{
	return rds_change(e, ctx, CFS_META_OP_session, &rds_new_session_lua, "usi", sid, info,
			  expire_s);
}

int rds_op_resume_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			  const char *info, int64_t expire_s)
{
	return rds_change(e, ctx, CFS_META_OP_session, &rds_resume_session_lua, "usi", sid, info,
			  expire_s);
}

int rds_op_clean_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 int64_t before_s)
{
	char before[24] = "";
	int r;

	if (before_s != INT64_MAX)
		snprintf(before, sizeof(before), "%" PRId64, before_s);
	r = rds_change(e, ctx, CFS_META_OP_session, &rds_end_session_lua, "us", sid, before);
	if (!r)
		r = rds_end_sustained_all(e, ctx, sid);
	/* The record is removed last: while it exists, another client continues the clean-up. */
	return r ? r : rds_change(e, ctx, CFS_META_OP_session, &rds_drop_session_lua, "u", sid);
}

static int each_info(struct cfs_engine *e, const struct cfs_ctx *ctx, const redisReply *list,
		     cfs_session_fn fn, void *arg)
{
	RDS_REQUEST(q, e);
	size_t i, n = list->elements / 2;
	int r;

	rds_command_begin(&q, 2 + n);
	rds_words(&q, "sK", "HMGET", "sessionInfos");
	for (i = 0; i < n; i++)
		rds_words(&q, "b", list->element[2 * i]->str, list->element[2 * i]->len);
	r = rds_run(&q, ctx, CFS_META_OP_session);
	for (i = 0; i < n && !r; i++) {
		const redisReply *info = rds_element(q.reply[0], i);
		const struct cfs_session s = {
			.sid = strtoull(list->element[2 * i]->str, NULL, 10),
			.expire_s = rds_int(list->element[2 * i + 1]),
			.info = rds_is_bytes(info) ? info->str : "",
		};

		r = fn(arg, &s);
	}
	return r;
}

int rds_op_each_session(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			size_t limit, cfs_session_fn fn, void *arg)
{
	RDS_REQUEST(q, e);
	char before[32];
	int r;

	snprintf(before, sizeof(before), "(%" PRId64, before_s);
	r = rds_ask(&q, ctx, CFS_META_OP_session, "sKsssssi", "ZRANGEBYSCORE", "allSessions",
		    "-inf", before_s ? before : "+inf", "WITHSCORES", "LIMIT", "0",
		    limit ? (int64_t)CFS_MIN(limit, (size_t)INT32_MAX) : -1);
	if (!r && q.reply[0]->elements >= 2)
		r = each_info(e, ctx, q.reply[0], fn, arg);
	return r;
}
