/* SPDX-License-Identifier: Apache-2.0 */
/* Commands and scripts: words, retries, and what errors mean. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/redis/redis-internal.h"

/* The number in the key of a stored answer: one key per thread, used by one request at a time. */
static _Atomic uint64_t last_slot;
static _Thread_local uint64_t my_slot;

static uint64_t slot(void)
{
	if (!my_slot)
		my_slot = atomic_fetch_add(&last_slot, 1) + 1;
	return my_slot;
}

uint64_t rds_slots(unsigned n)
{
	return atomic_fetch_add(&last_slot, n) + 1;
}

/*
 * Each thread changes its key every KEY_MS: bare scripts overwrite the value of an existing key,
 * which costs less than setting an expiry each time. The name of the key ends with its lifetime
 * from the first use: KEY_MS, and longer than a request may be repeated.
 */
enum { KEY_MS = 180000, LATE_MS = 60000, HOLD_MS = 120000 };

static uint64_t kept_ms(cfs_deadline_t deadline)
{
	const uint64_t most = (uint64_t)1 << 40; /* no deadline: 34 years */
	uint64_t left = CFS_MIN(cfs_deadline_left_ms(deadline), most), hold = HOLD_MS;

	/*
	 * Powers of two, so that requests with similar deadlines share a key. Twice the deadline,
	 * because the data layer repeats a commit for as long again.
	 */
	while (hold < 2 * left + LATE_MS)
		hold *= 2;
	return KEY_MS + hold;
}

uint64_t rds_kept_ms(const char *key)
{
	return strtoull(strrchr(key, ':') + 1, NULL, 10) - LATE_MS;
}

/* ---- building ---- */

static void drop_replies(struct rds_request *q)
{
	size_t i;

	for (i = 0; q->reply && i < q->n; i++)
		if (q->reply[i])
			freeReplyObject(q->reply[i]);
	free(q->reply);
	q->reply = NULL;
}

void rds_end(struct rds_request *q)
{
	drop_replies(q);
	if (q->buf != q->small)
		free(q->buf);
}

void rds_reset(struct rds_request *q)
{
	drop_replies(q);
	q->len = q->n = 0;
	q->script = NULL;
}

static void put(struct rds_request *q, const void *p, size_t len)
{
	size_t cap;
	char *buf;

	if (!q->buf) {
		q->buf = q->small;
		q->cap = sizeof(q->small);
	}
	for (cap = q->cap; cap < q->len + len; cap *= 2)
		;
	if (cap != q->cap) {
		buf = malloc(cap);
		if (!buf) {
			q->failed = true;
			return;
		}
		memcpy(buf, q->buf, q->len);
		if (q->buf != q->small)
			free(q->buf);
		q->buf = buf;
		q->cap = cap;
	}
	if (len)
		memcpy(q->buf + q->len, p, len);
	q->len += len;
}

