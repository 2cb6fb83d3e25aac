/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by all filters: the store they wrap, and the calls that pass through. Sizes that head and
 * list report are those of the stored object.
 */
#ifndef CFS_OBJECT_FILTER_H
#define CFS_OBJECT_FILTER_H

#include "object-internal.h"
#include "scratch.h"

struct cfs_filter {
	struct cfs_object_store base; /* first */
	struct cfs_object_store *inner;
	struct cfs_scratch scratch;
};

int cfs_filter_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline);
int cfs_filter_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		    cfs_deadline_t deadline);
int cfs_filter_list(struct cfs_object_store *o, const char *prefix, const char *after,
		    cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline);
int cfs_filter_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
			cfs_deadline_t deadline);
int cfs_filter_sync(struct cfs_object_store *o, cfs_deadline_t deadline);
int cfs_filter_create(struct cfs_object_store *o, cfs_deadline_t deadline);
int cfs_filter_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf);

#endif
