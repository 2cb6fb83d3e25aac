/* SPDX-License-Identifier: Apache-2.0 */
/* The content of a mount's /status.json; cachefs-metrics(7) describes its fields. */
#ifndef CFS_CMD_MOUNTSTATUS_H
#define CFS_CMD_MOUNTSTATUS_H

#include <cachefs/data.h>
#include <cachefs/store.h>
#include <cachefs/vfs.h>

#include "cmd/group/peers.h"
#include "cmd/mountd/options/mountopts.h"

/* The parts of a running mount; all borrowed. */
struct mount_parts {
	const char *dir;
	const struct mount_opts *o;
	const struct cfs_setting *setting;
	struct cfs_meta *meta;
	struct cfs_pool *pool;
	const struct cfs_metrics *metrics;
	struct cfs_vfs *vfs;
	struct cfs_peers *peers; /* NULL: no cache group */
	uint64_t started_ns;	 /* cfs_now_ns() */
};

/* Any thread. Does not wait for a backend. *ret is malloc'ed. */
int mount_status_json(const struct mount_parts *m, char **ret, size_t *ret_len);

#endif
