/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cachefs-metrics.so: a small HTTP server on libmicrohttpd. It has no authentication: every client
 * that reaches it may read everything that is served. Nothing can be changed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/thread.h"
#include "cmd/mountd/metrics.h"
#include "status-page.h"

/* Beyond this many connections, the oldest that have not sent a request are closed. */
#define CONNECTIONS_KEPT 32
/* Beyond this many, also those with bytes that a busy processor has not read yet. */
#define CONNECTIONS_CROWD 64
/* Includes connections that are cut and whose threads are about to end. */
#define CONNECTIONS_MAX 96
#define CONNECTION_MEM	(16u << 10)
#define BACKLOG		128
/* Deadlines for the next request to arrive completely, and for its answer to be taken. */
#define REQUEST_MS 10000
#define ANSWER_MS  30000
#define LOOK_MS	   1000
/* An earlier mount may take this long after its umount(2) to release the address. */
#define TAKEN_MS 5000
#define AGAIN_MS 50

struct connection {
	TAILQ_ENTRY(connection) link;
	int fd;
	bool busy; /* a request has arrived and its answer is not sent yet */
	bool cut;
	cfs_deadline_t until;
};
TAILQ_HEAD(connection_list, connection);

struct server {
	struct metrics_source source;
	struct MHD_Daemon *daemon;
	pthread_t watcher;
	bool watched;

	/* Protects the rest; a leaf. */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct connection_list connections; /* the oldest first */
	unsigned n_kept;		    /* of these, not cut */
	bool stop;

	char *path;    /* of the unix socket */
	bool loopback; /* only programs on this machine can reach it */
};

static const char plain[] = "text/plain; version=0.0.4; charset=utf-8";

struct answer {
	unsigned status;
	const char *type;
	void *body;
	size_t len;
	enum MHD_ResponseMemoryMode mode;
};

static enum MHD_Result reply(struct MHD_Connection *c, const struct answer *a)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(a->len, a->body, a->mode);
	enum MHD_Result done;

	if (!r)
		return MHD_NO;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, a->type);
	MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	MHD_add_response_header(r, "Content-Security-Policy", STATUS_PAGE_POLICY);
	MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
	MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
	MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	done = MHD_queue_response(c, a->status, r);
	MHD_destroy_response(r);
	return done;
}

static enum MHD_Result reply_line(struct MHD_Connection *c, unsigned status, const char *line)
{
	const struct answer a = {
		.status = status,
		.type = plain,
		.body = (char *)line,
		.len = strlen(line),
		.mode = MHD_RESPMEM_PERSISTENT,
	};

	return reply(c, &a);
}

static enum MHD_Result reply_made(struct MHD_Connection *c, const char *type,
				  int (*make)(void *arg, char **ret, size_t *ret_len), void *arg)
{
	struct answer a = {.status = MHD_HTTP_OK, .type = type, .mode = MHD_RESPMEM_MUST_FREE};
	char *text;

	if (make(arg, &text, &a.len) < 0)
		return reply_line(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
	a.body = text;
	return reply(c, &a);
}

/* Accepts "localhost", "127.1.2.3" or "[::1]", with or without a port. */
static bool names_loopback(const char *host)
{
	const char *end = *host == '[' ? strchr(host, ']') : NULL;
	char name[INET6_ADDRSTRLEN];
	struct in_addr v4;
	size_t len;

	end = end ? end + 1 : host + strcspn(host, ":");
	len = (size_t)(end - host);
	if (len >= sizeof(name) ||
	    (*end && (*end != ':' || end[1 + strspn(end + 1, "0123456789")])))
		return false;
	memcpy(name, host, len);
	name[len] = '\0';
	if (!strcasecmp(name, "localhost") || !strcmp(name, "[::1]"))
		return true;
	return inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

/*
 * Guards against DNS rebinding: a foreign web page whose host name resolves to this machine's
 * loopback could read everything through a local user's browser. Such a page cannot choose the Host
 * header.
 */
static bool host_is_ours(const struct server *s, struct MHD_Connection *c)
{
	const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);

	return !s->loopback || !host || names_loopback(host);
}

/* ---- slow clients ---- */

/*
 * The library's own limits do not help against clients that send a byte now and then: a few of them
 * would keep all others from asking for the health of the mount.
 */

/* Called with the lock held. The connection's thread sees the end of the stream and closes it. */
static void cut(struct server *s, struct connection *c)
{
	shutdown(c->fd, SHUT_RDWR);
	c->cut = true;
	s->n_kept--;
}

static bool has_unread(const struct connection *c)
{
	int n = 0;

	return ioctl(c->fd, FIONREAD, &n) == 0 && n > 0;
}

/* Called with the lock held, for a connection that arrives. */
static void give_way(struct server *s)
{
	struct connection *c;

	TAILQ_FOREACH(c, &s->connections, link)
	{
		if (s->n_kept < CONNECTIONS_KEPT)
			break;
		if (!c->busy && !c->cut && (s->n_kept >= CONNECTIONS_CROWD || !has_unread(c)))
			cut(s, c);
	}
}

/* STARTED comes from the accepting thread; CLOSED comes before the descriptor is closed. */
static void on_connection(void *arg, struct MHD_Connection *conn, void **context,
			  enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *info;
	struct connection *c = *context;
	struct server *s = arg;
	CFS_LOCK_GUARD(&s->lock);

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
		c = info ? calloc(1, sizeof(*c)) : NULL;
		if (c) {
			give_way(s);
			c->fd = info->connect_fd;
			c->until = cfs_deadline_in(REQUEST_MS);
			TAILQ_INSERT_TAIL(&s->connections, c, link);
			s->n_kept++;
			pthread_cond_signal(&s->wake);
		}
		*context = c;
	} else if (c) {
		TAILQ_REMOVE(&s->connections, c, link);
		s->n_kept -= !c->cut;
		free(c);
	}
}

