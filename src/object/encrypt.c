/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encrypted objects (volume-format section 7):
 *
 *	u16 K | u8 N | K bytes: data key wrapped by RSA-OAEP | N bytes: nonce | ciphertext | tag
 *
 * Each put has its own data key and nonce. A read fetches the ciphertext into the caller's memory and
 * decrypts it in place; if the tag does not match, the read fails.
 */
#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "filter.h"

#define KEY_LEN	    32
#define NONCE_LEN   12
#define TAG_LEN	    16
#define WRAPPED_MAX 2048 /* RSA-16384, the most OpenSSL does */
#define PREFIX_LEN  3	 /* K and N */
#define HEADER_MAX  (PREFIX_LEN + WRAPPED_MAX + NONCE_LEN)

static char oaep_label[] = "keys";
static char oaep_digest[] = "SHA256";

static const struct {
	const char *name, *cipher;
} algos[] = {
	{"aes256gcm-rsa", "AES-256-GCM"},
	{"chacha20-rsa", "ChaCha20-Poly1305"},
};

struct encrypt {
	struct cfs_filter f; /* first */
	EVP_PKEY *rsa;
	EVP_CIPHER *cipher;
	size_t wrapped_len, header_len;
};

/* A context for one wrapping or unwrapping; NULL without memory. */
static EVP_PKEY_CTX *oaep_context(const struct encrypt *e,
				  int (*init)(EVP_PKEY_CTX *, const OSSL_PARAM[]))
{
	EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_pkey(NULL, e->rsa, NULL);
	char pad[] = OSSL_PKEY_RSA_PAD_MODE_OAEP;
	OSSL_PARAM params[] = {
		OSSL_PARAM_utf8_string(OSSL_ASYM_CIPHER_PARAM_PAD_MODE, pad, sizeof(pad) - 1),
		OSSL_PARAM_utf8_string(OSSL_ASYM_CIPHER_PARAM_OAEP_DIGEST, oaep_digest,
				       sizeof(oaep_digest) - 1),
		OSSL_PARAM_utf8_string(OSSL_ASYM_CIPHER_PARAM_MGF1_DIGEST, oaep_digest,
				       sizeof(oaep_digest) - 1),
		OSSL_PARAM_octet_string(OSSL_ASYM_CIPHER_PARAM_OAEP_LABEL, oaep_label,
					sizeof(oaep_label) - 1),
		OSSL_PARAM_END,
	};

	if (ctx && init(ctx, params) <= 0) {
		EVP_PKEY_CTX_free(ctx);
		return NULL;
	}
	return ctx;
}

static int wrap_key(const struct encrypt *e, const uint8_t key[KEY_LEN], uint8_t *out)
{
	EVP_PKEY_CTX *ctx = oaep_context(e, EVP_PKEY_encrypt_init_ex);
	size_t len = e->wrapped_len;
	bool ok;

	ok = ctx && EVP_PKEY_encrypt(ctx, out, &len, key, KEY_LEN) > 0 && len == e->wrapped_len;
	EVP_PKEY_CTX_free(ctx);
	return ok ? 0 : -EIO;
}

static int unwrap_key(const struct encrypt *e, const uint8_t *wrapped, uint8_t key[KEY_LEN])
{
	EVP_PKEY_CTX *ctx = oaep_context(e, EVP_PKEY_decrypt_init_ex);
	uint8_t plain[WRAPPED_MAX];
	size_t len = sizeof(plain);
	bool ok;

	ok = ctx && EVP_PKEY_decrypt(ctx, plain, &len, wrapped, e->wrapped_len) > 0 &&
	     len == KEY_LEN;
	if (ok)
		memcpy(key, plain, KEY_LEN);
	OPENSSL_cleanse(plain, sizeof(plain));
	EVP_PKEY_CTX_free(ctx);
	return ok ? 0 : -EBADMSG;
}

