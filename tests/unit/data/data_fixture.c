/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/activity.h"
#include "data_fixture.h"

/* ---- metadata ---- */

struct timespec tick(struct cfs_meta *m)
{
	m->clock_ns += 1000;
	return (struct timespec){.tv_sec = 1700000000 + m->clock_ns / 1000000000,
				 .tv_nsec = m->clock_ns % 1000000000};
}

void list_add(struct list *l, const struct cfs_slice *s)
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

int cfs_meta_read_heads(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_head *heads,
			size_t n)
{
	ssize_t records;
	size_t i;

	assert_true(n <= CFS_HEADS_MAX);
	atomic_fetch_add(&m->head_reads, 1);
	for (i = 0; i < n; i++) {
		assert_int_equal(cfs_meta_getattr(m, ctx, heads[i].ino, &heads[i].attr), 0);
		heads[i].attr.type = CFS_TYPE_FILE;
		records = cfs_meta_read_chunk(m, ctx, heads[i].ino, 0, &heads[i].records);
		heads[i].n_records = (size_t)records;
		heads[i].err = 0;
	}
	return 0;
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

bool cfs_meta_is_gone(const struct cfs_meta *m)
{
	(void)m;
	return false;
}

int cfs_meta_check_volume(struct cfs_meta *m, cfs_deadline_t deadline)
{
	(void)m;
	(void)deadline;
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

/* The rules of permission are not tested here. */
int cfs_meta_keep_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, uint32_t set,
			  const struct cfs_attr *in, struct cfs_attr *attr)
{
	if (set & CFS_SET_MODE)
		attr->mode = in->mode;
	if (set & CFS_SET_UID)
		attr->uid = in->uid;
	if (set & CFS_SET_ATIME)
		attr->atime = in->atime;
	if (set & CFS_SET_MTIME)
		attr->mtime = in->mtime;
	attr->ctime = ctx->now;
	return 0;
}

int cfs_meta_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret)
{
	struct cfs_attr *a = &m->attr[ino], want = *in;

	pthread_mutex_lock(&m->lock);
	cfs_meta_keep_setattr(m, ctx, set, &want, a);
	a->ctime = tick(m);
	*ret = *a;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static void apply(const struct cfs_attr_change *change, struct cfs_attr *a)
{
	if (change && change->set & CFS_SET_MODE)
		a->mode = change->mode;
	if (change && change->set & CFS_SET_UID)
		a->uid = change->uid;
	if (change && change->set & CFS_SET_ATIME)
		a->atime = change->atime;
}

int cfs_meta_commit(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_commit *c)
{
	struct cfs_slice *s = &c->slice;
	struct cfs_attr *a = &m->attr[c->ino];
	bool fail = false;

	if (c->repeated) {
		int r = cfs_meta_getattr(m, ctx, c->ino, &c->attr);

		pthread_mutex_lock(&m->lock);
		r = r ? r : referenced(m, s->id);
		pthread_mutex_unlock(&m->lock);
		if (!r)
			r = !c->is_stored(c->arg, s, ctx->deadline);
		if (r)
			return 0;
	}
	if (atomic_load(&m->fail_commits) > 0 && (!m->fail_ino || m->fail_ino == c->ino))
		fail = atomic_fetch_sub(&m->fail_commits, 1) > 0;
	c->repeated = c->repeated || fail;
	if (fail && !m->fail_applied)
		return m->fail_error;
	if (m->begins)
		m->begins(m->begins_arg, c);
	pthread_mutex_lock(&m->lock);
	assert_true(s->off == 0 && s->len == s->size && s->id);
	assert_false(referenced(m, s->id));
	list_add(&m->chunk[c->ino][c->indx], s);
	a->length = CFS_MAX(a->length, c->indx * CFS_CHUNK_SIZE + s->pos + s->len);
	a->mtime = c->mtime;
	a->ctime = tick(m);
	apply(c->attrs, a);
	c->attr = *a;
	pthread_mutex_unlock(&m->lock);
	atomic_fetch_add(&m->commits, 1);
	if (m->applied)
		m->applied(m->applied_arg);
	return fail ? m->fail_error : 0;
}

void cfs_meta_commit_group(struct cfs_meta *m, const struct cfs_ctx *ctx,
			   struct cfs_commit *const *commits, size_t n, int *ret)
{
	bool stopped = false;

	for (size_t i = 0; i < n; i++) {
		atomic_store(&m->in_group[commits[i]->ino], true);
		ret[i] = stopped ? -ECANCELED : cfs_meta_commit(m, ctx, commits[i]);
		stopped |= cfs_commit_may_succeed(ret[i]);
	}
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
	cfs_store_remove_slice(m->store, id, size, soon());
}

int cfs_meta_compact_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint32_t indx, const struct cfs_slice *head, size_t head_n,
			   size_t skipped, const struct cfs_slice *merged)
{
	struct list *l = &m->chunk[ino][indx];
	struct cfs_slice gone[1000];
	void (*compacting)(void *arg);
	size_t i, n = 0;

	pthread_mutex_lock(&m->lock);
	compacting = m->compacting;
	m->compacting = NULL;
	pthread_mutex_unlock(&m->lock);
	if (compacting)
		compacting(m->compacting_arg);
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

static ssize_t faulty_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;
	ssize_t n = f->inner->ops->get(f->inner, key, off, dst, n_dst, deadline);

	if (f->get_ms)
		usleep(f->get_ms * 1000);
	atomic_fetch_add(&f->gets, 1);
	return n == -ENOENT && f->unlisted ? -EACCES : n;
}

