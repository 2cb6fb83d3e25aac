/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that filters pass on, and copies between pieces of memory. */
#include "filter.h"

#include <string.h>

#include "base/bytes.h"

static struct cfs_object_store *inner(struct cfs_object_store *o)
{
	return ((struct cfs_filter *)o)->inner;
}

int cfs_filter_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	return inner(o)->ops->del(inner(o), key, deadline);
}

int cfs_filter_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		    cfs_deadline_t deadline)
{
	return inner(o)->ops->head(inner(o), key, ret, deadline);
}

int cfs_filter_list(struct cfs_object_store *o, const char *prefix, const char *after,
		    cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	return inner(o)->ops->list(inner(o), prefix, after, fn, arg, deadline);
}

int cfs_filter_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
			cfs_deadline_t deadline)
{
	return cfs_object_del_many(inner(o), keys, n, deadline);
}

int cfs_filter_sync(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	return inner(o)->ops->sync ? inner(o)->ops->sync(inner(o), deadline) : 0;
}

int cfs_filter_create(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	return inner(o)->ops->create ? inner(o)->ops->create(inner(o), deadline) : 0;
}

int cfs_filter_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf)
{
	return cfs_object_adopt(inner(o), conf);
}

size_t cfs_iov_scatter(const struct iovec *dst, int n_dst, const uint8_t *src, size_t len)
{
	size_t done = 0, n;
	int i;

	for (i = 0; i < n_dst && done < len; i++) {
		n = CFS_MIN(dst[i].iov_len, len - done);
		if (n)
			memcpy(dst[i].iov_base, src + done, n);
		done += n;
	}
	return done;
}
