/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the module. A connection is in d->conns from its creation until `lost`. It
 * belongs to the loop, except for the fields that d->lock protects.
 *
 * The completion queue makes an event, which wakes the loop, only after it was armed. It is armed by a
 * read for which no thread polls, by a thread that stops polling, and by the loop after an event
 * while reads are under way. So reads whose threads poll do not wake the loop.
 */
#ifndef CFS_RDMA_INTERNAL_H
#define CFS_RDMA_INTERNAL_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sys/queue.h>

#include "verbs.h"

enum conn_state {
	CONN_ADDRESS,  /* reader: resolves the owner's address, */
	CONN_ROUTE,    /* then the route, */
	CONN_ASKED,    /* then waits for the owner's reply */
	CONN_ACCEPTED, /* owner: waits for the reader's last message */
	CONN_READY,
	CONN_ENDING, /* its reads are flushed; `lost` follows */
};

struct cfs_rdma_conn {
	struct cfs_rdma *d;
	struct rdma_cm_id *id;
	bool owner;
	uint64_t session;
	uint8_t secret[CFS_RDMA_SECRET];
	void *user;
	uint64_t until_ms; /* deadline of any state but CONN_READY */
	int err;	   /* the reason of its end */
	LIST_ENTRY(cfs_rdma_conn) all;

	/* Under the lock */
	enum conn_state state;
	unsigned reads; /* under way; those of a chain until its end */
	int failed;	/* error of a read; the loop then ends the connection */
};

/* A chain of reads under way. Completions name it by index and generation. */
struct slot {
	struct cfs_rdma_conn *c; /* NULL: free */
	void *cookie;
	unsigned reads;
	int err; /* of the first read that failed */
	uint32_t generation;
	unsigned next_free;
};

struct mapping {
	struct cfs_rdma_memory memory; /* first */
	struct ibv_mr *mr;
	LIST_ENTRY(mapping) all;
};

struct cfs_rdma {
	const struct cfs_rdma_events *events;
	void *arg;
	struct sockaddr_storage local; /* port 0 */
	socklen_t local_len;
	unsigned max_conns, n_conns;
	LIST_HEAD(, cfs_rdma_conn) conns;
	bool removed, told_removed;

	struct rdma_event_channel *cm;
	struct rdma_cm_id *listening;
	struct ibv_context *device; /* librdmacm's */
	struct ibv_pd *pd;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	int epoll_fd;
	unsigned depth; /* reads that the device executes at a time for a queue pair */

	pthread_mutex_t lock; /* innermost; held for posting, which does not wait */
	struct slot *slots;
	unsigned n_slots, free_slot; /* n_slots: none is free */
	unsigned n_reads;	     /* under way; at most n_slots, as each may have a completion */
	bool armed;		     /* the next completion makes an event */
	LIST_HEAD(, mapping) mappings;
};

/* --- conn.c --- */

/* Handles one event of the connection manager; -EAGAIN: none. */
int cfs_rdma_next_event(struct cfs_rdma *d);
int cfs_rdma_connect(struct cfs_rdma *d, const struct sockaddr *remote, uint64_t session,
		     const uint8_t secret[CFS_RDMA_SECRET], void *user, struct cfs_rdma_conn **ret);
/* Begins the end of c; later calls do nothing. */
void cfs_rdma_end(struct cfs_rdma_conn *c, int err);
/* Ends attempts at their deadline. Reports and frees ending connections without reads. */
void cfs_rdma_reap(struct cfs_rdma *d, uint64_t now_ms);
/* Does not report `lost`. */
void cfs_rdma_conn_free(struct cfs_rdma_conn *c);

/* --- reads.c --- */

int cfs_rdma_reads_init(struct cfs_rdma *d, unsigned max);
int cfs_rdma_read(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		  void *cookie, bool polled);
/* On the loop: takes all events and completions. */
void cfs_rdma_complete(struct cfs_rdma *d);
/* Members of the table. */
void cfs_rdma_take(struct cfs_rdma *d);
void cfs_rdma_watch(struct cfs_rdma *d);
/* Frees the slots of c's chains, whose queue pair is destroyed. */
void cfs_rdma_forget_reads(struct cfs_rdma_conn *c);

#endif
