/* SPDX-License-Identifier: Apache-2.0 */
/* Runs operations of one round trip each: attempts, lost answers. Their SQL: batch-texts.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mysql-internal.h"

const char *mysql_batch_name(enum mysql_batch_id id)
{
	static const char *const names[] = {
#define BATCH(id, text) [MYSQL_BATCH_##id] = "batch " #id,
#include "batch-texts.h"
#undef BATCH
	};

	return names[id];
}

int mysql_batch_run(struct mysql_conn *m, enum mysql_batch_id id, int64_t *row, unsigned n,
		    const struct sql_param *v, size_t n_params)
{
	const struct mysql_params params = {v, n_params};
	int r;

	memset(row, 0, n * sizeof(*row));
	r = m->way == MYSQL_MULTI ? mysql_multi_run(m, id, row, n, &params)
				  : mysql_compound_run(m, id, row, n, &params);
	return mysql_batch_end(m, r);
}

int mysql_batch_end(struct mysql_conn *m, int r)
{
	if (r > 0)
		return r;
	/* The transaction may still be open; the next START TRANSACTION would commit it. */
	if ((r && r != -EEXIST && r != -EAGAIN) || mysql_run(m, "ROLLBACK"))
		m->sql.broken = true;
	return r;
}

int mysql_get_dir(struct mysql_conn *m, cfs_ino_t ino, struct cfs_attr *ret)
{
	struct sql_db *db = m->sql.db;
	int r;

	if (cfs_optimistic_dir_known(db->optimistic, ino, ret))
		return 0;
	r = sql_get_node(&m->sql, ino, false, ret);
	if (!r && ret->type == CFS_TYPE_DIR)
		cfs_optimistic_dir_remember(db->optimistic, ino, ret);
	return r;
}

void mysql_dir_changed(struct sql_db *db, cfs_ino_t ino, int done,
		       const int64_t row[MYSQL_DIR_COLUMNS], struct cfs_attr *attr)
{
	if (done == MYSQL_DONE_ROW) {
		attr->nlink = (uint32_t)row[0];
		attr->atime = sql_time(row[1], row[4]);
		attr->mtime = sql_time(row[2], row[5]);
		attr->ctime = sql_time(row[3], row[6]);
		cfs_optimistic_dir_times(db->optimistic, ino, attr);
	} else {
		cfs_optimistic_dir_known(db->optimistic, ino, attr);
	}
}

/* ---- attempts ---- */

struct batch {
	mysql_batch_fn fn, applied;
	void *arg, *saved; /* saved: a copy of *arg, taken when an answer was lost; else NULL */
	size_t size;
	bool lost; /* the answer to the last attempt was lost */
};

static int save(struct batch *b)
{
	if (!b->saved)
		b->saved = malloc(b->size);
	if (!b->saved)
		return -ENOMEM;
	memcpy(b->saved, b->arg, b->size);
	b->lost = true;
	return 0;
}

/* Asks the database whether the attempt with the lost answer was committed. */
static int probe(struct mysql_conn *m, const struct cfs_ctx *ctx, struct batch *b)
{
	int r = b->applied(m, ctx, b->saved);

	if (r > 0)
		memcpy(b->arg, b->saved, b->size);
	return r;
}

static int attempt(struct mysql_conn *m, const struct cfs_ctx *ctx, struct batch *b)
{
	int r = b->lost ? probe(m, ctx, b) : 0;

	if (r < 0)
		return r;
	b->lost = false;
	if (r)
		return r;
	m->sent = false;
	r = m->way == MYSQL_GENERIC ? 0 : b->fn(m, ctx, b->arg);
	if (r == -ENOTCONN && m->sent) {
		m->sql.unknown = true;
		r = b->applied ? save(b) : 0;
		return r ? r : -EINPROGRESS;
	}
	if (r == -EEXIST)
		r = 0;
	/* The lost attempt may have been committed after the first probe. */
	return r || !b->saved ? r : probe(m, ctx, b);
}

static int batch_once(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	int r = attempt(mysql_conn(c), ctx, arg);

	c->conflict |= r == -EAGAIN;
	return r;
}

/* sql_read() makes new attempts, and ends the session of a lost one before it returns. */
int mysql_batch(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op,
		mysql_batch_fn fn, mysql_batch_fn applied, void *arg, size_t size)
{
	struct batch b = {.fn = fn, .applied = applied, .arg = arg, .size = size};
	int r;

	if (cfs_host_changelog(db->engine.host))
		return 0;
	if (sql_refuses_changes(db))
		return -EROFS;
	do
		r = sql_read(db, ctx, op, batch_once, &b);
	while (r == -EINPROGRESS && b.lost && !cfs_deadline_passed(ctx->deadline));
	free(b.saved);
	return r == -EINPROGRESS && b.lost ? -ETIMEDOUT : r;
}
