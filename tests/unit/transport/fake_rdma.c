/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_rdma.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "base/clock.h"

struct fake_rdma_ways fake_ways;

struct memory {
	struct cfs_rdma_memory memory; /* first */
	uint8_t *start;
	size_t len;
	struct cfs_rdma *d;
	enum cfs_rdma_access access;
	LIST_ENTRY(memory) all;
};

struct completion {
	struct cfs_rdma_conn *c;
	void *cookie;
	int err;
	TAILQ_ENTRY(completion) next;
};

enum news { NEWS_NONE, NEWS_ASKED, NEWS_READY, NEWS_LOST };

struct cfs_rdma_conn {
	struct cfs_rdma *d;
	struct cfs_rdma_conn *other; /* NULL: none, or it is gone */
	uint16_t port;		     /* reader: of the owner */
	uint64_t session;
	void *user;
	enum news news; /* for the loop */
	int err;
	bool known; /* to its loop: lost follows */
	LIST_ENTRY(cfs_rdma_conn) all;
};

struct cfs_rdma {
	const struct cfs_rdma_events *events;
	void *arg;
	uint16_t port;
	int fd;
	bool armed, told_removed;
	atomic_bool removed;
	LIST_HEAD(, cfs_rdma_conn) conns;
	TAILQ_HEAD(completions, completion) done, held;
	LIST_ENTRY(cfs_rdma) all;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* everything; not held in events */
static LIST_HEAD(, cfs_rdma) devices;
static LIST_HEAD(, memory) memories;
static uint32_t next_key = 100;
static uint16_t next_port = 1000;

static void wake(struct cfs_rdma *d)
{
	uint64_t one = 1;

	if (write(d->fd, &one, sizeof(one)) < 0)
		abort();
}

/* A completion has come. */
static void is_done(struct cfs_rdma *d, struct completion *k)
{
	TAILQ_INSERT_TAIL(&d->done, k, next);
	if (!d->armed)
		return;
	d->armed = false;
	fake_ways.wakes++;
	wake(d);
}

static void tell(struct cfs_rdma_conn *c, enum news news, int err)
{
	if (c->news == NEWS_LOST)
		return;
	c->news = news;
	c->err = err;
	wake(c->d);
}

/* Both ends are over: held reads are flushed. */
static void cut(struct cfs_rdma_conn *c, int err)
{
	struct completion *k, *next;
	struct cfs_rdma_conn *other = c->other;

	for (k = TAILQ_FIRST(&c->d->held); k; k = next) {
		next = TAILQ_NEXT(k, next);
		if (k->c != c)
			continue;
		TAILQ_REMOVE(&c->d->held, k, next);
		k->err = -ECONNRESET;
		TAILQ_INSERT_TAIL(&c->d->done, k, next);
	}
	c->other = NULL;
	tell(c, NEWS_LOST, err);
	if (!other)
		return;
	other->other = NULL;
	cut(other, -ECONNRESET);
}

static void conn_free(struct cfs_rdma_conn *c)
{
	LIST_REMOVE(c, all);
	free(c);
}

static int fake_open(const struct cfs_rdma_conf *conf, struct cfs_rdma **ret, char err[256])
{
	struct cfs_rdma *d = calloc(1, sizeof(*d));

	(void)err;
	d->events = conf->events;
	d->arg = conf->arg;
	d->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	TAILQ_INIT(&d->done);
	TAILQ_INIT(&d->held);
	pthread_mutex_lock(&lock);
	d->port = next_port++;
	LIST_INSERT_HEAD(&devices, d, all);
	pthread_mutex_unlock(&lock);
	*ret = d;
	return 0;
}

static void unmap_locked(struct memory *m)
{
	LIST_REMOVE(m, all);
	free(m);
}

static void drop(struct completions *list)
{
	struct completion *k;

	while ((k = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, k, next);
		free(k);
	}
}

static void fake_close(struct cfs_rdma *d)
{
	struct memory *m, *next;
	struct cfs_rdma_conn *c;

	pthread_mutex_lock(&lock);
	while ((c = LIST_FIRST(&d->conns))) {
		cut(c, -ECANCELED);
		conn_free(c);
	}
	for (m = LIST_FIRST(&memories); m; m = next) {
		next = LIST_NEXT(m, all);
		if (m->d == d)
			unmap_locked(m);
	}
	drop(&d->done);
	drop(&d->held);
	LIST_REMOVE(d, all);
	pthread_mutex_unlock(&lock);
	close(d->fd);
	free(d);
}

static const char *fake_name(const struct cfs_rdma *d)
{
	(void)d;
	return "fake0";
}

static uint16_t fake_port(const struct cfs_rdma *d)
{
	return d->port;
}

static int fake_fd(const struct cfs_rdma *d)
{
	return d->fd;
}

/* --- connections --- */

static struct cfs_rdma *at_port(uint16_t port)
{
	struct cfs_rdma *d;

