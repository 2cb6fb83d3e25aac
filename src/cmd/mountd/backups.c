/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/backups.h"

#include <cachefs/records.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "cmd/access/backup.h"
#include "cmd/access/respawn.h"

#define MARK   "lastBackup"   /* attribute of the root, as in JuiceFS */
#define BEGUN  "backup/begun" /* the mark of a backup that has not ended; a record of ours */
#define LEASE  "lease/backup"
#define HOUR_S 3600

enum {
	PAUSE_MAX_S = 600, /* from one look at the mark to the next */
	STOP_MS = 3000,	   /* of a call of the metadata once the mount ends */
	DIE_MS = 2000,	   /* for which a killed child is waited for; init reaps it later */
};

struct backups {
	struct backups_conf conf;
	int64_t interval_s, pause_s;
	int stop; /* eventfd */
	bool started;
	pthread_t thread;
	/* Used by the thread only. */
	pid_t dying; /* a killed child that has not ended; 0: none */
	bool told_skip;
	int64_t seen_mark_s, seen_at_s; /* mark and time of the last look into the bucket */
	/* For metrics. */
	int64_t started_s;
	_Atomic int64_t latest_s;    /* 0: not known */
	_Atomic int64_t clock_off_s; /* of the database's clock from this host's */
	_Atomic uint64_t made, failed;
	_Atomic uint32_t skipped;
};

/* The record of backups in the metadata. */
struct state {
	char mark[64]; /* "": none */
	int64_t mark_s;
	bool unfinished;
};

struct outcome {
	bool stored, looked;
	char err[BACKUP_LINE_MAX];
};

/* ---- metrics ---- */

static uint64_t age_s(void *part)
{
	struct backups *b = part;
	int64_t from_s = atomic_load(&b->latest_s),
		now_s = cfs_wall_s() + atomic_load(&b->clock_off_s);

	if (!b->interval_s)
		return 0;
	from_s = from_s ? from_s : b->started_s;
	return now_s > from_s ? (uint64_t)(now_s - from_s) : 0;
}

static uint64_t interval_s(void *part)
{
	return (uint64_t)((struct backups *)part)->interval_s;
}

static const struct cfs_metric metrics[] = {
	CFS_METRIC_READ("meta_backup_age_seconds",
			"Age of the latest backup of the metadata in the bucket; without one, time "
			"since the process began; 0 when the mount makes none",
			age_s),
	CFS_METRIC_READ("meta_backup_interval_seconds", "Interval of backups of the metadata",
			interval_s),
	CFS_METRIC(struct backups, "meta_backups_total", NULL,
		   "Backups of the metadata that this mount has made", made),
	CFS_METRIC(struct backups, "meta_backup_failures_total", NULL,
		   "Backups of the metadata, and looks for them, that failed", failed),
	CFS_METRIC(struct backups, "meta_backup_skipped", NULL,
		   "1 while the volume has too many inodes for a backup", skipped),
};

const struct cfs_metric_table cfs_backup_metrics = CFS_METRIC_TABLE(metrics);

/* ---- the mark ---- */

static bool is_stopped(const struct backups *b)
{
	struct pollfd p = {.fd = b->stop, .events = POLLIN};

	return poll(&p, 1, 0) != 0;
}

static struct cfs_ctx context(const struct backups *b)
{
	return cfs_ctx_internal(is_stopped(b) ? STOP_MS : b->conf.meta_timeout_ms);
}

static int compare_mark(void *arg, const char *key, const void *value, size_t len)
{
	struct state *s = arg;

	s->unfinished = len == strlen(s->mark) && !memcmp(value, s->mark, len);
	return 0;
}

static int read_state(struct backups *b, struct state *ret)
{
	struct cfs_ctx ctx = context(b);
	ssize_t n;
	int r;

	*ret = (struct state){.mark_s = -1};
	n = cfs_meta_getxattr(b->conf.meta, &ctx, CFS_ROOT_INO, MARK, ret->mark,
			      sizeof(ret->mark) - 1);
	if (n == -ERANGE)
		n = 0; /* no time is as long: there is no mark */
	if (n <= 0)
		return n == -ENODATA ? 0 : (int)n;
	ret->mark[n] = '\0';
	ret->mark_s = backup_mark_time(ret->mark);
	ctx = context(b);
	r = cfs_meta_get_record(b->conf.meta, &ctx, BEGUN, compare_mark, ret);
	return r == -ENOENT ? 0 : r;
}

/* The record comes first: a mark without it means that the backup is complete. */
static int set_mark(struct backups *b, int64_t now_s, char mark[BACKUP_MARK_LEN + 1])
{
	struct cfs_ctx ctx = context(b);
	int r;

	backup_mark(now_s, mark);
	r = cfs_meta_put_record(b->conf.meta, &ctx, BEGUN, mark, strlen(mark), false);
	ctx = context(b);
	return r ? r
		 : cfs_meta_setxattr(b->conf.meta, &ctx, CFS_ROOT_INO, MARK, mark, strlen(mark), 0);
}

