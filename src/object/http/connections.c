/* SPDX-License-Identifier: Apache-2.0 */
/* Kept connections, and how many there may be. */
#include "http-internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/unwanted.h"
#include "base/workers.h"

#define RECEIVE_BUFFER (512L << 10)
#define SEND_BUFFER    (256L << 10)
#define SMALL_BUFFER   (64L << 10)
_Static_assert(RECEIVE_BUFFER + SEND_BUFFER <= CFS_OBJECT_BUFFERS, "as the mount counts");
_Static_assert(2 * SMALL_BUFFER <= CFS_OBJECT_SMALL_BUFFERS, "as the mount counts");
#define CONNECT_MS    10000
#define IDLE_MS	      50000 /* servers close theirs after 60 s or more */
#define IDLE_CHECK_MS 15000
#define KEEPALIVE_S   30L
#define DNS_CACHE_S   60L

static void lock_share(CURL *easy, curl_lock_data data, curl_lock_access access, void *arg)
{
	pthread_mutex_lock(&((struct cfs_http *)arg)->share_locks[data]);
}

static void unlock_share(CURL *easy, curl_lock_data data, void *arg)
{
	pthread_mutex_unlock(&((struct cfs_http *)arg)->share_locks[data]);
}

static void close_connection(struct cfs_http_connection *c)
{
	if (c->easy)
		curl_easy_cleanup(c->easy);
	if (c->multi)
		curl_multi_cleanup(c->multi);
	free(c);
}

/* Sets the options common to all requests. */
static bool set_up(struct cfs_http *h, struct cfs_http_connection *c)
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
	SET(CURLOPT_CONNECTTIMEOUT_MS, (long)h->conf.connect_ms);
	SET(CURLOPT_DNS_CACHE_TIMEOUT, DNS_CACHE_S);
#if LIBCURL_VERSION_NUM >= 0x075700
	/* Without it a request waits for the resolver beyond its deadline. */
	SET(CURLOPT_QUICK_EXIT, 1L);
#endif
	if (!h->may_use_proxy) {
		SET(CURLOPT_RESOLVER_START_FUNCTION, cfs_http_before_lookup);
		SET(CURLOPT_RESOLVER_START_DATA, c);
	}
	SET(CURLOPT_READFUNCTION, cfs_http_send_body);
	SET(CURLOPT_READDATA, c);
	SET(CURLOPT_SEEKFUNCTION, cfs_http_seek_body);
	SET(CURLOPT_SEEKDATA, c);
	SET(CURLOPT_WRITEFUNCTION, cfs_http_receive_body);
	SET(CURLOPT_WRITEDATA, c);
	SET(CURLOPT_HEADERFUNCTION, cfs_http_take_header);
	SET(CURLOPT_HEADERDATA, c);
	if (h->conf.direct)
		SET(CURLOPT_NOPROXY, "*");
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

static struct cfs_http_connection *new_connection(struct cfs_http *h)
{
	struct cfs_http_connection *c = calloc(1, sizeof(*c));

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

static int wait_for_connection(struct cfs_http *h, const struct cfs_http_request *req)
{
	return req->shared ? cfs_cond_wait(&h->returned, &h->lock, req->deadline)
			   : cfs_unwanted_cond_wait(&h->returned, &h->lock, req->deadline);
}

int cfs_http_take_connection(struct cfs_http *h, const struct cfs_http_request *req,
			     struct cfs_http_connection **ret)
{
	struct cfs_http_connection *c;
	int r = 0;

	pthread_mutex_lock(&h->lock);
	while (!h->idle && h->n == h->conf.max_connections && r == 0)
		r = wait_for_connection(h, req);
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

void cfs_http_return_connection(struct cfs_http *h, struct cfs_http_connection *c)
{
	c->idle_since_ms = cfs_now_ms();
	pthread_mutex_lock(&h->lock);
	c->next = h->idle;
	h->idle = c;
	pthread_cond_signal(&h->returned);
	pthread_mutex_unlock(&h->lock);
}

static void close_unused(struct cfs_http *h, uint64_t unused_since_ms)
{
	struct cfs_http_connection **at, *c, *old;

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

static void close_long_idle(void *arg)
{
	close_unused(arg, cfs_now_ms() - IDLE_MS);
}

void cfs_http_close_idle(struct cfs_http *h)
{
	close_unused(h, UINT64_MAX);
}

/* Then libcurl looks names up: which one depends on the URL. */
static bool is_proxy_set(void)
{
	static const char *const names[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
					    "ALL_PROXY"};
	bool is_set = false;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(names); i++)
		is_set = is_set || (getenv(names[i]) && *getenv(names[i]));
	return is_set;
}

static void init_curl(void)
{
	struct sigaction old;

	curl_global_init(CURL_GLOBAL_ALL);
	/* OpenSSL writes with write(2), which raises it when the server has gone. */
	if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
		signal(SIGPIPE, SIG_IGN);
}

int cfs_http_open(const struct cfs_http_conf *conf, struct cfs_http **ret,
		  char err[CFS_OBJECT_ERRLEN])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct cfs_http *h;
	int i, r;

	pthread_once(&once, init_curl);
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->conf = *conf;
	h->conf.connect_ms = conf->connect_ms ? conf->connect_ms : CONNECT_MS;
	h->may_use_proxy = !conf->direct && is_proxy_set();
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
		r = cfs_ticker_start("cfs-http-idle", IDLE_CHECK_MS, close_long_idle, h,
				     &h->closer);
	}
	if (r < 0) {
		snprintf(err, CFS_OBJECT_ERRLEN, "cannot start libcurl: %s", strerror(-r));
		cfs_http_close(h);
		return r;
	}
	*ret = h;
	return 0;
}

void cfs_http_close(struct cfs_http *h)
{
	int i;

	if (!h)
		return;
	if (h->closer)
		cfs_ticker_stop(h->closer);
	cfs_http_close_idle(h);
	curl_share_cleanup(h->share);
	for (i = 0; i < CURL_LOCK_DATA_LAST; i++)
		pthread_mutex_destroy(&h->share_locks[i]);
	pthread_cond_destroy(&h->returned);
	pthread_mutex_destroy(&h->lock);
	free(h);
}
