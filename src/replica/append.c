/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the chain, and what is appended to it from the database's log. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "append.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"

enum {
	CALL_MS = 8000, /* of one call of the store */
	LOCK_MS = 1000, /* for the lock that lets processes of one machine take turns */
	LIST_MS = 60000,
	SLEW_MS = 5000 /* a clock that is behind by no more was not set back */
};
/* Longest log that is held, unless the database is longer: then the log may be as long as that. */
#define BACKLOG_MAX ((uint64_t)256 << 20)

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

void append_forget(struct cfs_replica *r)
{
	free(r->pending.bytes);
	r->pending.bytes = NULL;
}

void append_drop_base(struct cfs_replica *r)
{
	base_drop(&r->base);
	r->base_step = BASE_NONE;
}

void append_fence(struct cfs_replica *r, const char *why)
{
	r->state = FENCED;
	append_forget(r);
	append_drop_base(r);
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

/* From here on the chain is this database's: take_over and from must not be used again. */
static void note_taken(struct cfs_replica *r)
{
	if (r->conf.take_over && r->conf.taken)
		r->conf.taken(r->conf.arg);
	r->conf.take_over = false;
	r->conf.from.number = 0;
}

/* Makes the entry the end of the chain. The next one continues with the log, or is a base. */
static int follow(struct cfs_replica *r, const struct entry *e, char err[256])
{
	char when[32];
	int rc = log_seek(&r->log, &e->end);

	if (rc && rc != -ENODATA)
		return rc;
	if (rc && !may_take(r, e)) {
		name_time(e->time_ms, when);
		return cfs_fail(
			err, -EPERM,
			"the replica of volume %.64s belongs to another database, which wrote "
			"entry %" PRIu64 " at %s; if this one shall go on instead, run `cachefs "
			"config --replicate` for it",
			r->conf.volume, e->number, when);
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

/* A damaged entry can be followed by a base, if the administrator says so (take_over). */
static int follow_unreadable(struct cfs_replica *r, uint64_t number, int rc, char err[256])
{
	if (rc == -EBADMSG && !r->conf.take_over)
		return cfs_fail(err, -EPERM,
				"entry %" PRIu64
				" of the replica is damaged; if this database shall go on "
				"after it, run `cachefs config --replicate` for it",
				number);
	if (rc != -EBADMSG)
		return cfs_fail(err, rc, "entry %" PRIu64 " of the replica cannot be read: %s",
				number, strerror(-rc));
	r->end = (struct cfs_replica_place){.number = number};
	r->state = NEEDS_BASE;
	return 0;
}

int append_find_end(struct cfs_replica *r, char err[256])
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
		/* Nothing of the log is lost from here on. */
		rc = log_hold(&r->log);
		if (!rc)
			rc = follow(r, &e, err);
		free(bytes);
	}
	free(list.v);
	return rc;
}

/* ---- the log's length ---- */

bool append_limit_log(struct cfs_replica *r)
{
	struct stat st;
	uint64_t len = r->log_is_open ? log_checkpoint(&r->log) : 0, max = BACKLOG_MAX;

	if (r->log_is_open && !stat(r->conf.path, &st))
		max = CFS_MAX(max, (uint64_t)st.st_size);
	atomic_store(&r->backlog, len);
	if (len <= max)
		return false;
	if (r->log.held < 0) {
		log_checkpoint_full(&r->log);
		return false;
	}
	cfs_warn("replica: the bucket has not taken the log for too long, the log is released and "
		 "the whole database is stored when the bucket takes it: volume=%s bytes=%" PRIu64,
		 r->conf.volume, len);
	append_forget(r);
	append_drop_base(r);
	log_release(&r->log);
	log_checkpoint_full(&r->log);
	r->state = AWAY;
	return true;
}

bool append_log_is_long(const struct cfs_replica *r)
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

int append_prepare(struct cfs_replica *r, struct entry *e, const uint8_t *body, size_t len)
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
	append_forget(r);
}

/*
 * The store has an entry with that number: an earlier attempt stored it, or another process of this
 * machine (-ESTALE), or another database (-EROFS).
 */
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
		/* Another process of this machine, or a late put of an earlier one. */
		if (mine) {
			append_forget(r);
			append_drop_base(r);
			r->state = AWAY;
			return -ESTALE;
		}
		snprintf(why, sizeof(why), "another database wrote entry %" PRIu64 " at %s", number,
			 when);
	} else {
		snprintf(why, sizeof(why), "entry %" PRIu64 " is there and is damaged", number);
	}
	append_fence(r, why);
	return -EROFS;
}

/*
 * Without conditional writes, a lock lets one process of the machine at a time look whether the
 * entry is there and store it. A process that is suspended there keeps the others from replicating:
 * they fail, and log that.
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

int append_put(struct cfs_replica *r)
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

int append_prepare_changes(struct cfs_replica *r, const struct log_changes *c, const uint8_t *body,
			   size_t len)
{
	struct entry e = {
		.kind = ENTRY_PAGES,
		.db_pages = c->db_pages,
		.n = (uint32_t)c->n,
		.end = c->end,
	};

	return append_prepare(r, &e, body, len);
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
	int rc = append_put(r);

	if (rc)
		return rc;
	rc = log_read(&r->log, &c);
	if (rc <= 0)
		return rc;
	rc = log_body(&r->log, &c, &body, &len);
	if (!rc)
		rc = append_prepare_changes(r, &c, body, len);
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
		rc = append_put(r);
	return rc ? rc : more;
}

static bool is_late(struct cfs_replica *r)
{
	CFS_LOCK_GUARD(&r->lock);

	return r->stop && cfs_deadline_passed(r->stop_by);
}

int append_all(struct cfs_replica *r)
{
	uint32_t goal = log_capacity(&r->log);
	int rc;

	do {
		rc = append_some(r);
		if (rc > 0 && is_late(r))
			return -ETIMEDOUT;
		if (rc > 0 && append_log_is_long(r) && append_limit_log(r))
			return -EINPROGRESS;
	} while (rc > 0 && r->log.at.frames < goal);
	return CFS_MIN(rc, 0);
}
