/* SPDX-License-Identifier: Apache-2.0 */
/* A peer: its connections, its circuit breaker, and the requests that wait for a connection. */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "onesided.h"
#include "transport-internal.h"

#define PENDING_MAX	4096
#define PROBE_DOUBLINGS 100
#define PROBE_SOON_MS	1500	    /* the loop's idle tick is 1 s */
#define TRIAL_MAX	(16u << 10) /* more than a packet of any link */
#define BUSY_MIN	4	    /* requests under way */

/* --- lists --- */

void cfs_gets_append(struct cfs_get_list *l, struct cfs_peer_get *g)
{
	g->next = NULL;
	g->prev = l->last;
	if (l->last)
		l->last->next = g;
	else
		l->first = g;
	l->last = g;
	l->n++;
}

void cfs_gets_remove(struct cfs_get_list *l, struct cfs_peer_get *g)
{
	if (g->prev)
		g->prev->next = g->next;
	else
		l->first = g->next;
	if (g->next)
		g->next->prev = g->prev;
	else
		l->last = g->prev;
	l->n--;
}

static void finish_all(struct cfs_peer *p, struct cfs_get_list *list, int err)
{
	struct cfs_peer_get *g, *next;

	for (g = list->first; g; g = next) {
		next = g->next;
		cfs_peer_finish(p, g, err);
	}
}

/* --- the circuit --- */

uint64_t cfs_probe_pause_max_ms(const struct cfs_transport *t)
{
	return (uint64_t)t->conf.probe_ms * PROBE_DOUBLINGS;
}

/* Under the lock. */
static void drop_hints(struct cfs_peer *p)
{
	free(p->hints);
	p->hints = NULL;
	p->n_hints = 0;
}

/*
 * Under the lock: takes out the requests that wait for the peer, and lists its connections, for the
 * caller to end both. Returns the number of connections.
 */
static unsigned give_up(struct cfs_peer *p, struct cfs_get_list *ret_pending,
			struct cfs_client *ret_conns[CFS_CONNS_PER_PEER_MAX])
{
	drop_hints(p);
	*ret_pending = p->pending;
	p->pending = (struct cfs_get_list){0};
	memcpy(ret_conns, p->conns, p->n_conns * sizeof(ret_conns[0]));
	return p->n_conns;
}

/* Opens the circuit: requests fail at once while the peer does not answer. */
static void exclude(struct cfs_peer *p, int err)
{
	struct cfs_transport *t = p->t;
	struct cfs_client *conns[CFS_CONNS_PER_PEER_MAX];
	struct cfs_get_list list;
	unsigned i, n;
	bool was_in_use;

	p->probe_at_ms =
		t->loop.now_ms + p->probe_pause_ms + cfs_random_u64() % (p->probe_pause_ms / 4 + 1);
	p->probe_pause_ms = CFS_MIN(p->probe_pause_ms * 2, cfs_probe_pause_max_ms(t));
	pthread_mutex_lock(&p->lock);
	was_in_use = p->circuit == CFS_PEER_CLOSED_CIRCUIT;
	p->circuit = CFS_PEER_OPEN_CIRCUIT;
	n = give_up(p, &list, conns);
	pthread_mutex_unlock(&p->lock);
	if (was_in_use && !p->warned)
		cfs_warn("peer does not answer, left out until it does: member=%llu address=%s "
			 "transport=%s error=%s",
			 (unsigned long long)p->member, p->name,
			 cfs_peer_transport_name(p->t->conf.transport), cfs_errname(err));
	p->warned = true;
	for (i = 0; i < n; i++)
		conns[i]->ops->close(conns[i], -EHOSTDOWN);
	finish_all(p, &list, err);
}

static bool is_answer(int err)
{
	return err == 0 || err == -ENOENT;
}

static bool is_failure(int err)
{
	return !is_answer(err) && err != -EBUSY && err != -ECANCELED && err != -EHOSTDOWN &&
	       err != -ESHUTDOWN;
}

/*
 * Short answers arrive also where large packets are lost. They prove a recovery only when no longer
 * request has failed for as long as the longest pause.
 */
static bool is_recovered(const struct cfs_peer *p, uint32_t len)
{
	return len >= p->failed_len ||
	       p->t->loop.now_ms - p->failed_ms >= cfs_probe_pause_max_ms(p->t);
}

/*
 * Only an answer is a success: an authenticated peer may still send invalid frames. len: of the
 * answer.
 */
