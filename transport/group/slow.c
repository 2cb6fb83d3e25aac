/* SPDX-License-Identifier: Apache-2.0 */
/* The service time of a peer, and its slow state. */
#include "slow.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"

#define MS_NS	      1000000ull
#define FORGIVEN_AT   10	 /* pauses without a slow state that reset the next pause */
#define PROBE_RUNS_MS UINT64_MAX /* until_ms while a probe is under way */
/* Waiting threads look more often. In a longer gap this process did not run; it is not counted. */
#define LOOK_MAX_NS (2 * CFS_SLOW_LOOK_MS * MS_NS)

void cfs_slow_init(struct cfs_slow *s, cfs_slow_judge_fn judge, void *arg)
{
	*s = (struct cfs_slow){.judge = judge, .arg = arg};
	atomic_init(&s->until_ms, 0);
	pthread_mutex_init(&s->lock, NULL);
}

void cfs_slow_destroy(struct cfs_slow *s)
{
	pthread_mutex_destroy(&s->lock);
}

static uint64_t part_us(uint64_t ns, uint64_t bytes)
{
	return (uint64_t)((double)ns / 1000 * CFS_SLOW_PART / (double)bytes);
}

uint64_t cfs_slow_part_us(uint64_t ns, uint64_t bytes, uint64_t answers)
{
	return part_us(ns, bytes + answers * CFS_SLOW_ANSWER);
}

/* ---- the service time; all called with the lock ---- */

/* A period without bytes, or with little outstanding time, changes nothing. */
static void end_period(struct cfs_slow *s, uint64_t now_ns)
{
	const struct cfs_slow_period *p = &s->now;

	if (p->ns >= CFS_SLOW_PERIOD_MS * MS_NS && p->bytes > 0) {
		if (part_us(p->ns, p->bytes) > CFS_SLOW_MIN_US)
			s->slow_periods++;
		else
			s->slow_periods = 0;
	}
	s->last = s->now;
	s->now = (struct cfs_slow_period){.begin_ns = now_ns};
	s->stretch_ns = 0;
}

/* now_ns and received may be older than those of another thread's call. */
static void account(struct cfs_slow *s, uint64_t now_ns, uint64_t received)
{
	if (s->outstanding > 0 && now_ns > s->at_ns) {
		uint64_t ns = CFS_MIN(now_ns - s->at_ns, LOOK_MAX_NS);

		s->now.ns += ns;
		s->stretch_ns += ns;
	}
	s->at_ns = CFS_MAX(s->at_ns, now_ns);
	if (received > s->received) {
		s->now.bytes += received - s->received;
		s->received = received;
	}
	if (s->now.ns >= CFS_SLOW_PERIOD_MS * MS_NS ||
	    s->at_ns >= s->now.begin_ns + CFS_SLOW_WINDOW_MS * MS_NS)
		end_period(s, s->at_ns);
}

static void add_outstanding(struct cfs_slow *s, struct cfs_slow_ask *a)
{
	if (s->outstanding++ == 0)
		s->stretch_ns = 0;
	a->outstanding = true;
}

static void remove_outstanding(struct cfs_slow *s, struct cfs_slow_ask *a)
{
	s->outstanding -= a->outstanding;
	a->outstanding = false;
}

/* 0: there is nothing to judge. */
static uint64_t suspicion_us(struct cfs_slow *s)
{
	if (s->slow_periods < CFS_SLOW_PERIODS || cfs_slow_is(s))
		return 0;
	s->slow_periods--; /* once per period */
	return part_us(s->last.ns, CFS_MAX(s->last.bytes, (uint64_t)1));
}

/* ---- requests ---- */

void cfs_slow_start(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received)
{
	pthread_mutex_lock(&s->lock);
	account(s, now_ns, received);
	add_outstanding(s, a);
	pthread_mutex_unlock(&s->lock);
}

void cfs_slow_works(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received)
{
	pthread_mutex_lock(&s->lock);
	account(s, now_ns, received);
	a->worked_ns = now_ns;
	remove_outstanding(s, a);
	/* Without other requests, the time so far was that of the fetch. */
	if (s->outstanding == 0) {
		s->now.ns -= CFS_MIN(s->now.ns, s->stretch_ns);
		s->stretch_ns = 0;
	}
	pthread_mutex_unlock(&s->lock);
}

