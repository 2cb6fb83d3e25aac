/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slowest requests of the last ten minutes, for the status page. A fast request costs two
 * loads.
 */
#include <string.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "vfs-internal.h"

#define SLOW_NS	    (10 * 1000000ULL)
#define SLOW_AGE_NS (600 * 1000000000ULL)

void slow_init(struct slow_list *l)
{
	pthread_mutex_init(&l->lock, NULL);
	atomic_store(&l->floor_ns, SLOW_NS);
	atomic_store(&l->look_ns, UINT64_MAX);
}

void slow_fini(struct slow_list *l)
{
	pthread_mutex_destroy(&l->lock);
}

static void drop_old(struct slow_list *l, uint64_t now_ns)
{
	unsigned i, n = 0;

	for (i = 0; i < l->n; i++) {
		/* ended_ns may be later than now_ns, which was taken before the lock. */
		if (now_ns < l->v[i].ended_ns + SLOW_AGE_NS)
			l->v[n++] = l->v[i];
	}
	l->n = n;
}

/* Keeps the list sorted, the slowest first. */
static void insert(struct slow_list *l, const struct cfs_vfs_slow *s)
{
	unsigned i = l->n;

	if (l->n < CFS_VFS_SLOW_MAX)
		l->n++;
	else if (l->v[--i].took_ns >= s->took_ns)
		return;
	for (; i > 0 && l->v[i - 1].took_ns < s->took_ns; i--)
		l->v[i] = l->v[i - 1];
	l->v[i] = *s;
}

static void set_limits(struct slow_list *l)
{
	uint64_t look = UINT64_MAX;
	unsigned i;

	for (i = 0; i < l->n; i++)
		look = CFS_MIN(look, l->v[i].ended_ns + SLOW_AGE_NS);
	atomic_store_explicit(&l->floor_ns,
			      l->n < CFS_VFS_SLOW_MAX ? SLOW_NS : l->v[l->n - 1].took_ns + 1,
			      memory_order_relaxed);
	atomic_store_explicit(&l->look_ns, look, memory_order_relaxed);
}

void cfs_vfs_ended(struct cfs_vfs *v, const struct cfs_vfs_request *req, int result,
		   uint64_t now_ns)
{
	uint64_t took_ns = now_ns - req->start_ns;
	struct slow_list *l = &v->slow;
	struct cfs_vfs_slow s;

	/* Requests on special files may be long administrative operations. */
	if (ino_is_special(req->ino))
		return;
	atomic_fetch_add_explicit(&v->request_ns, took_ns, memory_order_relaxed);
	if (took_ns < atomic_load_explicit(&l->floor_ns, memory_order_relaxed) &&
	    now_ns < atomic_load_explicit(&l->look_ns, memory_order_relaxed))
		return;
	s = (struct cfs_vfs_slow){
		.op = req->op,
		.waited_for = cfs_activity_waited(took_ns / 2000000),
		.ino = req->ino,
		.pid = req->pid,
		.result = result,
		.took_ns = took_ns,
		.ended_ns = now_ns,
	};
	pthread_mutex_lock(&l->lock);
	drop_old(l, now_ns);
	if (took_ns >= SLOW_NS)
		insert(l, &s);
	set_limits(l);
	pthread_mutex_unlock(&l->lock);
}

unsigned cfs_vfs_slowest(struct cfs_vfs *v, uint64_t now_ns,
			 struct cfs_vfs_slow ret[CFS_VFS_SLOW_MAX])
{
	struct slow_list *l = &v->slow;
	unsigned n;
	CFS_LOCK_GUARD(&l->lock);

	drop_old(l, now_ns);
	set_limits(l);
	n = l->n;
	memcpy(ret, l->v, n * sizeof(*ret));
	return n;
}
