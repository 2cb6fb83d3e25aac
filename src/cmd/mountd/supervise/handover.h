/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages, with descriptors, between the processes of a mount. A supervisor and its worker use a
 * socket pair. A supervisor and its successor use a socket with a name.
 *
 *	a fresh mount		worker: MOUNTED (connection, those of objects)
 *	after a death		worker: READY (those of objects)
 *				supervisor: GO
 *	an upgrade		next worker: CHECKED (uuid)	next supervisor: ASK (uuid)
 *				supervisor: LEAVE		worker: LEFT, ends
 *							or FAILED, goes on
 *				supervisor: GIVE (connection, handoff), handed on as TAKE
 *				next worker: READY (those of objects)
 *				next supervisor: STARTED
 *				supervisor: BYE, ends		next supervisor: GO
 *	anything that fails	FAILED, with the reason; before BYE the old side goes on
 *
 * "those of objects" are the descriptors through which the kernel reports failed write-backs of
 * objects (struct cfs_object_descs). A worker after a death takes them over.
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
	HANDOVER_LEAVE,	  /* number: how long data may take to be stored, ms */
	HANDOVER_LEFT,	  /* number: CLOCK_MONOTONIC, ns, when requests were last taken */
	HANDOVER_GIVE,	  /* the same; text: notify_watchdog_ms() */
	HANDOVER_TAKE,	  /* text: the same */
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

/* A connected pair for a supervisor and its worker. */
int handover_pair(int ret[2]);
/* Sends without waiting. text and fds may be NULL; fds ends with the first that is negative. */
int handover_send(int sock, enum handover_kind kind, uint64_t number, const char *text,
		  const int fds[HANDOVER_FDS]);
/* -ENOTCONN: the other side is gone; -ETIMEDOUT; -EPROTO: an unknown message. */
int handover_receive(int sock, cfs_deadline_t deadline, struct handover *ret);
/* Closes the descriptors of a message that is not used. */
void handover_close_fds(struct handover *m);

/*
 * The path of the socket of a mount's supervisor, from the minor number of the mount's device. No
 * two mounts of a machine have it at the same time, but one that has ended may leave it to another.
 * -ENOENT: this user has no directory for it.
 */
int handover_path(unsigned dev_minor, char *buf, size_t size);
/*
 * Serialises the processes of this user that mount or change a mount. A process that waits for a
 * second, or has no directory for the lock, goes on without the lock: -1.
 */
int handover_lock(void);
void handover_unlock(int lock);
/* *ret is the listening socket; only its user can connect. *ret_ino: inode of the file at path. */
int handover_listen(const char *path, int *ret, ino_t *ret_ino);
/*
 * Closes the socket and removes the file if it is still this one: the number of a mount that has
 * just ended may already belong to another one, and so may the path.
 */
void handover_unlisten(const char *path, int sock, ino_t ino);
/*
 * Accepts a connection by the same user; -EACCES otherwise. *ret_process: a pidfd of the caller;
 * -EINVAL when the caller is in another PID namespace.
 */
int handover_accept(int sock, int *ret, int *ret_process);
int handover_connect(const char *path, int *ret);
/*
 * Whether the peer belongs to the same control group, and so to the same service. On the connecting
 * side, the peer is the process that called listen(2).
 */
bool handover_same_group(int sock);

#endif
