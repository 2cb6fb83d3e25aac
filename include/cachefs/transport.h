/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer transport: members of a cache group serve each other ranges of blocks.
 *
 * A cfs_transport is one member: one thread with one io_uring that serves requests (when it
 * listens) and runs the client side of every cfs_peer. It does not know what a block means: the
 * serve table finds the bytes, the caller decides whom to ask. The caller does not know what carries
 * the bytes: a peer's connections may be byte streams or not (transport/peer/client.h).
 *
 *	asking:		cfs_peer_start() -> done(), or cfs_peer_read() which waits
 *	answering:	ops->get() -> cfs_peer_answer()
 *
 * Every received byte has been checked against the CRC-32C of its frame, every byte that is sent
 * from a file with checksums is covered by them. Nothing here waits without a deadline; a circuit
 * breaker excludes a peer that fails (-EHOSTDOWN at once) and probes it in the background until it
 * answers.
 *
 * Memory is bounded, also when receivers stall and disks hang. Idle connections take under 4 KiB
 * each besides the kernel's socket. Answers below 64 KiB that wait to be sent are copies, up to 1
 * MiB per connection and copied_bytes in all; others are sent from the page cache or from the
 * answer's own memory. Each request under way takes half a KiB. Reads that miss the page cache use
 * up to 4 MiB per disk, of eight disks; further answers queue for that memory and hold none. A disk
 * that hangs gets no more reads until it answers.
 *
 * The protocol, byte by byte: docs/peer-protocol.md.
 */
#ifndef CFS_TRANSPORT_H
#define CFS_TRANSPORT_H

#include <net/if.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"

#define CFS_PEER_KEY_SIZE     32
#define CFS_PEER_BLOCK_MAX    (16u << 20)
#define CFS_PEER_RDMA_BESIDES (18u << 20)
#define CFS_PEER_SEGMENT      (32u << 10) /* covered by one checksum of a file */

struct cfs_transport;
struct cfs_peer;
struct cfs_rdma_ops;

/* A block by name. len is its whole length and part of the name. */
struct cfs_peer_block {
	uint64_t slice;
	uint32_t index;
	uint32_t len;
};

/*
 * The carrier of bytes between members. It is configured, is in a member's record, and is
 * counted per connection. Members with different transports do not connect to each other.
 */
enum cfs_peer_transport {
	CFS_PEER_TCP,
	CFS_PEER_TLS,  /* TLS 1.3, and no connection without it */
	CFS_PEER_KTLS, /* of a connection only: TLS whose sent data the kernel encrypts */
	CFS_PEER_RDMA, /* of a connection only: one-sided reads, beside TCP */
	CFS_PEER_TRANSPORTS,
};
/* "tcp", "tls", "rdma". */
const char *cfs_peer_transport_name(enum cfs_peer_transport t);

/* --- answering --- */

enum cfs_peer_flag {
	CFS_PEER_ONLY_CACHED = 1, /* -ENOENT rather than fetch it from object storage */
	CFS_PEER_FAILOVER =
		2, /* on behalf of a slow owner; sent only to members that know this flag */
};

/* Read only. Valid until it has been answered. */
struct cfs_peer_request {
	struct cfs_peer_block block;
	uint32_t off, len; /* within the block, len > 0 */
	unsigned flags;	   /* enum cfs_peer_flag */
	uint64_t from;	   /* member that asks */
	bool patient;	   /* it extends its deadline on each progress message */
};

struct cfs_peer_answer {
	/*
	 * 0 or the reason: -ENOENT not here, -EBUSY ask another member, -ESHUTDOWN leaving. Any
	 * other error arrives as -EREMOTEIO.
	 */
	int err;
	/*
	 * The block as a file, data at offset 0, whose bytes never change; crcs[i] is the CRC-32C
	 * of segment i (the last may be short), not yet verified: the receiver finds a mismatch,
	 * and so does the sender where it reads a segment. n_crcs 0: none.
	 */
	int fd;
	unsigned disk; /* a number; files of one disk share its read limit and its hangs */
	unsigned n_crcs;
	const uint32_t *crcs;
	/* Or, with fd -1, exactly the bytes asked for. */
	const struct iovec *iov;
	int n_iov;
	/*
	 * Called when the bytes (fd, crcs, iov) are no longer needed. mismatch: they do not match
	 * crcs. May be NULL. Runs on the transport's thread: must not wait.
	 */
	void (*release)(void *arg, bool mismatch);
	void *arg;
};

