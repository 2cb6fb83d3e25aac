/* SPDX-License-Identifier: Apache-2.0 */
/* The begin and end of a call of the public interface: counters and errors. */
#ifndef CFS_META_CALL_H
#define CFS_META_CALL_H

#include "meta/api/core.h"

struct cfs_call {
	struct cfs_meta *m;
	enum cfs_meta_op op;
	uint64_t start_ns;
	const struct cfs_ctx *ctx;
};
void cfs_call_begin(struct cfs_call *c, struct cfs_meta *m, enum cfs_meta_op op,
		    const struct cfs_ctx *ctx);
/* Counts, turns -ETIMEDOUT and -ENOTCONN into -EIO (with a log line), returns the result. */
ssize_t cfs_call_end(struct cfs_call *c, ssize_t rc);
/* The two around the expression `result`, which uses c.ctx. */
#define CFS_CALL(c, m, op, ctx, result)                                                            \
	({                                                                                         \
		struct cfs_call c;                                                                 \
                                                                                                   \
		cfs_call_begin(&c, m, op, ctx);                                                    \
		cfs_call_end(&c, result);                                                          \
	})

#endif
