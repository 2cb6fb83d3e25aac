/* SPDX-License-Identifier: Apache-2.0 */
/* The address of a bucket: the forms of volume-format section 7. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text/url.h"
#include "s3.h"

#define DEFAULT_REGION "us-east-1"

static const char *const aws_domains[] = {".amazonaws.com", ".amazonaws.com.cn"};

static int fail(char err[CFS_OBJECT_ERRLEN], const char *text, const char *why)
{
	snprintf(err, CFS_OBJECT_ERRLEN, "bucket %.120s: %.110s", text, why);
	return -EINVAL;
}

static bool ends_with(const char *s, const char *end)
{
	size_t len = strlen(s), end_len = strlen(end);

	return len > end_len && strcmp(s + len - end_len, end) == 0;
}

/* The length of the host without the domain of AWS; 0 when it is not there. */
static size_t aws_prefix_len(const char *host)
{
	size_t i;

	for (i = 0; i < sizeof(aws_domains) / sizeof(aws_domains[0]); i++) {
		if (ends_with(host, aws_domains[i]))
			return strlen(host) - strlen(aws_domains[i]);
	}
	return 0;
}

static const char *fallback_region(const char *storage, const char *asked)
{
	const char *region = asked && *asked ? asked : NULL;

	if (!region && strcmp(storage, "minio") == 0)
		region = cfs_s3_env("MINIO_REGION");
	else if (!region)
		region = cfs_s3_env("AWS_REGION") ? cfs_s3_env("AWS_REGION")
						  : cfs_s3_env("AWS_DEFAULT_REGION");
	return region ? region : DEFAULT_REGION;
}

/* malloc'ed, in *dst; what was there is freed. */
static int set(char **dst, const char *s, size_t len)
{
	char *copy = strndup(s, len);

	free(*dst);
	*dst = copy;
	return copy ? 0 : -ENOMEM;
}

/*
 * "s3", "s3.REGION", "s3-REGION", with "dualstack." or "fips." before the region, "s3-accelerate";
 * false: no region in it.
 */
static bool region_of_service(const char *s, size_t len, const char **ret, size_t *ret_len)
{
	static const char *const variants[] = {"fips.", "dualstack."};
	size_t i;

	if (len < 4)
		return false;
	s += 3;
	len -= 3;
	for (i = 0; i < 2; i++) {
		size_t n = strlen(variants[i]);

		if (len > n && strncmp(s, variants[i], n) == 0) {
			s += n;
			len -= n;
		}
	}
	/* Hosts of all regions. */
	if (strncmp(s, "accelerate", 10) == 0 || strncmp(s, "external-1", 10) == 0)
		return false;
	*ret = s;
	*ret_len = len;
	return len > 0;
}

/* Where "s3" begins as a label of its own or before '-'; NULL when it does not. */
static const char *find_service(const char *host, size_t len)
{
	const char *p = host + len, *end = host + len;

	while (p > host) {
		p--;
		if ((p == host || p[-1] == '.') && end - p >= 2 && strncmp(p, "s3", 2) == 0 &&
		    (p + 2 == end || p[2] == '.' || p[2] == '-'))
			return p;
	}
	return NULL;
}

static bool fits_in_host(const char *bucket, bool tls)
{
	const char *p;

	for (p = bucket; *p; p++) {
		/* The certificate's wildcard covers one label. */
		if (!islower((unsigned char)*p) && !isdigit((unsigned char)*p) && *p != '-' &&
		    (*p != '.' || tls))
			return false;
	}
	return true;
}

/* The bucket is the first element of the path, if there is one. */
static int set_bucket_from_path(struct cfs_s3_endpoint *e, const char *path)
{
	return set(&e->bucket, path, strcspn(path, "/"));
}

static int parse_aws(struct cfs_s3_endpoint *e, const struct cfs_url *u, const char *text, bool tls,
		     char err[CFS_OBJECT_ERRLEN])
{
	size_t len = aws_prefix_len(u->hosts), region_len;
	const char *service = find_service(u->hosts, len), *region, *host = u->hosts;
	int r = 0;

	if (!service)
		return fail(err, text, "this host of AWS is not one of S3");
	if (region_of_service(service, (size_t)(u->hosts + len - service), &region, &region_len)) {
		if (memmem(region, region_len, ".vpce", 5))
			region_len = strcspn(region, ".");
		r = set(&e->region, region, region_len);
	}
	if (u->path && *u->path)
		r = r < 0 ? r : set_bucket_from_path(e, u->path);
	else if (service == host || strstr(host, ".vpce."))
		return fail(err, text, "no bucket in it");
	else
		r = r < 0 ? r : set(&e->bucket, host, (size_t)(service - host - 1));
	if (r < 0)
		return r;

	/* Every spelling becomes one form: the bucket's own host where that works, else the path. */
	if (strstr(host, ".vpce."))
		return set(&e->host, host, strlen(host));
	free(e->host);
	if (fits_in_host(e->bucket, tls)) {
		r = asprintf(&e->host, "%s.%s", e->bucket, service);
		if (r >= 0)
			r = set(&e->path, "", 0);
	} else {
		r = asprintf(&e->host, "%s", service);
	}
	return r < 0 ? -ENOMEM : 0;
}

