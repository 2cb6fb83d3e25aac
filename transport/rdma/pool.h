/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's pool: blocks in memory that other members read by RDMA.
 *
 * The second request for a block loads it. The pool's thread reads the block's file, past the page
 * cache where the file system allows that, and checks the bytes against the file's checksums. The
 * checksum table follows at the next multiple of a page: the CRC-32C of each page of 4 KiB,
 * big-endian. Readers check each page against the table, and the table against the grant.
 *
 * A grant keeps the block for lease_ms and some time more, because the grant has to reach the reader.
 * Eviction unmaps the memory, which voids the key.
 *
 * Memory: as many bytes as the caller gives, allocated at first use, in slabs of the largest block and
 * its table. A slab has places of one size: 16 KiB, doubled up to 2 MiB, or all of it. So a slab holds
 * 256 small files, or one block of 4 MiB. A block takes the smallest place that holds it and its table.
 * If none is free, it takes that of the least recently used block of this size, or a slab of any size
 * if all of its blocks were used less recently; blocks with leases stay.
 */
#ifndef CFS_RDMA_POOL_H
#define CFS_RDMA_POOL_H

#include <cachefs/transport.h>

#include "verbs.h"

#define CFS_RDMA_PAGE	   4096u
#define CFS_RDMA_BLOCK_MAX (4u << 20)
#define CFS_RDMA_TABLE_MAX (CFS_RDMA_BLOCK_MAX / CFS_RDMA_PAGE * 4)
#define CFS_RDMA_SLAB	   (CFS_RDMA_BLOCK_MAX + CFS_RDMA_TABLE_MAX)
/* A slab and the records of its blocks, out of the bytes of the pool. */
#define CFS_RDMA_SLOT	  (CFS_RDMA_SLAB + (32u << 10))
#define CFS_RDMA_LEASE_MS 5000

struct cfs_rdma_pool;

struct cfs_rdma_grant {
	uint32_t key, table_crc, lease_ms;
};

struct cfs_rdma_pool_stats {
	uint64_t loads, load_failures, evictions;
	uint64_t no_room;	/* blocks that were not loaded, because others have leases */
	uint64_t blocks, bytes; /* that others may read */
};

/* The number of pages of a block; offset and length of its table. */
static inline uint32_t cfs_rdma_pages(uint32_t block_len)
{
	return (block_len + CFS_RDMA_PAGE - 1) / CFS_RDMA_PAGE;
}
static inline uint32_t cfs_rdma_table_off(uint32_t block_len)
{
	return cfs_rdma_pages(block_len) * CFS_RDMA_PAGE;
}
static inline uint32_t cfs_rdma_table_len(uint32_t block_len)
{
	return cfs_rdma_pages(block_len) * 4;
}

/* bytes: at least CFS_RDMA_SLOT, otherwise -EINVAL. */
int cfs_rdma_pool_create(uint64_t bytes, struct cfs_rdma_pool **ret);
/*
 * Called without an attached device. A load whose file hangs outlives the call: the pool's thread
 * then frees the memory when the load ends.
 */
void cfs_rdma_pool_destroy(struct cfs_rdma_pool *p);

/* The following are for any thread. None waits for a load, and grant and offer for no device. */

/* Drops all blocks; later ones are mapped on this device. d NULL: no device. */
void cfs_rdma_pool_attach(struct cfs_rdma_pool *p, const struct cfs_rdma_ops *ops,
			  struct cfs_rdma *d);
/* True: the pool has the block, and *ret lets others read it. */
bool cfs_rdma_pool_grant(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, uint64_t now_ms,
			 struct cfs_rdma_grant *ret);
/*
 * Reports a request for b, which is in this file. The second one loads b, unless blocks with leases
 * take all places, or the queue of loads is full. fd and crcs are duplicated.
 */
void cfs_rdma_pool_offer(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, int fd,
			 const uint32_t *crcs, unsigned n_crcs);
void cfs_rdma_pool_stats(struct cfs_rdma_pool *p, struct cfs_rdma_pool_stats *ret);

#endif
