/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "url.h"

#define ERRLEN 256
#define MASK   "****"

static int fail(char err[ERRLEN], const char *why)
{
	snprintf(err, ERRLEN, "%s", why);
	return -EINVAL;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int cfs_url_decode(const char *s, size_t len, bool plus_is_space, char **ret)
{
	char *out = malloc(len + 1), *to = out;
	const char *end = s + len;
	int high, low;

	if (!out)
		return -ENOMEM;
	for (; s < end; s++) {
		if (*s == '%') {
			high = end - s > 2 ? hex_digit(s[1]) : -1;
			low = high >= 0 ? hex_digit(s[2]) : -1;
			if (low < 0 || high + low == 0) {
				free(out);
				return -EINVAL;
			}
			*to++ = (char)(high * 16 + low);
			s += 2;
		} else {
			*to++ = *s == '+' && plus_is_space ? ' ' : *s;
		}
	}
	*to = 0;
	*ret = out;
	return 0;
}

/* *ret stays NULL for an empty piece. */
static int decode_piece(const char *s, size_t len, const char *why, char **ret, char err[ERRLEN])
{
	int r;

	if (!len)
		return 0;
	r = cfs_url_decode(s, len, false, ret);
	return r == -EINVAL ? fail(err, why) : r;
}

static int copy_piece(const char *s, size_t len, char **ret)
{
	if (!len)
		return 0;
	*ret = strndup(s, len);
	return *ret ? 0 : -ENOMEM;
}

static int parse_query_item(const char *s, size_t len, struct cfs_url_query *q, char err[ERRLEN])
{
	const char *eq = memchr(s, '=', len), *end = s + len;
	const char *value = eq ? eq + 1 : end;
	int r = cfs_url_decode(s, (size_t)((eq ? eq : end) - s), true, &q->key);

	if (r == 0)
		r = cfs_url_decode(value, (size_t)(end - value), true, &q->value);
	return r == -EINVAL ? fail(err, "bad %-escape in the query part") : r;
}

static bool is_secret_key(const char *s, size_t len)
{
	static const char *const words[] = {"pass", "pwd", "secret", "token", "credential"};
	cfs_auto_free char *key = NULL;
	size_t i;

	/* Text that cannot be parsed is not shown. */
	if (cfs_url_decode(s, len, true, &key) < 0)
		return true;
	for (i = 0; i < CFS_ARRAY_SIZE(words); i++)
		if (strcasestr(key, words[i]))
			return true;
	len = strlen(key);
	return len >= 3 && strcasecmp(key + len - 3, "key") == 0;
}

/* `s` is what follows the '?', NULL when there is none. */
static int parse_query(const char *s, struct cfs_url *u, char err[ERRLEN])
{
	struct cfs_url_query *bigger;
	bool after_secret = false;
	size_t len;
	int r;

	for (; s && *s; s += len + (s[len] == '&')) {
		len = strcspn(s, "&");
		if (!len)
			continue;
		bigger = realloc(u->query, (u->n_query + 1) * sizeof(*u->query));
		if (!bigger)
			return -ENOMEM;
		u->query = bigger;
		bigger += u->n_query++;
		*bigger = (struct cfs_url_query){0};
		/* The names of unknown options are shown, which the rest of a secret must not be. */
		if (memchr(s, '@', strcspn(s, "=&")))
			return fail(err, "'@' in the name of an option (in a password write ? as"
					 " %3F, & as %26, @ as %40)");
		if (after_secret && !memchr(s, '=', len))
			return fail(err, "option without '=' behind a password (write & as %26)");
		after_secret = is_secret_key(s, strcspn(s, "=&"));
		r = parse_query_item(s, len, bigger, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* [user[:password]] of `len` bytes */
static int parse_userinfo(const char *s, size_t len, struct cfs_url *u, char err[ERRLEN])
{
	const char *colon = memchr(s, ':', len);
	size_t user_len = colon ? (size_t)(colon - s) : len;
	int r;

	r = decode_piece(s, user_len, "bad %-escape in the user name", &u->user, err);
	if (r < 0 || !colon)
		return r;
	return decode_piece(colon + 1, len - user_len - 1,
			    "bad %-escape in the password (write % as %25)", &u->password, err);
}

/* Digits up to `end`, or nothing: the usual one. */
static bool valid_port(const char *s, const char *end)
{
	unsigned port = 0;
	const char *p;

	for (p = s; p < end && port <= UINT16_MAX; p++) {
		if (!isdigit((unsigned char)*p))
			return false;
		port = 10 * port + (unsigned)(*p - '0');
	}
	return s == end || (port >= 1 && port <= UINT16_MAX);
}

/* Accepts "host", "host:port", "[v6]" and "[v6]:port". */
static bool valid_host(const char *s, size_t len)
{
	const char *end = s + len, *port;

	if (!len)
		return false;
	if (*s == '[') {
		s = memchr(s, ']', len);
		if (!s)
			return false;
		s++;
		if (s == end)
			return true;
		if (*s != ':')
			return false;
	}
	port = memchr(s, ':', (size_t)(end - s));
	if (!port)
		return !memchr(s, ' ', len);
	return valid_port(port + 1, end);
}

static int parse_hosts(const char *s, size_t len, struct cfs_url *u, char err[ERRLEN])
{
	const char *p = s, *end = s + len, *comma;
	size_t one;

	if (!len)
		return 0;
	for (;; p = comma + 1) {
		comma = memchr(p, ',', (size_t)(end - p));
		one = (size_t)((comma ? comma : end) - p);
		/* A raw '/' or '?' in a password ends here as well. */
		if (!valid_host(p, one))
			return fail(err, "bad host or port, which is 1 to 65535 (in a password"
					 " write / as %2F, ? as %3F, @ as %40)");
		if (!comma)
			break;
	}
	return copy_piece(s, len, &u->hosts);
}

/* [user[:password]@]hosts[/path][?query] */
static int parse_generic(const char *rest, struct cfs_url *u, char err[ERRLEN])
{
	size_t len = strcspn(rest, "/?");
	const char *at = memrchr(rest, '@', len), *s = rest + len;
	const char *hosts = at ? at + 1 : rest;
	int r = 0;

	if (at)
		r = parse_userinfo(rest, (size_t)(at - rest), u, err);
	if (r == 0)
		r = parse_hosts(hosts, (size_t)(s - hosts), u, err);
	if (r == 0 && *s == '/') {
		s++;
		len = strcspn(s, "?");
		r = decode_piece(s, len, "bad %-escape in the path", &u->path, err);
		s += len;
	}
	if (r == 0 && *s == '?')
		r = parse_query(s + 1, u, err);
	return r;
}

/* libpq: a host that is a directory is where the server's socket lies. */
static int parse_postgres(const char *rest, struct cfs_url *u, char err[ERRLEN])
{
	const char *host;
	int r;

	r = parse_generic(rest, u, err);
	if (r < 0)
		return r;
	host = cfs_url_option(u, "host");
	if (!host || u->hosts)
		return 0;
	if (*host == '/')
		return copy_piece(host, strlen(host), &u->socket);
	return parse_hosts(host, strlen(host), u, err);
}

/* [user:password@]/path/to.sock[?query] */
static int parse_unix(const char *rest, struct cfs_url *u, char err[ERRLEN])
{
	const char *path = strchr(rest, '/');
	size_t len;
	int r = 0;

	if (path && path != rest) {
		if (path[-1] != '@')
			return fail(err, "unix:// wants [USER:PASSWORD@]/PATH");
		r = parse_userinfo(rest, (size_t)(path - rest - 1), u, err);
	}
	if (r < 0)
		return r;
	if (!path)
		return fail(err, "unix:// needs the absolute path of a socket");
	len = strcspn(path, "?");
	r = decode_piece(path, len, "bad %-escape in the path", &u->socket, err);
	if (r == 0 && path[len])
		r = parse_query(path + len + 1, u, err);
	return r;
}

/*
 * The peer un-escapes a password only when it could stand in a URL as it is (RFC 3986 userinfo
 * with sound escapes); everything else reaches the server as written.
 */
static int parse_mysql_password(const char *s, size_t len, struct cfs_url *u)
{
	size_t i;
	int r;

	if (!len)
		return 0;
	for (i = 0; i < len; i++)
		if (!isalnum((unsigned char)s[i]) && !strchr("-._~!$&'()*+,;=:%@", s[i]))
			return copy_piece(s, len, &u->password);
	r = cfs_url_decode(s, len, false, &u->password);
	return r == -EINVAL ? copy_piece(s, len, &u->password) : r;
}

/* tcp(hosts), (hosts), unix(/path), or as a courtesy plain hosts */
static int parse_mysql_address(const char *s, size_t len, struct cfs_url *u, char err[ERRLEN])
{
	const char *open = memchr(s, '(', len);
	size_t net_len;

	if (!open) {
		if (len == 3 && strncmp(s, "tcp", 3) == 0)
			return 0;
		return parse_hosts(s, len, u, err);
	}
	if (s[len - 1] != ')')
		return fail(err, "the server's address lacks its ')'");
	net_len = (size_t)(open - s);
	len -= net_len + 2;
	if (net_len == 4 && strncmp(s, "unix", 4) == 0) {
		if (!len)
			return fail(err, "unix() needs the path of a socket");
		return copy_piece(open + 1, len, &u->socket);
	}
	if (net_len && !(net_len == 3 && strncmp(s, "tcp", 3) == 0))
		return fail(err, "the server's address must be tcp(HOST:PORT) or unix(PATH)");
	return parse_hosts(open + 1, len, u, err);
}

/* A DSN of the Go driver: [user[:password]@][net[(address)]]/db[?query], split from the right. */
static int parse_mysql(const char *rest, struct cfs_url *u, char err[ERRLEN])
{
	const char *slash, *at, *colon, *address = rest;
	size_t len, left_len;
	int r = 0;

	/* A '/' in the query, as in loc=Europe/Paris, is not the one that ends the address. */
	slash = strstr(rest, ")/");
	while (slash && strstr(slash + 1, ")/"))
		slash = strstr(slash + 1, ")/");
	slash = slash ? slash + 1 : strrchr(rest, '/');
	if (!slash)
		return fail(err, "mysql:// wants [USER[:PASSWORD]@](HOST:PORT)/DATABASE");
	left_len = (size_t)(slash - rest);
	at = memrchr(rest, '@', left_len);
	if (at) {
		address = at + 1;
		colon = memchr(rest, ':', (size_t)(at - rest));
		r = copy_piece(rest, (size_t)((colon ? colon : at) - rest), &u->user);
		if (r == 0 && colon)
			r = parse_mysql_password(colon + 1, (size_t)(at - colon - 1), u);
	}
	if (r == 0)
		r = parse_mysql_address(address, (size_t)(slash - address), u, err);
	if (r < 0)
		return r;
	slash++;
	len = strcspn(slash, "?");
	r = decode_piece(slash, len, "bad %-escape in the database name", &u->path, err);
	if (r == 0 && slash[len])
		r = parse_query(slash + len + 1, u, err);
	return r;
}

/* A file name as it is, no escapes: so the peer's driver reads it. */
static int parse_sqlite3(const char *rest, struct cfs_url *u, char err[ERRLEN])
{
	size_t len = strcspn(rest, "?");
	int r;

	if (!len)
		return fail(err, "sqlite3:// needs the path of a file");
	r = copy_piece(rest, len, &u->path);
	if (r == 0 && rest[len])
		r = parse_query(rest + len + 1, u, err);
	return r;
}

static const struct {
	const char *scheme, *engine;
	int (*parse)(const char *rest, struct cfs_url *u, char err[ERRLEN]);
} schemes[] = {
	{"mysql", "mysql", parse_mysql},
	{"postgres", "postgresql", parse_postgres},
	{"postgresql", "postgresql", parse_postgres},
	{"redis", "redis", parse_generic},
	{"rediss", "redis", parse_generic},
	{"sqlite3", "sqlite3", parse_sqlite3},
	{"unix", "redis", parse_unix},
};

static int parse_rest(const char *rest, struct cfs_url *u, char err[ERRLEN])
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(schemes); i++) {
		if (strcmp(schemes[i].scheme, u->scheme) != 0)
			continue;
		u->engine = schemes[i].engine;
		return schemes[i].parse(rest, u, err);
	}
	return parse_generic(rest, u, err);
}

static int parse_scheme(const char *text, size_t len, struct cfs_url *u, char err[ERRLEN])
{
	size_t i;

	if (!len || !isalpha((unsigned char)text[0]))
		return fail(err, "no scheme before ://");
	u->scheme = strndup(text, len);
	if (!u->scheme)
		return -ENOMEM;
	for (i = 0; i < len; i++) {
		if (!isalnum((unsigned char)text[i]) && !strchr("+-.", text[i]))
			return fail(err, "bad character in the scheme before ://");
		u->scheme[i] = (char)tolower((unsigned char)text[i]);
	}
	return 0;
}

int cfs_url_parse(const char *text, struct cfs_url *ret, char err[ERRLEN])
{
	const char *sep = strstr(text, "://");
	struct cfs_url u = {0};
	const char *p;
	int r;

	for (p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return fail(err, "control character in the URL");
	if (!*text)
		return fail(err, "empty URL");
	r = sep ? parse_scheme(text, (size_t)(sep - text), &u, err)
		: parse_scheme("redis", 5, &u, err);
	if (r == 0)
		r = parse_rest(sep ? sep + 3 : text, &u, err);
	if (r == -ENOMEM)
		snprintf(err, ERRLEN, "out of memory");
	if (r < 0)
		cfs_url_free(&u);
	else
		*ret = u;
	return r;
}

void cfs_url_free(struct cfs_url *url)
{
	size_t i;

	for (i = 0; i < url->n_query; i++) {
		free(url->query[i].key);
		free(url->query[i].value);
	}
	free(url->query);
	free(url->scheme);
	free(url->user);
	free(url->password);
	free(url->hosts);
	free(url->socket);
	free(url->path);
	*url = (struct cfs_url){0};
}

const char *cfs_url_option(const struct cfs_url *url, const char *key)
{
	size_t i;

	for (i = 0; i < url->n_query; i++)
		if (strcmp(url->query[i].key, key) == 0)
			return url->query[i].value;
	return NULL;
}

struct out {
	char *buf;
	size_t size, used;
};

static void put(struct out *o, const char *s, size_t len)
{
	size_t room = o->size - o->used - 1;

	len = CFS_MIN(len, room);
	memcpy(o->buf + o->used, s, len);
	o->used += len;
	o->buf[o->used] = 0;
}

/*
 * A ';' separates items for some drivers, but it ends no secret: cfs_url_parse() gives it to the
 * value. An item without '=' behind a secret is the rest of one that has a raw '&'.
 */
static void mask_query(struct out *o, const char *s)
{
	bool after_secret = false;
	size_t len, key_len;

	for (; *s; s += len) {
		if (*s == '?' || *s == '&' || *s == ';')
			put(o, s++, 1);
		len = strcspn(s, "&;");
		key_len = strcspn(s, "=&;");
		if (key_len == len && after_secret) {
			put(o, MASK, strlen(MASK));
			continue;
		}
		after_secret = key_len < len && is_secret_key(s, key_len);
		put(o, s, after_secret ? key_len + 1 : len);
		if (after_secret) {
			put(o, MASK, strlen(MASK));
			len = strcspn(s, "&");
		}
	}
}

/*
 * No '@': in a sound URL every ':' leads to a port. Any other text behind a ':' may be a password
 * whose '@' was forgotten. Returns the first byte that must not be shown, `len` when there is none.
 */
static size_t find_non_port(const char *s, size_t len, bool needs_host)
{
	size_t i = 0, end;

	if (needs_host && len > 1 && *s == ':')
		return 1;
	while (i < len) {
		if (s[i] == '[' && memchr(s + i, ']', len - i)) {
			i = (size_t)((const char *)memchr(s + i, ']', len - i) - s);
		} else if (s[i] == ':') {
			end = i + 1 + strspn(s + i + 1, "0123456789");
			if ((end < len && !strchr(",)/", s[end])) || end > i + 6)
				return i + 1;
			i = end;
			continue;
		}
		i++;
	}
	return len;
}

/*
 * Options as of libpq, password='a b': returns where the value of the first secret begins, `len` when
 * there is none. The end of the value cannot be told.
 */
static size_t find_assignment(const char *s, size_t len)
{
	const char *equals = s;
	size_t key, end;

	while ((equals = memchr(equals, '=', len - (size_t)(equals - s)))) {
		end = (size_t)(equals++ - s);
		while (end && s[end - 1] == ' ')
			end--;
		for (key = end; key && (isalnum((unsigned char)s[key - 1]) || s[key - 1] == '_');)
			key--;
		if (key < end && is_secret_key(s + key, end - key))
			return (size_t)(equals - s);
	}
	return len;
}

/* The text behind "SCHEME://", or all of it when it does not begin like that. */
static const char *after_scheme(const char *text)
{
	const char *s = text;

	while (isalnum((unsigned char)*s) || (*s && strchr("+-.", *s)))
		s++;
	return s > text && strncmp(s, "://", 3) == 0 ? s + 3 : text;
}

/* The text before the last '@', which may be in the query part. */
static void mask_userinfo(struct out *o, const char *s, size_t len, bool redis)
{
	const char *colon = strcasestr(s, "%3a");
	size_t shown = strcspn(s, ":?");

	/* An encoded ':' is part of the user's name, but it is taken for the separator. */
	if (colon && (size_t)(colon - s) < CFS_MIN(shown, len)) {
		put(o, s, (size_t)(colon - s) + 3);
		shown = 0;
	} else if (shown < len) {
		put(o, s, shown + 1);
	}
	/* A lone word is a user, but for Redis, where people take it for the password. */
	if (shown < len || redis)
		put(o, MASK, strlen(MASK));
	else
		put(o, s, len);
}

/* Whether s[len] is in the value of a secret of the query part. */
static bool ends_in_secret(const char *s, size_t len)
{
	const char *p = strchr(s, '?'), *end = s + len;
	size_t key;

	for (; p && p < end; p++) {
		if (!strchr("?&;", *p) || memchr(p + 1, '&', (size_t)(end - p - 1)))
			continue;
		key = strcspn(p + 1, "=?&;");
		if (p + 1 + key < end && p[1 + key] == '=' && is_secret_key(p + 1, key))
			return true;
	}
	return false;
}

void cfs_url_mask(const char *text, char *buf, size_t size)
{
	const char *rest = after_scheme(text), *at, *query;
	struct out o = {buf, size, 0};
	bool sqlite = strncasecmp(text, "sqlite3://", 10) == 0;
	bool redis = rest == text || strncasecmp(text, "redis", 5) == 0 ||
		     strncasecmp(text, "unix:", 5) == 0;
	size_t len, shown;

	if (!size)
		return;
	buf[0] = 0;
	put(&o, text, (size_t)(rest - text));

	/* The last '@' wherever it is: raw passwords hold '/', '?' and '@'. A file has none. */
	at = sqlite ? NULL : strrchr(rest, '@');
	len = CFS_MIN(strcspn(rest, ":?"), at ? (size_t)(at - rest) : 0);
	shown = find_assignment(rest, len);
	if (at && shown < len) {
		put(&o, rest, shown);
		put(&o, MASK, strlen(MASK));
		return;
	}
	if (at) {
		mask_userinfo(&o, rest, (size_t)(at - rest), redis);
		rest = ends_in_secret(rest, (size_t)(at - rest)) ? at + strcspn(at, "&") : at;
	}
	/* Behind the last '@' the query part may have begun already. */
	query = strpbrk(rest, at ? "?&;" : "?");
	len = query ? (size_t)(query - rest) : strlen(rest);
	/* For libpq, ":5432" is a port of the usual host. */
	shown = at || sqlite ? len
			     : find_non_port(rest, len, strncasecmp(text, "postgres", 8) != 0);
	/* A file's name may have '='. */
	if (!sqlite && *text != '/')
		shown = find_assignment(rest, shown);
	put(&o, rest, shown);
	/* A '?' behind what may be a password may be part of it. */
	if (shown < len)
		put(&o, MASK, strlen(MASK));
	else if (query)
		mask_query(&o, query);
}

char *cfs_url_masked(const char *text)
{
	size_t size = 4 * strlen(text) + 64;
	char *masked = malloc(size);

	if (masked)
		cfs_url_mask(text, masked, size);
	return masked;
}
