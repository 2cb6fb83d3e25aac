/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the HTTP client. */
#ifndef CFS_OBJECT_HTTP_INTERNAL_H
#define CFS_OBJECT_HTTP_INTERNAL_H

#include <curl/curl.h>
#include <pthread.h>

#include "http.h"

#define CFS_HTTP_WANTED_MS 20 /* period of checks whether the answer is still wanted */

struct cfs_http_connection {
	struct cfs_http_connection *next; /* idle ones, used last first */
	CURLM *multi;
	CURL *easy;
	uint64_t idle_since_ms;
	char error[CURL_ERROR_SIZE];

	/* Of the request under way. */
	const struct cfs_http_request *req;
	struct cfs_http_response *resp;
	struct cfs_iov_cursor src, dst; /* what is not sent yet, and not filled */
	uint64_t skip;
	int sink_err;
	bool full; /* dst is, and the rest is not wanted */
	bool needs_addresses;
	struct curl_slist
		*addresses; /* of its server, where they were needed; for CURLOPT_RESOLVE */
};

struct cfs_http {
	struct cfs_http_conf conf;
	bool may_use_proxy;
	CURLSH *share; /* host names and TLS sessions */
	pthread_mutex_t share_locks[CURL_LOCK_DATA_LAST];
	struct cfs_ticker *closer;
	pthread_mutex_t lock; /* protects what follows; a leaf */
	pthread_cond_t returned;
	struct cfs_http_connection *idle;
	unsigned n; /* idle or not */
};

/*
 * Waits for a connection; -ETIMEDOUT at the deadline of req, -ECANCELED when it is not wanted. Each one
 * that is taken is returned.
 */
int cfs_http_take_connection(struct cfs_http *h, const struct cfs_http_request *req,
			     struct cfs_http_connection **ret);
void cfs_http_return_connection(struct cfs_http *h, struct cfs_http_connection *c);
/* Closes connections without a request. */
void cfs_http_close_idle(struct cfs_http *h);

/* libcurl's callbacks. */
size_t cfs_http_send_body(char *buf, size_t size, size_t n, void *connection);
int cfs_http_seek_body(void *connection, curl_off_t off, int origin);
size_t cfs_http_receive_body(char *data, size_t size, size_t n, void *connection);
size_t cfs_http_take_header(char *data, size_t size, size_t n, void *connection);

/*
 * libcurl starts a thread for each lookup, so a resolver that does not answer would keep one for each
 * request. A request ends instead where its connection needs addresses that libcurl does not have in
 * its cache; they are looked up with base/text/resolve.h, and the request runs again with them.
 */
int cfs_http_before_lookup(void *resolver, void *reserved, void *connection);
/* Fills c->addresses until the deadline of its request. The cause of a failure is recorded. */
int cfs_http_find_addresses(struct cfs_http *h, struct cfs_http_connection *c);

/* As before any header came. */
void cfs_http_no_response(struct cfs_http_response *ret);

#endif
