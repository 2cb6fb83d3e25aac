/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a mount exceeds its memory, waits for memory that is there, or hands one page to
 * two owners and so returns wrong bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/tsan.h"
#include "unit/wait.h"

#define MIB	((uint64_t)1 << 20)
#define BUDGET	(8 * MIB)
#define N_LARGE (BUDGET / CFS_PAGE_LARGE)

static struct cfs_pool *pool;

/* The part of the budget that is not in use. */
static uint64_t available(struct cfs_pool *p)
{
	struct cfs_pool_stats st;
	uint64_t left;
	int i;

	cfs_pool_stats(p, &st);
	left = st.budget;
	for (i = 0; i < CFS_USE_COUNT; i++)
		left -= st.used[i];
	return left;
}

static int set_up(void **state)
{
	return cfs_pool_create(BUDGET, &pool);
}

static int tear_down(void **state)
{
	struct cfs_pool_stats st;
	int i;

	cfs_pool_trim(pool);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.mapped, 0);
	for (i = 0; i < CFS_USE_COUNT; i++)
		assert_int_equal(st.used[i], 0);
	assert_int_equal(available(pool), BUDGET);
	cfs_pool_destroy(pool);
	return 0;
}

static struct cfs_page *get(size_t size)
{
	struct cfs_page *page;

	assert_int_equal(cfs_page_get(pool, size, CFS_USE_READ, 0, &page), 0);
	return page;
}

/* A copy of the data in each child of the mount would be memory that no budget knows of. */
static void children_have_none_of_it(void **state)
{
	static const size_t sizes[] = {CFS_PAGE_SMALL, CFS_PAGE_MEDIUM, CFS_PAGE_LARGE};
	struct cfs_page *page[CFS_ARRAY_SIZE(sizes)];
	void *at[CFS_ARRAY_SIZE(sizes)];
	unsigned char there;
	int status;
	size_t i;
	pid_t pid;

#ifdef CFS_TSAN
	skip(); /* the sanitizer maps memory of its own where the pool's was */
#endif
	for (i = 0; i < CFS_ARRAY_SIZE(sizes); i++) {
		page[i] = get(sizes[i]);
		memset(page[i]->data, 1, sizes[i]);
		at[i] = (void *)((uintptr_t)page[i]->data & ~(uintptr_t)4095);
	}
	pid = fork();
	if (pid == 0) {
		for (i = 0; i < CFS_ARRAY_SIZE(sizes); i++) {
			if (mincore(at[i], 1, &there) == 0 || errno != ENOMEM)
				_exit(1);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	for (i = 0; i < CFS_ARRAY_SIZE(sizes); i++)
		cfs_page_unref(page[i]);
}

static void idle_costs_nothing(void **state)
{
	struct cfs_pool_stats st;
	struct cfs_pool *p;

	cfs_pool_stats(pool, &st);
	assert_int_equal(st.mapped, 0);
	assert_int_equal(st.budget, BUDGET);
	assert_int_equal(cfs_pool_create(BUDGET + 1, &p), 0);
	assert_int_equal(available(p), BUDGET + 2 * MIB);
	cfs_pool_destroy(p);
}

static void sizes_and_references(void **state)
{
	static const size_t want[][2] = {
		{0, CFS_PAGE_SMALL},
		{1, CFS_PAGE_SMALL},
		{CFS_PAGE_SMALL, CFS_PAGE_SMALL},
		{CFS_PAGE_SMALL + 1, CFS_PAGE_MEDIUM},
		{CFS_PAGE_MEDIUM + 1, CFS_PAGE_LARGE},
		{CFS_PAGE_LARGE, CFS_PAGE_LARGE},
	};
	struct cfs_page *page;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(want); i++) {
		page = get(want[i][0]);
		assert_int_equal(page->size, want[i][1]);
		assert_int_equal((uintptr_t)page->data % page->size, 0);
		memset(page->data, 1, page->size);
		assert_ptr_equal(cfs_page_ref(page), page);
		cfs_page_unref(page);
		assert_int_equal(available(pool), BUDGET - want[i][1]);
		cfs_page_unref(page);
	}
	cfs_page_unref(NULL);
	assert_int_equal(cfs_page_get(pool, CFS_PAGE_LARGE + 1, CFS_USE_READ, 0, &page), -EINVAL);
}

static void budget_is_hard(void **state)
{
	struct cfs_page *pages[N_LARGE], *more;
	struct cfs_pool_stats st;
	size_t i;

	for (i = 0; i < N_LARGE; i++)
		pages[i] = get(CFS_PAGE_LARGE);
	assert_int_equal(available(pool), 0);
	assert_int_equal(cfs_page_get(pool, 1, CFS_USE_READ, 0, &more), -ETIMEDOUT);
	assert_int_equal(cfs_page_get(pool, 1, CFS_USE_READ, cfs_deadline_in(5), &more),
			 -ETIMEDOUT);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.used[CFS_USE_READ], BUDGET);
	assert_int_equal(st.mapped, BUDGET);
	assert_int_equal(st.waits, 1);
	for (i = 0; i < N_LARGE; i++)
		cfs_page_unref(pages[i]);
}

