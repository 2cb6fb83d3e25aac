/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late answers of a peer, and the reaction to them.
 *
 * An answer is late after twice the 95th percentile of this peer's recent answers. At half of that
 * time the peer gets a probe: does it have the block? If not, or if it reports work on the request,
 * it is fetching the block for all members that want it, and there is no hedge. If it has the block,
 * it gets the same time once more, then the hedge runs. The hedge also runs when a peer with enough
 * samples has answered no request since this one began.
 *
 * Hedges are bounded for the group as a whole: each takes a credit. Each request earns hedge_percent
 * hundredths of a credit for the group, and up to CFS_HEDGE_BURST credits are saved.
 *
 * Threads: any. Memory: fixed.
 */
#ifndef CFS_TRANSPORT_HEDGE_H
#define CFS_TRANSPORT_HEDGE_H

#include <cachefs/transport.h>
#include <stdatomic.h>

#include "base/hedge.h"
#include "slow.h"

#define CFS_HEDGE_BURST	   16
#define CFS_HEDGE_MIN_MS   20	/* no answer is late before */
#define CFS_HEDGE_SAMPLES  16	/* answers before a peer's percentile is used */
#define CFS_HEDGE_SLACK_MS 1000 /* an answer is overdue so long after the estimate */

/* Response times of a peer, of its last few hundred answers. Starts as zeros. */
struct cfs_latency {
	_Atomic uint32_t n;
	_Atomic uint32_t below[CFS_PEER_LATENCIES]; /* [i]: less than 2^i us, the last: any */
	struct cfs_slow slow;
	_Atomic uint64_t waits_until_ms; /* until then reads wait for its answers: async.c */
};

void cfs_latency_note(struct cfs_latency *p, uint64_t ns);
/* From CFS_HEDGE_MIN_MS to half of patience_ms; a quarter of that when little is known. */
uint64_t cfs_latency_late_ms(const struct cfs_latency *p, uint64_t patience_ms);

struct cfs_hedging {
	unsigned percent;	  /* of requests that may be hedged; 0: none */
	_Atomic unsigned members; /* members that share the credits, at least 1 */
	_Atomic int credits;	  /* hundredths, of the whole group; a hedge here costs `members`
				   * times one */
	_Atomic uint64_t hedges;
	_Atomic uint64_t wins; /* hedges that were faster than the peer */
};

void cfs_hedging_init(struct cfs_hedging *h, unsigned percent);
/* Sets how many members have the same credits to spend. */
void cfs_hedging_share(struct cfs_hedging *h, unsigned members);
void cfs_hedging_earn(struct cfs_hedging *h);
/* False: there is no credit. */
bool cfs_hedging_take(struct cfs_hedging *h);

/*
 * How long a read waits for a peer.
 *
 * A peer that reports work on the request fetches the block. When reserve_ms are left until the
 * deadline, object storage is asked as well, without a credit, and the first answer is used. A peer
 * that expects to answer by the deadline also gets three quarters of the reserve, unless its answer
 * is overdue by CFS_HEDGE_SLACK_MS: so the group fetches a block once even if object storage needs
 * nearly all of the time, and a wrong estimate still leaves the last quarter.
 */
struct cfs_patience {
	uint64_t silent_ms;  /* longest time without a message about the request */
	uint64_t reserve_ms; /* kept for object storage; 0: none, it would be too late */
	cfs_deadline_t deadline;
};

/*
 * As cfs_peer_read(), and: -EALREADY: hedge has the bytes; -ECANCELED: hedge has no room, and the
 * caller should use the other way itself; -EBUSY: the same, or the peer turned out to be slow. dst is
 * not written after the return. hedge may be NULL: -ETIMEDOUT leaves the reserve to the
 * caller.
 */
ssize_t cfs_hedged_read(struct cfs_hedging *h, struct cfs_latency *latency, struct cfs_peer *peer,
			const struct cfs_peer_block *b, uint32_t off, uint32_t len, unsigned flags,
			const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			const struct cfs_patience *patience);

#endif
