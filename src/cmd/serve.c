/* SPDX-License-Identifier: Apache-2.0 */
/* One mount from the first connection to the last flush: the layers, bottom up and down again. */
#include <cachefs/data.h>
#include <cachefs/disk.h>
#include <cachefs/fuse.h>
#include <cachefs/stage.h>
#include <cachefs/store.h>
#include <cachefs/vfs.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "cmd/control.h"
#include "cmd/ending.h"
#include "cmd/metrics.h"
#include "cmd/mount.h"
#include "cmd/mountconfig.h"
#include "cmd/notify.h"
#include "cmd/peers.h"
#include "cmd/volume.h"
#include "cmd/worker.h"

/* Of the object store, for what is neither an upload nor a download: compaction, clean-up. */
#define SPARE_CONNECTIONS 8
/* Deadlines of an upload that go by without one that succeeds before staged blocks are left. */
#define DRAIN_PATIENCE 2
/* Budgets for which buffers outside of them count. */
#define SMALL_BUDGET ((uint64_t)128 << 20)
/* To the object store, of as many uploads and downloads as there are by default. */
#define CONNECTIONS	   40
#define CONNECTION_BUFFERS (128u << 10)

struct serve {
	const struct mount_opts *o;
	const char *dir;
	struct cfs_setting *setting;
	struct cfs_meta *meta;
	struct cfs_object_store *objects;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cfs_peers *peers;
	struct cfs_data *data;
	struct cfs_vfs *vfs;
	struct metrics *metrics;
	struct health *health;
	struct notify *notify;
	struct ending *ending;
	struct control_server control;
	struct worker *worker;
	struct cfs_vfs_restored restored;
	_Atomic(struct cfs_fuse *) fuse;
	_Atomic bool lost;
};

/* The volume is gone: end the session; from a background thread. */
static void on_lost(void *arg, const char *reason)
{
	struct serve *s = arg;
	struct cfs_fuse *f;

	cfs_err("the volume is lost, unmounting: %s", reason);
	atomic_store(&s->lost, true);
	f = atomic_load(&s->fuse);
	if (f)
		cfs_fuse_stop(f);
}

static void on_stopping(void *arg)
{
	struct serve *s = arg;

	if (!atomic_load(&s->worker->leaving))
		ending_begin(s->ending);
}

/* Before the process ends whatever its threads do. Whoever gets the session takes it away. */
static void abandon(void *arg)
{
	struct serve *s = arg;
	struct cfs_fuse *f = atomic_exchange(&s->fuse, NULL);

	if (f)
		cfs_fuse_abandon(f);
}

static void on_stuck(void *arg)
{
	struct serve *s = arg;

	cfs_err("the process ends, as a request is stuck in it (watchdog-restart)");
	cfs_log_flush();
	if (worker_is_supervised(s->worker))
		abort();
	abandon(s);
	_exit(CMD_SYSTEM);
}

/* A command has changed a name behind the kernel's back. */
static void on_name_changed(void *arg, cfs_ino_t parent, const char *name, size_t len)
{
	struct serve *s = arg;
	struct cfs_fuse *f = atomic_load(&s->fuse);

	if (f)
		cfs_fuse_name_changed(f, parent == s->control.root ? CFS_ROOT_INO : parent, name,
				      len);
}

static int find_subdir(struct serve *s, cfs_ino_t *ret, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(s->o->meta_timeout_ms);
	const char *p = s->o->subdir;
	struct cfs_entry e;
	size_t len;
	int r;

	*ret = CFS_ROOT_INO;
	for (p += strspn(p, "/"); *p; p += len, p += strspn(p, "/")) {
		len = strcspn(p, "/");
		r = cfs_meta_lookup(s->meta, &ctx, *ret, p, len, &e);
		if (r == 0 && e.attr.type != CFS_TYPE_DIR)
			r = -ENOTDIR;
		if (r < 0) {
			snprintf(err, 256, "subdir=%s: %s", s->o->subdir, strerror(-r));
			return r;
		}
		*ret = e.ino;
	}
	return 0;
}

