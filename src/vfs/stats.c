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

#define M(metric, field)                                                                           \
	{                                                                                          \
		"cachefs_" metric, offsetof(struct all, field),                                    \
			sizeof(((struct all *)NULL)->field), false                                 \
	}
#define NS(metric, field)                                                                          \
	{                                                                                          \
		"cachefs_" metric, offsetof(struct all, field),                                    \
			sizeof(((struct all *)NULL)->field), true                                  \
	}
#define PEER_ERROR(way, s, kind, e)                                                                \
	M("peer_errors_total{direction=\"" way "\",kind=\"" kind "\"}", store.s.errors[e])
#define PEER(way, s)                                                                               \
	M("peer_requests_total{direction=\"" way "\"}", store.s.requests),                         \
		M("peer_bytes_total{direction=\"" way "\"}", store.s.bytes),                       \
		M("peer_request_misses_total{direction=\"" way "\"}", store.s.misses),             \
		NS("peer_request_seconds_total{direction=\"" way "\"}", store.s.latency_ns),       \
		M("peer_connections{direction=\"" way "\"}", store.s.conns),                       \
		M("peer_inflight_bytes{direction=\"" way "\"}", store.s.inflight_bytes),           \
		PEER_ERROR(way, s, "connect", CFS_PEER_E_CONNECT),                                 \
		PEER_ERROR(way, s, "auth", CFS_PEER_E_AUTH),                                       \
		PEER_ERROR(way, s, "timeout", CFS_PEER_E_TIMEOUT),                                 \
		PEER_ERROR(way, s, "lost", CFS_PEER_E_LOST),                                       \
		PEER_ERROR(way, s, "protocol", CFS_PEER_E_PROTOCOL),                               \
		PEER_ERROR(way, s, "checksum", CFS_PEER_E_CHECKSUM),                               \
		PEER_ERROR(way, s, "busy", CFS_PEER_E_BUSY),                                       \
		PEER_ERROR(way, s, "remote", CFS_PEER_E_REMOTE),                                   \
		PEER_ERROR(way, s, "canceled", CFS_PEER_E_CANCELED)
static const struct metric {
	const char *name;
	size_t offset, size;
	bool nanoseconds; /* shown in seconds */
} metrics[] = {
	M("open_handles", vfs.handles),
	M("open_inodes", vfs.open_inodes),
	M("attr_cache_hits_total", vfs.attr_hits),
	M("attr_cache_misses_total", vfs.attr_misses),
	M("entry_cache_hits_total", vfs.entry_hits),
	M("entry_cache_misses_total", vfs.entry_misses),

	M("data_open_files", data.open_files),
	M("data_read_sessions", data.read_sessions),
	M("data_dirty_bytes", data.dirty_bytes),
	M("data_open_slices", data.open_slices),
	M("data_commits_total", data.commits),
	M("data_commit_errors_total", data.commit_errors),
	M("data_readahead_bytes_total", data.readahead_bytes),
	M("data_compactions_total", data.compactions),
	M("data_prefetches_declined_total", data.prefetches_declined),

	M("pool_budget_bytes", pool.budget),
	M("pool_mapped_bytes", pool.mapped),
	M("pool_used_bytes{use=\"cache\"}", pool.used[CFS_USE_CACHE]),
	M("pool_used_bytes{use=\"read\"}", pool.used[CFS_USE_READ]),
	M("pool_used_bytes{use=\"write\"}", pool.used[CFS_USE_WRITE]),
	M("pool_used_bytes{use=\"peer\"}", pool.used[CFS_USE_PEER]),
	M("pool_waits_total", pool.waits),

	M("memory_cache_hits_total", store.memory_hits),
	M("memory_cache_hit_bytes_total", store.memory_hit_bytes),
	M("memory_cache_bytes", store.memory_bytes),
	M("store_prefetches_total", store.prefetches),
	M("store_prefetch_drops_total", store.prefetch_drops),
	M("store_prefetch_cancels_total", store.prefetch_cancels),
	M("store_block_prefetches_total", store.block_prefetches),
	M("store_block_prefetch_drops_total", store.block_prefetch_drops),
	M("store_uploads_queued", store.uploads_queued),
	M("store_downloads_queued", store.downloads_queued),
	M("disk_cache_hits_total", store.disk_hits),
	M("disk_cache_hit_bytes_total", store.disk_hit_bytes),
	M("disk_cache_misses_total", store.disk_misses),
	M("disk_cache_writes_total", store.disk_writes),
	M("disk_cache_write_bytes_total", store.disk_write_bytes),
	M("disk_cache_drops_total", store.disk_drops),
	M("disk_cache_evictions_total", store.disk_evictions),
	M("disk_cache_evicted_bytes_total", store.disk_evicted_bytes),
	M("disk_cache_expired_total", store.disk_expired),
	M("disk_cache_corrupt_total", store.disk_corrupt),
	M("disk_cache_errors_total", store.disk_errors),
	M("disk_cache_directory_failures_total", store.disk_dir_failures),
	M("disk_cache_scans_total", store.disk_scans),
	M("disk_cache_bytes", store.disk_bytes),
	M("disk_cache_blocks", store.disk_blocks),
	M("disk_cache_pending_bytes", store.disk_pending_bytes),
	M("disk_cache_directories", store.disk_dirs),
	M("disk_cache_directories_failed", store.disk_dirs_bad),

	M("staging_blocks", store.staged_blocks),
	M("staging_bytes", store.staged_bytes),
	M("staging_oldest_seconds", store.staged_oldest_s),
	M("staging_damaged_blocks", store.staged_damaged),
	M("staging_uploads_total", store.stage_uploads),
	M("staging_upload_errors_total", store.stage_upload_errors),
	M("staging_bypassed_total", store.stage_bypassed),

	M("peer_members", store.peer_members),
	M("peer_hits_total", store.peer_hits),
	M("peer_hit_bytes_total", store.peer_hit_bytes),
	M("peer_misses_total", store.peer_misses),
	M("peer_fallbacks_total", store.peer_fallbacks),
	PEER("asked", peer_asked),
	PEER("served", peer_served),

	M("object_requests_total{method=\"get\"}", store.gets),
	M("object_requests_total{method=\"put\"}", store.puts),
	M("object_requests_total{method=\"delete\"}", store.deletes),
	M("object_request_errors_total{method=\"get\"}", store.get_errors),
	M("object_request_errors_total{method=\"put\"}", store.put_errors),
	M("object_request_errors_total{method=\"delete\"}", store.delete_errors),
	M("object_data_bytes_total{method=\"get\"}", store.get_bytes),
	M("object_data_bytes_total{method=\"put\"}", store.put_bytes),
	NS("object_request_seconds_total{method=\"get\"}", store.get_ns),
	NS("object_request_seconds_total{method=\"put\"}", store.put_ns),
	M("object_retries_total", store.object_retries),
};
#undef M
#undef NS
#undef PEER
#undef PEER_ERROR

