/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the layers of a mount from the bottom up, and closes them from the top down. */
#include <cachefs/data.h>
#include <cachefs/disk.h>
#include <cachefs/group.h>
#include <cachefs/stage.h>
#include <cachefs/store.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/log.h"
#include "build.h"
#include "cmd/access/volume.h"
#include "cmd/group/peers.h"
#include "cmd/mountd/options/mountconfig.h"
#include "cmd/mountd/replicate.h"
#include "cmd/mountd/serve-internal.h"
#include "cmd/mountd/shutdown.h"

/* Connections to the object store beyond uploads and downloads: for compaction and clean-up. */
#define SPARE_CONNECTIONS 8
/* Deadline for reading the object that holds the volume's id. */
#define ID_MS 3000
/* Closed files that are not committed yet, with close=committing. */
#define MAX_CLOSING 1024
/* Below these budgets, requests and connections get smaller buffers. */
#define SMALL_BUDGET	  ((uint64_t)128 << 20)
#define SMALL_CONNECTIONS ((uint64_t)256 << 20)
/* A mount may use the budget and 32 MiB. 12 of these are for request and connection buffers. */
#define BUFFERS_BESIDES ((uint64_t)12 << 20)

static uint64_t budget_of(const struct mount_opts *o)
{
	return o->buffer_size ? o->buffer_size : mount_default_budget();
}

static const char *storage_of(const struct serve *s)
{
	return s->o->storage ? s->o->storage : s->setting->storage;
}

/*
 * Refuses a bucket of another volume: block keys are numbers, so this mount would overwrite that
 * volume's blocks. Refuses to write below the mount point of a disk that is not mounted, which would
 * hide the blocks later. An object store that does not answer does not prevent the mount.
 */
static int check_objects(struct serve *s, char err[256])
{
	bool is_file = !strcmp(storage_of(s), "file") && !s->o->ro;
	cfs_deadline_t deadline = cfs_deadline_in(ID_MS);
	int r;

	cfs_object_quiet(true);
	r = is_file ? volume_check_place(s->meta, s->setting, s->objects, deadline, err)
		    : volume_check_id(s->setting, s->objects, deadline, err);
	cfs_object_quiet(false);
	if (r == -EEXIST || (r == -ENOENT && is_file))
		return r;
	err[0] = '\0';
	return 0;
}

static struct volume_objects objects_of(struct serve *s)
{
	return (struct volume_objects){
		.storage = s->o->storage,
		.bucket = s->o->bucket,
		.upload_limit_mbps = s->o->upload_limit_mbps,
		.download_limit_mbps = s->o->download_limit_mbps,
		.max_connections =
			(unsigned)(s->o->max_uploads + s->o->max_downloads + s->o->max_deletes) +
			SPARE_CONNECTIONS,
		.small_buffers = budget_of(s->o) < SMALL_CONNECTIONS,
		.descs = &s->worker->objects,
	};
}

int layers_open_backends(struct serve *s, char err[256])
{
	struct cfs_meta_conf conf = {
		.read_only = s->o->ro,
		.no_bgjob = s->o->no_bgjob,
		.heartbeat_ms = s->o->heartbeat_ms,
		.timeout_ms = s->o->meta_timeout_ms,
		.skip_dir_mtime_ms = s->o->skip_dir_mtime_ms,
		.max_deletes = s->o->max_deletes,
		.mount_point = s->dir,
	};
	struct volume_objects objects = objects_of(s);
	int r;

	s->worker->objects.n = 0;
	s->worker->objects.fresh = false;
	r = replicate_restore(s, err);
	if (r < 0)
		return r;
	r = volume_open(s->url, &conf, &s->meta, &s->setting, err);
	if (r == 0)
		r = volume_open_objects_with(s->setting, &objects, &s->objects, err);
	if (r == 0 && !worker_resumes(s->worker))
		r = check_objects(s, err);
	return r;
}

void layers_close_backends(struct serve *s)
{
	if (s->meta)
		cfs_meta_close(s->meta);
	cfs_object_close(s->objects);
	cfs_setting_free(s->setting);
	s->meta = NULL;
	s->objects = NULL;
	s->setting = NULL;
}

/*
 * "none" when the bucket is a local directory or in memory. Otherwise the place that the XDG base
 * directory specification, or for root the file system hierarchy, names.
 */
