/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One store over many buckets (volume-format section 7): the hash of an object's key selects its
 * bucket. A listing merges the listings of all buckets, one page of each at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "filter.h"

#define SHARDS_MAX   256
#define LISTED_MAX   16384 /* keys held by one listing, over all shards */
#define LISTED_LEAST 128

struct shards {
	struct cfs_object_store base; /* first */
	struct cfs_object_ops ops;
	unsigned n;
	struct cfs_object_store *v[];
};

static unsigned shard_of(const struct shards *s, const char *key)
{
	return cfs_object_key_hash(key) % s->n;
}

static struct cfs_object_store *store_of(struct cfs_object_store *o, const char *key)
{
	struct shards *s = (struct shards *)o;

	return s->v[shard_of(s, key)];
}

static ssize_t shards_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct cfs_object_store *at = store_of(o, key);

	return at->ops->get(at, key, off, dst, n_dst, deadline);
}

static ssize_t shards_get_nowait(struct cfs_object_store *o, const char *key, uint64_t off,
				 const struct iovec *dst, int n_dst)
{
	struct cfs_object_store *at = store_of(o, key);

	return at->ops->get_nowait(at, key, off, dst, n_dst);
}

static int shards_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		      int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct cfs_object_store *at = store_of(o, key);

	return at->ops->put(at, key, src, n_src, tier, deadline);
}

static int shards_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	struct cfs_object_store *at = store_of(o, key);

	return at->ops->del(at, key, deadline);
}

static int shards_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
			   cfs_deadline_t deadline)
{
	struct shards *s = (struct shards *)o;
	const char **part = calloc(n, sizeof(*part));
	size_t i, n_part;
	int r, err = 0;
	unsigned k;

	if (!part)
		return -ENOMEM;
	for (k = 0; k < s->n; k++) {
		n_part = 0;
		for (i = 0; i < n; i++) {
			if (shard_of(s, keys[i]) == k)
				part[n_part++] = keys[i];
		}
		r = cfs_object_del_many(s->v[k], part, n_part, deadline);
		err = err ? err : r;
	}
	free(part);
	return err;
}

static int shards_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		       cfs_deadline_t deadline)
{
	struct cfs_object_store *at = store_of(o, key);

	return at->ops->head(at, key, ret, deadline);
}

/* ---- listing ---- */

/* The next keys of one shard. */
struct page {
	struct cfs_object_info *v; /* keys are owned */
	size_t at, n, max;
	char *last;    /* key from which the shard is listed on; owned */
	bool complete; /* nothing follows what is here */
};

enum { PAGE_FULL = 1 };

static int add_to_page(void *arg, const struct cfs_object_info *info)
{
	const char *before = NULL;
	struct page *p = arg;

	if (p->n)
		before = p->v[p->n - 1].key;
	else if (p->last)
		before = p->last;
	/* A listing out of order can neither be merged nor resumed after a page. */
	if (before && strcmp(info->key, before) <= 0)
		return -EPROTO;
	if (p->n == p->max)
		return PAGE_FULL;
	p->v[p->n] = *info;
	p->v[p->n].key = strdup(info->key);
	if (!p->v[p->n].key)
		return -ENOMEM;
	p->n++;
	return 0;
}

static void empty_page(struct page *p)
{
	size_t i;

	for (i = 0; i < p->n; i++)
		free((char *)p->v[i].key);
	p->at = p->n = 0;
}

static int fill_page(struct cfs_object_store *at, struct page *p, const char *prefix,
		     const char *after, cfs_deadline_t deadline)
{
	int r;

	if (p->n) {
		free(p->last);
		p->last = (char *)p->v[p->n - 1].key;
		p->n--;
	}
	empty_page(p);
	r = at->ops->list(at, prefix, p->last ? p->last : after, add_to_page, p, deadline);
	if (r < 0)
		return r;
	p->complete = r != PAGE_FULL;
	return 0;
}

static int merge_pages(struct shards *s, struct page *pages, const char *prefix, const char *after,
		       cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct cfs_object_info *least;
	struct page *from;
	unsigned k;
	int r;

	for (;;) {
		least = NULL;
		for (k = 0; k < s->n; k++) {
			struct page *p = &pages[k];

			if (p->at == p->n && !p->complete) {
				r = fill_page(s->v[k], p, prefix, after, deadline);
				if (r < 0)
					return r;
			}
			if (p->at < p->n && (!least || strcmp(p->v[p->at].key, least->key) < 0)) {
				least = &p->v[p->at];
				from = p;
			}
		}
		if (!least)
			return 0;
		r = fn(arg, least);
		if (r)
			return r;
		from->at++;
	}
}

