/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/mountstatus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "build.h"
#include "cmd/access/jsontext.h"
#include "config.h"

static json_int_t number(uint64_t v)
{
	return (json_int_t)v;
}

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

static json_t *volume(const struct mount_parts *m)
{
	const struct cfs_setting *s = m->setting;

	return json_pack("{s:o, s:s, s:s, s:s, s:I}", "name", json_text(s->name), "uuid", s->uuid,
			 "engine", cfs_meta_engine_name(m->meta), "storage",
			 m->o->storage ? m->o->storage : s->storage, "block_bytes",
			 number((uint64_t)s->block_size_kib << 10));
}

static json_t *mount(const struct mount_parts *m)
{
	return json_pack("{s:o, s:s, s:s, s:i, s:I, s:b, s:b, s:b}", "point", json_text(m->dir),
			 "version", CFS_VERSION, "build", CFS_BUILD, "pid", (int)getpid(),
			 "session", number(cfs_meta_sid(m->meta)), "read_only", m->o->ro,
			 "writeback", m->o->writeback, "close_committing",
			 m->o->close_mode == MOUNT_CLOSE_COMMITTING);
}

static json_t *memory(struct cfs_pool *p)
{
	struct cfs_pool_stats s;
	uint64_t used = 0;
	int i;

	cfs_pool_stats(p, &s);
	for (i = 0; i < CFS_USE_COUNT; i++)
		used += s.used[i];
	return json_pack("{s:I, s:I, s:I}", "budget_bytes", number(s.budget), "used_bytes",
			 number(used), "waits", number(s.waits));
}

/* -1: there is no such metric. */
static json_int_t labelled_value(const struct mount_parts *m, const char *metric,
				 const char *labels)
{
	return number(cfs_metrics_get(m->metrics, metric, labels));
}

static json_int_t value_of(const struct mount_parts *m, const char *metric)
{
	return labelled_value(m, metric, NULL);
}

static json_t *process(const struct mount_parts *m)
{
	return json_pack("{s:I, s:f}", "memory_bytes", value_of(m, "memory_bytes"), "cpu_s",
			 (double)value_of(m, "cpu_seconds_total") / 1e9);
}

static json_t *requests(const struct mount_parts *m)
{
	return json_pack("{s:I, s:f, s:I, s:I}", "count", value_of(m, "requests_total"), "seconds",
			 (double)value_of(m, "request_seconds_total") / 1e9, "read_bytes",
			 value_of(m, "read_bytes_total"), "written_bytes",
			 value_of(m, "written_bytes_total"));
}

static json_t *metadata(struct cfs_meta *m)
{
	uint64_t calls = 0, time_ns = 0;
	struct cfs_meta_stats s;
	int i;

	cfs_meta_stats(m, &s);
	for (i = 0; i < CFS_META_OP_COUNT; i++) {
		calls += s.op[i].calls;
		time_ns += s.op[i].time_ns;
	}
	return json_pack("{s:I, s:f, s:I}", "count", number(calls), "seconds", seconds(time_ns),
			 "retries", number(s.retries));
}

static json_t *tier(const struct mount_parts *m, const char *name, const char *hits,
		    const char *bytes, const char *labels, const char *held)
{
	return json_pack("{s:s, s:I, s:I, s:o}", "name", name, "hits",
			 labelled_value(m, hits, labels), "hit_bytes",
			 labelled_value(m, bytes, labels), "bytes",
			 held ? json_integer(value_of(m, held)) : json_null());
}

/* The nearest tier first. */
static json_t *tiers(const struct mount_parts *m)
{
	return json_pack("[o, o, o, o]",
			 tier(m, "memory", "memory_cache_hits_total",
			      "memory_cache_hit_bytes_total", NULL, "memory_cache_bytes"),
			 tier(m, "disk", "disk_cache_hits_total", "disk_cache_hit_bytes_total",
			      NULL, "disk_cache_bytes"),
			 tier(m, "peer", "peer_hits_total", "peer_hit_bytes_total", NULL, NULL),
			 tier(m, "object", "object_requests_total", "object_data_bytes_total",
			      "method=\"get\"", NULL));
}

static json_t *object_calls(const struct mount_parts *m, const char *labels)
{
	return json_pack("{s:I, s:I, s:f, s:I}", "count",
			 labelled_value(m, "object_requests_total", labels), "errors",
			 labelled_value(m, "object_request_errors_total", labels), "seconds",
			 (double)labelled_value(m, "object_request_seconds_total", labels) / 1e9,
			 "bytes", labelled_value(m, "object_data_bytes_total", labels));
}

static json_t *object(const struct mount_parts *m)
{
	return json_pack("{s:o, s:o, s:I}", "get", object_calls(m, "method=\"get\""), "put",
			 object_calls(m, "method=\"put\""), "retries",
			 value_of(m, "object_retries_total"));
}

