/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a reader gets wrong bytes or waits for ever, a block is fetched many times over,
 * an upload that failed counts as stored, or the mount outgrows its memory.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cachefs/store.h>

#include "base/bytes.h"

#define MIB	((uint64_t)1 << 20)
#define BLOCK	((uint32_t)(4 * MIB))
#define PAGE	CFS_PAGE_LARGE
#define LONG_MS 20000

static cfs_deadline_t soon(void)
{
	return cfs_deadline_in(LONG_MS);
}

/* ---- an object store that fails on demand, around a mem store ---- */

static struct faulty {
	struct cfs_object_store base;
	struct cfs_object_store *inner;
	_Atomic int gets, puts, syncs;
	_Atomic int get_error, put_error, sync_error; /* returned by every call while not 0 */

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	int hold_gets, hold_puts, hold_syncs; /* so many next calls hang until let go */
	int held;
	unsigned generation; /* grows when the held calls are let go */
} faulty;

static void pass_gate(int *hold)
{
	unsigned generation;

	pthread_mutex_lock(&faulty.lock);
	if (*hold > 0) {
		(*hold)--;
		faulty.held++;
		generation = faulty.generation;
		pthread_cond_broadcast(&faulty.changed);
		while (faulty.generation == generation)
			pthread_cond_wait(&faulty.changed, &faulty.lock);
		faulty.held--;
		pthread_cond_broadcast(&faulty.changed);
	}
	pthread_mutex_unlock(&faulty.lock);
}

static void hold(int *which, int n)
{
	pthread_mutex_lock(&faulty.lock);
	*which = n;
	pthread_mutex_unlock(&faulty.lock);
}

static void wait_held(int n)
{
	cfs_deadline_t deadline = soon();
	int r = 0;

	pthread_mutex_lock(&faulty.lock);
	while (faulty.held != n && r == 0)
		r = cfs_cond_wait(&faulty.changed, &faulty.lock, deadline);
	assert_int_equal(faulty.held, n);
	pthread_mutex_unlock(&faulty.lock);
}

static void let_go(void)
{
	pthread_mutex_lock(&faulty.lock);
	faulty.hold_gets = faulty.hold_puts = faulty.hold_syncs = 0;
	faulty.generation++;
	pthread_cond_broadcast(&faulty.changed);
	pthread_mutex_unlock(&faulty.lock);
}

static ssize_t faulty_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	faulty.gets++;
	pass_gate(&faulty.hold_gets);
	if (faulty.get_error)
		return faulty.get_error;
	return faulty.inner->ops->get(faulty.inner, key, off, dst, n_dst, deadline);
}

static int faulty_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		      int n_src, cfs_deadline_t deadline)
{
	faulty.puts++;
	pass_gate(&faulty.hold_puts);
	if (faulty.put_error)
		return faulty.put_error;
	return faulty.inner->ops->put(faulty.inner, key, src, n_src, deadline);
}

static int faulty_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	return faulty.inner->ops->del(faulty.inner, key, deadline);
}

static int faulty_sync(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	faulty.syncs++;
	pass_gate(&faulty.hold_syncs);
	return faulty.sync_error;
}

static struct cfs_object_ops faulty_ops = {
	.name = "faulty",
	.get = faulty_get,
	.put = faulty_put,
	.del = faulty_del,
	.sync = faulty_sync,
};

/* ---- fixture ---- */

static struct cfs_pool *pool;
static struct cfs_store *store;

struct setting {
	uint64_t budget, get_timeout_ms, put_timeout_ms, tier_timeout_ms;
	unsigned uploads, prefetch;
	bool whole, nowait, hash_prefix;
};

static void set_up(struct setting setting)
{
	struct cfs_object_conf object = {.storage = "mem", .bucket = "store"};
	struct cfs_store_conf conf = {
		.object = &faulty.base,
		.volume = "vol",
		.block_size = BLOCK,
		.hash_prefix = setting.hash_prefix,
		.max_downloads = 4,
		.max_uploads = setting.uploads ? setting.uploads : 4,
		.get_timeout_ms = setting.get_timeout_ms ? setting.get_timeout_ms : LONG_MS,
		.put_timeout_ms = setting.put_timeout_ms ? setting.put_timeout_ms : LONG_MS,
		.tier_timeout_ms = setting.tier_timeout_ms,
		.prefetch = setting.prefetch,
	};
	char err[256];

	memset(&faulty, 0, sizeof(faulty));
	pthread_mutex_init(&faulty.lock, NULL);
	cfs_cond_init(&faulty.changed);
	faulty.base.ops = &faulty_ops;
	faulty_ops.whole = setting.whole;
	assert_int_equal(cfs_object_open(&object, &faulty.inner, err), 0);
	assert_int_equal(cfs_pool_create(setting.budget ? setting.budget : 64 * MIB, &pool), 0);
	conf.pool = pool;
	if (setting.nowait)
		conf.object = faulty.inner;
	assert_int_equal(cfs_store_create(&conf, &store), 0);
}

static void tear_down(void)
{
	struct cfs_pool_stats st;
	int i;

	let_go();
	cfs_store_destroy(store);
	cfs_pool_stats(pool, &st);
	for (i = 0; i < CFS_USE_COUNT; i++)
		assert_int_equal(st.used[i], 0);
	cfs_pool_destroy(pool);
	cfs_object_close(faulty.inner);
}

static struct cfs_store_stats stats(void)
{
	struct cfs_store_stats st;

	cfs_store_stats(store, &st);
	return st;
}

