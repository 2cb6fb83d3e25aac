/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of responses, and what statuses mean. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "http-internal.h"

#define HEADER_MAX	  2048 /* longer ones are ignored */
#define RETRY_AFTER_MAX_S 3600

static void on_content_length(struct cfs_http_response *r, const char *v)
{
	r->has_length = sscanf(v, "%lu", &r->content_length) == 1;
}

static void on_content_range(struct cfs_http_response *r, const char *v)
{
	r->has_range = sscanf(v, "bytes %lu-%lu/%lu", &r->range_first, &r->range_last,
			      &r->range_total) == 3 &&
		       r->range_first <= r->range_last && r->range_last < r->range_total;
}

static void on_etag(struct cfs_http_response *r, const char *v)
{
	snprintf(r->etag, sizeof(r->etag), "%s", v + (*v == '"'));
	r->etag[strcspn(r->etag, "\"")] = '\0';
}

static void on_date(struct cfs_http_response *r, const char *v)
{
	r->date = curl_getdate(v, NULL);
}

static void on_last_modified(struct cfs_http_response *r, const char *v)
{
	r->last_modified = curl_getdate(v, NULL);
}

/* RFC 9110: seconds, or a date. */
static void on_retry_after(struct cfs_http_response *r, const char *v)
{
	int64_t s;
	time_t at;

	if (sscanf(v, "%ld", &s) != 1 || strchr(v, ':')) {
		at = curl_getdate(v, NULL);
		s = at < 0 ? 0 : at - cfs_wall_s();
	}
	s = CFS_MAX(CFS_MIN(s, RETRY_AFTER_MAX_S), 0);
	r->retry_after_ms = (uint32_t)s * 1000;
}

static const struct {
	const char *name;
	void (*take)(struct cfs_http_response *r, const char *value);
} known_headers[] = {
	{"Content-Length", on_content_length},
	{"Content-Range", on_content_range},
	{"Date", on_date},
	{"ETag", on_etag},
	{"Last-Modified", on_last_modified},
	{"Retry-After", on_retry_after},
};

void cfs_http_no_response(struct cfs_http_response *ret)
{
	*ret = (struct cfs_http_response){.date = -1, .last_modified = -1};
}

size_t cfs_http_take_header(char *data, size_t size, size_t n, void *arg)
{
	struct cfs_http_connection *c = arg;
	size_t i, len = size * n;
	char line[HEADER_MAX], *value;

	if (len >= sizeof(line))
		return len;
	memcpy(line, data, len);
	line[len] = '\0';
	line[strcspn(line, "\r\n")] = '\0';
	/* Each response begins with a status line. Interim ones and those of proxies come first. */
	if (strncasecmp(line, "HTTP/", 5) == 0) {
		cfs_http_no_response(c->resp);
		sscanf(line, "%*s %u", &c->resp->status);
		if (c->req->header_fn)
			c->req->header_fn(c->req->header_arg, NULL, NULL);
		return len;
	}
	value = strchr(line, ':');
	if (!value)
		return len;
	*value++ = '\0';
	value += strspn(value, " \t");
	for (i = 0; i < CFS_ARRAY_SIZE(known_headers); i++) {
		if (strcasecmp(line, known_headers[i].name) == 0) {
			known_headers[i].take(c->resp, value);
			return len;
		}
	}
	if (c->req->header_fn)
		c->req->header_fn(c->req->header_arg, line, value);
	return len;
}

int cfs_http_errno(unsigned status, bool *ret_retry)
{
	*ret_retry = false;
	switch (status) {
	case 401:
	case 403:
		return -EACCES;
	case 404:
		return -ENOENT;
	case 405:
	case 501:
		return -EOPNOTSUPP;
	case 412:
		return -EEXIST;
	case 416:
		return -ERANGE;
	case 507:
		return -ENOSPC;
	case 408:
		*ret_retry = true;
		return -ETIMEDOUT;
	case 429:
	case 503:
		*ret_retry = true;
		return -EBUSY;
	default:
		*ret_retry = status >= 500;
		return -EIO;
	}
}
