/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A removal writes to the log, and the log is moved into a database file that may have to grow for
 * that. On a disk without any space neither works, and a full volume could not be emptied. So
 * inodes and slices are refused while there is still some.
 */
#include <errno.h>
#include <sys/statvfs.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "meta/sqlite/sqlite-internal.h"

/* Kept free: as much as the log that starts a checkpoint, twice; on a small disk, this share. */
#define KEPT_BYTES (32ULL << 20)
#define KEPT_SHARE 8
#define LOOK_MS	   100

static void look(struct sqlite_db *db)
{
	bool was = atomic_load(&db->room.full), full;
	uint64_t left, kept;
	struct statvfs fs;

	if (statvfs(db->path, &fs))
		return;
	left = (uint64_t)fs.f_bavail * fs.f_frsize;
	kept = CFS_MIN(KEPT_BYTES, (uint64_t)fs.f_blocks * fs.f_frsize / KEPT_SHARE);
	full = left < (was ? kept + kept / 4 : kept);
	if (!atomic_compare_exchange_strong(&db->room.full, &was, full) || full == was)
		return;
	if (full)
		cfs_warn("the disk of the database is full: no file or data is added until more of "
			 "it is free, files can be removed: url=%s free_bytes=%llu kept_bytes=%llu",
			 db->sql.where, (unsigned long long)left, (unsigned long long)kept);
	else
		cfs_info("the disk of the database has space again: url=%s free_bytes=%llu",
			 db->sql.where, (unsigned long long)left);
}

int sqlite_op_room(struct cfs_engine *e)
{
	struct sqlite_db *db = (struct sqlite_db *)sql_db(e);
	uint64_t now = cfs_now_ms(), due = atomic_load(&db->room.look_ms);

	if (now >= due && atomic_compare_exchange_strong(&db->room.look_ms, &due, now + LOOK_MS))
		look(db);
	return atomic_load(&db->room.full) ? -ENOSPC : 0;
}
