/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/engine/optimistic.h"

#include "base/cleanup.h"
#include "base/clock.h"

void cfs_optimistic_init(struct cfs_optimistic *s)
{
	pthread_mutex_init(&s->lock, NULL);
}

void cfs_optimistic_destroy(struct cfs_optimistic *s)
{
	pthread_mutex_destroy(&s->lock);
}

/* ---- directories ---- */

static struct cfs_optimistic_dir *dir_slot(struct cfs_optimistic *s, cfs_ino_t ino)
{
	return &s->dir[((ino * 0x9E3779B97F4A7C15ULL) >> 32) % CFS_OPTIMISTIC_DIRS];
}

bool cfs_optimistic_dir_known(struct cfs_optimistic *s, cfs_ino_t ino, struct cfs_attr *ret)
{
	const struct cfs_optimistic_dir *d = dir_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	if (d->entry.ino != ino)
		return false;
	*ret = d->entry.attr;
	return true;
}

void cfs_optimistic_dir_remember(struct cfs_optimistic *s, cfs_ino_t ino,
				 const struct cfs_attr *attr)
{
	struct cfs_optimistic_dir *d = dir_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	*d = (struct cfs_optimistic_dir){
		.entry = {.ino = ino, .attr = *attr},
		.read_ms = cfs_now_ms(),
	};
}

void cfs_optimistic_dir_forget(struct cfs_optimistic *s, cfs_ino_t ino)
{
	struct cfs_optimistic_dir *d = dir_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	if (d->entry.ino == ino)
		d->entry.ino = 0;
}

bool cfs_optimistic_dir_ask(struct cfs_optimistic *s, cfs_ino_t ino)
{
	struct cfs_optimistic_dir *d = dir_slot(s, ino);
	uint64_t now_ms = cfs_now_ms();
	CFS_LOCK_GUARD(&s->lock);

	if (d->entry.ino != ino)
		return true;
	if (now_ms - d->read_ms < CFS_OPTIMISTIC_MS)
		return false;
	d->read_ms = now_ms;
	return true;
}

void cfs_optimistic_dir_times(struct cfs_optimistic *s, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct cfs_optimistic_dir *d = dir_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	if (d->entry.ino == ino && cfs_timespec_cmp(attr->ctime, d->entry.attr.ctime) >= 0) {
		d->entry.attr.nlink = attr->nlink;
		d->entry.attr.atime = attr->atime;
		d->entry.attr.mtime = attr->mtime;
		d->entry.attr.ctime = attr->ctime;
	}
}

/* ---- files ---- */

static struct cfs_entry *file_slot(struct cfs_optimistic *s, cfs_ino_t ino)
{
	return &s->file[ino % CFS_OPTIMISTIC_FILES];
}

static unsigned name_slot(uint64_t hash)
{
	return (hash >> 32) % CFS_OPTIMISTIC_NAMES;
}

/* Called with the lock held. */
static cfs_ino_t find_name(const struct cfs_optimistic *s, uint64_t hash)
{
	unsigned n = name_slot(hash);

	return s->name[n].hash == hash ? s->name[n].ino : 0;
}

cfs_ino_t cfs_optimistic_name(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
			      size_t len)
{
	uint64_t hash = cfs_name_hash(parent, name, len);
	CFS_LOCK_GUARD(&s->lock);

	return find_name(s, hash);
}

void cfs_optimistic_name_remember(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
				  size_t len, cfs_ino_t ino)
{
	uint64_t hash = cfs_name_hash(parent, name, len);
	unsigned n = name_slot(hash);
	CFS_LOCK_GUARD(&s->lock);

	s->name[n].hash = hash;
	s->name[n].ino = ino;
}

bool cfs_optimistic_file_known(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
			       size_t len, struct cfs_entry *ret)
{
	uint64_t hash = cfs_name_hash(parent, name, len);
	cfs_ino_t ino;
	CFS_LOCK_GUARD(&s->lock);

	ino = find_name(s, hash);
	if (!ino || file_slot(s, ino)->ino != ino)
		return false;
	*ret = *file_slot(s, ino);
	return true;
}

void cfs_optimistic_file_remember(struct cfs_optimistic *s, cfs_ino_t parent, const char *name,
				  size_t len, const struct cfs_entry *entry)
{
	cfs_optimistic_name_remember(s, parent, name, len, entry->ino);
	if (entry->attr.type == CFS_TYPE_DIR)
		return;
	pthread_mutex_lock(&s->lock);
	*file_slot(s, entry->ino) = *entry;
	pthread_mutex_unlock(&s->lock);
}

bool cfs_optimistic_file_attr(struct cfs_optimistic *s, cfs_ino_t ino, struct cfs_attr *ret)
{
	const struct cfs_entry *e = file_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	if (e->ino != ino)
		return false;
	*ret = e->attr;
	return true;
}

void cfs_optimistic_file_changed(struct cfs_optimistic *s, cfs_ino_t ino,
				 const struct cfs_attr *attr)
{
	struct cfs_entry *e = file_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	if (e->ino == ino)
		e->attr = *attr;
}

void cfs_optimistic_file_forget(struct cfs_optimistic *s, cfs_ino_t ino)
{
	struct cfs_entry *e = file_slot(s, ino);
	CFS_LOCK_GUARD(&s->lock);

	if (e->ino == ino)
		e->ino = 0;
}

/* ---- inodes of any type ---- */

bool cfs_optimistic_attr(struct cfs_optimistic *s, cfs_ino_t ino, struct cfs_attr *ret)
{
	return cfs_optimistic_dir_known(s, ino, ret) || cfs_optimistic_file_attr(s, ino, ret);
}

void cfs_optimistic_attr_changed(struct cfs_optimistic *s, cfs_ino_t ino,
				 const struct cfs_attr *attr)
{
	if (attr->type == CFS_TYPE_DIR)
		cfs_optimistic_dir_remember(s, ino, attr);
	else
		cfs_optimistic_file_changed(s, ino, attr);
}
