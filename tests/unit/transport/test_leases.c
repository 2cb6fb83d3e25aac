/* SPDX-License-Identifier: Apache-2.0 */
/* The table of leases: a hot block that loses its lease is read over TCP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* After the headers that it needs. */
#include <cmocka.h>

#include "transport/peer/leases.h"

#define BLOCK (4u << 20)

static struct cfs_leases t;
static const struct cfs_reader_conn *const r = (const struct cfs_reader_conn *)0x7f0012345640;

static int setup(void **state)
{
	(void)state;
	t = (struct cfs_leases){0};
	return 0;
}

static struct cfs_peer_block block(unsigned i)
{
	return (struct cfs_peer_block){
		.slice = 1000 + i * 7919u % 100003, .index = i % 16, .len = BLOCK};
}

/* Leases are lost only when their set is full: those of half as many blocks as places nearly all stay. */
static void test_hot_leases_stay(void **state)
{
	unsigned i, kept = 0, n = CFS_LEASES / 2;

	(void)state;
	for (i = 0; i < n; i++) {
		struct cfs_peer_block b = block(i);
		struct cfs_lease *l = cfs_leases_find(&t, r, &b);

		assert_null(l);
		l = cfs_leases_place(&t, r, &b, 10);
		assert_non_null(l);
		*l = (struct cfs_lease){.r = r, .block = b, .until_ms = 100, .used_ms = i};
	}
	for (i = 0; i < n; i++) {
		struct cfs_peer_block b = block(i);

		kept += cfs_leases_find(&t, r, &b) != NULL;
	}
	assert_in_range(kept, n - n / 50, n);
}

static void test_other_blocks_are_others(void **state)
{
	struct cfs_peer_block b = block(3), other;
	struct cfs_lease *l = cfs_leases_place(&t, r, &b, 10);

	(void)state;
	*l = (struct cfs_lease){.r = r, .block = b, .until_ms = 100};
	assert_ptr_equal(cfs_leases_find(&t, r, &b), l);
	assert_null(cfs_leases_find(&t, r, &(struct cfs_peer_block){b.slice + 1, b.index, b.len}));
	other = b;
	other.len--;
	assert_null(cfs_leases_find(&t, r, &other));
	cfs_leases_end(&t, r);
	assert_int_equal(l->until_ms, 0);
	assert_ptr_equal(cfs_leases_find(&t, r, &b), l);
	cfs_leases_forget(&t, r);
	assert_null(cfs_leases_find(&t, r, &b));
}

/* The least recently used one goes, one that is over goes first, one with users never. */
static void test_which_goes(void **state)
{
	struct cfs_peer_block b = block(7);
	struct cfs_lease *set = cfs_leases_place(&t, r, &b, 10), *l;
	unsigned i;

	(void)state;
	assert_int_equal((set - t.places) % CFS_LEASES_WAYS, 0);
	for (i = 0; i < CFS_LEASES_WAYS; i++)
		set[i] = (struct cfs_lease){
			.r = r, .block = {.slice = 100 + i}, .until_ms = 100, .used_ms = 20 + i};
	set[3].used_ms = 1;
	assert_ptr_equal(cfs_leases_place(&t, r, &b, 10), &set[3]);
	set[3].users = 1;
	assert_ptr_equal(cfs_leases_place(&t, r, &b, 10), &set[0]);
	set[5].until_ms = 10;
	assert_ptr_equal(cfs_leases_place(&t, r, &b, 10), &set[5]);
	for (l = set; l < set + CFS_LEASES_WAYS; l++)
		l->users = 1;
	assert_null(cfs_leases_place(&t, r, &b, 10));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_hot_leases_stay, setup),
		cmocka_unit_test_setup(test_other_blocks_are_others, setup),
		cmocka_unit_test_setup(test_which_goes, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
