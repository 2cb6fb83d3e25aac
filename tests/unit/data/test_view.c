/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail a reader gets bytes of the wrong slice, or old bytes under new ones. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <cachefs/data.h>

#define SPAN 4096u

static uint64_t seed;

static uint32_t rnd(uint32_t below)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)((seed >> 33) % below);
}

struct byte {
	uint64_t slice;
	uint32_t off;
};

static void check(const struct cfs_view *v, const struct byte *model, uint32_t base, uint32_t span)
{
	uint32_t at = base, i;
	size_t k;

	for (k = 0; k < v->n; k++) {
		const struct cfs_piece *p = &v->v[k];

		assert_true(p->len > 0);
		assert_true(p->pos >= at);
		for (; at < p->pos; at++)
			assert_int_equal(model[at - base].slice, 0);
		for (i = 0; i < p->len; i++, at++) {
			assert_int_equal(model[at - base].slice, p->slice);
			assert_int_equal(model[at - base].off, p->slice_off + i);
		}
	}
	for (; at < base + span; at++)
		assert_int_equal(model[at - base].slice, 0);
}

static void random_records(void **state)
{
	struct cfs_slice recs[60];
	struct byte model[SPAN];
	struct cfs_view v;
	unsigned round;
	uint32_t base, i;
	size_t n, k;

	for (round = 0; round < 3000; round++) {
		seed = round;
		base = round % 2 ? 0 : (uint32_t)CFS_CHUNK_SIZE - SPAN;
		memset(model, 0, sizeof(model));
		n = rnd(60);
		for (k = 0; k < n; k++) {
			struct cfs_slice *r = &recs[k];

			r->pos = rnd(SPAN);
			r->len = rnd(rnd(4) ? 64 : SPAN);
			r->len = r->len > SPAN - r->pos ? SPAN - r->pos : r->len;
			r->id = rnd(5) ? k + 1 : 0;
			r->off = r->id ? rnd(100) : 0;
			r->size = r->id ? r->off + r->len + rnd(50) : 0;
			for (i = 0; i < r->len; i++)
				model[r->pos + i] = (struct byte){r->id, r->id ? r->off + i : 0};
			r->pos += base;
		}
		assert_int_equal(cfs_view_build(recs, n, &v), 0);
		check(&v, model, base, SPAN);
		cfs_view_free(&v);
	}
}

/* Every list of up to three records in five bytes, each a hole or a slice. */
static void all_short_lists(void **state)
{
	enum { BYTES = 5, RECORDS = 3 };
	struct cfs_slice kinds[(BYTES + 1) * (BYTES + 2)], recs[RECORDS];
	struct byte model[BYTES];
	struct cfs_view v;
	uint32_t pos, len, i;
	size_t n_kinds = 0, n, k, lists, list, code;

	for (pos = 0; pos <= BYTES; pos++) {
		for (len = 0; len <= BYTES - pos; len++) {
			kinds[n_kinds++] = (struct cfs_slice){.pos = pos, .len = len};
			kinds[n_kinds++] = (struct cfs_slice){
				.pos = pos, .len = len, .id = 1, .off = 3, .size = 3 + len};
		}
	}
	for (n = 0, lists = 1; n <= RECORDS; n++, lists *= n_kinds) {
		for (list = 0; list < lists; list++) {
			memset(model, 0, sizeof(model));
			for (k = 0, code = list; k < n; k++, code /= n_kinds) {
				recs[k] = kinds[code % n_kinds];
				recs[k].id *= k + 1;
				for (i = 0; i < recs[k].len; i++)
					model[recs[k].pos + i] = (struct byte){
						recs[k].id, recs[k].id ? recs[k].off + i : 0};
			}
			assert_int_equal(cfs_view_build(recs, n, &v), 0);
			check(&v, model, 0, BYTES);
			cfs_view_free(&v);
		}
	}
}

/* Else the first read of a file with small random writes takes seconds. */
static void many_records(void **state)
{
	enum { CELL = 256, CELLS = CFS_CHUNK_SIZE / CELL };
	const size_t n = CELLS + CELLS / 2;
	struct cfs_slice *recs = calloc(n, sizeof(*recs));
	size_t *last = calloc(CELLS, sizeof(*last));
	struct cfs_view v;
	clock_t begun;
	size_t i, cell;

	assert_non_null(recs);
	assert_non_null(last);
	for (i = 0; i < n; i++) {
		cell = i * 40503 % CELLS;
		last[cell] = i + 1;
		recs[i] = (struct cfs_slice){(uint32_t)(cell * CELL), i + 1, CELL, 0, CELL};
	}
	begun = clock();
	assert_int_equal(cfs_view_build(recs, n, &v), 0);
	assert_true(clock() - begun < 3 * CLOCKS_PER_SEC);
	assert_int_equal(v.n, CELLS);
	for (i = 0; i < v.n; i++) {
		assert_int_equal(v.v[i].pos, i * CELL);
		assert_int_equal(v.v[i].slice, last[i]);
	}
	cfs_view_free(&v);
	free(last);
	free(recs);
}

/* The example of volume-format section 6: four writes over each other. */
static void documented(void **state)
{
	const struct cfs_slice recs[] = {
		{0, 7, 0x500000, 0, 0x500000},
		{0x10007b, 8, 0x11807, 0, 0x11807},
		{0x3ffff6, 9, 0x14, 0, 0x14},
		{0x300000, 10, 0x1000, 0, 0x1000},
	};
	struct cfs_view v;

	assert_int_equal(cfs_view_build(recs, 4, &v), 0);
	assert_int_equal(v.n, 7);
	assert_int_equal(v.v[2].slice, 7);
	assert_int_equal(v.v[2].pos, 0x10007b + 0x11807);
	assert_int_equal(v.v[2].slice_off, 0x10007b + 0x11807);
	assert_int_equal(v.v[6].pos + v.v[6].len, 0x500000);
	cfs_view_free(&v);
}

/* A damaged list must not make the reader look outside a slice or a chunk. */
static void damaged(void **state)
{
	struct cfs_slice r = {.pos = 0, .id = 1, .size = 100, .off = 50, .len = 51};
	struct cfs_view v;

	assert_int_equal(cfs_view_build(&r, 1, &v), -EIO);
	r = (struct cfs_slice){.pos = (uint32_t)CFS_CHUNK_SIZE - 10, .len = 11};
	assert_int_equal(cfs_view_build(&r, 1, &v), -EIO);
	r = (struct cfs_slice){.pos = UINT32_MAX, .id = 1, .size = 9, .len = 9};
	assert_int_equal(cfs_view_build(&r, 1, &v), -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_records), cmocka_unit_test(all_short_lists),
		cmocka_unit_test(many_records),	  cmocka_unit_test(documented),
		cmocka_unit_test(damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
