/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reservations for the time between the quota check of an operation and its end. Checks of
 * concurrent operations count them as used: two operations that fit only one at a time cannot both
 * pass. Space for written bytes is reserved until the commit: file-reserve.c.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/quota/quota-internal.h"

static void add_reserved_of(struct cfs_quotas *q, enum cfs_quota_kind kind, uint64_t key,
			    int64_t space, int64_t inodes)
{
	struct limit *l = cfs_quotas_find(q, kind, key);

	if (!l)
		return;
	/* A limit that is newer than the reservation does not contain it. */
	l->reserved_space = CFS_MAX(l->reserved_space + space, 0);
	l->reserved_inodes = CFS_MAX(l->reserved_inodes + inodes, 0);
}

void cfs_quotas_add_reserved(struct cfs_quotas *q, const struct cfs_reservation *r, int64_t space,
			     int64_t inodes)
{
	size_t i;

	if (r->volume) {
		atomic_fetch_add(&q->reserved_space, space);
		atomic_fetch_add(&q->reserved_inodes, inodes);
	}
	if (r->owned) {
		add_reserved_of(q, CFS_QUOTA_USER, r->uid, space, inodes);
		add_reserved_of(q, CFS_QUOTA_GROUP, r->gid, space, inodes);
	}
	for (i = 0; i < r->dirs.n; i++)
		add_reserved_of(q, CFS_QUOTA_DIR, r->dirs.v[i], space, inodes);
}

/* Owns wanted->dirs from here on, also after an error. */
static int reserve(struct cfs_quotas *q, const struct cfs_reservation *wanted,
		   struct cfs_reservation *ret)
{
	int rc;

	pthread_mutex_lock(&q->lock);
	rc = cfs_quotas_check_locked(q, wanted);
	if (!rc)
		cfs_quotas_add_reserved(q, wanted, wanted->space, wanted->inodes);
	pthread_mutex_unlock(&q->lock);
	if (rc) {
		free(wanted->dirs.v);
		return rc;
	}
	*ret = *wanted;
	ret->active = true;
	return 0;
}

/* Makes the reservation of a charge. The caller frees ret->dirs.v. */
static int reservation_of(struct cfs_quotas *q, const struct cfs_ctx *ctx,
			  const struct cfs_charge *c, struct cfs_reservation *ret)
{
	*ret = (struct cfs_reservation){
		.volume = !c->dir_only,
		.owned = c->owned && !c->dir_only,
		.uid = c->uid,
		.gid = c->gid,
		.space = c->space,
		.inodes = c->inodes,
	};
	if (!c->dir || !atomic_load(&q->on_dirs))
		return 0;
	return cfs_quotas_scopes(q, ctx, c->dir, &ret->dirs);
}

int cfs_quotas_check(struct cfs_quotas *q, const struct cfs_ctx *ctx, const struct cfs_charge *c)
{
	struct cfs_reservation r;
	int rc = cfs_quotas_look(q, ctx, c->space);

	if (!rc)
		rc = reservation_of(q, ctx, c, &r);
	if (rc)
		return rc;
	rc = cfs_quotas_check_now(q, &r);
	free(r.dirs.v);
	return rc;
}

int cfs_quotas_reserve(struct cfs_quotas *q, const struct cfs_ctx *ctx, const struct cfs_charge *c,
		       struct cfs_reservation *ret)
{
	struct cfs_reservation r;
	int rc;

	*ret = (struct cfs_reservation){0};
	if (!cfs_quotas_limited(q))
		return 0;
	rc = reservation_of(q, ctx, c, &r);
	return rc ? rc : reserve(q, &r, ret);
}

/* The space that a growing file needs beyond its reservation; ret->space <= 0: none. */
static int growth(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
		  const struct cfs_attr *attr, int64_t space, struct cfs_reservation *ret)
{
	*ret = (struct cfs_reservation){
		.volume = true,
		.owned = true,
		.uid = attr->uid,
		.gid = attr->gid,
		.space = space - cfs_quotas_file_reserved(q, ino),
	};
	if (ret->space <= 0 || !atomic_load(&q->on_dirs))
		return 0;
	return cfs_quotas_file_scopes(q, ctx, ino, attr, &ret->dirs);
}

int cfs_quotas_reserve_end(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint64_t end, struct cfs_reservation *ret)
{
	struct cfs_reservation r;
	struct cfs_attr attr;
	int64_t space;
	int rc;

	*ret = (struct cfs_reservation){0};
	if (!end || !cfs_quotas_may_refuse(q, cfs_space_of(end)))
		return 0;
	rc = q->eng->ops->getattr(q->eng, ctx, ino, &attr);
	if (rc || end <= attr.length)
		return rc;
	space = cfs_space_of(end) - cfs_space_of(attr.length);
	rc = cfs_quotas_look(q, ctx, space);
	if (!rc)
		rc = growth(q, ctx, ino, &attr, space, &r);
	return rc || r.space <= 0 ? rc : reserve(q, &r, ret);
}

int cfs_quotas_check_growth(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length)
{
	struct cfs_reservation r;
	int rc = growth(q, ctx, ino, attr, cfs_space_of(new_length) - cfs_space_of(old_length), &r);

	if (rc || r.space <= 0)
		return rc;
	rc = cfs_quotas_check_now(q, &r);
	free(r.dirs.v);
	return rc;
}
