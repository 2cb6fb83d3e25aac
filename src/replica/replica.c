/* SPDX-License-Identifier: Apache-2.0 */
/* Replicates a database: follows its log, and appends to the chain. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/thread.h"

enum {
	TICK_MS = 400,	  /* from one look at the log to the next */
	START_MS = 10000, /* for which the start waits for the bucket */
	CALL_MS = 8000,	  /* of the store */
	LOCK_MS = 1000,	  /* for the turn of this process */
	LIST_MS = 60000,
	LATE_MS = 3000,	       /* without success: a log line */
	RETRY_MAX_MS = 5000,   /* between tries */
	BASE_MIN_MS = 60000,   /* between bases */
	BASE_ENTRIES = 2000,   /* that a restore reads after a base, at most */
	RESTART_FRAMES = 8000, /* of a log that shall begin again */
	SLEW_MS = 5000	       /* by which a clock may be behind without having been set back */
};
/* Bytes of entries after a base that make another one due, beside twice the size of the base. */
#define BASE_BYTES ((uint64_t)64 << 20)
/* Bytes of a log that is held; if the database is longer, as many as that has. */
#define BACKLOG_MAX ((uint64_t)256 << 20)

enum state {
	AWAY,	    /* the end of the chain is not known */
	NEEDS_BASE, /* what follows the chain's end is not in the log */
	FOLLOWS,
	FENCED,
};

/* The entry that is being stored: it stays until the store says whether it is there. */
struct pending {
	struct entry e;
	uint8_t *bytes; /* NULL: none */
	size_t len;
};

struct cfs_replica {
	struct cfs_replica_conf conf;
	uint8_t owner[16];
	int lock_fd; /* of a file beside the database; -1: the bucket keeps writers apart */
	pthread_t thread;

	pthread_mutex_t lock; /* protects the next ones */
	pthread_cond_t wake, answered;
	uint64_t n_asked, n_answered; /* calls of cfs_replica_wait() */
	bool hurry;		      /* one of them waits for the next turn */
	bool stop, fenced, poked;
	int start_result; /* 1: not known yet */
	char err[256];
	cfs_deadline_t stop_by;

	/* The thread's. */
	enum state state;
	struct log log;
	bool log_is_open;
	struct cfs_replica_place end; /* of the chain */
	uint64_t base_at, end_ms;     /* of the entry there, as the epoch */
	uint32_t epoch;
	struct pending pending;
	struct base base;
	enum base_step {
		BASE_NONE,
		BASE_OPEN,
		BASE_STORING,
		BASE_STORED,
		BASE_APPENDED,
		BASE_CHECKING,
	} base_step;
	bool base_first; /* the base is the next entry; else it is of an earlier one */
	struct cfs_replica_place base_of;
	uint32_t base_pages;
	struct log_place base_end;
	uint64_t base_begun_ms, base_size;   /* of the latest one */
	uint64_t bytes_since, entries_since; /* the latest base */
	uint64_t failing_since_ms;
	unsigned tries;
	bool told;

	/* For metrics. */
	uint64_t started_ms;
	_Atomic uint64_t covered_ms; /* all that was committed then is in the bucket; 0: nothing */
	_Atomic uint64_t n_entries, n_bytes, n_log_bytes, n_bases, n_failures, backlog, base_ms;
	_Atomic uint32_t is_running, is_fenced;
};

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

/* ---- the end of the chain ---- */

