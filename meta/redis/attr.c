/* SPDX-License-Identifier: Apache-2.0 */
/* Values as stored in Redis (volume-format section 4). */
#include <errno.h>

#include "base/bytes.h"
#include "meta/redis/redis-internal.h"

enum { SHORTEST = 63, WITH_PARENT = 71 };

static uint8_t *put_time(uint8_t *p, struct timespec t)
{
	cfs_put_be64(p, (uint64_t)t.tv_sec);
	cfs_put_be32(p + 8, (uint32_t)t.tv_nsec);
	return p + 12;
}

static struct timespec get_time(const uint8_t *p)
{
	return (struct timespec){
		.tv_sec = (int64_t)cfs_get_be64(p),
		.tv_nsec = cfs_get_be32(p + 8),
	};
}

size_t rds_attr_encode(const struct cfs_attr *a, uint8_t out[RDS_ATTR_MAX])
{
	uint8_t *p = out;

	*p++ = a->flags;
	cfs_put_be16(p, (uint16_t)(a->type << 12 | (a->mode & 07777)));
	cfs_put_be32(p + 2, a->uid);
	cfs_put_be32(p + 6, a->gid);
	p = put_time(p + 10, a->atime);
	p = put_time(p, a->mtime);
	p = put_time(p, a->ctime);
	cfs_put_be32(p, a->nlink);
	cfs_put_be64(p + 4, a->length);
	cfs_put_be32(p + 12, a->rdev);
	cfs_put_be64(p + 16, a->parent);
	p += 24;
	if (a->access_acl || a->default_acl) {
		cfs_put_be32(p, a->access_acl);
		cfs_put_be32(p + 4, a->default_acl);
		p += 8;
	}
	if (a->tier)
		*p++ = a->tier;
	/* The format has one more byte, which JuiceFS writes as 0. */
	*p++ = 0;
	return (size_t)(p - out);
}

int rds_attr_decode(const void *record, size_t len, struct cfs_attr *ret)
{
	const uint8_t *p = record;
	uint16_t type_mode;

	if (len < SHORTEST)
		return -EIO;
	type_mode = cfs_get_be16(p + 1);
	*ret = (struct cfs_attr){
		.flags = p[0],
		.type = (uint8_t)(type_mode >> 12),
		.mode = type_mode & 07777,
		.uid = cfs_get_be32(p + 3),
		.gid = cfs_get_be32(p + 7),
		.atime = get_time(p + 11),
		.mtime = get_time(p + 23),
		.ctime = get_time(p + 35),
		.nlink = cfs_get_be32(p + 47),
		.length = cfs_get_be64(p + 51),
		.rdev = cfs_get_be32(p + 59),
	};
	if (ret->length > RDS_LENGTH_MAX)
		return -EIO;
	if (len < WITH_PARENT)
		return 0;
	ret->parent = cfs_get_be64(p + 63);
	p += WITH_PARENT;
	len -= WITH_PARENT;
	if (len >= 8) {
		ret->access_acl = cfs_get_be32(p);
		ret->default_acl = cfs_get_be32(p + 4);
		p += 8;
		len -= 8;
	}
	if (len >= 1)
		ret->tier = *p;
	return 0;
}

int rds_attr_reply(const redisReply *r, struct cfs_attr *ret)
{
	if (rds_is_nil(r))
		return -ENOENT;
	return rds_is_bytes(r) ? rds_attr_decode(r->str, r->len, ret) : -EIO;
}

int rds_entry_decode(const void *p, size_t len, uint8_t *ret_type, cfs_ino_t *ret_ino)
{
	if (len != RDS_ENTRY_BYTES)
		return -EIO;
	*ret_type = *(const uint8_t *)p;
	*ret_ino = cfs_get_be64((const uint8_t *)p + 1);
	return 0;
}

void rds_entry_encode(uint8_t type, cfs_ino_t ino, uint8_t out[RDS_ENTRY_BYTES])
{
	out[0] = type;
	cfs_put_be64(out + 1, ino);
}

size_t rds_who(const struct cfs_ctx *ctx, uint8_t out[RDS_WHO_MAX])
{
	size_t i, n = ctx->check ? CFS_MIN(ctx->n_groups, (size_t)(RDS_WHO_MAX - 9) / 4) : 0;

	cfs_put_be32(out, ctx->uid);
	cfs_put_be32(out + 4, ctx->gid);
	out[8] = ctx->check;
	for (i = 0; i < n; i++)
		cfs_put_be32(out + 9 + 4 * i, ctx->groups[i]);
	return 9 + 4 * n;
}
