/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite's write-ahead log: making it durable, and moving it into the database. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/thread.h"
#include "meta/sqlite/sqlite-internal.h"

/* A log of so many pages starts a checkpoint: lookups in a longer log cost more. */
#define CHECKPOINT_FRAMES 4000
#define BULK_PASSES	  2
/* With a longer log, writers wait for the checkpoint, so that the log does not fill the disk. */
#define MAX_FRAMES  32000
#define MAX_WAIT_MS 1000

/*
 * Warned of from here on, and at each doubling. Only a reader that stays open lets the log grow to
 * several times MAX_FRAMES.
 */
#define LONG_LOG_BYTES ((uint64_t)256 << 20)

/* ---- durability ---- */

static int sync_directory(const char *path)
{
	cfs_auto_free char *dir = strdup(path);
	cfs_auto_close int fd = -1;
	char *slash;

	if (!dir)
		return -ENOMEM;
	slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir] = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) ? -errno : 0;
}

/*
 * Syncs the log. It contains the commits of all processes, except those that a checkpoint has moved
 * into the database file and synced. The log has no POSIX locks, so closing another descriptor of
 * it drops none.
 */
int sqlite_sync(struct sql_db *sql, const struct cfs_ctx *ctx)
{
	struct sqlite_db *db = (struct sqlite_db *)sql;
	cfs_auto_free char *path = NULL;
	cfs_auto_close int fd = -1;
	struct stat st;
	int r = sqlite_check_file(db);

	if (r)
		return r;
	if (asprintf(&path, "%s-wal", db->path) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &st) || fdatasync(fd))
		return -errno;
	if (atomic_load(&db->synced_log) != st.st_ino) {
		r = sync_directory(path);
		if (r)
			return r;
		atomic_store(&db->synced_log, st.st_ino);
	}
	return 0;
}

/* ---- checkpoints ---- */

static void report(sqlite3 *handle, int rc)
{
	/*
	 * Busy: a reader or a checkpoint of another connection is running; the next one may
	 * succeed.
	 */
	if ((rc & 0xff) != SQLITE_BUSY && (rc & 0xff) != SQLITE_LOCKED)
		sqlite_error(handle, rc, "checkpoint");
}

