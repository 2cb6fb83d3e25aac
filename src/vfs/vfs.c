/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "vfs-internal.h"

#define DEFAULT_IO_TIMEOUT_MS 60000

int cfs_vfs_create(const struct cfs_vfs_conf *conf, struct cfs_vfs **ret)
{
	struct cfs_vfs *v = calloc(1, sizeof(*v));
	int r;

	if (!v)
		return -ENOMEM;
	v->conf = *conf;
	if (!v->conf.root)
		v->conf.root = CFS_ROOT_INO;
	if (!v->conf.io_timeout_ms)
		v->conf.io_timeout_ms = DEFAULT_IO_TIMEOUT_MS;
	/* Validity times are handed out in 32 bits. */
	v->conf.attr_timeout_ms = CFS_MIN(conf->attr_timeout_ms, (uint64_t)UINT32_MAX);
	v->conf.entry_timeout_ms = CFS_MIN(conf->entry_timeout_ms, (uint64_t)UINT32_MAX);
	v->conf.dir_entry_timeout_ms = CFS_MIN(conf->dir_entry_timeout_ms, (uint64_t)UINT32_MAX);
	v->conf.absent_timeout_ms = CFS_MIN(conf->absent_timeout_ms, (uint64_t)UINT32_MAX);
	/* The kernel's cache of names would let a caller in where only another one may search. */
	if (conf->check_permissions && !conf->squash_all.on)
		v->conf.entry_timeout_ms = v->conf.dir_entry_timeout_ms =
			v->conf.absent_timeout_ms = 0;
	v->started = cfs_wall();
	r = cache_init(&v->cache, v->conf.attr_timeout_ms);
	if (r < 0)
		goto free_vfs;
	r = newdirs_init(&v->newdirs,
			 CFS_MIN(v->conf.entry_timeout_ms, v->conf.dir_entry_timeout_ms));
	if (r < 0)
		goto free_cache;
	r = dircache_init(&v->dircache,
			  CFS_MIN(v->conf.attr_timeout_ms,
				  CFS_MIN(v->conf.entry_timeout_ms, v->conf.dir_entry_timeout_ms)),
			  &v->cache);
	if (r < 0)
		goto free_newdirs;
	r = dirpages_init(&v->dirpages, conf->pool);
	if (r < 0)
		goto free_dircache;
	r = handles_init(&v->handles, conf->handoff);
	if (r < 0)
		goto free_dirpages;
	r = access_log_init(&v->log);
	if (r < 0)
		goto free_handles;
	r = cfs_table_create(64, &v->vnodes);
	if (r < 0)
		goto free_log;
	r = cfs_table_create(64, &v->removed_dirs);
	if (r < 0)
		goto free_vnodes;
	slow_init(&v->slow);
	closed_init(&v->closed);
	passthrough_init(&v->passthrough);
	/* An earlier process has lost bytes, and no fsync has reported that. */
	if (conf->handoff && atomic_load(&cfs_handoff_header(conf->handoff)->closed_lost))
		closed_lost(v, 0, -EIO);
	pthread_mutex_init(&v->lock_owners_lock, NULL);
	r = ahead_start(v);
	if (r < 0)
		goto free_walks;
	r = watchdog_start(v);
	if (r < 0)
		goto stop_ahead;
	*ret = v;
	return 0;

stop_ahead:
	ahead_stop(v);
free_walks:
	walks_fini(&v->walks);
	trees_fini(&v->trees);
	passthrough_fini(&v->passthrough);
	closed_fini(&v->closed);
	slow_fini(&v->slow);
	pthread_mutex_destroy(&v->lock_owners_lock);
	cfs_table_destroy(v->removed_dirs);
free_vnodes:
	cfs_table_destroy(v->vnodes);
free_log:
	access_log_fini(&v->log);
free_handles:
	handles_fini(&v->handles);
free_dirpages:
	dirpages_fini(&v->dirpages);
free_dircache:
	dircache_fini(&v->dircache);
free_newdirs:
	newdirs_fini(&v->newdirs);
free_cache:
	cache_fini(&v->cache);
free_vfs:
	free(v);
	return r;
}

