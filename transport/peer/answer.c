/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending an answer. First its checksum: whole segments have theirs in the file; for a part of a
 * segment, the whole segment is read and checked and the part's checksum computed. Then the frame is
 * queued: small answers are copied together, large ones go from the page cache to the socket through
 * a pipe. Workers of the ring read a file that is not in the page cache, after admission to its
 * disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "transport-internal.h"
#include "transport/wire/crc.h"

#define CHUNK	 (64u << 10)
#define COALESCE (4u << 10)
#define FEW	 (4 * COALESCE) /* frames in a chunk */
/* Limit of queued copies per connection; beyond it small answers take the path of large ones. */
#define COPIED_MAX (1u << 20)
#define SEND_IOV   16
#define IN_RING	   (-EINPROGRESS)

/* --- the queue --- */

static void append(struct cfs_server *sc, struct cfs_out *o)
{
	if (!sc->out_first)
		sc->progress_ms = cfs_loop_ran_ms(&sc->c.t->loop);
	o->next = NULL;
	*sc->out_last = o;
	sc->out_last = &o->next;
	sc->out_open = o->reply ? NULL : o;
}

/* Room for a small frame at the end of the queue; cap: size of a further chunk, if needed. */
static uint8_t *reserve(struct cfs_server *sc, uint32_t len, uint32_t cap)
{
	struct cfs_out *o = sc->out_open;

	if (!o || o->cap - o->len < len) {
		o = calloc(1, sizeof(*o));
		if (!o)
			return NULL;
		o->data = malloc(cap);
		if (!o->data) {
			free(o);
			return NULL;
		}
		o->cap = cap;
		sc->c.t->copied += cap;
		append(sc, o);
	}
	o->len += len;
	sc->copied += len;
	return o->data + o->len - len;
}

static void pop(struct cfs_server *sc)
{
	struct cfs_out *o = sc->out_first;

	sc->out_first = o->next;
	if (!o->next)
		sc->out_last = &sc->out_first;
	if (sc->out_open == o)
		sc->out_open = NULL;
	cfs_session_credit(&sc->session, o->requests, o->bytes);
	if (!o->reply) {
		sc->copied -= o->len;
		sc->c.t->copied -= o->cap;
		free(o->data);
		free(o);
	}
}

/* --- the end of a reply --- */

static void end(struct cfs_reply *j, bool mismatch)
{
	struct cfs_server *sc = j->sc;

	if (j->pipe) {
		cfs_pipe_blocked(j, false);
		cfs_pipe_put(sc->c.t, j->pipe);
	}
	cfs_session_done(&j->s, mismatch);
	cfs_admission_leave(j);
	free(j);
	cfs_conn_unref(&sc->c);
}

/* Queues a frame without data. False: there is no memory. */
static bool queue_control(struct cfs_server *sc, struct cfs_frame f, const void *payload,
			  uint32_t len)
{
	uint8_t *p = reserve(sc, CFS_WIRE_HEADER + len, FEW);

	if (p)
		cfs_wire_control(p, &f, payload, len);
	cfs_conn_again(&sc->c, false, true);
	return p != NULL;
}

/*
 * The same for a frame that may be lost: where more is queued than answers may be, because the client
 * sends such frames without end and takes nothing.
 */
static void queue_if_room(struct cfs_server *sc, struct cfs_frame f, const void *payload,
			  uint32_t len)
{
	if (sc->copied < 2 * COPIED_MAX)
		(void)queue_control(sc, f, payload, len);
}

void cfs_answer_status(struct cfs_server *sc, uint64_t id, int err, uint64_t bytes)
{
	struct cfs_frame f = {
		.type = CFS_FRAME_ANSWER,
		.id = id,
		.status = cfs_wire_status_of(err),
	};

	if (!queue_control(sc, f, NULL, 0)) {
		cfs_session_credit(&sc->session, 1, bytes);
		return;
	}
	sc->out_open->requests++;
	sc->out_open->bytes += bytes;
}

