/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns. A write waits for memory while nothing can be stored, a flush until all is, a read that no
 * cache answers for the object store: such requests could hold every thread of the loop, and with
 * them those that need nothing but a cache. So a few threads are left to others, and what comes
 * when all turns are taken is put aside; whoever ends a turn goes on with it. What is put aside is
 * bounded: beyond that requests wait on their threads.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "fuse-internal.h"

#define SPARE_THREADS 4
#define ASIDE_WRITES  32 /* of the largest size */

void turns_init(struct cfs_fuse *f)
{
	unsigned threads = f->conf.max_threads;

	pthread_mutex_init(&f->turns.lock, NULL);
	TAILQ_INIT(&f->turns.aside);
	f->turns.max =
		threads > 2 * SPARE_THREADS ? threads - SPARE_THREADS : CFS_DIV_UP(threads, 2);
	f->turns.bytes_max = (size_t)ASIDE_WRITES * f->conf.max_io;
}

void turns_fini(struct cfs_fuse *f)
{
	pthread_mutex_destroy(&f->turns.lock);
}

bool turn_begin(struct cfs_fuse *f)
{
	struct turns *t = &f->turns;
	bool mine;

	pthread_mutex_lock(&t->lock);
	mine = t->taken < t->max;
	t->taken += mine;
	pthread_mutex_unlock(&t->lock);
	return mine;
}

bool turn_put_aside(struct cfs_fuse *f, struct aside *a)
{
	struct turns *t = &f->turns;
	bool aside;

	pthread_mutex_lock(&t->lock);
	/* A turn may have ended meanwhile: then nobody might come to see what is here. */
	aside = t->taken >= t->max && t->bytes + a->bytes <= t->bytes_max;
	if (aside) {
		TAILQ_INSERT_TAIL(&t->aside, a, link);
		t->bytes += a->bytes;
	} else {
		t->taken++;
	}
	pthread_mutex_unlock(&t->lock);
	return aside;
}

void turn_end(struct cfs_fuse *f)
{
	struct turns *t = &f->turns;
	struct aside *a;

	do {
		pthread_mutex_lock(&t->lock);
		a = TAILQ_FIRST(&t->aside);
		if (a) {
			TAILQ_REMOVE(&t->aside, a, link);
			t->bytes -= a->bytes;
		} else {
			t->taken--;
		}
		pthread_mutex_unlock(&t->lock);
		if (a)
			a->run(a);
	} while (a);
}
