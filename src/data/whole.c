/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files: which files get one, and what their content is. Files that are opened for reading
 * are counted here; one thread makes their whole files in the background.
 */
#include <cachefs/whole.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "data-internal.h"

#define LENGTH_MIN  (64u << 10) /* shorter files are read by one request */
#define LENGTH_FEW  (4u << 20)	/* up to here the first open is enough */
#define USES_MIN    2		/* opens of a longer one */
#define NOTES	    1024	/* files that are counted; a new one replaces another */
#define QUEUE_LIMIT 64
#define PIECES_MAX  (1u << 18) /* of 32 bytes of memory each */
#define AGAIN_MS    100 /* pause after a block was not there; twice as long each time, up to ... */
#define AGAIN_TIMES 5	/* ... so many times */
#define NEVER_MS    60000 /* pause after another failure */

struct note {
	cfs_ino_t ino;
	unsigned uses, failures;
	bool queued;
	cfs_deadline_t not_before;
};

struct cfs_wholes {
	struct cfs_workers *workers;
	_Atomic bool stop, refused;
	pthread_mutex_t lock; /* protects the notes; a leaf */
	struct note notes[NOTES];
};

struct whole_job {
	struct cfs_job job; /* first */
	struct cfs_data *data;
	cfs_ino_t ino;
};

static struct cfs_whole_stamp stamp_of(cfs_ino_t ino, const struct cfs_attr *a)
{
	return (struct cfs_whole_stamp){
		.ino = ino, .length = a->length, .mtime = a->mtime, .ctime = a->ctime};
}

/* ---- the content ---- */

struct list {
	struct cfs_whole_map map;
	size_t cap;
};

static int add_pieces(struct list *l, uint32_t indx, const struct cfs_view *view)
{
	uint64_t base = (uint64_t)indx << CFS_CHUNK_BITS, length = l->map.stamp.length;
	size_t i;

	for (i = 0; i < view->n; i++) {
		const struct cfs_piece *p = &view->v[i];

		if (base + p->pos >= length)
			break;
		if (l->map.n == PIECES_MAX)
			return -EFBIG;
		if (CFS_ARRAY_ROOM(l->map.v, l->map.n, l->cap) < 0)
			return -ENOMEM;
		l->map.v[l->map.n++] = (struct cfs_whole_piece){
			.pos = base + p->pos,
			.slice = p->slice,
			.slice_size = p->slice_size,
			.slice_off = p->slice_off,
			.len = (uint32_t)CFS_MIN((uint64_t)p->len, length - base - p->pos),
		};
	}
	return 0;
}

static int list_chunk(struct cfs_data *d, struct list *l, uint32_t indx)
{
	struct cfs_ctx ctx = cfs_ctx_internal(d->conf.io_timeout_ms);
	struct cfs_view view = {0};
	int r = cfs_view_read(d->conf.meta, &ctx, l->map.stamp.ino, indx, &view);

	if (r == 0)
		r = add_pieces(l, indx, &view);
	cfs_view_free(&view);
	return r;
}

static int list_chunks(struct cfs_data *d, struct list *l, const _Atomic bool *stop)
{
	struct cfs_stored_chunks stored = {0};
	struct cfs_chunk_len c;
	int r = 0;

	while (r == 0) {
		struct cfs_ctx ctx = cfs_ctx_internal(d->conf.io_timeout_ms);

		r = cfs_stored_next(d->conf.meta, &ctx, l->map.stamp.ino, &stored, &c);
		if (r <= 0)
			break;
		r = atomic_load(stop) ? -ECANCELED : list_chunk(d, l, c.indx);
	}
	cfs_stored_end(&stored);
	return r;
}

static int get_stamp(struct cfs_data *d, cfs_ino_t ino, struct cfs_whole_stamp *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(d->conf.io_timeout_ms);
	struct cfs_attr attr;
	int r = cfs_meta_getattr(d->conf.meta, &ctx, ino, &attr);

	if (r == 0 && attr.type != CFS_TYPE_FILE)
		r = -EINVAL;
	if (r == 0)
		*ret = stamp_of(ino, &attr);
	return r;
}

static bool same_stamp(const struct cfs_whole_stamp *a, const struct cfs_whole_stamp *b)
{
	return a->length == b->length && cfs_timespec_cmp(a->mtime, b->mtime) == 0 &&
	       cfs_timespec_cmp(a->ctime, b->ctime) == 0;
}

/*
 * The attributes are read before and after the lists. When both have the same times, the lists are
 * those of the stamp. -EAGAIN: the file is being changed.
 */
static int make(struct cfs_data *d, cfs_ino_t ino, const _Atomic bool *stop)
{
	struct cfs_whole_stamp after;
	struct list l = {0};
	int r = get_stamp(d, ino, &l.map.stamp);

	if (r == 0 && l.map.stamp.length < LENGTH_MIN)
		r = -EINVAL;
	if (r == 0 && !cfs_whole_fits(d->conf.disk, ino, l.map.stamp.length))
		r = -EFBIG;
	if (r == 0)
		r = list_chunks(d, &l, stop);
	if (r == 0)
		r = get_stamp(d, ino, &after);
	if (r == 0 && !same_stamp(&l.map.stamp, &after))
		r = -EAGAIN;
	if (r == 0)
		r = cfs_whole_make(d->conf.disk, &l.map, stop);
	free(l.map.v);
	return r;
}

int cfs_data_make_whole(struct cfs_data *d, cfs_ino_t ino, const _Atomic bool *stop)
{
	return d->wholes && !atomic_load(&d->wholes->refused) ? make(d, ino, stop) : -EOPNOTSUPP;
}

