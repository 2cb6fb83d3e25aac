/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A walk is recognised when a program lists a directory below one that it has listed, after it has
 * opened files of another one. From there on the row says what it will list: a directory, those
 * below it, then the next one beside it, in the order that the last two had. A directory that is
 * not in the row begins another row. Each attempt that leads to nothing quadruples the number of
 * directories before the next attempt.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "tree.h"

#define BEHIND	   8 /* places in the row that the program may come back to */
#define OPENED	   2 /* files opened lately by a program that reads what it lists */
#define FILES_MIN  16
#define DIRS_MIN   2
#define MEMORY	   64 /* files, after which passed and opened are halved */
#define JUDGED	   32 /* files, after which a walk is judged */
#define WAIT_FIRST 1  /* directories */
#define WAIT_LAST  4096

void trees_init(struct trees *t)
{
	memset(t, 0, sizeof(*t));
	pthread_mutex_init(&t->lock, NULL);
	t->wait = WAIT_FIRST;
}

static void drop_frames(struct tree *r)
{
	while (r->depth)
		listing_free(r->frame[--r->depth].subdirs);
	r->subdirs = 0;
}

void trees_fini(struct trees *t)
{
	unsigned i;

	for (i = 0; i < TREES; i++)
		drop_frames(&t->v[i]);
	pthread_mutex_destroy(&t->lock);
}

/* ---- directories that were listed lately; called with the lock held ---- */

/* i: 0 is the last one. NULL: there are no more. */
static struct tree_dir *recent(struct trees *t, unsigned i)
{
	if (i >= TREE_RECENT || i >= t->n_recent)
		return NULL;
	return &t->recent[(t->n_recent - 1 - i) % TREE_RECENT];
}

static struct tree_dir *find_recent(struct trees *t, cfs_ino_t dir)
{
	struct tree_dir *d;
	unsigned i;

	for (i = 0; (d = recent(t, i)) && d->ino != dir; i++)
		;
	return d;
}

static bool reads_files(struct trees *t)
{
	uint32_t opened = 0;
	struct tree_dir *d;
	unsigned i;

	for (i = 0; (d = recent(t, i)); i++)
		opened += d->opened;
	return opened >= OPENED;
}

static void back_off(struct trees *t)
{
	t->listed = 0;
	t->wait = CFS_MIN(4 * t->wait, (unsigned)WAIT_LAST);
}

/* ---- the row; called with the lock held ---- */

static struct tree_dir *at(struct tree *r, uint64_t place)
{
	return &r->row[place % TREE_ROW];
}

/* NULL: the directory is not in the row. */
static struct tree_dir *find_in_row(struct tree *r, cfs_ino_t dir, uint64_t *ret_place)
{
	uint64_t i;

	for (i = r->at > BEHIND ? r->at - BEHIND : 0; i < r->end; i++) {
		if (at(r, i)->ino == dir) {
			*ret_place = i;
			return at(r, i);
		}
	}
	return NULL;
}

static bool is_below_window(struct tree *r, uint32_t files, uint32_t dirs)
{
	uint32_t ahead = 0;
	uint64_t i;

	for (i = r->at; i < r->end; i++)
		ahead += at(r, i)->files - at(r, i)->opened;
	return ahead < files && r->end - r->at <= dirs;
}

/* Whether the program opens most files that it passes, as far as that can be told. */
static bool reads_most(const struct tree *r)
{
	return 3 * r->opened >= 2 * r->passed;
}

static bool reads_little(const struct tree *r)
{
	return r->passed >= JUDGED ? !reads_most(r)
				   : r->passed >= JUDGED / 2 && 4 * r->opened < r->passed;
}

