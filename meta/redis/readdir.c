/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory listings.
 *
 * A hash has no stable order: growing and shrinking change it. So listings are in the order of
 * names. HSCAN reads the whole directory, and a window keeps the WINDOW smallest names behind the
 * cursor. The following pages come from the window. A page that is not delivered by the call that
 * scanned looks its names up again: a removed name is not delivered, and a name that leads to
 * another inode has that inode's attributes. A directory larger than a window is scanned once per
 * window.
 *
 * A cursor is the number of the window and the last name. An evicted window is built again. A
 * number is reused only for a window built later, so a listing delivers each entry that exists
 * throughout.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/redis/ops.h"

enum {
	WINDOW = 256 * 1024,
	WINDOWS = 32,
	BATCH = 1000,
	PART = 1000,
	PAGE = 4 * PART,
	MAX_TOTAL = 2 * WINDOW
};

struct name {
	uint16_t len;
	uint8_t entry[RDS_ENTRY_BYTES]; /* as the scan found it */
	char text[];
};

struct window {
	cfs_ino_t dir; /* 0: unused */
	uint64_t used; /* when it was used last */
	size_t n;
	struct name **v; /* sorted */
	bool at_end;	 /* the directory has no name behind the last one */
	/* the window has every name behind `low`, up to its last name */
	uint16_t low_len;
	char low[CFS_NAME_MAX];
	unsigned users; /* pages being delivered from it */
	bool dropped;	/* freed by the last user */
};

struct rds_windows {
	pthread_mutex_t lock; /* protects the array and window.used, users, dropped */
	struct window *v[WINDOWS];
	size_t total; /* names in all of them */
	uint64_t clock;
};

int rds_windows_create(struct rds_windows **ret)
{
	struct rds_windows *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	pthread_mutex_init(&w->lock, NULL);
	*ret = w;
	return 0;
}

static void free_window(struct window *w)
{
	size_t i;

	for (i = 0; i < w->n; i++)
		free(w->v[i]);
	free(w->v);
	free(w);
}

void rds_windows_destroy(struct rds_windows *ws)
{
	size_t i;

	if (!ws)
		return;
	for (i = 0; i < WINDOWS; i++)
		if (ws->v[i])
			free_window(ws->v[i]);
	pthread_mutex_destroy(&ws->lock);
	free(ws);
}

static int compare_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int r = memcmp(a, b, CFS_MIN(a_len, b_len));

	return r ? r : (a_len > b_len) - (a_len < b_len);
}

static int compare_names(const void *a, const void *b)
{
	const struct name *x = *(struct name *const *)a, *y = *(struct name *const *)b;

	return compare_bytes(x->text, x->len, y->text, y->len);
}

/* ---- the cache of windows ---- */

/* Called with the lock held. */
static void drop(struct rds_windows *ws, size_t i)
{
	struct window *w = ws->v[i];

	ws->v[i] = NULL;
	ws->total -= w->n;
	w->dropped = true;
	if (!w->users)
		free_window(w);
}

/* True when the listing can continue behind this name in the window. */
static bool covers(const struct window *w, cfs_ino_t dir, const char *name, size_t len)
{
	const struct name *last = w->n ? w->v[w->n - 1] : NULL;

	if (w->dir != dir || compare_bytes(name, len, w->low, w->low_len) < 0)
		return false;
	return w->at_end || (last && compare_bytes(name, len, last->text, last->len) < 0);
}

static struct window *take(struct rds_windows *ws, unsigned number, cfs_ino_t dir, const char *name,
			   size_t len)
{
	struct window *w;
	CFS_LOCK_GUARD(&ws->lock);

	w = number < WINDOWS ? ws->v[number] : NULL;
	if (!w || !covers(w, dir, name, len))
		return NULL;
	w->used = ++ws->clock;
	w->users++;
	return w;
}

static void leave(struct rds_windows *ws, struct window *w)
{
	bool last;

	pthread_mutex_lock(&ws->lock);
	last = --w->users == 0 && w->dropped;
	pthread_mutex_unlock(&ws->lock);
	if (last)
		free_window(w);
}