static void note_result(struct cfs_peer *p, int err, uint32_t len)
{
	bool too_many = false;

	if (!is_answer(err) && !is_failure(err))
		return;
	pthread_mutex_lock(&p->lock);
	if (is_answer(err))
		p->failures = 0;
	else
		too_many = ++p->failures >= p->t->conf.failures &&
			   p->circuit == CFS_PEER_CLOSED_CIRCUIT;
	pthread_mutex_unlock(&p->lock);
	if (too_many)
		exclude(p, err);
	if (!is_answer(err) || !is_recovered(p, len))
		return;
	p->failed_len = 0;
	p->probe_pause_ms = p->t->conf.probe_ms;
	if (p->warned)
		cfs_info("peer answers again: member=%llu address=%s transport=%s",
			 (unsigned long long)p->member, p->name,
			 cfs_peer_transport_name(p->t->conf.transport));
	p->warned = false;
}

static uint64_t last_heard_ms(struct cfs_peer *p)
{
	uint64_t last_ms = 0;
	unsigned i;
	CFS_LOCK_GUARD(&p->lock);

	for (i = 0; i < p->n_conns; i++)
		last_ms = CFS_MAX(last_ms, p->conns[i]->heard_ms);
	return last_ms;
}

/*
 * Whether the loop was kept from running for most of the last ms, since when its late_ms was late_ms.
 * The silence of a peer proves nothing then.
 */
static bool was_away(const struct cfs_peer *p, uint64_t ms, uint64_t late_ms)
{
	return 2 * (atomic_load(&p->t->loop.late_ms) - late_ms) > ms;
}

/*
 * g was cancelled before its deadline and without an answer. A peer that has answered nothing for as
 * long as one request may wait has failed, even if each request was cancelled sooner.
 */
static void note_silence(struct cfs_peer *p, const struct cfs_peer_get *g)
{
	uint64_t start_ms = g->start_ns / 1000000, now_ms = cfs_now_ms();

	if (!p->silent_ms || last_heard_ms(p) > p->silent_ms) {
		p->silent_ms = start_ms;
		p->silent_late_ms = g->late_ms;
	}
	if (now_ms - p->silent_ms >= g->deadline - start_ms &&
	    !was_away(p, now_ms - p->silent_ms, p->silent_late_ms))
		note_result(p, -ETIMEDOUT, 0);
}

/* --- requests --- */

static void count_end(struct cfs_peer *p, const struct cfs_peer_get *g, int err)
{
	struct cfs_transport *t = p->t;
	uint64_t ns = cfs_now_ns() - g->start_ns;
	enum cfs_peer_error kind = cfs_peer_error_of(err);

	if (err == 0) {
		cfs_counters_ok(&p->counters, g->len, ns);
		cfs_counters_ok(&t->asked, g->len, ns);
	} else if (err == -ENOENT) {
		atomic_fetch_add(&p->counters.misses, 1);
		atomic_fetch_add(&t->asked.misses, 1);
	} else if (kind != CFS_PEER_E_COUNT) {
		cfs_counters_error(&p->counters, kind);
		cfs_counters_error(&t->asked, kind);
	}
	atomic_fetch_sub(&p->counters.inflight, 1);
	atomic_fetch_sub(&t->asked.inflight, 1);
	atomic_fetch_sub(&p->counters.inflight_bytes, g->len);
	atomic_fetch_sub(&t->asked.inflight_bytes, g->len);
}

/* g has met its deadline: others were answered, or the loop could not notice an answer. */
static bool is_only_late(const struct cfs_peer *p, const struct cfs_peer_get *g)
{
	return g->heard || was_away(p, cfs_now_ms() - g->start_ns / 1000000, g->late_ms);
}

/*
 * The longest since the last success, and the first of its length: the peer may still be fetching
 * the block of a later one.
 */
static void remember(struct cfs_peer *p, const struct cfs_peer_get *g)
{
	uint32_t len = CFS_MIN(g->len, TRIAL_MAX);

	if (len < p->failed_len)
		return;
	p->failed_ms = p->t->loop.now_ms;
	if (len == p->failed_len && !p->failed_missed)
		return;
	p->failed_block = g->block;
	p->failed_off = g->off;
	p->failed_len = len;
	p->failed_missed = false;
}

static void try_again(struct cfs_peer *p);