static int faulty_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		      int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;
	size_t bytes = 0;
	int r = 0, i;

	for (i = 0; i < n_src; i++)
		bytes += src[i].iov_len;
	pthread_mutex_lock(&f->lock);
	f->waiting++;
	pthread_cond_broadcast(&f->cond);
	while ((f->closed || bytes == f->closed_bytes) && r == 0)
		r = cfs_cond_wait(&f->cond, &f->lock, deadline);
	f->waiting--;
	if (f->pace_ms && cfs_now_ms() < f->last_ms + f->pace_ms)
		r = -ETIMEDOUT;
	else
		f->last_ms = cfs_now_ms();
	pthread_mutex_unlock(&f->lock);
	if (r < 0)
		return r;
	if (f->put_ms) {
		cfs_deadline_t done = cfs_deadline_in(f->put_ms);

		cfs_sleep_until(cfs_deadline_min(done, deadline));
		if (deadline < done)
			return -ETIMEDOUT;
	}
	if (atomic_load(&f->fail_puts) > 0 && atomic_fetch_sub(&f->fail_puts, 1) > 0)
		return -EIO;
	return f->inner->ops->put(f->inner, key, src, n_src, tier, deadline);
}

static int faulty_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;

	return f->inner->ops->del(f->inner, key, deadline);
}

static int faulty_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		       cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;

	return f->inner->ops->head(f->inner, key, ret, deadline);
}

static int faulty_sync(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	struct faulty *f = (struct faulty *)o;
	int r = 0;

	pthread_mutex_lock(&f->lock);
	while (f->syncs_closed && r == 0)
		r = cfs_cond_wait(&f->cond, &f->lock, deadline);
	if (r == 0 && f->fail_syncs) {
		f->fail_syncs--;
		r = -EIO;
	}
	pthread_mutex_unlock(&f->lock);
	return r;
}

static const struct cfs_object_ops faulty_ops = {
	.name = "faulty",
	.get = faulty_get,
	.put = faulty_put,
	.del = faulty_del,
	.head = faulty_head,
};

static const struct cfs_object_ops syncing_ops = {
	.name = "faulty",
	.get = faulty_get,
	.put = faulty_put,
	.del = faulty_del,
	.head = faulty_head,
	.sync = faulty_sync,
};