enum cfs_peer_hint {
	CFS_PEER_FORGET = 1, /* the block is deleted */
	CFS_PEER_WARM = 2,   /* the block will be read soon */
};

/* All on the transport's thread: must not wait. */
struct cfs_peer_serve_ops {
	/* cfs_peer_answer() must follow exactly once, here or later from any thread. */
	void (*get)(void *arg, struct cfs_peer_request *req);
	/* Best effort, no answer. Optional: ignored. */
	void (*hint)(void *arg, uint64_t from, const struct cfs_peer_block *b,
		     enum cfs_peer_hint hint);
	/*
	 * True while a request that came at since_ms makes progress: the client should keep
	 * waiting. *ret_left_ms, 0 at the call: the estimated time until the answer; 0: unknown.
	 * Optional; the fallback is true.
	 */
	bool (*works)(void *arg, const struct cfs_peer_request *req, uint64_t since_ms,
		      uint64_t *ret_left_ms);
};

/*
 * Announces that the answer will take long. A patient client gets a progress message several times
 * a second, until the answer, until ops->works returns false, or until `until`. Call it in
 * ops->get, before any thread may answer.
 */
void cfs_peer_working(struct cfs_peer_request *req, cfs_deadline_t until);
/* *a is copied; what it points to must stay until release. req is gone afterwards. */
void cfs_peer_answer(struct cfs_peer_request *req, const struct cfs_peer_answer *a);

/* --- the member itself --- */

struct cfs_transport_conf {
	uint64_t member; /* own id, not 0 */
	uint8_t key[CFS_PEER_KEY_SIZE];

	const struct sockaddr *listen; /* NULL: only asks. Port 0: any */
	socklen_t listen_len;
	bool allow_public; /* listen on an address that is not private, or on any */
	enum cfs_peer_transport transport;
	const struct cfs_peer_serve_ops *ops;
	void *ops_arg;
	/*
	 * Memory for blocks that other members read by RDMA, at least 5 MiB; 0: no RDMA. Beside it
	 * CFS_PEER_RDMA_BESIDES are locked for reading from others. Not with CFS_PEER_TLS.
	 */
	uint64_t rdma_bytes;
	bool rdma_waits; /* for a device; otherwise create fails when there is none */
	const struct sockaddr *rdma_address; /* own, of the RDMA device */
	socklen_t rdma_address_len;
	const struct cfs_rdma_ops *rdma_ops; /* NULL: of the module "rdma" */

	/* 0: the default in brackets */
	unsigned connect_timeout_ms; /* of connecting and authenticating, each [2000] */
	unsigned stall_timeout_ms;   /* a receiver that takes nothing is cut off [30000] */
	unsigned disk_timeout_ms; /* then a disk counts as hung; its requests get -EBUSY [1500] */
	unsigned destroy_timeout_ms; /* [30000] */
	unsigned max_conns;	     /* inbound connections served [16384] */
	unsigned max_unauthenticated, max_unauthenticated_per_addr; /* [1024], [64] */
	unsigned max_conns_per_peer;				    /* outbound [4] */
	uint64_t grow_bytes; /* another connection opens when one carries more in 200 ms [8 MiB] */
	uint64_t conn_bytes; /* requested and not yet sent, per connection [64 MiB] */
	uint64_t inflight_bytes; /* all connections; beyond it answers are -EBUSY [8 GiB] */
	unsigned inflight;	 /* the same as a number of requests [65536] */
	uint64_t copied_bytes;	 /* small answers that wait to be sent, all connections [64 MiB] */
	uint64_t request_rate;	 /* per second and connection; beyond it -EBUSY [no limit] */
	unsigned failures;	 /* consecutive failures that open the circuit breaker [3] */
	unsigned probe_ms;	 /* pause before the first probe, doubled up to 100 times [100] */
	uint64_t tls_records;	 /* received, after which a connection is replaced [2^24] */
};

/*
 * -EADDRNOTAVAIL: the address is public; -EADDRINUSE and others of bind(2); -ENOSYS, -EPERM: no
 * io_uring here. err: one line.
 */
int cfs_transport_create(const struct cfs_transport_conf *conf, struct cfs_transport **ret,
			 char err[256]);
/*
 * Every peer must be closed. Cuts all connections and waits for the answers to calls of ops->get
 * that are outstanding. -ETIMEDOUT: some did not come within destroy_timeout_ms. They may still
 * come; release is not called for them, and the last one frees t.
 */
