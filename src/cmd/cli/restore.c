/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores entries from the trash. Removing a tree flattens it: each entry of an hour is called
 * PARENT-INODE-NAME. Entries are moved back into the directory PARENT. Without --put-back that
 * happens only when PARENT lies in the same hour, which reassembles trees inside the trash.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/workers.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/live.h"
#include "cmd/access/progress.h"
#include "cmd/sets/dirwalk.h"
#include "cmd/sets/inoset.h"

#define QUEUE	  4000
#define HOURS_MAX 64

struct restore_opts {
	struct admin_opts common;
	bool put_back;
	int64_t threads;
};

#define OPTIONS struct restore_opts
static const struct cfs_opt restore_table[] = {
	OPT_FLAG("put-back", put_back,
		 "move entries back to their original directories, unless the name is taken"),
	OPT_THREADS(threads, "entries moved at the same time"),
	ADMIN_OPTIONS(common),
	{0},
};

struct restore {
	struct admin a;
	const struct restore_opts *o;
	struct progress p;
	struct cfs_workers *workers;
	cfs_ino_t hour;
	struct inoset dirs; /* of this hour */
	_Atomic uint64_t restored, skipped, failed;
};

enum kinds { DIRS = 1, OTHERS = 2 };

struct move {
	struct cfs_job job;
	struct restore *r;
	cfs_ino_t dst;
	size_t len, skip; /* the original name begins at `skip`, after the two numbers */
	char name[CFS_NAME_MAX + 1];
};

/* Returns false for a name that does not have the trash's form. */
static bool parse_name(struct move *m)
{
	char *end;

	m->dst = strtoull(m->name, &end, 10);
	if (*end != '-' || end == m->name)
		return false;
	strtoull(end + 1, &end, 10);
	if (*end != '-' || !end[1])
		return false;
	m->skip = (size_t)(end + 1 - m->name);
	return m->skip < m->len;
}

static void run_move(struct cfs_job *job)
{
	struct move *m = (struct move *)job;
	struct restore *r = m->r;
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_rename req = {
		.src_parent = r->hour,
		.dst_parent = m->dst,
		.src_name = m->name,
		.src_len = m->len,
		.dst_name = m->name + m->skip,
		.dst_len = m->len - m->skip,
		.flags = CFS_RENAME_NOREPLACE | CFS_RENAME_RESTORE,
	};
	struct cfs_renamed done;
	int e = live_stopped() ? -EINTR : cfs_meta_rename(r->a.meta, &ctx, &req, &done);

	if (e == -EINTR) {
		free(m);
		return;
	}
	if (e == 0) {
		atomic_fetch_add(&r->restored, 1);
	} else {
		atomic_fetch_add(&r->failed, 1);
		progress_end(&r->p);
		cmd_error("%s: %s", m->name,
			  e == -ENOENT	 ? "its directory is gone"
			  : e == -EEXIST ? "its name is taken"
					 : strerror(-e));
	}
	progress_add(&r->p, 1);
	free(m);
}

static int note_dirs(struct restore *r)
{
	struct dirwalk w = dirwalk_begin(r->a.meta, ADMIN_STEP_MS, r->hour, 0);
	const struct cfs_dirent *i;
	int e = 0;

	while (e >= 0 && (e = dirwalk_next(&w, &i)) > 0) {
		if (live_stopped())
			e = -EINTR;
		else if (i->type == CFS_TYPE_DIR)
			e = inoset_add(&r->dirs, i->entry.ino, 1);
	}
	dirwalk_end(&w);
	inoset_sort(&r->dirs);
	return e;
}

static int submit(struct restore *r, const struct cfs_dirent *i)
{
	struct move *m = calloc(1, sizeof(*m));
	int e;

	if (!m)
		return -ENOMEM;
	m->job.run = run_move;
	m->r = r;
	m->len = i->name_len;
	memcpy(m->name, i->name, i->name_len);
	if (!parse_name(m) || (!r->o->put_back && !inoset_has(&r->dirs, m->dst))) {
		atomic_fetch_add(&r->skipped, 1);
		free(m);
		return 0;
	}
	e = cfs_workers_submit(r->workers, &m->job, cfs_deadline_in(2 * ADMIN_STEP_MS));
	if (e < 0)
		free(m);
	return e;
}

