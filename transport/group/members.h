/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a cache group, from the registry:
 *
 *	group.member.NAME/ID		a record per member, written by it at every heartbeat
 *	group.info.NAME/ID		its description, written by it when it changes
 *	group.list.NAME/head		LEADER NONCE SERIAL TICK_MS VERSION LOG FULL
 *					PIECES SUM INFOS
 *	group.list.NAME/dV.NONCE	what version V of the list changes
 *	group.list.NAME/sV.NONCE.I	piece I of the whole list of version V
 *
 * One member, the leader, reads all records every tick (a quarter of a heartbeat), judges which
 * members are alive, and publishes the changes: first the changes as records of their own, then, by
 * compare-and-swap, the head that makes them valid. So of two leaders one fails, and a version means
 * one list. Other members read the head every second tick, and then the records they lack: changes
 * after version LOG exist, and the full list of version FULL. SUM is the checksum of the list; a
 * member whose list differs reads the full list. After LOG_MAX changes the leader writes another full
 * list; LOG is then the version of the previous one, and older records are removed.
 *
 * Four deputies (the first by id that share and do not lead) read the records every second tick, so
 * they know which members are silent, and since when. The first deputy takes over when the head has
 * not changed for three ticks of the leader, the second when the first does not, and so on. Any other
 * member takes over later, and has to watch the members first. After a change of leader all members
 * read the head every tick for a while. Time counts only while reads succeed, so an outage of the
 * registry removes no member.
 *
 * INFOS is 1 where the leader reads descriptions. A member whose leader does not, because it is of
 * a version without them, has the description in its record.
 *
 * Traffic per member of n, in bytes per second, with heartbeats of 5 s: two records per heartbeat,
 * two heads, and 90 * n * (1 + 4 / 2) / n / 1.25 for what leader and deputies read: independent of
 * n.
 *
 * Threads: one at a time.
 */
#ifndef CFS_MEMBERS_H
#define CFS_MEMBERS_H

#include "group-internal.h"
#include "roster.h"

#define CFS_MEMBERS_HEAD_MAX 192
#define CFS_MEMBERS_TEXT_MAX 8000 /* of one record of the list */

struct members_head {
	uint64_t leader;
	uint64_t nonce; /* the leader's boot number */
	uint64_t serial;
	uint64_t tick_ms; /* 0: the leader has left */
	uint64_t version, log, full;
	unsigned pieces;
	uint64_t sum;
	unsigned infos; /* the leader reads descriptions */
};

struct members_watch;

struct cfs_members {
	const char *name;
	const struct cfs_group_registry *registry;
	const struct group_record *self; /* the caller's, which may change it between calls */
	uint64_t heartbeat_ms, tick_ms;

	struct cfs_roster roster;
	bool changed; /* the roster has changed since the caller cleared this */
	bool known;   /* the roster matches version */
	uint64_t version;
	bool leading;
	bool fenced;	/* another mount has our id: we are not a member */
	bool read_only; /* the registry refuses our writes */

	/* members.c */
	char *own;	/* our record as last written; NULL: not yet */
	char *own_info; /* the same of our description */
	uint64_t put_ms, number, info;
	struct members_head head;
	char head_text[CFS_MEMBERS_HEAD_MAX]; /* empty: there is no head */
	uint64_t look_ms, looked_ms; /* time of the last look; time covered by successful reads */
	uint64_t heard_ms;	     /* looked_ms when the head last changed */
	uint64_t led_ms;	     /* the same for its leader */
	unsigned lost; /* consecutive looks at a head or list that could not be read */

	/* watch.c */
	struct members_watch *watch; /* sorted by id */
	size_t n_watch, room_watch;
	uint64_t watch_ms, watched_ms;
	uint64_t silent;    /* the previous leader, */
	uint64_t silent_ms; /* and how long it has been silent */
	bool warned;
};

/* The caller sets name, registry, self and heartbeat_ms; all other fields are 0. */
void cfs_members_init(struct cfs_members *m);
void cfs_members_free(struct cfs_members *m);
/* Both run once per tick: they read the records of others, and write our own. On failure the roster
 * stays as it is. */
int cfs_members_read(struct cfs_members *m, uint64_t now_ms);
int cfs_members_write(struct cfs_members *m, uint64_t now_ms);
/* Writes our record at the next write instead of the next heartbeat. */
void cfs_members_hurry(struct cfs_members *m);
/* Removes our record. A leader hands over to others; the last member removes the list as well. */
void cfs_members_leave(struct cfs_members *m);

/* ---- between members.c, watch.c, publish.c ---- */

void cfs_members_list_key(const struct cfs_members *m, char key[CFS_GROUP_KEY_MAX], const char *fmt,
			  ...) __attribute__((format(printf, 3, 4)));
/* Removes the record and the description of a member. */
void cfs_members_drop_record(const struct cfs_members *m, uint64_t id);
/* -ENOENT: there is none. */
int cfs_members_read_head(struct cfs_members *m, struct members_head *ret,
			  char ret_text[CFS_MEMBERS_HEAD_MAX]);
/* Brings the roster to the version of the head; it changes only when all of it could be read. */
int cfs_members_follow(struct cfs_members *m);
/* 1: first in line to take over; 2: next if the first does not, and so on. 0: no deputy. */
unsigned cfs_members_deputy(const struct cfs_members *m);

/* Reads all records. Complete, or an error. period_ms: time until the next such read. */
int cfs_members_watch(struct cfs_members *m, uint64_t now_ms, uint64_t period_ms);
/* Whether the i-th member is present; ret is valid until the next watch. */
bool cfs_members_watched(const struct cfs_members *m, size_t i,
			 const struct cfs_roster_entry **ret);
void cfs_members_forget_watch(struct cfs_members *m);

/* Makes us the leader. -ESTALE, -EEXIST: another member was faster. */
int cfs_members_claim(struct cfs_members *m, uint64_t now_ms);
/* Publishes the changes. Losing the leadership is no error: leading is then false. */
int cfs_members_publish(struct cfs_members *m);
/* Called after our record was removed: gives up leading, and removes a list without readers. */
void cfs_members_resign(struct cfs_members *m);

#endif
