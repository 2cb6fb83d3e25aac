/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the bytes per second in each direction, over all threads. Each limit is a token bucket,
 * whose tokens pay for bytes. A transfer starts when all bytes admitted before it are paid for. Its
 * call returns when its own bytes are, so at most one object is ahead of the limit. An idle bucket
 * saves the tokens of BURST_S. A changed limit applies at once, also to waiting calls.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/unwanted.h"
#include "filter.h"

#define BURST_S	  0.01
#define UNLIMITED UINT64_MAX /* place of bytes admitted without a limit */

struct bucket {
	_Atomic uint64_t rate;	/* bytes per second, 0: no limit; changed with the lock */
	pthread_mutex_t lock;	/* protects the rest; a leaf */
	pthread_cond_t changed; /* the rate */
	uint64_t admitted;	/* bytes admitted so far */
	double paid;		/* bytes paid for until at_ns; more than admitted after idle time */
	uint64_t at_ns;
};

struct limit {
	struct cfs_filter f; /* first */
	struct cfs_object_ops ops;
	struct bucket up, down;
};

static uint64_t to_ns(cfs_deadline_t deadline)
{
	return CFS_MIN(deadline, UINT64_MAX / 1000000) * 1000000;
}

/* With the lock. */
static void settle(struct bucket *b)
{
	uint64_t now = cfs_now_ns(), rate = atomic_load(&b->rate);
	double paid = b->paid + (double)(now - b->at_ns) / 1e9 * (double)rate;

	b->paid = CFS_MIN(paid, (double)b->admitted + BURST_S * (double)rate);
	b->at_ns = now;
}

/* Time when `place` bytes are paid for at this rate; 0: they are. */
static uint64_t due_ns(const struct bucket *b, uint64_t place)
{
	uint64_t rate = atomic_load(&b->rate);

	if (!rate || (double)place <= b->paid)
		return 0;
	return b->at_ns + (uint64_t)(((double)place - b->paid) * 1e9 / (double)rate) + 1;
}

/* Until ns, a change of the rate, or the next check; -ECANCELED when the transfer is not wanted. */
static int wait_until_ns(struct bucket *b, uint64_t ns)
{
	uint64_t next_ns = CFS_MIN(ns, to_ns(cfs_unwanted_next(UINT64_MAX)));
	struct timespec ts = {.tv_sec = (time_t)(next_ns / 1000000000),
			      .tv_nsec = (long)(next_ns % 1000000000)};
	bool unwanted;

	pthread_cond_timedwait(&b->changed, &b->lock, &ts);
	pthread_mutex_unlock(&b->lock);
	unwanted = cfs_unwanted();
	pthread_mutex_lock(&b->lock);
	settle(b);
	return unwanted ? -ECANCELED : 0;
}

/* Waits until `place` bytes are paid for; -ETIMEDOUT at the deadline, or -ECANCELED. */
static int wait_paid(struct bucket *b, uint64_t place, cfs_deadline_t deadline)
{
	uint64_t due, until_ns = to_ns(deadline);
	int r = 0;

	while (r == 0) {
		due = due_ns(b, place);
		if (due <= b->at_ns)
			return 0;
		if (b->at_ns >= until_ns)
			return -ETIMEDOUT;
		r = wait_until_ns(b, CFS_MIN(due, until_ns));
	}
	return r;
}

/*
 * Waits until all earlier bytes are paid for; *ret_place is for finish(). -ETIMEDOUT, at the
 * deadline, when these would be paid for later; -ECANCELED.
 */
static int start(struct bucket *b, size_t bytes, cfs_deadline_t deadline, uint64_t *ret_place)
{
	uint64_t until_ns = to_ns(deadline);
	int r = 0;

	*ret_place = UNLIMITED;
	if (!atomic_load_explicit(&b->rate, memory_order_relaxed))
		return 0;
	pthread_mutex_lock(&b->lock);
	settle(b);
	while (due_ns(b, b->admitted + bytes) >= until_ns && r == 0) {
		if (b->at_ns >= until_ns)
			r = -ETIMEDOUT;
		else
			r = wait_until_ns(b, until_ns);
	}
	if (r == 0) {
		*ret_place = b->admitted;
		b->admitted += bytes;
		r = wait_paid(b, *ret_place, deadline);
		if (r < 0)
			b->admitted -= bytes;
	}
	pthread_mutex_unlock(&b->lock);
	return r;
}

