/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys from sources specific to AWS: profile files, and the metadata services of instances (IMDSv2)
 * and containers.
 */
#include <ctype.h>
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
#define SERVICE_TIMEOUT_MS 2000
#define SERVICE_ANSWER_MAX 16384
#define SERVICE_TRIES	   2

/* ---- profile ---- */

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
	if (!*dst && *value)
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

static void read_profile(const char *path, const char *name, struct cfs_s3_keys *k)
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
			keep(&k->access, value);
		else if (strcmp(key, "aws_secret_access_key") == 0)
			keep(&k->secret, value);
		else if (strcmp(key, "aws_session_token") == 0)
			keep(&k->token, value);
	}
	if (line)
		OPENSSL_cleanse(line, cap);
	fclose(in);
}

static void read_profile_file(const char *variable, const char *file, const char *name,
			      struct cfs_s3_keys *k)
{
	const char *path = cfs_s3_env(variable), *home = cfs_s3_env("HOME");
	cfs_auto_free char *in_home = NULL;

	if (!path && home && asprintf(&in_home, "%s/.aws/%s", home, file) >= 0)
		path = in_home;
	if (path)
		read_profile(path, name, k);
}

int cfs_s3_keys_from_profile(struct cfs_s3_keys **ret)
{
	const char *name = cfs_s3_env("AWS_PROFILE") ? cfs_s3_env("AWS_PROFILE") : "default";
	struct cfs_s3_keys *k;
	int r = cfs_s3_keys_new(NULL, NULL, NULL, 0, &k);

	if (r < 0)
		return r;
	read_profile_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", name, k);
	if (!k->access || !k->secret)
		read_profile_file("AWS_CONFIG_FILE", "config", name, k);
	if (!k->access || !k->secret) {
		cfs_s3_keys_unref(k);
		return -ENOENT;
	}
	*ret = k;
	return 0;
}

/* ---- metadata services ---- */

/* Metadata services are link-local: no proxy, a short timeout. */
struct service {
	struct cfs_http *http;
	cfs_deadline_t deadline;
	char text[SERVICE_ANSWER_MAX]; /* its last answer */
};

/* 0 for a status of 200. */
static int ask(struct service *s, const char *method, const char *url,
	       const struct cfs_http_header *header)
{
	struct iovec dst = {.iov_base = s->text, .iov_len = sizeof(s->text) - 1};
	struct cfs_http_request req = {
		.method = method,
		.url = url,
		.headers = header,
		.n_headers = 1,
		.dst = &dst,
		.n_dst = 1,
		.shared = true,
	};
	struct cfs_http_response resp;
	int i, r = -EHOSTUNREACH;

	for (i = 0; i < SERVICE_TRIES && r < 0 && r != -ENOENT; i++) {
		req.deadline = CFS_MIN(s->deadline, cfs_deadline_in(SERVICE_TIMEOUT_MS));
		if (cfs_http_run(s->http, &req, &resp) < 0)
			r = -EHOSTUNREACH;
		else
			r = resp.status == 200 ? 0 : resp.status == 404 ? -ENOENT : -EPROTO;
	}
	s->text[r == 0 ? resp.received : 0] = '\0';
	return r;
}

static const char *json_text(const json_t *j, const char *name)
{
	return json_string_value(json_object_get(j, name));
}

/* {"AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": "2026-01-31T12:00:00Z"}
 */
static int parse_role(const char *text, struct cfs_s3_keys **ret)
{
	json_t *j = json_loads(text, 0, NULL);
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

static int from_container(struct service *s, struct cfs_s3_keys **ret)
{
	const char *relative = cfs_s3_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = cfs_s3_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	struct cfs_http_header token = {"Authorization",
					cfs_s3_env("AWS_CONTAINER_AUTHORIZATION_TOKEN")};
	cfs_auto_free char *url = NULL;
	int r;

	if (!relative && !full)
		return -ENOENT;
	if (asprintf(&url, "%s%s", relative ? ECS : "", relative ? relative : full) < 0)
		return -ENOMEM;
	r = ask(s, "GET", url, &token);
	return r < 0 ? r : parse_role(s->text, ret);
}

static int from_imds(struct service *s, struct cfs_s3_keys **ret)
{
	static const struct cfs_http_header lifetime = {"X-aws-ec2-metadata-token-ttl-seconds",
							TOKEN_TTL_S};
	const char *base = cfs_s3_env("AWS_EC2_METADATA_SERVICE_ENDPOINT"), *off;
	cfs_auto_free char *url = NULL, *token_text = NULL, *role_url = NULL;
	struct cfs_http_header token = {"X-aws-ec2-metadata-token", NULL};
	int r;

	off = cfs_s3_env("AWS_EC2_METADATA_DISABLED");
	if (off && strcmp(off, "true") == 0)
		return -ENOENT;
	base = base ? base : IMDS;
	if (asprintf(&url, "%s/latest/api/token", base) < 0)
		return -ENOMEM;
	r = ask(s, "PUT", url, &lifetime);
	if (r < 0)
		return r == -EHOSTUNREACH ? -ENOENT : r;
	token.value = token_text = strdup(trim(s->text));
	if (!token_text)
		return -ENOMEM;
	free(url);
	if (asprintf(&url, "%s/latest/meta-data/iam/security-credentials/", base) < 0) {
		url = NULL;
		return -ENOMEM;
	}
	r = ask(s, "GET", url, &token);
	if (r < 0)
		return r;
	s->text[strcspn(s->text, "\r\n")] = '\0';
	if (asprintf(&role_url, "%s%s", url, trim(s->text)) < 0)
		return -ENOMEM;
	r = ask(s, "GET", role_url, &token);
	return r < 0 ? r : parse_role(s->text, ret);
}

int cfs_s3_keys_from_instance(cfs_deadline_t deadline, struct cfs_s3_keys **ret)
{
	static const struct cfs_http_conf conf = {
		.max_connections = 1,
		.silence_ms = SERVICE_TIMEOUT_MS,
		.connect_ms = SERVICE_TIMEOUT_MS / 2,
		.small_buffers = true,
		.direct = true,
	};
	struct service *s = calloc(1, sizeof(*s));
	char err[CFS_OBJECT_ERRLEN];
	int r;

	if (!s)
		return -ENOMEM;
	s->deadline = deadline;
	r = cfs_http_open(&conf, &s->http, err);
	if (r == 0) {
		r = from_container(s, ret);
		if (r == -ENOENT)
			r = from_imds(s, ret);
	}
	cfs_http_close(s->http);
	OPENSSL_cleanse(s->text, sizeof(s->text));
	free(s);
	return r;
}
