/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "meta/core-internal.h"

static bool is_key(const char *key)
{
	size_t len = strlen(key);

	return len > 0 && len <= CFS_RECORD_KEY_MAX;
}

int cfs_meta_put_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key,
			const void *value, size_t len, bool fresh)
{
	struct cfs_call c;

	if (!is_key(key) || len > CFS_RECORD_MAX)
		return -EINVAL;
	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	return (int)cfs_call_end(&c,
				 m->eng->ops->put_record(m->eng, c.ctx, key, value, len, fresh));
}

int cfs_meta_drop_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *key)
{
	struct cfs_call c;

	if (!is_key(key))
		return -EINVAL;
	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	return (int)cfs_call_end(&c, m->eng->ops->drop_record(m->eng, c.ctx, key));
}

int cfs_meta_each_record(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *prefix,
			 cfs_record_fn fn, void *arg)
{
	struct cfs_call c;

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	return (int)cfs_call_end(&c, m->eng->ops->each_record(m->eng, c.ctx, prefix, fn, arg));
}
