/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's pool: hot blocks in memory that readers read by themselves.
 *
 * A block is loaded when it is asked for the second time, from its file, past the page cache where
 * the file allows that, by the pool's own thread. Its bytes are checked against the file's
 * checksums. Behind them, at the next multiple of a page, lies a table with the CRC-32C of each page
 * of 4 KiB, big-endian: readers check what they read against it, and it against the grant.
 *
 * A grant promises that the block stays for lease_ms. It is not evicted before, and a while longer,
 * for the way of the grant to the reader. Eviction unmaps its memory: the key is void from then on.
 *
 * Memory: what the caller gives, in slots of CFS_RDMA_SLOT, mapped into this process when first
 * used. Blocks of up to CFS_RDMA_BLOCK_MAX; smaller ones take a slot as well.
 */
#ifndef CFS_RDMA_POOL_H
#define CFS_RDMA_POOL_H

#include <cachefs/transport.h>

#include "verbs.h"

#define CFS_RDMA_PAGE	   4096u
#define CFS_RDMA_BLOCK_MAX (4u << 20)
#define CFS_RDMA_TABLE_MAX (CFS_RDMA_BLOCK_MAX / CFS_RDMA_PAGE * 4)
#define CFS_RDMA_SLOT	   (CFS_RDMA_BLOCK_MAX + CFS_RDMA_TABLE_MAX)
#define CFS_RDMA_LEASE_MS  5000

struct cfs_rdma_pool;

struct cfs_rdma_grant {
	uint32_t key, table_crc, lease_ms;
};

struct cfs_rdma_pool_stats {
	uint64_t loads, load_failures, evictions;
	unsigned blocks;
};

/* Pages of a block, offset and length of its table. */
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

/* bytes: at least one slot, otherwise -EINVAL. */
int cfs_rdma_pool_create(uint64_t bytes, struct cfs_rdma_pool **ret);
/*
 * No device may be attached. A load that hangs in its file is left behind, with the memory, and
 * frees both when it ends.
 */
void cfs_rdma_pool_destroy(struct cfs_rdma_pool *p);

/* All but destroy: any thread; none waits for a load. */

/* Blocks are mapped on this device from here on; d NULL: all blocks leave the pool. */
void cfs_rdma_pool_attach(struct cfs_rdma_pool *p, const struct cfs_rdma_ops *ops,
			  struct cfs_rdma *d);
/* True: the block is there, and *ret lets others read it. */
bool cfs_rdma_pool_grant(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, uint64_t now_ms,
			 struct cfs_rdma_grant *ret);
/*
 * b was asked for, and is in this file; the second time it is loaded, unless all slots are granted
 * or loads wait already. fd and crcs are duplicated.
 */
void cfs_rdma_pool_offer(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, int fd,
			 const uint32_t *crcs, unsigned n_crcs);
void cfs_rdma_pool_stats(struct cfs_rdma_pool *p, struct cfs_rdma_pool_stats *ret);

#endif
