/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/activity.h"
#include "base/log.h"
#include "meta/api/call.h"
#include "meta/api/core.h"

void cfs_call_begin(struct cfs_call *c, struct cfs_meta *m, enum cfs_meta_op op,
		    const struct cfs_ctx *ctx)
{
	c->m = m;
	c->op = op;
	c->start_ns = cfs_now_ns();
	cfs_activity_wait(CFS_WAIT_META, 0, cfs_meta_op_name(op));
	c->ctx = ctx;
}

ssize_t cfs_call_end(struct cfs_call *c, ssize_t rc)
{
	struct cfs_op_counters *n = &c->m->host.op[c->op];
	uint64_t took_ns = cfs_now_ns() - c->start_ns;

	cfs_activity_wait_end();
	atomic_fetch_add_explicit(&n->calls, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&n->time_ns, took_ns, memory_order_relaxed);
	if (c->m->trace)
		cfs_debug("meta %s: result=%zd error=%s us=%llu", cfs_meta_op_name(c->op), rc,
			  rc < 0 ? cfs_errname((int)rc) : "-", (unsigned long long)took_ns / 1000);
	if (rc >= 0)
		return rc;
	atomic_fetch_add_explicit(&n->errors, 1, memory_order_relaxed);
	if (rc != -ETIMEDOUT && rc != -ENOTCONN)
		return rc;
	cfs_err("metadata engine does not answer, the request fails with EIO: op=%s url=%s "
		"error=%s",
		cfs_meta_op_name(c->op), c->m->masked_url, cfs_errname((int)rc));
	return -EIO;
}
