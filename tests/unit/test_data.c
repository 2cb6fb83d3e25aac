/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data layer on the real store with objects in memory and metadata that lives here. When these
 * fail users read wrong bytes, lose writes that close() acknowledged, or wait for ever.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <cachefs/data.h>
#include <cachefs/object.h>

#include "base/bytes.h"
#include "base/log.h"

/* ---- metadata ---- */

#define CHUNKS 4
#define INODES 8

struct list {
	struct cfs_slice *v;
	size_t n;
};

struct cfs_meta {
	pthread_mutex_t lock;
	struct cfs_store *store;
	struct cfs_attr attr[INODES]; /* by inode */
	struct list chunk[INODES][CHUNKS];
	uint64_t next_slice;
	int64_t clock_ns;
	bool purge; /* slices without a reference are removed at once */

	_Atomic int fail_commits; /* so many fail with fail_error */
	_Atomic int fail_error;
	_Atomic bool fail_applied; /* ... after they were applied */
	_Atomic int space_error;
	_Atomic uint64_t claimed[INODES]; /* and not given back */
	_Atomic uint64_t reads, commits;
	void (*applied)(void *arg); /* between a commit and its answer */
	void *applied_arg;
};

static struct timespec tick(struct cfs_meta *m)
{
	m->clock_ns += 1000;
	return (struct timespec){.tv_sec = 1700000000 + m->clock_ns / 1000000000,
				 .tv_nsec = m->clock_ns % 1000000000};
}

static void list_add(struct list *l, const struct cfs_slice *s)
{
	l->v = reallocarray(l->v, l->n + 1, sizeof(*l->v));
	assert_non_null(l->v);
	l->v[l->n++] = *s;
}

static bool referenced(struct cfs_meta *m, uint64_t id)
{
	size_t i;
	int f, c;

	for (f = 0; f < INODES; f++) {
		for (c = 0; c < CHUNKS; c++) {
			for (i = 0; i < m->chunk[f][c].n; i++) {
				if (m->chunk[f][c].v[i].id == id)
					return true;
			}
		}
	}
	return false;
}

struct cfs_ctx cfs_ctx_internal(uint64_t timeout_ms)
{
	return (struct cfs_ctx){.now = cfs_wall(), .deadline = cfs_deadline_in(timeout_ms)};
}

ssize_t cfs_meta_read_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    uint32_t indx, struct cfs_slice **ret)
{
	struct list *l = &m->chunk[ino][indx];
	struct cfs_slice *copy = NULL;
	size_t n;

	atomic_fetch_add(&m->reads, 1);
	pthread_mutex_lock(&m->lock);
	n = l->n;
	if (n) {
		copy = malloc(n * sizeof(*copy));
		assert_non_null(copy);
		memcpy(copy, l->v, n * sizeof(*copy));
	}
	pthread_mutex_unlock(&m->lock);
	*ret = copy;
	return (ssize_t)n;
}

ssize_t cfs_meta_list_chunks(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     uint32_t first, struct cfs_chunk_len ret[1024])
{
	ssize_t n = 0;

	pthread_mutex_lock(&m->lock);
	for (; first < CHUNKS; first++) {
		if (m->chunk[ino][first].n)
			ret[n++] = (struct cfs_chunk_len){first, (uint32_t)m->chunk[ino][first].n};
	}
	pthread_mutex_unlock(&m->lock);
	return n;
}

int cfs_meta_new_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t *ret_id)
{
	pthread_mutex_lock(&m->lock);
	*ret_id = ++m->next_slice;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int cfs_meta_getattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret)
{
	pthread_mutex_lock(&m->lock);
	*ret = m->attr[ino];
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int cfs_meta_commit_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  uint32_t indx, const struct cfs_slice *s, struct timespec mtime,
			  struct cfs_attr *ret)
{
	struct cfs_attr *a = &m->attr[ino];
	bool fail = false;

	if (atomic_load(&m->fail_commits) > 0)
		fail = atomic_fetch_sub(&m->fail_commits, 1) > 0;
	if (fail && !m->fail_applied)
		return m->fail_error;
	pthread_mutex_lock(&m->lock);
	assert_true(s->off == 0 && s->len == s->size && s->id);
	assert_false(referenced(m, s->id));
	list_add(&m->chunk[ino][indx], s);
	a->length = CFS_MAX(a->length, indx * CFS_CHUNK_SIZE + s->pos + s->len);
	a->mtime = mtime;
	a->ctime = tick(m);
	*ret = *a;
	pthread_mutex_unlock(&m->lock);
	atomic_fetch_add(&m->commits, 1);
	if (m->applied)
		m->applied(m->applied_arg);
	return fail ? m->fail_error : 0;
}

void cfs_meta_release_space(struct cfs_meta *m, cfs_ino_t ino)
{
	atomic_store(&m->claimed[ino], 0);
}

int cfs_meta_claim_space(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length)
{
	if (m->space_error)
		return m->space_error;
	atomic_fetch_add(&m->claimed[ino], new_length - old_length);
	return 0;
}

static void zero_range(struct cfs_meta *m, cfs_ino_t ino, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint32_t pos = from & (CFS_CHUNK_SIZE - 1);
		struct cfs_slice s = {.pos = pos,
				      .len = (uint32_t)CFS_MIN(to - from, CFS_CHUNK_SIZE - pos)};

		list_add(&m->chunk[ino][from >> CFS_CHUNK_BITS], &s);
		from += s.len;
	}
}

int cfs_meta_truncate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length,
		      struct cfs_attr *ret)
{
	struct cfs_attr *a = &m->attr[ino];