/* The program has come to this place of the row. */
static void follow(struct trees *t, struct tree *r, uint64_t place)
{
	for (; r->at < place; r->at++) {
		r->passed += at(r, r->at)->files;
		r->opened += at(r, r->at)->opened;
	}
	if (reads_little(r)) {
		r->active = false;
		back_off(t);
	} else if (reads_most(r)) {
		r->window = CFS_MIN(2 * r->window, (uint32_t)TREE_FILES);
		r->dirs = CFS_MIN(2 * r->dirs, (uint32_t)TREE_AHEAD);
		if (r->passed >= JUDGED)
			t->wait = WAIT_FIRST;
	}
	if (r->passed > MEMORY) {
		r->passed /= 2;
		r->opened /= 2;
	}
}

/* Finds the tree in whose row the directory is, and follows the program to that place. */
static struct tree *go_to(struct trees *t, cfs_ino_t dir, struct tree_dir **ret)
{
	struct tree *r;
	uint64_t place;

	for (r = t->v; r < t->v + TREES; r++) {
		*ret = r->active ? find_in_row(r, dir, &place) : NULL;
		if (!*ret)
			continue;
		r->used = ++t->clock;
		if (place > r->at)
			follow(t, r, place);
		return r;
	}
	return NULL;
}

static enum tree_next grow(struct tree *r, struct tree **ret)
{
	if (!r->active || r->busy || r->ended ||
	    !is_below_window(r, r->window / 2 + 1, r->dirs / 2 + 1))
		return TREE_NOTHING;
	r->busy = true;
	*ret = r;
	return TREE_GROW;
}

/* Whether a thread is adding directories, perhaps the one in question. */
static bool is_busy(const struct trees *t)
{
	unsigned i;

	for (i = 0; i < TREES && !t->v[i].busy; i++)
		;
	return i < TREES;
}

/* ---- what the program does ---- */

enum tree_next tree_listed(struct trees *t, cfs_ino_t dir, struct tree **ret)
{
	struct tree_dir *d;
	struct tree *r;
	bool reads;
	CFS_LOCK_GUARD(&t->lock);

	reads = reads_files(t);
	if (!find_recent(t, dir))
		t->recent[t->n_recent++ % TREE_RECENT] = (struct tree_dir){.ino = dir};
	r = go_to(t, dir, &d);
	if (r)
		return grow(r, ret);
	if (!reads || is_busy(t) || ++t->listed < t->wait)
		return TREE_NOTHING;
	t->listed = 0;
	return TREE_FIND;
}

enum tree_next tree_opened(struct trees *t, cfs_ino_t dir, struct tree **ret)
{
	struct tree_dir *d;
	struct tree *r;
	CFS_LOCK_GUARD(&t->lock);

	d = find_recent(t, dir);
	if (d)
		d->opened++;
	r = go_to(t, dir, &d);
	if (!r)
		return TREE_NOTHING;
	d->opened += d->opened < d->files;
	return grow(r, ret);
}

bool tree_is_recent(struct trees *t, cfs_ino_t dir)
{
	CFS_LOCK_GUARD(&t->lock);

	return find_recent(t, dir);
}

/* ---- what its thread does ---- */

static bool has_frame(const struct tree *r, cfs_ino_t dir)
{
	unsigned i;

	for (i = 0; i < r->depth; i++) {
		if (r->frame[i].dir == dir)
			return true;
	}
	return false;
}

/* The tree that has the directory in a frame, or else the one used least recently. */
static struct tree *choose(struct trees *t, cfs_ino_t parent)
{
	struct tree *best = NULL, *r;

	for (r = t->v; r < t->v + TREES; r++) {
		if (r->busy)
			continue;
		if (has_frame(r, parent))
			return r;
		if (!best || (r->active == best->active ? r->used < best->used : !r->active))
			best = r;
	}
	return best;
}

struct tree *tree_find(struct trees *t, cfs_ino_t parent)
{
	struct tree *r = NULL;
	CFS_LOCK_GUARD(&t->lock);

