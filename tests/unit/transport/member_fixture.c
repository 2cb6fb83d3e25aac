/* SPDX-License-Identifier: Apache-2.0 */
#include "member_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int put(void *arg, const char *key, const void *value, size_t len, bool fresh)
{
	struct member *m = arg;

	return m->silent ? 0 : registry_put(m->r, key, value, len, fresh);
}

static int drop(void *arg, const char *key)
{
	struct member *m = arg;

	return m->silent ? 0 : registry_drop(m->r, key);
}

static int swap(void *arg, const char *key, const void *old, size_t old_len, const void *value,
		size_t len)
{
	struct member *m = arg;

	return m->silent ? 0 : registry_swap(m->r, key, old, old_len, value, len);
}

static int get(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg)
{
	struct member *m = arg;

	if (m->blind && strncmp(key, "group.key/", 10) == 0)
		return -ENOENT;
	return registry_get(m->r, key, fn, fn_arg);
}

static int each(void *arg, const char *table, cfs_group_record_fn fn, void *fn_arg)
{
	struct member *m = arg;

	m->lists += registry_is_members(table);
	return registry_each(m->r, table, fn, fn_arg);
}

uint8_t byte_at(uint64_t slice, uint32_t off)
{
	return (uint8_t)((slice * 2654435761u + off) >> 3);
}

struct sent {
	struct iovec iov;
	uint8_t bytes[];
};

static void was_sent(void *arg, bool mismatch)
{
	assert_false(mismatch);
	free(arg);
}

void send_all(struct cfs_peer_request *req)
{
	struct cfs_peer_answer a = {.fd = -1, .n_iov = 1, .release = was_sent};
	struct sent *s = malloc(sizeof(*s) + req->len);
	uint32_t i;

	for (i = 0; i < req->len; i++)
		s->bytes[i] = byte_at(req->block.slice, req->off + i);
	s->iov = (struct iovec){.iov_base = s->bytes, .iov_len = req->len};
	a.iov = &s->iov;
	a.arg = s;
	cfs_peer_answer(req, &a);
}

/* As the transport's thread of a mount does. */
static void look_at_members(struct member *m, const struct cfs_peer_block *b)
{
	cfs_deadline_t until = soon();

	while (m->expected && seen_by(m) != m->expected && !cfs_deadline_passed(until))
		cfs_group_replicate(m->g, b);
}

static void serve(void *arg, struct cfs_peer_request *req)
{
	struct member *m = arg;

	m->gets++;
	look_at_members(m, &req->block);
	if (req->flags & CFS_PEER_ONLY_CACHED)
		m->only_cached++;
	if (m->busy || (m->empty && (req->flags & CFS_PEER_ONLY_CACHED))) {
		cfs_peer_answer(req, &(struct cfs_peer_answer){.err = m->busy ? -EBUSY : -ENOENT,
							       .fd = -1});
	} else if (m->works && !(req->flags & CFS_PEER_ONLY_CACHED)) {
		cfs_peer_working(req, soon());
		m->held[m->n_held] = req;
		m->n_held++;
	} else {
		send_all(req);
	}
}

static uint64_t bucket_us(void *arg)
{
	return ((struct member *)arg)->bucket_us;
}

static const struct cfs_peer_serve_ops ops = {.get = serve};

struct cfs_group_registry registry_of(struct member *m)
{
	return (struct cfs_group_registry){
		.put = put, .swap = swap, .drop = drop, .get = get, .each = each, .arg = m};
}

int try_join(struct member *m, struct registry *r, uint64_t id, struct cfs_group_conf *conf)
{
	char err[256] = "";

	*m = (struct member){.r = r};
	conf->name = "team";
	conf->member = id;
	conf->address = "127.0.0.1";
	conf->heartbeat_ms = conf->heartbeat_ms ? conf->heartbeat_ms : HEARTBEAT_MS;
	conf->timeout_ms = conf->timeout_ms ? conf->timeout_ms : LONG_MS;
	conf->registry = registry_of(m);
	conf->ops = &ops;
	conf->ops_arg = m;
	conf->bucket_us = bucket_us;
	return cfs_group_join(conf, &m->g, err);
}

void join_as(struct member *m, struct registry *r, uint64_t id, struct cfs_group_conf conf)
{
	assert_int_equal(try_join(m, r, id, &conf), 0);
}

void join(struct member *m, struct registry *r, uint64_t id)
{
	join_as(m, r, id, (struct cfs_group_conf){.weight = 100});
}

void part(struct member *m)
{
	cfs_group_leave(m->g);
	cfs_group_destroy(m->g);
	m->g = NULL;
}

unsigned seen_by(struct member *m)
{
	struct cfs_group_stats s;

	cfs_group_stats(m->g, &s);
	return s.members;
}

struct cfs_group_stats stats(struct member *m)
{
	struct cfs_group_stats s;

	cfs_group_stats(m->g, &s);
	return s;
}

struct cfs_peer_block block(uint64_t slice)
{
	return (struct cfs_peer_block){.slice = slice, .len = BLOCK_LEN};
}

uint64_t owner_of(struct member *m, uint64_t slice)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX] = {0};
	int cached[CFS_GROUP_REPLICAS_MAX];
	struct cfs_peer_block b = block(slice);
	int n = cfs_group_map(m->g, &b, owners, cached, soon());

	return n > 0 ? owners[0] : 0;
}

uint64_t block_of(struct member *m, uint64_t id)
{
	uint64_t slice;

	for (slice = 1; slice < 10000; slice++) {
		if (owner_of(m, slice) == id)
			return slice;
	}
	fail_msg("%" PRIx64 " owns nothing", id);
	return 0;
}

ssize_t read_by(struct member *m, uint64_t slice, cfs_deadline_t deadline)
{
	uint8_t got[RANGE];
	struct iovec dst = {.iov_base = got, .iov_len = RANGE};
	struct cfs_peer_block b = block(slice);
	uint32_t off = (uint32_t)(slice % (BLOCK_LEN - RANGE)), i;
	ssize_t n;

	n = cfs_group_read(m->g, &b, off, RANGE, &dst, 1, false, NULL, deadline);
	if (n < 0) {
		assert_true(n == -ENOENT || n == -EREMCHG); /* nothing else is known above */
		return n;
	}
	assert_int_equal(n, RANGE);
	for (i = 0; i < RANGE; i++)
		assert_int_equal(got[i], byte_at(slice, off + i));
	return n;
}

ssize_t read_from(struct member *m, uint64_t slice)
{
	return read_by(m, slice, soon());
}

static int match(void *arg, const struct cfs_group_member *m)
{
	struct search *s = arg;

	if (m->id == s->id) {
		s->m = *m;
		s->n++;
	}
	return 0;
}

struct search look(struct member *m, uint64_t id)
{
	struct search s = {.id = id};

	cfs_group_each_member(m->g, match, &s);
	return s;
}

void write_phantom(struct registry *r, uint64_t id, uint64_t boot, int64_t number, const char *more)
{
	char key[CFS_GROUP_KEY_MAX], text[512];

	cfs_group_member_key("team", id, key);
	snprintf(text, sizeof(text),
		 "%" PRIx64 " %" PRId64 " 0 %d {\"id\":\"%016" PRIx64 "\",\"volume\":\"\","
		 "\"address\":\"127.0.0.1:9\",\"host\":\"h\",\"mount\":\"/m\",\"version\":\"1\","
		 "\"weight\":100,\"rank\":100,\"fresh\":false,\"tls\":false,"
		 "\"memory_only\":false%s}",
		 boot, number, HEARTBEAT_MS, id, more);
	registry_put(r, key, text, strlen(text), false);
}
