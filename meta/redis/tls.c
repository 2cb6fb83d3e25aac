/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/redis/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"

struct rds_tls {
	pthread_mutex_t lock; /* protects ssl; held for one call, which never waits */
	SSL_CTX *context;
	SSL *ssl;
};

static int failed(char err[256], const char *what, const char *name)
{
	unsigned long code = ERR_get_error();

	return cfs_fail(err, -EACCES, "TLS: %s %.100s: %s", what, name,
			code ? ERR_reason_error_string(code) : "connection closed");
}

static int configure(struct rds_target *t, SSL_CTX *c, char err[256])
{
	SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	if (t->verify)
		SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
	if (t->tls_ca ? SSL_CTX_load_verify_locations(c, t->tls_ca, NULL) != 1
		      : SSL_CTX_set_default_verify_paths(c) != 1)
		return failed(err, "cannot read the CA certificates", t->tls_ca ? t->tls_ca : "");
	if (t->tls_cert && SSL_CTX_use_certificate_chain_file(c, t->tls_cert) != 1)
		return failed(err, "cannot read the certificate", t->tls_cert);
	if (t->tls_key && SSL_CTX_use_PrivateKey_file(c, t->tls_key, SSL_FILETYPE_PEM) != 1)
		return failed(err, "cannot read the key", t->tls_key);
	return 0;
}

static int name_server(struct rds_target *t, SSL *ssl, const char *host)
{
	const char *name = t->tls_name ? t->tls_name : host;
	struct in6_addr any;
	bool is_addr = inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1;

	if (is_addr)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1 ? 0 : -EINVAL;
	return SSL_set_tlsext_host_name(ssl, name) == 1 && SSL_set1_host(ssl, name) == 1 ? 0
											 : -EINVAL;
}

static ssize_t outcome(struct rds_tls *tls, int n, short *ret_wait)
{
	int e;

	if (n > 0)
		return n;
	e = SSL_get_error(tls->ssl, n);
	*ret_wait = e == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
	return e == SSL_ERROR_WANT_WRITE || e == SSL_ERROR_WANT_READ ? -EAGAIN : -ENOTCONN;
}

static int handshake(struct rds_tls *tls, int fd, cfs_deadline_t deadline)
{
	short events = POLLIN;
	ssize_t r;

	ERR_clear_error();
	while ((r = outcome(tls, SSL_connect(tls->ssl), &events)) == -EAGAIN) {
		struct pollfd p = {.fd = fd, .events = events};
		uint64_t left = cfs_deadline_left_ms(deadline);

		if (!left)
			return -ETIMEDOUT;
		poll(&p, 1, (int)CFS_MIN(left, 1000));
	}
	return r < 0 ? (int)r : 0;
}

/*
 * A server that is restarting ends the connection, and one that hangs lets the time pass. Neither
 * is a refusal, so the caller tries again (-ENOTCONN). Some versions of OpenSSL have an error for
 * the end.
 */
static int handshake_error(int r, const char *host, char err[256])
{
	unsigned long code = ERR_peek_error();

#ifdef SSL_R_UNEXPECTED_EOF_WHILE_READING
	if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		code = 0;
#endif
	if (r != -ETIMEDOUT && code)
		return failed(err, "no trusted connection to", host);
	return cfs_fail(err, -ENOTCONN, "TLS: %.100s %s during the handshake", host,
			r == -ETIMEDOUT ? "did not answer" : "closed the connection");
}

int rds_tls_start(struct rds_target *t, const char *host, int fd, cfs_deadline_t deadline,
		  struct rds_tls **ret, char err[256])
{
	struct rds_tls *tls = calloc(1, sizeof(*tls));
	int r;

	if (!tls)
		return -ENOMEM;
	pthread_mutex_init(&tls->lock, NULL);
	tls->context = SSL_CTX_new(TLS_client_method());
	r = tls->context ? configure(t, tls->context, err) : -ENOMEM;
	if (!r) {
		tls->ssl = SSL_new(tls->context);
		r = tls->ssl && SSL_set_fd(tls->ssl, fd) == 1 ? name_server(t, tls->ssl, host)
							      : -ENOMEM;
	}
	if (!r) {
		r = handshake(tls, fd, deadline);
		if (r)
			r = handshake_error(r, host, err);
	}
	if (r) {
		rds_tls_end(tls);
		return r;
	}
	*ret = tls;
	return 0;
}

void rds_tls_end(struct rds_tls *tls)
{
	SSL_free(tls->ssl);
	SSL_CTX_free(tls->context);
	pthread_mutex_destroy(&tls->lock);
	free(tls);
}

ssize_t rds_tls_read(struct rds_tls *tls, void *buf, size_t size, short *ret_wait)
{
	CFS_LOCK_GUARD(&tls->lock);

	ERR_clear_error();
	return outcome(tls, SSL_read(tls->ssl, buf, (int)CFS_MIN(size, 1 << 20)), ret_wait);
}

/* OpenSSL writes without MSG_NOSIGNAL: consumes the SIGPIPE that a lost connection has raised. */
static void take_sigpipe(const sigset_t *old)
{
	const struct timespec at_once = {0};
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	if (!sigismember(old, SIGPIPE))
		while (sigtimedwait(&pipe, NULL, &at_once) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, old, NULL);
}

ssize_t rds_tls_write(struct rds_tls *tls, const void *data, size_t len, short *ret_wait)
{
	sigset_t pipe, old;
	ssize_t r;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &old);
	pthread_mutex_lock(&tls->lock);
	ERR_clear_error();
	r = outcome(tls, SSL_write(tls->ssl, data, (int)CFS_MIN(len, 1 << 20)), ret_wait);
	pthread_mutex_unlock(&tls->lock);
	take_sigpipe(&old);
	return r;
}
