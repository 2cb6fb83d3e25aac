/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/peers.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "base/arrival.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/task.h"
#include "store-internal.h"

#define WORKERS		8
#define QUEUE_LIMIT	256
#define KEEPERS		2
#define KEEP_TIMEOUT_MS 5000 /* a disk cache that is full for longer does without the block */
#define ROOM_TIMEOUT_MS 2000
#define STILL_MS	5000 /* nothing has come of object storage: what is fetched hangs */
#define DISK_TIER	0    /* its number, when there is a disk cache */
/* Of the pool: at most one of so many is being sent or fetched for others. */
#define RESERVED_PARTS 4

#define BUCKET_GETS 16 /* that its pace is taken from */

#define HEAT_PLACES 4093
#define HOT	    3 /* times asked for, after which replicas get a copy */

struct heat {
	uint64_t key, from;
	unsigned asked;
};

/* Memory of the pool that is reserved for other members. */
struct reservation {
	LIST_ENTRY(reservation) link;
	struct cfs_peers *peers;
	struct cfs_block
		block; /* all of it is being fetched; length 0: what is in memory is sent */
	uint64_t bytes;
	unsigned refs; /* of the sender, and of the cache write */
	bool kept;     /* until it is on disk */
};

struct cfs_peers {
	struct heat heat[HEAT_PLACES]; /* the transport's thread's */
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cfs_group *group;
	struct cfs_workers *workers, *keepers;
	struct cfs_workers *fillers; /* wait for other members, as those who serve them must not */
	atomic_bool leaving;
	pthread_mutex_t lock; /* leaving begins between two submissions; also protects the rest */
	pthread_cond_t room;
	LIST_HEAD(, reservation) reservations;
	uint64_t reserved, reserved_max; /* bytes of the pool */
	LIST_HEAD(, stand_in) stand_ins;
	atomic_uint n_stand_ins;
	struct bucket_seen {
		uint64_t gets, bytes, ns;
	} bucket_seen;		      /* when its pace was taken */
	_Atomic uint64_t bucket_next; /* GETs at which it is taken again */
	_Atomic uint64_t bucket_us;
};

/*
 * A block that is fetched here for an owner that is slow: as if it were ours, and without asking
 * it.
 */
struct stand_in {
	LIST_ENTRY(stand_in) link; /* with the lock */
	struct cfs_block block;
};

static bool stands_in(struct cfs_peers *p, const struct cfs_block *b)
{
	struct stand_in *s;

	if (atomic_load(&p->n_stand_ins) == 0)
		return false;
	pthread_mutex_lock(&p->lock);
	LIST_FOREACH(s, &p->stand_ins, link)
	{
		if (s->block.slice == b->slice && s->block.index == b->index)
			break;
	}
	pthread_mutex_unlock(&p->lock);
	return s != NULL;
}

static int submit_to(struct cfs_peers *p, struct cfs_workers *w, struct cfs_job *job)
{
	int r;

	pthread_mutex_lock(&p->lock);
	r = atomic_load(&p->leaving) ? -ESHUTDOWN : cfs_workers_try_submit(w, job);
	pthread_mutex_unlock(&p->lock);
	return r;
}

static int submit(struct cfs_peers *p, struct cfs_job *job)
{
	return submit_to(p, p->workers, job);
}

static struct cfs_peer_block to_peer(const struct cfs_block *b)
{
	return (struct cfs_peer_block){.slice = b->slice, .index = b->index, .len = b->len};
}

static struct cfs_block from_peer(const struct cfs_peer_block *b)
{
	return (struct cfs_block){.slice = b->slice, .index = b->index, .len = b->len};
}

/* ---- memory ---- */

/*
 * Reserves memory for other members. It is bounded, as they decide how long they take
 * to receive it. block: NULL, or the block to be fetched. -EAGAIN: none by the deadline (0: at
 * once); -ENOMEM.
 */
