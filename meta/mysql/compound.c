/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches as prepared compound statements: MariaDB accepts several statements with parameters in
 * BEGIN NOT ATOMIC as one statement, which is parsed once per connection.
 *
 * The compound statement rolls back before it returns an error. A statement stopped from outside
 * (KILL QUERY, max_statement_time) runs no handler: the connection is closed, which ends the
 * transaction (conn.c). A KILL QUERY between another error and its handler stops the handler, and
 * the client gets the other error: batch.c sends ROLLBACK after each error.
 */
#include <errno.h>
#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#include "mysql-internal.h"

#define MAX_COLUMNS 24
#define MAX_NAMES   16
#define MAX_PLACES  100

/* ---- the macros of batch-texts.h ---- */

#define BEGIN_CHANGE                                                                               \
	"BEGIN NOT ATOMIC "                                                                        \
	"DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; "                    \
	"BEGIN "
/* MARK, a name and a semicolon declare a parameter; they are not part of the statement. */
#define MARK		  '\001'
#define PARAM(name)	  "\001" name ";"
#define CHANGE		  "START TRANSACTION READ WRITE; "
#define COMMIT		  "{STILL_IN}COMMIT; "
#define END_COMPOUND	  " END; END"
#define FAIL		  "SIGNAL SQLSTATE '45000'; "
#define WHEN(condition)	  "IF " condition " THEN "
#define ELSE		  "ELSE "
#define END_WHEN	  "END IF; "
#define NOT_IF(condition) WHEN(condition) FAIL END_WHEN
#define MUST		  NOT_IF("ROW_COUNT()<>1")
#define SURE		  MUST
#define DECLARE_LOCK	  "DECLARE p_x INT; "
#define LOCK(rows)	  "SELECT 1 INTO p_x FROM " rows " FOR UPDATE; "

/*
 * A DELETE or UPDATE that MariaDB stops during planning reports no error and 0 rows, and the next
 * statement runs. So rows are searched first: a stopped IF condition ends the compound statement.
 */
#define CLEAR(table, ino)                                                                          \
	WHEN("EXISTS(SELECT 1 FROM " table " WHERE inode=" ino ")")                                \
	"DELETE FROM " table " WHERE inode=" ino "; " NOT_IF("ROW_COUNT()<1") END_WHEN

#define READ(columns, into, from, at) "SELECT " columns " INTO " into " FROM " from "; "

/*
 * The conditions are in the SELECT list: in a WHERE clause, the optimizer would consider each of
 * them at every run. A query in an IF locks its row (shared), also without a lock clause; therefore
 * the parent is checked last.
 */
#define IF_DIR_IS(lock)                                                                            \
	NOT_IF("(SELECT " DIR_STILL " FROM {node} n WHERE n.inode=p_dir" lock ") IS NOT TRUE")

/*
 * A result row costs the server as much as an INSERT, so it is sent only on request. It is sent
 * after COMMIT: a row before COMMIT would wake up the client twice.
 */
#define DIR_VARIABLES "@d1,@d2,@d3,@d4,@d5,@d6,@d7"
#define COMMIT_DIR_ROW(condition, more)                                                            \
	WHEN(condition)                                                                            \
	READ(DIR_COLUMNS, DIR_VARIABLES, "{node} n WHERE n.inode=p_dir", 0)                        \
	MUST COMMIT "SELECT " DIR_VARIABLES more "; " ELSE COMMIT END_WHEN END_COMPOUND
#define COMMIT_DIR	COMMIT_DIR_ROW("?", "")
#define COMMIT_DIR_LEFT COMMIT_DIR_ROW("? OR p_left", ",p_left")
#define COMMIT_LEFT	COMMIT WHEN("p_left") "SELECT p_left; " END_WHEN END_COMPOUND
#define COMMIT_WRITTEN	COMMIT "SELECT p_old," NODE_VARIABLES ",p_list;" END_COMPOUND
#define COMMIT_NODE	COMMIT "SELECT " NODE_VARIABLES ";" END_COMPOUND
#define COMMIT_ONLY	COMMIT END_COMPOUND

#define DECLARE_LEFT "DECLARE p_left INT DEFAULT 0; "
#define LEFT_CHUNKS(ino, at)                                                                       \
	WHEN("EXISTS(SELECT 1 FROM {chunk} WHERE inode=" ino ")")                                  \
	"SET p_left=1; "                                                                           \
	"INSERT IGNORE INTO {delfile}(inode,length,expire) VALUES(" ino ",?,?); " END_WHEN

/* One variable for each column of {NODE}. */
#define NODE_VARIABLES                                                                             \
	"p_n1,p_n2,p_n3,p_n4,p_n5,p_n6,p_n7,p_n8,p_n9,p_n10,p_n11,p_n12,p_n13,p_n14,p_n15,p_n16,"  \
	"p_n17,p_n18"
