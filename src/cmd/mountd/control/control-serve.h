/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long operations of a mount, for commands. Each runs on the thread of its request, and each of its
 * steps has a deadline. The operation ends when the client goes away: the kernel then interrupts
 * the request. Meanwhile the client may send {"op":"progress","job":ID} on another descriptor.
 */
#ifndef CFS_CMD_CONTROL_SERVE_H
#define CFS_CMD_CONTROL_SERVE_H

#include <cachefs/meta.h>
#include <stdatomic.h>

#include "cmd/access/control.h"

#define CONTROL_STEP_MS 60000

struct control_job {
	const struct cfs_ctx *who;
	json_int_t id;
	_Atomic uint64_t done, total; /* total 0: not known */
};

/* The context of one step. */
struct cfs_ctx control_step(const struct control_job *job);
/* -EINTR: the client is gone. */
int control_check(struct control_job *job);
/* An inode number in a request, as the volume's (the root of a subdirectory mount has another). */
cfs_ino_t control_ino(const struct control_server *s, json_t *in, const char *key);
/* Decodes the name in a request: hex, because JSON cannot carry every name. Terminates it. */
int control_name(json_t *in, char name[CFS_NAME_MAX + 1], size_t *ret_len);

/* *ret is set when 0 is returned. */
int control_clone(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);
int control_rmr(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);
int control_compact(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);
int control_summary(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);
int control_map(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);
int control_warmup(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);

#endif
