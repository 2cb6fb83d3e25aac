/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/records.h>
#include <errno.h>
#include <string.h>

#include "meta/api/call.h"
#include "meta/api/core.h"

static bool is_key(const char *key)
{
	const char *slash = strchr(key, '/');

	return slash && slash > key && slash[1] && strlen(key) <= CFS_RECORD_KEY_MAX;
}

int cfs_meta_put_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			const void *value, size_t len, bool fresh)
{
	if (!is_key(key) || len > CFS_RECORD_MAX)
		return -EINVAL;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->put_record(m->eng, c.ctx, key, value, len, fresh));
}

int cfs_meta_swap_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			 const void *old, size_t old_len, const void *value, size_t len)
{
	if (!is_key(key) || len > CFS_RECORD_MAX)
		return -EINVAL;
	return (int)CFS_CALL(
		c, m, CFS_META_OP_other, ctx,
		m->eng->ops->swap_record(m->eng, c.ctx, key, old, old_len, value, len));
}

int cfs_meta_get_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			cfs_record_fn fn, void *arg)
{
	if (!is_key(key))
		return -EINVAL;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->get_record(m->eng, c.ctx, key, fn, arg));
}

int cfs_meta_drop_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key)
{
	if (!is_key(key))
		return -EINVAL;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->drop_record(m->eng, c.ctx, key));
}

int cfs_meta_each_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *table,
			 cfs_record_fn fn, void *arg)
{
	if (!table[0] || strchr(table, '/') || strlen(table) > CFS_RECORD_KEY_MAX - 2)
		return -EINVAL;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
			     m->eng->ops->each_record(m->eng, c.ctx, table, fn, arg));
}
