/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting threads the way cachefs wants them: a name, a small stack (CFS_THREAD_STACK) and every
 * signal blocked, so that signals reach the main thread.
 */
#ifndef CFS_THREAD_H
#define CFS_THREAD_H

#include <pthread.h>
#include <signal.h>

#define CFS_THREAD_STACK (256u << 10)

/* The name is cut to 15 characters. Negative errno when no thread could be had. */
int cfs_thread_start(const char *name, void *(*run)(void *arg), void *arg, pthread_t *ret);

/* Starts n > 0 threads, and ends them: 0 when they can run at the same time, or a negative errno. */
int cfs_thread_try(unsigned n);

/* The signals that end a mount: SIGTERM, SIGINT, and SIGHUP unless that is ignored. */
void cfs_end_signals(sigset_t *ret);

#endif
