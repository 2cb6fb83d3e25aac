/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one file, and on few files that come and go. When these fail users of parallel
 * programs read wrong bytes, or the mount crashes.
 */
#include <stdlib.h>
#include <string.h>

#include "data_fixture.h"

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
	uint64_t seed = w->id;
	uint8_t *mine = calloc(PER_FILE, STRIPE), *buf = malloc(STRIPE);
	unsigned i;

	assert_true(mine && buf);
	for (i = 0; i < 400; i++) {
		uint32_t k = rnd(&seed, PER_FILE), len = 1 + rnd(&seed, STRIPE), in;
		uint64_t at;
		ssize_t n;

		in = rnd(&seed, STRIPE - len + 1);
		at = w->base + (uint64_t)(k * THREADS + w->id) * STRIPE + in;
		if (rnd(&seed, 2)) {
			memset(buf, (int)rnd(&seed, 256), len);
			memcpy(mine + k * STRIPE + in, buf, len);
			assert_int_equal(write_at(w->f, at, buf, len), 0);
		} else {
			n = read_at(w->f, at, buf, len);
			assert_true(n >= 0 && n <= len);
			memset(buf + n, 0, len - (size_t)n);
			assert_memory_equal(buf, mine + k * STRIPE + in, len);
		}
		if (rnd(&seed, 40) == 0)
			assert_int_equal(flush(w->f), 0);
		if (rnd(&seed, 40) == 0) {
			cfs_file_put(open_file(w->v, 1));
			cfs_data_queue_compact(w->v->data, 1, rnd(&seed, 2), false);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_one_file),
		cmocka_unit_test(threads_little_memory),
		cmocka_unit_test(threads_open_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
