/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talking to a running mount through its .control file: one JSON object is written, one JSON object
 * is read back on the same descriptor. Requests: {"op": NAME, ...}; replies carry "error" (an errno
 * name) when they failed. The file belongs to the user who mounted, mode 0600.
 */
#ifndef CFS_CMD_CONTROL_H
#define CFS_CMD_CONTROL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CFS_CONTROL_NAME ".control"

/* Sends a request to the mount at `point`; NULL with errno set on failure. Takes over req. */
json_t *control_ask(const char *point, json_t *req);
/* The pid of the mount process, 0 when it does not say. */
pid_t control_pid(const char *point);
/* The mount was made with `ro`. */
bool control_is_read_only(const char *point);
/* The mount point above a path inside a mount (by device number). */
int control_find_mount(const char *path, char *point, size_t size);

/* The other side: what a mount process answers. */
struct control_server {
	struct cfs_meta *meta;
	struct cfs_store *store;
	const char *volume;
	uint32_t block_size;
	bool read_only;
};
struct cfs_ctx;
/* In the form of struct cfs_vfs_conf.control; arg is a struct control_server. */
int control_serve(void *arg, const struct cfs_ctx *ctx, const char *req, size_t len, char **ret,
		  size_t *ret_len);

#endif
