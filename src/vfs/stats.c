/* SPDX-License-Identifier: Apache-2.0 */
/* The text of .stats: one metric per line, in Prometheus' exposition format. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "vfs-internal.h"

static uint64_t cpu_ns(void *vfs)
{
	struct rusage use = {0};

	getrusage(RUSAGE_SELF, &use);
	return (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000000 +
	       (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1000;
}

static uint64_t resident_bytes(void *vfs)
{
	unsigned long long pages, resident = 0;
	FILE *in = fopen("/proc/self/statm", "re");

	if (!in)
		return 0;
	if (fscanf(in, "%llu %llu", &pages, &resident) != 2)
		resident = 0;
	fclose(in);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t in_flight(void *vfs)
{
	uint64_t n, oldest_ns;

	watchdog_look(&n, &oldest_ns);
	return n;
}

static uint64_t oldest_ns(void *vfs)
{
	uint64_t n, oldest_ns;

	watchdog_look(&n, &oldest_ns);
	return oldest_ns;
}

static uint64_t open_inodes(void *vfs)
{
	return cfs_table_count(((struct cfs_vfs *)vfs)->vnodes);
}

static uint64_t restarts(void *vfs)
{
	struct cfs_handoff *h = ((struct cfs_vfs *)vfs)->conf.handoff;

	return h ? atomic_load(&cfs_handoff_header(h)->restarts) : 0;
}

static uint64_t takeovers(void *vfs)
{
	struct cfs_handoff *h = ((struct cfs_vfs *)vfs)->conf.handoff;

	return h ? atomic_load(&cfs_handoff_header(h)->takeovers) : 0;
}

#define M(n, h, field)	   CFS_METRIC(struct cfs_vfs, n, NULL, h, field)
#define NS(n, l, h, field) CFS_METRIC_NS(struct cfs_vfs, n, l, h, field)
#define R(n, h, fn)	   CFS_METRIC_READ(n, h, fn)
static const struct cfs_metric metrics[] = {
	{.name = "cpu_seconds_total",
	 .help = "Processor time of the mount's process",
	 .nanoseconds = true,
	 .read = cpu_ns},
	R("memory_bytes", "Resident memory of the mount's process", resident_bytes),
	M("requests_total", "Requests of the kernel", requests),
	NS("request_seconds_total", NULL,
	   "Time that requests of the kernel took, waits for file locks not counted", request_ns),
	R("requests_in_flight", "Requests of the kernel that are not answered yet", in_flight),
	{.name = "request_oldest_seconds",
	 .help = "Age of the oldest of them, those that wait for file locks left out",
	 .nanoseconds = true,
	 .read = oldest_ns},
	M("watchdog_reports_total", "Times that the log was told of a request that is stuck",
	  watchdog.reports),
	M("read_bytes_total", "Data of files read through the mount", read_bytes),
	M("written_bytes_total", "Data of files written through the mount", written_bytes),
	M("passthrough_opens_total", "Opens of files that the kernel reads without the mount",
	  passthrough.opens),
	M("passthrough_handles", "Open ones of these", passthrough.open),
	M("passthrough_moves_total",
	  "Files that changed, or were opened for writing, while such were open",
	  passthrough.moves),
	M("open_handles", "Open files and directories", handles.in_use),
	R("open_inodes", "Inodes with open handles", open_inodes),
	M("closed_files_failed_total", "Closed files whose data was not stored in time, or is lost",
	  closed.n_lost),
	R("worker_restarts_total", "Processes of the mount started after one had died", restarts),
	R("takeovers_total", "Processes of the mount that took it over alive", takeovers),
	M("attr_cache_hits_total", "Attributes answered from memory", cache.stats.attr_hits),
	M("attr_cache_misses_total", "Attributes asked of the metadata", cache.stats.attr_misses),
	M("entry_cache_hits_total", "Names answered from memory", cache.stats.entry_hits),
	M("entry_cache_misses_total", "Names asked of the metadata", cache.stats.entry_misses),
	M("new_dir_absent_total", "Absent names of new directories answered from memory",
	  newdirs.hits),
	M("listing_cache_hits_total", "Opens of directories whose listing the kernel has",
	  dircache.hits),
	M("listing_cache_bytes", "Memory for the listings that the kernel has", dircache.bytes),
};

const struct cfs_metric_table cfs_vfs_metrics = CFS_METRIC_TABLE(metrics);

struct text {
	FILE *out;
	bool described;	    /* HELP and TYPE lines, which promtool(1) wants */
	const char *common; /* labels of each metric; "": none */
	const char *name;   /* of the last metric of a table */
};

