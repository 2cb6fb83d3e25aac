/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uploads of staged blocks, oldest first.
 *
 * A failed upload is retried for as long as the block exists, with growing pauses. While uploads
 * fail, only one uploader tries, and the log names only one block.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "stage-internal.h"
#include "store/store-internal.h"

#define RETRY_MIN_MS 200
#define RETRY_MAX_MS 10000

static bool hour_is_right(const struct cfs_stage_conf *conf)
{
	struct timespec now = cfs_wall();
	struct tm tm;
	int from = conf->hour_from, until = conf->hour_until;

	if (from == until || !localtime_r(&now.tv_sec, &tm))
		return true;
	if (from < until)
		return tm.tm_hour >= from && tm.tm_hour < until;
	return tm.tm_hour >= from || tm.tm_hour < until;
}

/* The oldest block that is due, called with the lock. */
static struct staged *first_due(struct cfs_stage *st)
{
	bool flush = st->mode == CFS_STAGE_FLUSH;
	cfs_deadline_t now = cfs_now_ms();
	int64_t until_ms = (int64_t)now - (int64_t)st->conf.delay_ms;
	struct staged *e;

	if (st->conf.read_only || atomic_load(&st->stopping) || st->mode == CFS_STAGE_LEAVE)
		return NULL;
	if (!flush && !hour_is_right(&st->conf))
		return NULL;
	TAILQ_FOREACH(e, &st->list, by_age)
	{
		if (!flush && st->conf.delay_ms && e->since_ms > until_ms)
			return NULL;
		if (e->state == STAGED_WAITING && e->retry_at <= now)
			return e;
	}
	return NULL;
}

/* Limits the memory of uploads: the pages of a block are not evicted during its upload. */
static bool memory_allows(const struct cfs_stage *st, uint32_t len)
{
	return st->uploading_bytes == 0 || st->uploading_bytes + len <= st->uploading_max;
}

void cfs_stage_wake(struct cfs_stage *st)
{
	unsigned i, max = st->failing ? 1 : st->conf.max_uploads;
	const struct staged *e = st->n_busy < max ? first_due(st) : NULL;

	if (!e || !memory_allows(st, e->id.len))
		return;
	for (i = 0; st->uploaders[i].busy; i++)
		;
	if (cfs_workers_try_submit(st->workers, &st->uploaders[i].job) == 0) {
		st->uploaders[i].busy = true;
		st->n_busy++;
	}
}

static void remove_object(struct cfs_stage *st, const struct cfs_block *b)
{
	struct cfs_store *s = st->store;
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(s, b, key);
	if (s->object->ops->del(s->object, key, cfs_deadline_in(s->put_timeout_ms)) < 0)
		cfs_warn("object of a removed block is left behind: key=%s", key);
}

/* The removal of a staged file. */
struct stage_end {
	struct cfs_task task; /* first */
	struct cfs_disk *disk;
	struct cache_dir *dir;
	struct cfs_block id;
};

static ssize_t run_end(struct cfs_task *task)
{
	const struct stage_end *end = (struct stage_end *)task;

	cfs_cachedir_unlink(end->dir, CFS_CACHEDIR_STAGED, &end->id);
	cfs_disk_adopt(end->disk, end->dir, &end->id);
	return 0;
}

/* Removes the staged file. A slow disk does it later; a crash has it uploaded once more. */
static void end_file(struct cfs_stage *st, struct cache_dir *dir, const struct cfs_block *b)
{
	struct stage_end *end = cfs_task_new(sizeof(*end), run_end, NULL);
	ssize_t ignored;
	int r;

	if (!end)
		return;
	end->task.stays = true;
	end->disk = st->disk;
	end->dir = dir;
	end->id = *b;
	r = cfs_task_wait(&end->task, st->writers[dir->number],
			  cfs_deadline_in(st->dirs->conf.stall_ms), &ignored);
	if (r == -ETIMEDOUT)
		cfs_cachedir_fault(dir, "remove staged block", r, false);
	cfs_task_end(&end->task);
}

static void uploaded(struct cfs_stage *st, struct staged *e)
{
	struct cache_dir *dir = e->dir;
	struct cfs_block b = e->id;
	bool dropped, recovered;

	pthread_mutex_lock(&st->lock);
	dropped = e->dropped;
	recovered = st->told;
	st->failing = st->told = false;
	pthread_mutex_unlock(&st->lock);
	atomic_fetch_add(&st->stat.uploads, 1);
	if (recovered)
		cfs_info("staged blocks are uploaded again");
	if (!dropped)
		end_file(st, dir, &b);
	pthread_mutex_lock(&st->lock);
	dropped = e->dropped;
	cfs_stage_free_entry(st, e);
	pthread_mutex_unlock(&st->lock);
	if (!dropped)
		return;
	cfs_disk_forget_staged(st->disk, dir, &b);
	remove_object(st, &b);
}

