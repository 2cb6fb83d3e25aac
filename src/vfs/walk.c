/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks. After two opens in a directory its listing is wanted. Each open is then a place in each
 * order. A place near the end of a stream continues that stream, so several processes may take
 * turns. Any other place begins a stream. A stream is a walk, with a window of files to fetch, when
 * most of the files that it has passed were opened. The window doubles each time half of it was
 * passed. Opens at random leave gaps: they open no window, and a stream of which less than half was
 * opened loses its window.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "walk.h"

#define NEAR	   16	/* places, ahead and behind, of opens out of order */
#define WINDOW_MIN 4	/* files */
#define MEMORY	   64	/* places, after which passed and opened are halved */
#define LIST_AFTER 2	/* opens, doubled with each listing that was of no use */
#define LIST_LAST  4096 /* opens */
#define VAIN	   64	/* opens without a walk, after which a listing is dropped */
#define MISSING	   4	/* opens of files that are not in it, after which a listing is dropped */

void walks_init(struct walks *w)
{
	memset(w, 0, sizeof(*w));
	pthread_mutex_init(&w->lock, NULL);
}

void walks_fini(struct walks *w)
{
	unsigned i;

	for (i = 0; i < WALKS; i++)
		listing_free(w->v[i].list);
	pthread_mutex_destroy(&w->lock);
}

/* The directory's record, or the one used least recently, for it. */
static struct walk *get(struct walks *w, cfs_ino_t dir)
{
	struct walk *k = &w->v[0];
	unsigned i;

	for (i = 0; i < WALKS; i++) {
		if (w->v[i].dir == dir) {
			k = &w->v[i];
			break;
		}
		if (w->v[i].used < k->used)
			k = &w->v[i];
	}
	if (k->dir != dir) {
		listing_free(k->list);
		*k = (struct walk){.dir = dir, .wait = LIST_AFTER};
	}
	k->used = ++w->clock;
	return k;
}

static void forget_list(struct walk *k)
{
	listing_free(k->list);
	k->list = NULL;
	k->opens = k->missing = 0;
	k->wait = CFS_MIN(2 * k->wait, (unsigned)LIST_LAST);
	memset(k->stream, 0, sizeof(k->stream));
}

static bool is_near(const struct walk_stream *s, uint32_t place)
{
	return place <= s->end + NEAR && place + NEAR > s->end;
}

/* Without gaps three opens are enough. */
static bool is_walk(const struct walk_stream *s)
{
	return s->opened == s->passed ? s->opened >= 3
				      : s->opened >= 4 && 3 * s->opened >= 2 * s->passed;
}

static void advance(struct walk_stream *s, uint32_t place)
{
	uint32_t step;

	if (place <= s->end) {
		s->opened += !(s->opened_map >> (s->end - place) & 1);
		s->opened_map |= 1ULL << (s->end - place);
		s->passed += s->begin > place ? s->begin - place : 0;
		s->begin = CFS_MIN(s->begin, place);
	} else {
		step = place - s->end;
		s->opened_map = s->opened_map << step | 1;
		s->end = place;
		s->passed += step;
		s->run += step;
		s->opened++;
	}
	if (s->passed > MEMORY) {
		s->passed /= 2;
		s->opened /= 2;
	}
	if (2 * s->opened < s->passed)
		s->window = s->run = 0;
	else if (!s->window)
		s->window = is_walk(s) ? WINDOW_MIN : 0;
	else if (s->run >= s->window / 2) {
		s->window = CFS_MIN(2 * s->window, (uint32_t)WALK_WINDOW);
		s->run = 0;
	}
}

/* The stream of that order that the place continues, or a fresh one. */
static struct walk_stream *stream_of(struct walk *k, uint64_t now, enum order order, uint32_t place)
{
	struct walk_stream *s = &k->stream[0], *t;
	unsigned i;

	for (i = 0; i < WALK_STREAMS; i++) {
		t = &k->stream[i];
		if (t->used && t->order == order && is_near(t, place)) {
			t->used = now;
			advance(t, place);
			return t;
		}
		/* Random opens do not evict walks. */
		if ((t->window == 0) == (s->window == 0) ? t->used < s->used : t->window == 0)
			s = t;
	}
	*s = (struct walk_stream){.used = now,
				  .order = order,
				  .begin = place,
				  .end = place,
				  .ahead = place + 1,
				  .passed = 1,
				  .opened = 1,
				  .opened_map = 1};
	return s;
}