static void describe(const struct text *t, const char *name, const char *help)
{
	size_t len = strlen(name);
	bool counter = len > 6 && !strcmp(name + len - 6, "_total");

	if (t->described)
		fprintf(t->out, "# HELP %s %s.\n# TYPE %s %s\n", name, help, name,
			counter ? "counter" : "gauge");
}

static void print_labels(const struct text *t, const char *name, const char *labels)
{
	bool both = labels && *t->common, any = labels || *t->common;

	fprintf(t->out, "%s%s%s%s%s%s ", name, any ? "{" : "", t->common, both ? "," : "",
		labels ? labels : "", any ? "}" : "");
}

static void print_number(const struct text *t, const char *name, const char *labels, uint64_t v)
{
	print_labels(t, name, labels);
	fprintf(t->out, "%llu\n", (unsigned long long)v);
}

static void print_seconds(const struct text *t, const char *name, const char *labels, uint64_t ns)
{
	print_labels(t, name, labels);
	fprintf(t->out, "%llu.%06llu\n", (unsigned long long)(ns / 1000000000),
		(unsigned long long)(ns / 1000 % 1000000));
}

static void print_metric(void *arg, const struct cfs_metric *m, uint64_t v)
{
	struct text *t = arg;
	char name[80];

	snprintf(name, sizeof(name), "cachefs_%s", m->name);
	if (!t->name || strcmp(m->name, t->name) != 0)
		describe(t, name, m->help);
	t->name = m->name;
	(m->nanoseconds ? print_seconds : print_number)(t, name, m->labels, v);
}

static uint64_t seconds_since(int64_t then_s)
{
	return (uint64_t)CFS_MAX(cfs_wall_s() - then_s, 0);
}

static void print_process(const struct text *t, const struct cfs_vfs *v)
{
	int64_t mounted_s = v->conf.handoff
				    ? (int64_t)cfs_handoff_header(v->conf.handoff)->started_s
				    : (int64_t)v->started.tv_sec;
	char labels[256];

	snprintf(labels, sizeof(labels), "version=\"%s\",build=\"%s\"", CFS_MODULE_VERSION,
		 v->conf.build ? v->conf.build : "");
	describe(t, "cachefs_build_info", "Always 1, the labels are version and build");
	print_number(t, "cachefs_build_info", labels, 1);
	describe(t, "cachefs_uptime_seconds", "Time since the mount began");
	print_number(t, "cachefs_uptime_seconds", NULL, seconds_since(mounted_s));
	describe(t, "cachefs_worker_uptime_seconds", "Time since the mount's process began");
	print_number(t, "cachefs_worker_uptime_seconds", NULL, seconds_since(v->started.tv_sec));
}

#define PER_OP(name, help, print, field)                                                           \
	do {                                                                                       \
		describe(t, name, help);                                                           \
		for (i = 0; i < CFS_META_OP_COUNT; i++) {                                          \
			snprintf(label, sizeof(label), "op=\"%s\"",                                \
				 cfs_meta_op_name((enum cfs_meta_op)i));                           \
			print(t, name, label, s.op[i].field);                                      \
		}                                                                                  \
	} while (0)
static void print_meta(const struct text *t, struct cfs_meta *m)
{
	struct cfs_meta_stats s;
	char label[80];
	int i;

	cfs_meta_stats(m, &s);
	PER_OP("cachefs_meta_operations_total", "Metadata operations", print_number, calls);
	PER_OP("cachefs_meta_errors_total", "Metadata operations that failed", print_number,
	       errors);
	PER_OP("cachefs_meta_round_trips_total", "Requests to the metadata database", print_number,
	       round_trips);
	PER_OP("cachefs_meta_operation_seconds_total", "Time that metadata operations took",
	       print_seconds, time_ns);
	describe(t, "cachefs_meta_retries_total", "Metadata transactions that were tried again");
	print_number(t, "cachefs_meta_retries_total", NULL, s.retries);
	describe(t, "cachefs_meta_log_bytes", "Length of SQLite's write-ahead log");
	print_number(t, "cachefs_meta_log_bytes", NULL, s.log_bytes);
}
#undef PER_OP

int cfs_vfs_show_metrics(struct cfs_vfs *v, const char *labels, char **ret, size_t *ret_len)
{
	struct text t = {.described = labels, .common = labels ? labels : ""};
	char *text = NULL;
	size_t len = 0;
	bool failed;

	t.out = open_memstream(&text, &len);
	if (!t.out)
		return -ENOMEM;
	print_process(&t, v);
	cfs_metrics_each(v->conf.metrics, print_metric, &t);
	print_meta(&t, v->conf.meta);
	failed = ferror(t.out);
	if (fclose(t.out) || failed) {
		free(text);
		return -ENOMEM;
	}
	*ret = text;
	*ret_len = len;
	return 0;
}
