/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes frames. */
#include "frame.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "crc.h"
#include "handshake.h"

#define STATUS(name) (1u << CFS_STATUS_##name)

/* The limits of each frame type. statuses 0: OK only. */
static const struct {
	uint32_t len;
	uint16_t flags;
	bool id;
	bool may_be_empty;
	unsigned statuses;
} types[CFS_FRAME_TYPES] = {
	[CFS_FRAME_HELLO] = {.len = CFS_HELLO_LEN},
	[CFS_FRAME_CHALLENGE] = {.len = CFS_CHALLENGE_LEN},
	[CFS_FRAME_PROOF] = {.len = CFS_PROOF_LEN},
	[CFS_FRAME_READY] = {.len = CFS_WIRE_READY_LEN},
	[CFS_FRAME_REFUSE] = {.statuses = STATUS(BUSY) | STATUS(FAILED) | STATUS(LEAVING) |
					  STATUS(AUTH) | STATUS(VERSION)},
	[CFS_FRAME_GET] = {.len = CFS_WIRE_GET_LEN,
			   .flags = CFS_FRAME_F_ONLY_CACHED | CFS_FRAME_F_FAILOVER,
			   .id = true},
	[CFS_FRAME_ANSWER] = {.len = CFS_PEER_BLOCK_MAX,
			      .id = true,
			      .statuses = STATUS(OK) | STATUS(NOT_FOUND) | STATUS(BUSY) |
					  STATUS(FAILED) | STATUS(LEAVING)},
	[CFS_FRAME_CANCEL] = {.id = true},
	[CFS_FRAME_HINT] = {.len = CFS_WIRE_HINT_LEN},
	[CFS_FRAME_DRAIN] = {0},
	[CFS_FRAME_WORKING] = {.len = CFS_WIRE_WORKING_LEN, .id = true, .may_be_empty = true},
	[CFS_FRAME_RDMA] = {.len = CFS_WIRE_SESSION_LEN, .may_be_empty = true},
	[CFS_FRAME_LEASE] = {.len = CFS_WIRE_LEASE_LEN},
};

_Static_assert(CFS_CHALLENGE_LEN <= CFS_WIRE_CONTROL_MAX && CFS_HELLO_LEN <= CFS_WIRE_CONTROL_MAX,
	       "control frames fit");

void cfs_wire_put(uint8_t dst[CFS_WIRE_HEADER], const struct cfs_frame *f)
{
	cfs_put_be32(dst, CFS_WIRE_MAGIC);
	dst[4] = CFS_WIRE_VERSION;
	dst[5] = f->type;
	cfs_put_be16(dst + 6, f->flags);
	cfs_put_be64(dst + 8, f->id);
	cfs_put_be32(dst + 16, f->len);
	cfs_put_be32(dst + 20, f->crc);
	cfs_put_be32(dst + 24, f->status);
	cfs_put_be32(dst + 28, cfs_crc_add(0, dst, 28));
}

static bool may_have_status(uint8_t type, uint32_t status)
{
	unsigned statuses = types[type].statuses ? types[type].statuses : STATUS(OK);

	return status < CFS_STATUS_COUNT && (statuses >> status & 1);
}

static bool is_allowed(const struct cfs_frame *f)
{
	if (f->type == 0 || f->type >= CFS_FRAME_TYPES)
		return false;
	if (f->flags & ~types[f->type].flags)
		return false;
	if (f->id && !types[f->type].id)
		return false;
	if (!may_have_status(f->type, f->status))
		return false;
	if (f->len == 0 && f->crc)
		return false;
	/* Only an answer has a length of its own, and only if it carries data. */
	if (f->type == CFS_FRAME_ANSWER)
		return f->status ? f->len == 0 : f->len > 0 && f->len <= types[f->type].len;
	return f->len == types[f->type].len || (f->len == 0 && types[f->type].may_be_empty);
}

