/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead over files: fetches the first blocks of files that are expected to be opened next. The
 * layer above names the files. One metadata call returns their first records, and the fetches run
 * in parallel. Only bytes are kept, in the store, by slice: an open and a read ask the metadata as
 * always, and find the bytes in memory if they are still the content of the file.
 *
 * A file waits in a ring until it is opened. Its fetch begins when the store takes it; a full store
 * takes it later, since every open goes on with the ring. Bytes of files that are not opened yet
 * are at most max_readahead, and within the pool's share of read-ahead.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "data-internal.h"

#define FILES_MAX  512
#define PARTS_MAX  4
#define BUCKETS	   512
#define AGE_MAX_MS 10000 /* an older file is dropped */
#define NONE	   UINT16_MAX
/* While more of the last JUDGED files were wasted than used, one batch in RARELY is fetched. */
#define JUDGED 256
#define RARELY 8

enum state { FREE, WAITING, FETCHED };

struct range {
	struct cfs_block block;
	uint32_t off, len;
};

struct file {
	enum state state;
	cfs_ino_t ino;
	uint64_t length;
	struct timespec mtime, ctime;
	uint64_t since_ms, bytes;
	unsigned n, fetched; /* of parts */
	struct range part[PARTS_MAX];
	uint16_t next; /* in its bucket */
};

struct cfs_ahead {
	pthread_mutex_t lock;	   /* protects what follows; a leaf */
	bool fetching;		   /* a thread is in fetch() */
	uint64_t first, turn, end; /* places: the oldest file, the next to fetch, the next free */
	uint64_t bytes;		   /* of the files that are fetched and not opened */
	unsigned used, wasted, batches; /* recent files; batches since the start */
	struct file ring[FILES_MAX];
	uint16_t bucket[BUCKETS];
};

int cfs_ahead_create(struct cfs_ahead **ret)
{
	struct cfs_ahead *a = calloc(1, sizeof(*a));
	unsigned i;

	if (!a)
		return -ENOMEM;
	pthread_mutex_init(&a->lock, NULL);
	for (i = 0; i < BUCKETS; i++)
		a->bucket[i] = NONE;
	*ret = a;
	return 0;
}

void cfs_ahead_destroy(struct cfs_ahead *a)
{
	pthread_mutex_destroy(&a->lock);
	free(a);
}

/* ---- the ring; with the lock ---- */

static struct file *at(struct cfs_ahead *a, uint64_t place)
{
	return &a->ring[place % FILES_MAX];
}

/* The link to the file's entry, or the one at the end of its bucket. */
static uint16_t *find(struct cfs_ahead *a, cfs_ino_t ino)
{
	uint16_t *i = &a->bucket[ino % BUCKETS];

	while (*i != NONE && a->ring[*i].ino != ino)
		i = &a->ring[*i].next;
	return i;
}

static void judge(struct cfs_ahead *a, bool used)
{
	if (used)
		a->used++;
	else
		a->wasted++;
	if (a->used + a->wasted > JUDGED) {
		a->used /= 2;
		a->wasted /= 2;
	}
}

static bool is_trusted(struct cfs_ahead *a)
{
	CFS_LOCK_GUARD(&a->lock);

	return a->wasted <= a->used + JUDGED / 4 || a->batches++ % RARELY == 0;
}

static void drop(struct cfs_data *d, struct file *f, bool used)
{
	struct cfs_ahead *a = d->ahead;
	uint16_t *i = find(a, f->ino);

	*i = f->next;
	a->bytes -= f->bytes;
	if (f->bytes)
		judge(a, used);
	if (f->bytes && used) {
		atomic_fetch_add(&d->ahead_used_files, 1);
		atomic_fetch_add(&d->ahead_used_bytes, f->bytes);
	} else if (f->bytes) {
		atomic_fetch_add(&d->ahead_wasted_files, 1);
		atomic_fetch_add(&d->ahead_wasted_bytes, f->bytes);
	}
	*f = (struct file){0};
	while (a->first < a->end && at(a, a->first)->state == FREE)
		a->first++;
	a->turn = CFS_MAX(a->turn, a->first);
}

static void drop_old(struct cfs_data *d, uint64_t now_ms)
{
	struct cfs_ahead *a = d->ahead;

	while (a->first < a->end && at(a, a->first)->since_ms + AGE_MAX_MS < now_ms)
		drop(d, at(a, a->first), false);
}

static void add(struct cfs_data *d, const struct file *f)
{
	struct cfs_ahead *a = d->ahead;
	uint16_t *i = find(a, f->ino);

	if (*i != NONE)
		return;
	if (a->end == a->first + FILES_MAX)
		drop(d, at(a, a->first), false);
	i = find(a, f->ino);
	*i = (uint16_t)(a->end % FILES_MAX);
	*at(a, a->end) = *f;
	a->end++;
}

/* ---- fetching ---- */

/* The ranges with which a read of the whole file begins. */
static void plan(const struct cfs_data *d, const struct cfs_view *v, uint32_t end, struct file *f)
{
	uint32_t block = d->conf.block_size;
	size_t i;

	for (i = 0; i < v->n && v->v[i].pos < end; i++) {
		const struct cfs_piece *p = &v->v[i];
		uint32_t off = p->slice_off, to = off + CFS_MIN(p->len, end - p->pos);

		while (off < to && f->n < PARTS_MAX) {
			struct range *r = &f->part[f->n++];

			r->block = cfs_block_of(p->slice, p->slice_size, off / block, block);
			r->off = off % block;
			r->len = CFS_MIN(to - off, r->block.len - r->off);
			off += r->len;
		}
	}
}

