/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a peer is so slow that its blocks are better had elsewhere. What counts is the median of
 * its last answers, per part of PART bytes, so that large and small ones can be compared; what it
 * fetched meanwhile does not. One that is slow is not asked until a probe, which moves a part of a
 * block large enough to tell, finds it as fast as it should be. Probes grow rarer while it stays
 * slow, and stay rare for one that is slow again soon after.
 *
 * Threads: any. Memory: fixed.
 */
#ifndef CFS_TRANSPORT_SLOW_H
#define CFS_TRANSPORT_SLOW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CFS_SLOW_ANSWERS      8		 /* it is judged by */
#define CFS_SLOW_MIN_US	      30000	 /* below it nothing is slow */
#define CFS_SLOW_TIMES	      8		 /* slower than others: slow */
#define CFS_SLOW_PAUSE_MS     2000	 /* before the first probe; doubles, ... */
#define CFS_SLOW_PAUSE_MAX_MS 60000	 /* ... up to this */
#define CFS_SLOW_PROBE	      (1u << 20) /* bytes of a probe */

/* All 0 is the beginning. */
struct cfs_slow {
	_Atomic uint32_t last[CFS_SLOW_ANSWERS]; /* us, a ring */
	_Atomic uint32_t n;			 /* so far */
	_Atomic uint64_t until_ms; /* not to be asked until a probe after it; 0: is asked */
	_Atomic uint64_t pause_ms;
	_Atomic uint64_t ended_ms; /* when it was found fast again */
	_Atomic uint64_t limit_us; /* above it the probe fails */
};

void cfs_slow_note(struct cfs_slow *s, uint64_t ns, uint32_t len);
/* us per part; 0: too little is known. */
uint64_t cfs_slow_pace_us(const struct cfs_slow *s);
/* The same of answers that took so long together. */
uint64_t cfs_slow_part_us(uint64_t ns, uint64_t bytes, uint64_t answers);
/* What is slow, given others' paces (sorted here) and that of object storage; 0: unknown. */
uint64_t cfs_slow_limit_us(uint64_t *others, unsigned n, uint64_t bucket_us);
bool cfs_slow_is(const struct cfs_slow *s);
/* It is slow from now on. False: it was already. */
bool cfs_slow_begin(struct cfs_slow *s, uint64_t limit_us, uint64_t now_ms);
/* True for one caller: a probe is due, and cfs_slow_probed() must follow. */
bool cfs_slow_take_probe(struct cfs_slow *s, uint64_t now_ms);
/* True: it is fast again. us: UINT64_MAX when the probe has failed. */
bool cfs_slow_probed(struct cfs_slow *s, uint64_t us, uint64_t now_ms);

#endif
