/* SPDX-License-Identifier: Apache-2.0 */
/* The trash: the directory of the hour, and the end of old hours. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/api/clock.h"
#include "meta/api/core.h"
#include "meta/api/trash.h"

enum { GRACE_H = 2 };

int cfs_core_trash_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent, bool skip,
		       cfs_ino_t *ret)
{
	char name[sizeof(m->trash_name)];
	cfs_ino_t ino = 0;
	struct tm tm;
	time_t now;
	int rc;

	if (skip || cfs_ino_is_trash(parent) || !cfs_core_trash_on(m)) {
		*ret = 0;
		return 0;
	}
	/* By the clock that is ahead: other mounts must not consider that hour over. */
	now = ctx->now.tv_sec + CFS_MAX(cfs_clock_s(m) - cfs_wall_s(), (int64_t)0);
	gmtime_r(&now, &tm);
	strftime(name, sizeof(name), "%Y-%m-%d-%H", &tm);
	pthread_mutex_lock(&m->trash_lock);
	if (strcmp(name, m->trash_name) == 0)
		ino = m->trash_ino;
	pthread_mutex_unlock(&m->trash_lock);
	if (!ino) {
		struct cfs_usage usage = {0};

		cfs_quotas_begin(m->quotas);
		rc = m->eng->ops->trash_dir(m->eng, ctx, name, &ino, &usage);
		cfs_quotas_end(m->quotas, ctx, rc ? NULL : &usage);
		if (rc)
			return rc;
		pthread_mutex_lock(&m->trash_lock);
		memcpy(m->trash_name, name, sizeof(name));
		m->trash_ino = ino;
		pthread_mutex_unlock(&m->trash_lock);
	}
	*ret = ino;
	return 0;
}

static int remove_item(struct cfs_meta *m, cfs_ino_t dir, const struct cfs_name *i)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	struct cfs_removed removed;
	int rc;

	if (i->type == CFS_TYPE_DIR)
		rc = cfs_meta_rmdir(m, &ctx, dir, i->name, i->len, CFS_REMOVE_SKIP_TRASH, &removed);
	else
		rc = cfs_meta_unlink(m, &ctx, dir, i->name, i->len, CFS_REMOVE_SKIP_TRASH,
				     &removed);
	/* Another client has restored or removed it meanwhile. */
	return rc == -ENOENT ? 0 : rc;
}

/*
 * Empties a directory of the trash. Directories in it may have content. An entry that cannot be removed
 * does not keep the others; the first error is returned.
 */
static int empty(struct cfs_meta *m, cfs_ino_t dir, unsigned depth, cfs_deadline_t end,
		 const _Atomic bool *stop)
{
	const unsigned deepest = 64;
	struct cfs_cursor cursor = {0};
	struct cfs_names *p = malloc(sizeof(*p));
	int rc = p ? 0 : -ENOMEM, first = 0;
	bool last = false;
	size_t i;

	while (!rc && !last && !*stop && !cfs_deadline_passed(end)) {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		p->n = 0;
		rc = cfs_meta_readdir(m, &ctx, dir, false, CFS_NAMES_MAX, &cursor, cfs_names_add,
				      p);
		last = rc == 1;
		rc = rc < 0 ? rc : 0;
		for (i = 0; i < p->n && !*stop && !cfs_deadline_passed(end); i++) {
			int rc2 = remove_item(m, dir, &p->v[i]);

			if (rc2 == -ENOTEMPTY && depth < deepest) {
				rc2 = empty(m, p->v[i].ino, depth + 1, end, stop);
				if (!rc2)
					rc2 = remove_item(m, dir, &p->v[i]);
			}
			first = first ? first : rc2;
		}
	}
	free(p);
	return rc ? rc : first;
}

/* The time that a name such as "2026-11-21-01" means (when that hour begins); -1: another name. */
static int64_t hour_of(const char *name)
{
	struct tm tm = {0};
	const char *rest = strptime(name, "%Y-%m-%d-%H", &tm);

	return rest && *rest == '\0' ? (int64_t)timegm(&tm) : -1;
}

/* Mounts cache the directory of the hour, and their clocks may differ. */
bool cfs_trash_in_use(const struct cfs_meta *m, cfs_ino_t parent, const char *name, size_t len)
{
	char copy[sizeof(m->trash_name)];

	if (parent != CFS_TRASH_INO || len >= sizeof(copy))
		return false;
	memcpy(copy, name, len);
	copy[len] = '\0';
	return hour_of(copy) > cfs_clock_earliest_s(m) - GRACE_H * 3600;
}

int cfs_trash_expire(struct cfs_meta *m, cfs_deadline_t end, const _Atomic bool *stop)
{
	int64_t before_s = cfs_clock_earliest_s(m) -
			   ((int64_t)atomic_load(&m->trash_days) * 24 + GRACE_H) * 3600;
	struct cfs_cursor cursor = {0};
	struct cfs_names *p = malloc(sizeof(*p));
	int rc = p ? 0 : -ENOMEM;
	size_t i;

	while (!rc && !*stop && !cfs_deadline_passed(end)) {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		p->n = 0;
		rc = cfs_meta_readdir(m, &ctx, CFS_TRASH_INO, false, CFS_NAMES_MAX, &cursor,
				      cfs_names_add, p);
		for (i = 0; i < p->n && rc >= 0; i++) {
			int64_t hour_s = hour_of(p->v[i].name);
			int rc2;

			if (hour_s < 0 || hour_s >= before_s)
				continue;
			rc2 = empty(m, p->v[i].ino, 0, end, stop);
			if (!rc2)
				rc2 = remove_item(m, CFS_TRASH_INO, &p->v[i]);
			if (rc2)
				cfs_warn("an expired hour of the trash was not emptied, trying "
					 "again within the hour: name=%s error=%s",
					 p->v[i].name, cfs_errname(rc2));
		}
	}
	free(p);
	/* -ENOENT: the volume never had a trash. */
	return rc < 0 && rc != -ENOENT ? rc : 0;
}
