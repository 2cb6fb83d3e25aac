/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers above an object store: retries, limits, shards. When these fail calls are given up too early
 * or never, run into a limit that the user did not set, or miss objects of a sharded bucket.
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

#include "base/bytes.h"
#include "base/log.h"
#include "base/unwanted.h"
#include "object/object-internal.h"
#include "unit/wait.h"

/* ---- retries, over a store that fails as it is told ---- */

struct fake {
	struct cfs_object_store base;
	struct cfs_object_store *inner; /* mem */
	int failures;			/* to come */
	int err;
	struct cfs_object_failure failure;
	int calls;
	int list_fails_after; /* keys; with failures */
	bool disorder;
};

static bool fake_fails(struct fake *f)
{
	f->calls++;
	if (f->failures == 0)
		return false;
	if (f->failures > 0)
		f->failures--;
	return true;
}

static ssize_t fake_get(struct cfs_object_store *o, const char *key, uint64_t off,
			const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct fake *f = (struct fake *)o;

	return fake_fails(f) ? f->err
			     : f->inner->ops->get(f->inner, key, off, dst, n_dst, deadline);
}

static int fake_put(struct cfs_object_store *o, const char *key, const struct iovec *src, int n_src,
		    unsigned tier, cfs_deadline_t deadline)
{
	struct fake *f = (struct fake *)o;

	return fake_fails(f) ? f->err
			     : f->inner->ops->put(f->inner, key, src, n_src, tier, deadline);
}

static int fake_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	struct fake *f = (struct fake *)o;

	return fake_fails(f) ? f->err : f->inner->ops->del(f->inner, key, deadline);
}

static int fake_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		     cfs_deadline_t deadline)
{
	struct fake *f = (struct fake *)o;

	return fake_fails(f) ? f->err : f->inner->ops->head(f->inner, key, ret, deadline);
}

struct fake_listing {
	cfs_object_list_fn fn;
	void *arg;
	int left;
};

static int fake_list_one(void *arg, const struct cfs_object_info *info)
{
	struct fake_listing *l = arg;
	int r;

	if (l->left-- == 0)
		return 1000;
	r = l->fn(l->arg, info);
	return r;
}

static int fake_list(struct cfs_object_store *o, const char *prefix, const char *after,
		     cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct fake *f = (struct fake *)o;
	bool fails = fake_fails(f);
	struct fake_listing l = {fn, arg, fails ? f->list_fails_after : -1};
	int r;

	if (f->disorder && (r = fn(arg, &(struct cfs_object_info){.key = "zzz"})) != 0)
		return r;
	r = f->inner->ops->list(f->inner, prefix, after, fake_list_one, &l, deadline);
	return r == 1000 || (fails && r == 0) ? f->err : r;
}

static void fake_failure(struct cfs_object_store *o, struct cfs_object_failure *ret)
{
	*ret = ((struct fake *)o)->failure;
}

static void fake_close(struct cfs_object_store *o)
{
	cfs_object_close(((struct fake *)o)->inner);
	free(o);
}

static const struct cfs_object_ops fake_ops = {
	.name = "fake",
	.get = fake_get,
	.put = fake_put,
	.del = fake_del,
	.head = fake_head,
	.list = fake_list,
	.close = fake_close,
	.failure = fake_failure,
};

static struct fake *fake;
static struct cfs_object_store *store;

static int set_up_retry(void **state)
{
	struct cfs_object_conf conf = {.storage = "mem", .bucket = "retry"};
	char err[256];

	fake = calloc(1, sizeof(*fake));
	fake->base.ops = &fake_ops;
	fake->err = -EIO;
	fake->failure.retry = true;
	assert_int_equal(cfs_object_open(&conf, &fake->inner, err), 0);
	assert_int_equal(cfs_object_wrap_retry(&fake->base, &store), 0);
	return 0;
}

static int tear_down(void **state)
{
	cfs_object_close(store);
	return 0;
}

static int put(const char *key, const char *text)
{
	struct iovec iov = {(char *)text, strlen(text)};

	return store->ops->put(store, key, &iov, 1, 0, soon());
}

static ssize_t get(const char *key, char *buf, size_t size, cfs_deadline_t deadline)
{
	struct iovec iov = {buf, size};

	return store->ops->get(store, key, 0, &iov, 1, deadline);
}

