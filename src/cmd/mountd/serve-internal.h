/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a process that serves a mount share: its life (serve.c), the layers that it
 * stands on (layers.c), and how it goes on after another one (resume.c).
 */
#ifndef CFS_CMD_SERVE_INTERNAL_H
#define CFS_CMD_SERVE_INTERNAL_H

#include <cachefs/fuse.h>
#include <cachefs/vfs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cmd/access/control.h"
#include "cmd/mountd/options/mountopts.h"
#include "cmd/mountd/supervise/worker.h"

struct serve {
	const struct mount_opts *o;
	const char *url, *dir;
	struct cfs_setting *setting;
	struct cfs_meta *meta;
	struct cfs_object_store *objects;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cfs_peers *peers;
	struct cfs_data *data;
	struct cfs_vfs *vfs;
	struct metrics *metrics;
	struct health *health;
	struct notify *notify;
	struct ending *ending;
	struct control_server control;
	struct worker *worker;
	struct cfs_fuse_hold *hold; /* until there is a VFS that answers */
	cfs_deadline_t tell;	    /* when the log is told again why there is none */
	struct cfs_vfs_restored restored;
	_Atomic(struct cfs_fuse *) fuse;
	_Atomic bool lost;
};

/* serve.c; arg: the struct serve. */
/* The volume is gone: end the session; from a background thread. */
void serve_lost(void *arg, const char *reason);
/* A request is stuck, and the process is to end for it. */
__attribute__((noreturn)) void serve_stuck(void *arg);
/* A command has changed a name behind the kernel's back. */
void serve_name_changed(void *arg, cfs_ino_t parent, const char *name, size_t len);

/* layers.c */
/* Metadata and objects; what was opened before a failure is left for layers_close_backends(). */
int layers_open_backends(struct serve *s, const char *url, const char *dir, char err[256]);
void layers_close_backends(struct serve *s);
/* The rest, up to the VFS. */
int layers_open(struct serve *s, char err[256]);
/* Top down; whatever was reached. 0 or the first error of what had to be stored. */
int layers_close(struct serve *s, bool session);
/* The kernel judges permissions. */
bool layers_kernel_checks(const struct serve *s);
/* Every thread that has taken a write keeps a buffer as large as that. */
uint32_t layers_request_size(const struct mount_opts *o);

/* resume.c */
/*
 * As layers_open_backends(), after a death. It tries until they are there: what may have brought
 * the process before down, an outage of the metadata, must not end the mount, too. From here on
 * requests get EIO at their deadlines, as they would without the crash.
 */
int resume_open(struct serve *s, const char *url, char err[256]);
/* r: of a step of that which has failed with err. True: after a pause, it is to be made again. */
bool resume_tries_again(struct serve *s, int r, char err[256]);
/* The open files of the process before this one. */
int resume_restore(struct serve *s, char err[256]);
/* From here on the kernel's requests are for us. */
void resume_end_hold(struct serve *s);

#endif
