/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mount shows over HTTP: /metrics, /health, /status.json and the page at / that draws what
 * is in that. The server itself is the module cachefs-metrics.so,
 * so that mounts without it do not carry its library.
 */
#ifndef CFS_CMD_METRICS_H
#define CFS_CMD_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "cmd/mountd/mountstatus.h"
#include "cmd/mountd/supervise/health.h"

/* ---- the mount's side ---- */

struct metrics;

/*
 * Serves at `listen` as the mount option has it. /health answers that the mount is not well until
 * there is a mount. Borrows all. -EINVAL and the like with err.
 */
int metrics_start(const char *listen, const struct mount_parts *parts, struct health *health,
		  struct metrics **ret, char err[256]);
/* Waits for answers that are under way. NULL is fine. */
void metrics_stop(struct metrics *m);

/* ---- between it and the module ---- */

#define METRICS_MODULE "metrics"

/* What is served. Called by threads of the server, several at a time. */
struct metrics_source {
	/* malloc'ed, both of them */
	int (*text)(void *arg, char **ret, size_t *ret_len);
	int (*status)(void *arg, char **ret, size_t *ret_len);
	/* Waits no longer than a few seconds. */
	bool (*healthy)(void *arg);
	void *arg;
};

struct metrics_server_ops {
	/* listen: "unix:/PATH", "PORT" (of 127.0.0.1), "ADDRESS:PORT", "[ADDRESS]:PORT" */
	int (*start)(const char *listen, const struct metrics_source *source, void **ret,
		     char err[256]);
	/* Returns when no call of the source is under way. */
	void (*stop)(void *server);
};

#endif
