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

struct all {
	struct cfs_vfs_stats vfs;
	struct cfs_data_stats data;
	struct cfs_store_stats store;
	struct cfs_pool_stats pool;
};

#define AT(f) offsetof(struct all, f), sizeof(((struct all *)NULL)->f)
#define M(name, field, help)                                                                       \
	{                                                                                          \
		"cachefs_" name, NULL, help, AT(field), false                                      \
	}
/* One of several with the same name, which stand together; the first has the help. */
#define L(name, labels, field, help)                                                               \
	{                                                                                          \
		"cachefs_" name, labels, help, AT(field), false                                    \
	}
#define NS(name, labels, field, help)                                                              \
	{                                                                                          \
		"cachefs_" name, labels, help, AT(field), true                                     \
	}
#define BOTH(K, name, field, help)                                                                 \
	K(name, "direction=\"asked\"", store.peer_asked.field, help),                              \
		K(name, "direction=\"served\"", store.peer_served.field, help)
#define CONNECTIONS(way, s)                                                                        \
	CONNECTION(way, s, "none", CFS_PEER_TCP), CONNECTION(way, s, "openssl", CFS_PEER_TLS),     \
		CONNECTION(way, s, "kernel", CFS_PEER_KTLS)
#define CONNECTION(way, s, tls, i)                                                                 \
	L("peer_connections", "direction=\"" way "\",tls=\"" tls "\"", store.s.conns_by[i],        \
	  "Open connections between members")
#define ERRORS(way, s)                                                                             \
	ERROR(way, s, "connect", CFS_PEER_E_CONNECT), ERROR(way, s, "auth", CFS_PEER_E_AUTH),      \
		ERROR(way, s, "timeout", CFS_PEER_E_TIMEOUT),                                      \
		ERROR(way, s, "lost", CFS_PEER_E_LOST),                                            \
		ERROR(way, s, "protocol", CFS_PEER_E_PROTOCOL),                                    \
		ERROR(way, s, "checksum", CFS_PEER_E_CHECKSUM),                                    \
		ERROR(way, s, "busy", CFS_PEER_E_BUSY),                                            \
		ERROR(way, s, "remote", CFS_PEER_E_REMOTE),                                        \
		ERROR(way, s, "canceled", CFS_PEER_E_CANCELED)
#define ERROR(way, s, kind, e)                                                                     \
	L("peer_errors_total", "direction=\"" way "\",kind=\"" kind "\"", store.s.errors[e],       \
	  "Requests between members that failed")