void cfs_answer_working(struct cfs_server *sc, uint64_t id, uint64_t left_ms)
{
	uint32_t len = sc->c.features & CFS_FEATURE_LEFT ? CFS_WIRE_WORKING_LEN : 0;
	uint8_t payload[CFS_WIRE_WORKING_LEN];

	cfs_wire_put_working(payload, left_ms);
	queue_if_room(sc, (struct cfs_frame){.type = CFS_FRAME_WORKING, .id = id}, payload, len);
}

void cfs_answer_session(struct cfs_server *sc, const struct cfs_wire_session *w)
{
	uint8_t payload[CFS_WIRE_SESSION_LEN];

	cfs_wire_put_session(payload, w);
	queue_if_room(sc, (struct cfs_frame){.type = CFS_FRAME_RDMA}, payload, sizeof(payload));
}

void cfs_answer_lease(struct cfs_server *sc, const struct cfs_wire_lease *w)
{
	uint8_t payload[CFS_WIRE_LEASE_LEN];

	cfs_wire_put_lease(payload, w);
	queue_if_room(sc, (struct cfs_frame){.type = CFS_FRAME_LEASE}, payload, sizeof(payload));
}

void cfs_answer_leaving(struct cfs_server *sc)
{
	/* Without memory the next request gets -ESHUTDOWN. */
	(void)queue_control(sc, (struct cfs_frame){.type = CFS_FRAME_DRAIN}, NULL, 0);
}

static void fail(struct cfs_reply *j, int err, bool mismatch)
{
	cfs_session_count_failed(&j->s, err, mismatch);
	if (err == -ECANCELED)
		cfs_session_credit(&j->sc->session, 1, j->s.req.len);
	else
		cfs_answer_status(j->sc, j->id, err, j->s.req.len);
	end(j, mismatch);
}

/* --- reading the file --- */

/* cachestat(2), Linux 6.5, which Debian 12's headers do not know. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
struct cachestat_range {
	uint64_t off, len;
};
struct cachestat_result {
	uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

/* 1: the page cache has all of it, or reads it; 0: it has not, or the kernel cannot tell. */
static int has_pages(int fd, uint64_t off, uint64_t len)
{
	struct cachestat_range range = {.off = off, .len = len};
	struct cachestat_result st;
	uint64_t page = (uint64_t)getpagesize(), pages = (off + len - 1) / page - off / page + 1;

	if (syscall(SYS_cachestat, fd, &range, &st, 0) < 0)
		return -errno;
	return st.cached >= pages;
}

/* True: splice(2) does not wait for a disk. All pages are cached, and the last one is up to date. */
static bool is_cached(int fd, uint64_t off, uint64_t len)
{
	char last;
	struct iovec iov = {.iov_base = &last, .iov_len = 1};

	return has_pages(fd, off, len) == 1 &&
	       preadv2(fd, &iov, 1, (off_t)(off + len - 1), RWF_NOWAIT) == 1;
}

/*
 * Reads from the page cache. Even a non-blocking read makes the kernel start readahead, which blocks
 * once the disk's queue is full. So a hanging disk is not read.
 */
static bool read_cached(const struct cfs_reply *j, uint32_t from, uint32_t to, uint8_t *dst)
{
	struct iovec iov = {.iov_base = dst, .iov_len = to - from};
	int r = has_pages(j->s.a.fd, from, to - from);

	if (r == 0 || (r < 0 && cfs_admission_hangs(j->sc->c.t, j->s.a.disk)))
		return false;
	return preadv2(j->s.a.fd, &iov, 1, from, RWF_NOWAIT) == (ssize_t)iov.iov_len;
}

static int start_read(struct cfs_reply *j);

static void read_done(struct cfs_op *op, int res)
{
	struct cfs_reply *j = caa_container_of(op, struct cfs_reply, op);

	j->busy = false;
	if (res > 0)
		j->buf_have += (uint32_t)res;
	if (res == -EINTR || res == -EAGAIN || (res > 0 && j->buf_have < j->buf_len)) {
		if (start_read(j) == IN_RING)
			return;
	}
	if (j->buf_have < j->buf_len)
		j->s.a.err = -EIO;
	cfs_answer_advance(j);
}

