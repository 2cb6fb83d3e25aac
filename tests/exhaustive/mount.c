/* SPDX-License-Identifier: Apache-2.0 */
#include "mount.h"

#include <cachefs/stage.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/* Nothing happens by itself while a sequence runs: times are longer than it. */
#define HOUR_MS	 (3600 * 1000)
#define POOL	 ((uint64_t)16 << 20)
#define IO_MS	 20000
#define DRAIN_MS 20000
#define CLOSING	 16 /* files */

static void must(const char *what, int r, const char *err)
{
	if (r >= 0)
		return;
	fprintf(stderr, "mount: %s: %s %s\n", what, cfs_errname(r), err);
	_exit(9);
}

static void open_objects(const struct mount_conf *conf, struct mount *m, bool *ret_hears)
{
	struct cfs_object_descs descs = {.n_before = 0};
	struct cfs_object_conf objects = {
		.storage = m->setting->storage,
		.bucket = m->setting->bucket,
		.access_key = m->setting->access_key,
		.secret_key = m->setting->secret_key,
		.compression = m->setting->compression,
		.descs = &descs,
	};
	char err[256] = "";

	for (; descs.n_before < 2 && conf->bucket[descs.n_before] >= 0; descs.n_before++)
		descs.before[descs.n_before] = conf->bucket[descs.n_before];
	must("objects", cfs_object_open(&objects, &m->objects, err), err);
	*ret_hears = descs.n_before && !descs.fresh;
}

/* One thread for each kind of work: the order of calls is the same in every run. */
static void open_store(const struct mount_conf *conf, struct mount *m, bool hears)
{
	struct cfs_store_conf store = {
		.object = m->objects,
		.pool = m->pool,
		.volume = m->setting->name,
		.block_size = m->setting->block_size_kib << 10,
		.hash_prefix = m->setting->hash_prefix,
		.max_downloads = 1,
		.max_uploads = 1,
		.get_timeout_ms = IO_MS,
		.put_timeout_ms = IO_MS,
		.unsynced = cfs_handoff_unsynced(conf->handoff),
		.reports_unsynced = hears,
	};
	struct cfs_disk_conf disk = {
		.pool = m->pool,
		.dirs = conf->cache_dir,
		.uuid = m->setting->uuid,
		.block_size = store.block_size,
		.size = (uint64_t)1 << 30,
		.free_ratio = 0.01,
		.verify = CFS_VERIFY_EXTEND,
		.tick_ms = HOUR_MS,
	};
	struct cfs_stage_conf stage = {
		.writeback = conf->writeback,
		.size = (uint64_t)1 << 30,
		.free_ratio = 0.01,
		.delay_ms = HOUR_MS,
		.max_uploads = 1,
		.tick_ms = HOUR_MS,
	};
	char err[256] = "";

	must("store", cfs_store_create(&store, &m->store), "");
	if (!conf->cache_dir)
		return;
	must("disk cache", cfs_disk_create(&disk, &m->disk, err), err);
	must("disk cache", cfs_store_add_tier(m->store, &cfs_disk_tier, m->disk), "");
	must("staging", cfs_stage_start(m->store, m->disk, &stage), "");
}

static void open_files(const struct mount_conf *conf, struct mount *m)
{
	struct cfs_data_conf data = {
		.meta = m->meta,
		.store = m->store,
		.pool = m->pool,
		.block_size = m->setting->block_size_kib << 10,
		.flush_age_ms = HOUR_MS,
		.flush_idle_ms = HOUR_MS,
		.io_timeout_ms = IO_MS,
		.max_closing = CLOSING,
	};
	struct cfs_vfs_conf vfs = {
		.meta = m->meta,
		.pool = m->pool,
		.handoff = conf->handoff,
		.hide_internal = true,
		.commit_later = conf->commit_later,
		.attr_timeout_ms = 1000,
		.entry_timeout_ms = 1000,
		.dir_entry_timeout_ms = 1000,
		.io_timeout_ms = IO_MS,
	};

	must("data", cfs_data_create(&data, &m->data), "");
	vfs.data = m->data;
	must("vfs", cfs_vfs_create(&vfs, &m->vfs), "");
}

