/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are read from their owner's memory: READs, checks, polling, deadlines. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "onesided-internal.h"
#include "transport/wire/crc.h"

#define HANGS_MS   3000		  /* of a READ; then its queue pair is ended */
#define REFUSED_MS 60000	  /* without RDMA for a block that had wrong bytes */
#define POLL_BYTES CFS_READ_PIECE /* longest read that is polled for */

static uint8_t *place(struct cfs_onesided *o, unsigned i)
{
	return o->memory + (size_t)i * CFS_READ_PIECE;
}

static uint8_t *table_of(struct cfs_onesided *o, const struct cfs_lease *l)
{
	return o->memory + (size_t)CFS_READ_PLACES * CFS_READ_PIECE +
	       (size_t)(l - o->leases.places) * CFS_RDMA_TABLE_MAX;
}

/* --- the beginning --- */

/* Under the lock. */
static struct cfs_read_op *take_op(struct cfs_onesided *o, unsigned n_places)
{
	unsigned i;

	if (o->n_ops == CFS_READ_OPS || o->n_places < n_places)
		return NULL;
	for (i = 0; o->ops_under_way[i].used; i++)
		;
	o->n_ops++;
	return &o->ops_under_way[i];
}

/* Under the lock. */
static void free_op(struct cfs_onesided *o, struct cfs_read_op *op)
{
	unsigned i;

	for (i = 0; i < op->n_places; i++)
		o->places[o->n_places++] = op->places[i];
	op->lease->users--;
	o->n_ops--;
	*op = (struct cfs_read_op){0};
}

/* Under the lock: posts the READs of op, first that of the checksum table if it is missing. */
static int post(struct cfs_onesided *o, struct cfs_read_op *op)
{
	struct cfs_rdma_read reads[CFS_READ_PIECES + 1];
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
	for (i = 0; i < op->n_places; i++, n++, from += CFS_READ_PIECE)
		reads[n] = (struct cfs_rdma_read){
			.to = place(o, op->places[i]),
			.from = from,
			.len = CFS_MIN(CFS_READ_PIECE, to - from),
		};
	for (i = 0; i < n; i++) {
		reads[i].memory = o->mapped;
		reads[i].key = l->key;
	}
	return o->ops->read(op->r->conn, reads, n, op, op->polls);
}

/* Under the lock: decides whether the thread of op's request polls. */
static void begin_polling(struct cfs_onesided *o, struct cfs_read_op *op)
{
	if (!op->g->waits || op->g->len > POLL_BYTES || o->n_polling >= o->max_polling)
		return;
	op->poll_ns = cfs_polling_begin(&op->r->polling);
	op->polls = op->poll_ns > 0;
	o->n_polling += op->polls;
}

bool cfs_onesided_start(struct cfs_peer *p, struct cfs_peer_get *g)
{
	struct cfs_reader_conn *r = p->reader;
	uint32_t first = g->off / CFS_RDMA_PAGE, last = (g->off + g->len - 1) / CFS_RDMA_PAGE;
	unsigned i, n_places = CFS_DIV_UP((last - first + 1) * CFS_RDMA_PAGE, CFS_READ_PIECE);
	struct cfs_onesided *o;
	struct cfs_lease *l;
	struct cfs_read_op *op = NULL;
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
		*op = (struct cfs_read_op){
			.used = true,
			.r = r,
			.peer = p,
			.g = g,
			.lease = l,
			.reads_table = l->table == CFS_TABLE_ABSENT,
			.start_ms = now_ms,
			.start_ns = g->start_ns,
			.first_page = first,
			.n_pages = last - first + 1,
			.n_places = n_places,
		};
		for (i = 0; i < n_places; i++)
			op->places[i] = o->places[--o->n_places];
		l->users++;
		l->used_ms = now_ms;
		begin_polling(o, op);
		posted = post(o, op) == 0;
		if (posted && op->polls)
			g->reads = op;
		if (posted && l->table == CFS_TABLE_ABSENT)
			l->table = CFS_TABLE_READING;
		if (!posted) {
			o->n_polling -= op->polls;
			free_op(o, op);
		}
	}
	pthread_mutex_unlock(&o->lock);
	return posted;
}

/* --- the bytes --- */

