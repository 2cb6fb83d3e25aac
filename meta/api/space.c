/* SPDX-License-Identifier: Apache-2.0 */
/* statfs, and the space that open files reserve. */
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/api/call.h"
#include "meta/api/core.h"

static void statfs_volume(struct cfs_meta *m, struct cfs_statfs *s)
{
	int64_t space = cfs_quotas_used_space(m->quotas);
	int64_t inodes = cfs_quotas_used_inodes(m->quotas);
	uint64_t capacity = atomic_load(&cfs_quotas_volume(m->quotas)->capacity);
	uint64_t max_inodes = atomic_load(&cfs_quotas_volume(m->quotas)->max_inodes);

	s->used_bytes = space > 0 ? (uint64_t)space : 0;
	s->used_inodes = inodes > 0 ? (uint64_t)inodes : 0;
	if (capacity) {
		s->total_bytes = CFS_MAX(capacity, s->used_bytes);
	} else {
		s->total_bytes = 1ULL << 50;
		while (s->total_bytes < CFS_USAGE_MAX && s->total_bytes / 10 * 8 < s->used_bytes)
			s->total_bytes *= 2;
		s->total_bytes =
			CFS_MAX(CFS_MIN(s->total_bytes, (uint64_t)CFS_USAGE_MAX), s->used_bytes);
	}
	s->avail_bytes = s->total_bytes - s->used_bytes;
	if (max_inodes) {
		s->avail_inodes = max_inodes > s->used_inodes ? max_inodes - s->used_inodes : 0;
	} else {
		s->avail_inodes = 10 << 20;
		while ((s->used_inodes + 3) / 4 > s->avail_inodes)
			s->avail_inodes *= 2;
	}
	s->total_inodes = s->used_inodes + s->avail_inodes;
}

static uint64_t room(int64_t max, int64_t used)
{
	return max > used ? (uint64_t)(max - used) : 0;
}

static int statfs_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t root,
		      struct cfs_statfs *s)
{
	struct cfs_quota q = {0};
	struct scopes scopes;
	size_t i;
	int rc = cfs_quotas_scopes(m->quotas, ctx, root, &scopes);

	if (rc || !scopes.n)
		return rc;
	for (i = 0; i < scopes.n; i++) {
		if (!cfs_quotas_get(m->quotas, scopes.v[i], &q))
			continue;
		if (q.max_space > 0)
			s->avail_bytes = CFS_MIN(s->avail_bytes, room(q.max_space, q.used_space));
		if (q.max_inodes > 0)
			s->avail_inodes =
				CFS_MIN(s->avail_inodes, room(q.max_inodes, q.used_inodes));
	}
	/* The nearest quota's usage is the used space. */
	if (cfs_quotas_get(m->quotas, scopes.v[0], &q)) {
		s->used_bytes = q.used_space > 0 ? (uint64_t)q.used_space : 0;
		s->used_inodes = q.used_inodes > 0 ? (uint64_t)q.used_inodes : 0;
		s->total_bytes = s->used_bytes + s->avail_bytes;
		s->total_inodes = s->used_inodes + s->avail_inodes;
	}
	free(scopes.v);
	return 0;
}

int cfs_meta_statfs(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t root,
		    struct cfs_statfs *ret)
{
	struct cfs_statfs s;
	struct cfs_call c;
	int rc = 0;

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	/* Without a heartbeat no thread refreshes the counters. */
	if (!atomic_load(&m->started))
		rc = cfs_quotas_load(m->quotas, c.ctx);
	statfs_volume(m, &s);
	if (!rc && cfs_quotas_on_dirs(m->quotas))
		rc = statfs_dir(m, c.ctx, root, &s);
	if (!rc)
		*ret = s;
	return (int)cfs_call_end(&c, rc);
}

int cfs_meta_claim_space(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length)
{
	return cfs_quotas_reserve_file(m->quotas, ctx, ino, attr, old_length, new_length);
}

void cfs_meta_release_space(struct cfs_meta *m, cfs_ino_t ino)
{
	cfs_quotas_release_file(m->quotas, ino);
}
