/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/live.h"
#include "cmd/access/silent.h"

#define STATS_MAX	(1u << 20)
#define ROWS_PER_HEADER 20

struct stats_opts {
	bool json;
	uint64_t interval_ms;
	int64_t count;
};

#define OPTIONS struct stats_opts
static const struct cfs_opt stats_table[] = {
	OPT_DURATION("interval", interval_ms, "TIME", "time between two lines", .def = "1",
		     .min = 100, .max = 86400000),
	OPT_INT("count", count, "N", "lines, 0: until interrupted", .def = "0", .min = 0,
		.max = INT64_MAX),
	OPT_FLAG("json", json, "print one JSON object per line"),
	{0},
};

/* The columns, each a metric of .stats: a sum over the labels, or one label. */
enum {
	REQUESTS,
	READ_BYTES,
	WRITTEN_BYTES,
	MEMORY_HITS,
	DISK_HITS,
	DISK_MISSES,
	PEER_HITS,
	PEER_MISSES,
	GETS,
	PUTS,
	GET_BYTES,
	PUT_BYTES,
	META_OPS,
	META_SECONDS,
	MEMORY,
	DIRTY,
	STAGED,
	SERIES
};
static const struct series {
	const char *name, *label;
} series[SERIES] = {
	[REQUESTS] = {"cachefs_requests_total", NULL},
	[READ_BYTES] = {"cachefs_read_bytes_total", NULL},
	[WRITTEN_BYTES] = {"cachefs_written_bytes_total", NULL},
	[MEMORY_HITS] = {"cachefs_memory_cache_hits_total", NULL},
	[DISK_HITS] = {"cachefs_disk_cache_hits_total", NULL},
	[DISK_MISSES] = {"cachefs_disk_cache_misses_total", NULL},
	[PEER_HITS] = {"cachefs_peer_hits_total", NULL},
	[PEER_MISSES] = {"cachefs_peer_misses_total", NULL},
	[GETS] = {"cachefs_object_requests_total", "method=\"get\""},
	[PUTS] = {"cachefs_object_requests_total", "method=\"put\""},
	[GET_BYTES] = {"cachefs_object_data_bytes_total", "method=\"get\""},
	[PUT_BYTES] = {"cachefs_object_data_bytes_total", "method=\"put\""},
	[META_OPS] = {"cachefs_meta_operations_total", NULL},
	[META_SECONDS] = {"cachefs_meta_operation_seconds_total", NULL},
	[MEMORY] = {"cachefs_memory_bytes", NULL},
	[DIRTY] = {"cachefs_data_dirty_bytes", NULL},
	[STAGED] = {"cachefs_staging_bytes", NULL},
};

struct sample {
	uint64_t at_ns;
	double v[SERIES];
};

/* NAME{LABELS} VALUE */
static void take_line(struct sample *s, const char *line)
{
	size_t name_len = strcspn(line, "{ "), i;
	const char *value = strrchr(line, ' ');

	if (!value)
		return;
	for (i = 0; i < SERIES; i++) {
		if (strlen(series[i].name) == name_len &&
		    !strncmp(series[i].name, line, name_len) &&
		    (!series[i].label || strstr(line, series[i].label)))
			s->v[i] += strtod(value, NULL);
	}
}

static int take_sample(const char *path, struct sample *ret)
{
	cfs_auto_free char *text = NULL;
	char *line, *save = NULL;
	size_t len;
	int r = live_read(path, STATS_MAX, LIVE_READ_MS, &text, &len);

	if (r < 0)
		return r;
	*ret = (struct sample){.at_ns = cfs_now_ns()};
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (*line != '#')
			take_line(ret, line);
	}
	return 0;
}

/* The value to print; NAN when there was nothing to measure. */
struct rates {
	double seconds;
	double per_s[SERIES];
	double memory_hits, disk_hits, peer_hits; /* 0..1 */
	double meta_s;				  /* of one operation */
	double memory, dirty, staged;
};

static double ratio(double part, double rest)
{
	return part + rest > 0 ? part / (part + rest) : NAN;
}

static struct rates compare(const struct sample *a, const struct sample *b)
{
	struct rates r = {.seconds = (double)(b->at_ns - a->at_ns) / 1e9};
	double d[SERIES];
	size_t i;

	for (i = 0; i < SERIES; i++) {
		d[i] = CFS_MAX(b->v[i] - a->v[i], 0.0);
		r.per_s[i] = d[i] / r.seconds;
	}
	r.memory_hits = ratio(d[MEMORY_HITS], d[DISK_HITS] + d[PEER_HITS] + d[GETS]);
	r.disk_hits = ratio(d[DISK_HITS], d[DISK_MISSES]);
	r.peer_hits = ratio(d[PEER_HITS], d[PEER_MISSES]);
	r.meta_s = d[META_OPS] > 0 ? d[META_SECONDS] / d[META_OPS] : NAN;
	r.memory = b->v[MEMORY];
	r.dirty = b->v[DIRTY];
	r.staged = b->v[STAGED];
	return r;
}

