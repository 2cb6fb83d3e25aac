/* SPDX-License-Identifier: Apache-2.0 */
#include "onesided.h"

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
#include "leases.h"
#include "stream.h"
#include "transport/wire/crc.h"

#define CONNS	     4096
#define READS	     1024
#define PIECE	     (128u << 10) /* of one READ, and a landing place */
#define PLACES	     128
#define PIECES_MAX   (CFS_RDMA_BLOCK_MAX / PIECE + 1)
#define OPS	     PLACES
#define LATE_MS	     500  /* then a request is asked for on a stream */
#define HANGS_MS     3000 /* then the connection is ended */
#define PAUSE_MS     1000 /* before another connection, doubled */
#define PAUSE_MAX_MS 60000
#define REFUSED_MS   60000 /* no lease of a block whose bytes were wrong */
#define REOPEN_MS    5000

/* Both kinds of connections, as the module's events name them. */
struct user {
	bool serves;
};

struct cfs_reader_conn {
	struct user user; /* first */
	struct cfs_onesided *o;
	struct cfs_stream *stream;  /* NULL: closed, and only `lost` is waited for */
	struct cfs_rdma_conn *conn; /* NULL: none */
	bool asked;		    /* for a session */
	uint64_t ask_at_ms, pause_ms;
	bool ready; /* under the lock */
	LIST_ENTRY(cfs_reader_conn) all;
};

struct cfs_granter_conn {
	struct user user;      /* first */
	struct cfs_server *sc; /* NULL: closed */
	uint64_t session;      /* 0: it has been used */
	struct cfs_rdma_conn *conn;
	bool ready;
	LIST_ENTRY(cfs_granter_conn) all;
};

/* A request that is being read. */
struct op {
	struct cfs_reader_conn *r; /* NULL: free */
	struct cfs_peer *peer;
	struct cfs_peer_get *g; /* NULL: given up, but the device may still write */
	struct cfs_lease *lease;
	bool reads_table;
	unsigned left; /* READs */
	int err;
	uint64_t start_ms;
	uint32_t first_page, n_pages;
	unsigned n_places;
	uint16_t places[PIECES_MAX];
};

struct cfs_onesided {
	struct cfs_transport *t;
	const struct cfs_rdma_ops *ops;
	struct sockaddr_storage address;
	socklen_t address_len;
	struct cfs_rdma *d; /* NULL: there is none at present */
	atomic_bool has_device;
	struct cfs_rdma_pool *pool;
	struct cfs_op poll_op;
	bool polling, removed, stopped;
	uint64_t reopen_at_ms;
	LIST_HEAD(, cfs_reader_conn) readers;
	LIST_HEAD(, cfs_granter_conn) granters;

	uint8_t *memory; /* landing places, then tables */
	struct cfs_rdma_memory *mapped;

	pthread_mutex_t lock; /* the rest */
	struct cfs_leases leases;
	struct op ops_under_way[OPS];
	unsigned n_ops;
	uint16_t places[PLACES]; /* free ones */
	unsigned n_places;
};

#define MEMORY ((size_t)PLACES * PIECE + (size_t)CFS_LEASES * CFS_RDMA_TABLE_MAX)
_Static_assert(MEMORY == CFS_PEER_RDMA_BESIDES, "the budget of a mount knows it");

static uint8_t *place(struct cfs_onesided *o, unsigned i)
{
	return o->memory + (size_t)i * PIECE;
}

static uint8_t *table_of(struct cfs_onesided *o, const struct cfs_lease *l)
{
	return o->memory + (size_t)PLACES * PIECE +
	       (size_t)(l - o->leases.places) * CFS_RDMA_TABLE_MAX;
}

/* --- requests --- */

/* Under the lock. */
static struct op *take_op(struct cfs_onesided *o, unsigned n_places)
{
	unsigned i;

	if (o->n_ops == OPS || o->n_places < n_places)
		return NULL;
	for (i = 0; o->ops_under_way[i].r; i++)
		;
	o->n_ops++;
	return &o->ops_under_way[i];
}

/* Under the lock. */
static void free_op(struct cfs_onesided *o, struct op *op)
{
	unsigned i;

	for (i = 0; i < op->n_places; i++)
		o->places[o->n_places++] = op->places[i];
	op->lease->users--;
	o->n_ops--;
	*op = (struct op){0};
}