/* The byte at a position of a block; differs between blocks and between pages. */
static uint8_t byte_at(const struct cfs_block *b, uint32_t pos)
{
	uint64_t h = (b->slice * 1000003 + b->index * 7919 + pos / 8) * 0x9E3779B97F4A7C15ULL;

	return (uint8_t)(h >> (56 - pos % 8 * 4));
}

static uint8_t *content(const struct cfs_block *b)
{
	uint8_t *data = malloc(b->len + 1);
	uint32_t i;

	for (i = 0; i < b->len; i++)
		data[i] = byte_at(b, i);
	return data;
}

/* Stores the object of a block with some length, behind the block store's back. */
static void put_object(const struct cfs_block *b, uint32_t len)
{
	uint8_t *data = content(b);
	struct iovec iov = {data, len};
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(store, b, key);
	data[b->len] = 0;
	assert_int_equal(faulty.inner->ops->put(faulty.inner, key, &iov, 1, soon()), 0);
	free(data);
}

static bool object_exists(const struct cfs_block *b)
{
	struct cfs_object_info info;
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(store, b, key);
	return faulty.inner->ops->head(faulty.inner, key, &info, soon()) == 0;
}

/* The pages of a block as a writer would have filled them, `piece` bytes each. */
static void fill(const struct cfs_block *b, uint32_t piece, struct cfs_segs *ret)
{
	uint8_t *data = content(b);
	struct cfs_page *page;
	uint32_t at, n;

	cfs_segs_init(ret);
	for (at = 0; at < b->len; at += n) {
		n = CFS_MIN(piece, b->len - at);
		assert_int_equal(cfs_page_get(pool, PAGE, CFS_USE_WRITE, soon(), &page), 0);
		memcpy(page->data, data + at, n);
		assert_int_equal(cfs_segs_add(ret, page, 0, n), 0);
	}
	free(data);
}

/* Checks every byte of a range; usable from any thread. */
static bool range_is_right(const struct cfs_segs *s, const struct cfs_block *b, uint32_t off,
			   uint32_t len)
{
	size_t i;
	uint32_t j;

	if (s->len != len)
		return false;
	for (i = 0; i < s->n; i++) {
		for (j = 0; j < s->v[i].len; j++) {
			if (s->v[i].page->data[s->v[i].off + j] != byte_at(b, off++))
				return false;
		}
	}
	return true;
}

static int read_range(const struct cfs_block *b, uint32_t off, uint32_t len,
		      cfs_deadline_t deadline)
{
	struct cfs_segs s;
	int r;

	cfs_segs_init(&s);
	r = cfs_store_read(store, b, off, len, deadline, &s);
	if (r == 0 && !range_is_right(&s, b, off, len))
		r = -EILSEQ;
	cfs_segs_release(&s);
	return r;
}

struct outcome {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int calls, err;
};

static struct outcome new_outcome(void)
{
	struct outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER};

	cfs_cond_init(&o.changed);
	return o;
}