int cfs_transport_destroy(struct cfs_transport *t);
/* The listening address; port 0 when it does not listen. */
void cfs_transport_address(struct cfs_transport *t, struct sockaddr_storage *ret,
			   socklen_t *ret_len);
/*
 * Listens at another address from now on, of which addr is private or conf.allow_public set.
 * Connections stay. Errors as of create. One thread at a time.
 */
int cfs_transport_listen(struct cfs_transport *t, const struct sockaddr *addr, socklen_t len);
/* It has an RDMA device at present. Any thread. */
bool cfs_transport_has_rdma(struct cfs_transport *t);
/*
 * Later connections use key; those that use old (may be NULL) are accepted, too. Connections that were
 * authenticated with any other key are closed.
 */
void cfs_transport_set_key(struct cfs_transport *t, const uint8_t key[CFS_PEER_KEY_SIZE],
			   const uint8_t *old);
/* Tells clients to ask other members. Requests that have arrived are answered. Does not wait. */
void cfs_transport_drain(struct cfs_transport *t);

/* RFC 1918, RFC 6598, link-local, loopback, fc00::/7. */
bool cfs_address_is_private(const struct sockaddr *sa);
/*
 * The first address of this machine that is private, not loopback, in `network` ("10.1.0.0/16";
 * NULL: any) and of the interface `device` (NULL: any), and its interface. -EADDRNOTAVAIL: none.
 */
int cfs_address_pick(const char *network, const char *device, struct sockaddr_storage *ret,
		     socklen_t *ret_len, char ret_device[IF_NAMESIZE]);
/* Whether this machine has the address. True when it cannot be told. */
bool cfs_address_is_ours(const struct sockaddr *sa, socklen_t len);
/* "10.0.0.1:7000", "[fd00::1]:7000". */
#define CFS_ADDRESS_MAX 64
void cfs_address_format(const struct sockaddr *sa, char ret[CFS_ADDRESS_MAX]);

/* --- asking --- */

/* Does not connect yet. */
int cfs_peer_open(struct cfs_transport *t, uint64_t member, const struct sockaddr *addr,
		  socklen_t addr_len, struct cfs_peer **ret);
/* Requests under way end with -ESHUTDOWN first. Must not be called from a done function. */
void cfs_peer_close(struct cfs_peer *p);

/*
 * A request for a range. Owned by the caller, must stay (with dst) until done.
 *
 * Errors: -ENOENT, -EBUSY, -EREMOTEIO: the peer said so. -EHOSTDOWN: the circuit breaker is open.
 * -ETIMEDOUT, -ECANCELED. -EBADMSG: wrong bytes (dst holds them). -ECONNREFUSED, -EHOSTUNREACH,
 * -ECONNRESET, -EPROTO, -EACCES (the key, or the member, is not the expected one), -ESHUTDOWN.
 */
struct cfs_peer_get {
	struct cfs_peer_block block;
	uint32_t off, len;
	unsigned flags;		 /* enum cfs_peer_flag */
	const struct iovec *dst; /* len bytes in all */
	int n_dst;
	cfs_deadline_t deadline; /* observed to about 20 ms */
	/*
	 * Each progress message of the peer moves deadline to patience_ms from then, at most to
	 * `limit`. 0: deadline is fixed.
	 */
	uint64_t patience_ms;
	cfs_deadline_t limit;
	/*
	 * The caller asks again, with more time, if there is no answer by the deadline. That says
	 * nothing about the peer, and ends with -ECANCELED.
	 */
	bool brief;
	bool waits; /* the thread that starts it calls cfs_peer_receive() next */
	/*
	 * Called once, on the transport's thread, or with `waits` in cfs_peer_receive(). Must not
	 * wait; may start other requests and free this one.
	 */
	void (*done)(struct cfs_peer_get *get, int err);
	/*
	 * Called on each progress message, on the transport's thread: must not wait. Optional.
	 * left_ms: until the answer, as the peer estimates; 0: unknown.
	 */
	void (*working)(struct cfs_peer_get *get, uint64_t left_ms);

	/* Private to the transport */
	struct cfs_peer_get *next, *prev;
	void *receiver; /* the client that its thread may receive on */
	void *reads;	/* its read by RDMA that its thread may poll for */
	uint64_t id, start_ns;
	uint64_t late_ms; /* of the loop (loop.h) at start_ns */
	uint32_t received, crc;
	uint32_t at_off;
	int at;
	_Atomic bool canceled; /* read without the lock, where a request that was late ends */
	bool heard;	       /* has expired, but its peer answered other requests meanwhile */
};

