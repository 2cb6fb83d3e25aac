/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The replica of an SQLite database in a bucket: a chain of entries with all that the database has
 * committed. The database can be restored from it without its machine.
 *
 * Objects, below VOLUME/meta-replica/ (JuiceFS lists and removes nothing there):
 *
 *	log-N	  entry N of the chain; N has 16 hexadecimal digits and begins at 1
 *	base-T-P  piece P of the base with token T
 *
 * An entry holds the pages that some commits have changed, in their last state, or names a base:
 * all pages of the database after an earlier entry. An entry says where in the database's
 * write-ahead log it ends (salts, frame, running checksum), and carries the SHA-256 of the entry
 * before it (src/replica/replica-internal.h has the layout). Entries pass the filters of the object
 * store, so those of an encrypted volume are encrypted.
 *
 * Processes of one machine that replicate the same database file append to one chain: a process
 * that finds the entry of another one continues after it. Without conditional writes, a lock on
 * PATH-replica-lock has them take turns.
 *
 * One database: entry N is created with CFS_OBJECT_NEW. Of two databases that both follow the entry
 * before it, one creates it; the other one's put fails, and its replica is fenced. Histories cannot
 * mix, and no put that arrives late can replace an entry.
 *
 * Capture: a thread reads frames out of the log file, whichever process has committed them. It
 * always holds a read transaction, so that no checkpoint of any program lets the log begin again
 * before its frames are in the chain. When all are, the thread itself lets the log begin again. A
 * log that began again while no thread held it has other salts: then the next entry is a base. So a
 * mount continues where the last one ended, also after kill -9, if only programs that leave the log
 * in place have written meanwhile, as cachefs does.
 */
#ifndef CFS_REPLICA_H
#define CFS_REPLICA_H

#include <cachefs/object.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/metric.h"

struct cfs_replica;

#define CFS_REPLICA_HASH 32

/* A place in a chain: the number of an entry, and its SHA-256. Number 0: before the first one. */
struct cfs_replica_place {
	uint64_t number;
	uint8_t hash[CFS_REPLICA_HASH];
};

struct cfs_replica_conf {
	struct cfs_object_store *objects; /* borrowed */
	const char *volume, *path;	  /* the volume's name, the database file; copied */
	uint64_t keep_s;  /* how far back the chain reaches at least, by the bucket's clock */
	bool conditional; /* the bucket refuses to create an object twice */
	/*
	 * The database may follow an entry of another database: any one with take_over (the
	 * administrator wants this database to continue), or `from`, from which it was restored.
	 */
	bool take_over;
	struct cfs_replica_place from;
	/* take_over must not be used again: the chain is this database's. On its thread. */
	void (*taken)(void *arg);
	bool in_background; /* the start does not wait for the bucket */
	/* Another database has continued the chain: nothing more is replicated. Called once, on the
	 * replica's thread. */
	void (*fenced)(void *arg, const char *why);
	void *arg;
};

/*
 * Starts replication. -EPERM: the chain belongs to another database (err says to which); a bucket
 * that does not answer within 10 s is waited for in the background. err: one line.
 */
int cfs_replica_start(const struct cfs_replica_conf *conf, struct cfs_replica **ret, char err[256]);
/*
 * 0 when all that was committed before the call is in the bucket. -ETIMEDOUT; -EROFS: another
 * database has the chain. hurry: at once, else together with changes of the next half second.
 */
int cfs_replica_wait(struct cfs_replica *r, bool hurry, cfs_deadline_t deadline);
/* Replicates what is committed, until the deadline at most, and frees r. r may be NULL. */
void cfs_replica_stop(struct cfs_replica *r, cfs_deadline_t deadline);

extern const struct cfs_metric_table cfs_replica_metrics;

/*
 * Starts threads. 1: the bucket refuses to create an object twice, also when several try at once (a
 * server that does not is found very likely, not surely). 0: it replaces the object. Else its
 * error, also where it cannot be listed.
 */
int cfs_replica_probe(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline);

struct cfs_replica_restore {
	struct cfs_object_store *objects;
	const char *volume;
	/*
	 * The state at that time, by the clocks of writers; INT64_MAX: the last one. Where a clock
	 * was set back, two states may have that time: -EDOM, and err names the objects of both
	 * entries.
	 */
	int64_t until_ms;
	uint64_t until_entry; /* the state after that entry instead; 0: none is named */
	int fd;		      /* an empty file, which becomes the database */
	/* Called as it goes on; may be NULL. */
	void (*progress)(void *arg, uint64_t pages);
	void *arg;
};
struct cfs_replica_state {
	struct cfs_replica_place place; /* of the last entry that was used */
	int64_t time_ms;		/* when it was made */
	uint64_t pages, entries;	/* of the database; read */
};
/*
 * Restores the database, and verifies every byte. -ENOENT: there is no replica, or none so old;
 * -EBADMSG, -ENODATA: an object is damaged or missing, and err has its key. After an error the file
 * is not usable.
 */
int cfs_replica_restore(const struct cfs_replica_restore *how, struct cfs_replica_state *ret,
			char err[256]);
/* Moves the log of a database that no process uses into it, and removes the log. Durable. */
int cfs_replica_complete(const char *path);

#endif
