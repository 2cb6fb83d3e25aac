/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory listings. A handle has one part of the entries, whose page may be dropped while it is
 * not in use, the part behind it while that is read ahead, and positions in the directory from
 * which parts can be read: those behind the last two replies, and the beginnings of some earlier
 * parts, so that seekdir(3) starts from a near one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bytes.h"
#include "vfs-internal.h"

#define N_DOTS	     2
#define PART_ENTRIES 4000 /* each part is a wait for the database */
#define PART_FEW     250  /* of a part whose page was dropped and is read again */
#define MARKS	     64
#define TAIL	     128
#define STALE_MS     1000 /* oldest page that attributes are taken from when nothing may be cached */

struct mark {
	uint64_t index;
	struct cfs_cursor cursor;
};

struct dir {
	cfs_ino_t ino;
	/* The kernel reads a handle from one thread at a time; others are refused. */
	_Atomic bool busy;

	unsigned n_fixed;    /* entries before those of the pages: ".", "..", special files */
	struct dirpart part; /* its indexes do not count the fixed ones */
	struct dirpart_ahead *next; /* NULL: the next part is not read ahead */
	bool no_ahead;		    /* reading ahead failed, or was in vain */

	/* The directory's record in dircache.h. NULL: the kernel does not keep its listing. */
	struct dircache_dir *cached;
	struct dircache_pass pass;
	/* Hashes of names that the reader has from another sequence, sorted; NULL: there are none. */
	uint64_t *skipped;
	uint64_t n_skipped;

	size_t n_marks, marks_cap;
	uint64_t stride; /* least distance of marks */
	struct mark *marks;

	/*
	 * The positions behind the last two replies; NULL: no memory. They are in the handoff state
	 * or, when that has no room, in memory of the handle (positions_own).
	 */
	struct cfs_handoff_dir *positions;
	bool positions_own;
	/*
	 * Hashes of the entries of the last reply. Kernels up to 6.15 continue within a reply that
	 * did not fit into the program's buffer; their replies are small. n_tail 0: none, or too
	 * many.
	 */
	uint32_t n_tail;
	uint64_t tail_first; /* index */
	uint32_t tail[TAIL];
};

static int check_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	struct cfs_attr attr;
	uint32_t ms;
	int r;

	if (!ctx->check && !keeps_atime(v, ino))
		return 0;
	r = get_attr(v, ctx, ino, &attr, &ms);
	if (r == 0 && ctx->check)
		r = cfs_meta_access(v->conf.meta, ctx, ino, R_OK, &attr);
	if (r == 0 && keeps_atime(v, ino))
		touch_atime(v, ctx, ino, &attr);
	return r;
}

static struct dir *dir_new(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	struct dir *d = calloc(1, sizeof(*d));
	struct cfs_vfs_dirent e;

	if (!d)
		return NULL;
	d->ino = ino;
	d->n_fixed = N_DOTS;
	d->stride = PART_ENTRIES;
	while (ino == v->conf.root && special_listed(v, ctx, d->n_fixed - N_DOTS, &e))
		d->n_fixed++;
	return d;
}

int dir_restore(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino)
{
	struct cfs_ctx ctx = internal_ctx(v);

	h->dir = dir_new(v, &ctx, ino);
	if (!h->dir)
		return -ENOMEM;
	h->dir->cached = dircache_restore(&v->dircache, &h->dir->pass, ino, cfs_now_ms());
	return 0;
}

int cfs_vfs_opendir(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_vfs_open *ret)
{
	struct handle *h;
	struct dir *d;
	int r;

	*ret = (struct cfs_vfs_open){0};
	ino = ino_in(v, ino);
	r = check_open(v, ctx, ino);
	if (r < 0)
		return stale_if_gone(v, ino, r);
	d = dir_new(v, ctx, ino);
	if (!d)
		return -ENOMEM;
	r = handle_alloc(&v->handles, &h, &ret->fh);
	if (r < 0) {
		free(d);
		return r;
	}
	d->cached = dircache_open(&v->dircache, &d->pass, ino, cfs_now_ms(), &ret->keep_cache);
	ret->cache_dir = d->cached;
	h->dir = d;
	atomic_store(&h->err_seq, closed_err_seq(v));
	record_fh(ctx, ret->fh);
	handle_publish(h, ret->fh, ino, HANDLE_DIR);
	ahead_listed(v, ino);
	return 0;
}