static uint64_t budget_of(const struct mount_opts *o)
{
	return o->buffer_size ? o->buffer_size : mount_default_budget();
}

static int open_backends(struct serve *s, const char *url, const char *dir, char err[256])
{
	struct cfs_meta_conf conf = {
		.read_only = s->o->ro,
		.no_bgjob = s->o->no_bgjob,
		.heartbeat_ms = s->o->heartbeat_ms,
		.timeout_ms = s->o->meta_timeout_ms,
		.skip_dir_mtime_ms = s->o->skip_dir_mtime_ms,
		.max_deletes = s->o->max_deletes,
		.mount_point = dir,
	};
	struct volume_objects objects = {
		.storage = s->o->storage,
		.bucket = s->o->bucket,
		.upload_limit_mbps = s->o->upload_limit_mbps,
		.download_limit_mbps = s->o->download_limit_mbps,
		.max_connections =
			(unsigned)(s->o->max_uploads + s->o->max_downloads + s->o->max_deletes) +
			SPARE_CONNECTIONS,
		.small_buffers = budget_of(s->o) < SMALL_BUDGET,
	};
	int r;

	r = volume_open(url, &conf, &s->meta, &s->setting, err);
	if (r == 0)
		r = volume_open_objects_with(s->setting, &objects, &s->objects, err);
	return r;
}

/*
 * Blocks that lie in a local directory or in memory need no copies. Others get a cache where the
 * XDG base directory specification and the file system hierarchy put it.
 */
static const char *default_cache_dir(const struct serve *s, char *buf, size_t size)
{
	const char *storage = s->o->storage ? s->o->storage : s->setting->storage;
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (!strcmp(storage, "file") || !strcmp(storage, "mem"))
		return "none";
	if (xdg && *xdg == '/')
		snprintf(buf, size, "%s/cachefs", xdg);
	else if (getuid() == 0)
		snprintf(buf, size, "/var/cache/cachefs");
	else if (home && *home == '/')
		snprintf(buf, size, "%s/.cache/cachefs", home);
	else
		return "none";
	/* A list and patterns in it would be something else. */
	if (strpbrk(buf, ":*?["))
		return "none";
	cfs_info("disk cache by default: cache-dir=%s", buf);
	return buf;
}

/* A pattern that matches nothing is a disk that is not there: the mount goes on without. */
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
	if (*end || !conf.mode) {
		snprintf(err, 256, "cache-mode=%.100s: not an octal mode", o->cache_mode);
		return -EINVAL;
	}
	r = cfs_disk_create(&conf, &s->disk, err);
	if (r == -ENOENT) {
		cfs_warn("mounting without a disk cache: %s", err);
		err[0] = '\0';
		return 0;
	}
	return r < 0 ? r : cfs_store_add_tier(s->store, &cfs_disk_tier, s->disk);
}

/* Whatever the options say now, what an earlier mount has left on disk is uploaded. */
static int start_stage(struct serve *s, unsigned max_uploads, char err[256])
{
	const struct mount_opts *o = s->o;
	struct cfs_stage_conf conf = {
		.writeback = o->writeback,
		.hold = o->ro,
		.size = o->stage_size ? o->stage_size : o->cache_size,
		.free_ratio = o->free_space_ratio,
		.threshold = (uint32_t)CFS_MIN(o->writeback_threshold, (uint64_t)UINT32_MAX),
		.delay_ms = o->upload_delay_ms,
		.max_uploads = max_uploads,
	};

	if (o->upload_hours &&
	    cfs_stage_parse_hours(o->upload_hours, &conf.hour_from, &conf.hour_until) < 0) {
		snprintf(err, 256, "upload-hours=%.100s: not as in 22-6", o->upload_hours);
		return -EINVAL;
	}
	if (s->disk)
		return cfs_stage_start(s->store, s->disk, &conf);
	if (!o->writeback)
		return 0;
	if (o->cache_dir && strcmp(o->cache_dir, "none") != 0) {
		cfs_warn("writing through: there is no cache-dir for writeback");
		return 0;
	}
	snprintf(err, 256, "writeback needs a cache-dir");
	return -EINVAL;
}