#define DECLARE_WRITTEN "DECLARE p_old,p_list," NODE_VARIABLES " BIGINT; "
#define DECLARE_NODE	"DECLARE " NODE_VARIABLES " BIGINT; "

static const char *const texts[] = {
#define BATCH(id, text) [MYSQL_BATCH_##id] = text,
#include "batch-texts.h"
#undef BATCH
};

/* ---- running ---- */

/*
 * Replaces each use of a named parameter by a ?. Its value is sent once per use: a variable of the
 * compound statement would cost more. s->place: for each ?, the number of its parameter; ret: the
 * text.
 */
static int place_params(struct mysql_stmt *s, const char *text, char *ret)
{
	const char *name[MAX_NAMES];
	unsigned n_names = 0, next = 0, i;
	size_t len;

	for (; *text; text += len) {
		len = mysql_text_word(text);
		if (*text == MARK) {
			if (n_names == MAX_NAMES)
				return -EINVAL;
			name[n_names++] = text + 1;
			next++;
			len = strcspn(text, ";") + 1;
			continue;
		}
		for (i = 0; i < n_names; i++)
			if (!strncmp(name[i], text, len) && name[i][len] == ';')
				break;
		if (i == n_names && *text != '?') {
			memcpy(ret, text, len);
			ret += len;
			continue;
		}
		if (s->n_places == MAX_PLACES)
			return -EINVAL;
		s->place[s->n_places++] = (uint8_t)(i < n_names ? i : next++);
		*ret++ = '?';
	}
	*ret = '\0';
	return 0;
}

static int open_compound(struct mysql_conn *m, enum mysql_batch_id id)
{
	char *marked = sql_expand(&m->sql, texts[id]);
	char *text = marked ? malloc(strlen(marked) + 1) : NULL;
	struct mysql_stmt *s = &m->batch[id];
	int r = -ENOMEM;

	free(s->place);
	s->place = text ? malloc(MAX_PLACES) : NULL;
	s->n_places = 0;
	if (s->place)
		r = place_params(s, marked, text);
	if (!r)
		r = mysql_open_stmt(m, s, text, mysql_batch_name(id));
	free(text);
	free(marked);
	return r;
}

static int set_params(struct mysql_stmt *s, const struct mysql_params *params)
{
	unsigned i;
	int r = 0;

	for (i = 0; i < s->n_places && !r; i++) {
		if (s->place[i] >= params->n)
			return -EINVAL;
		r = mysql_set_param(s, (int)i + 1, &params->v[s->place[i]]);
	}
	return r;
}

/* Reads the row of the current result. */
static int read_row(MYSQL_STMT *handle, int64_t *row, unsigned n)
{
	MYSQL_BIND bind[MAX_COLUMNS] = {0};
	my_bool null[MAX_COLUMNS] = {0};
	unsigned i;
	int r;

	for (i = 0; i < n; i++) {
		bind[i].buffer_type = MYSQL_TYPE_LONGLONG;
		bind[i].buffer = &row[i];
		bind[i].buffer_length = sizeof(row[i]);
		bind[i].is_null = &null[i];
	}
	if (mysql_stmt_field_count(handle) != n)
		return -EPROTO;
	if (mysql_stmt_bind_result(handle, bind) || mysql_stmt_store_result(handle))
		return -EIO;
	r = mysql_stmt_fetch(handle);
	for (i = 0; i < n && !r; i++)
		if (null[i])
			row[i] = 0;
	mysql_stmt_free_result(handle);
	return r ? -EPROTO : MYSQL_DONE_ROW;
}

static int run(struct mysql_stmt *s, int64_t *row, unsigned n)
{
	int more, r = MYSQL_DONE;

	if (mysql_stmt_bind_param(s->handle, s->bind) || mysql_stmt_execute(s->handle))
		return -EIO;
	do {
		if (r == MYSQL_DONE && mysql_stmt_field_count(s->handle))
			r = read_row(s->handle, row, n);
		more = mysql_stmt_next_result(s->handle);
	} while (!more);
	/* more > 0: a statement after the row has failed. */
	return more > 0 ? -EIO : r;
}

int mysql_compound_run(struct mysql_conn *m, enum mysql_batch_id id, int64_t *row, unsigned n,
		       const struct mysql_params *params)
{
	struct mysql_stmt *s = &m->batch[id];
	int r = s->handle ? 0 : open_compound(m, id);
	unsigned code;

	if (!r)
		r = set_params(s, params);
	if (r)
		return r;
	m->sent = true;
	m->sql.round_trips++;
	r = run(s, row, n);
	code = r < 0 ? mysql_stmt_errno(s->handle) : 0;
	/* The server stopped the batch before COMMIT and reported no error. */
	if (r > 0 && m->handle->server_status & SERVER_STATUS_IN_TRANS)
		return -ENOTCONN;
	if (code == ER_SIGNAL_EXCEPTION)
		return 0;
	return code ? mysql_error_of(m, code, mysql_stmt_error(s->handle), mysql_batch_name(id))
		    : r;
}