int cfs_wire_parse(const uint8_t src[CFS_WIRE_HEADER], struct cfs_frame *ret)
{
	struct cfs_frame f;

	if (cfs_get_be32(src) != CFS_WIRE_MAGIC || src[4] != CFS_WIRE_VERSION ||
	    cfs_get_be32(src + 28) != cfs_crc_add(0, src, 28))
		return -EPROTO;
	f = (struct cfs_frame){
		.type = src[5],
		.flags = cfs_get_be16(src + 6),
		.id = cfs_get_be64(src + 8),
		.len = cfs_get_be32(src + 16),
		.crc = cfs_get_be32(src + 20),
		.status = cfs_get_be32(src + 24),
	};
	if (!is_allowed(&f))
		return -EPROTO;
	*ret = f;
	return 0;
}

size_t cfs_wire_control(uint8_t dst[CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX], struct cfs_frame *f,
			const void *payload, uint32_t len)
{
	f->len = len;
	f->crc = len > 0 ? cfs_crc_add(0, payload, len) : 0;
	cfs_wire_put(dst, f);
	if (len > 0)
		memcpy(dst + CFS_WIRE_HEADER, payload, len);
	return CFS_WIRE_HEADER + len;
}

static void put_block(uint8_t dst[16], const struct cfs_peer_block *b)
{
	cfs_put_be64(dst, b->slice);
	cfs_put_be32(dst + 8, b->index);
	cfs_put_be32(dst + 12, b->len);
}

static int parse_block(const uint8_t src[16], struct cfs_peer_block *ret)
{
	struct cfs_peer_block b = {
		.slice = cfs_get_be64(src),
		.index = cfs_get_be32(src + 8),
		.len = cfs_get_be32(src + 12),
	};

	if (b.len == 0 || b.len > CFS_PEER_BLOCK_MAX)
		return -EPROTO;
	*ret = b;
	return 0;
}

void cfs_wire_put_get(uint8_t dst[CFS_WIRE_GET_LEN], const struct cfs_wire_get *g)
{
	put_block(dst, &g->block);
	cfs_put_be32(dst + 16, g->off);
	cfs_put_be32(dst + 20, g->len);
}

int cfs_wire_parse_get(const uint8_t src[CFS_WIRE_GET_LEN], struct cfs_wire_get *ret)
{
	struct cfs_wire_get g;

	if (parse_block(src, &g.block) < 0)
		return -EPROTO;
	g.off = cfs_get_be32(src + 16);
	g.len = cfs_get_be32(src + 20);
	if (g.len == 0 || g.off > g.block.len || g.len > g.block.len - g.off)
		return -EPROTO;
	*ret = g;
	return 0;
}

void cfs_wire_put_hint(uint8_t dst[CFS_WIRE_HINT_LEN], const struct cfs_peer_block *b,
		       enum cfs_peer_hint hint)
{
	put_block(dst, b);
	cfs_put_be32(dst + 16, hint);
}

int cfs_wire_parse_hint(const uint8_t src[CFS_WIRE_HINT_LEN], struct cfs_peer_block *ret,
			enum cfs_peer_hint *ret_hint)
{
	struct cfs_peer_block b;
	uint32_t hint = cfs_get_be32(src + 16);

	if (parse_block(src, &b) < 0 || (hint != CFS_PEER_FORGET && hint != CFS_PEER_WARM))
		return -EPROTO;
	*ret = b;
	*ret_hint = hint;
	return 0;
}

void cfs_wire_put_working(uint8_t dst[CFS_WIRE_WORKING_LEN], uint64_t left_ms)
{
	cfs_put_be32(dst, (uint32_t)CFS_MIN(left_ms, (uint64_t)UINT32_MAX));
}

uint64_t cfs_wire_parse_working(const uint8_t src[CFS_WIRE_WORKING_LEN])
{
	return cfs_get_be32(src);
}

void cfs_wire_put_ready(uint8_t dst[CFS_WIRE_READY_LEN], const struct cfs_wire_ready *r)
{
	cfs_put_be64(dst, r->conn_bytes);
	cfs_put_be32(dst + 8, r->requests);
	cfs_put_be32(dst + 12, 0);
}

int cfs_wire_parse_ready(const uint8_t src[CFS_WIRE_READY_LEN], struct cfs_wire_ready *ret)
{
	struct cfs_wire_ready r = {
		.conn_bytes = cfs_get_be64(src),
		.requests = cfs_get_be32(src + 8),
	};

	if (r.conn_bytes < CFS_PEER_BLOCK_MAX || r.requests == 0 || cfs_get_be32(src + 12) != 0)
		return -EPROTO;
	*ret = r;
	return 0;
}