static void put_done(void *arg, int err)
{
	struct outcome *o = arg;

	pthread_mutex_lock(&o->lock);
	o->calls++;
	o->err = err;
	pthread_cond_signal(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

static int wait_outcome(struct outcome *o)
{
	cfs_deadline_t deadline = soon();
	int r = 0;

	pthread_mutex_lock(&o->lock);
	while (!o->calls && r == 0)
		r = cfs_cond_wait(&o->changed, &o->lock, deadline);
	r = o->calls == 1 ? o->err : -ENOTRECOVERABLE;
	pthread_mutex_unlock(&o->lock);
	return r;
}

/* Waits until a figure of the statistics has a value. */
#define WAIT_STAT(field, value)                                                                    \
	do {                                                                                       \
		cfs_deadline_t until_ = soon();                                                    \
		while (stats().field != (value)) {                                                 \
			assert_false(cfs_deadline_passed(until_));                                 \
			cfs_backoff(0, 1, 1, until_);                                              \
		}                                                                                  \
	} while (0)

/* ---- tests ---- */

/* Objects under other names would be invisible to the other client. */
static void keys(void **state)
{
	struct cfs_block b = {.slice = 1234567, .index = 0, .len = 4194304};
	char key[CFS_BLOCK_KEY_MAX];

	set_up((struct setting){0});
	cfs_store_block_key(store, &b, key);
	assert_string_equal(key, "vol/chunks/1/1234/1234567_0_4194304");
	tear_down();
	set_up((struct setting){.hash_prefix = true});
	b = (struct cfs_block){.slice = 10, .index = 3, .len = 4096};
	assert_int_equal(cfs_store_block_key(store, &b, key), 25);
	assert_string_equal(key, "vol/chunks/0A/0/10_3_4096");
	tear_down();
}

static void ranges(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK - 1000};
	struct cfs_segs s;

	set_up((struct setting){0});
	put_object(&b, b.len);
	assert_int_equal(read_range(&b, 5, 10, soon()), 0);
	assert_int_equal(faulty.gets, 1);
	/* Widened to the page. */
	assert_int_equal(read_range(&b, 0, PAGE, 0), 0);
	assert_false(cfs_store_in_memory(store, &b, 0, PAGE + 1));
	assert_int_equal(read_range(&b, PAGE - 1, 2, soon()), 0);
	assert_int_equal(read_range(&b, b.len - 1, 1, soon()), 0);
	assert_int_equal(faulty.gets, 3);
	/* Only what is missing, in as many runs as it takes. */
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(faulty.gets, 4);
	assert_int_equal(stats().get_bytes, b.len);
	assert_true(cfs_store_in_memory(store, &b, 0, b.len));
	cfs_store_forget(store, &b);
	assert_int_equal(read_range(&b, 3 * PAGE, PAGE, soon()), 0);
	assert_int_equal(read_range(&b, 7 * PAGE, PAGE, soon()), 0);
	assert_int_equal(read_range(&b, PAGE, 9 * PAGE, soon()), 0);
	assert_int_equal(faulty.gets, 9);

	cfs_segs_init(&s);
	assert_int_equal(cfs_store_read(store, &b, b.len - 1, 2, soon(), &s), -EINVAL);
	assert_int_equal(cfs_store_read(store, &b, 0, 0, soon(), &s), -EINVAL);
	/* Appends. */
	assert_int_equal(cfs_store_read(store, &b, 0, 7, soon(), &s), 0);
	assert_int_equal(cfs_store_read(store, &b, 7, 2 * PAGE, soon(), &s), 0);
	assert_true(range_is_right(&s, &b, 0, 7 + 2 * PAGE));
	cfs_segs_release(&s);
	tear_down();
}

enum { READERS = 16 };

struct reader {
	struct cfs_block b;
	uint32_t off, len;
	cfs_deadline_t deadline;
	int r;
};

static void *run_reader(void *arg)
{
	struct reader *rd = arg;

	rd->r = read_range(&rd->b, rd->off, rd->len, rd->deadline);
	return NULL;
}

static void start_readers(struct reader *rd, pthread_t *t, int n)
{
	int i;

	for (i = 0; i < n; i++)
		assert_int_equal(pthread_create(&t[i], NULL, run_reader, &rd[i]), 0);
}

static void join_readers(pthread_t *t, int n)
{
	int i;

	for (i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

/* Sixteen readers of one block cost one request, not sixteen. */
static void single_flight(void **state)
{
	struct cfs_block b = {.slice = 2, .index = 1, .len = BLOCK};
	struct reader rd[READERS];
	pthread_t t[READERS];
	int i;

	set_up((struct setting){0});
	put_object(&b, b.len);
	hold(&faulty.hold_gets, 1);
	for (i = 0; i < READERS; i++)
		rd[i] = (struct reader){.b = b, .len = BLOCK, .deadline = soon()};
	start_readers(rd, t, READERS);
	wait_held(1);
	let_go();
	join_readers(t, READERS);
	for (i = 0; i < READERS; i++)
		assert_int_equal(rd[i].r, 0);
	assert_int_equal(faulty.gets, 1);
	tear_down();
}

/* A reader in a hurry leaves; the one with time gets the bytes of the same request. */
static void every_reader_has_its_own_deadline(void **state)
{
	struct cfs_block b = {.slice = 3, .len = BLOCK};
	struct reader rd = {.b = b, .len = BLOCK, .deadline = soon()};
	pthread_t t;

	set_up((struct setting){0});
	put_object(&b, b.len);
	hold(&faulty.hold_gets, 1);
	start_readers(&rd, &t, 1);
	wait_held(1);
	assert_int_equal(read_range(&b, 0, 10, cfs_deadline_in(50)), -EIO);
	assert_int_equal(read_range(&b, 0, 10, 0), -EIO);
	let_go();
	join_readers(&t, 1);
	assert_int_equal(rd.r, 0);
	assert_int_equal(faulty.gets, 1);
	tear_down();
}

/* A hanging object store costs the readers of that moment an EIO, not the block for ever. */
static void stuck_worker_is_left_behind(void **state)
{
	struct cfs_block b = {.slice = 4, .len = 100};

	set_up((struct setting){.get_timeout_ms = 500});
	put_object(&b, b.len);
	hold(&faulty.hold_gets, 1);
	assert_int_equal(read_range(&b, 0, 100, cfs_deadline_in(500)), -EIO);
	assert_int_equal(faulty.gets, 1);
	assert_int_equal(read_range(&b, 0, 100, soon()), 0);
	assert_int_equal(faulty.gets, 2);
	let_go();
	wait_held(0);
	assert_int_equal(read_range(&b, 0, 100, 0), 0);
	tear_down();
}

static void bad_objects(void **state)
{
	struct cfs_block b = {.slice = 5, .len = 3 * PAGE + 5}, other = {.slice = 6, .len = 10};
	struct cfs_segs s;

	set_up((struct setting){0});
	put_object(&other, other.len);
	cfs_segs_init(&s);
	assert_int_equal(cfs_store_read(store, &other, 0, 10, soon(), &s), 0);

	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -ENOENT);
	put_object(&b, b.len - 1);
	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -EIO);
	assert_int_equal(cfs_store_read(store, &b, 3 * PAGE, 1, soon(), &s), -EIO);
	put_object(&b, b.len + 1);
	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -EIO);
	assert_int_equal(cfs_store_read(store, &b, 3 * PAGE, 1, soon(), &s), -EIO);
	put_object(&b, b.len);
	faulty.get_error = -EACCES;
	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -EIO);
	faulty.get_error = 0;
	assert_int_equal(stats().get_errors, 6);
	assert_true(range_is_right(&s, &other, 0, 10));
	cfs_segs_release(&s);
	/* Nothing of it is remembered. */
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	tear_down();
}

/* Compressed and encrypted objects come whole: one request must serve every later range. */
static void whole_objects(void **state)
{
	struct cfs_block b = {.slice = 7, .len = BLOCK - 77};

	set_up((struct setting){.whole = true});
	put_object(&b, b.len);
	assert_int_equal(read_range(&b, 2 * PAGE + 5, 10, soon()), 0);
	assert_int_equal(read_range(&b, 0, b.len, 0), 0);
	assert_int_equal(faulty.gets, 1);
	tear_down();
}

