/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from a peer that may be late: response times, the budget of hedges, the race. */
#include "hedge.h"

#include <errno.h>
#include <semaphore.h>

#include "base/bytes.h"

#define PERCENT	      100
#define LATE_SHARE    95 /* of 100 answers are not */
#define FORGET_AT     512
#define FEW_PARTS     4
#define LONG_FETCH_MS 250
#define MEMBERS_MAX   1000000u

/* ---- response times of a peer ---- */

static uint32_t count(const _Atomic uint32_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

/* Loses some concurrent additions, which does not matter among hundreds. */
static void forget_half(struct cfs_latency *p)
{
	uint32_t left = 0;
	unsigned i;

	for (i = 0; i < CFS_PEER_LATENCIES; i++) {
		uint32_t half = count(&p->below[i]) / 2;

		atomic_store_explicit(&p->below[i], half, memory_order_relaxed);
		left += half;
	}
	atomic_store_explicit(&p->n, left, memory_order_relaxed);
}

void cfs_latency_note(struct cfs_latency *p, uint64_t ns)
{
	uint64_t us = ns / 1000;
	unsigned i = us == 0 ? 0 : 64 - (unsigned)__builtin_clzll(us);

	i = CFS_MIN(i, CFS_PEER_LATENCIES - 1u);
	atomic_fetch_add_explicit(&p->below[i], 1, memory_order_relaxed);
	if (atomic_fetch_add_explicit(&p->n, 1, memory_order_relaxed) + 1 == FORGET_AT)
		forget_half(p);
}

static uint64_t known(const struct cfs_latency *p)
{
	uint64_t sum = 0;
	unsigned i;

	for (i = 0; i < CFS_PEER_LATENCIES; i++)
		sum += count(&p->below[i]);
	return sum;
}

uint64_t cfs_latency_late_ms(const struct cfs_latency *p, uint64_t patience_ms)
{
	uint64_t most = patience_ms / 2, late_ms;
	uint64_t sum = known(p), seen = 0;
	unsigned i;

	if (sum < CFS_HEDGE_SAMPLES)
		return patience_ms / FEW_PARTS;
	for (i = 0; i < CFS_PEER_LATENCIES; i++) {
		seen += count(&p->below[i]);
		if (seen * PERCENT >= sum * LATE_SHARE)
			break;
	}
	late_ms = (2ull << i) / 1000;
	return CFS_MIN(CFS_MAX(late_ms, CFS_HEDGE_MIN_MS), most);
}

/* ---- the budget of hedges ---- */

void cfs_hedging_init(struct cfs_hedging *h, unsigned percent)
{
	*h = (struct cfs_hedging){.percent = percent};
	atomic_init(&h->members, 1);
	atomic_init(&h->credits, percent ? CFS_HEDGE_BURST * PERCENT : 0);
}

void cfs_hedging_share(struct cfs_hedging *h, unsigned members)
{
	atomic_store_explicit(&h->members, CFS_MAX(members, 1u), memory_order_relaxed);
}

/* The price of one hedge, in credits. */
static int price_of(struct cfs_hedging *h)
{
	unsigned n = atomic_load_explicit(&h->members, memory_order_relaxed);

	return PERCENT * (int)CFS_MIN(n, MEMBERS_MAX);
}

void cfs_hedging_earn(struct cfs_hedging *h)
{
	int have = atomic_load_explicit(&h->credits, memory_order_relaxed), next;
	int most = CFS_MAX(CFS_HEDGE_BURST * PERCENT, price_of(h));

	do {
		next = CFS_MIN(have + (int)h->percent, most);
	} while (next > have && !atomic_compare_exchange_weak(&h->credits, &have, next));
}

bool cfs_hedging_take(struct cfs_hedging *h)
{
	int have = atomic_load_explicit(&h->credits, memory_order_relaxed), price = price_of(h);

	do {
		if (have < price)
			return false;
	} while (!atomic_compare_exchange_weak(&h->credits, &have, have - price));
	return true;
}

/* ---- a request ---- */

/* A request of the waiting thread; its end wakes that thread. */
struct asked {
	struct cfs_peer_get get; /* first */
	sem_t *woken;
	int err;
	atomic_bool ended;	      /* err is set; after it only `woken` is used */
	atomic_bool worked_on;	      /* as the peer reports */
	_Atomic uint64_t expected_ms; /* when it expects to answer; 0: unknown */
	struct cfs_hedge *hedge;
	struct race *race; /* only of the first request */
};

struct race {
	struct cfs_peer *peer;
	uint64_t start_ns;
	struct cfs_slow *slow;
	struct cfs_slow_ask ask; /* under slow->lock */
	sem_t woken;		 /* posted once by each started request */
	unsigned heard;		 /* posts received */
	struct asked first, probe;
	struct iovec byte;
	char probed;
	bool probing;
	bool known;	/* the peer's usual time */
	bool abandoned; /* given up, because the peer is slow */
	bool expired;	/* given up, because the reserve begins */
};

static void note_end(struct cfs_peer_get *g, int err)
{
	struct asked *a = (struct asked *)g;
	sem_t *woken = a->woken;

	a->err = err;
	atomic_store(&a->ended, true);
	sem_post(woken);
}

static void note_working(struct cfs_peer_get *g, uint64_t left_ms)
{
	struct asked *a = (struct asked *)g;

	atomic_store(&a->expected_ms, left_ms > 0 ? cfs_now_ms() + left_ms : 0);
	atomic_store(&a->worked_on, true);
	cfs_slow_works(a->race->slow, &a->race->ask, cfs_now_ns(),
		       cfs_peer_bytes_received(a->race->peer));
	if (a->hedge && a->hedge->working)
		a->hedge->working(a->hedge);
}

static void wait_for(struct race *r, struct asked *a)
{
	while (!atomic_load(&a->ended)) /* the loop observes the deadline */
		r->heard += sem_wait(&r->woken) == 0;
}

/* Waits until no request can touch the semaphore. */
static void end_race(struct race *r, unsigned started)
{
	while (r->heard < started)
		r->heard += sem_wait(&r->woken) == 0;
	sem_destroy(&r->woken);
}

static void stop(struct race *r, struct asked *a)
{
	if (!atomic_load(&a->ended))
		cfs_peer_cancel(r->peer, &a->get);
	wait_for(r, a);
}

/* Waits until the first one ends, or until this time. */
static bool has_ended_by(struct race *r, cfs_deadline_t when)
{
	while (!atomic_load(&r->first.ended)) {
		cfs_deadline_t next = cfs_deadline_min(when, cfs_deadline_in(CFS_SLOW_LOOK_MS));
		const struct timespec until = {.tv_sec = (time_t)(next / 1000),
					       .tv_nsec = (long)(next % 1000) * 1000000};

		if (sem_clockwait(&r->woken, CLOCK_MONOTONIC, &until) == 0) {
			r->heard++;
		} else if (errno == ETIMEDOUT) {
			r->abandoned = cfs_slow_look(r->slow, &r->ask, cfs_now_ns(),
						     cfs_peer_bytes_received(r->peer));
			if (r->abandoned)
				stop(r, &r->first);
			else if (cfs_deadline_passed(when))
				break;
		}
	}
	return atomic_load(&r->first.ended);
}

static void start_probe(struct race *r)
{
	r->byte = (struct iovec){.iov_base = &r->probed, .iov_len = 1};
	r->probe.woken = &r->woken;
	r->probe.get = (struct cfs_peer_get){
		.block = r->first.get.block,
		.off = r->first.get.off,
		.len = 1,
		.flags = CFS_PEER_ONLY_CACHED,
		.dst = &r->byte,
		.n_dst = 1,
		.deadline = r->first.get.deadline,
		.done = note_end,
	};
	r->probing = cfs_peer_start(r->peer, &r->probe.get) == 0;
}

/* True: the answer is late enough for the hedge. */
static bool is_late(struct race *r, cfs_deadline_t start, uint64_t late_ms)
{
	if (has_ended_by(r, start + late_ms / 2))
		return false;
	start_probe(r);
	if (has_ended_by(r, start + late_ms) || atomic_load(&r->first.worked_on))
		return false;
	if (!r->probing || !atomic_load(&r->probe.ended))
		return r->known && !cfs_peer_heard(r->peer, start);
	if (r->probe.err == -ENOENT || has_ended_by(r, start + 2 * late_ms))
		return false;
	return !atomic_load(&r->first.worked_on);
}

static bool is_settled(void *arg)
{
	const struct asked *first = arg;

	return atomic_load(&first->ended) && first->err == 0;
}

/* True: the hedge has the bytes. */
static bool run_hedge(struct cfs_hedging *h, struct race *r, struct cfs_hedge *hedge)
{
	int err;

	atomic_fetch_add_explicit(&h->hedges, 1, memory_order_relaxed);
	err = hedge->fetch(hedge, is_settled, &r->first);
	if (err == 0 || err == -EAGAIN)
		stop(r, &r->first);
	if (err < 0 || r->first.err == 0)
		return false;
	atomic_fetch_add_explicit(&h->wins, 1, memory_order_relaxed);
	return true;
}

static bool is_expected_in_time(struct race *r, const struct cfs_patience *p)
{
	uint64_t expected_ms = atomic_load(&r->first.expected_ms);

	return expected_ms > 0 && expected_ms <= p->deadline &&
	       cfs_now_ms() <= expected_ms + CFS_HEDGE_SLACK_MS;
}

/* Waits for the peer's part of the time. True: it has not answered, the rest is for object storage. */
static bool is_reserve_left(struct race *r, const struct cfs_patience *p)
{
	cfs_deadline_t begin = p->deadline - p->reserve_ms, end = p->deadline - p->reserve_ms / 4;
	cfs_deadline_t when = p->reserve_ms > 0 ? begin : UINT64_MAX;

	while (!has_ended_by(r, when)) {
		if (cfs_deadline_passed(end) || !is_expected_in_time(r, p))
			return true;
		when = cfs_deadline_min(end, cfs_deadline_in(CFS_SLOW_LOOK_MS));
	}
	return false;
}

/* The result of the race; started requests are over when it returns. */
static int finish(struct race *r, struct cfs_latency *latency, bool won)
{
	int err;
	uint64_t took_ns;

	(void)has_ended_by(r, UINT64_MAX); /* the loop observes the deadline */
	if (r->probing)
		stop(r, &r->probe);
	end_race(r, 1u + r->probing);
	err = won ? -EALREADY : r->first.err;
	cfs_slow_end(r->slow, &r->ask, cfs_now_ns(), cfs_peer_bytes_received(r->peer),
		     r->first.err == 0 || r->first.err == -ENOENT);
	if (r->abandoned && err == -ECANCELED)
		err = -EBUSY;
	/*
	 * A request that was given up took at least this long: counted, it gives a peer that became
	 * slow more time. Long fetches are not counted, as they measure object storage.
	 */
	took_ns = cfs_now_ns() - r->start_ns;
	if ((err == 0 || err == -ECANCELED || won) &&
	    (!atomic_load(&r->first.worked_on) || took_ns < LONG_FETCH_MS * 1000000ull))
		cfs_latency_note(latency, took_ns);
	return r->expired && err == -ECANCELED ? -ETIMEDOUT : err;
}

ssize_t cfs_hedged_read(struct cfs_hedging *h, struct cfs_latency *latency, struct cfs_peer *peer,
			const struct cfs_peer_block *b, uint32_t off, uint32_t len, unsigned flags,
			const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			const struct cfs_patience *patience)
{
	cfs_deadline_t deadline =
		cfs_deadline_min(patience->deadline, cfs_deadline_in(patience->silent_ms));
	uint64_t start_ns = cfs_now_ns(), start_ms = start_ns / 1000000, late_ms = 0;
	cfs_deadline_t receive_until = start_ms + CFS_SLOW_LOOK_MS;
	bool won = false, may_hedge = hedge && h->percent;
	struct race r = {
		.peer = peer,
		.slow = &latency->slow,
		.start_ns = start_ns,
		.first.get = {.block = *b,
			      .off = off,
			      .len = len,
			      .flags = flags,
			      .dst = dst,
			      .n_dst = n_dst,
			      .deadline = deadline,
			      .patience_ms = patience->silent_ms,
			      .limit = patience->deadline,
			      .waits = true,
			      .done = note_end,
			      .working = note_working},
		.first.hedge = hedge,
		.first.race = &r,
	};
	int err;

	sem_init(&r.woken, 0, 0);
	r.first.woken = &r.woken;
	cfs_slow_start(r.slow, &r.ask, start_ns, cfs_peer_bytes_received(peer));
	err = cfs_peer_start(peer, &r.first.get);
	if (err < 0) {
		cfs_slow_end(r.slow, &r.ask, cfs_now_ns(), cfs_peer_bytes_received(peer), false);
		end_race(&r, 0);
		return err;
	}
	cfs_hedging_earn(h);
	r.known = known(latency) >= CFS_HEDGE_SAMPLES;
	if (may_hedge) {
		late_ms = cfs_latency_late_ms(latency, cfs_deadline_left_ms(deadline));
		receive_until = cfs_deadline_min(receive_until, start_ms + late_ms / 2);
	}
	cfs_peer_receive(peer, &r.first.get, receive_until);
	if (may_hedge && is_late(&r, start_ms, late_ms) && cfs_hedging_take(h)) {
		won = run_hedge(h, &r, hedge);
		hedge = NULL;
	}
	if (!won && is_reserve_left(&r, patience)) {
		r.expired = !hedge;
		if (hedge)
			won = run_hedge(h, &r, hedge);
		else
			stop(&r, &r.first);
	}
	err = finish(&r, latency, won);
	return err < 0 ? err : (ssize_t)len;
}
