/* SPDX-License-Identifier: Apache-2.0 */
/* Reads by RDMA: sessions, queue pairs of both roles, and the device. */
#include "onesided-internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <openssl/rand.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/log.h"
#include "stream.h"

#define CONNS	     4096
#define READS	     1024
#define LATE_MS	     500 /* then a request is sent on a stream */
#define PAUSE_MAX_MS 60000
#define REOPEN_MS    5000

/* --- the reader's connection --- */

/* No further request begins on r, and its leases expire. */
static void not_ready(struct cfs_onesided *o, struct cfs_reader_conn *r)
{
	bool was;

	pthread_mutex_lock(&o->lock);
	was = r->ready;
	r->ready = false;
	cfs_leases_end(&o->leases, r);
	pthread_mutex_unlock(&o->lock);
	if (was) {
		if (r->stream)
			atomic_fetch_sub(&r->stream->client.peer->counters.conns[CFS_PEER_RDMA], 1);
		atomic_fetch_sub(&o->t->asked.conns[CFS_PEER_RDMA], 1);
	}
}

static void reader_free(struct cfs_onesided *o, struct cfs_reader_conn *r)
{
	cfs_reading_forget(o, r);
	LIST_REMOVE(r, all);
	free(r);
}

void cfs_onesided_open(struct cfs_stream *s)
{
	struct cfs_peer *p = s->client.peer;
	struct cfs_onesided *o = p->t->onesided;
	struct cfs_reader_conn *r;

	if (!o || p->reader || !(s->c.features & CFS_FEATURE_RDMA))
		return;
	r = calloc(1, sizeof(*r));
	if (!r)
		return;
	r->o = o;
	r->stream = s;
	r->pause_ms = CFS_READ_PAUSE_MS;
	cfs_polling_init(&r->polling);
	LIST_INSERT_HEAD(&o->readers, r, all);
	pthread_mutex_lock(&p->lock);
	p->reader = r;
	pthread_mutex_unlock(&p->lock);
	cfs_loop_touch(&p->t->loop);
}

void cfs_onesided_close(struct cfs_stream *s)
{
	struct cfs_peer *p = s->client.peer;
	struct cfs_onesided *o = p->t->onesided;
	struct cfs_reader_conn *r = p->reader;
	unsigned i;

	if (!r || r->stream != s)
		return;
	pthread_mutex_lock(&p->lock);
	p->reader = NULL;
	pthread_mutex_unlock(&p->lock);
	not_ready(o, r);
	r->stream = NULL;
	cfs_reading_give_up(o, r, UINT64_MAX, false);
	if (r->conn)
		o->ops->disconnect(r->conn);
	else
		reader_free(o, r);
	/* Another stream of the peer requests the next session. */
	for (i = 0; i < p->n_conns && !p->reader; i++)
		if (p->conns[i] != &s->client && p->conns[i]->usable)
			cfs_onesided_open((struct cfs_stream *)p->conns[i]);
}

static void ask_for_session(struct cfs_reader_conn *r, uint64_t now_ms)
{
	struct cfs_frame f = {.type = CFS_FRAME_RDMA};

	r->asked = true;
	/* Without an answer the request is repeated then. */
	r->ask_at_ms = now_ms + PAUSE_MAX_MS;
	cfs_stream_control(r->stream, &f, NULL, 0);
}

static void pause_reader(struct cfs_reader_conn *r)
{
	r->ask_at_ms = r->o->t->loop.now_ms + r->pause_ms;
	r->pause_ms = CFS_MIN(r->pause_ms * 2, (uint64_t)PAUSE_MAX_MS);
}

