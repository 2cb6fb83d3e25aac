/* SPDX-License-Identifier: Apache-2.0 */
/* Objects in a bucket of an S3-compatible service. */
#include "s3.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"

#define DEFAULT_CONNECTIONS 64
#define DEFAULT_SILENCE_MS  15000

/* Checks that the received range is the requested one, cut at the object's end. */
static int check_range(const struct cfs_http_response *resp, uint64_t off, size_t asked)
{
	uint64_t n = resp->range_last - resp->range_first + 1;

	if (resp->status == 200)
		return 0;
	if (resp->status != 206 || !resp->has_range || resp->range_first != off || n > asked)
		return cfs_http_fail(true, -EIO, "%u is not the answer to a range", resp->status);
	if (resp->received != n || (n < asked && resp->range_last + 1 != resp->range_total))
		return cfs_http_fail(true, -EIO, "%" PRIu64 " bytes came, %" PRIu64 " of %zu asked",
				     resp->received, n, asked);
	return 0;
}

static int get_once(struct cfs_s3 *s, const struct cfs_s3_call *call, size_t asked,
		    struct cfs_s3_response *ret, cfs_deadline_t deadline)
{
	int r = cfs_s3_call(s, call, ret, deadline);

	return r < 0 ? r : check_range(&ret->http, call->dst_off, asked);
}

/*
 * For a body that neither the object's checksums nor TLS protect: compares it with the ETag if that is
 * an MD5; otherwise fetches the object again and accepts two equal copies.
 */
static int check_again(struct cfs_s3 *s, const struct cfs_s3_call *call, size_t asked,
		       struct cfs_s3_response *resp, cfs_deadline_t deadline)
{
	uint64_t len = resp->http.received;
	uint32_t crc;
	int r;

	if (cfs_s3_judge_etag(resp->http.etag, call->dst, call->n_dst, len) == CFS_S3_COVERED)
		return 0;
	crc = cfs_s3_crc(call->dst, call->n_dst, len);
	r = get_once(s, call, asked, resp, deadline);
	if (r < 0)
		return r;
	if (resp->http.received != len || cfs_s3_crc(call->dst, call->n_dst, len) != crc)
		return cfs_http_damaged(s->http,
					"two answers differ, and no checksum says which is right");
	return 0;
}

static ssize_t s3_get(struct cfs_object_store *o, const char *key, uint64_t off,
		      const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	size_t asked = cfs_iov_len(dst, n_dst);
	struct cfs_s3_response resp;
	enum cfs_s3_verdict verdict;
	char range[64];
	struct cfs_s3_call call = {
		.method = "GET",
		.key = key,
		.range = range,
		.dst = dst,
		.n_dst = n_dst,
		.dst_off = off,
	};
	uint64_t total;
	int r;

	if (!asked)
		return 0;
	snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, off, off + asked - 1);
	r = get_once(s, &call, asked, &resp, deadline);
	if (r == -ERANGE)
		return 0;
	if (r < 0)
		return r;
	total = resp.http.has_range ? resp.http.range_total : resp.http.content_length;
	verdict = cfs_s3_judge_body(key, &resp, dst, n_dst, off, total);
	if (verdict == CFS_S3_DAMAGED)
		r = cfs_http_damaged(s->http,
				     "bytes %" PRIu64 " to %" PRIu64
				     " do not fit the object's checksum",
				     off, off + resp.http.received);
	else if (verdict == CFS_S3_UNCOVERED && !resp.http.received &&
		 cfs_s3_judge_etag(resp.http.etag, dst, n_dst, 0) != CFS_S3_COVERED)
		r = cfs_http_fail(true, -EIO, "the answer is empty");
	else if (verdict == CFS_S3_UNCOVERED && !s->endpoint.tls)
		r = off == 0 && resp.http.received == total
			    ? check_again(s, &call, asked, &resp, deadline)
			    : -CFS_OBJECT_EPART;
	return r < 0 ? r : (ssize_t)resp.http.received;
}

/* hash: sends MD5 and SHA-256 as well, which every server verifies. */
static int put_once(struct cfs_s3 *s, struct cfs_s3_call *call, bool hash,
		    struct cfs_s3_response *resp, cfs_deadline_t deadline)
{
	const char *sent = call->headers[CFS_S3_CHECKSUM];
	int r;