/* Checks the header of an object and makes a context that decrypts what follows. */
static int begin_decrypt(const struct encrypt *e, const uint8_t *header, EVP_CIPHER_CTX **ret)
{
	uint8_t key[KEY_LEN];
	EVP_CIPHER_CTX *ctx;
	int r;

	if (cfs_get_be16(header) != e->wrapped_len || header[2] != NONCE_LEN)
		return -EBADMSG;
	r = unwrap_key(e, header + PREFIX_LEN, key);
	if (r < 0)
		return r;
	ctx = EVP_CIPHER_CTX_new();
	if (!ctx) {
		r = -ENOMEM;
	} else if (EVP_DecryptInit_ex2(ctx, e->cipher, key, header + PREFIX_LEN + e->wrapped_len,
				       NULL) <= 0) {
		EVP_CIPHER_CTX_free(ctx);
		r = -EIO;
	} else {
		*ret = ctx;
	}
	OPENSSL_cleanse(key, sizeof(key));
	return r;
}

/* Decrypts the first `len` bytes of the pieces in place; the tag follows them. */
static int decrypt_pieces(const struct encrypt *e, const uint8_t *header, const struct iovec *iov,
			  size_t len)
{
	uint8_t tag[TAG_LEN];
	size_t tag_have = 0, at, n;
	EVP_CIPHER_CTX *ctx;
	int out, r;

	r = begin_decrypt(e, header, &ctx);
	if (r < 0)
		return r;
	for (; r == 0 && tag_have < TAG_LEN; iov++) {
		uint8_t *p = iov->iov_base;

		at = CFS_MIN(iov->iov_len, len);
		if (at && EVP_DecryptUpdate(ctx, p, &out, p, (int)at) <= 0)
			r = -EIO;
		len -= at;
		n = CFS_MIN(iov->iov_len - at, TAG_LEN - tag_have);
		memcpy(tag + tag_have, p + at, n);
		tag_have += n;
	}
	if (r == 0 && (EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG_LEN, tag) <= 0 ||
		       EVP_DecryptFinal_ex(ctx, tag, &out) <= 0))
		r = -EBADMSG;
	EVP_CIPHER_CTX_free(ctx);
	ERR_clear_error();
	return r;
}

/*
 * The whole object into dst. -EFBIG when it is longer than that: its tag would not be read, so its
 * bytes could not be verified.
 */
static ssize_t get_whole(struct encrypt *e, const char *key, const struct iovec *dst, int n_dst,
			 cfs_deadline_t deadline)
{
	struct cfs_object_store *inner = e->f.inner;
	size_t want = cfs_iov_len(dst, n_dst);
	uint8_t header[HEADER_MAX], tail[TAG_LEN + 1];
	struct iovec *iov;
	ssize_t n;
	int r;

	iov = calloc((size_t)n_dst + 2, sizeof(*iov));
	if (!iov)
		return -ENOMEM;
	iov[0] = (struct iovec){.iov_base = header, .iov_len = e->header_len};
	memcpy(iov + 1, dst, (size_t)n_dst * sizeof(*iov));
	iov[n_dst + 1] = (struct iovec){.iov_base = tail, .iov_len = sizeof(tail)};

	n = inner->ops->get(inner, key, 0, iov, n_dst + 2, deadline);
	if (n == -CFS_OBJECT_EPART)
		n = -EFBIG;
	if (n >= 0 && (size_t)n < e->header_len + TAG_LEN)
		n = -EBADMSG;
	if (n >= 0) {
		n -= (ssize_t)(e->header_len + TAG_LEN);
		r = (size_t)n > want ? -EFBIG : decrypt_pieces(e, header, iov + 1, (size_t)n);
		if (r < 0)
			n = r;
	}
	free(iov);
	return n;
}

