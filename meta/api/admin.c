/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that only administration commands use. */
#include <errno.h>
#include <stdlib.h>

#include "meta/api/call.h"
#include "meta/api/clock.h"
#include "meta/api/core.h"

int cfs_meta_admin_begin(struct cfs_meta *m, const struct cfs_meta_hooks *hooks)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = cfs_core_check_writable(m);

	m->hooks = *hooks;
	if (!rc)
		rc = m->eng->ops->upgrade(m->eng, &ctx);
	if (!rc)
		cfs_clock_read(m);
	return rc ? rc : cfs_quotas_load(m->quotas, &ctx);
}

int cfs_meta_admin_end(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

	return cfs_quotas_flush(m->quotas, &ctx);
}

int cfs_meta_scan(struct cfs_meta *m, enum cfs_meta_table table, cfs_row_fn fn, void *arg)
{
	struct cfs_scan_pos pos = {0};
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
		struct cfs_call c;

		cfs_call_begin(&c, m, CFS_META_OP_other, &ctx);
		rc = m->eng->ops->scan(m->eng, c.ctx, table, &pos, fn, arg);
		rc = (int)cfs_call_end(&c, rc);
	} while (rc == 0);
	return rc == 1 ? 0 : rc;
}

ssize_t cfs_meta_list_chunks(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     uint32_t first, struct cfs_chunk_len ret[1024])
{
	return CFS_CALL(c, m, CFS_META_OP_read_chunk, ctx,
			m->eng->ops->list_chunks(m->eng, c.ctx, ino, first, ret));
}

/* ---- check and repair ---- */

int cfs_meta_check_inode(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 unsigned repair, struct cfs_check *ret)
{
	struct cfs_usage usage = {0};
	struct cfs_call c;
	int rc = repair ? cfs_core_check_writable(m) : 0;

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	if (!rc) {
		cfs_quotas_begin(m->quotas);
		rc = m->eng->ops->check_inode(m->eng, c.ctx, ino, repair, ret, &usage);
		cfs_quotas_end(m->quotas, c.ctx, rc ? NULL : &usage);
	}
	return (int)cfs_call_end(&c, rc);
}

int cfs_meta_check_usage(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_sums *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->check_usage(m->eng, c.ctx, ret));
}

static int add_usage(struct cfs_meta *m, const struct cfs_ctx *ctx, int64_t space, int64_t inodes,
		     const struct cfs_usage_dir *dir)
{
	struct cfs_call c;
	int rc = cfs_core_check_writable(m);

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	if (!rc)
		rc = m->eng->ops->add_usage(m->eng, c.ctx, NULL, space, inodes, dir, dir ? 1 : 0);
	return (int)cfs_call_end(&c, rc);
}

int cfs_meta_add_usage(struct cfs_meta *m, const struct cfs_ctx *ctx, int64_t space, int64_t inodes)
{
	return add_usage(m, ctx, space, inodes, NULL);
}

int cfs_meta_add_dir_stat(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_dir_stat *delta)
{
	const struct cfs_usage_dir d = {
		.dir = dir,
		.length = delta->length,
		.space = delta->space,
		.inodes = delta->inodes,
	};

	return add_usage(m, ctx, 0, 0, &d);
}

int cfs_meta_add_quota_usage(struct cfs_meta *m, const struct cfs_ctx *ctx,
			     const struct cfs_quota *delta)
{
	struct cfs_call c;
	int rc = cfs_core_check_writable(m);

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	if (!rc)
		rc = m->eng->ops->add_quota_usage(m->eng, c.ctx, NULL, delta, 1);
	return (int)cfs_call_end(&c, rc);
}

int cfs_meta_fix_refs(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t slice, uint32_t size,
		      int64_t have, int64_t want)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->fix_refs(m->eng, c.ctx, slice, size, have, want));
}

int cfs_meta_dead_locks(struct cfs_meta *m, const struct cfs_ctx *ctx, bool repair,
			cfs_dead_lock_fn fn, void *arg)
{
	if (!m->eng->ops->dead_locks)
		return 0;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->dead_locks(m->eng, c.ctx, repair, fn, arg));
}

int cfs_meta_drop_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t slice,
			uint32_t size)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_delete, ctx,
			     m->eng->ops->drop_slice(m->eng, c.ctx, slice, size));
}

int cfs_meta_get_dir_stat(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  struct cfs_dir_stat *ret)
{
	/* Rows from before DirStats was switched off are outdated. */
	if (!cfs_host_dir_stats(&m->host))
		return -ENODATA;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->get_dir_stat(m->eng, c.ctx, dir, ret));
}

int cfs_meta_clear_dir_stats(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->clear_dir_stats(m->eng, c.ctx));
}

/* ---- quotas ---- */

int cfs_meta_each_quota(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_quota_fn fn, void *arg)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->each_quota(m->eng, c.ctx, fn, arg));
}

int cfs_meta_put_quota(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_quota *q)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->put_quota(m->eng, c.ctx, q));
}

int cfs_meta_del_quota(struct cfs_meta *m, const struct cfs_ctx *ctx, enum cfs_quota_kind kind,
		       uint64_t key)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->del_quota(m->eng, c.ctx, kind, key));
}

int cfs_meta_destroy_volume(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx, m->eng->ops->destroy(m->eng, c.ctx));
}
