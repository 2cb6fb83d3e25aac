/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/log.h"
#include "meta/api/clock.h"
#include "meta/api/core.h"
#include "meta/api/rootstat.h"

struct others {
	uint64_t own;
	int64_t now_s;
	bool live;
};

static int note_other(void *arg, const struct cfs_session *s)
{
	struct others *o = arg;

	o->live |= s->sid != o->own && s->expire_s >= o->now_s;
	return 0;
}

static int make(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	struct others o = {.own = cfs_host_sid(&m->host), .now_s = cfs_clock_earliest_s(m)};
	struct cfs_usage usage = {0};
	struct cfs_dir_stat st;
	struct cfs_check c;
	int rc = m->eng->ops->get_dir_stat(m->eng, ctx, CFS_ROOT_INO, &st);

	if (rc != -ENODATA)
		return rc;
	rc = m->eng->ops->each_session(m->eng, ctx, 0, SIZE_MAX, note_other, &o);
	if (rc < 0 || o.live)
		return rc < 0 ? rc : 0;
	return m->eng->ops->check_inode(m->eng, ctx, CFS_ROOT_INO, CFS_CHECK_NO_STAT, &c, &usage);
}

void cfs_core_make_root_stat(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = cfs_host_dir_stats(&m->host) ? make(m, &ctx) : 0;

	if (rc)
		cfs_warn("the root directory has no statistics yet, they are tried again at the "
			 "next mount: url=%s error=%s",
			 m->masked_url, cfs_errname(rc));
}