/* Reads a part of an object: decrypts a copy of all of it. */
static ssize_t get_part(struct encrypt *e, const char *key, uint64_t off, const struct iovec *dst,
			int n_dst, cfs_deadline_t deadline)
{
	struct cfs_object_store *inner = e->f.inner;
	struct cfs_scratch_buf *buf;
	struct cfs_object_info info;
	struct iovec whole;
	ssize_t n;

	n = inner->ops->head(inner, key, &info, deadline);
	if (n < 0)
		return n;
	n = cfs_scratch_get(&e->f.scratch, info.size, deadline, &buf);
	if (n < 0)
		return n;
	whole = (struct iovec){.iov_base = buf->data, .iov_len = info.size};
	n = get_whole(e, key, &whole, 1, deadline);
	if (n >= 0)
		n = off < (uint64_t)n
			    ? (ssize_t)cfs_iov_scatter(dst, n_dst, buf->data + off, (size_t)n - off)
			    : 0;
	cfs_scratch_put(&e->f.scratch, buf);
	return n;
}

static ssize_t encrypt_get(struct cfs_object_store *o, const char *key, uint64_t off,
			   const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct encrypt *e = (struct encrypt *)o;
	ssize_t n = -EFBIG;

	if (off == 0)
		n = get_whole(e, key, dst, n_dst, deadline);
	return n == -EFBIG ? get_part(e, key, off, dst, n_dst, deadline) : n;
}

/* Writes the object of src to out, header_len + TAG_LEN bytes longer. */
static int encrypt_pieces(const struct encrypt *e, const struct iovec *src, int n_src, uint8_t *out)
{
	uint8_t key[KEY_LEN], *nonce = out + PREFIX_LEN + e->wrapped_len;
	EVP_CIPHER_CTX *ctx = NULL;
	int i, n, r;

	cfs_put_be16(out, (uint16_t)e->wrapped_len);
	out[2] = NONCE_LEN;
	r = RAND_bytes(key, KEY_LEN) > 0 && RAND_bytes(nonce, NONCE_LEN) > 0 ? 0 : -EIO;
	if (r == 0)
		r = wrap_key(e, key, out + PREFIX_LEN);
	if (r < 0)
		goto out;
	ctx = EVP_CIPHER_CTX_new();
	if (!ctx) {
		r = -ENOMEM;
		goto out;
	}
	r = EVP_EncryptInit_ex2(ctx, e->cipher, key, nonce, NULL) > 0 ? 0 : -EIO;
	out += e->header_len;
	for (i = 0; r == 0 && i < n_src; i++) {
		if (src[i].iov_len &&
		    EVP_EncryptUpdate(ctx, out, &n, src[i].iov_base, (int)src[i].iov_len) <= 0)
			r = -EIO;
		out += src[i].iov_len;
	}
	if (r == 0 && (EVP_EncryptFinal_ex(ctx, out, &n) <= 0 ||
		       EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG_LEN, out) <= 0))
		r = -EIO;
out:
	EVP_CIPHER_CTX_free(ctx);
	OPENSSL_cleanse(key, sizeof(key));
	ERR_clear_error();
	return r;
}

static int encrypt_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		       int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct encrypt *e = (struct encrypt *)o;
	struct cfs_object_store *inner = e->f.inner;
	size_t len = e->header_len + cfs_iov_len(src, n_src) + TAG_LEN;
	struct cfs_scratch_buf *buf;
	struct iovec sealed;
	int r;

	r = cfs_scratch_get(&e->f.scratch, len, deadline, &buf);
	if (r < 0)
		return r;
	r = encrypt_pieces(e, src, n_src, buf->data);
	if (r == 0) {
		sealed = (struct iovec){.iov_base = buf->data, .iov_len = len};
		r = inner->ops->put(inner, key, &sealed, 1, tier, deadline);
	}
	cfs_scratch_put(&e->f.scratch, buf);
	return r;
}

static void free_encrypt(struct encrypt *e)
{
	EVP_PKEY_free(e->rsa);
	EVP_CIPHER_free(e->cipher);
	cfs_scratch_fini(&e->f.scratch);
	free(e);
}