static void set_busy(struct server *s, struct MHD_Connection *conn, bool busy)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct connection *c = info ? info->socket_context : NULL;

	if (!c)
		return;
	pthread_mutex_lock(&s->lock);
	c->busy = busy;
	c->until = cfs_deadline_in(busy ? ANSWER_MS : REQUEST_MS);
	pthread_mutex_unlock(&s->lock);
}

static void on_completed(void *arg, struct MHD_Connection *conn, void **seen,
			 enum MHD_RequestTerminationCode how)
{
	set_busy(arg, conn, false);
}

static void *watch(void *arg)
{
	struct server *s = arg;
	struct connection *c;
	CFS_LOCK_GUARD(&s->lock);

	while (!s->stop) {
		cfs_cond_wait(&s->wake, &s->lock, cfs_deadline_in(s->n_kept ? LOOK_MS : ANSWER_MS));
		TAILQ_FOREACH(c, &s->connections, link)
		if (!c->cut && cfs_deadline_passed(c->until))
			cut(s, c);
	}
	return NULL;
}

/* ---- answers ---- */

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url,
			      const char *method, const char *version, const char *body,
			      size_t *body_len, void **seen)
{
	static const struct answer page = {
		.status = MHD_HTTP_OK,
		.type = "text/html; charset=utf-8",
		.body = (void *)status_page,
		.len = sizeof(status_page),
		.mode = MHD_RESPMEM_PERSISTENT,
	};
	struct server *s = arg;

	/* Called once for the header, then for each part of a body, which is ignored. */
	if (!*seen) {
		*seen = s;
		return MHD_YES;
	}
	if (*body_len) {
		*body_len = 0;
		return MHD_YES;
	}
	set_busy(s, c, true);
	if (!host_is_ours(s, c))
		return reply_line(c, MHD_HTTP_FORBIDDEN, "not by that name\n");
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return reply_line(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
	if (!strcmp(url, "/"))
		return reply(c, &page);
	if (!strcmp(url, "/health")) {
		if (s->source.healthy(s->source.arg))
			return reply_line(c, MHD_HTTP_OK, "the mount answers\n");
		return reply_line(c, MHD_HTTP_SERVICE_UNAVAILABLE, "the mount does not answer\n");
	}
	if (!strcmp(url, "/metrics"))
		return reply_made(c, plain, s->source.text, s->source.arg);
	if (!strcmp(url, "/status.json"))
		return reply_made(c, "application/json", s->source.status, s->source.arg);
	return reply_line(c, MHD_HTTP_NOT_FOUND, "/, /metrics, /health or /status.json\n");
}

static int bound(const struct sockaddr *sa, socklen_t len, int *ret)
{
	int one = 1, r, fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, sa, len) < 0 || listen(fd, BACKLOG) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	*ret = fd;
	return 0;
}

/* Removes a socket without a listener, which a killed mount has left. */
static void remove_stale(const struct sockaddr_un *sa)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;

	if (fd < 0)
		return;
	if (lstat(sa->sun_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
	    connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0 && errno == ECONNREFUSED)
		unlink(sa->sun_path);
	close(fd);
}

static int listen_unix(struct server *s, const char *path, int *ret, char err[256])
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int r;

	if (*path != '/' || strlen(path) >= sizeof(sa.sun_path))
		return cfs_fail(err, -EINVAL,
				"metrics=unix:%.100s: not an absolute path of at most %zu bytes",
				path, sizeof(sa.sun_path) - 1);
	memcpy(sa.sun_path, path, strlen(path) + 1);
	remove_stale(&sa);
	r = bound((const struct sockaddr *)&sa, sizeof(sa), ret);
	if (r < 0)
		return r;
	s->path = strdup(path);
	if (s->path)
		return 0;
	close(*ret);
	unlink(path);
	return -ENOMEM;
}

