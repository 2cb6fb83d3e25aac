/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder: constructors of stores and filters. */
#ifndef CFS_OBJECT_INTERNAL_H
#define CFS_OBJECT_INTERNAL_H

#include <cachefs/object.h>

#include "base/bytes.h"

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

/* ---- pieces of memory ---- */

/* Copies as much of src as fits; returns how much. */
size_t cfs_iov_scatter(const struct iovec *dst, int n_dst, const uint8_t *src, size_t len);

/* A place in an array of pieces, which moves on to its end. */
struct cfs_iov_cursor {
	const struct iovec *v;
	int n;
	size_t done; /* of v[0] */
};

/* Moves behind the next bytes in one piece, at most `max`. Returns how many; 0: the end. */
static inline size_t cfs_iov_next(struct cfs_iov_cursor *at, size_t max, char **ret)
{
	size_t part;

	while (at->n && at->done == at->v->iov_len) {
		at->v++;
		at->n--;
		at->done = 0;
	}
	if (!at->n)
		return 0;
	part = max < at->v->iov_len - at->done ? max : at->v->iov_len - at->done;
	*ret = (char *)at->v->iov_base + at->done;
	at->done += part;
	return part;
}

/* FNV-1a. */
static inline uint32_t cfs_object_key_hash(const char *key)
{
	uint32_t h = 2166136261u;

	for (; *key; key++)
		h = (h ^ (uint8_t)*key) * 16777619u;
	return h;
}

#endif
