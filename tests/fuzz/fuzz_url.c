/* SPDX-License-Identifier: Apache-2.0 */
/*
 * META-URLs. A parsed URL has the parts of its engine, and the masked text has no password, nor
 * the value of a query that is one.
 */
#include "base/text/url.h"
#include "fuzz.h"

/* Longer than any word of a URL that is no secret, and unlike it. */
#define SECRET "QzXs3cReT"

/* It is there once, so all that is shown of it was its place. */
static bool is_secret(const struct cfs_url *u, const char *text)
{
	const char *at = strstr(text, SECRET);
	size_t i;

	if (!at || strstr(at + 1, SECRET))
		return false;
	for (i = 0; i < u->n_query; i++)
		if (!strcmp(u->query[i].value, SECRET) && !strcmp(u->query[i].key, "password"))
			return true;
	return u->password && !strcmp(u->password, SECRET);
}

static void check_parsed(const char *text, const char *masked)
{
	struct cfs_url u;
	char err[256];
	size_t i;
	int r;

	err[0] = '\0';
	r = cfs_url_parse(text, &u, err);
	check(r == 0 || (r < 0 && *err && !strstr(err, SECRET)));
	if (r < 0)
		return;
	check(u.scheme && *u.scheme);
	check(!is_secret(&u, text) || !strstr(masked, SECRET));
	for (i = 0; i < u.n_query; i++)
		check(cfs_url_option(&u, u.query[i].key) != NULL);
	cfs_url_free(&u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	char *text = fuzz_text(&in, size), small[16];
	size_t room = 8 * size + 64;
	char *masked = malloc(room);

	check(masked != NULL);
	cfs_url_mask(text, masked, room);
	check(strlen(masked) < room);
	cfs_url_mask(text, small, sizeof(small));
	check(strlen(small) < sizeof(small) && !strncmp(small, masked, strlen(small)));
	check_parsed(text, masked);
	free(text);
	free(masked);
	return 0;
}