/* Or a mount whose object store is away could not even read what it has on disk. */
static void writers_leave_room(void **state)
{
	struct cfs_page *pages[BUDGET / CFS_PAGE_LARGE], *page;
	size_t i, n = 0;

	while (cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_WRITE, 0, &pages[n]) == 0)
		n++;
	assert_int_equal(n, BUDGET / CFS_PAGE_LARGE / 8 * 7);
	assert_int_equal(cfs_page_get(pool, 1, CFS_USE_WRITE, cfs_deadline_in(5), &page),
			 -ETIMEDOUT);
	assert_int_equal(cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, 0, &page), 0);
	cfs_page_unref(page);
	cfs_page_unref(pages[--n]);
	assert_int_equal(cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_WRITE, 0, &pages[n++]), 0);
	for (i = 0; i < n; i++)
		cfs_page_unref(pages[i]);
}

/* A carved page that is whole again serves large requests; a pinned one costs a bounded amount. */
static void carving(void **state)
{
	struct cfs_page *small[2048], *medium[256], *large[N_LARGE];
	struct cfs_pool_stats st;
	size_t i;

	for (i = 0; i < 2048; i++) {
		small[i] = get(CFS_PAGE_SMALL);
		memset(small[i]->data, (int)i, CFS_PAGE_SMALL);
	}
	assert_int_equal(available(pool), 0);
	for (i = 0; i < 2048; i++)
		assert_int_equal(small[i]->data[CFS_PAGE_SMALL - 1], (uint8_t)i);
	for (i = 0; i < 2048; i++)
		cfs_page_unref(small[i]);
	for (i = 0; i < 256; i++)
		medium[i] = get(CFS_PAGE_MEDIUM);
	for (i = 0; i < 256; i += 2)
		cfs_page_unref(medium[i]);
	for (i = 1; i < 256; i += 2)
		cfs_page_unref(medium[i]);
	for (i = 0; i < N_LARGE; i++)
		large[i] = get(CFS_PAGE_LARGE);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.mapped, BUDGET);
	for (i = 0; i < N_LARGE; i++)
		cfs_page_unref(large[i]);
}

/* One live small page in every unit: the worst case for what is mapped. */
static void fragmentation_is_bounded(void **state)
{
	struct cfs_page *small[2048], *page;
	struct cfs_pool_stats st;
	size_t i, n = 0;

	for (i = 0; i < 2048; i++)
		small[i] = get(CFS_PAGE_SMALL);
	for (i = 0; i < 2048; i++)
		if (i % 32)
			cfs_page_unref(small[i]);
	while (n < N_LARGE && cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, 0, &page) == 0)
		small[32 * n++ + 1] = page;
	cfs_pool_stats(pool, &st);
	assert_true(st.mapped <= BUDGET + 6 * MIB);
	assert_true(n >= 48);
	for (i = 0; i < n; i++)
		cfs_page_unref(small[32 * i + 1]);
	for (i = 0; i < 2048; i += 32)
		cfs_page_unref(small[i]);
}