/* Makes a backup due at once for all clients, unless one of them has set its own mark since. */
static int remove_mark(struct backups *b, const char *mine)
{
	struct state there;
	struct cfs_ctx ctx;
	int r = read_state(b, &there);

	if (r || strcmp(there.mark, mine) != 0)
		return r;
	ctx = context(b);
	return cfs_meta_removexattr(b->conf.meta, &ctx, CFS_ROOT_INO, MARK);
}

static int drop_begun(struct backups *b)
{
	struct cfs_ctx ctx = context(b);

	return cfs_meta_drop_record(b->conf.meta, &ctx, BEGUN);
}

/* ---- the child ---- */

/* A child that waits for a hung file system does not end: after DIE_MS it is left behind. */
static void end_child(struct backups *b, pid_t pid)
{
	kill(pid, SIGKILL);
	b->dying = reap_child(pid, cfs_deadline_in(DIE_MS)) ? 0 : pid;
}

static bool is_dying(struct backups *b)
{
	if (b->dying && waitpid(b->dying, NULL, WNOHANG) != 0)
		b->dying = 0;
	return b->dying;
}

static void take_line(struct backups *b, const char *line, struct outcome *ret)
{
	char name[BACKUP_NAME_LEN + 1];
	uint64_t bytes;
	int64_t latest_s;

	if (sscanf(line, "stored %30s %" SCNu64, name, &bytes) == 2) {
		ret->stored = true;
		cfs_info("the metadata is backed up: volume=%s key=meta/%s bytes=%" PRIu64,
			 b->conf.volume, name, bytes);
	} else if (sscanf(line, "latest %" SCNd64, &latest_s) == 1) {
		ret->looked = true;
		atomic_store(&b->latest_s, latest_s > 0 ? latest_s : 0);
	} else if (!strncmp(line, "failed ", 7)) {
		snprintf(ret->err, sizeof(ret->err), "%s", line + 7);
	} else if (*line) {
		cfs_warn("backup of the metadata: %s", line);
	}
}

/* Handles the lines of the child until it closes the socket. -EINTR: the mount ends. */
static int receive_lines(struct backups *b, int sock, struct outcome *ret)
{
	cfs_deadline_t deadline = cfs_deadline_in((uint64_t)CFS_MAX(b->interval_s, HOUR_S) * 1000);
	struct pollfd p[] = {{.fd = sock, .events = POLLIN}, {.fd = b->stop, .events = POLLIN}};
	char line[BACKUP_LINE_MAX], *end;
	size_t len = 0;
	ssize_t n;
	int r;

	for (;;) {
		r = poll(p, 2, (int)CFS_MIN(cfs_deadline_left_ms(deadline), (uint64_t)INT32_MAX));
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? -errno : -ETIMEDOUT;
		if (p[1].revents)
			return -EINTR;
		n = read(sock, line + len, sizeof(line) - 1 - len);
		if (n <= 0)
			return n < 0 ? -errno : 0;
		len += (size_t)n;
		line[len] = '\0';
		while ((end = strchr(line, '\n')) || len == sizeof(line) - 1) {
			if (end)
				*end = '\0';
			take_line(b, line, ret);
			len = end ? len - (size_t)(end + 1 - line) : 0;
			memmove(line, end ? end + 1 : line + sizeof(line) - 1, len + 1);
		}
	}
}

/* -EINTR: the mount ends, and the child was killed. Other failures are in the outcome. */
static int run_child(struct backups *b, bool make, int64_t now_s, struct outcome *ret)
{
	struct backup_order order = {
		.url = b->conf.url,
		.objects = b->conf.objects,
		.now_s = now_s,
		.make = make,
		.skip_trash = b->conf.skip_trash,
	};
	pid_t pid;
	int sock, r;

	*ret = (struct outcome){0};
	r = backup_spawn(&order, &pid, &sock);
	if (!r) {
		r = receive_lines(b, sock, ret);
		end_child(b, pid);
		close(sock);
	}
	if (r == -EINTR)
		return r;
	if (!ret->err[0] && (r || !ret->looked || ret->stored != make))
		snprintf(ret->err, sizeof(ret->err), "%s",
			 r ? strerror(-r) : "the child process died");
	return 0;
}

/* ---- the interval ---- */

static bool is_due(const struct backups *b, const struct state *s, int64_t now_s)
{
	return backup_is_due(s->mark_s, s->unfinished, now_s, b->interval_s, b->pause_s);
}

/* A dump of so many inodes takes too long for every hour. JuiceFS has the same rule. */
static bool has_too_many(struct backups *b)
{
	struct cfs_ctx ctx = context(b);
	struct cfs_statfs st;

	if (!b->conf.max_inodes || b->interval_s > HOUR_S ||
	    cfs_meta_statfs(b->conf.meta, &ctx, CFS_ROOT_INO, &st) < 0 ||
	    st.used_inodes <= (uint64_t)b->conf.max_inodes) {
		b->told_skip = false;
		atomic_store(&b->skipped, 0);
		return false;
	}
	if (!b->told_skip)
		cfs_warn("the metadata is not backed up, the volume has too many inodes: raise "
			 "backup-meta above 1h or backup-skip-inodes: volume=%s count=%" PRIu64,
			 b->conf.volume, st.used_inodes);
	b->told_skip = true;
	atomic_store(&b->skipped, 1);
	return true;
}

