/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cachefs objbench: the measurements are in objbench.c, the tests of the surface in
 * objbench-check.c.
 */
#ifndef CFS_CMD_OBJBENCH_H
#define CFS_CMD_OBJBENCH_H

#include <cachefs/object.h>

/* One object call. */
#define OBJBENCH_CALL_MS 60000

struct objcheck_result {
	const char *name;
	bool passed;
	char text[200]; /* the reason of a failure */
};

/*
 * Tests every operation that a volume needs of a store, on objects below `prefix`, and calls fn
 * with each outcome. Returns how many failed.
 */
unsigned objcheck_run(struct cfs_object_store *o, const char *prefix,
		      void (*fn)(void *arg, const struct objcheck_result *result), void *arg);

#endif
