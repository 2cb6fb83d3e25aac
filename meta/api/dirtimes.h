/* SPDX-License-Identifier: Apache-2.0 */
/* Times of directories in which this mount has changed names, until they are stored. */
#ifndef CFS_META_DIRTIMES_H
#define CFS_META_DIRTIMES_H

#include "meta/api/core.h"

int cfs_dirtimes_create(struct cfs_dirtimes **ret);
void cfs_dirtimes_destroy(struct cfs_dirtimes *t);
/*
 * A name was created or removed at ctx->now. attr: the directory as the engine has it; NULL: not
 * known. The times are stored after conf.skip_dir_mtime_ms; when that is 0, before the call
 * returns.
 */
void cfs_dirtimes_changed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_attr *attr);
/*
 * Called with the attributes after any other change of an inode's ctime. mtime: the change set the
 * mtime. Does nothing unless the inode is a directory.
 */
void cfs_dirtimes_set(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      const struct cfs_attr *attr, bool mtime);
/* Puts unstored times into attributes that the engine returned to a call with that ctx. */
void cfs_dirtimes_show(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		       struct cfs_attr *attr);
/* False: cfs_dirtimes_show() would change nothing. */
bool cfs_dirtimes_any(struct cfs_meta *m);
/* Stores all unstored times. On failure they are kept. */
int cfs_dirtimes_store(struct cfs_meta *m, const struct cfs_ctx *ctx);
/*
 * The same at the end of the mount: times that cannot be stored are lost. A later change starts the
 * thread again.
 */
void cfs_dirtimes_stop(struct cfs_meta *m, const struct cfs_ctx *ctx);

#endif
