/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches as multi-statement queries: all statements, from START TRANSACTION to the read after
 * COMMIT, go to the server as one text. For servers without BEGIN NOT ATOMIC: MySQL, TiDB.
 *
 * The server stops at the first error with the transaction open, and batch.c sends ROLLBACK. A
 * failed optimistic check raises an arithmetic error, the one error that every server raises at run
 * time. Conditions on parameters alone are decided here. Values are put into the text; bytes, such
 * as names, in hexadecimal, so that none of them can be taken as SQL.
 */
#include <errno.h>
#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "mysql-internal.h"

#define MAX_NAMES      16
#define MAX_DEPTH      6
#define MAX_STATEMENTS 24

/* ---- the macros of batch-texts.h ---- */

/* Marks in the text; the argument of PARAM, WHEN and TAKE follows, and ends with a semicolon. */
enum { M_PARAM = 1, M_WHEN, M_ELSE, M_END, M_TAKE, M_COMMIT };

#define BEGIN_CHANGE	""
#define PARAM(name)	"\001" name ";"
#define CHANGE		"START TRANSACTION; "
#define WHEN(condition) "\002" condition ";"
#define ELSE		"\003"
#define END_WHEN	"\004"
/* The columns of the next statement, or the number of rows it changes, are part of the answer. */
#define TAKE(at) "\005" at ";"
#define COMMIT	 "\006COMMIT; "

/* 2^64-1 plus 1 when the condition is true: the sum is out of range. */
#define FAIL_IF(condition) "18446744073709551615+(" condition ")"
#define MUST		   "SET @c=" FAIL_IF("ROW_COUNT()<>1") "; "
#define SURE		   ""
#define NOT_IF(condition)  "SELECT " FAIL_IF(condition) "; "
#define CLEAR(table, ino)  "DELETE FROM " table " WHERE inode=" ino "; "
#define LOCK(rows)	   "SELECT 1 FROM " rows " FOR UPDATE; "
#define IF_DIR_IS(lock)	   "SELECT " FAIL_IF("COUNT(*)<>1") " FROM {node} n WHERE " DIR_IS lock "; "

#define READ(columns, into, from, at) TAKE(at) "SELECT " columns " FROM " from "; "
/* An existing row is kept: the deletion is recorded already. */
#define LEFT_CHUNKS(ino, at)                                                                       \
	TAKE(at)                                                                                   \
	"INSERT IGNORE INTO {delfile}(inode,length,expire) SELECT " ino ",?,? FROM DUAL WHERE "    \
	"EXISTS(SELECT 1 FROM {chunk} WHERE inode=" ino "); "

#define DECLARE_LOCK	""
#define DECLARE_LEFT	""
#define DECLARE_WRITTEN ""
#define DECLARE_NODE	""
#define COMMIT_DIR                                                                                 \
	COMMIT WHEN("?") READ(DIR_COLUMNS, , "{node} n WHERE n.inode=p_dir", "0") END_WHEN
#define COMMIT_DIR_LEFT COMMIT_DIR
#define COMMIT_LEFT	COMMIT
#define COMMIT_WRITTEN	COMMIT
#define COMMIT_NODE	COMMIT
#define COMMIT_ONLY	COMMIT

static const char *const texts[] = {
#define BATCH(id, text) [MYSQL_BATCH_##id] = text,
#include "batch-texts.h"
#undef BATCH
};

/* ---- writing ---- */

struct query {
	const struct mysql_params *params;
	unsigned next;
	struct {
		const char *name;
		size_t len;
		const struct sql_param *param;
	} name[MAX_NAMES];
	unsigned n_names;
	bool on[MAX_DEPTH]; /* whether the body of the WHEN at this depth is sent; [0]: true */
	unsigned depth;
	int take[MAX_STATEMENTS]; /* index of the statement's first column in the answer, or -1 */
	unsigned n_statements, commit;
	/* the answer */
	int64_t *row;
	unsigned n, n_results;
	int done;
	bool committed;
};

static const struct sql_param *next_param(struct query *k)
{
	return k->next < k->params->n ? &k->params->v[k->next++] : NULL;
}

static const struct sql_param *find_param(struct query *k, const char *name, size_t len)
{
	unsigned i;

	if (len == 1 && *name == '?')
		return next_param(k);
	for (i = 0; i < k->n_names; i++)
		if (k->name[i].len == len && !memcmp(k->name[i].name, name, len))
			return k->name[i].param;
	return NULL;
}

/* Evaluates a mark; text, len: its argument. */
static int mark(struct query *k, char what, const char *text, size_t len)
{
	const struct sql_param *p;
	size_t name;

	switch (what) {
	case M_PARAM:
		if (k->n_names == MAX_NAMES || k->next == k->params->n)
			return -EINVAL;
		k->name[k->n_names].name = text;
		k->name[k->n_names].len = len;
		k->name[k->n_names++].param = next_param(k);
		return 0;
	case M_WHEN:
		name = strcspn(text, "=;");
		p = find_param(k, text, name);
		if (!p || ++k->depth == MAX_DEPTH)
			return -EINVAL;
		k->on[k->depth] = k->on[k->depth - 1] &&
				  (name < len ? p->num == text[name + 1] - '0' : p->num != 0);
		return 0;
	case M_ELSE:
		k->on[k->depth] = k->on[k->depth - 1] && !k->on[k->depth];
		return 0;
	case M_END:
		k->depth--;
		return 0;
	case M_TAKE:
		if (k->on[k->depth] && k->n_statements < MAX_STATEMENTS)
			k->take[k->n_statements] = *text - '0';
		return 0;
	default:
		k->commit = k->n_statements;
		return 0;
	}
}