static void dir_free(struct cfs_vfs *v, struct dir *d)
{
	dircache_close(&v->dircache, d->cached, &d->pass);
	dircache_free_names(&v->dircache, d->skipped, d->n_skipped);
	dirpart_abandon(d->next);
	dirpage_take(&v->dirpages, &d->part.page);
	dirpage_drop(&v->dirpages, &d->part.page);
	if (d->positions_own)
		free(d->positions);
	else
		cfs_handoff_remove_dir(v->conf.handoff, d->positions);
	free(d->marks);
	free(d);
}

int cfs_vfs_releasedir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_DIR);

	if (!h)
		return -EBADF;
	if (handle_defer_close(&v->handles, fh))
		return 0;
	dir_free(v, h->dir);
	handle_free(&v->handles, fh, h);
	return 0;
}

int cfs_vfs_fsyncdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_DIR);
	uint32_t err_seq;
	int r = 0;

	if (v->conf.commit_later)
		r = cfs_data_sync_closed(v->conf.data, ctx->deadline);
	if (r == 0)
		r = cfs_meta_sync_dirs(v->conf.meta, ctx);
	if (r < 0 || !h)
		return r;
	err_seq = atomic_load(&h->err_seq);
	r = closed_take_error(v, &err_seq);
	atomic_store(&h->err_seq, err_seq);
	return r;
}

/* ---- parts ---- */

static void add_mark(struct dir *d, uint64_t index, const void *cursor, size_t len)
{
	struct mark *m;
	size_t i;

	if (d->n_marks && index < d->marks[d->n_marks - 1].index + d->stride)
		return;
	if (d->n_marks == MARKS) {
		for (i = 0; i < MARKS / 2; i++)
			d->marks[i] = d->marks[2 * i + 1];
		d->n_marks = MARKS / 2;
		d->stride *= 2;
	}
	if (CFS_ARRAY_ROOM(d->marks, d->n_marks, d->marks_cap) < 0)
		return; /* without it, seekdir starts from an earlier mark */
	m = &d->marks[d->n_marks++];
	m->index = index;
	m->cursor.len = (uint16_t)len;
	memcpy(m->cursor.key, cursor, len);
}

/*
 * Reads the part of at most `size` entries behind `cursor`. index: of its first entry. Attributes
 * are read if attrs is set and the part has entry `wanted`.
 */
static int load_part(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t index,
		     const struct cfs_cursor *cursor, size_t size, bool attrs, uint64_t wanted)
{
	dirpart_abandon(d->next);
	d->next = NULL;
	if (index)
		add_mark(d, index, cursor->key, cursor->len);
	return dirpart_read(v, ctx, d->ino, &d->part, index, cursor, size,
			    attrs && wanted < index + size);
}

/* The age at which attributes of a part are not returned. */
static uint64_t attr_limit_ms(const struct cfs_vfs *v)
{
	return v->conf.attr_timeout_ms ? v->conf.attr_timeout_ms : STALE_MS;
}

/* Goes on to the part behind the one that is loaded. */
static int load_next(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, bool attrs,
		     uint64_t wanted)
{
	uint64_t first = d->part.first + d->part.page.n;
	struct cfs_cursor cursor = d->part.end;
	struct dirpart_ahead *next = d->next;
	struct dirpart part;

	d->next = NULL;
	if (next && dirpart_finish(v, ctx, next, &part)) {
		dirpage_drop(&v->dirpages, &d->part.page);
		d->part = part;
		/* A slow reader would get names whose attributes are too old to be cached. */
		if (!attrs || 2 * (cfs_now_ms() - part.read_ms) < attr_limit_ms(v)) {
			add_mark(d, first, cursor.key, cursor.len);
			return 0;
		}
	}
	d->no_ahead |= next != NULL;
	return load_part(v, ctx, d, first, &cursor, PART_ENTRIES, attrs, wanted);
}

