/* SPDX-License-Identifier: Apache-2.0 */
/* If these fail, a service manager waits for ever for the mount, or believes its children. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/mountd/supervise/notify.h"

static int manager = -1;

static void listen_at(const char *name)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	const struct timeval limit = {.tv_sec = 10};
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));

	memcpy(sa.sun_path, name, strlen(name));
	if (*name == '@')
		sa.sun_path[0] = '\0';
	else
		len++;
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(manager >= 0);
	setsockopt(manager, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	assert_int_equal(bind(manager, (const struct sockaddr *)&sa, len), 0);
	setenv("NOTIFY_SOCKET", name, 1);
}

static void expect(const char *text)
{
	char buf[2048];
	ssize_t n = recv(manager, buf, sizeof(buf) - 1, 0);

	assert_true(n > 0);
	buf[n] = '\0';
	assert_string_equal(buf, text);
}

static void test_environment_is_taken(void **state)
{
	char name[64];

	snprintf(name, sizeof(name), "@cachefs-test-%d", (int)getpid());
	listen_at(name);
	setenv("WATCHDOG_USEC", "3000000", 1);
	setenv("WATCHDOG_PID", "1", 1);
	notify_init(true);
	assert_true(notify_wanted());
	assert_null(getenv("NOTIFY_SOCKET"));
	assert_null(getenv("WATCHDOG_USEC"));
	assert_null(getenv("WATCHDOG_PID"));
	assert_int_equal(system("test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC$WATCHDOG_PID\""), 0);
	notify_send("STATUS=%s %d", "one", 2);
	expect("STATUS=one 2");
	/* A manager that has gone hurts nobody. */
	close(manager);
	notify_send("STATUS=lost");
}

static void test_other_addresses(void **state)
{
	char dir[] = "/tmp/cachefs-notify.XXXXXX", path[64];

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	listen_at(path);
	notify_init(true);
	notify_send("READY=1");
	expect("READY=1");
	close(manager);
	unlink(path);
	rmdir(dir);
}

static void test_not_for_us(void **state)
{
	setenv("NOTIFY_SOCKET", "@nobody", 1);
	notify_init(false);
	assert_false(notify_wanted());
	assert_null(getenv("NOTIFY_SOCKET"));
	setenv("NOTIFY_SOCKET", "relative", 1);
	notify_init(true);
	assert_false(notify_wanted());
	setenv("NOTIFY_SOCKET", "vsock:2:1234", 1);
	notify_init(true);
	assert_false(notify_wanted());
	notify_send("READY=1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_not_for_us),
		cmocka_unit_test(test_environment_is_taken),
		cmocka_unit_test(test_other_addresses),
	};

	return cmocka_run_group_tests_name("notify", tests, NULL, NULL);
}
