/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder: constructors of stores and filters. */
#ifndef CFS_OBJECT_INTERNAL_H
#define CFS_OBJECT_INTERNAL_H

#include <cachefs/object.h>

#define CFS_OBJECT_ERRLEN 256

typedef int (*cfs_object_open_fn)(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
				  char err[CFS_OBJECT_ERRLEN]);

int cfs_object_open_file(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
			 char err[CFS_OBJECT_ERRLEN]);
int cfs_object_open_mem(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
			char err[CFS_OBJECT_ERRLEN]);

/* The table of a store's module, for cfs_module_load(). */
struct cfs_object_module {
	cfs_object_open_fn open;
};

/* A store of conf->shards stores, each opened with `open`. */
int cfs_object_open_shards(const struct cfs_object_conf *conf, cfs_object_open_fn open,
			   struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN]);

/* Filters take over `inner` when they succeed. */
int cfs_object_wrap_compress(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			     struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN]);
int cfs_object_wrap_encrypt(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			    struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN]);
int cfs_object_wrap_limit(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			  struct cfs_object_store **ret);
/* For an inner store that has a failure function. */
int cfs_object_wrap_retry(struct cfs_object_store *inner, struct cfs_object_store **ret);

static inline size_t cfs_iov_len(const struct iovec *iov, int n)
{
	size_t len = 0;
	int i;

	for (i = 0; i < n; i++)
		len += iov[i].iov_len;
	return len;
}

#endif