/*
 * As many blocks at a time as pass a bandwidth limit within a quarter of their deadline: more would
 * only wait for each other, and fail.
 */
static unsigned workers_for(int64_t max, uint64_t limit, uint64_t timeout_ms, uint32_t block_size)
{
	uint64_t n = limit ? limit * timeout_ms / 4000 / block_size : (uint64_t)max;

	return (unsigned)CFS_MAX(CFS_MIN(n, (uint64_t)max), 1);
}

/* Squashed callers have names that the kernel does not know. It knows those of root-squash well
 * enough: it lets root pass, and what root may do here is judged here. */
static bool kernel_checks(const struct serve *s)
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

/* Every thread that has taken a write keeps a buffer as large as that. */
static uint32_t request_size(const struct mount_opts *o)
{
	return budget_of(o) < SMALL_BUDGET ? 256 << 10 : 1 << 20;
}

/*
 * What these buffers, and those of connections, take of a small budget; of a large one it is not
 * worth mentioning.
 */
static uint64_t request_memory(const struct mount_opts *o)
{
	unsigned threads = o->max_threads ? (unsigned)o->max_threads : CFS_FUSE_THREADS;
	/* Of each thread one that it reads into, and one of a write that was put aside. */
	uint64_t buffers = (uint64_t)threads * 2 * request_size(o);

	if (budget_of(o) >= SMALL_BUDGET)
		return 0;
	buffers += (uint64_t)CONNECTIONS * CONNECTION_BUFFERS;
	return CFS_MIN(buffers, budget_of(o) / 4);
}

/* Every inode number that the kernel has depends on it. */
static int same_root(struct serve *s, cfs_ino_t root, char err[256])
{
	struct cfs_keep_header *h;

	if (!s->worker->keep)
		return 0;
	h = cfs_keep_header(s->worker->keep);
	if (!worker_resumes(s->worker))
		h->root = root;
	if (h->root == root)
		return 0;
	snprintf(err, 256, "the running mount has another subdir: unmount it to change that");
	return -EBUSY;
}

