/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests over kept connections. A caller takes the connection that was used last, drives its
 * request on its own thread and puts it back; so as few connections stay warm as the load needs,
 * and connections that stay unused for a while are closed.
 */
#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arrival.h"
#include "base/bytes.h"
#include "base/unwanted.h"
#include "base/workers.h"
#include "s3.h"

#define RECEIVE_BUFFER	  (512L << 10)
#define SEND_BUFFER	  (256L << 10)
#define SMALL_BUFFER	  (64L << 10)
#define CONNECT_MS	  10000L
#define IDLE_MS		  50000 /* servers close theirs after 60 s or more */
#define IDLE_CHECK_MS	  15000
#define KEEPALIVE_S	  30L
#define DNS_CACHE_S	  60L
#define RETRY_AFTER_MAX_S 3600
#define WANTED_MS	  20 /* between two looks whether the answer still is */

struct connection {
	struct connection *next; /* idle ones, used last first */
	CURLM *multi;
	CURL *easy;
	uint64_t idle_since_ms;
	char error[CURL_ERROR_SIZE];

	/* Of the request under way. */
	const struct cfs_s3_request *req;
	struct cfs_s3_response *resp;
	int i_src, i_dst; /* current piece, and how much of it is done */
	size_t src_done, dst_done;
	uint64_t skip;
	int sink_err;
	bool full; /* dst is, and the rest is not wanted */
};

struct cfs_s3_http {
	struct cfs_s3_http_conf conf; /* strings are borrowed */
	CURLSH *share;		      /* host names and TLS sessions */
	pthread_mutex_t share_locks[CURL_LOCK_DATA_LAST];
	struct cfs_ticker *closer;
	pthread_mutex_t lock; /* protects what follows; a leaf */
	pthread_cond_t returned;
	struct connection *idle;
	unsigned n; /* idle or not */
};

/* ---- callbacks of a transfer ---- */

static size_t send_body(char *buf, size_t size, size_t n, void *arg)
{
	struct connection *c = arg;
	size_t room = size * n, done = 0;

	while (done < room && c->i_src < c->req->n_src) {
		const struct iovec *iov = &c->req->src[c->i_src];
		size_t part = CFS_MIN(room - done, iov->iov_len - c->src_done);

		if (part)
			memcpy(buf + done, (char *)iov->iov_base + c->src_done, part);
		done += part;
		c->src_done += part;
		if (c->src_done == iov->iov_len) {
			c->i_src++;
			c->src_done = 0;
		}
	}
	return done;
}

/* libcurl goes back to the start when a kept connection turns out to be closed. */
static int seek_body(void *arg, curl_off_t off, int origin)
{
	struct connection *c = arg;

	if (origin != SEEK_SET || off != 0)
		return CURL_SEEKFUNC_CANTSEEK;
	c->i_src = 0;
	c->src_done = 0;
	return CURL_SEEKFUNC_OK;
}

static void fill_dst(struct connection *c, const char *data, size_t len)
{
	size_t done = 0;

	while (done < len && c->i_dst < c->req->n_dst) {
		const struct iovec *iov = &c->req->dst[c->i_dst];
		size_t part = CFS_MIN(len - done, iov->iov_len - c->dst_done);

		if (part)
			memcpy((char *)iov->iov_base + c->dst_done, data + done, part);
		done += part;
		c->dst_done += part;
		if (c->dst_done == iov->iov_len) {
			c->i_dst++;
			c->dst_done = 0;
		}
	}
	c->resp->received += done;
	c->full = done < len;
}

