/* SPDX-License-Identifier: Apache-2.0 */
/* A signed call to the bucket, and what its answer means. */
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "s3.h"

#define REDIRECT_FIRST 300

void cfs_s3_xml_value(const char *xml, const char *name, char *ret, size_t size)
{
	char tag[64];
	const char *begin, *end;

	ret[0] = '\0';
	snprintf(tag, sizeof(tag), "<%s>", name);
	begin = strstr(xml, tag);
	if (!begin)
		return;
	begin += strlen(tag);
	end = strchr(begin, '<');
	if (end)
		snprintf(ret, size, "%.*s", (int)(end - begin), begin);
}

/* ---- what an answer means ---- */

/* By the code of the error document, if that says more than the status. */
static const struct {
	const char *code;
	int err;
	bool retry;
} codes[] = {
	{"NoSuchKey", -ENOENT, false},
	{"NoSuchVersion", -ENOENT, false},
	{"NoSuchObject", -ENOENT, false},
	{"NoSuchBucket", -ENODEV, false},
	{"AccessDenied", -EACCES, false},
	{"InvalidAccessKeyId", -EACCES, false},
	{"XAdminUserNotFound", -EACCES, false}, /* versitygw's, with status 404 */
	{"SignatureDoesNotMatch", -EACCES, false},
	{"InvalidToken", -EACCES, false},
	{"AuthorizationHeaderMalformed", -EACCES, false},
	{"RequestTimeTooSkewed", -EACCES, false},
	{"ExpiredToken", -EACCES, false},
	{"TokenRefreshRequired", -EACCES, false},
	{"RequestTimeout", -ETIMEDOUT, true},
	{"SlowDown", -EBUSY, true},
	{"Throttling", -EBUSY, true},
	{"RequestThrottled", -EBUSY, true},
	{"TooManyRequests", -EBUSY, true},
	{"OperationAborted", -EBUSY, true},
	{"IncompleteBody", -EIO, true},
	{"InternalError", -EIO, true},
	{"PreconditionFailed", -EEXIST, false},
	{"ConditionalRequestConflict", -EBUSY, true}, /* another put of the key is under way */
	{"KeyTooLongError", -ENAMETOOLONG, false},
	{"EntityTooLarge", -EFBIG, false},
	{"QuotaExceeded", -EDQUOT, false},
	{"XMinioStorageFull", -ENOSPC, false},
};

/* Error codes for a body that arrived damaged. */
static const char *const damage_codes[] = {
	"BadDigest",
	"InvalidDigest",
	"XAmzContentChecksumMismatch",
	"XAmzContentSHA256Mismatch",
};

static bool is_damage(const char *code)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(damage_codes); i++) {
		if (strcmp(damage_codes[i], code) == 0)
			return true;
	}
	return false;
}

static int errno_of_answer(const struct cfs_s3_response *resp, const char *code, bool has_document,
			   bool *ret_retry)
{
	int err = cfs_http_errno(resp->http.status, ret_retry);
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(codes); i++) {
		if (strcmp(codes[i].code, code) == 0) {
			*ret_retry = codes[i].retry || *ret_retry;
			return codes[i].err;
		}
	}
	/*
	 * Only an error document of S3 proves that an object is missing or a request is wrong. A
	 * page of a proxy, or an empty body, does not.
	 */
	if ((resp->http.status == 404 || resp->http.status == 400) && has_document && !*code) {
		*ret_retry = true;
		err = -EIO;
	}
	return err;
}

static void describe_skew(const struct cfs_s3_response *resp, char *text, size_t size)
{
	long skew_s = (long)(cfs_wall_s() - resp->http.date);

	if (resp->http.date < 0)
		snprintf(text, size, "this machine's clock differs from the server's");
	else
		snprintf(text, size, "this machine's clock is %ld s %s the server's", labs(skew_s),
			 skew_s > 0 ? "ahead of" : "behind");
}