void cfs_data_refuse_whole(struct cfs_data *d)
{
	if (d->wholes)
		atomic_store(&d->wholes->refused, true);
}

void cfs_data_forget_whole(struct cfs_data *d, cfs_ino_t ino)
{
	if (d->conf.disk)
		cfs_whole_forget(d->conf.disk, ino);
}

/* ---- in the background ---- */

static struct note *note_of(struct cfs_wholes *h, cfs_ino_t ino)
{
	return &h->notes[(ino * 0x9E3779B97F4A7C15ULL >> 32) % NOTES];
}

static uint64_t pause_ms(const struct note *n, int r)
{
	if (r == 0)
		return 0;
	if (r != -ENOENT && r != -EAGAIN)
		return NEVER_MS;
	return (uint64_t)AGAIN_MS << CFS_MIN(n->failures, (unsigned)AGAIN_TIMES);
}

static void run_make(struct cfs_job *job)
{
	struct whole_job *j = (struct whole_job *)job;
	struct cfs_wholes *h = j->data->wholes;
	int r = atomic_load(&h->stop) ? -ECANCELED : make(j->data, j->ino, &h->stop);
	struct note *n = note_of(h, j->ino);

	cfs_debug("whole file: inode=%llu error=%s", (unsigned long long)j->ino, cfs_errname(r));
	pthread_mutex_lock(&h->lock);
	if (n->ino == j->ino) {
		n->queued = false;
		n->not_before = cfs_deadline_in(pause_ms(n, r));
		n->failures = r < 0 ? n->failures + 1 : 0;
	}
	pthread_mutex_unlock(&h->lock);
	free(j);
}

static void queue(struct cfs_data *d, cfs_ino_t ino)
{
	struct cfs_wholes *h = d->wholes;
	struct whole_job *j = malloc(sizeof(*j));

	if (j)
		*j = (struct whole_job){.job.run = run_make, .data = d, .ino = ino};
	if (j && cfs_workers_try_submit(h->workers, &j->job) == 0)
		return;
	free(j);
	pthread_mutex_lock(&h->lock);
	note_of(h, ino)->queued = false;
	pthread_mutex_unlock(&h->lock);
}

/* A file was opened for reading that has no whole file. */
static void note_use(struct cfs_data *d, const struct cfs_whole_stamp *stamp)
{
	struct cfs_wholes *h = d->wholes;
	struct note *n = note_of(h, stamp->ino);
	bool wanted;

	pthread_mutex_lock(&h->lock);
	if (n->ino != stamp->ino && !n->queued)
		*n = (struct note){.ino = stamp->ino};
	wanted = !atomic_load(&h->stop) && n->ino == stamp->ino && !n->queued &&
		 (++n->uses >= USES_MIN || stamp->length <= LENGTH_FEW) &&
		 cfs_deadline_passed(n->not_before);
	n->queued |= wanted;
	pthread_mutex_unlock(&h->lock);
	if (wanted)
		queue(d, stamp->ino);
}

/* Whether what is stored is all that readers see, and attr is what the metadata has of that. */
static bool is_settled(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
	CFS_LOCK_GUARD(&f->lock);

	return !f->n_pending && !f->op && !f->waiting.change.set && asked_ns > f->own_ns &&
	       f->length == attr->length && cfs_timespec_cmp(attr->mtime, f->attr.mtime) == 0 &&
	       cfs_timespec_cmp(attr->ctime, f->attr.ctime) == 0;
}

struct cfs_whole_file *cfs_file_take_whole(struct cfs_file *f, const struct cfs_attr *attr,
					   uint64_t asked_ns)
{
	struct cfs_data *d = f->data;
	struct cfs_whole_stamp stamp = stamp_of(f->node.key, attr);
	struct cfs_whole_file *w;

	if (!d->wholes || atomic_load(&d->wholes->refused) || attr->length < LENGTH_MIN ||
	    !is_settled(f, attr, asked_ns))
		return NULL;
	w = cfs_whole_find(d->conf.disk, &stamp);
	if (!w && cfs_whole_fits(d->conf.disk, stamp.ino, stamp.length))
		note_use(d, &stamp);
	return w;
}

bool cfs_file_is_whole(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns,
		       const struct cfs_whole_file *w)
{
	struct cfs_whole_stamp stamp = stamp_of(f->node.key, attr);

	return cfs_whole_is(w, &stamp) && is_settled(f, attr, asked_ns);
}

/* ---- life ---- */

int cfs_wholes_start(struct cfs_data *d)
{
	struct cfs_wholes *h;
	int r;

	if (!d->conf.disk || !d->conf.passthrough)
		return 0;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	pthread_mutex_init(&h->lock, NULL);
	r = cfs_workers_create("cfs-whole", 1, QUEUE_LIMIT, &h->workers);
	if (r < 0) {
		pthread_mutex_destroy(&h->lock);
		free(h);
		return r;
	}
	d->wholes = h;
	return 0;
}

void cfs_wholes_stop(struct cfs_data *d)
{
	struct cfs_workers *w = d->wholes ? d->wholes->workers : NULL;

	if (!w || atomic_exchange(&d->wholes->stop, true))
		return;
	cfs_workers_destroy(w);
}

void cfs_wholes_free(struct cfs_data *d)
{
	cfs_wholes_stop(d);
	if (d->wholes)
		pthread_mutex_destroy(&d->wholes->lock);
	free(d->wholes);
}
