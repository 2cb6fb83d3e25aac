/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis engine (volume-format section 4).
 *
 * sock.c	one connection: bytes, TLS, handshake
 * target.c	the server's address: URL options, Sentinel, Cluster
 * pipe.c	requests of many threads over one connection
 * request.c	commands and scripts, retries, meaning of errors
 * reply.c	replies that are safe to read, whatever the server has sent
 *
 * A change is one Lua script, lua/<folder>/<operation>.lua: it is atomic also for clients that use
 * WATCH and MULTI. Each script stores its last answer for a while, under the key of the calling
 * thread. When a connection is lost before the answer, the client sends the script again. A script
 * that has already run returns the stored answer.
 */
#ifndef CFS_META_REDIS_INTERNAL_H
#define CFS_META_REDIS_INTERNAL_H

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "meta/engine/changelog.h"
#include "meta/engine/engine.h"
#include "meta/engine/optimistic.h"
#include "meta/engine/rules.h"
#include "scripts.h"

/* ---- target.c ---- */

struct rds_addr {
	char host[256]; /* or the path of a unix socket, port 0 */
	unsigned port;
};

struct rds_target {
	struct rds_addr *seeds; /* servers, nodes of a cluster, or sentinels */
	size_t n_seeds;
	char *master; /* the master's name in Sentinel; NULL: no Sentinel */
	char *user, *password, *sentinel_password;
	unsigned db;
	bool cluster; /* the database number is part of the key prefix instead */
	bool tls, verify;
	char *tls_ca, *tls_cert, *tls_key, *tls_name;
	uint64_t read_timeout_ms, write_timeout_ms;
	unsigned min_backoff_ms, max_backoff_ms, max_conns;
	bool any_eviction; /* mount with any maxmemory-policy */
	char where[256];   /* for messages */

	atomic_bool away; /* the server is known to be unreachable */

	pthread_mutex_t lock;	 /* protects current */
	struct rds_addr current; /* the last known server of the volume; host "" when unknown */
};

int rds_target_init(struct rds_target *t, const struct cfs_url *url, char err[256]);
void rds_target_free(struct rds_target *t);

/* ---- sock.c ---- */

/* One connection, used by at most one writer and one reader at a time. */
struct rds_sock;
/* Opens a connection and sends AUTH and SELECT. err: one line, always filled on failure. */
int rds_sock_open(struct rds_target *t, cfs_deadline_t deadline, struct rds_sock **ret,
		  char err[256]);
void rds_sock_close(struct rds_sock *s);
/* Wakes up threads that wait in send or receive. */
void rds_sock_shutdown(struct rds_sock *s);
/* 0, -ETIMEDOUT, -ENOTCONN */
int rds_sock_send(struct rds_sock *s, const void *data, size_t len, cfs_deadline_t deadline);
/*
 * The next reply; waits for it when deadline is not 0, else -EAGAIN. An error reply of the server
 * is a reply, not an error.
 */
int rds_sock_receive(struct rds_sock *s, cfs_deadline_t deadline, redisReply **ret);
/* One command of words, and its reply. */
int rds_sock_ask(struct rds_sock *s, cfs_deadline_t deadline, redisReply **ret, ...)
	__attribute__((sentinel));
int rds_sock_is_cluster(struct rds_sock *s, cfs_deadline_t deadline, bool *ret);
/* Forgets the current server: the next connection asks Sentinel or the seeds. */
void rds_target_forget(struct rds_target *t);
/* Sets the current server from a MOVED reply: "3999 127.0.0.1:6381". */
void rds_target_moved(struct rds_target *t, const char *to);

/* ---- pipe.c ---- */

struct rds_pipe;
int rds_pipe_create(struct rds_target *t, struct rds_pipe **ret);
void rds_pipe_destroy(struct rds_pipe *p);
/*
 * Sends `n` commands and waits for their replies. -ENOTCONN: no connection, or it was lost;
 * -ETIMEDOUT. *ret_sent: whether the server may have received the commands.
 */
