/* SPDX-License-Identifier: Apache-2.0 */
#include "newdirs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "cache.h"

#define FIRST_NAMES 16 /* places of a directory's first table, a power of two */
#define NAMES_PER_MADE                                                                             \
	32 /* names that are listed for each one made since the last listing, at most */

struct absent {
	uint64_t hash; /* 0: unused */
	unsigned asked;
};

struct newdir {
	cfs_ino_t ino; /* 0: unused */
	uint64_t used;
	uint64_t trusted_until_ms;
	size_t made;				  /* names since the last listing */
	size_t n, cap;				  /* cap: a power of two, or 0 */
	uint64_t *names;			  /* hashes, open addressing; 0: free */
	struct absent absent[NEWDIRS_ABSENT_MAX]; /* answered, and not made yet */
};

struct newdir_set {
	pthread_mutex_t lock; /* protects the set; a leaf */
	uint64_t clock;
	size_t names; /* sum of cap */
	struct newdir way[NEWDIRS_WAYS];
};

int newdirs_init(struct newdirs *d, uint64_t trust_ms)
{
	size_t i;

	memset(d, 0, sizeof(*d));
	d->trust_ms = CFS_MIN(trust_ms, (uint64_t)NEWDIRS_TRUST_MS);
	d->sets = calloc(NEWDIRS_SETS, sizeof(*d->sets));
	if (!d->sets)
		return -ENOMEM;
	for (i = 0; i < NEWDIRS_SETS; i++)
		pthread_mutex_init(&d->sets[i].lock, NULL);
	return 0;
}

void newdirs_fini(struct newdirs *d)
{
	size_t i, w;

	for (i = 0; i < NEWDIRS_SETS; i++) {
		for (w = 0; w < NEWDIRS_WAYS; w++)
			free(d->sets[i].way[w].names);
		pthread_mutex_destroy(&d->sets[i].lock);
	}
	free(d->sets);
}

static struct newdir_set *set_of(struct newdirs *d, cfs_ino_t ino)
{
	return &d->sets[ino % NEWDIRS_SETS];
}

static uint64_t hash_of(cfs_ino_t dir, const char *name, size_t len)
{
	uint64_t h = cache_hash_name(dir, name, len);

	return h ? h : 1;
}

/* ---- called with the lock of the set held ---- */

static struct newdir *find(struct newdir_set *s, cfs_ino_t ino)
{
	size_t i;

	for (i = 0; i < NEWDIRS_WAYS; i++) {
		if (s->way[i].ino == ino) {
			s->way[i].used = ++s->clock;
			return &s->way[i];
		}
	}
	return NULL;
}

static void drop(struct newdirs *d, struct newdir_set *s, struct newdir *n)
{
	s->names -= n->cap;
	free(n->names);
	*n = (struct newdir){0};
	atomic_fetch_sub_explicit(&d->n, 1, memory_order_relaxed);
}

/* The directory that was used least recently. NULL: `keep` is the only one. */
static struct newdir *oldest(struct newdir_set *s, const struct newdir *keep)
{
	struct newdir *found = NULL, *n;

	for (n = s->way; n < s->way + NEWDIRS_WAYS; n++) {
		if (n->ino && n != keep && (!found || n->used < found->used))
			found = n;
	}
	return found;
}

/* The place of the hash, or the free place where it belongs. The table is never full. */
static uint64_t *place(uint64_t *names, size_t cap, uint64_t hash)
{
	size_t i = (hash >> 32) & (cap - 1);

	while (names[i] && names[i] != hash)
		i = (i + 1) & (cap - 1);
	return &names[i];
}

static bool has_name(const struct newdir *n, uint64_t hash)
{
	return n->cap && *place(n->names, n->cap, hash) == hash;
}

/* Enlarges the table, and drops others of the set for it. False: no memory, or too large. */
static bool grow(struct newdirs *d, struct newdir_set *s, struct newdir *n)
{
	size_t i, cap = n->cap ? 2 * n->cap : FIRST_NAMES;
	struct newdir *other;
	uint64_t *names;

	while (s->names - n->cap + cap > NEWDIRS_NAMES) {
		other = oldest(s, n);
		if (!other)
			return false;
		drop(d, s, other);
	}
	names = calloc(cap, sizeof(*names));
	if (!names)
		return false;
	for (i = 0; i < n->cap; i++) {
		if (n->names[i])
			*place(names, cap, n->names[i]) = n->names[i];
	}
	free(n->names);
	n->names = names;
	s->names += cap - n->cap;
	n->cap = cap;
	return true;
}

static struct absent *find_absent(struct newdir *n, uint64_t hash)
{
	size_t i;

