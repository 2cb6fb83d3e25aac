/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the peer transport: an owner that serves one block, a member that asks, connections
 * that speak the protocol byte by byte.
 */
#ifndef CFS_PEER_FIXTURE_H
#define CFS_PEER_FIXTURE_H

#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cachefs/transport.h>

#include "transport/wire/frame.h"
#include "transport/wire/handshake.h"
#include "unit/wait.h"

#define BLOCK	  (4u << 20)
#define ODD_BLOCK (BLOCK - 12345) /* its last segment is short */
#define CLIENT	  11
#define SERVER	  22

extern const struct cfs_handshake_keys keys;
extern const struct cfs_peer_serve_ops owner_ops;
extern bool with_tls; /* of transports that are made from here on */

/* How the owner answers; LATER: another thread, NEVER: the test does, with give(). */
enum serve_how { FROM_FILE, FILE_NO_CRC, FROM_MEMORY, LATER, NEVER };

struct owner {
	struct cfs_transport *t;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	_Atomic int fd;
	_Atomic unsigned disk;
	uint8_t *data;
	uint32_t len;
	uint32_t crcs[BLOCK / CFS_PEER_SEGMENT];
	unsigned n_crcs;
	_Atomic int how;
	_Atomic bool cold;  /* has nothing cached */
	_Atomic bool works; /* NEVER: reports work on each request for a moment */
	_Atomic unsigned gets, releases, mismatches, hints;
	struct cfs_peer_request *held[64]; /* NEVER */
	_Atomic unsigned n_held;
};

/* One of many requests under way; posts done. */
struct many {
	struct cfs_peer_get get;
	struct iovec iov[3];
	uint8_t *dst;
	struct owner *o;
	sem_t *done;
	int err;
	struct cfs_peer *peer;
};

void give(struct owner *o, struct cfs_peer_request *req);
struct sockaddr_in loopback(void);
/* Its block only. */
void owner_fill(struct owner *o, uint32_t len);
void owner_open_conf(struct owner *o, uint32_t len, struct cfs_transport_conf *conf);
void owner_open(struct owner *o, uint32_t len);
void owner_close(struct owner *o);
struct cfs_transport *asker_conf(struct cfs_transport_conf *conf);
struct cfs_transport *asker(void);
struct cfs_peer *peer_at(struct cfs_transport *t, const void *addr, socklen_t len);
/* Opens the owner, too. */
struct cfs_peer *owner_meet(struct cfs_transport *t, struct owner *o, uint32_t len);
/* The end of all three. */
void owner_part(struct cfs_peer *p, struct cfs_transport *t, struct owner *o);
uint64_t slice_of(struct owner *o);
ssize_t ask_within(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len, uint8_t *dst,
		   uint64_t timeout_ms);
ssize_t ask(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len, uint8_t *dst);
enum cfs_peer_state state_of(struct cfs_peer *p);
int start_one(struct cfs_peer *p, struct many *m, struct owner *o, uint32_t off, uint32_t len,
	      uint64_t timeout_ms);
/* A socket on which the test speaks for itself, blocking. */
int raw_connect(struct owner *o);
bool raw_send(int fd, const void *data, size_t len);
/* False when the other side closes, or says nothing for LONG_MS. */
bool raw_frame(int fd, struct cfs_frame *ret, uint8_t payload[CFS_WIRE_CONTROL_MAX]);
bool raw_is_closed(int fd);
/* Through the handshake; *ret_result as of cfs_handshake_frame(). */
int raw_client(struct owner *o, const struct cfs_handshake_keys *k, int *ret_result);
/* The same with these features only. */
int raw_client_with(struct owner *o, const struct cfs_handshake_keys *k, uint64_t features,
		    int *ret_result);
size_t get_frame(uint8_t *buf, uint64_t id, uint32_t block_len, uint32_t off, uint32_t len);

#endif
