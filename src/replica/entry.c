/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#ifdef CFS_HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/bytes.h"
#include "replica-internal.h"

#define MAGIC	   "CFSREPL1"
#define ZSTD_LEVEL 1

enum { CODEC_NONE, CODEC_ZSTD };

int entry_hash(const void *data, size_t len, uint8_t ret[CFS_REPLICA_HASH])
{
	return EVP_Digest(data, len, ret, NULL, EVP_sha256(), NULL) > 0 ? 0 : -ENOMEM;
}

/* ---- compression ---- */

uint8_t entry_codec(void)
{
#ifdef CFS_HAVE_ZSTD
	return CODEC_ZSTD;
#else
	return CODEC_NONE;
#endif
}

int entry_pack(uint8_t codec, const uint8_t *raw, size_t len, uint8_t **ret, size_t *ret_len)
{
	size_t cap = len, n = len;
	uint8_t *out;

#ifdef CFS_HAVE_ZSTD
	if (codec == CODEC_ZSTD)
		cap = ZSTD_compressBound(len);
#endif
	out = malloc(cap + 1);
	if (!out)
		return -ENOMEM;
#ifdef CFS_HAVE_ZSTD
	if (codec == CODEC_ZSTD) {
		n = ZSTD_compress(out, cap, raw, len, ZSTD_LEVEL);
		if (ZSTD_isError(n)) {
			free(out);
			return -ENOMEM;
		}
	}
#endif
	if (codec == CODEC_NONE)
		memcpy(out, raw, len);
	*ret = out;
	*ret_len = n;
	return 0;
}

int entry_unpack_bytes(uint8_t codec, const uint8_t *bytes, size_t len, size_t raw_len,
		       uint8_t *raw)
{
	if (codec == CODEC_NONE) {
		if (len != raw_len)
			return -EBADMSG;
		memcpy(raw, bytes, len);
		return 0;
	}
#ifdef CFS_HAVE_ZSTD
	return ZSTD_decompress(raw, raw_len, bytes, len) == raw_len ? 0 : -EBADMSG;
#else
	return -EOPNOTSUPP;
#endif
}

int entry_unpack(const struct entry *e, uint8_t **ret)
{
	uint8_t *raw = malloc(e->raw_len + 1);
	int r;

	if (!raw)
		return -ENOMEM;
	r = entry_unpack_bytes(e->codec, e->body, e->body_len, e->raw_len, raw);
	if (r)
		free(raw);
	else
		*ret = raw;
	return r;
}

/* ---- the header ---- */

static void put_place(uint8_t *p, const struct log_place *at)
{
	cfs_put_be32(p, at->salt[0]);
	cfs_put_be32(p + 4, at->salt[1]);
	cfs_put_be32(p + 8, at->frames);
	cfs_put_be32(p + 12, at->sum[0]);
	cfs_put_be32(p + 16, at->sum[1]);
}

static struct log_place get_place(const uint8_t *p)
{
	return (struct log_place){
		.salt = {cfs_get_be32(p), cfs_get_be32(p + 4)},
		.frames = cfs_get_be32(p + 8),
		.sum = {cfs_get_be32(p + 12), cfs_get_be32(p + 16)},
	};
}

