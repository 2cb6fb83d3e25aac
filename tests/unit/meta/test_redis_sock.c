/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting to Redis. A failure here is a client that connects to itself and keeps the server from
 * its port, or one that gives up with EACCES while a server with TLS restarts or hangs.
 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
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

enum { PORT = 40000, SILENT_MS = 200 };

/* ---- TLS ---- */

/* A socket on which connections wait for an accept(2). */
static int listen_tls(unsigned *ret_port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	*ret_port = ntohs(addr.sin_port);
	return fd;
}

static int open_tls(unsigned port, cfs_deadline_t deadline)
{
	struct rds_addr addr = {.host = "127.0.0.1", .port = port};
	struct rds_target target = {.seeds = &addr,
				    .n_seeds = 1,
				    .tls = true,
				    .read_timeout_ms = LONG_MS,
				    .write_timeout_ms = LONG_MS};
	struct rds_sock *s;
	char err[256];
	int r;

	pthread_mutex_init(&target.lock, NULL);
	r = rds_sock_open(&target, deadline, &s, err);
	assert_true(r < 0);
	assert_non_null(strstr(err, "TLS"));
	pthread_mutex_destroy(&target.lock);
	return r;
}

/* Ends a connection in its handshake, as a server does that is shutting down. */
static void *end_connection(void *arg)
{
	int fd = accept(*(const int *)arg, NULL, NULL);

	shutdown(fd, SHUT_WR);
	return (void *)(intptr_t)fd;
}

static void test_server_ends_during_handshake(void **state)
{
	unsigned port;
	pthread_t thread;
	void *client;
	int fd = listen_tls(&port);

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, end_connection, &fd), 0);
	assert_int_equal(open_tls(port, soon()), -ENOTCONN);
	assert_int_equal(pthread_join(thread, &client), 0);
	close((int)(intptr_t)client);
	close(fd);
}

static void test_server_hangs_during_handshake(void **state)
{
	unsigned port;
	int fd = listen_tls(&port);

	(void)state;
	assert_int_equal(open_tls(port, cfs_deadline_in(SILENT_MS)), -ENOTCONN);
	close(fd);
}

/* A server without TLS is refused: it will not have TLS at the next try. */
static void *answer_plainly(void *arg)
{
	static const char answer[] = "-ERR unknown command\r\n";
	int fd = accept(*(const int *)arg, NULL, NULL);

	send(fd, answer, strlen(answer), MSG_NOSIGNAL);
	return (void *)(intptr_t)fd;
}

static void test_server_without_tls(void **state)
{
	unsigned port;
	pthread_t thread;
	void *client;
	int fd = listen_tls(&port);

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, answer_plainly, &fd), 0);
	assert_int_equal(open_tls(port, soon()), -EACCES);
	assert_int_equal(pthread_join(thread, &client), 0);
	close((int)(intptr_t)client);
	close(fd);
}

/* ---- a network namespace in which a connection gets one port only ---- */

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
		cmocka_unit_test(test_server_ends_during_handshake),
		cmocka_unit_test(test_server_hangs_during_handshake),
		cmocka_unit_test(test_server_without_tls),
		/* Last, because it changes the network of the process. */
		cmocka_unit_test(test_no_connection_to_itself),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
