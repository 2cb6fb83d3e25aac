/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mount tells monitoring. Whether it answers is asked of the kernel, the whole way that an
 * application's call goes, by a thread that may hang in it; those who want to know wait for that
 * thread only so long.
 */
#include "cmd/metrics.h"

#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/thread.h"

#define ANSWER_MS 2000
/* How long the thread sleeps when nobody asks; a wait without a deadline would be one. */
#define IDLE_MS 60000

struct metrics {
	struct mount_parts parts;
	const struct metrics_server_ops *ops;
	void *server;
	pthread_t watcher;
	/* Protects the rest; a leaf. */
	pthread_mutex_t lock;
	pthread_cond_t asked, answered;
	/* Questions are numbered; one that is put answers all that were asked for before it. */
	uint64_t wanted, put, done;
	cfs_deadline_t late; /* for the question that is under way */
	bool well;	     /* the answer to question `done` */
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
	struct metrics *m = arg;
	bool well;

	pthread_mutex_lock(&m->lock);
	while (!m->stop) {
		if (m->wanted == m->done) {
			cfs_cond_wait(&m->asked, &m->lock, cfs_deadline_in(IDLE_MS));
			continue;
		}
		m->put = m->wanted;
		m->late = cfs_deadline_in(ANSWER_MS);
		pthread_mutex_unlock(&m->lock);
		well = mount_answers(m->parts.dir);
		pthread_mutex_lock(&m->lock);
		m->well = well;
		m->done = m->put;
		pthread_cond_broadcast(&m->answered);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

static bool healthy(void *arg)
{
	cfs_deadline_t deadline = cfs_deadline_in(ANSWER_MS);
	struct metrics *m = arg;
	uint64_t mine;
	bool well, hangs, tell;

	pthread_mutex_lock(&m->lock);
	mine = m->wanted + 1;
	/* Behind a question that is already late nobody needs to wait. */
	hangs = m->put != m->done && cfs_deadline_passed(m->late);
	if (!hangs) {
		m->wanted = mine;
		pthread_cond_signal(&m->asked);
	}
	while (!hangs && m->done < mine && !m->stop) {
		if (cfs_cond_wait(&m->answered, &m->lock, deadline) == -ETIMEDOUT)
			break;
	}
	well = m->done >= mine && m->well;
	tell = well == m->told && !m->stop;
	if (tell)
		m->told = !well;
	pthread_mutex_unlock(&m->lock);
	if (tell && well)
		cfs_info("the mount answers again: dir=%s", m->parts.dir);
	else if (tell)
		cfs_warn("the mount does not answer: dir=%s timeout_ms=%d", m->parts.dir,
			 ANSWER_MS);
	return well;
}

static int text(void *arg, char **ret, size_t *ret_len)
{
	struct metrics *m = arg;

	return cfs_vfs_metrics(m->parts.vfs, true, ret, ret_len);
}

static int status(void *arg, char **ret, size_t *ret_len)
{
	struct metrics *m = arg;

	return mount_status_json(&m->parts, ret, ret_len);
}

static void stop_watcher(struct metrics *m)
{
	pthread_mutex_lock(&m->lock);
	m->stop = true;
	pthread_cond_signal(&m->asked);
	pthread_cond_broadcast(&m->answered);
	pthread_mutex_unlock(&m->lock);
	pthread_join(m->watcher, NULL);
}

static void destroy(struct metrics *m)
{
	pthread_cond_destroy(&m->asked);
	pthread_cond_destroy(&m->answered);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

int metrics_start(const char *listen, const struct mount_parts *parts, struct metrics **ret,
		  char err[256])
{
	struct metrics_source source = {.text = text, .status = status, .healthy = healthy};
	const void *table;
	struct metrics *m;
	int r;

	r = cfs_module_load(METRICS_MODULE, &table, err);
	if (r < 0)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->parts = *parts;
	m->ops = table;
	pthread_mutex_init(&m->lock, NULL);
	cfs_cond_init(&m->asked);
	cfs_cond_init(&m->answered);
	r = cfs_thread_start("health", watch, m, &m->watcher);
	if (r < 0) {
		destroy(m);
		return r;
	}
	source.arg = m;
	r = m->ops->start(listen, &source, &m->server, err);
	if (r < 0) {
		stop_watcher(m);
		destroy(m);
		return r;
	}
	*ret = m;
	return 0;
}

void metrics_stop(struct metrics *m)
{
	if (!m)
		return;
	stop_watcher(m);
	m->ops->stop(m->server);
	destroy(m);
}