static const struct metric {
	const char *name, *labels, *help;
	size_t offset, size;
	bool nanoseconds; /* shown in seconds */
} metrics[] = {
	M("requests_total", vfs.requests, "Requests of the kernel"),
	NS("request_seconds_total", NULL, vfs.request_ns,
	   "Time that requests of the kernel took, waits for file locks not counted"),
	M("requests_in_flight", vfs.in_flight, "Requests of the kernel that are not answered yet"),
	NS("request_oldest_seconds", NULL, vfs.oldest_ns,
	   "Age of the oldest of them, those that wait for file locks left out"),
	M("watchdog_reports_total", vfs.watchdog_reports,
	  "Times that the log was told of a request that is stuck"),
	M("read_bytes_total", vfs.read_bytes, "Data of files read through the mount"),
	M("written_bytes_total", vfs.written_bytes, "Data of files written through the mount"),
	M("open_handles", vfs.handles, "Open files and directories"),
	M("open_inodes", vfs.open_inodes, "Inodes with open handles"),
	M("worker_restarts_total", vfs.restarts,
	  "Processes of the mount started after one had died"),
	M("takeovers_total", vfs.takeovers, "Processes of the mount that took it over alive"),
	M("attr_cache_hits_total", vfs.attr_hits, "Attributes answered from memory"),
	M("attr_cache_misses_total", vfs.attr_misses, "Attributes asked of the metadata"),
	M("entry_cache_hits_total", vfs.entry_hits, "Names answered from memory"),
	M("entry_cache_misses_total", vfs.entry_misses, "Names asked of the metadata"),

	M("data_open_files", data.open_files, "Files whose data is in use"),
	M("data_read_sessions", data.read_sessions, "Streams of reads that are followed"),
	M("data_dirty_bytes", data.dirty_bytes, "Written data that is not yet stored"),
	M("data_dirty_files", data.dirty_files, "Files with such data"),
	M("data_lost_bytes_total", data.lost_bytes,
	  "Written data that could not be stored and was dropped"),
	M("data_open_slices", data.open_slices, "Slices being written"),
	M("data_commits_total", data.commits, "Slices recorded in the metadata"),
	M("data_commit_errors_total", data.commit_errors, "Slices that could not be recorded"),
	M("data_readahead_bytes_total", data.readahead_bytes, "Data fetched ahead of reads"),
	M("data_compactions_total", data.compactions, "Chunks whose slices were merged"),
	M("data_prefetches_declined_total", data.prefetches_declined,
	  "Whole blocks not fetched, as too little of others was read"),

	M("pool_budget_bytes", pool.budget, "Limit of memory for data"),
	M("pool_mapped_bytes", pool.mapped, "Memory for data taken from the system"),
	L("pool_used_bytes", "use=\"cache\"", pool.used[CFS_USE_CACHE], "Memory for data in use"),
	L("pool_used_bytes", "use=\"read\"", pool.used[CFS_USE_READ], NULL),
	L("pool_used_bytes", "use=\"write\"", pool.used[CFS_USE_WRITE], NULL),
	L("pool_used_bytes", "use=\"peer\"", pool.used[CFS_USE_PEER], NULL),
	M("pool_waits_total", pool.waits, "Times that somebody waited for memory"),

	M("memory_cache_hits_total", store.memory_hits, "Reads served from memory"),
	M("memory_cache_hit_bytes_total", store.memory_hit_bytes, "Data served from memory"),
	M("memory_cache_bytes", store.memory_bytes, "Blocks kept in memory"),
	M("store_prefetches_total", store.prefetches, "Ranges fetched ahead"),
	M("store_prefetch_drops_total", store.prefetch_drops,
	  "Ranges not fetched ahead, as too many waited"),
	M("store_prefetch_cancels_total", store.prefetch_cancels,
	  "Queued ranges that nobody needed any more"),
	M("store_block_prefetches_total", store.block_prefetches,
	  "Whole blocks fetched after a part of them was read"),
	M("store_block_prefetch_drops_total", store.block_prefetch_drops,
	  "Whole blocks not fetched, as too many waited"),
	M("store_uploads_queued", store.uploads_queued, "Uploads that wait for their turn"),
	M("store_downloads_queued", store.downloads_queued, "Downloads that wait for their turn"),
	M("disk_cache_hits_total", store.disk_hits, "Reads served from the disk cache"),
	M("disk_cache_hit_bytes_total", store.disk_hit_bytes, "Data served from the disk cache"),
	M("disk_cache_misses_total", store.disk_misses,
	  "Reads that the disk cache could not serve"),
	M("disk_cache_writes_total", store.disk_writes, "Blocks written to the disk cache"),
	M("disk_cache_write_bytes_total", store.disk_write_bytes, "Data written to the disk cache"),
	M("disk_cache_drops_total", store.disk_drops,
	  "Blocks offered to the disk cache and not written"),
	M("disk_cache_evictions_total", store.disk_evictions, "Blocks removed to make room"),
	M("disk_cache_evicted_bytes_total", store.disk_evicted_bytes, "Data removed to make room"),
	M("disk_cache_expired_total", store.disk_expired, "Blocks removed because of cache-expire"),
	M("disk_cache_corrupt_total", store.disk_corrupt,
	  "Blocks with a wrong checksum, which were removed"),
	M("disk_cache_errors_total", store.disk_errors, "Failed calls on the cache disks"),
	M("disk_cache_directory_failures_total", store.disk_dir_failures,
	  "Times that a cache directory was given up"),
	M("disk_cache_scans_total", store.disk_scans, "Finished scans of cache directories"),
	M("disk_cache_bytes", store.disk_bytes, "Data in the disk cache"),
	M("disk_cache_blocks", store.disk_blocks, "Blocks in the disk cache"),
	M("disk_cache_pending_bytes", store.disk_pending_bytes,
	  "Data that waits to be written to the disk cache"),
	M("disk_cache_directories", store.disk_dirs, "Cache directories"),
	M("disk_cache_directories_failed", store.disk_dirs_bad,
	  "Cache directories that are not in use"),

	M("staging_blocks", store.staged_blocks, "Blocks on disk that are not yet uploaded"),
	M("staging_bytes", store.staged_bytes, "Data on disk that is not yet uploaded"),
	M("staging_oldest_seconds", store.staged_oldest_s,
	  "Age of the oldest block that is not yet uploaded"),
	M("staging_damaged_blocks", store.staged_damaged,
	  "Blocks on disk that cannot be uploaded as they are damaged"),
	M("staging_uploads_total", store.stage_uploads, "Blocks uploaded from disk"),
	M("staging_upload_errors_total", store.stage_upload_errors,
	  "Failed uploads from disk, which are tried again"),
	M("staging_bypassed_total", store.stage_bypassed,
	  "Blocks uploaded at once although writeback is on"),

	M("peer_members", store.peer_members, "Members of the cache group"),
	M("peer_members_apart", store.peer_members_apart,
	  "Of these the ones that are not asked: only one side has group-tls, or another volume"),
	M("peer_members_slow", store.peer_members_slow,
	  "Of these the ones that are slow, so that others stand in for them"),
	M("peer_hits_total", store.peer_hits, "Reads served by other members"),
	M("peer_hit_bytes_total", store.peer_hit_bytes, "Data served by other members"),
	M("peer_misses_total", store.peer_misses, "Reads that no other member could serve"),
	M("peer_fallbacks_total", store.peer_fallbacks,
	  "Of these because of an error or a deadline"),
	M("peer_hedges_total", store.peer_hedges,
	  "Reads sent to the object store, too, as another member was late"),
	M("peer_hedge_wins_total", store.peer_hedge_wins,
	  "Of these the ones that the object store answered first"),
	BOTH(L, "peer_requests_total", requests, "Requests between members that ended well"),
	M("peer_requests_direct_total", store.peer_asked.direct,
	  "Requests to members whose answer was received by the thread that waited for it"),
	BOTH(L, "peer_bytes_total", bytes, "Data sent between members"),
	BOTH(L, "peer_request_misses_total", misses, "Requests for what the other did not have"),
	BOTH(NS, "peer_request_seconds_total", latency_ns,
	     "Time that requests between members took"),
	CONNECTIONS("asked", peer_asked),
	CONNECTIONS("served", peer_served),
	BOTH(L, "peer_inflight_bytes", inflight_bytes, "Data being sent between members"),
	ERRORS("asked", peer_asked),
	ERRORS("served", peer_served),

	L("object_requests_total", "method=\"get\"", store.gets, "Requests to the object store"),
	L("object_requests_total", "method=\"put\"", store.puts, NULL),
	L("object_requests_total", "method=\"delete\"", store.deletes, NULL),
	L("object_request_errors_total", "method=\"get\"", store.get_errors,
	  "Requests to the object store that failed after all retries"),
	L("object_request_errors_total", "method=\"put\"", store.put_errors, NULL),
	L("object_request_errors_total", "method=\"delete\"", store.delete_errors, NULL),
	L("object_data_bytes_total", "method=\"get\"", store.get_bytes,
	  "Data moved from and to the object store"),
	L("object_data_bytes_total", "method=\"put\"", store.put_bytes, NULL),
	NS("object_request_seconds_total", "method=\"get\"", store.get_ns,
	   "Time that requests to the object store took"),
	NS("object_request_seconds_total", "method=\"put\"", store.put_ns, NULL),
	M("object_retries_total", store.object_retries,
	  "Requests to the object store that were tried again"),
	M("object_damaged_total", store.object_damaged,
	  "Bodies of answers and uploads that did not arrive as they were sent"),
};
#undef AT
#undef M
#undef L
#undef NS
#undef BOTH
#undef CONNECTIONS
#undef CONNECTION
#undef ERRORS
#undef ERROR

