/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects in this process's memory, for tests and benchmarks. Bucket is "NAME[?size=SIZE]": opens
 * of the same name share one map, which lives until the last of them is closed; a put beyond SIZE
 * is -ENOSPC.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text/opt.h"
#include "object-internal.h"

#define N_BUCKETS 4096

struct object {
	struct object *next;
	char *key;
	size_t size;
	int64_t mtime_s;
	uint8_t data[];
};

struct space {
	struct space *next;
	char *name;
	unsigned opens;	       /* under spaces_lock */
	pthread_rwlock_t lock; /* everything below; innermost */
	struct object *hash[N_BUCKETS];
	size_t n;
	uint64_t used, limit; /* limit 0: none */
};

struct mem_store {
	struct cfs_object_store base;
	struct space *space;
};

/* Protects the list of spaces and their open counts. */
static pthread_mutex_t spaces_lock = PTHREAD_MUTEX_INITIALIZER;
static struct space *spaces;

static struct object **find_place(struct space *sp, const char *key)
{
	struct object **at;

	for (at = &sp->hash[cfs_object_key_hash(key) % N_BUCKETS]; *at; at = &(*at)->next) {
		if (strcmp((*at)->key, key) == 0)
			break;
	}
	return at;
}

static void free_object(struct object *obj)
{
	free(obj->key);
	free(obj);
}

static ssize_t mem_get_nowait(struct cfs_object_store *base, const char *key, uint64_t off,
			      const struct iovec *dst, int n_dst)
{
	struct space *sp = ((struct mem_store *)base)->space;
	struct object *obj;
	ssize_t n = 0;

	pthread_rwlock_rdlock(&sp->lock);
	obj = *find_place(sp, key);
	if (!obj)
		n = -ENOENT;
	else if (off < obj->size)
		n = (ssize_t)cfs_iov_scatter(dst, n_dst, obj->data + off, obj->size - off);
	pthread_rwlock_unlock(&sp->lock);
	return n;
}

static ssize_t mem_get(struct cfs_object_store *base, const char *key, uint64_t off,
		       const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	return mem_get_nowait(base, key, off, dst, n_dst);
}

static int mem_put(struct cfs_object_store *base, const char *key, const struct iovec *src,
		   int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct space *sp = ((struct mem_store *)base)->space;
	size_t len = cfs_iov_len(src, n_src);
	struct object *obj, *old, **place;
	uint64_t used;
	int r = 0;

	obj = malloc(sizeof(*obj) + len);
	if (!obj)
		return -ENOMEM;
	*obj = (struct object){.key = strdup(key), .size = len, .mtime_s = cfs_wall_s()};
	if (!obj->key) {
		free(obj);
		return -ENOMEM;
	}
	cfs_iov_gather(src, n_src, obj->data);
	pthread_rwlock_wrlock(&sp->lock);
	place = find_place(sp, key);
	old = *place;
	used = sp->used + len - (old ? old->size : 0);
	if ((old && tier & CFS_OBJECT_NEW) || (sp->limit && used > sp->limit)) {
		r = old && tier & CFS_OBJECT_NEW ? -EEXIST : -ENOSPC;
		old = obj;
	} else {
		obj->next = old ? old->next : NULL;
		*place = obj;
		sp->used = used;
		sp->n += !old;
	}
	pthread_rwlock_unlock(&sp->lock);
	if (old)
		free_object(old);
	return r;
}

static int mem_del(struct cfs_object_store *base, const char *key, cfs_deadline_t deadline)
{
	struct space *sp = ((struct mem_store *)base)->space;
	struct object *obj, **place;

	pthread_rwlock_wrlock(&sp->lock);
	place = find_place(sp, key);
	obj = *place;
	if (obj) {
		*place = obj->next;
		sp->used -= obj->size;
		sp->n--;
	}
	pthread_rwlock_unlock(&sp->lock);
	if (obj)
		free_object(obj);
	return 0;
}

static int mem_head(struct cfs_object_store *base, const char *key, struct cfs_object_info *ret,
		    cfs_deadline_t deadline)
{
	struct space *sp = ((struct mem_store *)base)->space;
	struct object *obj;

	pthread_rwlock_rdlock(&sp->lock);
	obj = *find_place(sp, key);
	if (obj)
		*ret = (struct cfs_object_info){
			.key = key,
			.size = obj->size,
			.mtime_s = obj->mtime_s,
		};
	pthread_rwlock_unlock(&sp->lock);
	return obj ? 0 : -ENOENT;
}

struct listing {
	struct cfs_object_info *v; /* keys are owned */
	size_t n;
};

