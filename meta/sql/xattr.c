/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "meta/sql/sql.h"

struct xattr {
	cfs_ino_t ino;
	const char *name;
	/* setxattr */
	const void *value;
	size_t size;
	int flags;
	/* results */
	char *ret;
	size_t len, cap;
};

static int append(struct xattr *a, const void *p, size_t len)
{
	size_t cap = 2 * (a->len + len) + 1;
	char *v;

	/* Allocates memory also for an empty value. */
	if (!a->ret || a->len + len > a->cap) {
		v = realloc(a->ret, cap);
		if (!v)
			return -ENOMEM;
		a->ret = v;
		a->cap = cap;
	}
	if (len)
		memcpy(a->ret + a->len, p, len);
	a->len += len;
	return 0;
}

static int get(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct xattr *a = arg;
	const void *value;
	size_t len;
	int r = sql_row(c, SQL_get_xattr, "it", a->ino, a->name, strlen(a->name));

	if (r <= 0)
		return r < 0 ? r : -ENODATA;
	a->len = 0;
	value = sql_blob(c, SQL_get_xattr, 0, &len);
	r = append(a, value, len);
	sql_done(c, SQL_get_xattr);
	return r;
}

static int list(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct xattr *a = arg;
	const void *name;
	size_t len;
	int r = sql_query(c, SQL_list_xattrs, "i", a->ino);

	a->len = 0;
	while (r >= 0 && (r = sql_next(c, SQL_list_xattrs)) > 0) {
		name = sql_blob(c, SQL_list_xattrs, 0, &len);
		r = append(a, name, len);
		if (!r)
			r = append(a, "", 1);
	}
	return r < 0 ? r : append(a, NULL, 0);
}

static ssize_t read_xattrs(struct cfs_engine *e, const struct cfs_ctx *ctx, sql_fn fn,
			   struct xattr *a)
{
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_xattr, fn, a);

	if (r < 0) {
		free(a->ret);
		return r;
	}
	return (ssize_t)a->len;
}

ssize_t sql_op_getxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			const char *name, void **ret)
{
	struct xattr a = {.ino = ino, .name = name};
	ssize_t r = read_xattrs(e, ctx, get, &a);

	if (r >= 0)
		*ret = a.ret;
	return r;
}

ssize_t sql_op_listxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, char **ret)
{
	struct xattr a = {.ino = ino};
	ssize_t r = read_xattrs(e, ctx, list, &a);

	if (r >= 0)
		*ret = a.ret;
	return r;
}

/* Locks the node, so that no row is added after the inode's removal. */
static int lock_inode(struct sql_conn *c, cfs_ino_t ino)
{
	struct cfs_attr attr;
	int r = sql_get_node(c, ino, true, &attr);

	if (r < 0)
		return r;
	return attr.flags & (CFS_FLAG_IMMUTABLE | CFS_FLAG_APPEND) ? -EPERM : 0;
}

static int log_set(struct sql_conn *c, const struct cfs_ctx *ctx, const struct xattr *a)
{
	size_t name_len = strlen(a->name);
	char *buf;
	int r;

	if (!cfs_host_changelog(sql_host(c)))
		return 0;
	buf = malloc(3 * (name_len + a->size) + 2);
	if (!buf)
		return -ENOMEM;
	r = sql_log(c, ctx, "SETXATTR(%" PRIu64 ",%s,%s,%d)", a->ino,
		    cfs_changelog_name(a->name, name_len, buf),
		    cfs_changelog_name(a->value, a->size, buf + 3 * name_len + 1), a->flags);
	free(buf);
	return r;
}

/* 1: an earlier attempt has made the change; it has ended, because the inode is locked. */
static int is_done(struct sql_conn *c, const struct xattr *a, bool removed)
{
	const void *there;
	size_t len = 0;
	int r;

	if (!sql_is_repeated(c))
		return 0;
	r = sql_row(c, SQL_get_xattr, "it", a->ino, a->name, strlen(a->name));
	if (r > 0 && !removed) {
		there = sql_blob(c, SQL_get_xattr, 0, &len);
		r = len == a->size && (!len || !memcmp(there, a->value, len));
	} else if (r >= 0) {
		r = r == 0 && removed;
	}
	sql_done(c, SQL_get_xattr);
	return r;
}

static int set(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct xattr *a = arg;
	size_t name_len = strlen(a->name);
	const void *value = a->size ? a->value : "";
	int r;

	sql_repeatable();
	r = lock_inode(c, a->ino);
	if (r >= 0)
		r = sql_claim_node(c, a->ino);
	if (r >= 0)
		r = is_done(c, a, false);
	if (r)
		return r < 0 ? r : 0;
	if (a->flags == XATTR_REPLACE) {
		r = sql_exec(c, SQL_replace_xattr, "bit", value, a->size, a->ino, a->name,
			     name_len);
		if (r == 0)
			return -ENODATA;
	} else {
		r = sql_exec(c, a->flags == XATTR_CREATE ? SQL_new_xattr : SQL_put_xattr, "itb",
			     a->ino, a->name, name_len, value, a->size);
	}
	return r < 0 ? r : log_set(c, ctx, a);
}

int sql_op_setxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    const char *name, const void *value, size_t size, int flags)
{
	struct xattr a = {.ino = ino, .name = name, .value = value, .size = size, .flags = flags};

	if (flags & ~(XATTR_CREATE | XATTR_REPLACE) || flags == (XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	return sql_txn(sql_db(e), ctx, CFS_META_OP_xattr, set, &a);
}

static int remove_one(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct xattr *a = arg;
	size_t len = strlen(a->name);
	char buf[3 * 255 + 1];
	int r;

	sql_repeatable();
	r = lock_inode(c, a->ino);
	if (r >= 0)
		r = is_done(c, a, true);
	if (r)
		return r < 0 ? r : 0;
	r = sql_exec(c, SQL_del_xattr, "it", a->ino, a->name, len);
	if (r <= 0)
		return r < 0 ? r : -ENODATA;
	return sql_log(c, ctx, "REMOVEXATTR(%" PRIu64 ",%s)", a->ino,
		       cfs_changelog_name(a->name, len, buf));
}

int sql_op_removexattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       const char *name)
{
	struct xattr a = {.ino = ino, .name = name};

	if (strlen(name) > 255)
		return -ENODATA;
	return sql_txn(sql_db(e), ctx, CFS_META_OP_xattr, remove_one, &a);
}
