/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead, and reads of objects that compaction has replaced. When these
 * fail, users wait for every block of a stream, pay for bytes that they never read, or get errors
 * for files that are whole.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "data_fixture.h"

/* Drops the file from memory: it has a slice per chunk, or more where the writer was slow. */
static void forget_all(struct volume *v, uint32_t block)
{
	unsigned chunk;
	size_t i;

	for (chunk = 0; chunk < CHUNKS; chunk++) {
		const struct list *l = &v->meta.chunk[1][chunk];

		for (i = 0; i < l->n; i++) {
			struct cfs_block b = {.slice = l->v[i].id};

			for (; b.index * block < l->v[i].size; b.index++) {
				b.len = CFS_MIN(block, l->v[i].size - b.index * block);
				cfs_store_forget(v->store, &b);
			}
		}
	}
}

static uint64_t block_prefetches(struct volume *v)
{
	return metric_of(&cfs_store_metrics, v->store, "store_block_prefetches_total", NULL) +
	       metric_of(&cfs_store_metrics, v->store, "store_block_prefetch_drops_total", NULL);
}

static uint64_t fetched(struct volume *v)
{
	return metric_of(&cfs_store_metrics, v->store, "object_data_bytes_total", "get");
}

static uint64_t gets_of(struct volume *v)
{
	return metric_of(&cfs_store_metrics, v->store, "object_requests_total", "get");
}

