/* SPDX-License-Identifier: Apache-2.0 */
/* The volume as a whole: its setting, its schema, its first rows. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/sql/sql-internal.h"

/* ---- setting ---- */

static int get_setting(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const char *value;
	char *copy;
	size_t len;
	int r;

	r = sql_has_column(c, "setting", "value");
	if (r > 0)
		r = sql_row(c, SQL_get_setting, "");
	if (r <= 0)
		return r ? r : -ENODATA;
	value = sql_blob(c, SQL_get_setting, 0, &len);
	copy = strndup(len ? value : "", len);
	sql_done(c, SQL_get_setting);
	if (!copy)
		return -ENOMEM;
	*(char **)arg = copy;
	return 0;
}

int sql_op_get_setting(struct cfs_engine *e, const struct cfs_ctx *ctx, char **ret)
{
	if (sql_db(e)->missing)
		return -ENODATA;
	return sql_read(sql_db(e), ctx, CFS_META_OP_other, get_setting, ret);
}

static int put_setting(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const char *text = arg;
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_set_setting, "t", text, strlen(text));

	if (!r)
		r = sql_exec(c, SQL_new_setting, "t", text, strlen(text));
	return r < 0 ? r : 0;
}

int sql_op_put_setting(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *setting)
{
	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, put_setting, (char *)setting);
}

/* ---- create, upgrade, destroy ---- */

static int put_counters(struct sql_conn *c)
{
	static const struct {
		const char *name;
		int64_t value;
	} first[] = {
		{"nextInode", 2}, {"nextChunk", 1},   {"nextSession", 0},
		{"usedSpace", 0}, {"totalInodes", 0}, {"nextCleanupSlices", 0},
	};

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
		int r = sql_exec(c, SQL_new_counter, "ti", first[i].name, strlen(first[i].name),
				 first[i].value);

		if (r < 0)
			return r;
	}
	return 0;
}

static int put_directory(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint16_t mode)
{
	const struct cfs_attr attr = cfs_rules_directory(ctx, mode, CFS_ROOT_INO);

	return sql_put_node(c, ino, &attr);
}

struct create {
	const char *setting;
	bool trash;
};

static int create(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct create *a = arg;
	char *old = NULL;
	int r = get_setting(c, ctx, &old);

	free(old);
	if (r != -ENODATA)
		return r ? r : -EEXIST;
	r = sql_create_schema(c);
	if (!r)
		r = put_counters(c);
	if (!r)
		r = sql_mark_counters(c);
	if (!r)
		r = put_directory(c, ctx, CFS_ROOT_INO, 0777);
	if (!r && a->trash)
		r = put_directory(c, ctx, CFS_TRASH_INO, 0555);
	return r ? r : put_setting(c, ctx, (char *)a->setting);
}

int sql_op_create(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *setting, bool trash)
{
	struct sql_db *db = sql_db(e);
	struct create a = {.setting = setting, .trash = trash};
	int r = 0;

	if (db->read_only)
		return -EROFS;
	if (db->dialect->create_database)
		r = db->dialect->create_database(db);
	if (!r)
		db->missing = false;
	if (!r)
		r = sql_txn(db, ctx, CFS_META_OP_other, create, &a);
	if (!r && db->dialect->sync)
		r = db->dialect->sync(db, ctx);
	return r;
}

static int check_schema(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	return sql_check_schema(c);
}

static int upgrade(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	return sql_create_schema(c);
}

int sql_op_upgrade(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct sql_db *db = sql_db(e);
	int r = sql_read(db, ctx, CFS_META_OP_other, check_schema, NULL);

	if (r <= 0)
		return r;
	r = sql_txn(db, ctx, CFS_META_OP_other, upgrade, NULL);
	sql_forget_statements(db);
	return r;
}

static int destroy(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	int r = sql_drop_schema(c);

	atomic_store(&c->db->has_records, false);
	return r;
}

int sql_op_destroy(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct sql_db *db = sql_db(e);
	int r = sql_txn(db, ctx, CFS_META_OP_other, destroy, NULL);

	sql_forget_statements(db);
	return r;
}

int sql_op_sync(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct sql_db *db = sql_db(e);

	return db->dialect->sync ? db->dialect->sync(db, ctx) : 0;
}
