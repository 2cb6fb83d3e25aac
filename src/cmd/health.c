/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/health.h"

#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/vfs.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

/* How long the thread sleeps when nobody asks; a wait without a deadline would be one. */
#define IDLE_MS 60000

struct health {
	const char *dir;
	pthread_t watcher;
	/* Protects the rest; a leaf. */
	pthread_mutex_t lock;
	pthread_cond_t asked, answered;
	/* Questions are numbered; one that is put answers all that were asked for before it. */
	uint64_t wanted, put, done;
	cfs_deadline_t late; /* for the question that is under way */
	bool well;	     /* the answer to question `done` */
	bool known;	     /* it was well once */
	bool told;	     /* the log says that it is not well */
	bool stop;
};

static bool mount_answers(const char *dir)
{
	struct statfs st;

	return statfs(dir, &st) == 0 && st.f_type == FUSE_SUPER_MAGIC;
}

static void *watch(void *arg)
{
	struct health *h = arg;
	bool well;

	pthread_mutex_lock(&h->lock);
	while (!h->stop) {
		if (h->wanted == h->done) {
			cfs_cond_wait(&h->asked, &h->lock, cfs_deadline_in(IDLE_MS));
			continue;
		}
		h->put = h->wanted;
		h->late = cfs_deadline_in(HEALTH_ANSWER_MS);
		pthread_mutex_unlock(&h->lock);
		well = mount_answers(h->dir);
		pthread_mutex_lock(&h->lock);
		h->well = well;
		h->done = h->put;
		pthread_cond_broadcast(&h->answered);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

bool health_ask(struct health *h)
{
	cfs_deadline_t deadline = cfs_deadline_in(HEALTH_ANSWER_MS);
	uint64_t mine;
	bool well, hangs, tell;

	pthread_mutex_lock(&h->lock);
	mine = h->wanted + 1;
	/* Behind a question that is already late nobody needs to wait. */
	hangs = h->put != h->done && cfs_deadline_passed(h->late);
	if (!hangs) {
		h->wanted = mine;
		pthread_cond_signal(&h->asked);
	}
	while (!hangs && h->done < mine && !h->stop) {
		if (cfs_cond_wait(&h->answered, &h->lock, deadline) == -ETIMEDOUT)
			break;
	}
	well = h->done >= mine && h->well;
	h->known = h->known || well;
	tell = well == h->told && h->known && !h->stop;
	if (tell)
		h->told = !well;
	pthread_mutex_unlock(&h->lock);
	if (tell && well)
		cfs_info("the mount answers again: dir=%s", h->dir);
	else if (tell)
		cfs_warn("the mount does not answer: dir=%s timeout_ms=%d", h->dir,
			 HEALTH_ANSWER_MS);
	return well;
}

static void destroy(struct health *h)
{
	pthread_cond_destroy(&h->asked);
	pthread_cond_destroy(&h->answered);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

int health_start(const char *dir, struct health **ret)
{
	struct health *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->dir = dir;
	pthread_mutex_init(&h->lock, NULL);
	cfs_cond_init(&h->asked);
	cfs_cond_init(&h->answered);
	r = cfs_thread_start("health", watch, h, &h->watcher);
	if (r < 0) {
		destroy(h);
		return r;
	}
	*ret = h;
	return 0;
}

void health_stop(struct health *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_signal(&h->asked);
	pthread_cond_broadcast(&h->answered);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->watcher, NULL);
	destroy(h);
}
