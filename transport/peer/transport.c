/* SPDX-License-Identifier: Apache-2.0 */
/* A member: counters, rounds of its loop, creation and destruction. */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/module.h"
#include "onesided.h"
#include "transport-internal.h"

/* --- statistics --- */

void cfs_counters_ok(struct cfs_counters *c, uint64_t bytes, uint64_t ns)
{
	uint64_t us = ns / 1000;
	unsigned i = us == 0 ? 0 : 64 - (unsigned)__builtin_clzll(us);

	atomic_fetch_add_explicit(&c->requests, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->bytes, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->latency_ns, ns, memory_order_relaxed);
	i = CFS_MIN(i, CFS_PEER_LATENCIES - 1u);
	atomic_fetch_add_explicit(&c->latencies[i], 1, memory_order_relaxed);
}

void cfs_counters_error(struct cfs_counters *c, enum cfs_peer_error kind)
{
	atomic_fetch_add_explicit(&c->errors[kind], 1, memory_order_relaxed);
}

const char *cfs_peer_transport_name(enum cfs_peer_transport t)
{
	return t == CFS_PEER_RDMA ? "rdma" : t == CFS_PEER_TCP ? "tcp" : "tls";
}

void cfs_counters_read(struct cfs_counters *c, struct cfs_peer_stats *ret)
{
	unsigned i;

	*ret = (struct cfs_peer_stats){
		.requests = atomic_load(&c->requests),
		.bytes = atomic_load(&c->bytes),
		.direct = atomic_load(&c->direct),
		.rdma = atomic_load(&c->rdma),
		.misses = atomic_load(&c->misses),
		.latency_ns = atomic_load(&c->latency_ns),
		.inflight = atomic_load(&c->inflight),
		.inflight_bytes = atomic_load(&c->inflight_bytes),
	};
	for (i = 0; i < CFS_PEER_TRANSPORTS; i++) {
		ret->conns_by[i] = atomic_load(&c->conns[i]);
		ret->conns += ret->conns_by[i];
	}
	for (i = 0; i < CFS_PEER_E_COUNT; i++)
		ret->errors[i] = atomic_load(&c->errors[i]);
	for (i = 0; i < CFS_PEER_LATENCIES; i++)
		ret->latencies[i] = atomic_load(&c->latencies[i]);
}

enum cfs_peer_error cfs_peer_error_of(int err)
{
	switch (err) {
	case 0:
	case -ENOENT:
	case -ESHUTDOWN:
		return CFS_PEER_E_COUNT;
	case -ETIMEDOUT:
		return CFS_PEER_E_TIMEOUT;
	case -EBADMSG:
		return CFS_PEER_E_CHECKSUM;
	case -EPROTO:
	case -EPROTONOSUPPORT:
		return CFS_PEER_E_PROTOCOL;
	case -EACCES:
		return CFS_PEER_E_AUTH;
	case -EBUSY:
		return CFS_PEER_E_BUSY;
	case -EREMOTEIO:
		return CFS_PEER_E_REMOTE;
	case -ECANCELED:
		return CFS_PEER_E_CANCELED;
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
		return CFS_PEER_E_CONNECT;
	default:
		return CFS_PEER_E_LOST;
	}
}

void cfs_transport_stats(struct cfs_transport *t, struct cfs_peer_stats *ret_asked,
			 struct cfs_peer_stats *ret_served)
{
	if (ret_asked)
		cfs_counters_read(&t->asked, ret_asked);
	if (!ret_served)
		return;
	cfs_counters_read(&t->served, ret_served);
	if (t->onesided)
		cfs_onesided_stats(t->onesided, ret_served);
}

/* --- rounds of the loop --- */

static bool tick(void *arg)
{
	struct cfs_transport *t = arg;
	struct cfs_peer *p, *next;
	bool busy = false;

	pthread_mutex_lock(&t->lock);
	p = LIST_FIRST(&t->peers);
	pthread_mutex_unlock(&t->lock);
	/* Other threads only add at the front; only the loop removes. */
	for (; p; p = next) {
		next = LIST_NEXT(p, all);
		busy |= cfs_peer_tick(p);
	}
	cfs_server_tick(t, &busy);
	if (t->onesided)
		busy |= cfs_onesided_tick(t->onesided);
	return busy;
}

