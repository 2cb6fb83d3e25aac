/* SPDX-License-Identifier: Apache-2.0 */
/* Statements and transactions over a dialect. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "meta/sql/sql-internal.h"

#define RETRY_BASE_MS 1
#define RETRY_MAX_MS  32
/* Backoff while the server cannot be reached. */
#define LOST_BASE_MS 16
#define LOST_MAX_MS  1000

static const char *const texts[] = {
#define SQL(id, text) [SQL_##id] = text,
#include "meta/sql/statements.h"
#undef SQL
};

static const char *const names[] = {
#define SQL(id, text) [SQL_##id] = #id,
#include "meta/sql/statements.h"
#undef SQL
};

static const char node_columns[SQL_NODE_COLUMNS][16] = {
	"type",	  "flags",	   "mode",	     "uid",	  "gid",   "atime",  "mtime",
	"ctime",  "atimensec",	   "mtimensec",	     "ctimensec", "nlink", "length", "rdev",
	"parent", "access_acl_id", "default_acl_id", "tier_id",
};

const char *sql_stmt_name(enum sql_stmt_id id)
{
	return names[id];
}

const char *sql_stmt_text(enum sql_stmt_id id)
{
	return texts[id];
}

static bool get_bit(const uint64_t *set, unsigned n)
{
	return set[n / 64] >> (n % 64) & 1;
}

static void set_bit(uint64_t *set, unsigned n)
{
	set[n / 64] |= 1ULL << (n % 64);
}

static void clear_bit(uint64_t *set, unsigned n)
{
	set[n / 64] &= ~(1ULL << (n % 64));
}

/* ---- texts ---- */

/* A volume of an older client may lack the latest columns, while it is mounted read-only. */
static void put_node_columns(struct sql_conn *c, FILE *f, char alias)
{
	for (unsigned i = 0; i < SQL_NODE_COLUMNS; i++) {
		if (i)
			fputc(',', f);
		/* On an error the statement fails too, and its text is built again. */
		if (sql_has_column(c, "node", node_columns[i]))
			fprintf(f, "%c.%s", alias, node_columns[i]);
		else
			fputc('0', f);
	}
}

static void put_text(struct sql_conn *c, FILE *f, const char *text);

static void put_brace(struct sql_conn *c, FILE *f, const char *word, size_t len)
{
	const struct sql_dialect *d = sql_dialect(c);
	const char *own = d->word ? d->word(c, word, len) : NULL;

	if (own)
		put_text(c, f, own);
	else if (len == 4 && !memcmp(word, "NODE", 4))
		put_node_columns(c, f, 'n');
	else if (len == 6 && !memcmp(word, "PARENT", 6))
		put_node_columns(c, f, 'p');
	else if (len == 10 && !memcmp(word, "FOR_UPDATE", 10))
		fputs(d->for_update, f);
	else if (len == 9 && !memcmp(word, "FOR_SHARE", 9))
		fputs(d->for_share ? d->for_share : "", f);
	else if (len == 9 && !memcmp(word, "KEEP_LATE", 9))
		fputs(d->keep_late ? d->keep_late : "", f);
	else if (len == 9 && !memcmp(word, "OR_IGNORE", 9))
		fputs(d->or_ignore, f);
	else if (len == 11 && !memcmp(word, "ELSE_IGNORE", 11))
		fputs(d->else_ignore, f);
	else if (len == 6 && !memcmp(word, "SERVER", 6))
		fputs(c->server ? c->server : "0", f);
	else
		fprintf(f, "`%s%.*s`", c->db->prefix, (int)len, word);
}

static void put_text(struct sql_conn *c, FILE *f, const char *text)
{
	for (const char *p = text; *p; p++) {
		const char *end = *p == '{' ? strchr(p, '}') : NULL;

		if (end) {
			put_brace(c, f, p + 1, (size_t)(end - p - 1));
			p = end;
		} else {
			fputc(*p, f);
		}
	}
}

char *sql_expand(struct sql_conn *c, const char *text)
{
	char *out = NULL;
	size_t size;
	FILE *f = open_memstream(&out, &size);

	if (!f)
		return NULL;
	put_text(c, f, text);
	if (fclose(f)) {
		free(out);
		return NULL;
	}
	return out;
}

