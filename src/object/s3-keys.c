/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys from sources specific to AWS: profile files, and the metadata services of instances (IMDSv2)
 * and containers.
 */
#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "s3.h"

#define IMDS		   "http://169.254.169.254"
#define ECS		   "http://169.254.170.2"
#define TOKEN_TTL_S	   "21600"
#define SERVICE_TIMEOUT_MS 2000L
#define SERVICE_ANSWER_MAX 16384
#define SERVICE_TRIES	   2

static const char *env(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* ---- profile ---- */

struct profile {
	char *access, *secret, *token;
};

static char *trim(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return text;
}

static void keep(char **dst, const char *value)
{
	if (!*dst)
		*dst = strdup(value);
}

/* "[NAME]", in the config file "[profile NAME]" but for the default. */
static bool is_section(char *line, const char *name)
{
	char *end = strchr(line, ']');

	if (!end)
		return false;
	*end = '\0';
	line = trim(line + 1);
	if (strncmp(line, "profile ", 8) == 0)
		line = trim(line + 8);
	return strcmp(line, name) == 0;
}

static void read_profile(const char *path, const char *name, struct profile *p)
{
	cfs_auto_free char *line = NULL;
	bool mine = false;
	size_t cap = 0;
	FILE *in;

	in = fopen(path, "re");
	if (!in)
		return;
	while (getline(&line, &cap, in) > 0) {
		char *key = trim(line), *value = strchr(key, '=');

		if (*key == '[') {
			mine = is_section(key, name);
			continue;
		}
		if (!mine || !value || *key == '#' || *key == ';')
			continue;
		*value++ = '\0';
		key = trim(key);
		value = trim(value);
		if (strcmp(key, "aws_access_key_id") == 0)
			keep(&p->access, value);
		else if (strcmp(key, "aws_secret_access_key") == 0)
			keep(&p->secret, value);
		else if (strcmp(key, "aws_session_token") == 0)
			keep(&p->token, value);
	}
	if (line)
		OPENSSL_cleanse(line, cap);
	fclose(in);
}

static void read_profile_file(const char *variable, const char *file, const char *name,
			      struct profile *p)
{
	const char *path = env(variable), *home = env("HOME");
	cfs_auto_free char *in_home = NULL;

	if (!path && home && asprintf(&in_home, "%s/.aws/%s", home, file) >= 0)
		path = in_home;
	if (path)
		read_profile(path, name, p);
}

int cfs_s3_keys_from_profile(struct cfs_s3_keys **ret)
{
	const char *name = env("AWS_PROFILE") ? env("AWS_PROFILE") : "default";
	struct profile p = {0};
	int r = -ENOENT;

	read_profile_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", name, &p);
	if (!p.access || !p.secret)
		read_profile_file("AWS_CONFIG_FILE", "config", name, &p);
	if (p.access && p.secret)
		r = cfs_s3_keys_new(p.access, p.secret, p.token, 0, ret);
	if (p.secret)
		OPENSSL_cleanse(p.secret, strlen(p.secret));
	if (p.token)
		OPENSSL_cleanse(p.token, strlen(p.token));
	free(p.access);
	free(p.secret);
	free(p.token);
	return r;
}

/* ---- metadata services ---- */

struct answer {
	char text[SERVICE_ANSWER_MAX];
	size_t len;
};

static size_t take_answer(char *data, size_t size, size_t n, void *arg)
{
	struct answer *a = arg;
	size_t len = size * n;

	if (len >= sizeof(a->text) - a->len)
		return 0;
	memcpy(a->text + a->len, data, len);
	a->len += len;
	a->text[a->len] = '\0';
	return len;
}

/* 0 for a status of 200. These services are on the link: no proxy, little time. */
static int ask_once(const char *method, const char *url, const char *header, struct answer *a,
		    cfs_deadline_t deadline)
{
	long timeout_ms = CFS_MIN(SERVICE_TIMEOUT_MS, (long)cfs_deadline_left_ms(deadline));
	struct curl_slist *headers = NULL;
	CURL *easy = curl_easy_init();
	long status = 0;
	CURLcode code = CURLE_OUT_OF_MEMORY;

	if (!easy)
		return -ENOMEM;
	a->len = 0;
	a->text[0] = '\0';
	if (header)
		headers = curl_slist_append(NULL, header);
	if (timeout_ms > 0 && (headers || !header)) {
		curl_easy_setopt(easy, CURLOPT_URL, url);
		curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
		curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
		curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
		curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
		curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, timeout_ms / 2 + 1);
		curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, timeout_ms);
		curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer);
		curl_easy_setopt(easy, CURLOPT_WRITEDATA, a);
		code = curl_easy_perform(easy);
		curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
	}
	curl_slist_free_all(headers);
	curl_easy_cleanup(easy);
	if (code != CURLE_OK)
		return -EHOSTUNREACH;
	return status == 200 ? 0 : status == 404 ? -ENOENT : -EPROTO;
}

