/* SPDX-License-Identifier: Apache-2.0 */
/* A number of a part, by the name of its metric, which must be in the table. */
#ifndef CFS_TESTS_METRIC_H
#define CFS_TESTS_METRIC_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/metric.h"

/* method: of metrics that have this label; NULL: of others. */
static inline uint64_t metric_of(const struct cfs_metric_table *t, void *part, const char *name,
				 const char *method)
{
	char labels[32];
	uint64_t value;

	snprintf(labels, sizeof(labels), "method=\"%s\"", method ? method : "");
	value = cfs_metric_get(t, part, name, method ? labels : NULL);
	assert_int_not_equal(value, UINT64_MAX);
	return value;
}

#endif