/* Waits until the moved bytes are paid for; the rest is given back. */
static void finish(struct bucket *b, uint64_t place, size_t moved, size_t unused,
		   cfs_deadline_t deadline)
{
	if (place == UNLIMITED)
		return;
	pthread_mutex_lock(&b->lock);
	b->admitted -= unused;
	settle(b);
	wait_paid(b, place + moved, deadline);
	pthread_mutex_unlock(&b->lock);
}

static void set_rate(struct bucket *b, uint64_t rate)
{
	pthread_mutex_lock(&b->lock);
	settle(b);
	if (!atomic_load(&b->rate) || !rate)
		b->paid = (double)b->admitted;
	atomic_store(&b->rate, rate);
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
}

static void init(struct bucket *b, uint64_t rate)
{
	pthread_mutex_init(&b->lock, NULL);
	cfs_cond_init(&b->changed);
	b->at_ns = cfs_now_ns();
	b->rate = rate;
}

static void destroy(struct bucket *b)
{
	pthread_cond_destroy(&b->changed);
	pthread_mutex_destroy(&b->lock);
}

static ssize_t limit_get(struct cfs_object_store *o, const char *key, uint64_t off,
			 const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;
	size_t asked = cfs_iov_len(dst, n_dst), moved;
	uint64_t place;
	ssize_t n;

	n = start(&l->down, asked, deadline, &place);
	if (n < 0)
		return n;
	n = inner->ops->get(inner, key, off, dst, n_dst, deadline);
	moved = n < 0 ? 0 : (size_t)n;
	finish(&l->down, place, moved, asked - moved, deadline);
	return n;
}

static ssize_t limit_get_nowait(struct cfs_object_store *o, const char *key, uint64_t off,
				const struct iovec *dst, int n_dst)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;

	if (atomic_load_explicit(&l->down.rate, memory_order_relaxed))
		return -EAGAIN;
	return inner->ops->get_nowait(inner, key, off, dst, n_dst);
}

static int limit_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		     int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;
	size_t len = cfs_iov_len(src, n_src);
	uint64_t place;
	int r;

	r = start(&l->up, len, deadline, &place);
	if (r < 0)
		return r;
	r = inner->ops->put(inner, key, src, n_src, tier, deadline);
	finish(&l->up, place, r < 0 ? 0 : len, r < 0 ? len : 0, deadline);
	return r;
}

static void limit_close(struct cfs_object_store *o)
{
	struct limit *l = (struct limit *)o;

	cfs_object_close(l->f.inner);
	destroy(&l->up);
	destroy(&l->down);
	free(l);
}

static int limit_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf)
{
	struct limit *l = (struct limit *)o;

	set_rate(&l->up, conf->upload_limit);
	set_rate(&l->down, conf->download_limit);
	return cfs_filter_adopt(o, conf);
}

int cfs_object_wrap_limit(const struct cfs_object_conf *conf, struct cfs_object_store *in,
			  struct cfs_object_store **ret)
{
	struct limit *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	init(&l->up, conf->upload_limit);
	init(&l->down, conf->download_limit);
	l->ops = (struct cfs_object_ops){
		.name = in->ops->name,
		.whole = in->ops->whole,
		.get = limit_get,
		.get_nowait = in->ops->get_nowait ? limit_get_nowait : NULL,
		.put = limit_put,
		.del = cfs_filter_del,
		.head = cfs_filter_head,
		.list = cfs_filter_list,
		.sync = in->ops->sync ? cfs_filter_sync : NULL,
		.create = in->ops->create ? cfs_filter_create : NULL,
		.close = limit_close,
		.del_many = cfs_filter_del_many,
		.adopt = limit_adopt,
	};
	l->f.base.ops = &l->ops;
	l->f.inner = in;
	*ret = &l->f.base;
	return 0;
}
