/* SPDX-License-Identifier: Apache-2.0 */
/* Names of servers. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arrival.h"
#include "base/bytes.h"
#include "base/text/resolve.h"
#include "base/unwanted.h"
#include "http-internal.h"

#define NAME_LEN    256
#define ADDRESS_LEN 64

#ifndef CURLU_PUNYCODE /* before 7.88 */
#define CURLU_PUNYCODE 0
#endif

/* libcurl knows its addresses, and those of names below it. */
static bool is_localhost(const char *host)
{
	static const char local[] = "localhost";
	size_t len = strlen(host), local_len = sizeof(local) - 1;

	return len >= local_len && strcasecmp(host + len - local_len, local) == 0 &&
	       (len == local_len || host[len - local_len - 1] == '.');
}

/* False for an address and whatever else needs no lookup. */
static bool name_of(const char *url, char ret_name[NAME_LEN], unsigned *ret_port)
{
	CURLU *u = curl_url();
	char *host = NULL, *port = NULL;
	struct in_addr digits;
	bool ok;

	ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
	     curl_url_get(u, CURLUPART_HOST, &host, CURLU_PUNYCODE) == CURLUE_OK &&
	     curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
	     *host != '[' && inet_pton(AF_INET, host, &digits) != 1 && !is_localhost(host) &&
	     strlen(host) < NAME_LEN;
	if (ok) {
		memcpy(ret_name, host, strlen(host) + 1);
		*ret_port = (unsigned)strtoul(port, NULL, 10);
	}
	curl_free(host);
	curl_free(port);
	curl_url_cleanup(u);
	return ok;
}

int cfs_http_before_lookup(void *resolver, void *reserved, void *connection)
{
	struct cfs_http_connection *c = connection;
	char name[NAME_LEN];
	unsigned port;

	c->needs_addresses = !c->addresses && name_of(c->req->url, name, &port);
	return c->needs_addresses;
}

/* An entry for CURLOPT_RESOLVE, which expires as those that libcurl makes. */
static struct curl_slist *entry_of(const char *name, unsigned port, const struct cfs_addresses *a)
{
	char entry[NAME_LEN + 16 + CFS_ADDRESSES_MAX * ADDRESS_LEN], text[ADDRESS_LEN];
	int len = snprintf(entry, sizeof(entry), "+%s:%u", name, port);
	char before = ':';
	unsigned i;

	for (i = 0; i < a->n; i++) {
		if (getnameinfo((const struct sockaddr *)&a->at[i].addr, a->at[i].len, text,
				sizeof(text), NULL, 0, NI_NUMERICHOST) ||
		    strchr(text, '%')) /* an interface, which libcurl does not take here */
			continue;
		len += snprintf(entry + len, sizeof(entry) - (size_t)len,
				strchr(text, ':') ? "%c[%s]" : "%c%s", before, text);
		before = ',';
	}
	if (before == ':') /* libcurl looks it up itself */
		*entry = '-';
	return curl_slist_append(NULL, entry);
}

int cfs_http_find_addresses(struct cfs_http *h, struct cfs_http_connection *c)
{
	uint64_t begun = cfs_now_ms();
	cfs_deadline_t until = CFS_MIN(c->req->deadline,
				       begun + CFS_MIN(h->conf.silence_ms, h->conf.connect_ms)),
		       next;
	struct cfs_addresses found;
	char name[NAME_LEN], err[256];
	unsigned port;
	int r;

	if (!name_of(c->req->url, name, &port))
		return cfs_http_fail(true, -EHOSTUNREACH, "no name in %.200s", c->req->url);
	do {
		cfs_silence_note(cfs_now_ms() - begun);
		if (!c->req->shared && cfs_unwanted())
			return cfs_http_fail(false, -ECANCELED, "the call was cancelled");
		next = cfs_deadline_min(until, cfs_deadline_in(CFS_HTTP_WANTED_MS));
		r = cfs_resolve(name, port, "the HTTP server", next, &found, err);
	} while (r < 0 && cfs_deadline_passed(next) && next < until);
	if (r < 0)
		return cfs_http_fail(true, next < until ? -EHOSTUNREACH : -ETIMEDOUT, "%s", err);
	c->addresses = entry_of(name, port, &found);
	return c->addresses ? 0 : cfs_http_fail(true, -ENOMEM, "out of memory");
}
