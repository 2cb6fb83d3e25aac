/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of leases of a member: which blocks it may read by RDMA, of whom, and until when.
 *
 * CFS_LEASES places, in sets of CFS_LEASES_WAYS by the hash of a block and its connection. A lease
 * has its place until it is over, its connection is forgotten, or another block of its set needs the
 * place and it is the one that was used least recently. A place with users is never given away: they
 * read into the memory of its number.
 *
 * Threads: the caller's lock.
 */
#ifndef CFS_TRANSPORT_LEASES_H
#define CFS_TRANSPORT_LEASES_H

#include <cachefs/transport.h>

#define CFS_LEASES	512
#define CFS_LEASES_WAYS 8

struct cfs_reader_conn;

/* Whether the checksums of the block's pages are here. */
enum cfs_lease_table { CFS_TABLE_ABSENT, CFS_TABLE_READING, CFS_TABLE_GOOD, CFS_TABLE_BAD };

struct cfs_lease {
	const struct cfs_reader_conn *r; /* NULL: free */
	struct cfs_peer_block block;
	uint32_t key, table_crc;
	uint64_t until_ms; /* no request begins later */
	uint64_t used_ms;
	enum cfs_lease_table table;
	unsigned users; /* requests */
};

struct cfs_leases {
	struct cfs_lease places[CFS_LEASES]; /* all 0: empty */
};

/* The lease of b, over or not; NULL: there is none. */
struct cfs_lease *cfs_leases_find(struct cfs_leases *t, const struct cfs_reader_conn *r,
				  const struct cfs_peer_block *b);
/* A place for a lease of b, which has none; NULL: all places of its set have users. */
struct cfs_lease *cfs_leases_place(struct cfs_leases *t, const struct cfs_reader_conn *r,
				   const struct cfs_peer_block *b, uint64_t now_ms);
/* No further request begins by a lease of r. */
void cfs_leases_end(struct cfs_leases *t, const struct cfs_reader_conn *r);
/* r is about to be freed: none of its leases is found any more. */
void cfs_leases_forget(struct cfs_leases *t, const struct cfs_reader_conn *r);

#endif
