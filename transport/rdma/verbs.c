/* SPDX-License-Identifier: Apache-2.0 */
/* The module's table, and the RDMA device: opening, mapped memory, closing. */
#include "verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "rdma-internal.h"

#define BACKLOG	  128
#define DEPTH_MAX 16

/* --- memory --- */

static int map(struct cfs_rdma *d, void *start, size_t len, enum cfs_rdma_access access,
	       struct cfs_rdma_memory **ret)
{
	bool shared = access == CFS_RDMA_SHARED;
	struct mapping *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	/* Readers use offsets, so they learn no address of this process. */
	m->mr = ibv_reg_mr_iova(d->pd, start, len, shared ? 0 : (uintptr_t)start,
				shared ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE);
	if (!m->mr) {
		r = -errno;
		free(m);
		return r;
	}
	m->memory.key = m->mr->rkey;
	pthread_mutex_lock(&d->lock);
	LIST_INSERT_HEAD(&d->mappings, m, all);
	pthread_mutex_unlock(&d->lock);
	*ret = &m->memory;
	return 0;
}

static void unmap(struct cfs_rdma *d, struct cfs_rdma_memory *memory)
{
	struct mapping *m = (struct mapping *)memory; /* its first member */

	pthread_mutex_lock(&d->lock);
	LIST_REMOVE(m, all);
	pthread_mutex_unlock(&d->lock);
	(void)ibv_dereg_mr(m->mr);
	free(m);
}

/* --- the device --- */

static void close_device(struct cfs_rdma *d)
{
	while (!LIST_EMPTY(&d->conns))
		cfs_rdma_conn_free(LIST_FIRST(&d->conns));
	while (!LIST_EMPTY(&d->mappings))
		unmap(d, &LIST_FIRST(&d->mappings)->memory);
	if (d->cq)
		(void)ibv_destroy_cq(d->cq);
	if (d->completions)
		(void)ibv_destroy_comp_channel(d->completions);
	if (d->pd)
		(void)ibv_dealloc_pd(d->pd);
	if (d->listening)
		(void)rdma_destroy_id(d->listening);
	if (d->cm)
		rdma_destroy_event_channel(d->cm);
	if (d->epoll_fd >= 0)
		close(d->epoll_fd);
	pthread_mutex_destroy(&d->lock);
	free(d->slots);
	free(d);
}

static int set_local(struct cfs_rdma *d, const struct cfs_rdma_conf *conf)
{
	memcpy(&d->local, conf->local, CFS_MIN(conf->local_len, sizeof(d->local)));
	d->local_len = conf->local_len;
	if (d->local.ss_family == AF_INET)
		((struct sockaddr_in *)&d->local)->sin_port = 0;
	else if (d->local.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&d->local)->sin6_port = 0;
	else
		return -EAFNOSUPPORT;
	return 0;
}

static int watch(struct cfs_rdma *d, int fd)
{
	struct epoll_event e = {.events = EPOLLIN};
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
	    epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
		return -errno;
	return 0;
}

/*
 * The kernel completes the removal of a device when this process has closed it. librdmacm keeps it
 * open until it lists the devices again.
 */
static void release_removed_devices(void)
{
	struct ibv_context **list = rdma_get_devices(NULL);

	if (list)
		rdma_free_devices(list);
}

/* *ret_step: a text for the step that failed. */
static int find_device(struct cfs_rdma *d, const char **ret_step)
{
	int r;

	*ret_step = "there is no RDMA here";
	d->cm = rdma_create_event_channel();
	if (!d->cm || rdma_create_id(d->cm, &d->listening, NULL, RDMA_PS_TCP) < 0)
		return errno == ENOENT ? -ENODEV : -errno;
	*ret_step = "no RDMA device has this address";
	if (rdma_bind_addr(d->listening, (struct sockaddr *)&d->local) < 0) {
		r = errno == EADDRNOTAVAIL ? -ENODEV : -errno;
		release_removed_devices();
		return r;
	}
	d->device = d->listening->verbs;
	return d->device ? 0 : -ENODEV;
}