	call->hash_body = hash;
	r = cfs_s3_call(s, call, resp, deadline);
	/* A put has no missing object. */
	if (r == -ENOENT)
		return cfs_http_fail(false, -EIO, "a put was answered with 404");
	if (r == 0 && !resp->http.etag[0] && !resp->checksum[0])
		return cfs_http_fail(true, -EIO, "the answer does not confirm the checksum");
	if (r == 0 && sent && resp->checksum[0] && strcmp(resp->checksum, sent) != 0)
		return cfs_http_damaged(s->http, "what was stored has checksum %s, not %s",
					resp->checksum, sent);
	if (r == 0 && s->endpoint.verify_etag &&
	    cfs_s3_judge_etag(resp->http.etag, call->src, call->n_src, UINT64_MAX) ==
		    CFS_S3_DAMAGED)
		return cfs_http_damaged(s->http, "what was stored has another MD5");
	return r;
}

/*
 * A server that has verified a CRC32C returns it. A server without CRC32C ignores it: without TLS the
 * object is then stored again with MD5 and SHA-256, which cost more, but every server verifies them.
 */
static int put(struct cfs_s3 *s, const struct cfs_s3_classes *classes, const char *key,
	       const struct iovec *src, int n_src, unsigned tier, cfs_deadline_t deadline)
{
	char crc_text[16], crc_base64[CFS_S3_CRC_BASE64], table[CFS_S3_TABLE_MAX];
	bool hash = !s->endpoint.tls && (!s->endpoint.checksum || atomic_load(&s->unconfirmed));
	struct cfs_s3_response resp;
	struct cfs_s3_call call = {
		.method = "PUT",
		.key = key,
		.src = src,
		.n_src = n_src,
	};
	bool fresh = tier & CFS_OBJECT_NEW;
	uint32_t crc;
	int r;

	tier &= ~CFS_OBJECT_NEW;
	call.headers[CFS_S3_IF_NONE_MATCH] = fresh ? "*" : NULL;
	/* An undefined tier is the volume's own class. */
	if (tier >= CFS_OBJECT_TIERS || (!classes->storage[tier] && !classes->tags[tier]))
		tier = 0;
	call.headers[CFS_S3_STORAGE_CLASS] = classes->storage[tier];
	call.headers[CFS_S3_TAGGING] = classes->tags[tier];
	if (s->endpoint.checksum) {
		crc = cfs_s3_crc(src, n_src, UINT64_MAX);
		snprintf(crc_text, sizeof(crc_text), "%u", crc);
		cfs_s3_base64_crc(crc, crc_base64);
		cfs_s3_table_make(key, src, n_src, table);
		call.headers[CFS_S3_META_CRC32C] = crc_text;
		call.headers[CFS_S3_META_TABLE] = table;
		call.headers[CFS_S3_CHECKSUM] = crc_base64;
	}
	r = put_once(s, &call, hash, &resp, deadline);
	if (r < 0 || resp.checksum[0] || hash || s->endpoint.tls)
		return r;
	if (!atomic_exchange(&s->unconfirmed, true))
		cfs_info("object store does not verify CRC32C, uploads carry MD5 and SHA-256: "
			 "url=%s%s",
			 s->endpoint.origin, s->endpoint.path);
	/* The first put has created the object, so the condition would fail. */
	call.headers[CFS_S3_IF_NONE_MATCH] = NULL;
	return put_once(s, &call, true, &resp, deadline);
}

static struct cfs_s3_classes *classes_get(struct cfs_s3 *s)
{
	CFS_LOCK_GUARD(&s->classes_lock);

	s->classes->users++;
	return s->classes;
}

static void classes_free(struct cfs_s3_classes *c)
{
	size_t i;

	for (i = 0; c && i < CFS_OBJECT_TIERS; i++) {
		free(c->storage[i]);
		free(c->tags[i]);
	}
	free(c);
}

static void classes_put(struct cfs_s3 *s, struct cfs_s3_classes *c)
{
	bool last;

	pthread_mutex_lock(&s->classes_lock);
	last = --c->users == 0;
	pthread_mutex_unlock(&s->classes_lock);
	if (last)
		classes_free(c);
}

static int s3_put(struct cfs_object_store *o, const char *key, const struct iovec *src, int n_src,
		  unsigned tier, cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	struct cfs_s3_classes *c = classes_get(s);
	int r = put(s, c, key, src, n_src, tier, deadline);

	classes_put(s, c);
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
	/* A response to HEAD has no body, which would say what is missing: object or bucket. */
	if (r == -ENOENT) {
		n = s3_get(o, key, 0, &(struct iovec){.iov_base = &byte, .iov_len = 1}, 1,
			   deadline);
		if (n >= 0 || n == -CFS_OBJECT_EPART)
			n = cfs_http_fail(true, -EIO,
					  "HEAD says it is missing, GET that it exists");
		return (int)n;
	}
	if (r == 0 && !resp.http.has_length)
		r = cfs_http_fail(true, -EIO, "no length in the answer");
	if (r < 0)
		return r;
	*ret = (struct cfs_object_info){
		.key = key,
		.size = resp.http.content_length,
		.mtime_s = resp.http.last_modified < 0 ? 0 : resp.http.last_modified,
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
			return cfs_http_fail(false, -ENOMEM, "out of memory");
		src = (struct iovec){.iov_base = body, .iov_len = strlen(body)};
		call.n_src = 1;
		call.hash_body = true;
	}
	r = cfs_s3_call(s, &call, &resp, deadline);
	if (r < 0) {
		cfs_s3_xml_value(resp.http.error, "Code", code, sizeof(code));
		if (strcmp(code, "BucketAlreadyOwnedByYou") == 0)
			r = 0;
	}
	return r;
}

