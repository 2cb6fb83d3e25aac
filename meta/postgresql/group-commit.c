/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Group commit: combines concurrent operations of several threads of a mount into one statement.
 *
 * Most of a statement's cost is the same for one name as for many, and more concurrent statements
 * do not make a busy server faster. Therefore, while `limit` statements of a kind are under way,
 * further threads wait. A thread that has its answer wakes the first waiting thread, which sends
 * the parts of all waiting threads as one batch. The limit adapts to the server: it rises while
 * statements take about as long as a lone one, so that threads then do not wait.
 *
 * Each part is independent: a part whose optimistic check fails changes nothing, and the others are
 * done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "meta/postgresql/pg-internal.h"

enum {
	LIMIT_MIN = 2,
	LIMIT_FIRST = 4,
	PARTS_MAX = 32,
	BYTES_PARAMS = 2, /* of a statement */
	HEAD = 20,	  /* of an array: dimensions, flags, type, length, first index */
	ITEM = 4,	  /* length */
};

struct group {
	const struct pg_kind *kind;
	struct pg_part *part[PARTS_MAX];
	unsigned n;
	bool alone; /* no other statement was under way when it began */
	uint64_t took_ns;
};

struct arrays {
	uint8_t ints[PG_MAX_PARAMS][HEAD + PARTS_MAX * (ITEM + sizeof(uint64_t))];
	uint8_t bytes[BYTES_PARAMS][HEAD + PARTS_MAX * (ITEM + CFS_NAME_MAX)];
};

void pg_group_commit_init(struct pg_db *db)
{
	for (int i = 0; i < PG_KINDS; i++) {
		struct pg_group_commit *t = &db->group_commit[i];

		pthread_mutex_init(&t->lock, NULL);
		t->end = &t->first;
		t->limit = LIMIT_FIRST;
	}
}

void pg_group_commit_destroy(struct pg_db *db)
{
	for (int i = 0; i < PG_KINDS; i++)
		pthread_mutex_destroy(&db->group_commit[i].lock);
}

/* ---- the statement ---- */

static void bind_one(struct pg_stmt *st, const struct pg_part *part)
{
	for (int i = 0; i < part->n; i++) {
		const struct pg_param *p = &part->param[i];

		if (p->bytes)
			pg_bind_bytes(st, i + 1, p->bytes, p->len, false);
		else
			pg_bind_int(st, i + 1, p->num);
	}
}

static uint8_t *put_head(uint8_t *p, const struct group *g, bool bytes)
{
	cfs_put_be32(p, 1);
	cfs_put_be32(p + 4, 0);
	cfs_put_be32(p + 8, bytes ? PG_OID_BYTEA : PG_OID_INT8);
	cfs_put_be32(p + 12, g->n);
	cfs_put_be32(p + 16, 1);
	return p + HEAD;
}

static uint8_t *put_item(uint8_t *p, const struct pg_param *v)
{
	if (!v->bytes) {
		cfs_put_be32(p, sizeof(uint64_t));
		cfs_put_be64(p + ITEM, (uint64_t)v->num);
		return p + ITEM + sizeof(uint64_t);
	}
	cfs_put_be32(p, (uint32_t)v->len);
	return (uint8_t *)mempcpy(p + ITEM, v->bytes, v->len);
}

static void bind_many(struct pg_stmt *st, const struct group *g, struct arrays *a)
{
	int n_bytes = 0;

	for (int i = 0; i < g->part[0]->n; i++) {
		bool bytes = g->part[0]->param[i].bytes;
		uint8_t *begin = bytes ? a->bytes[n_bytes++] : a->ints[i];
		uint8_t *p = put_head(begin, g, bytes);

		for (unsigned k = 0; k < g->n; k++)
			p = put_item(p, &g->part[k]->param[i]);
		pg_bind_array(st, i + 1, begin, (size_t)(p - begin), bytes);
	}
}

/*
 * The statement returns the inodes of the parts that were done. Of two parts with the same inode,
 * one was done.
 */
static void read_done(const PGresult *result, const struct group *g)
{
	for (int row = 0; row < PQntuples(result); row++) {
		int64_t ino = pg_int(result, row, 0);
		unsigned k = 0;

		while (k < g->n &&
		       (g->part[k]->result || g->part[k]->param[PG_PART_INO].num != ino))
			k++;
		if (k < g->n)
			g->part[k]->result = 1;
	}
}

static int send_one(struct sql_conn *c, const struct group *g)
{
	struct pg_stmt *st = NULL;
	int id = g->kind->one, r = pg_open_stmt(c, id, g->kind->one_text, &st);

	if (r < 0)
		return r;
	bind_one(st, g->part[0]);
	r = pg_execute(c, id);
	if (r < 0)
		return r;
	g->part[0]->result = pg_has_changed(c, id);
	pg_close_stmt(c, id);
	return 0;
}

static int send_many(struct sql_conn *c, const struct group *g)
{
	struct pg_stmt *st = NULL;
	struct arrays arrays;
	int id = g->kind->many, r = pg_open_stmt(c, id, g->kind->many_text, &st);

	if (r < 0)
		return r;
	bind_many(st, g, &arrays);
	r = pg_execute(c, id);
	/* The server rejects one part, and so does nothing: each part is tried by itself. */
	if (r < 0 && r != PG_UNKNOWN && !c->broken && !c->conflict)
		return 0;
	if (r < 0)
		return r;
	read_done(st->result, g);
	pg_close_stmt(c, id);
	return 0;
}

