/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space reserved for open files: the bytes accepted from writers and not committed yet. Limits
 * count it like usage, so that an accepted write also fits when it is committed. Reservations are
 * in memory only; other mounts see the space once it is usage.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/quota/quota-internal.h"

struct promise {
	struct promise *next;
	cfs_ino_t ino;
	struct cfs_hold held; /* dirs: when the file began to grow */
};

static struct promise **slot(struct cfs_quotas *q, cfs_ino_t ino)
{
	struct promise **p = &q->promises[ino % PROMISE_BUCKETS];

	while (*p && (*p)->ino != ino)
		p = &(*p)->next;
	return p;
}

int64_t cfs_quotas_promised(struct cfs_quotas *q, cfs_ino_t ino)
{
	const struct promise *p;
	int64_t space;

	if (!atomic_load(&q->n_promises))
		return 0;
	pthread_mutex_lock(&q->lock);
	p = *slot(q, ino);
	space = p ? p->held.space : 0;
	pthread_mutex_unlock(&q->lock);
	return space;
}

/* ---- with the lock ---- */

static void drop(struct cfs_quotas *q, struct promise **at)
{
	struct promise *p = *at;

	*at = p->next;
	free(p->held.dirs.v);
	free(p);
	atomic_fetch_sub(&q->n_promises, 1);
}

/* Takes over h->dirs when it is the file's first reservation. */
static int add_promise(struct cfs_quotas *q, cfs_ino_t ino, struct cfs_hold *h)
{
	struct promise **at = slot(q, ino), *p = *at;
	int64_t space = h->space;

	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			return -ENOMEM;
		*p = (struct promise){.ino = ino, .held = *h};
		p->held.space = 0;
		h->dirs = (struct scopes){0};
		*at = p;
		atomic_fetch_add(&q->n_promises, 1);
	}
	p->held.space += space;
	cfs_quotas_set_aside(q, &p->held, space, 0);
	return 0;
}

/* ---- the interface ---- */

int cfs_quotas_promise(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length)
{
	struct cfs_hold h = {
		.volume = true,
		.owned = true,
		.uid = attr->uid,
		.gid = attr->gid,
		.space = cfs_space_of(new_length) - cfs_space_of(old_length),
	};
	int rc = 0;

	if (h.space <= 0 || !cfs_quotas_limited(q))
		return 0;
	if (atomic_load(&q->on_dirs))
		rc = cfs_quotas_file_scopes(q, ctx, ino, attr, &h.dirs);
	if (rc)
		return rc;
	pthread_mutex_lock(&q->lock);
	rc = cfs_quotas_judge(q, &h);
	if (!rc)
		rc = add_promise(q, ino, &h);
	pthread_mutex_unlock(&q->lock);
	free(h.dirs.v);
	return rc;
}

void cfs_quotas_keep_promise(struct cfs_quotas *q, cfs_ino_t ino, int64_t space)
{
	struct promise *p = *slot(q, ino);

	if (!p || space <= 0)
		return;
	space = CFS_MIN(space, p->held.space);
	p->held.space -= space;
	cfs_quotas_set_aside(q, &p->held, -space, 0);
}

void cfs_quotas_release_promise(struct cfs_quotas *q, cfs_ino_t ino)
{
	struct promise **at;

	if (!atomic_load(&q->n_promises))
		return;
	pthread_mutex_lock(&q->lock);
	at = slot(q, ino);
	if (*at) {
		cfs_quotas_set_aside(q, &(*at)->held, -(*at)->held.space, 0);
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