/* Under the lock: the READs of op, which may begin with that of the table. */
static int post(struct cfs_onesided *o, struct op *op)
{
	struct cfs_rdma_read reads[PIECES_MAX + 1];
	struct cfs_lease *l = op->lease;
	uint32_t from = op->first_page * CFS_RDMA_PAGE;
	uint32_t to = CFS_MIN((op->first_page + op->n_pages) * CFS_RDMA_PAGE, l->block.len);
	unsigned i, n = 0;

	if (op->reads_table)
		reads[n++] = (struct cfs_rdma_read){
			.to = table_of(o, l),
			.from = cfs_rdma_table_off(l->block.len),
			.len = cfs_rdma_table_len(l->block.len),
		};
	for (i = 0; i < op->n_places; i++, n++, from += PIECE)
		reads[n] = (struct cfs_rdma_read){
			.to = place(o, op->places[i]),
			.from = from,
			.len = CFS_MIN(PIECE, to - from),
		};
	for (i = 0; i < n; i++) {
		reads[i].memory = o->mapped;
		reads[i].key = l->key;
		reads[i].cookie = op;
	}
	op->left = n;
	return o->ops->read(op->r->conn, reads, n);
}

bool cfs_onesided_start(struct cfs_peer *p, struct cfs_peer_get *g)
{
	struct cfs_reader_conn *r = p->reader;
	uint32_t first = g->off / CFS_RDMA_PAGE, last = (g->off + g->len - 1) / CFS_RDMA_PAGE;
	unsigned i, n_places = CFS_DIV_UP((last - first + 1) * CFS_RDMA_PAGE, PIECE);
	struct cfs_onesided *o;
	struct cfs_lease *l;
	struct op *op = NULL;
	uint64_t now_ms;
	bool posted = false;

	if (!r)
		return false;
	o = r->o;
	now_ms = cfs_now_ms();
	pthread_mutex_lock(&o->lock);
	l = cfs_leases_find(&o->leases, r, &g->block);
	if (r->ready && l && l->until_ms > now_ms && l->table != CFS_TABLE_BAD)
		op = take_op(o, n_places);
	if (op) {
		*op = (struct op){
			.r = r,
			.peer = p,
			.g = g,
			.lease = l,
			.reads_table = l->table == CFS_TABLE_ABSENT,
			.start_ms = now_ms,
			.first_page = first,
			.n_pages = last - first + 1,
			.n_places = n_places,
		};
		for (i = 0; i < n_places; i++)
			op->places[i] = o->places[--o->n_places];
		l->users++;
		l->used_ms = now_ms;
		posted = post(o, op) == 0;
		if (!posted)
			free_op(o, op);
		else if (l->table == CFS_TABLE_ABSENT)
			l->table = CFS_TABLE_READING;
	}
	pthread_mutex_unlock(&o->lock);
	return posted;
}

/* On the loop; the op is its own. The READs of an op that came before have been handled. */
static bool is_right(struct cfs_onesided *o, struct op *op)
{
	struct cfs_lease *l = op->lease;
	const uint8_t *table = table_of(o, l);
	uint32_t crc = 0, i;
	bool good;

	if (op->reads_table)
		crc = cfs_crc_add(0, table, cfs_rdma_table_len(l->block.len));
	pthread_mutex_lock(&o->lock);
	if (op->reads_table)
		l->table = crc == l->table_crc ? CFS_TABLE_GOOD : CFS_TABLE_BAD;
	good = l->table == CFS_TABLE_GOOD;
	pthread_mutex_unlock(&o->lock);
	if (!good)
		return false;
	for (i = 0; i < op->n_pages; i++) {
		uint32_t page = op->first_page + i, off = i * CFS_RDMA_PAGE;
		const uint8_t *bytes = place(o, op->places[off / PIECE]) + off % PIECE;
		uint32_t len = CFS_MIN(CFS_RDMA_PAGE, l->block.len - page * CFS_RDMA_PAGE);

		if (cfs_crc_add(0, bytes, len) != cfs_get_be32(table + (size_t)page * 4))
			return false;
	}
	return true;
}

static void copy_out(struct cfs_onesided *o, const struct op *op)
{
	const struct cfs_peer_get *g = op->g;
	uint32_t at = g->off - op->first_page * CFS_RDMA_PAGE;
	int i;

	for (i = 0; i < g->n_dst; i++) {
		uint8_t *to = g->dst[i].iov_base;
		size_t left = g->dst[i].iov_len;

		while (left > 0) {
			size_t n = CFS_MIN(left, PIECE - at % PIECE);

			memcpy(to, place(o, op->places[at / PIECE]) + at % PIECE, n);
			to += n;
			left -= n;
			at += (uint32_t)n;
		}
	}
}