static int reserve(struct cfs_peers *p, const struct cfs_block *block, uint64_t bytes, bool kept,
		   cfs_deadline_t deadline, struct reservation **ret)
{
	struct reservation *l = calloc(1, sizeof(*l));
	int r = 0;

	if (!l)
		return -ENOMEM;
	l->peers = p;
	l->bytes = bytes;
	l->refs = 1;
	l->kept = kept;
	if (block)
		l->block = *block;
	pthread_mutex_lock(&p->lock);
	while (p->reserved > 0 && p->reserved + bytes > p->reserved_max && r == 0)
		r = deadline ? cfs_cond_wait(&p->room, &p->lock, deadline) : -EAGAIN;
	if (r == 0) {
		p->reserved += bytes;
		LIST_INSERT_HEAD(&p->reservations, l, link);
	}
	pthread_mutex_unlock(&p->lock);
	if (r == 0)
		*ret = l;
	else
		free(l);
	return r == 0 ? 0 : -EAGAIN;
}

static void release(struct reservation *l)
{
	struct cfs_peers *p = l->peers;
	bool last;

	pthread_mutex_lock(&p->lock);
	last = --l->refs == 0;
	if (last) {
		LIST_REMOVE(l, link);
		p->reserved -= l->bytes;
		pthread_cond_broadcast(&p->room);
	}
	pthread_mutex_unlock(&p->lock);
	if (last)
		free(l);
}

/* Called with the lock. Held for members that asked for the whole block, or until it is on disk. */
static struct reservation *find_reservation(struct cfs_peers *p, const struct cfs_block *b,
					    bool kept)
{
	struct reservation *l;

	LIST_FOREACH(l, &p->reservations, link)
	{
		if (l->block.len && l->block.slice == b->slice && l->block.index == b->index &&
		    (l->kept || !kept))
			return l;
	}
	return NULL;
}

/* ---- asking: the tier ---- */

static ssize_t get(struct cfs_peers *p, const struct cfs_block *b, uint32_t off,
		   const struct iovec *dst, int n_dst, bool nowait, struct cfs_hedge *hedge,
		   cfs_deadline_t deadline)
{
	struct cfs_peer_block block = to_peer(b);
	uint32_t len = 0;
	int i;

	if (atomic_load(&p->leaving) || stands_in(p, b))
		return -ENOENT;
	for (i = 0; i < n_dst; i++)
		len += (uint32_t)dst[i].iov_len;
	return cfs_group_read(p->group, &block, off, len, dst, n_dst, nowait, hedge, deadline);
}

static ssize_t tier_get(void *tier, const struct cfs_block *b, uint32_t off,
			const struct iovec *dst, int n_dst, bool nowait, cfs_deadline_t deadline)
{
	return get(tier, b, off, dst, n_dst, nowait, NULL, deadline);
}

static ssize_t tier_get_hedged(void *tier, const struct cfs_block *b, uint32_t off,
			       const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			       cfs_deadline_t deadline)
{
	return get(tier, b, off, dst, n_dst, false, hedge, deadline);
}

static enum cfs_place tier_place(void *tier, const struct cfs_block *b)
{
	struct cfs_peers *p = tier;
	struct cfs_peer_block block = to_peer(b);

	if (atomic_load(&p->leaving) || !cfs_group_shares(p->group))
		return CFS_PLACE_ANY;
	if (stands_in(p, b) || cfs_group_owns(p->group, &block))
		return CFS_PLACE_HERE;
	return CFS_PLACE_ELSEWHERE;
}

struct warm_job {
	struct cfs_job job; /* first */
	struct cfs_peers *peers;
	struct cfs_peer_block block;
};

/* Reading one byte makes the owner fetch and keep the whole block. */
static void run_warm(struct cfs_job *job)
{
	struct warm_job *j = (struct warm_job *)job;
	char byte;
	const struct iovec dst = {.iov_base = &byte, .iov_len = 1};

	if (!atomic_load(&j->peers->leaving))
		cfs_group_read(j->peers->group, &j->block, 0, 1, &dst, 1, false, NULL,
			       cfs_deadline_in(j->peers->store->get_timeout_ms));
	free(j);
}

static void warm_owner(struct cfs_peers *p, const struct cfs_block *b)
{
	struct warm_job *j = malloc(sizeof(*j));

	if (!j)
		return;
	*j = (struct warm_job){.job.run = run_warm, .peers = p, .block = to_peer(b)};
	if (submit_to(p, p->fillers, &j->job) < 0)
		free(j);
}

struct keep_job {
	struct cfs_job job; /* first */
	struct reservation *reservation;
	struct cfs_block block;
	struct cfs_segs data;
};

static void end_keep(struct keep_job *j)
{
	cfs_segs_release(&j->data);
	release(j->reservation);
	free(j);
}