/* What needs no waiting is read by the thread that asks. */
static void nowait_on_the_calling_thread(void **state)
{
	struct cfs_block b = {.slice = 8, .len = BLOCK}, absent = {.slice = 9, .len = 5};

	set_up((struct setting){.nowait = true});
	put_object(&b, b.len);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	assert_int_equal(read_range(&absent, 0, 5, soon()), -ENOENT);
	assert_int_equal(stats().gets, 2);
	tear_down();
}

static void put_is_visible_before_its_upload_ends(void **state)
{
	struct cfs_block b = {.slice = 10, .len = 5 * PAGE + 100};
	struct outcome o = new_outcome();
	struct cfs_segs data;
	uint32_t piece;

	/* Pages as blocks want them, smaller ones, and ones across the borders. */
	for (piece = PAGE; piece > 1000; piece = piece * 3 / 5) {
		set_up((struct setting){.budget = 128 * MIB});
		o.calls = 0;
		fill(&b, piece, &data);
		hold(&faulty.hold_puts, 1);
		assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o, soon()), 0);
		assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o, soon()), -EBUSY);
		cfs_segs_release(&data);
		wait_held(1);
		assert_int_equal(read_range(&b, 0, b.len, 0), 0);
		assert_int_equal(read_range(&b, PAGE - 3, PAGE, 0), 0);
		assert_true(cfs_store_in_memory(store, &b, 0, b.len));
		assert_false(object_exists(&b));
		let_go();
		assert_int_equal(wait_outcome(&o), 0);
		assert_true(object_exists(&b));
		assert_int_equal(read_range(&b, 0, b.len, 0), 0);
		assert_int_equal(faulty.gets, 0);
		cfs_store_forget(store, &b);
		assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
		tear_down();
	}
}

/* A small file costs what it holds, not the page it was written in. */
static void small_blocks_are_small(void **state)
{
	struct cfs_block a = {.slice = 11, .len = 100}, b = {.slice = 12, .len = 20000};
	struct cfs_block c = {.slice = 13, .len = PAGE + 1};
	struct cfs_segs data;

	set_up((struct setting){0});
	fill(&a, PAGE, &data);
	assert_int_equal(cfs_store_put_sync(store, &a, &data, soon()), 0);
	cfs_segs_release(&data);
	assert_int_equal(stats().memory_bytes, CFS_PAGE_SMALL);
	put_object(&b, b.len);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(stats().memory_bytes, CFS_PAGE_SMALL + CFS_PAGE_MEDIUM);
	fill(&c, PAGE, &data);
	assert_int_equal(cfs_store_put_sync(store, &c, &data, soon()), 0);
	cfs_segs_release(&data);
	assert_int_equal(stats().memory_bytes, 2 * CFS_PAGE_SMALL + CFS_PAGE_MEDIUM + PAGE);
	assert_int_equal(read_range(&a, 0, a.len, 0), 0);
	assert_int_equal(read_range(&c, 0, c.len, 0), 0);
	tear_down();
}

static void failed_put_is_reported_once(void **state)
{
	struct cfs_block b = {.slice = 14, .len = BLOCK};
	struct outcome o = new_outcome();
	struct cfs_segs data;

	set_up((struct setting){0});
	fill(&b, PAGE, &data);
	faulty.put_error = -ENOSPC;
	assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o, soon()), 0);
	assert_int_equal(wait_outcome(&o), -ENOSPC);
	assert_int_equal(stats().put_errors, 1);
	assert_int_equal(read_range(&b, 0, b.len, soon()), -ENOENT);
	assert_int_equal(cfs_store_put_sync(store, &b, &data, soon()), -ENOSPC);
	faulty.put_error = 0;
	assert_int_equal(cfs_store_put_sync(store, &b, &data, soon()), 0);
	cfs_segs_release(&data);
	assert_int_equal(read_range(&b, 0, b.len, 0), 0);
	tear_down();
	assert_int_equal(o.calls, 1);
}

/* A hanging object store fails its uploads in time, those in the queue behind them too. */
static void stuck_puts_are_reported(void **state)
{
	struct cfs_block b[3] = {
		{.slice = 15, .len = PAGE}, {.slice = 16, .len = PAGE}, {.slice = 17, .len = PAGE}};
	struct outcome o[3] = {new_outcome(), new_outcome(), new_outcome()};
	struct cfs_segs data;
	int i;

	set_up((struct setting){.put_timeout_ms = 100, .uploads = 2});
	hold(&faulty.hold_puts, 2);
	for (i = 0; i < 3; i++) {
		fill(&b[i], PAGE, &data);
		assert_int_equal(
			cfs_store_put(store, &b[i], &data, put_done, &o[i], cfs_deadline_in(100)),
			0);
		cfs_segs_release(&data);
	}
	for (i = 0; i < 3; i++)
		assert_int_equal(wait_outcome(&o[i]), -ETIMEDOUT);
	assert_int_equal(read_range(&b[2], 0, 1, soon()), -ENOENT);
	let_go();
	tear_down();
	for (i = 0; i < 3; i++)
		assert_int_equal(o[i].calls, 1);
}

/* Waiting for room in the upload queue ends at the caller's deadline, and leaves nothing behind. */
static void upload_queue_is_bounded(void **state)
{
	enum { FIT = 2 };
	struct cfs_block b = {.slice = 18, .len = BLOCK};
	struct outcome o[FIT + 1];
	struct cfs_segs data;
	int i;

	/* Half of 16 MiB. */
	set_up((struct setting){.budget = 16 * MIB});
	hold(&faulty.hold_puts, 10);
	for (i = 0; i <= FIT; i++) {
		b.index = (uint32_t)i;
		o[i] = new_outcome();
		fill(&b, PAGE, &data);
		assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o[i],
					       cfs_deadline_in(i < FIT ? LONG_MS : 50)),
				 i < FIT ? 0 : -EIO);
		cfs_segs_release(&data);
	}
	assert_int_equal(read_range(&b, 0, 1, soon()), -ENOENT);
	let_go();
	for (i = 0; i < FIT; i++)
		assert_int_equal(wait_outcome(&o[i]), 0);
	tear_down();
	assert_int_equal(o[FIT].calls, 0);
}

