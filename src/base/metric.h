/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of a part of the mount, as a table: .stats, the metrics port and status pages show
 * them, and look them up, without knowing the part.
 *
 * A number is a member of the part, which other threads may change meanwhile; or what a function
 * returns; or a member of a snapshot, when the table has a function that takes one.
 */
#ifndef CFS_METRIC_H
#define CFS_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cfs_metric {
	const char *name;   /* without "cachefs_"; that of a counter ends in "_total" */
	const char *labels; /* NULL: none. Metrics of one name stand together */
	const char *help;   /* NULL: as the one before */
	bool nanoseconds;   /* shown in seconds */
	uint64_t (*read)(void *part);
	size_t offset, size; /* without read */
};

#define CFS_METRIC_SNAPSHOT_MAX 2048
struct cfs_metric_table {
	const struct cfs_metric *v;
	unsigned n;
	/* Fills up to CFS_METRIC_SNAPSHOT_MAX bytes; the offsets are in it. NULL: in the part. */
	void (*snapshot)(void *part, void *ret);
};

#define CFS_METRIC_AT(type, field)                                                                 \
	.offset = offsetof(type, field), .size = CFS_METRIC_SIZE(sizeof(((type *)0)->field))
/* The size, which must be one that can be read. */
#define CFS_METRIC_SIZE(size)                                                                      \
	((size) + 0 * sizeof(struct {                                                              \
			  _Static_assert((size) == 4 || (size) == 8, "a metric has 4 or 8 bytes"); \
			  char none;                                                               \
		  }))
/* A member of `type`, the part or its snapshot: of 4 or 8 bytes. */
#define CFS_METRIC(type, n, l, h, field)                                                           \
	{                                                                                          \
		.name = n, .labels = l, .help = h, CFS_METRIC_AT(type, field)                      \
	}
#define CFS_METRIC_NS(type, n, l, h, field)                                                        \
	{                                                                                          \
		.name = n, .labels = l, .help = h, .nanoseconds = true, CFS_METRIC_AT(type, field) \
	}
#define CFS_METRIC_READ(n, h, fn)                                                                  \
	{                                                                                          \
		.name = n, .help = h, .read = fn                                                   \
	}
#define CFS_METRIC_TABLE(metrics, ...)                                                             \
	{                                                                                          \
		.v = (metrics), .n = sizeof(metrics) / sizeof((metrics)[0]), __VA_ARGS__           \
	}

/* A part that is missing (NULL) has zeros. Any thread; does not wait for a backend. */
typedef void (*cfs_metric_fn)(void *arg, const struct cfs_metric *m, uint64_t value);
/* UINT64_MAX: the table has no such metric. labels: NULL, or those of the table. */
uint64_t cfs_metric_get(const struct cfs_metric_table *t, void *part, const char *name,
			const char *labels);

/* The parts of a mount. All are added before the first is shown. */
#define CFS_METRIC_PARTS 13
struct cfs_metrics {
	struct {
		const struct cfs_metric_table *table;
		void *part;
	} v[CFS_METRIC_PARTS];
	unsigned n;
};
void cfs_metrics_add(struct cfs_metrics *all, const struct cfs_metric_table *t, void *part);
void cfs_metrics_each(const struct cfs_metrics *all, cfs_metric_fn fn, void *arg);
uint64_t cfs_metrics_get(const struct cfs_metrics *all, const char *name, const char *labels);

#endif
