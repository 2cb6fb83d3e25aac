/* SPDX-License-Identifier: Apache-2.0 */
/* Objects in a bucket of an S3-compatible service, by libcurl. */
#include "s3.h"

#include <errno.h>
#include <inttypes.h>
#include <isa-l.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/cleanup.h"

#define DEFAULT_CONNECTIONS 64
#define DEFAULT_SILENCE_MS  15000
#define MD5_LEN		    16

/* What was got is the range that was asked for, as far as the object has it. */
static int check_range(const struct cfs_s3_response *resp, uint64_t off, size_t asked)
{
	uint64_t n = resp->range_last - resp->range_first + 1;

	if (resp->status == 200)
		return 0;
	if (resp->status != 206 || !resp->has_range || resp->range_first != off || n > asked)
		return cfs_s3_fail(true, -EIO, "%u is not the answer to a range", resp->status);
	if (resp->received != n || (n < asked && resp->range_last + 1 != resp->range_total))
		return cfs_s3_fail(true, -EIO, "%" PRIu64 " bytes came, %" PRIu64 " of %zu asked",
				   resp->received, n, asked);
	return 0;
}

/* Whole objects carry a checksum, if they were stored with one. */
static int check_crc(const struct cfs_s3 *s, const struct cfs_s3_response *resp, uint64_t off)
{
	uint64_t total = resp->has_range ? resp->range_total : resp->content_length;

	if (!s->endpoint.checksum || !resp->has_crc || off || resp->received != total)
		return 0;
	if (~resp->received_crc != resp->crc)
		return cfs_s3_fail(true, -EIO, "checksum of the object is %u, not %u",
				   ~resp->received_crc, resp->crc);
	return 0;
}

static ssize_t s3_get(struct cfs_object_store *o, const char *key, uint64_t off,
		      const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	size_t asked = cfs_iov_len(dst, n_dst);
	struct cfs_s3_response resp;
	char range[64];
	struct cfs_s3_call call = {
		.method = "GET",
		.key = key,
		.range = range,
		.dst = dst,
		.n_dst = n_dst,
		.dst_off = off,
	};
	int r;

	if (!asked)
		return 0;
	snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, off, off + asked - 1);
	r = cfs_s3_call(s, &call, &resp, deadline);
	if (r == -ERANGE)
		return 0;
	if (r == 0)
		r = check_range(&resp, off, asked);
	if (r == 0)
		r = check_crc(s, &resp, off);
	return r < 0 ? r : (ssize_t)resp.received;
}

static uint32_t crc_of(const struct iovec *iov, int n)
{
	uint32_t crc = ~0u;
	int i;

	for (i = 0; i < n; i++)
		crc = crc32_iscsi(iov[i].iov_base, (int)iov[i].iov_len, crc);
	return ~crc;
}

/* An ETag that looks like an MD5 and is another one. */
static bool etag_differs(const char *etag, const struct iovec *iov, int n)
{
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	char hex[2 * MD5_LEN + 1];
	uint8_t hash[MD5_LEN];
	bool ok;
	int i;

	ok = md && EVP_DigestInit_ex(md, EVP_md5(), NULL) > 0;
	for (i = 0; i < n && ok; i++)
		ok = EVP_DigestUpdate(md, iov[i].iov_base, iov[i].iov_len) > 0;
	ok = ok && EVP_DigestFinal_ex(md, hash, NULL) > 0;
	EVP_MD_CTX_free(md);
	if (!ok || strlen(etag) != 2 * MD5_LEN ||
	    strspn(etag, "0123456789abcdefABCDEF") != 2 * MD5_LEN)
		return false;
	for (i = 0; i < MD5_LEN; i++)
		snprintf(hex + 2 * i, 3, "%02x", hash[i]);
	return strcasecmp(etag, hex) != 0;
}

static int s3_put(struct cfs_object_store *o, const char *key, const struct iovec *src, int n_src,
		  cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	struct cfs_s3_response resp;
	char crc[16];
	struct cfs_s3_call call = {
		.method = "PUT",
		.key = key,
		.src = src,
		.n_src = n_src,
	};
	int r;

	if (s->endpoint.checksum) {
		snprintf(crc, sizeof(crc), "%u", crc_of(src, n_src));
		call.meta_crc32c = crc;
	}
	r = cfs_s3_call(s, &call, &resp, deadline);
	/* To this -ENOENT there is no meaning. */
	if (r == -ENOENT)
		return cfs_s3_fail(false, -EIO, "a put was answered with 404");
	if (r == 0 && s->endpoint.verify_etag && etag_differs(resp.etag, src, n_src))
		r = cfs_s3_fail(true, -EIO, "what was stored has another MD5");
	return r;
}

