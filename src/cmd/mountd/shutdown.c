/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/shutdown.h"

#include <cachefs/stage.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/supervise/notify.h"

#define LOOK_MS	       200
#define TELL_MS	       1000
#define STUCK_MS       3000  /* without progress: the log says what is waited for */
#define STUCK_AGAIN_MS 10000 /* from one such line to the next */
#define EXTRA_MS       10000 /* the service manager's timeout is that much longer than ours */
#define WAITS_MAX      512
#define MIB	       (1u << 20)
#define MIB_UP(bytes)  (((bytes) + MIB - 1) / MIB)

/* The work that is left, and the counters that show progress. */
struct work {
	uint64_t dirty_bytes, dirty_files, staged_bytes, lost_bytes, lost_files;
	uint64_t done;
};

struct shutdown {
	struct shutdown_conf conf;
	uint64_t lost_bytes, lost_files; /* before the end began */
	pthread_t thread;
	/* Protects the fields below. The layers' locks are taken while it is held. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool begun, started, done;
};

int shutdown_create(const struct shutdown_conf *conf, struct shutdown **ret)
{
	struct shutdown *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->conf = *conf;
	pthread_mutex_init(&s->lock, NULL);
	cfs_cond_init(&s->changed);
	*ret = s;
	return 0;
}

/* Called with the lock held. */
static struct work look(const struct shutdown *s)
{
	const struct cfs_metric_table *data = &cfs_data_metrics, *stage = &cfs_stage_metrics;
	struct cfs_data *d = s->conf.data;
	struct cfs_store *store = s->conf.store;
	struct work w = {
		.dirty_bytes = cfs_metric_get(data, d, "data_dirty_bytes", NULL),
		.dirty_files = cfs_metric_get(data, d, "data_dirty_files", NULL),
		.staged_bytes = cfs_metric_get(stage, store, "staging_bytes", NULL),
		.done = cfs_metric_get(data, d, "data_commits_total", NULL) +
			cfs_metric_get(stage, store, "staging_uploads_total", NULL) +
			cfs_metric_get(&cfs_store_metrics, store, "object_data_bytes_total",
				       "method=\"put\""),
	};

