/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space promised to open files: what they have accepted from their writers and not committed yet.
 * Limits count it like usage, so that a write that was accepted also fits when it is committed. It
 * lives in memory only; other mounts see it when it has become usage.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/quota-internal.h"

struct promise {
	struct promise *next;
	cfs_ino_t ino;
	uint32_t uid, gid;
	int64_t space;
	struct scopes dirs; /* with a limit, when the file began to grow */
};

static struct promise **slot(struct cfs_quotas *q, cfs_ino_t ino)
{
	struct promise **p = &q->promises[ino % PROMISE_BUCKETS];

	while (*p && (*p)->ino != ino)
		p = &(*p)->next;
	return p;
}

int64_t cfs_quotas_promised(struct cfs_meta *m, cfs_ino_t ino)
{
	struct cfs_quotas *q = m->quotas;
	const struct promise *p;
	int64_t space;

	if (!atomic_load(&q->n_promises))
		return 0;
	pthread_mutex_lock(&q->lock);
	p = *slot(q, ino);
	space = p ? p->space : 0;
	pthread_mutex_unlock(&q->lock);
	return space;
}

/* ---- with the lock ---- */

static void add_to(struct cfs_quotas *q, enum cfs_quota_kind kind, uint64_t key, int64_t space)
{
	struct limit *l = cfs_quotas_find(q, kind, key);

	/* A limit that was set meanwhile does not know what was promised before. */
	if (l)
		l->promised_space = CFS_MAX(l->promised_space + space, 0);
}

static void add_to_limits(struct cfs_quotas *q, const struct promise *p, int64_t space)
{
	size_t i;

	for (i = 0; i < p->dirs.n; i++)
		add_to(q, CFS_QUOTA_DIR, p->dirs.v[i], space);
	add_to(q, CFS_QUOTA_USER, p->uid, space);
	add_to(q, CFS_QUOTA_GROUP, p->gid, space);
}

static void drop(struct cfs_quotas *q, struct promise **at)
{
	struct promise *p = *at;

	*at = p->next;
	free(p->dirs.v);
	free(p);
	atomic_fetch_sub(&q->n_promises, 1);
}

/* Takes over dirs->v when it is the file's first promise. */
static int add_promise(struct cfs_quotas *q, cfs_ino_t ino, const struct cfs_attr *attr,
		       struct scopes *dirs, int64_t space)
{
	struct promise **at = slot(q, ino), *p = *at;

	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			return -ENOMEM;
		*p = (struct promise){
			.ino = ino, .uid = attr->uid, .gid = attr->gid, .dirs = *dirs};
		*dirs = (struct scopes){0};
		*at = p;
		atomic_fetch_add(&q->n_promises, 1);
	}
	p->space += space;
	atomic_fetch_add(&q->promised_space, space);
	add_to_limits(q, p, space);
	return 0;
}

/* ---- the interface ---- */

int cfs_meta_claim_space(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length)
{
	int64_t space = cfs_space_of(new_length) - cfs_space_of(old_length);
	struct cfs_quotas *q = m->quotas;
	struct scopes dirs = {0};
	int rc = 0;

	if (space <= 0 || !cfs_quotas_limited(m))
		return 0;
	if (atomic_load(&q->on_dirs))
		rc = cfs_quotas_file_scopes(m, ctx, ino, attr, &dirs);
	if (rc)
		return rc;
	pthread_mutex_lock(&q->lock);
	rc = cfs_quotas_judge(m, attr, &dirs, space);
	if (!rc)
		rc = add_promise(q, ino, attr, &dirs, space);
	pthread_mutex_unlock(&q->lock);
	free(dirs.v);
	return rc;
}

void cfs_quotas_keep_promise(struct cfs_quotas *q, cfs_ino_t ino, int64_t space)
{
	struct promise *p = *slot(q, ino);

	if (!p || space <= 0)
		return;
	space = CFS_MIN(space, p->space);
	p->space -= space;
	add_to_limits(q, p, -space);
	atomic_fetch_sub(&q->promised_space, space);
}

void cfs_meta_release_space(struct cfs_meta *m, cfs_ino_t ino)
{
	struct cfs_quotas *q = m->quotas;
	struct promise **at;

	if (!atomic_load(&q->n_promises))
		return;
	pthread_mutex_lock(&q->lock);
	at = slot(q, ino);
	if (*at) {
		add_to_limits(q, *at, -(*at)->space);
		atomic_fetch_sub(&q->promised_space, (*at)->space);
		drop(q, at);
	}
	pthread_mutex_unlock(&q->lock);
}

void cfs_quotas_drop_promises(struct cfs_quotas *q)
{
	size_t i;

	for (i = 0; i < PROMISE_BUCKETS; i++) {
		while (q->promises[i])
			drop(q, &q->promises[i]);
	}
}
