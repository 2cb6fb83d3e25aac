/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the requests of other members. */
#include <cachefs/disk.h>
#include <errno.h>
#include <stdlib.h>

#include "base/arrival.h"
#include "base/task.h"
#include "peers-internal.h"

#define ROOM_TIMEOUT_MS 2000
#define STALL_MS	5000 /* no bytes from object storage for so long: fetches hang */
#define DISK_TIER	0    /* its number, when there is a disk cache */
#define REPLICATE_AFTER 3u   /* readers of a block; twice as many each further time */
#define COPIED_MAX	16u  /* doublings */
#define PART_MIN	(64u << 10)

static void refuse(struct cfs_peer_request *req, int err)
{
	const struct cfs_peer_answer a = {.err = err, .fd = -1};

	cfs_peer_answer(req, &a);
}

static void run_forget(struct cfs_job *job)
{
	struct block_job *j = (struct block_job *)job;
	struct cfs_peers *p = j->peers;

	cfs_memory_forget(p->store, &j->block);
	if (p->disk)
		cfs_disk_tier.forget(p->disk, &j->block);
	free(j);
}

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
		cfs_peers_submit_block(s->peers, s->peers->workers, run_forget, &s->block);
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

static void free_pin(struct cfs_task *task, bool uncollected)
{
	struct pin_task *c = (struct pin_task *)task;

	if (uncollected && c->pin.file)
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

/* 0: answered; -ENOENT: not cached as a file; -EAGAIN: it would have to wait. */
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
	s->block = cfs_block_from_peer(&req->block);
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
	cfs_peers_release(s->reservation);
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

/* As cfs_peers_reserve(). */
static int new_pages(struct cfs_peers *p, const struct cfs_block *block, uint64_t bytes,
		     cfs_deadline_t deadline, struct sent_pages **ret)
{
	struct sent_pages *s = malloc(sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	r = cfs_peers_reserve(p, RESERVED_OTHERS, block, bytes, deadline, &s->reservation);
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
	struct cfs_block b = cfs_block_from_peer(&req->block);
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

/* Fetches the whole block: other members will read the rest. */
static void answer_fetched(struct cfs_peers *p, struct cfs_peer_request *req, struct sent_pages *s)
{
	cfs_deadline_t deadline = cfs_deadline_in(p->store->get_timeout_ms);
	struct cfs_block b = cfs_block_from_peer(&req->block);
	bool failover = !cfs_group_owns(p->group, &req->block);
	struct cfs_segs whole;
	int r;

	cfs_segs_init(&whole);
	if (failover)
		cfs_peers_set_failover(s->reservation, true);
	r = cfs_store_read(p->store, &b, 0, b.len, deadline, &whole);
	if (failover)
		cfs_peers_set_failover(s->reservation, false);
	if (r == 0)
		cfs_peers_keep_fetched(s->reservation, &whole);
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
	if (req->flags & CFS_PEER_FAILOVER)
		return cfs_group_may_fail_over(p->group, &req->block);
	return cfs_group_owns(p->group, &req->block);
}

static void answer_get(struct cfs_peers *p, struct cfs_peer_request *req)
{
	cfs_deadline_t deadline =
		cfs_deadline_in(req->patient ? p->store->get_timeout_ms : ROOM_TIMEOUT_MS);
	struct cfs_block b = cfs_block_from_peer(&req->block);
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

/* Answers from memory only, without disk access. */
static bool is_on_disk(const struct cfs_peers *p, const struct cfs_peer_request *req)
{
	struct cfs_block b = cfs_block_from_peer(&req->block);

	return p->disk && cfs_disk_tier.holds(p->disk, &b);
}

/* The parts of the block that the request is for, a bit each. goes_on: the last request ended at
 * its beginning, and was for that part. */
static uint64_t parts_of(const struct cfs_peer_request *req, bool goes_on)
{
	uint32_t part = CFS_DIV_UP(req->block.len, 64 * PART_MIN) * PART_MIN;
	uint32_t first = goes_on ? CFS_DIV_UP(req->off, part) : req->off / part;
	uint32_t end = CFS_DIV_UP(req->off + req->len, part);

	return first < end ? UINT64_MAX >> (64 - end) >> first << first : 0;
}

/*
 * On the transport's thread. A reader counts once per pass over a block, in whatever order its
 * requests arrive: a repeated request for any part begins the next pass. The first part need not
 * be requested again, since the reader may have it in memory.
 */
static void count_request(struct cfs_peers *p, const struct cfs_peer_request *req)
{
	uint64_t key = req->block.slice * 0x9e3779b97f4a7c15u + req->block.index;
	struct request_counter *c = &p->counters[key % CFS_PEERS_COUNTERS];
	bool same = c->key == key && c->from == req->from;
	uint64_t parts = parts_of(req, same && c->next == req->off);

	if (c->key != key)
		*c = (struct request_counter){.key = key};
	c->from = req->from;
	c->next = req->off + req->len;
	if (same && !(c->asked & parts)) {
		c->asked |= parts;
		return;
	}
	c->asked = parts;
	if (++c->requests < REPLICATE_AFTER << c->copied)
		return;
	c->requests = 0;
	c->copied = CFS_MIN(c->copied + 1, COPIED_MAX);
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
		count_request(p, req);
	if (answer_from_disk(p, req, true) == 0)
		return;
	r = answer_from_memory(p, req, 0);
	if (r == 0)
		return;
	/* Answered at once: it may be a probe of this member's health. */
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
	if (cfs_peers_submit(p, p->workers, &j->job) < 0) {
		free(j);
		refuse(req, -EBUSY);
	}
}

static void run_warm(struct cfs_job *job)
{
	struct block_job *j = (struct block_job *)job;
	struct cfs_peers *p = j->peers;
	struct cfs_peer_block block = cfs_block_to_peer(&j->block);

	if (!atomic_load(&p->leaving) && cfs_group_owns(p->group, &block))
		cfs_store_warm(p->store, &j->block, cfs_deadline_in(p->store->get_timeout_ms));
	free(j);
}

static void serve_hint(void *arg, uint64_t from, const struct cfs_peer_block *b,
		       enum cfs_peer_hint hint)
{
	struct cfs_block block = cfs_block_from_peer(b);
	struct cfs_peers *p = arg;

	(void)from;
	cfs_peers_submit_block(p, p->workers, hint == CFS_PEER_FORGET ? run_forget : run_warm,
			       &block);
}

static bool serve_works(void *arg, const struct cfs_peer_request *req, uint64_t since_ms,
			uint64_t *ret_left_ms)
{
	struct cfs_block b = cfs_block_from_peer(&req->block);
	struct cfs_peers *p = arg;

	*ret_left_ms = cfs_flight_left_ms(p->store, &b);
	return cfs_now_ms() - CFS_MAX(since_ms, cfs_arrival_last_ms()) < STALL_MS;
}

const struct cfs_peer_serve_ops cfs_peers_serve_ops = {
	.get = serve_get,
	.hint = serve_hint,
	.works = serve_works,
};
