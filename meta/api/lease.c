/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease is a record "ID EXPIRY HOLDER": a random number, seconds of the database's clock, and
 * text for messages. Each change is a compare and swap: of two commands that find it free, one gets
 * it. A lease lasts twice the deadline of an operation: an operation that its holder began with
 * half of the lease left has ended when another command can take the lease.
 */
#include <cachefs/records.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/workers.h"
#include "meta/api/clock.h"
#include "meta/api/core.h"

enum { TRIES = 3, RENEWALS = 8 /* per life */, HOLDER_MAX = 128, VALUE_MAX = HOLDER_MAX + 64 };

struct cfs_lease {
	struct cfs_meta *m;
	char key[CFS_RECORD_KEY_MAX + 1], holder[HOLDER_MAX];
	uint64_t id, life_ms;
	struct cfs_ticker *ticker;
	pthread_mutex_t lock; /* protects the fields below; held while the record is written */
	char value[VALUE_MAX];
	uint64_t end_ms; /* as cfs_boot_ms(); 0: lost */
};

struct value {
	char text[VALUE_MAX];
	uint64_t id;
	int64_t end_s;
	char holder[HOLDER_MAX];
};

static void make_value(const struct cfs_lease *l, char ret[VALUE_MAX])
{
	snprintf(ret, VALUE_MAX, "%016" PRIx64 " %" PRId64 " %s", l->id,
		 cfs_clock_latest_s(l->m) + (int64_t)((l->life_ms + 999) / 1000), l->holder);
}

/* A malformed value has no owner. */
static int keep_value(void *arg, const char *key, const void *value, size_t len)
{
	struct value *v = arg;

	if (len >= sizeof(v->text))
		return -EBADMSG;
	memcpy(v->text, value, len);
	v->text[len] = '\0';
	if (sscanf(v->text, "%" SCNx64 " %" SCNd64 " %127[^\n]", &v->id, &v->end_s, v->holder) != 3)
		v->end_s = 0;
	return 0;
}

static int read_value(struct cfs_lease *l, const struct cfs_ctx *ctx, struct value *ret)
{
	*ret = (struct value){0};
	return cfs_meta_get_record(l->m, ctx, l->key, keep_value, ret);
}

static void hold(struct cfs_lease *l, const char *value, uint64_t begun_ms)
{
	memcpy(l->value, value, VALUE_MAX);
	l->end_ms = begun_ms + l->life_ms;
}

/* Called with the lock held. -ESTALE: another command has the lease. */
static int renew(struct cfs_lease *l)
{
	struct cfs_ctx ctx = cfs_ctx_internal(l->life_ms / 4);
	uint64_t begun_ms = cfs_boot_ms();
	char fresh[VALUE_MAX];
	struct value there;
	int rc;

	if (!l->end_ms)
		return -ESTALE;
	make_value(l, fresh);
	rc = cfs_meta_swap_record(l->m, &ctx, l->key, l->value, strlen(l->value), fresh,
				  strlen(fresh));
	/* An earlier write of ours may have succeeded although its answer was lost. */
	if (rc == -ESTALE) {
		rc = read_value(l, &ctx, &there);
		if (!rc && there.id == l->id && strcmp(there.text, fresh))
			rc = cfs_meta_swap_record(l->m, &ctx, l->key, there.text,
						  strlen(there.text), fresh, strlen(fresh));
		else if (rc == -ENOENT || (!rc && there.id != l->id))
			rc = -ESTALE;
	}
	if (!rc)
		hold(l, fresh, begun_ms);
	else if (rc == -ESTALE)
		l->end_ms = 0;
	return rc;
}

static void tick(void *arg)
{
	struct cfs_lease *l = arg;
	int rc;

	pthread_mutex_lock(&l->lock);
	rc = renew(l);
	pthread_mutex_unlock(&l->lock);
	if (rc && rc != -ESTALE)
		cfs_warn("lease not renewed, trying again: url=%s lease=%s error=%s",
			 l->m->masked_url, l->key, cfs_errname(rc));
}

/* 0: taken, -EBUSY: ret->holder has it, -EAGAIN: read it again. */
static int try_take(struct cfs_lease *l, struct value *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(l->life_ms / 2);
	uint64_t begun_ms = cfs_boot_ms();
	char fresh[VALUE_MAX];
	int rc;

	make_value(l, fresh);
	rc = cfs_meta_put_record(l->m, &ctx, l->key, fresh, strlen(fresh), true);
	if (rc == -EEXIST) {
		rc = read_value(l, &ctx, ret);
		if (rc)
			return rc == -ENOENT ? -EAGAIN : rc;
		if (ret->id != l->id) {
			if (ret->end_s >= cfs_clock_earliest_s(l->m))
				return -EBUSY;
			rc = cfs_meta_swap_record(l->m, &ctx, l->key, ret->text, strlen(ret->text),
						  fresh, strlen(fresh));
			if (rc)
				return rc == -ESTALE ? -EAGAIN : rc;
		} else {
			memcpy(fresh, ret->text, VALUE_MAX);
		}
	}
	if (!rc)
		hold(l, fresh, begun_ms);
	return rc;
}

static void free_lease(struct cfs_lease *l)
{
	pthread_mutex_destroy(&l->lock);
	free(l);
}

int cfs_meta_take_lease(struct cfs_meta *m, const char *key, const char *holder,
			struct cfs_lease **ret, char busy[256])
{
	struct cfs_lease *l = calloc(1, sizeof(*l));
	struct value other = {0};
	int i, rc = -EAGAIN;

	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	l->m = m;
	l->id = cfs_random_u64();
	l->life_ms = 2 * m->conf.timeout_ms;
	snprintf(l->key, sizeof(l->key), "%s", key);
	snprintf(l->holder, sizeof(l->holder), "%s", holder);
	cfs_clock_read(m);
	for (i = 0; i < TRIES && rc == -EAGAIN; i++)
		rc = try_take(l, &other);
	if (!rc)
		rc = cfs_ticker_start("lease", l->life_ms / RENEWALS, tick, l, &l->ticker);
	if (rc) {
		rc = rc == -EAGAIN ? -EBUSY : rc;
		if (rc == -EBUSY)
			snprintf(busy, 256, "%s, for at most %" PRId64 " s without a sign of life",
				 other.holder, other.end_s - cfs_clock_earliest_s(m) + 1);
		free_lease(l);
		return rc;
	}
	*ret = l;
	return 0;
}

int cfs_lease_check(struct cfs_lease *l)
{
	int rc = 0;
	CFS_LOCK_GUARD(&l->lock);

	if (l->end_ms < cfs_boot_ms() + l->life_ms / 2)
		rc = renew(l);
	if (!rc && l->end_ms < cfs_boot_ms() + l->life_ms / 2)
		rc = -ETIMEDOUT;
	return rc;
}

void cfs_lease_drop(struct cfs_lease *l)
{
	struct cfs_ctx ctx;

	if (!l)
		return;
	cfs_ticker_stop(l->ticker);
	/* Another command may have the lease by now. Unless it is known to be ours, it expires. */
	if (renew(l) == 0) {
		ctx = cfs_ctx_internal(l->life_ms / 2);
		cfs_meta_drop_record(l->m, &ctx, l->key);
	}
	free_lease(l);
}
