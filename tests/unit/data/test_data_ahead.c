/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead over files. A failure means a wait for the bucket for each small file, memory beyond
 * the bounds, or requests that are paid for and of no use.
 */
#include <stdlib.h>
#include <string.h>

#include "data_fixture.h"

#define SIZE 4096

/* Files 1..n, and nothing of them in memory. */
static void make_files(struct volume *v, unsigned n, uint32_t size)
{
	uint8_t *buf = calloc(1, size);
	struct cfs_slice *s;
	struct cfs_file *f;
	unsigned i, k;

	assert_non_null(buf);
	for (i = 1; i <= n; i++) {
		f = open_file(v, i);
		memset(buf, (int)i, size);
		assert_int_equal(write_at(f, 0, buf, size), 0);
		assert_int_equal(flush(f), 0);
		cfs_file_put(f);
		s = v->meta.chunk[i][0].v;
		for (k = 0; k * BLOCK < size; k++)
			cfs_store_forget(
				v->store,
				&(struct cfs_block){.slice = s->id,
						    .index = k,
						    .len = CFS_MIN(BLOCK, size - k * BLOCK)});
	}
	atomic_store(&v->object.gets, 0);
	atomic_store(&v->meta.reads, 0);
	free(buf);
}

static int read_ahead(struct volume *v, unsigned first, unsigned n)
{
	struct cfs_head heads[CFS_HEADS_MAX];
	struct cfs_ctx cx = ctx();
	unsigned i;

	for (i = 0; i < n; i++)
		heads[i] = (struct cfs_head){.ino = first + i};
	return cfs_data_read_ahead(v->data, &cx, heads, n);
}

static void check_file(struct volume *v, unsigned i)
{
	struct cfs_file *f = open_file(v, i);
	uint8_t buf[SIZE];

	assert_int_equal(read_at(f, 0, buf, SIZE), SIZE);
	assert_int_equal(buf[0], i);
	assert_int_equal(buf[SIZE - 1], i);
	cfs_file_put(f);
}

/* All in one question to the metadata, and nothing is fetched twice; the store is soon full. */
static void files_are_fetched(void **state)
{
	enum { N = 24 };
	struct volume *v = volume_new((struct options){0});
	unsigned i;

	make_files(v, N, SIZE);
	assert_int_equal(read_ahead(v, 1, N), 1);
	assert_int_equal(v->meta.head_reads, 1);
	for (i = 1; i <= N; i++) {
		/* An open goes on with what the store did not take before. */
		if (data_metric(v, "data_ahead_fetched_files_total") >= i)
			WAIT_FOR(atomic_load(&v->object.gets) >= i);
		check_file(v, i);
	}
	assert_int_equal(v->object.gets, N);
	assert_true(data_metric(v, "data_ahead_used_files_total") >= N / 2);
	assert_int_equal(data_metric(v, "data_ahead_used_bytes_total"),
			 data_metric(v, "data_ahead_fetched_bytes_total"));
	assert_int_equal(data_metric(v, "data_ahead_wasted_files_total"), 0);
	assert_int_equal(data_metric(v, "data_ahead_bytes"), 0);
	assert_int_equal(volume_free(v), 0);
}

/* Where a miss takes no time, no read-ahead is asked for. */
static void store_is_fast(void **state)
{
	struct volume *v = volume_new((struct options){0});

	make_files(v, 4, SIZE);
	check_file(v, 1);
	assert_false(cfs_data_reads_ahead(v->data));
	v->object.get_ms = 50;
	check_file(v, 2);
	assert_true(cfs_data_reads_ahead(v->data));
	assert_int_equal(volume_free(v), 0);
}

