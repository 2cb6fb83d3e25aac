/* SPDX-License-Identifier: Apache-2.0 */
/* Cache groups for commands and mounts: members are recorded in the volume's metadata. */
#ifndef CFS_CMD_PEERS_H
#define CFS_CMD_PEERS_H

#include <cachefs/disk.h>
#include <cachefs/meta.h>
#include <cachefs/peers.h>
#include <jansson.h>

#include "cmd/mountd/options/mountopts.h"

/*
 * Joins the group that the options name. *ret stays NULL when they name none. Called after the disk
 * cache (which may be NULL) was made a tier.
 */
int peers_start(const struct mount_opts *o, const char *dir, const struct cfs_setting *setting,
		struct cfs_meta *meta, struct cfs_store *store, struct cfs_disk *disk,
		struct cfs_peers **ret, char err[256]);
/* Both do nothing without a group. See cfs_peers_leave and cfs_peers_destroy. */
void peers_leave(struct cfs_peers *p);
void peers_destroy(struct cfs_peers *p);

/* The members of all groups, from their records; NULL: the records cannot be read. */
json_t *peers_recorded(struct cfs_meta *m);
/* The members as a mount sees them. */
json_t *peers_seen(struct cfs_peers *p);
/* Owners of a block, and whether they have it. */
json_t *peers_block(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline);
/* An owner of the block has it. */
bool peers_have(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline);
int peers_rotate_key(struct cfs_meta *m, const char *group, char err[256]);

#endif
