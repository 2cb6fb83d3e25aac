/* SPDX-License-Identifier: Apache-2.0 */
/* Records of cachefs itself, in a table that the first record creates. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "meta/sql/sql-internal.h"

/* 1: the table exists; 0: it does not; or negative. */
static int has_table(struct sql_conn *c)
{
	struct sql_db *db = c->db;
	int r;

	if (atomic_load(&db->has_records))
		return 1;
	r = sql_has_column(c, "cachefs_record", "name");
	if (r > 0)
		atomic_store(&db->has_records, true);
	return r;
}

struct record {
	const char *key;
	const void *value;
	size_t len;
	bool fresh;
};

static int make_table(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	int r;

	sql_repeatable();
	r = has_table(c);
	return r ? CFS_MIN(r, 0) : sql_create_table(c, &sql_record_table);
}

/* 1: the record has this value; 0: it has another one; -ENOENT. */
static int has_value(struct sql_conn *c, const char *key, const void *value, size_t len)
{
	const void *there;
	size_t there_len = 0;
	int r = sql_row(c, SQL_get_record, "b", key, strlen(key));

	if (r > 0) {
		there = sql_blob(c, SQL_get_record, 0, &there_len);
		r = there_len == len && (!len || !memcmp(there, value, len));
	} else if (!r) {
		r = -ENOENT;
	}
	sql_done(c, SQL_get_record);
	return r;
}

/* The record has changed since it was read: the transaction is tried again. */
static int raced(struct sql_conn *c)
{
	c->conflict = true;
	return -EAGAIN;
}

static int put_record(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct record *a = arg;
	int r = 0;

	sql_repeatable();
	if (a->fresh && sql_is_repeated(c)) {
		r = has_value(c, a->key, a->value, a->len);
		if (r != -ENOENT)
			return r ? CFS_MIN(r, 0) : -EEXIST;
		r = 0;
	}
	if (!a->fresh)
		r = sql_exec(c, SQL_set_record, "bb", a->value, a->len, a->key, strlen(a->key));
	if (r)
		return r < 0 ? r : 0;
	r = sql_exec(c, SQL_new_record, "bb", a->key, strlen(a->key), a->value, a->len);
	/* Another client has inserted the record meanwhile, or an earlier attempt has. */
	if (r == -EEXIST && (!a->fresh || sql_is_repeated(c)))
		r = raced(c);
	return r < 0 ? r : 0;
}

int sql_op_put_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
		      const void *value, size_t len, bool fresh)
{
	struct record a = {.key = key, .value = value, .len = len, .fresh = fresh};
	struct sql_db *db = sql_db(e);
	int r = 0;

	if (!atomic_load(&db->has_records))
		r = sql_txn(db, ctx, CFS_META_OP_other, make_table, NULL);
	if (r >= 0)
		atomic_store(&db->has_records, true);
	return r < 0 ? r : sql_txn(db, ctx, CFS_META_OP_other, put_record, &a);
}

struct swap {
	const char *key;
	const void *old, *value;
	size_t old_len, len;
};

static int swap_record(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct swap *a = arg;
	int r;

	sql_repeatable();
	r = has_table(c);
	if (r <= 0)
		return r ? r : -ESTALE;
	if (sql_is_repeated(c)) {
		r = has_value(c, a->key, a->value, a->len);
		if (r)
			return r == -ENOENT ? -ESTALE : CFS_MIN(r, 0);
		r = has_value(c, a->key, a->old, a->old_len);
		if (r <= 0)
			return r ? r : -ESTALE;
	}
	r = sql_exec(c, SQL_swap_record, "bbb", a->value, a->len, a->key, strlen(a->key), a->old,
		     a->old_len);
	if (!r && sql_is_repeated(c))
		return raced(c); /* the earlier attempt was committed meanwhile */
	return r < 0 ? r : r > 0 ? 0 : -ESTALE;
}

int sql_op_swap_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
		       const void *old, size_t old_len, const void *value, size_t len)
{
	struct swap a = {.key = key, .old = old, .old_len = old_len, .value = value, .len = len};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, swap_record, &a);
}

static int drop_record(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const char *key = arg;
	int r;

	sql_repeatable();
	r = has_table(c);
	if (r > 0)
		r = sql_exec(c, SQL_drop_record, "b", key, strlen(key));
	return r < 0 ? r : 0;
}

int sql_op_drop_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key)
{
	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, drop_record, (char *)key);
}

struct reading {
	const char *of; /* a key, or a table */
	cfs_record_fn fn;
	void *arg;
};

static int get_record(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct reading *a = arg;
	const void *value;
	size_t len;
	int r;

	r = has_table(c);
	if (r <= 0)
		return r ? r : -ENOENT;
	r = sql_row(c, SQL_get_record, "b", a->of, strlen(a->of));
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	value = sql_blob(c, SQL_get_record, 0, &len);
	return a->fn(a->arg, a->of, value, len);
}

int sql_op_get_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
		      cfs_record_fn fn, void *arg)
{
	struct reading a = {.of = key, .fn = fn, .arg = arg};

	return sql_read(sql_db(e), ctx, CFS_META_OP_other, get_record, &a);
}

/* The key range from "TABLE/" to the first key beyond that prefix. */
static int each_record(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	char from[CFS_RECORD_KEY_MAX + 1], to[CFS_RECORD_KEY_MAX + 1];
	const struct reading *a = arg;
	int r;

	r = has_table(c);
	if (r <= 0)
		return r;
	snprintf(from, sizeof(from), "%s/", a->of);
	snprintf(to, sizeof(to), "%s%c", a->of, '/' + 1);
	r = sql_query(c, SQL_each_record, "bb", from, strlen(from), to, strlen(to));
	while (r >= 0 && (r = sql_next(c, SQL_each_record)) > 0) {
		char key[CFS_RECORD_KEY_MAX + 1];
		const void *name, *value;
		size_t name_len, len;

		name = sql_blob(c, SQL_each_record, 0, &name_len);
		if (name_len >= sizeof(key))
			continue;
		memcpy(key, name, name_len);
		key[name_len] = '\0';
		value = sql_blob(c, SQL_each_record, 1, &len);
		r = a->fn(a->arg, key, value, len);
		if (r)
			return r;
	}
	return r;
}

int sql_op_each_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *table,
		       cfs_record_fn fn, void *arg)
{
	struct reading a = {.of = table, .fn = fn, .arg = arg};

	return sql_read(sql_db(e), ctx, CFS_META_OP_other, each_record, &a);
}