static int send(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct group *g = arg;
	uint64_t start_ns = cfs_now_ns();
	int r;

	for (unsigned k = 0; k < g->n; k++)
		g->part[k]->result = 0;
	r = g->n == 1 ? send_one(c, g) : send_many(c, g);
	g->took_ns = r ? 0 : cfs_now_ns() - start_ns;
	return r;
}

/* ---- choosing the sender ---- */

/* The lock order of all operations: nodes by number, names of one directory by their bytes. */
static int by_name(const void *a, const void *b)
{
	const struct pg_param *x = (*(struct pg_part *const *)a)->param;
	const struct pg_param *y = (*(struct pg_part *const *)b)->param;
	int r;

	if (x[0].num != y[0].num)
		return x[0].num < y[0].num ? -1 : 1;
	r = memcmp(x[1].bytes, y[1].bytes, CFS_MIN(x[1].len, y[1].len));
	return r ? r : (x[1].len > y[1].len) - (x[1].len < y[1].len);
}

static int by_ino(const void *a, const void *b)
{
	int64_t x = (*(struct pg_part *const *)a)->param[PG_PART_INO].num;
	int64_t y = (*(struct pg_part *const *)b)->param[PG_PART_INO].num;

	return (x > y) - (x < y);
}

static struct pg_part *take_first(struct pg_group_commit *t, enum pg_part_state state)
{
	struct pg_part *part = t->first;

	t->first = part->next;
	if (!t->first)
		t->end = &t->first;
	part->state = state;
	return part;
}

static void leave(struct pg_group_commit *t, struct pg_part *me)
{
	struct pg_part **p = &t->first;

	while (*p != me)
		p = &(*p)->next;
	*p = me->next;
	if (t->end == &me->next)
		t->end = p;
}

/* True: this thread sends next. False: its result has arrived. */
static bool wait_turn(struct pg_group_commit *t, struct pg_part *me, cfs_deadline_t deadline)
{
	cfs_cond_init(&me->wake);
	me->state = PG_PART_WAITS;
	me->next = NULL;
	*t->end = me;
	t->end = &me->next;
	while (me->state == PG_PART_WAITS) {
		if (cfs_cond_wait(&me->wake, &t->lock, deadline) && me->state == PG_PART_WAITS) {
			leave(t, me);
			me->result = -ETIMEDOUT;
			me->state = PG_PART_DONE;
		}
	}
	/* The sender's deadline bounds this wait; both deadlines are about equally far away. */
	while (me->state == PG_PART_TAKEN)
		pthread_cond_wait(&me->wake, &t->lock);
	pthread_cond_destroy(&me->wake);
	return me->state == PG_PART_SENDS;
}

static void adjust(struct pg_group_commit *t, const struct group *g, unsigned most)
{
	if (!g->took_ns)
		return;
	if (g->n == 1 && (!t->quick_ns || g->took_ns < t->quick_ns))
		t->quick_ns = g->took_ns;
	else if (g->n == 1 && g->alone) /* the server may have changed, or be further away */
		t->quick_ns += (g->took_ns - t->quick_ns) / 8;
	if (g->took_ns > 2 * t->quick_ns)
		t->limit = CFS_MAX(t->limit - 1, (unsigned)LIMIT_MIN);
	else
		t->limit = CFS_MIN(t->limit + 1, most);
}

static void tell(struct pg_group_commit *t, const struct group *g, const struct pg_part *me, int r)
{
	for (unsigned k = 0; k < g->n; k++) {
		struct pg_part *part = g->part[k];

		if (r < 0)
			part->result = r;
		if (part == me)
			continue;
		part->state = PG_PART_DONE;
		pthread_cond_signal(&part->wake);
	}
}

int pg_group_commit(struct pg_db *db, const struct cfs_ctx *ctx, const struct pg_kind *kind,
		    struct pg_part *me)
{
	struct pg_group_commit *t = &db->group_commit[kind->number];
	struct group g = {.kind = kind, .part = {me}, .n = 1};
	int r;

	pthread_mutex_lock(&t->lock);
	g.alone = t->busy == 0;
	if (t->busy < t->limit) {
		t->busy++;
	} else if (!wait_turn(t, me, ctx->deadline)) {
		pthread_mutex_unlock(&t->lock);
		return me->result;
	}
	while (t->first && g.n < PARTS_MAX)
		g.part[g.n++] = take_first(t, PG_PART_TAKEN);
	pthread_mutex_unlock(&t->lock);

	qsort(g.part, g.n, sizeof(g.part[0]), kind->number == PG_KIND_CREATE ? by_name : by_ino);
	r = sql_read(&db->sql, ctx, kind->op, send, &g);

	pthread_mutex_lock(&t->lock);
	tell(t, &g, me, r);
	adjust(t, &g, CFS_MAX(db->sql.pool.max_conns, (unsigned)LIMIT_MIN));
	t->busy--;
	while (t->first && t->busy < t->limit) {
		t->busy++;
		pthread_cond_signal(&take_first(t, PG_PART_SENDS)->wake);
	}
	pthread_mutex_unlock(&t->lock);
	return me->result;
}
