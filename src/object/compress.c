/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed blocks (volume-format section 7): one raw LZ4 block, or one zstd frame. Only blocks
 * are compressed; their uncompressed length is in their name.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef CFS_HAVE_LZ4
#include <lz4.h>
#endif
#ifdef CFS_HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/bytes.h"
#include "base/log.h"
#include "filter.h"

#define BLOCK_MAX  ((size_t)64 << 20) /* a key with a larger length is not a block */
#define ZSTD_LEVEL 1

struct codec {
	const char *name;
	size_t (*bound)(size_t len);
	/* pack and unpack return the bytes written, or a negative errno. */
	ssize_t (*pack)(uint8_t *dst, size_t cap, const uint8_t *src, size_t len);
	ssize_t (*unpack)(uint8_t *dst, size_t cap, const uint8_t *src, size_t len);
};

struct compress {
	struct cfs_filter f; /* first */
	struct cfs_object_ops ops;
	const struct codec *codec;
};

#ifdef CFS_HAVE_LZ4
static size_t lz4_bound(size_t len)
{
	return (size_t)LZ4_COMPRESSBOUND(len);
}

static ssize_t lz4_pack(uint8_t *dst, size_t cap, const uint8_t *src, size_t len)
{
	int n = LZ4_compress_default((const char *)src, (char *)dst, (int)len, (int)cap);

	return n > 0 ? n : -EIO;
}

static ssize_t lz4_unpack(uint8_t *dst, size_t cap, const uint8_t *src, size_t len)
{
	int n = LZ4_decompress_safe((const char *)src, (char *)dst, (int)len, (int)cap);

	return n >= 0 ? n : -EBADMSG;
}
#endif

#ifdef CFS_HAVE_ZSTD
static size_t zstd_bound(size_t len)
{
	return ZSTD_compressBound(len);
}

static ssize_t zstd_pack(uint8_t *dst, size_t cap, const uint8_t *src, size_t len)
{
	size_t n = ZSTD_compress(dst, cap, src, len, ZSTD_LEVEL);

	return ZSTD_isError(n) ? -EIO : (ssize_t)n;
}

static ssize_t zstd_unpack(uint8_t *dst, size_t cap, const uint8_t *src, size_t len)
{
	size_t n = ZSTD_decompress(dst, cap, src, len);

	return ZSTD_isError(n) ? -EBADMSG : (ssize_t)n;
}
#endif

static const struct codec codecs[] = {
#ifdef CFS_HAVE_LZ4
	{"lz4", lz4_bound, lz4_pack, lz4_unpack},
#endif
#ifdef CFS_HAVE_ZSTD
	{"zstd", zstd_bound, zstd_pack, zstd_unpack},
#endif
};

/* True for a key of the form ".../{slice}_{index}_{len}". */
static bool is_block(const char *key, size_t *ret_len)
{
	const char *name = strrchr(key, '/');
	uint64_t slice;
	uint32_t index, len;
	int end = 0;

	if (!name || sscanf(name + 1, "%" SCNu64 "_%" SCNu32 "_%" SCNu32 "%n", &slice, &index, &len,
			    &end) < 3)
		return false;
	if (name[1 + end] != '\0' || len == 0 || len > BLOCK_MAX)
		return false;
	*ret_len = len;
	return true;
}

static ssize_t compress_get(struct cfs_object_store *o, const char *key, uint64_t off,
			    const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct compress *c = (struct compress *)o;
	struct cfs_object_store *inner = c->f.inner;
	struct cfs_scratch_buf *buf;
	struct iovec packed;
	bool direct;
	size_t len;
	uint8_t *out;
	ssize_t n;

	if (!is_block(key, &len))
		return inner->ops->get(inner, key, off, dst, n_dst, deadline);
	if (off >= len)
		return 0;
	/* Small blocks go straight to where they are wanted. */
	direct = off == 0 && n_dst > 0 && dst[0].iov_len >= len;
	packed.iov_len = c->codec->bound(len);
	n = cfs_scratch_get(&c->f.scratch, packed.iov_len + (direct ? 0 : len), deadline, &buf);
	if (n < 0)
		return n;
	packed.iov_base = buf->data;
	out = direct ? dst[0].iov_base : buf->data + packed.iov_len;

	n = inner->ops->get(inner, key, 0, &packed, 1, deadline);
	if (n >= 0)
		n = c->codec->unpack(out, len, packed.iov_base, (size_t)n);
	if (n >= 0 && (size_t)n != len)
		n = -EBADMSG;
	if (n >= 0 && !direct)
		n = (ssize_t)cfs_iov_scatter(dst, n_dst, out + off, len - off);
	cfs_scratch_put(&c->f.scratch, buf);
	return n;
}

static int compress_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
			int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct compress *c = (struct compress *)o;
	struct cfs_object_store *inner = c->f.inner;
	struct cfs_scratch_buf *buf;
	size_t len, bound;
	struct iovec packed;
	const uint8_t *plain;
	ssize_t n;

	if (!is_block(key, &len))
		return inner->ops->put(inner, key, src, n_src, tier, deadline);
	if (len != cfs_iov_len(src, n_src))
		return -EINVAL;
	bound = c->codec->bound(len);
	n = cfs_scratch_get(&c->f.scratch, bound + (n_src > 1 ? len : 0), deadline, &buf);
	if (n < 0)
		return (int)n;
	plain = src[0].iov_base;
	if (n_src > 1) {
		plain = buf->data + bound;
		cfs_iov_gather(src, n_src, buf->data + bound);
	}
	n = c->codec->pack(buf->data, bound, plain, len);
	if (n >= 0) {
		packed = (struct iovec){.iov_base = buf->data, .iov_len = (size_t)n};
		n = inner->ops->put(inner, key, &packed, 1, tier, deadline);
	}
	cfs_scratch_put(&c->f.scratch, buf);
	return (int)n;
}

static void compress_close(struct cfs_object_store *o)
{
	struct compress *c = (struct compress *)o;

	cfs_object_close(c->f.inner);
	cfs_scratch_fini(&c->f.scratch);
	free(c);
}

int cfs_object_wrap_compress(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			     struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	const struct codec *codec = NULL;
	struct compress *c;
	size_t i;
	int r;

	for (i = 0; i < CFS_ARRAY_SIZE(codecs); i++) {
		if (strcmp(codecs[i].name, conf->compression) == 0)
			codec = &codecs[i];
	}
	if (!codec)
		return cfs_fail(err, -EOPNOTSUPP, "compression is unknown or not built in: %s",
				conf->compression);
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	r = cfs_scratch_init(&c->f.scratch);
	if (r < 0) {
		free(c);
		return r;
	}
	c->ops = (struct cfs_object_ops){
		.name = codec->name,
		.whole = true,
		.get = compress_get,
		.put = compress_put,
		.del = cfs_filter_del,
		.head = cfs_filter_head,
		.list = cfs_filter_list,
		.sync = cfs_filter_sync,
		.create = cfs_filter_create,
		.close = compress_close,
		.del_many = cfs_filter_del_many,
		.adopt = cfs_filter_adopt,
	};
	c->codec = codec;
	c->f.base.ops = &c->ops;
	c->f.inner = inner;
	*ret = &c->f.base;
	return 0;
}
