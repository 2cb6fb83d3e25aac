/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory listings. A handle holds one page of entries and the positions where some of the pages
 * before it began, so that seekdir(3) has somewhere near to start from.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vfs-internal.h"

#define N_DOTS	     2
#define PAGE_ENTRIES 1000
#define PAGE_MORE    4000 /* of the pages behind the first: each is a wait for the database */
#define MARKS	     64
#define STALE_MS     1000 /* oldest page that attributes are taken from when nothing may be cached */

struct page_entry {
	cfs_ino_t ino;
	uint32_t name_off;
	uint32_t after_off;
	uint16_t after_len;
	uint8_t name_len, type;
	struct cfs_attr attr;
};

struct mark {
	uint64_t index;
	struct cfs_cursor cursor;
};

struct dir {
	cfs_ino_t ino;
	/* The kernel reads a handle from one thread at a time; others are refused. */
	_Atomic bool busy;

	unsigned n_fixed; /* entries before those of the pages: ".", "..", special files */
	uint64_t first;	  /* index of the page's first entry; the fixed ones are not counted */
	size_t n, cap;
	size_t names_len, names_cap;
	struct page_entry *entries;
	char *names;
	bool loaded, last, attrs, no_memory;
	uint64_t seq, read_ms; /* cache_seq() and clock from before the page was read */
	struct cfs_cursor end; /* behind the page */

	/* For other readers of the listing, which the kernel keeps. NULL: it does not. */
	struct kept_dir *kept;
	struct kept_pass pass;
	uint64_t *had; /* hashes of names that the reader has from elsewhere, sorted; or NULL */
	uint64_t n_had;

	size_t n_marks;
	uint64_t stride; /* least distance of marks */
	struct mark *marks;

	/* For another process: the positions behind the page's entries, and where it finds them. */
	struct cfs_handoff_dir *record;
	size_t afters_len, afters_cap;
	uint8_t *afters;
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
	h->dir->kept = kept_restore(&v->kept, &h->dir->pass, ino, cfs_now_ms());
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
	h = recorded_fh(ctx) ? handle_find(&v->handles, recorded_fh(ctx), HANDLE_DIR) : NULL;
	if (h && h->dir->ino == ino) {
		ret->fh = recorded_fh(ctx);
		ret->cache_dir = h->dir->kept;
		return 0;
	}
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
	d->kept = kept_open(&v->kept, &d->pass, ino, cfs_now_ms(), &ret->keep_cache);
	ret->cache_dir = d->kept;
	h->dir = d;
	atomic_store(&h->seen, closed_mark(v));
	record_fh(ctx, ret->fh);
	handle_publish(h, ret->fh, ino, HANDLE_DIR);
	ahead_listed(v, ino);
	return 0;
}

void dir_free(struct cfs_vfs *v, struct dir *d)
{
	kept_close(&v->kept, d->kept, &d->pass);
	kept_return(&v->kept, d->had, d->n_had);
	free(d->afters);
	free(d->entries);
	free(d->names);
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
	cfs_handoff_remove_dir(v->conf.handoff, h->dir->record);
	dir_free(v, h->dir);
	handle_free(&v->handles, fh, h);
	return 0;
}

int cfs_vfs_fsyncdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_DIR);
	uint32_t seen;
	int r = 0;

	if (v->conf.commit_later)
		r = cfs_data_sync_closed(v->conf.data, ctx->deadline);
	if (r == 0)
		r = cfs_meta_sync_dirs(v->conf.meta, ctx);
	if (r < 0 || !h)
		return r;
	seen = atomic_load(&h->seen);
	r = closed_report(v, &seen);
	atomic_store(&h->seen, seen);
	return r;
}

/* ---- pages ---- */

static bool reserve(void **array, size_t *cap, size_t want, size_t unit, size_t min)
{
	size_t n = *cap ? *cap : min;
	void *p;

	while (n < want)
		n *= 2;
	if (n == *cap)
		return true;
	p = realloc(*array, n * unit);
	if (!p)
		return false;
	*array = p;
	*cap = n;
	return true;
}

static int collect(void *arg, const struct cfs_dirent *e)
{
	struct dir *d = arg;
	struct page_entry *p;

	if (!reserve((void **)&d->entries, &d->cap, d->n + 1, sizeof(*d->entries), 16) ||
	    !reserve((void **)&d->names, &d->names_cap, d->names_len + e->name_len, 1, 512)) {
		d->no_memory = true;
		return 1;
	}
	p = &d->entries[d->n++];
	p->ino = e->entry.ino;
	p->type = e->type;
	p->name_off = (uint32_t)d->names_len;
	p->name_len = (uint8_t)e->name_len;
	p->after_len = 0;
	if (d->record &&
	    reserve((void **)&d->afters, &d->afters_cap, d->afters_len + e->after->len, 1, 512)) {
		p->after_off = (uint32_t)d->afters_len;
		p->after_len = e->after->len;
		memcpy(d->afters + d->afters_len, e->after->key, e->after->len);
		d->afters_len += e->after->len;
	}
	if (d->attrs)
		p->attr = e->entry.attr;
	memcpy(d->names + d->names_len, e->name, e->name_len);
	d->names_len += e->name_len;
	return 0;
}

