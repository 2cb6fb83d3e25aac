/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks whose session is gone. They would block other owners for ever: the clean-up of a session
 * removes only the locks in the session's list, and JuiceFS does not list shared BSD locks.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "meta/redis/ops.h"

struct search {
	struct cfs_engine *e;
	bool repair;
	cfs_dead_lock_fn fn;
	void *arg;
};

static int order(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return CFS_COMPARE(*x, *y);
}

/* SCAN may return a key twice, and a session may have several locks. */
static void drop_duplicates(struct rds_numbers *k)
{
	size_t i, n = 0;

	if (k->n)
		qsort(k->v, k->n, sizeof(*k->v), order);
	for (i = 0; i < k->n; i++)
		if (!n || k->v[n - 1] != k->v[i])
			k->v[n++] = k->v[i];
	k->n = n;
}

static int read_keys(struct cfs_engine *e, const char *kind, struct rds_numbers *ret)
{
	struct rds_cursor cursor = {0};
	int r;

	do {
		struct cfs_ctx ctx = rds_page_ctx();

		r = rds_scan_keys(e, &ctx, kind, &cursor, rds_note_key, ret);
	} while (!r && cursor.at);
	drop_duplicates(ret);
	return r;
}

/* The sessions that have locks in a hash. */
static int read_holders(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *kind,
			cfs_ino_t ino, struct rds_numbers *ret)
{
	RDS_REQUEST(q, e);
	uint64_t sid;
	size_t i, used;
	int r = rds_ask(&q, ctx, CFS_META_OP_lock, "sk", "HKEYS", kind, ino);

	for (i = 0; !r && i < q.reply[0]->elements; i++) {
		const redisReply *f = q.reply[0]->element[i];

		if (rds_number(f->str, f->len, &sid, &used) && used < f->len && f->str[used] == '_')
			r = rds_note_number(ret, sid);
	}
	drop_duplicates(ret);
	return r;
}

/* A session's record is made before its first lock and removed after its last. */
static int is_gone(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid)
{
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_session, "sKu", "ZSCORE", "allSessions", sid);

	if (!r)
		r = rds_is_nil(q.reply[0]);
	return r;
}

/* Reports the lock if its session is gone, and removes it with `repair`. */
static int check_lock(struct search *s, const char *kind, uint64_t n, uint64_t sid)
{
	struct cfs_ctx ctx = rds_page_ctx();
	int r = is_gone(s->e, &ctx, sid);

	if (r <= 0)
		return r;
	r = s->repair ? rds_change(s->e, &ctx, CFS_META_OP_lock, &rds_drop_dead_locks_lua, "suu",
				   kind, n, sid)
		      : 0;
	/* The session was created again. */
	if (r == -EAGAIN)
		return 0;
	return r ? r : s->fn(s->arg, strcmp(kind, "locked") ? n : 0, sid, s->repair);
}

/* 8 bytes per key: one key per locked file, and one per session. */
static int search_kind(struct search *s, const char *kind)
{
	struct rds_numbers keys = {0}, holders = {0};
	size_t i, k;
	int r = read_keys(s->e, kind, &keys);

	for (i = 0; i < keys.n && !r; i++) {
		struct cfs_ctx ctx = rds_page_ctx();

		holders.n = 0;
		r = strcmp(kind, "locked") ? read_holders(s->e, &ctx, kind, keys.v[i], &holders)
					   : rds_note_number(&holders, keys.v[i]);
		for (k = 0; k < holders.n && !r; k++)
			r = check_lock(s, kind, keys.v[i], holders.v[k]);
	}
	free(keys.v);
	free(holders.v);
	return r;
}

int rds_op_dead_locks(struct cfs_engine *e, const struct cfs_ctx *ctx, bool repair,
		      cfs_dead_lock_fn fn, void *arg)
{
	static const char *const kinds[] = {"lockf", "lockp", "locked"};
	struct search s = {.e = e, .repair = repair, .fn = fn, .arg = arg};
	size_t i;
	int r = 0;

	(void)ctx; /* each step has its own deadline */
	for (i = 0; i < CFS_ARRAY_SIZE(kinds) && !r; i++)
		r = search_kind(&s, kinds[i]);
	return r;
}
