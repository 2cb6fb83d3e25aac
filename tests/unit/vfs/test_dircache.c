/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds of what is remembered of listings. When these fail a mount's memory grows with the volume. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vfs/dircache.h"

static struct cache cache;
static struct dircache dircache;

static int start(void **state)
{
	assert_int_equal(cache_init(&cache, 60000), 0);
	return dircache_init(&dircache, 60000, &cache);
}

static int stop(void **state)
{
	dircache_fini(&dircache);
	cache_fini(&cache);
	return 0;
}

/* Reads a directory of so many names. Returns whether the kernel may use what it had. */
static bool read_dir(cfs_ino_t ino, uint64_t names, uint64_t now_ms)
{
	struct dircache_pass p = {0};
	struct dircache_dir *d;
	uint64_t i;
	bool valid;

	d = dircache_open(&dircache, &p, ino, now_ms, &valid);
	assert_non_null(d);
	dircache_begin(&dircache, d, &p, cache_seq(&cache), now_ms);
	for (i = 0; i < names; i++)
		assert_int_not_equal(dircache_add_name(&dircache, d, &p, i, i + ino), 0);
	dircache_end(&dircache, d, &p, names, now_ms);
	assert_true(dircache.bytes <= DIRCACHE_BYTES_MAX);
	dircache_close(&dircache, d, &p);
	return valid;
}

static void big_directories_are_not_kept(void **state)
{
	assert_false(read_dir(1, DIRCACHE_NAMES_MAX + 1, 1000));
	assert_int_equal(dircache.bytes, 0);
	assert_false(read_dir(1, DIRCACHE_NAMES_MAX + 1, 1001));
}

static void memory_is_bounded(void **state)
{
	cfs_ino_t ino;

	for (ino = 1; ino < 20; ino++)
		read_dir(ino, 100000, 1000);
	assert_true(dircache.bytes > 0);
	assert_true(read_dir(19, 100000, 1000));
	assert_false(read_dir(1, 100000, 1000));
	for (ino = 100; ino < 100 + 2 * DIRCACHE_DIRS_MAX; ino++)
		read_dir(ino, 3, 1000);
	assert_true(dircache.n_closed <= DIRCACHE_DIRS_MAX + 1);
	assert_int_equal(dircache.n_open, 0);
}

/* A reader that has left a kept listing holds what it had of it. */
static void readers_share_the_bound(void **state)
{
	uint64_t *had[100];
	struct dircache_pass p = {0};
	struct dircache_dir *d;
	uint64_t i, n = 0;
	bool valid;

	read_dir(1, 100000, 1000);
	d = dircache_open(&dircache, &p, 1, 1000, &valid);
	dircache_begin(&dircache, d, &p, 0, 1000);
	for (i = 0; i < 100; i++) {
		had[i] = dircache_detach(&dircache, d, &p, p.sequence, 90000);
		n += had[i] != NULL;
		dircache_begin(&dircache, d, &p, 0, 1000);
		assert_true(dircache.bytes <= DIRCACHE_BYTES_MAX);
	}
	assert_in_range(n, 1, 99);
	for (i = 0; i < 100; i++)
		dircache_free_names(&dircache, had[i], 90000);
	dircache_close(&dircache, d, &p);
	/* The sequence itself is left. */
	assert_true(dircache.bytes < 2 * 90000 * sizeof(*had[0]));
}

static void listings_end_with_their_time(void **state)
{
	assert_false(read_dir(1, 100, 1000));
	assert_true(read_dir(1, 100, 2000));
	assert_false(read_dir(1, 100, 70000));
	assert_true(read_dir(1, 100, 71000));
	cache_changed(&cache, 0, 0, 1, NULL);
	assert_false(read_dir(1, 100, 72000));
}

/* Other names read at the same time: it is not known which of them the kernel has. */
static void listings_that_differ_are_not_kept(void **state)
{
	struct dircache_pass a = {0}, b = {0};
	struct dircache_dir *d;
	bool valid;

	d = dircache_open(&dircache, &a, 1, 1000, &valid);
	dircache_open(&dircache, &b, 1, 1000, &valid);
	dircache_begin(&dircache, d, &a, 0, 1000);
	dircache_begin(&dircache, d, &b, 0, 1000);
	assert_int_equal(dircache_add_name(&dircache, d, &a, 0, 10),
			 dircache_add_name(&dircache, d, &b, 0, 10));
	assert_int_not_equal(dircache_add_name(&dircache, d, &a, 1, 11),
			     dircache_add_name(&dircache, d, &b, 1, 12));
	dircache_end(&dircache, d, &a, 2, 1000);
	dircache_end(&dircache, d, &b, 2, 1000);
	dircache_close(&dircache, d, &a);
	dircache_close(&dircache, d, &b);
	assert_false(read_dir(1, 2, 1001));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(big_directories_are_not_kept, start, stop),
		cmocka_unit_test_setup_teardown(memory_is_bounded, start, stop),
		cmocka_unit_test_setup_teardown(readers_share_the_bound, start, stop),
		cmocka_unit_test_setup_teardown(listings_end_with_their_time, start, stop),
		cmocka_unit_test_setup_teardown(listings_that_differ_are_not_kept, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
