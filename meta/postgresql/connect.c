/* SPDX-License-Identifier: Apache-2.0 */
/* From the META-URL to a connection (volume-format section 1). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text/resolve.h"
#include "meta/postgresql/pg-internal.h"

#define CONNECT_TIMEOUT_S     10
#define CONNECT_TIMEOUT_MIN_S 2 /* the minimum of libpq */

static int add(struct pg_db *db, const char *keyword, const char *value)
{
	size_t n = db->n_values;
	char **k, **v;

	k = realloc(db->keywords, (n + 2) * sizeof(*k));
	if (!k)
		return -ENOMEM;
	db->keywords = k;
	v = realloc(db->values, (n + 2) * sizeof(*v));
	if (!v)
		return -ENOMEM;
	db->values = v;
	k[n] = strdup(keyword);
	v[n] = strdup(value);
	k[n + 1] = v[n + 1] = NULL;
	db->n_values++;
	return k[n] && v[n] ? 0 : -ENOMEM;
}

void pg_free_url(struct pg_db *db)
{
	for (size_t i = 0; i < db->n_values; i++) {
		free(db->keywords[i]);
		if (db->values[i])
			explicit_bzero(db->values[i], strlen(db->values[i]));
		free(db->values[i]);
	}
	free(db->keywords);
	free(db->values);
}

static bool is_own_option(const char *key)
{
	static const char *const own[] = {
		"max_open_conns", "max_idle_conns", "max_idle_time", "max_life_time",
		"table_prefix",	  "search_path",    "host"};

	for (size_t i = 0; i < CFS_ARRAY_SIZE(own); i++)
		if (!strcmp(own[i], key))
			return true;
	return false;
}

static int add_options(struct pg_db *db, const struct cfs_url *url, char err[256])
{
	PQconninfoOption *known = PQconndefaults();
	int r = known ? 0 : -ENOMEM;

	for (size_t i = 0; i < url->n_query && !r; i++) {
		const char *key = url->query[i].key;
		const PQconninfoOption *o = known;

		if (is_own_option(key))
			continue;
		while (o->keyword && strcmp(o->keyword, key) != 0)
			o++;
		if (!o->keyword) {
			r = cfs_fail(err, -EINVAL, "unknown option of the metadata URL: %.100s",
				     key);
		} else {
			r = add(db, key, url->query[i].value);
		}
	}
	PQconninfoFree(known);
	return r;
}

/* Converts "h1:1,h2" to the form of libpq: "h1,h2" and "1,5432". */
static int add_hosts(struct pg_db *db, const char *hosts)
{
	cfs_auto_free char *names = calloc(1, strlen(hosts) + 1);
	cfs_auto_free char *ports = calloc(1, 6 * strlen(hosts) + 6);
	char *n = names, *p = ports;
	int r;

	if (!names || !ports)
		return -ENOMEM;
	for (const char *s = hosts; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		size_t len = strcspn(s, ",");
		const char *end = s + len, *colon = memrchr(s, ':', len);

		if (colon && memchr(colon, ']', (size_t)(end - colon)))
			colon = NULL;
		if (s > hosts) {
			*n++ = ',';
			*p++ = ',';
		}
		len = (size_t)((colon ? colon : end) - s);
		if (len > 2 && *s == '[') {
			s++;
			len -= 2;
		}
		n = mempcpy(n, s, len);
		p = colon ? mempcpy(p, colon + 1, (size_t)(end - colon - 1)) : stpcpy(p, "5432");
	}
	*n = *p = '\0';
	r = add(db, "host", names);
	return r ? r : add(db, "port", ports);
}

static int add_secret(struct pg_db *db, char err[256])
{
	char *secret = NULL;
	int r = cfs_engine_password(&secret, err);

	if (r || !secret)
		return r;
	r = add(db, "password", secret);
	explicit_bzero(secret, strlen(secret));
	free(secret);
	return r;
}