static const char *default_cache_dir(const struct serve *s, char *buf, size_t size)
{
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (!volume_is_remote(storage_of(s)))
		return "none";
	if (xdg && *xdg == '/')
		snprintf(buf, size, "%s/cachefs", xdg);
	else if (getuid() == 0)
		snprintf(buf, size, "/var/cache/cachefs");
	else if (home && *home == '/')
		snprintf(buf, size, "%s/.cache/cachefs", home);
	else
		return "none";
	/* In cache-dir these are lists and patterns. */
	if (strpbrk(buf, ":*?["))
		return "none";
	cfs_info("disk cache by default: cache-dir=%s", buf);
	return buf;
}

/* When cache-dir is a pattern that nothing matches, a disk is missing: the mount has no cache. */
static int open_disk(struct serve *s, char err[256])
{
	const struct mount_opts *o = s->o;
	char buf[4096];
	const char *dirs = o->cache_dir && o->cache_dir[0] ? o->cache_dir
							   : default_cache_dir(s, buf, sizeof(buf));
	struct cfs_disk_conf conf = {
		.pool = s->pool,
		.dirs = dirs,
		.uuid = s->setting->uuid,
		.hash_prefix = s->setting->hash_prefix,
		.block_size = s->setting->block_size_kib << 10,
		.size = o->cache_size,
		.free_ratio = o->free_space_ratio,
		.items = (uint64_t)o->cache_items,
		.expire_s = (o->cache_expire_ms + 999) / 1000,
		.eviction = (enum cfs_disk_eviction)o->cache_eviction,
		.verify = (enum cfs_disk_verify)o->verify_cache_checksum,
		.partial_only = o->cache_partial_only,
		.tick_ms = o->cache_tick_ms,
		.retry_ms = o->cache_retry_ms,
	};
	char *end;
	int r;

	if (!strcmp(dirs, "none"))
		return 0;
	conf.mode = (unsigned)strtoul(o->cache_mode, &end, 8);
	if (*end || !conf.mode)
		return cfs_fail(err, -EINVAL, "cache-mode=%.100s: not an octal mode",
				o->cache_mode);
	r = cfs_disk_create(&conf, &s->disk, err);
	if (r == -ENOENT) {
		cfs_warn("mounting without a disk cache: %s", err);
		err[0] = '\0';
		return 0;
	}
	if (r == 0)
		r = cfs_meta_set_cache_dir(s->meta, dirs, o->writeback);
	return r < 0 ? r : cfs_store_add_tier(s->store, &cfs_disk_tier, s->disk);
}

/* Staged blocks of an earlier mount are uploaded even when writeback is off. */
static int start_stage(struct serve *s, char err[256])
{
	const struct mount_opts *o = s->o;
	struct cfs_stage_conf conf = {
		.writeback = o->writeback,
		.read_only = o->ro,
		.size = o->stage_size ? o->stage_size : o->cache_size,
		.free_ratio = o->free_space_ratio,
		.threshold = (uint32_t)CFS_MIN(o->writeback_threshold, (uint64_t)UINT32_MAX),
		.delay_ms = o->upload_delay_ms,
		.max_uploads = (unsigned)o->max_uploads,
	};

	if (o->upload_hours &&
	    cfs_stage_parse_hours(o->upload_hours, &conf.hour_from, &conf.hour_until) < 0)
		return cfs_fail(err, -EINVAL, "upload-hours=%.100s: not as in 22-6",
				o->upload_hours);
	if (s->disk)
		return cfs_stage_start(s->store, s->disk, &conf);
	if (!o->writeback)
		return 0;
	if (o->cache_dir && strcmp(o->cache_dir, "none") != 0) {
		cfs_warn("writing through: there is no cache-dir for writeback");
		return 0;
	}
	return cfs_fail(err, -EINVAL, "writeback needs a cache-dir");
}

/*
 * How many transfers may run in parallel: as many blocks as the bandwidth limit lets through within
 * a quarter of a transfer's deadline. More would slow each other down until they time out.
 */
static unsigned workers_for(int64_t max, uint64_t limit, uint64_t timeout_ms, uint32_t block_size)
{
	uint64_t n = limit ? limit * timeout_ms / 4000 / block_size : (uint64_t)max;

	return (unsigned)CFS_MAX(CFS_MIN(n, (uint64_t)max), 1);
}

static void set_parallel(struct serve *s, const struct cfs_setting *setting)
{
	const struct mount_opts *o = s->o;
	uint64_t down = volume_limit(o->download_limit_mbps, setting->download_limit_mbps);
	uint64_t up = volume_limit(o->upload_limit_mbps, setting->upload_limit_mbps);
	uint32_t block_size = setting->block_size_kib << 10;

	cfs_store_set_parallel(s->store,
			       workers_for(o->max_downloads, down, o->get_timeout_ms, block_size),
			       workers_for(o->max_uploads, up, o->put_timeout_ms, block_size));
}

