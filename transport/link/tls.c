/* SPDX-License-Identifier: Apache-2.0 */
/* Connections over TLS 1.3 with OpenSSL: keys, handshake, records. */
#include "tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* Both with SHA-256, as the key's derivation. */
#define CIPHERS		       "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
#define RECORD		       (16u << 10)
#define RECORD_MAX	       (RECORD + 256 + 5) /* on its way: RFC 8446, 5.2 */
#define READ_BUFFER	       (64u << 10)	  /* received at a time */
#define HANDSHAKE_MAX	       (8u << 10) /* from a client without proof; a member sends 600 */
#define IDENTITY_LEN	       32
#define CONTENT_TYPE_HANDSHAKE 22

static const char binding_label[] = "EXPORTER-Channel-Binding"; /* RFC 9266 */

struct cfs_tls {
	SSL_CTX *client, *server;
	const struct cfs_handshake_keys *keys;
	uint64_t records;
};

struct cfs_tls_session {
	pthread_mutex_t lock; /* protects ssl; held for a call that encrypts or decrypts one
			       * record */
	SSL *ssl;
	const struct cfs_tls *tls;
	bool stranger; /* the client's key is not ours */
	char identity[IDENTITY_LEN];
	uint64_t records;
};

/* --- the key --- */

static int identity_of(const uint8_t key[CFS_PEER_KEY_SIZE], char ret[IDENTITY_LEN])
{
	uint32_t id;

	if (cfs_handshake_key_id(key, &id) < 0)
		return -EIO;
	snprintf(ret, IDENTITY_LEN, "cachefs peer 1 %08x", id);
	return 0;
}

/* The key as OpenSSL wants it. */
static SSL_SESSION *as_session(SSL *ssl, const uint8_t key[CFS_PEER_KEY_SIZE])
{
	static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
	uint8_t psk[CFS_PEER_KEY_SIZE];
	SSL_SESSION *s = SSL_SESSION_new();
	bool ok = s && cfs_handshake_tls_key(key, psk) == 0 &&
		  SSL_SESSION_set1_master_key(s, psk, sizeof(psk)) == 1 &&
		  SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) == 1 &&
		  SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION) == 1;

	OPENSSL_cleanse(psk, sizeof(psk));
	if (ok)
		return s;
	SSL_SESSION_free(s);
	return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len,
		     SSL_SESSION **ret)
{
	struct cfs_tls_session *s = SSL_get_app_data(ssl);
	const uint8_t *key = s->tls->keys->key[0];

	*ret = NULL;
	if (md && EVP_MD_get_size(md) != CFS_PEER_KEY_SIZE)
		return 1; /* another hash than that of the key: no PSK */
	if (identity_of(key, s->identity) == 0)
		*ret = as_session(ssl, key);
	*id = (const unsigned char *)s->identity;
	*id_len = strlen(s->identity);
	return *ret != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **ret)
{
	struct cfs_tls_session *s = SSL_get_app_data(ssl);
	const struct cfs_handshake_keys *keys = s->tls->keys;
	char known[IDENTITY_LEN];
	unsigned i;

	*ret = NULL;
	for (i = 0; i < keys->n; i++) {
		if (identity_of(keys->key[i], known) < 0)
			return 0;
		if (id_len != strlen(known) || memcmp(id, known, id_len) != 0)
			continue;
		*ret = as_session(ssl, keys->key[i]);
		return *ret != NULL;
	}
	s->stranger = true;
	return 1;
}

/* --- life --- */

static SSL_CTX *new_context(const SSL_METHOD *method)
{
	SSL_CTX *c = SSL_CTX_new(method);

	if (!c)
		return NULL;
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				    SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	/* No resumption: it would authenticate without the group's key. */
	if (SSL_CTX_set_num_tickets(c, 0) == 1 && SSL_CTX_set_ciphersuites(c, CIPHERS) == 1 &&
	    SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
	    SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1)
		return c;
	SSL_CTX_free(c);
	return NULL;
}

/* OpenSSL sends without MSG_NOSIGNAL, so a closed connection raises SIGPIPE. */
static void ignore_sigpipe(void)
{
	struct sigaction old;

	if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
		signal(SIGPIPE, SIG_IGN);
}

