/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of the public interface: measured, and with permission checks on when the mount wants
 * them.
 */
#ifndef CFS_META_CALL_H
#define CFS_META_CALL_H

#include "meta/api/core.h"

struct cfs_call {
	struct cfs_meta *m;
	enum cfs_meta_op op;
	uint64_t start_ns;
	const struct cfs_ctx *ctx;
	struct cfs_ctx checking;
};
void cfs_call_begin(struct cfs_call *c, struct cfs_meta *m, enum cfs_meta_op op,
		    const struct cfs_ctx *ctx);
/* Counts, turns -ETIMEDOUT and -ENOTCONN into -EIO (with a log line), returns the result. */
ssize_t cfs_call_end(struct cfs_call *c, ssize_t rc);

#endif