void cfs_peer_finish(struct cfs_peer *p, struct cfs_peer_get *g, int err)
{
	bool late = err == -ETIMEDOUT && is_only_late(p, g);

	count_end(p, g, err);
	if (g == &p->trial) {
		g->done(g, err);
		return;
	}
	if (is_failure(err) || (err == -ECANCELED && !g->brief))
		remember(p, g);
	/*
	 * A lost connection is one failure, however many requests waited on it. A slow answer, say
	 * of an owner whose object storage is slow, is no failure while others come.
	 */
	if (err != -ECONNRESET && err != -EPROTO && !late)
		note_result(p, err, err == 0 ? g->len : 0);
	if (err == -ECANCELED && !g->brief && !g->heard)
		note_silence(p, g);
	if (late)
		try_again(p);
	cfs_peer_feed(p);
	g->done(g, err);
}

static bool has_room(const struct cfs_client *c, uint32_t len)
{
	return c->usable && c->inflight < c->max_inflight &&
	       c->inflight_bytes + len <= c->max_bytes;
}

static struct cfs_client *pick(struct cfs_peer *p, uint32_t len)
{
	struct cfs_client *best = NULL;
	unsigned i;

	for (i = 0; i < p->n_conns; i++) {
		struct cfs_client *c = p->conns[i];

		if (has_room(c, len) && (!best || c->inflight_bytes < best->inflight_bytes))
			best = c;
	}
	return best;
}

void cfs_peer_feed(struct cfs_peer *p)
{
	struct cfs_peer_get *g;
	struct cfs_client *c;
	CFS_LOCK_GUARD(&p->lock);

	while ((g = p->pending.first)) {
		c = pick(p, g->len);
		if (!c || c->ops->start(c, g, false) < 0)
			break;
		cfs_gets_remove(&p->pending, g);
		c->ops->send(c);
	}
}

void cfs_peer_again(struct cfs_peer *p, struct cfs_peer_get *g)
{
	int err = 0;

	pthread_mutex_lock(&p->lock);
	if (p->closing)
		err = -ESHUTDOWN;
	else if (p->circuit != CFS_PEER_CLOSED_CIRCUIT)
		err = -EHOSTDOWN;
	else
		cfs_gets_append(&p->pending, g);
	pthread_mutex_unlock(&p->lock);
	if (err < 0)
		cfs_peer_finish(p, g, err);
	else
		cfs_loop_run(&p->t->loop, &p->work);
}

static bool is_valid(const struct cfs_peer_get *g)
{
	return g->block.len > 0 && g->block.len <= CFS_PEER_BLOCK_MAX && g->len > 0 &&
	       g->off <= g->block.len && g->len <= g->block.len - g->off &&
	       cfs_iov_len(g->dst, g->n_dst) == g->len;
}

static void prepare(struct cfs_peer *p, struct cfs_peer_get *g)
{
	g->next = g->prev = NULL;
	g->receiver = g->reads = NULL;
	g->received = g->crc = g->at_off = 0;
	g->at = 0;
	while (g->at < g->n_dst && g->dst[g->at].iov_len == 0)
		g->at++;
	g->canceled = g->heard = false;
	g->start_ns = cfs_now_ns();
	g->late_ms = atomic_load(&p->t->loop.late_ms);
}

static void count_start(struct cfs_peer *p, const struct cfs_peer_get *g)
{
	atomic_fetch_add(&p->counters.inflight, 1);
	atomic_fetch_add(&p->t->asked.inflight, 1);
	atomic_fetch_add(&p->counters.inflight_bytes, g->len);
	atomic_fetch_add(&p->t->asked.inflight_bytes, g->len);
}

/* Under the lock. */
static int start(struct cfs_peer *p, struct cfs_peer_get *g, bool *ret_kick)
{
	struct cfs_client *c;
	bool one_sided;
	int r;

	if (p->closing)
		return -ESHUTDOWN;
	if (p->circuit != CFS_PEER_CLOSED_CIRCUIT)
		return -EHOSTDOWN;
	one_sided = p->reader && cfs_onesided_start(p, g);
	c = !one_sided && p->pending.n == 0 ? pick(p, g->len) : NULL;
	if (one_sided) {
		p->n_receiving += g->reads != NULL;
	} else if (c) {
		r = c->ops->start(c, g, g->waits);
		if (r < 0)
			return r;
		p->n_receiving += g->receiver != NULL;
	} else {
		if (p->pending.n >= PENDING_MAX)
			return -EAGAIN;
		cfs_gets_append(&p->pending, g);
		*ret_kick = true;
	}
	count_start(p, g);
	if (c)
		c->ops->send(c);
	return 0;
}