int cfs_s3_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	struct cfs_s3_call call = {.method = "DELETE", .key = key};
	struct cfs_s3_response resp;
	int r;

	r = cfs_s3_call((struct cfs_s3 *)o, &call, &resp, deadline);
	return r == -ENOENT ? 0 : r;
}

static int s3_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		   cfs_deadline_t deadline)
{
	struct cfs_s3_call call = {.method = "HEAD", .key = key};
	struct cfs_s3_response resp;
	char byte;
	ssize_t n;
	int r;

	r = cfs_s3_call((struct cfs_s3 *)o, &call, &resp, deadline);
	/* What is missing, the object or the bucket or who asks, only a body tells. */
	if (r == -ENOENT) {
		n = s3_get(o, key, 0, &(struct iovec){.iov_base = &byte, .iov_len = 1}, 1,
			   deadline);
		return n < 0 ? (int)n : cfs_s3_fail(true, -EIO, "it is missing, and is there");
	}
	if (r == 0 && !resp.has_length)
		r = cfs_s3_fail(true, -EIO, "no length in the answer");
	if (r < 0)
		return r;
	*ret = (struct cfs_object_info){
		.key = key,
		.size = resp.content_length,
		.mtime_s = resp.last_modified < 0 ? 0 : resp.last_modified,
	};
	return 0;
}

static int make_bucket(struct cfs_s3 *s, cfs_deadline_t deadline)
{
	cfs_auto_free char *body = NULL;
	struct cfs_s3_response resp;
	struct iovec src;
	struct cfs_s3_call call = {.method = "PUT", .src = &src};
	char code[64];
	int r;

	if (strcmp(s->endpoint.region, "us-east-1") != 0) {
		if (asprintf(&body,
			     "<CreateBucketConfiguration "
			     "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
			     "<LocationConstraint>%s</LocationConstraint>"
			     "</CreateBucketConfiguration>",
			     s->endpoint.region) < 0)
			return cfs_s3_fail(false, -ENOMEM, "out of memory");
		src = (struct iovec){.iov_base = body, .iov_len = strlen(body)};
		call.n_src = 1;
	}
	r = cfs_s3_call(s, &call, &resp, deadline);
	if (r < 0) {
		cfs_s3_xml_value(resp.error, "Code", code, sizeof(code));
		if (strcmp(code, "BucketAlreadyOwnedByYou") == 0)
			r = 0;
	}
	return r;
}

/* Who may not look at the bucket may still use it: the first put will tell. */
static int s3_create(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	struct cfs_s3_call call = {.method = "HEAD"};
	struct cfs_s3_response resp;
	int r;

	r = cfs_s3_call(s, &call, &resp, deadline);
	if (r == -ENOENT || r == -ENODEV)
		r = make_bucket(s, deadline);
	return r == -EACCES && resp.status == 403 ? 0 : r;
}

static void s3_close(struct cfs_object_store *o)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;

	cfs_s3_http_close(s->http);
	cfs_s3_signer_fini(&s->signer);
	cfs_s3_credentials_close(s->credentials);
	cfs_s3_endpoint_free(&s->endpoint);
	free(s);
}

static const struct cfs_object_ops s3_ops = {
	.name = "s3",
	.get = s3_get,
	.put = s3_put,
	.del = cfs_s3_del,
	.head = s3_head,
	.list = cfs_s3_list,
	.create = s3_create,
	.close = s3_close,
	.del_many = cfs_s3_del_many,
	.failure = cfs_s3_failure,
};

int cfs_object_open_s3(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		       char err[CFS_OBJECT_ERRLEN])
{
	struct cfs_s3_http_conf http = {
		.small_buffers = conf->small_buffers,
		.max_connections =
			conf->max_connections ? conf->max_connections : DEFAULT_CONNECTIONS,
		.silence_ms = conf->silence_ms ? conf->silence_ms : DEFAULT_SILENCE_MS,
	};
	struct cfs_s3 *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->base.ops = &s3_ops;
	cfs_s3_signer_init(&s->signer);
	r = cfs_s3_endpoint_parse(conf->storage, conf->bucket ? conf->bucket : "", &s->endpoint,
				  err);
	if (r == 0)
		r = cfs_s3_credentials_open(conf, &s->credentials);
	if (r == 0) {
		http.ca_certs = s->endpoint.ca_certs;
		http.ssl_cert = s->endpoint.ssl_cert;
		http.ssl_key = s->endpoint.ssl_key;
		http.insecure = s->endpoint.insecure;
		r = cfs_s3_http_open(&http, &s->http, err);
	}
	if (r < 0) {
		s3_close(&s->base);
		return r;
	}
	*ret = &s->base;
	return 0;
}
