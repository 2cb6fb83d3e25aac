/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"

struct attr_entry {
	cfs_ino_t ino;
	uint64_t expire_ms;
	struct cfs_attr attr;
	bool told; /* the last that the kernel was told of the file's content are these */
};

struct attr_set {
	_Atomic uint64_t changed; /* number of the last change of an inode that belongs here */
	struct attr_entry way[CACHE_WAYS];
};

struct name_entry {
	cfs_ino_t parent, ino;
	uint64_t expire_ms;
	uint8_t len;
	char name[CACHE_NAME_MAX];
};

struct name_set {
	uint64_t changed;
	struct name_entry way[CACHE_WAYS];
};

struct opened_entry {
	cfs_ino_t ino;
	struct timespec ctime;
};

struct opened_set {
	unsigned next;
	struct opened_entry way[CACHE_WAYS];
};

int cache_init(struct cache *c, uint64_t attr_timeout_ms)
{
	size_t i;

	memset(c, 0, sizeof(*c));
	c->attr_timeout_ms = attr_timeout_ms;
	c->attrs = calloc(CACHE_ATTR_SETS, sizeof(*c->attrs));
	c->names = calloc(CACHE_NAME_SETS, sizeof(*c->names));
	c->opened = calloc(CACHE_OPENED_SETS, sizeof(*c->opened));
	if (!c->attrs || !c->names || !c->opened) {
		free(c->attrs);
		free(c->names);
		free(c->opened);
		return -ENOMEM;
	}
	for (i = 0; i < CACHE_LOCKS; i++)
		pthread_mutex_init(&c->locks[i], NULL);
	return 0;
}

void cache_fini(struct cache *c)
{
	size_t i;

	for (i = 0; i < CACHE_LOCKS; i++)
		pthread_mutex_destroy(&c->locks[i]);
	free(c->attrs);
	free(c->names);
	free(c->opened);
}

static size_t hash_ino(cfs_ino_t ino)
{
	return (size_t)((ino * 0x9e3779b97f4a7c15ULL) >> 40);
}

/* FNV-1a: names are short and most of the cost is the miss that follows. */
uint64_t cache_hash_name(cfs_ino_t parent, const char *name, size_t len)
{
	uint64_t h = 0xcbf29ce484222325ULL ^ parent;
	size_t i;

	for (i = 0; i < len; i++)
		h = (h ^ (uint8_t)name[i]) * 0x100000001b3ULL;
	return h;
}

static uint64_t next_seq(struct cache *c)
{
	return atomic_fetch_add_explicit(&c->seq, 1, memory_order_acq_rel) + 1;
}

/* The place of the entry that a new one replaces. */
#define FIRST_TO_EXPIRE(way)                                                                       \
	({                                                                                         \
		size_t best_ = 0, i_;                                                              \
                                                                                                   \
		for (i_ = 1; i_ < CACHE_WAYS; i_++) {                                              \
			if ((way)[i_].expire_ms < (way)[best_].expire_ms)                          \
				best_ = i_;                                                        \
		}                                                                                  \
		best_;                                                                             \
	})

/* ---- attributes ---- */

static struct attr_set *attr_set(struct cache *c, cfs_ino_t ino, pthread_mutex_t **ret_lock)
{
	size_t i = hash_ino(ino) % CACHE_ATTR_SETS;

	*ret_lock = &c->locks[i % CACHE_LOCKS];
	return &c->attrs[i];
}

static struct attr_entry *find_attr(struct attr_set *set, cfs_ino_t ino)
{
	size_t i;

	for (i = 0; i < CACHE_WAYS; i++) {
		if (set->way[i].ino == ino)
			return &set->way[i];
	}
	return NULL;
}

static bool same_content(const struct cfs_attr *a, const struct cfs_attr *b)
{
	return a->length == b->length && cfs_timespec_cmp(a->mtime, b->mtime) == 0 &&
	       cfs_timespec_cmp(a->ctime, b->ctime) == 0;
}

static void store_attr(struct attr_set *set, cfs_ino_t ino, uint64_t expire_ms,
		       const struct cfs_attr *attr)
{
	struct attr_entry *e = find_attr(set, ino);

	if (e) {
		e->told &= same_content(&e->attr, attr);
		if (e->expire_ms > expire_ms) /* it is newer */
			return;
	} else {
		e = &set->way[FIRST_TO_EXPIRE(set->way)];
		e->told = false;
	}
	e->ino = ino;
	e->expire_ms = expire_ms;
	e->attr = *attr;
}

