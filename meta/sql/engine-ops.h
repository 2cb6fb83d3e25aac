/* SPDX-License-Identifier: Apache-2.0 */
/* The members that all SQL engines share; each engine adds name, open and close. */
#ifndef CFS_META_SQL_ENGINE_OPS_H
#define CFS_META_SQL_ENGINE_OPS_H

#include "meta/engine/engine.h"
#include "meta/sql/sql.h"

#define SQL_ENGINE_MEMBER(member) .member = sql_op_##member,
#define SQL_ENGINE_SHARED_OPS	  CFS_ENGINE_BASE_OPS(SQL_ENGINE_MEMBER).sync = sql_op_sync
/* The same for an engine with optimistic operations of its own, own_op_... */
#define SQL_ENGINE_OPTIMISTIC_OPS(own)                                                             \
	SQL_ENGINE_SHARED_OPS, .lookup = sql_op_lookup, .readdir = sql_op_readdir,                 \
			       .touch_atime = sql_op_touch_atime, .setattr = own##_op_setattr,     \
			       .mknod = own##_op_mknod, .link = own##_op_link,                     \
			       .remove = own##_op_remove, .commit_slice = own##_op_commit_slice,   \
			       .advise = own##_op_advise
#define SQL_ENGINE_OPS CFS_ENGINE_NAME_OPS(SQL_ENGINE_MEMBER) SQL_ENGINE_SHARED_OPS

#endif