static void off(void **state)
{
	struct volume *v = volume_new((struct options){.no_readahead = true, .get_ms = 50});

	make_files(v, 4, SIZE);
	check_file(v, 4);
	assert_false(cfs_data_reads_ahead(v->data));
	assert_int_equal(read_ahead(v, 1, 4), 0);
	assert_int_equal(v->meta.head_reads, 0);
	check_file(v, 1);
	assert_int_equal(v->object.gets, 2);
	assert_int_equal(volume_free(v), 0);
}

/* An empty file, a hole, and a file whose beginning is one. */
static void files_without_slices(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_ctx cx = ctx();
	struct cfs_attr attr;
	struct cfs_file *f;
	uint8_t buf[SIZE];

	f = open_file(v, 2);
	assert_int_equal(cfs_file_truncate(f, &cx, SIZE, &attr), 0);
	cfs_file_put(f);
	f = open_file(v, 3);
	assert_int_equal(write_at(f, 1 << 20, "x", 1), 0);
	assert_int_equal(flush(f), 0);
	cfs_file_put(f);
	assert_int_equal(read_ahead(v, 1, 3), 1);
	assert_int_equal(data_metric(v, "data_ahead_fetched_files_total"), 0);
	f = open_file(v, 2);
	assert_int_equal(read_at(f, 0, buf, SIZE), SIZE);
	assert_int_equal(buf[0] | buf[SIZE - 1], 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Another mount changed it between: the bytes are in vain, and the reader gets the others. */
static void file_changes_between(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f;

	make_files(v, 2, SIZE);
	assert_int_equal(read_ahead(v, 1, 1), 1);
	WAIT_FOR(atomic_load(&v->object.gets) == 1);
	/* As one record of another file. */
	v->meta.chunk[1][0].v[0] = v->meta.chunk[2][0].v[0];
	v->meta.attr[1].mtime = v->meta.attr[1].ctime = tick(&v->meta);
	f = open_file(v, 1);
	{
		uint8_t buf[SIZE];

		assert_int_equal(read_at(f, 0, buf, SIZE), SIZE);
		assert_int_equal(buf[0], 2);
	}
	cfs_file_put(f);
	assert_int_equal(data_metric(v, "data_ahead_used_files_total"), 0);
	assert_int_equal(data_metric(v, "data_ahead_wasted_files_total"), 1);
	assert_int_equal(data_metric(v, "data_ahead_wasted_bytes_total"), SIZE);
	v->meta.chunk[1][0].n = 0;
	assert_int_equal(volume_free(v), 0);
}

/* Large files: their beginnings only, and no more than max_readahead of all. */
static void large_files(void **state)
{
	enum { N = 16, LARGE = 256 << 10 };
	struct volume *v = volume_new((struct options){.downloads = 64});

	make_files(v, N, LARGE);
	assert_int_equal(read_ahead(v, 1, N), 1);
	assert_true(data_metric(v, "data_ahead_bytes") <= 1 << 20);
	assert_true(data_metric(v, "data_ahead_bytes") >= (1 << 20) - (128 << 10));
	assert_int_equal(data_metric(v, "data_ahead_bytes"),
			 data_metric(v, "data_ahead_fetched_bytes_total"));
	assert_int_equal(volume_free(v), 0);
}

/* More files than are followed, none of which is opened: the oldest are given up. */
static void bounded(void **state)
{
	struct volume *v = volume_new((struct options){0});
	unsigned i;

	make_files(v, INODES - 1, SIZE);
	for (i = 0; i < 40; i++)
		assert_int_equal(read_ahead(v, 1 + i % 4 * CFS_HEADS_MAX,
					    i % 4 == 3 ? CFS_HEADS_MAX - 1 : CFS_HEADS_MAX),
				 1);
	assert_true(atomic_load(&v->object.gets) <= INODES);
	assert_int_equal(volume_free(v), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_are_fetched),
		cmocka_unit_test(store_is_fast),
		cmocka_unit_test(off),
		cmocka_unit_test(files_without_slices),
		cmocka_unit_test(file_changes_between),
		cmocka_unit_test(large_files),
		cmocka_unit_test(bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
