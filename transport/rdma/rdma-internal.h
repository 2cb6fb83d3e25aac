/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the module. A connection is on d->conns from its creation until `lost`. The loop owns
 * all of it except what d->lock protects.
 *
 * The completion queue makes an event, which wakes the loop, only when it is armed: by a read for
 * which no thread polls, by a thread that gives up polling, and by the loop while reads are under way
 * after an event. So polling threads alone never wake the loop.
 */
#ifndef CFS_RDMA_INTERNAL_H
#define CFS_RDMA_INTERNAL_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sys/queue.h>

#include "verbs.h"

enum conn_state {
	CONN_ADDRESS,  /* reader: the owner's address is looked up */
	CONN_ROUTE,    /* then the way to it */
	CONN_ASKED,    /* then it has been asked */
	CONN_ACCEPTED, /* owner: waits for the reader's last message */
	CONN_READY,
	CONN_ENDING, /* reads are flushed; `lost` follows */
};

struct cfs_rdma_conn {
	struct cfs_rdma *d;
	struct rdma_cm_id *id;
	bool owner;
	uint64_t session;
	uint8_t secret[CFS_RDMA_SECRET];
	void *user;
	uint64_t until_ms; /* of a state that is neither ready */
	int err;	   /* why it ends */
	LIST_ENTRY(cfs_rdma_conn) all;

	/* Under the lock */
	enum conn_state state;
	unsigned reads; /* under way */
	int failed; /* a read's error that a polling thread has seen, and the loop ends it for */
};

/* A read that is under way. Completions name it by index and generation. */
struct slot {
	struct cfs_rdma_conn *c; /* NULL: free */
	void *cookie;
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
	unsigned depth; /* reads that a queue pair may execute at a time */

	pthread_mutex_t lock; /* innermost; posts are made under it: they do not wait */
	struct slot *slots;
	unsigned n_slots, free_slot; /* n_slots: none is free */
	unsigned n_reads;	     /* under way */
	bool armed;		     /* the next completion makes an event */
	LIST_HEAD(, mapping) mappings;
};

/* --- conn.c --- */

/* Handles one event of the connection manager; -EAGAIN: there is none. */
int cfs_rdma_next_event(struct cfs_rdma *d);
int cfs_rdma_connect(struct cfs_rdma *d, const struct sockaddr *remote, uint64_t session,
		     const uint8_t secret[CFS_RDMA_SECRET], void *user, struct cfs_rdma_conn **ret);
/* Begins the end of c, once. */
void cfs_rdma_end(struct cfs_rdma_conn *c, int err);
/* Ends attempts that take too long. Reports and frees connections whose reads are over. */
void cfs_rdma_reap(struct cfs_rdma *d, uint64_t now_ms);
/* Without a report. */
void cfs_rdma_conn_free(struct cfs_rdma_conn *c);

/* --- reads.c --- */

int cfs_rdma_reads_init(struct cfs_rdma *d, unsigned max);
int cfs_rdma_read(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		  bool polled);
/* On the loop: takes events, and completions until there are none. */
void cfs_rdma_complete(struct cfs_rdma *d);
/* As of the table. */
void cfs_rdma_take(struct cfs_rdma *d);
void cfs_rdma_watch(struct cfs_rdma *d);
/* The queue pair of c is gone: forgets its reads. */
void cfs_rdma_forget_reads(struct cfs_rdma_conn *c);

#endif