static void uses_are_counted(void **state)
{
	struct cfs_pool_stats st;
	struct cfs_page *page = get(CFS_PAGE_MEDIUM);

	cfs_page_set_use(page, CFS_USE_CACHE);
	cfs_page_set_use(page, CFS_USE_CACHE);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.used[CFS_USE_READ], 0);
	assert_int_equal(st.used[CFS_USE_CACHE], CFS_PAGE_MEDIUM);
	cfs_page_unref(page);
}

static void trim_keeps_what_is_used(void **state)
{
	struct cfs_page *pages[40];
	struct cfs_pool_stats st;
	size_t i;

	for (i = 0; i < 40; i++)
		pages[i] = get(CFS_PAGE_LARGE);
	for (i = 1; i < 40; i++)
		cfs_page_unref(pages[i]);
	memset(pages[0]->data, 7, CFS_PAGE_LARGE);
	cfs_pool_trim(pool);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.mapped, 2 * MIB);
	assert_int_equal(pages[0]->data[5], 7);
	cfs_page_unref(pages[0]);
}

struct hoard {
	struct cfs_page *pages[N_LARGE];
	size_t n;
	int calls;
	char name;
};

static char call_order[16];

static void give_one(void *arg, uint64_t want)
{
	struct hoard *h = arg;
	size_t len = strlen(call_order);

	assert_true(want > 0);
	if (len + 1 < sizeof(call_order)) {
		call_order[len] = h->name;
		call_order[len + 1] = 0;
	}
	h->calls++;
	if (h->n)
		cfs_page_unref(h->pages[--h->n]);
}

/* The memory cache gives way before read-ahead does, and read-ahead is spared when that sufficed.
 */
static void reclaim_in_order(void **state)
{
	struct hoard cache = {.name = 'c'}, ahead = {.name = 'a'};
	struct cfs_page *page, *pages[2];

	call_order[0] = 0;
	assert_int_equal(cfs_pool_add_reclaim(pool, give_one, &cache), 0);
	assert_int_equal(cfs_pool_add_reclaim(pool, give_one, &ahead), 0);
	while (cache.n + ahead.n < N_LARGE - 1)
		ahead.pages[ahead.n++] = get(CFS_PAGE_LARGE);
	cache.pages[cache.n++] = get(CFS_PAGE_LARGE);
	assert_string_equal(call_order, "");
	pages[0] = get(CFS_PAGE_LARGE);
	assert_string_equal(call_order, "c");
	pages[1] = get(CFS_PAGE_LARGE);
	assert_string_equal(call_order, "cca");
	cfs_pool_remove_reclaim(pool, give_one, &ahead);
	assert_int_equal(cfs_page_get(pool, 1, CFS_USE_READ, 0, &page), -ETIMEDOUT);
	assert_string_equal(call_order, "ccac");
	cfs_pool_remove_reclaim(pool, give_one, &cache);
	cfs_page_unref(pages[0]);
	cfs_page_unref(pages[1]);
	while (ahead.n)
		cfs_page_unref(ahead.pages[--ahead.n]);
}

static sem_t asked;

static void tell(void *arg, uint64_t want)
{
	sem_post(&asked);
}

struct taker {
	int result;
	struct cfs_page *page;
};

static void *take_patiently(void *arg)
{
	struct taker *t = arg;

	t->result = cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_WRITE, soon(), &t->page);
	return NULL;
}

