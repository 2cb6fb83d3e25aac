/* SPDX-License-Identifier: Apache-2.0 */
/* Counters (volume-format section 3): always changed by relative updates. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql.h"

/* A counter that was never used has no row and counts as 0. */
static int get_counter(struct sql_conn *c, const char *name, int64_t *ret, bool *ret_exists)
{
	int r = sql_row(c, SQL_get_counter, "t", name, strlen(name));

	if (r < 0)
		return r;
	*ret_exists = r;
	*ret = r ? sql_int(c, SQL_get_counter, 0) : 0;
	sql_done(c, SQL_get_counter);
	return 0;
}

/*
 * Counters of numbers that mounts are given in advance. A server that took over without the last
 * commits, was restored, or lost them in a crash would give such numbers a second time. `mark` is a
 * counter of the same table, whose value is the server that the numbers came from. On another server
 * `gap` numbers are left out, more than it can have forgotten.
 */
static const struct held {
	const char *name, *mark;
	int64_t gap;
} all_held[] = {
	{"nextInode", "cachefsInodeServer", CFS_INODE_GAP},
	{"nextChunk", "cachefsChunkServer", CFS_SLICE_GAP},
	{"nextSession", "cachefsSessionServer", CFS_SESSION_GAP},
};

static const struct held *find_held(const char *name)
{
	for (size_t i = 0; i < CFS_ARRAY_SIZE(all_held); i++)
		if (!strcmp(all_held[i].name, name))
			return &all_held[i];
	return NULL;
}

/* *ret_server: 0: the same server as before, or one that needs no mark. */
static int get_held(struct sql_conn *c, const struct held *h, int64_t *ret, bool *ret_exists,
		    int64_t *ret_server)
{
	int64_t server;
	int r = sql_row(c, SQL_held_counter, "tt", h->mark, strlen(h->mark), h->name,
			strlen(h->name));

	if (r < 0)
		return r;
	*ret_exists = r;
	*ret = r ? sql_int(c, SQL_held_counter, 0) : 0;
	server = r ? sql_int(c, SQL_held_counter, 1) : 0;
	*ret_server = server && server != sql_int(c, SQL_held_counter, 2) ? server : 0;
	sql_done(c, SQL_held_counter);
	return 0;
}

static int put_mark(struct sql_conn *c, const struct held *h, int64_t server)
{
	int r = sql_exec(c, SQL_set_counter, "it", server, h->mark, strlen(h->mark));

	if (!r)
		r = sql_exec(c, SQL_new_counter, "ti", h->mark, strlen(h->mark), server);
	return r < 0 ? r : 0;
}

int sql_mark_counters(struct sql_conn *c)
{
	int64_t value, server;
	bool exists;
	int r = 0;

	for (size_t i = 0; i < CFS_ARRAY_SIZE(all_held) && !r; i++) {
		r = get_held(c, &all_held[i], &value, &exists, &server);
		if (!r && server)
			r = put_mark(c, &all_held[i], server);
	}
	return r;
}

static int skip_lost(struct sql_conn *c, const struct cfs_ctx *ctx, const struct held *h,
		     int64_t server)
{
	int r = put_mark(c, h, server);

	if (r < 0)
		return r;
	cfs_info("another database server, or the same one after a restart: numbers that it may "
		 "have forgotten are left out: name=%s count=%" PRId64,
		 h->name, h->gap);
	return sql_log(c, ctx, "INCR_COUNTER(%s,%" PRId64 ")", h->name, h->gap);
}

int sql_add_counter(struct sql_conn *c, const struct cfs_ctx *ctx, const char *name, int64_t n,
		    int64_t *ret_old)
{
	const struct held *h = find_held(name);
	int64_t old, server = 0;
	bool exists;
	int r = h ? get_held(c, h, &old, &exists, &server) : get_counter(c, name, &old, &exists);

	if (!r && server) {
		r = skip_lost(c, ctx, h, server);
		old += h->gap;
		n += h->gap;
	}
	if (r < 0)
		return r;
	r = exists ? sql_exec(c, SQL_add_counter, "it", n, name, strlen(name))
		   : sql_exec(c, SQL_new_counter, "ti", name, strlen(name), n);
	if (r < 0)
		return r;
	*ret_old = old;
	return 0;
}

struct counter {
	const char *name;
	int64_t n, old;
};

static int add_counter(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct counter *a = arg;
	int r;

	sql_repeatable(); /* a repetition skips numbers, and allocates none twice */
	r = sql_add_counter(c, ctx, a->name, a->n, &a->old);
	return r ? r : sql_log(c, ctx, "INCR_COUNTER(%s,%" PRId64 ")", a->name, a->n);
}

int sql_op_add_counter(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name, int64_t n,
		       int64_t *ret_old)
{
	struct counter a = {.name = name, .n = n};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_counter, add_counter, &a);

	if (!r)
		*ret_old = a.old;
	return r;
}

struct usage {
	int64_t space, inodes;
};

static int get_usage(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct usage u = {0};
	int r = sql_query(c, SQL_get_usage, "");

	while (!r && (r = sql_next(c, SQL_get_usage)) > 0) {
		size_t len;
		const char *name = sql_blob(c, SQL_get_usage, 0, &len);
		int64_t v = sql_int(c, SQL_get_usage, 1);

		if (len == strlen("usedSpace") && !memcmp(name, "usedSpace", len))
			u.space = v;
		else
			u.inodes = v;
		r = 0;
	}
	if (!r)
		*(struct usage *)arg = u;
	return r;
}

int sql_op_get_counters(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_used_space,
			int64_t *ret_inodes)
{
	struct usage u;
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_counter, get_usage, &u);

	if (r)
		return r;
	*ret_used_space = u.space;
	*ret_inodes = u.inodes;
	return 0;
}

static int read_clock(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	int r = sql_row(c, SQL_clock, "");

	if (r <= 0)
		return r < 0 ? r : -EIO;
	*(int64_t *)arg = sql_int(c, SQL_clock, 0);
	sql_done(c, SQL_clock);
	return 0;
}

int sql_op_clock(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_s)
{
	return sql_read(sql_db(e), ctx, CFS_META_OP_other, read_clock, ret_s);
}

struct claim {
	const char *name;
	int64_t now_s, interval_s;
};

static int claim(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct claim *a = arg;
	int64_t last;
	bool exists;
	int r;

	/* After a lost answer, the repeated claim finds the job claimed, and the job is skipped. */
	sql_repeatable();
	r = get_counter(c, a->name, &last, &exists);
	if (r < 0)
		return r;
	if (last > a->now_s - a->interval_s && last <= a->now_s + a->interval_s)
		return 0;
	r = exists ? sql_exec(c, SQL_set_counter, "it", a->now_s, a->name, strlen(a->name))
		   : sql_exec(c, SQL_new_counter, "ti", a->name, strlen(a->name), a->now_s);
	if (r >= 0)
		r = sql_log(c, ctx, "SET(%s,%" PRId64 ")", a->name, a->now_s);
	return r < 0 ? r : 1;
}

int sql_op_claim_job(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
		     int64_t now_s, int64_t interval_s)
{
	struct claim a = {.name = name, .now_s = now_s, .interval_s = interval_s};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_counter, claim, &a);
}