/*
 * Whether the pages of op, which has ended and belongs to the caller, match the checksum table. Chains
 * end in the order in which they were posted, so the table has arrived, whichever op requested it.
 */
static bool is_right(struct cfs_onesided *o, struct cfs_read_op *op)
{
	struct cfs_lease *l = op->lease;
	const uint8_t *table = table_of(o, l);
	enum cfs_lease_table state;
	uint32_t i;

	pthread_mutex_lock(&o->lock);
	state = l->table;
	pthread_mutex_unlock(&o->lock);
	if (state == CFS_TABLE_READING) {
		state = cfs_crc_add(0, table, cfs_rdma_table_len(l->block.len)) == l->table_crc
				? CFS_TABLE_GOOD
				: CFS_TABLE_BAD;
		pthread_mutex_lock(&o->lock);
		if (l->table == CFS_TABLE_READING) /* another thread may have found wrong bytes */
			l->table = state;
		pthread_mutex_unlock(&o->lock);
	}
	if (state != CFS_TABLE_GOOD)
		return false;
	for (i = 0; i < op->n_pages; i++) {
		uint32_t page = op->first_page + i, off = i * CFS_RDMA_PAGE;
		const uint8_t *bytes =
			place(o, op->places[off / CFS_READ_PIECE]) + off % CFS_READ_PIECE;
		uint32_t len = CFS_MIN(CFS_RDMA_PAGE, l->block.len - page * CFS_RDMA_PAGE);

		if (cfs_crc_add(0, bytes, len) != cfs_get_be32(table + (size_t)page * 4))
			return false;
	}
	return true;
}

static void copy_out(struct cfs_onesided *o, const struct cfs_read_op *op,
		     const struct cfs_peer_get *g)
{
	uint32_t at = g->off - op->first_page * CFS_RDMA_PAGE;
	int i;

	for (i = 0; i < g->n_dst; i++) {
		uint8_t *to = g->dst[i].iov_base;
		size_t left = g->dst[i].iov_len;

		while (left > 0) {
			size_t n = CFS_MIN(left, CFS_READ_PIECE - at % CFS_READ_PIECE);

			memcpy(to, place(o, op->places[at / CFS_READ_PIECE]) + at % CFS_READ_PIECE,
			       n);
			to += n;
			left -= n;
			at += (uint32_t)n;
		}
	}
}

/* --- the end --- */

/* Under the lock. */
static struct cfs_peer_get *take_get(struct cfs_read_op *op)
{
	struct cfs_peer_get *g = op->g;

	op->g = NULL;
	op->peer = NULL;
	return g;
}

static void count_read(struct cfs_peer *p, const struct cfs_peer_get *g)
{
	cfs_peer_note_bytes(p, g->len);
	atomic_fetch_add(&p->counters.rdma, 1);
	atomic_fetch_add(&p->t->asked.rdma, 1);
}

/* On the loop: ends the request of op, which has ended and belongs to the loop. */
static void end(struct cfs_onesided *o, struct cfs_read_op *op)
{
	struct cfs_peer *p, *held = op->held;
	struct cfs_peer_get *g;
	struct cfs_lease *l = op->lease;
	int err = op->err;
	bool well = err == 0 && is_right(o, op);

	pthread_mutex_lock(&o->lock);
	p = op->peer;
	g = take_get(op);
	pthread_mutex_unlock(&o->lock);
	if (well && g)
		copy_out(o, op, g);
	pthread_mutex_lock(&o->lock);
	if (err == 0 && !well) {
		l->table = CFS_TABLE_BAD;
		l->until_ms = o->t->loop.now_ms + REFUSED_MS;
	}
	if (err == -EKEYREJECTED)
		l->until_ms = 0;
	if (well && op->r)
		op->r->worked = true;
	free_op(o, op);
	pthread_mutex_unlock(&o->lock);
	if (g && well) {
		count_read(p, g);
		cfs_peer_finish(p, g, 0);
	} else if (g) {
		if (err == 0) {
			cfs_counters_error(&p->counters, CFS_PEER_E_CHECKSUM);
			cfs_counters_error(&p->t->asked, CFS_PEER_E_CHECKSUM);
		}
		cfs_peer_again(p, g);
	}
	if (held) {
		pthread_mutex_lock(&held->lock);
		cfs_peer_received(held, NULL, false);
		pthread_mutex_unlock(&held->lock);
	}
}

