/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the bytes per second in each direction, over all threads. An object moves when those
 * before it have been paid for, and its call returns when it has been itself: no more than one is
 * ahead of the limit. Idle time saves up to BURST_NS.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "filter.h"

#define BURST_NS 10000000ULL

struct bucket {
	pthread_mutex_t lock; /* protects paid_ns; a leaf */
	uint64_t rate;	      /* bytes per second, 0: no limit */
	uint64_t paid_ns;     /* when all that was let through so far is paid for */
};

struct limit {
	struct cfs_filter f; /* first */
	struct cfs_object_ops ops;
	struct bucket up, down;
};

static uint64_t cost_ns(const struct bucket *b, size_t bytes)
{
	return (uint64_t)((double)bytes * 1e9 / (double)b->rate);
}

static void sleep_until_ns(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000),
			      .tv_nsec = (long)(ns % 1000000000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

/*
 * Waits until all earlier bytes are paid for; *ret_paid_ns: when these bytes will be. -ETIMEDOUT,
 * at the deadline, when that would be later.
 */
static int start(struct bucket *b, size_t bytes, cfs_deadline_t deadline, uint64_t *ret_paid_ns)
{
	uint64_t start_ns, cost;
	bool late;

	*ret_paid_ns = 0;
	if (!b->rate)
		return 0;
	cost = cost_ns(b, bytes);
	pthread_mutex_lock(&b->lock);
	start_ns = CFS_MAX(b->paid_ns, cfs_now_ns() - BURST_NS);
	late = (start_ns + cost) / 1000000 >= deadline;
	if (!late)
		b->paid_ns = start_ns + cost;
	pthread_mutex_unlock(&b->lock);
	sleep_until_ns(late ? deadline * 1000000 : start_ns);
	*ret_paid_ns = start_ns + cost;
	return late ? -ETIMEDOUT : 0;
}

/* Waits until the moved bytes are paid for; the rest is given back. */
static void finish(struct bucket *b, size_t unused, uint64_t paid_ns)
{
	uint64_t back_ns;

	if (!b->rate)
		return;
	back_ns = cost_ns(b, unused);
	if (unused) {
		pthread_mutex_lock(&b->lock);
		b->paid_ns -= back_ns;
		pthread_mutex_unlock(&b->lock);
	}
	sleep_until_ns(paid_ns - back_ns);
}

static ssize_t limit_get(struct cfs_object_store *o, const char *key, uint64_t off,
			 const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;
	size_t asked = cfs_iov_len(dst, n_dst);
	uint64_t paid_ns;
	ssize_t n;

	n = start(&l->down, asked, deadline, &paid_ns);
	if (n < 0)
		return n;
	n = inner->ops->get(inner, key, off, dst, n_dst, deadline);
	finish(&l->down, n < 0 ? asked : asked - (size_t)n, paid_ns);
	return n;
}

static ssize_t pass_get_nowait(struct cfs_object_store *o, const char *key, uint64_t off,
			       const struct iovec *dst, int n_dst)
{
	struct cfs_object_store *inner = ((struct limit *)o)->f.inner;

	return inner->ops->get_nowait(inner, key, off, dst, n_dst);
}

static int limit_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		     int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;
	size_t len = cfs_iov_len(src, n_src);
	uint64_t paid_ns;
	int r;

	r = start(&l->up, len, deadline, &paid_ns);
	if (r < 0)
		return r;
	r = inner->ops->put(inner, key, src, n_src, tier, deadline);
	finish(&l->up, r < 0 ? len : 0, paid_ns);
	return r;
}

static void limit_close(struct cfs_object_store *o)
{
	struct limit *l = (struct limit *)o;

	cfs_object_close(l->f.inner);
	pthread_mutex_destroy(&l->up.lock);
	pthread_mutex_destroy(&l->down.lock);
	free(l);
}

int cfs_object_wrap_limit(const struct cfs_object_conf *conf, struct cfs_object_store *in,
			  struct cfs_object_store **ret)
{
	bool nowait = in->ops->get_nowait && !conf->download_limit;
	struct limit *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->up.lock, NULL);
	pthread_mutex_init(&l->down.lock, NULL);
	l->up.rate = conf->upload_limit;
	l->down.rate = conf->download_limit;
	l->ops = (struct cfs_object_ops){
		.name = in->ops->name,
		.whole = in->ops->whole,
		.get = limit_get,
		.get_nowait = nowait ? pass_get_nowait : NULL,
		.put = limit_put,
		.del = cfs_filter_del,
		.head = cfs_filter_head,
		.list = cfs_filter_list,
		.sync = in->ops->sync ? cfs_filter_sync : NULL,
		.create = in->ops->create ? cfs_filter_create : NULL,
		.close = limit_close,
		.del_many = cfs_filter_del_many,
		.adopt = cfs_filter_adopt,
	};
	l->f.base.ops = &l->ops;
	l->f.inner = in;
	*ret = &l->f.base;
	return 0;
}