/*
 * With all-squash the kernel would check the wrong identity. With root-squash it checks all users
 * but root, and the VFS checks root's squashed identity.
 */
bool layers_kernel_checks(const struct serve *s)
{
	return s->o->default_permissions && !s->o->all_squash;
}

static int set_squash(const struct mount_opts *o, struct cfs_vfs_conf *vfs, char err[256])
{
	int r = 0;

	vfs->squash_root.on = o->root_squash;
	vfs->squash_all.on = o->all_squash;
	if (o->root_squash)
		r = mount_opts_squash("root-squash", o->root_squash, &vfs->squash_root.uid,
				      &vfs->squash_root.gid, err);
	if (r == 0 && o->all_squash)
		r = mount_opts_squash("all-squash", o->all_squash, &vfs->squash_all.uid,
				      &vfs->squash_all.gid, err);
	return r;
}

static int show_config(void *arg, char **ret, size_t *ret_len)
{
	const struct serve *s = arg;

	return mount_config_show(s->meta, s->o, s->dir, ret, ret_len);
}

/* Applies those parts of a changed setting that the metadata layer does not use. */
static void adopt_setting(void *arg, const struct cfs_setting *setting)
{
	struct serve *s = arg;
	struct volume_objects objects = objects_of(s);

	if (volume_adopt(setting, &objects, s->objects) < 0 ||
	    (s->replica_objects && volume_adopt(setting, &objects, s->replica_objects) < 0))
		cfs_warn("out of memory, storage classes or access keys stay as before the "
			 "change: volume=%s",
			 setting->name);
	set_parallel(s, setting);
}

uint32_t layers_request_size(const struct mount_opts *o)
{
	return budget_of(o) < SMALL_BUDGET ? 256 << 10 : 1 << 20;
}

/* Memory of connections to the object store, with as many as load it. */
static uint64_t connection_memory(const struct serve *s)
{
	const struct mount_opts *o = s->o;

	if (!volume_is_remote(storage_of(s)))
		return 0;
	return (uint64_t)(o->max_uploads + o->max_downloads) *
	       (budget_of(o) < SMALL_CONNECTIONS ? CFS_OBJECT_SMALL_BUFFERS : CFS_OBJECT_BUFFERS);
}

/* Memory taken from the budget for request and connection buffers, and for pool fragments. */
static uint64_t request_memory(const struct serve *s)
{
	const struct mount_opts *o = s->o;
	unsigned threads = o->max_threads ? (unsigned)o->max_threads : CFS_FUSE_THREADS;
	/* For each thread, a buffer for its requests and one for a write in the admission queue. */
	uint64_t buffers = (uint64_t)threads * 2 * layers_request_size(o) + connection_memory(s) +
			   CFS_POOL_TORN;

	buffers -= CFS_MIN(buffers, BUFFERS_BESIDES);
	return CFS_MIN(buffers, budget_of(o) / (budget_of(o) < SMALL_BUDGET ? 4 : 2));
}

/* Memory taken from the budget for RDMA; locked. */
static uint64_t rdma_memory(const struct mount_opts *o)
{
	if (!o->cache_group || o->group_tls || o->group_transport == CFS_GROUP_RDMA_OFF)
		return 0;
	return o->group_rdma_buffer + CFS_PEER_RDMA_BESIDES;
}

static int check_rdma(const struct mount_opts *o, char err[256])
{
	if (o->cache_group && o->group_tls && o->group_transport == CFS_GROUP_RDMA_ON)
		return cfs_fail(
			err, -EINVAL,
			"group-tls encrypts, and group-transport=rdma cannot: give one of them");
	if (rdma_memory(o) > budget_of(o) / 2)
		return cfs_fail(
			err, -EINVAL,
			"group-rdma-buffer and %u MiB for RDMA are more than half of buffer-size",
			CFS_PEER_RDMA_BESIDES >> 20);
	return 0;
}

static int join_peers(struct serve *s, char err[256])
{
	int r;

	do
		r = peers_start(s->o, s->dir, s->setting, s->meta, s->store, s->disk, &s->peers,
				err);
	while (r < 0 && resume_tries_again(s, r, err));
	return r;
}

/* *ret is left unchanged for the root of the volume. */
static int find_root(struct serve *s, cfs_ino_t *ret, char err[256])
{
	struct cfs_entry e;
	int r;

	if (!s->o->subdir)
		return 0;
	do {
		r = volume_lookup(s->meta, s->o->meta_timeout_ms, s->o->subdir, &e);
		if (r == 0 && e.attr.type != CFS_TYPE_DIR)
			r = -ENOTDIR;
		if (r < 0)
			snprintf(err, 256, "subdir=%s: %s", s->o->subdir, strerror(-r));
	} while (r < 0 && resume_tries_again(s, r, err));
	if (r == 0)
		*ret = e.ino;
	return r;
}

