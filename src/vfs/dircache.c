/* SPDX-License-Identifier: Apache-2.0 */
#include "dircache.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define SEQUENCES     4 /* of one directory that are remembered */
#define GENERATION    0x7fffffffu
#define FIRST_ENTRIES 16

struct sequence {
	uint32_t generation; /* 0: none */
	uint32_t n, cap;
	uint64_t *names; /* hashes */
};

struct dircache_dir {
	struct dircache_dir *next; /* in the bucket */
	TAILQ_ENTRY(dircache_dir) link;
	cfs_ino_t ino;
	unsigned open;	    /* handles */
	bool known;	    /* the kernel has nothing from before this record was made */
	uint32_t completed; /* listings */

	struct sequence sequence[SEQUENCES]; /* newest first */
	/* Passes under way; the earliest began at oldest_ms. mixed: they have found other names. */
	unsigned passes;
	uint64_t oldest_ms;
	bool mixed;

	/* The kernel may have a complete listing, which was read from cached_ms on. */
	bool cached;
	uint64_t cached_ms;
	/*
	 * The listing is the newest sequence, was read from valid_ms on, and that took took_ms.
	 * valid_ms 0: it may be another sequence.
	 */
	uint64_t valid_ms, took_ms, seq;
};

int dircache_init(struct dircache *c, uint64_t timeout_ms, struct cache *cache)
{
	c->timeout_ms = timeout_ms;
	c->cache = cache;
	/* Differs from those of the previous process, whose offsets readers may still have. */
	atomic_init(&c->generation, (uint32_t)(cfs_now_ns() >> 10));
	TAILQ_INIT(&c->closed);
	return -pthread_mutex_init(&c->lock, NULL);
}

static uint32_t new_generation(struct dircache *c)
{
	uint32_t g;

	do
		g = (atomic_fetch_add(&c->generation, 1) + 1) & GENERATION;
	while (!g);
	return g;
}

/* ---- directories; called with the lock held ---- */

static struct dircache_dir **bucket_of(struct dircache *c, cfs_ino_t ino)
{
	return &c->bucket[(ino * 0x9e3779b97f4a7c15ULL >> 40) % DIRCACHE_BUCKETS];
}

static struct dircache_dir *find(struct dircache *c, cfs_ino_t ino)
{
	struct dircache_dir *d = *bucket_of(c, ino);

	while (d && d->ino != ino)
		d = d->next;
	return d;
}

static void drop_sequence(struct dircache *c, struct sequence *s)
{
	c->bytes -= s->cap * sizeof(*s->names);
	free(s->names);
	*s = (struct sequence){0};
}

/* No handle may be open on the directory. */
static void forget(struct dircache *c, struct dircache_dir *d)
{
	struct dircache_dir **at = bucket_of(c, d->ino);
	unsigned i;

	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	TAILQ_REMOVE(&c->closed, d, link);
	c->n_closed--;
	for (i = 0; i < SEQUENCES; i++)
		drop_sequence(c, &d->sequence[i]);
	free(d);
}

static bool is_fresh(const struct dircache *c, const struct dircache_dir *d, uint64_t now_ms)
{
	return d->valid_ms && now_ms < d->valid_ms + c->timeout_ms;
}

/*
 * Forgets complete listings that the kernel must not use any more, and all others while there is no
 * room for so many more bytes. An incomplete one has no time limit: the kernel only continues it at
 * its end.
 */
static void make_room(struct dircache *c, size_t bytes, uint64_t now_ms)
{
	struct dircache_dir *d;

	while ((d = TAILQ_FIRST(&c->closed)) &&
	       (c->n_closed > DIRCACHE_DIRS_MAX || c->bytes + bytes > DIRCACHE_BYTES_MAX ||
		(d->cached && !is_fresh(c, d, now_ms))))
		forget(c, d);
}

void dircache_fini(struct dircache *c)
{
	while (!TAILQ_EMPTY(&c->closed))
		forget(c, TAILQ_FIRST(&c->closed));
	pthread_mutex_destroy(&c->lock);
}

static struct dircache_dir *find_or_make(struct dircache *c, cfs_ino_t ino)
{
	struct dircache_dir *d = find(c, ino), **at = bucket_of(c, ino);

	if (d && !d->open) {
		TAILQ_REMOVE(&c->closed, d, link);
		c->n_closed--;
	}
	if (d)
		return d;
	d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	d->ino = ino;
	d->next = *at;
	*at = d;
	return d;
}

static struct dircache_dir *add_handle(struct dircache *c, cfs_ino_t ino, uint64_t now_ms)
{
	struct dircache_dir *d;

	make_room(c, 0, now_ms);
	d = find_or_make(c, ino);
	if (d) {
		d->open++;
		atomic_fetch_add(&c->n_open, 1);
	}
	return d;
}