int cfs_tls_create(const struct cfs_handshake_keys *keys, uint64_t records, struct cfs_tls **ret)
{
	struct cfs_tls *tls = calloc(1, sizeof(*tls));

	if (!tls)
		return -ENOMEM;
	tls->keys = keys;
	tls->records = records;
	tls->client = new_context(TLS_client_method());
	tls->server = new_context(TLS_server_method());
	if (!tls->client || !tls->server) {
		cfs_tls_destroy(tls);
		return -ENOMEM;
	}
	ignore_sigpipe();
	SSL_CTX_set_psk_use_session_callback(tls->client, offer_key);
	SSL_CTX_set_psk_find_session_callback(tls->server, find_key);
	/* A server with a certificate instead of the key fails: no certificate is trusted. */
	SSL_CTX_set_verify(tls->client, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_read_ahead(tls->client, 1);
	SSL_CTX_set_default_read_buffer_len(tls->client, READ_BUFFER);
	SSL_CTX_set_options(tls->server, SSL_OP_ENABLE_KTLS);
	*ret = tls;
	return 0;
}

void cfs_tls_destroy(struct cfs_tls *tls)
{
	SSL_CTX_free(tls->client);
	SSL_CTX_free(tls->server);
	free(tls);
}

static int begin(struct cfs_link *l, SSL_CTX *ctx)
{
	struct cfs_tls_session *s = calloc(1, sizeof(*s));

	if (s)
		s->ssl = SSL_new(ctx);
	if (!s || !s->ssl || SSL_set_fd(s->ssl, l->fd) != 1) {
		if (s)
			SSL_free(s->ssl);
		free(s);
		return -ENOMEM;
	}
	s->tls = l->tls;
	SSL_set_app_data(s->ssl, s);
	pthread_mutex_init(&s->lock, NULL);
	l->session = s;
	return 0;
}

static int tls_connect(struct cfs_link *l, const struct sockaddr *addr, socklen_t len)
{
	int r = cfs_link_tcp.connect(l, addr, len);

	if (r < 0)
		return r;
	r = begin(l, l->tls->client);
	if (r == 0)
		SSL_set_connect_state(l->session->ssl);
	else
		cfs_link_tcp.close(l);
	return r;
}

/* No close_notify: frames have lengths, so an end in the middle of one is detected. */
static void tls_close(struct cfs_link *l)
{
	struct cfs_tls_session *s = l->session;

	if (s) {
		SSL_free(s->ssl);
		pthread_mutex_destroy(&s->lock);
		free(s);
	}
	l->session = NULL;
	cfs_link_tcp.close(l);
}

/* --- the handshake --- */

/* 1: the client speaks TLS, 0: not. */
static int speaks_tls(struct cfs_link *l)
{
	uint8_t type;
	ssize_t n = recv(l->fd, &type, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	return n == 0 ? -ECONNRESET : type == CONTENT_TYPE_HANDSHAKE;
}

static int failure(struct cfs_tls_session *s, int error, int err)
{
	int reason = ERR_GET_REASON(ERR_peek_error());

	if (error == SSL_ERROR_SYSCALL)
		return err ? -err : -ECONNRESET;
	if (error == SSL_ERROR_ZERO_RETURN || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		return -ECONNRESET;
	/* A client without the key sees only the alert. */
	if (s->stranger || reason == SSL_R_BINDER_DOES_NOT_VERIFY ||
	    reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
	    reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE ||
	    reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER)
		return -EACCES;
	return -EPROTO;
}

static const struct cfs_link_ops by_kernel;

/* Starts TLS at the client's first bytes, so that an idle connection costs only a socket. */
static int begin_accepted(struct cfs_link *l)
{
	int r = speaks_tls(l);

	if (r <= 0)
		return r < 0 ? r : -EPROTOTYPE;
	r = begin(l, l->tls->server);
	if (r == 0)
		SSL_set_accept_state(l->session->ssl);
	return r;
}

static int tls_handshake(struct cfs_link *l, bool *ret_out)
{
	struct cfs_tls_session *s;
	int r, error, err;

	l->unread = false;
	if (!l->session) {
		r = begin_accepted(l);
		if (r < 0)
			return r;
	}
	s = l->session;
	ERR_clear_error();
	errno = 0;
	r = SSL_do_handshake(s->ssl);
	err = errno;
	error = r == 1 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, r);
	if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
		if (BIO_number_read(SSL_get_rbio(s->ssl)) > HANDSHAKE_MAX)
			return -EPROTO;
		*ret_out = error == SSL_ERROR_WANT_WRITE;
		return -EAGAIN;
	}
	if (error != SSL_ERROR_NONE)
		return failure(s, error, err);
	if (!SSL_session_reused(s->ssl)) /* OpenSSL calls a handshake with an external PSK reused */
		return -EACCES;
	if (SSL_is_server(s->ssl) && BIO_get_ktls_send(SSL_get_wbio(s->ssl)))
		l->ops = &by_kernel;
	l->unread = true;
	return 0;
}

static void tls_binding(struct cfs_link *l, uint8_t ret[CFS_LINK_BINDING])
{
	/* Fails only without memory; then the proofs of the two ends differ and the handshake fails. */
	memset(ret, 0, CFS_LINK_BINDING);
	(void)SSL_export_keying_material(l->session->ssl, ret, CFS_LINK_BINDING, binding_label,
					 sizeof(binding_label) - 1, NULL, 0, 0);
}

/* --- bytes --- */

static ssize_t outcome(struct cfs_tls_session *s, int r, int err)
{
	int error = r > 0 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, r);

	switch (error) {
	case SSL_ERROR_NONE:
		return r;
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		return -EAGAIN;
	default:
		return failure(s, error, err);
	}
}