int cfs_vfs_flush(struct cfs_vfs *v)
{
	enum handle_kind kind;
	struct cfs_ctx ctx;
	uint32_t pos = 0, err_seq;
	uint64_t fh;
	int r;

	if (v->flushed)
		return v->flush_err;
	v->flushed = true;
	ahead_stop(v);
	while ((fh = handle_next(&v->handles, &pos, &kind)) != 0) {
		ctx = internal_ctx(v);
		if (kind == HANDLE_DIR) {
			cfs_vfs_releasedir(v, &ctx, fh);
			continue;
		}
		r = cfs_vfs_flush_file(v, &ctx, fh, 0);
		if (r < 0 && v->flush_err == 0)
			v->flush_err = r;
		cfs_vfs_release(v, &ctx, fh);
	}
	cfs_data_end_closed(v->conf.data);
	err_seq = closed_err_seq(v);
	r = closed_take_error(v, &err_seq);
	if (v->flush_err == 0)
		v->flush_err = r;
	return v->flush_err;
}

void cfs_vfs_destroy(struct cfs_vfs *v)
{
	if (!v)
		return;
	cfs_vfs_flush(v);
	watchdog_stop(v);
	walks_fini(&v->walks);
	trees_fini(&v->trees);
	removed_dir_forget_all(v);
	cfs_table_destroy(v->removed_dirs);
	cfs_table_destroy(v->vnodes);
	pthread_mutex_destroy(&v->lock_owners_lock);
	slow_fini(&v->slow);
	passthrough_fini(&v->passthrough);
	closed_fini(&v->closed);
	access_log_fini(&v->log);
	handles_fini(&v->handles);
	dirpages_fini(&v->dirpages);
	dircache_fini(&v->dircache);
	newdirs_fini(&v->newdirs);
	cache_fini(&v->cache);
	free(v);
}

/* ---- hooks of the metadata ---- */

static int hook_delete_slice(void *arg, uint64_t slice, uint32_t size)
{
	struct cfs_vfs *v = arg;

	return cfs_data_delete_slice(v->conf.data, slice, size);
}

static int hook_sync_objects(void *arg)
{
	struct cfs_vfs *v = arg;

	return cfs_data_sync_objects(v->conf.data);
}

static void hook_compact(void *arg, cfs_ino_t ino, uint32_t indx, bool force)
{
	struct cfs_vfs *v = arg;

	cfs_data_queue_compact(v->conf.data, ino, indx, force);
}

static bool hook_is_open(void *arg, cfs_ino_t ino)
{
	struct cfs_vfs *v = arg;
	bool open;

	cfs_table_read_lock();
	open = cfs_table_find(v->vnodes, ino) != NULL;
	cfs_table_read_unlock();
	return open;
}

static int hook_slices_used(void *arg, uint64_t first, uint64_t n, cfs_deadline_t deadline)
{
	struct cfs_vfs *v = arg;

	return cfs_data_slices_used(v->conf.data, first, n, deadline);
}

static void hook_lost(void *arg, const char *reason)
{
	struct cfs_vfs *v = arg;

	if (v->conf.lost)
		v->conf.lost(v->conf.lost_arg, reason);
	else
		cfs_err("volume is gone: reason=\"%s\"", reason);
}

static void hook_reloaded(void *arg, const struct cfs_setting *s)
{
	struct cfs_vfs *v = arg;

	if (v->conf.reloaded)
		v->conf.reloaded(v->conf.reloaded_arg, s);
}

static void hook_session_ended(void *arg, uint64_t sid)
{
	locks_session_ended(arg, sid);
}

static void *hook_note_unlock(void *arg, cfs_ino_t ino, uint64_t owner, bool posix)
{
	struct cfs_vfs *v = arg;

	return cfs_handoff_add_unlock(v->conf.handoff, ino, owner, posix);
}

static void hook_drop_unlock(void *arg, void *note)
{
	struct cfs_vfs *v = arg;

	cfs_handoff_remove_unlock(v->conf.handoff, note);
}

struct cfs_meta_hooks cfs_vfs_hooks(struct cfs_vfs *v)
{
	return (struct cfs_meta_hooks){
		.arg = v,
		.delete_slice = hook_delete_slice,
		.sync_objects = hook_sync_objects,
		.slices_used = hook_slices_used,
		.compact = v->conf.read_only ? NULL : hook_compact,
		.is_open = hook_is_open,
		.lost = hook_lost,
		.reloaded = hook_reloaded,
		.session_ended = hook_session_ended,
		.note_unlock = hook_note_unlock,
		.drop_unlock = hook_drop_unlock,
	};
}