/* All READs of op are over. */
static void op_ended(struct cfs_onesided *o, struct op *op)
{
	struct cfs_reader_conn *r = op->r;
	struct cfs_peer_get *g = op->g;
	struct cfs_peer *p = op->peer;
	struct cfs_lease *l = op->lease;
	int err = op->err;
	bool well = err == 0 && is_right(o, op);

	if (well && g)
		copy_out(o, op);
	pthread_mutex_lock(&o->lock);
	if (err < 0 && op->reads_table)
		l->table = CFS_TABLE_ABSENT;
	if (err == 0 && !well) {
		l->table = CFS_TABLE_BAD;
		l->until_ms = o->t->loop.now_ms + REFUSED_MS;
	}
	if (err == -EKEYREJECTED)
		l->until_ms = 0;
	if (well)
		r->pause_ms = PAUSE_MS;
	free_op(o, op);
	pthread_mutex_unlock(&o->lock);
	if (!g)
		return;
	if (well) {
		cfs_peer_note_bytes(p, g->len);
		atomic_fetch_add(&p->counters.rdma, 1);
		atomic_fetch_add(&p->t->asked.rdma, 1);
		cfs_peer_finish(p, g, 0);
		return;
	}
	if (err == 0) {
		cfs_counters_error(&p->counters, CFS_PEER_E_CHECKSUM);
		cfs_counters_error(&p->t->asked, CFS_PEER_E_CHECKSUM);
	}
	cfs_peer_again(p, g);
}

/* Under the lock. */
static struct cfs_peer_get *take_get(struct op *op)
{
	struct cfs_peer_get *g = op->g;

	op->g = NULL;
	op->peer = NULL;
	return g;
}

void cfs_onesided_expire(struct cfs_peer *p, uint64_t now_ms, struct cfs_get_list *list)
{
	struct cfs_onesided *o = p->t->onesided;
	unsigned i;

	if (!o || !p->reader)
		return;
	pthread_mutex_lock(&o->lock);
	for (i = 0; i < OPS && o->n_ops > 0; i++) {
		struct op *op = &o->ops_under_way[i];

		if (op->g && op->peer == p && (op->g->canceled || op->g->deadline <= now_ms))
			cfs_gets_append(list, take_get(op));
	}
	pthread_mutex_unlock(&o->lock);
}

/* Moves requests of r that began before `before_ms` to streams. over: the device writes no more for them. */
static void give_up_reads(struct cfs_onesided *o, struct cfs_reader_conn *r, uint64_t before_ms,
			  bool over)
{
	unsigned i;

	for (i = 0; i < OPS; i++) {
		struct op *op = &o->ops_under_way[i];
		struct cfs_peer_get *g = NULL;
		struct cfs_peer *p = NULL;

		pthread_mutex_lock(&o->lock);
		if (op->r == r && op->start_ms <= before_ms) {
			p = op->peer;
			g = take_get(op);
			if (over && op->reads_table)
				op->lease->table = CFS_TABLE_ABSENT;
			if (over)
				free_op(o, op);
		}
		pthread_mutex_unlock(&o->lock);
		if (g)
			cfs_peer_again(p, g);
	}
}

/* --- the reader's connection --- */

/* No further request begins on it. Its leases are forgotten once nothing is read by them. */
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
	pthread_mutex_lock(&o->lock);
	cfs_leases_forget(&o->leases, r);
	pthread_mutex_unlock(&o->lock);
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
	r->pause_ms = PAUSE_MS;
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
	give_up_reads(o, r, UINT64_MAX, false);
	if (r->conn)
		o->ops->disconnect(r->conn);
	else
		reader_free(o, r);
	/* Another stream of the peer asks for the next connection. */
	for (i = 0; i < p->n_conns && !p->reader; i++)
		if (p->conns[i] != &s->client && p->conns[i]->usable)
			cfs_onesided_open((struct cfs_stream *)p->conns[i]);
}

