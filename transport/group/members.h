/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a cache group, from the registry:
 *
 *	group.member.NAME/ID		a record per member, written by it at every beat
 *	group.list.NAME/head		LEADER NONCE SERIAL TICK_MS VERSION LOG SNAPSHOT
 *					PIECES SUM
 *	group.list.NAME/dV.NONCE	what version V of the list changes
 *	group.list.NAME/sV.NONCE.I	piece I of the whole list of version V
 *
 * One member, the leader, reads all records every tick (a quarter of a beat), judges who is there,
 * and publishes what has changed: first the changes as records of their own, then the head that
 * makes them valid, which is swapped for the one it knows. So of two leaders one fails, and a
 * version means one list. Others read the head every second tick, and what they lack: the changes
 * after version LOG can be had, and the whole list of version SNAPSHOT. SUM is that of the list:
 * one that does not have it afterwards reads the whole list. After LOG_MAX changes there is another
 * snapshot; then LOG is the one before, and what is older is removed.
 *
 * Two deputies (the first by id that share and do not lead) read the records every second tick. The
 * first takes over when the head stands still for three ticks of the leader, the second when the
 * first does not; so one of the two knows who else has been silent, and since when. Any other
 * member takes over later, and has to find that out. While the leader is a new one, all read the
 * head every tick. Time counts only while reads succeed: a registry that was away makes nobody
 * gone.
 *
 * Traffic per member of n, in bytes per second, with beats of 5 s: two records per beat, two heads,
 * and 270 * n * (1 + 2 / 2) / n / 1.25 for what leader and deputies read: independent of n.
 *
 * Threads: one at a time.
 */
#ifndef CFS_MEMBERS_H
#define CFS_MEMBERS_H

#include "group-internal.h"
#include "roster.h"

#define CFS_MEMBERS_HEAD_MAX 160
#define CFS_MEMBERS_TEXT_MAX 8000 /* of a record of the list */

struct members_head {
	uint64_t leader;
	uint64_t nonce; /* its boot */
	uint64_t serial;
	uint64_t tick_ms; /* 0: it has left */
	uint64_t version, log, snapshot;
	unsigned pieces;
	uint64_t sum;
};

struct members_watch;

struct cfs_members {
	const char *name;
	const struct cfs_group_registry *registry;
	const struct group_record *self; /* the caller's, who may change it between calls */
	uint64_t beat_ms, tick_ms;

	struct cfs_roster roster;
	bool changed; /* the roster, since the caller has cleared this */
	bool known;   /* the roster is that of version */
	uint64_t version;
	bool leading;
	bool outcast;	/* another mount has our id: we are not a member */
	bool read_only; /* cannot write */

	/* members.c */
	char *own; /* our record as it was written last; NULL: not yet */
	uint64_t put_ms, number;
	struct members_head head;
	char head_text[CFS_MEMBERS_HEAD_MAX]; /* empty: there is none */
	uint64_t look_ms, looked_ms; /* when, and the time that reads which succeeded cover */
	uint64_t heard_ms;	     /* looked_ms when the head was another one */
	uint64_t led_ms;	     /* the same of its leader */
	unsigned lost; /* looks in a row that found a head whose list could not be had */

	/* watch.c */
	struct members_watch *watch; /* sorted by id */
	size_t n_watch, room_watch;
	uint64_t watch_ms, watched_ms;
	uint64_t silent;    /* the leader before us, */
	uint64_t silent_ms; /* which has said nothing for so long */
	bool complained;
};

/* All that is not set is 0: name, registry, self, beat_ms are. */
void cfs_members_init(struct cfs_members *m);
void cfs_members_free(struct cfs_members *m);
/* Once a tick, both: what others have written, and our own. Whatever fails, the roster stays. */
int cfs_members_read(struct cfs_members *m, uint64_t now_ms);
int cfs_members_write(struct cfs_members *m, uint64_t now_ms);
/* Our record at the next write, and not at the next beat. */
void cfs_members_hurry(struct cfs_members *m);
/* Our record is removed; a leader leaves to others, the last one leaves nothing. */
void cfs_members_leave(struct cfs_members *m);

/* ---- between members.c, watch.c, publish.c ---- */

void cfs_members_list_key(const struct cfs_members *m, char key[CFS_GROUP_KEY_MAX], const char *fmt,
			  ...) __attribute__((format(printf, 3, 4)));
/* -ENOENT: there is none. */
int cfs_members_read_head(struct cfs_members *m, struct members_head *ret,
			  char ret_text[CFS_MEMBERS_HEAD_MAX]);
/* Becomes what the head says; the roster is changed when all of it could be had. */
int cfs_members_follow(struct cfs_members *m);
/* 1: we are to take over first; 2: if that one does not. 0: we are no deputy. */
unsigned cfs_members_deputy(const struct cfs_members *m);

/* Reads all records. Complete, or an error. period_ms: that this is done again after. */
int cfs_members_watch(struct cfs_members *m, uint64_t now_ms, uint64_t period_ms);
/* Whether the i-th is there; ret is valid until the next watch. */
bool cfs_members_watched(const struct cfs_members *m, size_t i,
			 const struct cfs_roster_entry **ret);
void cfs_members_forget_watch(struct cfs_members *m);

/* We are the leader from now on. -ESTALE, -EEXIST: another one is. */
int cfs_members_claim(struct cfs_members *m, uint64_t now_ms);
/* What has changed. Being outdone is no error: leading is false then. */
int cfs_members_publish(struct cfs_members *m);
/* After our record: leads no more, and removes the list that nobody needs. */
void cfs_members_resign(struct cfs_members *m);

#endif