void cfs_wire_put_session(uint8_t dst[CFS_WIRE_SESSION_LEN], const struct cfs_wire_session *s)
{
	cfs_put_be64(dst, s->session);
	cfs_put_be16(dst + 8, s->port);
	cfs_put_be16(dst + 10, 0);
}

int cfs_wire_parse_session(const uint8_t src[CFS_WIRE_SESSION_LEN], struct cfs_wire_session *ret)
{
	struct cfs_wire_session s = {
		.session = cfs_get_be64(src),
		.port = cfs_get_be16(src + 8),
	};

	if (cfs_get_be16(src + 10) != 0 || (s.session == 0) != (s.port == 0))
		return -EPROTO;
	*ret = s;
	return 0;
}

void cfs_wire_put_lease(uint8_t dst[CFS_WIRE_LEASE_LEN], const struct cfs_wire_lease *l)
{
	put_block(dst, &l->block);
	cfs_put_be32(dst + 16, l->key);
	cfs_put_be32(dst + 20, l->table_crc);
	cfs_put_be32(dst + 24, l->lease_ms);
}

int cfs_wire_parse_lease(const uint8_t src[CFS_WIRE_LEASE_LEN], struct cfs_wire_lease *ret)
{
	struct cfs_wire_lease l = {
		.key = cfs_get_be32(src + 16),
		.table_crc = cfs_get_be32(src + 20),
		.lease_ms = cfs_get_be32(src + 24),
	};

	if (parse_block(src, &l.block) < 0 || l.lease_ms == 0 || l.lease_ms > CFS_WIRE_LEASE_MAX_MS)
		return -EPROTO;
	*ret = l;
	return 0;
}

enum cfs_wire_status cfs_wire_status_of(int err)
{
	switch (err) {
	case 0:
		return CFS_STATUS_OK;
	case -ENOENT:
		return CFS_STATUS_NOT_FOUND;
	case -EBUSY:
	case -EAGAIN:
		return CFS_STATUS_BUSY;
	case -ESHUTDOWN:
		return CFS_STATUS_LEAVING;
	default:
		return CFS_STATUS_FAILED;
	}
}

int cfs_wire_errno_of(enum cfs_wire_status status)
{
	static const int errs[CFS_STATUS_COUNT] = {
		[CFS_STATUS_OK] = 0,
		[CFS_STATUS_NOT_FOUND] = -ENOENT,
		[CFS_STATUS_BUSY] = -EBUSY,
		[CFS_STATUS_FAILED] = -EREMOTEIO,
		[CFS_STATUS_LEAVING] = -ESHUTDOWN,
		[CFS_STATUS_AUTH] = -EACCES,
		[CFS_STATUS_VERSION] = -EPROTONOSUPPORT,
	};

	return errs[status];
}

void cfs_reader_init(struct cfs_reader *r)
{
	r->have = 0;
	r->want = CFS_WIRE_HEADER;
}

/* 1: the bytes in buf are a frame. */
static int complete(struct cfs_reader *r)
{
	int err;

	if (r->want == CFS_WIRE_HEADER) {
		err = cfs_wire_parse(r->buf, &r->frame);
		if (err < 0)
			return err;
		if (r->frame.type != CFS_FRAME_ANSWER && r->frame.len > 0) {
			r->want += r->frame.len;
			return 0;
		}
	} else if (cfs_crc_add(0, cfs_reader_payload(r), r->frame.len) != r->frame.crc) {
		return -EBADMSG;
	}
	cfs_reader_init(r);
	return 1;
}

int cfs_reader_feed(struct cfs_reader *r, const uint8_t **data, size_t *len, struct cfs_frame *ret)
{
	size_t n;
	int done;

	for (;;) {
		n = CFS_MIN(*len, r->want - r->have);
		if (n > 0) {
			memcpy(r->buf + r->have, *data, n);
			r->have += (uint32_t)n;
			*data += n;
			*len -= n;
		}
		if (r->have < r->want)
			return 0;
		done = complete(r);
		if (done < 0)
			return done;
		if (done) {
			*ret = r->frame;
			return 1;
		}
	}
}