	pthread_mutex_lock(&m->lock);
	if (length != a->length) {
		zero_range(m, ino, CFS_MIN(length, a->length), CFS_MAX(length, a->length));
		a->length = length;
		a->mtime = a->ctime = tick(m);
	}
	*ret = *a;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int cfs_meta_fallocate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, unsigned mode,
		       uint64_t off, uint64_t len, struct cfs_attr *ret)
{
	struct cfs_attr *a = &m->attr[ino];

	pthread_mutex_lock(&m->lock);
	if (mode & (CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_ZERO_RANGE))
		zero_range(m, ino, CFS_MIN(off, a->length), CFS_MIN(off + len, a->length));
	if (!(mode & CFS_FALLOC_KEEP_SIZE))
		a->length = CFS_MAX(a->length, off + len);
	a->mtime = a->ctime = tick(m);
	*ret = *a;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Within the first chunk, which is all that the test asks for. */
int cfs_meta_copy_range(struct cfs_meta *m, const struct cfs_ctx *ctx,
			const struct cfs_copy_range *req, uint64_t *ret_copied,
			struct cfs_attr *ret_dst)
{
	struct list *src = &m->chunk[req->src][0], *dst = &m->chunk[req->dst][0];
	struct cfs_attr *a = &m->attr[req->dst];
	uint64_t len = req->len, end;
	struct cfs_view v;
	size_t i;

	pthread_mutex_lock(&m->lock);
	if (req->src_off >= m->attr[req->src].length)
		len = 0;
	len = CFS_MIN(len, m->attr[req->src].length - req->src_off);
	end = req->src_off + len;
	assert_int_equal(cfs_view_build(src->v, src->n, &v), 0);
	if (len)
		list_add(dst,
			 &(struct cfs_slice){.pos = (uint32_t)req->dst_off, .len = (uint32_t)len});
	for (i = 0; i < v.n; i++) {
		uint64_t from = CFS_MAX(v.v[i].pos, req->src_off);
		uint64_t to = CFS_MIN(v.v[i].pos + v.v[i].len, end);
		struct cfs_slice s = {.id = v.v[i].slice, .size = v.v[i].slice_size};

		if (from >= to)
			continue;
		s.pos = (uint32_t)(req->dst_off + (from - req->src_off));
		s.off = (uint32_t)(v.v[i].slice_off + (from - v.v[i].pos));
		s.len = (uint32_t)(to - from);
		list_add(dst, &s);
	}
	cfs_view_free(&v);
	if (len) {
		a->length = CFS_MAX(a->length, req->dst_off + len);
		a->mtime = a->ctime = tick(m);
	}
	*ret_copied = len;
	*ret_dst = *a;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

void cfs_meta_discard_slice(struct cfs_meta *m, uint64_t id, uint32_t size)
{
	cfs_store_remove_slice(m->store, id, size, cfs_deadline_in(10000));
}

int cfs_meta_compact_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint32_t indx, const struct cfs_slice *head, size_t head_n,
			   size_t skipped, const struct cfs_slice *merged)
{
	struct list *l = &m->chunk[ino][indx];
	struct cfs_slice gone[1000];
	size_t i, n = 0;

	pthread_mutex_lock(&m->lock);
	if (l->n < head_n || memcmp(l->v, head, head_n * sizeof(*head)) != 0) {
		pthread_mutex_unlock(&m->lock);
		cfs_meta_discard_slice(m, merged->id, merged->size);
		return -EAGAIN;
	}
	l->v[skipped] = *merged;
	memmove(l->v + skipped + 1, l->v + head_n, (l->n - head_n) * sizeof(*l->v));
	l->n -= head_n - skipped - 1;
	for (i = skipped; i < head_n && m->purge; i++) {
		if (head[i].id && !referenced(m, head[i].id))
			gone[n++] = head[i];
	}
	pthread_mutex_unlock(&m->lock);
	for (i = 0; i < n; i++)
		cfs_meta_discard_slice(m, gone[i].id, gone[i].size);
	return 0;
}

int cfs_meta_sync(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	return 0;
}

/* ---- an object store that fails or stands still on demand ---- */

struct faulty {
	struct cfs_object_store base; /* first */
	struct cfs_object_store *inner;
	_Atomic int fail_puts;
	uint64_t pace_ms, last_ms; /* one put in this time comes through, the others time out */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool closed; /* puts wait */
	unsigned waiting;
};

static ssize_t faulty_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;

	return f->inner->ops->get(f->inner, key, off, dst, n_dst, deadline);
}

static int faulty_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		      int n_src, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;
	int r = 0;

	pthread_mutex_lock(&f->lock);
	f->waiting++;
	pthread_cond_broadcast(&f->cond);
	while (f->closed && r == 0)
		r = cfs_cond_wait(&f->cond, &f->lock, deadline);
	f->waiting--;
	if (f->pace_ms && cfs_now_ms() < f->last_ms + f->pace_ms)
		r = -ETIMEDOUT;
	else
		f->last_ms = cfs_now_ms();
	pthread_mutex_unlock(&f->lock);
	if (r < 0)
		return r;
	if (atomic_load(&f->fail_puts) > 0 && atomic_fetch_sub(&f->fail_puts, 1) > 0)
		return -EIO;
	return f->inner->ops->put(f->inner, key, src, n_src, deadline);
}

static int faulty_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;

	return f->inner->ops->del(f->inner, key, deadline);
}

static const struct cfs_object_ops faulty_ops = {
	.name = "faulty",
	.get = faulty_get,
	.put = faulty_put,
	.del = faulty_del,
};

