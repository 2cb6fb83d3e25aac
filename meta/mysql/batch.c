/* SPDX-License-Identifier: Apache-2.0 */
/* Runs operations of one round trip each: attempts, lost answers. Their SQL: batch-texts.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "mysql-internal.h"

#define RETRY_BASE_MS 1
#define RETRY_MAX_MS  32
/* Backoff while the server cannot be reached. */
#define LOST_BASE_MS 16
#define LOST_MAX_MS  1000

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
	r = mysql_is_multi(m, id) ? mysql_multi_run(m, id, row, n, &params)
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

void mysql_node_row(const int64_t row[SQL_NODE_COLUMNS], struct cfs_attr *ret)
{
	*ret = (struct cfs_attr){
		.type = (uint8_t)row[0],
		.flags = (uint8_t)row[1],
		.mode = (uint16_t)row[2],
		.uid = (uint32_t)row[3],
		.gid = (uint32_t)row[4],
		.atime = sql_time(row[5], row[8]),
		.mtime = sql_time(row[6], row[9]),
		.ctime = sql_time(row[7], row[10]),
		.nlink = (uint32_t)row[11],
		.length = (uint64_t)row[12],
		.rdev = (uint32_t)row[13],
		.parent = (cfs_ino_t)row[14],
		.access_acl = (uint32_t)row[15],
		.default_acl = (uint32_t)row[16],
		.tier = (uint8_t)row[17],
	};
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

/* saved: a copy of the operation's argument, taken when an answer was lost; else NULL. */
struct attempts {
	unsigned n, round_trips;
	bool lost;		       /* the answer to the last attempt was lost */
	char session[SQL_SESSION_MAX]; /* then the session that may still execute it */
	void *saved;
	size_t size;
};

static int save_lost(struct attempts *t, const struct sql_conn *c, const void *arg)
{
	if (!t->saved)
		t->saved = malloc(t->size);
	if (!t->saved)
		return -ENOMEM;
	memcpy(t->saved, arg, t->size);
	memcpy(t->session, c->session, sizeof(t->session));
	t->lost = true;
	return -ENOTCONN;
}

/* Asks the database whether the attempt with the lost answer was committed. */
static int probe(struct mysql_conn *m, const struct cfs_ctx *ctx, mysql_batch_fn applied, void *arg,
		 const struct attempts *t)
{
	int r = applied(m, ctx, t->saved);

	if (r > 0)
		memcpy(arg, t->saved, t->size);
	return r;
}

static int try_once(struct sql_conn *c, const struct cfs_ctx *ctx, mysql_batch_fn fn,
		    mysql_batch_fn applied, void *arg, struct attempts *t)
{
	struct mysql_conn *m = mysql_conn(c);
	int r;

	c->conflict = false;
	c->round_trips = 0;
	c->deadline = ctx->deadline;
	r = sql_fence(c, t->lost ? t->session : "");
	if (!r && t->lost)
		r = probe(m, ctx, applied, arg, t);
	if (r >= 0)
		t->lost = false;
	if (!r) {
		m->sent = false;
		r = fn(m, ctx, arg);
		if (r == -ENOTCONN && m->sent)
			r = save_lost(t, c, arg);
		/* The lost attempt may have been committed after the first probe. */
		else if (!r && t->saved)
			r = probe(m, ctx, applied, arg, t);
	}
	t->round_trips += c->round_trips;
	return r;
}

int mysql_batch(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op,
		mysql_batch_fn fn, mysql_batch_fn applied, void *arg, size_t size)
{
	struct attempts t = {.size = size};
	struct sql_conn *c;
	int r;

	if (sql_refuses_changes(db))
		return -EROFS;
	for (;; t.n++) {
		r = sql_acquire_writer(db, ctx->deadline, &c);
		if (!r) {
			r = try_once(c, ctx, fn, applied, arg, &t);
			sql_release(c);
		}
		if (r != -EAGAIN && r != -ENOTCONN)
			break;
		if (!cfs_backoff(t.n, r == -EAGAIN ? RETRY_BASE_MS : LOST_BASE_MS,
				 r == -EAGAIN ? RETRY_MAX_MS : LOST_MAX_MS, ctx->deadline)) {
			cfs_warn("database %s for too long, operation given up: url=%s op=%s "
				 "tries=%u%s",
				 r == -EAGAIN ? "busy" : "away", db->where, cfs_meta_op_name(op),
				 t.n + 1, t.lost ? ", it may have been carried out" : "");
			r = -ETIMEDOUT;
			break;
		}
	}
	sql_abandon(db, t.lost ? t.session : "");
	free(t.saved);
	cfs_host_count(db->engine.host, op, t.round_trips, t.n);
	return r;
}