/* The last known position at or before entry `index`. Returns the index of the entry behind it. */
static uint64_t find_position(const struct dir *d, uint64_t index, struct cfs_cursor *ret)
{
	uint64_t best = 0, at;
	size_t i;

	*ret = (struct cfs_cursor){0};
	for (i = 0; i < d->n_marks && d->marks[i].index <= index; i++) {
		best = d->marks[i].index;
		*ret = d->marks[i].cursor;
	}
	for (i = 0; d->positions && i < 2; i++) {
		const struct cfs_handoff_position *p = &d->positions->position[i];

		at = atomic_load(&p->index);
		if (at <= best || at > index || p->len > sizeof(ret->key))
			continue;
		best = at;
		ret->len = p->len;
		memcpy(ret->key, p->cursor, p->len);
	}
	return best;
}

static uint64_t hash_entry(const struct dirpage_entry *p)
{
	uint64_t h = cache_hash_name(p->ino, (const char *)p->text, p->name_len);

	return (h ^ p->type) * 0x9e3779b97f4a7c15ULL;
}

/*
 * The part was read from a position within the last reply, to continue at entry `index` of that
 * reply. Some entries between both may have been removed. Those that are left are the first ones of
 * the part.
 */
static void align_part(struct dir *d, uint64_t index)
{
	const uint32_t *tail = d->tail + (d->part.first - d->tail_first);
	uint32_t left, n = (uint32_t)(index - d->part.first), hash, i;

	for (left = 0; left < d->part.page.n && left < n; left++) {
		hash = (uint32_t)hash_entry(dirpage_get(&d->part.page, left));
		for (i = 0; i < n && tail[i] != hash; i++)
			;
		if (i == n)
			break;
	}
	d->part.first = index - left;
}

static bool has_entry(const struct dir *d, uint64_t index)
{
	return d->part.page.n_chunks && index >= d->part.first &&
	       index < d->part.first + d->part.page.n;
}