bool cache_get_attr(struct cache *c, cfs_ino_t ino, uint64_t now_ms, struct cfs_attr *ret,
		    uint32_t *ret_ms)
{
	pthread_mutex_t *lock;
	struct attr_set *set = attr_set(c, ino, &lock);
	struct attr_entry *e;
	bool hit;

	if (!c->attr_timeout_ms)
		return false;
	pthread_mutex_lock(lock);
	e = find_attr(set, ino);
	hit = e && e->expire_ms > now_ms;
	if (hit) {
		*ret = e->attr;
		*ret_ms = (uint32_t)(e->expire_ms - now_ms);
	}
	pthread_mutex_unlock(lock);
	atomic_fetch_add_explicit(hit ? &c->stats.attr_hits : &c->stats.attr_misses, 1,
				  memory_order_relaxed);
	return hit;
}

void cache_put_attr(struct cache *c, uint64_t seq, uint64_t now_ms, cfs_ino_t ino,
		    const struct cfs_attr *attr)
{
	pthread_mutex_t *lock;
	struct attr_set *set = attr_set(c, ino, &lock);

	if (!c->attr_timeout_ms)
		return;
	pthread_mutex_lock(lock);
	if (atomic_load_explicit(&set->changed, memory_order_relaxed) <= seq)
		store_attr(set, ino, now_ms + c->attr_timeout_ms, attr);
	pthread_mutex_unlock(lock);
}

void cache_told(struct cache *c, cfs_ino_t ino, const struct cfs_attr *attr)
{
	pthread_mutex_t *lock;
	struct attr_set *set;
	struct attr_entry *e;

	if (!c->attr_timeout_ms || attr->type != CFS_TYPE_FILE)
		return;
	set = attr_set(c, ino, &lock);
	pthread_mutex_lock(lock);
	e = find_attr(set, ino);
	if (e)
		e->told = same_content(&e->attr, attr);
	pthread_mutex_unlock(lock);
}

bool cache_kernel_may_differ(struct cache *c, cfs_ino_t ino, const struct cfs_attr *attr)
{
	pthread_mutex_t *lock;
	struct attr_set *set = attr_set(c, ino, &lock);
	struct attr_entry *e;
	CFS_LOCK_GUARD(lock);

	e = find_attr(set, ino);
	return c->attr_timeout_ms && (!e || !e->told || !same_content(&e->attr, attr));
}

void cache_changed(struct cache *c, uint64_t seq, uint64_t now_ms, cfs_ino_t ino,
		   const struct cfs_attr *attr)
{
	pthread_mutex_t *lock;
	struct attr_set *set = attr_set(c, ino, &lock);
	struct attr_entry *e;
	CFS_LOCK_GUARD(lock);

	if (attr && c->attr_timeout_ms &&
	    atomic_load_explicit(&set->changed, memory_order_relaxed) <= seq) {
		store_attr(set, ino, now_ms + c->attr_timeout_ms, attr);
	} else {
		e = find_attr(set, ino);
		if (e)
			e->expire_ms = 0;
	}
	atomic_store_explicit(&set->changed, next_seq(c), memory_order_release);
}

bool cache_changed_since(struct cache *c, cfs_ino_t ino, uint64_t seq)
{
	pthread_mutex_t *lock;

	return atomic_load_explicit(&attr_set(c, ino, &lock)->changed, memory_order_acquire) > seq;
}

void cache_forget(struct cache *c, cfs_ino_t ino)
{
	pthread_mutex_t *lock;
	struct attr_set *set = attr_set(c, ino, &lock);
	struct attr_entry *e;

	if (!c->attr_timeout_ms)
		return;
	pthread_mutex_lock(lock);
	e = find_attr(set, ino);
	if (e)
		e->expire_ms = 0;
	pthread_mutex_unlock(lock);
}

/* ---- names ---- */

static struct name_set *name_set(struct cache *c, cfs_ino_t parent, const char *name, size_t len,
				 pthread_mutex_t **ret_lock)
{
	size_t i = hash_ino(cache_hash_name(parent, name, len)) % CACHE_NAME_SETS;

	*ret_lock = &c->locks[i % CACHE_LOCKS];
	return &c->names[i];
}

static struct name_entry *find_name(struct name_set *set, cfs_ino_t parent, const char *name,
				    size_t len)
{
	struct name_entry *e;

	for (e = set->way; e < set->way + CACHE_WAYS; e++) {
		if (e->parent == parent && e->len == len && !memcmp(e->name, name, len))
			return e;
	}
	return NULL;
}