static void encrypt_close(struct cfs_object_store *o)
{
	struct encrypt *e = (struct encrypt *)o;

	cfs_object_close(e->f.inner);
	free_encrypt(e);
}

static const struct cfs_object_ops encrypt_ops = {
	.name = "encrypted",
	.whole = true,
	.get = encrypt_get,
	.put = encrypt_put,
	.del = cfs_filter_del,
	.head = cfs_filter_head,
	.list = cfs_filter_list,
	.sync = cfs_filter_sync,
	.create = cfs_filter_create,
	.close = encrypt_close,
	.del_many = cfs_filter_del_many,
	.adopt = cfs_filter_adopt,
};

/* pem_password_cb; *arg (bool) tells that it was asked for. */
static int passphrase(char *buf, int size, int rwflag, void *arg)
{
	const char *text = getenv("JFS_RSA_PASSPHRASE");
	bool *asked = arg;

	*asked = true;
	if (!text || strlen(text) > (size_t)size)
		return -1;
	memcpy(buf, text, strlen(text));
	return (int)strlen(text);
}

static int load_key(const char *pem, EVP_PKEY **ret, char err[CFS_OBJECT_ERRLEN])
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	bool asked = false;
	EVP_PKEY *key;

	if (!bio)
		return -ENOMEM;
	key = PEM_read_bio_PrivateKey(bio, NULL, passphrase, &asked);
	BIO_free(bio);
	ERR_clear_error();
	if (key && EVP_PKEY_is_a(key, "RSA") && EVP_PKEY_get_size(key) <= WRAPPED_MAX) {
		*ret = key;
		return 0;
	}
	if (key)
		snprintf(err, CFS_OBJECT_ERRLEN, "the volume's encryption key is not an RSA key");
	else if (asked && !getenv("JFS_RSA_PASSPHRASE"))
		snprintf(err, CFS_OBJECT_ERRLEN,
			 "the volume's encryption key is itself encrypted: "
			 "set JFS_RSA_PASSPHRASE");
	else if (asked)
		snprintf(err, CFS_OBJECT_ERRLEN,
			 "JFS_RSA_PASSPHRASE does not fit the volume's "
			 "encryption key");
	else
		snprintf(err, CFS_OBJECT_ERRLEN,
			 "the volume's encryption key is not a private key "
			 "in PEM form");
	EVP_PKEY_free(key);
	return -EKEYREJECTED;
}

static int fetch_cipher(const char *algo, EVP_CIPHER **ret, char err[CFS_OBJECT_ERRLEN])
{
	size_t i;

	if (!algo || !algo[0])
		algo = algos[0].name;
	for (i = 0; i < CFS_ARRAY_SIZE(algos); i++) {
		if (strcmp(algos[i].name, algo) == 0) {
			*ret = EVP_CIPHER_fetch(NULL, algos[i].cipher, NULL);
			if (*ret)
				return 0;
		}
	}
	return cfs_fail(
		err, -EOPNOTSUPP,
		"encryption algorithm is not supported: %s (aes256gcm-rsa and chacha20-rsa are)",
		algo);
}

int cfs_object_wrap_encrypt(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			    struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	struct encrypt *e = calloc(1, sizeof(*e));
	int r;

	if (!e)
		return -ENOMEM;
	r = cfs_scratch_init(&e->f.scratch);
	if (r == 0)
		r = fetch_cipher(conf->encrypt_algo, &e->cipher, err);
	if (r == 0)
		r = load_key(conf->encrypt_key, &e->rsa, err);
	if (r < 0) {
		free_encrypt(e);
		return r;
	}
	e->wrapped_len = (size_t)EVP_PKEY_get_size(e->rsa);
	e->header_len = PREFIX_LEN + e->wrapped_len + NONCE_LEN;
	e->f.base.ops = &encrypt_ops;
	e->f.inner = inner;
	*ret = &e->f.base;
	return 0;
}
