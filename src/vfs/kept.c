/* SPDX-License-Identifier: Apache-2.0 */
#include "kept.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"

#define SEQUENCES     4 /* of one directory that are remembered */
#define GENERATION    0x7fffffffu
#define FIRST_ENTRIES 16

struct sequence {
	uint32_t generation; /* 0: none */
	uint32_t n, cap;
	uint64_t *names; /* hashes */
};

struct kept_dir {
	struct kept_dir *next; /* in the bucket */
	TAILQ_ENTRY(kept_dir) link;
	cfs_ino_t ino;
	unsigned open;	    /* handles */
	bool known;	    /* the kernel has nothing from before this record was made */
	uint32_t completed; /* listings */

	struct sequence sequence[SEQUENCES]; /* newest first */
	/* Passes under way; the earliest began at oldest_ms. mixed: they have found other names. */
	unsigned passes;
	uint64_t oldest_ms;
	bool mixed;

	/* The kernel may have a complete listing, which was read from kept_ms on. */
	bool kept;
	uint64_t kept_ms;
	/*
	 * The listing is the newest sequence, was read from valid_ms on, and that took took_ms.
	 * valid_ms 0: it may be another sequence.
	 */
	uint64_t valid_ms, took_ms, seq;
};

int kept_init(struct kept *k, uint64_t timeout_ms, struct cache *cache)
{
	k->timeout_ms = timeout_ms;
	k->cache = cache;
	/* Differs from those of the previous process, whose offsets readers may still have. */
	atomic_init(&k->generation, (uint32_t)(cfs_now_ns() >> 10));
	TAILQ_INIT(&k->closed);
	return -pthread_mutex_init(&k->lock, NULL);
}

static uint32_t new_generation(struct kept *k)
{
	uint32_t g;

	do
		g = (atomic_fetch_add(&k->generation, 1) + 1) & GENERATION;
	while (!g);
	return g;
}

/* ---- directories; called with the lock held ---- */

static struct kept_dir **bucket_of(struct kept *k, cfs_ino_t ino)
{
	return &k->bucket[(ino * 0x9e3779b97f4a7c15ULL >> 40) % KEPT_BUCKETS];
}

static struct kept_dir *find(struct kept *k, cfs_ino_t ino)
{
	struct kept_dir *d = *bucket_of(k, ino);

	while (d && d->ino != ino)
		d = d->next;
	return d;
}

static void drop_sequence(struct kept *k, struct sequence *s)
{
	k->bytes -= s->cap * sizeof(*s->names);
	free(s->names);
	*s = (struct sequence){0};
}

/* No handle may be open on the directory. */
static void forget(struct kept *k, struct kept_dir *d)
{
	struct kept_dir **at = bucket_of(k, d->ino);
	unsigned i;

	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	TAILQ_REMOVE(&k->closed, d, link);
	k->n_closed--;
	for (i = 0; i < SEQUENCES; i++)
		drop_sequence(k, &d->sequence[i]);
	free(d);
}

static bool is_fresh(const struct kept *k, const struct kept_dir *d, uint64_t now_ms)
{
	return d->valid_ms && now_ms < d->valid_ms + k->timeout_ms;
}

/*
 * Forgets complete listings that the kernel must not use any more, and all others while there is no
 * room for so many more bytes. An incomplete one has no time limit: the kernel only continues it at
 * its end.
 */
static void make_room(struct kept *k, size_t bytes, uint64_t now_ms)
{
	struct kept_dir *d;

	while ((d = TAILQ_FIRST(&k->closed)) &&
	       (k->n_closed > KEPT_DIRS_MAX || k->bytes + bytes > KEPT_BYTES_MAX ||
		(d->kept && !is_fresh(k, d, now_ms))))
		forget(k, d);
}

void kept_fini(struct kept *k)
{
	while (!TAILQ_EMPTY(&k->closed))
		forget(k, TAILQ_FIRST(&k->closed));
	pthread_mutex_destroy(&k->lock);
}

static struct kept_dir *find_or_make(struct kept *k, cfs_ino_t ino)
{
	struct kept_dir *d = find(k, ino), **at = bucket_of(k, ino);

