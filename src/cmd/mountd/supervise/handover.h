/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the processes of a mount, with descriptors: its supervisor and its worker on a
 * socket pair, and its supervisor and the one that is to follow it on a socket with a name.
 *
 *	a fresh mount		worker: MOUNTED (connection, those of objects)
 *	after a death		worker: READY (those of objects)
 *				supervisor: GO
 *	an upgrade		next worker: CHECKED (uuid)	next supervisor: ASK (uuid)
 *				supervisor: LEAVE		worker: LEFT, ends
 *				supervisor: GIVE (connection, keep), handed on as TAKE
 *				next worker: READY (those of objects)
 *				next supervisor: STARTED
 *				supervisor: BYE, ends		next supervisor: GO
 *	anything that fails	FAILED, with the reason; before BYE the old side goes on
 *
 * Those of objects are the descriptions through which the object store hears of failed write-backs
 * (struct cfs_object_descs): a worker after a death goes on with them.
 *
 * No message carries a secret.
 */
#ifndef CFS_CMD_HANDOVER_H
#define CFS_CMD_HANDOVER_H

#include <cachefs/object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"

enum handover_kind {
	HANDOVER_FAILED = 1, /* text; number: exit status */
	HANDOVER_MOUNTED,
	HANDOVER_READY,
	HANDOVER_GO,
	HANDOVER_CHECKED, /* text: UUID of the volume */
	HANDOVER_ASK,	  /* the same; number: how long to wait for STARTED, ms */
	HANDOVER_LEAVE,
	HANDOVER_LEFT, /* number: CLOCK_MONOTONIC, ns, when requests were last taken */
	HANDOVER_GIVE, /* the same; text: notify_watchdog_ms() */
	HANDOVER_TAKE, /* text: the same */
	HANDOVER_STARTED,
	HANDOVER_BYE,
};

#define HANDOVER_FDS (2 + CFS_OBJECT_DESCS)

struct handover {
	uint32_t version; /* of the messages */
	uint32_t kind;
	uint64_t number;
	char text[256];
	/* Not sent as they are; -1: none. In a message that was received they are the caller's. */
	int fds[HANDOVER_FDS];
};

/* A pair for a supervisor and its worker. */
int handover_pair(int ret[2]);
/* Without waiting. text may be NULL, fds too. */
int handover_send(int sock, enum handover_kind kind, uint64_t number, const char *text,
		  const int fds[HANDOVER_FDS]);
/* -ENOTCONN: the other side is gone; -ETIMEDOUT; -EPROTO: not understood. */
int handover_receive(int sock, cfs_deadline_t deadline, struct handover *ret);
/* Those of a message that nobody wants. */
void handover_close_fds(struct handover *m);

/*
 * The place where the supervisor of a mount is to be found, from the minor number of the mount's
 * device, which no two mounts of a machine share. -ENOENT: this user has no directory for it.
 */
int handover_path(unsigned dev_minor, char *buf, size_t size);
/*
 * Of this user's processes one at a time makes a mount, or changes what lies there. Whoever is kept
 * out for a second, or has no directory for it, goes on as if there were no other, with -1.
 */
int handover_lock(void);
void handover_unlock(int lock);
/* *ret is the listening socket; only its user can connect. *ret_ino: of the file at path. */
int handover_listen(const char *path, int *ret, ino_t *ret_ino);
/*
 * Closes it and takes the file away, if it is still ours: the number of a mount that has just ended
 * may be another's by now, and so the path.
 */
void handover_unlisten(const char *path, int sock, ino_t ino);
/*
 * A connection by the same user; -EACCES otherwise. *ret_process: a pidfd of who has called;
 * -EINVAL when that is in another PID namespace.
 */
int handover_accept(int sock, int *ret, int *ret_process);
int handover_connect(const char *path, int *ret);
/*
 * Who is at the other end belongs to the same control group, and so to the same service. Of the end
 * that has listened that is who did.
 */
bool handover_same_group(int sock);

#endif
