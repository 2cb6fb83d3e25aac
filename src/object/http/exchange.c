/* SPDX-License-Identifier: Apache-2.0 */
/* One request and its response. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arrival.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/unwanted.h"
#include "http-internal.h"

size_t cfs_http_send_body(char *buf, size_t size, size_t n, void *arg)
{
	struct cfs_http_connection *c = arg;
	size_t room = size * n, done = 0, part;
	char *from;

	for (; done < room && (part = cfs_iov_next(&c->src, room - done, &from)) > 0; done += part)
		memcpy(buf + done, from, part);
	return done;
}

/* libcurl goes back to the start when a kept connection turns out to be closed. */
int cfs_http_seek_body(void *arg, curl_off_t off, int origin)
{
	struct cfs_http_connection *c = arg;

	if (origin != SEEK_SET || off != 0)
		return CURL_SEEKFUNC_CANTSEEK;
	c->src = (struct cfs_iov_cursor){.v = c->req->src, .n = c->req->n_src};
	return CURL_SEEKFUNC_OK;
}

static void fill_dst(struct cfs_http_connection *c, const char *data, size_t len)
{
	size_t done = 0, part;
	char *to;

	for (; done < len && (part = cfs_iov_next(&c->dst, len - done, &to)) > 0; done += part)
		memcpy(to, data + done, part);
	c->resp->received += done;
	c->full = done < len;
}

static void note_arrival(const struct cfs_http_connection *c, size_t len)
{
	curl_off_t size = -1;

	(void)curl_easy_getinfo(c->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size);
	cfs_arrival_note(c->resp->received + len, size > 0 ? (uint64_t)size : 0);
}

size_t cfs_http_receive_body(char *data, size_t size, size_t n, void *arg)
{
	struct cfs_http_connection *c = arg;
	struct cfs_http_response *resp = c->resp;
	size_t len = size * n, part;

	if (resp->status < 200 || resp->status > 299) {
		part = CFS_MIN(len, sizeof(resp->error) - 1 - resp->error_len);
		memcpy(resp->error + resp->error_len, data, part);
		resp->error_len += part;
		resp->error[resp->error_len] = '\0';
		return len;
	}
	note_arrival(c, len);
	if (c->req->sink) {
		c->sink_err = c->req->sink(c->req->sink_arg, data, len);
		resp->received += len;
		return c->sink_err ? 0 : len;
	}
	part = (size_t)CFS_MIN((uint64_t)len, resp->status == 200 ? c->skip : 0);
	c->skip -= part;
	fill_dst(c, data + part, len - part);
	return c->full ? 0 : len;
}

static bool add_header(struct curl_slist **list, const char *name, const char *value)
{
	cfs_auto_free char *line = NULL;
	struct curl_slist *longer;

	if (!value)
		return true;
	if (asprintf(&line, *value ? "%s: %s" : "%s:", name, value) < 0) {
		line = NULL;
		return false;
	}
	longer = curl_slist_append(*list, line);
	if (longer)
		*list = longer;
	return longer != NULL;
}

/* An empty value keeps libcurl from sending its own header. */
static int make_headers(const struct cfs_http_request *req, struct curl_slist **ret)
{
	struct curl_slist *list = NULL;
	bool ok;
	int i;

	ok = add_header(&list, "Expect", "") && add_header(&list, "Accept", "");
	for (i = 0; i < req->n_headers; i++)
		ok = ok && add_header(&list, req->headers[i].name, req->headers[i].value);
	if (!ok) {
		curl_slist_free_all(list);
		return -ENOMEM;
	}
	*ret = list;
	return 0;
}

static void set_request(struct cfs_http_connection *c, struct curl_slist *headers)
{
	const struct cfs_http_request *req = c->req;
	size_t len = cfs_iov_len(req->src, req->n_src);
	CURL *e = c->easy;

	curl_easy_setopt(e, CURLOPT_URL, req->url);
	curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers);
	/* Resets the options of the previous request. */
	curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
	curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, NULL);
	if (strcmp(req->method, "HEAD") == 0) {
		curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
	} else if (req->n_src || strcmp(req->method, "PUT") == 0) {
		curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)len);
		curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, req->method);
	} else if (strcmp(req->method, "GET") != 0) {
		curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, req->method);
	}
}

