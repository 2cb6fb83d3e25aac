/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commit probe: finds the outcome of a COMMIT whose answer was lost with the connection. It
 * looks for one change that only this transaction makes: a name with a fresh inode number, the
 * reference of a fresh slice, a fresh inode, the end of a delayed entry, the ctime it gave to an
 * inode. The committing thread runs the probe on another connection. A repeatable transaction needs
 * no probe.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "meta/sql/sql-internal.h"

enum kind { NOTHING, REPEATABLE, NAME_IS, NAME_IS_NOT, SLICE, NODE, DELAYED, CTIME };

static _Thread_local struct {
	enum kind kind;
	bool sure;     /* the statement was carried out */
	cfs_ino_t ino; /* or the slice */
	cfs_ino_t parent;
	size_t len;
	char name[CFS_NAME_MAX + 1];
	struct timespec ctime;
} probe;

/* Upper bound of the parameters examined in a statement. */
#define MAX_PARAMS 24
struct value {
	int64_t num;
	const void *bytes;
	size_t len;
};

void sql_probe_begin(void)
{
	probe.kind = NOTHING;
	probe.sure = false;
}

bool sql_probe_known(void)
{
	return probe.kind != NOTHING && probe.sure;
}

void sql_repeatable(void)
{
	probe.kind = REPEATABLE;
	probe.sure = true;
}

void sql_probe_confirm(void)
{
	probe.sure = true;
}

static bool is_telling(enum sql_stmt_id id)
{
	switch (id) {
	case SQL_put_edge:
	case SQL_load_edge:
	case SQL_del_edge:
	case SQL_set_edge:
	case SQL_move_edge:
	case SQL_put_ref:
	case SQL_put_node:
	case SQL_del_delayed:
	case SQL_update_node:
	case SQL_set_written:
	case SQL_move_node:
		return true;
	default:
		return false;
	}
}

static void read_values(const char *fmt, va_list ap, struct value v[MAX_PARAMS + 1])
{
	for (int n = 1; *fmt && n <= MAX_PARAMS; fmt++, n++) {
		if (*fmt == 'i') {
			v[n].num = va_arg(ap, int64_t);
		} else if (*fmt != 'n') {
			v[n].bytes = va_arg(ap, const void *);
			v[n].len = va_arg(ap, size_t);
		}
	}
}

static void see_name(enum kind kind, const struct value *parent, const struct value *name,
		     const struct value *ino)
{
	if (name->len > CFS_NAME_MAX)
		return;
	probe.kind = kind;
	probe.parent = (cfs_ino_t)parent->num;
	probe.ino = (cfs_ino_t)ino->num;
	probe.len = name->len;
	memcpy(probe.name, name->bytes, name->len);
}

static void see_ctime(const struct value *us, const struct value *sub_us, const struct value *ino)
{
	probe.kind = CTIME;
	probe.ino = (cfs_ino_t)ino->num;
	probe.ctime = sql_time(us->num, sub_us->num);
}

/* The numbers are those of the parameters in statements.h. */
void sql_probe_note(enum sql_stmt_id id, const char *fmt, va_list ap)
{
	struct value v[MAX_PARAMS + 1];

	if (sql_probe_known())
		return;
	probe.kind = NOTHING;
	if (!is_telling(id))
		return;
	read_values(fmt, ap, v);
	switch (id) {
	case SQL_put_edge:
	case SQL_load_edge:
		see_name(NAME_IS, &v[1], &v[2], &v[3]);
		break;
	case SQL_del_edge:
		see_name(NAME_IS_NOT, &v[1], &v[2], &v[3]);
		break;
	case SQL_set_edge:
		see_name(NAME_IS, &v[3], &v[4], &v[1]);
		break;
	case SQL_move_edge:
		see_name(NAME_IS, &v[1], &v[2], &v[5]);
		break;
	case SQL_put_ref:
		probe.kind = SLICE;
		probe.ino = (cfs_ino_t)v[1].num;
		break;
	case SQL_put_node:
		probe.kind = NODE;
		probe.ino = (cfs_ino_t)v[1].num;
		break;
	case SQL_del_delayed:
		probe.kind = DELAYED;
		probe.ino = (cfs_ino_t)v[1].num;
		break;
	case SQL_update_node:
		see_ctime(&v[8], &v[11], &v[19]);
		break;
	case SQL_set_written:
		see_ctime(&v[4], &v[5], &v[6]);
		break;
	default: /* SQL_move_node */
		see_ctime(&v[3], &v[4], &v[5]);
		break;
	}
}

static int look_at_name(struct sql_conn *c)
{
	struct sql_edge edge = {0};
	int r = sql_get_edge(c, probe.parent, probe.name, probe.len, &edge);

	if (r && r != -ENOENT)
		return r;
	return (edge.ino == probe.ino) == (probe.kind == NAME_IS);
}

/* An inode that another transaction has changed since proves nothing. */
static int look_at_ctime(struct sql_conn *c)
{
	struct cfs_attr attr;
	int order, r = sql_get_node(c, probe.ino, false, &attr);

	if (r)
		return r == -ENOENT ? -EIO : r;
	order = cfs_timespec_cmp(attr.ctime, probe.ctime);
	return order > 0 ? -EIO : order == 0;
}

int sql_probe_ask(struct sql_conn *c)
{
	struct cfs_attr attr;
	int r;

	switch (sql_probe_known() ? probe.kind : NOTHING) {
	case REPEATABLE:
		return 0;
	case NAME_IS:
	case NAME_IS_NOT:
		return look_at_name(c);
	case SLICE:
		r = sql_row(c, SQL_get_refs, "i", (int64_t)probe.ino);
		sql_done(c, SQL_get_refs);
		return r;
	case NODE:
		r = sql_get_node(c, probe.ino, false, &attr);
		return r == -ENOENT ? 0 : r < 0 ? r : 1;
	case DELAYED:
		r = sql_row(c, SQL_has_delayed, "i", (int64_t)probe.ino);
		sql_done(c, SQL_has_delayed);
		return r < 0 ? r : !r;
	case CTIME:
		return look_at_ctime(c);
	default:
		return -EIO;
	}
}
