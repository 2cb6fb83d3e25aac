/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA reads between members: the contract of the module "rdma", the only part that uses libibverbs
 * and librdmacm.
 *
 * A cfs_rdma is the RDMA device with the member's address. An owner maps memory that others may read.
 * A reader has a connection (a reliable queue pair) and reads into memory that it has mapped for
 * itself. The owner's processor takes no part in a read. There are no other work requests, so neither
 * side posts receives, and a reader's memory is not accessible to owners.
 *
 * Each connection belongs to a session. The two members agree on a random number and a secret over an
 * authenticated connection. Each side then proves the secret for both queue pair numbers (binding.h).
 * The owner checks that proof before it creates its queue pair.
 *
 * Reads are posted in chains: one call of the device's driver and one completion for each chain.
 *
 * Bounds: max_conns queue pairs, max_reads reads under way. Connecting and ending take at most
 * CFS_RDMA_WAIT_MS each. A read takes at most as long as the device retries, usually a second; the
 * caller ends the connection of one that takes longer.
 *
 * Threads: "the loop" is the caller's thread that calls poll and tick, from which events come. A
 * thread that waits for its own reads may poll for them with take and watch; read_done then comes
 * from these calls, and the loop need not wake. The caller serializes poll, tick, close, take and
 * watch. read, map and unmap are for any thread at any time. No call waits for the other side.
 */
#ifndef CFS_RDMA_VERBS_H
#define CFS_RDMA_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "transport/rdma/binding.h"

#define CFS_RDMA_WAIT_MS  2000
#define CFS_RDMA_CHAIN	  64  /* reads that are posted together */
#define CFS_RDMA_READS	  128 /* of one connection that are under way at a time */
#define CFS_RDMA_READ_MAX (1u << 20)

struct cfs_rdma;
struct cfs_rdma_conn;

/* All on the loop, except for read_done. */
struct cfs_rdma_events {
	/*
	 * A reader requests a connection for this session. 0: accepted as c, for which lost follows
	 * once; *ret_user identifies c in events. -ENOENT: no such session, refused. The caller
	 * accepts a session once, so an observed number is useless.
	 */
	int (*asked)(void *arg, uint64_t session, struct cfs_rdma_conn *c,
		     uint8_t ret_secret[CFS_RDMA_SECRET], void **ret_user);
	/* The connection is authenticated. A reader may read. */
	void (*ready)(void *arg, void *user);
	/*
	 * The connection has ended; c is freed when this returns. Chains without a read_done are
	 * over: nothing writes to their memory. err, the reason: -EACCES: a wrong proof of the other
	 * side; -ECONNREFUSED: refused; -ENODEV: the device is gone; -ETIMEDOUT, -ECONNRESET,
	 * -EHOSTUNREACH: the other side does not answer.
	 */
	void (*lost)(void *arg, void *user, int err);
	/*
	 * All reads of a chain have ended; chains of a connection end in their order. err: 0, or that
	 * of the first read that failed: -EKEYREJECTED: the owner has no memory with this key; others
	 * as of lost. After an error lost follows, in the loop's next poll or tick.
	 */
	void (*read_done)(void *arg, void *cookie, int err);
	/*
	 * The device is gone, or has lost the address: no connection is usable, and the caller closes
	 * the device.
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
	CFS_RDMA_OWN,	/* target of this process' reads */
	CFS_RDMA_SHARED /* readable by others, from offset 0 on */
};

/* A range of the owner's memory, and its target. */
struct cfs_rdma_read {
	void *to; /* within `memory` */
	const struct cfs_rdma_memory *memory;
	uint64_t from; /* offset in the memory of `key` */
	uint32_t key;
	uint32_t len; /* 1 to CFS_RDMA_READ_MAX */
};

struct cfs_rdma_ops {
	/*
	 * -ENODEV: no RDMA device has this address; others of the libraries. err: one line. After a
	 * removal the caller tries from time to time: the kernel completes a removal when this
	 * process has released the device, which open does.
	 */
	int (*open)(const struct cfs_rdma_conf *conf, struct cfs_rdma **ret, char err[256]);
	/* Ends all connections without events, and unmaps all memory, whose structures are freed. */
	void (*close)(struct cfs_rdma *d);
	/* "rxe0": the device's name. */
	const char *(*name)(const struct cfs_rdma *d);
	/* The port for connections to this address. */
	uint16_t (*port)(const struct cfs_rdma *d);
	/* Readable when poll should be called. */
	int (*fd)(const struct cfs_rdma *d);
	/* Handles events and completions. */
	void (*poll)(struct cfs_rdma *d);
	/* Checks deadlines. Called about every 20 ms while it returns true: connections begin or end. */
	bool (*tick)(struct cfs_rdma *d, uint64_t now_ms);

	/* On the loop. ready or lost follows. remote: address and port of the owner. -EMFILE: too many
	 * connections. */
	int (*connect)(struct cfs_rdma *d, const struct sockaddr *remote, uint64_t session,
		       const uint8_t secret[CFS_RDMA_SECRET], void *user,
		       struct cfs_rdma_conn **ret);
	/* On the loop. lost follows in a later poll or tick. */
	void (*disconnect)(struct cfs_rdma_conn *c);
	/*
	 * Posts a chain of n reads (1 to CFS_RDMA_CHAIN), all or none; read_done reports its end once,
	 * with the cookie. -EAGAIN: at a limit; -ENOTCONN. Must not be called after lost. polled: the
	 * caller polls for it, so fd need not become readable at its end.
	 */
	int (*read)(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		    void *cookie, bool polled);
	/* Any thread: reports ended chains of all threads of this device, at most one batch. */
	void (*take)(struct cfs_rdma *d);
	/*
	 * Any thread that stops polling: fd becomes readable at the end of a chain that is under way.
	 * Reports all chains that have ended already.
	 */
	void (*watch)(struct cfs_rdma *d);

	/* Pins the memory. -ENOMEM: also at the limit of locked memory. */
	int (*map)(struct cfs_rdma *d, void *start, size_t len, enum cfs_rdma_access access,
		   struct cfs_rdma_memory **ret);
	/* Voids the key before it returns: later reads end with -EKEYREJECTED. */
	void (*unmap)(struct cfs_rdma *d, struct cfs_rdma_memory *m);
};

/* The table of the module, for tests that link it. */
extern const struct cfs_rdma_ops cfs_rdma_verbs;

#endif
