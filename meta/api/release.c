/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deletion of slices without references: objects are removed after the change that dropped the last
 * reference is durable.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/log.h"
#include "meta/api/call.h"
#include "meta/api/core.h"
#include "meta/api/jobs.h"
#include "meta/api/release.h"

int cfs_meta_settle(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = m->hooks.sync_objects ? m->hooks.sync_objects(m->hooks.arg) : 0;
	if (rc || m->conf.read_only)
		return rc ? rc : cfs_meta_sync(m, &ctx);
	rc = m->eng->ops->settle ? (int)CFS_CALL(c, m, CFS_META_OP_delete, &ctx,
						 m->eng->ops->settle(m->eng, c.ctx))
				 : cfs_meta_sync(m, &ctx);
	return rc || !m->copy ? rc
			      : (int)CFS_CALL(c, m, CFS_META_OP_delete, &ctx,
					      m->copy(m->copy_arg, false, c.ctx->deadline));
}

int cfs_release_add(void *arg, uint64_t id, uint32_t size)
{
	struct cfs_release *r = arg;

	if (CFS_ARRAY_ROOM(r->v, r->n, r->cap) < 0)
		return -ENOMEM;
	r->v[r->n++] = (struct cfs_dead_slice){id, size};
	return 0;
}

void cfs_release_free(struct cfs_release *r)
{
	free(r->v);
	*r = (struct cfs_release){0};
}

/* A slice that fails stays in the tables, and the hourly job tries again. */
static int release_slice(struct cfs_meta *m, const struct cfs_dead_slice *s)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	/* Another volume has other objects by these names. */
	int rc = cfs_host_check_volume(&m->host, &ctx);

	if (!rc)
		rc = m->hooks.delete_slice(m->hooks.arg, s->id, s->size);
	if (!rc) {
		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		rc = m->eng->ops->drop_slice(m->eng, &ctx, s->id, s->size);
	}
	if (rc && rc != -EAGAIN && cfs_jobs_may_log(m))
		cfs_warn("cannot remove the objects of a slice, trying again within the hour: "
			 "slice=%llu error=%s",
			 (unsigned long long)s->id, cfs_errname(rc));
	return rc;
}

size_t cfs_release_slices(struct cfs_meta *m, struct cfs_release *r, bool committed)
{
	size_t i, gone = 0;
	int rc = 0;

	if (!m->hooks.delete_slice)
		r->n = 0;
	if (r->n && committed && !cfs_jobs_cut_short(m))
		rc = cfs_meta_settle(m);
	if (rc && cfs_jobs_may_log(m))
		cfs_warn("cannot make changes durable, what they deleted stays until the hourly "
			 "job: slices=%zu error=%s",
			 r->n, cfs_errname(rc));
	for (i = 0; i < r->n && !rc && !cfs_jobs_cut_short(m); i++)
		gone += release_slice(m, &r->v[i]) == 0;
	r->n = 0;
	return gone;
}