static void waiter_is_woken(void **state)
{
	struct cfs_page *pages[N_LARGE];
	struct taker t = {.result = 1};
	pthread_t id;
	size_t i;

	sem_init(&asked, 0, 0);
	assert_int_equal(cfs_pool_add_reclaim(pool, tell, NULL), 0);
	for (i = 0; i < N_LARGE; i++)
		pages[i] = get(CFS_PAGE_LARGE);
	pthread_create(&id, NULL, take_patiently, &t);
	while (sem_wait(&asked) < 0)
		;
	cfs_page_unref(pages[0]);
	pthread_join(id, NULL);
	assert_int_equal(t.result, 0);
	cfs_page_unref(t.page);
	for (i = 1; i < N_LARGE; i++)
		cfs_page_unref(pages[i]);
	cfs_pool_remove_reclaim(pool, tell, NULL);
}

#define THREADS 6
#define ROUNDS	2000
#define HELD	14

static void *stress(void *arg)
{
	static const size_t sizes[] = {1, CFS_PAGE_MEDIUM, CFS_PAGE_LARGE};
	struct cfs_page *held[HELD] = {0};
	uint8_t mark = *(uint8_t *)arg;
	uint64_t random = cfs_random_u64();
	int i, at;

	for (i = 0; i < ROUNDS; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		at = (int)((random >> 33) % HELD);
		if (held[at]) {
			assert_int_equal(held[at]->data[0], mark);
			assert_int_equal(held[at]->data[held[at]->size - 1], mark);
			cfs_page_unref(held[at]);
			held[at] = NULL;
			continue;
		}
		if (cfs_page_get(pool, sizes[(random >> 50) % 3], CFS_USE_WRITE, 0, &held[at]) < 0)
			continue;
		held[at]->data[0] = mark;
		held[at]->data[held[at]->size - 1] = mark;
		cfs_page_set_use(held[at], CFS_USE_CACHE);
	}
	for (at = 0; at < HELD; at++)
		cfs_page_unref(held[at]);
	return NULL;
}

static void threads_never_share_a_page(void **state)
{
	uint8_t marks[THREADS];
	pthread_t id[THREADS];
	int i;

	for (i = 0; i < THREADS; i++) {
		marks[i] = (uint8_t)(i + 1);
		pthread_create(&id[i], NULL, stress, &marks[i]);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(id[i], NULL);
}

static void *hog(void *arg)
{
	struct cfs_page *pages[20];
	int round, i;

	for (round = 0; round < 30; round++) {
		/* Seven want 70 of 64 pages; with nine each one is left, so somebody gets on. */
		for (i = 0; i < 10; i++)
			assert_int_equal(cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_WRITE, soon(),
						      &pages[i]),
					 0);
		for (i = 0; i < 10; i++)
			cfs_page_unref(pages[i]);
	}
	return NULL;
}

static void waiters_make_progress(void **state)
{
	pthread_t id[THREADS + 1];
	int i;

	for (i = 0; i < THREADS + 1; i++)
		pthread_create(&id[i], NULL, hog, NULL);
	for (i = 0; i < THREADS + 1; i++)
		pthread_join(id[i], NULL);
}

static void fill(struct cfs_page *page, uint8_t first)
{
	uint32_t i;

	for (i = 0; i < page->size; i++)
		page->data[i] = (uint8_t)(first + i);
}