static int await_replica(void *arg, bool hurry, cfs_deadline_t deadline)
{
	const char *broken = getenv("EXHAUSTIVE_BREAK");

	/* A test of the test: the bucket is not waited for. */
	if (broken && !strcmp(broken, "replica"))
		return 0;
	return cfs_replica_wait(arg, hurry, deadline);
}

__attribute__((noreturn)) static void fenced(void *arg, const char *why)
{
	fprintf(stderr, "mount: the replica is another database's: %s\n", why);
	_exit(9);
}

static void start_replica(const struct mount_conf *conf, struct mount *m)
{
	const struct cfs_replica_conf replica = {
		.objects = m->objects,
		.volume = m->setting->name,
		.path = conf->replicated,
		.keep_s = 3600,
		.conditional = true,
		.fenced = fenced,
	};
	char err[256] = "";

	if (!conf->replicated)
		return;
	must("replica", cfs_replica_start(&replica, &m->replica, err), err);
	cfs_meta_copy_to(m->meta, await_replica, m->replica, true);
	must("replica", cfs_replica_wait(m->replica, true, cfs_deadline_in(IO_MS)), "");
}

static void start_session(const struct mount_conf *conf, struct mount *m, bool resume)
{
	struct cfs_handoff_header *h = conf->handoff ? cfs_handoff_header(conf->handoff) : NULL;
	struct cfs_meta_hooks hooks = cfs_vfs_hooks(m->vfs);
	struct cfs_vfs_restored restored = {.handles = 0};

	if (resume)
		cfs_meta_resume(m->meta, atomic_load(&h->sid), atomic_load(&h->ended_sid));
	must("session", cfs_meta_start(m->meta, &hooks), "");
	if (h && !resume)
		atomic_store(&h->sid, cfs_meta_sid(m->meta));
	if (h)
		atomic_fetch_add(&h->workers, 1);
	if (resume) {
		must("open files", cfs_vfs_restore(m->vfs, &restored), "");
		cfs_vfs_close_released(m->vfs);
	}
	free(restored.lost_inos);
}

void mount_open(const struct mount_conf *conf, bool resume, struct mount *ret)
{
	struct cfs_meta_conf meta = {
		.no_bgjob = true,
		.heartbeat_ms = 12000,
		.timeout_ms = IO_MS,
		.skip_dir_mtime_ms = HOUR_MS,
		.max_deletes = 1,
		.mount_point = "/exhaustive",
	};
	char err[256] = "";
	bool hears;

	*ret = (struct mount){.meta = NULL};
	must("metadata", cfs_meta_open(conf->url, &meta, &ret->meta, err), err);
	must("volume", cfs_meta_load(ret->meta, &ret->setting, err), err);
	open_objects(conf, ret, &hears);
	must("memory", cfs_pool_create(POOL, &ret->pool), "");
	open_store(conf, ret, hears);
	open_files(conf, ret);
	start_replica(conf, ret);
	start_session(conf, ret, resume);
}

int mount_close(struct mount *m)
{
	int first = cfs_vfs_flush(m->vfs), r;

	cfs_data_drain(m->data);
	/* A session that could not be closed is cleaned up by others. */
	cfs_meta_stop(m->meta);
	cfs_vfs_destroy(m->vfs);
	r = cfs_data_destroy(m->data);
	first = first ? first : r;
	if (m->disk && cfs_stage_drain(m->store, DRAIN_MS) && !first)
		first = -EBUSY;
	cfs_store_destroy(m->store);
	cfs_disk_destroy(m->disk);
	cfs_replica_stop(m->replica, cfs_deadline_in(DRAIN_MS));
	cfs_meta_close(m->meta);
	cfs_object_close(m->objects);
	cfs_setting_free(m->setting);
	cfs_pool_destroy(m->pool);
	return first;
}