static bool is_loopback(const struct sockaddr *sa)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;

	if (sa->sa_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		return v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* 0: any free port. getaddrinfo() accepts larger numbers and truncates them to 16 bits. */
static bool is_port(const char *text)
{
	return strspn(text, "0123456789") == strlen(text) && *text && strlen(text) <= 5 &&
	       strtoul(text, NULL, 10) <= UINT16_MAX;
}

/* Numeric addresses only: resolving a name would depend on a server that may not answer. */
static int listen_tcp(struct server *s, const char *text, int *ret, char err[256])
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				       .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text, *from = text;
	size_t len = colon ? (size_t)(colon - text) : 0;
	char host[64] = "127.0.0.1";
	struct addrinfo *found;
	int r = EAI_NONAME;

	if (len > 2 && *from == '[' && from[len - 1] == ']') {
		from++;
		len -= 2;
	}
	if (len > 0 && len < sizeof(host) && strncmp(text, "localhost:", 10) != 0)
		snprintf(host, sizeof(host), "%.*s", (int)len, from);
	if (len < sizeof(host) && is_port(port))
		r = getaddrinfo(host, port, &hints, &found);
	if (r)
		return cfs_fail(
			err, -EINVAL,
			"metrics=%.100s: not PORT, ADDRESS:PORT or unix:/PATH (a port is at most "
			"65535)",
			text);
	s->loopback = is_loopback(found->ai_addr);
	r = bound(found->ai_addr, found->ai_addrlen, ret);
	freeaddrinfo(found);
	return r;
}

/* The address with the actual port in the place of 0. */
static void log_place(int fd, const char *path)
{
	struct sockaddr_storage sa = {0};
	socklen_t len = sizeof(sa);
	char host[64], port[16];

	if (path)
		cfs_info("metrics: unix:%s", path);
	else if (getsockname(fd, (struct sockaddr *)&sa, &len) == 0 &&
		 getnameinfo((struct sockaddr *)&sa, len, host, sizeof(host), port, sizeof(port),
			     NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		cfs_info(sa.ss_family == AF_INET6 ? "metrics: http://[%s]:%s/metrics"
						  : "metrics: http://%s:%s/metrics",
			 host, port);
}

static void stop(void *server)
{
	struct server *s = server;

	if (s->daemon)
		MHD_stop_daemon(s->daemon);
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	if (s->watched)
		pthread_join(s->watcher, NULL);
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->lock);
	if (s->path)
		unlink(s->path);
	free(s->path);
	free(s);
}

static struct MHD_Daemon *start_daemon(struct server *s, int fd)
{
	struct MHD_Daemon *d;
	sigset_t all, old;

	/* The server's threads inherit the mask: signals belong to the main thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* One thread per connection: asking for the health of a hung mount waits. */
	d = MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
			MHD_USE_ITC,
		0, NULL, NULL, answer, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
		(unsigned)(ANSWER_MS / 1000), MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)CONNECTION_MEM, MHD_OPTION_END);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return d;
}

static int listen_at(struct server *s, const char *place, int *ret, char err[256])
{
	return strncmp(place, "unix:", 5) ? listen_tcp(s, place, ret, err)
					  : listen_unix(s, place + 5, ret, err);
}

static int start(const char *listen, const struct metrics_source *source, void **ret, char err[256])
{
	struct server *s = calloc(1, sizeof(*s));
	cfs_deadline_t deadline = cfs_deadline_in(TAKEN_MS);
	int fd = -1, r;

	if (!s)
		return -ENOMEM;
	s->source = *source;
	pthread_mutex_init(&s->lock, NULL);
	cfs_cond_init(&s->wake);
	TAILQ_INIT(&s->connections);
	r = listen_at(s, listen, &fd, err);
	if (r == -EADDRINUSE)
		cfs_info("metrics: waiting for the address, which is taken: listen=%s", listen);
	while (r == -EADDRINUSE && !cfs_deadline_passed(deadline)) {
		poll(NULL, 0, AGAIN_MS);
		r = listen_at(s, listen, &fd, err);
	}
	if (r < 0) {
		if (!err[0])
			snprintf(err, 256, "metrics=%.100s: %s", listen, strerror(-r));
		stop(s);
		return r;
	}
	s->watched = cfs_thread_start("metrics", watch, s, &s->watcher) == 0;
	s->daemon = s->watched ? start_daemon(s, fd) : NULL;
	if (!s->daemon) {
		snprintf(err, 256, "metrics=%.100s: the server does not start", listen);
		close(fd);
		stop(s);
		return -EIO;
	}
	log_place(fd, s->path);
	*ret = s;
	return 0;
}

static const struct metrics_server_ops ops = {
	.start = start,
	.stop = stop,
};
CFS_MODULE_EXPORT(&ops);
