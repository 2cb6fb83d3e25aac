/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When an answer of a peer is late, and what is done about it.
 *
 * Late is what takes twice as long as 95 of 100 answers of this peer did lately. At half of that
 * time the peer is asked whether it has the block. One that answers "no", or says that it works on
 * it, is fetching it, for everybody who wants it: that is not done twice. One that has it gets as
 * much time again. After that the hedge runs; or when a peer of which more is known has been silent
 * to all who ask it here.
 * Hedges are bounded for the group as a whole: each takes a credit, of which the requests of all
 * members together earn a hundredth per percent, up to CFS_HEDGE_BURST.
 *
 * Threads: any. Memory: fixed.
 */
#ifndef CFS_TRANSPORT_HEDGE_H
#define CFS_TRANSPORT_HEDGE_H

#include <cachefs/transport.h>
#include <stdatomic.h>

#include "base/hedge.h"
#include "slow.h"

#define CFS_HEDGE_BURST	  16
#define CFS_HEDGE_MIN_MS  20 /* nothing is late before */
#define CFS_HEDGE_SAMPLES 16 /* with fewer nothing is known of a peer */

/* How long a peer takes, of the last few hundred answers. All 0 is the beginning. */
struct cfs_pace {
	_Atomic uint32_t n;
	_Atomic uint32_t below[CFS_PEER_LATENCIES]; /* [i]: less than 2^i us, the last: any */
	struct cfs_slow slow;
};

void cfs_pace_note(struct cfs_pace *p, uint64_t ns);
/* From CFS_HEDGE_MIN_MS to half of patience_ms; a quarter of that when little is known. */
uint64_t cfs_pace_late_ms(const struct cfs_pace *p, uint64_t patience_ms);

struct cfs_hedging {
	unsigned percent;	  /* of requests that may be hedged; 0: none */
	_Atomic unsigned members; /* that share the credits, at least 1 */
	_Atomic int credits;	  /* hundredths, of all; a hedge here takes `members` times one */
	_Atomic uint64_t hedges;
	_Atomic uint64_t wins; /* of hedges: the other way was faster */
};

void cfs_hedging_init(struct cfs_hedging *h, unsigned percent);
/* So many members have the same to spend. */
void cfs_hedging_share(struct cfs_hedging *h, unsigned members);
void cfs_hedging_earn(struct cfs_hedging *h);
/* False: there is none. */
bool cfs_hedging_take(struct cfs_hedging *h);

/*
 * As cfs_peer_read(), and -EALREADY: hedge has the bytes; -ECANCELED: it has no room, and the
 * caller should go the other way himself; -EBUSY as well when the peer turns out to be slow. Either
 * way dst is left alone from now on. hedge may be NULL. patience_ms: how long the peer may be
 * silent about the request. One that says that it works on it is waited for until `limit`.
 */
ssize_t cfs_hedged_read(struct cfs_hedging *h, struct cfs_pace *pace, struct cfs_peer *peer,
			const struct cfs_peer_block *b, uint32_t off, uint32_t len, unsigned flags,
			const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			uint64_t patience_ms, cfs_deadline_t limit);

#endif