/* A mount that is taken over keeps its root: the kernel's number 1 means that directory. */
static int same_root(struct serve *s, cfs_ino_t root, char err[256])
{
	struct cfs_handoff_header *h;

	if (!s->worker->handoff)
		return 0;
	h = cfs_handoff_header(s->worker->handoff);
	if (!worker_resumes(s->worker))
		h->root = root;
	if (h->root == root)
		return 0;
	return cfs_fail(err, -EBUSY,
			"the running mount has another subdir: unmount it to change that");
}

struct cfs_agreement *layers_agreement(struct serve *s)
{
	return s->worker->handoff ? cfs_handoff_agreement(s->worker->handoff) : &s->own_agreement;
}

/* In the order in which they are shown. */
static void add_metrics(struct serve *s)
{
	cfs_metrics_add(&s->numbers, &cfs_vfs_metrics, s->vfs);
	cfs_metrics_add(&s->numbers, &cfs_fuse_metrics, layers_agreement(s));
	cfs_metrics_add(&s->numbers, &cfs_data_metrics, s->data);
	cfs_metrics_add(&s->numbers, &cfs_pool_metrics, s->pool);
	cfs_metrics_add(&s->numbers, &cfs_store_metrics, s->store);
	cfs_metrics_add(&s->numbers, &cfs_disk_metrics, s->disk);
	cfs_metrics_add(&s->numbers, &cfs_stage_metrics, s->store);
	cfs_metrics_add(&s->numbers, &cfs_peers_metrics, s->peers);
	cfs_metrics_add(&s->numbers, &cfs_backup_metrics, s->backups);
	cfs_metrics_add(&s->numbers, &cfs_replica_metrics, s->replica);
}

/* With storage=mem there is no place for backups: the bucket ends with this process. */
static int create_backups(struct serve *s)
{
	const struct mount_opts *o = s->o;
	const char *storage = o->storage ? o->storage : s->setting->storage;
	bool none = o->ro || o->no_bgjob || !strcmp(storage, "mem");
	const struct backups_conf conf = {
		.meta = s->meta,
		.url = s->url,
		.volume = s->setting->name,
		.dir = s->dir,
		.objects =
			{
				.storage = o->storage,
				.bucket = o->bucket,
				.upload_limit_mbps = o->upload_limit_mbps,
				.download_limit_mbps = o->download_limit_mbps,
			},
		.interval_ms = none ? 0 : o->backup_meta_ms,
		.meta_timeout_ms = o->meta_timeout_ms,
		.max_inodes = o->backup_skip_inodes,
		.skip_trash = o->backup_skip_trash,
	};

	return backups_create(&conf, &s->backups);
}