static void set_closed(struct faulty *f, bool closed)
{
	pthread_mutex_lock(&f->lock);
	f->closed = closed;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

static void wait_for_put(struct faulty *f)
{
	cfs_deadline_t deadline = cfs_deadline_in(20000);

	pthread_mutex_lock(&f->lock);
	while (!f->waiting)
		assert_int_equal(cfs_cond_wait(&f->cond, &f->lock, deadline), 0);
	pthread_mutex_unlock(&f->lock);
}

/* ---- a volume ---- */

#define BLOCK (64u << 10)

struct volume {
	struct faulty object;
	struct cfs_meta meta;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_data *data;
};

struct options {
	uint64_t pool;
	uint32_t block;
	uint64_t io_timeout_ms, flush_idle_ms, flush_age_ms, put_timeout_ms;
	unsigned prefetch;
};

static struct volume *volume_new(struct options o)
{
	struct cfs_object_conf object = {.storage = "mem"};
	struct volume *v = calloc(1, sizeof(*v));
	struct cfs_store_conf store = {.volume = "test",
				       .block_size = o.block ? o.block : BLOCK,
				       .max_downloads = 4,
				       .max_uploads = 4,
				       .prefetch = o.prefetch,
				       .get_timeout_ms = 20000,
				       .put_timeout_ms =
					       o.put_timeout_ms ? o.put_timeout_ms : 20000};
	struct cfs_data_conf data = {.block_size = store.block_size,
				     .flush_age_ms = o.flush_age_ms ? o.flush_age_ms : 5000,
				     .flush_idle_ms = o.flush_idle_ms ? o.flush_idle_ms : 5000,
				     .max_readahead = 1 << 20,
				     .io_timeout_ms = o.io_timeout_ms ? o.io_timeout_ms : 20000};
	char err[256];

	assert_non_null(v);
	v->object.base.ops = &faulty_ops;
	assert_int_equal(cfs_object_open(&object, &v->object.inner, err), 0);
	pthread_mutex_init(&v->object.lock, NULL);
	assert_int_equal(cfs_cond_init(&v->object.cond), 0);
	assert_int_equal(cfs_pool_create(o.pool ? o.pool : 64 << 20, &v->pool), 0);
	store.object = &v->object.base;
	store.pool = v->pool;
	assert_int_equal(cfs_store_create(&store, &v->store), 0);
	pthread_mutex_init(&v->meta.lock, NULL);
	v->meta.store = v->store;
	v->meta.purge = true;
	data.meta = &v->meta;
	data.store = v->store;
	data.pool = v->pool;
	assert_int_equal(cfs_data_create(&data, &v->data), 0);
	return v;
}

static int count_object(void *arg, const struct cfs_object_info *info)
{
	++*(size_t *)arg;
	return 0;
}

static size_t objects(struct volume *v)
{
	size_t n = 0;

	assert_int_equal(v->object.inner->ops->list(v->object.inner, "", "", count_object, &n,
						    cfs_deadline_in(20000)),
			 0);
	return n;
}

static int volume_free(struct volume *v)
{
	int f, c, r;

	r = cfs_data_destroy(v->data);
	/* Whatever has failed meanwhile: space that was set aside and forgotten fills the volume.
	 */
	for (f = 0; f < INODES; f++)
		assert_int_equal(v->meta.claimed[f], 0);
	cfs_store_destroy(v->store);
	cfs_pool_destroy(v->pool);
	cfs_object_close(v->object.inner);
	for (f = 0; f < INODES; f++) {
		for (c = 0; c < CHUNKS; c++)
			free(v->meta.chunk[f][c].v);
	}
	free(v);
	return r;
}

static struct cfs_ctx ctx(void)
{
	return cfs_ctx_internal(30000);
}

static struct cfs_file *open_file(struct volume *v, cfs_ino_t ino)
{
	struct cfs_ctx cx = ctx();
	struct cfs_attr attr;
	struct cfs_file *f;

	assert_int_equal(cfs_meta_getattr(&v->meta, &cx, ino, &attr), 0);
	assert_int_equal(cfs_data_open(v->data, ino, &attr, &f), 0);
	return f;
}

static int write_at(struct cfs_file *f, uint64_t off, const void *data, size_t len)
{
	/* Two pieces, the first one odd, to meet the borders of the iovec. */
	size_t first = len / 3;
	struct iovec iov[2] = {{(void *)(uintptr_t)data, first},
			       {(uint8_t *)(uintptr_t)data + first, len - first}};
	struct cfs_ctx cx = ctx();
	uint64_t at;
	int r = cfs_file_write(f, &cx, off, false, iov, 2, &at);

	if (r == 0)
		assert_int_equal(at, off);
	return r;
}

static ssize_t read_at(struct cfs_file *f, uint64_t off, void *dst, uint32_t len)
{
	struct cfs_ctx cx = ctx();
	struct cfs_segs segs;
	ssize_t n;
	int r;

	cfs_segs_init(&segs);
	r = cfs_file_read(f, &cx, 1, off, len, &segs);
	if (r < 0) {
		assert_int_equal(segs.n, 0);
		return r;
	}
	n = (ssize_t)segs.len;
	cfs_segs_copy_out(&segs, 0, dst, segs.len);
	cfs_segs_release(&segs);
	return n;
}

static int flush(struct cfs_file *f)
{
	uint32_t seen = cfs_file_error_mark(f);
	struct cfs_ctx cx = ctx();

	return cfs_file_flush(f, &cx, &seen);
}

/* ---- random operations against a plain array ---- */

#define WINDOW	  (2u << 20)
#define BASE	  (CFS_CHUNK_SIZE - WINDOW / 2) /* so that two chunks take part */
#define WRITE_MAX (300u << 10)

struct model {
	struct volume *v;
	struct cfs_file *f;
	uint64_t base, length; /* the bytes are those of [base, base + WINDOW) */
	uint8_t *bytes, *buf;
	uint64_t seed;
};

static uint32_t rnd(struct model *m, uint32_t below)
{
	m->seed = m->seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)((m->seed >> 33) % below);
}

static uint32_t any_length(struct model *m)
{
	static const uint32_t max[] = {16, 5000, 5000, 70000, WRITE_MAX};

	/* With full blocks a slice has no tail to upload. */
	if (rnd(m, 6) == 0)
		return BLOCK * (1 + rnd(m, 4));
	return 1 + rnd(m, max[rnd(m, CFS_ARRAY_SIZE(max))]);
}

static void model_set_length(struct model *m, uint64_t length)
{
	uint64_t end = m->base + WINDOW;
	uint64_t from = CFS_MAX(m->base, CFS_MIN(length, m->length));

	if (from < end)
		memset(m->bytes + (from - m->base), 0, end - from);
	m->length = length;
}

static void model_write(struct model *m, bool append)
{
	uint32_t len = any_length(m), i, off = rnd(m, WINDOW - len);
	uint64_t at = m->base + off, got;
	uint32_t salt = rnd(m, 1 << 30);
	struct cfs_ctx cx = ctx();

	if (append) {
		if (m->length < m->base || m->length + len > m->base + WINDOW)
			return;
		at = m->length;
		off = (uint32_t)(at - m->base);
	} else if (rnd(m, 2) && m->length >= m->base && m->length + len <= m->base + WINDOW) {
		at = m->length; /* sequential */
		off = (uint32_t)(at - m->base);
	}
	for (i = 0; i < len; i++)
		m->buf[i] = (uint8_t)((salt + i * 7) >> (i % 11));
	memcpy(m->bytes + off, m->buf, len);
	m->length = CFS_MAX(m->length, at + len);
	if (append) {
		struct iovec iov = {m->buf, len};

		assert_int_equal(cfs_file_write(m->f, &cx, 0, true, &iov, 1, &got), 0);
		assert_int_equal(got, at);
	} else {
		assert_int_equal(write_at(m->f, at, m->buf, len), 0);
	}
}

static void model_check(struct model *m, uint32_t off, uint32_t len)
{
	uint64_t at = m->base + off;
	ssize_t want = 0;

	if (at < m->length)
		want = (ssize_t)CFS_MIN(len, m->length - at);
	assert_int_equal(read_at(m->f, at, m->buf, len), want);
	assert_memory_equal(m->buf, m->bytes + off, (size_t)want);
}

static void model_read(struct model *m)
{
	uint32_t len = any_length(m);

	model_check(m, rnd(m, WINDOW - len), len);
}

static void model_truncate(struct model *m)
{
	uint64_t length = m->base + rnd(m, WINDOW);
	struct cfs_attr attr;
	struct cfs_ctx cx = ctx();

	if (rnd(m, 10) == 0)
		length = 0;
	assert_int_equal(cfs_file_truncate(m->f, &cx, length, &attr), 0);
	assert_int_equal(attr.length, length);
	model_set_length(m, length);
}