/*
 * 0: done will run. Otherwise it will not: -EHOSTDOWN, -EAGAIN (too many are waiting), -EINVAL,
 * -ESHUTDOWN.
 */
int cfs_peer_start(struct cfs_peer *p, struct cfs_peer_get *get);
/*
 * For a thread that has nothing else to do: receives the answer on the calling thread, which saves
 * a wake-up by the transport's thread. Call it once, first after starting a request with `waits`.
 * Returns when done has run, at `until`, or at once: then the transport's thread continues the
 * request.
 */
void cfs_peer_receive(struct cfs_peer *p, struct cfs_peer_get *get, cfs_deadline_t until);
/*
 * Makes done run soon, with -ECANCELED unless the answer was faster. Must not be called after done.
 */
void cfs_peer_cancel(struct cfs_peer *p, struct cfs_peer_get *get);
/* Start and wait. Not from the transport's thread. Returns len. */
ssize_t cfs_peer_read(struct cfs_peer *p, const struct cfs_peer_block *b, uint32_t off,
		      uint32_t len, unsigned flags, const struct iovec *dst, int n_dst,
		      cfs_deadline_t deadline);
/* False: the circuit breaker is open, and cfs_peer_start() fails at once. */
bool cfs_peer_is_in_use(const struct cfs_peer *p);
/*
 * So many requests are under way to it that the transport's thread receives their answers, not the
 * threads that wait for them. False where these may poll for reads by RDMA.
 */
bool cfs_peer_is_busy(const struct cfs_peer *p);
/* True when the peer has sent an answer or a progress message since then. */
bool cfs_peer_heard(struct cfs_peer *p, uint64_t since_ms);
/* Block bytes received from it so far, those of incomplete answers included. */
uint64_t cfs_peer_bytes_received(const struct cfs_peer *p);
/* Best effort: dropped when the circuit breaker is open, or too many wait for a connection. */
void cfs_peer_hint(struct cfs_peer *p, const struct cfs_peer_block *b, enum cfs_peer_hint hint);

enum cfs_peer_state {
	CFS_PEER_CLOSED_CIRCUIT, /* in use */
	CFS_PEER_OPEN_CIRCUIT,	 /* excluded */
	CFS_PEER_HALF_OPEN,	 /* excluded, being probed */
};

/* --- statistics --- */

enum cfs_peer_error {
	CFS_PEER_E_CONNECT, /* refused, unreachable, no answer to connecting */
	CFS_PEER_E_AUTH,
	CFS_PEER_E_TIMEOUT,
	CFS_PEER_E_LOST,     /* connection cut */
	CFS_PEER_E_PROTOCOL, /* malformed frames */
	CFS_PEER_E_CHECKSUM,
	CFS_PEER_E_BUSY,   /* limits */
	CFS_PEER_E_REMOTE, /* the owner failed */
	CFS_PEER_E_CANCELED,
	CFS_PEER_E_COUNT,
};

#define CFS_PEER_LATENCIES 24
struct cfs_peer_stats {
	uint64_t requests, bytes; /* that ended well */
	uint64_t direct;	  /* of these: received by the thread that waited */
	uint64_t rdma;		  /* of these: read from the owner's memory; asked only */
	/* Served only: blocks that others may read by RDMA, and how they came and went. */
	uint64_t rdma_blocks, rdma_block_bytes, rdma_loads, rdma_load_failures, rdma_evictions;
	uint64_t rdma_no_room; /* hot blocks that were not loaded, because others have leases */
	uint64_t misses;       /* -ENOENT */
	uint64_t errors[CFS_PEER_E_COUNT];
	uint64_t latency_ns;			/* sum over requests */
	uint64_t latencies[CFS_PEER_LATENCIES]; /* [i]: below 2^i us, the last: all above */
	unsigned conns, inflight;
	unsigned conns_by[CFS_PEER_TRANSPORTS]; /* of conns */
	uint64_t inflight_bytes;
};
/* Both directions of the member; either may be NULL. */
void cfs_transport_stats(struct cfs_transport *t, struct cfs_peer_stats *ret_asked,
			 struct cfs_peer_stats *ret_served);
void cfs_peer_stats(struct cfs_peer *p, struct cfs_peer_stats *ret, enum cfs_peer_state *ret_state);

#endif
