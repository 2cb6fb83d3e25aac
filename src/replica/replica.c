/* SPDX-License-Identifier: Apache-2.0 */
/* The replica's thread, which keeps the chain at the log's end and makes bases; metrics. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "append.h"
#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"

enum {
	TICK_MS = 400,	       /* from one look at the log to the next */
	START_MS = 10000,      /* cfs_replica_start() waits so long for the bucket */
	LATE_MS = 3000,	       /* after so long without success the log says so */
	RETRY_MAX_MS = 5000,   /* between attempts */
	BASE_MIN_MS = 60000,   /* between bases */
	BASE_ENTRIES = 2000,   /* after a base, until another one is due */
	RESTART_FRAMES = 8000, /* a log of that length is let begin again */
};
/* Bytes of entries after a base, and twice the base's size, until another one is due. */
#define BASE_BYTES ((uint64_t)64 << 20)

/* ---- metrics ---- */

static uint64_t lag_ns(void *part)
{
	struct cfs_replica *r = part;
	uint64_t from = atomic_load(&r->covered_ms), now = cfs_now_ms();

	from = from ? from : r->started_ms;
	return now > from ? (now - from) * 1000000 : 0;
}

static uint64_t base_age_s(void *part)
{
	struct cfs_replica *r = part;
	uint64_t from = atomic_load(&r->base_ms), now = (uint64_t)cfs_wall_s() * 1000;

	return from && now > from ? (now - from) / 1000 : 0;
}

#define NUMBER(n, h, field) CFS_METRIC(struct cfs_replica, n, NULL, h, field)
static const struct cfs_metric metrics[] = {
	{
		.name = "replica_lag_seconds",
		.help = "Changes of the metadata older than this are in the bucket; 0 without "
			"replication",
		.nanoseconds = true,
		.read = lag_ns,
	},
	NUMBER("replica_running", "1 when the mount replicates the metadata", is_running),
	NUMBER("replica_fenced",
	       "1 when another database has gone on with the replica: the mount is read-only",
	       is_fenced),
	NUMBER("replica_entries_total", "Entries appended to the replica", n_entries),
	NUMBER("replica_bytes_total", "Bytes stored in the replica, bases left out", n_bytes),
	NUMBER("replica_log_bytes_total", "Bytes of the database's log that were replicated",
	       n_log_bytes),
	NUMBER("replica_bases_total", "Bases of the replica that were stored", n_bases),
	CFS_METRIC_READ("replica_base_age_seconds",
			"Age of the latest base of the replica; 0 when it is not known",
			base_age_s),
	NUMBER("replica_failures_total", "Tries to append to the replica that failed", n_failures),
	NUMBER("replica_backlog_bytes",
	       "Bytes of the database's log while they cannot be replicated", backlog),
};

const struct cfs_metric_table cfs_replica_metrics = CFS_METRIC_TABLE(metrics);

/* ---- bases ---- */

static void base_has_ended(void *arg)
{
	struct cfs_replica *r = arg;
	CFS_LOCK_GUARD(&r->lock);

	r->poked = true;
	pthread_cond_signal(&r->wake);
}

/* The first step of log_view_open(). */
static int open_base(struct cfs_replica *r)
{
	int rc = log_view_open(&r->log, &r->base.view);

	if (!rc)
		r->base_step = BASE_OPEN;
	return rc;
}

static int start_base(struct cfs_replica *r, bool first)
{
	int rc = first ? log_seek(&r->log, NULL) : 0;

	if (!rc)
		rc = log_view_fix(&r->base.view, &r->log);
	if (!rc)
		rc = base_start(&r->base);
	if (rc) {
		append_drop_base(r);
		return rc;
	}
	r->base_first = first;
	r->base_of = first ? (struct cfs_replica_place){0} : r->end;
	r->base_pages = r->base.view.db_pages;
	r->base_end = r->log.at;
	r->base_begun_ms = cfs_now_ms();
	r->base_step = BASE_STORING;
	return 0;
}

static int append_base(struct cfs_replica *r)
{
	struct entry e = {
		.kind = ENTRY_BASE,
		.db_pages = r->base_pages,
		.n = r->base.n,
		.end = r->base_first ? r->base_end : r->log.at,
		.token = r->base.token,
		.base_of = r->base_of.number,
	};

	memcpy(e.base_hash, r->base_of.hash, sizeof(e.base_hash));
	return append_prepare(r, &e, r->base.refs, (size_t)r->base.n * ENTRY_REF);
}