static void run_keep(struct cfs_job *job)
{
	struct keep_job *j = (struct keep_job *)job;
	struct cfs_peers *p = j->reservation->peers;

	if (!atomic_load(&p->leaving))
		cfs_store_keep(p->store, &j->block, &j->data, cfs_deadline_in(KEEP_TIMEOUT_MS));
	end_keep(j);
}

/* Takes over the reference of the reservation in every case. */
static int keep_until_written(struct reservation *l, const struct cfs_block *b,
			      const struct cfs_segs *data)
{
	struct keep_job *j = malloc(sizeof(*j));
	int r;

	if (!j) {
		release(l);
		return -ENOMEM;
	}
	*j = (struct keep_job){.job.run = run_keep, .reservation = l, .block = *b};
	cfs_segs_init(&j->data);
	r = cfs_segs_slice(&j->data, data, 0, data->len);
	if (r == 0)
		r = submit_to(l->peers, l->peers->keepers, &j->job);
	if (r < 0)
		end_keep(j);
	return r;
}

/* Fetched blocks stay in the reservation that they were fetched with: there is room for all. */
static void keep_fetched(struct reservation *l, const struct cfs_segs *data)
{
	struct cfs_peers *p = l->peers;
	bool kept;

	if (!p->disk)
		return;
	pthread_mutex_lock(&p->lock);
	kept = find_reservation(p, &l->block, true) != NULL;
	if (!kept) {
		l->refs++;
		l->kept = true;
	}
	pthread_mutex_unlock(&p->lock);
	if (!kept && keep_until_written(l, &l->block, data) < 0)
		cfs_disk_tier.offer(p->disk, &l->block, data);
}

/*
 * A disk cache that is behind drops new blocks. The next request for an own block would then fetch
 * it again, so it is held in memory until it is on disk, while there is room.
 */
static void tier_keep(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct cfs_peers *p = tier;
	struct reservation *l;
	bool others;

	if (!p->disk)
		return;
	pthread_mutex_lock(&p->lock);
	others = find_reservation(p, b, false) != NULL;
	pthread_mutex_unlock(&p->lock);
	if (others)
		return; /* keep_fetched() */
	if (reserve(p, b, b->len, true, 0, &l) < 0 || keep_until_written(l, b, data) < 0)
		cfs_disk_tier.offer(p->disk, b, data);
}

static void tier_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct cfs_peers *p = tier;

	(void)data;
	if (p->fillers && !atomic_load(&p->leaving))
		warm_owner(p, b);
}

static void tier_forget(void *tier, const struct cfs_block *b)
{
	struct cfs_peers *p = tier;
	struct cfs_peer_block block = to_peer(b);

	if (!atomic_load(&p->leaving))
		cfs_group_hint(p->group, &block, CFS_PEER_FORGET);
}

static void tier_stats(void *tier, struct cfs_store_stats *ret)
{
	struct cfs_peers *p = tier;
	struct cfs_group_stats s;
	const struct reservation *l;

	pthread_mutex_lock(&p->lock);
	LIST_FOREACH(l, &p->reservations, link)
	ret->disk_pending_bytes += l->kept ? l->bytes : 0;
	pthread_mutex_unlock(&p->lock);
	cfs_group_stats(p->group, &s);
	ret->peer_members = s.members;
	ret->peer_members_apart = s.apart;
	ret->peer_members_slow = s.slow;
	ret->peer_hits = s.hits;
	ret->peer_hit_bytes = s.hit_bytes;
	ret->peer_misses = s.misses;
	ret->peer_fallbacks = s.fallbacks;
	ret->peer_hedges = s.hedges;
	ret->peer_hedge_wins = s.hedge_wins;
	ret->peer_asked = s.asked;
	ret->peer_served = s.served;
}

static const struct cfs_tier_ops peer_tier = {
	.name = "peers",
	.get = tier_get,
	.get_hedged = tier_get_hedged,
	.offer = tier_offer,
	.forget = tier_forget,
	.place = tier_place,
	.keep = tier_keep,
	.stats = tier_stats,
};

/* ---- answering ---- */

static void refuse(struct cfs_peer_request *req, int err)
{
	const struct cfs_peer_answer a = {.err = err, .fd = -1};

	cfs_peer_answer(req, &a);
}