/* Makes the schema part of each table name, because a pooler would lose a session setting. */
static int set_schema(struct pg_db *db, const char *schema, char err[256])
{
	char *prefix;

	if (!schema || !*schema)
		return 0;
	if (strpbrk(schema, ",`\""))
		return cfs_fail(err, -EINVAL, "search_path must name one schema");
	if (asprintf(&prefix, "%s`.`%s", schema, db->sql.prefix) < 0)
		return -ENOMEM;
	db->schema = strdup(schema);
	db->sql.bare_prefix = db->sql.prefix;
	db->sql.prefix = prefix;
	return db->schema ? 0 : -ENOMEM;
}

int pg_parse_url(struct pg_db *db, const struct cfs_url *url, char err[256])
{
	cfs_auto_free char *where = NULL;
	int r = 0;

	if (!url->path || !*url->path)
		return cfs_fail(err, -EINVAL, "postgres://: the name of the database is missing");
	if (asprintf(&where, "postgres://%s/%s",
		     url->hosts	   ? url->hosts
		     : url->socket ? url->socket
				   : "",
		     url->path) < 0) {
		where = NULL;
		return -ENOMEM;
	}
	/* The name of the database may be options of libpq, or the rest of a password. */
	db->sql.where = cfs_url_masked(where);
	if (!db->sql.where)
		return -ENOMEM;
	if (url->socket)
		r = add(db, "host", url->socket);
	else if (url->hosts)
		r = add_hosts(db, url->hosts);
	if (!r)
		r = add(db, "dbname", url->path);
	if (!r && url->user)
		r = add(db, "user", url->user);
	if (!r)
		r = url->password ? add(db, "password", url->password) : add_secret(db, err);
	/* libpq uses the last value of a keyword: options of the URL follow the defaults. */
	db->timeout_at = db->n_values;
	if (!r)
		r = add(db, "connect_timeout", "");
	if (!r)
		r = add(db, "application_name", "cachefs");
	if (!r)
		r = add(db, "client_encoding", "UTF8");
	if (!r && url->hosts && strchr(url->hosts, ',') && !db->sql.read_only)
		r = add(db, "target_session_attrs", "read-write");
	if (!r)
		r = add_options(db, url, err);
	db->name_at = db->n_values;
	if (!r)
		r = add(db, "application_name", "");
	return r ? r : set_schema(db, cfs_url_option(url, "search_path"), err);
}

/* ---- connections ---- */

/* Copies the first line of libpq's message, which has one line for each host. */
static void explain(const struct pg_db *db, const char *why, char err[256])
{
	snprintf(err, 256, "%s: %.*s", db->sql.where, (int)strcspn(why, "\n"), why);
}

/* libpq has no error codes while connecting, so the text is examined. */
static int connect_error(struct pg_db *db, const char *text, char err[256])
{
	static const struct {
		const char *words, *hint;
		int error;
	} map[] = {
		{"password authentication failed", NULL, -EACCES},
		{"no password supplied", " (set META_PASSWORD)", -EACCES},
		{"authentication failed", NULL, -EACCES},
		{"no pg_hba.conf entry", NULL, -EACCES},
		{"permission denied for database", NULL, -EACCES},
		{"role \"", NULL, -EACCES},
		{"does not exist", " (create it: createdb NAME)", -ENOENT},
		{"invalid ", NULL, -EINVAL},
	};
	size_t len;

	explain(db, text, err);
	for (size_t i = 0; i < CFS_ARRAY_SIZE(map); i++) {
		if (!strstr(text, map[i].words))
			continue;
		len = strlen(err);
		snprintf(err + len, 256 - len, "%s", map[i].hint ? map[i].hint : "");
		return map[i].error;
	}
	return -ENOTCONN;
}

static int check_server(struct pg_conn *s, bool writer, char err[256])
{
	const char *where = s->sql.db->where;
	const char *standby = PQparameterStatus(s->handle, "in_hot_standby");
	const char *read_only = PQparameterStatus(s->handle, "default_transaction_read_only");

	if (PQserverVersion(s->handle) < 110000)
		return cfs_fail(err, -ENOTSUP, "%s: PostgreSQL %d is too old, 11 is needed", where,
				PQserverVersion(s->handle) / 10000);
	if (writer &&
	    ((standby && !strcmp(standby, "on")) || (read_only && !strcmp(read_only, "on"))))
		return cfs_fail(
			err, -EROFS,
			"%s: the server is read-only (a standby?): mount with -o ro, or name the "
			"primary",
			where);
	return 0;
}