static void test_calls_are_made_again(void **state)
{
	struct cfs_object_info info;
	uint64_t before = cfs_object_retries();
	char buf[16];

	fake->failures = 2;
	assert_int_equal(put("k", "text"), 0);
	fake->failures = 2;
	assert_int_equal(get("k", buf, sizeof(buf), soon()), 4);
	fake->failures = 1;
	assert_int_equal(store->ops->head(store, "k", &info, soon()), 0);
	assert_int_equal(info.size, 4);
	fake->failures = 1;
	assert_int_equal(store->ops->del(store, "k", soon()), 0);
	assert_int_equal(fake->calls, 3 + 3 + 2 + 2);
	assert_int_equal(cfs_object_retries() - before, 6);
}

static void test_answers_are_no_failures(void **state)
{
	char buf[4];

	assert_int_equal(get("missing", buf, sizeof(buf), soon()), -ENOENT);
	assert_int_equal(fake->calls, 1);
	fake->failures = 1;
	fake->err = -EACCES;
	fake->failure.retry = false;
	assert_int_equal(put("k", "x"), -EACCES);
	assert_int_equal(fake->calls, 2);
}

static void test_retries_end_at_the_deadline(void **state)
{
	uint64_t start = cfs_now_ms(), took;
	char buf[4];

	fake->failures = -1;
	assert_int_equal(get("k", buf, sizeof(buf), cfs_deadline_in(700)), -EIO);
	took = cfs_now_ms() - start;
	assert_in_range(took, 600, LONG_MS / 4);
	assert_in_range(fake->calls, 2, 60);
}

static void test_the_servers_pause_is_kept(void **state)
{
	uint64_t start = cfs_now_ms();
	char buf[4];

	put("k", "x");
	fake->failures = 1;
	fake->failure.after_ms = 500;
	assert_int_equal(get("k", buf, sizeof(buf), soon()), 1);
	assert_true(cfs_now_ms() - start >= 500);

	/* One that does not fit before the deadline is not begun: its own pauses are. */
	fake->failures = 2;
	fake->failure.after_ms = 3600000;
	assert_int_equal(get("k", buf, sizeof(buf), soon()), 1);
	start = cfs_now_ms();
	fake->failures = -1;
	assert_int_equal(get("k", buf, sizeof(buf), cfs_deadline_in(700)), -EIO);
	assert_in_range(cfs_now_ms() - start, 600, LONG_MS / 4);
}

/* Wanted when it is asked for the first time. */
static bool soon_unwanted(void *arg)
{
	int *n = arg;

	return (*n)++ > 0;
}

static ssize_t get_unwanted(const char *key, char *buf, size_t size)
{
	int n = 0;
	ssize_t r;

	cfs_unwanted_set(soon_unwanted, &n);
	r = get(key, buf, size, soon());
	cfs_unwanted_set(NULL, NULL);
	return r;
}

/* Neither the server's pauses nor its own are slept through. */
static void test_unwanted_calls_do_not_pause(void **state)
{
	uint64_t start = cfs_now_ms();
	char buf[4];
	int i;

	fake->failures = -1;
	fake->failure.after_ms = LONG_MS / 2;
	assert_int_equal(get_unwanted("k", buf, sizeof(buf)), -ECANCELED);
	assert_int_equal(fake->calls, 1);
	fake->failure.after_ms = 0;
	for (i = 0; i < 10; i++)
		assert_int_equal(get_unwanted("k", buf, sizeof(buf)), -ECANCELED);
	assert_true(cfs_now_ms() - start < LONG_MS / 4);
	/* An answer is one. */
	fake->failures = 0;
	assert_int_equal(get_unwanted("missing", buf, sizeof(buf)), -ENOENT);
}

struct seen {
	char keys[64][32];
	size_t n, stop_at;
};

static int see(void *arg, const struct cfs_object_info *info)
{
	struct seen *s = arg;

	assert_true(s->n < 64);
	snprintf(s->keys[s->n++], sizeof(s->keys[0]), "%s", info->key);
	return s->stop_at && s->n == s->stop_at ? 7 : 0;
}

static void put_numbers(int n)
{
	char key[32];
	int i;

	for (i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "n/%02d", i);
		assert_int_equal(put(key, "x"), 0);
	}
}

