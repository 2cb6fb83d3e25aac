/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting to Redis, in a network namespace in which a connection gets one port only. A
 * failure here is a client that connects to itself and keeps the server from its port.
 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "meta/redis/redis-internal.h"
#include "unit/skip.h"
#include "unit/wait.h"

enum { PORT = 40000 };

/* Only this process is in it. */
static bool enter_network(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	const char range[] = "40000 40000";
	bool done;
	int fd;

	if (unshare(CLONE_NEWNET) < 0)
		return false;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	done = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
	if (fd >= 0)
		close(fd);
	fd = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY | O_CLOEXEC);
	done = done && fd >= 0 && write(fd, range, strlen(range)) == (ssize_t)strlen(range);
	if (fd >= 0)
		close(fd);
	return done;
}

static int open_redis(const char *host)
{
	struct rds_addr addr = {.port = PORT};
	struct rds_target target = {.seeds = &addr,
				    .n_seeds = 1,
				    .read_timeout_ms = LONG_MS,
				    .write_timeout_ms = LONG_MS};
	struct rds_sock *s;
	char err[256];
	int r;

	snprintf(addr.host, sizeof(addr.host), "%s", host);
	pthread_mutex_init(&target.lock, NULL);
	r = rds_sock_open(&target, soon(), &s, err);
	if (r == 0)
		rds_sock_close(s);
	else
		assert_non_null(strstr(err, "refused"));
	pthread_mutex_destroy(&target.lock);
	return r;
}

/* Whether the kernel connects although nobody listens. The port is free again at once. */
static bool connects(const void *addr, socklen_t len)
{
	const struct linger reset = {.l_onoff = 1};
	int fd = socket(((const struct sockaddr *)addr)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool done;

	done = fd >= 0 && connect(fd, addr, len) == 0 &&
	       setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0;
	if (fd >= 0)
		close(fd);
	return done;
}

/* SELECT, which it would take for the server's answer, comes back to it from such a connection. */
static void test_no_connection_to_itself(void **state)
{
	const struct sockaddr_in v4 = {.sin_family = AF_INET,
				       .sin_port = htons(PORT),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
					.sin6_port = htons(PORT),
					.sin6_addr = IN6ADDR_LOOPBACK_INIT};

	(void)state;
	if (!enter_network())
		skip_missing("no network namespace can be made");
	assert_true(connects(&v4, sizeof(v4)));
	assert_int_equal(open_redis("127.0.0.1"), -ENOTCONN);
	/* Not every kernel has IPv6. */
	if (connects(&v6, sizeof(v6)))
		assert_int_equal(open_redis("::1"), -ENOTCONN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_connection_to_itself),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
