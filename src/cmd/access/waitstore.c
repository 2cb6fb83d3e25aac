/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/waitstore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/text/url.h"

struct waitstore {
	struct cfs_object_store o;
	struct cfs_object_ops ops; /* those that the inner store lacks are NULL here too */
	struct cfs_object_store *inner;
	char place[CFS_ACTIVITY_TEXT / 2]; /* of the bucket, without secrets */
};

static struct waitstore *of(struct cfs_object_store *o)
{
	return (struct waitstore *)o;
}

/* The inner store of a call that begins. */
static struct cfs_object_store *begin(struct cfs_object_store *o, enum cfs_wait what,
				      const char *key)
{
	char text[CFS_ACTIVITY_TEXT];

	snprintf(text, sizeof(text), "%.*s%sat %s", CFS_ACTIVITY_TEXT / 2 - 8, key,
		 key[0] ? " " : "", of(o)->place);
	cfs_activity_wait(what, 0, text);
	return of(o)->inner;
}

/* Makes a call of the inner store, `in`, as a recorded wait. Yields its result. */
#define WAITING(o, what, key, call)                                                                \
	({                                                                                         \
		struct cfs_object_store *in = begin(o, what, key);                                 \
		__typeof__(call) r_ = (call);                                                      \
                                                                                                   \
		cfs_activity_wait_end();                                                           \
		r_;                                                                                \
	})

static ssize_t get(struct cfs_object_store *o, const char *key, uint64_t off,
		   const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_GET, key,
		       in->ops->get(in, key, off, dst, n_dst, deadline));
}

static ssize_t get_nowait(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst)
{
	return of(o)->inner->ops->get_nowait(of(o)->inner, key, off, dst, n_dst);
}

static int put(struct cfs_object_store *o, const char *key, const struct iovec *src, int n_src,
	       unsigned tier, cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_PUT, key,
		       in->ops->put(in, key, src, n_src, tier, deadline));
}

static int del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_DELETE, key, in->ops->del(in, key, deadline));
}

static int del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
		    cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_DELETE, n ? keys[0] : "",
		       in->ops->del_many(in, keys, n, deadline));
}

static int head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_HEAD, key, in->ops->head(in, key, ret, deadline));
}

struct listing {
	struct cfs_object_store *o;
	const char *prefix;
	cfs_object_list_fn fn;
	void *arg;
};

/* The caller's own work on an object is not a wait for the bucket. */
static int listed(void *arg, const struct cfs_object_info *info)
{
	struct listing *l = arg;
	int r;

	cfs_activity_wait_end();
	r = l->fn(l->arg, info);
	begin(l->o, CFS_WAIT_OBJECT_LIST, l->prefix);
	return r;
}

static int list(struct cfs_object_store *o, const char *prefix, const char *after,
		cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct listing l = {.o = o, .prefix = prefix, .fn = fn, .arg = arg};

	return WAITING(o, CFS_WAIT_OBJECT_LIST, prefix,
		       in->ops->list(in, prefix, after, listed, &l, deadline));
}

static int sync_all(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_SYNC, "", in->ops->sync(in, deadline));
}

static int create(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	return WAITING(o, CFS_WAIT_OBJECT_CREATE, "", in->ops->create(in, deadline));
}

static void failure(struct cfs_object_store *o, struct cfs_object_failure *ret)
{
	of(o)->inner->ops->failure(of(o)->inner, ret);
}

static int adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf)
{
	return of(o)->inner->ops->adopt(of(o)->inner, conf);
}

static void close_store(struct cfs_object_store *o)
{
	cfs_object_close(of(o)->inner);
	free(o);
}

int waitstore_wrap(struct cfs_object_store *inner, const char *bucket,
		   struct cfs_object_store **ret)
{
	struct waitstore *w = calloc(1, sizeof(*w));
	char masked[1024];

	if (!w) {
		cfs_object_close(inner);
		return -ENOMEM;
	}
	cfs_url_mask(bucket, masked, sizeof(masked));
	snprintf(w->place, sizeof(w->place), "%.*s", (int)sizeof(w->place) - 1, masked);
	w->inner = inner;
	w->ops = *inner->ops;
	w->ops.get = get;
	w->ops.get_nowait = inner->ops->get_nowait ? get_nowait : NULL;
	w->ops.put = put;
	w->ops.del = del;
	w->ops.del_many = inner->ops->del_many ? del_many : NULL;
	w->ops.head = head;
	w->ops.list = list;
	w->ops.sync = inner->ops->sync ? sync_all : NULL;
	w->ops.create = inner->ops->create ? create : NULL;
	w->ops.failure = inner->ops->failure ? failure : NULL;
	w->ops.adopt = inner->ops->adopt ? adopt : NULL;
	w->ops.close = close_store;
	w->o.ops = &w->ops;
	*ret = &w->o;
	return 0;
}