struct text {
	FILE *out;
	bool described;	    /* HELP and TYPE lines, which promtool(1) wants */
	const char *common; /* labels of each metric; "": none */
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

static void print_metric(const struct text *t, const struct metric *m, const struct all *all)
{
	const char *at = (const char *)all + m->offset;
	unsigned narrow = 0;
	uint64_t v = 0;

	if (m->size == sizeof(narrow)) {
		memcpy(&narrow, at, sizeof(narrow));
		v = narrow;
	} else {
		memcpy(&v, at, sizeof(v));
	}
	if (m->nanoseconds)
		print_seconds(t, m->name, m->labels, v);
	else
		print_number(t, m->name, m->labels, v);
}

static void print_table(const struct text *t, const struct all *all)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(metrics); i++) {
		const struct metric *m = &metrics[i];

		if (i == 0 || strcmp(m->name, m[-1].name) != 0)
			describe(t, m->name, m->help);
		print_metric(t, m, all);
	}
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
	unsigned long long pages, resident = 0;
	struct rusage use;
	char labels[256];
	FILE *in;

	snprintf(labels, sizeof(labels), "version=\"%s\",build=\"%s\"", CFS_MODULE_VERSION,
		 v->conf.build ? v->conf.build : "");
	describe(t, "cachefs_build_info", "Always 1, the labels are version and build");
	print_number(t, "cachefs_build_info", labels, 1);
	describe(t, "cachefs_uptime_seconds", "Time since the mount began");
	print_number(t, "cachefs_uptime_seconds", NULL, seconds_since(mounted_s));
	describe(t, "cachefs_worker_uptime_seconds", "Time since the mount's process began");
	print_number(t, "cachefs_worker_uptime_seconds", NULL, seconds_since(v->started.tv_sec));
	if (getrusage(RUSAGE_SELF, &use) == 0) {
		describe(t, "cachefs_cpu_seconds_total", "Processor time of the mount's process");
		print_seconds(t, "cachefs_cpu_seconds_total", NULL,
			      (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000000 +
				      (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) *
					      1000);
	}
	in = fopen("/proc/self/statm", "re");
	if (!in)
		return;
	if (fscanf(in, "%llu %llu", &pages, &resident) == 2) {
		describe(t, "cachefs_memory_bytes", "Resident memory of the mount's process");
		print_number(t, "cachefs_memory_bytes", NULL,
			     resident * (uint64_t)sysconf(_SC_PAGESIZE));
	}
	fclose(in);
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
}
#undef PER_OP

int cfs_vfs_metrics(struct cfs_vfs *v, const char *labels, char **ret, size_t *ret_len)
{
	struct text t = {.described = labels, .common = labels ? labels : ""};
	struct all all;
	char *text = NULL;
	size_t len = 0;
	bool failed;

	t.out = open_memstream(&text, &len);
	if (!t.out)
		return -ENOMEM;
	cfs_vfs_stats(v, &all.vfs);
	cfs_data_stats(v->conf.data, &all.data);
	cfs_store_stats(v->conf.store, &all.store);
	cfs_pool_stats(v->conf.pool, &all.pool);
	print_process(&t, v);
	print_table(&t, &all);
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
