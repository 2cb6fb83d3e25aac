/* SPDX-License-Identifier: Apache-2.0 */
/*
 * META-URLs (volume-format section 1): SCHEME://REST[?k=v&k=v]. Text without "://" is redis://TEXT.
 */
#ifndef CFS_URL_H
#define CFS_URL_H

#include <stdbool.h>
#include <stddef.h>

struct cfs_url_query {
	char *key, *value; /* percent-decoded */
};

struct cfs_url {
	char *scheme;	    /* lower case */
	const char *engine; /* "sqlite3", "redis", "mysql" or "postgresql"; NULL: no metadata URL */
	char *user;	    /* percent-decoded, NULL when absent */
	char *password;	    /* percent-decoded, NULL when absent */
	char *hosts;  /* "h1:p,h2:p"; for mysql the inside of "tcp(...)" or "(...)"; NULL: absent */
	char *socket; /* path of a unix socket: unix://, mysql unix(/path), postgres ?host=/dir */
	char *path;   /* sqlite3: the file; others: what follows the host's '/', the database */
	struct cfs_url_query *query;
	size_t n_query;
};

/* -EINVAL with a one-line reason in err (no secrets) when the text is not a META-URL. */
int cfs_url_parse(const char *text, struct cfs_url *ret, char err[256]);
void cfs_url_free(struct cfs_url *url);
/* NULL when absent. The pointer lives as long as the url. */
const char *cfs_url_option(const struct cfs_url *url, const char *key);

/*
 * Decodes %XX, and '+' for a space. *ret is malloc'ed. -EINVAL: a broken escape, or an encoded NUL.
 */
int cfs_url_decode(const char *text, size_t len, bool plus_is_space, char **ret);

/* The text with every password and secret query value replaced by "****"; always terminated. */
void cfs_url_mask(const char *text, char *buf, size_t size);
/* The same, malloc'ed. NULL: out of memory. */
char *cfs_url_masked(const char *text);

#endif