/* Makes the part the one that holds entry `index`. 1: the directory ends before it. */
static int seek_part(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t index,
		     bool attrs)
{
	struct cfs_cursor cursor;
	uint64_t first;
	bool dropped;
	int r;

	if (d->part.loaded && has_entry(d, index))
		return 0;
	if (!d->part.loaded || index < d->part.first + d->part.page.n) {
		dropped = d->part.loaded && !d->part.page.n_chunks;
		first = find_position(d, index, &cursor);
		r = load_part(v, ctx, d, first, &cursor, dropped ? PART_FEW : PART_ENTRIES, attrs,
			      index);
		if (r < 0)
			return r;
		if (first >= d->tail_first && index < d->tail_first + d->n_tail)
			align_part(d, index);
	}
	while (!has_entry(d, index)) {
		if (d->part.last)
			return 1;
		r = load_next(v, ctx, d, attrs, index);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A page is returned in parts, later than it was read: attributes may have changed meanwhile. */
static bool is_current(struct cfs_vfs *v, const struct dir *d, const struct dirpage_entry *p,
		       uint64_t age_ms)
{
	struct vnode *n;

	if (age_ms >= attr_limit_ms(v) || cache_changed_since(&v->cache, p->ino, d->part.seq))
		return false;
	n = vnode_find(v, p->ino);
	vnode_put(n);
	return !n;
}

static uint32_t time_left(uint64_t timeout_ms, uint64_t age_ms)
{
	return timeout_ms > age_ms ? (uint32_t)(timeout_ms - age_ms) : 0;
}

/* An offset has the sequence (dircache.h) in its upper half, and the number of entries before it. */
static uint64_t offset_of(const struct dir *d, uint32_t sequence, uint64_t n)
{
	return (uint64_t)sequence << 32 | (n + d->n_fixed);
}

static int deliver(struct cfs_vfs *v, struct dir *d, uint64_t index, uint64_t age_ms, bool attrs,
		   cfs_vfs_dirent_fn fn, void *arg, bool *ret_any)
{
	const struct dirpage_entry *p =
		dirpage_get(&d->part.page, (uint32_t)(index - d->part.first));
	uint64_t hash = hash_entry(p);
	struct cfs_vfs_entry entry;
	struct cfs_vfs_dirent e = {
		.name = (const char *)p->text,
		.name_len = p->name_len,
		.ino = ino_out(v, p->ino),
		.type = p->type,
	};
	int r;

	if (dircache_has_name(d->skipped, d->n_skipped, hash))
		return 0;
	e.next_off = offset_of(d, dircache_add_name(&v->dircache, d->cached, &d->pass, index, hash),
			       index + 1);
	if (attrs && d->part.attrs && is_current(v, d, p, age_ms)) {
		entry.ino = e.ino;
		entry.attr = p->attr;
		entry.attr_ms = time_left(v->conf.attr_timeout_ms, age_ms);
		if (p->type == CFS_TYPE_DIR)
			entry.attr_ms = dircache_attr_limit(&v->dircache, p->ino, cfs_now_ms(),
							    entry.attr_ms);
		entry.entry_ms = time_left(entry_timeout(v, &p->attr), age_ms);
		e.entry = &entry;
	}
	*ret_any = true;
	r = fn(arg, &e);
	if (r == 0 && e.entry && p->type == CFS_TYPE_FILE) {
		cache_put_attr(&v->cache, d->part.seq, d->part.read_ms, p->ino, &p->attr);
		cache_told(&v->cache, p->ino, &p->attr);
	}
	return r;
}

static void fill_dot(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, bool parent,
		     struct cfs_vfs_dirent *e)
{
	struct cfs_attr attr;
	uint32_t ms;

	e->name = "..";
	e->name_len = parent ? 2 : 1;
	e->type = CFS_TYPE_DIR;
	e->ino = ino_out(v, d->ino);
	if (parent && d->ino != v->conf.root && get_attr(v, ctx, d->ino, &attr, &ms) == 0)
		e->ino = ino_out(v, attr.parent);
}

static int deliver_fixed(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t off,
			 cfs_vfs_dirent_fn fn, void *arg)
{
	struct cfs_vfs_dirent e = {0};

	for (; off < d->n_fixed; off++) {
		if (off < N_DOTS)
			fill_dot(v, ctx, d, off == 1, &e);
		else if (!special_listed(v, ctx, (unsigned)off - N_DOTS, &e))
			continue;
		e.next_off = (uint64_t)d->pass.sequence << 32 | (off + 1);
		if (fn(arg, &e))
			return 1;
	}
	return 0;
}

/* Records the position behind the reply, which has the entries from `from` up to `index`. */
static void save_position(struct dir *d, uint64_t from, uint64_t index)
{
	const struct dirpage_entry *p;
	uint64_t i;

	if (index <= from)
		return;
	d->tail_first = from;
	d->n_tail = index - from <= TAIL ? (uint32_t)(index - from) : 0;
	for (i = 0; i < d->n_tail; i++) {
		p = dirpage_get(&d->part.page, (uint32_t)(from + i - d->part.first));
		d->tail[i] = (uint32_t)hash_entry(p);
	}
	p = dirpage_get(&d->part.page, (uint32_t)(index - d->part.first - 1));
	if (d->positions)
		cfs_handoff_set_position(d->positions, index, p->text + p->name_len, p->after_len);
}

void dir_resume(struct handle *h, struct cfs_handoff_dir *record)
{
	h->dir->positions = record;
}

static void restart(struct cfs_vfs *v, struct dir *d)
{
	dircache_free_names(&v->dircache, d->skipped, d->n_skipped);
	d->skipped = NULL;
	d->n_skipped = 0;
	d->part.loaded = false;
	d->n_marks = d->n_tail = 0;
	if (d->positions)
		cfs_handoff_rewind(d->positions);
}

/*
 * Finds the place behind `n` names of a sequence in this handle's listing, and returns its index.
 * For another handle's sequence the listing starts again, without the names that the reader has
 * had.
 */
static uint64_t find_place(struct cfs_vfs *v, struct dir *d, uint32_t sequence, uint64_t n)
{
	uint64_t *skipped;

	if (!n || dircache_is_own(&d->pass, sequence, n))
		return n;
	skipped = dircache_detach(&v->dircache, d->cached, &d->pass, sequence, n);
	if (!skipped)
		return n;
	restart(v, d);
	d->skipped = skipped;
	d->n_skipped = n;
	return 0;
}

static int list(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t off,
		bool attrs, cfs_vfs_dirent_fn fn, void *arg)
{
	uint32_t sequence = (uint32_t)(off >> 32);
	uint64_t index, from, age_ms;
	bool any;
	int r;

	if (off == 0) {
		restart(v, d);
		dircache_begin(&v->dircache, d->cached, &d->pass, cache_seq(&v->cache),
			       cfs_now_ms());
	}
	off &= UINT32_MAX;
	if (off < d->n_fixed && deliver_fixed(v, ctx, d, off, fn, arg))
		return 0;
	index = off < d->n_fixed ? 0 : find_place(v, d, sequence, off - d->n_fixed);
	/* One part per call at most: the kernel may come back for any offset of what it was given.
	 */
	do {
		r = seek_part(v, ctx, d, index, attrs);
		if (r < 0)
			return r;
		if (r == 1) {
			dircache_end(&v->dircache, d->cached, &d->pass, index, cfs_now_ms());
			dirpage_drop(&v->dirpages, &d->part.page);
			return 0;
		}
		age_ms = cfs_now_ms() - d->part.read_ms;
		any = false;
		from = index;
		while (index < d->part.first + d->part.page.n &&
		       !deliver(v, d, index, age_ms, attrs, fn, arg, &any))
			index++;
	} while (!any && index == d->part.first + d->part.page.n);
	save_position(d, from, index);
	/* A reader that has come back for more will read the part to its end. */
	if (from > d->part.first && !d->next && !d->part.last && !d->no_ahead)
		d->next = dirpart_begin(v, d->ino, &d->part, PART_ENTRIES);
	return 0;
}

bool cfs_vfs_listing_expired(struct cfs_vfs *v, cfs_ino_t ino, uint32_t *ret_which)
{
	return dircache_has_expired(&v->dircache, ino_in(v, ino), cfs_now_ms(), ret_which);
}

void cfs_vfs_listing_dropped(struct cfs_vfs *v, cfs_ino_t ino, uint32_t which)
{
	dircache_dropped(&v->dircache, ino_in(v, ino), which);
}

static void ensure_positions(struct cfs_vfs *v, struct dir *d, uint64_t fh)
{
	if (d->positions)
		return;
	d->positions = cfs_handoff_add_dir(v->conf.handoff, fh);
	d->positions_own = !d->positions;
	if (!d->positions)
		d->positions = calloc(1, sizeof(*d->positions));
}

int cfs_vfs_readdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		    bool attrs, cfs_vfs_dirent_fn fn, void *arg)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_DIR);
	int r;

	if (!h)
		return -EBADF;
	if (atomic_exchange(&h->dir->busy, true))
		return -EBUSY;
	ensure_positions(v, h->dir, fh);
	dirpage_take(&v->dirpages, &h->dir->part.page);
	r = list(v, ctx, h->dir, off, attrs, fn, arg);
	dirpage_put(&v->dirpages, &h->dir->part.page);
	atomic_store(&h->dir->busy, false);
	return r;
}