int entry_encode(struct entry *e, const uint8_t *raw, size_t raw_len, uint8_t **ret,
		 size_t *ret_len)
{
	uint8_t *body, *out = NULL;
	size_t body_len;
	int r;

	e->codec = entry_codec();
	e->raw_len = raw_len;
	r = entry_pack(e->codec, raw, raw_len, &body, &body_len);
	if (r)
		return r;
	e->body_len = body_len;
	out = calloc(1, ENTRY_HEADER + body_len);
	if (!out) {
		free(body);
		return -ENOMEM;
	}
	memcpy(out + ENTRY_HEADER, body, body_len);
	free(body);
	e->body = out + ENTRY_HEADER;
	memcpy(out, MAGIC, 8);
	cfs_put_be64(out + 8, e->number);
	cfs_put_be64(out + 16, e->time_ms);
	memcpy(out + 24, e->owner, sizeof(e->owner));
	memcpy(out + 40, e->before, sizeof(e->before));
	out[72] = e->kind;
	out[73] = e->codec;
	cfs_put_be32(out + 76, e->page_size);
	cfs_put_be32(out + 80, e->db_pages);
	cfs_put_be32(out + 84, e->n);
	put_place(out + 88, &e->end);
	cfs_put_be32(out + 108, e->epoch);
	cfs_put_be64(out + 112, e->base_at);
	cfs_put_be64(out + 120, e->token);
	cfs_put_be64(out + 128, e->base_of);
	memcpy(out + 136, e->base_hash, sizeof(e->base_hash));
	cfs_put_be64(out + 168, raw_len);
	cfs_put_be64(out + 176, body_len);
	r = entry_hash(out + ENTRY_HEADER, body_len, out + 184);
	if (!r)
		r = entry_hash(out, 216, out + 216);
	if (r) {
		free(out);
		return r;
	}
	memcpy(e->hash, out + 216, sizeof(e->hash));
	*ret = out;
	*ret_len = ENTRY_HEADER + body_len;
	return 0;
}

static bool is_page_size(uint32_t n) /* https://www.sqlite.org/fileformat2.html#page_size */
{
	return n >= 512 && n <= 65536 && (n & (n - 1)) == 0;
}
/* Whether the numbers agree with each other: readers of the entry rely on that. */
static bool is_consistent(const struct entry *e)
{
	uint64_t one = e->kind == ENTRY_PAGES ? 4 + (uint64_t)e->page_size : ENTRY_REF;

	if (!e->number || !e->base_at || e->base_at > e->number || !is_page_size(e->page_size) ||
	    !e->db_pages || !e->n || e->codec > CODEC_ZSTD || e->raw_len != e->n * one ||
	    e->raw_len > ENTRY_MAX)
		return false;
	if (e->kind == ENTRY_PAGES)
		return !e->token && e->base_at < e->number;
	return e->kind == ENTRY_BASE && e->base_at == e->number && e->base_of &&
	       e->base_of <= e->number &&
	       e->n == CFS_DIV_UP((uint64_t)e->db_pages * e->page_size, ENTRY_PIECE);
}

int entry_parse(const uint8_t *b, size_t len, struct entry *ret)
{
	uint8_t hash[CFS_REPLICA_HASH];
	struct entry e;
	int r;

	if (len < ENTRY_HEADER || memcmp(b, MAGIC, 8) != 0)
		return -EBADMSG;
	r = entry_hash(b, 216, hash);
	if (r || memcmp(hash, b + 216, sizeof(hash)) != 0)
		return r ? r : -EBADMSG;
	e = (struct entry){
		.number = cfs_get_be64(b + 8),
		.time_ms = cfs_get_be64(b + 16),
		.kind = b[72],
		.codec = b[73],
		.page_size = cfs_get_be32(b + 76),
		.db_pages = cfs_get_be32(b + 80),
		.n = cfs_get_be32(b + 84),
		.end = get_place(b + 88),
		.epoch = cfs_get_be32(b + 108),
		.base_at = cfs_get_be64(b + 112),
		.token = cfs_get_be64(b + 120),
		.base_of = cfs_get_be64(b + 128),
		.raw_len = cfs_get_be64(b + 168),
		.body_len = cfs_get_be64(b + 176),
		.body = b + ENTRY_HEADER,
	};
	memcpy(e.owner, b + 24, sizeof(e.owner));
	memcpy(e.before, b + 40, sizeof(e.before));
	memcpy(e.base_hash, b + 136, sizeof(e.base_hash));
	memcpy(e.hash, b + 216, sizeof(e.hash));
	if (e.body_len != len - ENTRY_HEADER || !is_consistent(&e))
		return -EBADMSG;
	r = entry_hash(e.body, e.body_len, hash);
	if (r || memcmp(hash, b + 184, sizeof(hash)) != 0)
		return r ? r : -EBADMSG;
	*ret = e;
	return 0;
}