static void fail(struct backups *b, const char *why)
{
	atomic_fetch_add(&b->failed, 1);
	cfs_warn("backup of the metadata failed, it is tried again in %" PRId64
		 " s: volume=%s cause=\"%s\"",
		 b->pause_s, b->conf.volume, why);
}

/* Called under the lease. */
static void make_one(struct backups *b, int64_t now_s)
{
	char mark[BACKUP_MARK_LEN + 1];
	struct outcome out;
	int r = set_mark(b, now_s, mark);

	if (r) {
		fail(b, strerror(-r));
		return;
	}
	r = run_child(b, true, now_s, &out);
	if (out.stored) {
		atomic_fetch_add(&b->made, 1);
		b->seen_mark_s = b->seen_at_s = now_s;
		r = drop_begun(b);
	} else if (r == -EINTR) {
		cfs_info("a backup of the metadata is broken off, the next mount makes it: "
			 "volume=%s",
			 b->conf.volume);
		r = remove_mark(b, mark);
	}
	if (out.err[0])
		fail(b, out.err);
	if (r)
		cfs_warn("the time of this backup could not be recorded, the next one may be early "
			 "or late: volume=%s error=%s",
			 b->conf.volume, cfs_errname(r));
}

static void try_one(struct backups *b)
{
	char holder[128], busy[256];
	struct cfs_lease *lease;
	struct state s;
	int64_t now_s;
	int r;

	snprintf(holder, sizeof(holder), "the backup of the mount at %.80s", b->conf.dir);
	r = cfs_meta_take_lease(b->conf.meta, LEASE, holder, &lease, busy);
	if (r == -EBUSY)
		return; /* another mount makes one */
	if (r) {
		fail(b, strerror(-r));
		return;
	}
	r = read_state(b, &s);
	now_s = cfs_meta_shared_clock_s(b->conf.meta);
	if (r)
		fail(b, strerror(-r));
	else if (is_due(b, &s, now_s))
		make_one(b, now_s);
	cfs_lease_drop(lease);
}

/* For the metric: reads the age of the latest backup, which another client may have made, in the
 * bucket. */
static void look(struct backups *b, const struct state *s, int64_t now_s)
{
	struct outcome out;

	if (s->unfinished ||
	    (b->seen_at_s && b->seen_mark_s == s->mark_s && now_s - b->seen_at_s < b->interval_s))
		return;
	if (run_child(b, false, now_s, &out) < 0)
		return;
	if (out.err[0]) {
		fail(b, out.err);
		return;
	}
	b->seen_mark_s = s->mark_s;
	b->seen_at_s = now_s;
}

static void tick(struct backups *b)
{
	int64_t now_s = cfs_meta_shared_clock_s(b->conf.meta);
	struct state s;
	int r;

	atomic_store(&b->clock_off_s, now_s - cfs_wall_s());
	if (is_dying(b)) {
		fail(b, "the child process of the previous one cannot be ended");
		return;
	}
	r = read_state(b, &s);
	if (r)
		fail(b, strerror(-r));
	else if (is_due(b, &s, now_s) && !has_too_many(b))
		try_one(b);
	else
		look(b, &s, now_s);
}

/* Sleeps with jitter, so that mounts that started together spread out. False: the mount ends. */
static bool sleep_a_while(struct backups *b)
{
	uint64_t ms = (uint64_t)b->pause_s * 1000;
	struct pollfd p = {.fd = b->stop, .events = POLLIN};
	int r;

	if (b->conf.interval_ms / 10 < ms)
		ms = CFS_MAX(b->conf.interval_ms / 10, (uint64_t)100);
	r = poll(&p, 1, (int)(ms * 9 / 10 + cfs_random_u64() % (ms / 5 + 1)));
	return r == 0 || (r < 0 && errno == EINTR);
}

static void *run(void *arg)
{
	struct backups *b = arg;

	while (sleep_a_while(b))
		tick(b);
	return NULL;
}

/* ---- start and end ---- */

int backups_create(const struct backups_conf *conf, struct backups **ret)
{
	struct backups *b = calloc(1, sizeof(*b));

	if (!b)
		return -ENOMEM;
	b->conf = *conf;
	b->interval_s = (int64_t)CFS_DIV_UP(conf->interval_ms, 1000);
	b->pause_s = CFS_MAX(CFS_MIN(b->interval_s / 10, PAUSE_MAX_S), 1);
	b->started_s = cfs_wall_s();
	b->stop = eventfd(0, EFD_CLOEXEC);
	if (b->stop < 0) {
		free(b);
		return -errno;
	}
	*ret = b;
	return 0;
}

int backups_start(struct backups *b)
{
	int r = b->interval_s ? cfs_thread_start("backup", run, b, &b->thread) : 0;

	b->started = b->interval_s && !r;
	return r;
}

void backups_destroy(struct backups *b)
{
	if (!b)
		return;
	if (b->started) {
		eventfd_write(b->stop, 1);
		pthread_join(b->thread, NULL);
	}
	close(b->stop);
	free(b);
}