static int parse_other(struct cfs_s3_endpoint *e, const struct cfs_url *u, const char *text,
		       bool minio, char err[CFS_OBJECT_ERRLEN])
{
	bool vhost = !minio && cfs_s3_env("JFS_S3_VHOST_STYLE");
	const char *dot = strchr(u->hosts, '.');
	int r;

	if (u->path && *u->path) {
		r = set_bucket_from_path(e, u->path);
		if (r == 0 && vhost) {
			free(e->host);
			r = asprintf(&e->host, "%s.%s", e->bucket, u->hosts) < 0 ? -ENOMEM : 0;
		} else if (r == 0) {
			r = set(&e->host, u->hosts, strlen(u->hosts));
		}
	} else {
		/* A first label of digits only is that of an address. */
		if (minio || !dot || u->hosts[0] == '[' ||
		    strspn(u->hosts, "0123456789") == (size_t)(dot - u->hosts))
			return fail(err, text, "no bucket in it: write it as HOST/BUCKET");
		r = set(&e->bucket, u->hosts, (size_t)(dot - u->hosts));
		if (r == 0 && vhost)
			r = set(&e->host, u->hosts, strlen(u->hosts));
		else if (r == 0)
			r = set(&e->host, dot + 1, strlen(dot + 1));
	}
	return r == 0 && vhost ? set(&e->path, "", 0) : r;
}

static int set_option(char **dst, const struct cfs_url *u, const char *name)
{
	const char *value = cfs_url_option(u, name);

	return value && *value ? set(dst, value, strlen(value)) : 0;
}

static bool flag_option(const struct cfs_url *u, const char *name)
{
	const char *value = cfs_url_option(u, name);

	return value && strcmp(value, "false") != 0 && strcmp(value, "0") != 0;
}

/* With a scheme, and a bare bucket name as a host of AWS. */
static int complete(const char *storage, const char *text, char **ret)
{
	const char *sep = strstr(text, "://"), *host = sep ? sep + 3 : text;
	size_t len = strcspn(host, "/?");
	cfs_auto_free char *name = strndup(host, len);
	bool bare, s3 = strcmp(storage, "s3") == 0;
	int r;

	if (!name)
		return -ENOMEM;
	bare = s3 && len && !strpbrk(name, ".:") && (host[len] != '/' || !host[len + 1]);
	if (bare)
		r = asprintf(ret, "https://%s.s3.%s.amazonaws.com%s", name,
			     fallback_region(storage, NULL), host + len + strspn(host + len, "/"));
	else if (sep)
		r = asprintf(ret, "%s", text);
	else
		r = asprintf(ret, "%s://%s", s3 && aws_prefix_len(name) ? "https" : "http", text);
	return r < 0 ? -ENOMEM : 0;
}

static int fill(const char *storage, const char *text, const struct cfs_url *u,
		struct cfs_s3_endpoint *e, char err[CFS_OBJECT_ERRLEN])
{
	bool minio = strcmp(storage, "minio") == 0, tls = strcmp(u->scheme, "https") == 0;
	cfs_auto_free char *encoded = NULL;
	const char *region;
	int r;

	if (!tls && strcmp(u->scheme, "http") != 0)
		return fail(err, text, "its scheme must be http or https");
	if (!u->hosts || strchr(u->hosts, ','))
		return fail(err, text, "it must name one host");
	if (!minio && aws_prefix_len(u->hosts))
		r = parse_aws(e, u, text, tls, err);
	else
		r = parse_other(e, u, text, minio, err);
	if (r < 0)
		return r;
	if (!*e->bucket || !*e->host)
		return fail(err, text, "no bucket or no host in it");
	if (!e->path) {
		encoded = malloc(3 * strlen(e->bucket) + 2);
		if (!encoded)
			return -ENOMEM;
		encoded[0] = '/';
		cfs_s3_encode(e->bucket, false, encoded + 1);
		e->path = encoded;
		encoded = NULL;
	}
	region = cfs_url_option(u, "region");
	if (!e->region || !*e->region || (region && *region)) {
		region = fallback_region(storage, region);
		r = set(&e->region, region, strlen(region));
	}
	if (r == 0)
		r = asprintf(&e->origin, "%s://%s", u->scheme, e->host) < 0 ? -ENOMEM : 0;
	if (r == 0)
		r = set_option(&e->ca_certs, u, "ca-certs");
	if (r == 0)
		r = set_option(&e->ssl_cert, u, "ssl-cert");
	if (r == 0)
		r = set_option(&e->ssl_key, u, "ssl-key");
	e->tls = tls;
	e->insecure = flag_option(u, "tls-insecure-skip-verify");
	e->checksum = !flag_option(u, "disable-checksum");
	e->verify_etag = flag_option(u, "verify-etag");
	return r;
}

int cfs_s3_endpoint_parse(const char *storage, const char *text, struct cfs_s3_endpoint *ret,
			  char err[CFS_OBJECT_ERRLEN])
{
	cfs_auto_free char *whole = NULL;
	struct cfs_s3_endpoint e = {0};
	struct cfs_url u;
	char why[256], masked[160];
	int r;

	cfs_url_mask(text, masked, sizeof(masked));
	r = complete(storage, text, &whole);
	if (r < 0)
		return r;
	if (cfs_url_parse(whole, &u, why) < 0)
		return fail(err, masked, why);
	if (u.user || u.password)
		r = fail(err, masked, "keys do not belong in it: set ACCESS_KEY and SECRET_KEY");
	else
		r = fill(storage, masked, &u, &e, err);
	cfs_url_free(&u);
	if (r < 0)
		cfs_s3_endpoint_free(&e);
	else
		*ret = e;
	return r;
}

void cfs_s3_endpoint_free(struct cfs_s3_endpoint *e)
{
	free(e->origin);
	free(e->host);
	free(e->path);
	free(e->bucket);
	free(e->region);
	free(e->ca_certs);
	free(e->ssl_cert);
	free(e->ssl_key);
	*e = (struct cfs_s3_endpoint){0};
}
