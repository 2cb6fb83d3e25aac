/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of struct cfs_engine_ops that every engine has, for declarations and tables:
 * X(member). NAME_OPS are those for which an engine on SQL may have an optimised implementation.
 */
#ifndef CFS_META_ENGINE_OPS_H
#define CFS_META_ENGINE_OPS_H

#include <stddef.h>

#include "meta/engine/engine.h"

/* The function `name` is as the member says. */
#define CFS_ENGINE_DECLARE(name, member) __typeof__(*((struct cfs_engine_ops *)NULL)->member) name

/* clang-format off */
#define CFS_ENGINE_BASE_OPS(X) \
	X(create) X(upgrade) X(get_setting) X(put_setting) X(destroy) X(add_counter) \
	X(get_counters) X(clock) X(claim_job) X(new_session) X(refresh_session) X(resume_session) \
	X(clean_session) X(each_session) X(getattr) X(readlink) X(trash_dir) X(each_parent) \
	X(read_chunk) X(truncate) X(fallocate) X(copy_range) X(compact_chunk) X(end_sustained) \
	X(each_delfile) X(delete_chunk) X(drop_delfile) X(each_dead_slice) X(orphan_slice) \
	X(drop_slice) X(expire_delayed) X(each_slice) X(getxattr) X(listxattr) X(setxattr) \
	X(removexattr) X(get_acl) X(put_acl) X(set_acl_id) X(flock) X(setlk) X(getlk) \
	X(get_dir_stat) X(set_dir_stat) X(add_usage) X(each_quota) X(put_quota) X(del_quota) \
	X(add_quota_usage) X(clone_ino) X(attach) X(drop_detached) X(scan) X(put_rows) \
	X(list_chunks) X(check_inode) X(check_usage) X(fix_refs) X(clear_dir_stats) \
	X(trim_changelog) X(touch_dirs) X(put_record) X(swap_record) \
	X(drop_record) X(get_record) X(each_record)
#define CFS_ENGINE_NAME_OPS(X) \
	X(lookup) X(setattr) X(touch_atime) X(mknod) X(link) X(unlink) X(rmdir) X(rename) \
	X(readdir) X(commit_slice)
/* clang-format on */
#define CFS_ENGINE_OPS(X) CFS_ENGINE_BASE_OPS(X) CFS_ENGINE_NAME_OPS(X)

#endif