static void run_work(struct cfs_work *w)
{
	struct cfs_onesided *o = caa_container_of(w, struct cfs_onesided, work);
	struct cfs_read_op *op, *next;

	pthread_mutex_lock(&o->lock);
	op = o->handed;
	o->handed = NULL;
	pthread_mutex_unlock(&o->lock);
	for (; op; op = next) {
		next = op->next;
		end(o, op);
	}
	/* Events that came while a polling thread had the lock. */
	cfs_onesided_handle(o);
}

/* Under the lock: gives op, which has ended, to the loop. */
static void hand_over(struct cfs_onesided *o, struct cfs_read_op *op)
{
	op->next = o->handed;
	o->handed = op;
	cfs_loop_run(&o->t->loop, &o->work);
}

void cfs_reading_done(void *arg, void *cookie, int err)
{
	struct cfs_onesided *o = arg;
	struct cfs_read_op *op = cookie;
	bool ends_here = false;

	pthread_mutex_lock(&o->lock);
	op->err = err;
	if (err < 0 && op->reads_table)
		op->lease->table = CFS_TABLE_ABSENT;
	op->ended = true;
	if (!op->polls) {
		ends_here = cfs_loop_is_self(&o->t->loop);
		if (!ends_here)
			hand_over(o, op);
	}
	pthread_mutex_unlock(&o->lock);
	if (ends_here)
		end(o, op);
}

/* --- polling --- */

/* Lets the other hardware thread of the core run. */
static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void leave_device(struct cfs_onesided *o)
{
	pthread_mutex_unlock(&o->device);
	if (atomic_load(&o->wanted))
		cfs_loop_run(&o->t->loop, &o->work);
}

/* Polls until op has ended, its request is detached, or until_ns. */
static void poll_until(struct cfs_onesided *o, const struct cfs_read_op *op,
		       const struct cfs_peer_get *g, uint64_t until_ns)
{
	bool over;

	for (;;) {
		if (!atomic_load(&o->wanted) && pthread_mutex_trylock(&o->device) == 0) {
			if (o->d)
				o->ops->take(o->d);
			leave_device(o);
		}
		pthread_mutex_lock(&o->lock);
		over = op->ended || op->g != g;
		pthread_mutex_unlock(&o->lock);
		if (over || cfs_now_ns() >= until_ns)
			return;
		relax();
	}
}

/* Makes the loop the owner of op. False: op has ended. */
static bool stop_polling(struct cfs_onesided *o, struct cfs_read_op *op)
{
	bool ended;

	pthread_mutex_lock(&o->lock);
	ended = op->ended;
	pthread_mutex_unlock(&o->lock);
	if (ended)
		return false;
	pthread_mutex_lock(&o->device); /* no completion is taken meanwhile */
	pthread_mutex_lock(&o->lock);
	ended = op->ended;
	if (!ended) {
		op->polls = false;
		o->n_polling--;
		if (op->r)
			cfs_polling_lost(&op->r->polling);
	}
	pthread_mutex_unlock(&o->lock);
	if (!ended)
		o->ops->watch(o->d); /* not NULL: without a device op would have ended */
	leave_device(o);
	return !ended;
}

/* Under the lock. */
static void note_polled(struct cfs_onesided *o, struct cfs_read_op *op)
{
	op->polls = false;
	o->n_polling--;
	if (op->r && op->err == 0)
		cfs_polling_won(&op->r->polling, cfs_now_ns() - op->start_ns);
}

/* After op has ended. True: g has its bytes. Otherwise the loop ends g, or sends it on a stream. */
static bool end_polled(struct cfs_onesided *o, struct cfs_peer *p, struct cfs_read_op *op,
		       struct cfs_peer_get *g)
{
	bool mine, well;

	pthread_mutex_lock(&o->lock);
	note_polled(o, op);
	mine = op->g == g;
	if (mine)
		(void)take_get(op); /* the loop does not end it */
	pthread_mutex_unlock(&o->lock);
	well = mine && op->err == 0 && is_right(o, op);
	if (well)
		copy_out(o, op, g);
	pthread_mutex_lock(&o->lock);
	if (well) {
		if (op->r)
			op->r->worked = true;
		free_op(o, op);
	} else {
		op->g = mine ? g : NULL;
		op->peer = mine ? p : NULL;
		op->held = p;
		hand_over(o, op);
	}
	pthread_mutex_unlock(&o->lock);
	return well;
}

