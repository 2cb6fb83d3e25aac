/* SPDX-License-Identifier: Apache-2.0 */
/* The members that all SQL engines share; each adds name, schemes, open and close. */
#ifndef CFS_META_SQL_ENGINE_OPS_H
#define CFS_META_SQL_ENGINE_OPS_H

#include "meta/sql/sql.h"

/* clang-format off */
#define SQL_ENGINE_SHARED_OPS \
	.create = sql_op_create, \
	.upgrade = sql_op_upgrade, \
	.get_setting = sql_op_get_setting, \
	.put_setting = sql_op_put_setting, \
	.sync = sql_op_sync, \
	.destroy = sql_op_destroy, \
	.add_counter = sql_op_add_counter, \
	.get_counters = sql_op_get_counters, \
	.claim_job = sql_op_claim_job, \
	.new_session = sql_op_new_session, \
	.refresh_session = sql_op_refresh_session, \
	.resume_session = sql_op_resume_session, \
	.clean_session = sql_op_clean_session, \
	.each_session = sql_op_each_session, \
	.getattr = sql_op_getattr, \
	.readlink = sql_op_readlink, \
	.trash_dir = sql_op_trash_dir, \
	.each_parent = sql_op_each_parent, \
	.read_chunk = sql_op_read_chunk, \
	.truncate = sql_op_truncate, \
	.fallocate = sql_op_fallocate, \
	.copy_range = sql_op_copy_range, \
	.compact_chunk = sql_op_compact_chunk, \
	.end_sustained = sql_op_end_sustained, \
	.each_delfile = sql_op_each_delfile, \
	.delete_chunk = sql_op_delete_chunk, \
	.drop_delfile = sql_op_drop_delfile, \
	.each_dead_slice = sql_op_each_dead_slice, \
	.orphan_slice = sql_op_orphan_slice, \
	.drop_slice = sql_op_drop_slice, \
	.expire_delayed = sql_op_expire_delayed, \
	.each_slice = sql_op_each_slice, \
	.getxattr = sql_op_getxattr, \
	.listxattr = sql_op_listxattr, \
	.setxattr = sql_op_setxattr, \
	.removexattr = sql_op_removexattr, \
	.get_acl = sql_op_get_acl, \
	.put_acl = sql_op_put_acl, \
	.set_acl_id = sql_op_set_acl_id, \
	.flock = sql_op_flock, \
	.setlk = sql_op_setlk, \
	.getlk = sql_op_getlk, \
	.get_dir_stat = sql_op_get_dir_stat, \
	.set_dir_stat = sql_op_set_dir_stat, \
	.add_usage = sql_op_add_usage, \
	.each_quota = sql_op_each_quota, \
	.put_quota = sql_op_put_quota, \
	.del_quota = sql_op_del_quota, \
	.add_quota_usage = sql_op_add_quota_usage, \
	.clone_ino = sql_op_clone_ino, \
	.attach = sql_op_attach, \
	.drop_detached = sql_op_drop_detached, \
	.scan = sql_op_scan, \
	.put_rows = sql_op_put_rows, \
	.list_chunks = sql_op_list_chunks, \
	.check_inode = sql_op_check_inode, \
	.check_usage = sql_op_check_usage, \
	.fix_refs = sql_op_fix_refs, \
	.clear_dir_stats = sql_op_clear_dir_stats, \
	.trim_changelog = sql_op_trim_changelog, \
	.put_record = sql_op_put_record, \
	.drop_record = sql_op_drop_record, \
	.each_record = sql_op_each_record
/* For these a database may have a better way. */
#define SQL_ENGINE_NAME_OPS \
	.lookup = sql_op_lookup, \
	.setattr = sql_op_setattr, \
	.touch_atime = sql_op_touch_atime, \
	.mknod = sql_op_mknod, \
	.link = sql_op_link, \
	.unlink = sql_op_unlink, \
	.rmdir = sql_op_rmdir, \
	.rename = sql_op_rename, \
	.readdir = sql_op_readdir, \
	.commit_slice = sql_op_commit_slice
#define SQL_ENGINE_OPS SQL_ENGINE_SHARED_OPS, SQL_ENGINE_NAME_OPS
/* clang-format on */

#endif
