/* SPDX-License-Identifier: Apache-2.0 */
/* ACL rules (volume-format section 10): rows that are shared, never changed, never deleted. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "meta/sql/sql.h"

/* Reads the named entries in column col. -EIO: damaged. */
static int get_entries(struct sql_conn *c, int col, struct cfs_acl_entry **ret, uint32_t *ret_n)
{
	size_t len;
	const void *p = sql_blob(c, SQL_get_acl, col, &len);
	int r = cfs_acl_unpack(p, len, ret, ret_n);

	return r == -EINVAL ? -EIO : r;
}

int sql_get_acl(struct sql_conn *c, uint32_t id, struct cfs_acl *ret)
{
	struct cfs_acl a = {0};
	int r = sql_row(c, SQL_get_acl, "i", (int64_t)id);

	if (r <= 0)
		return r < 0 ? r : -ENODATA;
	a.owner = (uint16_t)sql_int(c, SQL_get_acl, 0);
	a.group = (uint16_t)sql_int(c, SQL_get_acl, 1);
	a.mask = (uint16_t)sql_int(c, SQL_get_acl, 2);
	a.other = (uint16_t)sql_int(c, SQL_get_acl, 3);
	r = get_entries(c, 4, &a.users, &a.n_users);
	if (r >= 0)
		r = get_entries(c, 5, &a.groups, &a.n_groups);
	sql_done(c, SQL_get_acl);
	if (r < 0) {
		if (r == -EIO)
			cfs_err("ACL rule is damaged: id=%u", id);
		cfs_acl_release(&a);
		return r;
	}
	*ret = a;
	return 0;
}

struct packed {
	uint8_t *users, *groups;
	size_t users_len, groups_len;
};

static bool column_equals(struct sql_conn *c, int col, const uint8_t *want, size_t want_len)
{
	const void *p;
	size_t len;

	p = sql_blob(c, SQL_find_acl, col, &len);
	return len == want_len && (!len || !memcmp(p, want, len));
}

/* 1: *ret_id is the rule with this content; 0: there is none. */
static int find_rule(struct sql_conn *c, const struct cfs_acl *rule, const struct packed *named,
		     uint32_t *ret_id)
{
	int r = sql_query(c, SQL_find_acl, "iiii", (int64_t)rule->owner, (int64_t)rule->group,
			  (int64_t)rule->mask, (int64_t)rule->other);

	while (r >= 0 && (r = sql_next(c, SQL_find_acl)) > 0) {
		if (!column_equals(c, 1, named->users, named->users_len) ||
		    !column_equals(c, 2, named->groups, named->groups_len))
			continue;
		*ret_id = (uint32_t)sql_int(c, SQL_find_acl, 0);
		sql_done(c, SQL_find_acl);
		return 1;
	}
	return r;
}

int sql_put_acl(struct sql_conn *c, const struct cfs_acl *rule, uint32_t *ret_id)
{
	struct packed named = {
		.users_len = rule->n_users * (size_t)CFS_ACL_ENTRY_BYTES,
		.groups_len = rule->n_groups * (size_t)CFS_ACL_ENTRY_BYTES,
	};
	int r;

	named.users = malloc(named.users_len + named.groups_len + 1);
	if (!named.users)
		return -ENOMEM;
	named.groups = named.users + named.users_len;
	cfs_acl_pack(rule->users, rule->n_users, named.users);
	cfs_acl_pack(rule->groups, rule->n_groups, named.groups);
	r = find_rule(c, rule, &named, ret_id);
	if (r == 0) {
		r = sql_exec(c, SQL_put_acl, "iiiibb", (int64_t)rule->owner, (int64_t)rule->group,
			     (int64_t)rule->mask, (int64_t)rule->other, named.users,
			     named.users_len, named.groups, named.groups_len);
		if (r >= 0)
			*ret_id = (uint32_t)sql_insert_id(c, SQL_put_acl);
	}
	free(named.users);
	return r < 0 ? r : 0;
}

/* ---- operations ---- */

struct get_acl {
	uint32_t id;
	struct cfs_acl *ret;
};

static int get(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct get_acl *a = arg;

	return sql_get_acl(c, a->id, a->ret);
}

int sql_op_get_acl(struct cfs_engine *e, const struct cfs_ctx *ctx, uint32_t id,
		   struct cfs_acl *ret)
{
	struct get_acl a = {id, ret};

	return sql_read(sql_db(e), ctx, CFS_META_OP_xattr, get, &a);
}

struct put_acl {
	const struct cfs_acl *rule;
	uint32_t *ret_id;
};

static int put(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct put_acl *a = arg;

	sql_repeatable();
	return sql_put_acl(c, a->rule, a->ret_id);
}

int sql_op_put_acl(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_acl *rule,
		   uint32_t *ret_id)
{
	struct put_acl a = {rule, ret_id};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_xattr, put, &a);
}

struct set_acl {
	cfs_ino_t ino;
	bool is_default;
	uint32_t id;
	int mode;
	struct cfs_attr *attr;
};

static int set_id(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct set_acl *a = arg;
	int r = sql_get_node(c, a->ino, true, a->attr);

	if (r < 0)
		return r;
	if (ctx->check && ctx->uid != 0 && ctx->uid != a->attr->uid)
		return -EPERM;
	if (a->attr->flags & (CFS_FLAG_IMMUTABLE | CFS_FLAG_APPEND))
		return -EPERM;
	if (a->is_default)
		a->attr->default_acl = a->id;
	else
		a->attr->access_acl = a->id;
	if (a->mode >= 0)
		a->attr->mode = (uint16_t)(a->mode & 07777);
	a->attr->ctime = ctx->now;
	r = sql_update_node(c, a->ino, a->attr);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "SETFACL(%" PRIu64 ",%d,%u,%u)", a->ino, a->is_default ? 2 : 1,
		       a->id, a->attr->mode);
}

int sql_op_set_acl_id(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      bool is_default, uint32_t id, int mode, struct cfs_attr *ret)
{
	struct set_acl a = {ino, is_default, id, mode, ret};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_xattr, set_id, &a);
}
