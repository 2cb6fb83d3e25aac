/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text/resolve.h"
#include "meta/redis/redis-internal.h"
#include "meta/redis/tls.h"

enum { CONNECT_MS = 5000, UNACKED_MS = 10000, MAX_WORDS = 16, READ_BYTES = 64 << 10 };

struct rds_sock {
	int fd;
	struct rds_tls *tls; /* NULL: plain */
	redisReader *reader;
	uint64_t read_timeout_ms, write_timeout_ms;
	char buf[READ_BYTES];
};

/* ---- bytes ---- */

static int wait_for(const struct rds_sock *s, short events, cfs_deadline_t deadline)
{
	struct pollfd p = {.fd = s->fd, .events = events};
	uint64_t left = cfs_deadline_left_ms(deadline);
	int n;

	if (!left)
		return -ETIMEDOUT;
	n = poll(&p, 1, (int)CFS_MIN(left, 1000));
	return n < 0 && errno != EINTR ? -ENOTCONN : 0;
}

static ssize_t send_some(struct rds_sock *s, const void *data, size_t len, short *ret_wait)
{
	ssize_t n;

	if (s->tls)
		return rds_tls_write(s->tls, data, len, ret_wait);
	n = send(s->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n >= 0)
		return n;
	*ret_wait = POLLOUT;
	return errno == EAGAIN || errno == EINTR ? -EAGAIN : -ENOTCONN;
}

static ssize_t receive_some(struct rds_sock *s, short *ret_wait)
{
	ssize_t n;

	if (s->tls)
		return rds_tls_read(s->tls, s->buf, sizeof(s->buf), ret_wait);
	n = recv(s->fd, s->buf, sizeof(s->buf), MSG_DONTWAIT);
	if (n > 0)
		return n;
	*ret_wait = POLLIN;
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : -ENOTCONN;
}