enum { N_BLOCKS = 60, ROUNDS = 120 };

static void *read_at_random(void *arg)
{
	uint64_t rnd = (uint64_t)(uintptr_t)arg * 0x9E3779B97F4A7C15ULL;
	intptr_t bad = 0;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		struct cfs_block b = {.slice = 100, .len = BLOCK};
		uint32_t off, len;

		rnd = rnd * 6364136223846793005ULL + 1442695040888963407ULL;
		/* Half of the reads go to a tenth of the blocks. */
		b.index = (uint32_t)(rnd >> 33) % (rnd >> 63 ? N_BLOCKS : N_BLOCKS / 10);
		off = (uint32_t)(rnd >> 20) % (BLOCK - 1);
		len = 1 + (uint32_t)(rnd >> 7) % CFS_MIN(BLOCK - off, (uint32_t)MIB);
		if (i % 8 == 0)
			cfs_store_prefetch(store, &b, 0, BLOCK, 0);
		bad += read_range(&b, off, len, soon()) != 0;
	}
	return (void *)bad;
}

/* 240 MiB of blocks through 64 MiB of memory, which nobody ever exceeds. */
static void eviction_keeps_the_budget(void **state)
{
	enum { THREADS = 8 };
	struct cfs_pool_stats st;
	pthread_t t[THREADS];
	uint32_t i;
	void *bad;

	set_up((struct setting){0});
	for (i = 0; i < N_BLOCKS; i++) {
		struct cfs_block b = {.slice = 100, .index = i, .len = BLOCK};

		put_object(&b, b.len);
	}
	for (i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&t[i], NULL, read_at_random, (void *)(uintptr_t)(i + 1)), 0);
	for (i = 0; i < THREADS; i++) {
		pthread_join(t[i], &bad);
		assert_null(bad);
	}
	WAIT_STAT(downloads_queued, 0);
	cfs_pool_stats(pool, &st);
	assert_true(st.mapped <= 64 * MIB + 3 * 2 * MIB);
	assert_true(stats().memory_bytes <= 64 * MIB);
	assert_true(stats().memory_bytes > 32 * MIB);
	assert_true(stats().memory_hits > 0);
	tear_down();
}

/* Readers that together want more than there is take turns instead of starving each other. */
static void readers_take_turns_for_memory(void **state)
{
	struct reader rd[READERS];
	pthread_t t[READERS];
	uint32_t i;

	set_up((struct setting){.budget = 8 * MIB});
	for (i = 0; i < READERS; i++) {
		rd[i] = (struct reader){
			.b = {.slice = 20, .index = i, .len = BLOCK},
			.len = BLOCK,
			.deadline = soon(),
		};
		put_object(&rd[i].b, BLOCK);
	}
	start_readers(rd, t, READERS);
	join_readers(t, READERS);
	for (i = 0; i < READERS; i++)
		assert_int_equal(rd[i].r, 0);
	tear_down();
}

/* Without memory a read fails at its deadline and leaves the block readable. */
static void no_memory_no_read(void **state)
{
	struct cfs_block b = {.slice = 21, .len = BLOCK};
	struct cfs_page *pages[8 * MIB / PAGE];
	size_t i;

	set_up((struct setting){.budget = 8 * MIB});
	put_object(&b, b.len);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		assert_int_equal(cfs_page_get(pool, PAGE, CFS_USE_PEER, 0, &pages[i]), 0);
	assert_int_equal(read_range(&b, 0, 10, cfs_deadline_in(50)), -EIO);
	cfs_store_prefetch(store, &b, 0, BLOCK, 0);
	assert_int_equal(stats().prefetches, 0);
	assert_int_equal(stats().prefetch_drops, 1);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		cfs_page_unref(pages[i]);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	tear_down();
}

static void prefetch(void **state)
{
	struct cfs_block b = {.slice = 22, .len = BLOCK}, absent = {.slice = 23, .len = BLOCK};
	struct reader rd = {.b = b, .len = BLOCK, .deadline = soon()};
	pthread_t t;

	set_up((struct setting){0});
	put_object(&b, b.len);
	hold(&faulty.hold_gets, 1);
	cfs_store_prefetch(store, &b, 0, BLOCK, 0);
	wait_held(1);
	/* Again: under way. */
	cfs_store_prefetch(store, &b, PAGE, PAGE, 0);
	start_readers(&rd, &t, 1);
	let_go();
	join_readers(&t, 1);
	assert_int_equal(rd.r, 0);
	assert_int_equal(faulty.gets, 1);
	assert_int_equal(stats().prefetches, 1);
	/* A prefetch that fails decides nothing for the reader. */
	cfs_store_prefetch(store, &absent, 0, BLOCK, 0);
	WAIT_STAT(get_errors, 1);
	put_object(&absent, absent.len);
	assert_int_equal(read_range(&absent, 0, 10, soon()), 0);
	tear_down();
}

/*
 * A file that is read from one end to the other does not push out everything else, nor does the
 * mount grow to all of its memory for it.
 */
