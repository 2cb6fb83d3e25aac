/* SPDX-License-Identifier: Apache-2.0 */
/* The peer tier: joining and leaving the group, reads from its members. */
#include <cachefs/disk.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "peers-internal.h"

#define WORKERS	    8
#define QUEUE_LIMIT 256
#define KEEPERS	    2
/* Parts of the pool: at most one is being sent or fetched for others; at most one is kept. */
#define RESERVED_PARTS 4
#define BUCKET_GETS    16 /* for a measurement of its service time */

int cfs_peers_submit(struct cfs_peers *p, struct cfs_workers *w, struct cfs_job *job)
{
	CFS_LOCK_GUARD(&p->lock);

	return atomic_load(&p->leaving) ? -ESHUTDOWN : cfs_workers_try_submit(w, job);
}

void cfs_peers_submit_block(struct cfs_peers *p, struct cfs_workers *w,
			    void (*run)(struct cfs_job *job), const struct cfs_block *b)
{
	struct block_job *j = malloc(sizeof(*j));

	if (!j)
		return;
	*j = (struct block_job){.job.run = run, .peers = p, .block = *b};
	if (cfs_peers_submit(p, w, &j->job) < 0)
		free(j);
}

/* ---- the tier ---- */

static ssize_t get(struct cfs_peers *p, const struct cfs_block *b, uint32_t off,
		   const struct iovec *dst, int n_dst, bool nowait, struct cfs_hedge *hedge,
		   cfs_deadline_t deadline)
{
	struct cfs_peer_block block = cfs_block_to_peer(b);
	uint32_t len = (uint32_t)cfs_iov_len(dst, n_dst);

	if (atomic_load(&p->leaving) || cfs_peers_fails_over(p, b))
		return -ENOENT;
	return cfs_group_read(p->group, &block, off, len, dst, n_dst, nowait, hedge, deadline);
}

static ssize_t tier_get(void *tier, const struct cfs_block *b, uint32_t off,
			const struct iovec *dst, int n_dst, bool nowait, cfs_deadline_t deadline)
{
	return get(tier, b, off, dst, n_dst, nowait, NULL, deadline);
}

static ssize_t tier_get_hedged(void *tier, const struct cfs_block *b, uint32_t off,
			       const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			       cfs_deadline_t deadline)
{
	return get(tier, b, off, dst, n_dst, false, hedge, deadline);
}

static int tier_start(void *tier, const struct cfs_block *b, uint32_t off, struct cfs_async *a)
{
	struct cfs_peers *p = tier;
	struct cfs_peer_block block = cfs_block_to_peer(b);

	if (atomic_load(&p->leaving))
		return -EAGAIN;
	return cfs_group_start(p->group, &block, off, a);
}

static enum cfs_place tier_place(void *tier, const struct cfs_block *b)
{
	struct cfs_peers *p = tier;
	struct cfs_peer_block block = cfs_block_to_peer(b);

	if (atomic_load(&p->leaving) || !cfs_group_shares(p->group))
		return CFS_PLACE_ANY;
	if (cfs_peers_fails_over(p, b) || cfs_group_owns(p->group, &block))
		return CFS_PLACE_HERE;
	return CFS_PLACE_ELSEWHERE;
}

/* Reading one byte makes the owner fetch and keep the whole block. */
static void run_warm_owner(struct cfs_job *job)
{
	struct block_job *j = (struct block_job *)job;
	struct cfs_peer_block block = cfs_block_to_peer(&j->block);
	char byte;
	const struct iovec dst = {.iov_base = &byte, .iov_len = 1};

	if (!atomic_load(&j->peers->leaving))
		cfs_group_read(j->peers->group, &block, 0, 1, &dst, 1, false, NULL,
			       cfs_deadline_in(j->peers->store->get_timeout_ms));
	free(j);
}

static void tier_keep(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		      bool nowait)
{
	cfs_peers_keep_own(tier, b, data, nowait);
}

static void tier_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct cfs_peers *p = tier;

	(void)data;
	if (p->fillers && !atomic_load(&p->leaving))
		cfs_peers_submit_block(p, p->fillers, run_warm_owner, b);
}

static void tier_forget(void *tier, const struct cfs_block *b)
{
	struct cfs_peers *p = tier;
	struct cfs_peer_block block = cfs_block_to_peer(b);

	if (!atomic_load(&p->leaving))
		cfs_group_hint(p->group, &block, CFS_PEER_FORGET);
}

static uint64_t tier_pending(void *tier)
{
	return cfs_peers_kept_bytes(tier);
}

static const struct cfs_tier_ops peer_tier = {
	.name = "peers",
	.get = tier_get,
	.get_hedged = tier_get_hedged,
	.start = tier_start,
	.offer = tier_offer,
	.forget = tier_forget,
	.place = tier_place,
	.keep = tier_keep,
	.pending = tier_pending,
};

