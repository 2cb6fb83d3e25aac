/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space reserved for open files: written bytes whose commit is pending. Limits count it like usage,
 * so that the commit of an accepted write does not exceed a limit. Reservations are in memory only;
 * other mounts see the space after the commit.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/quota/quota-internal.h"

struct file_reservation {
	struct file_reservation *next;
	cfs_ino_t ino;
	struct cfs_reservation reserved; /* dirs: as of the first reservation */
};

static struct file_reservation **slot(struct cfs_quotas *q, cfs_ino_t ino)
{
	struct file_reservation **p = &q->files[ino % FILE_BUCKETS];

	while (*p && (*p)->ino != ino)
		p = &(*p)->next;
	return p;
}

int64_t cfs_quotas_file_reserved(struct cfs_quotas *q, cfs_ino_t ino)
{
	const struct file_reservation *p;
	int64_t space;

	if (!atomic_load(&q->n_reserving))
		return 0;
	pthread_mutex_lock(&q->lock);
	p = *slot(q, ino);
	space = p ? p->reserved.space : 0;
	pthread_mutex_unlock(&q->lock);
	return space;
}

/* ---- with the lock ---- */

static void drop(struct cfs_quotas *q, struct file_reservation **at)
{
	struct file_reservation *p = *at;

	*at = p->next;
	free(p->reserved.dirs.v);
	free(p);
	atomic_fetch_sub(&q->n_reserving, 1);
}

/* Takes over r->dirs when it is the file's first reservation. */
static int add_to_file(struct cfs_quotas *q, cfs_ino_t ino, struct cfs_reservation *r)
{
	struct file_reservation **at = slot(q, ino), *p = *at;
	int64_t space = r->space;

	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			return -ENOMEM;
		*p = (struct file_reservation){.ino = ino, .reserved = *r};
		p->reserved.space = 0;
		r->dirs = (struct scopes){0};
		*at = p;
		atomic_fetch_add(&q->n_reserving, 1);
	}
	p->reserved.space += space;
	cfs_quotas_add_reserved(q, &p->reserved, space, 0);
	return 0;
}

/* ---- the interface ---- */

int cfs_quotas_reserve_file(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length)
{
	struct cfs_reservation r = {
		.volume = true,
		.owned = true,
		.uid = attr->uid,
		.gid = attr->gid,
		.space = cfs_space_of(new_length) - cfs_space_of(old_length),
	};
	int rc;

	if (r.space <= 0 || !cfs_quotas_may_refuse(q, r.space))
		return 0;
	rc = cfs_quotas_look(q, ctx, r.space);
	if (!rc && atomic_load(&q->on_dirs))
		rc = cfs_quotas_file_scopes(q, ctx, ino, attr, &r.dirs);
	if (rc)
		return rc;
	pthread_mutex_lock(&q->lock);
	rc = cfs_quotas_check_locked(q, &r);
	if (!rc)
		rc = add_to_file(q, ino, &r);
	pthread_mutex_unlock(&q->lock);
	free(r.dirs.v);
	return rc;
}

void cfs_quotas_use_reserved(struct cfs_quotas *q, cfs_ino_t ino, int64_t space)
{
	struct file_reservation *p = *slot(q, ino);

	if (!p || space <= 0)
		return;
	space = CFS_MIN(space, p->reserved.space);
	p->reserved.space -= space;
	cfs_quotas_add_reserved(q, &p->reserved, -space, 0);
}

void cfs_quotas_release_file(struct cfs_quotas *q, cfs_ino_t ino)
{
	struct file_reservation **at;

	if (!atomic_load(&q->n_reserving))
		return;
	pthread_mutex_lock(&q->lock);
	at = slot(q, ino);
	if (*at) {
		cfs_quotas_add_reserved(q, &(*at)->reserved, -(*at)->reserved.space, 0);
		drop(q, at);
	}
	pthread_mutex_unlock(&q->lock);
}

void cfs_quotas_drop_files(struct cfs_quotas *q)
{
	size_t i;

	for (i = 0; i < FILE_BUCKETS; i++) {
		while (q->files[i])
			drop(q, &q->files[i]);
	}
}
