/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/ending.h"

#include <cachefs/stage.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/log.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/supervise/notify.h"

#define LOOK_MS	       200
#define TELL_MS	       1000
#define STUCK_MS       3000  /* without progress until the log is told what is waited for */
#define STUCK_AGAIN_MS 10000 /* from one such line to the next */
#define EXTRA_MS       10000 /* added to our own limit when the manager is asked for time */
#define WAITS_MAX      512
#define MIB	       (1u << 20)
#define MIB_UP(bytes)  (((bytes) + MIB - 1) / MIB)

/* The work that is left, and the counters that show progress. */
struct work {
	uint64_t dirty_bytes, dirty_files, staged_bytes, lost_bytes, lost_files;
	uint64_t done;
};

struct ending {
	struct ending_conf conf;
	uint64_t lost_bytes, lost_files; /* before the end began */
	pthread_t thread;
	/* Protects the fields below. The layers' locks are taken while it is held. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool begun, started, done;
};

int ending_create(const struct ending_conf *conf, struct ending **ret)
{
	struct ending *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->conf = *conf;
	pthread_mutex_init(&e->lock, NULL);
	cfs_cond_init(&e->changed);
	*ret = e;
	return 0;
}

/* With the lock. */
static struct work look(const struct ending *e)
{
	const struct cfs_metric_table *data = &cfs_data_metrics, *stage = &cfs_stage_metrics;
	struct cfs_data *d = e->conf.data;
	struct cfs_store *s = e->conf.store;
	struct work w = {
		.dirty_bytes = cfs_metric_get(data, d, "data_dirty_bytes", NULL),
		.dirty_files = cfs_metric_get(data, d, "data_dirty_files", NULL),
		.staged_bytes = cfs_metric_get(stage, s, "staging_bytes", NULL),
		.done = cfs_metric_get(data, d, "data_commits_total", NULL) +
			cfs_metric_get(stage, s, "staging_uploads_total", NULL) +
			cfs_metric_get(&cfs_store_metrics, s, "object_data_bytes_total",
				       "method=\"put\""),
	};