int rds_sock_send(struct rds_sock *s, const void *data, size_t len, cfs_deadline_t deadline)
{
	const char *p = data;

	deadline = cfs_deadline_min(deadline, cfs_deadline_in(s->write_timeout_ms));
	while (len) {
		short events = POLLOUT;
		ssize_t n = send_some(s, p, len, &events);

		if (n == -EAGAIN)
			n = wait_for(s, events, deadline);
		if (n < 0)
			return (int)n;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int rds_sock_receive(struct rds_sock *s, cfs_deadline_t deadline, redisReply **ret)
{
	for (;;) {
		short events = POLLIN;
		void *reply = NULL;
		ssize_t n;
		int r;

		if (redisReaderGetReply(s->reader, &reply) != REDIS_OK)
			return -ENOTCONN;
		if (reply && rds_reply_fill(reply) < 0) {
			freeReplyObject(reply);
			return -ENOTCONN;
		}
		if (reply) {
			*ret = reply;
			return 0;
		}
		if (!deadline)
			return -EAGAIN;
		/* Waits before reading: the reply has rarely arrived. */
		r = s->tls ? 0 : wait_for(s, POLLIN, deadline);
		if (r < 0)
			return r;
		n = receive_some(s, &events);
		if (n == -EAGAIN) {
			r = wait_for(s, events, deadline);
			if (r < 0)
				return r;
			continue;
		}
		if (n < 0)
			return (int)n;
		if (redisReaderFeed(s->reader, s->buf, (size_t)n) != REDIS_OK)
			return -ENOTCONN;
	}
}

int rds_sock_ask(struct rds_sock *s, cfs_deadline_t deadline, redisReply **ret, ...)
{
	const char *word[MAX_WORDS];
	char *text;
	int n = 0, r;
	long long len;
	va_list ap;

	va_start(ap, ret);
	while (n < MAX_WORDS && (word[n] = va_arg(ap, const char *)))
		n++;
	va_end(ap);
	len = redisFormatCommandArgv(&text, n, word, NULL);
	if (len < 0)
		return -ENOMEM;
	r = rds_sock_send(s, text, (size_t)len, deadline);
	explicit_bzero(text, (size_t)len);
	redisFreeCommand(text);
	return r ? r : rds_sock_receive(s, deadline, ret);
}

/* ---- connecting ---- */

static void set_tcp_options(int fd)
{
	int on = 1, idle_s = 5, unacked_ms = UNACKED_MS;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	/* Keepalive detects a dead host before the whole deadline has passed. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof(unacked_ms));
}

/*
 * True when the socket is connected to itself: while a server of this host is down, the kernel may
 * choose the server's port as the local port. The socket would keep the server from binding it.
 */
static bool is_own(int fd)
{
	struct sockaddr_storage here = {0}, there = {0};
	socklen_t here_len = sizeof(here), there_len = sizeof(there);

	return !getsockname(fd, (struct sockaddr *)&here, &here_len) &&
	       !getpeername(fd, (struct sockaddr *)&there, &there_len) &&
	       here.ss_family != AF_UNIX && here_len == there_len &&
	       !memcmp(&here, &there, here_len);
}

static int connect_to(const struct sockaddr *addr, socklen_t len, cfs_deadline_t deadline,
		      int *ret_fd)
{
	int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int error = 0, r = 0;
	socklen_t size = sizeof(error);

	if (fd < 0)
		return -errno;
	if (addr->sa_family != AF_UNIX)
		set_tcp_options(fd);
	if (connect(fd, addr, len) < 0) {
		struct pollfd p = {.fd = fd, .events = POLLOUT};

		error = errno;
		if (error == EINPROGRESS || error == EAGAIN) {
			error = poll(&p, 1, (int)cfs_deadline_left_ms(deadline)) <= 0 ? ETIMEDOUT
										      : 0;
			if (!error)
				getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
		}
		r = -error;
	}
	if (!r && is_own(fd))
		r = -ECONNREFUSED;
	if (r) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

static int connect_tcp(const struct rds_addr *a, cfs_deadline_t deadline, int *ret_fd,
		       char err[256])
{
	struct cfs_addresses list;
	unsigned i;
	int r = cfs_resolve(a->host, a->port, "the Redis server", deadline, &list, err);

	if (r)
		return r;
	r = -EADDRNOTAVAIL;
	/*
	 * Each address gets an equal share of the time, so that a silent one does not use it all.
	 */
	for (i = 0; i < list.n && r; i++)
		r = connect_to((struct sockaddr *)&list.at[i].addr, list.at[i].len,
			       cfs_deadline_in(cfs_deadline_left_ms(deadline) / (list.n - i)),
			       ret_fd);
	if (r)
		snprintf(err, 256,
			 strchr(a->host, ':') ? "cannot connect to Redis at [%.150s]:%u: %s"
					      : "cannot connect to Redis at %.150s:%u: %s",
			 a->host, a->port, strerror(-r));
	return r ? -ENOTCONN : 0;
}

static int connect_unix(const char *path, cfs_deadline_t deadline, int *ret_fd, char err[256])
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int r;

	memcpy(addr.sun_path, path, CFS_MIN(strlen(path), sizeof(addr.sun_path) - 1));
	r = connect_to((struct sockaddr *)&addr, sizeof(addr), deadline, ret_fd);
	if (r)
		snprintf(err, 256, "cannot connect to Redis at %.150s: %s", path, strerror(-r));
	return r ? -ENOTCONN : 0;
}

static int open_at(struct rds_target *t, const struct rds_addr *a, cfs_deadline_t deadline,
		   struct rds_sock **ret, char err[256])
{
	struct rds_sock *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->fd = -1;
	s->read_timeout_ms = t->read_timeout_ms;
	s->write_timeout_ms = t->write_timeout_ms;
	s->reader = redisReaderCreate();
	deadline = cfs_deadline_min(deadline, cfs_deadline_in(CONNECT_MS));
	r = s->reader ? 0 : -ENOMEM;
	if (!r)
		r = a->port ? connect_tcp(a, deadline, &s->fd, err)
			    : connect_unix(a->host, deadline, &s->fd, err);
	if (!r && t->tls)
		r = rds_tls_start(t, a->host, s->fd, deadline, &s->tls, err);
	if (r) {
		rds_sock_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void rds_sock_close(struct rds_sock *s)
{
	if (s->tls)
		rds_tls_end(s->tls);
	if (s->fd >= 0)
		close(s->fd);
	if (s->reader)
		redisReaderFree(s->reader);
	free(s);
}

void rds_sock_shutdown(struct rds_sock *s)
{
	shutdown(s->fd, SHUT_RDWR);
}

/* ---- handshake ---- */

static int refused(const struct rds_addr *a, const redisReply *reply, const char *what,
		   char err[256])
{
	return cfs_fail(err, -EACCES, "Redis at %.100s%s refuses %s: %.*s", a->host,
			a->port ? "" : " (socket)", what, (int)CFS_MIN(reply->len, (size_t)100),
			reply->str);
}

static bool starts(const redisReply *r, const char *text)
{
	return r->type == REDIS_REPLY_ERROR && strncmp(r->str, text, strlen(text)) == 0;
}

static int log_in(struct rds_sock *s, const struct rds_addr *a, const char *user,
		  const char *password, cfs_deadline_t deadline, char err[256])
{
	redisReply *reply = NULL;
	int r;

	if (!password)
		return 0;
	if (user)
		r = rds_sock_ask(s, deadline, &reply, "AUTH", user, password, NULL);
	else
		r = rds_sock_ask(s, deadline, &reply, "AUTH", password, NULL);
	if (r)
		return r;
	/* A password that the server does not require is not an error. */
	if (starts(reply, "ERR max number of clients")) {
		r = cfs_fail(err, -ENOTCONN, "Redis at %.100s has reached its maxclients", a->host);
	} else if (reply->type == REDIS_REPLY_ERROR && !strstr(reply->str, "no password is set") &&
		   !strstr(reply->str, "without any password configured"))
		r = refused(a, reply, "the password", err);
	freeReplyObject(reply);
	return r;
}

int rds_sock_is_cluster(struct rds_sock *s, cfs_deadline_t deadline, bool *ret)
{
	redisReply *reply = NULL;
	int r = rds_sock_ask(s, deadline, &reply, "CLUSTER", "INFO", NULL);

	if (r)
		return r;
	*ret = rds_is_bytes(reply) && strstr(reply->str, "cluster_state:");
	freeReplyObject(reply);
	return 0;
}

static int select_db(struct rds_target *t, struct rds_sock *s, const struct rds_addr *a,
		     cfs_deadline_t deadline, char err[256])
{
	redisReply *reply = NULL;
	bool cluster = false;
	char db[16];
	int r;

	/* As the first command, SELECT also shows whether the server requires a password. */
	snprintf(db, sizeof(db), "%u", t->cluster ? 0 : t->db);
	r = rds_sock_ask(s, deadline, &reply, "SELECT", db, NULL);
	if (r)
		return r;
	if (starts(reply, "NOAUTH")) {
		r = cfs_fail(err, -EACCES,
			     "Redis at %.100s requires a password: put it in the URL or in "
			     "META_PASSWORD",
			     a->host);
	} else if (starts(reply, "LOADING")) {
		r = cfs_fail(err, -ENOTCONN, "Redis at %.100s is loading its data", a->host);
	} else if (starts(reply, "ERR max number of clients")) {
		r = cfs_fail(err, -ENOTCONN, "Redis at %.100s has reached its maxclients", a->host);
	} else if (reply->type == REDIS_REPLY_ERROR) {
		char what[32];

		/* A cluster has only database 0, and a key prefix for each volume. */
		r = rds_sock_is_cluster(s, deadline, &cluster);
		snprintf(what, sizeof(what), "database %u", t->db);
		if (!r && !cluster)
			r = refused(a, reply, what, err);
	}
	freeReplyObject(reply);
	return r;
}

/* Checks that the server which Sentinel has named is a master. */
static int check_role(struct rds_sock *s, const struct rds_addr *a, cfs_deadline_t deadline,
		      char err[256])
{
	redisReply *reply = NULL;
	int r = rds_sock_ask(s, deadline, &reply, "ROLE", NULL);

	if (r)
		return r;
	if (reply->type == REDIS_REPLY_ARRAY && reply->elements &&
	    rds_is_bytes(reply->element[0]) && strcmp(reply->element[0]->str, "master") != 0)
		r = cfs_fail(err, -ENOTCONN, "Redis at %.100s:%u is not a master", a->host,
			     a->port);
	freeReplyObject(reply);
	return r;
}

static int open_server(struct rds_target *t, const struct rds_addr *a, cfs_deadline_t deadline,
		       struct rds_sock **ret, char err[256])
{
	struct rds_sock *s;
	int r = open_at(t, a, deadline, &s, err);

	if (r)
		return r;
	r = log_in(s, a, t->user, t->password, deadline, err);
	if (!r)
		r = select_db(t, s, a, deadline, err);
	if (!r && t->master)
		r = check_role(s, a, deadline, err);
	if (r) {
		rds_sock_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

static int ask_sentinel(struct rds_target *t, const struct rds_addr *at, cfs_deadline_t deadline,
			struct rds_addr *ret, char err[256])
{
	redisReply *reply = NULL;
	struct rds_sock *s;
	int r = open_at(t, at, deadline, &s, err);

	if (r)
		return r;
	r = log_in(s, at, NULL, t->sentinel_password, deadline, err);
	if (!r)
		r = rds_sock_ask(s, deadline, &reply, "SENTINEL", "get-master-addr-by-name",
				 t->master, NULL);
	if (!r && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
	    reply->element[0]->len < sizeof(ret->host)) {
		snprintf(ret->host, sizeof(ret->host), "%s", reply->element[0]->str);
		ret->port = (unsigned)strtoul(reply->element[1]->str, NULL, 10);
	} else if (!r) {
		snprintf(err, 256, "Sentinel at %.90s:%u does not know the master %.60s%s%.50s",
			 at->host, at->port, t->master,
			 reply->type == REDIS_REPLY_ERROR ? ": " : "",
			 reply->type == REDIS_REPLY_ERROR ? reply->str : "");
		r = reply->type == REDIS_REPLY_ERROR ? -EACCES : -ENOTCONN;
	}
	if (reply)
		freeReplyObject(reply);
	rds_sock_close(s);
	return r;
}

static int open_by_sentinel(struct rds_target *t, cfs_deadline_t deadline, struct rds_sock **ret,
			    char err[256])
{
	struct rds_addr a = {0};
	int r = -ENOTCONN;
	size_t i;

	for (i = 0; i < t->n_seeds; i++) {
		r = ask_sentinel(t, &t->seeds[i], deadline, &a, err);
		if (!r)
			r = open_server(t, &a, deadline, ret, err);
		if (!r)
			return 0;
	}
	return r;
}

int rds_sock_open(struct rds_target *t, cfs_deadline_t deadline, struct rds_sock **ret,
		  char err[256])
{
	struct rds_addr current;
	int r = -ENOTCONN;
	size_t i;

	snprintf(err, 256, "Redis at %.200s does not answer", t->where);
	if (t->master)
		return open_by_sentinel(t, deadline, ret, err);
	pthread_mutex_lock(&t->lock);
	current = t->current;
	pthread_mutex_unlock(&t->lock);
	if (current.host[0])
		r = open_server(t, &current, deadline, ret, err);
	for (i = 0; i < t->n_seeds && r && r != -EACCES; i++) {
		rds_target_forget(t);
		r = open_server(t, &t->seeds[i], deadline, ret, err);
	}
	return r;
}
