/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX ACLs: rules by id, and their extended attributes. */
#ifndef CFS_META_ACL_H
#define CFS_META_ACL_H

#include "meta/api/core.h"

int cfs_acl_cache_create(struct cfs_acl_cache **ret);
void cfs_acl_cache_destroy(struct cfs_acl_cache *c);
/* Gets the rule of an id, from the cache or the engine. The caller releases its copy. */
int cfs_acl_get(struct cfs_meta *m, const struct cfs_ctx *ctx, uint32_t id, struct cfs_acl *ret);
ssize_t cfs_acl_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 bool is_default, void **ret);
int cfs_acl_setxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, bool is_default,
		     const void *value, size_t size);

#endif