static int prepare(struct cfs_rdma *d, unsigned max_reads, const char **ret_step)
{
	struct ibv_device_attr attr;
	int r;

	*ret_step = "the RDMA device cannot be used";
	r = ibv_query_device(d->device, &attr);
	if (r)
		return -abs(r);
	d->depth = (unsigned)CFS_MIN(CFS_MIN(attr.max_qp_rd_atom, attr.max_qp_init_rd_atom),
				     DEPTH_MAX);
	if (d->depth == 0)
		return -ENOTSUP;
	r = cfs_rdma_reads_init(d, CFS_MIN(max_reads, (unsigned)attr.max_cqe));
	if (r < 0)
		return r;
	d->pd = ibv_alloc_pd(d->device);
	if (d->pd)
		d->completions = ibv_create_comp_channel(d->device);
	if (d->completions)
		d->cq = ibv_create_cq(d->device, (int)d->n_slots, NULL, d->completions, 0);
	if (!d->cq || ibv_req_notify_cq(d->cq, 0) != 0)
		return -errno;
	d->armed = true;
	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (d->epoll_fd < 0)
		return -errno;
	r = watch(d, d->cm->fd);
	if (r == 0)
		r = watch(d, d->completions->fd);
	*ret_step = "cannot listen for RDMA connections";
	if (r == 0 && rdma_listen(d->listening, BACKLOG) < 0)
		r = -errno;
	return r;
}

static int open_device(const struct cfs_rdma_conf *conf, struct cfs_rdma **ret, char err[256])
{
	struct cfs_rdma *d = calloc(1, sizeof(*d));
	const char *step = "the address is not of IP";
	int r;

	if (!d)
		return -ENOMEM;
	d->epoll_fd = -1;
	d->events = conf->events;
	d->arg = conf->arg;
	d->max_conns = conf->max_conns;
	pthread_mutex_init(&d->lock, NULL);
	r = set_local(d, conf);
	if (r == 0)
		r = find_device(d, &step);
	if (r == 0)
		r = prepare(d, conf->max_reads, &step);
	if (r < 0) {
		snprintf(err, 256, "%s: %s", step, strerror(-r));
		close_device(d);
		return r;
	}
	*ret = d;
	return 0;
}

static const char *name_of(const struct cfs_rdma *d)
{
	return ibv_get_device_name(d->device->device);
}

static uint16_t port_of(const struct cfs_rdma *d)
{
	return ntohs(rdma_get_src_port(d->listening));
}

static int fd_of(const struct cfs_rdma *d)
{
	return d->epoll_fd;
}

static void poll_device(struct cfs_rdma *d)
{
	while (cfs_rdma_next_event(d) == 0)
		;
	cfs_rdma_complete(d);
	cfs_rdma_reap(d, cfs_now_ms());
	if (d->removed && !d->told_removed) {
		d->told_removed = true;
		d->events->removed(d->arg);
	}
}

static bool tick(struct cfs_rdma *d, uint64_t now_ms)
{
	struct cfs_rdma_conn *c;
	bool busy = false;

	cfs_rdma_reap(d, now_ms);
	LIST_FOREACH(c, &d->conns, all)
	busy |= c->state != CONN_READY;
	return busy;
}

static void disconnect(struct cfs_rdma_conn *c)
{
	cfs_rdma_end(c, -ECANCELED);
}

const struct cfs_rdma_ops cfs_rdma_verbs = {
	.open = open_device,
	.close = close_device,
	.name = name_of,
	.port = port_of,
	.fd = fd_of,
	.poll = poll_device,
	.tick = tick,
	.connect = cfs_rdma_connect,
	.disconnect = disconnect,
	.read = cfs_rdma_read,
	.take = cfs_rdma_take,
	.watch = cfs_rdma_watch,
	.map = map,
	.unmap = unmap,
};