/* A base is due when a restore would read many entries, or many bytes, after the last one. */
static bool is_base_due(const struct cfs_replica *r)
{
	uint64_t now = cfs_now_ms();

	return r->base_step == BASE_NONE && r->state == FOLLOWS &&
	       (!r->base_begun_ms || now - r->base_begun_ms >= BASE_MIN_MS) &&
	       (r->entries_since >= BASE_ENTRIES ||
		(r->bytes_since >= BASE_BYTES && r->bytes_since >= 2 * r->base_size));
}

/* Takes the base a step further. All changes are appended, unless the base is the next entry. */
static int advance_base(struct cfs_replica *r)
{
	int rc = 0;

	if (r->base_step == BASE_STORING && base_ended(&r->base)) {
		rc = r->base.result;
		log_view_close(&r->base.view);
		if (rc)
			append_drop_base(r);
		else
			r->base_step = BASE_STORED;
	}
	if (r->base_step == BASE_STORING)
		rc = atomic_load(&r->base.failing);
	if (r->base_step == BASE_STORED) {
		if (!r->pending.bytes)
			rc = append_base(r);
		if (!rc)
			rc = append_put(r);
	}
	if (r->base_step == BASE_APPENDED) {
		r->base_step = BASE_CHECKING;
		rc = base_check(&r->base);
		if (rc)
			append_drop_base(r);
	}
	if (r->base_step == BASE_CHECKING && base_ended(&r->base)) {
		/* A damaged base is replaced at once. */
		if (r->base.result)
			r->entries_since = BASE_ENTRIES;
		append_drop_base(r);
	}
	return rc;
}

static int restart_log(struct cfs_replica *r)
{
	struct log_changes c;
	uint8_t *body;
	size_t len;
	int rc;

	if (r->log.at.frames < RESTART_FRAMES || r->base_step == BASE_STORING)
		return 0;
	/* Most frames are moved while others can commit. */
	log_checkpoint(&r->log);
	rc = log_restart(&r->log, &c, &body, &len);
	if (rc == -EAGAIN)
		rc = 0;
	if (body) {
		int appended = append_prepare_changes(r, &c, body, len);

		/* The changes are no longer in the log. */
		if (appended) {
			r->state = NEEDS_BASE;
			rc = appended;
		}
	}
	free(body);
	log_free(&c);
	return rc ? rc : append_put(r);
}

/* ---- the thread ---- */

/* Gives cfs_replica_start() its result. False: it does not wait for one. */
static bool answer_start(struct cfs_replica *r, int rc, const char *err)
{
	CFS_LOCK_GUARD(&r->lock);

	if (r->start_result != 1)
		return false;
	r->start_result = rc;
	snprintf(r->err, sizeof(r->err), "%s", err);
	pthread_cond_broadcast(&r->answered);
	return true;
}

/*
 * One attempt to bring the chain to the log's end. 0: all that was committed before the call is in
 * the bucket. -EINPROGRESS: a base is being stored first; the other errors are those of append.h.
 */
static int cycle(struct cfs_replica *r)
{
	char err[256] = "";
	int rc = 0;

	if (!r->log_is_open) {
		rc = log_open(r->conf.path, &r->log, err);
		if (rc)
			return rc;
		r->log_is_open = true;
	}
	if (r->state == AWAY) {
		rc = append_find_end(r, err);
		if (rc == -EPERM) {
			append_fence(r, answer_start(r, rc, err) ? NULL : err);
			return -EROFS;
		}
		if (rc)
			return rc;
		answer_start(r, 0, "");
	}
	if (r->state == NEEDS_BASE && r->base_step != BASE_NONE && !r->base_first)
		append_drop_base(r);
	if (r->state == NEEDS_BASE && r->base_step == BASE_NONE) {
		append_forget(r);
		rc = log_hold(&r->log);
		if (!rc)
			rc = open_base(r);
		if (!rc)
			rc = start_base(r, true);
	}
	if (!rc && r->state == NEEDS_BASE)
		rc = advance_base(r);
	if (rc || r->state != FOLLOWS)
		return rc ? rc : -EINPROGRESS;

	if (is_base_due(r))
		rc = open_base(r);
	if (!rc)
		rc = append_all(r);
	if (rc == -ENODATA || rc == -EFBIG) {
		cfs_warn("replica: %s, the whole database is stored: volume=%s",
			 rc == -EFBIG ? "a transaction is too large for an entry"
				      : "the log does not continue at the last entry",
			 r->conf.volume);
		append_forget(r);
		append_drop_base(r);
		r->state = NEEDS_BASE;
		return -EINPROGRESS;
	}
	if (!rc && r->base_step == BASE_OPEN)
		rc = start_base(r, false);
	if (!rc)
		rc = advance_base(r);
	if (!rc && r->state == FOLLOWS)
		rc = append_all(r);
	/* A database too busy to begin a transaction is tried again in the next turn. */
	if (!rc && !log_hold(&r->log))
		rc = restart_log(r);
	return rc;
}