static void no_notice(void *arg, const PGresult *result)
{
}

static const char *value_of(const struct pg_db *db, const char *keyword)
{
	for (size_t i = 0; i < db->n_values; i++)
		if (!strcmp(db->keywords[i], keyword))
			return db->values[i];
	return NULL;
}

/* *ret is at least 1. A host that cannot be resolved is an error only when no host can. */
static int count_addresses(const struct pg_db *db, unsigned *ret, char err[256])
{
	cfs_auto_free char *hosts = strdup(value_of(db, "host") ?: "");
	cfs_deadline_t deadline = cfs_deadline_in(CONNECT_TIMEOUT_S * 1000);
	unsigned total = 0, failed = 0;
	char *host, *rest = NULL;
	struct cfs_addresses list;

	if (!hosts)
		return -ENOMEM;
	for (host = strtok_r(hosts, ",", &rest); host; host = strtok_r(NULL, ",", &rest)) {
		if (*host == '/' || *host == '@')
			total++;
		else if (cfs_resolve(host, 0, "the PostgreSQL server", deadline, &list, err))
			failed++;
		else
			total += list.n;
	}
	*ret = CFS_MAX(total, 1u);
	return failed && !total ? -ENOTCONN : 0;
}

/* An application_name that only one session has, as the server keeps it: 63 ASCII characters. */
static void name_session(const struct pg_db *db, char ret[SQL_SESSION_MAX])
{
	const char *base = "";

	for (size_t i = 0; i < db->name_at; i++)
		if (!strcmp(db->keywords[i], "application_name"))
			base = db->values[i];
	snprintf(ret, SQL_SESSION_MAX, "%.46s %016llx", base, (unsigned long long)cfs_random_u64());
	for (char *p = ret; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
}

/*
 * Divides CONNECT_TIMEOUT_S among all addresses, unless the URL has a timeout. *ret may be a
 * connection that has failed.
 */
static int open_handle(const struct pg_db *db, const char *session, PGconn **ret, char err[256])
{
	cfs_auto_free const char **values = calloc(db->n_values + 1, sizeof(*values));
	char timeout_s[16];
	unsigned n = 1;
	int r = values ? 0 : -ENOMEM;

	if (!r && !value_of(db, "hostaddr"))
		r = count_addresses(db, &n, err);
	if (r)
		return r;
	for (size_t i = 0; i < db->n_values; i++)
		values[i] = db->values[i];
	snprintf(timeout_s, sizeof(timeout_s), "%u",
		 CFS_MAX(CONNECT_TIMEOUT_S / n, (unsigned)CONNECT_TIMEOUT_MIN_S));
	values[db->timeout_at] = timeout_s;
	values[db->name_at] = session;
	*ret = PQconnectdbParams((const char *const *)db->keywords, values, 0);
	return *ret ? 0 : -ENOMEM;
}

int pg_connect(struct sql_db *sql, bool writer, struct sql_conn **ret, char err[256])
{
	struct pg_db *db = pg_db(sql);
	struct pg_conn *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->sql.db = sql;
	s->sql.server = PG_SERVER;
	name_session(db, s->sql.session);
	r = open_handle(db, s->sql.session, &s->handle, err);
	if (r) {
		free(s);
		return r;
	}
	if (PQstatus(s->handle) != CONNECTION_OK)
		r = connect_error(db, PQerrorMessage(s->handle), err);
	if (!r)
		r = check_server(s, writer, err);
	if (!r) {
		PQsetNoticeReceiver(s->handle, no_notice, NULL);
		if (PQsetnonblocking(s->handle, 1) || !PQenterPipelineMode(s->handle))
			r = -ENOTCONN;
	}
	if (r) {
		pg_disconnect(&s->sql);
		return r;
	}
	*ret = &s->sql;
	return 0;
}

void pg_disconnect(struct sql_conn *c)
{
	struct pg_conn *s = pg_conn(c);

	for (unsigned i = 0; i < CFS_ARRAY_SIZE(s->stmt); i++)
		pg_free_stmt(s->stmt[i]);
	PQfinish(s->handle);
	free(s);
}