int cfs_peer_start(struct cfs_peer *p, struct cfs_peer_get *g)
{
	bool kick = false;
	int r;

	if (!is_valid(g))
		return -EINVAL;
	prepare(p, g);
	pthread_mutex_lock(&p->lock);
	r = start(p, g, &kick);
	/* g may end and be freed as soon as the lock is released. */
	pthread_mutex_unlock(&p->lock);
	if (r < 0)
		return r;
	if (kick)
		cfs_loop_run(&p->t->loop, &p->work);
	cfs_loop_touch(&p->t->loop);
	return 0;
}

void cfs_peer_receive(struct cfs_peer *p, struct cfs_peer_get *g, cfs_deadline_t until)
{
	struct cfs_client *c = g->receiver;

	if (c)
		c->ops->receive(c, g, until);
	else if (g->reads)
		cfs_onesided_receive(p, g, until);
}

void cfs_peer_received(struct cfs_peer *p, const struct cfs_peer_get *g, bool well)
{
	if (well) {
		p->failures = 0;
		count_end(p, g, 0);
		atomic_fetch_add_explicit(&p->counters.direct, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&p->t->asked.direct, 1, memory_order_relaxed);
		if (p->pending.n > 0)
			cfs_loop_run(&p->t->loop, &p->work);
	}
	p->n_receiving--;
	if (p->n_receiving == 0)
		pthread_cond_signal(&p->closed_cond);
}

void cfs_peer_note_bytes(struct cfs_peer *p, size_t n)
{
	atomic_fetch_add_explicit(&p->bytes_received, n, memory_order_relaxed);
}

void cfs_peer_cancel(struct cfs_peer *p, struct cfs_peer_get *g)
{
	pthread_mutex_lock(&p->lock);
	g->canceled = true;
	p->canceling = true;
	pthread_mutex_unlock(&p->lock);
	cfs_loop_run(&p->t->loop, &p->work);
}

struct waiter {
	struct cfs_peer_get get;
	sem_t ended;
	int err;
};

static void wake_waiter(struct cfs_peer_get *g, int err)
{
	struct waiter *w = (struct waiter *)g; /* its first member */

	w->err = err;
	sem_post(&w->ended);
}

ssize_t cfs_peer_read(struct cfs_peer *p, const struct cfs_peer_block *b, uint32_t off,
		      uint32_t len, unsigned flags, const struct iovec *dst, int n_dst,
		      cfs_deadline_t deadline)
{
	struct waiter w = {
		.get = {.block = *b,
			.off = off,
			.len = len,
			.flags = flags,
			.dst = dst,
			.n_dst = n_dst,
			.deadline = deadline,
			.waits = true,
			.done = wake_waiter},
	};
	int r;

	sem_init(&w.ended, 0, 0);
	r = cfs_peer_start(p, &w.get);
	if (r == 0) {
		cfs_peer_receive(p, &w.get, deadline);
		while (sem_wait(&w.ended) < 0) /* the loop observes the deadline */
			;
		r = w.err;
	}
	sem_destroy(&w.ended);
	return r < 0 ? r : (ssize_t)len;
}

bool cfs_peer_is_in_use(const struct cfs_peer *p)
{
	return atomic_load_explicit(&p->circuit, memory_order_relaxed) == CFS_PEER_CLOSED_CIRCUIT;
}

bool cfs_peer_is_busy(const struct cfs_peer *p)
{
	return !p->t->onesided &&
	       atomic_load_explicit(&p->counters.inflight, memory_order_relaxed) >= BUSY_MIN;
}

bool cfs_peer_heard(struct cfs_peer *p, uint64_t since_ms)
{
	unsigned i;
	CFS_LOCK_GUARD(&p->lock);

	for (i = 0; i < p->n_conns; i++)
		if (p->conns[i]->heard_ms > since_ms)
			return true;
	return false;
}

uint64_t cfs_peer_bytes_received(const struct cfs_peer *p)
{
	return atomic_load_explicit(&p->bytes_received, memory_order_relaxed);
}

/* Under the lock: a usable connection, or NULL. */
static struct cfs_client *find_usable(struct cfs_peer *p)
{
	unsigned i;

	for (i = 0; i < p->n_conns; i++) {
		if (p->conns[i]->usable)
			return p->conns[i];
	}
	return NULL;
}

