/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for blocks that are served to other members, or wait to be written to disk. */
#include <cachefs/disk.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "peers-internal.h"

#define KEEP_TIMEOUT_MS 5000 /* the longest wait for room in the disk cache's queue */
#define OWN_TIMEOUT_MS	2000 /* the same, for a thread that fetches own blocks */
#define OWN_WAITING	2    /* threads at most; the others drop blocks and continue fetching */

int cfs_peers_reserve(struct cfs_peers *p, enum reserved_for use, const struct cfs_block *block,
		      uint64_t bytes, cfs_deadline_t deadline, struct reservation **ret)
{
	struct reservation *rv = calloc(1, sizeof(*rv));
	int r = 0;

	if (!rv)
		return -ENOMEM;
	rv->peers = p;
	rv->use = use;
	rv->bytes = bytes;
	rv->refs = 1;
	rv->kept = use == RESERVED_OWN;
	if (block)
		rv->block = *block;
	pthread_mutex_lock(&p->lock);
	while (p->reserved[use] > 0 && p->reserved[use] + bytes > p->reserved_max && r == 0)
		r = deadline ? cfs_cond_wait(&p->room, &p->lock, deadline) : -EAGAIN;
	if (r == 0) {
		p->reserved[use] += bytes;
		LIST_INSERT_HEAD(&p->reservations, rv, link);
	}
	pthread_mutex_unlock(&p->lock);
	if (r == 0)
		*ret = rv;
	else
		free(rv);
	return r == 0 ? 0 : -EAGAIN;
}

void cfs_peers_release(struct reservation *rv)
{
	struct cfs_peers *p = rv->peers;
	bool last;

	pthread_mutex_lock(&p->lock);
	last = --rv->refs == 0;
	if (last) {
		LIST_REMOVE(rv, link);
		p->reserved[rv->use] -= rv->bytes;
		pthread_cond_broadcast(&p->room);
	}
	pthread_mutex_unlock(&p->lock);
	if (last)
		free(rv);
}

/* Called with the lock: the reservation of the block that has these flags, if they are set. */
static struct reservation *find(struct cfs_peers *p, const struct cfs_block *b, bool kept,
				bool failover)
{
	struct reservation *rv;

	LIST_FOREACH(rv, &p->reservations, link)
	{
		if (rv->block.len && rv->block.slice == b->slice && rv->block.index == b->index &&
		    (rv->kept || !kept) && (rv->failover || !failover))
			return rv;
	}
	return NULL;
}

static bool has(struct cfs_peers *p, const struct cfs_block *b, bool failover)
{
	CFS_LOCK_GUARD(&p->lock);

	return find(p, b, false, failover);
}

bool cfs_peers_fails_over(struct cfs_peers *p, const struct cfs_block *b)
{
	return atomic_load(&p->n_failovers) > 0 && has(p, b, true);
}

void cfs_peers_set_failover(struct reservation *rv, bool failover)
{
	struct cfs_peers *p = rv->peers;
	CFS_LOCK_GUARD(&p->lock);

	rv->failover = failover;
	atomic_fetch_add(&p->n_failovers, failover ? 1u : -1u);
}

/* ---- holding blocks until they are on disk ---- */

struct keep_job {
	struct cfs_job job; /* first */
	struct reservation *reservation;
	struct cfs_block block;
	struct cfs_segs data;
};

static void end_keep(struct keep_job *j)
{
	cfs_segs_release(&j->data);
	cfs_peers_release(j->reservation);
	free(j);
}

static void run_keep(struct cfs_job *job)
{
	struct keep_job *j = (struct keep_job *)job;
	struct cfs_peers *p = j->reservation->peers;

	if (!atomic_load(&p->leaving))
		cfs_store_keep(p->store, &j->block, &j->data, cfs_deadline_in(KEEP_TIMEOUT_MS));
	end_keep(j);
}

/* Takes over the reference of the reservation in every case. */
static int keep_until_written(struct reservation *rv, const struct cfs_block *b,
			      const struct cfs_segs *data)
{
	struct keep_job *j = malloc(sizeof(*j));
	int r;

	if (!j) {
		cfs_peers_release(rv);
		return -ENOMEM;
	}
	*j = (struct keep_job){.job.run = run_keep, .reservation = rv, .block = *b};
	cfs_segs_init(&j->data);
	r = cfs_segs_slice(&j->data, data, 0, data->len);
	if (r == 0)
		r = cfs_peers_submit(rv->peers, rv->peers->keepers, &j->job);
	if (r < 0)
		end_keep(j);
	return r;
}

void cfs_peers_keep_fetched(struct reservation *rv, const struct cfs_segs *data)
{
	struct cfs_peers *p = rv->peers;
	bool kept;

	if (!p->disk)
		return;
	pthread_mutex_lock(&p->lock);
	kept = find(p, &rv->block, true, false) != NULL;
	if (!kept) {
		rv->refs++;
		rv->kept = true;
	}
	pthread_mutex_unlock(&p->lock);
	if (!kept && keep_until_written(rv, &rv->block, data) < 0)
		cfs_disk_tier.offer(p->disk, &rv->block, data);
}

static bool begin_waiting(struct cfs_peers *p)
{
	CFS_LOCK_GUARD(&p->lock);

	if (p->own_waiting >= OWN_WAITING || atomic_load(&p->leaving))
		return false;
	p->own_waiting++;
	return true;
}

static void end_waiting(struct cfs_peers *p)
{
	pthread_mutex_lock(&p->lock);
	p->own_waiting--;
	pthread_mutex_unlock(&p->lock);
}

static int reserve_own(struct cfs_peers *p, const struct cfs_block *b, bool nowait,
		       struct reservation **ret)
{
	int r = cfs_peers_reserve(p, RESERVED_OWN, b, b->len, 0, ret);

	if (r == -EAGAIN && !nowait && begin_waiting(p)) {
		r = cfs_peers_reserve(p, RESERVED_OWN, b, b->len, cfs_deadline_in(OWN_TIMEOUT_MS),
				      ret);
		end_waiting(p);
	}
	return r;
}

/*
 * A disk cache with a full queue drops new blocks, and the next request for an own block would
 * fetch it again. So own blocks stay in memory until they are on disk. A small pool has room for
 * few of them, so threads that may block wait for room.
 */
void cfs_peers_keep_own(struct cfs_peers *p, const struct cfs_block *b, const struct cfs_segs *data,
			bool nowait)
{
	struct reservation *rv;

	if (!p->disk || has(p, b, false)) /* fetched for others: cfs_peers_keep_fetched() */
		return;
	if (reserve_own(p, b, nowait, &rv) < 0 || keep_until_written(rv, b, data) < 0)
		cfs_disk_tier.offer(p->disk, b, data);
}

uint64_t cfs_peers_kept_bytes(struct cfs_peers *p)
{
	const struct reservation *rv;
	uint64_t bytes = 0;
	CFS_LOCK_GUARD(&p->lock);

	LIST_FOREACH(rv, &p->reservations, link)
	bytes += rv->kept ? rv->bytes : 0;
	return bytes;
}