static size_t receive_body(char *data, size_t size, size_t n, void *arg)
{
	struct connection *c = arg;
	struct cfs_s3_response *resp = c->resp;
	size_t len = size * n, part;

	if (resp->status < 200 || resp->status > 299) {
		part = CFS_MIN(len, sizeof(resp->error) - 1 - resp->error_len);
		memcpy(resp->error + resp->error_len, data, part);
		resp->error_len += part;
		resp->error[resp->error_len] = '\0';
		return len;
	}
	cfs_arrival_note();
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

/* ---- response headers ---- */

static bool starts_with(const char *value, const char *word)
{
	return strncasecmp(value, word, strlen(word)) == 0;
}

static void copy_text(char *dst, size_t size, const char *value)
{
	snprintf(dst, size, "%s", value);
}

static void on_content_length(struct cfs_s3_response *r, const char *v)
{
	r->has_length = sscanf(v, "%lu", &r->content_length) == 1;
}

static void on_content_range(struct cfs_s3_response *r, const char *v)
{
	r->has_range = sscanf(v, "bytes %lu-%lu/%lu", &r->range_first, &r->range_last,
			      &r->range_total) == 3 &&
		       r->range_first <= r->range_last && r->range_last < r->range_total;
}

static void on_etag(struct cfs_s3_response *r, const char *v)
{
	copy_text(r->etag, sizeof(r->etag), v + (*v == '"'));
	r->etag[strcspn(r->etag, "\"")] = '\0';
}

static void on_crc(struct cfs_s3_response *r, const char *v)
{
	r->has_crc = sscanf(v, "%u", &r->crc) == 1;
}

static void on_table(struct cfs_s3_response *r, const char *v)
{
	copy_text(r->table, sizeof(r->table), v);
}

static void on_checksum(struct cfs_s3_response *r, const char *v)
{
	copy_text(r->checksum, sizeof(r->checksum), v);
}

static void on_date(struct cfs_s3_response *r, const char *v)
{
	r->date = curl_getdate(v, NULL);
}

static void on_last_modified(struct cfs_s3_response *r, const char *v)
{
	r->last_modified = curl_getdate(v, NULL);
}

static void on_region(struct cfs_s3_response *r, const char *v)
{
	copy_text(r->region, sizeof(r->region), v);
}

/* RFC 9110: seconds, or a date. */
static void on_retry_after(struct cfs_s3_response *r, const char *v)
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
	const char *name; /* with its colon */
	void (*take)(struct cfs_s3_response *r, const char *value);
} known_headers[] = {
	{"Content-Length:", on_content_length},
	{"Content-Range:", on_content_range},
	{"Date:", on_date},
	{"ETag:", on_etag},
	{"Last-Modified:", on_last_modified},
	{"Retry-After:", on_retry_after},
	{"x-amz-bucket-region:", on_region},
	{"x-amz-checksum-crc32c:", on_checksum},
	{"x-amz-meta-cachefs-crc32c:", on_table},
	{"x-amz-meta-crc32c:", on_crc},
};

static size_t take_header(char *data, size_t size, size_t n, void *arg)
{
	struct connection *c = arg;
	size_t i, len = size * n;
	char line[CFS_S3_TABLE_MAX + 100];

	if (len >= sizeof(line))
		return len;
	memcpy(line, data, len);
	line[len] = '\0';
	line[strcspn(line, "\r\n")] = '\0';
	/* One status line per response: interim ones and those of proxies come first. */
	if (starts_with(line, "HTTP/")) {
		*c->resp = (struct cfs_s3_response){.date = -1, .last_modified = -1};
		sscanf(line, "%*s %u", &c->resp->status);
		return len;
	}
	for (i = 0; i < CFS_ARRAY_SIZE(known_headers); i++) {
		size_t name_len = strlen(known_headers[i].name);

		if (starts_with(line, known_headers[i].name))
			known_headers[i].take(c->resp,
					      line + name_len + strspn(line + name_len, " \t"));
	}
	return len;
}

/* ---- connections ---- */

static void lock_share(CURL *easy, curl_lock_data data, curl_lock_access access, void *arg)
{
	pthread_mutex_lock(&((struct cfs_s3_http *)arg)->share_locks[data]);
}

static void unlock_share(CURL *easy, curl_lock_data data, void *arg)
{
	pthread_mutex_unlock(&((struct cfs_s3_http *)arg)->share_locks[data]);
}

static void close_connection(struct connection *c)
{
	if (c->easy)
		curl_easy_cleanup(c->easy);
	if (c->multi)
		curl_multi_cleanup(c->multi);
	free(c);
}