/* Adds the window to the cache, with one user. Returns its number. */
static unsigned store(struct rds_windows *ws, struct window *w)
{
	size_t i, slot, oldest;

	pthread_mutex_lock(&ws->lock);
	for (;;) {
		slot = oldest = WINDOWS;
		for (i = 0; i < WINDOWS; i++) {
			if (!ws->v[i])
				slot = i;
			else if (oldest == WINDOWS || ws->v[i]->used < ws->v[oldest]->used)
				oldest = i;
		}
		if (slot < WINDOWS && (oldest == WINDOWS || ws->total + w->n <= MAX_TOTAL))
			break;
		drop(ws, oldest);
	}
	ws->v[slot] = w;
	ws->total += w->n;
	w->users = 1;
	w->used = ++ws->clock;
	pthread_mutex_unlock(&ws->lock);
	return (unsigned)slot;
}

/* ---- filling a window ---- */

struct filling {
	struct window *w;
	size_t cap;
	bool trimmed; /* the first WINDOW names are sorted, others had no room */
};

/* Sorts the names, removes duplicates, which HSCAN may return, and all but the WINDOW smallest. */
static void trim(struct filling *f)
{
	struct window *w = f->w;
	size_t i, n = 0;

	if (w->n)
		qsort(w->v, w->n, sizeof(*w->v), compare_names);
	for (i = 0; i < w->n; i++) {
		bool again = n && compare_names(&w->v[n - 1], &w->v[i]) == 0;

		if (n == WINDOW && !again)
			f->trimmed = true;
		if (n == WINDOW || again)
			free(w->v[i]);
		else
			w->v[n++] = w->v[i];
	}
	w->n = n;
	w->at_end = !f->trimmed;
}

static int add_name(struct filling *f, const char *text, size_t len, const redisReply *entry)
{
	struct window *w = f->w;
	struct name *n;

	if (len == 0 || len > CFS_NAME_MAX)
		return -EIO;
	if (compare_bytes(text, len, w->low, w->low_len) <= 0 && w->low_len)
		return 0;
	if (f->trimmed) {
		n = w->v[WINDOW - 1];
		if (compare_bytes(text, len, n->text, n->len) >= 0)
			return 0;
	}
	n = malloc(sizeof(*n) + len);
	if (!n || CFS_ARRAY_ROOM(w->v, w->n, f->cap) < 0) {
		free(n);
		return -ENOMEM;
	}
	n->len = (uint16_t)len;
	memset(n->entry, 0, sizeof(n->entry));
	/* A damaged entry stays 0: such an inode does not exist. */
	if (entry->len == sizeof(n->entry))
		memcpy(n->entry, entry->str, entry->len);
	memcpy(n->text, text, len);
	w->v[w->n++] = n;
	if (w->n == 2 * WINDOW)
		trim(f);
	return 0;
}

static int add_batch(struct filling *f, const redisReply *list)
{
	size_t i;
	int r = 0;

	for (i = 0; i + 1 < list->elements && !r; i += 2)
		r = add_name(f, list->element[i]->str, list->element[i]->len, list->element[i + 1]);
	return r;
}

static int scan_names(struct cfs_engine *e, const struct cfs_ctx *ctx, struct filling *f)
{
	struct rds_cursor cursor = {0};
	const redisReply *page;
	RDS_REQUEST(q, e);
	int r;

	do {
		r = rds_page(&q, ctx, CFS_META_OP_readdir, &cursor, 4 * BATCH, NULL, &page, "sk",
			     "HSCAN", "d", f->w->dir);
		if (!r)
			r = add_batch(f, page);
	} while (!r && cursor.at);
	return r;
}

static struct window *new_window(cfs_ino_t dir, const char *low, size_t len)
{
	struct window *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->dir = dir;
	w->low_len = (uint16_t)len;
	memcpy(w->low, low, len);
	return w;
}

/* ---- delivering ---- */

struct listing {
	struct cfs_engine *e;
	const struct cfs_ctx *ctx;
	cfs_ino_t dir;
	bool attrs;
	size_t limit, done;
	struct cfs_cursor *cursor;
	cfs_dirent_fn fn;
	void *arg;
	unsigned number; /* of the window */
	bool stopped;
	bool fresh; /* this call has scanned the window */
};

enum { LOOK_UP = 1 }; /* of deliver(): the name may have changed since the scan */