int rds_pipe_run(struct rds_pipe *p, const void *data, size_t len, size_t n,
		 cfs_deadline_t deadline, redisReply **ret, bool *ret_sent);
/* The next request goes over a fresh connection. */
void rds_pipe_renew(struct rds_pipe *p);

/* ---- the engine ---- */

struct rds_inode_names;
struct rds_windows;
struct rds_deletions;

struct rds {
	struct cfs_engine engine; /* first */
	struct rds_target target;
	bool read_only;
	char prefix[24]; /* of every key */
	uint64_t client; /* part of the keys of stored answers */
	struct rds_pipe **pipes;
	unsigned n_pipes;
	_Atomic uint64_t last_token;
	struct rds_windows *windows;
	struct rds_inode_names *inode_names;
	struct rds_deletions *deletions;
	struct cfs_optimistic optimistic; /* optimistic.c */
	bool info_refused;		  /* to this user; fixed when the volume is opened */
	atomic_bool group_refused;	  /* data.c: commits are made one by one */
	_Atomic uint64_t group_slots;	  /* data.c: of a group that was answered; 0: none */
};

static inline struct rds *rds_of(struct cfs_engine *e)
{
	return (struct rds *)e;
}

/* ---- request.c ---- */

/*
 * Commands that are sent together. Format letters of the words of a command:
 *	s const char *		i int64_t	u uint64_t
 *	b const void *, size_t	bytes
 *	k const char *, uint64_t	the key of that name and number
 *	K const char *		the key of that name
 *	c uint64_t, uint32_t	the key of a chunk list
 *	8 uint64_t		8 bytes, big-endian
 *	t struct timespec	12 bytes, as in attributes
 *	w const struct cfs_ctx *	its credentials for the rules in scripts: uid, gid, check, groups
 */
#define RDS_KEY_MAX 112
struct rds_request {
	struct rds *r;
	char *buf;
	size_t len, cap, n;
	redisReply **reply; /* n of them */
	bool failed;	    /* no memory */
	/* a script */
	const struct rds_script *script;
	unsigned n_words;
	size_t head;			  /* length of the words that name the script */
	char key[RDS_KEY_MAX], token[17]; /* key and number of its stored answer */
	bool resent;			  /* both belong to an earlier request, which is repeated */
	uint64_t slot;			  /* part of the key; 0: the calling thread's */
	char small[1024];
};

/* The shortest time that the server keeps an answer under this key. */
uint64_t rds_kept_ms(const char *key);
void rds_end(struct rds_request *q);
/* Declares a request to the engine, which ends with its block. */
#define RDS_REQUEST(q, e) __attribute__((cleanup(rds_end))) struct rds_request q = {.r = rds_of(e)}
/* Removes the commands and replies, so that the request can be used for other commands. */
void rds_reset(struct rds_request *q);
void rds_command(struct rds_request *q, const char *fmt, ...);
/* Begins a command of that many words, which rds_words adds. */
void rds_command_begin(struct rds_request *q, size_t words);
void rds_words(struct rds_request *q, const char *fmt, ...);
void rds_words_v(struct rds_request *q, const char *fmt, va_list ap);
/* Appends the words of another request. */
void rds_append(struct rds_request *q, const struct rds_request *from);
/* Runs the commands: 0 and q->reply, none of them an error. */
int rds_run(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op);
/* Runs one command. */
int rds_ask(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op, const char *fmt,
	    ...);
/*
 * Runs a script with its arguments; a request has one script and no other command. The answer,
 * *ret, is an array. Returns its first element: 0, a positive number, or a negative errno (*ret is
 * set as well). For a bare script: 0 when the answer is the number 0, else 1. ret NULL: only the
 * result is wanted.
 */
int rds_script(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	       const struct rds_script *script, redisReply **ret, const char *fmt, ...);
/* The same with a variable number of arguments, which rds_words adds. */
void rds_script_begin(struct rds_request *q, const struct cfs_ctx *ctx,
		      const struct rds_script *script, size_t words);
