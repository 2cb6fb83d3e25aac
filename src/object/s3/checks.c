/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of bodies.
 *
 * An object carries two of them in its user metadata: `crc32c`, of all of it, as JuiceFS writes
 * it, and `cachefs-crc32c`, a table with one per segment:
 *
 *	SEGMENT_BYTES ":" 8 hex digits for each segment, the last of which may be short
 *
 * The checksum of a segment is the CRC32C of the last component of the object's key followed by the
 * segment's bytes, so that the body of another object does not match, even with its own checksums.
 * That component does not change when a volume is copied.
 */
#include <errno.h>
#include <isa-l.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "s3.h"

#define SEGMENT_MIN  ((uint64_t)128 << 10) /* the smallest fetch of a miss */
#define SEGMENTS_MAX 128		   /* servers keep 2 KB of user metadata */
#define DIGITS	     8

/* The CRC of the next len bytes; fewer when there are no more. */
static uint32_t crc_next(struct cfs_iov_cursor *at, uint64_t len, uint32_t crc)
{
	size_t part;
	char *p;

	for (; len && (part = cfs_iov_next(at, len, &p)) > 0; len -= part)
		crc = crc32_iscsi((unsigned char *)p, (int)part, crc);
	return crc;
}

uint32_t cfs_s3_crc(const struct iovec *iov, int n, uint64_t len)
{
	struct cfs_iov_cursor at = {iov, n, 0};

	return ~crc_next(&at, len, ~0u);
}

/* The start value of the CRC of a segment of this object. */
static uint32_t seed_of(const char *key)
{
	const char *slash = strrchr(key, '/');
	const char *name = slash ? slash + 1 : key;

	return crc32_iscsi((unsigned char *)name, (int)strlen(name), ~0u);
}

void cfs_s3_table_make(const char *key, const struct iovec *iov, int n, char ret[CFS_S3_TABLE_MAX])
{
	uint64_t len = cfs_iov_len(iov, n), segment = SEGMENT_MIN, off;
	struct cfs_iov_cursor from = {iov, n, 0};
	uint32_t seed = seed_of(key);
	int at;

	while (len > segment * SEGMENTS_MAX)
		segment *= 2;
	at = snprintf(ret, CFS_S3_TABLE_MAX, "%lu:", segment);
	for (off = 0; off < len; off += segment)
		at += snprintf(ret + at, CFS_S3_TABLE_MAX - (size_t)at, "%08x",
			       ~crc_next(&from, segment, seed));
}

/* False: it is malformed, or belongs to an object of another length. */
static bool parse_table(const char *text, uint64_t total, uint64_t *ret_segment,
			const char **ret_digits)
{
	uint64_t segment;
	char *end;

	segment = strtoull(text, &end, 10);
	if (*end != ':' || segment < SEGMENT_MIN || segment > UINT32_MAX)
		return false;
	if (strlen(end + 1) != (total / segment + (total % segment != 0)) * DIGITS)
		return false;
	*ret_segment = segment;
	*ret_digits = end + 1;
	return true;
}

/* Checks the bytes received from `off` on against the table. */
static enum cfs_s3_verdict judge_table(const char *key, const struct cfs_s3_response *resp,
				       const struct iovec *iov, int n, uint64_t off, uint64_t total)
{
	uint64_t segment, part, end = off + resp->http.received;
	struct cfs_iov_cursor at = {iov, n, 0};
	uint32_t seed = seed_of(key), said;
	const char *digits;
	char hex[DIGITS + 1];

	if (!parse_table(resp->table, total, &segment, &digits))
		return CFS_S3_UNCOVERED;
	if (off % segment || (end % segment && end != total))
		return CFS_S3_UNCOVERED;
	for (; off < end; off += part) {
		part = CFS_MIN(segment, end - off);
		snprintf(hex, sizeof(hex), "%.*s", DIGITS, digits + off / segment * DIGITS);
		said = (uint32_t)strtoul(hex, NULL, 16);
		if (~crc_next(&at, part, seed) != said)
			return CFS_S3_DAMAGED;
	}
	return CFS_S3_COVERED;
}

enum cfs_s3_verdict cfs_s3_judge_body(const char *key, const struct cfs_s3_response *resp,
				      const struct iovec *iov, int n, uint64_t off, uint64_t total)
{
	enum cfs_s3_verdict v = CFS_S3_UNCOVERED;
	bool whole = off == 0 && resp->http.received == total;

	if (resp->table[0])
		v = judge_table(key, resp, iov, n, off, total);
	if (v != CFS_S3_DAMAGED && whole && resp->has_crc)
		v = cfs_s3_crc(iov, n, resp->http.received) == resp->crc ? CFS_S3_COVERED
									 : CFS_S3_DAMAGED;
	return v;
}

void cfs_s3_hex(const uint8_t *hash, size_t len, char *ret)
{
	size_t i;

	for (i = 0; i < len; i++)
		snprintf(ret + 2 * i, 3, "%02x", hash[i]);
}

int cfs_s3_digest(enum cfs_s3_hash which, const struct iovec *iov, int n, uint64_t len,
		  uint8_t ret[CFS_S3_HASH_MAX])
{
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	size_t part;
	bool ok;

	ok = md && EVP_DigestInit_ex(md, which == CFS_S3_MD5 ? EVP_md5() : EVP_sha256(), NULL) > 0;
	for (; n > 0 && ok; n--, iov++) {
		part = (size_t)CFS_MIN(len, (uint64_t)iov->iov_len);
		ok = EVP_DigestUpdate(md, iov->iov_base, part) > 0;
		len -= part;
	}
	ok = ok && EVP_DigestFinal_ex(md, ret, NULL) > 0;
	EVP_MD_CTX_free(md);
	return ok ? 0 : -EIO;
}

enum cfs_s3_verdict cfs_s3_judge_etag(const char *etag, const struct iovec *iov, int n,
				      uint64_t len)
{
	char hex[2 * CFS_S3_MD5_LEN + 1];
	uint8_t hash[CFS_S3_HASH_MAX];

	if (strlen(etag) != 2 * CFS_S3_MD5_LEN ||
	    strspn(etag, "0123456789abcdefABCDEF") != 2 * CFS_S3_MD5_LEN ||
	    cfs_s3_digest(CFS_S3_MD5, iov, n, len, hash) < 0)
		return CFS_S3_UNCOVERED;
	cfs_s3_hex(hash, CFS_S3_MD5_LEN, hex);
	return strcasecmp(etag, hex) == 0 ? CFS_S3_COVERED : CFS_S3_DAMAGED;
}

void cfs_s3_base64_crc(uint32_t crc, char ret[CFS_S3_CRC_BASE64])
{
	uint8_t be[4];

	cfs_put_be32(be, crc);
	EVP_EncodeBlock((unsigned char *)ret, be, sizeof(be));
}
