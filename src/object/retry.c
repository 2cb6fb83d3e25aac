/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retries: the only place where calls to an object store are repeated. Each call of the table is
 * idempotent: a put stores the same bytes, a removal of a missing object succeeds, a listing
 * resumes after the last key that was delivered.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/arrival.h"
#include "base/log.h"
#include "base/unwanted.h"
#include "filter.h"

#define TRIES_MAX    100
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 10000
#define LATE_MS	     3000  /* a call without success for so long is logged */
#define OUTAGE_MS    60000 /* least time between two log lines about outages */

static _Atomic uint64_t retries, damaged;
static _Thread_local bool quiet;
static _Thread_local char cause[sizeof(((struct cfs_object_failure *)NULL)->text)];

struct retry {
	struct cfs_filter f; /* first */
	struct cfs_object_ops ops;
	/* Protects the rest, but for reading `outage`; a leaf. */
	pthread_mutex_t lock;
	unsigned n_late;	 /* calls under way */
	_Atomic bool outage;	 /* logged, and no call has succeeded since */
	cfs_deadline_t next_log; /* no other outage is logged before */
};

struct attempt {
	struct retry *store;
	const char *verb, *key;
	cfs_deadline_t deadline;
	uint64_t begun_ms, failed_ms; /* the first time; 0: not yet */
	struct attempt *outer;
	unsigned tries;
	bool damage_logged;
	bool unwanted; /* it has failed, and does not matter */
	bool late;     /* counted in n_late */
};

static _Thread_local struct attempt *current;

static struct retry *to_retry(struct cfs_object_store *o)
{
	return (struct retry *)o;
}

uint64_t cfs_object_retries(void)
{
	return atomic_load_explicit(&retries, memory_order_relaxed);
}

uint64_t cfs_object_damaged(void)
{
	return atomic_load_explicit(&damaged, memory_order_relaxed);
}

void cfs_object_quiet(bool on)
{
	quiet = on;
	if (on)
		cause[0] = '\0';
}

const char *cfs_object_cause(void)
{
	return cause;
}

static struct cfs_object_store *inner(struct cfs_object_store *o)
{
	return ((struct cfs_filter *)o)->inner;
}

/* Logs one line per outage, of the first call that is late. */
static void note_late(struct attempt *a, int err, const char *why)
{
	uint64_t now = cfs_now_ms();
	struct retry *rt = a->store;
	bool report;

	if (a->late && atomic_load_explicit(&rt->outage, memory_order_relaxed))
		return;
	pthread_mutex_lock(&rt->lock);
	rt->n_late += !a->late;
	a->late = true;
	report = !rt->outage && now >= rt->next_log;
	if (report) {
		rt->outage = true;
		rt->next_log = now + OUTAGE_MS;
	}
	pthread_mutex_unlock(&rt->lock);
	if (report)
		cfs_warn("object store: no success so far, the call goes on until its deadline: "
			 "op=%s key=%s tried_s=%.1f left_s=%.1f tries=%u error=%s cause=%s",
			 a->verb, a->key, (double)(now - a->begun_ms) / 1000,
			 (double)cfs_deadline_left_ms(a->deadline) / 1000, a->tries,
			 cfs_errname(err), why);
}

static void on_silence(void *arg, uint64_t silent_ms)
{
	if (silent_ms >= LATE_MS)
		note_late(arg, -ETIMEDOUT, "no byte is sent or received");
}

/* Calls nest: the callback of a listing may make other calls. */
static void begin(struct attempt *a)
{
	a->begun_ms = cfs_now_ms();
	a->outer = current;
	current = a;
	cfs_silence_listen(on_silence, a);
}

