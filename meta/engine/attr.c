/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes as bytes: volume-format section 4. */
#include <cachefs/meta.h>
#include <errno.h>

#include "base/bytes.h"

enum { TYPE_SHIFT = 12, MODE_BITS = 07777, PARENT_AT = 63, ACL_AT = 71 };

static uint8_t *put_time(uint8_t *p, struct timespec t)
{
	cfs_put_be64(p, (uint64_t)t.tv_sec);
	cfs_put_be32(p + 8, (uint32_t)t.tv_nsec);
	return p + 12;
}

static const uint8_t *get_time(const uint8_t *p, struct timespec *ret)
{
	ret->tv_sec = (time_t)(int64_t)cfs_get_be64(p);
	ret->tv_nsec = (long)cfs_get_be32(p + 8);
	return p + 12;
}

size_t cfs_attr_encode(const struct cfs_attr *attr, uint8_t out[CFS_ATTR_BYTES_MAX])
{
	uint8_t *p = out;

	*p++ = attr->flags;
	cfs_put_be16(p, (uint16_t)(attr->type << TYPE_SHIFT | (attr->mode & MODE_BITS)));
	cfs_put_be32(p + 2, attr->uid);
	cfs_put_be32(p + 6, attr->gid);
	p = put_time(p + 10, attr->atime);
	p = put_time(p, attr->mtime);
	p = put_time(p, attr->ctime);
	cfs_put_be32(p, attr->nlink);
	cfs_put_be64(p + 4, attr->length);
	cfs_put_be32(p + 12, attr->rdev);
	cfs_put_be64(p + 16, attr->parent);
	p += 24;
	if (attr->access_acl || attr->default_acl) {
		cfs_put_be32(p, attr->access_acl);
		cfs_put_be32(p + 4, attr->default_acl);
		p += 8;
	}
	if (attr->tier)
		*p++ = attr->tier;
	/* The format has one more byte, which JuiceFS writes as 0. */
	*p++ = 0;
	return (size_t)(p - out);
}

int cfs_attr_decode(const void *in, size_t len, struct cfs_attr *ret)
{
	const uint8_t *p = in, *end = p + len;
	struct cfs_attr a = {0};
	uint16_t type_mode;

	if (len < PARENT_AT)
		return -EINVAL;
	a.flags = p[0];
	type_mode = cfs_get_be16(p + 1);
	a.type = (uint8_t)(type_mode >> TYPE_SHIFT);
	a.mode = type_mode & MODE_BITS;
	a.uid = cfs_get_be32(p + 3);
	a.gid = cfs_get_be32(p + 7);
	p = get_time(p + 11, &a.atime);
	p = get_time(p, &a.mtime);
	p = get_time(p, &a.ctime);
	a.nlink = cfs_get_be32(p);
	a.length = cfs_get_be64(p + 4);
	a.rdev = cfs_get_be32(p + 12);
	p += 16;
	if (len >= ACL_AT) { /* very old clients wrote no parent */
		a.parent = cfs_get_be64(p);
		p += 8;
	}
	if (end - p >= 8) {
		a.access_acl = cfs_get_be32(p);
		a.default_acl = cfs_get_be32(p + 4);
		p += 8;
	}
	if (end - p >= 1)
		a.tier = *p;
	*ret = a;
	return 0;
}
