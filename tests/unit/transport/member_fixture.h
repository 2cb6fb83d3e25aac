/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of cache groups: members of one process on the loopback. */
#ifndef CFS_MEMBER_FIXTURE_H
#define CFS_MEMBER_FIXTURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "group_fixture.h"
#include "peer_fixture.h"
#include "transport/group/group-internal.h"

#define HEARTBEAT_MS 100
#define RANGE	     8192
#define BLOCK_LEN    65536

struct member {
	struct registry *r;
	struct cfs_group *g;
	atomic_bool silent; /* what it writes is lost */
	atomic_bool blind;  /* it does not see the key change */
	atomic_bool busy, empty, works;
	struct cfs_peer_request *held[8]; /* those that it works on */
	_Atomic unsigned n_held;
	_Atomic uint64_t bucket_us;
	_Atomic unsigned gets, only_cached, lists;
	_Atomic unsigned expected; /* requests look at the members until there are so many */
};

/* The registry as the member reaches it. */
struct cfs_group_registry registry_of(struct member *m);
int try_join(struct member *m, struct registry *r, uint64_t id, struct cfs_group_conf *conf);
void join_as(struct member *m, struct registry *r, uint64_t id, struct cfs_group_conf conf);
void join(struct member *m, struct registry *r, uint64_t id); /* with weight 100 */
void part(struct member *m);

unsigned seen_by(struct member *m); /* members */
struct cfs_group_stats stats(struct member *m);

/* Each byte of a block follows from its slice and its place. */
struct cfs_peer_block block(uint64_t slice);
uint8_t byte_at(uint64_t slice, uint32_t off);
/* Answers a request with the bytes. */
void send_all(struct cfs_peer_request *req);
/* First owner in the eyes of m. */
uint64_t owner_of(struct member *m, uint64_t slice);
/* The first block whose owner is id. */
uint64_t block_of(struct member *m, uint64_t id);
/* A read that is answered has right bytes. */
ssize_t read_by(struct member *m, uint64_t slice, cfs_deadline_t deadline);
ssize_t read_from(struct member *m, uint64_t slice);

struct search {
	uint64_t id;
	struct cfs_group_member m;
	unsigned n;
};

/* The records of a member in the eyes of m, and their number. */
struct search look(struct member *m, uint64_t id);
/* A member that is only a record. more: members of its JSON object. */
void write_phantom(struct registry *r, uint64_t id, uint64_t boot, int64_t number,
		   const char *more);

#endif
