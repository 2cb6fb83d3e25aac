/* SPDX-License-Identifier: Apache-2.0 */
#undef _FILE_OFFSET_BITS
#include "threads.h"

#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "libc.h"

#define THREADS_MAX 256
#define PAUSE_NS    20000
#define PAUSES	    2000 /* before the kernel is asked */

static struct thread {
	_Atomic bool used;
	/* The condition or the number that it waits at. NULL: it is awake. */
	_Atomic(void *) at;
	/* Of a number: it sleeps as long as it has this value. */
	bool is_number;
	int32_t value;
	void *(*start)(void *);
	void *arg;
} threads[THREADS_MAX];

static __thread struct thread *self;

/* ---- begin and end ---- */

static void *run(void *arg)
{
	void *result;

	self = arg;
	result = self->start(self->arg);
	atomic_store(&self->used, false);
	return result;
}

int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	struct thread *t;
	bool used;
	int r;

	for (t = threads; t < threads + THREADS_MAX; t++) {
		used = false;
		if (atomic_compare_exchange_strong(&t->used, &used, true))
			break;
	}
	if (t == threads + THREADS_MAX)
		return EAGAIN;
	t->start = start;
	t->arg = arg;
	atomic_store(&t->at, NULL);
	r = CALL(pthread_create)(ret, attr, run, t);
	if (r)
		atomic_store(&t->used, false);
	return r;
}

/* ---- waits ---- */

static void sleeps_at(void *at, bool is_number, int32_t value)
{
	if (!self)
		return;
	self->is_number = is_number;
	self->value = value;
	atomic_store(&self->at, at);
}

static void woken(void *at)
{
	struct thread *t;
	void *was;

	for (t = threads; t < threads + THREADS_MAX; t++) {
		was = at;
		atomic_compare_exchange_strong(&t->at, &was, NULL);
	}
}

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	int r;

	sleeps_at(cond, false, 0);
	r = CALL(pthread_cond_wait)(cond, lock);
	sleeps_at(NULL, false, 0);
	return r;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
			   const struct timespec *until)
{
	int r;

	sleeps_at(cond, false, 0);
	r = CALL(pthread_cond_timedwait)(cond, lock, until);
	sleeps_at(NULL, false, 0);
	return r;
}

int pthread_cond_broadcast(pthread_cond_t *cond)
{
	woken(cond);
	return CALL(pthread_cond_broadcast)(cond);
}

/* Wakes all, as it may: which one it would wake cannot be told. */
int pthread_cond_signal(pthread_cond_t *cond)
{
	return pthread_cond_broadcast(cond);
}

/* liburcu's waits. */
long syscall(long number, ...)
{
	long a[6], r;
	va_list ap;
	int i;

	va_start(ap, number);
	for (i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number != SYS_futex)
		return CALL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if ((a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE) {
		woken((void *)a[0]);
		return CALL(syscall)(number, a[0], a[1], INT32_MAX, a[3], a[4], a[5]);
	}
	sleeps_at((void *)a[0], true, (int32_t)a[2]);
	r = CALL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	sleeps_at(NULL, false, 0);
	return r;
}

static bool all_sleep(void)
{
	struct thread *t;
	void *at;

	for (t = threads; t < threads + THREADS_MAX; t++) {
		if (!atomic_load(&t->used))
			continue;
		at = atomic_load(&t->at);
		if (!at || (t->is_number && *(volatile int32_t *)at != t->value))
			return false;
	}
	return true;
}

/* ---- the kernel's view ---- */

static bool is_asleep(const char *tid)
{
	char path[64], text[256], *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	p = strrchr(text, ')');
	return !p || p[2] == 'S';
}

/* Right even where a wakeup came before its wait. */
static bool all_sleep_in_kernel(void)
{
	char own[16];
	struct dirent *e;
	bool all = true;
	DIR *d = opendir("/proc/self/task");

	snprintf(own, sizeof(own), "%d", gettid());
	while (d && all && (e = readdir(d)) != NULL)
		all = e->d_name[0] == '.' || !strcmp(e->d_name, own) || is_asleep(e->d_name);
	if (d)
		closedir(d);
	return all;
}

void threads_settle(const _Atomic uint32_t *calls, cfs_deadline_t deadline)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint32_t before;
	int quiet = 0, n;
	bool all;

	for (n = 0; quiet < 2 && !cfs_deadline_passed(deadline); n++) {
		before = atomic_load(calls);
		all = all_sleep() || (n >= PAUSES && all_sleep_in_kernel());
		quiet = all && before == atomic_load(calls) ? quiet + 1 : 0;
		if (quiet < 2)
			nanosleep(&pause, NULL);
	}
}

/* Names of threads leave entries of /proc behind, which the kernel removes slowly. */
int pthread_setname_np(pthread_t thread, const char *name)
{
	(void)thread;
	(void)name;
	return 0;
}
