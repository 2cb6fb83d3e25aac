/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that only administration commands use. */
#include <errno.h>
#include <stdlib.h>

#include "meta/api/call.h"
#include "meta/api/clock.h"
#include "meta/api/clone.h"
#include "meta/api/core.h"
enum { PAGE = 1000, LEFT_BEHIND_S = 3600, CLONE_LIFE_S = 24 * 3600 };

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

/* ---- final removal of deleted data ---- */

/* The slice's row without references shows that it is dead. */
static int leave_slice(void *arg, uint64_t id, uint32_t size)
{
	return 0;
}
struct delfiles {
	struct {
		cfs_ino_t ino;
		uint64_t length;
	} v[PAGE];
	size_t n;
};

static int keep_delfile(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s)
{
	struct delfiles *d = arg;

	if (d->n == PAGE)
		return 1;
	d->v[d->n].ino = ino;
	d->v[d->n++].length = length;
	return 0;
}

static int reap_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length)
{
	struct cfs_ctx ctx;
	int rc;

	do {
		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		rc = m->eng->ops->delete_chunk(m->eng, &ctx, ino, leave_slice, NULL);
	} while (rc == 0);
	if (rc < 0)
		return rc;
	ctx = cfs_ctx_internal(m->conf.timeout_ms);
	return m->eng->ops->drop_delfile(m->eng, &ctx, ino, length);
}

static int reap_files(struct cfs_meta *m, uint64_t *count)
{
	struct delfiles *d = malloc(sizeof(*d));
	int64_t before_s = cfs_wall_s() - LEFT_BEHIND_S;
	size_t i, done;
	int rc, first = 0;

	if (!d)
		return -ENOMEM;
	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		d->n = done = 0;
		rc = m->eng->ops->each_delfile(m->eng, &ctx, before_s, PAGE, keep_delfile, d);
		for (i = 0; i < d->n && rc >= 0; i++) {
			int rc2 = reap_file(m, d->v[i].ino, d->v[i].length);

			done += rc2 == 0;
			first = first ? first : rc2;
		}
		*count += done;
	} while (rc >= 0 && d->n == PAGE && done);
	free(d);
	return rc < 0 ? rc : first;
}

static int reap_delayed(struct cfs_meta *m, uint64_t *count)
{
	int64_t before_s = cfs_clock_earliest_s(m) - (int64_t)atomic_load(&m->trash_days) * 86400;
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->expire_delayed(m->eng, &ctx, before_s, leave_slice, NULL);
		*count += rc == 0;
	} while (rc == 0);
	return rc < 0 ? rc : 0;
}

struct clones {
	cfs_ino_t v[PAGE];
	size_t n;
	int64_t before_s;
};

static int keep_clone(void *arg, const struct cfs_row *row)
{
	struct clones *c = arg;

	if (row->added_s < c->before_s && c->n < PAGE)
		c->v[c->n++] = row->ino;
	return 0;
}

static int reap_clones(struct cfs_meta *m, uint64_t *count)
{
	struct clones c = {.before_s = cfs_clock_earliest_s(m) - CLONE_LIFE_S};
	int rc = cfs_meta_scan(m, CFS_TABLE_DETACHED, keep_clone, &c);
	size_t i;

	for (i = 0; i < c.n && !rc; i++) {
		rc = cfs_clone_discard(m, c.v[i]);
		*count += rc == 0;
	}
	return rc;
}

int cfs_meta_reap(struct cfs_meta *m, struct cfs_reaped *ret)
{
	struct cfs_reaped n = {0};
	int rc = cfs_core_check_writable(m), rc2, rc3;

	if (rc)
		return rc;
	rc = reap_clones(m, &n.clones);
	rc2 = reap_files(m, &n.files);
	rc3 = reap_delayed(m, &n.delayed);
	*ret = n;
	return rc ? rc : rc2 ? rc2 : rc3;
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
