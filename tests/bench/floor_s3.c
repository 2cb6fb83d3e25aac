/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor_s3 BUCKET put|get IN-FLIGHT COUNT SIZE [KEYS]: a bare libcurl multi loop, one thread, that
 * uploads the objects floor/0, floor/1, ... or downloads and discards them; or those that the file
 * KEYS names, one a line. Any client of libcurl could do the same; the signature is that of the S3
 * store. Keys: ACCESS_KEY, SECRET_KEY. Prints one line of JSON.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "object/s3/s3.h"

#define BUFFER	      (512L << 10)
#define IN_FLIGHT_MAX 1024

struct transfer {
	CURL *easy;
	struct curl_slist *headers;
	size_t sent;
};

static struct cfs_s3_endpoint endpoint;
static struct cfs_s3_keys *keys;
static struct cfs_s3_signer signer;
static bool putting;
static FILE *keys_file;
static size_t size;
static char *body;
static unsigned long long received;

static void fail(const char *what)
{
	fprintf(stderr, "floor_s3: %s\n", what);
	exit(1);
}

static size_t discard(char *data, size_t one, size_t n, void *arg)
{
	received += n;
	return n;
}

static size_t send_body(char *buf, size_t one, size_t n, void *arg)
{
	struct transfer *t = arg;
	size_t part = size - t->sent < n ? size - t->sent : n;

	memcpy(buf, body + t->sent, part);
	t->sent += part;
	return part;
}

static void add_header(struct transfer *t, const char *name, const char *value)
{
	char line[512];

	snprintf(line, sizeof(line), "%s: %s", name, value);
	t->headers = curl_slist_append(t->headers, line);
}

static void start(CURLM *multi, struct transfer *t, unsigned long i)
{
	char path[512], url[1024], key[256], date[17], *authorization;
	struct cfs_s3_to_sign what = {
		.method = putting ? "PUT" : "GET",
		.path = path,
		.query = "",
		.headers = {[CFS_S3_HOST] = endpoint.host,
			    [CFS_S3_CONTENT_SHA256] = "UNSIGNED-PAYLOAD"},
		.now = (time_t)cfs_wall_s(),
	};

	snprintf(key, sizeof(key), "floor/%lu", i);
	if (keys_file && !fgets(key, sizeof(key), keys_file))
		fail("too few keys");
	key[strcspn(key, "\n")] = '\0';
	snprintf(path, sizeof(path), "%s/%s", endpoint.path, key);
	snprintf(url, sizeof(url), "%s%s", endpoint.origin, path);
	if (cfs_s3_sign(&signer, endpoint.region, keys, &what, date, &authorization) < 0)
		fail("cannot sign");
	curl_slist_free_all(t->headers);
	t->headers = curl_slist_append(NULL, "Expect:");
	add_header(t, "x-amz-date", date);
	add_header(t, "x-amz-content-sha256", "UNSIGNED-PAYLOAD");
	add_header(t, "Authorization", authorization);
	free(authorization);
	t->sent = 0;
	curl_easy_setopt(t->easy, CURLOPT_URL, url);
	curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
	curl_multi_add_handle(multi, t->easy);
}

static void set_up(struct transfer *t)
{
	t->easy = curl_easy_init();
	if (!t->easy)
		fail("out of memory");
	curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
	curl_easy_setopt(t->easy, CURLOPT_BUFFERSIZE, BUFFER);
	curl_easy_setopt(t->easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER);
	curl_easy_setopt(t->easy, CURLOPT_FAILONERROR, 1L);
	curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, discard);
	if (putting) {
		curl_easy_setopt(t->easy, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(t->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)size);
		curl_easy_setopt(t->easy, CURLOPT_READFUNCTION, send_body);
		curl_easy_setopt(t->easy, CURLOPT_READDATA, t);
	}
}

static void run(unsigned in_flight, unsigned long count)
{
	struct transfer *v = calloc(in_flight, sizeof(*v)), *t;
	CURLM *multi = curl_multi_init();
	unsigned long next = 0, done = 0;
	int running, left;
	CURLMsg *msg;
	unsigned i;

	if (!v || !multi)
		fail("out of memory");
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)in_flight);
	for (i = 0; i < in_flight && next < count; i++) {
		set_up(&v[i]);
		start(multi, &v[i], next++);
	}
	while (done < count) {
		curl_multi_perform(multi, &running);
		while ((msg = curl_multi_info_read(multi, &left)) != NULL) {
			if (msg->data.result != CURLE_OK)
				fail(curl_easy_strerror(msg->data.result));
			curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t);
			curl_multi_remove_handle(multi, t->easy);
			done++;
			if (next < count)
				start(multi, t, next++);
		}
		if (done < count)
			curl_multi_poll(multi, NULL, 0, 1000, NULL);
	}
}

int main(int argc, char **argv)
{
	unsigned long count, in_flight;
	char err[CFS_OBJECT_ERRLEN];
	double seconds, cpu, gib;
	struct rusage u;
	uint64_t begin;

	if (argc != 6 && argc != 7)
		fail("usage: floor_s3 BUCKET put|get IN-FLIGHT COUNT SIZE [KEYS]");
	keys_file = argc == 7 ? fopen(argv[6], "re") : NULL;
	if (argc == 7 && !keys_file)
		fail("cannot read the keys");
	putting = strcmp(argv[2], "put") == 0;
	in_flight = strtoul(argv[3], NULL, 10);
	count = strtoul(argv[4], NULL, 10);
	size = strtoul(argv[5], NULL, 10);
	if (!in_flight || in_flight > IN_FLIGHT_MAX || !count || !size)
		fail("bad number");
	if (cfs_s3_endpoint_parse("s3", argv[1], &endpoint, err) < 0)
		fail(err);
	if (!getenv("ACCESS_KEY") || !getenv("SECRET_KEY") ||
	    cfs_s3_keys_new(getenv("ACCESS_KEY"), getenv("SECRET_KEY"), NULL, 0, &keys) < 0)
		fail("no keys");
	cfs_s3_signer_init(&signer);
	curl_global_init(CURL_GLOBAL_ALL);
	body = calloc(1, size);
	if (!body)
		fail("out of memory");
	begin = cfs_now_ns();
	run((unsigned)in_flight, count);
	seconds = (double)(cfs_now_ns() - begin) / 1e9;
	if (!putting && received != (unsigned long long)count * size)
		fail("wrong sizes");
	getrusage(RUSAGE_SELF, &u);
	cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	      (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
	gib = (double)count * (double)size / 1073741824;
	printf("{\"mib_per_s\": %.1f, \"cpu_s_per_gib\": %.2f}\n", gib * 1024 / seconds, cpu / gib);
	return 0;
}
