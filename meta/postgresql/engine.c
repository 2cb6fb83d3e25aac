/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/module.h"
#include "meta/postgresql/pg-internal.h"
#include "meta/sql/engine-ops.h"

static void pg_close(struct cfs_engine *e)
{
	struct pg_db *db = pg_db(sql_db(e));

	sql_db_deinit(&db->sql);
	cfs_optimistic_destroy(&db->optimistic);
	pg_free_url(db);
	free(db->schema);
	free(db);
}

static int pg_open(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256]);

static const struct cfs_engine_ops engine = {
	.name = "postgresql",
	.open = pg_open,
	.close = pg_close,
	SQL_ENGINE_OPTIMISTIC_OPS(pg),
	.rename = sql_op_rename,
	.commit_group = pg_op_commit_group,
	.settle = pg_op_settle,
};

static int pg_open(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256])
{
	struct pg_db *db = calloc(1, sizeof(*db));
	int r;

	if (!db)
		return cfs_fail(err, -ENOMEM, "out of memory");
	cfs_optimistic_init(&db->optimistic);
	db->sql.optimistic = &db->optimistic;
	snprintf(err, 256, "postgres://: bad value of a max_ option or of table_prefix");
	r = sql_db_init(&db->sql, conf, &engine, &pg_dialect);
	if (!r) {
		snprintf(err, 256, "out of memory");
		r = pg_parse_url(db, conf->url, err);
	}
	if (!r)
		r = sql_db_probe(&db->sql, cfs_deadline_in(db->sql.timeout_ms), err);
	if (r < 0) {
		pg_close(&db->sql.engine);
		return r;
	}
	*ret = &db->sql.engine;
	return 0;
}

CFS_MODULE_EXPORT(&engine);
