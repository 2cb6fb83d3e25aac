/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signature Version 4 of S3: AWS, "Authenticating Requests: Using the
 * Authorization Header". Encoding is strict, because both sides must arrive at the same text.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "s3.h"

#define HASH_LEN CFS_S3_SHA256_LEN

const char *const cfs_s3_header_names[CFS_S3_N_HEADERS] = {
	[CFS_S3_CONTENT_MD5] = "content-md5",
	[CFS_S3_HOST] = "host",
	[CFS_S3_IF_NONE_MATCH] = "if-none-match",
	[CFS_S3_CHECKSUM] = "x-amz-checksum-crc32c",
	[CFS_S3_CONTENT_SHA256] = "x-amz-content-sha256",
	[CFS_S3_DATE] = "x-amz-date",
	[CFS_S3_META_TABLE] = "x-amz-meta-cachefs-crc32c",
	[CFS_S3_META_CRC32C] = "x-amz-meta-crc32c",
	[CFS_S3_TOKEN] = "x-amz-security-token",
	[CFS_S3_STORAGE_CLASS] = "x-amz-storage-class",
	[CFS_S3_TAGGING] = "x-amz-tagging",
};

static bool is_unreserved(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_' || c == '.' || c == '~';
}

void cfs_s3_encode(const char *text, bool keep_slash, char *ret)
{
	static const char digits[] = "0123456789ABCDEF";

	for (; *text; text++) {
		if (is_unreserved(*text) || (*text == '/' && keep_slash)) {
			*ret++ = *text;
			continue;
		}
		*ret++ = '%';
		*ret++ = digits[(uint8_t)*text >> 4];
		*ret++ = digits[(uint8_t)*text & 15];
	}
	*ret = '\0';
}

static bool hmac(const void *key, size_t key_len, const char *text, uint8_t out[HASH_LEN])
{
	return HMAC(EVP_sha256(), key, (int)key_len, (const uint8_t *)text, strlen(text), out,
		    NULL) != NULL;
}

void cfs_s3_signer_init(struct cfs_s3_signer *s)
{
	*s = (struct cfs_s3_signer){0};
	pthread_mutex_init(&s->lock, NULL);
}

void cfs_s3_signer_fini(struct cfs_s3_signer *s)
{
	cfs_s3_keys_unref(s->keys);
	OPENSSL_cleanse(s->key, sizeof(s->key));
	pthread_mutex_destroy(&s->lock);
}

static bool derive_key(const char *secret, const char *day, const char *region,
		       uint8_t out[HASH_LEN])
{
	cfs_auto_free char *seed = NULL;
	bool ok;

	if (asprintf(&seed, "AWS4%s", secret) < 0) {
		seed = NULL;
		return false;
	}
	ok = hmac(seed, strlen(seed), day, out) && hmac(out, HASH_LEN, region, out) &&
	     hmac(out, HASH_LEN, "s3", out) && hmac(out, HASH_LEN, "aws4_request", out);
	OPENSSL_cleanse(seed, strlen(seed));
	return ok;
}

/* The key changes once a day, and with the credentials. */
static bool signing_key(struct cfs_s3_signer *s, const char *region, const struct cfs_s3_keys *keys,
			const char *day, uint8_t out[HASH_LEN])
{
	CFS_LOCK_GUARD(&s->lock);

	if (s->keys != keys || strcmp(s->day, day) != 0) {
		cfs_s3_keys_unref(s->keys);
		s->keys = NULL;
		if (!derive_key(keys->secret, day, region, s->key))
			return false;
		s->keys = cfs_s3_keys_ref(keys);
		memcpy(s->day, day, sizeof(s->day));
	}
	memcpy(out, s->key, HASH_LEN);
	return true;
}

static int hash_canonical(const struct cfs_s3_to_sign *what, char *names, size_t names_size,
			  char ret_hex[2 * HASH_LEN + 1])
{
	cfs_auto_free char *text = NULL;
	uint8_t hash[HASH_LEN];
	size_t i, len = 0;
	FILE *out;

	out = open_memstream(&text, &len);
	if (!out)
		return -ENOMEM;
	names[0] = '\0';
	fprintf(out, "%s\n%s\n%s\n", what->method, what->path, what->query);
	for (i = 0; i < CFS_S3_N_HEADERS; i++) {
		size_t have = strlen(names);

		if (!what->headers[i])
			continue;
		fprintf(out, "%s:%s\n", cfs_s3_header_names[i], what->headers[i]);
		snprintf(names + have, names_size - have, "%s%s", have ? ";" : "",
			 cfs_s3_header_names[i]);
	}
	fprintf(out, "\n%s\n%s", names, what->headers[CFS_S3_CONTENT_SHA256]);
	if (fclose(out) != 0)
		return -ENOMEM;
	if (EVP_Digest(text, len, hash, NULL, EVP_sha256(), NULL) <= 0)
		return -EIO;
	cfs_s3_hex(hash, HASH_LEN, ret_hex);
	return 0;
}

int cfs_s3_sign(struct cfs_s3_signer *s, const char *region, const struct cfs_s3_keys *keys,
		struct cfs_s3_to_sign *what, char ret_date[17], char **ret_authorization)
{
	char names[320], hex[2 * HASH_LEN + 1], day[9], scope[128], text[320];
	uint8_t key[HASH_LEN], signature[HASH_LEN];
	struct tm tm;
	bool ok;
	int r;

	gmtime_r(&what->now, &tm);
	strftime(ret_date, 17, "%Y%m%dT%H%M%SZ", &tm);
	strftime(day, sizeof(day), "%Y%m%d", &tm);
	what->headers[CFS_S3_DATE] = ret_date;
	what->headers[CFS_S3_TOKEN] = keys->token;
	r = hash_canonical(what, names, sizeof(names), hex);
	if (r < 0)
		return r;
	snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, region);
	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", ret_date, scope, hex);
	ok = signing_key(s, region, keys, day, key) && hmac(key, sizeof(key), text, signature);
	OPENSSL_cleanse(key, sizeof(key));
	if (!ok)
		return -EIO;
	cfs_s3_hex(signature, HASH_LEN, hex);
	if (asprintf(ret_authorization,
		     "AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s",
		     keys->access, scope, names, hex) < 0)
		return -ENOMEM;
	return 0;
}
