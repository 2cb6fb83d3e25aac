/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the peer tier.
 *
 *	peers.c		joining and leaving, the tier
 *	serve.c		serving other members
 *	reserve.c	memory that is reserved for other members
 *
 * Locks: `lock` is a leaf.
 */
#ifndef CFS_STORE_PEERS_INTERNAL_H
#define CFS_STORE_PEERS_INTERNAL_H

#include <cachefs/peers.h>
#include <sys/queue.h>

#include "store/store-internal.h"

/* An element of a hash table without chains: on a collision the newer block replaces the other. */
#define CFS_PEERS_COUNTERS 4093

struct request_counter {
	uint64_t key, from;
	uint64_t
		asked; /* parts of the block that this member requested since it was last counted */
	uint32_t next; /* where its last request ended */
	unsigned requests;
	unsigned copied; /* how often copies were asked for */
};

/* Each use has its own limit: slow receivers must not cause own blocks to be dropped. */
enum reserved_for {
	RESERVED_OTHERS, /* blocks that are fetched for other members, or sent */
	RESERVED_OWN,	 /* own blocks that this mount has read, until they are on disk */
	RESERVED_USES,
};

/* Memory of the pool that is reserved for other members. */
struct reservation {
	LIST_ENTRY(reservation) link;
	struct cfs_peers *peers;
	struct cfs_block block; /* being fetched whole; length 0: pages in memory are being sent */
	enum reserved_for use;
	uint64_t bytes;
	unsigned refs; /* held by the sender and by the cache write */
	bool kept;     /* held until it is on disk */
	bool failover; /* is being fetched for an owner that is slow: without asking that owner */
};

struct cfs_peers {
	struct request_counter counters[CFS_PEERS_COUNTERS]; /* the transport's thread's */
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cfs_group *group;
	struct cfs_workers *workers, *keepers;
	struct cfs_workers *fillers; /* may wait for other members; those that serve must not */
	atomic_bool leaving;
	pthread_mutex_t lock; /* leaving begins between two submissions; also protects the rest */
	pthread_cond_t room;
	LIST_HEAD(, reservation) reservations;
	uint64_t reserved[RESERVED_USES], reserved_max; /* bytes of the pool, for each use */
	unsigned own_waiting;	 /* threads that wait to reserve own blocks */
	atomic_uint n_failovers; /* reservations with failover */
	struct bucket_sample {
		uint64_t gets, bytes, ns;
	} bucket_sample;	      /* when the service time was last measured */
	_Atomic uint64_t bucket_next; /* number of GETs at which it is measured next */
	_Atomic uint64_t bucket_us;
};

static inline struct cfs_peer_block cfs_block_to_peer(const struct cfs_block *b)
{
	return (struct cfs_peer_block){.slice = b->slice, .index = b->index, .len = b->len};
}

static inline struct cfs_block cfs_block_from_peer(const struct cfs_peer_block *b)
{
	return (struct cfs_block){.slice = b->slice, .index = b->index, .len = b->len};
}

/* --- peers.c --- */

/* -ESHUTDOWN: the member leaves the group. -EAGAIN: the queue is full. */
int cfs_peers_submit(struct cfs_peers *p, struct cfs_workers *w, struct cfs_job *job);

struct block_job {
	struct cfs_job job; /* first */
	struct cfs_peers *peers;
	struct cfs_block block;
};
/* Submits run, which frees its job. Best effort. */
void cfs_peers_submit_block(struct cfs_peers *p, struct cfs_workers *w,
			    void (*run)(struct cfs_job *job), const struct cfs_block *b);

/* --- serve.c --- */

extern const struct cfs_peer_serve_ops cfs_peers_serve_ops;

/* --- reserve.c --- */

/*
 * Reserves memory for other members. It is bounded, because their speed decides how long it is in
 * use; one block always fits. block: NULL, or the block to be fetched. -EAGAIN: none by the
 * deadline (0: at once); -ENOMEM.
 */
int cfs_peers_reserve(struct cfs_peers *p, enum reserved_for use, const struct cfs_block *block,
		      uint64_t bytes, cfs_deadline_t deadline, struct reservation **ret);
void cfs_peers_release(struct reservation *rv);
/* Whether the block is being fetched on behalf of its owner, which is slow. */
bool cfs_peers_fails_over(struct cfs_peers *p, const struct cfs_block *b);
/* Sets or clears that mark of the reservation. */
void cfs_peers_set_failover(struct reservation *rv, bool failover);
/* Writes a fetched block to the disk cache. It stays in its reservation until then. */
void cfs_peers_keep_fetched(struct reservation *rv, const struct cfs_segs *data);
/* The same for an own block. It is dropped without room; up to two threads wait for room first. */
void cfs_peers_keep_own(struct cfs_peers *p, const struct cfs_block *b, const struct cfs_segs *data,
			bool nowait);
/* Bytes that wait for the disk. */
uint64_t cfs_peers_kept_bytes(struct cfs_peers *p);

#endif