/* At most six characters wide: "12.3K". */
static const char *short_number(double v, double unit, char buf[16])
{
	static const char suffixes[] = " KMGTPE";
	size_t i = 0;

	while (v >= 999.5 && suffixes[i + 1]) {
		v /= unit;
		i++;
	}
	if (i == 0)
		snprintf(buf, 16, "%.0f", v);
	else
		snprintf(buf, 16, v < 99.95 ? "%.1f%c" : "%.0f%c", v, suffixes[i]);
	return buf;
}

static const char *percent(double v, char buf[16])
{
	if (isnan(v))
		return "-";
	snprintf(buf, 16, "%.0f%%", 100 * v);
	return buf;
}

static void print_header(void)
{
	puts("------requests----- ----hits in---- -----objects------- --metadata-- ----memory---");
	puts("  op/s   read write  mem disk peer  get/s put/s   read   op/s     ms   rss  dirty");
}

static void print_row(const struct rates *r)
{
	char b[13][16];

	if (isnan(r->meta_s))
		snprintf(b[10], sizeof(b[10]), "-");
	else
		snprintf(b[10], sizeof(b[10]), "%.2f", 1000 * r->meta_s);
	printf("%6s %6s %5s %4s %4s %4s %6s %5s %6s %6s %6s %5s %6s\n",
	       short_number(r->per_s[REQUESTS], 1000, b[0]),
	       short_number(r->per_s[READ_BYTES], 1024, b[1]),
	       short_number(r->per_s[WRITTEN_BYTES], 1024, b[2]), percent(r->memory_hits, b[3]),
	       percent(r->disk_hits, b[4]), percent(r->peer_hits, b[5]),
	       short_number(r->per_s[GETS], 1000, b[6]), short_number(r->per_s[PUTS], 1000, b[7]),
	       short_number(r->per_s[GET_BYTES], 1024, b[8]),
	       short_number(r->per_s[META_OPS], 1000, b[9]), b[10],
	       short_number(r->memory, 1024, b[11]), short_number(r->dirty, 1024, b[12]));
}

static json_t *or_null(double v)
{
	return isnan(v) ? json_null() : json_real(v);
}

static void print_json(const struct rates *r)
{
	struct timespec now = cfs_wall();
	json_t *j = json_pack(
		"{s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:I, s:I, "
		"s:I}",
		"time", (double)now.tv_sec + (double)now.tv_nsec / 1e9, "seconds", r->seconds,
		"requests_per_s", r->per_s[REQUESTS], "read_bytes_per_s", r->per_s[READ_BYTES],
		"written_bytes_per_s", r->per_s[WRITTEN_BYTES], "memory_hit_ratio",
		or_null(r->memory_hits), "disk_hit_ratio", or_null(r->disk_hits), "peer_hit_ratio",
		or_null(r->peer_hits), "object_gets_per_s", r->per_s[GETS], "object_puts_per_s",
		r->per_s[PUTS], "object_get_bytes_per_s", r->per_s[GET_BYTES],
		"object_put_bytes_per_s", r->per_s[PUT_BYTES], "meta_operations_per_s",
		r->per_s[META_OPS], "meta_operation_s", or_null(r->meta_s), "memory_bytes",
		(json_int_t)r->memory, "dirty_bytes", (json_int_t)r->dirty, "staged_bytes",
		(json_int_t)r->staged);

	json_dumpf(j, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(j);
}

/* Lines come at multiples of the interval, however long reading takes. */
static int watch(const char *point, const struct stats_opts *o)
{
	bool repeat = isatty(STDOUT_FILENO);
	cfs_deadline_t next = cfs_now_ms();
	struct sample before, now;
	struct rates rates;
	char path[4200];
	int64_t n;
	int r;

	snprintf(path, sizeof(path), "%s/.stats", point);
	r = take_sample(path, &before);
	for (n = 0; r == 0 && (o->count == 0 || n < o->count); n++) {
		next = CFS_MAX(next + o->interval_ms, cfs_now_ms());
		if (!live_wait(next))
			break;
		r = take_sample(path, &now);
		if (r < 0)
			break;
		rates = compare(&before, &now);
		before = now;
		if (!o->json && (n == 0 || (repeat && n % ROWS_PER_HEADER == 0)))
			print_header();
		if (o->json)
			print_json(&rates);
		else
			print_row(&rates);
		if (fflush(stdout))
			return CMD_SYSTEM;
	}
	if (r == 0 || live_stopped())
		return CMD_OK;
	return r == -ETIMEDOUT ? silent_error(point) : cmd_error("%s: %s", path, strerror(-r));
}

static int stats_run(void *options, const char **args)
{
	char point[4096];

	if (control_find_mount(args[0], point, sizeof(point)) < 0)
		return CMD_USAGE;
	live_begin();
	return watch(point, options);
}

const struct cmd cmd_stats = {
	.name = "stats",
	.synopsis = "[--interval TIME] [--count N] [--json] MOUNTPOINT",
	.summary = "Shows the activity of a mount: requests, cache hits, objects, metadata, memory",
	CMD_OPTIONS(stats_table),
	.min_args = 1,
	.max_args = 1,
	.run = stats_run,
};