/* Credentials without access to HEAD may still store objects; the first put shows it. */
static int s3_create(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	struct cfs_s3_call call = {.method = "HEAD"};
	struct cfs_s3_response resp;
	int r;

	r = cfs_s3_call(s, &call, &resp, deadline);
	if (r == -ENOENT || r == -ENODEV)
		r = make_bucket(s, deadline);
	return r == -EACCES && resp.http.status == 403 ? 0 : r;
}

static void s3_close(struct cfs_object_store *o)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;

	classes_free(s->classes);
	pthread_mutex_destroy(&s->classes_lock);
	cfs_http_close(s->http);
	cfs_s3_signer_fini(&s->signer);
	cfs_s3_credentials_close(s->credentials);
	cfs_s3_endpoint_free(&s->endpoint);
	free(s);
}

/*
 * Encodes a tag as a query: "k=a b" becomes "k=a%20b". JuiceFS ignores a tag that is not one key and
 * one value; cachefs does the same, as both may use the volume.
 */
static int encode_tag(const char *tag, char **ret)
{
	const char *value = strchr(tag, '=');
	char *out, *p;

	if (!value || value == tag || !value[1] || strchr(value + 1, '=')) {
		cfs_warn("objects get no tag, as this is not one KEY=VALUE: tag=%.200s", tag);
		return 0;
	}
	out = malloc(3 * strlen(tag) + 1);
	if (!out)
		return -ENOMEM;
	for (p = out; *tag; tag++) {
		const char one[2] = {*tag, '\0'};

		if (tag == value) {
			*p++ = '=';
		} else {
			cfs_s3_encode(one, false, p);
			p += strlen(p);
		}
	}
	*p = '\0';
	*ret = out;
	return 0;
}

static int copy_class(const struct cfs_object_class *t, char **ret_storage, char **ret_tag)
{
	/* So JuiceFS's first versions with tiers wrote none. */
	if (t->storage_class && *t->storage_class && strcmp(t->storage_class, "default") != 0) {
		*ret_storage = strdup(t->storage_class);
		if (!*ret_storage)
			return -ENOMEM;
	}
	return t->tag && *t->tag ? encode_tag(t->tag, ret_tag) : 0;
}

static int adopt_classes(struct cfs_s3 *s, const struct cfs_object_conf *conf)
{
	struct cfs_s3_classes *c = calloc(1, sizeof(*c)), *old;
	int r = c ? 0 : -ENOMEM;
	size_t i;

	for (i = 0; i < CFS_OBJECT_TIERS && r == 0; i++)
		r = copy_class(&conf->tiers[i], &c->storage[i], &c->tags[i]);
	if (r < 0) {
		classes_free(c);
		return r;
	}
	c->users = 1;
	pthread_mutex_lock(&s->classes_lock);
	old = s->classes;
	s->classes = c;
	pthread_mutex_unlock(&s->classes_lock);
	if (old)
		classes_put(s, old);
	return 0;
}

static int s3_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	int r = adopt_classes(s, conf);

	return r < 0 ? r : cfs_s3_credentials_adopt(s->credentials, conf);
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
	.failure = cfs_http_failure,
	.adopt = s3_adopt,
};

int cfs_object_open_s3(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		       char err[CFS_OBJECT_ERRLEN])
{
	struct cfs_http_conf http = {
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
	pthread_mutex_init(&s->classes_lock, NULL);
	cfs_s3_signer_init(&s->signer);
	r = cfs_s3_endpoint_parse(conf->storage, conf->bucket ? conf->bucket : "", &s->endpoint,
				  err);
	if (r == 0)
		r = adopt_classes(s, conf);
	if (r == 0)
		r = cfs_s3_credentials_open(conf, &s->credentials);
	if (r == 0) {
		http.ca_certs = s->endpoint.ca_certs;
		http.ssl_cert = s->endpoint.ssl_cert;
		http.ssl_key = s->endpoint.ssl_key;
		http.insecure = s->endpoint.insecure;
		r = cfs_http_open(&http, &s->http, err);
	}
	if (r < 0) {
		s3_close(&s->base);
		return r;
	}
	*ret = &s->base;
	return 0;
}