static void add_mark(struct dir *d, uint64_t index, const struct cfs_cursor *cursor)
{
	size_t i;

	if (!d->marks) {
		d->marks = malloc(MARKS * sizeof(*d->marks));
		d->stride = PAGE_ENTRIES;
	}
	/* Without memory for marks seekdir starts from the beginning. */
	if (!d->marks || (d->n_marks && index < d->marks[d->n_marks - 1].index + d->stride))
		return;
	if (d->n_marks == MARKS) {
		for (i = 0; i < MARKS / 2; i++)
			d->marks[i] = d->marks[2 * i + 1];
		d->n_marks = MARKS / 2;
		d->stride *= 2;
	}
	d->marks[d->n_marks++] = (struct mark){index, *cursor};
}

static size_t page_size(uint64_t index)
{
	return index ? PAGE_MORE : PAGE_ENTRIES;
}

/*
 * The page behind `cursor`, whose first entry has this index; with attributes, if these are asked for
 * and it has entry `wanted`.
 */
static int load_page(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t index,
		     const struct cfs_cursor *cursor, bool attrs, uint64_t wanted)
{
	size_t size = page_size(index);
	int r;

	d->end = *cursor;
	d->n = d->names_len = d->afters_len = 0;
	d->first = index;
	d->loaded = d->no_memory = false;
	d->attrs = attrs && wanted < index + size;
	d->seq = cache_seq(&v->cache);
	d->read_ms = cfs_now_ms();
	if (index)
		add_mark(d, index, cursor);
	r = cfs_meta_readdir(v->conf.meta, ctx, d->ino, d->attrs, size, &d->end, collect, d);
	if (r < 0)
		return r;
	if (d->no_memory && !d->n)
		return -ENOMEM;
	d->last = r == 1;
	d->loaded = true;
	return 0;
}

