/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of a flight.
 *
 *	flight.c	its readers: joining, launching, landing and waiting
 *	flight-fetch.c	its pages, and their bytes from the tiers and the object store
 *	flight-ahead.c	flights without a waiting reader
 */
#ifndef CFS_FLIGHT_INTERNAL_H
#define CFS_FLIGHT_INTERNAL_H

#include "base/arrival.h"
#include "base/workers.h"
#include "store-internal.h"

#define CFS_FLIGHTS_AWAITED 8

struct hedge;

struct flight {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct shard *shard;
	struct block *block; /* a user of it */
	struct cfs_block id;
	unsigned first, n; /* slots */
	uint32_t off, len; /* the same in bytes */
	cfs_deadline_t deadline;
	struct cfs_route route;
	bool prefetch;
	bool stream;		     /* as in struct want */
	uint64_t owner;		     /* of a prefetch */
	TAILQ_ENTRY(flight) link;    /* a prefetch that is in store->prefetches */
	struct cfs_workers *workers; /* under prefetch_lock: where it is queued; NULL: it runs */
	/*
	 * Wanted only as long as a reader waits: a hedge, a prefetch that its owner cancelled, or the
	 * read of a caller that was killed.
	 */
	_Atomic bool cancelled;
	struct hedge *hedge; /* while READ_HEDGED; its worker's only */
	_Atomic enum read_state state;
	_Atomic unsigned source; /* number of the tier it is in, or that had it; n_tiers: none */
	_Atomic uint64_t wait_start_ms; /* since when it waits for a tier, or 0 */
	_Atomic bool in_tier;		/* in the tier, not in the queue before it */
	struct cfs_arrival arrival;	/* from the object store */

	/* Under the shard's lock. */
	pthread_cond_t changed;
	unsigned refs; /* held by waiting readers and the worker */
	bool done;
	bool late; /* a tier of this machine did not answer in time */
	int err;   /* -EAGAIN: not tried, or the failure does not concern the reader, which should
		    * try itself */

	/* n to be filled, then n that memory had for these slots when it landed. */
	struct cfs_page *pages[];
};

/* The flights that one reader waits for. The references pin their pages. */
struct awaited {
	struct flight *v[CFS_FLIGHTS_AWAITED];
	bool mine[CFS_FLIGHTS_AWAITED]; /* to be launched by us */
	unsigned n;
	bool expired; /* we failed one at its deadline */
	bool late;    /* one of them was abandoned in a tier of this machine */
};

/* The fetch that a reader, or a prefetch, would start on a miss. */
struct want {
	unsigned first, last; /* slots */
	bool wider;	      /* fetch the whole block for a large part of it */
	bool whole;	      /* fetch it for any part */
	unsigned likely_last; /* fetch what is missing up to this slot, too */
	bool prefetch;
	bool stream;	/* a prefetch of what a stream will come to */
	bool hedge;	/* as in struct cfs_miss */
	uint64_t owner; /* of a prefetch */
	cfs_deadline_t deadline;
	const struct cfs_route *route;
};

/* ---- flight.c ---- */

/*
 * With the shard locked: makes *awaited the flights that will deliver what is missing of the slots,
 * starting one for each run that is not being fetched. The first CFS_FLIGHTS_AWAITED, should
 * there be more. -ENOMEM.
 */
int cfs_flight_join(struct cfs_store *s, struct shard *sh, struct block *block,
		    const struct want *want, struct awaited *awaited);
/* The fetch that a reader starts. */
struct want cfs_flight_want(struct cfs_store *s, const struct cfs_miss *m);
void cfs_flight_release(struct awaited *awaited);
void cfs_flight_unref(struct flight *f);
/* Starts a worker for it; a prefetch only if there is room in the queue. */
int cfs_flight_submit(struct flight *f, cfs_deadline_t deadline);
/*
 * Ends a flight with its result. Once all of the block is in memory, also by several small fetches, it
 * is offered to the tiers nearer than the one that had it.
 * nowait: as for cfs_route_offer().
 */
void cfs_flight_land(struct flight *f, int err, bool nowait);
/* The same for a flight that was not tried. */
void cfs_flight_fail(struct flight *f, int err);
void cfs_flight_log_late(struct cfs_store *s, const struct cfs_block *b, const char *what);

/* ---- flight-fetch.c ---- */

/* Memory for it, all or nothing; 0 is no deadline to wait for. */
int cfs_flight_take_pages(const struct flight *f, struct cfs_page **pages, cfs_deadline_t deadline);
void cfs_flight_free_pages(const struct flight *f, struct cfs_page **pages);
/*
 * Runs a flight from its state on until it has its bytes, or has failed. A tier that fails is a
 * tier that misses; it does its own accounting. 0, -ENOENT, -EACCES, -EIO, -CFS_OBJECT_EPART: fetch
 * the whole block. w: the workers that run it; -EAGAIN: its state belongs to other workers. w NULL:
 * it may not wait; -EAGAIN: go on with a worker.
 */
int cfs_flight_run(struct flight *f, const struct cfs_workers *w);

/* ---- flight-ahead.c ---- */

/* Lists it in store->prefetches, where its owner finds it. */
void cfs_flight_list(struct flight *f);
void cfs_flight_unlist(struct flight *f);
/* Queues one that is listed; -EAGAIN: the queue is full. */
int cfs_flight_queue(struct flight *f, struct cfs_workers *w);
/* Takes it out of its queue. */
void cfs_flight_dequeued(struct flight *f);

#endif
