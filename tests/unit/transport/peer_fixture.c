/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "peer_fixture.h"
#include "transport/wire/crc.h"

bool with_tls;

const struct cfs_handshake_keys keys = {.key = {"0123456789abcdef0123456789abcdef"}, .n = 1};

/* --- an owner --- */

struct given {
	struct owner *o;
	struct iovec iov[2];
};

static void released(void *arg, bool mismatch)
{
	struct given *g = arg;

	g->o->releases++;
	g->o->mismatches += mismatch;
	free(g);
}

void give(struct owner *o, struct cfs_peer_request *req)
{
	struct given *g = malloc(sizeof(*g));
	struct cfs_peer_answer a = {.fd = -1, .release = released, .arg = g};

	g->o = o;
	if (req->block.slice == 404) {
		a.err = -ENOENT;
	} else if (o->how == FROM_MEMORY) {
		g->iov[0].iov_base = o->data + req->off;
		g->iov[0].iov_len = req->len / 3;
		g->iov[1].iov_base = o->data + req->off + req->len / 3;
		g->iov[1].iov_len = req->len - req->len / 3;
		a.iov = g->iov;
		a.n_iov = 2;
	} else {
		a.fd = o->fd;
		a.disk = o->disk;
		a.crcs = o->crcs;
		a.n_crcs = o->how == FILE_NO_CRC ? 0 : o->n_crcs;
	}
	cfs_peer_answer(req, &a);
}

static void *give_later(void *arg)
{
	struct cfs_peer_request *req = arg;
	struct owner *o = (struct owner *)(uintptr_t)req->block.slice;

	give(o, req);
	return NULL;
}

static void on_get(void *arg, struct cfs_peer_request *req)
{
	struct owner *o = arg;
	pthread_t thread;

	o->gets++;
	if (o->cold && (req->flags & CFS_PEER_ONLY_CACHED)) {
		cfs_peer_answer(req, &(struct cfs_peer_answer){.err = -ENOENT, .fd = -1});
	} else if (o->how == LATER) {
		assert_int_equal(pthread_create(&thread, NULL, give_later, req), 0);
		pthread_detach(thread);
	} else if (o->how == NEVER) {
		if (o->works && !(req->flags & CFS_PEER_ONLY_CACHED))
			cfs_peer_working(req, cfs_deadline_in(100));
		o->held[o->n_held] = req;
		o->n_held++;
	} else {
		give(o, req);
	}
}

static void on_hint(void *arg, uint64_t from, const struct cfs_peer_block *b,
		    enum cfs_peer_hint hint)
{
	struct owner *o = arg;

	assert_int_equal(from, CLIENT);
	o->hints += b->slice == 5 && hint == CFS_PEER_FORGET;
}

const struct cfs_peer_serve_ops owner_ops = {.get = on_get, .hint = on_hint};

struct sockaddr_in loopback(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return sa;
}

/* Many key exchanges at once on a busy machine are no failure. */
static void with_patience(struct cfs_transport_conf *conf)
{
	if (with_tls)
		conf->transport = CFS_PEER_TLS;
	if (conf->transport == CFS_PEER_TLS && !conf->connect_timeout_ms)
		conf->connect_timeout_ms = LONG_MS;
}

void owner_fill(struct owner *o, uint32_t len)
{
	uint32_t i;

	memset(o, 0, sizeof(*o));
	o->len = len;
	o->fd = memfd_create("block", MFD_CLOEXEC);
	assert_int_equal(ftruncate(o->fd, len), 0);
	o->data = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
	for (i = 0; i < len; i++)
		o->data[i] = (uint8_t)(i * 2654435761u >> 13);
	o->n_crcs = CFS_DIV_UP(len, CFS_PEER_SEGMENT);
	for (i = 0; i < o->n_crcs; i++)
		o->crcs[i] = cfs_crc_add(0, o->data + i * CFS_PEER_SEGMENT,
					 CFS_MIN(CFS_PEER_SEGMENT, len - i * CFS_PEER_SEGMENT));
}