static int judge(struct cfs_s3 *s, const struct cfs_s3_keys *keys, const struct cfs_s3_call *call,
		 const struct cfs_s3_response *resp)
{
	char code[64], message[160], region[64];
	bool has_document, retry;
	int err;

	cfs_s3_xml_value(resp->http.error, "Code", code, sizeof(code));
	cfs_s3_xml_value(resp->http.error, "Message", message, sizeof(message));
	cfs_s3_xml_value(resp->http.error, "Region", region, sizeof(region));
	if (!region[0])
		snprintf(region, sizeof(region), "%s", resp->region);
	if (is_damage(code))
		return cfs_http_damaged(s->http, "what was sent arrived otherwise: %u %s",
					resp->http.status, code);
	/* A HEAD has no document; a DELETE of a missing object has succeeded. */
	has_document = resp->http.error_len ||
		       (strcmp(call->method, "HEAD") != 0 && strcmp(call->method, "DELETE") != 0);
	err = errno_of_answer(resp, code, has_document, &retry);

	if (strcmp(code, "RequestTimeTooSkewed") == 0)
		describe_skew(resp, message, sizeof(message));
	else if (strcmp(code, "NoSuchBucket") == 0)
		snprintf(message, sizeof(message), "bucket %s does not exist", s->endpoint.bucket);
	else if (region[0] && strcmp(region, s->endpoint.region) != 0 &&
		 (resp->http.status < 400 || resp->http.status == 400))
		snprintf(message, sizeof(message), "bucket %s is in region %s, not %s",
			 s->endpoint.bucket, region, s->endpoint.region);
	if (strcmp(code, "ExpiredToken") == 0 || strcmp(code, "TokenRefreshRequired") == 0)
		retry = cfs_s3_credentials_expired(s->credentials, keys);

	return cfs_http_refused(&resp->http, retry, err, "%u %s%s%s", resp->http.status, code,
				message[0] ? ": " : "", message);
}

/* ---- the request ---- */

/* MD5 and SHA-256 of the body, or the value for an unsigned payload. */
struct hashes {
	char md5[2 * CFS_S3_MD5_LEN], sha256[2 * CFS_S3_SHA256_LEN + 1];
};

static int hash_body(const struct cfs_s3_call *call, struct hashes *ret)
{
	uint64_t len = cfs_iov_len(call->src, call->n_src);
	uint8_t hash[CFS_S3_HASH_MAX];
	int r;

	r = cfs_s3_digest(CFS_S3_MD5, call->src, call->n_src, len, hash);
	if (r < 0)
		return r;
	EVP_EncodeBlock((unsigned char *)ret->md5, hash, CFS_S3_MD5_LEN);
	r = cfs_s3_digest(CFS_S3_SHA256, call->src, call->n_src, len, hash);
	if (r == 0)
		cfs_s3_hex(hash, CFS_S3_SHA256_LEN, ret->sha256);
	return r;
}

/* The signed string, and the signature: malloc'ed, NULL without keys. */
static int sign(struct cfs_s3 *s, const struct cfs_s3_keys *keys, const struct cfs_s3_call *call,
		struct cfs_s3_to_sign *what, struct hashes *hashes, char ret_date[17],
		char **ret_authorization)
{
	int r;

	/*
	 * The signed and the sent text must be equal; libcurl leaves a port out that is the
	 * scheme's own.
	 */
	memcpy(what->headers, call->headers, sizeof(what->headers));
	what->headers[CFS_S3_HOST] = s->endpoint.host;
	if (call->hash_body) {
		r = hash_body(call, hashes);
		if (r < 0)
			return r;
		what->headers[CFS_S3_CONTENT_MD5] = hashes->md5;
	}
	if (!keys->access)
		return 0;
	what->headers[CFS_S3_CONTENT_SHA256] =
		call->hash_body ? hashes->sha256 : "UNSIGNED-PAYLOAD";
	return cfs_s3_sign(&s->signer, s->endpoint.region, keys, what, ret_date, ret_authorization);
}

/* ---- the response ---- */