static void ask_for_session(struct cfs_reader_conn *r, uint64_t now_ms)
{
	struct cfs_frame f = {.type = CFS_FRAME_RDMA};

	r->asked = true;
	/* Without an answer it is asked for again. */
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
	if (w->port == 0 || !r->o->d) { /* as yet one side has no device, or ends a connection */
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

	/* Its table would not fit: no owner pools such a block. */
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
	/* A connection that is there goes on; its client believes that it is gone. */
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

	if (((struct user *)user)->serves) {
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
	r->conn = NULL;
	give_up_reads(o, r, UINT64_MAX, true);
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

static void on_read(void *arg, void *cookie, int err)
{
	struct op *op = cookie;

	if (op->err == 0)
		op->err = err;
	if (--op->left == 0)
		op_ended(arg, op);
}

static void on_removed(void *arg)
{
	((struct cfs_onesided *)arg)->removed = true;
}

static const struct cfs_rdma_events events = {
	.asked = on_asked,
	.ready = on_ready,
	.lost = on_lost,
	.read_done = on_read,
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
	o->ops->close(o->d); /* the device writes nothing from here on */
	o->d = NULL;
	o->mapped = NULL;
	atomic_store(&o->has_device, false);
	for (r = LIST_FIRST(&o->readers); r; r = next_r) {
		next_r = LIST_NEXT(r, all);
		if (r->conn) /* `lost` does not follow */
			r->ask_at_ms = o->t->loop.now_ms;
		r->conn = NULL;
		give_up_reads(o, r, UINT64_MAX, true);
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
	r = o->ops->map(o->d, o->memory, MEMORY, CFS_RDMA_OWN, &o->mapped);
	if (r < 0) {
		snprintf(err, 256, "%zu bytes cannot be locked for RDMA: %s", MEMORY,
			 cfs_errname(r));
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

static void arm(struct cfs_onesided *o)
{
	if (o->polling || !o->d || o->stopped)
		return;
	o->polling = true;
	cfs_loop_poll(&o->t->loop, o->ops->fd(o->d), POLLIN, &o->poll_op);
}

static void polled(struct cfs_op *op, int res)
{
	struct cfs_onesided *o =
		(struct cfs_onesided *)((char *)op - offsetof(struct cfs_onesided, poll_op));

	(void)res;
	o->polling = false;
	if (!o->d || o->stopped)
		return;
	o->ops->poll(o->d);
	if (o->removed) {
		cfs_warn("RDMA device is gone, TCP is used: device=%s", o->ops->name(o->d));
		close_device(o);
		o->removed = false;
		o->reopen_at_ms = o->t->loop.now_ms + REOPEN_MS;
	}
	arm(o);
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

bool cfs_onesided_tick(struct cfs_onesided *o)
{
	uint64_t now_ms = o->t->loop.now_ms;
	struct cfs_reader_conn *r, *next;
	struct cfs_rdma_conn *hangs = NULL;
	unsigned i;
	bool busy;

	if (o->stopped)
		return false;
	try_reopen(o);
	arm(o);
	if (!o->d)
		return false;
	for (r = LIST_FIRST(&o->readers); r; r = next) {
		next = LIST_NEXT(r, all);
		if (r->stream && !r->conn && now_ms >= r->ask_at_ms)
			ask_for_session(r, now_ms);
		if (r->conn && r->ready && now_ms > LATE_MS)
			give_up_reads(o, r, now_ms - LATE_MS, false);
	}
	pthread_mutex_lock(&o->lock);
	for (i = 0; i < OPS && o->n_ops > 0; i++) {
		const struct op *op = &o->ops_under_way[i];

		if (op->r && op->start_ms + HANGS_MS <= now_ms)
			hangs = op->r->conn;
	}
	busy = o->n_ops > 0;
	pthread_mutex_unlock(&o->lock);
	if (hangs)
		o->ops->disconnect(hangs);
	return o->ops->tick(o->d, now_ms) || busy;
}

/* --- life --- */

int cfs_onesided_create(struct cfs_transport *t, const struct sockaddr *address, socklen_t len,
			uint64_t pool_bytes, const struct cfs_rdma_ops *ops,
			struct cfs_onesided **ret, char err[256])
{
	struct cfs_onesided *o = calloc(1, sizeof(*o));
	unsigned i;
	int r;

	if (!o)
		return -ENOMEM;
	o->t = t;
	o->ops = ops;
	memcpy(&o->address, address, len);
	o->address_len = len;
	o->poll_op.fn = polled;
	for (i = 0; i < PLACES; i++)
		o->places[o->n_places++] = (uint16_t)i;
	o->memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (o->memory == MAP_FAILED) {
		free(o);
		return -ENOMEM;
	}
	(void)madvise(o->memory, MEMORY, MADV_DONTFORK);
	(void)madvise(o->memory, MEMORY, MADV_DONTDUMP);
	pthread_mutex_init(&o->lock, NULL);
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
	if (o->d)
		close_device(o);
	o->stopped = true;
}

void cfs_onesided_free(struct cfs_onesided *o)
{
	if (o->pool)
		cfs_rdma_pool_destroy(o->pool);
	munmap(o->memory, MEMORY);
	pthread_mutex_destroy(&o->lock);
	free(o);
}