static void model_punch(struct model *m)
{
	uint32_t len = any_length(m), off = rnd(m, WINDOW - len);
	bool keep = rnd(m, 2);
	struct cfs_attr attr;
	struct cfs_ctx cx = ctx();

	assert_int_equal(cfs_file_fallocate(m->f, &cx,
					    keep ? CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_KEEP_SIZE
						 : CFS_FALLOC_ZERO_RANGE,
					    m->base + off, len, &attr),
			 0);
	memset(m->bytes + off, 0, len);
	if (!keep)
		m->length = CFS_MAX(m->length, m->base + off + len);
}

static void model_copy(struct model *m)
{
	uint32_t len = any_length(m), from, to;
	struct cfs_ctx cx = ctx();
	struct cfs_attr attr;
	uint64_t copied, want = 0;

	if (m->base) /* the metadata above can only do this in the first chunk */
		return;
	from = rnd(m, WINDOW - len);
	to = rnd(m, WINDOW - len);
	if (from < m->length)
		want = CFS_MIN(len, m->length - from);
	if (from < to + len && to < from + len)
		return;
	assert_int_equal(cfs_file_copy_range(m->f, from, m->f, to, len, &cx, &copied, &attr), 0);
	assert_int_equal(copied, want);
	memcpy(m->bytes + to, m->bytes + from, want);
	if (want)
		m->length = CFS_MAX(m->length, to + want);
}

static void model_compact(struct model *m)
{
	struct cfs_ctx cx = ctx();
	uint32_t i;
	int r;

	for (i = 0; i < 2; i++) {
		r = cfs_data_compact(m->v->data, &cx, 1, i);
		assert_true(r == 0 || r == -EAGAIN);
	}
}

static void model_reopen(struct model *m)
{
	struct cfs_attr attr = {0};

	if (rnd(m, 2))
		assert_int_equal(flush(m->f), 0);
	assert_int_equal(cfs_file_length(m->f), m->length);
	cfs_file_overlay_attr(m->f, &attr);
	assert_int_equal(attr.length, m->length);
	/* What is left is flushed in the background; a second open of the same file meets it. */
	if (!cfs_file_dirty(m->f)) {
		cfs_file_put(m->f);
		m->f = open_file(m->v, 1);
	} else {
		struct cfs_file *again = open_file(m->v, 1);

		assert_ptr_equal(again, m->f);
		cfs_file_put(again);
	}
}

/* Holes that seek reports are zeros, and it makes progress to the end. */
static void model_seek(struct model *m)
{
	uint64_t off = m->base + rnd(m, WINDOW), data, hole, i;
	struct cfs_ctx cx = ctx();
	int r;

	r = cfs_file_seek(m->f, &cx, off, SEEK_HOLE, &hole);
	if (off >= m->length) {
		assert_int_equal(r, -ENXIO);
		return;
	}
	assert_int_equal(r, 0);
	assert_true(hole >= off && hole <= m->length);
	r = cfs_file_seek(m->f, &cx, off, SEEK_DATA, &data);
	if (r == -ENXIO)
		data = m->length;
	else
		assert_int_equal(r, 0);
	assert_true(data >= off && (data == off) != (hole == off));
	for (i = off; i < data && i < m->base + WINDOW; i++)
		assert_int_equal(m->bytes[i - m->base], 0);
}

static void model_run(struct options o, uint64_t base, uint64_t seed, unsigned ops)
{
	struct model m = {.v = volume_new(o), .base = base, .seed = seed};
	unsigned i;
	uint32_t off;

	m.bytes = calloc(1, WINDOW);
	m.buf = malloc(WRITE_MAX);
	assert_true(m.bytes && m.buf);
	m.f = open_file(m.v, 1);
	for (i = 0; i < ops; i++) {
		switch (rnd(&m, 20)) {
		case 0:
			model_truncate(&m);
			break;
		case 1:
			model_punch(&m);
			break;
		case 2:
			assert_int_equal(flush(m.f), 0);
			break;
		case 3:
			model_compact(&m);
			break;
		case 4:
			model_reopen(&m);
			break;
		case 5:
			model_write(&m, true);
			break;
		case 6:
			model_seek(&m);
			break;
		case 7:
			model_copy(&m);
			break;
		case 8 ... 13:
			model_write(&m, false);
			break;
		default:
			model_read(&m);
		}
	}
	for (off = 0; off < WINDOW; off += WRITE_MAX)
		model_check(&m, off, CFS_MIN(WRITE_MAX, WINDOW - off));
	assert_int_equal(flush(m.f), 0);
	assert_false(cfs_file_dirty(m.f));
	for (off = 0; off < WINDOW; off += WRITE_MAX)
		model_check(&m, off, CFS_MIN(WRITE_MAX, WINDOW - off));
	cfs_file_put(m.f);
	free(m.bytes);
	free(m.buf);
	assert_int_equal(volume_free(m.v), 0);
}

static void random_first_chunk(void **state)
{
	uint64_t seed;

	for (seed = 1; seed <= 6; seed++)
		model_run((struct options){.pool = 32 << 20}, 0, seed, 800);
}

static void random_chunk_border(void **state)
{
	uint64_t seed;

	for (seed = 11; seed <= 14; seed++)
		model_run((struct options){.block = 256 << 10}, BASE, seed, 800);
}

/* The memory of the pool is much less than what is written: writers have to flush themselves free.
 */
static void random_little_memory(void **state)
{
	uint64_t seed;

	for (seed = 21; seed <= 23; seed++)
		model_run((struct options){.pool = 8 << 20, .block = 128 << 10}, BASE, seed, 800);
}

/* Slices are frozen, uploaded and committed by the background all the time. */
static void random_fast_flusher(void **state)
{
	uint64_t seed;

	for (seed = 31; seed <= 34; seed++)
		model_run((struct options){.flush_idle_ms = 1, .flush_age_ms = 1}, BASE, seed, 800);
}

/* ---- threads ---- */

#define THREADS	 6
#define STRIPE	 20000u
#define PER_FILE 16u /* stripes per thread */

struct worker {
	struct volume *v;
	struct cfs_file *f;
	unsigned id;
	uint64_t base;
};

