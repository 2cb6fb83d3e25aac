/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mdtest on a META-URL: makes the metadata calls of a mount, without a mount. The object store is
 * not used; writes are records of slices that have no objects.
 */
#include <cachefs/meta.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/access/cmd.h"
#include "cmd/access/volume.h"
#include "cmd/bench/mdtest.h"
#include "cmd/sets/sorter.h"

enum { STEP_MS = 60000, LIST_PAGE = 1000, DELETE_WAIT_MS = 120000 };

struct volume_target {
	struct mdtest_target t;
	struct cfs_meta *meta;
	uint64_t skip_dir_mtime_ms;
	bool started;
	cfs_ino_t *dirs;
	char top[64];
	/* Slices that this run made, sorted before the first can be deleted; protected by lock. */
	pthread_mutex_t lock;
	uint64_t *slices;
	size_t n_slices;
	cfs_ino_t first, last; /* of the files that have slices */
	_Atomic bool sorted;
};

static struct volume_target *volume_of(struct mdtest_target *t)
{
	return (struct volume_target *)t;
}

/* Only slices of this run may be forgotten: other slices have objects, which a mount removes. */
static int delete_slice(void *arg, uint64_t slice, uint32_t size)
{
	struct volume_target *v = arg;

	if (!atomic_load(&v->sorted) || !v->n_slices)
		return -EAGAIN;
	return bsearch(&slice, v->slices, v->n_slices, sizeof(slice), sorter_compare_u64) ? 0
											  : -EAGAIN;
}

static int make(struct volume_target *v, cfs_ino_t parent, const char *name, uint8_t type,
		struct cfs_entry *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	const struct cfs_mknod req = {
		.parent = parent,
		.name = name,
		.name_len = strlen(name),
		.type = type,
		.mode = type == CFS_TYPE_DIR ? 0755 : 0644,
	};

	return cfs_meta_mknod(v->meta, &ctx, &req, ret);
}

static cfs_ino_t parent_of(struct volume_target *v, uint64_t dir, char name[32])
{
	uint64_t width = v->t.shape.width;

	snprintf(name, 32, "d%" PRIu64, (dir - 1) % width);
	return v->dirs[(dir - 1) / width];
}

static cfs_ino_t dir_of(struct volume_target *v, uint64_t file, char name[32])
{
	snprintf(name, 32, "f%" PRIu64, file % v->t.shape.files);
	return v->dirs[file / v->t.shape.files];
}

static int volume_mkdir(struct mdtest_target *t, uint64_t dir)
{
	struct volume_target *v = volume_of(t);
	struct cfs_entry e;
	char name[32];
	cfs_ino_t parent = parent_of(v, dir, name);
	int r = parent ? make(v, parent, name, CFS_TYPE_DIR, &e) : -ENOENT;

	if (!r)
		v->dirs[dir] = e.ino;
	return r;
}

static int write_file(struct volume_target *v, cfs_ino_t ino)
{
	uint64_t left = v->t.shape.write_bytes;
	uint32_t indx;
	int r = 0;

	for (indx = 0; left && !r; indx++) {
		struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
		uint32_t size = (uint32_t)CFS_MIN(left, CFS_CHUNK_SIZE);
		struct cfs_commit c = {.ino = ino,
				       .indx = indx,
				       .slice = {.size = size, .len = size},
				       .mtime = ctx.now};

		left -= size;
		r = cfs_meta_new_slice(v->meta, &ctx, &c.slice.id);
		if (r)
			break;
		pthread_mutex_lock(&v->lock);
		v->slices[v->n_slices++] = c.slice.id;
		if (!v->first || ino < v->first)
			v->first = ino;
		v->last = CFS_MAX(v->last, ino);
		pthread_mutex_unlock(&v->lock);
		r = cfs_meta_commit(v->meta, &ctx, &c);
	}
	return r;
}

static int volume_create(struct mdtest_target *t, uint64_t file)
{
	struct volume_target *v = volume_of(t);
	struct cfs_entry e;
	char name[32];
	cfs_ino_t dir = dir_of(v, file, name);
	int r = dir ? make(v, dir, name, CFS_TYPE_FILE, &e) : -ENOENT;

	return r ? r : write_file(v, e.ino);
}

static int volume_created(struct mdtest_target *t)
{
	struct volume_target *v = volume_of(t);

	if (v->n_slices)
		qsort(v->slices, v->n_slices, sizeof(*v->slices), sorter_compare_u64);
	atomic_store(&v->sorted, true);
	return 0;
}

static int volume_stat(struct mdtest_target *t, uint64_t file)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	struct volume_target *v = volume_of(t);
	struct cfs_entry e;
	char name[32];
	cfs_ino_t dir = dir_of(v, file, name);

	return cfs_meta_lookup(v->meta, &ctx, dir, name, strlen(name), &e);
}

static int count_entry(void *arg, const struct cfs_dirent *e)
{
	return 0;
}

static int volume_list(struct mdtest_target *t, uint64_t dir)
{
	struct volume_target *v = volume_of(t);
	struct cfs_cursor cursor = {0};
	int r;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);

		r = cfs_meta_readdir(v->meta, &ctx, v->dirs[dir], true, LIST_PAGE, &cursor,
				     count_entry, NULL);
	} while (r == 0);
	return r < 0 ? r : 0;
}

