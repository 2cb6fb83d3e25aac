/* SPDX-License-Identifier: Apache-2.0 */
/* Values as stored in Redis (volume-format section 4). */
#include <errno.h>

#include "base/bytes.h"
#include "meta/redis/redis-internal.h"

int rds_attr_reply(const redisReply *r, struct cfs_attr *ret)
{
	if (rds_is_nil(r))
		return -ENOENT;
	if (!rds_is_bytes(r) || cfs_attr_decode(r->str, r->len, ret) < 0)
		return -EIO;
	return ret->length > RDS_LENGTH_MAX ? -EIO : 0;
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
