/* SPDX-License-Identifier: Apache-2.0 */
/* The server's address and credentials, from the URL and the environment. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text/opt.h"
#include "meta/redis/redis-internal.h"

enum { DEFAULT_PORT = 6379, SENTINEL_PORT = 26379, DEFAULT_CONNS = 4, MAX_CONNS = 64 };

static int bad(char err[256], const char *what, const char *value)
{
	return cfs_fail(err, -EINVAL, "%s: '%.100s'", what, value);
}

/* Both spellings of the timeouts are in use. */
static bool is_option(const char *key, const char *name)
{
	while (*key && (*key == *name || (*key == '_' && *name == '-'))) {
		key++;
		name++;
	}
	return !*key && !*name;
}

static const char *option(const struct cfs_url *url, const char *name)
{
	size_t i;

	for (i = 0; i < url->n_query; i++)
		if (is_option(url->query[i].key, name))
			return url->query[i].value;
	return NULL;
}

/* Warns of options of other clients, and of misspelt ones. */
static void warn_unknown(const struct cfs_url *url)
{
	static const char *const known[] = {
		"read-timeout",	     "write-timeout",	     "min-retry-backoff",
		"max-retry-backoff", "max-open-conns",	     "any-eviction-policy",
		"tls-ca-cert-file",  "tls-cert-file",	     "tls-key-file",
		"tls-server-name",   "insecure-skip-verify",
	};
	size_t i, k;

	for (i = 0; i < url->n_query; i++) {
		const char *key = url->query[i].key;

		for (k = 0; k < CFS_ARRAY_SIZE(known) && !is_option(key, known[k]); k++)
			;
		if (k == CFS_ARRAY_SIZE(known) && !(url->socket && strcmp(key, "db") == 0))
			cfs_warn("unknown option of the metadata URL, ignored: option=%.60s", key);
	}
}

static int duration(const struct cfs_url *url, const char *name, uint64_t def_ms, uint64_t *ret,
		    char err[256])
{
	const char *v = option(url, name);

	*ret = def_ms;
	if (v && cfs_parse_duration_ms(v, 1000, ret) < 0) {
		char what[100];

		snprintf(what, sizeof(what), "bad duration for %s", name);
		return bad(err, what, v);
	}
	return 0;
}

static bool is_on(const struct cfs_url *url, const char *name)
{
	const char *v = option(url, name);

	return v && strcmp(v, "false") != 0 && strcmp(v, "0") != 0;
}

static int copy(const char *v, char **ret)
{
	*ret = v && *v ? strdup(v) : NULL;
	return v && *v && !*ret ? -ENOMEM : 0;
}

/* Parses "host", "host:port", "[v6]", "[v6]:port"; port 0: the text has none. */
static int parse_addr(const char *s, size_t len, struct rds_addr *ret)
{
	const char *end = s + len, *colon = memrchr(s, ':', len);
	const char *close = memchr(s, ']', len);

	if (colon && close && colon < close)
		colon = NULL;
	ret->port = colon ? (unsigned)strtoul(colon + 1, NULL, 10) : 0;
	if (colon)
		end = colon;
	if (*s == '[' && close) {
		s++;
		end = close;
	}
	if (end == s || (size_t)(end - s) >= sizeof(ret->host) || ret->port > 65535)
		return -EINVAL;
	memcpy(ret->host, s, (size_t)(end - s));
	ret->host[end - s] = '\0';
	return 0;
}

static int parse_seeds(struct rds_target *t, const char *s, unsigned def_port)
{
	size_t n = 1, i;
	unsigned last = 0;

	for (i = 0; s[i]; i++)
		n += s[i] == ',';
	t->seeds = calloc(n, sizeof(*t->seeds));
	if (!t->seeds)
		return -ENOMEM;
	for (; *s; t->n_seeds++) {
		size_t len = strcspn(s, ",");

		if (parse_addr(s, len, &t->seeds[t->n_seeds]) < 0)
			return -EINVAL;
		last = t->seeds[t->n_seeds].port;
		s += len + (s[len] == ',');
	}
	/* With Sentinel, the port of the last seed is the default for all seeds. */
	if (t->master && last)
		def_port = last;
	for (i = 0; i < t->n_seeds; i++)
		if (!t->seeds[i].port)
			t->seeds[i].port = def_port;
	return t->n_seeds ? 0 : -EINVAL;
}

static int parse_hosts(struct rds_target *t, const struct cfs_url *url, char err[256])
{
	const char *hosts = url->hosts ? url->hosts : "127.0.0.1";
	const char *comma = strchr(hosts, ','), *colon = strchr(hosts, ':');
	int r;

	if (url->socket) {
		t->seeds = calloc(1, sizeof(*t->seeds));
		if (!t->seeds)
			return -ENOMEM;
		t->n_seeds = 1;
		if (strlen(url->socket) >= 108)
			return bad(err, "the socket's path is too long", url->socket);
		snprintf(t->seeds[0].host, sizeof(t->seeds[0].host), "%s", url->socket);
		return 0;
	}
	if (comma && (!colon || comma < colon)) {
		t->master = strndup(hosts, (size_t)(comma - hosts));
		if (!t->master)
			return -ENOMEM;
		hosts = comma + 1;
	}
	r = parse_seeds(t, hosts, t->master ? SENTINEL_PORT : DEFAULT_PORT);
	/* It may be the beginning of a password, so it is not printed. */
	if (r == -EINVAL)
		return cfs_fail(err, r, "bad host before the port (in a password write / as %%2F)");
	return r;
}