static int compare_infos(const void *a, const void *b)
{
	return strcmp(((const struct cfs_object_info *)a)->key,
		      ((const struct cfs_object_info *)b)->key);
}

static int snapshot(struct space *sp, const char *prefix, const char *after, struct listing *ret)
{
	size_t i, prefix_len = strlen(prefix);
	struct object *obj;
	int r = 0;

	pthread_rwlock_rdlock(&sp->lock);
	ret->v = calloc(sp->n + 1, sizeof(*ret->v));
	if (!ret->v)
		r = -ENOMEM;
	for (i = 0; r == 0 && i < N_BUCKETS; i++) {
		for (obj = sp->hash[i]; r == 0 && obj; obj = obj->next) {
			char *key;

			if (strncmp(obj->key, prefix, prefix_len) != 0 ||
			    strcmp(obj->key, after) <= 0)
				continue;
			key = strdup(obj->key);
			if (!key)
				r = -ENOMEM;
			else
				ret->v[ret->n++] = (struct cfs_object_info){
					.key = key,
					.size = obj->size,
					.mtime_s = obj->mtime_s,
				};
		}
	}
	pthread_rwlock_unlock(&sp->lock);
	if (r == 0 && ret->n)
		qsort(ret->v, ret->n, sizeof(*ret->v), compare_infos);
	return r;
}

static int mem_list(struct cfs_object_store *base, const char *prefix, const char *after,
		    cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct listing l = {0};
	size_t i;
	int r;

	r = snapshot(((struct mem_store *)base)->space, prefix, after, &l);
	for (i = 0; i < l.n; i++) {
		if (r == 0)
			r = fn(arg, &l.v[i]);
		free((char *)l.v[i].key);
	}
	free(l.v);
	return r;
}

static void free_space(struct space *sp)
{
	struct object *obj;
	size_t i;

	for (i = 0; i < N_BUCKETS; i++) {
		while ((obj = sp->hash[i]) != NULL) {
			sp->hash[i] = obj->next;
			free_object(obj);
		}
	}
	pthread_rwlock_destroy(&sp->lock);
	free(sp->name);
	free(sp);
}

static void mem_close(struct cfs_object_store *base)
{
	struct space *sp = ((struct mem_store *)base)->space, **at;

	pthread_mutex_lock(&spaces_lock);
	if (--sp->opens > 0) {
		sp = NULL;
	} else {
		for (at = &spaces; *at != sp; at = &(*at)->next)
			;
		*at = sp->next;
	}
	pthread_mutex_unlock(&spaces_lock);
	if (sp)
		free_space(sp);
	free(base);
}

static const struct cfs_object_ops mem_ops = {
	.name = "mem",
	.get = mem_get,
	.get_nowait = mem_get_nowait,
	.put = mem_put,
	.del = mem_del,
	.head = mem_head,
	.list = mem_list,
	.close = mem_close,
};

static struct space *new_space(const char *name, size_t name_len, uint64_t limit)
{
	struct space *sp = calloc(1, sizeof(*sp));

	if (!sp)
		return NULL;
	sp->name = strndup(name, name_len);
	sp->limit = limit;
	if (!sp->name || pthread_rwlock_init(&sp->lock, NULL) != 0) {
		free(sp->name);
		free(sp);
		return NULL;
	}
	return sp;
}

/* The space of that name, with one more open. */
static struct space *join_space(const char *name, size_t name_len, uint64_t limit)
{
	struct space *sp;
	CFS_LOCK_GUARD(&spaces_lock);

	for (sp = spaces; sp; sp = sp->next) {
		if (strlen(sp->name) == name_len && memcmp(sp->name, name, name_len) == 0)
			break;
	}
	if (!sp) {
		sp = new_space(name, name_len, limit);
		if (!sp)
			return NULL;
		sp->next = spaces;
		spaces = sp;
	}
	sp->opens++;
	return sp;
}

int cfs_object_open_mem(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
			char err[CFS_OBJECT_ERRLEN])
{
	const char *name = conf->bucket ? conf->bucket : "", *query = strchr(name, '?');
	uint64_t limit = 0;
	struct mem_store *m;

	if (query && (strncmp(query, "?size=", 6) != 0 || cfs_parse_size(query + 6, 1, &limit) < 0))
		return cfs_fail(err, -EINVAL, "bucket of a mem storage is NAME[?size=SIZE]: %s",
				name);
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->base.ops = &mem_ops;
	m->space = join_space(name, query ? (size_t)(query - name) : strlen(name), limit);
	if (!m->space) {
		free(m);
		return -ENOMEM;
	}
	*ret = &m->base;
	return 0;
}
