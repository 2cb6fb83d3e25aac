/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "thread.h"

/* Sanitizers put red zones around every local variable. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_SIZE (4 * CFS_THREAD_STACK)
#else
#define STACK_SIZE CFS_THREAD_STACK
#endif

int cfs_thread_start(const char *name, void *(*run)(void *arg), void *arg, pthread_t *ret)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t id;
	char cut[16];
	int r;

	r = pthread_attr_init(&attr);
	if (r)
		return -r;
	r = pthread_attr_setstacksize(&attr, STACK_SIZE);
	if (r)
		goto out;

	/* A thread inherits the mask of the thread that starts it. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&id, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		goto out;
	snprintf(cut, sizeof(cut), "%s", name);
	pthread_setname_np(id, cut);
	*ret = id;
out:
	pthread_attr_destroy(&attr);
	return -r;
}

static void *await(void *arg)
{
	pthread_mutex_lock(arg);
	pthread_mutex_unlock(arg);
	return NULL;
}

int cfs_thread_try(unsigned n)
{
	pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
	pthread_t *threads = calloc(n, sizeof(*threads));
	unsigned i = 0;
	int r = threads ? 0 : -ENOMEM;

	pthread_mutex_lock(&end);
	/* Libraries start theirs with the stack that is the default. */
	if (r == 0)
		r = -pthread_create(&threads[i], NULL, await, &end);
	for (i = r == 0; r == 0 && i < n; i += r == 0)
		r = cfs_thread_start("try", await, &end, &threads[i]);
	pthread_mutex_unlock(&end);
	while (i)
		pthread_join(threads[--i], NULL);
	free(threads);
	return r;
}

void cfs_end_signals(sigset_t *ret)
{
	struct sigaction hangup;

	sigemptyset(ret);
	sigaddset(ret, SIGTERM);
	sigaddset(ret, SIGINT);
	if (sigaction(SIGHUP, NULL, &hangup) < 0 || hangup.sa_handler != SIG_IGN)
		sigaddset(ret, SIGHUP);
}
