/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/supervise/notify.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#define SEND_TIMEOUT_S 1
#define ASK_AGAIN_MS   100 /* until the mount answers for the first time */
#define ALIVE_PARTS    3   /* fraction of the manager's time limit */
#define IDLE_MS	       60000

static int sock = -1;
static struct sockaddr_un to;
static socklen_t to_len;
static uint64_t watchdog_ms;

struct notify {
	struct health *health;
	const char *status;
	pthread_t thread;
	pthread_mutex_t lock; /* protects stop; a leaf */
	pthread_cond_t changed;
	bool stop;
};

/* The address is a path, or '@' and a name in the abstract namespace. */
static int open_socket(const char *where)
{
	const struct timeval limit = {.tv_sec = SEND_TIMEOUT_S};
	size_t len = strlen(where);

	if ((*where != '/' && *where != '@') || len < 2 || len >= sizeof(to.sun_path))
		return -EINVAL;
	to.sun_family = AF_UNIX;
	memcpy(to.sun_path, where, len + 1);
	to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (*where == '@')
		to.sun_path[0] = '\0';
	else
		to_len++;
	sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -errno;
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return 0;
}

/* Valid when WATCHDOG_PID names this process or is absent. */
static uint64_t parse_watchdog(const char *usec, const char *pid)
{
	if (!usec || (pid && strtoll(pid, NULL, 10) != (long long)getpid()))
		return 0;
	return strtoull(usec, NULL, 10) / 1000;
}

void notify_init(bool use)
{
	const char *where = getenv("NOTIFY_SOCKET");
	int r;

	if (sock >= 0)
		close(sock);
	sock = -1;
	watchdog_ms = 0;
	if (use && where) {
		r = open_socket(where);
		if (r < 0)
			cfs_warn("cannot notify the service manager: NOTIFY_SOCKET=%s error=%s",
				 where, cfs_errname(r));
		else
			watchdog_ms =
				parse_watchdog(getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID"));
	}
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

bool notify_wanted(void)
{
	return sock >= 0;
}

uint64_t notify_watchdog_ms(void)
{
	return watchdog_ms;
}

void notify_watchdog_every(uint64_t ms)
{
	watchdog_ms = ms;
}

void notify_send(const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	int n;

	if (sock < 0)
		return;
	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n <= 0 || (size_t)n >= sizeof(text))
		return;
	if (sendto(sock, text, (size_t)n, MSG_NOSIGNAL, (const struct sockaddr *)&to, to_len) < 0)
		cfs_debug("the service manager does not listen: error=%s", cfs_errname(errno));
}

/* False when it is time to stop. */
static bool pause_for(struct notify *n, uint64_t ms)
{
	cfs_deadline_t until = cfs_deadline_in(ms);
	CFS_LOCK_GUARD(&n->lock);

	while (!n->stop && !cfs_deadline_passed(until))
		cfs_cond_wait(&n->changed, &n->lock, until);
	return !n->stop;
}

static void *run(void *arg)
{
	uint64_t alive_ms = watchdog_ms ? watchdog_ms / ALIVE_PARTS + 1 : IDLE_MS;
	struct notify *n = arg;

	while (!health_ask(n->health)) {
		if (!pause_for(n, ASK_AGAIN_MS))
			return NULL;
	}
	notify_send("READY=1\nSTATUS=%s", n->status);
	while (pause_for(n, alive_ms)) {
		if (watchdog_ms && health_ask(n->health))
			notify_send("WATCHDOG=1");
	}
	return NULL;
}

static void destroy(struct notify *n)
{
	pthread_cond_destroy(&n->changed);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

int notify_start(struct health *health, const char *status, struct notify **ret)
{
	struct notify *n;
	int r;

	*ret = NULL;
	if (sock < 0)
		return 0;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	n->health = health;
	n->status = status;
	pthread_mutex_init(&n->lock, NULL);
	cfs_cond_init(&n->changed);
	r = cfs_thread_start("notify", run, n, &n->thread);
	if (r < 0) {
		destroy(n);
		return r;
	}
	*ret = n;
	return 0;
}

void notify_stop(struct notify *n)
{
	if (!n)
		return;
	pthread_mutex_lock(&n->lock);
	n->stop = true;
	pthread_cond_signal(&n->changed);
	pthread_mutex_unlock(&n->lock);
	pthread_join(n->thread, NULL);
	destroy(n);
}