void owner_open_conf(struct owner *o, uint32_t len, struct cfs_transport_conf *conf)
{
	struct sockaddr_in sa = loopback();
	char err[256];

	owner_fill(o, len);
	conf->member = SERVER;
	with_patience(conf);
	conf->listen = (struct sockaddr *)&sa;
	conf->listen_len = sizeof(sa);
	if (!conf->ops)
		conf->ops = &owner_ops;
	conf->ops_arg = o;
	memcpy(conf->key, keys.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(cfs_transport_create(conf, &o->t, err), 0);
	cfs_transport_address(o->t, &o->addr, &o->addr_len);
}

void owner_open(struct owner *o, uint32_t len)
{
	struct cfs_transport_conf conf = {0};

	owner_open_conf(o, len, &conf);
}

void owner_close(struct owner *o)
{
	cfs_transport_destroy(o->t);
	munmap(o->data, o->len);
	close(o->fd);
}

struct cfs_transport *asker_conf(struct cfs_transport_conf *conf)
{
	struct cfs_transport *t;
	char err[256];

	conf->member = CLIENT;
	with_patience(conf);
	if (conf->key[0] == 0)
		memcpy(conf->key, keys.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(cfs_transport_create(conf, &t, err), 0);
	return t;
}

struct cfs_transport *asker(void)
{
	struct cfs_transport_conf conf = {0};

	return asker_conf(&conf);
}

struct cfs_peer *peer_at(struct cfs_transport *t, const void *addr, socklen_t len)
{
	struct cfs_peer *p;

	assert_int_equal(cfs_peer_open(t, SERVER, addr, len, &p), 0);
	return p;
}

struct cfs_peer *owner_meet(struct cfs_transport *t, struct owner *o, uint32_t len)
{
	owner_open(o, len);
	return peer_at(t, &o->addr, o->addr_len);
}

void owner_part(struct cfs_peer *p, struct cfs_transport *t, struct owner *o)
{
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(o);
}

/* give_later() finds the owner by it. */
uint64_t slice_of(struct owner *o)
{
	return (uint64_t)(uintptr_t)o;
}

ssize_t ask_within(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len, uint8_t *dst,
		   uint64_t timeout_ms)
{
	struct cfs_peer_block b = {.slice = o ? slice_of(o) : 1, .len = o ? o->len : BLOCK};
	struct iovec iov = {.iov_base = dst, .iov_len = len};

	return cfs_peer_read(p, &b, off, len, 0, &iov, 1, cfs_deadline_in(timeout_ms));
}

ssize_t ask(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len, uint8_t *dst)
{
	return ask_within(p, o, off, len, dst, LONG_MS);
}

enum cfs_peer_state state_of(struct cfs_peer *p)
{
	struct cfs_peer_stats st;
	enum cfs_peer_state state;

	cfs_peer_stats(p, &st, &state);
	return state;
}

static void many_done(struct cfs_peer_get *g, int err)
{
	struct many *m = (struct many *)g;

	m->err = err;
	sem_post(m->done);
}

int start_one(struct cfs_peer *p, struct many *m, struct owner *o, uint32_t off, uint32_t len,
	      uint64_t timeout_ms)
{
	uint32_t third = len / 3;

	m->o = o;
	m->err = 1;
	m->dst = calloc(1, len);
	m->iov[0] = (struct iovec){m->dst, third};
	m->iov[1] = (struct iovec){m->dst + third, third};
	m->iov[2] = (struct iovec){m->dst + 2 * third, len - 2 * third};
	m->get = (struct cfs_peer_get){
		.block = {.slice = slice_of(o), .len = o->len},
		.off = off,
		.len = len,
		.dst = m->iov,
		.n_dst = 3,
		.deadline = cfs_deadline_in(timeout_ms),
		.done = many_done,
	};
	return cfs_peer_start(p, &m->get);
}

/* --- raw connections --- */

int raw_connect(struct owner *o)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (void *)&o->addr, o->addr_len), 0);
	return fd;
}

bool raw_send(int fd, const void *data, size_t len)
{
	return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* False when the other side closes (or says nothing for LONG_MS). */
bool raw_frame(int fd, struct cfs_frame *ret, uint8_t payload[CFS_WIRE_CONTROL_MAX])
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	uint8_t header[CFS_WIRE_HEADER];

	if (poll(&pfd, 1, LONG_MS) != 1 ||
	    recv(fd, header, sizeof(header), MSG_WAITALL) != sizeof(header) ||
	    cfs_wire_parse(header, ret) < 0)
		return false;
	return ret->type == CFS_FRAME_ANSWER || ret->len == 0 ||
	       recv(fd, payload, ret->len, MSG_WAITALL) == (ssize_t)ret->len;
}

bool raw_is_closed(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	char c[4096];

	while (poll(&pfd, 1, LONG_MS) == 1) {
		if (recv(fd, c, sizeof(c), 0) <= 0)
			return true;
	}
	return false;
}

/* Both sides of a handshake over a blocking socket. */
static int raw_handshake(int fd, struct cfs_handshake *h, uint8_t *out, size_t len)
{
	uint8_t payload[CFS_WIRE_CONTROL_MAX];
	struct cfs_frame f;
	int r = 0;

	while (r == 0) {
		if (len > 0 && !raw_send(fd, out, len))
			return -ECONNRESET;
		if (!raw_frame(fd, &f, payload))
			return -ECONNRESET;
		r = cfs_handshake_frame(h, &f, payload, out, &len);
		if (r != 0 && len > 0)
			raw_send(fd, out, len);
	}
	return r;
}

int raw_client(struct owner *o, const struct cfs_handshake_keys *k, int *ret_result)
{
	return raw_client_with(o, k, CFS_FEATURES, ret_result);
}

int raw_client_with(struct owner *o, const struct cfs_handshake_keys *k, uint64_t features,
		    int *ret_result)
{
	struct cfs_frame hello = {.type = CFS_FRAME_HELLO};
	uint8_t out[CFS_HANDSHAKE_OUT];
	struct cfs_handshake h;
	size_t len;
	int fd = raw_connect(o);

	assert_int_equal(cfs_handshake_client(&h, CLIENT, SERVER, k, out, &len), 0);
	cfs_put_be64(h.hello + 8, features);
	len = cfs_wire_control(out, &hello, h.hello, CFS_HELLO_LEN);
	*ret_result = raw_handshake(fd, &h, out, len);
	return fd;
}

size_t get_frame(uint8_t *buf, uint64_t id, uint32_t block_len, uint32_t off, uint32_t len)
{
	struct cfs_frame f = {.type = CFS_FRAME_GET, .id = id};
	struct cfs_wire_get g = {{1, 0, block_len}, off, len};
	uint8_t payload[CFS_WIRE_GET_LEN];

	cfs_wire_put_get(payload, &g);
	return cfs_wire_control(buf, &f, payload, sizeof(payload));
}
