/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads share one connection. A thread appends its request to the queue. If no thread is
 * sending, it sends all queued requests as one batch. Then it waits for its reply: if no thread is
 * receiving, it receives for itself and for the threads before it, and passes the role on when its
 * own reply has come. A lone thread therefore does its own I/O, without any context switch.
 *
 * Replies come in the order of requests. The replies of a thread that gives up are dropped when
 * they come; the connection continues for the others. It is broken when requests are outstanding
 * and the server has sent nothing for read_timeout_ms.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/redis/redis-internal.h"

enum { CLOSED, CONNECTING, UP, BROKEN };

struct waiter {
	struct waiter *next;
	pthread_cond_t woken;
	redisReply **reply; /* NULL: the thread has given up, and the queue frees this */
	size_t got, wanted;
	uint64_t sent_ms;
	bool done, lost;
};

struct rds_pipe {
	struct rds_target *target;
	/*
	 * Protects the rest; not held while connecting, sending and receiving. The last thread that
	 * uses a broken connection closes it.
	 */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* of state */
	int state;
	bool sending, receiving, renew;
	struct rds_sock *sock;
	struct waiter *head, **tail; /* in the order of their requests */
	uint64_t heard_ms;	     /* when the server last sent anything */
	char *out;
	size_t out_len, out_cap;
};

int rds_pipe_create(struct rds_target *t, struct rds_pipe **ret)
{
	struct rds_pipe *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->target = t;
	p->tail = &p->head;
	pthread_mutex_init(&p->lock, NULL);
	cfs_cond_init(&p->changed);
	*ret = p;
	return 0;
}

/* ---- with the lock ---- */

static void close_if_unused(struct rds_pipe *p)
{
	if (p->state != BROKEN || p->sending || p->receiving)
		return;
	rds_sock_close(p->sock);
	p->sock = NULL;
	p->state = CLOSED;
	pthread_cond_broadcast(&p->changed);
}

static void free_waiter(struct waiter *w)
{
	pthread_cond_destroy(&w->woken);
	free(w);
}

/* Ends the wait of a waiter that was removed from the queue. */
static void end_wait(struct waiter *w, bool lost)
{
	if (!w->reply) {
		free_waiter(w);
		return;
	}
	w->done = true;
	w->lost = lost;
	pthread_cond_signal(&w->woken);
}

static void break_connection(struct rds_pipe *p)
{
	struct waiter *w;

	if (p->state != UP)
		return;
	p->state = BROKEN;
	rds_sock_shutdown(p->sock);
	while ((w = p->head)) {
		p->head = w->next;
		end_wait(w, true);
	}
	p->tail = &p->head;
	p->out_len = 0;
	close_if_unused(p);
}