static void note_hint(struct cfs_peers *p, const struct cfs_block *b, enum cfs_peer_hint hint);

/* A file that is being sent. */
struct sent_file {
	struct cfs_peers *peers;
	struct cfs_block block;
	struct cfs_disk_pin pin;
};

static void file_sent(void *arg, bool mismatch)
{
	struct sent_file *s = arg;

	cfs_disk_unpin(&s->pin);
	if (mismatch)
		note_hint(s->peers, &s->block, CFS_PEER_FORGET);
	free(s);
}

struct pin_task {
	struct cfs_task task; /* first */
	struct cfs_disk *disk;
	struct cfs_block block;
	struct cfs_disk_pin pin;
};

static ssize_t run_pin(struct cfs_task *task)
{
	struct pin_task *c = (struct pin_task *)task;

	return cfs_disk_pin(c->disk, &c->block, false, &c->pin);
}

static void free_pin(struct cfs_task *task, bool left)
{
	struct pin_task *c = (struct pin_task *)task;

	if (left && c->pin.file)
		cfs_disk_unpin(&c->pin);
	free(c);
}

/* As cfs_disk_pin(), with a bounded wait for the disk; after that there is none. */
static int pin_in_time(struct cfs_peers *p, const struct cfs_block *b, struct cfs_disk_pin *ret)
{
	struct pin_task *c = cfs_task_new(sizeof(*c), run_pin, free_pin);
	cfs_deadline_t deadline = cfs_deadline_in(p->store->local_timeout_ms);
	ssize_t pinned = 0;
	int r;

	if (!c)
		return -ENOMEM;
	c->disk = p->disk;
	c->block = *b;
	r = cfs_route_wait(p->store, DISK_TIER, b, &c->task, deadline, &pinned);
	r = r < 0 ? -ENOENT : (int)pinned;
	if (r == 0)
		*ret = c->pin;
	cfs_task_end(&c->task);
	return r;
}