static int deliver(struct listing *l, const char *name, size_t len, const redisReply *entry,
		   const redisReply *attr)
{
	struct cfs_dirent d = {.name = name, .name_len = len};
	struct cfs_cursor after;
	int r;

	after.len = (uint16_t)(1 + len);
	after.key[0] = (uint8_t)l->number;
	memcpy(after.key + 1, name, len);
	/* The name was removed since the scan. */
	if (!rds_is_bytes(entry)) {
		l->cursor->len = after.len;
		memcpy(l->cursor->key, after.key, after.len);
		return 0;
	}
	r = rds_entry_decode(entry->str, entry->len, &d.type, &d.entry.ino);
	if (r)
		return r;
	d.entry.attr.type = d.type;
	d.entry.attr.nlink = 1;
	/* A name whose inode is missing is listed, so that it can be removed. */
	if (attr && rds_is_bytes(attr)) {
		r = rds_attr_reply(attr, &d.entry.attr);
		if (r)
			return r;
		if (l->fresh && !d.entry.attr.nlink)
			return LOOK_UP;
		rds_cache_name(rds_of(l->e), l->dir, name, len, &d.entry, attr);
	} else if (l->fresh && attr) {
		return LOOK_UP;
	} else {
		cfs_optimistic_name_remember(&rds_of(l->e)->optimistic, l->dir, name, len,
					     d.entry.ino);
	}
	d.after = &after;
	if (l->fn(l->arg, &d)) {
		l->stopped = true;
		return 0;
	}
	l->done++;
	l->cursor->len = after.len;
	memcpy(l->cursor->key, after.key, after.len);
	return 0;
}