static int shards_list(struct cfs_object_store *o, const char *prefix, const char *after,
		       cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct shards *s = (struct shards *)o;
	struct page *pages = calloc(s->n, sizeof(*pages));
	int r = pages ? 0 : -ENOMEM;
	unsigned k;

	for (k = 0; k < s->n && r == 0; k++) {
		pages[k].max = CFS_MAX(LISTED_MAX / s->n, LISTED_LEAST);
		pages[k].v = calloc(pages[k].max, sizeof(*pages[k].v));
		if (!pages[k].v)
			r = -ENOMEM;
	}
	if (r == 0)
		r = merge_pages(s, pages, prefix, after, fn, arg, deadline);
	for (k = 0; pages && k < s->n; k++) {
		empty_page(&pages[k]);
		free(pages[k].last);
		free(pages[k].v);
	}
	free(pages);
	return r;
}

/* ---- all of them ---- */

static int shards_sync(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	struct shards *s = (struct shards *)o;
	unsigned k;
	int r, err = 0;

	for (k = 0; k < s->n; k++) {
		r = s->v[k]->ops->sync(s->v[k], deadline);
		err = err ? err : r;
	}
	return err;
}

static int shards_create(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	struct shards *s = (struct shards *)o;
	unsigned k;
	int r = 0;

	for (k = 0; k < s->n && r == 0; k++)
		r = s->v[k]->ops->create(s->v[k], deadline);
	return r;
}

static void shards_close(struct cfs_object_store *o)
{
	struct shards *s = (struct shards *)o;
	unsigned k;

	for (k = 0; k < s->n; k++)
		cfs_object_close(s->v[k]);
	free(s);
}

/* Replaces the one "%d" of the bucket by the number. */
static int open_shard(const struct cfs_object_conf *conf, unsigned k, cfs_object_open_fn open,
		      struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	const char *mark = strstr(conf->bucket, "%d");
	struct cfs_object_conf one = *conf;
	char *bucket;
	int r;

	if (asprintf(&bucket, "%.*s%u%s", (int)(mark - conf->bucket), conf->bucket, k, mark + 2) <
	    0)
		return -ENOMEM;
	one.bucket = bucket;
	one.shards = 0;
	r = open(&one, ret, err);
	free(bucket);
	return r;
}

static int shards_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf)
{
	struct shards *s = (struct shards *)o;
	unsigned i;
	int r = 0;

	for (i = 0; i < s->n && r == 0; i++)
		r = cfs_object_adopt(s->v[i], conf);
	return r;
}

int cfs_object_open_shards(const struct cfs_object_conf *conf, cfs_object_open_fn open,
			   struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	const char *mark = conf->bucket ? strstr(conf->bucket, "%d") : NULL;
	const struct cfs_object_ops *one;
	struct shards *s;
	int r;

	if (conf->shards > SHARDS_MAX || !mark || strstr(mark + 2, "%d"))
		return cfs_fail(err, -EINVAL,
				"with shards (at most %d) the bucket must hold one %%d: %s",
				SHARDS_MAX, conf->bucket ? conf->bucket : "(none)");
	s = calloc(1, sizeof(*s) + conf->shards * sizeof(s->v[0]));
	if (!s)
		return -ENOMEM;
	for (; s->n < conf->shards; s->n++) {
		r = open_shard(conf, s->n, open, &s->v[s->n], err);
		if (r < 0) {
			shards_close(&s->base);
			return r;
		}
	}
	one = s->v[0]->ops;
	s->ops = (struct cfs_object_ops){
		.name = one->name,
		.whole = one->whole,
		.get = shards_get,
		.get_nowait = one->get_nowait ? shards_get_nowait : NULL,
		.put = shards_put,
		.del = shards_del,
		.head = shards_head,
		.list = shards_list,
		.sync = one->sync ? shards_sync : NULL,
		.create = one->create ? shards_create : NULL,
		.close = shards_close,
		.del_many = one->del_many ? shards_del_many : NULL,
		.adopt = shards_adopt,
	};
	s->base.ops = &s->ops;
	*ret = &s->base;
	return 0;
}