static void flush(void *arg)
{
	struct cfs_transport *t = arg;
	struct cfs_conn *c = t->more, *next;

	t->more = NULL;
	t->more_last = &t->more;
	cfs_admission_run(t);
	for (; c; c = next) {
		bool in = c->more_in, out = c->more_out;

		next = c->more_next;
		c->more_in = c->more_out = c->on_more = false;
		if (in)
			cfs_conn_readable(c);
		if (out && c->state != CFS_CONN_CLOSED)
			c->ops->flush(c);
		cfs_conn_unref(c);
	}
}

static bool has_more(void *arg)
{
	struct cfs_transport *t = arg;

	return t->more != NULL || cfs_admission_is_due(t);
}

/* --- life --- */

static void stop_listening(struct cfs_transport *t)
{
	if (t->listen_fd < 0)
		return;
	if (t->listen_armed)
		cfs_loop_cancel(&t->loop, &t->listen_op);
	close(t->listen_fd);
	t->listen_fd = -1;
}

/* Runs the work that other threads left for the loop. */
static void service(struct cfs_work *w)
{
	struct cfs_transport *t = caa_container_of(w, struct cfs_transport, work);
	bool stop, rekeyed;
	int listen;

	pthread_mutex_lock(&t->lock);
	rekeyed = t->want_keys;
	if (rekeyed)
		t->keys = t->next_keys;
	t->want_keys = false;
	t->draining |= t->want_drain;
	stop = t->want_stop;
	listen = t->want_listen;
	t->want_listen = -1;
	pthread_mutex_unlock(&t->lock);
	if (rekeyed)
		cfs_conn_close_old_keys(t);
	if (listen >= 0) {
		stop_listening(t);
		/* A poll that is cancelled ends like one that succeeds, and is made anew. */
		t->listen_fd = listen;
	}
	if (stop)
		stop_listening(t);
	cfs_server_arm(t);
	if (!stop)
		return;
	while (!LIST_EMPTY(&t->conns))
		cfs_conn_close(LIST_FIRST(&t->conns), -ESHUTDOWN);
	if (t->onesided)
		cfs_onesided_stop(t->onesided);
}

static void fill_in(struct cfs_transport_conf *conf)
{
#define DEFAULT(name, value) conf->name = conf->name ? conf->name : (value)
	DEFAULT(connect_timeout_ms, 2000);
	DEFAULT(stall_timeout_ms, 30000);
	DEFAULT(disk_timeout_ms, 1500);
	DEFAULT(destroy_timeout_ms, 30000);
	DEFAULT(max_conns, 16384);
	DEFAULT(max_unauthenticated, 1024);
	DEFAULT(max_unauthenticated_per_addr, 64);
	DEFAULT(max_conns_per_peer, 4);
	DEFAULT(grow_bytes, 8ull << 20);
	DEFAULT(conn_bytes, 64ull << 20);
	DEFAULT(inflight_bytes, 8ull << 30);
	DEFAULT(inflight, 65536);
	DEFAULT(copied_bytes, 64ull << 20);
	DEFAULT(failures, 3);
	DEFAULT(probe_ms, 100);
	DEFAULT(tls_records, 1ull << 24);
#undef DEFAULT
	conf->max_conns_per_peer = CFS_MIN(conf->max_conns_per_peer, CFS_CONNS_PER_PEER_MAX);
	conf->conn_bytes = CFS_MAX(conf->conn_bytes, CFS_PEER_BLOCK_MAX);
}

static void clear_keys(struct cfs_transport *t)
{
	OPENSSL_cleanse(&t->keys, sizeof(t->keys));
	OPENSSL_cleanse(&t->next_keys, sizeof(t->next_keys));
	OPENSSL_cleanse(t->conf.key, sizeof(t->conf.key));
}

/* -ENOENT: no module. */
static int start_rdma(struct cfs_transport *t, char err[256])
{
	const struct cfs_transport_conf *conf = &t->conf;
	const void *table = conf->rdma_ops;
	int r;

	if (!table) {
		r = cfs_module_load("rdma", &table, err);
		if (r < 0)
			return r;
	}
	return cfs_onesided_create(t, conf->rdma_address, conf->rdma_address_len, conf->rdma_bytes,
				   table, &t->onesided, err);
}

static void transport_free(void *arg)
{
	struct cfs_transport *t = arg;

	cfs_pipes_free(t);
	if (t->onesided)
		cfs_onesided_free(t->onesided);
	if (t->tls)
		cfs_tls_destroy(t->tls);
	pthread_mutex_destroy(&t->lock);
	clear_keys(t);
	free(t);
}