static uint64_t wall_ms(void)
{
	struct timespec now = cfs_wall();

	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void name_time(uint64_t ms, char ret[32])
{
	time_t s = (time_t)(ms / 1000);
	struct tm tm;

	if (!gmtime_r(&s, &tm) || !strftime(ret, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
		snprintf(ret, 32, "?");
}

static void drop_pending(struct cfs_replica *r)
{
	free(r->pending.bytes);
	r->pending.bytes = NULL;
}

static void drop_base(struct cfs_replica *r)
{
	base_drop(&r->base);
	r->base_step = BASE_NONE;
}

/* why: NULL when the start fails with it. */
static void fence(struct cfs_replica *r, const char *why)
{
	r->state = FENCED;
	drop_pending(r);
	drop_base(r);
	log_release(&r->log);
	atomic_store(&r->is_fenced, 1);
	if (r->conf.fenced && why)
		r->conf.fenced(r->conf.arg, why);
	pthread_mutex_lock(&r->lock);
	r->fenced = true;
	pthread_cond_broadcast(&r->answered);
	pthread_mutex_unlock(&r->lock);
}

/* Whether this database may go on with a chain whose end is not in its log. */
static bool may_take(const struct cfs_replica *r, const struct entry *e)
{
	return !memcmp(e->owner, r->owner, sizeof(r->owner)) || r->conf.take_over ||
	       (r->conf.from.number == e->number &&
		!memcmp(r->conf.from.hash, e->hash, sizeof(e->hash)));
}

/* The chain is this database's: only its first entry may take the chain over. */
static void note_taken(struct cfs_replica *r)
{
	if (r->conf.take_over && r->conf.taken)
		r->conf.taken(r->conf.arg);
	r->conf.take_over = false;
	r->conf.from.number = 0;
}

/* Follows the entry, or needs a base after it. */
static int follow(struct cfs_replica *r, const struct entry *e, char err[256])
{
	char when[32];
	int rc = log_seek(&r->log, &e->end);

	if (rc && rc != -ENODATA)
		return rc;
	if (rc && !may_take(r, e)) {
		name_time(e->time_ms, when);
		snprintf(err, 256,
			 "the replica of volume %.64s belongs to another database, which wrote "
			 "entry %" PRIu64 " at %s; if this one shall go on instead, run `cachefs "
			 "config --replicate` for it",
			 r->conf.volume, e->number, when);
		return -EPERM;
	}
	r->end.number = e->number;
	memcpy(r->end.hash, e->hash, sizeof(e->hash));
	r->end_ms = e->time_ms;
	r->epoch = e->epoch;
	r->base_at = e->base_at;
	r->entries_since = e->number - e->base_at;
	r->state = rc ? NEEDS_BASE : FOLLOWS;
	if (!rc)
		note_taken(r);
	return 0;
}

/* An entry that cannot be read can be followed by a base, if somebody says so. */
static int follow_unreadable(struct cfs_replica *r, uint64_t number, int rc, char err[256])
{
	if (rc == -EBADMSG && !r->conf.take_over) {
		snprintf(err, 256,
			 "entry %" PRIu64
			 " of the replica is damaged; if this database shall go on "
			 "after it, run `cachefs config --replicate` for it",
			 number);
		return -EPERM;
	}
	if (rc != -EBADMSG) {
		snprintf(err, 256, "entry %" PRIu64 " of the replica cannot be read: %s", number,
			 strerror(-rc));
		return rc;
	}
	r->end = (struct cfs_replica_place){.number = number};
	r->state = NEEDS_BASE;
	return 0;
}

static int find_end(struct cfs_replica *r, char err[256])
{
	struct chain_list list;
	uint8_t *bytes;
	struct entry e;
	int rc;

	rc = chain_read_list(r->conf.objects, r->conf.volume, cfs_deadline_in(LIST_MS), &list);
	if (rc)
		return rc;
	if (!list.n) {
		r->end = (struct cfs_replica_place){0};
		r->state = NEEDS_BASE;
		return 0;
	}
	rc = chain_get_entry(r->conf.objects, r->conf.volume, list.v[list.n - 1],
			     cfs_deadline_in(CALL_MS), &e, &bytes);
	if (rc) {
		rc = follow_unreadable(r, list.v[list.n - 1], rc, err);
	} else {
		/* From here on nothing of the log is lost. */
		rc = log_hold(&r->log);
		if (!rc)
			rc = follow(r, &e, err);
		free(bytes);
	}
	free(list.v);
	return rc;
}

/* ---- the log's length ---- */

/* The log grows while the bucket is away, full or slow. When a base would be shorter it is let go. */
static bool limit_log(struct cfs_replica *r)
{
	struct stat st;
	uint64_t len = r->log_is_open ? log_checkpoint(&r->log) : 0, max = BACKLOG_MAX;

	if (r->log_is_open && !stat(r->conf.path, &st))
		max = CFS_MAX(max, (uint64_t)st.st_size);
	atomic_store(&r->backlog, len);
	if (len <= max)
		return false;
	if (r->log.held < 0) {
		log_shed(&r->log);
		return false;
	}
	cfs_warn("replica: the bucket has not taken the log for too long, the log is released and "
		 "the whole database is stored when the bucket takes it: volume=%s bytes=%" PRIu64,
		 r->conf.volume, len);
	drop_pending(r);
	drop_base(r);
	log_release(&r->log);
	log_shed(&r->log);
	r->state = AWAY;
	return true;
}

static bool is_log_long(const struct cfs_replica *r)
{
	return (uint64_t)log_capacity(&r->log) * r->log.page_size > BACKLOG_MAX;
}

/* ---- appending ---- */

/* Times in the chain rise within an epoch: a restore finds the state of a time by them. */
static void stamp(struct cfs_replica *r, struct entry *e)
{
	e->time_ms = wall_ms();
	e->epoch = r->epoch;
	if (e->time_ms >= r->end_ms)
		return;
	if (r->end_ms - e->time_ms <= SLEW_MS) {
		e->time_ms = r->end_ms;
		return;
	}
	e->epoch++;
	cfs_warn("replica: the clock was set back since the last entry, a restore to a time may "
		 "have to name an entry: volume=%s seconds=%" PRIu64,
		 r->conf.volume, (r->end_ms - e->time_ms) / 1000);
}

static int make_pending(struct cfs_replica *r, struct entry *e, const uint8_t *body, size_t len)
{
	struct pending p = {.e = *e};
	int rc;

	p.e.number = r->end.number + 1;
	stamp(r, &p.e);
	memcpy(p.e.owner, r->owner, sizeof(p.e.owner));
	memcpy(p.e.before, r->end.hash, sizeof(p.e.before));
	p.e.page_size = r->log.page_size;
	p.e.base_at = e->kind == ENTRY_BASE ? p.e.number : r->base_at;
	if (e->kind == ENTRY_BASE && !p.e.base_of)
		p.e.base_of = p.e.number;
	rc = entry_encode(&p.e, body, len, &p.bytes, &p.len);
	if (!rc)
		r->pending = p;
	return rc;
}

static void appended(struct cfs_replica *r)
{
	const struct entry *e = &r->pending.e;

	r->end.number = e->number;
	memcpy(r->end.hash, e->hash, sizeof(e->hash));
	r->end_ms = e->time_ms;
	r->epoch = e->epoch;
	r->entries_since++;
	atomic_fetch_add(&r->n_entries, 1);
	if (e->kind == ENTRY_BASE) {
		r->base_at = e->number;
		r->base_size = r->base.bytes;
		r->bytes_since = r->entries_since = 0;
		atomic_fetch_add(&r->n_bases, 1);
		atomic_store(&r->base_ms, e->time_ms);
		r->base.number = e->number;
		r->base_step = BASE_APPENDED;
		r->state = FOLLOWS;
		note_taken(r);
	} else {
		r->bytes_since += r->pending.len;
		atomic_fetch_add(&r->n_bytes, r->pending.len);
	}
	drop_pending(r);
}

/* The place of the entry is taken: by an attempt of this mount, of one before it, or of another. */
static int lost_place(struct cfs_replica *r)
{
	uint64_t number = r->pending.e.number;
	char why[256] = "", when[32];
	uint8_t *bytes;
	struct entry e;
	bool mine;
	int rc = chain_get_entry(r->conf.objects, r->conf.volume, number, cfs_deadline_in(CALL_MS),
				 &e, &bytes);

	if (rc && rc != -EBADMSG)
		return rc;
	if (!rc) {
		mine = !memcmp(e.hash, r->pending.e.hash, sizeof(e.hash));
		if (mine) {
			free(bytes);
			appended(r);
			return 0;
		}
		mine = !memcmp(e.owner, r->owner, sizeof(e.owner));
		name_time(e.time_ms, when);
		free(bytes);
		/* A put of the process before came late: its entry is part of the history. */
		if (mine) {
			drop_pending(r);
			drop_base(r);
			r->state = AWAY;
			return -ESTALE;
		}
		snprintf(why, sizeof(why), "another database wrote entry %" PRIu64 " at %s", number,
			 when);
	} else {
		snprintf(why, sizeof(why), "entry %" PRIu64 " is there and is damaged", number);
	}
	fence(r, why);
	return -EROFS;
}

/*
 * Without conditions one process of the machine at a time looks whether the place is free and takes
 * it. A process that is stopped there keeps the others from replicating, which they say.
 */
static int put_unconditionally(struct cfs_replica *r, const char *key, const struct iovec *iov)
{
	cfs_deadline_t turn_by = cfs_deadline_in(LOCK_MS);
	struct cfs_object_store *o = r->conf.objects;
	struct cfs_object_info info;
	int rc;

	while (flock(r->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || cfs_deadline_passed(turn_by))
			return -errno;
		cfs_backoff(0, 5, 5, turn_by);
	}
	rc = o->ops->head(o, key, &info, cfs_deadline_in(CALL_MS));
	if (rc == -ENOENT)
		rc = o->ops->put(o, key, iov, 1, CFS_OBJECT_NEW,
				 cfs_deadline_in(CALL_MS + iov->iov_len / SLOWEST_BYTES_PER_MS));
	else if (!rc)
		rc = -EEXIST;
	flock(r->lock_fd, LOCK_UN);
	return rc;
}

static int put_pending(struct cfs_replica *r)
{
	struct cfs_object_store *o = r->conf.objects;
	struct iovec iov = {r->pending.bytes, r->pending.len};
	char key[CHAIN_KEY];
	int rc;

	if (!iov.iov_base)
		return 0;
	chain_entry_key(r->conf.volume, r->pending.e.number, key);
	if (!r->conf.conditional)
		rc = put_unconditionally(r, key, &iov);
	else
		rc = o->ops->put(o, key, &iov, 1, CFS_OBJECT_NEW,
				 cfs_deadline_in(CALL_MS + iov.iov_len / SLOWEST_BYTES_PER_MS));
	if (rc == -EEXIST)
		return lost_place(r);
	if (!rc)
		appended(r);
	return rc;
}

static int append_changes(struct cfs_replica *r, const struct log_changes *c, const uint8_t *body,
			  size_t len)
{
	struct entry e = {
		.kind = ENTRY_PAGES,
		.db_pages = c->db_pages,
		.n = (uint32_t)c->n,
		.end = c->end,
	};

	return make_pending(r, &e, body, len);
}

/*
 * Takes changes from the log and appends them. 1: there may be more that was committed before the
 * call; 0: that was all.
 */
static int append_some(struct cfs_replica *r)
{
	uint32_t before = r->log.at.frames;
	struct log_changes c;
	uint8_t *body = NULL;
	bool more;
	size_t len;
	int rc = put_pending(r);

	if (rc)
		return rc;
	rc = log_read(&r->log, &c);
	if (rc <= 0)
		return rc;
	rc = log_body(&r->log, &c, &body, &len);
	if (!rc)
		rc = append_changes(r, &c, body, len);
	if (!rc) {
		before = c.end.salt[0] == r->log.at.salt[0] && c.end.salt[1] == r->log.at.salt[1]
				 ? before
				 : 0;
		atomic_fetch_add(&r->n_log_bytes,
				 (uint64_t)(c.end.frames - before) * (24 + r->log.page_size));
		r->log.at = c.end;
	}
	more = c.more;
	free(body);
	log_free(&c);
	if (!rc)
		rc = put_pending(r);
	return rc ? rc : more;
}

static bool is_late(struct cfs_replica *r)
{
	bool late;

	pthread_mutex_lock(&r->lock);
	late = r->stop && cfs_deadline_passed(r->stop_by);
	pthread_mutex_unlock(&r->lock);
	return late;
}

/* All that was committed before the call, also when others commit faster than the bucket takes it. */
static int append_all(struct cfs_replica *r)
{
	uint32_t goal = log_capacity(&r->log);
	int rc;

	do {
		rc = append_some(r);
		if (rc > 0 && is_late(r))
			return -ETIMEDOUT;
		if (rc > 0 && is_log_long(r) && limit_log(r))
			return -EINPROGRESS;
	} while (rc > 0 && r->log.at.frames < goal);
	return CFS_MIN(rc, 0);
}

/* ---- bases ---- */

static void base_has_ended(void *arg)
{
	struct cfs_replica *r = arg;

	pthread_mutex_lock(&r->lock);
	r->poked = true;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
}

/* The view first: then all is taken that the view has. */
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
		drop_base(r);
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
	return make_pending(r, &e, r->base.refs, (size_t)r->base.n * ENTRY_REF);
}

/* Another one is due when what follows would take long to read. */
static bool is_base_due(const struct cfs_replica *r)
{
	uint64_t now = cfs_now_ms();

	return r->base_step == BASE_NONE && r->state == FOLLOWS &&
	       (!r->base_begun_ms || now - r->base_begun_ms >= BASE_MIN_MS) &&
	       (r->entries_since >= BASE_ENTRIES ||
		(r->bytes_since >= BASE_BYTES && r->bytes_since >= 2 * r->base_size));
}

/* Takes the base a step further. Everything is appended, unless it is the first. */
static int advance_base(struct cfs_replica *r)
{
	int rc = 0;

	if (r->base_step == BASE_STORING && base_ended(&r->base)) {
		rc = r->base.result;
		log_view_close(&r->base.view);
		if (rc)
			drop_base(r);
		else
			r->base_step = BASE_STORED;
	}
	if (r->base_step == BASE_STORING)
		rc = atomic_load(&r->base.failing);
	if (r->base_step == BASE_STORED) {
		if (!r->pending.bytes)
			rc = append_base(r);
		if (!rc)
			rc = put_pending(r);
	}
	if (r->base_step == BASE_APPENDED) {
		r->base_step = BASE_CHECKING;
		rc = base_check(&r->base);
		if (rc)
			drop_base(r);
	}
	if (r->base_step == BASE_CHECKING && base_ended(&r->base)) {
		/* A base that is damaged is replaced at once. */
		if (r->base.result)
			r->entries_since = BASE_ENTRIES;
		drop_base(r);
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
	/* Most of it, while others can commit. */
	log_checkpoint(&r->log);
	rc = log_restart(&r->log, &c, &body, &len);
	if (rc == -EAGAIN)
		rc = 0;
	if (body) {
		int appended = append_changes(r, &c, body, len);

		/* They are not in the log any more. */
		if (appended) {
			r->state = NEEDS_BASE;
			rc = appended;
		}
	}
	free(body);
	log_free(&c);
	return rc ? rc : put_pending(r);
}

/* ---- the thread ---- */

/* Whether cfs_replica_start() waits for the answer. */
static bool answer_start(struct cfs_replica *r, int rc, const char *err)
{
	bool waits;

	pthread_mutex_lock(&r->lock);
	waits = r->start_result == 1;
	if (waits) {
		r->start_result = rc;
		snprintf(r->err, sizeof(r->err), "%s", err);
		pthread_cond_broadcast(&r->answered);
	}
	pthread_mutex_unlock(&r->lock);
	return waits;
}

/* Everything that was committed before the call is in the bucket when it returns 0. */
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
		rc = find_end(r, err);
		if (rc == -EPERM) {
			fence(r, answer_start(r, rc, err) ? NULL : err);
			return -EROFS;
		}
		if (rc)
			return rc;
		answer_start(r, 0, "");
	}
	if (r->state == NEEDS_BASE && r->base_step != BASE_NONE && !r->base_first)
		drop_base(r);
	if (r->state == NEEDS_BASE && r->base_step == BASE_NONE) {
		drop_pending(r);
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
		drop_pending(r);
		drop_base(r);
		r->state = NEEDS_BASE;
		return -EINPROGRESS;
	}
	if (!rc && r->base_step == BASE_OPEN)
		rc = start_base(r, false);
	if (!rc)
		rc = advance_base(r);
	if (!rc && r->state == FOLLOWS)
		rc = append_all(r);
	/* All was taken. A busy database is asked again in the next turn. */
	if (!rc && !log_hold(&r->log))
		rc = restart_log(r);
	return rc;
}

static void note_failure(struct cfs_replica *r, int rc, uint64_t begun)
{
	uint64_t now = cfs_now_ms();

	atomic_fetch_add(&r->n_failures, 1);
	r->failing_since_ms = r->failing_since_ms ? r->failing_since_ms : begun;
	if (!r->told && now - r->failing_since_ms >= LATE_MS) {
		r->told = true;
		cfs_warn("replica: the metadata cannot be replicated, trying again until it can: "
			 "volume=%s seconds=%" PRIu64 " error=%s cause=%s",
			 r->conf.volume, lag_ns(r) / 1000000000, cfs_errname(rc),
			 cfs_object_cause());
	}
	limit_log(r);
	r->tries++;
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

/* Until there is something to do. False: the end. */
static bool sleep_a_while(struct cfs_replica *r, cfs_deadline_t until, uint64_t *ret_asked)
{
	bool go_on;

	pthread_mutex_lock(&r->lock);
	while (!r->stop && !r->poked && (!r->hurry || r->tries) &&
	       !cfs_cond_wait(&r->wake, &r->lock, until))
		;
	r->poked = r->hurry = false;
	*ret_asked = r->n_asked;
	go_on = !r->stop;
	pthread_mutex_unlock(&r->lock);
	return go_on;
}

static void answer(struct cfs_replica *r, uint64_t asked)
{
	pthread_mutex_lock(&r->lock);
	r->n_answered = asked;
	pthread_cond_broadcast(&r->answered);
	pthread_mutex_unlock(&r->lock);
}

/* One turn. Returns when the next one is due. */
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
		if (is_log_long(r))
			limit_log(r);
	} else if (rc == -ESTALE) {
		pause = 0; /* another process of this machine was first: what it appended is there */
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
	/* Changes that were committed before the end. */
	r->tries = 0;
	while (r->state != FENCED && !cfs_deadline_passed(r->stop_by)) {
		turn(r, asked, &rc);
		if (!rc)
			break;
		cfs_backoff(0, 100, 100, r->stop_by);
	}
	if (rc && r->state != FENCED)
		cfs_warn("replica: the last changes are not in the bucket, the next mount stores "
			 "them: volume=%s error=%s",
			 r->conf.volume, cfs_errname(rc));
	drop_base(r);
	drop_pending(r);
	if (r->log_is_open)
		log_close(&r->log);
	return NULL;
}

/* ---- life ---- */

/* Names the database file: where it is, and which file it is. */
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

/* It stays when the process ends: a file that is removed would be locked by one process only. */
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

	pthread_mutex_lock(&r->lock);
	mine = ++r->n_asked;
	r->hurry |= hurry;
	if (hurry)
		pthread_cond_signal(&r->wake);
	while (!rc && !r->fenced && r->n_answered < mine)
		rc = cfs_cond_wait(&r->answered, &r->lock, deadline);
	if (r->n_answered >= mine)
		rc = 0;
	else if (r->fenced)
		rc = -EROFS;
	pthread_mutex_unlock(&r->lock);
	return rc;
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
	pthread_join(r->thread, NULL);
	destroy(r);
}
