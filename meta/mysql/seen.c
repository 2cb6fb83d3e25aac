/* SPDX-License-Identifier: Apache-2.0 */
/* The directories and files that operations went to last. */
#include "base/clock.h"
#include "mysql-internal.h"

/* ---- directories ---- */

static struct mysql_dir *dir_slot(struct mysql_db *db, cfs_ino_t ino)
{
	return &db->seen.dir[((ino * 0x9E3779B97F4A7C15ULL) >> 32) % MYSQL_DIRS];
}

bool mysql_dir_known(struct mysql_db *db, cfs_ino_t ino, struct cfs_attr *ret)
{
	const struct mysql_dir *d = dir_slot(db, ino);
	bool known;

	pthread_mutex_lock(&db->seen.lock);
	known = d->entry.ino == ino;
	if (known)
		*ret = d->entry.attr;
	pthread_mutex_unlock(&db->seen.lock);
	return known;
}

void mysql_dir_remember(struct mysql_db *db, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct mysql_dir *d = dir_slot(db, ino);

	pthread_mutex_lock(&db->seen.lock);
	*d = (struct mysql_dir){
		.entry = {.ino = ino, .attr = *attr},
		.seen_ms = cfs_now_ms(),
	};
	pthread_mutex_unlock(&db->seen.lock);
}

void mysql_dir_forget(struct mysql_db *db, cfs_ino_t ino)
{
	struct mysql_dir *d = dir_slot(db, ino);

	pthread_mutex_lock(&db->seen.lock);
	if (d->entry.ino == ino)
		d->entry.ino = 0;
	pthread_mutex_unlock(&db->seen.lock);
}

bool mysql_dir_ask(struct mysql_db *db, cfs_ino_t ino)
{
	struct mysql_dir *d = dir_slot(db, ino);
	uint64_t now_ms = cfs_now_ms();
	bool ask;

	pthread_mutex_lock(&db->seen.lock);
	ask = d->entry.ino != ino || now_ms - d->seen_ms >= MYSQL_DIR_SEEN_MS;
	if (ask)
		d->seen_ms = now_ms;
	pthread_mutex_unlock(&db->seen.lock);
	return ask;
}

/* Of rows that come in any order, the one with the latest change stays. */
static void see_times(struct mysql_db *db, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct mysql_dir *d = dir_slot(db, ino);

	pthread_mutex_lock(&db->seen.lock);
	if (d->entry.ino == ino && cfs_timespec_cmp(attr->ctime, d->entry.attr.ctime) >= 0) {
		d->entry.attr.nlink = attr->nlink;
		d->entry.attr.atime = attr->atime;
		d->entry.attr.mtime = attr->mtime;
		d->entry.attr.ctime = attr->ctime;
	}
	pthread_mutex_unlock(&db->seen.lock);
}

void mysql_dir_changed(struct mysql_db *db, cfs_ino_t ino, int done,
		       const int64_t row[MYSQL_DIR_COLUMNS], struct cfs_attr *attr)
{
	if (done == MYSQL_DONE_ROW) {
		attr->nlink = (uint32_t)row[0];
		attr->atime = sql_time(row[1], row[4]);
		attr->mtime = sql_time(row[2], row[5]);
		attr->ctime = sql_time(row[3], row[6]);
		see_times(db, ino, attr);
	} else {
		mysql_dir_known(db, ino, attr);
	}
}

/* ---- files ---- */

static struct cfs_entry *file_slot(struct mysql_db *db, cfs_ino_t ino)
{
	return &db->seen.file[ino % MYSQL_FILES];
}

bool mysql_file_known(struct mysql_db *db, cfs_ino_t parent, const char *name, size_t len,
		      struct cfs_entry *ret)
{
	uint64_t hash = cfs_core_hash_name(parent, name, len);
	unsigned n = (hash >> 32) % MYSQL_FILES;
	bool known;

	pthread_mutex_lock(&db->seen.lock);
	known = db->seen.name[n].hash == hash && db->seen.name[n].ino;
	if (known)
		*ret = *file_slot(db, db->seen.name[n].ino);
	known = known && ret->ino == db->seen.name[n].ino;
	pthread_mutex_unlock(&db->seen.lock);
	return known;
}

void mysql_file_remember(struct mysql_db *db, cfs_ino_t parent, const char *name, size_t len,
			 const struct cfs_entry *entry)
{
	uint64_t hash = cfs_core_hash_name(parent, name, len);
	unsigned n = (hash >> 32) % MYSQL_FILES;

	if (entry->attr.type == CFS_TYPE_DIR)
		return;
	pthread_mutex_lock(&db->seen.lock);
	db->seen.name[n].hash = hash;
	db->seen.name[n].ino = entry->ino;
	*file_slot(db, entry->ino) = *entry;
	pthread_mutex_unlock(&db->seen.lock);
}

void mysql_file_changed(struct mysql_db *db, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct cfs_entry *e = file_slot(db, ino);

	pthread_mutex_lock(&db->seen.lock);
	if (e->ino == ino)
		e->attr = *attr;
	pthread_mutex_unlock(&db->seen.lock);
}

void mysql_file_forget(struct mysql_db *db, cfs_ino_t ino)
{
	struct cfs_entry *e = file_slot(db, ino);

	pthread_mutex_lock(&db->seen.lock);
	if (e->ino == ino)
		e->ino = 0;
	pthread_mutex_unlock(&db->seen.lock);
}