/* Under the lock: sends the hints that waited for this connection. */
static void send_hints(struct cfs_peer *p, struct cfs_client *c)
{
	unsigned i;

	for (i = 0; i < p->n_hints; i++)
		(void)c->ops->hint(c, &p->hints[i]);
	drop_hints(p);
	c->ops->send(c);
}

/* Under the lock. -ENOBUFS: too many requests wait; -EHOSTDOWN: no connection attempt; -ENOMEM. */
static int keep_hint(struct cfs_peer *p, const struct cfs_hint *h)
{
	if (p->closing || p->circuit != CFS_PEER_CLOSED_CIRCUIT)
		return -EHOSTDOWN;
	if (p->n_hints == CFS_PEER_HINTS_MAX)
		return -ENOBUFS;
	if (!p->hints)
		p->hints = calloc(CFS_PEER_HINTS_MAX, sizeof(*p->hints));
	if (!p->hints)
		return -ENOMEM;
	p->hints[p->n_hints++] = *h;
	return 0;
}

void cfs_peer_hint(struct cfs_peer *p, const struct cfs_peer_block *b, enum cfs_peer_hint hint)
{
	const struct cfs_hint h = {.block = *b, .what = hint};
	struct cfs_client *c;
	bool kick = false;

	pthread_mutex_lock(&p->lock);
	c = find_usable(p);
	if (!c)
		kick = keep_hint(p, &h) == 0;
	else if (c->ops->hint(c, &h) == 0)
		c->ops->send(c);
	pthread_mutex_unlock(&p->lock);
	if (kick)
		cfs_loop_run(&p->t->loop, &p->work);
}

/* --- connections --- */

static void connect_failed(struct cfs_peer *p, int err)
{
	enum cfs_peer_error kind = cfs_peer_error_of(err);

	if (kind == CFS_PEER_E_LOST || kind == CFS_PEER_E_TIMEOUT || kind == CFS_PEER_E_COUNT)
		kind = CFS_PEER_E_CONNECT;
	cfs_counters_error(&p->counters, kind);
	cfs_counters_error(&p->t->asked, kind);
	/* A failed additional connection is no reason to give up the others. */
	cfs_scaling_pause(p);
	if (p->n_ready == 0)
		exclude(p, err);
}

void cfs_peer_connect(struct cfs_peer *p)
{
	int r;

	if (p->n_conns >= p->t->conf.max_conns_per_peer)
		return;
	r = cfs_stream_connect(p);
	if (r < 0)
		connect_failed(p, r);
}

/*
 * A trial on a closed circuit had no answer, and neither anything else on its connection nor as
 * many bytes on others have come meanwhile.
 */
static bool is_lost(const struct cfs_peer *p, int err)
{
	return err == -ETIMEDOUT && p->circuit == CFS_PEER_CLOSED_CIRCUIT &&
	       !is_only_late(p, &p->trial) &&
	       cfs_peer_bytes_received(p) - p->trial_received < p->trial.len;
}

static void trial_ended(struct cfs_peer_get *g, int err)
{
	struct cfs_peer *p = caa_container_of(g, struct cfs_peer, trial);
	bool well = is_answer(err) || err == -EBUSY, half_open, failed;

	free(p->trial_dst.iov_base);
	p->trial_dst.iov_base = NULL;
	pthread_mutex_lock(&p->lock);
	half_open = p->circuit == CFS_PEER_HALF_OPEN;
	failed = (half_open ? !well : is_lost(p, err)) && !p->closing;
	if (well && half_open)
		p->circuit = CFS_PEER_CLOSED_CIRCUIT;
	pthread_mutex_unlock(&p->lock);
	p->failed_ms = p->t->loop.now_ms; /* it was not asked meanwhile */
	p->failed_missed = err == -ENOENT;
	if (failed)
		exclude(p, err);
	else if (err == 0)
		note_result(p, 0, g->len);
}

