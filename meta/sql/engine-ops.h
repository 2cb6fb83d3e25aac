/* SPDX-License-Identifier: Apache-2.0 */
/* The members that all SQL engines share; each adds name, schemes, open and close. */
#ifndef CFS_META_SQL_ENGINE_OPS_H
#define CFS_META_SQL_ENGINE_OPS_H

#include "meta/engine/engine.h"
#include "meta/sql/sql.h"

#define SQL_ENGINE_MEMBER(member) .member = sql_op_##member,
#define SQL_ENGINE_SHARED_OPS	  CFS_ENGINE_BASE_OPS(SQL_ENGINE_MEMBER).sync = sql_op_sync
#define SQL_ENGINE_OPS		  CFS_ENGINE_NAME_OPS(SQL_ENGINE_MEMBER) SQL_ENGINE_SHARED_OPS

#endif