static void expect_numbers(const struct seen *s, int n)
{
	char key[32];
	int i;

	assert_int_equal(s->n, n);
	for (i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "n/%02d", i);
		assert_string_equal(s->keys[i], key);
	}
}

static void test_a_listing_goes_on_where_it_broke(void **state)
{
	struct seen s = {0};

	put_numbers(30);
	fake->failures = 3;
	fake->list_fails_after = 7;
	fake->calls = 0;
	assert_int_equal(store->ops->list(store, "n/", "", see, &s, soon()), 0);
	assert_int_equal(fake->calls, 4);
	expect_numbers(&s, 30);
}

static void test_a_listing_that_stays_broken_is_an_error(void **state)
{
	struct seen s = {0};

	put_numbers(30);
	fake->failures = -1;
	fake->list_fails_after = 0;
	assert_int_equal(store->ops->list(store, "n/", "", see, &s, cfs_deadline_in(500)), -EIO);
	assert_int_equal(s.n, 0);
}

/* Behind the last of keys in no order some may never come: such a listing is not resumed. */
static void test_a_listing_in_disorder_is_not_resumed(void **state)
{
	struct seen s = {0};

	put_numbers(10);
	fake->disorder = true;
	fake->failures = 1;
	fake->list_fails_after = 5;
	fake->calls = 0;
	assert_int_equal(store->ops->list(store, "n/", "", see, &s, soon()), -EIO);
	assert_int_equal(fake->calls, 1);
}

static void test_the_callers_stop_is_no_failure(void **state)
{
	struct seen s = {.stop_at = 4};

	put_numbers(10);
	fake->calls = 0;
	assert_int_equal(store->ops->list(store, "n/", "", see, &s, soon()), 7);
	assert_int_equal(fake->calls, 1);
	assert_int_equal(s.n, 4);
}

/* ---- limits ---- */

struct mover {
	size_t size;
	int times;
	bool down;
};

static void *move(void *arg)
{
	const struct mover *m = arg;
	char *data = calloc(1, m->size);
	struct iovec iov = {data, m->size};
	char key[32];
	int i;

	snprintf(key, sizeof(key), "limit/%p", (void *)&data);
	if (m->down)
		assert_int_equal(store->ops->put(store, key, &iov, 1, 0, soon()), 0);
	for (i = 0; i < m->times; i++) {
		if (m->down)
			assert_int_equal(store->ops->get(store, key, 0, &iov, 1, soon()), m->size);
		else
			assert_int_equal(store->ops->put(store, key, &iov, 1, 0, soon()), 0);
	}
	free(data);
	return NULL;
}

static void open_limited(uint64_t up, uint64_t down)
{
	struct cfs_object_conf conf = {
		.storage = "mem",
		.bucket = "limit",
		.upload_limit = up,
		.download_limit = down,
	};
	char err[256];

	assert_int_equal(cfs_object_open(&conf, &store, err), 0);
}

/* 8 MB/s, by one thread and by four, in large and small objects: within 5 % of it. */
static void test_limits_hold(void **state)
{
	static const struct {
		bool down;
		unsigned threads;
		size_t size;
		int times;
	} cases[] = {
		{false, 1, 400000, 20},
		{false, 4, 100000, 20},
		{true, 1, 400000, 20},
		{true, 4, 10000, 200},
	};
	pthread_t v[4];
	size_t i;
	unsigned k;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		struct mover m = {cases[i].size, cases[i].times, cases[i].down};
		double bytes = (double)cases[i].threads * (double)m.size * m.times, rate;
		uint64_t start;

		if (m.down)
			open_limited(0, 8000000);
		else
			open_limited(8000000, 0);
		start = cfs_now_ns();
		for (k = 0; k < cases[i].threads; k++)
			assert_int_equal(pthread_create(&v[k], NULL, move, &m), 0);
		for (k = 0; k < cases[i].threads; k++)
			pthread_join(v[k], NULL);
		rate = bytes * 1e9 / (double)(cfs_now_ns() - start);
		assert_true(rate < 8000000 * 1.05);
		/* A loaded machine may be slower, not faster. */
		assert_true(rate > 8000000 * 0.60);
		cfs_object_close(store);
	}
}

