/* SPDX-License-Identifier: Apache-2.0 */
/* Unaligned big-endian integers, the byte order of the volume format; io vectors. */
#ifndef CFS_BYTES_H
#define CFS_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#define CFS_DEFINE_BE(bits)                                                                        \
	static inline uint##bits##_t cfs_get_be##bits(const void *src)                             \
	{                                                                                          \
		uint##bits##_t v;                                                                  \
		memcpy(&v, src, sizeof(v));                                                        \
		return be##bits##toh(v);                                                           \
	}                                                                                          \
	static inline void cfs_put_be##bits(void *dst, uint##bits##_t v)                           \
	{                                                                                          \
		v = htobe##bits(v);                                                                \
		memcpy(dst, &v, sizeof(v));                                                        \
	}

CFS_DEFINE_BE(16)
CFS_DEFINE_BE(32)
CFS_DEFINE_BE(64)

/* For functions that sort: negative, 0 or positive. */
#define CFS_COMPARE(a, b) (((a) > (b)) - ((a) < (b)))
#define CFS_MIN(a, b)	  ((a) < (b) ? (a) : (b))
#define CFS_MAX(a, b)	  ((a) > (b) ? (a) : (b))
#define CFS_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define CFS_DIV_UP(a, b)  (((a) + (b)-1) / (b))

static inline size_t cfs_iov_len(const struct iovec *iov, int n)
{
	size_t len = 0;
	int i;

	for (i = 0; i < n; i++)
		len += iov[i].iov_len;
	return len;
}

static inline void cfs_iov_gather(const struct iovec *src, int n_src, void *dst)
{
	int i;

	for (i = 0; i < n_src; i++)
		if (src[i].iov_len)
			dst = mempcpy(dst, src[i].iov_base, src[i].iov_len);
}

#endif