/* 0: answered; -ENOENT, -EAGAIN: not cached as a file, nowait would not do. */
static int answer_from_disk(struct cfs_peers *p, struct cfs_peer_request *req, bool nowait)
{
	struct sent_file *s;
	int r;

	if (!p->disk)
		return -ENOENT;
	s = malloc(sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->peers = p;
	s->block = from_peer(&req->block);
	if (nowait)
		r = cfs_disk_pin(p->disk, &s->block, true, &s->pin);
	else
		r = pin_in_time(p, &s->block, &s->pin);
	if (r == 0 && s->pin.len != req->block.len) {
		cfs_disk_unpin(&s->pin);
		r = -ENOENT;
	}
	if (r) {
		free(s);
		return r;
	}
	cfs_peer_answer(req, &(struct cfs_peer_answer){
				     .fd = s->pin.fd,
				     .disk = s->pin.dir,
				     .n_crcs = s->pin.n_crcs,
				     .crcs = s->pin.crcs,
				     .release = file_sent,
				     .arg = s,
			     });
	return 0;
}

/* Pages that are being sent. */
struct sent_pages {
	struct reservation *reservation;
	struct cfs_segs segs;
	struct iovec *iov;
};

static void pages_sent(void *arg, bool mismatch)
{
	struct sent_pages *s = arg;

	(void)mismatch;
	cfs_segs_release(&s->segs);
	release(s->reservation);
	free(s->iov);
	free(s);
}

/* Takes over s, which has the requested pages. */
static void answer_pages(struct cfs_peer_request *req, struct sent_pages *s)
{
	int n = cfs_segs_iov(&s->segs, &s->iov);

	if (n < 0) {
		s->iov = NULL;
		pages_sent(s, false);
		refuse(req, -EBUSY);
		return;
	}
	cfs_peer_answer(req, &(struct cfs_peer_answer){
				     .fd = -1,
				     .iov = s->iov,
				     .n_iov = n,
				     .release = pages_sent,
				     .arg = s,
			     });
}

/* As reserve(). */
static int new_pages(struct cfs_peers *p, const struct cfs_block *block, uint64_t bytes,
		     cfs_deadline_t deadline, struct sent_pages **ret)
{
	struct sent_pages *s = malloc(sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	r = reserve(p, block, bytes, false, deadline, &s->reservation);
	if (r < 0) {
		free(s);
		return r;
	}
	s->iov = NULL;
	cfs_segs_init(&s->segs);
	*ret = s;
	return 0;
}

/* 0: answered; -ENOENT: not cached there; -EAGAIN, -ENOMEM. */
static int answer_from_memory(struct cfs_peers *p, struct cfs_peer_request *req,
			      cfs_deadline_t deadline)
{
	struct cfs_block b = from_peer(&req->block);
	struct shard *sh = cfs_memory_shard(p->store, &b);
	struct sent_pages *s;
	struct block *block;
	int r;

	if (!cfs_store_in_memory(p->store, &b, req->off, req->len))
		return -ENOENT;
	r = new_pages(p, NULL, req->len, deadline, &s);
	if (r < 0)
		return r;
	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_find(sh, &b);
	if (block)
		r = cfs_memory_collect(block, req->off, req->len, &s->segs);
	pthread_mutex_unlock(&sh->lock);
	if (r <= 0) {
		pages_sent(s, false);
		return -ENOENT;
	}
	answer_pages(req, s);
	return 0;
}

/* Fetches the whole block at once: other members will want the rest. */
static void answer_fetched(struct cfs_peers *p, struct cfs_peer_request *req, struct sent_pages *s)
{
	cfs_deadline_t deadline = cfs_deadline_in(p->store->get_timeout_ms);
	struct cfs_block b = from_peer(&req->block);
	struct stand_in stand_in = {.block = b};
	bool for_another = !cfs_group_owns(p->group, &req->block);
	struct cfs_segs whole;
	int r;

	cfs_segs_init(&whole);
	if (for_another) {
		pthread_mutex_lock(&p->lock);
		LIST_INSERT_HEAD(&p->stand_ins, &stand_in, link);
		atomic_fetch_add(&p->n_stand_ins, 1);
		pthread_mutex_unlock(&p->lock);
	}
	r = cfs_store_read(p->store, &b, 0, b.len, deadline, &whole);
	if (for_another) {
		pthread_mutex_lock(&p->lock);
		LIST_REMOVE(&stand_in, link);
		atomic_fetch_sub(&p->n_stand_ins, 1);
		pthread_mutex_unlock(&p->lock);
	}
	if (r == 0)
		keep_fetched(s->reservation, &whole);
	if (r == 0)
		r = cfs_segs_slice(&s->segs, &whole, req->off, req->len);
	if (r == 0) {
		answer_pages(req, s);
	} else {
		pages_sent(s, false);
		refuse(req, r == -ENOENT ? -ENOENT : -EIO);
	}
	cfs_segs_release(&whole);
}

struct get_job {
	struct cfs_job job; /* first */
	struct cfs_peers *peers;
	struct cfs_peer_request *req;
};

static bool may_fetch(struct cfs_peers *p, const struct cfs_peer_request *req)
{
	if (req->flags & CFS_PEER_STAND_IN)
		return cfs_group_may_stand_in(p->group, &req->block);
	return cfs_group_owns(p->group, &req->block);
}

static void answer_get(struct cfs_peers *p, struct cfs_peer_request *req)
{
	cfs_deadline_t deadline =
		cfs_deadline_in(req->patient ? p->store->get_timeout_ms : ROOM_TIMEOUT_MS);
	struct cfs_block b = from_peer(&req->block);
	struct sent_pages *s;
	int r;

	r = answer_from_disk(p, req, false);
	if (r != 0)
		r = answer_from_memory(p, req, deadline);
	if (r == 0)
		return;
	if (r != -ENOENT) {
		refuse(req, -EBUSY);
		return;
	}
	if ((req->flags & CFS_PEER_ONLY_CACHED) || !may_fetch(p, req)) {
		refuse(req, -ENOENT);
		return;
	}
	if (atomic_load(&p->leaving)) {
		refuse(req, -ESHUTDOWN);
		return;
	}
	if (new_pages(p, &b, b.len, deadline, &s) < 0) {
		refuse(req, -EBUSY);
		return;
	}
	answer_fetched(p, req, s);
}

static void run_get(struct cfs_job *job)
{
	struct get_job *j = (struct get_job *)job;

	answer_get(j->peers, j->req);
	free(j);
}

/* Answers from memory only, without asking the disk. */
static bool is_on_disk(const struct cfs_peers *p, const struct cfs_peer_request *req)
{
	struct cfs_block b = from_peer(&req->block);

	return p->disk && cfs_disk_tier.holds(p->disk, &b);
}

/* By the transport's thread. A guess: blocks that share a place count as one. */
static void note_heat(struct cfs_peers *p, const struct cfs_peer_request *req)
{
	uint64_t key = req->block.slice * 0x9e3779b97f4a7c15u + req->block.index;
	struct heat *h = &p->heat[key % HEAT_PLACES];

	if (h->key != key)
		*h = (struct heat){.key = key};
	/* A reader of all of it, or another one. */
	if (req->off == 0 || h->from != req->from)
		h->asked++;
	h->from = req->from;
	if (h->asked < HOT)
		return;
	h->asked = 0;
	cfs_group_replicate(p->group, &req->block);
}

static void serve_get(void *arg, struct cfs_peer_request *req)
{
	struct cfs_peers *p = arg;
	struct get_job *j;
	int r;

	if (atomic_load(&p->leaving)) {
		refuse(req, -ESHUTDOWN);
		return;
	}
	if (!(req->flags & CFS_PEER_ONLY_CACHED))
		note_heat(p, req);
	if (answer_from_disk(p, req, true) == 0)
		return;
	r = answer_from_memory(p, req, 0);
	if (r == 0)
		return;
	/* Answered at once: the asker may only want to know whether we are alive. */
	if (r == -ENOENT && (req->flags & CFS_PEER_ONLY_CACHED) && !is_on_disk(p, req)) {
		refuse(req, -ENOENT);
		return;
	}
	j = malloc(sizeof(*j));
	if (!j) {
		refuse(req, -EBUSY);
		return;
	}
	*j = (struct get_job){.job.run = run_get, .peers = p, .req = req};
	if (!(req->flags & CFS_PEER_ONLY_CACHED))
		cfs_peer_working(req, cfs_deadline_in(p->store->get_timeout_ms));
	if (submit(p, &j->job) < 0) {
		free(j);
		refuse(req, -EBUSY);
	}
}

struct hint_job {
	struct cfs_job job; /* first */
	struct cfs_peers *peers;
	struct cfs_block block;
	enum cfs_peer_hint hint;
};

static void forget_locally(struct cfs_peers *p, const struct cfs_block *b)
{
	cfs_memory_forget(p->store, b);
	if (p->disk)
		cfs_disk_tier.forget(p->disk, b);
}

static void run_hint(struct cfs_job *job)
{
	struct hint_job *j = (struct hint_job *)job;
	struct cfs_peers *p = j->peers;
	struct cfs_peer_block block = to_peer(&j->block);

	if (j->hint == CFS_PEER_FORGET)
		forget_locally(p, &j->block);
	else if (j->hint == CFS_PEER_WARM && !atomic_load(&p->leaving) &&
		 cfs_group_owns(p->group, &block))
		cfs_store_warm(p->store, &j->block, cfs_deadline_in(p->store->get_timeout_ms));
	free(j);
}

static void note_hint(struct cfs_peers *p, const struct cfs_block *b, enum cfs_peer_hint hint)
{
	struct hint_job *j = malloc(sizeof(*j));

	if (!j)
		return;
	*j = (struct hint_job){.job.run = run_hint, .peers = p, .block = *b, .hint = hint};
	if (submit(p, &j->job) < 0)
		free(j);
}

static void serve_hint(void *arg, uint64_t from, const struct cfs_peer_block *b,
		       enum cfs_peer_hint hint)
{
	struct cfs_block block = from_peer(b);

	(void)from;
	note_hint(arg, &block, hint);
}

static bool serve_works(void *arg, uint64_t since_ms)
{
	(void)arg;
	return cfs_now_ms() - CFS_MAX(since_ms, cfs_arrival_last_ms()) < STILL_MS;
}

static const struct cfs_peer_serve_ops serve_ops = {
	.get = serve_get,
	.hint = serve_hint,
	.works = serve_works,
};

static uint64_t cached_bytes(void *arg)
{
	struct cfs_peers *p = arg;
	struct cfs_store_stats s = {0};

	if (p->disk)
		cfs_disk_tier.stats(p->disk, &s);
	return s.disk_bytes;
}

static bool keeps(void *arg)
{
	struct cfs_peers *p = arg;
	struct cfs_store_stats s = {0};

	if (p->disk)
		cfs_disk_tier.stats(p->disk, &s);
	return s.disk_dirs > s.disk_dirs_bad;
}

/* Of its last GETs, BUCKET_GETS or more, when there are so many. */
static uint64_t bucket_us(void *arg)
{
	struct cfs_peers *p = arg;
	struct bucket_seen *seen = &p->bucket_seen;
	uint64_t gets = atomic_load(&p->store->stat.gets), bytes, ns;

	if (gets < atomic_load(&p->bucket_next))
		return atomic_load(&p->bucket_us);
	pthread_mutex_lock(&p->lock);
	gets = atomic_load(&p->store->stat.gets);
	if (gets >= atomic_load(&p->bucket_next)) {
		bytes = atomic_load(&p->store->stat.get_bytes);
		ns = atomic_load(&p->store->stat.get_ns);
		atomic_store(&p->bucket_us, cfs_group_pace_us(ns - seen->ns, bytes - seen->bytes,
							      gets - seen->gets));
		atomic_store(&p->bucket_next, gets + BUCKET_GETS);
		*seen = (struct bucket_seen){.gets = gets, .bytes = bytes, .ns = ns};
	}
	pthread_mutex_unlock(&p->lock);
	return atomic_load(&p->bucket_us);
}

/* ---- life ---- */

int cfs_peers_join(const struct cfs_peers_conf *conf, struct cfs_peers **ret, char err[256])
{
	struct cfs_group_conf group = conf->group;
	struct cfs_peers *p = calloc(1, sizeof(*p));
	struct cfs_pool_stats pool;
	int r = -ENOMEM;

	if (!p || cfs_cond_init(&p->room) < 0)
		goto no_memory;
	cfs_pool_stats(conf->store->pool, &pool);
	p->reserved_max = pool.budget / RESERVED_PARTS;
	p->store = conf->store;
	p->disk = conf->disk;
	atomic_init(&p->bucket_next, 1);
	pthread_mutex_init(&p->lock, NULL);
	atomic_init(&p->leaving, true); /* until all is there */
	r = cfs_workers_create("cfs-peers", conf->workers ? conf->workers : WORKERS, QUEUE_LIMIT,
			       &p->workers);
	if (r == 0)
		r = cfs_workers_create("cfs-keep", KEEPERS, QUEUE_LIMIT, &p->keepers);
	if (r == 0 && conf->fill)
		r = cfs_workers_create("cfs-fill", WORKERS, QUEUE_LIMIT, &p->fillers);
	if (r < 0)
		goto no_memory;
	group.ops = &serve_ops;
	group.ops_arg = p;
	group.cached_bytes = cached_bytes;
	group.keeps = keeps;
	group.bucket_us = bucket_us;
	r = cfs_group_join(&group, &p->group, err);
	if (r == 0)
		r = cfs_store_add_tier(conf->store, &peer_tier, p);
	if (r < 0) {
		cfs_peers_leave(p);
		cfs_peers_destroy(p);
		return r;
	}
	atomic_store(&p->leaving, false);
	*ret = p;
	return 0;

no_memory:
	snprintf(err, 256, "out of memory");
	if (p) {
		cfs_workers_destroy(p->workers);
		cfs_workers_destroy(p->keepers);
	}
	free(p);
	return r;
}

void cfs_peers_leave(struct cfs_peers *p)
{
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->leaving, true);
	pthread_mutex_unlock(&p->lock);
	if (p->group)
		cfs_group_leave(p->group);
	cfs_workers_destroy(p->workers);
	cfs_workers_destroy(p->keepers);
	cfs_workers_destroy(p->fillers);
}

void cfs_peers_destroy(struct cfs_peers *p)
{
	if (p->group)
		cfs_group_destroy(p->group);
	pthread_cond_destroy(&p->room);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

struct cfs_group *cfs_peers_group(struct cfs_peers *p)
{
	return p->group;
}

int cfs_peers_map(struct cfs_peers *p, const struct cfs_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline)
{
	struct cfs_peer_block block = to_peer(b);
	int n = cfs_group_map(p->group, &block, owners, cached, deadline), i;
	struct cfs_store_held held;

	for (i = 0; i < n; i++) {
		if (cached[i] != -ENOTSUP)
			continue;
		cfs_store_held(p->store, b, 0, b->len, &held);
		cached[i] = held.disk == b->len || held.memory == b->len;
	}
	return n;
}