static int ask(const char *method, const char *url, const char *header, struct answer *a,
	       cfs_deadline_t deadline)
{
	int i, r = -EHOSTUNREACH;

	for (i = 0; i < SERVICE_TRIES && r < 0 && r != -ENOENT; i++)
		r = ask_once(method, url, header, a, deadline);
	return r;
}

static const char *json_text(const json_t *j, const char *name)
{
	return json_string_value(json_object_get(j, name));
}

/* {"AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": "2026-01-31T12:00:00Z"}
 */
static int parse_role(const struct answer *a, struct cfs_s3_keys **ret)
{
	json_t *j = json_loadb(a->text, a->len, 0, NULL);
	const char *access, *secret, *expires;
	struct tm tm = {0};
	int r = -EPROTO;

	access = json_text(j, "AccessKeyId");
	secret = json_text(j, "SecretAccessKey");
	expires = json_text(j, "Expiration");
	if (access && secret && expires && strptime(expires, "%Y-%m-%dT%H:%M:%S", &tm))
		r = cfs_s3_keys_new(access, secret, json_text(j, "Token"), timegm(&tm), ret);
	json_decref(j);
	return r;
}

static int from_container(struct answer *a, cfs_deadline_t deadline, struct cfs_s3_keys **ret)
{
	const char *relative = env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *token = env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	cfs_auto_free char *url = NULL, *header = NULL;
	int r;

	if (!relative && !full)
		return -ENOENT;
	if (asprintf(&url, "%s%s", relative ? ECS : "", relative ? relative : full) < 0 ||
	    (token && asprintf(&header, "Authorization: %s", token) < 0))
		return -ENOMEM;
	r = ask("GET", url, header, a, deadline);
	return r < 0 ? r : parse_role(a, ret);
}

static int from_imds(struct answer *a, cfs_deadline_t deadline, struct cfs_s3_keys **ret)
{
	const char *base = env("AWS_EC2_METADATA_SERVICE_ENDPOINT"), *off;
	cfs_auto_free char *url = NULL, *header = NULL, *role_url = NULL;
	int r;

	off = env("AWS_EC2_METADATA_DISABLED");
	if (off && strcmp(off, "true") == 0)
		return -ENOENT;
	base = base ? base : IMDS;
	if (asprintf(&url, "%s/latest/api/token", base) < 0)
		return -ENOMEM;
	r = ask("PUT", url, "X-aws-ec2-metadata-token-ttl-seconds: " TOKEN_TTL_S, a, deadline);
	if (r < 0)
		return r == -EHOSTUNREACH ? -ENOENT : r;
	if (asprintf(&header, "X-aws-ec2-metadata-token: %s", trim(a->text)) < 0)
		return -ENOMEM;
	free(url);
	if (asprintf(&url, "%s/latest/meta-data/iam/security-credentials/", base) < 0) {
		url = NULL;
		return -ENOMEM;
	}
	r = ask("GET", url, header, a, deadline);
	if (r < 0)
		return r;
	a->text[strcspn(a->text, "\r\n")] = '\0';
	if (asprintf(&role_url, "%s%s", url, trim(a->text)) < 0)
		return -ENOMEM;
	r = ask("GET", role_url, header, a, deadline);
	return r < 0 ? r : parse_role(a, ret);
}

int cfs_s3_keys_from_instance(cfs_deadline_t deadline, struct cfs_s3_keys **ret)
{
	struct answer *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return -ENOMEM;
	r = from_container(a, deadline, ret);
	if (r == -ENOENT)
		r = from_imds(a, deadline, ret);
	OPENSSL_cleanse(a->text, sizeof(a->text));
	free(a);
	return r;
}