static int open_layers(struct serve *s, char err[256])
{
	const struct mount_opts *o = s->o;
	uint64_t budget = budget_of(o);
	struct cfs_store_conf store = {
		.object = s->objects,
		.volume = s->setting->name,
		.block_size = s->setting->block_size_kib << 10,
		.hash_prefix = s->setting->hash_prefix,
		.max_downloads = workers_for(
			o->max_downloads,
			volume_limit(o->download_limit_mbps, s->setting->download_limit_mbps),
			o->get_timeout_ms, s->setting->block_size_kib << 10),
		.max_uploads = workers_for(
			o->max_uploads,
			volume_limit(o->upload_limit_mbps, s->setting->upload_limit_mbps),
			o->put_timeout_ms, s->setting->block_size_kib << 10),
		.get_timeout_ms = o->get_timeout_ms,
		.put_timeout_ms = o->put_timeout_ms,
		.cache_large_write =
			o->cache_large_write || (o->cache_group && o->fill_group_cache),
		.prefetch = (unsigned)o->prefetch,
	};
	struct cfs_data_conf data = {
		.meta = s->meta,
		.block_size = store.block_size,
		.flush_age_ms = 5000,
		.flush_idle_ms = 1000,
		.max_readahead = o->max_readahead,
		.io_timeout_ms = o->io_timeout_ms,
		.read_only = o->ro,
	};
	struct cfs_vfs_conf vfs = {
		.meta = s->meta,
		.read_only = o->ro,
		.hide_internal = o->hide_internal,
		.no_xattr = !o->xattr,
		.security_xattr = o->security_xattr,
		.capability_xattr = o->capability_xattr,
		.selinux_xattr = o->selinux_xattr,
		.check_permissions = !kernel_checks(s),
		.atime = (enum cfs_atime)o->atime_mode,
		.attr_timeout_ms = o->attr_cache_ms,
		.entry_timeout_ms = o->entry_cache_ms,
		.dir_entry_timeout_ms = o->dir_entry_cache_ms,
		.io_timeout_ms = o->io_timeout_ms,
		.keep = s->worker->keep,
		.uid = getuid(),
		.gid = getgid(),
		.control = control_serve,
		.control_arg = &s->control,
		.config = show_config,
		.config_arg = s,
		.watchdog_ms = o->watchdog_ms,
		.stuck = o->watchdog_restart ? on_stuck : NULL,
		.stuck_arg = s,
		.lost = on_lost,
		.lost_arg = s,
	};
	int r;

	r = set_squash(o, &vfs, err);
	if (r < 0)
		return r;
	r = cfs_pool_create(budget - request_memory(o), &s->pool);
	if (r == 0) {
		store.pool = data.pool = vfs.pool = s->pool;
		r = cfs_store_create(&store, &s->store);
	}
	if (r == 0)
		r = open_disk(s, err);
	if (r == 0)
		r = start_stage(s, store.max_uploads, err);
	if (r == 0)
		r = peers_start(o, s->dir, s->setting, s->meta, s->store, s->disk, &s->peers, err);
	if (r == 0) {
		data.store = vfs.store = s->store;
		r = cfs_data_create(&data, &s->data);
	}
	if (r == 0 && o->subdir)
		r = find_subdir(s, &vfs.root, err);
	if (r == 0)
		r = same_root(s, vfs.root ? vfs.root : CFS_ROOT_INO, err);
	if (r == 0) {
		vfs.data = s->data;
		r = cfs_vfs_create(&vfs, &s->vfs);
	}
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
		.name_changed = on_name_changed,
		.arg = s,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	if (r < 0 && !err[0])
		snprintf(err, 256, "cannot start: %s", strerror(-r));
	return r;
}

static int start_session(struct serve *s, char err[256])
{
	struct cfs_keep *keep = s->worker->keep;
	struct cfs_meta_hooks hooks = cfs_vfs_hooks(s->vfs);
	int r;

	if (worker_resumes(s->worker))
		cfs_meta_resume(s->meta, atomic_load(&cfs_keep_header(keep)->sid));
	r = cfs_meta_start(s->meta, &hooks);
	if (r == 0 && keep)
		atomic_store(&cfs_keep_header(keep)->sid, cfs_meta_sid(s->meta));
	if (r < 0)
		snprintf(err, 256, "cannot start a session on volume %s: %s", s->setting->name,
			 strerror(-r));
	return r;
}

static int start_metrics(struct serve *s, char err[256])
{
	const struct mount_parts parts = {
		.dir = s->dir,
		.o = s->o,
		.setting = s->setting,
		.meta = s->meta,
		.pool = s->pool,
		.store = s->store,
		.data = s->data,
		.vfs = s->vfs,
		.peers = s->peers,
		.started_ns = cfs_now_ns(),
	};
	int r = metrics_start(s->o->metrics, &parts, s->health, &s->metrics, err);

	if (r < 0 && !err[0])
		snprintf(err, 256, "cannot serve metrics: %s", strerror(-r));
	return r;
}