static json_t *writes(const struct mount_parts *m)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "dirty_bytes",
			 value_of(m, "data_dirty_bytes"), "closing_files",
			 value_of(m, "data_closing_files"), "closed_files_failed",
			 value_of(m, "closed_files_failed_total"), "commit_errors",
			 value_of(m, "data_commit_errors_total"), "put_errors",
			 labelled_value(m, "object_request_errors_total", "method=\"put\""),
			 "uploads_queued", value_of(m, "store_uploads_queued"));
}

static json_t *ahead(const struct mount_parts *m)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "fetched_files",
			 value_of(m, "data_ahead_fetched_files_total"), "fetched_bytes",
			 value_of(m, "data_ahead_fetched_bytes_total"), "used_files",
			 value_of(m, "data_ahead_used_files_total"), "used_bytes",
			 value_of(m, "data_ahead_used_bytes_total"), "wasted_files",
			 value_of(m, "data_ahead_wasted_files_total"), "wasted_bytes",
			 value_of(m, "data_ahead_wasted_bytes_total"));
}

static json_t *staging(const struct mount_parts *m)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "blocks", value_of(m, "staging_blocks"),
			 "bytes", value_of(m, "staging_bytes"), "oldest_s",
			 value_of(m, "staging_oldest_seconds"), "damaged_blocks",
			 value_of(m, "staging_damaged_blocks"), "uploads",
			 value_of(m, "staging_uploads_total"), "upload_errors",
			 value_of(m, "staging_upload_errors_total"));
}

static json_t *backup(const struct mount_parts *m)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:b}", "age_s",
			 value_of(m, "meta_backup_age_seconds"), "interval_s",
			 value_of(m, "meta_backup_interval_seconds"), "made",
			 value_of(m, "meta_backups_total"), "failures",
			 value_of(m, "meta_backup_failures_total"), "skipped",
			 value_of(m, "meta_backup_skipped") != 0);
}

static json_t *replica(const struct mount_parts *m)
{
	if (!value_of(m, "replica_running"))
		return json_null();
	return json_pack("{s:I, s:b, s:I, s:I}", "lag_ms",
			 value_of(m, "replica_lag_seconds") / 1000000, "fenced",
			 value_of(m, "replica_fenced") != 0, "backlog_bytes",
			 value_of(m, "replica_backlog_bytes"), "base_age_s",
			 value_of(m, "replica_base_age_seconds"));
}

static json_t *group(const struct mount_parts *m)
{
	if (!m->peers)
		return json_null();
	return json_pack("{s:o, s:o}", "name", json_text(m->o->cache_group), "members",
			 peers_seen(m->peers));
}

static json_t *slow(struct cfs_vfs *v)
{
	struct cfs_vfs_slow list[CFS_VFS_SLOW_MAX];
	uint64_t now_ns = cfs_now_ns();
	unsigned i, n = cfs_vfs_slowest(v, now_ns, list);
	json_t *all = json_array();

	for (i = 0; i < n; i++) {
		const struct cfs_vfs_slow *s = &list[i];

		/* Inode numbers in the trash exceed the integers of JavaScript. */
		json_array_append_new(
			all, json_pack("{s:s, s:o, s:f, s:s, s:s, s:i, s:f}", "op", s->op, "inode",
				       json_sprintf("%llu", (unsigned long long)s->ino), "ms",
				       (double)s->took_ns / 1e6, "waited_for", s->waited_for,
				       "result", s->result < 0 ? cfs_errname(s->result) : "OK",
				       "pid", (int)s->pid, "age_s",
				       now_ns > s->ended_ns ? seconds(now_ns - s->ended_ns) : 0));
	}
	return all;
}

int mount_status_json(const struct mount_parts *m, char **ret, size_t *ret_len)
{
	char *text;
	json_t *j;

	j = json_pack("{s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, "
		      "s:{s:I, s:I}, s:o, s:o, s:o, s:o}",
		      "time_s", seconds(cfs_now_ns() - m->started_ns), "volume", volume(m), "mount",
		      mount(m), "process", process(m), "memory", memory(m->pool), "requests",
		      requests(m), "metadata", metadata(m->meta), "tiers", tiers(m), "ahead",
		      ahead(m), "object", object(m), "writes", writes(m), "staging", staging(m),
		      "fallbacks", value_of(m, "peer_fallbacks_total"), "cache_directories",
		      "total", value_of(m, "disk_cache_directories"), "failed",
		      value_of(m, "disk_cache_directories_failed"), "group", group(m), "slow",
		      slow(m->vfs), "backup", backup(m), "replica", replica(m));
	text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (!text)
		return -ENOMEM;
	*ret = text;
	*ret_len = strlen(text);
	return 0;
}
