/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs requests that take longer than any deadline allows, with the resource that they wait for.
 * Reads the activity records of threads (base/activity.h), and takes none of their locks.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/log.h"
#include "vfs-internal.h"

#define TICK_MAX_MS  5000
#define TICK_MIN_MS  50
#define TICK_PARTS   4
#define LINES_MAX    8 /* of one look; the rest is counted */
#define DESCRIBE_MAX 512

/* A request that was logged, until it ends. */
struct reported {
	pid_t tid;
	uint64_t since_ms, again_ms;
};

/*
 * Requests on special files may be long administrative operations, each step of which has a
 * deadline. Waits for file locks have none.
 */
static bool may_take_long(const struct cfs_activity *a)
{
	return ino_is_special(a->ino) || cfs_activity_waits_for_lock(a);
}

void watchdog_look(uint64_t *ret_requests, uint64_t *ret_oldest_ns)
{
	struct cfs_activity *all;
	uint64_t now = cfs_now_ms();
	size_t n, i;

	*ret_requests = *ret_oldest_ns = 0;
	if (cfs_activity_read(-1, &all, &n) < 0)
		return;
	for (i = 0; i < n && all[i].op[0]; i++) {
		/* The request that asks for these numbers does not count itself. */
		if (all[i].tid == gettid())
			continue;
		++*ret_requests;
		if (!may_take_long(&all[i]) && now > all[i].since_ms)
			*ret_oldest_ns = CFS_MAX(*ret_oldest_ns, (now - all[i].since_ms) * 1000000);
	}
	free(all);
}

static void report(const struct cfs_activity *all, size_t n, size_t i, uint64_t now)
{
	char what[DESCRIBE_MAX];

	cfs_activity_describe(all, n, i, what, sizeof(what));
	cfs_warn("request is stuck: op=%s inode=%llu pid=%d seconds=%.1f waits_for=\"%s\"",
		 all[i].op, (unsigned long long)all[i].ino, (int)all[i].caller,
		 (double)(now - all[i].since_ms) / 1000, what);
}

/* When the next log line about the request is due; 0: there was none yet. */
static uint64_t reported_until(const struct watchdog *w, const struct cfs_activity *a)
{
	size_t i;

	for (i = 0; i < w->n_reported; i++) {
		if (w->reported[i].tid == a->tid && w->reported[i].since_ms == a->since_ms)
			return w->reported[i].again_ms;
	}
	return 0;
}

static void look(void *arg)
{
	struct cfs_vfs *v = arg;
	struct watchdog *w = &v->watchdog;
	uint64_t now = cfs_now_ms(), limit = v->conf.watchdog_ms, again;
	size_t n, i, n_reported = 0, more = 0;
	unsigned lines = 0;
	struct cfs_activity *all;
	struct reported *reported;

	if (cfs_activity_read(-1, &all, &n) < 0)
		return;
	reported = calloc(n + 1, sizeof(*reported));
	for (i = 0; reported && i < n && all[i].op[0]; i++) {
		if (now < all[i].since_ms + limit || may_take_long(&all[i]))
			continue;
		again = reported_until(w, &all[i]);
		if (now >= again) {
			atomic_fetch_add(&w->reports, 1);
			again = now + limit;
			if (lines++ < LINES_MAX)
				report(all, n, i, now);
			else
				more++;
		}
		reported[n_reported++] = (struct reported){all[i].tid, all[i].since_ms, again};
	}
	free(all);
	if (!reported)
		return;
	if (more > 0)
		cfs_warn("more requests are stuck: count=%zu", more);
	if (w->n_reported > 0 && n_reported == 0)
		cfs_info("no request is stuck any more");
	free(w->reported);
	w->reported = reported;
	w->n_reported = n_reported;
	if (n_reported > 0 && v->conf.stuck)
		v->conf.stuck(v->conf.stuck_arg);
}

int watchdog_start(struct cfs_vfs *v)
{
	uint64_t period_ms = v->conf.watchdog_ms / TICK_PARTS;

	if (!v->conf.watchdog_ms)
		return 0;
	period_ms = CFS_MAX(CFS_MIN(period_ms, (uint64_t)TICK_MAX_MS), (uint64_t)TICK_MIN_MS);
	return cfs_ticker_start("watchdog", period_ms, look, v, &v->watchdog.ticker);
}

void watchdog_stop(struct cfs_vfs *v)
{
	if (v->watchdog.ticker)
		cfs_ticker_stop(v->watchdog.ticker);
	free(v->watchdog.reported);
	v->watchdog = (struct watchdog){0};
}