struct dircache_dir *dircache_open(struct dircache *c, struct dircache_pass *p, cfs_ino_t ino,
				   uint64_t now_ms, bool *ret_valid)
{
	struct dircache_dir *d;

	*ret_valid = false;
	if (!c->timeout_ms)
		return NULL;
	pthread_mutex_lock(&c->lock);
	d = add_handle(c, ino, now_ms);
	if (d && !d->cached)
		/* The kernel's listing is incomplete, so no reader gets it. */
		*ret_valid = d->known;
	else if (d)
		/* The program is assumed to work on the names for as long as the listing took. */
		*ret_valid = d->valid_ms && now_ms + d->took_ms < d->valid_ms + c->timeout_ms &&
			     !cache_changed_since(c->cache, ino, d->seq);
	if (d) {
		p->dropped = !*ret_valid;
		c->hits += *ret_valid && d->cached;
		p->completed = d->completed;
	}
	pthread_mutex_unlock(&c->lock);
	return d;
}

struct dircache_dir *dircache_restore(struct dircache *c, struct dircache_pass *p, cfs_ino_t ino,
				      uint64_t now_ms)
{
	struct dircache_dir *d;

	p->sequence = new_generation(c);
	if (!c->timeout_ms)
		return NULL;
	pthread_mutex_lock(&c->lock);
	d = add_handle(c, ino, now_ms);
	if (d) {
		d->cached = true;
		d->cached_ms = 0;
	}
	pthread_mutex_unlock(&c->lock);
	return d;
}

/* ---- sequences; called with the lock held ---- */

static struct sequence *sequence_of(struct dircache_dir *d, uint32_t generation)
{
	unsigned i;

	for (i = 0; i < SEQUENCES; i++) {
		if (generation && d->sequence[i].generation == generation)
			return &d->sequence[i];
	}
	return NULL;
}

static bool append(struct dircache *c, struct sequence *s, uint64_t hash)
{
	uint32_t cap = s->cap ? 2 * s->cap : FIRST_ENTRIES;
	uint64_t *names;

	if (s->n == s->cap) {
		make_room(c, cap * sizeof(*names), 0);
		if (cap > DIRCACHE_NAMES_MAX ||
		    c->bytes + (cap - s->cap) * sizeof(*names) > DIRCACHE_BYTES_MAX)
			return false;
		names = realloc(s->names, cap * sizeof(*names));
		if (!names)
			return false;
		c->bytes += (cap - s->cap) * sizeof(*names);
		s->names = names;
		s->cap = cap;
	}
	s->names[s->n++] = hash;
	return true;
}

/* Makes a sequence that begins with the first n names of another one, as the newest. */
static struct sequence *branch(struct dircache *c, struct dircache_dir *d,
			       const struct sequence *of, uint32_t n)
{
	struct sequence s = {.generation = new_generation(c)};
	uint32_t i;

	for (i = 0; i < n; i++) {
		if (!append(c, &s, of->names[i])) {
			drop_sequence(c, &s);
			return NULL;
		}
	}
	drop_sequence(c, &d->sequence[SEQUENCES - 1]);
	memmove(d->sequence + 1, d->sequence, (SEQUENCES - 1) * sizeof(*d->sequence));
	d->sequence[0] = s;
	/* The kernel's listing may be the other one. */
	d->valid_ms = 0;
	d->mixed |= d->passes > 1;
	return d->sequence;
}

/* Continues with a sequence of its own. index: of the next name. */
static void detach(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
		   uint64_t index)
{
	p->before = p->sequence;
	p->before_end = index;
	p->sequence = new_generation(c);
	if (d) {
		d->mixed |= d->passes > 0;
		d->valid_ms = 0;
	}
}

/* ---- passes ---- */

static void end_pass(struct dircache_dir *d, struct dircache_pass *p)
{
	if (!p->started_ms)
		return;
	p->started_ms = 0;
	if (--d->passes == 0)
		d->mixed = false;
}

void dircache_close(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p)
{
	if (!d)
		return;
	pthread_mutex_lock(&c->lock);
	end_pass(d, p);
	atomic_fetch_sub(&c->n_open, 1);
	if (--d->open == 0) {
		TAILQ_INSERT_TAIL(&c->closed, d, link);
		c->n_closed++;
	}
	pthread_mutex_unlock(&c->lock);
}

void dircache_begin(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
		    uint64_t seq, uint64_t now_ms)
{
	if (!d) {
		*p = (struct dircache_pass){.sequence = p->sequence ? new_generation(c) : 0};
		return;
	}
	pthread_mutex_lock(&c->lock);
	end_pass(d, p);
	if (!d->sequence[0].generation)
		d->sequence[0].generation = new_generation(c);
	/* The open of this handle has made the kernel drop its listing. */
	if (p->dropped) {
		d->known = true;
		d->cached &= p->completed != d->completed;
	}
	*p = (struct dircache_pass){
		.sequence = d->sequence[0].generation,
		.started_ms = now_ms,
		.seq = seq,
	};
	if (d->passes++ == 0)
		d->oldest_ms = now_ms;
	pthread_mutex_unlock(&c->lock);
}