	if (d && !d->open) {
		TAILQ_REMOVE(&k->closed, d, link);
		k->n_closed--;
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

static struct kept_dir *add_handle(struct kept *k, cfs_ino_t ino, uint64_t now_ms)
{
	struct kept_dir *d;

	make_room(k, 0, now_ms);
	d = find_or_make(k, ino);
	if (d) {
		d->open++;
		atomic_fetch_add(&k->n_open, 1);
	}
	return d;
}

struct kept_dir *kept_open(struct kept *k, struct kept_pass *p, cfs_ino_t ino, uint64_t now_ms,
			   bool *ret_valid)
{
	struct kept_dir *d;

	*ret_valid = false;
	if (!k->timeout_ms)
		return NULL;
	pthread_mutex_lock(&k->lock);
	d = add_handle(k, ino, now_ms);
	if (d && !d->kept)
		/* The kernel's listing is incomplete, so no reader gets it. */
		*ret_valid = d->known;
	else if (d)
		/* The program is assumed to work on the names for as long as the listing took. */
		*ret_valid = d->valid_ms && now_ms + d->took_ms < d->valid_ms + k->timeout_ms &&
			     !cache_changed_since(k->cache, ino, d->seq);
	if (d) {
		p->dropped = !*ret_valid;
		k->hits += *ret_valid && d->kept;
		p->completed = d->completed;
	}
	pthread_mutex_unlock(&k->lock);
	return d;
}

struct kept_dir *kept_restore(struct kept *k, struct kept_pass *p, cfs_ino_t ino, uint64_t now_ms)
{
	struct kept_dir *d;

	p->sequence = new_generation(k);
	if (!k->timeout_ms)
		return NULL;
	pthread_mutex_lock(&k->lock);
	d = add_handle(k, ino, now_ms);
	if (d) {
		d->kept = true;
		d->kept_ms = 0;
	}
	pthread_mutex_unlock(&k->lock);
	return d;
}

/* ---- sequences; called with the lock held ---- */

static struct sequence *sequence_of(struct kept_dir *d, uint32_t generation)
{
	unsigned i;

	for (i = 0; i < SEQUENCES; i++) {
		if (generation && d->sequence[i].generation == generation)
			return &d->sequence[i];
	}
	return NULL;
}

static bool append(struct kept *k, struct sequence *s, uint64_t hash)
{
	uint32_t cap = s->cap ? 2 * s->cap : FIRST_ENTRIES;
	uint64_t *names;

	if (s->n == s->cap) {
		make_room(k, cap * sizeof(*names), 0);
		if (cap > KEPT_NAMES_MAX ||
		    k->bytes + (cap - s->cap) * sizeof(*names) > KEPT_BYTES_MAX)
			return false;
		names = realloc(s->names, cap * sizeof(*names));
		if (!names)
			return false;
		k->bytes += (cap - s->cap) * sizeof(*names);
		s->names = names;
		s->cap = cap;
	}
	s->names[s->n++] = hash;
	return true;
}

/* Makes a sequence that begins with the first n names of another one, as the newest. */
static struct sequence *branch(struct kept *k, struct kept_dir *d, const struct sequence *of,
			       uint32_t n)
{
	struct sequence s = {.generation = new_generation(k)};
	uint32_t i;

	for (i = 0; i < n; i++) {
		if (!append(k, &s, of->names[i])) {
			drop_sequence(k, &s);
			return NULL;
		}
	}
	drop_sequence(k, &d->sequence[SEQUENCES - 1]);
	memmove(d->sequence + 1, d->sequence, (SEQUENCES - 1) * sizeof(*d->sequence));
	d->sequence[0] = s;
	/* The kernel's listing may be the other one. */
	d->valid_ms = 0;
	d->mixed |= d->passes > 1;
	return d->sequence;
}

static void go_alone(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t index)
{
	p->before = p->sequence;
	p->before_end = index;
	p->sequence = new_generation(k);
	if (d) {
		d->mixed |= d->passes > 0;
		d->valid_ms = 0;
	}
}

/* ---- passes ---- */

static void leave(struct kept_dir *d, struct kept_pass *p)
{
	if (!p->started_ms)
		return;
	p->started_ms = 0;
	if (--d->passes == 0)
		d->mixed = false;
}

void kept_close(struct kept *k, struct kept_dir *d, struct kept_pass *p)
{
	if (!d)
		return;
	pthread_mutex_lock(&k->lock);
	leave(d, p);
	atomic_fetch_sub(&k->n_open, 1);
	if (--d->open == 0) {
		TAILQ_INSERT_TAIL(&k->closed, d, link);
		k->n_closed++;
	}
	pthread_mutex_unlock(&k->lock);
}

void kept_begin(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t seq,
		uint64_t now_ms)
{
	if (!d) {
		*p = (struct kept_pass){.sequence = p->sequence ? new_generation(k) : 0};
		return;
	}
	pthread_mutex_lock(&k->lock);
	leave(d, p);
	if (!d->sequence[0].generation)
		d->sequence[0].generation = new_generation(k);
	/* The open of this handle has made the kernel drop its listing. */
	if (p->dropped) {
		d->known = true;
		d->kept &= p->completed != d->completed;
	}
	*p = (struct kept_pass){
		.sequence = d->sequence[0].generation,
		.started_ms = now_ms,
		.seq = seq,
	};
	if (d->passes++ == 0)
		d->oldest_ms = now_ms;
	pthread_mutex_unlock(&k->lock);
}

static void compare(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t index,
		    uint64_t hash)
{
	struct sequence *s = sequence_of(d, p->sequence);

	if (!s)
		return;
	if (index > s->n) {
		/* The reader has sought to a place behind the names that the sequence has. */
		go_alone(k, d, p, index);
		return;
	}
	if (index < s->n && s->names[index] != hash) {
		s = branch(k, d, s, (uint32_t)index);
		if (!s) {
			go_alone(k, d, p, index);
			return;
		}
		p->before = p->sequence;
		p->before_end = index;
		p->sequence = s->generation;
	}
	if (index == s->n && !append(k, s, hash)) {
		drop_sequence(k, s);
		go_alone(k, d, p, index);
		return;
	}
	if (index == p->next)
		p->next++;
}

uint32_t kept_name(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t index,
		   uint64_t hash)
{
	if (d) {
		pthread_mutex_lock(&k->lock);
		compare(k, d, p, index, hash);
		pthread_mutex_unlock(&k->lock);
	}
	return p->sequence;
}

void kept_end(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t n, uint64_t now_ms)
{
	struct sequence *s;

	if (!d || !p->started_ms)
		return;
	pthread_mutex_lock(&k->lock);
	s = sequence_of(d, p->sequence);
	/* Names at the end of the sequence were removed: what was read is another sequence. */
	if (s && n < s->n && p->next == n) {
		s = branch(k, d, s, (uint32_t)n);
		if (s)
			p->sequence = s->generation;
	}
	d->kept = true;
	d->kept_ms = d->oldest_ms;
	d->completed++;
	if (s && s == d->sequence && s->n == n && p->next == n && !d->mixed) {
		d->valid_ms = p->started_ms;
		d->took_ms = now_ms - p->started_ms;
		d->seq = p->seq;
	}
	leave(d, p);
	pthread_mutex_unlock(&k->lock);
}

bool kept_is_own(const struct kept_pass *p, uint32_t sequence, uint64_t n)
{
	return sequence == p->sequence || (sequence == p->before && n <= p->before_end);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

uint64_t *kept_leave(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint32_t sequence,
		     uint64_t n)
{
	struct sequence *s;
	uint64_t *names = NULL;

	if (d) {
		pthread_mutex_lock(&k->lock);
		leave(d, p);
		make_room(k, n * sizeof(*names), 0);
		s = sequence_of(d, sequence);
		if (s && n <= s->n && k->bytes + n * sizeof(*names) <= KEPT_BYTES_MAX)
			names = malloc(n * sizeof(*names));
		if (names) {
			k->bytes += n * sizeof(*names);
			memcpy(names, s->names, n * sizeof(*names));
		}
		pthread_mutex_unlock(&k->lock);
	}
	if (names)
		qsort(names, n, sizeof(*names), by_value);
	*p = (struct kept_pass){.sequence = new_generation(k)};
	return names;
}

void kept_return(struct kept *k, uint64_t *names, uint64_t n)
{
	if (!names)
		return;
	pthread_mutex_lock(&k->lock);
	k->bytes -= n * sizeof(*names);
	pthread_mutex_unlock(&k->lock);
	free(names);
}

bool kept_has(const uint64_t *sorted, uint64_t n, uint64_t hash)
{
	return sorted && bsearch(&hash, sorted, n, sizeof(hash), by_value);
}

/* ---- what the kernel keeps ---- */

uint32_t kept_limit(struct kept *k, cfs_ino_t ino, uint64_t now_ms, uint32_t attr_ms)
{
	uint64_t end_ms = UINT64_MAX;
	struct kept_dir *d;

	if (!atomic_load_explicit(&k->n_open, memory_order_relaxed))
		return attr_ms;
	pthread_mutex_lock(&k->lock);
	d = find(k, ino);
	if (d && d->open && d->kept)
		end_ms = d->kept_ms + k->timeout_ms;
	if (d && d->passes)
		end_ms = CFS_MIN(end_ms, d->oldest_ms + k->timeout_ms);
	pthread_mutex_unlock(&k->lock);
	if (end_ms == UINT64_MAX)
		return attr_ms;
	return end_ms > now_ms ? (uint32_t)CFS_MIN((uint64_t)attr_ms, end_ms - now_ms) : 0;
}

bool kept_has_expired(struct kept *k, cfs_ino_t ino, uint64_t now_ms, uint32_t *ret_which)
{
	struct kept_dir *d;
	bool expired;

	if (!atomic_load_explicit(&k->n_open, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&k->lock);
	d = find(k, ino);
	expired = d && d->open && d->kept && d->kept_ms + k->timeout_ms <= now_ms;
	if (expired)
		*ret_which = d->completed;
	pthread_mutex_unlock(&k->lock);
	return expired;
}

void kept_dropped(struct kept *k, cfs_ino_t ino, uint32_t which)
{
	struct kept_dir *d;

	pthread_mutex_lock(&k->lock);
	d = find(k, ino);
	if (d && d->completed == which) {
		d->known = true;
		d->kept = false;
	}
	pthread_mutex_unlock(&k->lock);
}
