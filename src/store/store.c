/* SPDX-License-Identifier: Apache-2.0 */
/* The block store: its life, the way of a read, removal. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/log.h"
#include "base/wouldblock.h"
#include "store-internal.h"

#define DEFAULT_WORKERS	   20
#define DEFAULT_TIMEOUT_MS 60000
#define TIER_TIMEOUT_MS	   10000
#define LOCAL_TIMEOUT_MS   1000
#define QUEUE_LIMIT	   1024
#define VOLUME_MAX	   64
#define REMOVE_BATCH	   64

static unsigned workers_or_default(unsigned n)
{
	return n ? n : DEFAULT_WORKERS;
}

/* The other quarter is for readers. */
static unsigned prefetches_of(unsigned max_downloads)
{
	return CFS_DIV_UP(max_downloads * 3, 4);
}

int cfs_store_create(const struct cfs_store_conf *conf, struct cfs_store **ret)
{
	unsigned max_downloads = workers_or_default(conf->max_downloads);
	unsigned max_uploads = workers_or_default(conf->max_uploads);
	struct cfs_store *s;
	int r;

	if (conf->block_size == 0 || conf->block_size > CFS_STORE_BLOCK_MAX ||
	    strlen(conf->volume) > VOLUME_MAX)
		return -EINVAL;
	s = aligned_alloc(64, sizeof(*s));
	if (!s)
		return -ENOMEM;
	memset(s, 0, sizeof(*s));
	s->object = conf->object;
	s->pool = conf->pool;
	s->block_size = conf->block_size;
	s->hash_prefix = conf->hash_prefix;
	s->get_timeout_ms = conf->get_timeout_ms ? conf->get_timeout_ms : DEFAULT_TIMEOUT_MS;
	s->put_timeout_ms = conf->put_timeout_ms ? conf->put_timeout_ms : DEFAULT_TIMEOUT_MS;
	s->tier_timeout_ms = conf->tier_timeout_ms ? conf->tier_timeout_ms : TIER_TIMEOUT_MS;
	s->local_timeout_ms = conf->local_timeout_ms
				      ? conf->local_timeout_ms
				      : CFS_MIN(LOCAL_TIMEOUT_MS, s->tier_timeout_ms);
	s->cache_large_write = conf->cache_large_write;
	s->max_prefetches = prefetches_of(max_downloads);
	pthread_mutex_init(&s->alloc_lock, NULL);
	pthread_mutex_init(&s->put_lock, NULL);
	pthread_mutex_init(&s->prefetch_lock, NULL);
	TAILQ_INIT(&s->prefetches);
	TAILQ_INIT(&s->block_prefetches);
	TAILQ_INIT(&s->readaheads);
	cfs_cond_init(&s->alloc_free);
	cfs_cond_init(&s->put_room);

	r = cfs_memory_init(s);
	if (r < 0)
		goto fail;
	s->volume = strdup(conf->volume);
	if (!s->volume) {
		r = -ENOMEM;
		goto fail;
	}
	r = cfs_workers_create("cfs-download", max_downloads, QUEUE_LIMIT, &s->downloads);
	if (r < 0)
		goto fail;
	r = cfs_workers_create("cfs-local", max_downloads, QUEUE_LIMIT, &s->local_workers);
	if (r < 0)
		goto fail;
	r = cfs_workers_create("cfs-upload", max_uploads, QUEUE_LIMIT, &s->uploads);
	if (r < 0)
		goto fail;
	cfs_put_set_max(s, max_uploads);
	r = cfs_prefetch_init(s, conf->prefetch);
	if (r < 0)
		goto fail;
	r = cfs_sync_init(s, conf);
	if (r < 0)
		goto fail;
	r = cfs_put_init(s);
	if (r < 0)
		goto fail;
	*ret = s;
	return 0;

fail:
	cfs_store_destroy(s);
	return r;
}

void cfs_store_set_parallel(struct cfs_store *s, unsigned max_downloads, unsigned max_uploads)
{
	cfs_workers_set_max(s->downloads, max_downloads);
	cfs_put_set_max(s, max_uploads);
	if (s->stage)
		s->stage_ops->set_max_uploads(s->stage, max_uploads);
	s->max_prefetches = prefetches_of(max_downloads);
}

