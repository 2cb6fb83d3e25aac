/* SPDX-License-Identifier: Apache-2.0 */
/* The last failure of each thread, for the retry layer. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "http-internal.h"

static _Thread_local struct cfs_object_failure failure;

void cfs_http_failure(struct cfs_object_store *o, struct cfs_object_failure *ret)
{
	*ret = failure;
}

__attribute__((format(printf, 2, 0))) static void record(struct cfs_object_failure f,
							 const char *fmt, va_list ap)
{
	char *p;

	failure = f;
	vsnprintf(failure.text, sizeof(failure.text), fmt, ap);
	/* Servers' texts go to the log as one line. */
	for (p = failure.text; *p; p++) {
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = ' ';
	}
}

int cfs_http_fail(bool retry, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record((struct cfs_object_failure){.retry = retry}, fmt, ap);
	va_end(ap);
	return err;
}

int cfs_http_refused(const struct cfs_http_response *resp, bool retry, int err, const char *fmt,
		     ...)
{
	va_list ap;

	va_start(ap, fmt);
	record(
		(struct cfs_object_failure){
			.retry = retry,
			.after_ms = retry ? resp->retry_after_ms : 0,
		},
		fmt, ap);
	va_end(ap);
	return err;
}

int cfs_http_damaged(struct cfs_http *h, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record((struct cfs_object_failure){.retry = true, .damaged = true}, fmt, ap);
	va_end(ap);
	cfs_http_close_idle(h);
	return -EIO;
}