/* Headers of S3's own. */
static void take_header(void *arg, const char *name, const char *value)
{
	struct cfs_s3_response *r = arg;

	if (!name) {
		r->has_crc = false;
		r->table[0] = r->checksum[0] = r->region[0] = '\0';
	} else if (strcasecmp(name, cfs_s3_header_names[CFS_S3_META_CRC32C]) == 0) {
		r->has_crc = sscanf(value, "%u", &r->crc) == 1;
	} else if (strcasecmp(name, cfs_s3_header_names[CFS_S3_META_TABLE]) == 0) {
		snprintf(r->table, sizeof(r->table), "%s", value);
	} else if (strcasecmp(name, cfs_s3_header_names[CFS_S3_CHECKSUM]) == 0) {
		snprintf(r->checksum, sizeof(r->checksum), "%s", value);
	} else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
		snprintf(r->region, sizeof(r->region), "%s", value);
	}
}

/* ---- both ---- */

/* The encoded path; malloc'ed. */
static char *make_path(const struct cfs_s3 *s, const char *key)
{
	size_t prefix_len = strlen(s->endpoint.path);
	char *path = malloc(prefix_len + 3 * strlen(key ? key : "") + 2);

	if (!path)
		return NULL;
	memcpy(path, s->endpoint.path, prefix_len + 1);
	if (key || !prefix_len) {
		path[prefix_len] = '/';
		cfs_s3_encode(key ? key : "", true, path + prefix_len + 1);
	}
	return path;
}

static int run_call(struct cfs_s3 *s, const struct cfs_s3_keys *keys,
		    const struct cfs_s3_call *call, struct cfs_s3_response *ret,
		    cfs_deadline_t deadline)
{
	cfs_auto_free char *path = make_path(s, call->key), *url = NULL, *authorization = NULL;
	struct cfs_http_header headers[CFS_S3_N_HEADERS + 2];
	struct cfs_s3_to_sign what = {
		.method = call->method,
		.path = path,
		.query = call->query ? call->query : "",
		.now = (time_t)cfs_wall_s(),
	};
	struct cfs_http_request req = {
		.method = call->method,
		.headers = headers,
		.src = call->src,
		.n_src = call->n_src,
		.dst = call->dst,
		.n_dst = call->n_dst,
		.dst_off = call->dst_off,
		.sink = call->sink,
		.sink_arg = call->sink_arg,
		.header_fn = take_header,
		.header_arg = ret,
		.deadline = deadline,
	};
	struct hashes hashes;
	char date[17];
	int i, r;

	if (!path || asprintf(&url, "%s%s%s%s", s->endpoint.origin, path, call->query ? "?" : "",
			      call->query ? call->query : "") < 0)
		return cfs_http_fail(false, -ENOMEM, "out of memory");
	r = sign(s, keys, call, &what, &hashes, date, &authorization);
	if (r < 0)
		return cfs_http_fail(false, r, "the request cannot be signed");
	headers[req.n_headers++] = (struct cfs_http_header){"Range", call->range};
	headers[req.n_headers++] = (struct cfs_http_header){"Authorization", authorization};
	for (i = 0; i < CFS_S3_N_HEADERS; i++)
		headers[req.n_headers++] =
			(struct cfs_http_header){cfs_s3_header_names[i], what.headers[i]};
	req.url = url;
	r = cfs_http_run(s->http, &req, &ret->http);
	if (r < 0)
		return r;
	if (ret->http.status < 200 || ret->http.status >= REDIRECT_FIRST)
		return judge(s, keys, call, ret);
	return 0;
}

int cfs_s3_call(struct cfs_s3 *s, const struct cfs_s3_call *call, struct cfs_s3_response *ret,
		cfs_deadline_t deadline)
{
	const struct cfs_s3_keys *keys;
	char err[CFS_OBJECT_ERRLEN];
	int r;

	ret->http.status = 0;
	ret->http.error[0] = '\0';
	take_header(ret, NULL, NULL);
	r = cfs_s3_credentials_get(s->credentials, deadline, &keys, err);
	if (r < 0)
		return cfs_http_fail(false, r, "%s", err);
	r = run_call(s, keys, call, ret, deadline);
	cfs_s3_keys_unref(keys);
	return r;
}
