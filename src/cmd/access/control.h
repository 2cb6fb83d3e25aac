/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of a running mount's .control file: one JSON object is written, and one JSON object
 * is read back on the same descriptor. Requests are {"op": NAME, ...}. The reply to a request that
 * failed has "error" (an errno name). The file belongs to the user who mounted, mode 0600.
 */
#ifndef CFS_CMD_CONTROL_H
#define CFS_CMD_CONTROL_H

#include <cachefs/meta.h>
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cmd/access/progress.h"

#define CFS_CONTROL_NAME ".control"

/* Sends a request to the mount at `point`; NULL with errno set on failure. Takes over req. */
json_t *control_ask(const char *point, json_t *req);
/*
 * As control_ask(), for an operation that may take long: shows its progress meanwhile. Gives up
 * when the mount stops answering (ETIMEDOUT), not when the operation is slow.
 */
json_t *control_run(const char *point, json_t *req, struct progress *p);
/*
 * The error of a reply as a negative errno, 0 when it has none. reply NULL: errno says why none
 * came.
 */
int control_error(json_t *reply);
/* The name in hex, as requests carry it; malloc'ed. */
char *control_hex(const char *name);
/*
 * The pid of the mount process; 0 when the reply does not carry it. *ret_read_only (or NULL): the
 * mount was made with `ro`.
 */
pid_t control_pid(const char *point, bool *ret_read_only);
/* The mount point above a path inside a mount, from the table of mounts; -ENOENT: there is none. */
int control_seek_mount(const char *path, char *point, size_t size);
/* The same; prints the reason when there is none. */
int control_find_mount(const char *path, char *point, size_t size);

/* The server side: requests that a mount process answers. */
#define CONTROL_JOBS 4 /* long operations at the same time */
struct control_job;
struct control_server {
	struct cfs_meta *meta;
	struct cfs_store *store;
	struct cfs_data *data;
	struct cfs_vfs *vfs;
	struct worker *worker;
	struct cfs_peers *peers; /* NULL: no cache group */
	cfs_ino_t root;		 /* of the mount; 0: the volume's */
	const char *volume;
	uint32_t block_size;
	bool read_only;
	/* Called when the kernel's cached dentry of a name is outdated. */
	void (*name_changed)(void *arg, cfs_ino_t parent, const char *name, size_t len);
	void *arg;
	pthread_mutex_t lock; /* protects jobs */
	struct control_job *jobs[CONTROL_JOBS];
};
/* In the form of struct cfs_vfs_conf.control; arg is a struct control_server. */
int control_serve(void *arg, const struct cfs_ctx *ctx, const char *req, size_t len, char **ret,
		  size_t *ret_len);

#endif