static void log_damaged(const struct staged *e)
{
	char path[CFS_CACHEDIR_PATH_MAX];

	cfs_cachedir_path(e->dir->set, CFS_CACHEDIR_STAGED, &e->id, path);
	cfs_err("staged block is damaged; it is not uploaded, its file is kept: file=%s/%s",
		e->dir->path, path);
}

/*
 * The staged file is missing. Another mount of the directory may have uploaded or removed the block;
 * else its bytes are lost, and that is logged. False: the disk or the object store cannot tell.
 */
static bool is_gone(struct cfs_stage *st, const struct staged *e)
{
	struct cfs_store *s = st->store;
	struct cfs_object_info info;
	char key[CFS_BLOCK_KEY_MAX];
	int r;

	if (atomic_load(&e->dir->state) == DIR_FAILED)
		return false;
	cfs_store_block_key(s, &e->id, key);
	r = s->object->ops->head(s->object, key, &info, cfs_deadline_in(s->get_timeout_ms));
	if (r == -ENOENT)
		cfs_err("staged block has vanished before it was uploaded, its bytes are lost "
			"unless another mount with this directory has removed them: key=%s dir=%s",
			key, e->dir->path);
	return r == 0 || r == -ENOENT;
}

static void log_unread(const struct cache_dir *dir, const struct cfs_block *b, int err)
{
	char path[CFS_CACHEDIR_PATH_MAX];

	cfs_cachedir_path(dir->set, CFS_CACHEDIR_STAGED, b, path);
	cfs_warn("staged block cannot be read for its upload, tried again until it is: file=%s/%s "
		 "error=%s",
		 dir->path, path, cfs_errname(err));
}

static void log_failure(struct cfs_stage *st, const struct cfs_block *b, int err, const char *cause)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(st->store, b, key);
	cfs_warn("staged block cannot be uploaded, tried again until it is, and so are others: "
		 "key=%s error=%s cause=%s",
		 key, cfs_errname(err), cause);
}

/* local: the staged file cannot be read; else the object store failed. */
static void not_uploaded(struct cfs_stage *st, struct staged *e, int err, bool local,
			 const char *cause)
{
	uint64_t pause_ms = CFS_MIN((uint64_t)RETRY_MIN_MS << CFS_MIN(e->tries, 10u), RETRY_MAX_MS);
	struct cache_dir *dir = e->dir;
	struct cfs_block b = e->id;
	bool gone = local && err == -ENOENT && is_gone(st, e), dropped, tell;

	if (local && err == -EBADMSG) {
		log_damaged(e);
	} else if (local && err != -ENOENT && err != -ETIMEDOUT && err != -ENOMEM) {
		cfs_cachedir_fault(dir, "read staged block", err, false);
	}
	if (!local)
		atomic_fetch_add(&st->stat.upload_errors, 1);
	pthread_mutex_lock(&st->lock);
	dropped = e->dropped;
	tell = !gone && e->tries == 0 && err != -EBADMSG && err != -ENOMEM &&
	       (local ? err != -ETIMEDOUT : !st->told);
	st->failing = st->failing || !local;
	st->told = st->told || (tell && !local);
	e->state = STAGED_WAITING;
	e->retry_at = cfs_deadline_in(pause_ms + cfs_random_u64() % RETRY_MIN_MS);
	e->tries = (uint16_t)CFS_MIN(e->tries + 1u, UINT16_MAX);
	if (gone || dropped)
		cfs_stage_free_entry(st, e);
	else if (local && err == -EBADMSG)
		cfs_stage_list_damaged(st, e);
	pthread_mutex_unlock(&st->lock);
	if (tell && local)
		log_unread(dir, &b, err);
	else if (tell)
		log_failure(st, &b, err, cause);
	if (dropped && !gone) {
		cfs_disk_forget_staged(st->disk, dir, &b);
		remove_object(st, &b); /* a put that has failed may have stored it after all */
	}
}

/* 1: the whole block is in memory. */
static int collect_from_memory(struct cfs_store *s, const struct cfs_block *b, struct cfs_segs *ret)
{
	struct shard *sh = cfs_memory_shard(s, b);
	struct block *block;
	CFS_LOCK_GUARD(&sh->lock);

	block = cfs_memory_find(sh, b);
	return block && cfs_memory_collect_block(block, ret) > 0;
}