static void streams_pass_by(void **state)
{
	struct cfs_block b = {.slice = 30, .len = BLOCK}, kept = {.slice = 31, .len = BLOCK};
	uint32_t n = 20, off;

	set_up((struct setting){.budget = 64 * MIB});
	put_object(&kept, kept.len);
	assert_int_equal(read_range(&kept, 0, BLOCK, soon()), 0);
	for (b.index = 0; b.index < n; b.index++) {
		put_object(&b, b.len);
		assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 1));
		for (off = 0; off < BLOCK; off += PAGE / 2)
			assert_int_equal(read_range(&b, off, PAGE / 2, soon()), 0);
	}
	assert_int_equal(faulty.gets, n + 1);
	/* An eighth, what came last, and what was kept. */
	assert_in_range(stats().memory_bytes, 2 * BLOCK, 64 * MIB / 8 + 2 * BLOCK);
	assert_true(cfs_store_in_memory(store, &kept, 0, BLOCK));
	/* What somebody comes back to is kept like anything else. */
	b.index = n - 1;
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	for (b.index = 0; b.index < n - 1; b.index++) {
		cfs_store_prefetch(store, &b, 0, BLOCK, 1);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	}
	assert_true(cfs_store_in_memory(store, &b, 0, BLOCK));
	tear_down();
}

static void prefetches_are_bounded(void **state)
{
	struct cfs_block b = {.slice = 24, .len = PAGE};

	set_up((struct setting){0});
	hold(&faulty.hold_gets, 100);
	for (b.index = 0; b.index < 20; b.index++) {
		put_object(&b, b.len);
		cfs_store_prefetch(store, &b, 0, PAGE, 0);
	}
	/* Three quarters of four workers; the fourth is free for a reader. */
	wait_held(3);
	assert_int_equal(stats().prefetches, 3);
	assert_int_equal(stats().prefetch_drops, 17);
	hold(&faulty.hold_gets, 0);
	b.index = 19;
	assert_int_equal(read_range(&b, 0, PAGE, soon()), 0);
	tear_down();
}

/* A quarter of a block costs what the whole costs: the next read must find the rest. */
static void large_misses_fetch_the_block(void **state)
{
	struct cfs_block b = {.slice = 31, .len = BLOCK};

	set_up((struct setting){0});
	put_object(&b, b.len);
	assert_int_equal(read_range(&b, BLOCK - 3 * PAGE, PAGE, soon()), 0);
	assert_int_equal(read_range(&b, PAGE, BLOCK / 4, soon()), 0);
	assert_int_equal(faulty.gets, 2);
	assert_true(cfs_store_in_memory(store, &b, 0, BLOCK - 2 * PAGE));
	assert_int_equal(stats().get_bytes, BLOCK - 2 * PAGE);
	/* Not what somebody has already. */
	assert_false(cfs_store_in_memory(store, &b, 0, BLOCK));
	cfs_store_forget(store, &b);
	assert_int_equal(read_range(&b, PAGE, BLOCK / 4 - PAGE, soon()), 0);
	assert_int_equal(stats().get_bytes, BLOCK - 2 * PAGE + BLOCK / 4 - PAGE);
	tear_down();
}

/* Memory that is short is not spent on what nobody has asked for. */
static void large_misses_respect_the_budget(void **state)
{
	struct cfs_block b = {.slice = 32, .len = BLOCK};
	struct cfs_page *pages[14 * MIB / PAGE];
	size_t i;

	set_up((struct setting){.budget = 24 * MIB});
	put_object(&b, b.len);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		assert_int_equal(cfs_page_get(pool, PAGE, CFS_USE_WRITE, 0, &pages[i]), 0);
	assert_int_equal(read_range(&b, 0, BLOCK / 4, soon()), 0);
	assert_int_equal(stats().get_bytes, BLOCK / 4);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		cfs_page_unref(pages[i]);
	tear_down();
}

static void whole_blocks_are_prefetched(void **state)
{
	struct cfs_block b = {.slice = 33, .len = BLOCK};
	struct cfs_segs s;
	bool far = false;
	unsigned i;

	set_up((struct setting){.prefetch = 1});
	for (b.index = 0; b.index < 100; b.index++)
		put_object(&b, b.len);
	b.index = 0;
	cfs_segs_init(&s);
	assert_int_equal(cfs_store_fetch(store, &b, 0, 10, soon(), &s, &far), 0);
	assert_true(far);
	assert_int_equal(cfs_store_fetch(store, &b, 0, 10, soon(), &s, &far), 0);
	assert_false(far);
	cfs_segs_release(&s);
	assert_true(cfs_store_prefetch_block(store, &b, 1));
	WAIT_STAT(get_bytes, BLOCK);
	assert_int_equal(faulty.gets, 2);

	/* One at a time, of a queue that ends somewhere, and each block once. */
	hold(&faulty.hold_gets, 1);
	for (i = 0; i < 200; i++) {
		b.index = 1 + i % 99;
		cfs_store_prefetch_block(store, &b, 1);
		if (i == 0)
			wait_held(1);
	}
	assert_int_equal(faulty.gets, 3);
	assert_in_range(stats().block_prefetch_drops, 50, 100);
	assert_int_equal(stats().block_prefetches, 1 + 1 + 64 + 0);
	/* What a closed file had queued is not fetched. */
	cfs_store_cancel(store, 2);
	assert_int_equal(stats().prefetch_cancels, 0);
	cfs_store_cancel(store, 1);
	assert_int_equal(stats().prefetch_cancels, 64);
	let_go();
	b.index = 1;
	WAIT_STAT(get_bytes, 2 * (uint64_t)BLOCK);
	assert_true(cfs_store_in_memory(store, &b, 0, BLOCK));
	assert_int_equal(faulty.gets, 3);
	tear_down();
	set_up((struct setting){0});
	assert_false(cfs_store_prefetch_block(store, &b, 1));
	tear_down();
}

