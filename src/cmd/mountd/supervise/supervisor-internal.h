/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of a supervisor: the loop and its workers (supervisor.c), the upgrade side
 * that gives the mount away (successor.c), and the side that gets it (takeover.c). There is one
 * thread.
 */
#ifndef CFS_CMD_SUPERVISOR_INTERNAL_H
#define CFS_CMD_SUPERVISOR_INTERNAL_H

#include <cachefs/handoff.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"
#include "cmd/mountd/supervise/supervisor.h"

#define DEATHS_MAX  5 /* in DEATHS_MS; one more ends the mount */
#define NO_DEADLINE UINT64_MAX
/* Time for a worker to leave, beyond the deadlines of its own requests. */
#define LEAVE_EXTRA_MS 10000
/*
 * Time for the last message of the old supervisor, and for the command that started the next one.
 */
#define BYE_MS	  5000
#define ORPHAN_MS 5000

#define TAKEOVER_NONE "already mounted, and has no supervisor that could hand it over"

struct handover;

enum state {
	STARTING, /* a first worker, or one that takes over, is starting */
	SERVING,
	WAITING,   /* before the next try */
	RESUMING,  /* a worker after a death, until it is ready */
	STORING,   /* the worker was told to leave, for the successor: it stores data, and serves */
	LEAVING,   /* the worker takes no more requests */
	GIVEN,	   /* the successor has everything, but is not ready */
	FINISHING, /* the worker has been told to end */
};

struct supervisor {
	const struct supervised *conf;
	const char *point;
	enum state state;
	sigset_t old_mask;
	int signals;

	struct cfs_handoff *handoff;
	int device; /* -1: not mounted yet */
	/* The worker's descriptors of the object store; -1. */
	int objects[CFS_OBJECT_DESCS];
	pid_t worker;
	int link;
	int last_signal;
	char kills_file[700]; /* counts kills for want of memory (cgroup.h); "": not known */
	uint64_t kills;	      /* its number when the worker was started */
	bool told;	      /* the reason of a failed start has been reported */
	bool stopped;	      /* ended by a signal, as the end of the mount */
	int status;

	uint64_t deaths[DEATHS_MAX]; /* when, ms; a ring */
	unsigned n_deaths, in_row;
	uint64_t unserved_ms; /* cfs_now_ms() at the death of a worker that served */
	cfs_deadline_t next;  /* of the state, where that has one */

	char path[108];
	int listener; /* socket to which a successor connects; -1 */
	ino_t listener_ino;
	int successor, successor_process; /* connection, and pidfd; -1 */
	cfs_deadline_t ask_until;	  /* deadline of a successor that has not asked yet; or 0 */
	uint64_t successor_ms;
	uint64_t left_ns;

	int old;		    /* connection to the old supervisor, until it is gone */
	char uuid[40];		    /* for ASK, once our worker has opened the volume */
	cfs_deadline_t again_until; /* of looking for the old supervisor again; 0: not begun */
	pid_t starter;		    /* the command that waits for the report */
	uint64_t since;		    /* when requests were last taken, ns */
	bool end;
};

/* supervisor.c */
void supervisor_close_fd(int *fd);
void supervisor_finish(struct supervisor *s, int status);
/* Detaches the mount, with a reason for the log. */
void supervisor_give_up(struct supervisor *s, const char *why);
/* Starts a worker that resumes the mount, and ends it when the supervisor was stopped. */
void supervisor_resume(struct supervisor *s);
/* Reports success, or (the first time) failure, to the command that waits for the start. */
void supervisor_report(struct supervisor *s, const char *note);
void supervisor_failed(struct supervisor *s, int status, const char *why);

/* successor.c */
void successor_listen(struct supervisor *s);
void successor_unlisten(struct supervisor *s);
void successor_accept(struct supervisor *s);
void successor_receive(struct supervisor *s);
/* The successor has not asked in time. */
void successor_is_silent(struct supervisor *s);
void successor_drop(struct supervisor *s);
/* The worker did not leave, and goes on serving. */
void successor_keep_out(struct supervisor *s, const char *why);
/* The worker has taken its last request, at that time. */
void successor_await_end(struct supervisor *s, uint64_t left_ns);
/* The worker has left: passes everything to the successor. */
void successor_give(struct supervisor *s);
/*
 * The successor did not start, or is gone. It is killed before its connection is closed: a closed
 * connection would tell it that no supervisor is left to take the mount back. Its worker dies with
 * it.
 */
void successor_take_back(struct supervisor *s, const char *why);

/* takeover.c */
/*
 * Connects to the supervisor of the mount at the mount point, which may have been mounted a moment
 * ago. -ENODEV: nothing is mounted there.
 */
int takeover_connect(struct supervisor *s);
/* The worker has opened the volume with that UUID. */
void takeover_ask(struct supervisor *s, const char *uuid);
void takeover_receive(struct supervisor *s);
/* The worker is ready. */
void takeover_end(struct supervisor *s);

#endif