static bool has_text(char what)
{
	return what == M_PARAM || what == M_WHEN || what == M_TAKE;
}

static int put_next(struct query *k, const char **p, struct mysql_text *out)
{
	const struct sql_param *param = NULL;
	size_t n = mysql_text_word(*p);
	const char *text = *p;

	*p += n;
	if (*text == '?' || !strncmp(text, "p_", 2)) {
		param = find_param(k, text, n);
		if (!param)
			return -EINVAL;
	}
	if (!k->on[k->depth])
		return 0;
	if (*text == ';' && ++k->n_statements == MAX_STATEMENTS)
		return -EINVAL;
	return param ? mysql_text_put_param(out, param) : mysql_text_put(out, text, n);
}

static int write_query(struct query *k, const char *text, struct mysql_text *out)
{
	const char *p = text;
	int r = 0;

	memset(k->take, -1, sizeof(k->take));
	k->on[0] = true;
	out->len = 0;
	while (*p && !r) {
		if (*p <= M_COMMIT) {
			size_t len = has_text(*p) ? strcspn(p, ";") : 0;

			r = mark(k, *p, p + 1, len ? len - 1 : 0);
			p += len + 1;
		} else {
			r = put_next(k, &p, out);
		}
	}
	return r || k->next == k->params->n ? r : -EINVAL;
}

/* ---- running ---- */

/* Copies the first row, if there is one, to the answer. */
static int take_row(struct mysql_conn *m, MYSQL_RES *rows, int at, int64_t *row, unsigned n)
{
	unsigned columns = mysql_num_fields(rows), i;
	MYSQL_ROW v = mysql_fetch_row(rows);

	if (!v)
		return mysql_errno(m->handle) ? -EIO : MYSQL_DONE;
	if ((unsigned)at + columns > n)
		return -EPROTO;
	for (i = 0; i < columns; i++)
		row[(unsigned)at + i] = v[i] ? strtoll(v[i], NULL, 10) : 0;
	return MYSQL_DONE_ROW;
}

/* Copies the wanted part of a statement's result to the answer. */
static int take(struct mysql_conn *m, MYSQL_RES *rows, void *arg)
{
	struct query *k = arg;
	unsigned i = k->n_results++;
	int at = i < k->n_statements ? k->take[i] : -1, r = MYSQL_DONE;

	if (at >= 0 && rows)
		r = take_row(m, rows, at, k->row, k->n);
	else if (at >= 0)
		k->row[at] = (int64_t)mysql_affected_rows(m->handle);
	if (r < 0)
		return r;
	k->done = CFS_MAX(k->done, r);
	k->committed |= i == k->commit;
	return 0;
}

int mysql_send_text(struct mysql_conn *m, const char *text, size_t len, mysql_result_fn fn,
		    void *arg)
{
	int more, r = 0;

	m->sent = true;
	m->sql.round_trips++;
	more = mysql_real_query(m->handle, text, len);
	while (!more) {
		bool columns = mysql_field_count(m->handle) > 0;
		MYSQL_RES *rows = columns ? mysql_store_result(m->handle) : NULL;

		r = columns && !rows ? -EIO : fn(m, rows, arg);
		mysql_free_result(rows);
		if (r < 0)
			return r;
		more = mysql_next_result(m->handle);
	}
	return more > 0 ? -EIO : 0;
}

/* After COMMIT an error is treated as a lost answer: the operation is not repeated. */
static int send(struct mysql_conn *m, struct query *k, const char *name)
{
	int r = mysql_send_text(m, m->text.v, m->text.len, take, k);
	unsigned code = r ? mysql_errno(m->handle) : 0;

	if (!r && k->n_results == k->n_statements)
		return k->done;
	if (code == ER_DATA_OUT_OF_RANGE && !k->committed)
		return 0;
	if (code)
		r = mysql_error_of(m, code, mysql_error(m->handle), name);
	return k->committed ? -ENOTCONN : r ? r : -EPROTO;
}

int mysql_multi_run(struct mysql_conn *m, enum mysql_batch_id id, int64_t *row, unsigned n,
		    const struct mysql_params *params)
{
	struct query k = {.params = params, .row = row, .n = n, .done = MYSQL_DONE};
	int r = 0;

	if (!m->multi[id]) {
		m->multi[id] = sql_expand(&m->sql, texts[id]);
		r = m->multi[id] ? 0 : -ENOMEM;
	}
	if (!r)
		r = write_query(&k, m->multi[id], &m->text);
	return r ? r : send(m, &k, mysql_batch_name(id));
}