	if (find_recent(t, parent))
		r = choose(t, parent);
	else
		back_off(t);
	if (r) {
		if (r->active && !r->at)
			back_off(t);
		drop_frames(r);
		*r = (struct tree){.order = r->order,
				   .active = true,
				   .busy = true,
				   .used = ++t->clock,
				   .window = FILES_MIN,
				   .dirs = DIRS_MIN};
	}
	return r;
}

/*
 * Finds the order in which the program went from a directory beside `child`, or from the one above,
 * to `child`. False: there is none.
 */
static bool find_order(struct trees *t, const struct listing *l, cfs_ino_t child, enum order *order)
{
	uint32_t to[ORDERS], from[ORDERS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
	enum order was = *order;
	struct tree_dir *d;
	unsigned i, o;

	if (!listing_find(l, child, to))
		return false;
	for (i = 0; (d = recent(t, i)); i++) {
		if (d->ino != child && listing_find(l, d->ino, from))
			break;
	}
	if (to[was] == from[was] + 1)
		return true;
	for (o = 0; o < ORDERS && to[o] != from[o] + 1; o++)
		;
	*order = o < ORDERS ? (enum order)o : was;
	return o < ORDERS;
}

bool tree_add_above(struct trees *t, struct tree *r, cfs_ino_t dir, cfs_ino_t child,
		    struct listing *subdirs)
{
	uint32_t place[ORDERS];
	bool ok;

	pthread_mutex_lock(&t->lock);
	ok = r->depth < TREE_DEPTH && r->subdirs + listing_size(subdirs) <= TREE_SUBDIRS &&
	     (r->depth ? listing_find(subdirs, child, place)
		       : find_order(t, subdirs, child, &r->order));
	pthread_mutex_unlock(&t->lock);
	if (!ok || !listing_find(subdirs, child, place)) {
		listing_free(subdirs);
		return false;
	}
	memmove(&r->frame[1], &r->frame[0], r->depth * sizeof(r->frame[0]));
	r->frame[0] = (struct tree_frame){dir, subdirs, place[r->order] + 1};
	r->depth++;
	r->subdirs += listing_size(subdirs);
	return true;
}

bool tree_grow(struct trees *t, struct tree *r, cfs_ino_t *ret)
{
	struct tree_frame *f;
	bool wanted;

	pthread_mutex_lock(&t->lock);
	wanted = r->active && is_below_window(r, r->window, r->dirs);
	pthread_mutex_unlock(&t->lock);
	if (!wanted)
		return false;
	while (r->depth) {
		f = &r->frame[r->depth - 1];
		if (f->next < listing_size(f->subdirs)) {
			*ret = listing_get(f->subdirs, r->order, f->next++).ino;
			return true;
		}
		r->subdirs -= listing_size(f->subdirs);
		listing_free(f->subdirs);
		r->depth--;
	}
	pthread_mutex_lock(&t->lock);
	r->ended = true;
	pthread_mutex_unlock(&t->lock);
	return false;
}

void tree_grown(struct trees *t, struct tree *r, cfs_ino_t dir, uint32_t files,
		struct listing *subdirs)
{
	uint32_t n = listing_size(subdirs);

	if (n && r->depth < TREE_DEPTH && r->subdirs + n <= TREE_SUBDIRS) {
		r->frame[r->depth++] = (struct tree_frame){dir, subdirs, 0};
		r->subdirs += n;
	} else {
		listing_free(subdirs);
	}
	pthread_mutex_lock(&t->lock);
	*at(r, r->end++) = (struct tree_dir){.ino = dir, .files = files};
	pthread_mutex_unlock(&t->lock);
}

void tree_leave(struct trees *t, struct tree *r, bool failed)
{
	pthread_mutex_lock(&t->lock);
	r->busy = false;
	if (failed && r->active) {
		r->active = false;
		back_off(t);
	}
	if (!r->active)
		drop_frames(r);
	pthread_mutex_unlock(&t->lock);
}