void cfs_onesided_session(struct cfs_stream *s, const struct cfs_wire_session *w)
{
	struct cfs_peer *p = s->client.peer;
	struct cfs_reader_conn *r = p->reader;
	struct sockaddr_storage to = p->addr;
	int err;

	if (!r || r->stream != s || !r->asked || r->conn)
		return;
	r->asked = false;
	if (w->port == 0 || !r->o->d) { /* one side has no device, or still ends a queue pair */
		r->ask_at_ms = r->o->t->loop.now_ms + REOPEN_MS;
		return;
	}
	if (to.ss_family == AF_INET)
		((struct sockaddr_in *)&to)->sin_port = htons(w->port);
	else
		((struct sockaddr_in6 *)&to)->sin6_port = htons(w->port);
	err = r->o->ops->connect(r->o->d, (struct sockaddr *)&to, w->session, s->c.secret, r,
				 &r->conn);
	if (err == 0) /* ready or lost follows */
		return;
	pause_reader(r);
	cfs_debug("no RDMA connection: member=%llu address=%s error=%s",
		  (unsigned long long)p->member, p->name, cfs_errname(err));
}

void cfs_onesided_lease(struct cfs_stream *s, const struct cfs_wire_lease *w)
{
	struct cfs_reader_conn *r = s->client.peer->reader;
	struct cfs_onesided *o;
	uint64_t now_ms = s->c.t->loop.now_ms;
	struct cfs_lease *l;

	/* Owners lease no longer block; its checksum table would not fit. */
	if (!r || r->stream != s || w->block.len > CFS_RDMA_BLOCK_MAX)
		return;
	o = r->o;
	pthread_mutex_lock(&o->lock);
	l = cfs_leases_find(&o->leases, r, &w->block);
	if (l && l->key == w->key && l->table_crc == w->table_crc && l->table != CFS_TABLE_BAD) {
		l->until_ms = now_ms + w->lease_ms;
	} else if (!l || (l->users == 0 && (l->table != CFS_TABLE_BAD || l->until_ms <= now_ms))) {
		if (!l)
			l = cfs_leases_place(&o->leases, r, &w->block, now_ms);
		if (l)
			*l = (struct cfs_lease){
				.r = r,
				.block = w->block,
				.key = w->key,
				.table_crc = w->table_crc,
				.until_ms = now_ms + w->lease_ms,
				.used_ms = now_ms,
			};
	}
	pthread_mutex_unlock(&o->lock);
}

/* --- the owner's side --- */

void cfs_onesided_wanted(struct cfs_server *sc)
{
	struct cfs_onesided *o = sc->c.t->onesided;
	struct cfs_granter_conn *c = sc->granter;
	struct cfs_wire_session w = {0};

	if (o && o->d && !c) {
		c = calloc(1, sizeof(*c));
		if (c) {
			c->user.serves = true;
			c->sc = sc;
			sc->granter = c;
			LIST_INSERT_HEAD(&o->granters, c, all);
		}
	}
	/* The client has lost the queue pair that exists here: it ends, and the client asks again. */
	if (c && c->conn)
		o->ops->disconnect(c->conn);
	else if (c && o->d && RAND_bytes((unsigned char *)&c->session, sizeof(c->session)) == 1 &&
		 c->session) {
		w.session = c->session;
		w.port = o->ops->port(o->d);
	}
	cfs_answer_session(sc, &w);
}

static void granter_free(struct cfs_granter_conn *c)
{
	LIST_REMOVE(c, all);
	free(c);
}

static void granter_not_ready(struct cfs_onesided *o, struct cfs_granter_conn *c)
{
	if (c->ready)
		atomic_fetch_sub(&o->t->served.conns[CFS_PEER_RDMA], 1);
	c->ready = false;
}

void cfs_onesided_server_closed(struct cfs_server *sc)
{
	struct cfs_onesided *o = sc->c.t->onesided;
	struct cfs_granter_conn *c = sc->granter;

	if (!c)
		return;
	sc->granter = NULL;
	c->sc = NULL;
	c->session = 0;
	granter_not_ready(o, c);
	if (c->conn)
		o->ops->disconnect(c->conn);
	else
		granter_free(c);
}