/* ---- the store for the group ---- */

static uint64_t cached_bytes(void *arg)
{
	struct cfs_peers *p = arg;

	return p->disk ? cfs_disk_bytes(p->disk) : 0;
}

static bool keeps(void *arg)
{
	struct cfs_peers *p = arg;

	return p->disk && cfs_disk_stores(p->disk);
}

/* From the last BUCKET_GETS or more. */
static uint64_t bucket_us(void *arg)
{
	struct cfs_peers *p = arg;
	struct bucket_sample *last = &p->bucket_sample;
	uint64_t gets = atomic_load(&p->store->stat.gets), bytes, ns;

	if (gets < atomic_load(&p->bucket_next))
		return atomic_load(&p->bucket_us);
	pthread_mutex_lock(&p->lock);
	gets = atomic_load(&p->store->stat.gets);
	if (gets >= atomic_load(&p->bucket_next)) {
		bytes = atomic_load(&p->store->stat.get_bytes);
		ns = atomic_load(&p->store->stat.get_ns);
		atomic_store(&p->bucket_us, cfs_group_service_us(ns - last->ns, bytes - last->bytes,
								 gets - last->gets));
		atomic_store(&p->bucket_next, gets + BUCKET_GETS);
		*last = (struct bucket_sample){.gets = gets, .bytes = bytes, .ns = ns};
	}
	pthread_mutex_unlock(&p->lock);
	return atomic_load(&p->bucket_us);
}

/* ---- life ---- */

int cfs_peers_join(const struct cfs_peers_conf *conf, struct cfs_peers **ret, char err[256])
{
	struct cfs_group_conf group = conf->group;
	struct cfs_peers *p = calloc(1, sizeof(*p));
	struct cfs_pool_stats pool;
	int r = -ENOMEM;

	if (!p || cfs_cond_init(&p->room) < 0)
		goto no_memory;
	cfs_pool_stats(conf->store->pool, &pool);
	p->reserved_max = pool.budget / RESERVED_PARTS;
	p->store = conf->store;
	p->disk = conf->disk;
	atomic_init(&p->bucket_next, 1);
	pthread_mutex_init(&p->lock, NULL);
	atomic_init(&p->leaving, true); /* until everything is initialized */
	r = cfs_workers_create("cfs-peers", conf->workers ? conf->workers : WORKERS, QUEUE_LIMIT,
			       &p->workers);
	if (r == 0)
		r = cfs_workers_create("cfs-keep", KEEPERS, QUEUE_LIMIT, &p->keepers);
	if (r == 0 && conf->fill)
		r = cfs_workers_create("cfs-fill", WORKERS, QUEUE_LIMIT, &p->fillers);
	if (r < 0)
		goto no_memory;
	group.ops = &cfs_peers_serve_ops;
	group.ops_arg = p;
	group.cached_bytes = cached_bytes;
	group.keeps = keeps;
	group.bucket_us = bucket_us;
	r = cfs_group_join(&group, &p->group, err);
	if (r == 0)
		r = cfs_store_add_tier(conf->store, &peer_tier, p);
	if (r < 0) {
		cfs_peers_leave(p);
		cfs_peers_destroy(p);
		return r;
	}
	atomic_store(&p->leaving, false);
	*ret = p;
	return 0;

no_memory:
	snprintf(err, 256, "out of memory");
	if (p) {
		cfs_workers_destroy(p->workers);
		cfs_workers_destroy(p->keepers);
	}
	free(p);
	return r;
}

void cfs_peers_leave(struct cfs_peers *p)
{
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->leaving, true);
	pthread_mutex_unlock(&p->lock);
	if (p->group)
		cfs_group_leave(p->group);
	cfs_workers_destroy(p->workers);
	cfs_workers_destroy(p->keepers);
	cfs_workers_destroy(p->fillers);
}

void cfs_peers_destroy(struct cfs_peers *p)
{
	if (p->group)
		cfs_group_destroy(p->group);
	pthread_cond_destroy(&p->room);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

struct cfs_group *cfs_peers_group(struct cfs_peers *p)
{
	return p->group;
}

int cfs_peers_map(struct cfs_peers *p, const struct cfs_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline)
{
	struct cfs_peer_block block = cfs_block_to_peer(b);
	int n = cfs_group_map(p->group, &block, owners, cached, deadline), i;
	struct cfs_store_held held;

	for (i = 0; i < n; i++) {
		if (cached[i] != -ENOTSUP)
			continue;
		cfs_store_held(p->store, b, 0, b->len, &held);
		cached[i] = held.disk == b->len || held.memory == b->len;
	}
	return n;
}