/* IOSQE_ASYNC: inline submission could block the loop's thread on the disk's full queue. */
static int start_read(struct cfs_reply *j)
{
	struct io_uring_sqe *sqe = cfs_loop_sqe(&j->sc->c.t->loop, &j->op);

	j->op.fn = read_done;
	j->busy = true;
	io_uring_prep_read(sqe, j->s.a.fd, j->buf + j->buf_have, j->buf_len - j->buf_have,
			   j->buf_off + j->buf_have);
	io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	return IN_RING;
}

/*
 * Gets the bytes [from, to) of the file, at most CFS_READ_MAX, until cfs_admission_leave().
 * IN_RING: the ring reads them, or will after admission; cfs_answer_advance() then repeats the call,
 * which finds them.
 */
static int bytes_of(struct cfs_reply *j, uint32_t from, uint32_t to, const uint8_t **ret)
{
	uint8_t *scratch = j->sc->c.t->loop.scratch + CFS_SCRATCH_RX;
	int r;

	if (j->buf && j->buf_off == from && j->buf_len == to - from) {
		*ret = j->buf;
		return j->s.a.err;
	}
	if (read_cached(j, from, to, scratch)) {
		cfs_admission_leave(j);
		*ret = scratch;
		return 0;
	}
	r = cfs_admission_enter(j);
	if (r < 0)
		return r;
	free(j->buf);
	j->buf = malloc(to - from);
	if (!j->buf)
		return -ENOMEM;
	j->buf_off = from;
	j->buf_len = to - from;
	j->buf_have = 0;
	return start_read(j);
}

/* --- checksums --- */

static uint32_t segment_end(const struct cfs_reply *j, uint32_t pos)
{
	return CFS_MIN((pos / CFS_PEER_SEGMENT + 1) * CFS_PEER_SEGMENT, j->s.req.block.len);
}

/* Compares whole segments from `from` up to `to` with the file's checksums. */
static bool segments_match(const struct cfs_reply *j, const uint8_t *data, uint32_t from,
			   uint32_t to)
{
	uint32_t pos, stop;

	for (pos = from; pos < to; pos = stop) {
		stop = segment_end(j, pos);
		if (cfs_crc_add(0, data + (pos - from), stop - pos) !=
		    j->s.a.crcs[pos / CFS_PEER_SEGMENT])
			return false;
	}
	return true;
}

/* A part of a segment, or a piece of a file without checksums. */
static int add_by_reading(struct cfs_reply *j, uint32_t to)
{
	uint32_t from = j->pos, all_from = from, all_to = to;
	const uint8_t *data;
	int r;

	if (j->s.a.n_crcs > 0) {
		all_from = from / CFS_PEER_SEGMENT * CFS_PEER_SEGMENT;
		all_to = segment_end(j, from);
	}
	r = bytes_of(j, all_from, all_to, &data);
	if (r < 0)
		return r;
	if (j->s.a.n_crcs > 0 && !segments_match(j, data, all_from, all_to))
		return -EBADMSG;
	j->crc = cfs_crc_add(j->crc, data + (from - all_from), to - from);
	j->pos = to;
	cfs_admission_leave(j);
	return 0;
}

/* The checksum of the whole range of a large answer. */
static int checksum_file(struct cfs_reply *j)
{
	uint32_t last = j->s.req.off + j->s.req.len;

	while (j->pos < last) {
		uint32_t stop = segment_end(j, j->pos);
		int r;

		if (j->s.a.n_crcs > 0 && j->pos % CFS_PEER_SEGMENT == 0 && stop <= last) {
			j->crc = cfs_crc_join(j->crc, j->s.a.crcs[j->pos / CFS_PEER_SEGMENT],
					      stop - j->pos);
			j->pos = stop;
			continue;
		}
		if (j->s.a.n_crcs == 0)
			stop = j->pos + CFS_READ_MAX;
		r = add_by_reading(j, CFS_MIN(stop, last));
		if (r < 0)
			return r;
	}
	return 0;
}

