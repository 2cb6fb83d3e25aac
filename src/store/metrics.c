/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the block store. */
#include "store-internal.h"

/* A counter that each shard has under its lock. */
static uint64_t sum_of_shards(struct cfs_store *s, size_t offset)
{
	uint64_t sum = 0;
	unsigned i;

	for (i = 0; i < CFS_STORE_SHARDS; i++) {
		struct shard *sh = &s->shards[i];

		pthread_mutex_lock(&sh->lock);
		sum += *(const uint64_t *)((const char *)sh + offset);
		pthread_mutex_unlock(&sh->lock);
	}
	return sum;
}

static uint64_t memory_hits(void *store)
{
	return sum_of_shards(store, offsetof(struct shard, hits));
}

static uint64_t memory_hit_bytes(void *store)
{
	return sum_of_shards(store, offsetof(struct shard, hit_bytes));
}

static uint64_t queued(struct cfs_workers *w)
{
	struct cfs_workers_stats st;

	cfs_workers_stats(w, &st);
	return st.queued;
}

static uint64_t uploads_queued(void *store)
{
	return queued(((struct cfs_store *)store)->uploads);
}

static uint64_t downloads_queued(void *store)
{
	return queued(((struct cfs_store *)store)->downloads);
}

/* Of the process. */
static uint64_t retries(void *store)
{
	(void)store;
	return cfs_object_retries();
}

static uint64_t damaged(void *store)
{
	(void)store;
	return cfs_object_damaged();
}

/* The blocks of the cache group are kept for the disk cache, too. */
static uint64_t pending_bytes(void *store)
{
	struct cfs_store *s = store;
	uint64_t sum = 0;
	unsigned i;

	for (i = 0; i < s->n_tiers; i++) {
		if (s->tiers[i].ops->pending)
			sum += s->tiers[i].ops->pending(s->tiers[i].tier);
	}
	return sum;
}

#define M(n, h, field)	   CFS_METRIC(struct cfs_store, n, NULL, h, field)
#define L(n, l, h, field)  CFS_METRIC(struct cfs_store, n, l, h, field)
#define NS(n, l, h, field) CFS_METRIC_NS(struct cfs_store, n, l, h, field)
#define R(n, h, fn)	   CFS_METRIC_READ(n, h, fn)
static const struct cfs_metric metrics[] = {
	R("memory_cache_hits_total", "Reads served from memory", memory_hits),
	R("memory_cache_hit_bytes_total", "Data served from memory", memory_hit_bytes),
	M("memory_cache_bytes", "Blocks kept in memory", memory_bytes),
	M("store_prefetches_total", "Ranges fetched ahead", stat.prefetches),
	M("store_prefetch_drops_total", "Ranges not fetched ahead, as too many waited",
	  stat.prefetch_drops),
	M("store_prefetch_cancels_total", "Queued prefetches that were cancelled",
	  stat.prefetch_cancels),
	M("store_block_prefetches_total", "Whole blocks fetched after a part of them was read",
	  stat.block_prefetches),
	M("store_block_prefetch_drops_total", "Whole blocks not fetched, as too many waited",
	  stat.block_prefetch_drops),
	R("store_uploads_queued", "Uploads that wait for their turn", uploads_queued),
	R("store_downloads_queued", "Downloads that wait for their turn", downloads_queued),
	L("object_requests_total", "method=\"get\"", "Requests to the object store", stat.gets),
	L("object_requests_total", "method=\"put\"", NULL, stat.puts),
	L("object_requests_total", "method=\"delete\"", NULL, stat.deletes),
	L("object_request_errors_total", "method=\"get\"",
	  "Requests to the object store that failed after all retries", stat.get_errors),
	L("object_request_errors_total", "method=\"put\"", NULL, stat.put_errors),
	L("object_request_errors_total", "method=\"delete\"", NULL, stat.delete_errors),
	L("object_data_bytes_total", "method=\"get\"", "Data moved from and to the object store",
	  stat.get_bytes),
	L("object_data_bytes_total", "method=\"put\"", NULL, stat.put_bytes),
	NS("object_request_seconds_total", "method=\"get\"",
	   "Time that requests to the object store took", stat.get_ns),
	NS("object_request_seconds_total", "method=\"put\"", NULL, stat.put_ns),
	R("object_retries_total", "Requests to the object store that were tried again", retries),
	R("object_damaged_total",
	  "Bodies of answers and uploads that did not arrive as they were sent", damaged),
	R("disk_cache_pending_bytes", "Data that waits to be written to the disk cache",
	  pending_bytes),
};

const struct cfs_metric_table cfs_store_metrics = CFS_METRIC_TABLE(metrics);