static void store_name(struct name_set *set, uint64_t expire_ms, cfs_ino_t parent, const char *name,
		       size_t len, cfs_ino_t ino)
{
	struct name_entry *e = find_name(set, parent, name, len);

	if (!e)
		e = &set->way[FIRST_TO_EXPIRE(set->way)];
	e->parent = parent;
	e->ino = ino;
	e->expire_ms = expire_ms;
	e->len = (uint8_t)len;
	memcpy(e->name, name, len);
}

/* Not for names longer than CACHE_NAME_MAX. */
static bool get_name(struct cache *c, cfs_ino_t parent, const char *name, size_t len,
		     uint64_t now_ms, cfs_ino_t *ret, uint32_t *ret_ms)
{
	pthread_mutex_t *lock;
	struct name_set *set = name_set(c, parent, name, len, &lock);
	struct name_entry *e;
	CFS_LOCK_GUARD(lock);

	e = find_name(set, parent, name, len);
	if (!e || e->expire_ms <= now_ms)
		return false;
	*ret = e->ino;
	*ret_ms = (uint32_t)(e->expire_ms - now_ms);
	return true;
}

cfs_ino_t cache_peek_name(struct cache *c, cfs_ino_t parent, const char *name, size_t len,
			  uint64_t now_ms)
{
	cfs_ino_t ino;
	uint32_t ms;

	return len <= CACHE_NAME_MAX && get_name(c, parent, name, len, now_ms, &ino, &ms) ? ino : 0;
}

bool cache_get_name(struct cache *c, cfs_ino_t parent, const char *name, size_t len,
		    uint64_t now_ms, cfs_ino_t *ret, uint32_t *ret_ms)
{
	bool hit;

	if (len > CACHE_NAME_MAX)
		return false;
	hit = get_name(c, parent, name, len, now_ms, ret, ret_ms);
	atomic_fetch_add_explicit(hit ? &c->stats.entry_hits : &c->stats.entry_misses, 1,
				  memory_order_relaxed);
	return hit;
}

void cache_put_name(struct cache *c, uint64_t seq, uint64_t expire_ms, cfs_ino_t parent,
		    const char *name, size_t len, cfs_ino_t ino)
{
	pthread_mutex_t *lock;
	struct name_set *set = name_set(c, parent, name, len, &lock);

	if (len > CACHE_NAME_MAX)
		return;
	pthread_mutex_lock(lock);
	if (set->changed <= seq)
		store_name(set, expire_ms, parent, name, len, ino);
	pthread_mutex_unlock(lock);
}

void cache_name_changed(struct cache *c, uint64_t seq, uint64_t expire_ms, cfs_ino_t parent,
			const char *name, size_t len, cfs_ino_t ino)
{
	pthread_mutex_t *lock;
	struct name_set *set = name_set(c, parent, name, len, &lock);
	struct name_entry *e;

	if (len > CACHE_NAME_MAX)
		return;
	pthread_mutex_lock(lock);
	if (ino && set->changed <= seq) {
		store_name(set, expire_ms, parent, name, len, ino);
	} else {
		e = find_name(set, parent, name, len);
		if (e)
			e->expire_ms = 0;
	}
	set->changed = next_seq(c);
	pthread_mutex_unlock(lock);
}

/* ---- opens ---- */

static struct opened_set *opened_set(struct cache *c, cfs_ino_t ino, pthread_mutex_t **ret_lock)
{
	size_t i = hash_ino(ino) % CACHE_OPENED_SETS;

	*ret_lock = &c->locks[i % CACHE_LOCKS];
	return &c->opened[i];
}

static struct opened_entry *find_opened(struct opened_set *set, cfs_ino_t ino)
{
	size_t i;

	for (i = 0; i < CACHE_WAYS; i++) {
		if (set->way[i].ino == ino)
			return &set->way[i];
	}
	return NULL;
}

void cache_note_opened(struct cache *c, cfs_ino_t ino, struct timespec ctime)
{
	pthread_mutex_t *lock;
	struct opened_set *set = opened_set(c, ino, &lock);
	struct opened_entry *e;
	CFS_LOCK_GUARD(lock);

	e = find_opened(set, ino);
	if (!e)
		e = &set->way[set->next++ % CACHE_WAYS];
	e->ino = ino;
	e->ctime = ctime;
}

bool cache_opened(struct cache *c, cfs_ino_t ino, struct timespec ctime)
{
	pthread_mutex_t *lock;
	struct opened_set *set = opened_set(c, ino, &lock);
	struct opened_entry *e;
	CFS_LOCK_GUARD(lock);

	e = find_opened(set, ino);
	return e && !cfs_timespec_cmp(e->ctime, ctime);
}
