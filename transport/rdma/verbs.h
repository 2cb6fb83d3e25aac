/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided reads between members: the contract of the module "rdma", which is the only part that
 * knows libibverbs and librdmacm.
 *
 * A cfs_rdma is the RDMA device that has the member's address. The owner of bytes maps memory for
 * reading by others; the reader has a connection (a reliable queue pair), and reads into memory
 * that it has mapped for itself. The owner's processor takes no part in a read. Nothing is ever
 * sent or written, so neither side posts receives, and a reader's memory cannot be accessed.
 *
 * Connections belong to sessions: both members already have an authenticated connection, and agree
 * on it upon a random number and a secret. Each side proves the secret for the two queue pair
 * numbers (binding.h); a queue pair of any other process is refused, before it exists on the
 * owner's side.
 *
 * Bounds: max_conns queue pairs, max_reads reads under way. An attempt to connect and the end of a
 * connection take at most CFS_RDMA_WAIT_MS each; a read takes as long as the device retries, about
 * a second, and the caller ends the connection of one that takes too long.
 *
 * Threads: "the loop" is the caller's thread that calls poll and tick; events come from these two
 * calls. A thread that waits for its own reads may poll for them (take, watch): then the loop sleeps
 * on, and read_done comes from these calls, too. poll, tick, close, take and watch exclude one
 * another: the caller's lock sees to that. read, map and unmap are for any thread at any time. No
 * call waits for the other side.
 */
#ifndef CFS_RDMA_VERBS_H
#define CFS_RDMA_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "transport/rdma/binding.h"

#define CFS_RDMA_WAIT_MS  2000
#define CFS_RDMA_CHAIN	  64 /* reads of one connection that are under way at a time */
#define CFS_RDMA_READ_MAX (1u << 20)

struct cfs_rdma;
struct cfs_rdma_conn;

/* All on the loop, except for read_done. */
struct cfs_rdma_events {
	/*
	 * A queue pair asks to be connected for this session. 0: c is its connection, for which
	 * lost follows once; *ret_user is the caller's of it. -ENOENT: there is none, refused. The
	 * caller returns a session once: a number that has been seen is of no use to others.
	 */
	int (*asked)(void *arg, uint64_t session, struct cfs_rdma_conn *c,
		     uint8_t ret_secret[CFS_RDMA_SECRET], void **ret_user);
	/* It is connected and has proved the secret. A reader may read. */
	void (*ready)(void *arg, void *user);
	/*
	 * It is gone, and c with the return; err: why. Reads without a read_done are over: nothing writes to
	 * their memory. -EACCES: the other side does not have the secret, -ECONNREFUSED: it refuses,
	 * -ENODEV: the device is gone, -ETIMEDOUT, -ECONNRESET, -EHOSTUNREACH: it does not answer.
	 */
	void (*lost)(void *arg, void *user, int err);
	/*
	 * A read has ended, the first ones first. 0; -EKEYREJECTED: the owner's memory is not mapped
	 * under this key; others as of lost. After an error lost follows, on the loop's next poll or
	 * tick.
	 */
	void (*read_done)(void *arg, void *cookie, int err);
	/*
	 * The device is gone, or the address is not on it any more: no connection is ready, and none
	 * can be made. Close it.
	 */
	void (*removed)(void *arg);
};

struct cfs_rdma_conf {
	const struct sockaddr *local; /* the member's address, its port is ignored */
	socklen_t local_len;
	unsigned max_conns;
	unsigned max_reads;
	const struct cfs_rdma_events *events;
	void *arg;
};

/* Mapped memory. */
struct cfs_rdma_memory {
	uint32_t key; /* names it to readers */
};

enum cfs_rdma_access {
	CFS_RDMA_OWN,	/* reads of this process write to it */
	CFS_RDMA_SHARED /* others read it, from offset 0 on */
};

/* A range of the owner's memory, and where it goes. */
struct cfs_rdma_read {
	void *to; /* within `memory` */
	const struct cfs_rdma_memory *memory;
	uint64_t from; /* offset in the memory of `key` */
	uint32_t key;
	uint32_t len; /* 1 to CFS_RDMA_READ_MAX */
	void *cookie;
};

struct cfs_rdma_ops {
	/*
	 * -ENODEV: no RDMA device has this address; others of the libraries. err: one line. After
	 * the device was removed it is to be tried from time to time: the kernel completes the
	 * removal when this process lets the device go, which happens here, too.
	 */
	int (*open)(const struct cfs_rdma_conf *conf, struct cfs_rdma **ret, char err[256]);
	/* Ends everything without events. Mapped memory is unmapped, and its structures are freed. */
	void (*close)(struct cfs_rdma *d);
	/* "rxe0": the device's name. */
	const char *(*name)(const struct cfs_rdma *d);
	/* Port by which others connect to this address. */
	uint16_t (*port)(const struct cfs_rdma *d);
	/* Readable when poll should be called. */
	int (*fd)(const struct cfs_rdma *d);
	/* Handles what has happened. */
	void (*poll)(struct cfs_rdma *d);
	/* About every 20 ms while connections begin or end, else when convenient: deadlines. True:
	 * there are such. */
	bool (*tick)(struct cfs_rdma *d, uint64_t now_ms);

	/* On the loop. ready or lost follows. remote: address and port of the owner. -EMFILE: at the
	 * limit. */
	int (*connect)(struct cfs_rdma *d, const struct sockaddr *remote, uint64_t session,
		       const uint8_t secret[CFS_RDMA_SECRET], void *user,
		       struct cfs_rdma_conn **ret);
	/* On the loop. lost follows, in a later poll or tick. */
	void (*disconnect)(struct cfs_rdma_conn *c);
	/*
	 * Posts all n reads (1 to CFS_RDMA_CHAIN) in one chain, or none: -EAGAIN: at a limit;
	 * -ENOTCONN. They are done in their order. Must not be called after lost. polled: the caller
	 * polls for them, and fd need not become readable when they are done.
	 */
	int (*read)(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		    bool polled);
	/* Any thread: reports reads of this device that are done, of all threads; a batch at most. */
	void (*take)(struct cfs_rdma *d);
	/*
	 * Any thread that gives up polling: fd becomes readable when reads are done that are under
	 * way now. Reports all that are done already.
	 */
	void (*watch)(struct cfs_rdma *d);

	/* Pins it. -ENOMEM: a limit of locked memory, too. */
	int (*map)(struct cfs_rdma *d, void *start, size_t len, enum cfs_rdma_access access,
		   struct cfs_rdma_memory **ret);
	/* On return its key is of no use: a read that comes later ends with -EKEYREJECTED. */
	void (*unmap)(struct cfs_rdma *d, struct cfs_rdma_memory *m);
};

/* The table of the module, for tests that link it. */
extern const struct cfs_rdma_ops cfs_rdma_verbs;

#endif