static uint32_t checksum_memory(const struct cfs_reply *j)
{
	uint32_t crc = 0;
	int i;

	for (i = 0; i < j->s.a.n_iov; i++)
		crc = cfs_crc_add(crc, j->s.a.iov[i].iov_base, j->s.a.iov[i].iov_len);
	return crc;
}

/* --- queueing the frame --- */

static uint8_t *put_header(struct cfs_reply *j, uint32_t payload, uint32_t cap, uint32_t crc)
{
	struct cfs_frame f = {
		.type = CFS_FRAME_ANSWER,
		.id = j->id,
		.len = j->s.req.len,
		.crc = crc,
	};
	uint8_t *p = reserve(j->sc, CFS_WIRE_HEADER + payload, cap);

	if (p)
		cfs_wire_put(p, &f);
	return p;
}

/* Queues header and payload as a copy; ends the reply. */
static int queue_small(struct cfs_reply *j)
{
	struct cfs_server *sc = j->sc;
	uint32_t off = j->s.req.off, len = j->s.req.len, from = off, to = off + len;
	const uint8_t *data = NULL;
	uint8_t *p;
	int r;

	if (j->s.a.fd >= 0) {
		if (j->s.a.n_crcs > 0) {
			from = off / CFS_PEER_SEGMENT * CFS_PEER_SEGMENT;
			to = segment_end(j, to - 1);
		}
		r = bytes_of(j, from, to, &data);
		if (r < 0)
			return r;
		if (j->s.a.n_crcs > 0 && !segments_match(j, data, from, to))
			return -EBADMSG;
		data += off - from;
	}
	p = put_header(j, len, len > COALESCE ? CHUNK + CFS_WIRE_HEADER : FEW,
		       data ? cfs_crc_add(0, data, len) : checksum_memory(j));
	if (!p)
		return -ENOMEM;
	if (data)
		memcpy(p + CFS_WIRE_HEADER, data, len);
	else
		cfs_iov_gather(j->s.a.iov, j->s.a.n_iov, p + CFS_WIRE_HEADER);
	sc->out_open->requests++;
	sc->out_open->bytes += len;
	cfs_session_count_sent(&j->s);
	end(j, false);
	return 0;
}

static int queue_large(struct cfs_reply *j)
{
	int r = j->s.a.fd >= 0 ? checksum_file(j) : 0;

	if (r < 0)
		return r;
	cfs_admission_leave(j); /* of a small answer that became a large one */
	/* An answer cannot be refused once its header is queued. */
	if (j->s.a.fd >= 0 && cfs_admission_hangs(j->sc->c.t, j->s.a.disk) &&
	    !is_cached(j->s.a.fd, j->s.req.off, j->s.req.len))
		return -EBUSY;
	if (!put_header(j, 0, CFS_WIRE_HEADER, j->s.a.fd >= 0 ? j->crc : checksum_memory(j)))
		return -ENOMEM;
	j->out = (struct cfs_out){.reply = j, .requests = 1, .bytes = j->s.req.len};
	append(j->sc, &j->out);
	return 0;
}

static bool is_small(const struct cfs_reply *j)
{
	return j->s.req.len < CFS_SPLICE_MIN && j->sc->copied < COPIED_MAX &&
	       j->sc->c.t->copied < j->sc->c.t->conf.copied_bytes;
}

void cfs_answer_advance(struct cfs_reply *j)
{
	struct cfs_conn *c = &j->sc->c;
	int r;

	if (c->state == CFS_CONN_CLOSED) {
		cfs_session_credit(&j->sc->session, 1, j->s.req.len);
		end(j, false);
		return;
	}
	if (j->out.reply) { /* being sent */
		cfs_answer_flush(c);
		return;
	}
	r = j->canceled ? -ECANCELED : j->s.a.err;
	if (r == 0)
		r = is_small(j) ? queue_small(j) : queue_large(j);
	if (r == IN_RING)
		return;
	if (r < 0)
		fail(j, r, r == -EBADMSG);
	cfs_conn_again(c, false, true);
}