/* A transfer of hours must not go on when the limit that makes it so is taken away. */
static void test_changed_limits_hold(void **state)
{
	struct cfs_object_conf conf = {.storage = "mem", .bucket = "limit"};
	struct mover m = {1000000, 1, false};
	uint64_t start = cfs_now_ms();
	pthread_t thread;

	open_limited(200000, 0);
	assert_int_equal(pthread_create(&thread, NULL, move, &m), 0);
	cfs_backoff(0, 1, 1, soon());
	assert_int_equal(cfs_object_adopt(store, &conf), 0);
	pthread_join(thread, NULL);
	assert_true(cfs_now_ms() - start < 4000);
	conf.upload_limit = conf.download_limit = 8000000;
	assert_int_equal(cfs_object_adopt(store, &conf), 0);
	for (m.down = false;; m.down = true) {
		m.times = 4;
		start = cfs_now_ms();
		move(&m);
		assert_in_range(cfs_now_ms() - start, 475, LONG_MS / 2);
		if (m.down)
			break;
	}
	cfs_object_close(store);
}

static void test_limit_and_deadline(void **state)
{
	char *data = calloc(1, 1000000);
	struct iovec iov = {data, 1000000};
	uint64_t start = cfs_now_ms();

	open_limited(100000, 0);
	assert_int_equal(store->ops->put(store, "k", &iov, 1, 0, cfs_deadline_in(300)), -ETIMEDOUT);
	assert_in_range(cfs_now_ms() - start, 250, LONG_MS / 4);
	/* A refused request has not been charged. */
	iov.iov_len = 1000;
	assert_int_equal(store->ops->put(store, "k", &iov, 1, 0, cfs_deadline_in(2000)), 0);
	assert_true(store->ops->get_nowait != NULL);
	cfs_object_close(store);
	free(data);
}

static void test_unwanted_calls_do_not_wait_for_the_limit(void **state)
{
	struct iovec iov = {calloc(1, 100000), 100000};
	uint64_t start = cfs_now_ms();
	char *buf = malloc(100000);

	open_limited(0, 1000);
	assert_int_equal(store->ops->put(store, "k", &iov, 1, 0, soon()), 0);
	/* Its bytes are there, and are paid for by the next one. */
	assert_int_equal(get_unwanted("k", buf, 10000), 10000);
	assert_int_equal(get_unwanted("k", buf, 10000), -ECANCELED);
	assert_int_equal(get_unwanted("k", buf, 100000), -ECANCELED);
	assert_true(cfs_now_ms() - start < LONG_MS / 4);
	cfs_object_close(store);
	free(buf);
	free(iov.iov_base);
}

/* ---- shards ---- */

static int set_up_shards(void **state)
{
	struct cfs_object_conf conf = {.storage = "mem", .bucket = "shard-%d", .shards = 3};
	char err[256];

	assert_int_equal(cfs_object_open(&conf, &store, err), 0);
	return 0;
}

/* FNV-1a of the whole key, modulo their number: where JuiceFS looks. */
static void test_shard_of_a_key(void **state)
{
	static const struct {
		const char *key, *bucket;
	} cases[] = {
		{"vol/chunks/0/0/1_0_4194304", "shard-0"},
		{"vol/chunks/0/0/2_0_4194304", "shard-2"},
		{"vol/juicefs_uuid", "shard-1"},
		{"foobar", "shard-1"},
	};
	char err[256], buf[8];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		struct cfs_object_conf conf = {.storage = "mem", .bucket = cases[i].bucket};
		struct iovec iov = {buf, sizeof(buf)};
		struct cfs_object_store *one;

		assert_int_equal(put(cases[i].key, "here"), 0);
		assert_int_equal(cfs_object_open(&conf, &one, err), 0);
		assert_int_equal(one->ops->get(one, cases[i].key, 0, &iov, 1, soon()), 4);
		cfs_object_close(one);
	}
}

static int count(void *arg, const struct cfs_object_info *info)
{
	static char last[64];
	size_t *n = arg;

	if (*n)
		assert_true(strcmp(info->key, last) > 0);
	snprintf(last, sizeof(last), "%s", info->key);
	++*n;
	return 0;
}