/* Each thread owns every THREADS-th stripe and must always read back its own bytes. */
static void *striped(void *arg)
{
	struct worker *w = arg;
	struct model m = {.seed = w->id};
	uint8_t *mine = calloc(PER_FILE, STRIPE), *buf = malloc(STRIPE);
	unsigned i;

	assert_true(mine && buf);
	for (i = 0; i < 400; i++) {
		uint32_t k = rnd(&m, PER_FILE), len = 1 + rnd(&m, STRIPE), in;
		uint64_t at;
		ssize_t n;

		in = rnd(&m, STRIPE - len + 1);
		at = w->base + (uint64_t)(k * THREADS + w->id) * STRIPE + in;
		if (rnd(&m, 2)) {
			memset(buf, (int)rnd(&m, 256), len);
			memcpy(mine + k * STRIPE + in, buf, len);
			assert_int_equal(write_at(w->f, at, buf, len), 0);
		} else {
			n = read_at(w->f, at, buf, len);
			assert_true(n >= 0 && n <= len);
			memset(buf + n, 0, len - (size_t)n);
			assert_memory_equal(buf, mine + k * STRIPE + in, len);
		}
		if (rnd(&m, 40) == 0)
			assert_int_equal(flush(w->f), 0);
		if (rnd(&m, 40) == 0) {
			cfs_file_put(open_file(w->v, 1));
			cfs_data_queue_compact(w->v->data, 1, rnd(&m, 2), false);
		}
	}
	for (i = 0; i < PER_FILE; i++) {
		ssize_t n = read_at(w->f, w->base + (uint64_t)(i * THREADS + w->id) * STRIPE, buf,
				    STRIPE);

		assert_true(n >= 0);
		memset(buf + n, 0, STRIPE - (size_t)n);
		assert_memory_equal(buf, mine + i * STRIPE, STRIPE);
	}
	free(mine);
	free(buf);
	return NULL;
}