/* Under the lock: asks for what was not answered, if it is cached there. False: it does not. */
static bool start_trial(struct cfs_peer *p, struct cfs_client *c)
{
	struct cfs_peer_get *g = &p->trial;
	void *bytes;

	if (p->failed_len == 0 || p->trial_dst.iov_base)
		return false;
	bytes = malloc(p->failed_len);
	if (!bytes)
		return false;
	p->trial_dst = (struct iovec){.iov_base = bytes, .iov_len = p->failed_len};
	*g = (struct cfs_peer_get){
		.block = p->failed_block,
		.off = p->failed_off,
		.len = p->failed_len,
		.flags = CFS_PEER_ONLY_CACHED,
		.dst = &p->trial_dst,
		.n_dst = 1,
		.deadline = cfs_deadline_in(p->t->conf.connect_timeout_ms),
		.done = trial_ended,
	};
	p->trial_received = cfs_peer_bytes_received(p);
	prepare(p, g);
	if (c->ops->start(c, g, false) < 0) {
		free(bytes);
		p->trial_dst.iov_base = NULL;
		return false;
	}
	count_start(p, g);
	return true;
}

/*
 * A request had no answer in time, though the peer reported work on it, or answered others. The
 * peer may wait for object storage, or the path may lose large packets, which a trial tells apart.
 */
static void try_again(struct cfs_peer *p)
{
	struct cfs_client *c = NULL;
	CFS_LOCK_GUARD(&p->lock);

	if (p->circuit == CFS_PEER_CLOSED_CIRCUIT && !p->closing)
		c = pick(p, p->failed_len);
	if (c && start_trial(p, c))
		c->ops->send(c);
}

void cfs_peer_connected(struct cfs_peer *p, struct cfs_client *c)
{
	pthread_mutex_lock(&p->lock);
	p->n_ready++;
	/*
	 * The circuit stays half open until the answer: a peer that completes handshakes and no
	 * requests would otherwise stop readers again and again.
	 */
	if (p->circuit != CFS_PEER_HALF_OPEN || !start_trial(p, c))
		p->circuit = CFS_PEER_CLOSED_CIRCUIT;
	send_hints(p, c);
	pthread_mutex_unlock(&p->lock);
	atomic_fetch_add(&p->counters.conns[c->transport], 1);
	atomic_fetch_add(&p->t->asked.conns[c->transport], 1);
	p->window_ms = 0;
	cfs_peer_feed(p);
}

void cfs_peer_lost(struct cfs_peer *p, struct cfs_client *c, int err, bool was_ready,
		   struct cfs_get_list *list)
{
	bool closing, waiting;
	unsigned i;

	pthread_mutex_lock(&p->lock);
	for (i = 0; p->conns[i] != c; i++)
		;
	p->conns[i] = p->conns[--p->n_conns];
	p->n_ready -= was_ready;
	closing = p->closing;
	pthread_mutex_unlock(&p->lock);
	if (was_ready) {
		atomic_fetch_sub(&p->counters.conns[c->transport], 1);
		atomic_fetch_sub(&p->t->asked.conns[c->transport], 1);
	}
	/* Callers decide whether to retry. */
	if (!closing && !was_ready && err != -EHOSTDOWN)
		connect_failed(p, err);
	else if (!closing && was_ready && (list->n > 0 || err == -EPROTO))
		note_result(p, err, 0);
	finish_all(p, list, err ? err : -ECONNRESET);
	if (closing)
		return;
	pthread_mutex_lock(&p->lock);
	waiting = p->pending.n > 0;
	pthread_mutex_unlock(&p->lock);
	if (waiting)
		cfs_loop_run(&p->t->loop, &p->work);
}

static void expire(struct cfs_peer *p, uint64_t now_ms)
{
	struct cfs_get_list list = {0};
	struct cfs_peer_get *g, *next;
	unsigned i;

	pthread_mutex_lock(&p->lock);
	p->canceling = false;
	for (g = p->pending.first; g; g = next) {
		next = g->next;
		if (g->canceled || g->deadline <= now_ms) {
			for (i = 0; i < p->n_conns && !g->heard; i++)
				g->heard = cfs_client_heard(p->conns[i], g);
			cfs_gets_remove(&p->pending, g);
			cfs_gets_append(&list, g);
		}
	}
	cfs_onesided_expire(p, now_ms, &list);
	for (i = 0; i < p->n_conns; i++) {
		p->conns[i]->ops->expire(p->conns[i], now_ms, &list);
		p->conns[i]->ops->send(p->conns[i]);
	}
	pthread_mutex_unlock(&p->lock);
	for (g = list.first; g; g = next) {
		next = g->next;
		cfs_peer_finish(p, g, g->canceled || g->brief ? -ECANCELED : -ETIMEDOUT);
	}
}

