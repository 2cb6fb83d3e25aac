/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a replica, and appending to the end of its chain. The replica's thread calls these
 * functions and owns all that the lock does not protect. Each function waits for the store at most
 * for a few of its calls, or for one listing.
 */
#ifndef CFS_REPLICA_APPEND_H
#define CFS_REPLICA_APPEND_H

#include "base.h"
#include "base/thread.h"

enum state {
	AWAY,	    /* the end of the chain is not known */
	NEEDS_BASE, /* the log does not continue at the chain's end: the next entry is a base */
	FOLLOWS,    /* the log continues at the chain's end */
	FENCED,	    /* another database has the chain: nothing is appended any more */
};

/* The entry that is being stored. It stays until the store says whether it has it. */
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

	pthread_mutex_t lock; /* protects the fields up to stop_by */
	pthread_cond_t wake, answered;
	uint64_t n_asked, n_answered; /* calls of cfs_replica_wait() */
	bool hurry;		      /* one of them does not wait for the next tick */
	bool stop, fenced, poked;
	int start_result; /* 1: not known yet */
	char err[256];
	cfs_deadline_t stop_by;

	/* Used by the thread only. */
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
	/* The base is the state after its own entry; else that after the entry base_of. */
	bool base_first;
	struct cfs_replica_place base_of;
	uint32_t base_pages;
	struct log_place base_end;
	uint64_t base_begun_ms, base_size;   /* of the latest base */
	uint64_t bytes_since, entries_since; /* appended after the latest base */
	uint64_t failing_since_ms;
	unsigned tries;
	bool told;

	/* For metrics. */
	uint64_t started_ms;
	_Atomic uint64_t covered_ms; /* all that was committed by then is in the bucket; 0: never */
	_Atomic uint64_t n_entries, n_bytes, n_log_bytes, n_bases, n_failures, backlog, base_ms;
	_Atomic uint32_t is_running, is_fenced;
};

/*
 * Finds the end of the chain and whether the log continues there, and sets `state`. -EPERM: the
 * chain belongs to another database; with err.
 */
int append_find_end(struct cfs_replica *r, char err[256]);
/* Prepares the entry behind the end, with this body. append_put() stores it. */
int append_prepare(struct cfs_replica *r, struct entry *e, const uint8_t *body, size_t len);
int append_prepare_changes(struct cfs_replica *r, const struct log_changes *c, const uint8_t *body,
			   size_t len);
/*
 * Stores the prepared entry, if there is one. On errors it stays for the next attempt. -ESTALE:
 * another process of this machine has stored that entry. -EROFS: another database has, and the
 * replica is fenced.
 */
int append_put(struct cfs_replica *r);
/*
 * Appends all that was committed before the call, also when others commit faster than the bucket
 * takes it. -ETIMEDOUT: the deadline of cfs_replica_stop() has passed; -EINPROGRESS: the log was
 * released.
 */
int append_all(struct cfs_replica *r);
/*
 * Ends replication: another database goes on with the chain. why NULL: cfs_replica_start() reports
 * it instead of conf.fenced.
 */
void append_fence(struct cfs_replica *r, const char *why);
/* Drops the prepared entry. */
void append_forget(struct cfs_replica *r);
void append_drop_base(struct cfs_replica *r);
/*
 * Bounds the log, which grows while the bucket is away, full or slow. When a base would be shorter,
 * the log is released: true, and `state` is AWAY.
 */
bool append_limit_log(struct cfs_replica *r);
bool append_log_is_long(const struct cfs_replica *r);

#endif