static void run_threads(struct options o)
{
	struct volume *v = volume_new(o);
	struct cfs_file *f = open_file(v, 1);
	struct worker w[THREADS];
	pthread_t t[THREADS];
	unsigned i;

	for (i = 0; i < THREADS; i++) {
		w[i] = (struct worker){v, f, i, CFS_CHUNK_SIZE - 1000000};
		assert_int_equal(pthread_create(&t[i], NULL, striped, &w[i]), 0);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void threads_one_file(void **state)
{
	run_threads((struct options){.flush_idle_ms = 20, .flush_age_ms = 40});
}

static void threads_little_memory(void **state)
{
	run_threads((struct options){.pool = 8 << 20, .flush_idle_ms = 200});
}

/* Many threads create, write, close and read small files: the table of files under churn. */
static void *churn(void *arg)
{
	struct worker *w = arg;
	cfs_ino_t ino = 1 + w->id % 3;
	uint8_t byte = (uint8_t)w->id;
	struct cfs_file *f;
	unsigned i;

	for (i = 0; i < 300; i++) {
		f = open_file(w->v, ino);
		assert_int_equal(write_at(f, w->id * 100, &byte, 1), 0);
		assert_true(cfs_data_is_open(w->v->data, ino));
		byte = 99;
		assert_int_equal(read_at(f, w->id * 100, &byte, 1), 1);
		assert_int_equal(byte, w->id);
		if (i % 3)
			assert_int_equal(flush(f), 0);
		cfs_file_put(f);
	}
	return NULL;
}

static void threads_open_close(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct worker w[THREADS];
	pthread_t t[THREADS];
	unsigned i;

	for (i = 0; i < THREADS; i++) {
		w[i] = (struct worker){.v = v, .id = i};
		assert_int_equal(pthread_create(&t[i], NULL, churn, &w[i]), 0);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(volume_free(v), 0);
}

/* ---- single behaviours ---- */

/* A small file costs one object and one commit, and nothing is read back to know what it holds. */
static void small_file(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_data_stats st;
	struct cfs_pool_stats pool;
	char buf[10];

	assert_int_equal(write_at(f, 0, "hello", 5), 0);
	cfs_pool_stats(v->pool, &pool);
	assert_int_equal(pool.used[CFS_USE_WRITE], CFS_PAGE_SMALL);
	assert_int_equal(cfs_file_length(f), 5);
	assert_true(cfs_file_dirty(f));
	assert_int_equal(objects(v), 0);
	assert_int_equal(write_at(f, 5, "world", 5), 0);
	assert_int_equal(read_at(f, 0, buf, 10), 10);
	assert_memory_equal(buf, "helloworld", 10);
	assert_int_equal(flush(f), 0);
	assert_false(cfs_file_dirty(f));
	cfs_data_stats(v->data, &st);
	assert_int_equal(st.commits, 1);
	assert_int_equal(st.dirty_bytes, 0);
	assert_int_equal(objects(v), 1);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	assert_int_equal(v->meta.attr[1].length, 10);
	cfs_file_put(f);
	assert_false(cfs_data_is_open(v->data, 1));
	assert_int_equal(volume_free(v), 0);
}

/* Sequential writing is one slice per chunk, and its full blocks are stored while it goes on. */
static void streaming(void **state)
{
	struct volume *v = volume_new((struct options){.block = 256 << 10});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, 100000);
	cfs_deadline_t deadline = cfs_deadline_in(20000);
	unsigned i;

	assert_non_null(buf);
	for (i = 0; i < 40; i++)
		assert_int_equal(write_at(f, i * 100000, buf, 100000), 0);
	while (objects(v) < 15 && !cfs_deadline_passed(deadline))
		sched_yield();
	assert_int_equal(objects(v), 15);
	assert_int_equal(v->meta.commits, 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(objects(v), 16);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Without any call the flusher commits what lies idle, also when the file is closed. */
static void idle_is_committed(void **state)
{
	struct volume *v = volume_new((struct options){.flush_idle_ms = 20});
	struct cfs_file *f = open_file(v, 1);
	cfs_deadline_t deadline = cfs_deadline_in(20000);

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	while (cfs_file_dirty(f) && !cfs_deadline_passed(deadline))
		sched_yield();
	assert_int_equal(v->meta.attr[1].length, 3);
	assert_int_equal(write_at(f, 3, "def", 3), 0);
	cfs_file_put(f);
	assert_int_equal(cfs_data_drain(v->data), 0);
	assert_int_equal(v->meta.attr[1].length, 6);
	assert_int_equal(volume_free(v), 0);
}

/* Random small writes must not pile up without bound. */
static void scattered_writes_are_bounded(void **state)
{
	struct volume *v =
		volume_new((struct options){.flush_idle_ms = 60000, .flush_age_ms = 60000});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_data_stats st;
	unsigned i;

	for (i = 0; i < 3000; i++) {
		assert_int_equal(write_at(f, (3000 - i) * 10, "x", 1), 0);
		cfs_data_stats(v->data, &st);
		assert_true(st.open_slices <= 512);
	}
	assert_int_equal(flush(f), 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Some failing uploads and commits are no error, and no byte is written twice. */
static void passing_faults(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	char buf[6];

	v->object.fail_puts = 3;
	v->meta.fail_error = -EIO;
	v->meta.fail_commits = 2;
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	v->meta.fail_applied = true;
	v->meta.fail_commits = 1;
	assert_int_equal(write_at(f, 3, "def", 3), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "abcdef", 6);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * When the store stays broken the writer learns it once per handle; what it wrote is still there,
 * and is stored when that works after all.
 */
static void put_fault_that_ends(void **state)
{
	struct volume *v = volume_new((struct options){.io_timeout_ms = 100});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	uint32_t first, second;
	char buf[6];

	first = second = cfs_file_error_mark(f);
	v->object.fail_puts = 1000000;
	assert_int_equal(write_at(f, 0, "abcdef", 6), 0);
	assert_int_equal(cfs_file_flush(f, &cx, &first), -EIO);
	cx.deadline = cfs_deadline_in(300);
	assert_int_equal(cfs_file_flush(f, &cx, &second), -EIO);
	assert_true(cfs_file_dirty(f));
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "abcdef", 6);
	v->object.fail_puts = 0;
	cx = ctx();
	assert_int_equal(cfs_file_flush(f, &cx, &first), 0);
	assert_int_equal(cfs_file_flush(f, &cx, &second), 0);
	assert_int_equal(v->meta.attr[1].length, 6);
	assert_int_equal(objects(v), 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * When it stays broken and others need the memory, the file shows what it was before, memory comes
 * back, and later writes work.
 */
static void lasting_put_fault(void **state)
{
	struct volume *v = volume_new((struct options){.io_timeout_ms = 100, .pool = 8 << 20});
	struct cfs_page *others[48];
	unsigned i;
	struct cfs_file *f = open_file(v, 1);
	uint32_t first, second;
	struct cfs_ctx cx = ctx();
	struct cfs_pool_stats pool;
	char buf[6];

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	first = second = cfs_file_error_mark(f);
	v->object.fail_puts = 1000000;
	for (i = 0; i < CFS_ARRAY_SIZE(others); i++)
		assert_int_equal(cfs_page_get(v->pool, CFS_PAGE_LARGE, CFS_USE_WRITE, cx.deadline,
					      &others[i]),
				 0);
	assert_int_equal(write_at(f, 1, "XXXXX", 5), 0);
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "aXXXXX", 6);
	assert_true(cfs_file_flush(f, &cx, &first) < 0);
	assert_int_equal(cfs_file_flush(f, &cx, &first), 0);
	assert_true(cfs_file_flush(f, &cx, &second) < 0);
	assert_int_equal(cfs_file_length(f), 3);
	assert_int_equal(read_at(f, 0, buf, 6), 3);
	assert_memory_equal(buf, "abc", 3);
	for (i = 0; i < CFS_ARRAY_SIZE(others); i++)
		cfs_page_unref(others[i]);
	do { /* the upload lets go of it a moment after it has reported */
		cfs_pool_stats(v->pool, &pool);
	} while (pool.used[CFS_USE_WRITE] && !cfs_deadline_passed(cx.deadline));
	assert_int_equal(pool.used[CFS_USE_WRITE], 0);
	v->object.fail_puts = 0;
	assert_int_equal(write_at(f, 3, "def", 3), 0);
	assert_int_equal(cfs_file_flush(f, &cx, &first), 0);
	assert_int_equal(v->meta.attr[1].length, 6);
	assert_int_equal(objects(v), 2);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A commit that the volume refuses leaves no object behind. */
static void refused_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);

	v->meta.fail_error = -ENOSPC;
	v->meta.fail_commits = 1;
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), -ENOSPC);
	assert_int_equal(cfs_file_length(f), 0);
	assert_int_equal(objects(v), 0);
	v->meta.space_error = -EDQUOT;
	assert_int_equal(write_at(f, 0, "abc", 3), -EDQUOT);
	assert_false(cfs_file_dirty(f));
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* While the store stands still: reads see the bytes, flush gives up in time, nothing is lost. */
static void slow_store(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = cfs_ctx_internal(50);
	uint32_t seen = cfs_file_error_mark(f);
	char buf[6];

	set_closed(&v->object, true);
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(cfs_file_flush(f, &cx, &seen), -EIO);
	/* A frozen slice takes no more writes; this is a second one over the first. */
	assert_int_equal(write_at(f, 2, "cdef", 4), 0);
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "abcdef", 6);
	set_closed(&v->object, false);
	cx = ctx();
	assert_int_equal(cfs_file_flush(f, &cx, &seen), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(v->meta.chunk[1][0].v[0].len, 3);
	assert_int_equal(v->meta.attr[1].length, 6);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A link that takes longer than every deadline for what is queued, but moves, loses nothing. */
static void slow_but_alive(void **state)
{
	struct volume *v = volume_new((struct options){.io_timeout_ms = 2000});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = malloc(BLOCK * 40), *got = malloc(BLOCK * 40);

	assert_true(buf && got);
	memset(buf, 'x', BLOCK * 40);
	v->object.pace_ms = 75;
	assert_int_equal(write_at(f, 0, buf, BLOCK * 40), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, got, BLOCK * 40), BLOCK * 40);
	assert_memory_equal(buf, got, BLOCK * 40);
	free(buf);
	free(got);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A write that needs memory which only a stuck upload could free fails in time, and not for good.
 */
static void memory_deadline(void **state)
{
	struct volume *v = volume_new((struct options){.pool = 8 << 20});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = cfs_ctx_internal(200);
	uint8_t *buf = calloc(1, 1 << 20);
	struct iovec iov = {buf, 1 << 20};
	uint64_t at = 0, got;
	int r = 0;

	assert_non_null(buf);
	set_closed(&v->object, true);
	while (r == 0 && at < 64 << 20) {
		cx.deadline = cfs_deadline_in(200);
		r = cfs_file_write(f, &cx, at, false, &iov, 1, &got);
		at += 1 << 20;
	}
	assert_int_equal(r, -EIO);
	wait_for_put(&v->object);
	set_closed(&v->object, false);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 0, buf, 1 << 20), 0);
	assert_int_equal(flush(f), 0);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Another client compacts and its objects vanish: the list is read again; then an honest EIO. */
static void foreign_compaction(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_slice old = {0};
	struct cfs_block b;
	char buf[3];

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, 3), 3);
	old = v->meta.chunk[1][0].v[0];
	b = (struct cfs_block){.slice = 777, .len = 3};
	{
		char key[CFS_BLOCK_KEY_MAX];
		struct iovec iov = {(void *)(uintptr_t) "abc", 3};

		cfs_store_block_key(v->store, &b, key);
		assert_int_equal(v->object.inner->ops->put(v->object.inner, key, &iov, 1,
							   cfs_deadline_in(1000)),
				 0);
	}
	v->meta.chunk[1][0].v[0].id = 777;
	cfs_meta_discard_slice(&v->meta, old.id, old.size);
	memset(buf, 0, 3);
	assert_int_equal(read_at(f, 0, buf, 3), 3);
	assert_memory_equal(buf, "abc", 3);
	cfs_meta_discard_slice(&v->meta, 777, 3);
	assert_int_equal(read_at(f, 0, buf, 3), -EIO);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Close-to-open: another client's commit is seen at the next open, even behind one of our own. */
static void foreign_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_slice rec;
	uint64_t reads;
	char buf[4];

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	reads = v->meta.reads;
	rec = v->meta.chunk[1][0].v[0];
	assert_int_equal(write_at(f, 0, "b", 1), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "baaa", 4);
	assert_int_equal(v->meta.reads, reads); /* the own commit costs no look-up */
	list_add(&v->meta.chunk[1][0], &rec);
	cfs_file_reopen(f, &v->meta.attr[1]);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

struct meanwhile {
	struct volume *v;
	struct cfs_file *f;
	struct cfs_slice rec;
};

static void commit_and_read(void *arg)
{
	struct meanwhile *mw = arg;
	char buf[4];

	list_add(&mw->v->meta.chunk[1][0], &mw->rec);
	assert_int_equal(read_at(mw->f, 0, buf, 4), 4);
	assert_memory_equal(buf, "bbbb", 4); /* what is pending here lies over it */
}

/* A list that was read while a commit was on its way has its record already, in its place. */
static void read_during_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct meanwhile mw = {.v = v, .f = f};
	char buf[4];

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	mw.rec = v->meta.chunk[1][0].v[0];
	assert_int_equal(write_at(f, 0, "bbbb", 4), 0);
	v->meta.applied = commit_and_read;
	v->meta.applied_arg = &mw;
	assert_int_equal(flush(f), 0);
	v->meta.applied = NULL;
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Attributes that were read before an own commit must not take the length back. */
static void old_attributes(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_attr before = v->meta.attr[1], after;

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	cfs_file_refresh(f, &before);
	assert_int_equal(cfs_file_length(f), 3);
	after = v->meta.attr[1];
	after.length = 1;
	after.mtime = after.ctime = tick(&v->meta);
	cfs_file_refresh(f, &after);
	assert_int_equal(cfs_file_length(f), 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void compaction_merges(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	uint8_t *big = malloc(2 << 20), *got = malloc(2 << 20);
	unsigned i;

	assert_true(big && got);
	memset(big, 'A', 2 << 20);
	assert_int_equal(write_at(f, 0, big, 2 << 20), 0);
	assert_int_equal(flush(f), 0);
	for (i = 0; i < 9; i++) {
		assert_int_equal(write_at(f, (2 << 20) + i * 7000, big, 7000), 0);
		assert_int_equal(flush(f), 0);
	}
	assert_int_equal(v->meta.chunk[1][0].n, 10);
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	/* The big slice in front stays. */
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(v->meta.chunk[1][0].v[0].len, 2 << 20);
	assert_int_equal(v->meta.chunk[1][0].v[1].pos, 2 << 20);
	assert_int_equal(v->meta.chunk[1][0].v[1].len, 63000);
	assert_int_equal(read_at(f, 0, got, 2 << 20), 2 << 20);
	assert_memory_equal(big, got, 2 << 20);
	assert_int_equal(read_at(f, 2 << 20, got, 70000), 63000);
	assert_memory_equal(big, got, 63000);
	assert_int_equal(objects(v), (2 << 20) / BLOCK + 1);
	free(big);
	free(got);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void forget_all(struct volume *v, uint32_t block, uint32_t n)
{
	struct cfs_block b = {.slice = v->meta.chunk[1][0].v[0].id, .len = block};

	for (b.index = 0; b.index < n; b.index++)
		cfs_store_forget(v->store, &b);
}

static uint64_t declined(struct volume *v)
{
	struct cfs_data_stats st;

	cfs_data_stats(v->data, &st);
	return st.prefetches_declined;
}

/*
 * A random reader of a large file must not pay for it many times over; one who soon comes back to
 * the same blocks must find them.
 */
static void whole_blocks_while_they_pay(void **state)
{
	enum { SIZE = 1 << 20, N = 40, PART = 128 << 10, PARTS = SIZE / PART };
	struct volume *v = volume_new((struct options){.block = SIZE, .prefetch = 1});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, SIZE);
	struct cfs_store_stats st;
	uint64_t before;
	int i, part;

	assert_non_null(buf);
	for (i = 0; i < N; i++)
		assert_int_equal(write_at(f, (uint64_t)i * SIZE, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	forget_all(v, SIZE, N);
	/* From the end, so that nothing looks like a stream. The first 16 or so get a chance. */
	for (i = N - 1; i >= 0; i--)
		assert_int_equal(read_at(f, (uint64_t)i * SIZE + SIZE / 2 + 4096, buf, 4096), 4096);
	cfs_store_stats(v->store, &st);
	assert_in_range(st.block_prefetches + st.block_prefetch_drops, 15, 25);
	assert_int_equal(st.block_prefetches + st.block_prefetch_drops + declined(v), N);

	/* The same file, read in more and more parts: worth it again. */
	for (part = 0; part < PARTS; part++) {
		for (i = N - 1; i >= 0; i--)
			assert_int_equal(
				read_at(f, (uint64_t)i * SIZE + (uint64_t)(part * 3 % PARTS) * PART,
					buf, 4096),
				4096);
	}
	forget_all(v, SIZE, N);
	before = declined(v);
	assert_int_equal(read_at(f, 5 * SIZE + 3 * PART, buf, 4096), 4096);
	assert_int_equal(declined(v), before);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * Reads at random in a file that is not much larger than the window, with a stream in it before:
 * they must not be taken for streams, each of which would fetch megabytes.
 */
static void random_reads_are_no_stream(void **state)
{
	enum { SIZE = 8 << 20, LEN = 16 << 10, N = 2000 };
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, SIZE);
	struct cfs_data_stats st;
	struct model m = {.seed = 11};
	uint64_t before;
	unsigned i;

	assert_non_null(buf);
	assert_int_equal(write_at(f, 0, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	for (i = 0; i < 16; i++)
		assert_int_equal(read_at(f, (uint64_t)i * 65536, buf, 65536), 65536);
	cfs_data_stats(v->data, &st);
	before = st.readahead_bytes;
	assert_true(before >= 1 << 20);
	for (i = 0; i < N; i++)
		assert_int_equal(read_at(f, (uint64_t)rnd(&m, SIZE / LEN) * LEN, buf, LEN), LEN);
	cfs_data_stats(v->data, &st);
	assert_true(st.readahead_bytes - before < (uint64_t)N * LEN / 4);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A stream must not stand still where a chunk begins whose list nobody has read yet. */
static void read_ahead_crosses_chunks(void **state)
{
	struct volume *v = volume_new((struct options){.block = 1 << 20});
	struct cfs_file *f = open_file(v, 1);
	uint64_t border = CFS_CHUNK_SIZE;
	uint8_t *buf = calloc(1, 2 << 20);
	cfs_deadline_t deadline;
	struct cfs_block b = {.len = 1 << 20};

	assert_non_null(buf);
	assert_int_equal(write_at(f, border - (2 << 20), buf, 2 << 20), 0);
	assert_int_equal(write_at(f, border, buf, 2 << 20), 0);
	assert_int_equal(flush(f), 0);
	cfs_file_put(f);
	f = open_file(v, 1);
	b.slice = v->meta.chunk[1][1].v[0].id;
	for (b.index = 0; b.index < 2; b.index++)
		cfs_store_forget(v->store, &b);
	b.index = 0;
	assert_int_equal(read_at(f, border - (2 << 20), buf, 1 << 20), 1 << 20);
	assert_int_equal(read_at(f, border - (1 << 20), buf, 512 << 10), 512 << 10);
	assert_int_equal(read_at(f, border - (512 << 10), buf, 256 << 10), 256 << 10);
	deadline = cfs_deadline_in(20000);
	while (!cfs_store_in_memory(v->store, &b, 0, 1 << 20))
		assert_true(cfs_backoff(0, 1, 1, deadline));
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Reading on finds its bytes prefetched; reading here and there fetches nothing extra. */
static void read_ahead(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, 4 << 20);
	struct cfs_data_stats st;
	struct model m = {.seed = 5};
	unsigned i;

	assert_non_null(buf);
	assert_int_equal(write_at(f, 0, buf, 4 << 20), 0);
	assert_int_equal(flush(f), 0);
	for (i = 0; i < 50; i++)
		assert_int_equal(read_at(f, (1 + rnd(&m, 900)) * 4096, buf, 4096), 4096);
	cfs_data_stats(v->data, &st);
	assert_true(st.readahead_bytes <= 256 << 10);
	/* In pairs that arrive in the wrong order, as the kernel sends them. */
	for (i = 0; i < 16; i++)
		assert_int_equal(read_at(f, (i ^ 1) << 17, buf, 1 << 17), 1 << 17);
	cfs_data_stats(v->data, &st);
	assert_true(st.readahead_bytes >= 1 << 20);
	assert_true(st.read_sessions > 0);
	cfs_file_end_stream(f, 1);
	cfs_data_stats(v->data, &st);
	assert_int_equal(st.read_sessions, 0);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* The way of a hit, for those who look at its cost (CFS_BENCH=1). */
static void read_cost(void **state)
{
	struct volume *v;
	struct cfs_file *f;
	uint8_t *buf;
	uint64_t start, i;
	struct cfs_ctx cx = ctx();
	uint32_t size;

	if (!getenv("CFS_BENCH"))
		skip();
	v = volume_new((struct options){.pool = 256 << 20, .block = 4 << 20});
	f = open_file(v, 1);
	buf = calloc(1, 32 << 20);
	assert_non_null(buf);
	assert_int_equal(write_at(f, 0, buf, 32 << 20), 0);
	assert_int_equal(flush(f), 0);
	for (size = 4096; size <= 1 << 20; size <<= 8) {
		start = cfs_now_ns();
		for (i = 0; i < 100000; i++) {
			struct cfs_segs segs;

			cfs_segs_init(&segs);
			assert_int_equal(
				cfs_file_read(f, &cx, 1, i * size % (32 << 20), size, &segs), 0);
			cfs_segs_release(&segs);
		}
		print_message("read %u: %llu ns\n", size,
			      (unsigned long long)(cfs_now_ns() - start) / 100000);
	}
	start = cfs_now_ns();
	for (i = 0; i < 100000; i++) /* less than a block, so that nothing is uploaded */
		assert_int_equal(write_at(f, i % 1000 * 4096, buf, 4096), 0);
	print_message("write 4096: %llu ns\n", (unsigned long long)(cfs_now_ns() - start) / 100000);
	cfs_file_put(f);
	start = cfs_now_ns();
	for (i = 0; i < 2000; i++) {
		f = open_file(v, 2);
		assert_int_equal(write_at(f, 0, buf, 4096), 0);
		assert_int_equal(flush(f), 0);
		cfs_file_put(f);
	}
	print_message("open write flush put: %llu ns\n",
		      (unsigned long long)(cfs_now_ns() - start) / 2000);
	free(buf);
	assert_int_equal(volume_free(v), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_file),
		cmocka_unit_test(streaming),
		cmocka_unit_test(idle_is_committed),
		cmocka_unit_test(scattered_writes_are_bounded),
		cmocka_unit_test(passing_faults),
		cmocka_unit_test(put_fault_that_ends),
		cmocka_unit_test(lasting_put_fault),
		cmocka_unit_test(refused_commit),
		cmocka_unit_test(slow_store),
		cmocka_unit_test(slow_but_alive),
		cmocka_unit_test(memory_deadline),
		cmocka_unit_test(foreign_compaction),
		cmocka_unit_test(foreign_commit),
		cmocka_unit_test(read_during_commit),
		cmocka_unit_test(old_attributes),
		cmocka_unit_test(compaction_merges),
		cmocka_unit_test(whole_blocks_while_they_pay),
		cmocka_unit_test(random_reads_are_no_stream),
		cmocka_unit_test(read_ahead_crosses_chunks),
		cmocka_unit_test(read_ahead),
		cmocka_unit_test(random_first_chunk),
		cmocka_unit_test(random_chunk_border),
		cmocka_unit_test(random_little_memory),
		cmocka_unit_test(random_fast_flusher),
		cmocka_unit_test(threads_one_file),
		cmocka_unit_test(threads_little_memory),
		cmocka_unit_test(threads_open_close),
		cmocka_unit_test(read_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