	if (d) {
		w.lost_bytes =
			cfs_metric_get(data, d, "data_lost_bytes_total", NULL) - e->lost_bytes;
		w.lost_files =
			cfs_metric_get(data, d, "data_lost_files_total", NULL) - e->lost_files;
	}
	return w;
}

static void tell(const struct ending *e, const struct work *w, bool moved)
{
	char extend[64] = "", what[128] = "closing";

	if (w->dirty_bytes > 0)
		snprintf(what, sizeof(what), "flushing %llu MiB of %llu files",
			 (unsigned long long)MIB_UP(w->dirty_bytes),
			 (unsigned long long)w->dirty_files);
	else if (w->staged_bytes > 0)
		snprintf(what, sizeof(what), "uploading %llu MiB that are staged on disk",
			 (unsigned long long)MIB_UP(w->staged_bytes));
	if (moved)
		snprintf(extend, sizeof(extend), "\nEXTEND_TIMEOUT_USEC=%llu",
			 (unsigned long long)(e->conf.timeout_ms + EXTRA_MS) * 1000);
	notify_send("STATUS=Stopping volume %s at %s: %s%s", e->conf.volume, e->conf.dir, what,
		    extend);
}

/* Describes the wait of the thread that has waited longest. */
static void describe_wait(char *buf, size_t size)
{
	struct cfs_activity *all = NULL;
	uint64_t since = UINT64_MAX;
	size_t n = 0, i, oldest = 0;

	snprintf(buf, size, "nothing known");
	if (cfs_activity_read(-1, &all, &n) < 0)
		return;
	for (i = 0; i < n; i++) {
		if (!all[i].n_waits || all[i].waits[0].since_ms >= since)
			continue;
		since = all[i].waits[0].since_ms;
		oldest = i;
	}
	if (since != UINT64_MAX)
		cfs_activity_describe(all, n, oldest, buf, size);
	free(all);
}

static void log_left(const struct ending *e, const struct work *w, const char *why)
{
	cfs_err("data could not be stored and is lost: volume=%s mount=%s bytes=%llu files=%llu%s",
		e->conf.volume, e->conf.dir, (unsigned long long)(w->dirty_bytes + w->lost_bytes),
		(unsigned long long)(w->dirty_files + w->lost_files), why);
}

/* The last resort. */
__attribute__((noreturn)) static void give_up(const struct ending *e, const struct work *w)
{
	char waits[WAITS_MAX], why[1024];

	describe_wait(waits, sizeof(waits));
	snprintf(why, sizeof(why),
		 " staged_bytes=%llu (these stay on disk for the next mount with this cache-dir) "
		 "stop-timeout=%llu s, waits_for=\"%s\"",
		 (unsigned long long)w->staged_bytes,
		 (unsigned long long)(e->conf.timeout_ms / 1000), waits);
	if (w->dirty_bytes + w->lost_bytes > 0)
		log_left(e, w, why);
	cfs_err("the mount does not come to its end, the process is given up: mount=%s%s",
		e->conf.dir, w->dirty_bytes + w->lost_bytes > 0 ? "" : why);
	notify_send("STATUS=Gave up volume %s at %s: %llu MiB could not be stored", e->conf.volume,
		    e->conf.dir, (unsigned long long)MIB_UP(w->dirty_bytes + w->lost_bytes));
	cfs_log_flush();
	e->conf.abandon(e->conf.arg);
	_exit(CMD_SYSTEM);
}

/* But for how long it has been waited for. */
static bool is_same_wait(const char *a, const char *b)
{
	while (*a && *a == *b) {
		if (*a == '(') {
			a += strcspn(a, ")");
			b += strcspn(b, ")");
		} else {
			a++;
			b++;
		}
	}
	return *a == *b;
}

/* Logs the stalled part once, and again when it is another one. */
static void warn_stuck(const struct ending *e, const struct work *w, cfs_deadline_t limit,
		       char told[WAITS_MAX])
{
	char waits[WAITS_MAX];

	describe_wait(waits, sizeof(waits));
	if (is_same_wait(waits, told))
		return;
	memcpy(told, waits, sizeof(waits));
	cfs_warn(
		"unmounting waits, gives up when nothing moves for %llu s more: volume=%s mount=%s "
		"dirty_bytes=%llu staged_bytes=%llu waits_for=\"%s\"",
		(unsigned long long)(cfs_deadline_left_ms(limit) / 1000), e->conf.volume,
		e->conf.dir, (unsigned long long)w->dirty_bytes,
		(unsigned long long)w->staged_bytes, waits);
}

static void *watch(void *arg)
{
	struct ending *e = arg;
	cfs_deadline_t limit = cfs_deadline_in(e->conf.timeout_ms), next = 0;
	cfs_deadline_t stuck = cfs_deadline_in(STUCK_MS), quiet = 0;
	char told[WAITS_MAX] = "";
	struct work w, last = {0};
	bool moved = true;

	pthread_mutex_lock(&e->lock);
	while (!e->done) {
		w = look(e);
		moved = moved || w.done != last.done;
		if (w.done != last.done) {
			limit = cfs_deadline_in(e->conf.timeout_ms);
			stuck = cfs_deadline_in(STUCK_MS);
		}
		last = w;
		if (cfs_deadline_passed(limit))
			give_up(e, &w);
		if (cfs_deadline_passed(next)) {
			tell(e, &w, moved);
			moved = false;
			next = cfs_deadline_in(TELL_MS);
		}
		if (cfs_deadline_passed(stuck) && cfs_deadline_passed(quiet)) {
			warn_stuck(e, &w, limit, told);
			quiet = cfs_deadline_in(STUCK_AGAIN_MS);
		}
		cfs_cond_wait(&e->changed, &e->lock, cfs_deadline_in(LOOK_MS));
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

void ending_begin(struct ending *e)
{
	struct work w;
	int r = 0;

	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	if (!e->begun) {
		e->begun = true;
		w = look(e);
		e->lost_bytes = w.lost_bytes;
		e->lost_files = w.lost_files;
		notify_send("STOPPING=1");
		r = cfs_thread_start("ending", watch, e, &e->thread);
		e->started = r == 0;
	}
	pthread_mutex_unlock(&e->lock);
	if (r < 0)
		cfs_warn("the end of the mount is not watched: error=%s", cfs_errname(r));
}

int ending_judge(struct ending *e)
{
	struct work w;

	if (!e)
		return 0;
	pthread_mutex_lock(&e->lock);
	w = look(e);
	pthread_mutex_unlock(&e->lock);
	if (w.dirty_bytes + w.lost_bytes == 0)
		return 0;
	log_left(e, &w, "");
	return -EIO;
}

void ending_forget_data(struct ending *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->conf.data = NULL;
	pthread_mutex_unlock(&e->lock);
}

void ending_forget_store(struct ending *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->conf.store = NULL;
	pthread_mutex_unlock(&e->lock);
}

void ending_done(struct ending *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->done = true;
	pthread_cond_signal(&e->changed);
	pthread_mutex_unlock(&e->lock);
	if (e->started)
		pthread_join(e->thread, NULL);
	pthread_cond_destroy(&e->changed);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