static void segs_pieces(void **state)
{
	struct cfs_page *a = get(1), *b = get(1);
	struct cfs_segs s, part;
	uint8_t out[64];

	fill(a, 0);
	fill(b, 100);
	cfs_segs_init(&s);
	cfs_segs_init(&part);
	assert_int_equal(cfs_segs_add(&s, cfs_page_ref(a), 0, 10), 0);
	assert_int_equal(cfs_segs_add(&s, cfs_page_ref(a), 10, 10), 0);
	assert_int_equal(s.n, 1);
	assert_int_equal(cfs_segs_add_zeros(&s, 4), 0);
	assert_int_equal(cfs_segs_add_zeros(&s, 4), 0);
	assert_int_equal(s.n, 2);
	assert_int_equal(cfs_segs_add(&s, b, 5, 10), 0);
	assert_int_equal(cfs_segs_add(&s, a, 0, 0), 0);
	assert_int_equal(s.len, 38);

	cfs_segs_copy_out(&s, 18, out, 12);
	assert_memory_equal(out, ((uint8_t[]){18, 19, 0, 0, 0, 0, 0, 0, 0, 0, 105, 106}), 12);
	assert_int_equal(cfs_segs_slice(&part, &s, 19, 12), 0);
	assert_int_equal(part.len, 12);
	assert_int_equal(part.n, 3);
	assert_int_equal(cfs_segs_slice(&part, &s, 38, 1), -EINVAL);
	assert_int_equal(cfs_segs_slice(&part, &s, 38, 0), 0);
	cfs_segs_truncate(&s, 19);
	assert_int_equal(s.len, 19);
	assert_int_equal(s.n, 1);
	cfs_segs_release(&s);

	/* The slice keeps its pages alive. */
	cfs_segs_copy_out(&part, 0, out, 12);
	assert_memory_equal(out, ((uint8_t[]){19, 0, 0, 0, 0, 0, 0, 0, 0, 105, 106, 107}), 12);
	cfs_segs_release(&part);
	assert_int_equal(part.len, 0);
}

static void segs_grow_to_the_heap(void **state)
{
	struct cfs_segs s, copy;
	struct iovec *iov;
	uint8_t out;
	int i;

	cfs_segs_init(&s);
	cfs_segs_init(&copy);
	for (i = 0; i < 100; i++) {
		struct cfs_page *page = get(1);

		page->data[0] = (uint8_t)i;
		assert_int_equal(cfs_segs_add(&s, page, 0, 1), 0);
	}
	assert_int_equal(s.n, 100);
	assert_int_equal(cfs_segs_slice(&copy, &s, 0, 100), 0);
	for (i = 0; i < 100; i++) {
		cfs_segs_copy_out(&copy, (uint64_t)i, &out, 1);
		assert_int_equal(out, i);
	}
	assert_int_equal(cfs_segs_iov(&copy, &iov), 100);
	assert_int_equal(*(uint8_t *)iov[42].iov_base, 42);
	free(iov);
	cfs_segs_truncate(&copy, 0);
	assert_int_equal(copy.n, 0);
	cfs_segs_release(&copy);
	cfs_segs_release(&s);
}

static void segs_holes(void **state)
{
	uint64_t huge = ((uint64_t)5 << 30) + 123;
	struct cfs_segs s;
	struct iovec *iov;
	size_t sum = 0;
	int i, n;

	cfs_segs_init(&s);
	assert_int_equal(cfs_segs_add_zeros(&s, huge), 0);
	assert_int_equal(s.len, huge);
	cfs_segs_truncate(&s, (3u << 20) + 5);
	n = cfs_segs_iov(&s, &iov);
	assert_int_equal(n, 4);
	for (i = 0; i < n; i++) {
		assert_int_equal(((uint8_t *)iov[i].iov_base)[iov[i].iov_len - 1], 0);
		sum += iov[i].iov_len;
	}
	assert_int_equal(sum, s.len);
	free(iov);
	cfs_segs_release(&s);
	assert_int_equal(cfs_segs_iov(&s, &iov), 0);
	free(iov);
}

#define POOL_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		POOL_TEST(children_have_none_of_it), POOL_TEST(idle_costs_nothing),
		POOL_TEST(sizes_and_references),     POOL_TEST(budget_is_hard),
		POOL_TEST(writers_leave_room),	     POOL_TEST(carving),
		POOL_TEST(fragmentation_is_bounded), POOL_TEST(uses_are_counted),
		POOL_TEST(trim_keeps_what_is_used),  POOL_TEST(reclaim_in_order),
		POOL_TEST(waiter_is_woken),	     POOL_TEST(threads_never_share_a_page),
		POOL_TEST(waiters_make_progress),    POOL_TEST(segs_pieces),
		POOL_TEST(segs_grow_to_the_heap),    POOL_TEST(segs_holes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