void cfs_onesided_answered(struct cfs_server *sc, const struct cfs_served *s)
{
	struct cfs_onesided *o = sc->c.t->onesided;
	struct cfs_wire_lease w = {.block = s->req.block};
	struct cfs_rdma_grant grant;

	if (!sc->granter || !sc->granter->ready)
		return;
	if (!cfs_rdma_pool_grant(o->pool, &s->req.block, o->t->loop.now_ms, &grant)) {
		cfs_rdma_pool_offer(o->pool, &s->req.block, s->a.fd, s->a.crcs, s->a.n_crcs);
		return;
	}
	w.key = grant.key;
	w.table_crc = grant.table_crc;
	w.lease_ms = grant.lease_ms;
	cfs_answer_lease(sc, &w);
}

/* --- events of the module --- */

static int on_asked(void *arg, uint64_t session, struct cfs_rdma_conn *conn,
		    uint8_t ret_secret[CFS_RDMA_SECRET], void **ret_user)
{
	struct cfs_onesided *o = arg;
	struct cfs_granter_conn *c;

	LIST_FOREACH(c, &o->granters, all)
	{
		if (!c->sc || c->conn || c->session == 0 || c->session != session)
			continue;
		c->session = 0;
		c->conn = conn;
		memcpy(ret_secret, c->sc->c.secret, CFS_RDMA_SECRET);
		*ret_user = c;
		return 0;
	}
	return -ENOENT;
}

static void on_ready(void *arg, void *user)
{
	struct cfs_onesided *o = arg;

	if (((struct cfs_onesided_user *)user)->serves) {
		struct cfs_granter_conn *c = user;

		c->ready = c->sc != NULL;
		if (c->ready)
			atomic_fetch_add(&o->t->served.conns[CFS_PEER_RDMA], 1);
	} else {
		struct cfs_reader_conn *r = user;

		if (!r->stream)
			return;
		pthread_mutex_lock(&o->lock);
		r->ready = true;
		pthread_mutex_unlock(&o->lock);
		atomic_fetch_add(&r->stream->client.peer->counters.conns[CFS_PEER_RDMA], 1);
		atomic_fetch_add(&o->t->asked.conns[CFS_PEER_RDMA], 1);
		cfs_info("peer is read by RDMA: member=%llu address=%s device=%s",
			 (unsigned long long)r->stream->client.peer->member,
			 r->stream->client.peer->name, o->ops->name(o->d));
	}
}

static void reader_lost(struct cfs_onesided *o, struct cfs_reader_conn *r, int err)
{
	bool was = r->ready;

	not_ready(o, r);
	pthread_mutex_lock(&o->lock);
	if (r->worked)
		r->pause_ms = CFS_READ_PAUSE_MS;
	r->worked = false;
	pthread_mutex_unlock(&o->lock);
	r->conn = NULL;
	cfs_reading_give_up(o, r, UINT64_MAX, true);
	if (!r->stream) {
		reader_free(o, r);
		return;
	}
	pause_reader(r);
	cfs_log(was ? CFS_LOG_WARN : CFS_LOG_DEBUG,
		"peer is not read by RDMA, TCP is used: member=%llu address=%s error=%s",
		(unsigned long long)r->stream->client.peer->member, r->stream->client.peer->name,
		cfs_errname(err));
}

static void on_lost(void *arg, void *user, int err)
{
	struct cfs_onesided *o = arg;
	struct cfs_granter_conn *c = user;

	if (!c->user.serves) {
		reader_lost(o, user, err);
		return;
	}
	c->conn = NULL;
	granter_not_ready(o, c);
	if (!c->sc)
		granter_free(c);
}

static void on_removed(void *arg)
{
	((struct cfs_onesided *)arg)->removed = true;
}

static const struct cfs_rdma_events events = {
	.asked = on_asked,
	.ready = on_ready,
	.lost = on_lost,
	.read_done = cfs_reading_done,
	.removed = on_removed,
};

/* --- the device --- */