/* The call has made progress or has ended. */
static void settle(struct attempt *a, bool answered)
{
	struct retry *rt = a->store;
	bool report = false;

	if (!a->late && !(answered && atomic_load_explicit(&rt->outage, memory_order_relaxed)))
		return;
	pthread_mutex_lock(&rt->lock);
	rt->n_late -= a->late;
	a->late = false;
	if (answered && rt->n_late == 0) {
		report = rt->outage;
		rt->outage = false;
	}
	pthread_mutex_unlock(&rt->lock);
	if (report)
		cfs_info("object store: calls succeed again: op=%s key=%s", a->verb, a->key);
}

static void leave(struct attempt *a, bool answered)
{
	settle(a, answered);
	current = a->outer;
	cfs_silence_listen(current ? on_silence : NULL, current);
}

/* Whether the result is an answer of the store. A missing or an existing object is one. */
static bool is_answer(ssize_t r)
{
	return r >= 0 || r == -ENOENT || r == -EEXIST || r == -CFS_OBJECT_EPART;
}

/* Returns the result of the call. */
static ssize_t end(struct attempt *a, ssize_t r)
{
	leave(a, is_answer(r));
	return a->unwanted ? -ECANCELED : r;
}

/*
 * The pause before the next try: Retry-After plus jitter, unless that is beyond the deadline. Servers
 * often request longer ones than they need.
 */
static uint64_t pause_ms(const struct attempt *a, uint32_t after_ms)
{
	uint64_t ms = after_ms + cfs_random_u64() % (after_ms / 8 + 50);

	if (after_ms && ms < cfs_deadline_left_ms(a->deadline))
		return ms;
	return cfs_backoff_ms(a->tries - 1, PAUSE_MIN_MS, PAUSE_MAX_MS);
}

/* False: the deadline has passed, or the call is not wanted. */
static bool pause_before_retry(const struct attempt *a, uint32_t after_ms)
{
	cfs_deadline_t until = cfs_deadline_in(pause_ms(a, after_ms));

	return cfs_unwanted_sleep(cfs_deadline_min(until, a->deadline)) &&
	       !cfs_deadline_passed(a->deadline);
}

/* Whether the caller shall repeat the call, after a pause. resume: the call can be repeated. */
static bool should_retry(struct cfs_object_store *o, struct attempt *a, int err, bool resume)
{
	struct cfs_object_failure f = {0};
	uint64_t now = cfs_now_ms(), left;
	bool warn;

	if (is_answer(err))
		return false;
	a->failed_ms = a->failed_ms ? a->failed_ms : now;
	inner(o)->ops->failure(inner(o), &f);
	a->tries++;
	if (f.damaged)
		atomic_fetch_add_explicit(&damaged, 1, memory_order_relaxed);
	if (f.retry && resume && a->tries < TRIES_MAX && !cfs_unwanted()) {
		left = cfs_deadline_left_ms(a->deadline);
		if (now - a->failed_ms + (f.after_ms < left ? f.after_ms : 0) >= LATE_MS && left)
			note_late(a, err, f.text);
		if (pause_before_retry(a, f.after_ms)) {
			warn = f.damaged && !a->damage_logged;
			a->damage_logged |= warn;
			cfs_log(warn ? CFS_LOG_WARN : CFS_LOG_DEBUG,
				"object store: %strying again: op=%s key=%s tries=%u error=%s "
				"cause=%s",
				f.damaged ? "bytes were damaged on their way, " : "", a->verb,
				a->key, a->tries, cfs_errname(err), f.text);
			atomic_fetch_add_explicit(&retries, 1, memory_order_relaxed);
			return true;
		}
	}
	a->unwanted = err == -ECANCELED || cfs_unwanted();
	memcpy(cause, f.text, sizeof(cause));
	if (!quiet && !a->unwanted)
		cfs_err("object store: gave up: op=%s key=%s tries=%u error=%s cause=%s", a->verb,
			a->key, a->tries, cfs_errname(err), f.text);
	return false;
}

/* Makes a call of the inner store, and repeats it as long as that may help. Yields its result. */
#define REPEAT(o, a, call)                                                                         \
	({                                                                                         \
		ssize_t r_;                                                                        \
                                                                                                   \
		begin(a);                                                                          \
		do {                                                                               \
			r_ = (call);                                                               \
		} while (r_ < 0 && should_retry(o, a, (int)r_, true));                             \
		end(a, r_);                                                                        \
	})

