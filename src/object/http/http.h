/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP/1.1 client for object stores, on libcurl. It knows methods, headers, ranges and bodies;
 * a store adds its signature and the meaning of answers.
 *
 *	connections.c	kept connections, and how many there may be
 *	exchange.c	one request and its response
 *	response.c	headers and statuses
 *	failure.c	why a call failed, for the retry layer
 *	names.c		names of servers
 *
 * A request runs on the thread of its caller. It takes the idle connection that was used last, so that
 * surplus ones become old and are closed. Each wait ends at the request's deadline, or after
 * silence_ms without a byte in either direction. A request that is not wanted
 * (base/unwanted.h) ends with -ECANCELED.
 *
 * The client repeats a request only when a kept connection turns out to be closed. All other retries
 * are made by the filter around the store (src/object/retry.c): each failure is recorded with
 * whether a retry may succeed and after which pause. Stores verify bodies themselves: header_fn gives
 * them the checksums of a response, and cfs_http_damaged() records a mismatch.
 */
#ifndef CFS_OBJECT_HTTP_H
#define CFS_OBJECT_HTTP_H

#include <time.h>

#include "object/object-internal.h"

/* ---- client ---- */

struct cfs_http; /* for any number of threads */

struct cfs_http_conf {
	unsigned max_connections; /* a request waits for one of them */
	uint64_t silence_ms;
	uint64_t connect_ms;			   /* 0: 10 s */
	bool small_buffers;			   /* saves memory, costs speed */
	bool direct;				   /* without a proxy */
	bool insecure;				   /* certificates are not checked */
	const char *ca_certs, *ssl_cert, *ssl_key; /* files, borrowed; NULL: the system's, none */
};

int cfs_http_open(const struct cfs_http_conf *conf, struct cfs_http **ret,
		  char err[CFS_OBJECT_ERRLEN]);
void cfs_http_close(struct cfs_http *h);

/* ---- request and response ---- */

struct cfs_http_header {
	const char *name, *value; /* value NULL: not sent */
};

/*
 * Called for each header of a response that cfs_http_response does not have. name NULL: a response
 * begins; headers of an earlier one (interim, or of a proxy) do not belong to it.
 */
typedef void (*cfs_http_header_fn)(void *arg, const char *name, const char *value);
/* Receives the body of a success; a negative errno ends the transfer. */
typedef int (*cfs_http_sink_fn)(void *arg, const void *data, size_t len);

struct cfs_http_request {
	const char *method, *url;
	const struct cfs_http_header *headers;
	int n_headers;
	const struct iovec *src; /* body of PUT and POST */
	int n_src;
	/* The body of a success goes here, from its byte dst_off on; the rest is not read. */
	const struct iovec *dst;
	int n_dst;
	uint64_t dst_off; /* for servers that answer a range with the whole */
	/* Or the body goes to this function. */
	cfs_http_sink_fn sink;
	void *sink_arg;
	cfs_http_header_fn header_fn; /* NULL: none are needed */
	void *header_arg;
	cfs_deadline_t deadline;
	bool shared; /* other threads wait for the answer, too: never unwanted */
};

#define CFS_HTTP_ERROR_BODY 4096

struct cfs_http_response {
	unsigned status;   /* 0: there was none */
	uint64_t received; /* bytes of the body of a success */
	uint64_t content_length;
	uint64_t range_first, range_last, range_total; /* Content-Range */
	bool has_length, has_range;
	char etag[80];		    /* without quotes */
	time_t date, last_modified; /* -1: not sent */
	uint32_t retry_after_ms;
	char error[CFS_HTTP_ERROR_BODY]; /* beginning of the body of a failure */
	size_t error_len;
};

/*
 * 0: there is a whole response, of whatever status. Else a negative errno; the cause is recorded.
 */
int cfs_http_run(struct cfs_http *h, const struct cfs_http_request *req,
		 struct cfs_http_response *ret);

/*
 * The errno of a status other than 2xx: -ENOENT, -EACCES, -ERANGE (the range is beyond the end),
 * -EBUSY, -ETIMEDOUT, -ENOSPC, -EOPNOTSUPP, else -EIO. *ret_retry: another try may succeed.
 */
int cfs_http_errno(unsigned status, bool *ret_retry);

/* ---- why a call failed ---- */

/* Each records a failure of the calling thread and returns err. The text becomes one line. */
__attribute__((format(printf, 3, 4))) int cfs_http_fail(bool retry, int err, const char *fmt, ...);
/* By an answer of the server, which may ask for a pause. */
__attribute__((format(printf, 4, 5))) int
cfs_http_refused(const struct cfs_http_response *resp, bool retry, int err, const char *fmt, ...);
/*
 * A body was damaged in transit: -EIO, a retry may succeed. Closes idle connections, on which answers
 * may be mixed up.
 */
__attribute__((format(printf, 2, 3))) int cfs_http_damaged(struct cfs_http *h, const char *fmt,
							   ...);
/* The failure function of stores that use this client. */
void cfs_http_failure(struct cfs_object_store *o, struct cfs_object_failure *ret);

#endif