int layers_open(struct serve *s, char err[256])
{
	const struct mount_opts *o = s->o;
	uint64_t budget = budget_of(o);
	struct cfs_store_conf store = {
		.object = s->objects,
		.volume = s->setting->name,
		.block_size = s->setting->block_size_kib << 10,
		.hash_prefix = s->setting->hash_prefix,
		.max_downloads = (unsigned)o->max_downloads,
		.max_uploads = (unsigned)o->max_uploads,
		.get_timeout_ms = o->get_timeout_ms,
		.put_timeout_ms = o->put_timeout_ms,
		.cache_large_write =
			o->cache_large_write || (o->cache_group && o->fill_group_cache),
		.prefetch = (unsigned)o->prefetch,
		.unsynced = cfs_handoff_unsynced(s->worker->handoff),
		.reports_unsynced = s->worker->objects.n_before && !s->worker->objects.fresh,
	};
	struct cfs_data_conf data = {
		.meta = s->meta,
		.block_size = store.block_size,
		.flush_age_ms = 5000,
		.flush_idle_ms = 1000,
		.max_readahead = o->max_readahead,
		.max_closing = MAX_CLOSING,
		.io_timeout_ms = o->io_timeout_ms,
		.transfer_timeout_ms = CFS_MAX(o->get_timeout_ms, o->put_timeout_ms),
		.read_only = o->ro,
		.passthrough = o->passthrough == MOUNT_PASSTHROUGH_AUTO && !o->writeback_cache,
	};
	struct cfs_vfs_conf vfs = {
		.meta = s->meta,
		.metrics = &s->numbers,
		.build = CFS_BUILD,
		.read_only = o->ro,
		.hide_internal = o->hide_internal,
		.no_xattr = !o->xattr,
		.security_xattr = o->security_xattr,
		.capability_xattr = o->capability_xattr,
		.selinux_xattr = o->selinux_xattr,
		.check_permissions = !layers_kernel_checks(s),
		.atime = (enum cfs_atime)o->atime_mode,
		.attr_timeout_ms = o->attr_cache_ms,
		.entry_timeout_ms = o->entry_cache_ms,
		.dir_entry_timeout_ms = o->dir_entry_cache_ms,
		.absent_timeout_ms = o->negative_entry_cache_ms,
		.io_timeout_ms = o->io_timeout_ms,
		.commit_later = o->close_mode == MOUNT_CLOSE_COMMITTING,
		.handoff = s->worker->handoff,
		.uid = getuid(),
		.gid = getgid(),
		.control = control_serve,
		.control_arg = &s->control,
		.config = show_config,
		.config_arg = s,
		.watchdog_ms = o->watchdog_ms,
		.stuck = o->watchdog_restart ? serve_stuck : NULL,
		.stuck_arg = s,
		.lost = serve_lost,
		.lost_arg = s,
		.reloaded = adopt_setting,
		.reloaded_arg = s,
	};
	const struct volume_objects replica = objects_of(s);
	int r;

	r = set_squash(o, &vfs, err);
	if (r < 0)
		return r;
	r = check_rdma(o, err);
	if (r < 0)
		return r;
	r = cfs_pool_create(budget - request_memory(s) - rdma_memory(o), &s->pool);
	if (r == 0) {
		store.pool = data.pool = vfs.pool = s->pool;
		r = cfs_store_create(&store, &s->store);
	}
	if (r == 0)
		r = open_disk(s, err);
	if (r == 0)
		r = start_stage(s, err);
	if (r == 0)
		set_parallel(s, s->setting);
	if (r == 0)
		r = join_peers(s, err);
	if (r == 0) {
		data.store = s->store;
		data.disk = s->disk;
		r = cfs_data_create(&data, &s->data);
	}
	if (r == 0)
		r = find_root(s, &vfs.root, err);
	if (r == 0)
		r = same_root(s, vfs.root ? vfs.root : CFS_ROOT_INO, err);
	if (r == 0) {
		vfs.data = s->data;
		r = cfs_vfs_create(&vfs, &s->vfs);
	}
	if (r == 0)
		r = create_backups(s);
	if (r == 0)
		r = replicate_start(s, &replica, err);
	add_metrics(s);
	s->control = (struct control_server){
		.meta = s->meta,
		.store = s->store,
		.data = s->data,
		.vfs = s->vfs,
		.worker = s->worker,
		.peers = s->peers,
		.root = vfs.root,
		.volume = s->setting->name,
		.block_size = store.block_size,
		.read_only = o->ro,
		.name_changed = serve_name_changed,
		.arg = s,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	if (r < 0 && !err[0])
		snprintf(err, 256, "cannot start: %s", strerror(-r));
	return r;
}

int layers_close(struct serve *s, bool session)
{
	int first = 0, r;

	if (s->vfs) {
		first = cfs_vfs_flush(s->vfs);
		if (first < 0)
			cfs_err("data could not be stored before unmounting: error=%s",
				cfs_errname(first));
	}
	/* Compaction and late commits need the session. */
	if (s->data) {
		cfs_data_drain(s->data);
		r = shutdown_report_lost(s->shutdown);
		first = first ? first : r;
	}
	if (session)
		cfs_meta_stop(s->meta);
	cfs_vfs_destroy(s->vfs);
	shutdown_forget_data(s->shutdown);
	if (s->data) {
		r = cfs_data_destroy(s->data);
		first = first ? first : r;
	}
	if (s->store) {
		/*
		 * Another volume may have the same bucket by now. The limit is that of
		 * shutdown.h, which comes first unless its thread could not start.
		 */
		if (!cfs_meta_is_gone(s->meta))
			cfs_stage_drain(s->store, 2 * s->o->stop_timeout_ms);
		/* Peers that ask get an error and read the bucket themselves: it may hang. */
		cfs_store_stop_reads(s->store);
		peers_leave(s->peers);
		shutdown_forget_store(s->shutdown);
		cfs_store_destroy(s->store);
		peers_destroy(s->peers);
	}
	cfs_disk_destroy(s->disk);
	replicate_stop(s);
	layers_close_backends(s);
	if (s->pool)
		cfs_pool_destroy(s->pool);
	return first;
}