static void close_device(struct cfs_onesided *o)
{
	struct cfs_reader_conn *r, *next_r;
	struct cfs_granter_conn *c, *next_c;

	cfs_rdma_pool_attach(o->pool, NULL, NULL);
	for (r = LIST_FIRST(&o->readers); r; r = next_r) {
		next_r = LIST_NEXT(r, all);
		not_ready(o, r);
	}
	o->ops->close(o->d); /* the device writes to no memory any more */
	o->d = NULL;
	o->mapped = NULL;
	atomic_store(&o->has_device, false);
	for (r = LIST_FIRST(&o->readers); r; r = next_r) {
		next_r = LIST_NEXT(r, all);
		if (r->conn) /* `lost` does not follow */
			r->ask_at_ms = o->t->loop.now_ms;
		r->conn = NULL;
		cfs_reading_give_up(o, r, UINT64_MAX, true);
		if (!r->stream)
			reader_free(o, r);
	}
	for (c = LIST_FIRST(&o->granters); c; c = next_c) {
		next_c = LIST_NEXT(c, all);
		c->conn = NULL;
		granter_not_ready(o, c);
		if (!c->sc)
			granter_free(c);
	}
}

static int open_device(struct cfs_onesided *o, char err[256])
{
	const struct cfs_rdma_conf conf = {
		.local = (const struct sockaddr *)&o->address,
		.local_len = o->address_len,
		.max_conns = CONNS,
		.max_reads = READS,
		.events = &events,
		.arg = o,
	};
	int r = o->ops->open(&conf, &o->d, err);

	if (r < 0)
		return r;
	r = o->ops->map(o->d, o->memory, CFS_READ_MEMORY, CFS_RDMA_OWN, &o->mapped);
	if (r < 0) {
		snprintf(err, 256, "%zu bytes cannot be locked for RDMA: %s", CFS_READ_MEMORY,
			 strerror(-r));
		o->ops->close(o->d);
		o->d = NULL;
		return r;
	}
	cfs_rdma_pool_attach(o->pool, o->ops, o->d);
	atomic_store(&o->has_device, true);
	return 0;
}

bool cfs_onesided_has_device(struct cfs_onesided *o)
{
	return atomic_load(&o->has_device);
}

void cfs_onesided_stats(struct cfs_onesided *o, struct cfs_peer_stats *ret_served)
{
	struct cfs_rdma_pool_stats st;

	cfs_rdma_pool_stats(o->pool, &st);
	ret_served->rdma_blocks = st.blocks;
	ret_served->rdma_block_bytes = st.bytes;
	ret_served->rdma_loads = st.loads;
	ret_served->rdma_load_failures = st.load_failures;
	ret_served->rdma_evictions = st.evictions;
	ret_served->rdma_no_room = st.no_room;
}

static void arm(struct cfs_onesided *o)
{
	if (o->polling || !o->d || o->stopped)
		return;
	o->polling = true;
	cfs_loop_poll(&o->t->loop, o->ops->fd(o->d), POLLIN, &o->poll_op);
}

/* Locks the device. False: a polling thread has the lock, and runs o->work soon. */
static bool enter_device(struct cfs_onesided *o)
{
	atomic_store(&o->wanted, true);
	if (pthread_mutex_trylock(&o->device) != 0)
		return false;
	atomic_store(&o->wanted, false);
	return true;
}

void cfs_onesided_handle(struct cfs_onesided *o)
{
	if (!o->d || o->stopped || !enter_device(o))
		return;
	o->ops->poll(o->d);
	if (o->removed) {
		cfs_warn("RDMA device is gone, TCP is used: device=%s", o->ops->name(o->d));
		close_device(o);
		o->removed = false;
		o->reopen_at_ms = o->t->loop.now_ms + REOPEN_MS;
	}
	pthread_mutex_unlock(&o->device);
	arm(o);
}

