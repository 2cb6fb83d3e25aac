/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/setting/setting-internal.h"

enum { KEY_BYTES = 16, NONCE_BYTES = 12, TAG_BYTES = 16 };

static int make_key(const char *uuid, uint8_t key[KEY_BYTES])
{
	unsigned len = KEY_BYTES;

	return EVP_Digest(uuid, strlen(uuid), key, &len, EVP_md5(), NULL) == 1 ? 0 : -EIO;
}

static int seal(const uint8_t *key, const uint8_t *clear, size_t len, uint8_t *out)
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int n, ok;

	if (!c)
		return -ENOMEM;
	ok = RAND_bytes(out, NONCE_BYTES) == 1 &&
	     EVP_EncryptInit_ex(c, EVP_aes_128_gcm(), NULL, key, out) == 1 &&
	     EVP_EncryptUpdate(c, out + NONCE_BYTES, &n, clear, (int)len) == 1 &&
	     EVP_EncryptFinal_ex(c, out + NONCE_BYTES + n, &n) == 1 &&
	     EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, out + NONCE_BYTES + len) == 1;
	EVP_CIPHER_CTX_free(c);
	return ok ? 0 : -EIO;
}

static int unseal(const uint8_t *key, uint8_t *in, size_t len, uint8_t *out)
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	size_t body = len - NONCE_BYTES - TAG_BYTES;
	int n, ok;

	if (!c)
		return -ENOMEM;
	ok = EVP_DecryptInit_ex(c, EVP_aes_128_gcm(), NULL, key, in) == 1 &&
	     EVP_DecryptUpdate(c, out, &n, in + NONCE_BYTES, (int)body) == 1 &&
	     EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, in + NONCE_BYTES + body) ==
		     1 &&
	     EVP_DecryptFinal_ex(c, out + n, &n) == 1;
	EVP_CIPHER_CTX_free(c);
	return ok ? 0 : -EKEYREJECTED;
}

int cfs_secret_seal(const char *uuid, const char *clear, char **ret)
{
	size_t len = strlen(clear);
	size_t sealed_len = NONCE_BYTES + len + TAG_BYTES;
	uint8_t key[KEY_BYTES];
	uint8_t *sealed = malloc(sealed_len);
	char *text = malloc(4 * CFS_DIV_UP(sealed_len, 3) + 1);
	int rc = sealed && text ? make_key(uuid, key) : -ENOMEM;

	if (!rc)
		rc = seal(key, (const uint8_t *)clear, len, sealed);
	if (!rc) {
		EVP_EncodeBlock((unsigned char *)text, sealed, (int)sealed_len);
		*ret = text;
		text = NULL;
	}
	OPENSSL_cleanse(key, sizeof(key));
	free(text);
	free(sealed);
	return rc;
}

static int decode_base64(const char *text, uint8_t **ret, size_t *ret_len)
{
	size_t len = strlen(text);
	uint8_t *raw;
	int n;

	if (len == 0 || len % 4)
		return -EKEYREJECTED;
	raw = malloc(len);
	if (!raw)
		return -ENOMEM;
	n = EVP_DecodeBlock(raw, (const unsigned char *)text, (int)len);
	if (n < 0) {
		free(raw);
		return -EKEYREJECTED;
	}
	/* EVP_DecodeBlock counts the padding as bytes. */
	n -= (text[len - 1] == '=') + (text[len - 2] == '=');
	*ret = raw;
	*ret_len = (size_t)n;
	return 0;
}

int cfs_secret_open(const char *uuid, const char *sealed, char **ret)
{
	uint8_t key[KEY_BYTES];
	cfs_auto_free uint8_t *raw = NULL;
	cfs_auto_free char *clear = NULL;
	size_t len;
	int rc = decode_base64(sealed, &raw, &len);

	if (rc)
		return rc;
	if (len < NONCE_BYTES + TAG_BYTES)
		return -EKEYREJECTED;
	clear = calloc(1, len - NONCE_BYTES - TAG_BYTES + 1);
	rc = clear ? make_key(uuid, key) : -ENOMEM;
	if (!rc)
		rc = unseal(key, raw, len, (uint8_t *)clear);
	if (!rc) {
		*ret = clear;
		clear = NULL;
	}
	OPENSSL_cleanse(key, sizeof(key));
	return rc;
}