static int checkpoint(sqlite3 *handle)
{
	return sqlite3_wal_checkpoint_v2(handle, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

void sqlite_move_log(sqlite3 *handle)
{
	int rc = checkpoint(handle);

	if (rc)
		report(handle, rc);
}

/* Syncs the database file, so that the last part of the checkpoint has little to sync. */
static void sync_database(sqlite3 *handle)
{
	sqlite3_file *file = NULL;

	if (!sqlite3_file_control(handle, "main", SQLITE_FCNTL_FILE_POINTER, &file) && file &&
	    file->pMethods)
		file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
}

/* A connection opens the log only when it reads the database. */
static int open_own_handle(struct sqlite_db *db, sqlite3 **ret)
{
	int rc = sqlite_open_handle(db, SQLITE_OPEN_READWRITE, ret);

	if (!rc)
		rc = sqlite_probe(*ret);
	if (rc) {
		report(*ret, rc);
		sqlite3_close(*ret);
		*ret = NULL;
	}
	return rc;
}

static bool wait_for_work(struct sqlite_checkpointer *k)
{
	CFS_LOCK_GUARD(&k->lock);

	while (atomic_load(&k->phase) != SQLITE_CHECKPOINT_WANTED && !k->stop)
		pthread_cond_wait(&k->wake, &k->lock);
	return !k->stop;
}

static void bulk_moved(struct sqlite_checkpointer *k, enum sqlite_checkpoint next)
{
	pthread_mutex_lock(&k->lock);
	atomic_store(&k->phase, next);
	pthread_cond_signal(&k->moved);
	pthread_mutex_unlock(&k->lock);
}

static void wait_for_bulk(struct sqlite_checkpointer *k)
{
	cfs_deadline_t deadline = cfs_deadline_in(MAX_WAIT_MS);
	CFS_LOCK_GUARD(&k->lock);

	while (atomic_load(&k->phase) == SQLITE_CHECKPOINT_WANTED)
		if (cfs_cond_wait(&k->moved, &k->lock, deadline))
			break;
}

static void *move_bulk(void *arg)
{
	struct sqlite_db *db = arg;
	sqlite3 *handle = NULL;

	while (wait_for_work(&db->checkpointer)) {
		int rc = handle ? SQLITE_OK : open_own_handle(db, &handle);

		/* The second pass moves the frames written during the first. */
		for (int pass = 0; pass < BULK_PASSES && !rc; pass++) {
			rc = checkpoint(handle);
			if (rc)
				report(handle, rc);
			else
				sync_database(handle);
		}
		bulk_moved(&db->checkpointer,
			   rc ? SQLITE_CHECKPOINT_IDLE : SQLITE_CHECKPOINT_BULK_MOVED);
	}
	sqlite3_close(handle);
	return NULL;
}

static void wake(struct sqlite_db *db)
{
	struct sqlite_checkpointer *k = &db->checkpointer;
	CFS_LOCK_GUARD(&k->lock);

	if (!k->running)
		k->running = !cfs_thread_start("cfs-checkpoint", move_bulk, db, &k->thread);
	if (k->running)
		atomic_store(&k->phase, SQLITE_CHECKPOINT_WANTED);
	pthread_cond_signal(&k->wake);
}

/* The frame of a page has a header of 24 bytes. 0: not known. */
static uint64_t frame_bytes(sqlite3 *handle)
{
	sqlite3_stmt *stmt = NULL;
	uint64_t bytes = 0;

	if (!sqlite3_prepare_v2(handle, "PRAGMA page_size", -1, &stmt, NULL) &&
	    sqlite3_step(stmt) == SQLITE_ROW)
		bytes = (uint64_t)sqlite3_column_int64(stmt, 0) + 24;
	sqlite3_finalize(stmt);
	return bytes;
}

static void watch_length(struct sqlite_db *db, sqlite3 *handle, int frames)
{
	struct sqlite_checkpointer *k = &db->checkpointer;
	uint64_t bytes;

	if (!k->frame_bytes)
		k->frame_bytes = frame_bytes(handle);
	bytes = (uint64_t)frames * k->frame_bytes;
	atomic_store_explicit(&db->sql.engine.host->log_bytes, bytes, memory_order_relaxed);
	if (bytes < LONG_LOG_BYTES)
		k->warn_bytes = LONG_LOG_BYTES;
	if (bytes < k->warn_bytes)
		return;
	k->warn_bytes = 2 * bytes;
	cfs_warn("the log of the database grows, because a program keeps reading an old state of "
		 "it; it shrinks when that program ends its transaction: file=%s-wal bytes=%llu",
		 db->path, (unsigned long long)bytes);
}

/*
 * Runs on the write connection after each commit; frames: the length of the log. After the
 * checkpointer has moved most of the log, the rest is moved here, where no other connection can
 * write. So the whole log is moved, and the next writer restarts it from the beginning.
 */
static int committed(void *arg, sqlite3 *handle, const char *name, int frames)
{
	struct sqlite_db *db = arg;
	struct sqlite_checkpointer *k = &db->checkpointer;

	watch_length(db, handle, frames);
	switch (atomic_load(&k->phase)) {
	case SQLITE_CHECKPOINT_IDLE:
		if (frames < k->next_frames - CHECKPOINT_FRAMES)
			k->next_frames = CHECKPOINT_FRAMES;
		if (frames >= k->next_frames) {
			k->next_frames = frames + CHECKPOINT_FRAMES;
			wake(db);
		}
		break;
	case SQLITE_CHECKPOINT_WANTED:
		if (frames >= MAX_FRAMES)
			wait_for_bulk(k);
		break;
	case SQLITE_CHECKPOINT_BULK_MOVED:
		sqlite_move_log(handle);
		atomic_store(&k->phase, SQLITE_CHECKPOINT_IDLE);
		break;
	}
	return SQLITE_OK;
}

void sqlite_checkpointer_watch(struct sqlite_db *db, sqlite3 *handle)
{
	sqlite3_wal_hook(handle, committed, db);
}

void sqlite_checkpointer_init(struct sqlite_db *db)
{
	db->checkpointer.next_frames = CHECKPOINT_FRAMES;
	db->checkpointer.warn_bytes = LONG_LOG_BYTES;
	pthread_mutex_init(&db->checkpointer.lock, NULL);
	cfs_cond_init(&db->checkpointer.wake);
	cfs_cond_init(&db->checkpointer.moved);
}

void sqlite_checkpointer_stop(struct sqlite_db *db)
{
	struct sqlite_checkpointer *k = &db->checkpointer;

	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
	if (k->running)
		pthread_join(k->thread, NULL);
	pthread_cond_destroy(&k->wake);
	pthread_cond_destroy(&k->moved);
	pthread_mutex_destroy(&k->lock);
}