void cfs_store_hurry_reads(struct cfs_store *s)
{
	uint64_t no = 0;

	atomic_compare_exchange_strong(&s->hurried_ms, &no, cfs_now_ms());
}

void cfs_store_stop_reads(struct cfs_store *s)
{
	atomic_store(&s->reads_stopped, true);
}

void cfs_store_destroy(struct cfs_store *s)
{
	if (!s)
		return;
	/* The watchdog outlives the uploads, which may need it to end. */
	cfs_workers_destroy(s->uploads);
	cfs_put_fini(s);
	cfs_prefetch_fini(s);
	/* Jobs of these workers submit others to the downloads. */
	cfs_workers_destroy(s->local_workers);
	cfs_workers_destroy(s->downloads);
	/* Readers look into the staging table, so it outlives the download workers. */
	if (s->stage)
		s->stage_ops->stop(s->stage);
	cfs_sync_fini(s);
	cfs_memory_fini(s);
	pthread_cond_destroy(&s->put_room);
	pthread_cond_destroy(&s->alloc_free);
	pthread_mutex_destroy(&s->prefetch_lock);
	pthread_mutex_destroy(&s->put_lock);
	pthread_mutex_destroy(&s->alloc_lock);
	free(s->volume);
	free(s);
}

int cfs_store_add_tier(struct cfs_store *s, const struct cfs_tier_ops *ops, void *tier)
{
	if (s->n_tiers == CFS_STORE_TIERS)
		return -ENOSPC;
	s->tiers[s->n_tiers++] = (struct cfs_tier_slot){.ops = ops, .tier = tier};
	return 0;
}

static bool range_is_valid(const struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			   uint32_t len)
{
	return b->len > 0 && b->len <= s->block_size && len > 0 && off < b->len &&
	       len <= b->len - off;
}

int cfs_store_read(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		   cfs_deadline_t deadline, struct cfs_segs *ret)
{
	const struct cfs_pattern unknown = {0};
	enum cfs_source source;

	return cfs_store_fetch(s, b, off, len, unknown, deadline, NULL, ret, &source);
}

int cfs_store_fetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    struct cfs_pattern pattern, cfs_deadline_t deadline, struct cfs_async *async,
		    struct cfs_segs *ret, enum cfs_source *ret_source)
{
	struct cfs_miss m = {.block = b,
			     .off = off,
			     .len = len,
			     .pattern = pattern,
			     .deadline = deadline,
			     .async = async};
	bool repeat = cfs_is_repeated(), expected = false;
	struct shard *sh = cfs_memory_shard(s, b);
	uint64_t before = ret->len;
	struct block *block;
	int r = 0;

	*ret_source = CFS_SOURCE_LOCAL;
	if (!range_is_valid(s, b, off, len))
		return -EINVAL;
	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_find(sh, b);
	if (block)
		r = cfs_memory_collect(block, off, len, ret);
	if (block && r == 0)
		expected = cfs_memory_expects(block, off, len);
	if (r > 0 && !repeat) {
		sh->hits++;
		sh->hit_bytes += len;
	}
	pthread_mutex_unlock(&sh->lock);
	if (r == 0) {
		m.route = cfs_route_find(s, b);
		if (!repeat)
			r = cfs_local_read(s, &m, ret);
	}
	if (r == 0) {
		cfs_route_place(s, b, &m.route);
		r = expected ? 0 : cfs_range_read(s, &m, ret);
	}
	if (r == 0)
		r = cfs_flight_read(s, &m, ret);
	*ret_source = m.source;
	if (r < 0)
		cfs_segs_truncate(ret, before);
	return r < 0 ? r : 0;
}

bool cfs_store_start_fetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			   uint32_t len, struct cfs_pattern pattern, uint64_t owner)
{
	struct cfs_miss m = {.block = b, .off = off, .len = len, .pattern = pattern};

	if (!range_is_valid(s, b, off, len) || cfs_store_in_memory(s, b, off, len))
		return false;
	m.route = cfs_route_find(s, b);
	if (m.route.local)
		return false;
	cfs_route_place(s, b, &m.route);
	return !cfs_range_serves(s, &m) && cfs_flight_start(s, &m, owner);
}

