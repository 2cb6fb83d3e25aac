/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cachefs/stage.h>

#include "store_fixture.h"

struct faulty faulty;
struct cfs_pool *pool;
struct cfs_store *store;
struct cfs_metrics metrics;

/* ---- the object store ---- */

void pass_gate(int *which)
{
	unsigned generation;

	pthread_mutex_lock(&faulty.lock);
	if (*which > 0) {
		(*which)--;
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

void hold(int *which, int n)
{
	pthread_mutex_lock(&faulty.lock);
	*which = n;
	pthread_mutex_unlock(&faulty.lock);
}

void wait_held(int n)
{
	cfs_deadline_t deadline = soon();
	int r = 0;

	pthread_mutex_lock(&faulty.lock);
	while (faulty.held != n && r == 0)
		r = cfs_cond_wait(&faulty.changed, &faulty.lock, deadline);
	assert_int_equal(faulty.held, n);
	pthread_mutex_unlock(&faulty.lock);
}

void let_go(void)
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
		      int n_src, unsigned tier, cfs_deadline_t deadline)
{
	int i;

	faulty.puts++;
	pass_gate(&faulty.hold_puts);
	if (faulty.put_error)
		return faulty.put_error;
	i = faulty.n_keys++;
	if (i < (int)CFS_ARRAY_SIZE(faulty.keys)) {
		faulty.tiers[i] = tier;
		snprintf(faulty.keys[i], sizeof(faulty.keys[i]), "%s", key);
	}
	return faulty.inner->ops->put(faulty.inner, key, src, n_src, tier, deadline);
}

static int faulty_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	return faulty.inner->ops->del(faulty.inner, key, deadline);
}

static int faulty_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		       cfs_deadline_t deadline)
{
	int r = faulty.head_error ? faulty.head_error
				  : faulty.inner->ops->head(faulty.inner, key, ret, deadline);

	return r == -ENOENT && faulty.missing_error ? faulty.missing_error : r;
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
	.head = faulty_head,
	.sync = faulty_sync,
};

void open_objects(void)
{
	struct cfs_object_conf object = {.storage = "mem", .bucket = "store"};
	char err[256];

	memset(&faulty, 0, sizeof(faulty));
	pthread_mutex_init(&faulty.lock, NULL);
	cfs_cond_init(&faulty.changed);
	faulty.base.ops = &faulty_ops;
	assert_int_equal(cfs_object_open(&object, &faulty.inner, err), 0);
}

void close_objects(void)
{
	cfs_object_close(faulty.inner);
}

/* ---- the store ---- */

void open_store(struct setting setting)
{
	struct cfs_store_conf conf = {
		.object = setting.plain ? faulty.inner : &faulty.base,
		.volume = "vol",
		.block_size = BLOCK,
		.hash_prefix = setting.hash_prefix,
		.max_downloads = setting.downloads ? setting.downloads : 4,
		.max_uploads = setting.uploads ? setting.uploads : 4,
		.get_timeout_ms = setting.get_timeout_ms ? setting.get_timeout_ms : LONG_MS,
		.put_timeout_ms = setting.put_timeout_ms ? setting.put_timeout_ms : LONG_MS,
		.tier_timeout_ms = setting.tier_timeout_ms,
		.prefetch = setting.prefetch,
		.unsynced = setting.unsynced,
		.reports_unsynced = setting.reports_unsynced,
	};

	faulty_ops.whole = setting.whole;
	assert_int_equal(cfs_pool_create(setting.budget ? setting.budget : 64 * MIB, &pool), 0);
	conf.pool = pool;
	assert_int_equal(cfs_store_create(&conf, &store), 0);
	metrics.n = 0;
	cfs_metrics_add(&metrics, &cfs_store_metrics, store);
	cfs_metrics_add(&metrics, &cfs_stage_metrics, store);
}

void close_store(void)
{
	cfs_store_destroy(store);
}

void close_pool(void)
{
	struct cfs_pool_stats st;
	int i;

	cfs_pool_stats(pool, &st);
	for (i = 0; i < CFS_USE_COUNT; i++)
		assert_int_equal(st.used[i], 0);
	cfs_pool_destroy(pool);
}

void start_store(struct setting setting)
{
	open_objects();
	open_store(setting);
}

void stop_store(void)
{
	let_go();
	close_store();
	close_pool();
	close_objects();
}

static uint64_t find(const char *name, const char *labels)
{
	uint64_t value = cfs_metrics_get(&metrics, name, labels);

	assert_int_not_equal(value, UINT64_MAX);
	return value;
}

uint64_t metric(const char *name)
{
	return find(name, NULL);
}

uint64_t metric_for(const char *name, const char *method)
{
	char labels[32];

	snprintf(labels, sizeof(labels), "method=\"%s\"", method);
	return find(name, labels);
}

/* ---- blocks ---- */

uint8_t byte_at(const struct cfs_block *b, uint32_t pos)
{
	uint64_t h = (b->slice * 1000003 + b->index * 7919 + pos / 8) * 0x9E3779B97F4A7C15ULL;

	return (uint8_t)(h >> (56 - pos % 8 * 4));
}

uint8_t *content(const struct cfs_block *b)
{
	uint8_t *data = malloc(b->len + 1);
	uint32_t i;

	for (i = 0; i < b->len; i++)
		data[i] = byte_at(b, i);
	return data;
}

void put_object(const struct cfs_block *b)
{
	put_object_of(b, b->len);
}

void put_object_of(const struct cfs_block *b, uint32_t len)
{
	uint8_t *data = content(b);
	struct iovec iov = {data, len};
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(store, b, key);
	data[b->len] = 0;
	assert_int_equal(faulty.inner->ops->put(faulty.inner, key, &iov, 1, 0, soon()), 0);
	free(data);
}

bool object_exists(const struct cfs_block *b)
{
	struct cfs_object_info info;
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(store, b, key);
	return faulty.inner->ops->head(faulty.inner, key, &info, soon()) == 0 &&
	       info.size == b->len;
}

void fill(const struct cfs_block *b, uint32_t piece, struct cfs_segs *ret)
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

int put_sync(const struct cfs_block *b)
{
	struct cfs_segs data;
	int r;

	fill(b, PAGE, &data);
	r = cfs_store_put_sync(store, b, &data, soon());
	cfs_segs_release(&data);
	return r;
}

bool range_is_right(const struct cfs_segs *s, const struct cfs_block *b, uint32_t off, uint32_t len)
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

int read_range(const struct cfs_block *b, uint32_t off, uint32_t len, cfs_deadline_t deadline)
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

/* ---- threads ---- */

static void *run_reader(void *arg)
{
	struct reader *rd = arg;

	rd->r = read_range(&rd->b, rd->off, rd->len, rd->deadline);
	return NULL;
}

void start_readers(struct reader *rd, pthread_t *t, int n)
{
	int i;

	for (i = 0; i < n; i++)
		assert_int_equal(pthread_create(&t[i], NULL, run_reader, &rd[i]), 0);
}

void join_readers(pthread_t *t, int n)
{
	int i;

	for (i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}