static int move_kinds(struct restore *r, enum kinds kinds, unsigned threads)
{
	struct dirwalk w;
	const struct cfs_dirent *i;
	int e = cfs_workers_create("restore", threads, QUEUE, &r->workers);

	if (e < 0)
		return e;
	w = dirwalk_begin(r->a.meta, ADMIN_STEP_MS, r->hour, 0);
	while (e >= 0 && (e = dirwalk_next(&w, &i)) > 0) {
		if (live_stopped())
			e = -EINTR;
		else if (kinds & (i->type == CFS_TYPE_DIR ? DIRS : OTHERS))
			e = submit(r, i);
	}
	dirwalk_end(&w);
	cfs_workers_destroy(r->workers);
	return e;
}

static int note_limit(void *arg, const struct cfs_quota *q)
{
	bool *limits = arg;

	*limits |= q->kind == CFS_QUOTA_DIR;
	return 0;
}

/*
 * A directory that comes under a limit brings along the usage that it is measured with. An entry that
 * came into it between that measurement and its move would not count: with limits of directories,
 * directories move one by one, and the other entries follow.
 */
static int move_entries(struct restore *r)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	unsigned threads = (unsigned)r->o->threads;
	bool limits = false;
	int e = cfs_meta_each_quota(r->a.meta, &ctx, note_limit, &limits);

	if (e == 0 && limits)
		e = move_kinds(r, DIRS, 1);
	if (e == 0)
		e = move_kinds(r, limits ? OTHERS : DIRS | OTHERS, threads);
	return e;
}

static int restore_hour(struct restore *r, const char *name)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_entry hour;
	int e = cfs_meta_lookup(r->a.meta, &ctx, CFS_TRASH_INO, name, strlen(name), &hour);

	if (e < 0)
		return e;
	r->hour = hour.ino;
	if (!r->o->put_back)
		e = note_dirs(r);
	if (e == 0) {
		progress_begin(&r->p, "entries restored");
		e = move_entries(r);
		progress_end(&r->p);
		if (live_stopped()) /* and they have left out the rest */
			e = -EINTR;
	}
	inoset_free(&r->dirs);
	return e;
}

static void print_counts(const struct restore *r)
{
	uint64_t restored = atomic_load(&r->restored), skipped = atomic_load(&r->skipped);
	uint64_t failed = atomic_load(&r->failed);

	if (r->o->common.json)
		admin_print_json(json_pack("{s:I, s:I, s:I}", "restored", (json_int_t)restored,
					   "skipped", (json_int_t)skipped, "failed",
					   (json_int_t)failed));
	else
		printf("%" PRIu64 " restored, %" PRIu64 " skipped, %" PRIu64 " failed\n", restored,
		       skipped, failed);
}

static int restore_run(void *options, const char **args)
{
	const struct restore_opts *o = options;
	struct restore r = {.o = o};
	const char **hour;
	int e, rc;

	rc = admin_open(args[0], &o->common, ADMIN_WRITE, &r.a);
	/* A signal must not keep the usage of what has come under quotas from being written. */
	live_begin();
	for (hour = args + 1; *hour && rc == CMD_OK; hour++) {
		e = restore_hour(&r, *hour);
		if (e < 0) {
			cmd_error("%s: %s", *hour,
				  e == -ENOENT ? "no such hour in the trash (YYYY-MM-DD-HH, UTC)"
					       : strerror(-e));
			rc = e == -EINTR ? CMD_INTERRUPTED : CMD_SYSTEM;
		}
	}
	if (r.a.meta)
		print_counts(&r);
	if (rc == CMD_OK && atomic_load(&r.failed))
		rc = CMD_SYSTEM;
	return admin_close(&r.a, rc);
}

const struct cmd cmd_restore = {
	.name = "restore",
	.synopsis = "[--put-back] [OPTIONS] META-URL HOUR...",
	.summary = "Reassembles removed trees in .trash/HOUR, or moves them back",
	CMD_OPTIONS(restore_table),
	.min_args = 2,
	.max_args = HOURS_MAX + 1,
	.run = restore_run,
};