int rds_script_run(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op,
		   redisReply **ret);
/* The result in the answer of q's script, which is not bare: as rds_script. */
int rds_script_result(const struct rds_request *q, const redisReply *answer);
/* n slots for scripts that are sent together: the first one. */
uint64_t rds_slots(unsigned n);
/* Runs a script whose answer has only the result. */
int rds_change(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	       const struct rds_script *script, const char *fmt, ...);
/*
 * The position of a scan; `at` is 0 before the first page and after the last one. A correct server
 * never returns a cursor twice. A server that does would make the scan endless: `mark` is the
 * cursor after 1, 2, 4, ... pages, and meeting it again ends the scan with an error.
 */
struct rds_cursor {
	uint64_t at, mark, pages;
};
/*
 * Reads one page of SCAN, HSCAN or ZSCAN, of about `count` elements. fmt: the words before the
 * cursor; pattern: for MATCH, or NULL. *ret is part of q. -EIO: the server has repeated a cursor
 * (logged).
 */
int rds_page(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	     struct rds_cursor *c, uint64_t count, const char *pattern, const redisReply **ret,
	     const char *fmt, ...);
/* A growing buffer of bytes. */
struct rds_bytes {
	uint8_t *p;
	size_t len, cap;
	bool failed;
};
void rds_bytes_add(struct rds_bytes *b, const void *p, size_t len);

/* ---- replies ---- */

/*
 * reply.c: code may read a reply of rds_sock_receive() as any type. `str` is never NULL; it is ""
 * with len 0 for types without text. Elements 0 to RDS_ELEMENTS - 1 exist, and are nil from
 * `elements` on. So a damaged or foreign server causes an error or a wrong number, and never a
 * crash. An index that comes from another reply needs rds_element(); reading bytes needs a check of
 * len.
 */
enum { RDS_ELEMENTS = 8 };
/*
 * Fills a received reply in this way. -EPROTO: a type that is not used; -ENOMEM. Then only free it.
 */
int rds_reply_fill(redisReply *r);
/* Element i; nil from `elements` on. */
const redisReply *rds_element(const redisReply *r, size_t i);

/* The number of an integer or string reply, limited to +-2^62, so that two can be added. nil: 0. */
int64_t rds_int(const redisReply *r);
static inline bool rds_is_nil(const redisReply *r)
{
	return r->type == REDIS_REPLY_NIL;
}
static inline bool rds_is_bytes(const redisReply *r)
{
	return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS;
}
/* Parses leading digits; *ret_used: how many. False: there are none, or the number is too large. */
bool rds_number(const char *p, size_t len, uint64_t *ret, size_t *ret_used);

/* ---- attr.c ---- */

/* A record with a greater length is damaged; sums of lengths would overflow. */
#define RDS_LENGTH_MAX (2 * CFS_FILE_MAX)
/* -ENOENT: there is no record; -EIO: it is damaged */
int rds_attr_reply(const redisReply *r, struct cfs_attr *ret);
/* A directory entry's value. */
#define RDS_ENTRY_BYTES 9
int rds_entry_decode(const void *p, size_t len, uint8_t *ret_type, cfs_ino_t *ret_ino);
void rds_entry_encode(uint8_t type, cfs_ino_t ino, uint8_t out[RDS_ENTRY_BYTES]);
/* "1" when directories have statistics. */
static inline const char *rds_stats(struct rds *r)
{
	return cfs_host_dir_stats(r->engine.host) ? "1" : "0";
}

/* Calls fn for each (id, size) pair of a list that a script returns, 12 bytes each. */
int rds_each_pair(const redisReply *r, cfs_engine_slice_fn fn, void *arg);

/* ---- readdir.c ---- */

int rds_windows_create(struct rds_windows **ret);
void rds_windows_destroy(struct rds_windows *w);

/* ---- delete.c ---- */

int rds_deletions_create(struct rds_deletions **ret);
void rds_deletions_destroy(struct rds_deletions *d);

#endif