/* The stream that the open has continued; NULL when it continues no walk. */
static struct walk_stream *follow(struct walk *k, uint64_t now, const uint32_t place[ORDERS])
{
	struct walk_stream *best = NULL, *s;
	unsigned o;

	for (o = 0; o < ORDERS; o++) {
		s = stream_of(k, now, (enum order)o, place[o]);
		if (s->window && (!best || s->window > best->window))
			best = s;
	}
	return best;
}

static struct walk_batch *next_files(const struct walk *k, struct walk_stream *s)
{
	uint32_t size = listing_size(k->list), target = CFS_MIN(s->end + 1 + s->window, size), i;
	struct walk_batch *b;

	s->ahead = CFS_MAX(s->ahead, s->end + 1);
	if (target <= s->ahead || (target < size && target - s->ahead < s->window / 4))
		return NULL;
	b = malloc(sizeof(*b));
	if (!b)
		return NULL;
	b->dir = k->dir;
	b->n = CFS_MIN(target - s->ahead, (uint32_t)CFS_HEADS_MAX);
	for (i = 0; i < b->n; i++) {
		struct listed f = listing_get(k->list, s->order, s->ahead + i);

		memcpy(b->text[i], f.name, f.len);
		b->heads[i] = (struct cfs_head){
			.ino = f.ino, .parent = k->dir, .name = b->text[i], .name_len = f.len};
	}
	s->ahead += b->n;
	return b;
}

/* True: a listing of the directory is wanted. */
static bool wants_list(struct walk *k, cfs_ino_t ino)
{
	if (ino == k->recent[0] || ino == k->recent[1])
		return false;
	k->recent[1] = k->recent[0];
	k->recent[0] = ino;
	if (k->asked || ++k->opens < k->wait)
		return false;
	k->asked = true;
	return true;
}

enum walk_next walk_opened(struct walks *w, cfs_ino_t dir, cfs_ino_t ino, struct walk_batch **ret)
{
	struct walk_stream *s;
	uint32_t place[ORDERS];
	struct walk *k;
	CFS_LOCK_GUARD(&w->lock);

	k = get(w, dir);
	if (!k->list)
		return wants_list(k, ino) ? WALK_LIST : WALK_NOTHING;
	if (!listing_find(k->list, ino, place)) {
		if (++k->missing >= MISSING)
			forget_list(k);
		return WALK_NOTHING;
	}
	s = follow(k, w->clock, place);
	if (!s) {
		if (++k->opens >= VAIN)
			forget_list(k);
		return WALK_NOTHING;
	}
	k->opens = 0;
	k->wait = LIST_AFTER;
	*ret = next_files(k, s);
	return *ret ? WALK_FETCH : WALK_NOTHING;
}

/* Makes room for one more listing. */
static void limit_lists(struct walks *w, const struct walk *keep)
{
	struct walk *oldest = NULL;
	unsigned i, n = 0;

	for (i = 0; i < WALKS; i++) {
		if (!w->v[i].list || &w->v[i] == keep)
			continue;
		n++;
		if (!oldest || w->v[i].used < oldest->used)
			oldest = &w->v[i];
	}
	if (n < WALK_LISTS)
		return;
	listing_free(oldest->list);
	oldest->list = NULL;
	memset(oldest->stream, 0, sizeof(oldest->stream));
	oldest->opens = 0;
}

void walk_listed(struct walks *w, cfs_ino_t dir, struct listing *l)
{
	uint32_t place[ORDERS];
	struct walk *k = NULL;
	unsigned i;

	pthread_mutex_lock(&w->lock);
	for (i = 0; i < WALKS && !k; i++) {
		if (w->v[i].dir == dir)
			k = &w->v[i];
	}
	if (k) {
		limit_lists(w, k);
		forget_list(k);
		k->asked = false;
		k->list = l;
		l = NULL;
		for (i = 2; k->list && i--;) {
			if (k->recent[i] && listing_find(k->list, k->recent[i], place))
				follow(k, w->clock, place);
		}
	}
	pthread_mutex_unlock(&w->lock);
	listing_free(l);
}

void walk_fetched(struct walks *w, cfs_ino_t dir, uint32_t n)
{
	struct walk *k;
	CFS_LOCK_GUARD(&w->lock);

	k = get(w, dir);
	if (!k->list)
		k->wait = k->opens + n + LIST_AFTER;
}