void cfs_answer_cancel(struct cfs_reply *j)
{
	j->canceled = true;
	if (j->queued && !j->out.reply)
		fail(j, -ECANCELED, false);
}

void cfs_answer_start(struct cfs_reply *j)
{
	struct cfs_peer_answer *a = &j->s.a;

	if (a->err == 0 && a->fd < 0 && cfs_iov_len(a->iov, a->n_iov) != j->s.req.len)
		a->err = -EIO;
	if (a->err == 0 && a->fd >= 0 && a->n_crcs > 0 &&
	    a->n_crcs != CFS_DIV_UP(j->s.req.block.len, CFS_PEER_SEGMENT))
		a->err = -EIO;
	j->pos = j->s.req.off;
	cfs_answer_advance(j);
}

/* --- sending --- */

static ssize_t send_bytes(struct cfs_server *sc)
{
	struct iovec iov[SEND_IOV];
	struct cfs_out *o = sc->out_first;
	ssize_t n;
	size_t left;
	int k = 0;

	for (; o && !o->reply && k < SEND_IOV; o = o->next, k++) {
		iov[k].iov_base = o->data + o->off;
		iov[k].iov_len = o->len - o->off;
	}
	n = sc->c.link.ops->send(&sc->c.link, iov, k, o != NULL);
	if (n <= 0)
		return n;
	for (left = (size_t)n; left > 0;) {
		size_t part;

		o = sc->out_first;
		part = CFS_MIN(left, o->len - o->off);
		o->off += (uint32_t)part;
		left -= part;
		if (o->off == o->len)
			pop(sc);
	}
	return n;
}

static ssize_t send_memory(struct cfs_reply *j, bool more)
{
	struct iovec iov[SEND_IOV];
	struct cfs_conn *c = &j->sc->c;
	size_t left, off = j->iov_off;
	ssize_t n;
	int i, k = 0;

	for (i = j->iov_at; i < j->s.a.n_iov && k < SEND_IOV; i++, off = 0) {
		iov[k].iov_base = (uint8_t *)j->s.a.iov[i].iov_base + off;
		iov[k++].iov_len = j->s.a.iov[i].iov_len - off;
	}
	n = c->link.ops->send(&c->link, iov, k, more || i < j->s.a.n_iov);
	for (left = n > 0 ? (size_t)n : 0; left > 0;) {
		size_t part = CFS_MIN(left, j->s.a.iov[j->iov_at].iov_len - j->iov_off);

		j->iov_off += part;
		left -= part;
		if (j->iov_off == j->s.a.iov[j->iov_at].iov_len) {
			j->iov_at++;
			j->iov_off = 0;
		}
	}
	return n;
}

static void spliced_in(struct cfs_op *op, int res)
{
	struct cfs_reply *j = caa_container_of(op, struct cfs_reply, op);

	j->busy = false;
	cfs_admission_leave(j);
	if (res > 0)
		j->pipe->held = (uint32_t)res;
	else if (res != -EINTR && res != -EAGAIN)
		j->s.a.err = -EIO;
	cfs_answer_advance(j);
}