static void close_all(struct cfs_peer *p)
{
	struct cfs_transport *t = p->t;
	struct cfs_client *conns[CFS_CONNS_PER_PEER_MAX];
	struct cfs_get_list list;
	unsigned i, n;

	pthread_mutex_lock(&p->lock);
	n = give_up(p, &list, conns);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < n; i++)
		conns[i]->ops->close(conns[i], -ESHUTDOWN);
	finish_all(p, &list, -ESHUTDOWN);
	pthread_mutex_lock(&t->lock);
	LIST_REMOVE(p, all);
	pthread_mutex_unlock(&t->lock);
	pthread_mutex_lock(&p->lock);
	p->closed = true;
	pthread_cond_signal(&p->closed_cond);
	pthread_mutex_unlock(&p->lock);
}

/* Work that other threads left for the loop. */
static void service(struct cfs_work *w)
{
	struct cfs_peer *p = caa_container_of(w, struct cfs_peer, work);
	bool closing, connect, expiring;
	unsigned i;

	pthread_mutex_lock(&p->lock);
	closing = p->closing;
	connect = (p->pending.n > 0 || p->n_hints > 0) && p->circuit == CFS_PEER_CLOSED_CIRCUIT;
	expiring = p->canceling;
	for (i = 0; i < p->n_conns; i++) {
		struct cfs_client *c = p->conns[i];

		c->ops->service(c);
		/* The connection takes them as soon as it has room. */
		if (c->usable || c->connecting)
			connect = false;
	}
	pthread_mutex_unlock(&p->lock);
	if (closing) {
		close_all(p); /* p is freed */
		return;
	}
	if (expiring)
		expire(p, p->t->loop.now_ms);
	if (connect)
		cfs_peer_connect(p);
	cfs_peer_feed(p);
}

/* --- life --- */

bool cfs_peer_tick(struct cfs_peer *p)
{
	uint64_t now_ms = p->t->loop.now_ms;
	unsigned i;
	bool probe;

	expire(p, now_ms);
	cfs_scaling_tick(p);
	pthread_mutex_lock(&p->lock);
	for (i = 0; i < p->n_conns; i++)
		p->conns[i]->ops->tick(p->conns[i]);
	probe = p->circuit == CFS_PEER_OPEN_CIRCUIT && now_ms >= p->probe_at_ms && !p->closing;
	if (probe)
		p->circuit = CFS_PEER_HALF_OPEN;
	pthread_mutex_unlock(&p->lock);
	if (probe)
		cfs_peer_connect(p);
	return atomic_load(&p->counters.inflight) > 0 || p->n_conns > p->n_ready ||
	       (p->circuit == CFS_PEER_OPEN_CIRCUIT && p->probe_at_ms < now_ms + PROBE_SOON_MS);
}

int cfs_peer_open(struct cfs_transport *t, uint64_t member, const struct sockaddr *addr,
		  socklen_t addr_len, struct cfs_peer **ret)
{
	struct cfs_peer *p;
	int r;

	if (addr_len > sizeof(p->addr) || member == 0 || member == t->conf.member)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	r = cfs_cond_init(&p->closed_cond);
	if (r < 0) {
		free(p);
		return r;
	}
	pthread_mutex_init(&p->lock, NULL);
	p->t = t;
	p->member = member;
	memcpy(&p->addr, addr, addr_len);
	p->addr_len = addr_len;
	cfs_address_format(addr, p->name);
	p->work.fn = service;
	p->probe_pause_ms = t->conf.probe_ms;
	pthread_mutex_lock(&t->lock);
	LIST_INSERT_HEAD(&t->peers, p, all);
	pthread_mutex_unlock(&t->lock);
	*ret = p;
	return 0;
}

void cfs_peer_close(struct cfs_peer *p)
{
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	pthread_mutex_unlock(&p->lock);
	cfs_loop_run(&p->t->loop, &p->work);
	pthread_mutex_lock(&p->lock);
	while (!p->closed || p->n_receiving > 0) /* no request waits on a closed connection */
		pthread_cond_wait(&p->closed_cond, &p->lock);
	pthread_mutex_unlock(&p->lock);
	pthread_cond_destroy(&p->closed_cond);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void cfs_peer_stats(struct cfs_peer *p, struct cfs_peer_stats *ret, enum cfs_peer_state *ret_state)
{
	cfs_counters_read(&p->counters, ret);
	pthread_mutex_lock(&p->lock);
	*ret_state = p->circuit;
	pthread_mutex_unlock(&p->lock);
}