static int mount_kernel(struct serve *s, const char *dir, struct cfs_fuse **ret, char err[256])
{
	char source[300], kernel_opts[512];
	struct cfs_fuse_conf conf = {
		.vfs = s->vfs,
		.keep = s->worker->keep,
		.device = s->worker->device,
		.wrong = s->restored.lost_inos,
		.n_wrong = s->restored.n_lost_inos,
		.mount_point = dir,
		.source = source,
		.kernel_opts = kernel_opts,
		.allow_other = s->o->allow_other,
		.default_permissions = kernel_checks(s),
		.writeback_cache = s->o->writeback_cache,
		/* Whoever may not write cannot tell others either. */
		.local_locks = s->o->ro,
		.posix_acl = s->setting->enable_acl && kernel_checks(s),
		.umask = -1,
		.stopping = on_stopping,
		.stopping_arg = s,
		.debug = s->o->debug,
		.max_threads = (unsigned)s->o->max_threads,
		.max_io = request_size(s->o),
		.read_ahead_kb = (uint32_t)(s->o->read_ahead >> 10),
	};

	if (s->o->umask && mount_opts_umask(s->o->umask, &conf.umask, err) < 0)
		return -EINVAL;
	snprintf(source, sizeof(source), "cachefs:%s", s->setting->name);
	snprintf(kernel_opts, sizeof(kernel_opts), "%s%s%s", s->o->ro ? "ro" : "rw",
		 s->o->kernel_opts ? "," : "", s->o->kernel_opts ? s->o->kernel_opts : "");
	return cfs_fuse_mount(&conf, ret, err);
}

/* Top down; whatever was reached. 0 or the first error of what had to be stored. */
static int close_layers(struct serve *s, bool session)
{
	int first = 0, r;

	if (s->vfs) {
		first = cfs_vfs_flush(s->vfs);
		if (first < 0)
			cfs_err("data could not be stored before unmounting: err=%s",
				cfs_errname(first));
	}
	/* Compaction and late commits need the session. */
	if (s->data) {
		cfs_data_drain(s->data);
		r = ending_judge(s->ending);
		first = first ? first : r;
	}
	if (session) {
		r = cfs_meta_stop(s->meta);
		if (r < 0)
			cfs_warn("the session could not be closed, others will clean it up: err=%s",
				 cfs_errname(r));
	}
	cfs_vfs_destroy(s->vfs);
	ending_forget_data(s->ending);
	if (s->data) {
		r = cfs_data_destroy(s->data);
		first = first ? first : r;
	}
	if (s->store) {
		cfs_stage_drain(s->store, DRAIN_PATIENCE * s->o->put_timeout_ms);
		peers_leave(s->peers);
		ending_forget_store(s->ending);
		cfs_store_destroy(s->store);
		peers_destroy(s->peers);
	}
	cfs_disk_destroy(s->disk);
	if (s->meta)
		cfs_meta_close(s->meta);
	cfs_object_close(s->objects);
	if (s->pool)
		cfs_pool_destroy(s->pool);
	cfs_setting_free(s->setting);
	return first;
}

/* Those who tell others how the mount is. */
static int start_watching(struct serve *s, char err[256])
{
	struct ending_conf ending = {
		.volume = s->setting->name,
		.dir = s->dir,
		.data = s->data,
		.store = s->store,
		.timeout_ms = s->o->stop_timeout_ms,
		.abandon = abandon,
		.arg = s,
	};
	int r = ending_create(&ending, &s->ending);

	if (r == 0 && (s->o->metrics || notify_wanted()))
		r = health_start(s->dir, &s->health);
	if (r == 0 && s->o->metrics)
		r = start_metrics(s, err);
	if (r < 0 && !err[0])
		snprintf(err, 256, "cannot watch the mount: %s", strerror(-r));
	return r;
}

/* The open files of the process before this one. */
static int restore(struct serve *s, char err[256])
{
	struct cfs_vfs_restored *ret = &s->restored;
	int r = cfs_vfs_restore(s->vfs, ret);

	if (r < 0)
		snprintf(err, 256, "the open files cannot be restored: %s", strerror(-r));
	else
		cfs_info("going on with the mount: volume=%s dir=%s sid=%llu handles=%llu",
			 s->setting->name, s->dir, (unsigned long long)cfs_meta_sid(s->meta),
			 (unsigned long long)ret->handles);
	if (r == 0 && ret->gone)
		cfs_warn("open files that are no longer there: handles=%llu",
			 (unsigned long long)ret->gone);
	if (r == 0 && ret->lost)
		cfs_warn("data that was written and not yet stored is lost, fsync and close will "
			 "say so: handles=%llu",
			 (unsigned long long)ret->lost);
	return r;
}

