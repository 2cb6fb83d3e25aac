/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signature Version 4 of S3 with an unsigned payload: AWS, "Authenticating Requests: Using the
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

#define HASH_LEN 32

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

static void to_hex(const uint8_t hash[HASH_LEN], char out[2 * HASH_LEN + 1])
{
	int i;

	for (i = 0; i < HASH_LEN; i++)
		snprintf(out + 2 * i, 3, "%02x", hash[i]);
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
	bool ok = true;

	pthread_mutex_lock(&s->lock);
	if (s->keys != keys || strcmp(s->day, day) != 0) {
		ok = derive_key(keys->secret, day, region, s->key);
		cfs_s3_keys_unref(s->keys);
		s->keys = NULL;
		if (ok) {
			s->keys = cfs_s3_keys_ref(keys);
			memcpy(s->day, day, sizeof(s->day));
		}
	}
	if (ok)
		memcpy(out, s->key, HASH_LEN);
	pthread_mutex_unlock(&s->lock);
	return ok;
}

/* Adds a header to the canonical ones and its name to the list; they come in order. */
static void add_header(FILE *canonical, char *names, size_t size, const char *name,
		       const char *value)
{
	size_t len = strlen(names);

	if (!value)
		return;
	fprintf(canonical, "%s:%s\n", name, value);
	snprintf(names + len, size - len, "%s%s", len ? ";" : "", name);
}

static int hash_canonical(const struct cfs_s3_to_sign *what, const char *token, const char *date,
			  char *names, size_t names_size, char ret_hex[2 * HASH_LEN + 1])
{
	cfs_auto_free char *text = NULL;
	uint8_t hash[HASH_LEN];
	size_t len = 0;
	FILE *out;

	out = open_memstream(&text, &len);
	if (!out)
		return -ENOMEM;
	names[0] = '\0';
	fprintf(out, "%s\n%s\n%s\n", what->method, what->path, what->query);
	add_header(out, names, names_size, "content-md5", what->content_md5);
	add_header(out, names, names_size, "host", what->host);
	add_header(out, names, names_size, "x-amz-content-sha256", "UNSIGNED-PAYLOAD");
	add_header(out, names, names_size, "x-amz-date", date);
	add_header(out, names, names_size, "x-amz-meta-crc32c", what->meta_crc32c);
	add_header(out, names, names_size, "x-amz-security-token", token);
	fprintf(out, "\n%s\nUNSIGNED-PAYLOAD", names);
	if (fclose(out) != 0)
		return -ENOMEM;
	if (EVP_Digest(text, len, hash, NULL, EVP_sha256(), NULL) <= 0)
		return -EIO;
	to_hex(hash, ret_hex);
	return 0;
}

int cfs_s3_sign(struct cfs_s3_signer *s, const char *region, const struct cfs_s3_keys *keys,
		const struct cfs_s3_to_sign *what, char ret_date[17], char **ret_authorization)
{
	char names[160], hex[2 * HASH_LEN + 1], day[9], scope[128], text[320];
	uint8_t key[HASH_LEN], signature[HASH_LEN];
	struct tm tm;
	bool ok;
	int r;

	gmtime_r(&what->now, &tm);
	strftime(ret_date, 17, "%Y%m%dT%H%M%SZ", &tm);
	strftime(day, sizeof(day), "%Y%m%d", &tm);
	r = hash_canonical(what, keys->token, ret_date, names, sizeof(names), hex);
	if (r < 0)
		return r;
	snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, region);
	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", ret_date, scope, hex);
	ok = signing_key(s, region, keys, day, key) && hmac(key, sizeof(key), text, signature);
	OPENSSL_cleanse(key, sizeof(key));
	if (!ok)
		return -EIO;
	to_hex(signature, hex);
	if (asprintf(ret_authorization,
		     "AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s",
		     keys->access, scope, names, hex) < 0)
		return -ENOMEM;
	return 0;
}
