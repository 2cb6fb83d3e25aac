/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/module.h"
#include "meta/api/core-internal.h"

/* SQLite is built in; the others are modules that need the client library of their database. */
static const struct {
	const char *scheme, *module;
} modules[] = {
	{"redis", "redis"}, {"rediss", "redis"},	{"unix", "redis"},
	{"mysql", "mysql"}, {"postgres", "postgresql"}, {"postgresql", "postgresql"},
};

int cfs_engine_find(const char *scheme, const struct cfs_engine_ops **ret, char err[256])
{
	const void *table;
	size_t i;
	int rc;

	if (strcmp(scheme, cfs_engine_sqlite.name) == 0) {
		*ret = &cfs_engine_sqlite;
		return 0;
	}
	for (i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
		if (strcmp(modules[i].scheme, scheme) != 0)
			continue;
		rc = cfs_module_load(modules[i].module, &table, err);
		if (rc)
			return rc;
		*ret = table;
		return 0;
	}
	return -EINVAL;
}