/*
 * Another process goes on: what a crash would lose is stored, the rest is for the system to take
 * back, as that is fastest and requests wait.
 */
__attribute__((noreturn)) static void leave_mount(struct serve *s)
{
	int r;

	if (cfs_vfs_store(s->vfs) < 0 || cfs_data_drain(s->data) < 0)
		cfs_err("data could not be stored, fsync and close will say so: dir=%s", s->dir);
	peers_leave(s->peers);
	r = cfs_meta_leave(s->meta);
	if (r < 0)
		cfs_warn("usage could not be written: error=%s", cfs_errname(r));
	cfs_info("left the mount to another process: dir=%s", s->dir);
	cfs_log_flush();
	_exit(CMD_OK);
}

static int serve(struct serve *s, struct cfs_fuse *fuse)
{
	char status[512];
	int sig;

	atomic_store(&s->fuse, fuse);
	cfs_info("mounted: volume=%s dir=%s sid=%llu", s->setting->name, s->dir,
		 (unsigned long long)cfs_meta_sid(s->meta));
	snprintf(status, sizeof(status), "Volume %s is mounted at %s", s->setting->name, s->dir);
	notify_start(s->health, status, &s->notify);
	sig = cfs_fuse_loop(fuse);
	worker_unwatch(s->worker);
	if (atomic_load(&s->worker->leaving))
		leave_mount(s);
	ending_begin(s->ending);
	cfs_info("unmounting: volume=%s dir=%s signal=%d", s->setting->name, s->dir,
		 sig > 0 ? sig : 0);
	if (atomic_exchange(&s->fuse, NULL))
		cfs_fuse_unmount(fuse);
	return sig;
}

int serve_mount(const char *url, const char *dir, const struct mount_opts *o, struct worker *w,
		char err[256])
{
	struct serve s = {.o = o, .dir = dir, .worker = w};
	struct cfs_fuse *fuse = NULL;
	bool session = false;
	int r, sig = 0, closed;

	/* One arena per core costs more memory than contention costs time here. */
	mallopt(M_ARENA_MAX, 2);
	r = cfs_activity_init();
	if (r < 0)
		cfs_warn("nobody will see what requests wait for: err=%s", cfs_errname(r));
	notify_send("STATUS=Mounting at %s", dir);
	r = open_backends(&s, url, dir, err);
	if (r == 0)
		r = worker_checked(w, s.setting->uuid, o->ro, err);
	if (r == 0)
		r = open_layers(&s, err);
	if (r == 0) {
		r = start_session(&s, err);
		session = r == 0;
	}
	if (r == 0)
		r = start_watching(&s, err);
	if (r == 0 && worker_resumes(w))
		r = restore(&s, err);
	if (r == 0)
		r = mount_kernel(&s, dir, &fuse, err);
	if (r == 0) {
		r = worker_ready(w, s.vfs, fuse, err);
		if (r == 0)
			sig = serve(&s, fuse);
	}
	/* The mount, its session and its open files are for the next one to try. */
	if (r < 0 && worker_resumes(w)) {
		worker_failed(w, CMD_MOUNT_FAILED, err);
		cfs_log_flush();
		_exit(CMD_MOUNT_FAILED);
	}
	free(s.restored.lost_inos);
	metrics_stop(s.metrics);
	notify_stop(s.notify);
	health_stop(s.health);
	closed = close_layers(&s, session);
	ending_done(s.ending);
	if (closed < 0)
		return CMD_SYSTEM;
	if (r < 0)
		return CMD_MOUNT_FAILED;
	return sig < 0 || atomic_load(&s.lost) ? CMD_SYSTEM : CMD_OK;
}