/* ---- statements ---- */

/* Notes the errors that decide at the end of the transaction whether it is retried. */
static int note(struct sql_conn *c, int r)
{
	if (r == -EAGAIN)
		c->conflict = true;
	else if (r == -ENOTCONN)
		c->broken = true;
	return r;
}

static int prepare(struct sql_conn *c, enum sql_stmt_id id)
{
	const struct sql_dialect *d = sql_dialect(c);
	const char *text = d->text ? d->text(id) : NULL;
	char *full = sql_expand(c, text ? text : texts[id]);
	int r;

	if (!full)
		return -ENOMEM;
	r = d->prepare(c, id, full);
	free(full);
	if (!r)
		set_bit(c->prepared, id);
	return r;
}

static int start(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	const struct sql_dialect *d = sql_dialect(c);
	int r = 0;

	if (d->resolve)
		sql_probe_note(id, v);
	if (!get_bit(c->prepared, id))
		r = prepare(c, id);
	else
		sql_done(c, id);
	for (size_t i = 0; i < n && !r; i++)
		r = d->bind(c, id, (int)i + 1, &v[i]);
	c->round_trips += !d->counts_round_trips;
	return note(c, r);
}

bool sql_is_race(int id)
{
	switch (id) {
	case SQL_new_counter:
	case SQL_new_setting:
	case SQL_new_dir_stat:
	case SQL_put_flock:
	case SQL_put_plock:
	case SQL_put_sustained:
		return true;
	default:
		return false;
	}
}

static int step_change(struct sql_conn *c, enum sql_stmt_id id)
{
	int r = sql_dialect(c)->step(c, id);

	return note(c, r == -EEXIST && sql_is_race(id) ? -EAGAIN : r);
}

/* The number of rows that the statement has changed. */
static int count_changes(struct sql_conn *c, enum sql_stmt_id id)
{
	int n = sql_dialect(c)->changes(c, id);

	c->changed_nothing |= !n;
	return n;
}

int sql_confirm_end(struct sql_conn *c)
{
	const struct sql_dialect *d = sql_dialect(c);
	uint64_t stops = c->stops;
	int r = d->stops ? note(c, d->stops(c, &c->stops)) : 0;

	return r || c->stops == stops ? r : note(c, -EAGAIN);
}

static int exec(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	const struct sql_dialect *d = sql_dialect(c);
	int r = start(c, id, v, n);

	if (r)
		return r;
	r = step_change(c, id);
	if (r >= 0) {
		sql_probe_confirm();
		r = count_changes(c, id);
	}
	d->reset(c, id);
	return r;
}

static int post(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	const struct sql_dialect *d = sql_dialect(c);
	int r = d->post ? start(c, id, v, n) : exec(c, id, v, n);

	if (r < 0 || !d->post)
		return r < 0 ? r : 0;
	r = note(c, d->post(c, id));
	if (r >= 0)
		sql_probe_confirm();
	return r < 0 ? r : 0;
}

static int query(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	const struct sql_dialect *d = sql_dialect(c);
	int r = start(c, id, v, n);

	if (r)
		return r;
	set_bit(c->open, id);
	return d->ask ? note(c, d->ask(c, id)) : 0;
}

static int row(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	int r = query(c, id, v, n);

	return r ? r : sql_next(c, id);
}

static int has(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	int r = row(c, id, v, n);

	sql_done(c, id);
	return r;
}

static int load(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	const struct sql_dialect *d = sql_dialect(c);
	int r;

	if (!d->load)
		return post(c, id, v, n);
	sql_probe_note(id, v);
	r = note(c, d->load(c, id, v, n));
	if (!r)
		sql_probe_confirm();
	return r;
}

/* Returns the number of parameters. */
static size_t read_params(const char *fmt, va_list ap, struct sql_param v[SQL_PARAMS_MAX])
{
	size_t n;

	for (n = 0; fmt[n] && n < SQL_PARAMS_MAX; n++) {
		v[n] = (struct sql_param){.is_bytes = fmt[n] != 'i', .is_text = fmt[n] == 't'};
		if (v[n].is_bytes) {
			v[n].bytes = va_arg(ap, const void *);
			v[n].len = va_arg(ap, size_t);
		} else {
			v[n].num = va_arg(ap, int64_t);
		}
	}
	return n;
}

