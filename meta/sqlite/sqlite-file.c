/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices that the database file was moved, removed or replaced, for instance by a program that
 * restores a backup. SQLite goes on with the file that it has open, and its commits would be lost.
 */
#include <errno.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "meta/sqlite/sqlite-internal.h"

#define LOOK_MS 100

void sqlite_remember_file(struct sqlite_db *db)
{
	struct stat st;

	if (!atomic_load(&db->file.ino) && !stat(db->path, &st))
		atomic_store(&db->file.ino, st.st_ino);
}

int sqlite_check_file(struct sqlite_db *db)
{
	uint64_t ino = atomic_load(&db->file.ino);
	struct stat st;
	bool gone;

	if (!ino)
		return 0;
	gone = stat(db->path, &st) ? errno == ENOENT || errno == ENOTDIR : st.st_ino != ino;
	if (atomic_exchange(&db->file.gone, gone) != gone) {
		if (gone)
			cfs_err("the database file was moved, removed or replaced, changes fail "
				"until it is back or the volume is mounted again: url=%s",
				db->sql.where);
		else
			cfs_info("the database file is back, changes go on: url=%s", db->sql.where);
	}
	return gone ? -EIO : 0;
}

int sqlite_check_file_often(struct sqlite_db *db)
{
	uint64_t now = cfs_now_ms(), due = atomic_load(&db->file.look_ms);

	if (!atomic_load(&db->file.gone) &&
	    (now < due || !atomic_compare_exchange_strong(&db->file.look_ms, &due, now + LOOK_MS)))
		return 0;
	return sqlite_check_file(db);
}
