/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer tier of the block store: blocks from the members of a cache group, and this member's
 * answers to them.
 *
 * As client: a block that another member owns is read from that member, or from object storage
 * after any failure. It is cached in memory only, since its owner keeps it on disk. (A member that
 * shares nothing also keeps the blocks it reads in its own disk cache.)
 *
 * As owner: a cached block is sent from its file or from memory. Any other block is fetched from
 * object storage as a whole, once for all clients, and kept. A fetch may take the store's get
 * timeout.
 *
 * Memory: a quarter of the mount's pool, for blocks fetched for others, bytes being sent from
 * memory, and own blocks that the disk cache has not taken yet. Beyond it, clients wait two seconds
 * and are then sent to object storage.
 */
#ifndef CFS_PEERS_H
#define CFS_PEERS_H

#include <cachefs/disk.h>
#include <cachefs/group.h>
#include <cachefs/store.h>

struct cfs_peers;

struct cfs_peers_conf {
	struct cfs_store *store;     /* borrowed */
	struct cfs_disk *disk;	     /* borrowed; NULL: the group is served from memory */
	struct cfs_group_conf group; /* ops, ops_arg, cached_bytes are filled in */
	bool fill;		     /* has owners fetch blocks that were written here */
	unsigned workers;	     /* fetches for others at the same time; 0: 8 */
};

/*
 * Becomes the store's last tier. Call it after the disk cache is added and before the first read.
 * Errors as cfs_group_join.
 */
int cfs_peers_join(const struct cfs_peers_conf *conf, struct cfs_peers **ret, char err[256]);
/* Leaves the group: refuses other members and asks none. Call it before the store is destroyed. */
void cfs_peers_leave(struct cfs_peers *p);
/* After the store, before the disk cache and the pool. */
void cfs_peers_destroy(struct cfs_peers *p);

extern const struct cfs_metric_table cfs_peers_metrics;
struct cfs_group *cfs_peers_group(struct cfs_peers *p);
/*
 * Owners of a block and whether they have it, as cfs_group_map, this member included. Returns how
 * many owners there are.
 */
int cfs_peers_map(struct cfs_peers *p, const struct cfs_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline);

#endif
