/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects a slow peer, whose blocks are read from other members or object storage meanwhile.
 *
 * The service time of a peer is the time with requests outstanding at it, per CFS_SLOW_PART bytes
 * received in that time, so that requests queued at a peer do not make it look slow. A round trip
 * counts as CFS_SLOW_ANSWER further bytes, which the answers outstanding together share: so small
 * answers do not hide a slow link. A request is not outstanding while the peer reports work on it,
 * so that a slow bucket does not make the peer slow. A peer that sends no bytes at all is not slow;
 * deadlines detect that.
 *
 * The service time is measured over periods of CFS_SLOW_PERIOD_MS with outstanding requests. After
 * CFS_SLOW_PERIODS periods in a row above CFS_SLOW_MIN_US, `judge` is called. It compares the peer
 * with others at the same time, because an overloaded machine makes all of them look slow, and may
 * call cfs_slow_begin(). From then on requests, also those that wait, fail over to the next member.
 * A probe of CFS_SLOW_PROBE bytes detects when the peer is fast again. The pauses between probes
 * double while the peer stays slow; they go on doubling if it is slow again
 * soon.
 *
 * A peer with outstanding requests in less than CFS_SLOW_PERIOD_MS of CFS_SLOW_WINDOW_MS is not
 * judged.
 *
 * Threads: any. Memory: fixed. `lock` is a leaf.
 */
#ifndef CFS_TRANSPORT_SLOW_H
#define CFS_TRANSPORT_SLOW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CFS_SLOW_PART	      (128u << 10)
#define CFS_SLOW_ANSWER	      (32u << 10)
#define CFS_SLOW_MIN_US	      40000 /* of a part; faster peers are never slow */
#define CFS_SLOW_PERIOD_MS    400
#define CFS_SLOW_PERIODS      3
#define CFS_SLOW_WINDOW_MS    1000	   /* on the clock; older values are not compared */
#define CFS_SLOW_LOOK_MS      100	   /* how often a waiting request checks */
#define CFS_SLOW_STILL_MS     600	   /* after a WORKING a request is outstanding again */
#define CFS_SLOW_KNOWN	      (512u << 10) /* bytes after which a service time can be compared */
#define CFS_SLOW_TIMES	      4		   /* slower than others, and ... */
#define CFS_SLOW_BUCKET_TIMES 2		   /* ... than object storage: slow */
#define CFS_SLOW_PAUSE_MS     2000	   /* before the first probe; doubles, ... */
#define CFS_SLOW_PAUSE_MAX_MS 60000	   /* ... up to this */
#define CFS_SLOW_PROBE	      (1u << 20)   /* bytes of a probe */

struct cfs_slow;
/* Judges a service time in us. Called without the lock. */
typedef void (*cfs_slow_judge_fn)(void *arg, struct cfs_slow *s, uint64_t us);

struct cfs_slow_period {
	uint64_t begin_ns;
	uint64_t ns, bytes; /* with requests outstanding; received */
};

struct cfs_slow {
	_Atomic uint64_t until_ms; /* time of the next probe of a slow peer; 0: not slow */
	cfs_slow_judge_fn judge;   /* may be NULL */
	void *arg;

	pthread_mutex_t lock;	  /* the rest */
	unsigned outstanding;	  /* requests */
	uint64_t at_ns, received; /* accounted up to here */
	uint64_t stretch_ns;	  /* part of now.ns: since `outstanding` was last 0 */
	struct cfs_slow_period now, last;
	unsigned slow_periods;
	uint64_t pause_ms, ended_ms;
};

/* One request in this accounting. All 0 before cfs_slow_start(). */
struct cfs_slow_ask {
	bool outstanding;
	uint64_t worked_ns; /* time of the peer's last WORKING; 0: none */
};

void cfs_slow_init(struct cfs_slow *s, cfs_slow_judge_fn judge, void *arg);
void cfs_slow_destroy(struct cfs_slow *s);

/* now_ns: cfs_now_ns(). received: total of bytes that the peer has ever sent. */
void cfs_slow_start(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received);
void cfs_slow_works(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received);
/* Called while a request waits. True: the peer is slow, and the caller should stop waiting. */
bool cfs_slow_look(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received);
/* answered: the peer sent bytes, or said that it has none. */
void cfs_slow_end(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received,
		  bool answered);

/* us per part; 0: too little is known, or only old values. */
uint64_t cfs_slow_service_us(struct cfs_slow *s, uint64_t now_ns);
/* The same for answers of so many bytes that took so long together. */
uint64_t cfs_slow_part_us(uint64_t ns, uint64_t bytes, uint64_t answers);
/* The limit above which a service time is slow, from the others' (sorted here) and object
 * storage's; 0: unknown. */
uint64_t cfs_slow_limit_us(uint64_t *others, unsigned n, uint64_t bucket_us);

bool cfs_slow_is(const struct cfs_slow *s);
/* Marks the peer slow. False: it was already. */
bool cfs_slow_begin(struct cfs_slow *s, uint64_t now_ms);
/* True for one caller: a probe is due, which it makes and reports with cfs_slow_probed(). */
bool cfs_slow_take_probe(struct cfs_slow *s, uint64_t now_ms);
/* well: the probe was fast, which ends the slow state. */
void cfs_slow_probed(struct cfs_slow *s, bool well, uint64_t now_ms);

#endif