	if (d) {
		w.lost_bytes =
			cfs_metric_get(data, d, "data_lost_bytes_total", NULL) - s->lost_bytes;
		w.lost_files =
			cfs_metric_get(data, d, "data_lost_files_total", NULL) - s->lost_files;
	}
	return w;
}

static void tell(const struct shutdown *s, const struct work *w, bool moved)
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
			 (unsigned long long)(s->conf.timeout_ms + EXTRA_MS) * 1000);
	notify_send("STATUS=Stopping volume %s at %s: %s%s", s->conf.volume, s->conf.dir, what,
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

static void log_left(const struct shutdown *s, const struct work *w, const char *why)
{
	cfs_err("data could not be stored and is lost: volume=%s mount=%s bytes=%llu files=%llu%s",
		s->conf.volume, s->conf.dir, (unsigned long long)(w->dirty_bytes + w->lost_bytes),
		(unsigned long long)(w->dirty_files + w->lost_files), why);
}

__attribute__((noreturn)) static void give_up(const struct shutdown *s, const struct work *w)
{
	char waits[WAITS_MAX], why[1024];

	describe_wait(waits, sizeof(waits));
	snprintf(why, sizeof(why),
		 " staged_bytes=%llu (these stay on disk for the next mount with this cache-dir) "
		 "stop-timeout=%llu s, waits_for=\"%s\"",
		 (unsigned long long)w->staged_bytes,
		 (unsigned long long)(s->conf.timeout_ms / 1000), waits);
	if (w->dirty_bytes + w->lost_bytes > 0)
		log_left(s, w, why);
	cfs_err("unmounting makes no progress, the process exits: mount=%s%s", s->conf.dir,
		w->dirty_bytes + w->lost_bytes > 0 ? "" : why);
	notify_send("STATUS=Gave up volume %s at %s: %llu MiB could not be stored", s->conf.volume,
		    s->conf.dir, (unsigned long long)MIB_UP(w->dirty_bytes + w->lost_bytes));
	cfs_log_flush();
	s->conf.abandon(s->conf.arg);
	_exit(CMD_SYSTEM);
}

/* Compares all but the texts in parentheses, which are durations. */
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

/* Logs what is waited for, unless the last such line says the same. */
static void warn_stuck(const struct shutdown *s, const struct work *w, cfs_deadline_t limit,
		       char told[WAITS_MAX])
{
	char waits[WAITS_MAX];

	describe_wait(waits, sizeof(waits));
	if (is_same_wait(waits, told))
		return;
	memcpy(told, waits, sizeof(waits));
	cfs_warn("unmounting waits, and gives up after %llu s more without progress: volume=%s "
		 "mount=%s dirty_bytes=%llu staged_bytes=%llu waits_for=\"%s\"",
		 (unsigned long long)(cfs_deadline_left_ms(limit) / 1000), s->conf.volume,
		 s->conf.dir, (unsigned long long)w->dirty_bytes,
		 (unsigned long long)w->staged_bytes, waits);
}

static void *watch(void *arg)
{
	struct shutdown *s = arg;
	cfs_deadline_t limit = cfs_deadline_in(s->conf.timeout_ms), next = 0;
	cfs_deadline_t stuck = cfs_deadline_in(STUCK_MS), quiet = 0;
	char told[WAITS_MAX] = "";
	struct work w, last = {0};
	bool moved = true;
	CFS_LOCK_GUARD(&s->lock);

	while (!s->done) {
		w = look(s);
		moved = moved || w.done != last.done;
		if (w.done != last.done) {
			limit = cfs_deadline_in(s->conf.timeout_ms);
			stuck = cfs_deadline_in(STUCK_MS);
		}
		last = w;
		if (cfs_deadline_passed(limit))
			give_up(s, &w);
		if (cfs_deadline_passed(next)) {
			tell(s, &w, moved);
			moved = false;
			next = cfs_deadline_in(TELL_MS);
		}
		if (cfs_deadline_passed(stuck) && cfs_deadline_passed(quiet)) {
			warn_stuck(s, &w, limit, told);
			quiet = cfs_deadline_in(STUCK_AGAIN_MS);
		}
		cfs_cond_wait(&s->changed, &s->lock, cfs_deadline_in(LOOK_MS));
	}
	return NULL;
}

void shutdown_begin(struct shutdown *s)
{
	struct work w;
	int r = 0;

	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	if (!s->begun) {
		s->begun = true;
		w = look(s);
		s->lost_bytes = w.lost_bytes;
		s->lost_files = w.lost_files;
		notify_send("STOPPING=1");
		if (s->conf.store)
			cfs_store_hurry_reads(s->conf.store);
		r = cfs_thread_start("shutdown", watch, s, &s->thread);
		s->started = r == 0;
	}
	pthread_mutex_unlock(&s->lock);
	if (r < 0)
		cfs_warn("stop-timeout does not apply, its thread cannot start: mount=%s error=%s",
			 s->conf.dir, cfs_errname(r));
}

int shutdown_report_lost(struct shutdown *s)
{
	struct work w;

	if (!s)
		return 0;
	pthread_mutex_lock(&s->lock);
	w = look(s);
	pthread_mutex_unlock(&s->lock);
	if (w.dirty_bytes + w.lost_bytes == 0)
		return 0;
	log_left(s, &w, "");
	return -EIO;
}

void shutdown_forget_data(struct shutdown *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->conf.data = NULL;
	pthread_mutex_unlock(&s->lock);
}

void shutdown_forget_store(struct shutdown *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->conf.store = NULL;
	pthread_mutex_unlock(&s->lock);
}

void shutdown_end(struct shutdown *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->done = true;
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->lock);
	if (s->started)
		pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