static void note_failure(struct cfs_replica *r, int rc, uint64_t begun)
{
	uint64_t now = cfs_now_ms();

	r->failing_since_ms = r->failing_since_ms ? r->failing_since_ms : begun;
	if (!r->told && now - r->failing_since_ms >= LATE_MS) {
		r->told = true;
		cfs_warn("replica: the metadata cannot be replicated, trying again until it can: "
			 "volume=%s seconds=%" PRIu64 " error=%s cause=%s",
			 r->conf.volume, lag_ns(r) / 1000000000, cfs_errname(rc),
			 cfs_object_cause());
	}
	append_limit_log(r);
	r->tries++;
	/* Counted last, so that the backlog is known with the failure. */
	atomic_fetch_add(&r->n_failures, 1);
}

static void note_success(struct cfs_replica *r)
{
	if (r->told)
		cfs_info("replica: the metadata is replicated again: volume=%s entry=%" PRIu64,
			 r->conf.volume, r->end.number);
	r->told = false;
	r->failing_since_ms = r->tries = 0;
	atomic_store(&r->backlog, 0);
}

/* Sleeps until there is something to do. False: the replica stops. */
static bool sleep_a_while(struct cfs_replica *r, cfs_deadline_t until, uint64_t *ret_asked)
{
	CFS_LOCK_GUARD(&r->lock);

	while (!r->stop && !r->poked && (!r->hurry || r->tries) &&
	       !cfs_cond_wait(&r->wake, &r->lock, until))
		;
	r->poked = r->hurry = false;
	*ret_asked = r->n_asked;
	return !r->stop;
}

static void answer(struct cfs_replica *r, uint64_t asked)
{
	pthread_mutex_lock(&r->lock);
	r->n_answered = asked;
	pthread_cond_broadcast(&r->answered);
	pthread_mutex_unlock(&r->lock);
}

/* One turn of the thread. Returns when the next one is due. */
static cfs_deadline_t turn(struct cfs_replica *r, uint64_t asked, int *ret)
{
	uint64_t begun = cfs_now_ms(), pause = TICK_MS;
	int rc = r->state == FENCED ? -EROFS : cycle(r);

	*ret = rc;
	if (!rc) {
		atomic_store(&r->covered_ms, begun);
		answer(r, asked);
		note_success(r);
	} else if (rc == -EINPROGRESS) {
		note_success(r);
		if (append_log_is_long(r))
			append_limit_log(r);
	} else if (rc == -ESTALE) {
		pause = 0; /* append behind the other process's entry at once */
	} else if (rc != -EROFS) {
		note_failure(r, rc, begun);
		pause = CFS_MIN((uint64_t)TICK_MS << CFS_MIN(r->tries, 5u), (uint64_t)RETRY_MAX_MS);
	}
	return begun + pause;
}

static void *run(void *arg)
{
	struct cfs_replica *r = arg;
	uint64_t asked = 0;
	cfs_deadline_t next;
	int rc;

	cfs_object_quiet(true);
	do
		next = turn(r, asked, &rc);
	while (sleep_a_while(r, next, &asked));
	/* Append what was committed before the replica was stopped. */
	r->tries = 0;
	while (r->state != FENCED && !cfs_deadline_passed(r->stop_by)) {
		turn(r, asked, &rc);
		if (!rc || rc == -EACCES)
			break;
		cfs_backoff(0, 100, 100, r->stop_by);
	}
	if (rc && r->state != FENCED)
		cfs_warn("replica: the last changes are not in the bucket, the next mount stores "
			 "them: volume=%s error=%s",
			 r->conf.volume, cfs_errname(rc));
	append_drop_base(r);
	append_forget(r);
	if (r->log_is_open)
		log_close(&r->log);
	return NULL;
}