/* Fills the pipe from the file. */
static int fill(struct cfs_reply *j)
{
	uint32_t len = CFS_MIN(j->s.req.len - j->sent, j->pipe->size);
	off_t off = (off_t)j->s.req.off + j->sent;
	struct io_uring_sqe *sqe;
	ssize_t n;
	int r;

	if (!is_cached(j->s.a.fd, (uint64_t)off, len)) {
		r = cfs_admission_enter(j);
		if (r < 0) {
			/* Other replies may use the pipe meanwhile. */
			cfs_pipe_put(j->sc->c.t, j->pipe);
			j->pipe = NULL;
			return r;
		}
		sqe = cfs_loop_sqe(&j->sc->c.t->loop, &j->op);
		io_uring_prep_splice(sqe, j->s.a.fd, off, j->pipe->wr, -1, len, SPLICE_F_MOVE);
		j->op.fn = spliced_in;
		j->busy = true;
		return IN_RING;
	}
	cfs_admission_leave(j);
	n = splice(j->s.a.fd, &off, j->pipe->wr, NULL, len, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	if (n <= 0)
		return -EIO; /* the file is shorter than its name says */
	j->pipe->held = (uint32_t)n;
	return 0;
}

static ssize_t send_spliced(struct cfs_reply *j, bool more)
{
	struct cfs_conn *c = &j->sc->c;
	ssize_t n;
	int r;

	if (j->pipe->held == 0) {
		r = fill(j);
		if (r < 0)
			return r;
	}
	more = more || j->sent + j->pipe->held < j->s.req.len;
	n = c->link.ops->splice(&c->link, j->pipe->rd, j->pipe->held, more);
	if (n > 0)
		j->pipe->held -= (uint32_t)n;
	return n;
}

/* Without a pipe: bytes that the socket did not take are read again. */
static ssize_t send_copied(struct cfs_reply *j, bool more)
{
	struct cfs_conn *c = &j->sc->c;
	uint32_t from = j->s.req.off + j->sent;
	uint32_t to = from + CFS_MIN(j->s.req.len - j->sent, CFS_READ_MAX);
	const uint8_t *data;
	struct iovec iov;
	ssize_t n;
	int r = bytes_of(j, from, to, &data);

	if (r < 0)
		return r;
	iov.iov_base = (void *)data;
	iov.iov_len = to - from;
	n = c->link.ops->send(&c->link, &iov, 1, more || to < j->s.req.off + j->s.req.len);
	cfs_admission_leave(j);
	return n;
}

/* Sends some of the payload at the head of the queue. */
static ssize_t send_payload(struct cfs_server *sc)
{
	struct cfs_reply *j = sc->out_first->reply;
	bool more = sc->out_first->next != NULL;
	ssize_t n;

	if (j->busy || j->queued)
		return IN_RING;
	if (j->s.a.err < 0)
		return j->s.a.err;
	if (j->s.a.fd < 0) {
		n = send_memory(j, more);
	} else {
		if (!j->pipe && sc->c.link.ops->splice)
			j->pipe = cfs_pipe_get(sc->c.t);
		n = j->pipe ? send_spliced(j, more) : send_copied(j, more);
	}
	if (j->pipe)
		cfs_pipe_blocked(j, n == -EAGAIN);
	if (n <= 0)
		return n;
	j->sent += (uint32_t)n;
	if (j->sent == j->s.req.len) {
		cfs_session_count_sent(&j->s);
		pop(sc);
		end(j, false);
	}
	return n;
}

void cfs_answer_flush(struct cfs_conn *c)
{
	struct cfs_server *sc = (struct cfs_server *)c;
	int64_t budget = CFS_ROUND_BYTES;
	ssize_t n;

	while (sc->out_first && budget > 0) {
		n = sc->out_first->reply ? send_payload(sc) : send_bytes(sc);
		if (n == IN_RING)
			return;
		if (n == -EAGAIN) {
			cfs_conn_want_out(c);
			return;
		}
		if (n <= 0) {
			cfs_conn_close(c, n < 0 ? (int)n : -EIO);
			return;
		}
		sc->progress_ms = cfs_loop_ran_ms(&c->t->loop);
		budget -= n;
	}
	if (sc->out_first)
		cfs_conn_again(c, false, true);
}

void cfs_answer_drop(struct cfs_server *sc)
{
	struct cfs_served *s, *next;
	struct cfs_reply *j;

	while (sc->out_first) {
		j = sc->out_first->reply;
		if (j && j->busy) {
			/* cfs_answer_advance() ends it when the ring has finished. */
			j->out.requests = 0;
			j->out.bytes = 0;
			pop(sc);
			continue;
		}
		pop(sc);
		if (j)
			end(j, false);
	}
	for (s = LIST_FIRST(&sc->session.requests); s; s = next) {
		next = LIST_NEXT(s, all);
		j = (struct cfs_reply *)s;
		if (!j->queued)
			continue;
		cfs_session_credit(&sc->session, 1, j->s.req.len);
		end(j, false);
	}
}