#define VARIADIC(name)                                                                             \
	int sql_##name(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...)              \
	{                                                                                          \
		struct sql_param v[SQL_PARAMS_MAX];                                                \
		va_list ap;                                                                        \
		size_t n;                                                                          \
                                                                                                   \
		va_start(ap, fmt);                                                                 \
		n = read_params(fmt, ap, v);                                                       \
		va_end(ap);                                                                        \
		return name(c, id, v, n);                                                          \
	}
VARIADIC(exec)
VARIADIC(post)
VARIADIC(load)
VARIADIC(query)
VARIADIC(row)
VARIADIC(has)
#undef VARIADIC

int sql_next(struct sql_conn *c, enum sql_stmt_id id)
{
	int r = note(c, sql_dialect(c)->step(c, id));

	if (r <= 0)
		sql_done(c, id);
	return r;
}

void sql_done(struct sql_conn *c, enum sql_stmt_id id)
{
	if (!get_bit(c->open, id))
		return;
	clear_bit(c->open, id);
	sql_dialect(c)->reset(c, id);
}

int64_t sql_int(struct sql_conn *c, enum sql_stmt_id id, int col)
{
	return sql_dialect(c)->col_int(c, id, col);
}

const void *sql_blob(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len)
{
	return sql_dialect(c)->col_bytes(c, id, col, ret_len);
}

int64_t sql_insert_id(struct sql_conn *c, enum sql_stmt_id id)
{
	return sql_dialect(c)->insert_id(c, id);
}

bool sql_is_repeated(const struct sql_conn *c)
{
	return c->repeated;
}

struct cfs_engine_host *sql_host(struct sql_conn *c)
{
	return c->db->engine.host;
}

static void end_queries(struct sql_conn *c)
{
	for (unsigned w = 0; w < SQL_STMT_WORDS; w++)
		while (c->open[w])
			sql_done(c, (enum sql_stmt_id)(w * 64 +
						       (unsigned)__builtin_ctzll(c->open[w])));
}

/* ---- transactions ---- */

struct outcome {
	bool retry;   /* the database asks for a retry; an operation's own -EAGAIN is a result */
	bool unknown; /* the answer to COMMIT, or to a change without, was lost; the result is fn's */
	/* The lost session of the last attempt, which may still change something or have locks; "". */
	char session[SQL_SESSION_MAX];
	bool repeated; /* an earlier attempt may have been committed */
	uint64_t txn;
	unsigned round_trips;
};

static int run_once(struct sql_conn *c, const struct cfs_ctx *ctx, bool txn, sql_fn fn, void *arg,
		    struct outcome *out)
{
	const struct sql_dialect *d = sql_dialect(c);
	int r;

	sql_probe_begin();
	c->conflict = c->unknown = c->changed_nothing = false;
	c->repeated = out->repeated;
	c->round_trips = 0;
	c->deadline = ctx->deadline;
	r = txn ? note(c, d->begin(c)) : 0;
	if (!r) {
		r = fn(c, ctx, arg);
		/* The statement may be one of the dialect itself (DDL), without a note(). */
		if (r == -ENOTCONN)
			c->broken = true;
		end_queries(c);
		if (txn && r >= 0 && c->changed_nothing) {
			int sure = sql_confirm_end(c);

			r = sure < 0 ? sure : r;
		}
		if (txn) {
			int end = r < 0 ? 0 : note(c, d->commit(c));

			c->unknown &= end < 0;
			out->txn = c->txn;
			if (end < 0 && !c->unknown)
				r = end;
			if (r < 0 || end < 0)
				d->rollback(c);
			else
				atomic_fetch_add_explicit(&c->db->commits, 1, memory_order_relaxed);
		}
	}
	out->unknown = c->unknown;
	if (out->unknown)
		sql_forget_server(c);
	if (out->unknown || (c->broken && (txn || r == -ETIMEDOUT)))
		memcpy(out->session, c->session, sizeof(out->session));
	out->retry = r < 0 && (c->conflict || r == -ENOTCONN);
	out->round_trips += c->round_trips;
	return r;
}