static void compare(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
		    uint64_t index, uint64_t hash)
{
	struct sequence *s = sequence_of(d, p->sequence);

	if (!s)
		return;
	if (index > s->n) {
		/* The reader has sought to a place behind the names that the sequence has. */
		detach(c, d, p, index);
		return;
	}
	if (index < s->n && s->names[index] != hash) {
		s = branch(c, d, s, (uint32_t)index);
		if (!s) {
			detach(c, d, p, index);
			return;
		}
		p->before = p->sequence;
		p->before_end = index;
		p->sequence = s->generation;
	}
	if (index == s->n && !append(c, s, hash)) {
		drop_sequence(c, s);
		detach(c, d, p, index);
		return;
	}
	if (index == p->next)
		p->next++;
}

uint32_t dircache_add_name(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
			   uint64_t index, uint64_t hash)
{
	if (d) {
		pthread_mutex_lock(&c->lock);
		compare(c, d, p, index, hash);
		pthread_mutex_unlock(&c->lock);
	}
	return p->sequence;
}

void dircache_end(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p, uint64_t n,
		  uint64_t now_ms)
{
	struct sequence *s;

	if (!d || !p->started_ms)
		return;
	pthread_mutex_lock(&c->lock);
	s = sequence_of(d, p->sequence);
	/* Names at the end of the sequence were removed: what was read is another sequence. */
	if (s && n < s->n && p->next == n) {
		s = branch(c, d, s, (uint32_t)n);
		if (s)
			p->sequence = s->generation;
	}
	d->cached = true;
	d->cached_ms = d->oldest_ms;
	d->completed++;
	if (s && s == d->sequence && s->n == n && p->next == n && !d->mixed) {
		d->valid_ms = p->started_ms;
		d->took_ms = now_ms - p->started_ms;
		d->seq = p->seq;
	}
	end_pass(d, p);
	pthread_mutex_unlock(&c->lock);
}

bool dircache_is_own(const struct dircache_pass *p, uint32_t sequence, uint64_t n)
{
	return sequence == p->sequence || (sequence == p->before && n <= p->before_end);
}

static int by_value(const void *a, const void *b)
{
	return CFS_COMPARE(*(const uint64_t *)a, *(const uint64_t *)b);
}

uint64_t *dircache_detach(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
			  uint32_t sequence, uint64_t n)
{
	struct sequence *s;
	uint64_t *names = NULL;

	if (d) {
		pthread_mutex_lock(&c->lock);
		end_pass(d, p);
		make_room(c, n * sizeof(*names), 0);
		s = sequence_of(d, sequence);
		if (s && n <= s->n && c->bytes + n * sizeof(*names) <= DIRCACHE_BYTES_MAX)
			names = malloc(n * sizeof(*names));
		if (names) {
			c->bytes += n * sizeof(*names);
			memcpy(names, s->names, n * sizeof(*names));
		}
		pthread_mutex_unlock(&c->lock);
	}
	if (names)
		qsort(names, n, sizeof(*names), by_value);
	*p = (struct dircache_pass){.sequence = new_generation(c)};
	return names;
}

void dircache_free_names(struct dircache *c, uint64_t *names, uint64_t n)
{
	if (!names)
		return;
	pthread_mutex_lock(&c->lock);
	c->bytes -= n * sizeof(*names);
	pthread_mutex_unlock(&c->lock);
	free(names);
}

bool dircache_has_name(const uint64_t *sorted, uint64_t n, uint64_t hash)
{
	return sorted && bsearch(&hash, sorted, n, sizeof(hash), by_value);
}

/* ---- what the kernel keeps ---- */

uint32_t dircache_attr_limit(struct dircache *c, cfs_ino_t ino, uint64_t now_ms, uint32_t attr_ms)
{
	uint64_t end_ms = UINT64_MAX;
	struct dircache_dir *d;

	if (!atomic_load_explicit(&c->n_open, memory_order_relaxed))
		return attr_ms;
	pthread_mutex_lock(&c->lock);
	d = find(c, ino);
	if (d && d->open && d->cached)
		end_ms = d->cached_ms + c->timeout_ms;
	if (d && d->passes)
		end_ms = CFS_MIN(end_ms, d->oldest_ms + c->timeout_ms);
	pthread_mutex_unlock(&c->lock);
	if (end_ms == UINT64_MAX)
		return attr_ms;
	return end_ms > now_ms ? (uint32_t)CFS_MIN((uint64_t)attr_ms, end_ms - now_ms) : 0;
}

bool dircache_has_expired(struct dircache *c, cfs_ino_t ino, uint64_t now_ms, uint32_t *ret_which)
{
	struct dircache_dir *d;
	bool expired;

	if (!atomic_load_explicit(&c->n_open, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&c->lock);
	d = find(c, ino);
	expired = d && d->open && d->cached && d->cached_ms + c->timeout_ms <= now_ms;
	if (expired)
		*ret_which = d->completed;
	pthread_mutex_unlock(&c->lock);
	return expired;
}

void dircache_dropped(struct dircache *c, cfs_ino_t ino, uint32_t which)
{
	struct dircache_dir *d;
	CFS_LOCK_GUARD(&c->lock);

	d = find(c, ino);
	if (d && d->completed == which) {
		d->known = true;
		d->cached = false;
	}
}