static void test_shards_are_one_listing(void **state)
{
	enum { MANY = 40000 };
	struct seen s = {0};
	const char **keys;
	char key[32];
	size_t n = 0;
	int i;

	put_numbers(40);
	assert_int_equal(store->ops->list(store, "n/", "", see, &s, soon()), 0);
	expect_numbers(&s, 40);
	s = (struct seen){.stop_at = 5};
	assert_int_equal(store->ops->list(store, "n/", "n/09", see, &s, soon()), 7);
	assert_string_equal(s.keys[0], "n/10");
	assert_int_equal(s.n, 5);

	/* More than one piece of each shard */
	keys = calloc(MANY, sizeof(*keys));
	for (i = 0; i < MANY; i++) {
		snprintf(key, sizeof(key), "m/%d", i);
		keys[i] = strdup(key);
		assert_int_equal(put(key, ""), 0);
	}
	assert_int_equal(store->ops->list(store, "m/", "", count, &n, cfs_deadline_in(60000)), 0);
	assert_int_equal(n, MANY);
	assert_int_equal(cfs_object_del_many(store, keys, MANY, soon()), 0);
	n = 0;
	assert_int_equal(store->ops->list(store, "m/", "", count, &n, soon()), 0);
	assert_int_equal(n, 0);
	for (i = 0; i < MANY; i++)
		free((char *)keys[i]);
	free(keys);
}

static int list_in_disorder(struct cfs_object_store *o, const char *prefix, const char *after,
			    cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	static const char *const keys[] = {"n/2", "n/1", "n/3"};
	struct cfs_object_info info = {0};
	size_t i;
	int r = 0;

	for (i = 0; i < CFS_ARRAY_SIZE(keys) && r == 0; i++) {
		info.key = keys[i];
		r = strcmp(keys[i], after) > 0 ? fn(arg, &info) : 0;
	}
	return r;
}

static void close_nothing(struct cfs_object_store *o)
{
}

static int open_in_disorder(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
			    char err[CFS_OBJECT_ERRLEN])
{
	static const struct cfs_object_ops ops = {.list = list_in_disorder, .close = close_nothing};
	static struct cfs_object_store one = {&ops};

	*ret = &one;
	return 0;
}

/* Behind a piece in disorder there may be keys that never come: half a listing is none. */
static void test_shards_in_disorder(void **state)
{
	struct cfs_object_conf conf = {.bucket = "d-%d", .shards = 2};
	struct cfs_object_store *o;
	struct seen s = {0};
	char err[256];

	assert_int_equal(cfs_object_open_shards(&conf, open_in_disorder, &o, err), 0);
	assert_int_equal(o->ops->list(o, "n/", "", see, &s, soon()), -EPROTO);
	cfs_object_close(o);
}

static void test_buckets_of_shards(void **state)
{
	static const char *const bad[] = {"no-mark", "two-%d-%d", "other-%s"};
	struct cfs_object_conf conf = {.storage = "mem", .shards = 2};
	struct cfs_object_store *o;
	char err[256];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++) {
		conf.bucket = bad[i];
		assert_int_equal(cfs_object_open(&conf, &o, err), -EINVAL);
		assert_non_null(strstr(err, "%d"));
	}
	conf.bucket = "%s%n-%d-100%";
	assert_int_equal(cfs_object_open(&conf, &o, err), 0);
	cfs_object_close(o);
}
int main(void)
{
	const struct CMUnitTest tests[] = {
#define RETRY(fn) cmocka_unit_test_setup_teardown(fn, set_up_retry, tear_down)
		RETRY(test_calls_are_made_again),
		RETRY(test_answers_are_no_failures),
		RETRY(test_retries_end_at_the_deadline),
		RETRY(test_the_servers_pause_is_kept),
		RETRY(test_unwanted_calls_do_not_pause),
		RETRY(test_a_listing_goes_on_where_it_broke),
		RETRY(test_a_listing_that_stays_broken_is_an_error),
		RETRY(test_a_listing_in_disorder_is_not_resumed),
		RETRY(test_the_callers_stop_is_no_failure),
#undef RETRY
		cmocka_unit_test(test_limits_hold),
		cmocka_unit_test(test_changed_limits_hold),
		cmocka_unit_test(test_limit_and_deadline),
		cmocka_unit_test(test_unwanted_calls_do_not_wait_for_the_limit),
		cmocka_unit_test_setup_teardown(test_shard_of_a_key, set_up_shards, tear_down),
		cmocka_unit_test_setup_teardown(test_shards_are_one_listing, set_up_shards,
						tear_down),
		cmocka_unit_test(test_shards_in_disorder),
		cmocka_unit_test(test_buckets_of_shards),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
