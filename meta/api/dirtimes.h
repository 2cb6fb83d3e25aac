/* SPDX-License-Identifier: Apache-2.0 */
/* Times of directories whose names this mount changes, until they are stored. */
#ifndef CFS_META_DIRTIMES_H
#define CFS_META_DIRTIMES_H

#include "meta/api/core.h"

int cfs_dirtimes_create(struct cfs_dirtimes **ret);
void cfs_dirtimes_destroy(struct cfs_dirtimes *t);
/*
 * A name came or went at ctx->now. seen: the directory as the engine has it, NULL when that is not
 * known. The times are stored after conf.skip_dir_mtime_ms, or before the call returns when that is
 * 0.
 */
void cfs_dirtimes_changed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_attr *seen);
/*
 * Takes the attributes after any other change that moves the ctime of an inode. mtime: the change
 * set the mtime. Does nothing unless the inode is a directory.
 */
void cfs_dirtimes_set(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      const struct cfs_attr *attr, bool mtime);
/* Overlays unstored times on attributes that the engine returned to a call with that ctx. */
void cfs_dirtimes_show(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		       struct cfs_attr *attr);
/* True when a directory has times to overlay. */
bool cfs_dirtimes_any(struct cfs_meta *m);
/* Stores all; what could not be stored is kept. */
int cfs_dirtimes_store(struct cfs_meta *m, const struct cfs_ctx *ctx);
/*
 * The same at the end of the mount: times that cannot be stored are lost. A later change starts the
 * thread again.
 */
void cfs_dirtimes_stop(struct cfs_meta *m, const struct cfs_ctx *ctx);

#endif