/* A reader who has come to wait for read-ahead of a file that is closed gets his bytes. */
static void cancelled_read_ahead(void **state)
{
	struct cfs_block held = {.slice = 34, .len = PAGE}, b = {.slice = 35, .len = PAGE};
	struct reader rd[4], late = {.b = b, .len = PAGE, .deadline = soon()};
	pthread_t t[4], t_late;
	int i;

	set_up((struct setting){0});
	put_object(&b, b.len);
	hold(&faulty.hold_gets, 4);
	for (i = 0; i < 4; i++) {
		held.index = (uint32_t)i;
		put_object(&held, held.len);
		rd[i] = (struct reader){.b = held, .len = PAGE, .deadline = soon()};
	}
	start_readers(rd, t, 4);
	wait_held(4);
	/* Every worker is busy: this one is queued. */
	assert_true(cfs_store_prefetch(store, &b, 0, PAGE, 7));
	start_readers(&late, &t_late, 1);
	cfs_store_cancel(store, 8);
	assert_int_equal(stats().prefetch_cancels, 0);
	cfs_store_cancel(store, 7);
	assert_int_equal(stats().prefetch_cancels, 1);
	let_go();
	join_readers(t, 4);
	join_readers(&t_late, 1);
	assert_int_equal(late.r, 0);
	assert_int_equal(faulty.gets, 5);
	tear_down();
}

/*
 * Read-ahead must find its reader: pages that were read go first. But what nobody comes for does
 * not stay for ever.
 */
static void pages_ahead_wait_for_their_reader(void **state)
{
	struct cfs_block ahead = {.slice = 38, .len = BLOCK}, b = {.slice = 39, .len = BLOCK};

	set_up((struct setting){.budget = 64 * MIB});
	put_object(&ahead, ahead.len);
	assert_true(cfs_store_prefetch(store, &ahead, 0, BLOCK, 0));
	WAIT_STAT(get_bytes, BLOCK);
	WAIT_STAT(memory_bytes, BLOCK);
	/* 80 % of the pool are for pages, half of that is what one may wait for. */
	for (b.index = 0; b.index < 18; b.index++) {
		put_object(&b, b.len);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
		if (b.index == 5)
			assert_true(cfs_store_in_memory(store, &ahead, 0, BLOCK));
	}
	for (; b.index < 60; b.index++) {
		put_object(&b, b.len);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	}
	assert_false(cfs_store_in_memory(store, &ahead, 0, BLOCK));
	tear_down();
}

static void warm_memory(void **state)
{
	struct cfs_block b = {.slice = 36, .len = BLOCK}, absent = {.slice = 37, .len = 10};
	struct cfs_store_held held;

	set_up((struct setting){0});
	put_object(&b, b.len);
	assert_false(cfs_store_has_disk(store));
	assert_int_equal(read_range(&b, PAGE, PAGE, soon()), 0);
	cfs_store_held(store, &b, 10, BLOCK, &held);
	assert_int_equal(held.memory, PAGE);
	cfs_store_held(store, &b, PAGE + 10, 20, &held);
	assert_int_equal(held.memory, 20);
	assert_int_equal(cfs_store_warm(store, &b, soon()), 1);
	assert_int_equal(cfs_store_warm(store, &b, soon()), 0);
	cfs_store_held(store, &b, 10, BLOCK, &held);
	assert_int_equal(held.memory, BLOCK - 10);
	assert_int_equal(held.disk, 0);
	assert_int_equal(cfs_store_warm(store, &absent, soon()), -ENOENT);
	tear_down();
}

static void remove_slice(void **state)
{
	struct cfs_block b = {.slice = 25, .len = BLOCK},
			 tail = {.slice = 25, .index = 1, .len = 7};

	set_up((struct setting){0});
	put_object(&b, b.len);
	put_object(&tail, tail.len);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	assert_int_equal(read_range(&tail, 0, 7, soon()), 0);
	assert_int_equal(cfs_store_remove_slice(store, 25, BLOCK + 7, soon()), 0);
	assert_false(object_exists(&b) || object_exists(&tail));
	assert_int_equal(stats().memory_bytes, 0);
	assert_int_equal(stats().deletes, 2);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), -ENOENT);
	assert_int_equal(cfs_store_remove_slice(store, 25, BLOCK + 7, soon()), 0);
	tear_down();
}

static void *run_sync(void *arg)
{
	return (void *)(intptr_t)cfs_store_sync(store, soon());
}

/* An fsync covers the puts before it, even when another one is under way, and gives up in time. */
static void sync_is_shared(void **state)
{
	pthread_t t[READERS];
	void *r;
	int i;

	set_up((struct setting){0});
	hold(&faulty.hold_syncs, 1);
	assert_int_equal(pthread_create(&t[0], NULL, run_sync, NULL), 0);
	wait_held(1);
	assert_int_equal(cfs_store_sync(store, cfs_deadline_in(50)), -EIO);
	for (i = 1; i < READERS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, run_sync, NULL), 0);
	let_go();
	for (i = 0; i < READERS; i++) {
		pthread_join(t[i], &r);
		assert_null(r);
	}
	assert_true(faulty.syncs >= 2);
	faulty.sync_error = -EDQUOT;
	assert_int_equal(cfs_store_sync(store, soon()), -EDQUOT);
	faulty.sync_error = 0;
	assert_int_equal(cfs_store_sync(store, soon()), 0);
	tear_down();
}

/* ---- tiers ---- */

struct test_tier {
	struct cfs_block has; /* len 0: nothing */
	_Atomic int gets, offers, forgets;
	bool lies; /* delivers too little */
	bool waits;
	int hold; /* so many next gets that may wait hang until let go */
	_Atomic int lates;
};