/* ---- life ---- */

/* Identifies the database file by its machine, path and inode number. */
static int find_owner(const char *path, uint8_t ret[16])
{
	uint8_t hash[CFS_REPLICA_HASH];
	char text[8192], machine[64] = "";
	cfs_auto_free char *real = realpath(path, NULL);
	cfs_auto_close int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
	struct stat st;
	int r;

	if (!real || stat(real, &st))
		return -errno;
	if (fd < 0 || read(fd, machine, 32) < 32)
		gethostname(machine, sizeof(machine) - 1);
	snprintf(text, sizeof(text), "%s\n%" PRIu64 "\n%s", machine, (uint64_t)st.st_ino, real);
	r = entry_hash(text, strlen(text), hash);
	if (!r)
		memcpy(ret, hash, 16);
	return r;
}

/* The lock file is never removed: processes could then lock different files of that name. */
static int open_lock(struct cfs_replica *r)
{
	cfs_auto_free char *path = NULL;

	if (r->conf.conditional)
		return 0;
	if (asprintf(&path, "%s-replica-lock", r->conf.path) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	r->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	return r->lock_fd < 0 ? -errno : 0;
}

static void destroy(struct cfs_replica *r)
{
	if (r->lock_fd >= 0)
		close(r->lock_fd);
	pthread_cond_destroy(&r->wake);
	pthread_cond_destroy(&r->answered);
	pthread_mutex_destroy(&r->lock);
	free((char *)r->conf.volume);
	free((char *)r->conf.path);
	free(r);
}

int cfs_replica_start(const struct cfs_replica_conf *conf, struct cfs_replica **ret, char err[256])
{
	struct cfs_replica *r = calloc(1, sizeof(*r));
	cfs_deadline_t deadline = cfs_deadline_in(conf->in_background ? 0 : START_MS);
	int rc = 0;

	if (!r)
		return -ENOMEM;
	r->conf = *conf;
	r->conf.volume = strdup(conf->volume);
	r->conf.path = strdup(conf->path);
	r->lock_fd = -1;
	r->start_result = 1;
	atomic_store(&r->is_running, 1);
	r->started_ms = cfs_now_ms();
	pthread_mutex_init(&r->lock, NULL);
	cfs_cond_init(&r->wake);
	cfs_cond_init(&r->answered);
	r->log.held = -1;
	r->base = (struct base){
		.o = conf->objects,
		.volume = r->conf.volume,
		.keep_s = conf->keep_s,
		.ended = base_has_ended,
		.arg = r,
		.view.fd = -1,
	};
	if (!r->conf.volume || !r->conf.path)
		rc = -ENOMEM;
	if (!rc)
		rc = find_owner(conf->path, r->owner);
	if (!rc)
		rc = open_lock(r);
	if (!rc)
		rc = cfs_thread_start("replica", run, r, &r->thread);
	if (rc) {
		snprintf(err, 256, "replication cannot start: %s", strerror(-rc));
		destroy(r);
		return rc;
	}
	pthread_mutex_lock(&r->lock);
	while (r->start_result == 1 && !cfs_cond_wait(&r->answered, &r->lock, deadline))
		;
	rc = CFS_MIN(r->start_result, 0);
	if (rc)
		memcpy(err, r->err, sizeof(r->err));
	r->start_result = 0;
	pthread_mutex_unlock(&r->lock);
	if (rc)
		cfs_replica_stop(r, 0);
	else
		*ret = r;
	return rc;
}

int cfs_replica_wait(struct cfs_replica *r, bool hurry, cfs_deadline_t deadline)
{
	uint64_t mine;
	int rc = 0;
	CFS_LOCK_GUARD(&r->lock);

	mine = ++r->n_asked;
	r->hurry |= hurry;
	if (hurry)
		pthread_cond_signal(&r->wake);
	while (!rc && !r->fenced && r->n_answered < mine)
		rc = cfs_cond_wait(&r->answered, &r->lock, deadline);
	if (r->n_answered >= mine)
		return 0;
	return r->fenced ? -EROFS : rc;
}

void cfs_replica_stop(struct cfs_replica *r, cfs_deadline_t deadline)
{
	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	r->stop_by = deadline;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	cfs_activity_wait(CFS_WAIT_THREAD, 0, "replica");
	pthread_join(r->thread, NULL);
	cfs_activity_wait_end();
	destroy(r);
}
