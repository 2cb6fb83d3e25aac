/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the metrics endpoint, over TCP as programs on this machine send them. The server
 * answers whatever comes, or ends the connection. The first byte of an input says what the rest is:
 *
 *	0	all that a client sends
 *	1	the name in the Host header of a request for the metrics, which are given to names of
 *		this machine only
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/module.h"
#include "cmd/mountd/metrics.h"
#include "fuzz.h"

/* Of the module, which is linked here. */
extern const struct cfs_module cfs_module;

int __wrap_listen(int fd, int backlog);
int __real_listen(int fd, int backlog);

enum { ANSWER_MS = 60000 };

#define SECRET "only for this machine"

static struct sockaddr_in place;

/* The port is any that is free. */
int __wrap_listen(int fd, int backlog)
{
	socklen_t len = sizeof(place);

	check(getsockname(fd, (struct sockaddr *)&place, &len) == 0);
	return __real_listen(fd, backlog);
}

static int text(void *arg, char **ret, size_t *ret_len)
{
	*ret = strdup(SECRET);
	*ret_len = strlen(SECRET);
	return *ret ? 0 : -ENOMEM;
}

static bool healthy(void *arg)
{
	return true;
}

static void set_up(void)
{
	const struct metrics_source source = {.text = text, .status = text, .healthy = healthy};
	const struct metrics_server_ops *ops = cfs_module.table;
	static void *server;
	char err[256] = "";

	if (server)
		return;
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
	check(ops->start("127.0.0.1:0", &source, &server, err) == 0);
}

/*
 * Each connection comes from another address of this machine: one address would soon have no port
 * left, as the kernel keeps those of ended connections for a minute.
 */
static int connected(void)
{
	static uint32_t n;
	const struct sockaddr_in from = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl((127u << 24) + 256 + n++ % (1u << 16)),
	};
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

	check(fd >= 0);
	check(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on)) == 0);
	check(bind(fd, (const struct sockaddr *)&from, sizeof(from)) == 0);
	/* The fuzzer has a timer. Asked again, connect() goes on with the same connection. */
	do
		r = connect(fd, (const struct sockaddr *)&place, sizeof(place));
	while (r < 0 && errno == EINTR);
	check(r == 0);
	return fd;
}

/* The beginning of what the server sends until it ends the connection. */
static void ask(const char *request, size_t len, char *ret, size_t size)
{
	struct pollfd p = {.fd = connected(), .events = POLLIN};
	char rest[4096];
	size_t got = 0;
	ssize_t n = 1;
	int ready;

	/* The server may end the connection meanwhile. */
	if (len)
		(void)!send(p.fd, request, len, MSG_NOSIGNAL);
	shutdown(p.fd, SHUT_WR);
	while (n > 0) {
		do
			ready = poll(&p, 1, ANSWER_MS);
		while (ready < 0 && errno == EINTR);
		check(ready == 1);
		n = got < size - 1 ? recv(p.fd, ret + got, size - 1 - got, 0)
				   : recv(p.fd, rest, sizeof(rest), 0);
		if (n > 0 && got < size - 1)
			got += (size_t)n;
	}
	ret[got] = '\0';
	close(p.fd);
}

/* Digits after a colon, or nothing. */
static bool is_port(const char *p)
{
	return !*p || (*p == ':' && !p[1 + strspn(p + 1, "0123456789")]);
}

static bool is_local(const char *host)
{
	char name[64];
	struct in_addr a;

	if (!strncasecmp(host, "localhost", 9))
		return is_port(host + 9);
	if (!strncmp(host, "[::1]", 5))
		return is_port(host + 5);
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(host, ":"), host);
	return inet_aton(name, &a) && ntohl(a.s_addr) >> 24 == 127 &&
	       is_port(strchr(host, ':') ?: "");
}

static void ask_by_name(char *host)
{
	char *request = NULL, answer[256], *end;
	size_t len, i;

	/* One header and one value, without the blanks around it. */
	for (i = 0; host[i]; i++)
		if (host[i] == '\r' || host[i] == '\n')
			host[i] = '.';
	while (*host == ' ' || *host == '\t')
		host++;
	for (end = host + strlen(host); end > host && (end[-1] == ' ' || end[-1] == '\t');)
		*--end = '\0';
	check(asprintf(&request, "GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
		       host) > 0);
	len = strlen(request);
	ask(request, len, answer, sizeof(answer));
	if (!is_local(host))
		check(strncmp(answer, "HTTP/1.1 200", 12) != 0);
	free(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	uint8_t what = fuzz_u8(&in);
	char answer[256], *rest;
	size_t len = in.left;

	set_up();
	rest = fuzz_text(&in, len);
	if (what % 2) {
		ask_by_name(rest);
	} else {
		ask(rest, len, answer, sizeof(answer));
		check(!*answer || !strncmp(answer, "HTTP/1.", 7));
	}
	free(rest);
	return 0;
}