/* A staged block that is being read. */
struct stage_read {
	struct cfs_task task; /* first */
	struct cache_dir *dir;
	struct cfs_block id;
	struct cfs_segs data;
};

static ssize_t run_read(struct cfs_task *task)
{
	struct stage_read *rd = (struct stage_read *)task;
	int r;

	cfs_cachedir_await(rd->dir, &rd->id);
	r = cfs_stage_file_read(rd->dir, &rd->id, &rd->data);
	cfs_activity_wait_end();
	return r;
}

static void free_read(struct cfs_task *task, bool uncollected)
{
	struct stage_read *rd = (struct stage_read *)task;

	cfs_segs_release(&rd->data);
	free(rd);
}

static int read_by(struct cfs_workers *w, struct stage_read *rd, cfs_deadline_t deadline)
{
	uint64_t stall_ms = rd->dir->set->conf.stall_ms;
	ssize_t result = 0;
	int r;

	r = cfs_task_wait(&rd->task, w, cfs_deadline_min(deadline, cfs_deadline_in(stall_ms)),
			  &result);
	if (r == -ETIMEDOUT)
		cfs_cachedir_fault(rd->dir, "read staged block", r, false);
	return r < 0 ? -ETIMEDOUT : (int)result;
}

/*
 * Has a worker of the block's directory read it, so that a hung disk delays no uploads from others.
 * Appends it to *ret. -ENOENT; -EBADMSG: damaged; -ETIMEDOUT: the disk hangs or has failed, or no
 * pages are free.
 */
static int read_in_time(struct cfs_stage *st, struct staged *e, cfs_deadline_t deadline,
			struct cfs_segs *ret)
{
	struct cfs_workers *w = st->writers[e->dir->number];
	struct stage_read *rd;
	int r;

	if (atomic_load(&e->dir->state) == DIR_FAILED)
		return -ETIMEDOUT;
	rd = cfs_task_new(sizeof(*rd), run_read, free_read);
	if (!rd)
		return -ENOMEM;
	rd->dir = e->dir;
	rd->id = e->id;
	cfs_segs_init(&rd->data);
	r = cfs_stage_file_room(st, &e->id, deadline, &rd->data);
	if (r == 0)
		r = read_by(w, rd, deadline);
	if (r == 0)
		r = cfs_segs_slice(ret, &rd->data, 0, rd->data.len);
	cfs_task_end(&rd->task);
	return r;
}

static void upload_one(struct cfs_stage *st, struct staged *e)
{
	struct cfs_store *s = st->store;
	cfs_deadline_t deadline = cfs_deadline_in(s->put_timeout_ms);
	uint64_t begun = cfs_sync_begin(s);
	struct cfs_segs data;
	bool local = true;
	int r;

	cfs_object_quiet(true);
	cfs_segs_init(&data);
	r = collect_from_memory(s, &e->id, &data);
	if (r == 0)
		r = read_in_time(st, e, deadline, &data);
	if (r >= 0) {
		local = false;
		r = cfs_put_object(s, &e->id, &data, deadline);
	}
	cfs_segs_release(&data);
	/* The file is removed once the object is durable. */
	if (r == 0 && s->object->ops->sync)
		r = cfs_store_sync(s, deadline);
	/* A failure to write it back may have been reported to another caller's sync only. */
	if (r == 0)
		r = cfs_sync_check(s, begun);
	if (r == 0)
		uploaded(st, e);
	else
		not_uploaded(st, e, r, local, cfs_object_cause());
}

void cfs_stage_run_uploader(struct cfs_job *job)
{
	struct stage_uploader *u = (struct stage_uploader *)job;
	struct cfs_stage *st = u->stage;
	struct staged *e;

	pthread_mutex_lock(&st->lock);
	while ((!st->failing || st->n_busy == 1) && (e = first_due(st)) != NULL &&
	       memory_allows(st, e->id.len)) {
		uint32_t len = e->id.len;

		e->state = STAGED_UPLOADING;
		st->uploading_bytes += len;
		cfs_stage_wake(st);
		pthread_mutex_unlock(&st->lock);
		upload_one(st, e);
		pthread_mutex_lock(&st->lock);
		st->uploading_bytes -= len;
	}
	u->busy = false;
	st->n_busy--;
	pthread_cond_broadcast(&st->changed);
	pthread_mutex_unlock(&st->lock);
}