static int parse_db(struct rds_target *t, const struct cfs_url *url, char err[256])
{
	const char *db = url->socket ? cfs_url_option(url, "db") : url->path;
	char *end;
	unsigned long n;

	if (!db || !*db)
		return 0;
	n = strtoul(db, &end, 10);
	/* A wrong database number may be a misplaced password, so it is not printed. */
	if (*end || *db < '0' || *db > '9' || n > 1000000)
		return cfs_fail(err, -EINVAL,
				"the part after the last / must be a database number");
	t->db = (unsigned)n;
	return 0;
}

static int parse_conns(struct rds_target *t, const struct cfs_url *url, char err[256])
{
	const char *v = option(url, "max-open-conns");
	unsigned long n;
	char *end;

	t->max_conns = DEFAULT_CONNS;
	if (!v)
		return 0;
	n = strtoul(v, &end, 10);
	if (*end || *v < '0' || *v > '9' || n > MAX_CONNS)
		return bad(err, "max_open_conns must be 0 to 64", v);
	if (n)
		t->max_conns = (unsigned)n;
	return 0;
}

static int parse_options(struct rds_target *t, const struct cfs_url *url, char err[256])
{
	uint64_t min = 0, max = 0;
	int r = duration(url, "read-timeout", 30000, &t->read_timeout_ms, err);

	if (!r)
		r = duration(url, "write-timeout", 5000, &t->write_timeout_ms, err);
	if (!r)
		r = duration(url, "min-retry-backoff", 20, &min, err);
	if (!r)
		r = duration(url, "max-retry-backoff", 10000, &max, err);
	if (!r)
		r = parse_conns(t, url, err);
	if (!r)
		r = parse_db(t, url, err);
	if (r)
		return r;
	t->min_backoff_ms = (unsigned)CFS_MIN(CFS_MAX(min, 1), 60000);
	t->max_backoff_ms = (unsigned)CFS_MIN(CFS_MAX(max, t->min_backoff_ms), 60000);
	t->tls = strcmp(url->scheme, "rediss") == 0;
	t->verify = !is_on(url, "insecure-skip-verify");
	t->any_eviction = is_on(url, "any-eviction-policy");
	r = copy(option(url, "tls-ca-cert-file"), &t->tls_ca);
	if (!r)
		r = copy(option(url, "tls-cert-file"), &t->tls_cert);
	if (!r)
		r = copy(option(url, "tls-key-file"), &t->tls_key);
	if (!r)
		r = copy(option(url, "tls-server-name"), &t->tls_name);
	return r;
}

static int parse_secrets(struct rds_target *t, const struct cfs_url *url, char err[256])
{
	const char *own = getenv("REDIS_PASSWORD");
	int r = copy(url->user, &t->user);

	if (!r && url->password)
		r = copy(url->password, &t->password);
	else if (!r && own && *own)
		r = copy(own, &t->password);
	else if (!r)
		r = cfs_engine_password(&t->password, err);
	if (!r)
		r = copy(getenv("SENTINEL_PASSWORD"), &t->sentinel_password);
	return r;
}

static void describe(struct rds_target *t)
{
	if (t->master)
		snprintf(t->where, sizeof(t->where), "%.80s (Sentinel at %.120s:%u)", t->master,
			 t->seeds[0].host, t->seeds[0].port);
	else if (!t->seeds[0].port)
		snprintf(t->where, sizeof(t->where), "%.120s db %u", t->seeds[0].host, t->db);
	else
		snprintf(t->where, sizeof(t->where), "%.120s:%u db %u", t->seeds[0].host,
			 t->seeds[0].port, t->db);
}

int rds_target_init(struct rds_target *t, const struct cfs_url *url, char err[256])
{
	int r;

	*t = (struct rds_target){0};
	err[0] = '\0';
	pthread_mutex_init(&t->lock, NULL);
	r = parse_hosts(t, url, err);
	if (!r)
		r = parse_options(t, url, err);
	if (!r)
		r = parse_secrets(t, url, err);
	if (!r) {
		describe(t);
		warn_unknown(url);
	} else if (!err[0]) {
		snprintf(err, 256, "out of memory");
	}
	return r;
}

static void wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

void rds_target_free(struct rds_target *t)
{
	free(t->seeds);
	free(t->master);
	free(t->user);
	wipe(t->password);
	wipe(t->sentinel_password);
	free(t->tls_ca);
	free(t->tls_cert);
	free(t->tls_key);
	free(t->tls_name);
	pthread_mutex_destroy(&t->lock);
}

void rds_target_forget(struct rds_target *t)
{
	pthread_mutex_lock(&t->lock);
	t->current.host[0] = '\0';
	pthread_mutex_unlock(&t->lock);
}

void rds_target_moved(struct rds_target *t, const char *to)
{
	const char *space = strchr(to, ' ');
	struct rds_addr addr;

	if (!space || parse_addr(space + 1, strlen(space + 1), &addr) < 0)
		return;
	pthread_mutex_lock(&t->lock);
	t->current = addr;
	pthread_mutex_unlock(&t->lock);
}