/* Fences abandoned sessions, and the lost session of the last attempt. */
static int end_lost(struct sql_conn *c, const struct cfs_ctx *ctx, struct outcome *lost)
{
	int r;

	c->deadline = ctx->deadline;
	r = sql_fence(c, lost->session);
	if (!r)
		*lost->session = 0;
	return r;
}

/*
 * After a lost answer: ends the session, and asks the server for the outcome of the commit, if it was
 * one. 1: committed; 0: not committed, or the transaction is repeatable; -EIO: the outcome cannot be
 * found.
 */
static int resolve(struct sql_db *db, const struct cfs_ctx *ctx, bool commit, struct outcome *lost)
{
	unsigned attempt = 0;
	struct sql_conn *c;
	int r;

	do {
		r = lost->txn || !commit ? sql_acquire_reader(db, ctx->deadline, false, &c) : -EIO;
		if (!r) {
			r = end_lost(c, ctx, lost);
			if (!r && commit)
				r = note(c, db->dialect->resolve(c, lost->txn));
			sql_release(c);
		}
	} while ((r == -EAGAIN || r == -ENOTCONN) &&
		 cfs_backoff(attempt++, LOST_BASE_MS, LOST_MAX_MS, ctx->deadline));
	if (r >= 0 || !commit)
		return r;
	cfs_err("connection lost during commit, its outcome is unknown, the operation fails: "
		"url=%s",
		db->where);
	return -EIO;
}

static bool is_quick(enum cfs_meta_op op)
{
	return op == CFS_META_OP_lookup || op == CFS_META_OP_getattr || op == CFS_META_OP_open ||
	       op == CFS_META_OP_readlink || op == CFS_META_OP_read_chunk ||
	       op == CFS_META_OP_xattr;
}

/* Some dialects make changes without a transaction of the runner. */
static bool is_change(enum cfs_meta_op op, bool txn)
{
	return txn || !(is_quick(op) || op == CFS_META_OP_readdir || op == CFS_META_OP_other);
}

static int run(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, bool txn,
	       sql_fn fn, void *arg)
{
	struct outcome out = {0};
	unsigned attempt = 0;
	bool lost;
	int r;

	for (;; attempt++) {
		struct sql_conn *c;

		out.unknown = false;
		r = is_change(op, txn) ? cfs_host_check_volume(db->engine.host, ctx) : 0;
		if (r)
			break;
		r = txn ? sql_acquire_writer(db, ctx->deadline, &c)
			: sql_acquire_reader(db, ctx->deadline, is_quick(op), &c);
		out.retry = r == -EAGAIN || r == -ENOTCONN;
		lost = r == -ENOTCONN;
		if (!r) {
			r = end_lost(c, ctx, &out);
			out.retry = r == -EAGAIN || r == -ENOTCONN;
			if (!r)
				r = run_once(c, ctx, txn, fn, arg, &out);
			sql_release(c);
		}
		if (out.unknown) {
			int done = resolve(db, ctx, txn, &out);

			/* Outside a transaction r already says that the outcome is unknown. */
			if (done < 0 && txn)
				r = done;
			out.retry = out.repeated = txn && done == 0;
		}
		if (!out.retry)
			break;
		if (!cfs_backoff(attempt, lost ? LOST_BASE_MS : RETRY_BASE_MS,
				 lost ? LOST_MAX_MS : RETRY_MAX_MS, ctx->deadline)) {
			cfs_warn("database %s for too long, operation given up: url=%s op=%s "
				 "tries=%u",
				 r == -ENOTCONN ? "away" : "busy", db->where, cfs_meta_op_name(op),
				 attempt + 1);
			r = -ETIMEDOUT;
			break;
		}
	}
	sql_abandon(db, out.session);
	cfs_host_count(db->engine.host, op, out.round_trips, attempt);
	return r;
}

int sql_txn(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn, void *arg)
{
	return sql_refuses_changes(db) ? -EROFS : run(db, ctx, op, true, fn, arg);
}

int sql_read(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
	     void *arg)
{
	return run(db, ctx, op, false, fn, arg);
}