static uint64_t declined(struct volume *v)
{
	return data_metric(v, "data_prefetches_declined_total");
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
	uint64_t before;
	int i, part;

	assert_non_null(buf);
	for (i = 0; i < N; i++)
		assert_int_equal(write_at(f, (uint64_t)i * SIZE, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	forget_all(v, SIZE);
	/* From the end, so that nothing looks like a stream. The first 16 or so get a chance. */
	for (i = N - 1; i >= 0; i--)
		assert_int_equal(read_at(f, (uint64_t)i * SIZE + SIZE / 2 + 4096, buf, 4096), 4096);
	assert_in_range(block_prefetches(v), 15, 25);
	assert_int_equal(block_prefetches(v) + declined(v), N);

	/* The same file, read in more and more parts: worth it again. */
	for (part = 0; part < PARTS; part++) {
		for (i = N - 1; i >= 0; i--)
			assert_int_equal(
				read_at(f, (uint64_t)i * SIZE + (uint64_t)(part * 3 % PARTS) * PART,
					buf, 4096),
				4096);
	}
	forget_all(v, SIZE);
	before = declined(v);
	assert_int_equal(read_at(f, 5 * SIZE + 3 * PART, buf, 4096), 4096);
	assert_int_equal(declined(v), before);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* ---- a peer that has every block, all zeros ---- */

static _Atomic bool peer_owns;

static ssize_t peer_get(void *tier, const struct cfs_block *b, uint32_t off,
			const struct iovec *dst, int n_dst, bool nowait, cfs_deadline_t deadline)
{
	ssize_t n = 0;
	int i;

	if (!peer_owns || nowait)
		return peer_owns ? -EAGAIN : -ENOENT;
	for (i = 0; i < n_dst; n += (ssize_t)dst[i++].iov_len)
		memset(dst[i].iov_base, 0, dst[i].iov_len);
	return n;
}

static ssize_t peer_get_hedged(void *tier, const struct cfs_block *b, uint32_t off,
			       const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			       cfs_deadline_t deadline)
{
	return peer_get(tier, b, off, dst, n_dst, false, deadline);
}

static enum cfs_place peer_place(void *tier, const struct cfs_block *b)
{
	return peer_owns ? CFS_PLACE_ELSEWHERE : CFS_PLACE_ANY;
}

static const struct cfs_tier_ops peer_ops = {
	.name = "peer", .get = peer_get, .get_hedged = peer_get_hedged, .place = peer_place};

/* Reads of 4 KiB downwards in a block, n in all; returns after how many its fetch was wanted. */
static unsigned read_down(struct volume *v, struct cfs_file *f, uint64_t block, unsigned n,
			  unsigned parts)
{
	uint64_t before = block_prefetches(v);
	unsigned i, at = 0;
	uint8_t buf[4096];

	for (i = 1; i <= n; i++) {
		assert_int_equal(
			read_at(f, block + (uint64_t)(parts - 1 - i % parts) * 4096, buf, 4096),
			4096);
		if (!at && block_prefetches(v) > before)
			at = i;
	}
	return at;
}

/*
 * Ranges that a peer gives must not be followed by their blocks, which carries a thousand times the
 * bytes; nor may reads that come back to a block ask for all of it again and again.
 */
static void ranges_earn_their_block(void **state)
{
	enum { SIZE = 1 << 20, PARTS = SIZE / 4096, N = 20 };
	struct volume *v = volume_new((struct options){.block = SIZE, .prefetch = 1});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, SIZE);
	uint64_t i;

	assert_non_null(buf);
	peer_owns = false;
	assert_int_equal(cfs_store_add_tier(v->store, &peer_ops, NULL), 0);
	for (i = 0; i < N; i++)
		assert_int_equal(write_at(f, i * SIZE, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	forget_all(v, SIZE);
	peer_owns = true;
	/* A few reads of each: none. */
	for (i = N - 1; i > 0; i--)
		assert_int_equal(read_down(v, f, i * SIZE, 10, PARTS), 0);
	assert_int_equal(block_prefetches(v), 0);
	assert_int_equal(fetched(v), 0);
	/* One is read as often as it has parts. */
	assert_int_equal(read_down(v, f, 7 * SIZE, PARTS - 10, PARTS), PARTS - 10);
	WAIT_FOR(metric_of(&cfs_store_metrics, v->store, "memory_cache_bytes", NULL) == SIZE);
	/* Memory drops it at once: the next one costs twice as much. */
	forget_all(v, SIZE);
	assert_int_equal(read_down(v, f, 7 * SIZE, 2 * PARTS, PARTS), 2 * PARTS);
	WAIT_FOR(metric_of(&cfs_store_metrics, v->store, "memory_cache_bytes", NULL) == SIZE);
	/* It is read from memory for long: worth it, and half as much is asked for the next. */
	assert_int_equal(read_down(v, f, 7 * SIZE, PARTS, PARTS), 0);
	forget_all(v, SIZE);
	assert_int_equal(read_down(v, f, 7 * SIZE, PARTS, PARTS), PARTS);
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
	/* All of it stays in memory: what is read ahead does not hang on how busy the workers are.
	 */
	struct volume *v = volume_new((struct options){.pool = 256 << 20});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, SIZE);
	uint64_t seed = 11;
	uint64_t before;
	unsigned i;

	assert_non_null(buf);
	assert_int_equal(write_at(f, 0, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	for (i = 0; i < 16; i++)
		assert_int_equal(read_at(f, (uint64_t)i * 65536, buf, 65536), 65536);
	before = data_metric(v, "data_readahead_bytes_total");
	assert_true(before >= 1 << 20);
	for (i = 0; i < N; i++)
		assert_int_equal(read_at(f, (uint64_t)rnd(&seed, SIZE / LEN) * LEN, buf, LEN), LEN);
	assert_true(data_metric(v, "data_readahead_bytes_total") - before < (uint64_t)N * LEN / 4);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A stream must not stand still where a chunk begins whose list nobody has read yet. */
static void read_ahead_crosses_chunks(void **state)
{
	struct volume *v = volume_new((struct options){.block = 1 << 20, .downloads = 32});
	struct cfs_file *f = open_file(v, 1);
	uint64_t border = CFS_CHUNK_SIZE;
	uint8_t *buf = calloc(1, 2 << 20);
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
	WAIT_FOR(cfs_store_in_memory(v->store, &b, 0, 1 << 20));
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
	uint64_t seed = 5;
	unsigned i;

	assert_non_null(buf);
	assert_int_equal(write_at(f, 0, buf, 4 << 20), 0);
	assert_int_equal(flush(f), 0);
	for (i = 0; i < 50; i++)
		assert_int_equal(read_at(f, (1 + rnd(&seed, 900)) * 4096, buf, 4096), 4096);
	assert_true(data_metric(v, "data_readahead_bytes_total") <= 256 << 10);
	/* In pairs that arrive in the wrong order, as the kernel sends them. */
	for (i = 0; i < 16; i++)
		assert_int_equal(read_at(f, (i ^ 1) << 17, buf, 1 << 17), 1 << 17);
	assert_true(data_metric(v, "data_readahead_bytes_total") >= 1 << 20);
	assert_true(data_metric(v, "data_read_sessions") > 0);
	cfs_file_end_stream(f, 1);
	assert_int_equal(data_metric(v, "data_read_sessions"), 0);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * Large reads at random, which the kernel cuts into requests: whoever pays for the bytes of a
 * bucket pays for what is read. A stream in the same file is read ahead for all that.
 */
static void random_reads_in_pieces(void **state)
{
	enum { SIZE = 256 << 10, N = 256, EVERY = 4, PART = SIZE / 4 };
	struct volume *v =
		volume_new((struct options){.block = SIZE, .prefetch = 1, .downloads = 32});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, SIZE);
	uint64_t before, read = 0, ahead;
	unsigned i, part;

	assert_non_null(buf);
	for (i = 0; i < N; i++)
		assert_int_equal(write_at(f, (uint64_t)i * SIZE, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	forget_all(v, SIZE);
	before = fetched(v);
	for (i = 0; i < N / EVERY; i++) {
		uint64_t at = (uint64_t)(i * 37 % (N / EVERY)) * EVERY * SIZE;

		for (part = 0; part < 4; part++, read += PART)
			assert_int_equal(read_at(f, at + (uint64_t)(part ^ 1) * PART, buf, PART),
					 PART);
	}
	assert_true(data_metric(v, "data_readahead_bytes_total") <= read / 4);
	print_message("read %llu fetched %llu\n", (unsigned long long)read,
		      (unsigned long long)(fetched(v) - before));
	assert_true(fetched(v) - before >= read);
	assert_true(fetched(v) - before <= read * 115 / 100);

	forget_all(v, SIZE);
	ahead = data_metric(v, "data_readahead_bytes_total");
	for (i = 0; i < N * 4; i++)
		assert_int_equal(read_at(f, (uint64_t)i * PART, buf, PART), PART);
	assert_true(data_metric(v, "data_readahead_bytes_total") - ahead >=
		    (uint64_t)N * SIZE * 3 / 4);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A hit in memory needs no request to the metadata or the store, and no copy. */
static void hit_asks_nobody(void **state)
{
	enum { SIZE = 8 << 20 };
	struct volume *v = volume_new((struct options){.block = 1 << 20});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, SIZE);
	uint64_t gets;
	struct cfs_pool_stats pool, pool_after;
	uint64_t lists, off;
	uint32_t size;

	assert_non_null(buf);
	assert_int_equal(write_at(f, 0, buf, SIZE), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, SIZE), SIZE);
	lists = v->meta.reads;
	gets = gets_of(v);
	cfs_pool_stats(v->pool, &pool);
	for (size = 4096; size <= 1 << 20; size <<= 4) {
		for (off = 0; off < SIZE; off += size) {
			struct cfs_ctx cx = ctx();
			struct cfs_segs segs;

			cfs_segs_init(&segs);
			assert_int_equal(cfs_file_read(f, &cx, 1, off, size, NULL, &segs), 0);
			assert_int_equal(segs.len, size);
			cfs_pool_stats(v->pool, &pool_after);
			assert_memory_equal(pool_after.used, pool.used, sizeof(pool.used));
			cfs_segs_release(&segs);
		}
	}
	assert_int_equal(v->meta.reads, lists);
	assert_int_equal(gets_of(v), gets);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void store_block(struct volume *v, const struct cfs_block *b, const void *bytes)
{
	struct cfs_page *page;
	struct cfs_segs data;

	cfs_segs_init(&data);
	assert_int_equal(cfs_page_get(v->pool, b->len, CFS_USE_WRITE, soon(), &page), 0);
	memcpy(page->data, bytes, b->len);
	assert_int_equal(cfs_segs_add(&data, page, 0, b->len), 0);
	assert_int_equal(cfs_store_put_sync(v->store, b, &data, soon()), 0);
	cfs_segs_release(&data);
}

/* A file that another mount has compacted cannot be read by one that has it open. */
static void compacted_elsewhere(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_slice merged = {.id = 1000, .size = 4096, .len = 4096};
	struct cfs_file *f = open_file(v, 1);
	struct list *l = &v->meta.chunk[1][0];
	uint8_t buf[4096], want[4096];
	unsigned i;

	for (i = 0; i < 4; i++) {
		v->object.unlisted = i % 2;
		memset(want, 'a' + (int)i, sizeof(want));
		assert_int_equal(write_at(f, 0, want, sizeof(want)), 0);
		assert_int_equal(flush(f), 0);
		assert_int_equal(read_at(f, 0, buf, sizeof(buf)), sizeof(buf));
		merged.id++;
		store_block(v, &(struct cfs_block){.slice = merged.id, .len = 4096}, want);
		while (l->n > 0) {
			l->n--;
			cfs_store_remove_slice(v->store, l->v[l->n].id, l->v[l->n].size, soon());
		}
		list_add(l, &merged);
		assert_int_equal(read_at(f, 0, buf, sizeof(buf)), sizeof(buf));
		assert_memory_equal(buf, want, sizeof(buf));
	}
	/* A missing object is an error. */
	cfs_store_remove_slice(v->store, merged.id, merged.size, soon());
	for (i = 0; i < 2; i++) {
		v->object.unlisted = i;
		assert_int_equal(read_at(f, 0, buf, sizeof(buf)), -EIO);
	}
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_blocks_while_they_pay),
		cmocka_unit_test(ranges_earn_their_block),
		cmocka_unit_test(random_reads_are_no_stream),
		cmocka_unit_test(read_ahead_crosses_chunks),
		cmocka_unit_test(read_ahead),
		cmocka_unit_test(random_reads_in_pieces),
		cmocka_unit_test(hit_asks_nobody),
		cmocka_unit_test(compacted_elsewhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