/* A read session that begins at the start of a file fetches as much. */
static uint32_t beginning(const struct cfs_data *d, uint64_t length)
{
	uint64_t most = CFS_MAX(d->conf.block_size / 4, CFS_PAGE_LARGE);

	return (uint32_t)CFS_MIN(length, CFS_MIN(most, d->conf.max_readahead));
}

static void add_head(struct cfs_data *d, const struct cfs_head *h, uint64_t now_ms)
{
	struct file f = {
		.state = WAITING,
		.ino = h->ino,
		.length = h->attr.length,
		.mtime = h->attr.mtime,
		.ctime = h->attr.ctime,
		.since_ms = now_ms,
		.next = NONE,
	};
	struct cfs_view view;

	if (h->err || h->attr.type != CFS_TYPE_FILE || cfs_data_is_open(d, h->ino) ||
	    cfs_view_build(h->records, h->n_records, &view) < 0)
		return;
	plan(d, &view, beginning(d, f.length), &f);
	cfs_view_free(&view);
	if (!f.n)
		return;
	pthread_mutex_lock(&d->ahead->lock);
	add(d, &f);
	pthread_mutex_unlock(&d->ahead->lock);
}

/*
 * The next range to fetch, of the file at *ret_place. False: none, or no room. The bytes count from
 * here on.
 */
static bool take_range(struct cfs_data *d, uint64_t room, struct range *ret, uint64_t *ret_place)
{
	struct cfs_ahead *a = d->ahead;
	struct file *f;

	for (; a->turn < a->end; a->turn++) {
		f = at(a, a->turn);
		if (f->state != WAITING)
			continue;
		*ret = f->part[f->fetched];
		if (a->bytes + ret->len > CFS_MIN(room, d->conf.max_readahead))
			return false;
		*ret_place = a->turn;
		return true;
	}
	return false;
}

/*
 * The store has taken the range: `bytes` of it were not in memory. When the file was opened
 * meanwhile, its reader joins the fetch.
 */
static void range_taken(struct cfs_data *d, uint64_t place, cfs_ino_t ino, bool first,
			uint64_t bytes)
{
	struct cfs_ahead *a = d->ahead;
	struct file *f = at(a, place);

	atomic_fetch_add(&d->ahead_fetched_files, first && bytes);
	atomic_fetch_add(&d->ahead_fetched_bytes, bytes);
	if (place < a->first || f->ino != ino) {
		atomic_fetch_add(&d->ahead_used_files, first && bytes);
		atomic_fetch_add(&d->ahead_used_bytes, bytes);
		return;
	}
	f->bytes += bytes;
	a->bytes += bytes;
	if (++f->fetched == f->n)
		f->state = FETCHED;
}

/* Fetches the next files of the ring until the store takes no more. Never waits. */
static void fetch(struct cfs_data *d)
{
	struct cfs_store *store = d->conf.store;
	uint64_t place = 0, bytes;
	struct cfs_ahead *a = d->ahead;
	struct range r;
	cfs_ino_t ino;
	bool first;

	pthread_mutex_lock(&a->lock);
	if (a->fetching) {
		pthread_mutex_unlock(&a->lock);
		return;
	}
	a->fetching = true;
	drop_old(d, cfs_now_ms());
	while (take_range(d, cfs_session_room(d), &r, &place)) {
		ino = at(a, place)->ino;
		first = !at(a, place)->bytes;
		pthread_mutex_unlock(&a->lock);
		bytes = cfs_store_in_memory(store, &r.block, r.off, r.len) ? 0 : r.len;
		if (bytes && !cfs_store_prefetch(store, &r.block, r.off, r.len, 0)) {
			pthread_mutex_lock(&a->lock);
			break;
		}
		pthread_mutex_lock(&a->lock);
		range_taken(d, place, ino, first, bytes);
	}
	a->fetching = false;
	pthread_mutex_unlock(&a->lock);
}

bool cfs_data_reads_ahead(const struct cfs_data *d)
{
	return d->conf.max_readahead && cfs_store_is_slow(d->conf.store);
}

int cfs_data_read_ahead(struct cfs_data *d, const struct cfs_ctx *ctx, struct cfs_head *heads,
			size_t n)
{
	uint64_t now_ms;
	size_t i;
	int r;

	if (!d->conf.max_readahead || !is_trusted(d->ahead))
		return 0;
	r = cfs_meta_read_heads(d->conf.meta, ctx, heads, n);
	if (r < 0)
		return r;
	now_ms = cfs_now_ms();
	for (i = 0; i < n; i++) {
		add_head(d, &heads[i], now_ms);
		free(heads[i].records);
		heads[i].records = NULL;
		heads[i].n_records = 0;
	}
	fetch(d);
	return 1;
}

void cfs_ahead_opened(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct cfs_ahead *a = d->ahead;
	struct file *f;
	uint16_t i;

	pthread_mutex_lock(&a->lock);
	if (a->first == a->end) {
		pthread_mutex_unlock(&a->lock);
		return;
	}
	i = *find(a, ino);
	if (i != NONE) {
		f = &a->ring[i];
		drop(d, f,
		     f->length == attr->length && !cfs_timespec_cmp(f->mtime, attr->mtime) &&
			     !cfs_timespec_cmp(f->ctime, attr->ctime));
	}
	pthread_mutex_unlock(&a->lock);
	fetch(d);
}

void cfs_ahead_age(struct cfs_data *d)
{
	pthread_mutex_lock(&d->ahead->lock);
	drop_old(d, cfs_now_ms());
	pthread_mutex_unlock(&d->ahead->lock);
}

uint64_t cfs_ahead_waiting(void *part)
{
	struct cfs_data *d = part;
	CFS_LOCK_GUARD(&d->ahead->lock);

	return d->ahead->bytes;
}