void set_closed(struct faulty *f, bool closed)
{
	pthread_mutex_lock(&f->lock);
	f->closed = closed;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

void set_closed_bytes(struct faulty *f, size_t bytes)
{
	pthread_mutex_lock(&f->lock);
	f->closed_bytes = bytes;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

void wait_for_put(struct faulty *f)
{
	cfs_deadline_t deadline = soon();

	pthread_mutex_lock(&f->lock);
	while (!f->waiting)
		assert_int_equal(cfs_cond_wait(&f->cond, &f->lock, deadline), 0);
	pthread_mutex_unlock(&f->lock);
}

static pthread_t syncer;

static void *sync_store(void *arg)
{
	struct volume *v = arg;

	return (void *)(intptr_t)cfs_store_sync(v->store, soon());
}

/* How many threads sync or wait for a sync. */
static unsigned syncing(void)
{
	struct cfs_activity *all;
	unsigned found = 0, k;
	size_t n, i;

	assert_int_equal(cfs_activity_read(-1, &all, &n), 0);
	for (i = 0; i < n; i++) {
		for (k = 0; k < all[i].n_waits; k++)
			found += all[i].waits[k].what == CFS_WAIT_OBJECT_SYNC;
	}
	free(all);
	return found;
}

void begin_failing_sync(struct volume *v)
{
	pthread_mutex_lock(&v->object.lock);
	v->object.syncs_closed = true;
	v->object.fail_syncs = 1;
	pthread_mutex_unlock(&v->object.lock);
	assert_int_equal(pthread_create(&syncer, NULL, sync_store, v), 0);
	/* It, and the thread that carries it out. */
	WAIT_FOR(syncing() == 2);
}

void wait_for_sync(void)
{
	WAIT_FOR(syncing() == 3);
}

void end_failing_sync(struct volume *v)
{
	void *r;

	pthread_mutex_lock(&v->object.lock);
	v->object.syncs_closed = false;
	pthread_cond_broadcast(&v->object.cond);
	pthread_mutex_unlock(&v->object.lock);
	assert_int_equal(pthread_join(syncer, &r), 0);
	assert_int_equal((intptr_t)r, -EIO);
}

/* ---- a volume ---- */

struct volume *volume_new(struct options o)
{
	struct cfs_object_conf object = {.storage = "mem"};
	struct volume *v = calloc(1, sizeof(*v));
	struct cfs_store_conf store = {.volume = "test",
				       .block_size = o.block ? o.block : BLOCK,
				       .max_downloads = o.downloads ? o.downloads : 4,
				       .max_uploads = 4,
				       .prefetch = o.prefetch,
				       .get_timeout_ms = 20000,
				       .put_timeout_ms =
					       o.put_timeout_ms ? o.put_timeout_ms : 20000};
	struct cfs_data_conf data = {.block_size = store.block_size,
				     .flush_age_ms = o.flush_age_ms ? o.flush_age_ms : 5000,
				     .flush_idle_ms = o.flush_idle_ms ? o.flush_idle_ms : 5000,
				     .max_readahead = o.no_readahead ? 0 : 1 << 20,
				     .max_closing = o.max_closing ? o.max_closing : 2,
				     .io_timeout_ms = o.io_timeout_ms ? o.io_timeout_ms : 20000};
	char err[256];

	assert_non_null(v);
	v->object.base.ops = o.syncs ? &syncing_ops : &faulty_ops;
	assert_int_equal(cfs_object_open(&object, &v->object.inner, err), 0);
	v->object.get_ms = o.get_ms;
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

size_t objects(struct volume *v)
{
	size_t n = 0;

	assert_int_equal(
		v->object.inner->ops->list(v->object.inner, "", "", count_object, &n, soon()), 0);
	return n;
}

int volume_free(struct volume *v)
{
	int f, c, r;

	r = cfs_data_destroy(v->data);
	/* After any failure: a reservation that is forgotten fills the volume. */
	for (f = 0; f < INODES; f++)
		assert_int_equal(v->meta.claimed[f], 0);
	cfs_store_destroy(v->store);
	cfs_disk_destroy(v->disk);
	cfs_pool_destroy(v->pool);
	cfs_object_close(v->object.inner);
	for (f = 0; f < INODES; f++) {
		for (c = 0; c < CHUNKS; c++)
			free(v->meta.chunk[f][c].v);
	}
	free(v);
	return r;
}

uint64_t data_metric(struct volume *v, const char *name)
{
	return metric_of(&cfs_data_metrics, v->data, name, NULL);
}

struct cfs_ctx ctx(void)
{
	return cfs_ctx_internal(30000);
}

struct cfs_file *open_file(struct volume *v, cfs_ino_t ino)
{
	struct cfs_ctx cx = ctx();
	struct cfs_attr attr;
	struct cfs_file *f;

	assert_int_equal(cfs_meta_getattr(&v->meta, &cx, ino, &attr), 0);
	assert_int_equal(cfs_data_open(v->data, ino, &attr, cfs_now_ns(), &f), 0);
	return f;
}

int write_at(struct cfs_file *f, uint64_t off, const void *data, size_t len)
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

ssize_t read_at(struct cfs_file *f, uint64_t off, void *dst, uint32_t len)
{
	struct cfs_ctx cx = ctx();
	struct cfs_segs segs;
	ssize_t n;
	int r;

	cfs_segs_init(&segs);
	r = cfs_file_read(f, &cx, 1, off, len, NULL, &segs);
	if (r < 0) {
		assert_int_equal(segs.n, 0);
		return r;
	}
	n = (ssize_t)segs.len;
	cfs_segs_copy_out(&segs, 0, dst, segs.len);
	cfs_segs_release(&segs);
	return n;
}

int flush(struct cfs_file *f)
{
	uint32_t err_seq = cfs_file_err_seq(f);
	struct cfs_ctx cx = ctx();

	return cfs_file_flush(f, &cx, err_seq);
}

uint32_t rnd(uint64_t *seed, uint32_t below)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)((*seed >> 33) % below);
}
