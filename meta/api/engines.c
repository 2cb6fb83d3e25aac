/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/module.h"
#include "meta/api/core-internal.h"

/* SQLite is built in; the others come with the client library of their database. */
int cfs_engine_find(const char *engine, const struct cfs_engine_ops **ret, char err[256])
{
	const void *table;
	int rc;

	if (!engine)
		return -EINVAL;
	if (strcmp(engine, cfs_engine_sqlite.name) == 0) {
		*ret = &cfs_engine_sqlite;
		return 0;
	}
	rc = cfs_module_load(engine, &table, err);
	if (!rc)
		*ret = table;
	return rc;
}