void cfs_onesided_receive(struct cfs_peer *p, struct cfs_peer_get *g, cfs_deadline_t until)
{
	struct cfs_onesided *o = p->t->onesided;
	struct cfs_read_op *op = g->reads;
	uint64_t until_ns = CFS_MIN(until, UINT64_MAX / 1000000) * 1000000;
	bool left, well;

	poll_until(o, op, g, CFS_MIN(op->start_ns + op->poll_ns, until_ns));
	left = stop_polling(o, op);
	well = !left && end_polled(o, p, op, g);
	if (well)
		count_read(p, g);
	if (well || left) {
		pthread_mutex_lock(&p->lock);
		cfs_peer_received(p, g, well);
		pthread_mutex_unlock(&p->lock);
	}
	if (well)
		g->done(g, 0);
}

/* --- deadlines --- */

void cfs_onesided_expire(struct cfs_peer *p, uint64_t now_ms, struct cfs_get_list *list)
{
	struct cfs_onesided *o = p->t->onesided;
	unsigned i;

	if (!o || !p->reader)
		return;
	pthread_mutex_lock(&o->lock);
	for (i = 0; i < CFS_READ_OPS && o->n_ops > 0; i++) {
		struct cfs_read_op *op = &o->ops_under_way[i];

		if (op->g && op->peer == p && (op->g->canceled || op->g->deadline <= now_ms))
			cfs_gets_append(list, take_get(op));
	}
	pthread_mutex_unlock(&o->lock);
}

/* Under the lock: ends op, to whose buffers the device does not write any more. */
static void cut_off(struct cfs_onesided *o, struct cfs_read_op *op)
{
	if (op->reads_table)
		op->lease->table = CFS_TABLE_ABSENT;
	if (!op->polls) {
		free_op(o, op);
		return;
	}
	op->err = -ECONNRESET; /* seen by its polling thread */
	op->ended = true;
}

void cfs_reading_give_up(struct cfs_onesided *o, struct cfs_reader_conn *r, uint64_t before_ms,
			 bool over)
{
	unsigned i;

	for (i = 0; i < CFS_READ_OPS; i++) {
		struct cfs_read_op *op = &o->ops_under_way[i];
		struct cfs_peer_get *g = NULL;
		struct cfs_peer *p = NULL;

		pthread_mutex_lock(&o->lock);
		if (op->used && op->r == r && op->start_ms <= before_ms) {
			p = op->peer;
			g = take_get(op);
			if (over && !op->ended)
				cut_off(o, op);
		}
		pthread_mutex_unlock(&o->lock);
		if (g)
			cfs_peer_again(p, g);
	}
}

void cfs_reading_forget(struct cfs_onesided *o, struct cfs_reader_conn *r)
{
	unsigned i;
	CFS_LOCK_GUARD(&o->lock);

	cfs_leases_forget(&o->leases, r);
	for (i = 0; i < CFS_READ_OPS; i++)
		if (o->ops_under_way[i].r == r)
			o->ops_under_way[i].r = NULL;
}

bool cfs_reading_tick(struct cfs_onesided *o, uint64_t now_ms, struct cfs_rdma_conn **ret_hangs)
{
	unsigned i;
	bool busy;

	*ret_hangs = NULL;
	pthread_mutex_lock(&o->lock);
	for (i = 0; i < CFS_READ_OPS && o->n_ops > 0; i++) {
		const struct cfs_read_op *op = &o->ops_under_way[i];

		if (op->r && !op->ended && op->start_ms + HANGS_MS <= now_ms)
			*ret_hangs = op->r->conn;
	}
	busy = o->n_ops > 0;
	pthread_mutex_unlock(&o->lock);
	return busy;
}

void cfs_reading_init(struct cfs_onesided *o)
{
	unsigned i;

	for (i = 0; i < CFS_READ_PLACES; i++)
		o->places[o->n_places++] = (uint16_t)i;
	o->work.fn = run_work;
	o->max_polling = cfs_polling_threads(sysconf(_SC_NPROCESSORS_ONLN));
}
