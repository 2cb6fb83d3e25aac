/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the bytes per second in each direction, over all threads. Bytes are paid for before
 * they move, in order of arrival; what idle time has saved lasts for BURST_NS.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "filter.h"

#define BURST_NS 50000000ULL

struct bucket {
	pthread_mutex_t lock; /* protects paid_ns; a leaf */
	uint64_t rate;	      /* bytes per second, 0: no limit */
	uint64_t paid_ns;     /* when all that was let through so far will have been paid */
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

/* Waits until so many bytes may move; -ETIMEDOUT, at the deadline, when they may not before. */
static int take(struct bucket *b, size_t bytes, cfs_deadline_t deadline)
{
	uint64_t now_ns, paid_ns;
	bool late;

	if (!b->rate)
		return 0;
	now_ns = cfs_now_ns();
	pthread_mutex_lock(&b->lock);
	paid_ns = CFS_MAX(b->paid_ns, now_ns - BURST_NS) + cost_ns(b, bytes);
	late = paid_ns / 1000000 >= deadline;
	if (!late)
		b->paid_ns = paid_ns;
	pthread_mutex_unlock(&b->lock);
	if (late)
		paid_ns = deadline * 1000000;
	if (paid_ns > now_ns)
		sleep_until_ns(paid_ns);
	return late ? -ETIMEDOUT : 0;
}

static void give_back(struct bucket *b, size_t bytes)
{
	if (!b->rate || !bytes)
		return;
	pthread_mutex_lock(&b->lock);
	b->paid_ns -= cost_ns(b, bytes);
	pthread_mutex_unlock(&b->lock);
}

static ssize_t limit_get(struct cfs_object_store *o, const char *key, uint64_t off,
			 const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;
	size_t asked = cfs_iov_len(dst, n_dst);
	ssize_t n;

	n = take(&l->down, asked, deadline);
	if (n < 0)
		return n;
	n = inner->ops->get(inner, key, off, dst, n_dst, deadline);
	give_back(&l->down, n < 0 ? asked : asked - (size_t)n);
	return n;
}

static ssize_t pass_get_nowait(struct cfs_object_store *o, const char *key, uint64_t off,
			       const struct iovec *dst, int n_dst)
{
	struct cfs_object_store *inner = ((struct limit *)o)->f.inner;

	return inner->ops->get_nowait(inner, key, off, dst, n_dst);
}

static int limit_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		     int n_src, cfs_deadline_t deadline)
{
	struct limit *l = (struct limit *)o;
	struct cfs_object_store *inner = l->f.inner;
	int r;

	r = take(&l->up, cfs_iov_len(src, n_src), deadline);
	return r < 0 ? r : inner->ops->put(inner, key, src, n_src, deadline);
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
	};
	l->f.base.ops = &l->ops;
	l->f.inner = in;
	*ret = &l->f.base;
	return 0;
}
