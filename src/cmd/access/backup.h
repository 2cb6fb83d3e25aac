/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumps of the metadata in the volume's bucket, where JuiceFS keeps its own:
 * VOLUME/meta/dump-YYYY-MM-DD-hhmmss.json.gz, in UTC (volume-format section 7). They pass the
 * filters of the object store, so those of an encrypted volume are encrypted; filters compress
 * blocks only.
 */
#ifndef CFS_CMD_BACKUP_H
#define CFS_CMD_BACKUP_H

#include <cachefs/meta.h>
#include <cachefs/object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cmd/access/volume.h"

#define BACKUP_NAME_LEN 30
/* A time further ahead than this comes from a wrong clock: no backup of it is the latest. */
#define BACKUP_FUTURE_S 600

/* ---- names and times: backup-names.c ---- */

void backup_name(int64_t when_s, char ret[BACKUP_NAME_LEN + 1]);
/* False: no name of a backup. */
bool backup_time(const char *name, int64_t *ret_s);

struct backup {
	int64_t when_s, mtime_s; /* by its name, by the store */
	uint64_t size;
	bool drop;
};
/* In the order of their times. Zeroed memory is an empty list. */
struct backup_list {
	struct backup *v;
	size_t n, cap;
};
/*
 * Sorts the list by time and drops repetitions, as backup_rotate() needs it: a backup that is
 * listed twice would count as replaced by itself.
 */
void backup_sort(struct backup_list *l);
/*
 * Marks with `drop` what JuiceFS removes, too. All of 2 days stay; of each day up to the 14th, of
 * each week up to the 63rd day and of every 30 days before, the earliest one.
 */
void backup_rotate(struct backup_list *l, int64_t now_s);
/* The latest one that does not come from a wrong clock; NULL: none. */
const struct backup *backup_latest(const struct backup_list *l, int64_t now_s);

/* The mark that mounts share: when the last backup began. RFC 3339, as JuiceFS writes it. */
#define BACKUP_MARK_LEN 20
void backup_mark(int64_t when_s, char ret[BACKUP_MARK_LEN + 1]);
/* -1: no such time. */
int64_t backup_mark_time(const char *mark);
/*
 * Whether it is time for a backup. mark_s: -1, there was none. unfinished: the one that set the
 * mark has not ended well; then it is time after retry_s.
 */
bool backup_is_due(int64_t mark_s, bool unfinished, int64_t now_s, int64_t interval_s,
		   int64_t retry_s);

/* ---- in the bucket: backup.c ---- */

/* All backups of the volume. An error leaves the list empty: no listing is incomplete. */
int backup_read_list(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline,
		     struct backup_list *ret);
void backup_free_list(struct backup_list *l);

/*
 * The latest backup of a volume, within timeout_ms, also when the store hangs: then the thread that
 * asks it is left behind, so this is for commands. 0; -ENOENT: there is none; else with err.
 */
int backup_look(const struct cfs_setting *s, uint64_t timeout_ms, struct backup *ret,
		char err[256]);

/*
 * Stores a file as a backup, makes it durable, reads it back into a spare, empty file and compares.
 * The pages of both files are mapped: the kernel takes this memory back when it needs it. A backup
 * of an encrypted volume also takes memory of its size. 0, or an error with err.
 */
int backup_upload(struct cfs_object_store *o, const char *volume, const char *name, int fd,
		  int spare_fd, char err[512]);
/*
 * Removes others by rule, once that of when_s was uploaded. When something fails, or the clock is
 * ahead of the store's, none is removed, and the log says so.
 */
void backup_remove_old(struct cfs_object_store *o, const char *volume, int64_t when_s);
/* Copies a backup into an empty file. 0, or an error with err. */
int backup_fetch(struct cfs_object_store *o, const char *volume, const char *name, int fd,
		 char err[256]);

/* ---- in a process of its own: backup-order.c ---- */

#define BACKUP_CHILD "back-up-metadata"
/* A line of the child's output is at most that long. */
#define BACKUP_LINE_MAX 512

struct backup_order {
	const char *url;
	struct volume_objects objects;
	int64_t now_s;	 /* by the clock that mounts share; gives the name */
	bool make;	 /* a backup; else only look which one is the latest */
	bool skip_trash; /* of the backup */
};
/*
 * Starts `cachefs BACKUP_CHILD`, which gets the order and the environment through its stdin, a
 * socket: nothing of them is in its arguments or its environment. It is executed anew, ends when
 * the calling thread does, and runs when nothing else wants the processor or the disk. On the
 * socket it answers in lines "stored NAME BYTES", "latest SECONDS" (-1: none) and "failed REASON";
 * other lines are for the log.
 */
int backup_spawn(const struct backup_order *order, pid_t *ret_pid, int *ret_socket);
/*
 * The child's side: splits an order in place, which keeps the strings, and sets the environment.
 * -EPIPE: it was cut short; -EINVAL: it has a number that is none.
 */
int backup_take_order(char *text, size_t len, struct backup_order *ret);

#endif
