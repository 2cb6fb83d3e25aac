/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/patience.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"

struct patience {
	char *what;
	uint64_t max_ms;
	pthread_t watcher;
	/* Protects `over`; a leaf. */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool over;
};

static void *watch(void *arg)
{
	cfs_deadline_t until = cfs_deadline_in(PATIENCE_MS);
	struct patience *p = arg;
	int r = 0;

	pthread_mutex_lock(&p->lock);
	while (!p->over && r == 0)
		r = cfs_cond_wait(&p->wake, &p->lock, until);
	if (!p->over)
		cmd_error("waiting for an answer of %s, for %g s at most", p->what,
			  (double)p->max_ms / 1000);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void destroy(struct patience *p)
{
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p->what);
	free(p);
}

struct patience *patience_begin(const char *what, uint64_t max_ms)
{
	struct patience *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->what = strdup(what);
	p->max_ms = max_ms;
	pthread_mutex_init(&p->lock, NULL);
	cfs_cond_init(&p->wake);
	if (p->what && cfs_thread_start("patience", watch, p, &p->watcher) == 0)
		return p;
	destroy(p);
	return NULL;
}

void patience_end(struct patience *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->over = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->watcher, NULL);
	destroy(p);
}