/* Sets the options common to all requests. */
static bool set_up(struct cfs_s3_http *h, struct connection *c)
{
	CURL *e = c->easy;
	bool ok = true;

#define SET(option, value) ok = curl_easy_setopt(e, option, value) == CURLE_OK && ok
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_ERRORBUFFER, c->error);
	SET(CURLOPT_SHARE, h->share);
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_PATH_AS_IS, 1L);
	SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	SET(CURLOPT_BUFFERSIZE, h->conf.small_buffers ? SMALL_BUFFER : RECEIVE_BUFFER);
	SET(CURLOPT_UPLOAD_BUFFERSIZE, h->conf.small_buffers ? SMALL_BUFFER : SEND_BUFFER);
	SET(CURLOPT_TCP_NODELAY, 1L);
	SET(CURLOPT_TCP_KEEPALIVE, 1L);
	SET(CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
	SET(CURLOPT_TCP_KEEPINTVL, KEEPALIVE_S);
	SET(CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
	SET(CURLOPT_DNS_CACHE_TIMEOUT, DNS_CACHE_S);
	SET(CURLOPT_READFUNCTION, send_body);
	SET(CURLOPT_READDATA, c);
	SET(CURLOPT_SEEKFUNCTION, seek_body);
	SET(CURLOPT_SEEKDATA, c);
	SET(CURLOPT_WRITEFUNCTION, receive_body);
	SET(CURLOPT_WRITEDATA, c);
	SET(CURLOPT_HEADERFUNCTION, take_header);
	SET(CURLOPT_HEADERDATA, c);
	if (h->conf.insecure) {
		SET(CURLOPT_SSL_VERIFYPEER, 0L);
		SET(CURLOPT_SSL_VERIFYHOST, 0L);
	}
	if (h->conf.ca_certs)
		SET(CURLOPT_CAINFO, h->conf.ca_certs);
	if (h->conf.ssl_cert)
		SET(CURLOPT_SSLCERT, h->conf.ssl_cert);
	if (h->conf.ssl_key)
		SET(CURLOPT_SSLKEY, h->conf.ssl_key);
#undef SET
	return ok;
}

static struct connection *new_connection(struct cfs_s3_http *h)
{
	struct connection *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->multi = curl_multi_init();
	c->easy = curl_easy_init();
	if (!c->multi || !c->easy || !set_up(h, c)) {
		close_connection(c);
		return NULL;
	}
	curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 1L);
	return c;
}

static int take_connection(struct cfs_s3_http *h, cfs_deadline_t deadline, struct connection **ret)
{
	struct connection *c;
	int r = 0;

	pthread_mutex_lock(&h->lock);
	while (!h->idle && h->n == h->conf.max_connections && r == 0)
		r = cfs_cond_wait(&h->returned, &h->lock, deadline);
	c = h->idle;
	if (c) {
		h->idle = c->next;
		r = 0;
	} else if (h->n < h->conf.max_connections) {
		h->n++;
		r = 0;
	}
	pthread_mutex_unlock(&h->lock);
	if (r < 0)
		return r;
	if (!c) {
		c = new_connection(h);
		if (!c) {
			pthread_mutex_lock(&h->lock);
			h->n--;
			pthread_cond_signal(&h->returned);
			pthread_mutex_unlock(&h->lock);
			return -ENOMEM;
		}
	}
	*ret = c;
	return 0;
}

static void return_connection(struct cfs_s3_http *h, struct connection *c)
{
	c->idle_since_ms = cfs_now_ms();
	pthread_mutex_lock(&h->lock);
	c->next = h->idle;
	h->idle = c;
	pthread_cond_signal(&h->returned);
	pthread_mutex_unlock(&h->lock);
}

static void close_idle(struct cfs_s3_http *h, uint64_t unused_since_ms)
{
	struct connection **at, *c, *old;

	pthread_mutex_lock(&h->lock);
	at = &h->idle;
	while (*at && (*at)->idle_since_ms > unused_since_ms)
		at = &(*at)->next;
	old = *at;
	*at = NULL;
	for (c = old; c; c = c->next)
		h->n--;
	pthread_mutex_unlock(&h->lock);
	while ((c = old) != NULL) {
		old = c->next;
		close_connection(c);
	}
}

static void close_idle_now_and_then(void *arg)
{
	close_idle(arg, cfs_now_ms() - IDLE_MS);
}

void cfs_s3_http_distrust(struct cfs_s3_http *h)
{
	close_idle(h, UINT64_MAX);
}

/* ---- one request ---- */

