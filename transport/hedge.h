/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When an answer of a peer is late, and what is done about it.
 *
 * Late is what takes twice as long as 95 of 100 answers of this peer did lately. At half of that
 * time the peer is asked whether it has the block. One that answers "no" is fetching it, for
 * everybody who wants it: that is not done twice. One that has it gets as much time again. After
 * that, or when it is silent, the hedge runs. Hedges are bounded: each takes a credit, of which
 * requests earn a hundredth per percent, up to CFS_HEDGE_BURST.
 *
 * Threads: any. Memory: fixed.
 */
#ifndef CFS_TRANSPORT_HEDGE_H
#define CFS_TRANSPORT_HEDGE_H

#include <cachefs/transport.h>
#include <stdatomic.h>

#include "base/hedge.h"

#define CFS_HEDGE_BURST	  16
#define CFS_HEDGE_MIN_MS  20 /* nothing is late before */
#define CFS_HEDGE_SAMPLES 16 /* with fewer nothing is known of a peer */

/* How long a peer takes, of the last few hundred answers. All 0 is the beginning. */
struct cfs_pace {
	_Atomic uint32_t n;
	_Atomic uint32_t below[CFS_PEER_LATENCIES]; /* [i]: less than 2^i us, the last: any */
};

void cfs_pace_note(struct cfs_pace *p, uint64_t ns);
/* From CFS_HEDGE_MIN_MS to half of patience_ms; a quarter of that when little is known. */
uint64_t cfs_pace_late_ms(const struct cfs_pace *p, uint64_t patience_ms);

struct cfs_hedging {
	unsigned percent;    /* of requests that may be hedged; 0: none */
	_Atomic int credits; /* hundredths */
	_Atomic uint64_t hedges;
	_Atomic uint64_t wins; /* of hedges: the other way was faster */
};

void cfs_hedging_init(struct cfs_hedging *h, unsigned percent);
void cfs_hedging_earn(struct cfs_hedging *h);
/* False: there is none. */
bool cfs_hedging_take(struct cfs_hedging *h);

/*
 * As cfs_peer_read(), and -EALREADY: hedge has the bytes; -ECANCELED: it has no room, and the
 * caller should go the other way himself. Either way dst is left alone from now on. hedge may be
 * NULL.
 */
ssize_t cfs_hedged_read(struct cfs_hedging *h, struct cfs_pace *pace, struct cfs_peer *peer,
			const struct cfs_peer_block *b, uint32_t off, uint32_t len, unsigned flags,
			const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			cfs_deadline_t deadline);

#endif
