/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leases of a member: the blocks that it may read by RDMA, from which connection, and until when.
 *
 * The table has CFS_LEASES places, in sets of CFS_LEASES_WAYS by the hash of block and connection. In
 * a full set the lease that was used least recently is replaced. A lease with users is never
 * replaced, because their checksum table is at the place's number.
 *
 * Threads: the caller's lock.
 */
#ifndef CFS_TRANSPORT_LEASES_H
#define CFS_TRANSPORT_LEASES_H

#include <cachefs/transport.h>

#define CFS_LEASES	512
#define CFS_LEASES_WAYS 8

struct cfs_reader_conn;

/* State of the block's checksum table in this member's memory. */
enum cfs_lease_table { CFS_TABLE_ABSENT, CFS_TABLE_READING, CFS_TABLE_GOOD, CFS_TABLE_BAD };

struct cfs_lease {
	const struct cfs_reader_conn *r; /* NULL: free */
	struct cfs_peer_block block;
	uint32_t key, table_crc;
	uint64_t until_ms; /* requests may begin until then */
	uint64_t used_ms;
	enum cfs_lease_table table;
	unsigned users; /* requests under way */
};

struct cfs_leases {
	struct cfs_lease places[CFS_LEASES]; /* all 0: empty */
};

/* The lease of b, also an expired one; NULL: none. */
struct cfs_lease *cfs_leases_find(struct cfs_leases *t, const struct cfs_reader_conn *r,
				  const struct cfs_peer_block *b);
/* A place for a lease of b, which has no lease; NULL: all places of its set have users. */
struct cfs_lease *cfs_leases_place(struct cfs_leases *t, const struct cfs_reader_conn *r,
				   const struct cfs_peer_block *b, uint64_t now_ms);
/* Expires all leases of r. */
void cfs_leases_end(struct cfs_leases *t, const struct cfs_reader_conn *r);
/* Frees the places of all leases of r, whose memory the caller frees next. */
void cfs_leases_forget(struct cfs_leases *t, const struct cfs_reader_conn *r);

#endif
