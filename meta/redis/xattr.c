/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes and ACL rules. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/redis/ops.h"

ssize_t rds_op_getxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			const char *name, void **ret)
{
	RDS_REQUEST(q, e);
	ssize_t r;

	r = rds_ask(&q, ctx, CFS_META_OP_xattr, "sks", "HGET", "x", ino, name);
	if (!r && !rds_is_bytes(q.reply[0]))
		r = -ENODATA;
	if (!r) {
		r = (ssize_t)q.reply[0]->len;
		*ret = malloc((size_t)r + 1);
		if (*ret)
			memcpy(*ret, q.reply[0]->str, (size_t)r);
		else
			r = -ENOMEM;
	}
	return r;
}

ssize_t rds_op_listxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, char **ret)
{
	struct rds_bytes names = {0};
	RDS_REQUEST(q, e);
	size_t i;
	int r = rds_ask(&q, ctx, CFS_META_OP_xattr, "sk", "HKEYS", "x", ino);

	for (i = 0; !r && i < q.reply[0]->elements; i++) {
		rds_bytes_add(&names, q.reply[0]->element[i]->str, q.reply[0]->element[i]->len);
		rds_bytes_add(&names, "", 1);
	}
	if (!r && !names.p)
		names.p = malloc(1);
	if (!r && (names.failed || !names.p))
		r = -ENOMEM;
	if (r) {
		free(names.p);
		return r;
	}
	*ret = (char *)names.p;
	return (ssize_t)names.len;
}

/* "<ino>,<name>,<value>,<flags>" for the changelog; value NULL: "<ino>,<name>". */
static char *xattr_line(struct cfs_engine *e, cfs_ino_t ino, const char *name, const void *value,
			size_t size, int flags)
{
	cfs_auto_free char *buf = NULL;
	size_t len = strlen(name);
	char *line = NULL;
	int n;

	if (!cfs_host_changelog(e->host))
		return strdup("");
	buf = malloc(3 * (len + size) + 2);
	if (!buf)
		return NULL;
	cfs_changelog_name(name, len, buf);
	if (value)
		n = asprintf(&line, "%" PRIu64 ",%s,%s,%d", ino, buf,
			     cfs_changelog_name(value, size, buf + 3 * len + 1), flags);
	else
		n = asprintf(&line, "%" PRIu64 ",%s", ino, buf);
	return n < 0 ? NULL : line;
}

int rds_op_setxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    const char *name, const void *value, size_t size, int flags)
{
	cfs_auto_free char *line = NULL;

	if (flags & ~(XATTR_CREATE | XATTR_REPLACE) || flags == (XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	line = xattr_line(e, ino, name, size ? value : "", size, flags);
	if (!line)
		return -ENOMEM;
	return rds_change(e, ctx, CFS_META_OP_xattr, &rds_setxattr_lua, "usbis", ino, name, value,
			  size, (int64_t)flags, line);
}

int rds_op_removexattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       const char *name)
{
	cfs_auto_free char *line = NULL;

	if (strlen(name) > 255)
		return -ENODATA;
	line = xattr_line(e, ino, name, NULL, 0, 0);
	if (!line)
		return -ENOMEM;
	return rds_change(e, ctx, CFS_META_OP_xattr, &rds_removexattr_lua, "uss", ino, name, line);
}

/* ---- ACL rules ---- */

enum { HEAD_BYTES = 8 };

/*
 * Reads a u32 count and the entries. Returns the position after them, NULL: the text is too short.
 */
static const uint8_t *get_named(const uint8_t *p, const uint8_t *end, struct cfs_acl_entry **ret,
				uint32_t *ret_n)
{
	uint32_t n;

	if (end - p < 4)
		return NULL;
	n = cfs_get_be32(p);
	p += 4;
	if ((size_t)(end - p) / CFS_ACL_ENTRY_BYTES < n)
		return NULL;
	if (cfs_acl_unpack(p, (size_t)n * CFS_ACL_ENTRY_BYTES, ret, ret_n) < 0)
		return NULL;
	return p + (size_t)n * CFS_ACL_ENTRY_BYTES;
}

static int decode_rule(const void *record, size_t len, struct cfs_acl *ret)
{
	const uint8_t *p = record, *end = p + len;
	struct cfs_acl a = {0};

	if (len < HEAD_BYTES)
		return -EIO;
	a.owner = cfs_get_be16(p);
	a.group = cfs_get_be16(p + 2);
	a.mask = cfs_get_be16(p + 4);
	a.other = cfs_get_be16(p + 6);
	p = get_named(p + HEAD_BYTES, end, &a.users, &a.n_users);
	if (p)
		p = get_named(p, end, &a.groups, &a.n_groups);
	if (!p) {
		cfs_acl_release(&a);
		return -EIO;
	}
	*ret = a;
	return 0;
}

int rds_op_get_acl(struct cfs_engine *e, const struct cfs_ctx *ctx, uint32_t id,
		   struct cfs_acl *ret)
{
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_xattr, "sKu", "HGET", "acl", (uint64_t)id);

	if (!r)
		r = rds_is_bytes(q.reply[0]) ? decode_rule(q.reply[0]->str, q.reply[0]->len, ret)
					     : -ENODATA;
	if (r == -EIO)
		cfs_err("ACL rule is damaged: id=%u", id);
	return r;
}

int rds_op_put_acl(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_acl *rule,
		   uint32_t *ret_id)
{
	const size_t users = (size_t)rule->n_users * CFS_ACL_ENTRY_BYTES;
	const size_t groups = (size_t)rule->n_groups * CFS_ACL_ENTRY_BYTES;
	const size_t len = HEAD_BYTES + 8 + users + groups;
	cfs_auto_free uint8_t *p = malloc(len);
	RDS_REQUEST(q, e);
	redisReply *a;
	int r;

	if (!p)
		return -ENOMEM;
	cfs_put_be16(p, rule->owner);
	cfs_put_be16(p + 2, rule->group);
	cfs_put_be16(p + 4, rule->mask);
	cfs_put_be16(p + 6, rule->other);
	cfs_put_be32(p + HEAD_BYTES, rule->n_users);
	cfs_acl_pack(rule->users, rule->n_users, p + HEAD_BYTES + 4);
	cfs_put_be32(p + HEAD_BYTES + 4 + users, rule->n_groups);
	cfs_acl_pack(rule->groups, rule->n_groups, p + HEAD_BYTES + 8 + users);
	r = rds_script(&q, ctx, CFS_META_OP_xattr, &rds_put_acl_lua, &a, "b", p, len);
	if (!r)
		*ret_id = (uint32_t)rds_int(a->element[1]);
	return r;
}

int rds_op_set_acl_id(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      bool is_default, uint32_t id, int mode, struct cfs_attr *ret)
{
	uint8_t id4[4];
	RDS_REQUEST(q, e);
	redisReply *a;
	int r;

	cfs_put_be32(id4, id);
	r = rds_script(&q, ctx, CFS_META_OP_xattr, &rds_set_acl_id_lua, &a, "usbiwt", ino,
		       is_default ? "1" : "0", id4, sizeof(id4),
		       mode < 0 ? (int64_t)-1 : (int64_t)(mode & 07777), ctx, ctx->now);
	if (!r)
		r = rds_attr_reply(a->element[1], ret);
	if (!r)
		rds_cache_attr(rds_of(e), ino, a->element[1], ret);
	return r;
}