/* Reads at most the rest of a record. */
static ssize_t read_some(struct cfs_link *l, uint8_t *data, size_t len)
{
	struct cfs_tls_session *s = l->session;
	ssize_t r;

	pthread_mutex_lock(&s->lock);
	ERR_clear_error();
	errno = 0;
	r = SSL_read(s->ssl, data, (int)CFS_MIN(len, (size_t)RECORD));
	r = outcome(s, (int)r, errno);
	pthread_mutex_unlock(&s->lock);
	l->unread = r != -EAGAIN;
	l->key_limit = ++s->records > s->tls->records;
	return r;
}

static ssize_t tls_recv(struct cfs_link *l, struct iovec *iov, int n)
{
	ssize_t total = 0, r;
	size_t off;
	int i;

	for (i = 0; i < n; i++) {
		for (off = 0; off < iov[i].iov_len; off += (size_t)r) {
			r = read_some(l, (uint8_t *)iov[i].iov_base + off, iov[i].iov_len - off);
			if (r <= 0)
				return total > 0 ? total : r;
			total += r;
		}
	}
	return total;
}

/* A record's worth of iov from offset off; small pieces are joined in buf. */
static size_t gather(const struct iovec *iov, int n, size_t off, uint8_t buf[RECORD],
		     const uint8_t **ret)
{
	size_t len = CFS_MIN(iov->iov_len - off, (size_t)RECORD), more;
	int i;

	*ret = (uint8_t *)iov->iov_base + off;
	if (len == RECORD || n == 1)
		return len;
	memcpy(buf, *ret, len);
	for (i = 1; i < n && len < RECORD; i++, len += more) {
		more = CFS_MIN(iov[i].iov_len, RECORD - len);
		memcpy(buf + len, iov[i].iov_base, more);
	}
	*ret = buf;
	return len;
}

static ssize_t tls_send(struct cfs_link *l, struct iovec *iov, int n, bool more)
{
	struct cfs_tls_session *s = l->session;
	uint8_t buf[RECORD];
	const uint8_t *data;
	ssize_t total = 0, r;
	size_t len, off = 0;

	while (n > 0) {
		if (off == iov->iov_len) {
			iov++;
			n--;
			off = 0;
			continue;
		}
		len = gather(iov, n, off, buf, &data);
		pthread_mutex_lock(&s->lock);
		ERR_clear_error();
		errno = 0;
		r = outcome(s, SSL_write(s->ssl, data, (int)len), errno);
		pthread_mutex_unlock(&s->lock);
		if (r <= 0)
			return total > 0 ? total : r < 0 ? r : -ECONNRESET;
		total += r;
		for (off += (size_t)r; off > iov->iov_len; n--)
			off -= (iov++)->iov_len;
	}
	return total;
}

/* A part of a record may be buffered here already, which the socket does not count. */
static void tls_expect(struct cfs_link *l, size_t bytes)
{
	cfs_link_tcp.expect(l, bytes > RECORD_MAX ? bytes - RECORD_MAX : 1);
}

const struct cfs_link_ops cfs_link_tls = {
	.transport = CFS_PEER_TLS,
	.listen = cfs_tcp_listen,
	.accept = cfs_tcp_accept,
	.connect = tls_connect,
	.connected = cfs_tcp_connected,
	.handshake = tls_handshake,
	.binding = tls_binding,
	.recv = tls_recv,
	.send = tls_send,
	.expect = tls_expect,
	.cut = cfs_tcp_cut,
	.close = tls_close,
};

static const struct cfs_link_ops by_kernel = {
	.transport = CFS_PEER_KTLS,
	.binding = tls_binding,
	.recv = tls_recv,
	.send = cfs_tcp_send,
	.splice = cfs_tcp_splice,
	.expect = tls_expect,
	.cut = cfs_tcp_cut,
	.close = tls_close,
};
