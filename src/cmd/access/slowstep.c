/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/slowstep.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"

struct slow_step {
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
	cfs_deadline_t until = cfs_deadline_in(SLOW_STEP_MS);
	struct slow_step *s = arg;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	while (!s->over && r == 0)
		r = cfs_cond_wait(&s->wake, &s->lock, until);
	if (!s->over)
		cmd_error("waiting for a reply from %s, at most %g s", s->what,
			  (double)s->max_ms / 1000);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void destroy(struct slow_step *s)
{
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->lock);
	free(s->what);
	free(s);
}

struct slow_step *slow_step_begin(const char *what, uint64_t max_ms)
{
	struct slow_step *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->what = strdup(what);
	s->max_ms = max_ms;
	pthread_mutex_init(&s->lock, NULL);
	cfs_cond_init(&s->wake);
	if (s->what && cfs_thread_start("slow step", watch, s, &s->watcher) == 0)
		return s;
	destroy(s);
	return NULL;
}

void slow_step_end(struct slow_step *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->over = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->watcher, NULL);
	destroy(s);
}