bool cfs_store_prefetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
			uint64_t owner)
{
	struct cfs_route route;
	int r = -EOPNOTSUPP;

	if (!range_is_valid(s, b, off, len) || cfs_store_in_memory(s, b, off, len))
		return true;
	route = cfs_route_find(s, b);
	if (route.local)
		r = cfs_local_ahead(s, b, off, len);
	if (r != -EOPNOTSUPP)
		return r == 0;
	cfs_route_place(s, b, &route);
	return cfs_flight_prefetch(s, b, off, len, owner, &route);
}

bool cfs_store_in_memory(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len)
{
	return range_is_valid(s, b, off, len) && cfs_memory_held(s, b, off, len) == len;
}

void cfs_store_forget(struct cfs_store *s, const struct cfs_block *b)
{
	unsigned i;

	cfs_memory_forget(s, b);
	for (i = 0; i < s->n_tiers; i++) {
		if (s->tiers[i].ops->forget)
			s->tiers[i].ops->forget(s->tiers[i].tier, b);
	}
}

static int head(struct cfs_store *s, const struct cfs_block *b, cfs_deadline_t deadline)
{
	struct cfs_object_info info;
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(s, b, key);
	return s->object->ops->head(s->object, key, &info, deadline);
}

/*
 * For a denied read: a bucket also denies access to a missing object if the client may not list it.
 * Stores *beside, whose name no slice has, for a moment. If that can be read, the object is missing.
 */
static int check_denied(struct cfs_store *s, const struct cfs_block *beside,
			cfs_deadline_t deadline)
{
	char key[CFS_BLOCK_KEY_MAX], byte = 0;
	struct iovec all = {.iov_base = &byte, .iov_len = 1};
	int r;

	cfs_store_block_key(s, beside, key);
	r = s->object->ops->put(s->object, key, &all, 1, beside->tier, deadline);
	if (r < 0)
		return r;
	r = head(s, beside, deadline);
	s->object->ops->del(s->object, key, deadline);
	return r < 0 ? r : -ENOENT;
}

static int has_block(struct cfs_store *s, const struct cfs_block *b, uint32_t blocks,
		     cfs_deadline_t deadline)
{
	const struct cfs_block beside = {.slice = b->slice, .index = blocks, .len = 1};
	int r;

	if (s->stage && s->stage_ops->has(s->stage, b))
		return 1;
	r = head(s, b, deadline);
	if (r == -EACCES)
		r = check_denied(s, &beside, deadline);
	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

int cfs_store_has_slice(struct cfs_store *s, uint64_t slice, uint32_t size, cfs_deadline_t deadline)
{
	uint32_t i, n = CFS_DIV_UP((uint64_t)size, s->block_size);
	int r = 1;

	for (i = 0; i < n && r == 1; i++) {
		const struct cfs_block b = cfs_block_of(slice, size, i, s->block_size);

		r = has_block(s, &b, n, deadline);
	}
	return r;
}

static int remove_objects(struct cfs_store *s, const struct cfs_block *blocks, uint32_t n,
			  cfs_deadline_t deadline)
{
	char keys[REMOVE_BATCH][CFS_BLOCK_KEY_MAX];
	const char *list[REMOVE_BATCH];
	uint32_t i;
	int r;

	for (i = 0; i < n; i++) {
		if (s->stage)
			s->stage_ops->drop(s->stage, &blocks[i]);
		cfs_store_forget(s, &blocks[i]);
		cfs_store_block_key(s, &blocks[i], keys[i]);
		list[i] = keys[i];
	}
	cfs_activity_wait(CFS_WAIT_OBJECT_DELETE, blocks[0].slice, list[0]);
	r = cfs_object_del_many(s->object, list, n, deadline);
	cfs_activity_wait_end();
	CFS_STAT_ADD(s, deletes, n);
	if (r < 0)
		CFS_STAT_ADD(s, delete_errors, 1);
	return r;
}

int cfs_store_remove_slice(struct cfs_store *s, uint64_t slice, uint32_t size,
			   cfs_deadline_t deadline)
{
	uint32_t i, n = CFS_DIV_UP((uint64_t)size, s->block_size), k = 0;
	struct cfs_block blocks[REMOVE_BATCH];
	int r, err = 0;

	for (i = 0; i < n; i++) {
		blocks[k++] = cfs_block_of(slice, size, i, s->block_size);
		if (k < REMOVE_BATCH && i + 1 < n)
			continue;
		r = remove_objects(s, blocks, k, deadline);
		err = err ? err : r;
		k = 0;
	}
	return err;
}