static ssize_t retry_get(struct cfs_object_store *o, const char *key, uint64_t off,
			 const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "get", key, deadline};

	return REPEAT(o, &a, inner(o)->ops->get(inner(o), key, off, dst, n_dst, deadline));
}

static int retry_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		     int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "put", key, deadline};

	return (int)REPEAT(o, &a, inner(o)->ops->put(inner(o), key, src, n_src, tier, deadline));
}

static int retry_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "delete", key, deadline};

	return (int)REPEAT(o, &a, inner(o)->ops->del(inner(o), key, deadline));
}

static int retry_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
			  cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "delete", keys[0], deadline};

	return (int)REPEAT(o, &a, inner(o)->ops->del_many(inner(o), keys, n, deadline));
}

static int retry_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		      cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "head", key, deadline};

	return (int)REPEAT(o, &a, inner(o)->ops->head(inner(o), key, ret, deadline));
}

static int retry_create(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "create", "", deadline};

	return (int)REPEAT(o, &a, inner(o)->ops->create(inner(o), deadline));
}

struct listing {
	cfs_object_list_fn fn;
	void *arg;
	char *last; /* key delivered last */
	size_t cap;
	struct attempt *call;
	bool stopped; /* by fn, or for want of memory */
	bool disorder;
};

static int deliver(void *arg, const struct cfs_object_info *info)
{
	struct listing *l = arg;
	size_t len = strlen(info->key) + 1;
	int r;

	if (l->last && strcmp(info->key, l->last) <= 0)
		l->disorder = true;
	if (len > l->cap && CFS_ARRAY_RESERVE(l->last, 2 * len, l->cap) < 0) {
		l->stopped = true;
		return -ENOMEM;
	}
	memcpy(l->last, info->key, len);
	r = l->fn(l->arg, info);
	l->stopped = r != 0;
	l->call->failed_ms = 0;
	settle(l->call, true);
	return r;
}

static int retry_list(struct cfs_object_store *o, const char *prefix, const char *after,
		      cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct attempt a = {to_retry(o), "list", prefix, deadline};
	struct listing l = {.fn = fn, .arg = arg, .call = &a};
	int r;

	begin(&a);
	/* A listing out of order cannot be resumed after its last key. */
	do {
		r = inner(o)->ops->list(inner(o), prefix, l.last ? l.last : after, deliver, &l,
					deadline);
	} while (r < 0 && !l.stopped && should_retry(o, &a, r, !l.disorder));
	free(l.last);
	if (!l.stopped)
		return (int)end(&a, r);
	leave(&a, true);
	return r;
}

static void retry_close(struct cfs_object_store *o)
{
	struct retry *rt = to_retry(o);

	cfs_object_close(rt->f.inner);
	pthread_mutex_destroy(&rt->lock);
	free(rt);
}

int cfs_object_wrap_retry(struct cfs_object_store *in, struct cfs_object_store **ret)
{
	struct retry *rt = calloc(1, sizeof(*rt));

	if (!rt)
		return -ENOMEM;
	rt->ops = (struct cfs_object_ops){
		.name = in->ops->name,
		.whole = in->ops->whole,
		.get = retry_get,
		.put = retry_put,
		.del = retry_del,
		.head = retry_head,
		.list = retry_list,
		.sync = in->ops->sync ? cfs_filter_sync : NULL,
		.create = in->ops->create ? retry_create : NULL,
		.close = retry_close,
		.del_many = in->ops->del_many ? retry_del_many : NULL,
		.adopt = cfs_filter_adopt,
	};
	pthread_mutex_init(&rt->lock, NULL);
	rt->f.base.ops = &rt->ops;
	rt->f.inner = in;
	*ret = &rt->f.base;
	return 0;
}
