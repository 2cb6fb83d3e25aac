/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/thread.h"

struct lookup {
	struct lookup *next;
	unsigned waiting; /* calls that take the result; the last one frees the lookup */
	bool done;
	int error; /* of getaddrinfo() */
	struct cfs_addresses found;
	char port[8], host[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct lookup *running; /* under lock, as its members */

static void init(void)
{
	cfs_cond_init(&ended);
}

static int ask(const char *host, const char *port, int flags, struct cfs_addresses *ret)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
	struct addrinfo *list, *i;
	int r = getaddrinfo(host, port, &hints, &list);

	ret->n = 0;
	if (r)
		return r;
	for (i = list; i && ret->n < CFS_ADDRESSES_MAX; i = i->ai_next, ret->n++) {
		memcpy(&ret->at[ret->n].addr, i->ai_addr, i->ai_addrlen);
		ret->at[ret->n].len = i->ai_addrlen;
	}
	freeaddrinfo(list);
	return 0;
}

static void *run(void *arg)
{
	struct lookup *l = arg, **at;
	struct cfs_addresses found;
	int error = ask(l->host, l->port, 0, &found);
	CFS_LOCK_GUARD(&lock);

	for (at = &running; *at != l; at = &(*at)->next)
		;
	*at = l->next;
	l->error = error;
	l->found = found;
	l->done = true;
	pthread_cond_broadcast(&ended);
	if (!l->waiting)
		free(l);
	return NULL;
}

/* With the lock. NULL when there is neither memory nor a thread. */
static struct lookup *begin(const char *host, const char *port)
{
	struct lookup *l;
	pthread_t thread;

	for (l = running; l; l = l->next)
		if (!strcmp(l->host, host) && !strcmp(l->port, port))
			return l;
	l = calloc(1, sizeof(*l) + strlen(host) + 1); /* ends with '\0' */
	if (!l)
		return NULL;
	memcpy(l->host, host, strlen(host));
	snprintf(l->port, sizeof(l->port), "%s", port);
	if (cfs_thread_start("resolve", run, l, &thread) < 0) {
		free(l);
		return NULL;
	}
	pthread_detach(thread);
	l->next = running;
	running = l;
	return l;
}

int cfs_resolve(const char *host, unsigned port, const char *what, cfs_deadline_t deadline,
		struct cfs_addresses *ret, char err[256])
{
	struct lookup *l;
	char text[8];
	int r;

	snprintf(text, sizeof(text), "%u", port & 0xffff);
	r = ask(host, text, AI_NUMERICHOST, ret);
	if (r == 0)
		return 0;
	pthread_once(&once, init);
	pthread_mutex_lock(&lock);
	l = begin(host, text);
	if (!l) {
		pthread_mutex_unlock(&lock);
		return cfs_fail(err, -ENOTCONN, "cannot resolve %.150s, %s: no memory or thread",
				host, what);
	}
	l->waiting++;
	while (!l->done && cfs_cond_wait(&ended, &lock, deadline) != -ETIMEDOUT)
		;
	l->waiting--;
	r = l->done ? l->error : EAI_INPROGRESS;
	if (l->done)
		*ret = l->found;
	if (l->done && !l->waiting)
		free(l);
	pthread_mutex_unlock(&lock);
	if (r)
		return cfs_fail(err, -ENOTCONN, "cannot resolve %.150s, %s: %s", host, what,
				r == EAI_INPROGRESS ? "the resolver does not answer in time"
						    : gai_strerror(r));
	return 0;
}