static int volume_unlink(struct mdtest_target *t, uint64_t file)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	struct volume_target *v = volume_of(t);
	struct cfs_removed gone;
	char name[32];
	cfs_ino_t dir = dir_of(v, file, name);

	return cfs_meta_unlink(v->meta, &ctx, dir, name, strlen(name), CFS_REMOVE_SKIP_TRASH,
			       &gone);
}

static int volume_rmdir(struct mdtest_target *t, uint64_t dir)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	struct volume_target *v = volume_of(t);
	struct cfs_removed gone;
	char name[32];
	cfs_ino_t parent = dir ? parent_of(v, dir, name) : CFS_ROOT_INO;

	return cfs_meta_rmdir(v->meta, &ctx, parent, dir ? name : v->top,
			      strlen(dir ? name : v->top), CFS_REMOVE_SKIP_TRASH, &gone);
}

static bool volume_requests(struct mdtest_target *t, struct mdtest_requests *ret)
{
	struct cfs_meta_stats s;
	size_t i;

	cfs_meta_stats(volume_of(t)->meta, &s);
	for (i = 0; i < CFS_META_OP_COUNT; i++)
		if (i != CFS_META_OP_session)
			ret->round_trips += s.op[i].round_trips;
	ret->retries += s.retries;
	return true;
}

struct left {
	const struct volume_target *v;
	uint64_t files;
};

static int count_left(void *arg, const struct cfs_row *row)
{
	struct left *left = arg;

	left->files += row->ino >= left->v->first && row->ino <= left->v->last;
	return 0;
}

/*
 * Waits for the background deletion of file data, which would otherwise be left to the hourly job.
 */
static int wait_for_deletion(struct volume_target *v)
{
	cfs_deadline_t end = cfs_deadline_in(DELETE_WAIT_MS);
	struct left left;
	unsigned attempt = 0;
	int r;

	if (!v->n_slices)
		return 0;
	do {
		left = (struct left){.v = v};
		r = cfs_meta_scan(v->meta, CFS_TABLE_DELFILE, count_left, &left);
		if (r || !left.files)
			return r;
	} while (cfs_backoff(attempt++, 10, 200, end));
	return -ETIMEDOUT;
}

static int volume_close(struct mdtest_target *t)
{
	struct volume_target *v = volume_of(t);
	int r = v->started ? wait_for_deletion(v) : 0, r2 = v->started ? cfs_meta_stop(v->meta) : 0;

	r = r ? r : r2;
	if (v->meta)
		cfs_meta_close(v->meta);
	pthread_mutex_destroy(&v->lock);
	free(v->dirs);
	free(v->slices);
	free(v);
	return r;
}

static const struct mdtest_ops volume_ops = {
	.mkdir = volume_mkdir,
	.create = volume_create,
	.stat = volume_stat,
	.list = volume_list,
	.unlink = volume_unlink,
	.rmdir = volume_rmdir,
	.created = volume_created,
	.requests = volume_requests,
	.close = volume_close,
};

static int start(struct volume_target *v, const char *url, char err[256])
{
	const struct cfs_meta_conf conf = {
		.no_bgjob = true,
		.heartbeat_ms = 12000,
		.timeout_ms = STEP_MS,
		.skip_dir_mtime_ms = v->skip_dir_mtime_ms,
		.max_deletes = 2,
		.mount_point = "mdtest",
	};
	const struct cfs_meta_hooks hooks = {.arg = v, .delete_slice = delete_slice};
	struct cfs_setting *setting;
	struct cfs_entry top;
	int r = volume_open(url, &conf, &v->meta, &setting, err);

	if (r)
		return r;
	cfs_setting_free(setting);
	r = cfs_meta_start(v->meta, &hooks);
	v->started = r == 0;
	if (!r)
		r = make(v, CFS_ROOT_INO, v->top, CFS_TYPE_DIR, &top);
	if (!r)
		v->dirs[0] = top.ino;
	return r;
}

int mdtest_open_volume(const char *url, const struct mdtest_shape *s, uint64_t skip_dir_mtime_ms,
		       struct mdtest_target **ret)
{
	uint64_t chunks = CFS_DIV_UP(s->write_bytes, CFS_CHUNK_SIZE);
	struct volume_target *v = calloc(1, sizeof(*v));
	char err[256] = "";
	int r = -ENOMEM;

	if (!v)
		return CMD_SYSTEM;
	v->t = (struct mdtest_target){.ops = &volume_ops, .shape = *s};
	v->skip_dir_mtime_ms = skip_dir_mtime_ms;
	pthread_mutex_init(&v->lock, NULL);
	snprintf(v->top, sizeof(v->top), "mdtest.%d.%" PRIx64, (int)getpid(), cfs_now_ns());
	v->dirs = calloc(s->n_dirs, sizeof(*v->dirs));
	v->slices = calloc(s->n_files * chunks + 1, sizeof(*v->slices));
	if (v->dirs && v->slices)
		r = start(v, url, err);
	if (!r) {
		*ret = &v->t;
		return CMD_OK;
	}
	cmd_error("%s", err[0] ? err : strerror(-r));
	volume_close(&v->t);
	return CMD_SYSTEM;
}