void rds_pipe_destroy(struct rds_pipe *p)
{
	if (!p)
		return;
	/* The queue holds only waiters of threads that have given up. */
	if (p->state == UP)
		break_connection(p);
	if (p->sock)
		rds_sock_close(p->sock);
	free(p->out);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int connect_pipe(struct rds_pipe *p, cfs_deadline_t deadline)
{
	struct rds_sock *sock = NULL;
	char err[256];
	int r = 0;

	while (p->state == CONNECTING || p->state == BROKEN) {
		r = cfs_cond_wait(&p->changed, &p->lock, deadline);
		if (r)
			return r;
	}
	if (p->state == UP)
		return 0;
	p->state = CONNECTING;
	p->renew = false;
	pthread_mutex_unlock(&p->lock);
	r = rds_sock_open(p->target, deadline, &sock, err);
	if (r && !atomic_exchange(&p->target->away, true))
		cfs_warn("metadata server cannot be reached, trying again: %s", err);
	else if (!r && atomic_exchange(&p->target->away, false))
		cfs_info("metadata server can be reached again: url=%s", p->target->where);
	pthread_mutex_lock(&p->lock);
	p->sock = sock;
	p->state = r ? CLOSED : UP;
	pthread_cond_broadcast(&p->changed);
	return r;
}

static int enqueue(struct rds_pipe *p, const void *data, size_t len, struct waiter *w)
{
	size_t cap = p->out_cap ? p->out_cap : 4096;
	char *out;

	while (cap < p->out_len + len)
		cap *= 2;
	if (cap != p->out_cap) {
		out = realloc(p->out, cap);
		if (!out)
			return -ENOMEM;
		p->out = out;
		p->out_cap = cap;
	}
	memcpy(p->out + p->out_len, data, len);
	p->out_len += len;
	w->sent_ms = cfs_now_ms();
	*p->tail = w;
	p->tail = &w->next;
	return 0;
}

/*
 * Also sends the requests that other threads add meanwhile. A partly sent request would break the
 * connection, so the thread continues beyond its own deadline, to the end or the write timeout.
 */
static void send_all(struct rds_pipe *p)
{
	const cfs_deadline_t never = cfs_deadline_in(UINT32_MAX);

	p->sending = true;
	while (p->out_len && p->state == UP) {
		char *out = p->out;
		size_t len = p->out_len, cap = p->out_cap;
		int r;

		p->out = NULL;
		p->out_len = p->out_cap = 0;
		pthread_mutex_unlock(&p->lock);
		r = rds_sock_send(p->sock, out, len, never);
		pthread_mutex_lock(&p->lock);
		if (!p->out && cap <= 65536) {
			p->out = out;
			p->out_cap = cap;
		} else {
			free(out);
		}
		if (r)
			break_connection(p);
	}
	p->sending = false;
	close_if_unused(p);
}

static void hand_out(struct rds_pipe *p, redisReply *reply)
{
	struct waiter *w = p->head;

	p->heard_ms = cfs_now_ms();
	/* An unsolicited reply: the server is closing the connection. */
	if (!w) {
		freeReplyObject(reply);
		break_connection(p);
		return;
	}
	if (w->reply)
		w->reply[w->got] = reply;
	else
		freeReplyObject(reply);
	if (++w->got < w->wanted)
		return;
	p->head = w->next;
	if (!p->head)
		p->tail = &p->head;
	end_wait(w, false);
}

/* True when the server has sent nothing for read_timeout_ms, and the request is as old. */
static bool is_silent(const struct rds_pipe *p, const struct waiter *w)
{
	uint64_t since_ms = CFS_MAX(p->heard_ms, w->sent_ms);

	return cfs_now_ms() >= since_ms + p->target->read_timeout_ms;
}

/* Passes the receiving role to a thread that still waits. */
static void pass_on(struct rds_pipe *p)
{
	struct waiter *w;

	for (w = p->head; w && !p->receiving; w = w->next) {
		if (w->reply) {
			pthread_cond_signal(&w->woken);
			break;
		}
	}
}

/* Leaves the queue at the thread's deadline. */
static void leave(struct rds_pipe *p, struct waiter *me)
{
	size_t i;

	if (is_silent(p, me)) {
		break_connection(p);
		return;
	}
	for (i = 0; i < me->got; i++)
		freeReplyObject(me->reply[i]);
	me->reply = NULL;
	pass_on(p);
}

/* Receives until the thread's own request is answered. */
static void receive_for(struct rds_pipe *p, struct waiter *me, cfs_deadline_t deadline)
{
	p->receiving = true;
	while (!me->done && p->state == UP) {
		redisReply *reply = NULL;
		int r;

		pthread_mutex_unlock(&p->lock);
		r = rds_sock_receive(p->sock, deadline, &reply);
		pthread_mutex_lock(&p->lock);
		while (!r && p->state == UP) {
			hand_out(p, reply);
			reply = NULL;
			r = rds_sock_receive(p->sock, 0, &reply);
		}
		if (reply)
			freeReplyObject(reply);
		if (r == -ETIMEDOUT)
			break;
		if (r && r != -EAGAIN)
			break_connection(p);
	}
	p->receiving = false;
	close_if_unused(p);
	pass_on(p);
}

/* -ETIMEDOUT: the queue has taken over `me`. */
static int wait_for_reply(struct rds_pipe *p, struct waiter *me, cfs_deadline_t deadline)
{
	while (!me->done) {
		if (!p->receiving)
			receive_for(p, me, deadline);
		else
			cfs_cond_wait(&me->woken, &p->lock, deadline);
		if (!me->done && cfs_deadline_passed(deadline)) {
			leave(p, me);
			if (!me->done)
				return -ETIMEDOUT;
		}
	}
	return me->lost ? -ENOTCONN : 0;
}

int rds_pipe_run(struct rds_pipe *p, const void *data, size_t len, size_t n,
		 cfs_deadline_t deadline, redisReply **ret, bool *ret_sent)
{
	struct waiter *me = calloc(1, sizeof(*me));
	bool taken = false;
	int r;

	*ret_sent = false;
	if (!me)
		return -ENOMEM;
	me->reply = ret;
	me->wanted = n;
	cfs_cond_init(&me->woken);
	deadline = cfs_deadline_min(deadline, cfs_deadline_in(p->target->read_timeout_ms));
	pthread_mutex_lock(&p->lock);
	if (p->renew && p->state == UP)
		break_connection(p);
	r = p->state == UP ? 0 : connect_pipe(p, deadline);
	if (!r)
		r = enqueue(p, data, len, me);
	if (!r) {
		*ret_sent = true;
		if (!p->sending)
			send_all(p);
		r = wait_for_reply(p, me, deadline);
		taken = r == -ETIMEDOUT;
	}
	pthread_mutex_unlock(&p->lock);
	if (taken)
		return r;
	while (r && me->got)
		freeReplyObject(ret[--me->got]);
	free_waiter(me);
	return r;
}

void rds_pipe_renew(struct rds_pipe *p)
{
	pthread_mutex_lock(&p->lock);
	p->renew = true;
	pthread_mutex_unlock(&p->lock);
}