static void polled(struct cfs_op *op, int res)
{
	struct cfs_onesided *o = caa_container_of(op, struct cfs_onesided, poll_op);

	(void)res;
	o->polling = false;
	cfs_onesided_handle(o);
}

static void try_reopen(struct cfs_onesided *o)
{
	char err[256];

	if (o->d || o->t->loop.now_ms < o->reopen_at_ms)
		return;
	o->reopen_at_ms = o->t->loop.now_ms + REOPEN_MS;
	if (open_device(o, err) == 0)
		cfs_info("RDMA device is used: device=%s", o->ops->name(o->d));
	else
		cfs_debug("no RDMA device: error=%s", err);
}

/* With the device's lock. */
static bool tick_device(struct cfs_onesided *o, uint64_t now_ms)
{
	struct cfs_reader_conn *r, *next;
	struct cfs_rdma_conn *hangs;
	bool busy;

	for (r = LIST_FIRST(&o->readers); r; r = next) {
		next = LIST_NEXT(r, all);
		if (r->stream && !r->conn && now_ms >= r->ask_at_ms)
			ask_for_session(r, now_ms);
		if (r->conn && r->ready && now_ms > LATE_MS)
			cfs_reading_give_up(o, r, now_ms - LATE_MS, false);
	}
	busy = cfs_reading_tick(o, now_ms, &hangs);
	if (hangs)
		o->ops->disconnect(hangs);
	return o->ops->tick(o->d, now_ms) || busy;
}

bool cfs_onesided_tick(struct cfs_onesided *o)
{
	bool busy = false;

	if (o->stopped)
		return false;
	if (!enter_device(o))
		return true;
	try_reopen(o);
	arm(o);
	if (o->d)
		busy = tick_device(o, o->t->loop.now_ms);
	pthread_mutex_unlock(&o->device);
	return busy;
}

/* --- life --- */

int cfs_onesided_create(struct cfs_transport *t, const struct sockaddr *address, socklen_t len,
			uint64_t pool_bytes, const struct cfs_rdma_ops *ops,
			struct cfs_onesided **ret, char err[256])
{
	struct cfs_onesided *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return -ENOMEM;
	o->t = t;
	o->ops = ops;
	memcpy(&o->address, address, len);
	o->address_len = len;
	o->poll_op.fn = polled;
	o->memory = mmap(NULL, CFS_READ_MEMORY, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (o->memory == MAP_FAILED) {
		free(o);
		return -ENOMEM;
	}
	(void)madvise(o->memory, CFS_READ_MEMORY, MADV_DONTFORK);
	(void)madvise(o->memory, CFS_READ_MEMORY, MADV_DONTDUMP);
	pthread_mutex_init(&o->device, NULL);
	pthread_mutex_init(&o->lock, NULL);
	cfs_reading_init(o);
	r = cfs_rdma_pool_create(pool_bytes, &o->pool);
	if (r < 0)
		snprintf(err, 256, "the pool for RDMA is smaller than a block");
	else
		r = open_device(o, err);
	if (r < 0 && t->conf.rdma_waits && o->pool) {
		cfs_warn("RDMA is not available, TCP is used until it is: error=%s", err);
		r = 0;
	}
	if (r < 0) {
		cfs_onesided_free(o);
		return r;
	}
	*ret = o;
	return 0;
}

void cfs_onesided_stop(struct cfs_onesided *o)
{
	if (o->stopped)
		return;
	if (o->polling)
		cfs_loop_cancel(&o->t->loop, &o->poll_op);
	pthread_mutex_lock(&o->device);
	if (o->d)
		close_device(o);
	pthread_mutex_unlock(&o->device);
	o->stopped = true;
}

void cfs_onesided_free(struct cfs_onesided *o)
{
	if (o->pool)
		cfs_rdma_pool_destroy(o->pool);
	munmap(o->memory, CFS_READ_MEMORY);
	pthread_mutex_destroy(&o->lock);
	pthread_mutex_destroy(&o->device);
	free(o);
}
