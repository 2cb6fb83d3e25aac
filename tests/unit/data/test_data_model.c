/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on a file and on a plain array: writes, truncation, holes, copies, compaction.
 * When these fail users read wrong bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data_fixture.h"
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

static uint32_t any_length(struct model *m)
{
	static const uint32_t max[] = {16, 5000, 5000, 70000, WRITE_MAX};

	/* With full blocks a slice has no tail to upload. */
	if (rnd(&m->seed, 6) == 0)
		return BLOCK * (1 + rnd(&m->seed, 4));
	return 1 + rnd(&m->seed, max[rnd(&m->seed, CFS_ARRAY_SIZE(max))]);
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
	uint32_t len = any_length(m), i, off = rnd(&m->seed, WINDOW - len);
	uint64_t at = m->base + off, got;
	uint32_t salt = rnd(&m->seed, 1 << 30);
	struct cfs_ctx cx = ctx();

	if (append) {
		if (m->length < m->base || m->length + len > m->base + WINDOW)
			return;
		at = m->length;
		off = (uint32_t)(at - m->base);
	} else if (rnd(&m->seed, 2) && m->length >= m->base &&
		   m->length + len <= m->base + WINDOW) {
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

	model_check(m, rnd(&m->seed, WINDOW - len), len);
}

static void model_truncate(struct model *m)
{
	uint64_t length = m->base + rnd(&m->seed, WINDOW);
	struct cfs_attr attr;
	struct cfs_ctx cx = ctx();

	if (rnd(&m->seed, 10) == 0)
		length = 0;
	assert_int_equal(cfs_file_truncate(m->f, &cx, length, &attr), 0);
	assert_int_equal(attr.length, length);
	model_set_length(m, length);
}

static void model_punch(struct model *m)
{
	uint32_t len = any_length(m), off = rnd(&m->seed, WINDOW - len);
	bool keep = rnd(&m->seed, 2);
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

	if (m->base) /* the metadata of the fixture can only do this in the first chunk */
		return;
	from = rnd(&m->seed, WINDOW - len);
	to = rnd(&m->seed, WINDOW - len);
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

	if (rnd(&m->seed, 2))
		assert_int_equal(flush(m->f), 0);
	assert_int_equal(cfs_file_length(m->f), m->length);
	cfs_file_overlay_attr(m->f, &attr);
	assert_int_equal(attr.length, m->length);
	/* The rest is flushed in the background; a second open of the same file meets it. */
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
	uint64_t off = m->base + rnd(&m->seed, WINDOW), data, hole, i;
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
		switch (rnd(&m.seed, 20)) {
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_first_chunk),
		cmocka_unit_test(random_chunk_border),
		cmocka_unit_test(random_little_memory),
		cmocka_unit_test(random_fast_flusher),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