static void print_seconds(FILE *out, const char *name, uint64_t ns)
{
	fprintf(out, "%s %llu.%06llu\n", name, (unsigned long long)(ns / 1000000000),
		(unsigned long long)(ns / 1000 % 1000000));
}

static void print_metric(FILE *out, const struct metric *m, const struct all *all)
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
		print_seconds(out, m->name, v);
	else
		fprintf(out, "%s %llu\n", m->name, (unsigned long long)v);
}

static void print_process(FILE *out, const struct cfs_vfs *v)
{
	unsigned long long pages, resident = 0;
	struct timespec now = cfs_wall();
	struct rusage use;
	FILE *in;

	fprintf(out, "cachefs_uptime_seconds %lld\n", (long long)(now.tv_sec - v->started.tv_sec));
	if (getrusage(RUSAGE_SELF, &use) == 0)
		print_seconds(out, "cachefs_cpu_seconds_total",
			      (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000000 +
				      (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) *
					      1000);
	in = fopen("/proc/self/statm", "re");
	if (!in)
		return;
	if (fscanf(in, "%llu %llu", &pages, &resident) == 2)
		fprintf(out, "cachefs_memory_bytes %llu\n",
			resident * (unsigned long long)sysconf(_SC_PAGESIZE));
	fclose(in);
}

static void print_meta(FILE *out, struct cfs_meta *m)
{
	struct cfs_meta_stats s;
	char name[80];
	int i;

	cfs_meta_stats(m, &s);
	for (i = 0; i < CFS_META_OP_COUNT; i++) {
		const char *op = cfs_meta_op_name((enum cfs_meta_op)i);

		fprintf(out,
			"cachefs_meta_operations_total{op=\"%s\"} %llu\n"
			"cachefs_meta_errors_total{op=\"%s\"} %llu\n"
			"cachefs_meta_round_trips_total{op=\"%s\"} %llu\n",
			op, (unsigned long long)s.op[i].calls, op,
			(unsigned long long)s.op[i].errors, op,
			(unsigned long long)s.op[i].round_trips);
		snprintf(name, sizeof(name), "cachefs_meta_operation_seconds_total{op=\"%s\"}", op);
		print_seconds(out, name, s.op[i].time_ns);
	}
	fprintf(out, "cachefs_meta_retries_total %llu\n", (unsigned long long)s.retries);
}

int stats_text(struct cfs_vfs *v, char **ret, size_t *ret_len)
{
	struct all all;
	char *text = NULL;
	size_t len = 0, i;
	FILE *out = open_memstream(&text, &len);
	bool failed;

	if (!out)
		return -ENOMEM;
	cfs_vfs_stats(v, &all.vfs);
	cfs_data_stats(v->conf.data, &all.data);
	cfs_store_stats(v->conf.store, &all.store);
	cfs_pool_stats(v->conf.pool, &all.pool);
	print_process(out, v);
	for (i = 0; i < CFS_ARRAY_SIZE(metrics); i++)
		print_metric(out, &metrics[i], &all);
	print_meta(out, v->conf.meta);
	failed = ferror(out);
	if (fclose(out) || failed) {
		free(text);
		return -ENOMEM;
	}
	*ret = text;
	*ret_len = len;
	return 0;
}
