/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions (volume-format section 9). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "meta/sql/sql.h"

struct session {
	uint64_t sid;
	const char *info;
	int64_t expire_s;
	bool ended; /* refresh: another client has cleaned it up, or has begun to */
};

static int log_session(struct sql_conn *c, const struct cfs_ctx *ctx, const struct session *a)
{
	cfs_auto_free char *info = NULL;

	if (!cfs_host_changelog(sql_host(c)))
		return 0;
	info = malloc(3 * strlen(a->info) + 1);
	if (!info)
		return -ENOMEM;
	return sql_log(c, ctx, "NEWSESSION(%" PRIu64 ",%" PRId64 ",%s)", a->sid, a->expire_s,
		       cfs_changelog_name(a->info, strlen(a->info), info));
}

static int put_session(struct sql_conn *c, const struct cfs_ctx *ctx, const struct session *a)
{
	int r = sql_exec(c, SQL_new_session, "iib", (int64_t)a->sid, a->expire_s, a->info,
			 strlen(a->info));

	return r < 0 ? r : log_session(c, ctx, a);
}

static int new_session(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct session *a = arg;
	int64_t last;
	int r;

	sql_repeatable(); /* a repetition makes another session; the unused one expires */
	r = sql_add_counter(c, ctx, "nextSession", 1, &last);
	if (r < 0)
		return r;
	a->sid = (uint64_t)last + 1;
	return put_session(c, ctx, a);
}

int sql_op_new_session(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *info,
		       int64_t expire_s, uint64_t *ret_sid)
{
	struct session a = {.info = info, .expire_s = expire_s};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_session, new_session, &a);

	if (!r)
		*ret_sid = a.sid;
	return r;
}

static int refresh_session(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct session *a = arg;
	int r;

	sql_repeatable();
	a->ended = false;
	r = sql_exec(c, SQL_refresh_session, "ii", a->expire_s, (int64_t)a->sid);
	if (r)
		return r < 0 ? r : 0;
	a->ended = true;
	r = sql_exec(c, SQL_restore_session, "ii", a->expire_s, (int64_t)a->sid);
	if (r < 0)
		return r;
	return r ? 0 : put_session(c, ctx, a);
}

int sql_op_refresh_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			   const char *info, int64_t expire_s)
{
	struct session a = {.sid = sid, .info = info, .expire_s = expire_s};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_session, refresh_session, &a);

	return r < 0 ? r : a.ended;
}

static int resume_session(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct session *a = arg;
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_resume_session, "ibi", a->expire_s, a->info, strlen(a->info),
		     (int64_t)a->sid);
	if (r < 0)
		return r;
	return r ? 0 : -ENOENT;
}

int sql_op_resume_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			  const char *info, int64_t expire_s)
{
	struct session a = {.sid = sid, .info = info, .expire_s = expire_s};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_session, resume_session, &a);
}

struct end {
	uint64_t sid;
	int64_t before_s;
	bool alive;
};

/* The mark, an expiry of 0, tells the session's own mount, whose refresh waits for this. */
static int end_session(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct end *a = arg;
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_end_session, "ii", (int64_t)a->sid, a->before_s);
	a->alive = r == 0 && a->before_s != INT64_MAX;
	return r < 0 || a->alive ? r : sql_clean_session_locks(c, a->sid);
}

static int drop_session(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct end *a = arg;
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_drop_session, "i", (int64_t)a->sid);
	return r <= 0 ? r : sql_log(c, ctx, "CLEANSESSION(%" PRIu64 ")", a->sid);
}

int sql_op_clean_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 int64_t before_s)
{
	struct end a = {.sid = sid, .before_s = before_s};
	struct sql_db *db = sql_db(e);
	int r = sql_txn(db, ctx, CFS_META_OP_session, end_session, &a);

	if (r < 0 || a.alive)
		return r < 0 ? r : 1;
	r = sql_end_sustained_all(db, ctx, sid);
	/* The record is removed last: while it exists, another client continues the clean-up. */
	return r ? r : sql_txn(db, ctx, CFS_META_OP_session, drop_session, &a);
}

struct each {
	int64_t before_s;
	size_t limit;
	cfs_session_fn fn;
	void *arg;
};

static int each_session(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct each *a = arg;
	int r = sql_query(c, SQL_each_session, "ii", a->before_s, (int64_t)a->limit);

	while (!r && (r = sql_next(c, SQL_each_session)) > 0) {
		size_t len;
		const char *info = sql_blob(c, SQL_each_session, 2, &len);
		cfs_auto_free char *copy = strndup(len ? info : "", len);
		struct cfs_session s = {
			.sid = (uint64_t)sql_int(c, SQL_each_session, 0),
			.expire_s = sql_int(c, SQL_each_session, 1),
			.info = copy,
		};

		r = copy ? a->fn(a->arg, &s) : -ENOMEM;
	}
	return r;
}

int sql_op_each_session(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			size_t limit, cfs_session_fn fn, void *arg)
{
	struct each a = {
		.before_s = before_s ? before_s : INT64_MAX,
		.limit = limit && limit < INT64_MAX ? limit : INT64_MAX,
		.fn = fn,
		.arg = arg,
	};

	return sql_read(sql_db(e), ctx, CFS_META_OP_session, each_session, &a);
}