	for (i = 0; i < NEWDIRS_ABSENT_MAX; i++) {
		if (n->absent[i].hash == hash)
			return &n->absent[i];
	}
	return NULL;
}

/* Counts an absent name. False: the program does not make the names that it looks up. */
static bool count_absent(struct newdir *n, uint64_t hash)
{
	struct absent *a = find_absent(n, hash);

	if (!a)
		a = find_absent(n, 0);
	if (!a || a->asked >= NEWDIRS_ASKED)
		return false;
	a->hash = hash;
	a->asked++;
	return true;
}

/* ---- */

static bool is_new(struct newdirs *d, cfs_ino_t dir)
{
	struct newdir_set *s = set_of(d, dir);
	CFS_LOCK_GUARD(&s->lock);

	return find(s, dir);
}

void newdirs_made(struct newdirs *d, cfs_ino_t dir, cfs_ino_t parent, uint64_t began_ms)
{
	struct newdir_set *s = set_of(d, dir);
	struct newdir *n;
	bool below;

	if (!d->trust_ms)
		return;
	below = is_new(d, parent);
	pthread_mutex_lock(&s->lock);
	n = find(s, dir);
	if (!n) {
		n = find(s, 0);
		if (!n) {
			n = oldest(s, NULL);
			drop(d, s, n);
		}
		*n = (struct newdir){.ino = dir, .used = ++s->clock};
		if (below)
			n->trusted_until_ms = began_ms + d->trust_ms;
		atomic_fetch_add_explicit(&d->n, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&s->lock);
}

void newdirs_forget(struct newdirs *d, cfs_ino_t dir)
{
	struct newdir_set *s = set_of(d, dir);
	struct newdir *n;

	if (!atomic_load_explicit(&d->n, memory_order_relaxed))
		return;
	pthread_mutex_lock(&s->lock);
	n = find(s, dir);
	if (n)
		drop(d, s, n);
	pthread_mutex_unlock(&s->lock);
}

void newdirs_add(struct newdirs *d, cfs_ino_t dir, const char *name, size_t len)
{
	struct newdir_set *s = set_of(d, dir);
	struct absent *a;
	struct newdir *n;
	uint64_t hash;

	if (!atomic_load_explicit(&d->n, memory_order_relaxed))
		return;
	hash = hash_of(dir, name, len);
	pthread_mutex_lock(&s->lock);
	n = find(s, dir);
	a = n ? find_absent(n, hash) : NULL;
	if (a)
		*a = (struct absent){0};
	if (n && !has_name(n, hash)) {
		/* At most half of the places are taken. */
		if (2 * n->n >= n->cap && !grow(d, s, n)) {
			drop(d, s, n);
		} else {
			*place(n->names, n->cap, hash) = hash;
			n->n++;
			n->made++;
		}
	}
	pthread_mutex_unlock(&s->lock);
}

enum newdirs_answer newdirs_lookup(struct newdirs *d, cfs_ino_t dir, const char *name, size_t len,
				   uint64_t now_ms)
{
	enum newdirs_answer answer = NEWDIRS_LOOK_UP;
	struct newdir_set *s = set_of(d, dir);
	struct newdir *n;
	uint64_t hash;

	if (!atomic_load_explicit(&d->n, memory_order_relaxed))
		return NEWDIRS_LOOK_UP;
	hash = hash_of(dir, name, len);
	pthread_mutex_lock(&s->lock);
	n = find(s, dir);
	if (!n || has_name(n, hash)) {
		answer = NEWDIRS_LOOK_UP;
	} else if (now_ms >= n->trusted_until_ms) {
		if (n->made && n->made * NAMES_PER_MADE >= n->n) {
			n->made = 0; /* one thread lists */
			answer = NEWDIRS_LIST;
		}
	} else if (count_absent(n, hash)) {
		answer = NEWDIRS_ABSENT;
	} else {
		drop(d, s, n);
	}
	pthread_mutex_unlock(&s->lock);
	if (answer == NEWDIRS_ABSENT)
		atomic_fetch_add_explicit(&d->hits, 1, memory_order_relaxed);
	return answer;
}

bool newdirs_knows(struct newdirs *d, cfs_ino_t dir, const char *name, size_t len)
{
	uint64_t hash = hash_of(dir, name, len);
	struct newdir_set *s = set_of(d, dir);
	const struct newdir *n;
	CFS_LOCK_GUARD(&s->lock);

	n = find(s, dir);
	return n && has_name(n, hash);
}

void newdirs_listed(struct newdirs *d, cfs_ino_t dir, uint64_t began_ms)
{
	struct newdir_set *s = set_of(d, dir);
	struct newdir *n;
	CFS_LOCK_GUARD(&s->lock);

	n = find(s, dir);
	if (n)
		n->trusted_until_ms = began_ms + d->trust_ms;
}