/* The index of the first name behind this one. */
static size_t position(const struct window *w, const char *name, size_t len)
{
	size_t lo = 0, hi = w->n;

	if (!len)
		return 0;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (compare_bytes(w->v[mid]->text, w->v[mid]->len, name, len) <= 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool same_entry(const redisReply *entry, const struct name *n)
{
	return rds_is_bytes(entry) && entry->len == sizeof(n->entry) &&
	       !memcmp(entry->str, n->entry, sizeof(n->entry));
}

/* Delivers a name that leads to another inode than at the time of the scan. */
static int deliver_replaced(struct listing *l, const struct name *n)
{
	RDS_REQUEST(q, l->e);
	redisReply *a;
	int r = rds_script(&q, l->ctx, CFS_META_OP_readdir, &rds_lookup_lua, &a, "ub", l->dir,
			   n->text, (size_t)n->len);

	if (r == -ENOENT)
		r = 0;
	else if (!r)
		r = deliver(l, n->text, n->len, a->element[1], a->element[2]);
	return r;
}

static void ask_part(const struct listing *l, struct rds_request *q, struct name *const *v,
		     size_t n)
{
	size_t i;

	if (l->attrs) {
		rds_command_begin(q, 1 + n);
		rds_words(q, "s", "MGET");
		for (i = 0; i < n; i++)
			rds_words(q, "k", "i", cfs_get_be64(v[i]->entry + 1));
	}
	if (l->fresh)
		return;
	rds_command_begin(q, 2 + n);
	rds_words(q, "sk", "HMGET", "d", l->dir);
	for (i = 0; i < n; i++)
		rds_words(q, "b", v[i]->text, (size_t)v[i]->len);
}

/*
 * Delivers the names [at, at + n) of the window, in one round trip of several commands, between
 * which the server may do other work. Names are read after the attributes: when the name still
 * leads to the inode of the scan, the attributes are those of a linked inode. Names that this call
 * has scanned are delivered as the scan found them, as long as their inodes are linked.
 */
static int deliver_page(struct listing *l, const struct window *w, size_t at, size_t n)
{
	struct name *const *v = w->v + at;
	size_t i, step = l->attrs && !l->fresh ? 2 : 1; /* replies of each part */
	const redisReply *attr = NULL, *entry;
	RDS_REQUEST(q, l->e);
	int r = 0;

	for (i = 0; i < n; i += PART)
		ask_part(l, &q, v + i, CFS_MIN(n - i, (size_t)PART));
	if (l->attrs || !l->fresh)
		r = rds_run(&q, l->ctx, CFS_META_OP_readdir);
	for (i = 0; i < n && !r && !l->stopped; i++) {
		redisReply scanned = {.type = REDIS_REPLY_STRING,
				      .str = (char *)v[i]->entry,
				      .len = sizeof(v[i]->entry)};

		entry = l->fresh ? &scanned
				 : rds_element(q.reply[i / PART * step + step - 1], i % PART);
		if (l->attrs)
			attr = rds_element(q.reply[i / PART * step], i % PART);
		if (l->attrs && rds_is_bytes(entry) && !same_entry(entry, v[i]))
			r = deliver_replaced(l, v[i]);
		else
			r = deliver(l, v[i]->text, v[i]->len, entry, attr);
	}
	if (r != LOOK_UP)
		return r;
	l->fresh = false;
	return deliver_page(l, w, at + i - 1, n - i + 1);
}

/* Delivers from the window. 1: the end of the directory; 0: the page is full or the window ends. */
static int deliver_window(struct listing *l, struct window *w, const char *name, size_t len)
{
	size_t at = position(w, name, len);
	int r = 0;

	while (at < w->n && l->done < l->limit && !l->stopped && !r) {
		size_t n = CFS_MIN(CFS_MIN(w->n - at, l->limit - l->done), (size_t)PAGE);

		r = deliver_page(l, w, at, n);
		at += n;
	}
	if (r)
		return r;
	return !l->stopped && at >= w->n && w->at_end;
}

struct found {
	const char *name;
	size_t len;
	const redisReply *entry, *attr;
};

static int compare_found(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return compare_bytes(x->name, x->len, y->name, y->len);
}

/* Delivers a small directory, which the first reply contains. */
static int deliver_all(struct listing *l, const redisReply *a)
{
	const redisReply *list = a->element[2], *attrs = a->element[3];
	size_t i, n = list->elements / 2;
	struct found *v = calloc(n ? n : 1, sizeof(*v));
	int r = 0;

	if (!v)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		v[i] = (struct found){
			.name = list->element[2 * i]->str,
			.len = list->element[2 * i]->len,
			.entry = list->element[2 * i + 1],
			.attr = i < attrs->elements ? attrs->element[i] : NULL,
		};
	qsort(v, n, sizeof(*v), compare_found);
	for (i = 0; i < n && l->done < l->limit && !l->stopped && !r; i++)
		r = deliver(l, v[i].name, v[i].len, v[i].entry, v[i].attr);
	free(v);
	if (r)
		return r;
	return !l->stopped && i == n;
}

/*
 * Builds the window of the names behind this one, with one user. all: every name of the directory;
 * NULL: scan the directory.
 */
static int make_window(struct listing *l, const char *name, size_t len, const redisReply *all,
		       struct window **ret)
{
	struct filling f = {.w = new_window(l->dir, name, len)};
	int r;

	if (!f.w)
		return -ENOMEM;
	r = all ? add_batch(&f, all) : scan_names(l->e, l->ctx, &f);
	if (r) {
		free_window(f.w);
		return r;
	}
	trim(&f);
	l->number = store(rds_of(l->e)->windows, f.w);
	l->fresh = !all;
	*ret = f.w;
	return 0;
}

/* Starts a listing with one request, which returns most directories as a whole. */
static int start_listing(struct listing *l)
{
	struct window *w;
	RDS_REQUEST(q, l->e);
	redisReply *a;
	bool large;
	int r = rds_script(&q, l->ctx, CFS_META_OP_readdir, &rds_list_lua, &a, "uus", l->dir,
			   (uint64_t)BATCH, l->attrs ? "1" : "");

	if (r)
		return r;
	if (a->elements != 4)
		return -EIO;
	large = rds_int(a->element[1]) || a->element[2]->elements > 2 * (size_t)BATCH ||
		(l->attrs && a->element[3]->elements != a->element[2]->elements / 2);
	if (!large && !a->element[2]->elements)
		return 1;
	r = make_window(l, "", 0, large ? NULL : a->element[2], &w);
	if (r)
		return r;
	r = large ? deliver_window(l, w, "", 0) : deliver_all(l, a);
	leave(rds_of(l->e)->windows, w);
	return r;
}

static int continue_listing(struct listing *l)
{
	struct rds_windows *windows = rds_of(l->e)->windows;
	char name[CFS_NAME_MAX];
	size_t len = l->cursor->len - 1u;
	struct window *w;
	int r = 0;

	memcpy(name, l->cursor->key + 1, len);
	l->number = l->cursor->key[0];
	w = take(windows, l->number, l->dir, name, len);
	if (!w)
		r = make_window(l, name, len, NULL, &w);
	if (r)
		return r;
	r = deliver_window(l, w, name, len);
	leave(windows, w);
	return r;
}

int rds_op_readdir(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		   size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct listing l = {
		.e = e,
		.ctx = ctx,
		.dir = dir,
		.attrs = attrs,
		.limit = limit,
		.cursor = cursor,
		.fn = fn,
		.arg = arg,
	};
	int r;

	if (cursor->len == 0)
		r = start_listing(&l);
	else
		r = continue_listing(&l);
	/* The page is not full because the window has ended. */
	while (r == 0 && !l.stopped && l.done < limit && cursor->len)
		r = continue_listing(&l);
	return r;
}