/* Makes the page the one that holds entry `index`. 1: the directory ends before it. */
static int seek_page(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t index,
		     bool attrs)
{
	struct cfs_cursor cursor = {0};
	uint64_t first = 0;
	size_t i;
	int r;

	if (!d->loaded || index < d->first) {
		for (i = 0; i < d->n_marks && d->marks[i].index <= index; i++) {
			first = d->marks[i].index;
			cursor = d->marks[i].cursor;
		}
		r = load_page(v, ctx, d, first, &cursor, attrs, index);
		if (r < 0)
			return r;
	}
	while (index >= d->first + d->n) {
		if (d->last)
			return 1;
		cursor = d->end;
		first = d->first + d->n;
		r = load_page(v, ctx, d, first, &cursor, attrs, index);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A page is read at once and returned in parts; its attributes may have changed meanwhile. */
static bool is_current(struct cfs_vfs *v, const struct dir *d, const struct page_entry *p,
		       uint64_t age_ms)
{
	uint64_t limit = v->conf.attr_timeout_ms ? v->conf.attr_timeout_ms : STALE_MS;
	struct vnode *n;

	if (age_ms >= limit || cache_changed_since(&v->cache, p->ino, d->seq))
		return false;
	n = vnode_find(v, p->ino);
	if (n)
		vnode_put(n);
	return !n;
}

static uint32_t time_left(uint64_t timeout_ms, uint64_t age_ms)
{
	return timeout_ms > age_ms ? (uint32_t)(timeout_ms - age_ms) : 0;
}

/* Offsets: the sequence (kept.h) above the number of entries before it. */
static uint64_t offset_of(const struct dir *d, uint32_t sequence, uint64_t n)
{
	return (uint64_t)sequence << 32 | (n + d->n_fixed);
}

static uint64_t hash_entry(const struct dir *d, const struct page_entry *p)
{
	uint64_t h = cache_hash_name(p->ino, d->names + p->name_off, p->name_len);

	return (h ^ p->type) * 0x9e3779b97f4a7c15ULL;
}

static int deliver(struct cfs_vfs *v, struct dir *d, uint64_t index, uint64_t age_ms, bool attrs,
		   cfs_vfs_dirent_fn fn, void *arg, bool *ret_any)
{
	const struct page_entry *p = &d->entries[index - d->first];
	uint64_t hash = hash_entry(d, p);
	struct cfs_vfs_entry entry;
	struct cfs_vfs_dirent e = {
		.name = d->names + p->name_off,
		.name_len = p->name_len,
		.ino = ino_out(v, p->ino),
		.type = p->type,
	};

	if (kept_has(d->had, d->n_had, hash))
		return 0;
	e.next_off = offset_of(d, kept_name(&v->kept, d->kept, &d->pass, index, hash), index + 1);
	if (attrs && d->attrs && is_current(v, d, p, age_ms)) {
		entry.ino = e.ino;
		entry.attr = p->attr;
		entry.attr_ms = time_left(v->conf.attr_timeout_ms, age_ms);
		if (p->type == CFS_TYPE_DIR)
			entry.attr_ms = kept_limit(&v->kept, p->ino, cfs_now_ms(), entry.attr_ms);
		entry.entry_ms = time_left(entry_timeout(v, &p->attr), age_ms);
		e.entry = &entry;
	}
	*ret_any = true;
	return fn(arg, &e);
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

/* Entries up to this one are on their way to the reader. */
static void keep_place(struct dir *d, uint64_t index)
{
	const struct page_entry *p;

	if (!d->record || index <= d->first || index > d->first + d->n)
		return;
	p = &d->entries[index - d->first - 1];
	if (p->after_len)
		cfs_handoff_set_position(d->record, index, d->afters + p->after_off, p->after_len);
}

void dir_resume(struct handle *h, struct cfs_handoff_dir *record)
{
	struct dir *d = h->dir;
	struct mark m[2];
	size_t i, n = 0;

	d->record = record;
	d->stride = PAGE_ENTRIES;
	for (i = 0; i < 2; i++) {
		struct cfs_handoff_position *p = &record->position[i];

		m[n].index = atomic_load(&p->index);
		if (!m[n].index || p->len > sizeof(m[n].cursor.key))
			continue;
		m[n].cursor.len = p->len;
		memcpy(m[n].cursor.key, p->cursor, p->len);
		n++;
	}
	d->marks = n ? malloc(MARKS * sizeof(*d->marks)) : NULL;
	if (!d->marks)
		return;
	for (i = 0; i < n; i++)
		d->marks[i] = m[n == 2 && m[0].index > m[1].index ? 1 - i : i];
	d->n_marks = n;
}

static void restart(struct cfs_vfs *v, struct dir *d)
{
	kept_return(&v->kept, d->had, d->n_had);
	d->had = NULL;
	d->n_had = 0;
	d->loaded = false;
	d->n_marks = 0;
	if (d->record)
		cfs_handoff_rewind(d->record);
}

/* Makes the place after `n` names of a sequence one of this handle's. Returns its index. */
static uint64_t find_place(struct cfs_vfs *v, struct dir *d, uint32_t sequence, uint64_t n)
{
	uint64_t *had;

	if (!n || kept_is_own(&d->pass, sequence, n))
		return n;
	had = kept_leave(&v->kept, d->kept, &d->pass, sequence, n);
	if (!had)
		return n;
	restart(v, d);
	d->had = had;
	d->n_had = n;
	return 0;
}

static int list(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dir *d, uint64_t off,
		bool attrs, cfs_vfs_dirent_fn fn, void *arg)
{
	uint32_t sequence = (uint32_t)(off >> 32);
	uint64_t index, age_ms;
	bool any;
	int r;

	if (off == 0) {
		restart(v, d);
		kept_begin(&v->kept, d->kept, &d->pass, cache_seq(&v->cache), cfs_now_ms());
	}
	off &= UINT32_MAX;
	if (off < d->n_fixed && deliver_fixed(v, ctx, d, off, fn, arg))
		return 0;
	index = off < d->n_fixed ? 0 : find_place(v, d, sequence, off - d->n_fixed);
	/* One page per call at most: the kernel may come back for any offset of what it was given.
	 */
	do {
		r = seek_page(v, ctx, d, index, attrs);
		if (r < 0)
			return r;
		if (r == 1) {
			kept_end(&v->kept, d->kept, &d->pass, index, cfs_now_ms());
			return 0;
		}
		age_ms = cfs_now_ms() - d->read_ms;
		any = false;
		while (index < d->first + d->n &&
		       !deliver(v, d, index, age_ms, attrs, fn, arg, &any))
			index++;
	} while (!any && index == d->first + d->n);
	keep_place(d, index);
	return 0;
}

bool cfs_vfs_listing_expired(struct cfs_vfs *v, cfs_ino_t ino, uint32_t *ret_which)
{
	return kept_has_expired(&v->kept, ino_in(v, ino), cfs_now_ms(), ret_which);
}

void cfs_vfs_listing_dropped(struct cfs_vfs *v, cfs_ino_t ino, uint32_t which)
{
	kept_dropped(&v->kept, ino_in(v, ino), which);
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
	if (!h->dir->record)
		h->dir->record = cfs_handoff_add_dir(v->conf.handoff, fh);
	r = list(v, ctx, h->dir, off, attrs, fn, arg);
	atomic_store(&h->dir->busy, false);
	return r;
}