static ssize_t tier_get(void *arg, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
			int n_dst, bool nowait, cfs_deadline_t deadline)
{
	struct test_tier *t = arg;
	ssize_t n = 0;
	size_t j;
	int i;

	if (nowait && t->waits)
		return -EAGAIN;
	t->gets++;
	if (!nowait)
		pass_gate(&t->hold);
	if (memcmp(b, &t->has, sizeof(*b)) != 0)
		return -ENOENT;
	for (i = 0; i < n_dst; i++) {
		for (j = 0; j < dst[i].iov_len; j++)
			((uint8_t *)dst[i].iov_base)[j] = byte_at(b, off + (uint32_t)n++);
	}
	return t->lies ? n - 1 : n;
}

static void tier_offer(void *arg, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct test_tier *t = arg;

	assert_true(range_is_right(data, b, 0, b->len));
	t->offers++;
}

static void tier_forget(void *arg, const struct cfs_block *b)
{
	struct test_tier *t = arg;

	t->forgets++;
}

static const struct cfs_tier_ops tier_ops = {
	.name = "test",
	.get = tier_get,
	.offer = tier_offer,
	.forget = tier_forget,
};

/* The nearest tier that has a block delivers it, and the nearer ones are offered it. */
static void tiers(void **state)
{
	struct cfs_block b = {.slice = 26, .len = 5 * PAGE}, c = {.slice = 27, .len = 5 * PAGE};
	struct test_tier near = {.waits = true}, far = {.has = b};

	set_up((struct setting){0});
	assert_int_equal(cfs_store_add_tier(store, &tier_ops, &near), 0);
	assert_int_equal(cfs_store_add_tier(store, &tier_ops, &far), 0);
	assert_int_equal(read_range(&b, 0, PAGE, soon()), 0);
	assert_int_equal(near.gets, 1);
	assert_int_equal(near.offers, 0);
	cfs_store_forget(store, &b);
	assert_int_equal(near.forgets + far.forgets, 2);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(near.gets, 2);
	assert_int_equal(far.gets, 2);
	assert_int_equal(faulty.gets, 0);

	put_object(&c, c.len);
	assert_int_equal(read_range(&c, 0, c.len, soon()), 0);
	assert_int_equal(faulty.gets, 1);
	assert_int_equal(far.gets, 3);

	/* A tier that fails is passed over. */
	far.lies = true;
	cfs_store_forget(store, &b);
	put_object(&b, b.len);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(faulty.gets, 2);
	tear_down();
	assert_int_equal(near.offers, 3);
	assert_int_equal(far.offers, 2);
}

static void tier_late(void *arg, const struct cfs_block *b)
{
	struct test_tier *t = arg;

	t->lates++;
	hold(&t->hold, 0);
}

struct range_reader {
	struct cfs_block b;
	uint32_t off, len;
	int result;
};

static void *read_one(void *arg)
{
	struct range_reader *r = arg;

	r->result = read_range(&r->b, r->off, r->len, soon());
	return NULL;
}

/* A cache that hangs with every worker in it costs its readers a moment, not an error. */
static void hanging_tier(void **state)
{
	enum { N = 8 };
	static const struct cfs_tier_ops ops = {
		.name = "test",
		.local = true,
		.get = tier_get,
		.late = tier_late,
	};
	struct test_tier tier = {.waits = true};
	struct range_reader readers[N];
	pthread_t threads[N];
	unsigned i;

	set_up((struct setting){.tier_timeout_ms = 100});
	assert_int_equal(cfs_store_add_tier(store, &ops, &tier), 0);
	hold(&tier.hold, N);
	for (i = 0; i < N; i++) {
		/* Small reads and large ones; the workers are 4. */
		readers[i] = (struct range_reader){
			.b = {.slice = 40 + i, .len = 2 * PAGE},
			.len = i % 2 ? 4096 : 2 * PAGE,
		};
		put_object(&readers[i].b, readers[i].b.len);
		assert_int_equal(pthread_create(&threads[i], NULL, read_one, &readers[i]), 0);
	}
	for (i = 0; i < N; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(readers[i].result, 0);
	}
	assert_in_range(tier.lates, 1, N);
	let_go();
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys),
		cmocka_unit_test(ranges),
		cmocka_unit_test(single_flight),
		cmocka_unit_test(every_reader_has_its_own_deadline),
		cmocka_unit_test(stuck_worker_is_left_behind),
		cmocka_unit_test(bad_objects),
		cmocka_unit_test(whole_objects),
		cmocka_unit_test(nowait_on_the_calling_thread),
		cmocka_unit_test(put_is_visible_before_its_upload_ends),
		cmocka_unit_test(small_blocks_are_small),
		cmocka_unit_test(failed_put_is_reported_once),
		cmocka_unit_test(stuck_puts_are_reported),
		cmocka_unit_test(upload_queue_is_bounded),
		cmocka_unit_test(eviction_keeps_the_budget),
		cmocka_unit_test(readers_take_turns_for_memory),
		cmocka_unit_test(no_memory_no_read),
		cmocka_unit_test(prefetch),
		cmocka_unit_test(streams_pass_by),
		cmocka_unit_test(prefetches_are_bounded),
		cmocka_unit_test(large_misses_fetch_the_block),
		cmocka_unit_test(large_misses_respect_the_budget),
		cmocka_unit_test(whole_blocks_are_prefetched),
		cmocka_unit_test(cancelled_read_ahead),
		cmocka_unit_test(pages_ahead_wait_for_their_reader),
		cmocka_unit_test(warm_memory),
		cmocka_unit_test(remove_slice),
		cmocka_unit_test(sync_is_shared),
		cmocka_unit_test(tiers),
		cmocka_unit_test(hanging_tier),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