/* Writes the number in front of `end`. Returns its first character. */
static char *decimal(char *end, uint64_t n)
{
	do {
		*--end = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	return end;
}

/* "<sign><number>\r\n" */
static void put_count(struct rds_request *q, char sign, size_t n)
{
	char text[24];
	char *end = text + sizeof(text), *p = decimal(end - 2, n);

	*--p = sign;
	memcpy(end - 2, "\r\n", 2);
	put(q, p, (size_t)(end - p));
}

static void put_word(struct rds_request *q, const void *p, size_t len)
{
	put_count(q, '$', len);
	put(q, p, len);
	put(q, "\r\n", 2);
}

static void put_number(struct rds_request *q, uint64_t n, bool negative)
{
	char text[24];
	char *end = text + sizeof(text), *p = decimal(end, negative ? -n : n);

	if (negative)
		*--p = '-';
	put_word(q, p, (size_t)(end - p));
}

/* rest: what follows the name; it ends at `end`. */
static void put_key(struct rds_request *q, const char *name, const char *rest, const char *end)
{
	size_t prefix = strlen(q->r->prefix), len = strlen(name);

	put_count(q, '$', prefix + len + (size_t)(end - rest));
	put(q, q->r->prefix, prefix);
	put(q, name, len);
	put(q, rest, (size_t)(end - rest));
	put(q, "\r\n", 2);
}

static void put_who(struct rds_request *q, const struct cfs_ctx *ctx)
{
	uint8_t out[4096];
	size_t i, n = ctx->check ? CFS_MIN(ctx->n_groups, (sizeof(out) - 9) / 4) : 0;

	cfs_put_be32(out, ctx->uid);
	cfs_put_be32(out + 4, ctx->gid);
	out[8] = ctx->check;
	for (i = 0; i < n; i++)
		cfs_put_be32(out + 9 + 4 * i, ctx->groups[i]);
	put_word(q, out, 9 + 4 * n);
}

void rds_words_v(struct rds_request *q, const char *fmt, va_list ap)
{
	char text[48];
	char *end = text + sizeof(text), *rest;

	for (; *fmt; fmt++) {
		const char *p;
		struct timespec t;
		int64_t i;
		uint64_t n;

		switch (*fmt) {
		case 's':
			p = va_arg(ap, const char *);
			put_word(q, p, strlen(p));
			break;
		case 'b':
			p = va_arg(ap, const void *);
			put_word(q, p, va_arg(ap, size_t));
			break;
		case 'i':
			i = va_arg(ap, int64_t);
			put_number(q, (uint64_t)i, i < 0);
			break;
		case 'u':
			put_number(q, va_arg(ap, uint64_t), false);
			break;
		case 'k':
			p = va_arg(ap, const char *);
			put_key(q, p, decimal(end, va_arg(ap, uint64_t)), end);
			break;
		case 'c':
			n = va_arg(ap, uint64_t);
			rest = decimal(end, va_arg(ap, uint32_t));
			*--rest = '_';
			put_key(q, "c", decimal(rest, n), end);
			break;
		case 'K':
			put_key(q, va_arg(ap, const char *), text, text);
			break;
		case 'w':
			put_who(q, va_arg(ap, const struct cfs_ctx *));
			break;
		case '8':
			cfs_put_be64(text, va_arg(ap, uint64_t));
			put_word(q, text, 8);
			break;
		case 't':
			t = va_arg(ap, struct timespec);
			cfs_put_be64(text, (uint64_t)t.tv_sec);
			cfs_put_be32(text + 8, (uint32_t)t.tv_nsec);
			put_word(q, text, 12);
			break;
		}
	}
}

void rds_command_begin(struct rds_request *q, size_t words)
{
	q->n++;
	put_count(q, '*', words);
}

void rds_words(struct rds_request *q, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	rds_words_v(q, fmt, ap);
	va_end(ap);
}

void rds_command(struct rds_request *q, const char *fmt, ...)
{
	va_list ap;

	rds_command_begin(q, strlen(fmt));
	va_start(ap, fmt);
	rds_words_v(q, fmt, ap);
	va_end(ap);
}

void rds_append(struct rds_request *q, const struct rds_request *from)
{
	put(q, from->buf, from->len);
	q->failed |= from->failed;
}

void rds_bytes_add(struct rds_bytes *b, const void *p, size_t len)
{
	size_t cap = b->cap ? b->cap : 256;
	uint8_t *v;

	while (cap < b->len + len)
		cap *= 2;
	if (cap != b->cap) {
		v = realloc(b->p, cap);
		if (!v) {
			b->failed = true;
			return;
		}
		b->p = v;
		b->cap = cap;
	}
	memcpy(b->p + b->len, p, len);
	b->len += len;
}

/* ---- errors of the server ---- */

enum verdict { GIVE_UP, AGAIN, RELOAD };

static bool is(const redisReply *e, const char *code)
{
	return strncmp(e->str, code, strlen(code)) == 0;
}

static bool is_full(const redisReply *e)
{
	return is(e, "OOM") || is(e, "MISCONF") || strstr(e->str, "OOM command not allowed") ||
	       strstr(e->str, "MISCONF");
}

/* Old servers put the script's name before the error of a command in a script. */
static bool is_unwritable(const redisReply *e)
{
	return is(e, "READONLY") || is(e, "MASTERDOWN") || is(e, "CLUSTERDOWN") ||
	       strstr(e->str, "READONLY You can't write");
}

static bool is_temporary(const redisReply *e)
{
	return is(e, "LOADING") || is(e, "BUSY ") || is(e, "TRYAGAIN") || is(e, "ASK ") ||
	       is(e, "NOREPLICAS") || strstr(e->str, "NOREPLICAS");
}

static enum verdict classify(struct rds_request *q, struct rds_pipe *p, const redisReply *e,
			     bool text, int *ret_errno)
{
	struct rds *r = q->r;

	/* NOSCRIPT in answer to the text itself: the request is tried again after a pause. */
	if (is(e, "NOSCRIPT") && q->script)
		return text ? AGAIN : RELOAD;
	if (is(e, "MOVED ")) {
		const char *to = strchr(e->str + 6, ' ');

		if (to)
			rds_target_moved(&r->target, e->str + 6);
		rds_pipe_renew(p);
		return AGAIN;
	}
	if (is_unwritable(e)) {
		rds_target_forget(&r->target);
		rds_pipe_renew(p);
		return AGAIN;
	}
	if (is_temporary(e))
		return AGAIN;
	*ret_errno = -EIO;
	if (is_full(e)) {
		*ret_errno = -ENOSPC;
	} else if (is(e, "NOAUTH") || is(e, "WRONGPASS") || is(e, "NOPERM")) {
		rds_pipe_renew(p);
		*ret_errno = -EACCES;
	}
	cfs_err("metadata server refused a request: url=%s script=%s answer=%.160s",
		r->target.where, q->script ? q->script->name : "-", e->str);
	return GIVE_UP;
}

static const redisReply *first_error(const struct rds_request *q)
{
	size_t i;

	for (i = 0; i < q->n; i++)
		if (q->reply[i]->type == REDIS_REPLY_ERROR)
			return q->reply[i];
	return NULL;
}

/* ---- running ---- */

/* Names the script of q by its digest, or contains its text, after the server has answered NOSCRIPT. */
static void put_script_head(struct rds_request *to, const struct rds_request *q, bool text)
{
	put_count(to, '*', 4 + q->n_words);
	if (text) {
		put_word(to, "EVAL", 4);
		put_word(to, q->script->text, q->script->len);
	} else {
		put_word(to, "EVALSHA", 7);
		put_word(to, q->script->sha, 40);
	}
	put_word(to, "1", 1);
	put_word(to, q->r->prefix, strlen(q->r->prefix));
}

static int run_text(struct rds_request *q, struct rds_pipe *p, cfs_deadline_t deadline,
		    bool *ret_sent)
{
	RDS_REQUEST(full, &q->r->engine);

	put_script_head(&full, q, true);
	put(&full, q->buf + q->head, q->len - q->head);
	if (full.failed)
		return -ENOMEM;
	return rds_pipe_run(p, full.buf, full.len, 1, deadline, q->reply, ret_sent);
}

int rds_run(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op)
{
	struct rds *r = q->r;
	struct rds_pipe *p = r->pipes[slot() % r->n_pipes]; /* each thread uses one of them */
	unsigned attempt = 0, trips = 0;
	bool text = false, sent;
	char answer[160] = ""; /* to the last try */
	int rc;

	if (q->failed)
		return -ENOMEM;
	if (q->script && q->script->writes &&
	    (r->read_only || atomic_load(&r->engine.host->refuse_changes)))
		return -EROFS;
	q->reply = calloc(q->n, sizeof(redisReply *));
	if (!q->reply)
		return -ENOMEM;
	for (;;) {
		const redisReply *e = NULL;
		enum verdict v = GIVE_UP;

		rc = q->script && q->script->writes ? cfs_host_check_volume(r->engine.host, ctx)
						    : 0;
		if (rc)
			break;
		rc = text ? run_text(q, p, ctx->deadline, &sent)
			  : rds_pipe_run(p, q->buf, q->len, q->n, ctx->deadline, q->reply, &sent);
		trips += sent;
		if (!rc) {
			e = first_error(q);
			v = e ? classify(q, p, e, text, &rc) : GIVE_UP;
		} else {
			memset(q->reply, 0, q->n * sizeof(redisReply *));
			v = rc == -ENOTCONN || rc == -ETIMEDOUT ? AGAIN : GIVE_UP;
		}
		if (v == GIVE_UP)
			break;
		snprintf(answer, sizeof(answer), "%s", e ? e->str : "");
		for (size_t i = 0; i < q->n; i++)
			if (q->reply[i])
				freeReplyObject(q->reply[i]);
		memset(q->reply, 0, q->n * sizeof(redisReply *));
		text = v == RELOAD;
		rc = -ETIMEDOUT;
		if (v == AGAIN &&
		    !cfs_backoff(attempt++, r->target.min_backoff_ms,
				 CFS_MIN(r->target.max_backoff_ms, 1000), ctx->deadline)) {
			if (answer[0])
				cfs_warn("metadata server refused a request until its deadline: "
					 "url=%s script=%s answer=%s",
					 r->target.where, q->script ? q->script->name : "-",
					 answer);
			break;
		}
	}
	/*
	 * The server may still execute the request, or the caller may send it again: no later request
	 * may use its key.
	 */
	if (rc == -ETIMEDOUT)
		my_slot = 0;
	cfs_host_count(r->engine.host, op, trips, attempt);
	return rc;
}

int rds_ask(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op, const char *fmt,
	    ...)
{
	va_list ap;

	rds_command_begin(q, strlen(fmt));
	va_start(ap, fmt);
	rds_words_v(q, fmt, ap);
	va_end(ap);
	return rds_run(q, ctx, op);
}

/* ARGV[1] and [2] of each script that makes changes; [3] is for lib/log.lua. */
static void put_write_words(struct rds_request *q, const struct cfs_ctx *ctx)
{
	struct cfs_engine_host *host = q->r->engine.host;
	char line[128] = "";

	if (!q->resent) {
		snprintf(q->key, sizeof(q->key),
			 "zcachefs:done:%016" PRIx64 ":%" PRIu64 ":%" PRIu64 ":%" PRIu64,
			 q->r->client, q->slot ? q->slot : slot(), cfs_now_ms() / KEY_MS,
			 kept_ms(ctx->deadline));
		snprintf(q->token, sizeof(q->token), "%016" PRIx64,
			 atomic_fetch_add(&q->r->last_token, 1));
	}
	rds_words(q, "ss", q->key, q->token);
	if (q->script->bare)
		return;
	if (cfs_host_changelog(host))
		snprintf(line, sizeof(line), "%lld.%09ld|\n|(%" PRIu64 ",%" PRIu64 ")",
			 (long long)ctx->now.tv_sec, ctx->now.tv_nsec, cfs_host_sid(host),
			 cfs_host_txn_number(host));
	rds_words(q, "s", line);
}

void rds_script_begin(struct rds_request *q, const struct cfs_ctx *ctx,
		      const struct rds_script *script, size_t words)
{
	rds_reset(q);
	q->n = 1;
	q->script = script;
	q->n_words = (unsigned)words + (script->bare ? 2 : script->writes ? 3 : 0);
	put_script_head(q, q, false);
	q->head = q->len;
	if (script->writes)
		put_write_words(q, ctx);
}

int rds_script_run(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op,
		   redisReply **ret)
{
	int rc = rds_run(q, ctx, op);
	redisReply *a;

	if (rc)
		return rc;
	a = q->reply[0];
	if (ret)
		*ret = a;
	return q->script->bare ? a->type != REDIS_REPLY_INTEGER || a->integer
			       : rds_script_result(q, a);
}

int rds_script_result(const struct rds_request *q, const redisReply *a)
{
	if (a->type != REDIS_REPLY_ARRAY || !a->elements ||
	    a->element[0]->type != REDIS_REPLY_INTEGER) {
		cfs_err("unexpected reply from the metadata server: url=%s script=%s",
			q->r->target.where, q->script->name);
		return -EIO;
	}
	return (int)a->element[0]->integer;
}

int rds_script(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	       const struct rds_script *script, redisReply **ret, const char *fmt, ...)
{
	va_list ap;

	rds_script_begin(q, ctx, script, strlen(fmt));
	va_start(ap, fmt);
	rds_words_v(q, fmt, ap);
	va_end(ap);
	return rds_script_run(q, ctx, op, ret);
}

static int move_cursor(struct rds_cursor *c, uint64_t at)
{
	if (at && at == c->mark) {
		cfs_err("the metadata server repeats the cursor of a scan, the operation fails");
		return -EIO;
	}
	c->at = at;
	c->pages++;
	if (!(c->pages & (c->pages - 1)))
		c->mark = at;
	return 0;
}

int rds_page(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	     struct rds_cursor *c, uint64_t count, const char *pattern, const redisReply **ret,
	     const char *fmt, ...)
{
	va_list ap;
	int r;

	rds_reset(q);
	rds_command_begin(q, strlen(fmt) + (pattern ? 5 : 3));
	va_start(ap, fmt);
	rds_words_v(q, fmt, ap);
	va_end(ap);
	rds_words(q, "usu", c->at, "COUNT", count);
	if (pattern)
		rds_words(q, "ss", "MATCH", pattern);
	r = rds_run(q, ctx, op);
	if (!r && q->reply[0]->elements != 2)
		r = -EIO;
	if (!r)
		r = move_cursor(c, strtoull(q->reply[0]->element[0]->str, NULL, 10));
	if (!r)
		*ret = q->reply[0]->element[1];
	return r;
}

int rds_change(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	       const struct rds_script *script, const char *fmt, ...)
{
	RDS_REQUEST(q, e);
	va_list ap;

	rds_script_begin(&q, ctx, script, strlen(fmt));
	va_start(ap, fmt);
	rds_words_v(&q, fmt, ap);
	va_end(ap);
	return rds_script_run(&q, ctx, op, NULL);
}

/* ---- replies ---- */

int64_t rds_int(const redisReply *r)
{
	const int64_t most = (int64_t)1 << 62;
	int64_t n = r->type == REDIS_REPLY_INTEGER ? r->integer
		    : rds_is_bytes(r)		   ? strtoll(r->str, NULL, 10)
						   : 0;

	return CFS_MIN(CFS_MAX(n, -most), most - 1);
}

bool rds_number(const char *p, size_t len, uint64_t *ret, size_t *ret_used)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; i < len && p[i] >= '0' && p[i] <= '9'; i++)
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(p[i] - '0'), &n))
			return false;
	*ret = n;
	*ret_used = i;
	return i > 0;
}

int rds_each_pair(const redisReply *r, cfs_engine_slice_fn fn, void *arg)
{
	size_t i;
	int rc = 0;

	if (!rds_is_bytes(r))
		return 0;
	for (i = 0; i + 12 <= r->len && !rc; i += 12)
		rc = fn(arg, cfs_get_be64(r->str + i), cfs_get_be32(r->str + i + 8));
	return rc;
}