	LIST_FOREACH(d, &devices, all)
	if (d->port == port)
		return d;
	return NULL;
}

static int fake_connect(struct cfs_rdma *d, const struct sockaddr *remote, uint64_t session,
			const uint8_t secret[CFS_RDMA_SECRET], void *user,
			struct cfs_rdma_conn **ret)
{
	struct cfs_rdma_conn *c = calloc(1, sizeof(*c)), *theirs;
	struct cfs_rdma *to;

	(void)secret;
	pthread_mutex_lock(&lock);
	fake_ways.connect_ms[fake_ways.connects++ % 16] = cfs_now_ms();
	*c = (struct cfs_rdma_conn){.d = d, .session = session, .user = user, .known = true};
	LIST_INSERT_HEAD(&d->conns, c, all);
	to = at_port(ntohs(((const struct sockaddr_in *)remote)->sin_port));
	if (fake_ways.refuses || !to) {
		tell(c, NEWS_LOST, -ECONNREFUSED);
	} else {
		theirs = calloc(1, sizeof(*theirs));
		*theirs = (struct cfs_rdma_conn){.d = to, .session = session, .other = c};
		c->other = theirs;
		LIST_INSERT_HEAD(&to->conns, theirs, all);
		tell(theirs, NEWS_ASKED, 0);
	}
	pthread_mutex_unlock(&lock);
	*ret = c;
	return 0;
}

static void fake_disconnect(struct cfs_rdma_conn *c)
{
	pthread_mutex_lock(&lock);
	cut(c, -ECANCELED);
	pthread_mutex_unlock(&lock);
}

/* --- reads --- */

static int copy(const struct cfs_rdma_read *r)
{
	const struct memory *m;

	LIST_FOREACH(m, &memories, all)
	{
		if (m->memory.key != r->key || m->access != CFS_RDMA_SHARED)
			continue;
		if (r->from > m->len || r->len > m->len - r->from)
			return -EKEYREJECTED;
		memcpy(r->to, m->start + r->from, r->len);
		return 0;
	}
	return -EKEYREJECTED;
}

static int fake_read(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		     void *cookie, bool polled)
{
	struct completion *k = calloc(1, sizeof(*k));
	struct cfs_rdma *d = c->d;
	unsigned i;

	pthread_mutex_lock(&lock);
	if (!c->other || d->removed) {
		pthread_mutex_unlock(&lock);
		free(k);
		return -ENOTCONN;
	}
	d->armed |= !polled;
	fake_ways.reads += n;
	fake_ways.polled_reads += polled ? n : 0;
	*k = (struct completion){.c = c, .cookie = cookie};
	for (i = 0; i < n && k->err == 0; i++)
		k->err = copy(&reads[i]);
	if (fake_ways.holds)
		TAILQ_INSERT_TAIL(&d->held, k, next);
	else
		is_done(d, k);
	if (k->err < 0)
		cut(c, k->err);
	pthread_mutex_unlock(&lock);
	return 0;
}

static void fake_take(struct cfs_rdma *d)
{
	struct completion *k;

	pthread_mutex_lock(&lock);
	while ((k = TAILQ_FIRST(&d->done))) {
		TAILQ_REMOVE(&d->done, k, next);
		pthread_mutex_unlock(&lock);
		d->events->read_done(d->arg, k->cookie, k->err);
		free(k);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
}

static void fake_watch(struct cfs_rdma *d)
{
	pthread_mutex_lock(&lock);
	d->armed = true;
	fake_ways.watches++;
	pthread_mutex_unlock(&lock);
	fake_take(d);
}

/* --- the loop --- */

/* On the loop. */
static void asked(struct cfs_rdma_conn *c)
{
	uint8_t secret[CFS_RDMA_SECRET];
	int r = c->d->events->asked(c->d->arg, c->session, c, secret, &c->user);

	pthread_mutex_lock(&lock);
	c->known = r == 0;
	if (c->news == NEWS_NONE && r < 0)
		cut(c, -ECONNREFUSED);
	if (c->news == NEWS_NONE) {
		tell(c, NEWS_READY, 0);
		tell(c->other, NEWS_READY, 0);
	}
	pthread_mutex_unlock(&lock);
}

static struct cfs_rdma_conn *with_news(struct cfs_rdma *d, enum news *ret)
{
	struct cfs_rdma_conn *c;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(c, &d->conns, all)
	if (c->news != NEWS_NONE)
		break;
	*ret = c ? c->news : NEWS_NONE;
	if (c && c->news != NEWS_LOST)
		c->news = NEWS_NONE;
	pthread_mutex_unlock(&lock);
	return c;
}

static void handle_news(struct cfs_rdma *d)
{
	struct cfs_rdma_conn *c;
	enum news news;

	while ((c = with_news(d, &news))) {
		switch (news) {
		case NEWS_ASKED:
			asked(c);
			break;
		case NEWS_READY:
			d->events->ready(d->arg, c->user);
			break;
		default:
			fake_take(d); /* what was flushed */
			if (c->known)
				d->events->lost(d->arg, c->user, c->err);
			pthread_mutex_lock(&lock);
			conn_free(c);
			pthread_mutex_unlock(&lock);
		}
	}
}

static void fake_poll(struct cfs_rdma *d)
{
	uint64_t n;

	if (read(d->fd, &n, sizeof(n)) == sizeof(n)) {
		pthread_mutex_lock(&lock);
		d->armed = !TAILQ_EMPTY(&d->held);
		pthread_mutex_unlock(&lock);
	}
	fake_take(d);
	handle_news(d);
	if (d->removed && !d->told_removed) {
		d->told_removed = true;
		d->events->removed(d->arg);
	}
}

static bool fake_tick(struct cfs_rdma *d, uint64_t now_ms)
{
	(void)now_ms;
	fake_take(d);
	handle_news(d);
	return false;
}

/* --- memory --- */

static int fake_map(struct cfs_rdma *d, void *start, size_t len, enum cfs_rdma_access access,
		    struct cfs_rdma_memory **ret)
{
	struct memory *m = calloc(1, sizeof(*m));

	pthread_mutex_lock(&lock);
	*m = (struct memory){
		.memory.key = next_key++, .start = start, .len = len, .d = d, .access = access};
	LIST_INSERT_HEAD(&memories, m, all);
	if (access == CFS_RDMA_SHARED)
		fake_ways.shared = start;
	pthread_mutex_unlock(&lock);
	*ret = &m->memory;
	return 0;
}

static void fake_unmap(struct cfs_rdma *d, struct cfs_rdma_memory *m)
{
	(void)d;
	pthread_mutex_lock(&lock);
	unmap_locked((struct memory *)m);
	pthread_mutex_unlock(&lock);
}

const struct cfs_rdma_ops fake_rdma = {
	.open = fake_open,
	.close = fake_close,
	.name = fake_name,
	.port = fake_port,
	.fd = fake_fd,
	.poll = fake_poll,
	.tick = fake_tick,
	.connect = fake_connect,
	.disconnect = fake_disconnect,
	.read = fake_read,
	.take = fake_take,
	.watch = fake_watch,
	.map = fake_map,
	.unmap = fake_unmap,
};

/* --- what tests do --- */

void fake_rdma_reset(void)
{
	fake_ways = (struct fake_rdma_ways){0};
}

void fake_rdma_release(void)
{
	struct completion *k;
	struct cfs_rdma *d;

	pthread_mutex_lock(&lock);
	fake_ways.holds = false;
	LIST_FOREACH(d, &devices, all)
	{
		while ((k = TAILQ_FIRST(&d->held))) {
			TAILQ_REMOVE(&d->held, k, next);
			is_done(d, k);
		}
	}
	pthread_mutex_unlock(&lock);
}

void fake_rdma_void_keys(void)
{
	struct memory *m;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(m, &memories, all)
	m->len = m->access == CFS_RDMA_SHARED ? 0 : m->len;
	pthread_mutex_unlock(&lock);
}

void fake_rdma_cut(void)
{
	struct cfs_rdma_conn *c;
	struct cfs_rdma *d;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(d, &devices, all)
	LIST_FOREACH(c, &d->conns, all)
	cut(c, -ECONNRESET);
	pthread_mutex_unlock(&lock);
}

void fake_rdma_remove(void)
{
	struct cfs_rdma_conn *c;
	struct cfs_rdma *d;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(d, &devices, all)
	{
		d->removed = true;
		drop(&d->held);
		LIST_FOREACH(c, &d->conns, all)
		cut(c, -ENODEV);
		wake(d);
	}
	pthread_mutex_unlock(&lock);
}
