/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h in a build without the peer transport. */
#include <errno.h>

#include "base/log.h"
#include "cmd/group/peers.h"

const struct cfs_metric_table cfs_peers_metrics;

int peers_start(const struct mount_opts *o, const char *dir, const struct cfs_setting *setting,
		struct cfs_meta *meta, struct cfs_store *store, struct cfs_disk *disk,
		struct cfs_peers **ret, char err[256])
{
	if (!o->cache_group)
		return 0;
	return cfs_fail(err, -EOPNOTSUPP, "cache-group=%.100s: this build has no peer transport",
			o->cache_group);
}

void peers_leave(struct cfs_peers *p)
{
}

void peers_destroy(struct cfs_peers *p)
{
}

json_t *peers_recorded(struct cfs_meta *m)
{
	return json_object();
}

json_t *peers_seen(struct cfs_peers *p)
{
	return json_array();
}

bool peers_have(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline)
{
	return false;
}

int peers_rotate_key(struct cfs_meta *m, const char *group, char err[256])
{
	return cfs_fail(err, -EOPNOTSUPP, "this build has no peer transport");
}

json_t *peers_block(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline)
{
	return json_array();
}