/* Runs the transfer; *ret: its result. */
static int drive(struct cfs_http *h, struct cfs_http_connection *c, CURLcode *ret)
{
	cfs_deadline_t deadline = c->req->deadline;
	uint64_t now = cfs_now_ms(), silent_since = now, until;
	int running, n_ready, n_left;
	CURLMsg *msg;

	while (curl_multi_perform(c->multi, &running) == CURLM_OK && running) {
		now = cfs_now_ms();
		until = CFS_MIN(deadline, silent_since + h->conf.silence_ms);
		if (now >= until && until == deadline)
			return cfs_http_fail(true, -ETIMEDOUT, "the deadline has passed");
		if (now >= until)
			return cfs_http_fail(true, -ETIMEDOUT,
					     "no byte was sent or received for %lu ms",
					     h->conf.silence_ms);
		cfs_silence_note(now - silent_since);
		if (!c->req->shared && cfs_unwanted())
			return cfs_http_fail(false, -ECANCELED, "the call was cancelled");
		if (curl_multi_poll(c->multi, NULL, 0,
				    (int)CFS_MIN(until - now, CFS_HTTP_WANTED_MS),
				    &n_ready) != CURLM_OK)
			break;
		if (n_ready)
			silent_since = cfs_now_ms();
	}
	msg = curl_multi_info_read(c->multi, &n_left);
	*ret = msg && msg->msg == CURLMSG_DONE ? msg->data.result : CURLE_FAILED_INIT;
	return 0;
}

static int errno_of(CURL *easy, CURLcode code, bool *ret_retry)
{
	long os_errno = 0;

	*ret_retry = true;
	switch (code) {
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY:
		return -EHOSTUNREACH;
	case CURLE_COULDNT_CONNECT:
		curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os_errno);
		return os_errno ? -(int)os_errno : -ECONNREFUSED;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	case CURLE_PARTIAL_FILE:
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
	case CURLE_GOT_NOTHING:
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_WEIRD_SERVER_REPLY:
	case CURLE_UPLOAD_FAILED:
	case CURLE_HTTP_RETURNED_ERROR:
		return -ECONNRESET;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_ISSUER_ERROR:
		*ret_retry = false;
		return -EACCES;
	case CURLE_URL_MALFORMAT:
	case CURLE_BAD_FUNCTION_ARGUMENT:
	case CURLE_NOT_BUILT_IN:
		*ret_retry = false;
		return -EIO;
	/* The response is malformed. */
	default:
		return -EIO;
	}
}

static int run(struct cfs_http *h, struct cfs_http_connection *c, CURLcode *ret)
{
	int r;

	c->src = (struct cfs_iov_cursor){.v = c->req->src, .n = c->req->n_src};
	if (curl_multi_add_handle(c->multi, c->easy) != CURLM_OK)
		return cfs_http_fail(true, -EIO, "libcurl refuses the request");
	r = drive(h, c, ret);
	curl_multi_remove_handle(c->multi, c->easy);
	return r;
}

static int run_with_addresses(struct cfs_http *h, struct cfs_http_connection *c, CURLcode *ret)
{
	int r = cfs_http_find_addresses(h, c);

	*ret = CURLE_OK;
	if (r < 0)
		return r;
	c->error[0] = '\0';
	curl_easy_setopt(c->easy, CURLOPT_RESOLVE, c->addresses);
	r = run(h, c, ret);
	curl_easy_setopt(c->easy, CURLOPT_RESOLVE, NULL);
	curl_slist_free_all(c->addresses);
	c->addresses = NULL;
	return r;
}

/* The cause is recorded. */
static int exchange(struct cfs_http *h, struct cfs_http_connection *c)
{
	CURLcode code = CURLE_OK;
	bool retry;
	int r;

	r = run(h, c, &code);
	/* Some versions of libcurl keep in the cache that another connection needs addresses. */
	if (c->needs_addresses || (code == CURLE_COULDNT_RESOLVE_HOST && !h->may_use_proxy))
		r = run_with_addresses(h, c, &code);
	if (c->sink_err)
		return cfs_http_fail(true, c->sink_err, "the answer cannot be understood");
	if (r == 0 && code != CURLE_OK && !c->full) {
		r = errno_of(c->easy, code, &retry);
		cfs_http_fail(retry, r, "%s", c->error[0] ? c->error : curl_easy_strerror(code));
	}
	return r;
}

int cfs_http_run(struct cfs_http *h, const struct cfs_http_request *req,
		 struct cfs_http_response *ret)
{
	struct cfs_http_connection *c;
	struct curl_slist *headers;
	int r;

	cfs_http_no_response(ret);
	if (cfs_deadline_passed(req->deadline))
		return cfs_http_fail(true, -ETIMEDOUT, "the deadline had passed");
	r = make_headers(req, &headers);
	if (r < 0)
		return cfs_http_fail(false, r, "out of memory");
	r = cfs_http_take_connection(h, req, &c);
	if (r == 0) {
		c->req = req;
		c->resp = ret;
		c->dst = (struct cfs_iov_cursor){.v = req->dst, .n = req->n_dst};
		c->skip = req->dst_off;
		c->sink_err = 0;
		c->full = false;
		c->needs_addresses = false;
		c->error[0] = '\0';
		set_request(c, headers);
		r = exchange(h, c);
		cfs_http_return_connection(h, c);
	} else {
		cfs_http_fail(r != -ECANCELED, r, "no connection was free in time");
	}
	curl_slist_free_all(headers);
	return r;
}
