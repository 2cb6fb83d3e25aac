/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of sessions: limits, calls of the store, progress messages, counters. */
#include "session.h"

#include <errno.h>
#include <stddef.h>

#include "base/bytes.h"
#include "transport-internal.h"

#define WORKING_MIN_MS 20  /* answers sooner than this are not announced by WORKING */
#define WORKING_MS     250 /* period of WORKING */

void cfs_session_init(struct cfs_session *ss, struct cfs_transport *t,
		      const struct cfs_session_ops *ops)
{
	ss->ops = ops;
	ss->t = t;
	ss->tokens_ms = t->loop.now_ms;
	ss->tokens = t->conf.request_rate * 1000;
}

/* --- limits --- */

/* A token bucket with one second's worth of requests. */
static bool is_too_fast(struct cfs_session *ss)
{
	uint64_t rate = ss->t->conf.request_rate, now_ms = ss->t->loop.now_ms;

	if (rate == 0)
		return false;
	ss->tokens += (now_ms - ss->tokens_ms) * rate;
	ss->tokens_ms = now_ms;
	ss->tokens = CFS_MIN(ss->tokens, rate * 1000);
	if (ss->tokens < 1000)
		return true;
	ss->tokens -= 1000;
	return false;
}

int cfs_session_admit(struct cfs_session *ss, uint64_t bytes)
{
	struct cfs_transport *t = ss->t;

	ss->inflight++;
	ss->inflight_bytes += bytes;
	atomic_fetch_add(&t->served.inflight, 1);
	atomic_fetch_add(&t->served.inflight_bytes, bytes);
	if (t->draining)
		return -ESHUTDOWN;
	if (atomic_load(&t->served.inflight) <= t->conf.inflight &&
	    atomic_load(&t->served.inflight_bytes) <= t->conf.inflight_bytes && !is_too_fast(ss))
		return 0;
	cfs_counters_error(&t->served, CFS_PEER_E_BUSY);
	return -EBUSY;
}

bool cfs_session_pause(struct cfs_session *ss)
{
	ss->paused = ss->inflight >= CFS_REQUESTS_PER_SESSION ||
		     ss->inflight_bytes >= ss->t->conf.conn_bytes;
	return ss->paused;
}

void cfs_session_credit(struct cfs_session *ss, unsigned requests, uint64_t bytes)
{
	struct cfs_transport *t = ss->t;

	ss->inflight -= requests;
	ss->inflight_bytes -= bytes;
	atomic_fetch_sub(&t->served.inflight, requests);
	atomic_fetch_sub(&t->served.inflight_bytes, bytes);
	if (!ss->paused || ss->inflight > CFS_REQUESTS_PER_SESSION / 2 ||
	    ss->inflight_bytes > t->conf.conn_bytes / 2)
		return;
	ss->paused = false;
	ss->ops->resume(ss);
}

/* --- the store's answer --- */

static void stop_working(struct cfs_served *s)
{
	if (!s->working_until)
		return;
	s->working_until = 0;
	LIST_REMOVE(s, working);
}

static void has_answer(struct cfs_work *w)
{
	struct cfs_served *s = caa_container_of(w, struct cfs_served, work);

	stop_working(s);
	s->session->ops->answer(s);
}

void cfs_session_serve(struct cfs_session *ss, struct cfs_served *s)
{
	struct cfs_transport *t = ss->t;

	s->session = ss;
	s->work.fn = has_answer;
	s->start_ns = cfs_now_ns();
	LIST_INSERT_HEAD(&ss->requests, s, all);
	t->loop.held++;
	t->conf.ops->get(t->conf.ops_arg, &s->req);
}

void cfs_peer_answer(struct cfs_peer_request *req, const struct cfs_peer_answer *a)
{
	struct cfs_served *s = (struct cfs_served *)req;
	struct cfs_loop *loop = &s->session->t->loop;

	s->a = *a;
	if (cfs_loop_is_self(loop))
		has_answer(&s->work);
	else
		cfs_loop_run(loop, &s->work);
}

void cfs_session_hint(struct cfs_session *ss, uint64_t from, const struct cfs_peer_block *b,
		      enum cfs_peer_hint hint)
{
	const struct cfs_transport_conf *conf = &ss->t->conf;

	if (conf->ops->hint)
		conf->ops->hint(conf->ops_arg, from, b, hint);
}

void cfs_session_count_sent(const struct cfs_served *s)
{
	cfs_counters_ok(&s->session->t->served, s->req.len, cfs_now_ns() - s->start_ns);
}

void cfs_session_count_failed(const struct cfs_served *s, int err, bool mismatch)
{
	struct cfs_counters *served = &s->session->t->served;

	if (err == -ENOENT)
		atomic_fetch_add(&served->misses, 1);
	else if (err == -ECANCELED)
		cfs_counters_error(served, CFS_PEER_E_CANCELED);
	else if (mismatch)
		cfs_counters_error(served, CFS_PEER_E_CHECKSUM);
	else
		cfs_counters_error(served, err == -EBUSY ? CFS_PEER_E_BUSY : CFS_PEER_E_REMOTE);
}

void cfs_session_done(struct cfs_served *s, bool mismatch)
{
	struct cfs_loop *loop = &s->session->t->loop;

	if (s->a.release && cfs_loop_call_begin(loop)) {
		s->a.release(s->a.arg, mismatch);
		cfs_loop_call_end(loop);
	}
	LIST_REMOVE(s, all);
	stop_working(s);
	loop->held--;
}

/* --- progress messages --- */

void cfs_peer_working(struct cfs_peer_request *req, cfs_deadline_t until)
{
	struct cfs_served *s = (struct cfs_served *)req;

	if (!req->patient || s->working_until)
		return;
	s->working_until = until;
	s->tell_ms = s->start_ns / 1000000 + WORKING_MIN_MS;
	LIST_INSERT_HEAD(&s->session->t->workings, s, working);
}

void cfs_session_closed(struct cfs_session *ss)
{
	struct cfs_served *s;

	LIST_FOREACH(s, &ss->requests, all)
	stop_working(s);
}

/* The store's threads and their queue bound the length of the list. */
bool cfs_session_tick(struct cfs_transport *t)
{
	uint64_t now_ms = t->loop.now_ms;
	bool busy = !LIST_EMPTY(&t->workings);
	struct cfs_served *s, *next;

	for (s = LIST_FIRST(&t->workings); s; s = next) {
		uint64_t since_ms = s->start_ns / 1000000, left_ms = 0;

		next = LIST_NEXT(s, working);
		if (now_ms < s->tell_ms)
			continue;
		s->tell_ms = now_ms + WORKING_MS;
		if (s->working_until <= now_ms ||
		    (t->conf.ops->works &&
		     !t->conf.ops->works(t->conf.ops_arg, &s->req, since_ms, &left_ms)))
			stop_working(s);
		else
			s->session->ops->working(s, left_ms);
	}
	return busy;
}