static void set_request(struct connection *c, const struct cfs_s3_request *req)
{
	size_t len = cfs_iov_len(req->src, req->n_src);
	CURL *e = c->easy;

	curl_easy_setopt(e, CURLOPT_URL, req->url);
	curl_easy_setopt(e, CURLOPT_HTTPHEADER, req->headers);
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

/* -ETIMEDOUT at the deadline, or when no byte moves for too long; -ECANCELED: no longer wanted. */
static int drive(struct cfs_s3_http *h, struct connection *c, cfs_deadline_t deadline,
		 CURLcode *ret, char cause[256])
{
	uint64_t now = cfs_now_ms(), silent_since = now, until;
	int running, n_ready, n_left;
	CURLMsg *msg;

	while (curl_multi_perform(c->multi, &running) == CURLM_OK && running) {
		now = cfs_now_ms();
		until = CFS_MIN(deadline, silent_since + h->conf.silence_ms);
		if (now >= until) {
			if (until == deadline)
				snprintf(cause, 256, "the deadline has passed");
			else
				snprintf(cause, 256, "nothing came or went for %lu ms",
					 h->conf.silence_ms);
			return -ETIMEDOUT;
		}
		cfs_silence_note(now - silent_since);
		if (cfs_unwanted()) {
			snprintf(cause, 256, "the answer is not wanted any more");
			return -ECANCELED;
		}
		if (curl_multi_poll(c->multi, NULL, 0, (int)CFS_MIN(until - now, WANTED_MS),
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

int cfs_s3_http_run(struct cfs_s3_http *h, const struct cfs_s3_request *req,
		    struct cfs_s3_response *ret, bool *ret_retry, char cause[256])
{
	struct connection *c;
	CURLcode code = CURLE_OK;
	int r;

	*ret = (struct cfs_s3_response){.date = -1, .last_modified = -1};
	*ret_retry = true;
	if (cfs_deadline_passed(req->deadline)) {
		snprintf(cause, 256, "the deadline had passed");
		return -ETIMEDOUT;
	}
	r = take_connection(h, req->deadline, &c);
	if (r < 0) {
		snprintf(cause, 256, "no connection was free in time");
		return r;
	}
	c->req = req;
	c->resp = ret;
	c->i_src = c->i_dst = 0;
	c->src_done = c->dst_done = 0;
	c->skip = req->dst_off;
	c->sink_err = 0;
	c->full = false;
	c->error[0] = '\0';
	set_request(c, req);
	if (curl_multi_add_handle(c->multi, c->easy) != CURLM_OK) {
		snprintf(cause, 256, "libcurl does not take the request");
		r = -EIO;
	} else {
		r = drive(h, c, req->deadline, &code, cause);
		*ret_retry = r != -ECANCELED;
		if (r == 0 && code != CURLE_OK && !c->full) {
			r = errno_of(c->easy, code, ret_retry);
			snprintf(cause, 256, "%s",
				 c->error[0] ? c->error : curl_easy_strerror(code));
		}
		if (c->sink_err) {
			r = c->sink_err;
			snprintf(cause, 256, "the answer cannot be understood");
		}
		curl_multi_remove_handle(c->multi, c->easy);
	}
	return_connection(h, c);
	return r;
}

/* ---- life ---- */

static void init_curl(void)
{
	struct sigaction old;

	curl_global_init(CURL_GLOBAL_ALL);
	/* OpenSSL writes with write(2), which raises it when the server has gone. */
	if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
		signal(SIGPIPE, SIG_IGN);
}

int cfs_s3_http_open(const struct cfs_s3_http_conf *conf, struct cfs_s3_http **ret,
		     char err[CFS_OBJECT_ERRLEN])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct cfs_s3_http *h;
	int i, r;

	pthread_once(&once, init_curl);
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->conf = *conf;
	pthread_mutex_init(&h->lock, NULL);
	cfs_cond_init(&h->returned);
	for (i = 0; i < CURL_LOCK_DATA_LAST; i++)
		pthread_mutex_init(&h->share_locks[i], NULL);
	h->share = curl_share_init();
	r = h->share ? 0 : -ENOMEM;
	if (r == 0) {
		curl_share_setopt(h->share, CURLSHOPT_USERDATA, h);
		curl_share_setopt(h->share, CURLSHOPT_LOCKFUNC, lock_share);
		curl_share_setopt(h->share, CURLSHOPT_UNLOCKFUNC, unlock_share);
		curl_share_setopt(h->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
		curl_share_setopt(h->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
		r = cfs_ticker_start("cfs-s3-idle", IDLE_CHECK_MS, close_idle_now_and_then, h,
				     &h->closer);
	}
	if (r < 0) {
		snprintf(err, CFS_OBJECT_ERRLEN, "cannot start libcurl: %s", strerror(-r));
		cfs_s3_http_close(h);
		return r;
	}
	*ret = h;
	return 0;
}

void cfs_s3_http_close(struct cfs_s3_http *h)
{
	int i;

	if (!h)
		return;
	if (h->closer)
		cfs_ticker_stop(h->closer);
	close_idle(h, UINT64_MAX);
	curl_share_cleanup(h->share);
	for (i = 0; i < CURL_LOCK_DATA_LAST; i++)
		pthread_mutex_destroy(&h->share_locks[i]);
	pthread_cond_destroy(&h->returned);
	pthread_mutex_destroy(&h->lock);
	free(h);
}