bool cfs_slow_look(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received)
{
	uint64_t us;

	pthread_mutex_lock(&s->lock);
	account(s, now_ns, received);
	if (!a->outstanding && now_ns > a->worked_ns + CFS_SLOW_STILL_MS * MS_NS)
		add_outstanding(s, a);
	us = suspicion_us(s);
	pthread_mutex_unlock(&s->lock);
	if (us > 0 && s->judge)
		s->judge(s->arg, s, us);
	return cfs_slow_is(s);
}

void cfs_slow_end(struct cfs_slow *s, struct cfs_slow_ask *a, uint64_t now_ns, uint64_t received,
		  bool answered)
{
	uint64_t us;

	pthread_mutex_lock(&s->lock);
	s->now.bytes += answered ? CFS_SLOW_ANSWER / CFS_MAX(s->outstanding, 1u) : 0;
	account(s, now_ns, received);
	remove_outstanding(s, a);
	us = suspicion_us(s);
	pthread_mutex_unlock(&s->lock);
	if (us > 0 && s->judge)
		s->judge(s->arg, s, us);
}

/* ---- comparing ---- */

uint64_t cfs_slow_service_us(struct cfs_slow *s, uint64_t now_ns)
{
	uint64_t since_ns = now_ns - 2 * CFS_SLOW_WINDOW_MS * MS_NS;
	struct cfs_slow_period p;
	CFS_LOCK_GUARD(&s->lock);

	p = s->now;
	if (s->last.begin_ns >= since_ns) {
		p.ns += s->last.ns;
		p.bytes += s->last.bytes;
	}
	if (p.bytes < CFS_SLOW_KNOWN || p.begin_ns < since_ns)
		return 0;
	return CFS_MAX(part_us(p.ns, p.bytes), (uint64_t)1);
}

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return CFS_COMPARE(*x, *y);
}

uint64_t cfs_slow_limit_us(uint64_t *others, unsigned n, uint64_t bucket_us)
{
	uint64_t usual = bucket_us;

	if (n > 0) {
		qsort(others, n, sizeof(others[0]), by_size);
		usual = others[n / 4];
	}
	if (usual == 0)
		return 0;
	return CFS_MAX(CFS_MAX(CFS_SLOW_TIMES * usual, CFS_SLOW_BUCKET_TIMES * bucket_us),
		       (uint64_t)CFS_SLOW_MIN_US);
}

/* ---- the slow state ---- */

bool cfs_slow_is(const struct cfs_slow *s)
{
	return atomic_load_explicit(&s->until_ms, memory_order_relaxed) != 0;
}

bool cfs_slow_begin(struct cfs_slow *s, uint64_t now_ms)
{
	CFS_LOCK_GUARD(&s->lock);

	if (cfs_slow_is(s))
		return false;
	if (s->pause_ms == 0 || now_ms - s->ended_ms > FORGIVEN_AT * s->pause_ms)
		s->pause_ms = CFS_SLOW_PAUSE_MS;
	else
		s->pause_ms = CFS_MIN(2 * s->pause_ms, (uint64_t)CFS_SLOW_PAUSE_MAX_MS);
	s->slow_periods = 0;
	atomic_store(&s->until_ms, now_ms + s->pause_ms);
	return true;
}

bool cfs_slow_take_probe(struct cfs_slow *s, uint64_t now_ms)
{
	uint64_t until = atomic_load_explicit(&s->until_ms, memory_order_relaxed);

	return until != 0 && until <= now_ms &&
	       atomic_compare_exchange_strong(&s->until_ms, &until, PROBE_RUNS_MS);
}

void cfs_slow_probed(struct cfs_slow *s, bool well, uint64_t now_ms)
{
	pthread_mutex_lock(&s->lock);
	if (well) {
		s->now = s->last = (struct cfs_slow_period){0};
		s->slow_periods = 0;
		s->ended_ms = now_ms;
		atomic_store(&s->until_ms, 0);
	} else {
		s->pause_ms = CFS_MIN(2 * s->pause_ms, (uint64_t)CFS_SLOW_PAUSE_MAX_MS);
		atomic_store(&s->until_ms, now_ms + s->pause_ms);
	}
	pthread_mutex_unlock(&s->lock);
}