int cfs_transport_create(const struct cfs_transport_conf *conf, struct cfs_transport **ret,
			 char err[256])
{
	struct cfs_transport *t;
	int r = 0;

	err[0] = '\0';
	if (conf->member == 0 || (conf->listen && !conf->ops))
		return cfs_fail(err, -EINVAL, "a member needs an id, and something to serve");
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->conf = *conf;
	fill_in(&t->conf);
	t->link = conf->transport == CFS_PEER_TLS ? &cfs_link_tls : &cfs_link_tcp;
	t->listen_fd = t->want_listen = -1;
	t->more_last = &t->more;
	TAILQ_INIT(&t->blocked);
	cfs_admission_init(t);
	t->work.fn = service;
	memcpy(t->keys.key[0], conf->key, CFS_PEER_KEY_SIZE);
	t->keys.n = 1;
	pthread_mutex_init(&t->lock, NULL);
	if (conf->transport == CFS_PEER_TLS)
		r = cfs_tls_create(&t->keys, t->conf.tls_records, &t->tls);
	if (r < 0)
		snprintf(err, 256, "TLS is not available");
	if (r == 0 && conf->listen)
		r = cfs_server_listen(t, err);
	if (r == 0 && conf->rdma_bytes > 0)
		r = start_rdma(t, err);
	if (r < 0)
		goto fail;
	t->loop.tick = tick;
	t->loop.flush = flush;
	t->loop.has_more = has_more;
	t->loop.arg = t;
	r = cfs_loop_start(&t->loop);
	if (r < 0) {
		snprintf(err, 256, "io_uring is not available: %s", strerror(-r));
		goto fail;
	}
	cfs_loop_run(&t->loop, &t->work);
	*ret = t;
	return 0;
fail:
	if (t->onesided)
		cfs_onesided_stop(t->onesided);
	if (t->listen_fd >= 0)
		close(t->listen_fd);
	transport_free(t);
	return r;
}

int cfs_transport_destroy(struct cfs_transport *t)
{
	int r;

	pthread_mutex_lock(&t->lock);
	t->want_stop = true;
	pthread_mutex_unlock(&t->lock);
	cfs_loop_run(&t->loop, &t->work);
	r = cfs_loop_stop(&t->loop, cfs_deadline_in(t->conf.destroy_timeout_ms), transport_free);
	if (r == 0)
		transport_free(t);
	else
		cfs_err("peer transport: shutting down with unanswered requests");
	return r;
}

void cfs_transport_address(struct cfs_transport *t, struct sockaddr_storage *ret,
			   socklen_t *ret_len)
{
	*ret = t->address;
	*ret_len = t->address_len;
}

int cfs_transport_listen(struct cfs_transport *t, const struct sockaddr *addr, socklen_t len)
{
	struct sockaddr_storage at = {0};
	socklen_t at_len = sizeof(at);
	int fd, r;

	if (!cfs_address_is_private(addr) && !t->conf.allow_public)
		return -EADDRNOTAVAIL;
	fd = t->link->listen(addr, len);
	if (fd < 0)
		return fd;
	if (getsockname(fd, (struct sockaddr *)&at, &at_len) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	t->address = at;
	t->address_len = at_len;
	pthread_mutex_lock(&t->lock);
	if (t->want_listen >= 0)
		close(t->want_listen);
	t->want_listen = fd;
	pthread_mutex_unlock(&t->lock);
	cfs_loop_run(&t->loop, &t->work);
	return 0;
}

bool cfs_transport_has_rdma(struct cfs_transport *t)
{
	return t->onesided && cfs_onesided_has_device(t->onesided);
}

void cfs_transport_set_key(struct cfs_transport *t, const uint8_t key[CFS_PEER_KEY_SIZE],
			   const uint8_t *old)
{
	pthread_mutex_lock(&t->lock);
	memcpy(t->next_keys.key[0], key, CFS_PEER_KEY_SIZE);
	t->next_keys.n = 1;
	if (old) {
		memcpy(t->next_keys.key[1], old, CFS_PEER_KEY_SIZE);
		t->next_keys.n = 2;
	}
	t->want_keys = true;
	pthread_mutex_unlock(&t->lock);
	cfs_loop_run(&t->loop, &t->work);
}

void cfs_transport_drain(struct cfs_transport *t)
{
	pthread_mutex_lock(&t->lock);
	t->want_drain = true;
	pthread_mutex_unlock(&t->lock);
	cfs_loop_run(&t->loop, &t->work);
}
