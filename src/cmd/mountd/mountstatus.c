/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/mountstatus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
	return json_pack("{s:o, s:s, s:s, s:i, s:I, s:b, s:b}", "point", json_text(m->dir),
			 "version", CFS_VERSION, "build", CFS_BUILD, "pid", (int)getpid(),
			 "session", number(cfs_meta_sid(m->meta)), "read_only", m->o->ro,
			 "writeback", m->o->writeback);
}

static json_t *process(void)
{
	unsigned long long pages, resident = 0;
	FILE *in = fopen("/proc/self/statm", "re");
	struct rusage use = {0};

	if (in) {
		if (fscanf(in, "%llu %llu", &pages, &resident) != 2)
			resident = 0;
		fclose(in);
	}
	getrusage(RUSAGE_SELF, &use);
	return json_pack("{s:I, s:f}", "memory_bytes",
			 number(resident * (uint64_t)sysconf(_SC_PAGESIZE)), "cpu_s",
			 (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
				 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
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

static json_t *requests(struct cfs_vfs *v)
{
	struct cfs_vfs_stats s;

	cfs_vfs_stats(v, &s);
	return json_pack("{s:I, s:f, s:I, s:I}", "count", number(s.requests), "seconds",
			 seconds(s.request_ns), "read_bytes", number(s.read_bytes), "written_bytes",
			 number(s.written_bytes));
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

static json_t *tier(const char *name, uint64_t hits, uint64_t bytes, json_t *held)
{
	return json_pack("{s:s, s:I, s:I, s:o}", "name", name, "hits", number(hits), "hit_bytes",
			 number(bytes), "bytes", held);
}

/* Nearest first. */
static json_t *tiers(const struct cfs_store_stats *s)
{
	return json_pack(
		"[o, o, o, o]",
		tier("memory", s->memory_hits, s->memory_hit_bytes,
		     json_integer(number(s->memory_bytes))),
		tier("disk", s->disk_hits, s->disk_hit_bytes, json_integer(number(s->disk_bytes))),
		tier("peer", s->peer_hits, s->peer_hit_bytes, json_null()),
		tier("object", s->gets, s->get_bytes, json_null()));
}

static json_t *object(const struct cfs_store_stats *s)
{
	return json_pack("{s:{s:I, s:I, s:f, s:I}, s:{s:I, s:I, s:f, s:I}, s:I}", "get", "count",
			 number(s->gets), "errors", number(s->get_errors), "seconds",
			 seconds(s->get_ns), "bytes", number(s->get_bytes), "put", "count",
			 number(s->puts), "errors", number(s->put_errors), "seconds",
			 seconds(s->put_ns), "bytes", number(s->put_bytes), "retries",
			 number(s->object_retries));
}

static json_t *writes(struct cfs_data *d, const struct cfs_store_stats *store)
{
	struct cfs_data_stats s;

	cfs_data_stats(d, &s);
	return json_pack("{s:I, s:I, s:I, s:i}", "dirty_bytes", number(s.dirty_bytes),
			 "commit_errors", number(s.commit_errors), "put_errors",
			 number(store->put_errors), "uploads_queued", (int)store->uploads_queued);
}

static json_t *staging(const struct cfs_store_stats *s)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "blocks", number(s->staged_blocks),
			 "bytes", number(s->staged_bytes), "oldest_s", number(s->staged_oldest_s),
			 "damaged_blocks", number(s->staged_damaged), "uploads",
			 number(s->stage_uploads), "upload_errors", number(s->stage_upload_errors));
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
	struct cfs_store_stats s;
	char *text;
	json_t *j;

	cfs_store_stats(m->store, &s);
	j = json_pack("{s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:{s:i, s:i}, "
		      "s:o, s:o}",
		      "time_s", seconds(cfs_now_ns() - m->started_ns), "volume", volume(m), "mount",
		      mount(m), "process", process(), "memory", memory(m->pool), "requests",
		      requests(m->vfs), "metadata", metadata(m->meta), "tiers", tiers(&s), "object",
		      object(&s), "writes", writes(m->data, &s), "staging", staging(&s),
		      "fallbacks", number(s.peer_fallbacks), "cache_directories", "total",
		      (int)s.disk_dirs, "failed", (int)s.disk_dirs_bad, "group", group(m), "slow",
		      slow(m->vfs));
	text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (!text)
		return -ENOMEM;
	*ret = text;
	*ret_len = strlen(text);
	return 0;
}
