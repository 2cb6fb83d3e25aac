/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP endpoint of a mount: /metrics, /health, /status.json, and the page at / that draws the
 * status. The server itself is the module cachefs-metrics.so, so that mounts without the endpoint
 * do not load its library.
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
 * Serves at `listen`, which has the form of the mount option. /health reports failure until the
 * mount is there. Borrows all. err may be left empty on failure.
 */
int metrics_start(const char *listen, const struct mount_parts *parts, struct health *health,
		  struct metrics **ret, char err[256]);
/* Waits for answers in progress. NULL is fine. */
void metrics_stop(struct metrics *m);

/* ---- interface to the module ---- */

#define METRICS_MODULE "metrics"

/* The content that is served. Called by threads of the server, several at a time. */
struct metrics_source {
	/* malloc'ed, both of them */
	int (*text)(void *arg, char **ret, size_t *ret_len);
	int (*status)(void *arg, char **ret, size_t *ret_len);
	/* Waits a few seconds at most. */
	bool (*healthy)(void *arg);
	void *arg;
};

struct metrics_server_ops {
	/* listen: "unix:/PATH", "PORT" (of 127.0.0.1), "ADDRESS:PORT", "[ADDRESS]:PORT" */
	int (*start)(const char *listen, const struct metrics_source *source, void **ret,
		     char err[256]);
	/* Returns when no call of the source is in progress. */
	void (*stop)(void *server);
};

#endif
