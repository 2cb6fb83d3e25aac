/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commit probe finds the outcome of a COMMIT whose answer was lost with the connection. It
 * looks for one change that only this transaction makes: a name that leads to a new inode number,
 * the reference of a new slice, a new inode, the removal of a delayed entry, or the ctime of an
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
	bool executed; /* the statement was executed */
	cfs_ino_t ino; /* the inode, or the slice */
	cfs_ino_t parent;
	size_t len;
	char name[CFS_NAME_MAX + 1];
	struct timespec ctime;
} probe;

void sql_probe_begin(void)
{
	probe.kind = NOTHING;
	probe.executed = false;
}

bool sql_probe_known(void)
{
	return probe.kind != NOTHING && probe.executed;
}

void sql_repeatable(void)
{
	probe.kind = REPEATABLE;
	probe.executed = true;
}

void sql_probe_confirm(void)
{
	probe.executed = true;
}

/* True for statements that make such a change. */
static bool is_evidence(enum sql_stmt_id id)
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

static void note_name(enum kind kind, const struct sql_param *parent, const struct sql_param *name,
		      const struct sql_param *ino)
{
	if (name->len > CFS_NAME_MAX)
		return;
	probe.kind = kind;
	probe.parent = (cfs_ino_t)parent->num;
	probe.ino = (cfs_ino_t)ino->num;
	probe.len = name->len;
	memcpy(probe.name, name->bytes, name->len);
}

static void note_ctime(const struct sql_param *us, const struct sql_param *sub_us,
		       const struct sql_param *ino)
{
	probe.kind = CTIME;
	probe.ino = (cfs_ino_t)ino->num;
	probe.ctime = sql_time(us->num, sub_us->num);
}

/* v: the parameters of the statement in statements.h. */
void sql_probe_note(enum sql_stmt_id id, const struct sql_param *v)
{
	if (sql_probe_known())
		return;
	probe.kind = NOTHING;
	if (!is_evidence(id))
		return;
	switch (id) {
	case SQL_put_edge:
	case SQL_load_edge:
		note_name(NAME_IS, &v[0], &v[1], &v[2]);
		break;
	case SQL_del_edge:
		note_name(NAME_IS_NOT, &v[0], &v[1], &v[2]);
		break;
	case SQL_set_edge:
		note_name(NAME_IS, &v[2], &v[3], &v[0]);
		break;
	case SQL_move_edge:
		note_name(NAME_IS, &v[0], &v[1], &v[4]);
		break;
	case SQL_put_ref:
		probe.kind = SLICE;
		probe.ino = (cfs_ino_t)v[0].num;
		break;
	case SQL_put_node:
		probe.kind = NODE;
		probe.ino = (cfs_ino_t)v[0].num;
		break;
	case SQL_del_delayed:
		probe.kind = DELAYED;
		probe.ino = (cfs_ino_t)v[0].num;
		break;
	case SQL_update_node:
		note_ctime(&v[7], &v[10], &v[18]);
		break;
	case SQL_set_written:
		note_ctime(&v[3], &v[4], &v[5]);
		break;
	default: /* SQL_move_node */
		note_ctime(&v[2], &v[3], &v[4]);
		break;
	}
}

static int probe_name(struct sql_conn *c)
{
	struct sql_edge edge = {0};
	int r = sql_get_edge(c, probe.parent, probe.name, probe.len, &edge);

	if (r && r != -ENOENT)
		return r;
	return (edge.ino == probe.ino) == (probe.kind == NAME_IS);
}

/* -EIO: another transaction has changed the inode since, so its ctime proves nothing. */
static int probe_ctime(struct sql_conn *c)
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
		return probe_name(c);
	case SLICE:
		r = sql_has(c, SQL_get_refs, "i", (int64_t)probe.ino);
		return r;
	case NODE:
		r = sql_get_node(c, probe.ino, false, &attr);
		return r == -ENOENT ? 0 : r < 0 ? r : 1;
	case DELAYED:
		r = sql_has(c, SQL_has_delayed, "i", (int64_t)probe.ino);
		return r < 0 ? r : !r;
	case CTIME:
		return probe_ctime(c);
	default:
		return -EIO;
	}
}
