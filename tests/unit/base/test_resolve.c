/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail, requests wait for a resolver that does not answer, or threads for it pile up. */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/text/resolve.h"

#define MANY (CFS_ADDRESSES_MAX + 5)

static _Atomic int asked, hangs;

/* Takes the place of that of the C library. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
		struct addrinfo **ret)
{
	int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
		(int (*)(const char *, const char *, const struct addrinfo *,
			 struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
	struct addrinfo **end = ret;
	int r = 0;

	if (hints->ai_flags & AI_NUMERICHOST)
		return next(host, port, hints, ret);
	asked++;
	while (hangs)
		usleep(1000);
	if (!strcmp(host, "none.test"))
		return EAI_NONAME;
	for (int i = 0; i < (strcmp(host, "many.test") ? 1 : MANY) && !r; i++) {
		r = next("127.0.0.1", port, hints, end);
		while (!r && *end)
			end = &(*end)->ai_next;
	}
	return r;
}

static int resolve(const char *host, unsigned ms, struct cfs_addresses *ret, char err[256])
{
	return cfs_resolve(host, 6379, "the server", cfs_deadline_in(ms), ret, err);
}

static void test_addresses_in_digits_need_no_resolver(void **state)
{
	struct cfs_addresses a;
	char err[256];

	asked = 0;
	hangs = 1;
	assert_int_equal(resolve("127.0.0.1", 1, &a, err), 0);
	assert_int_equal(a.n, 1);
	assert_int_equal(((struct sockaddr_in *)&a.at[0].addr)->sin_port, htons(6379));
	assert_int_equal(resolve("::1", 1, &a, err), 0);
	assert_int_equal(a.at[0].addr.ss_family, AF_INET6);
	assert_int_equal(asked, 0);
	hangs = 0;
}

static void test_names(void **state)
{
	struct cfs_addresses a;
	char err[256];

	assert_int_equal(resolve("db.test", 10000, &a, err), 0);
	assert_int_equal(a.n, 1);
	assert_int_equal(resolve("many.test", 10000, &a, err), 0);
	assert_int_equal(a.n, CFS_ADDRESSES_MAX);
	assert_int_equal(resolve("none.test", 10000, &a, err), -ENOTCONN);
	assert_non_null(strstr(err, "none.test"));
}

static void test_one_lookup_hangs_for_all(void **state)
{
	struct cfs_addresses a;
	uint64_t begun = cfs_now_ms();
	char err[256];

	asked = 0;
	hangs = 1;
	for (int i = 0; i < 20; i++) {
		assert_int_equal(resolve("db.test", 10, &a, err), -ENOTCONN);
		assert_non_null(strstr(err, "in time"));
	}
	assert_true(cfs_now_ms() - begun >= 200);
	assert_int_equal(asked, 1);
	hangs = 0;
	assert_int_equal(resolve("db.test", 10000, &a, err), 0);
	assert_int_equal(a.n, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_addresses_in_digits_need_no_resolver),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_one_lookup_hangs_for_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
