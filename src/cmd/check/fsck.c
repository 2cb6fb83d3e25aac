/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/check/fsck.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/access/cmd.h"
#include "cmd/check/blocks.h"
#include "cmd/usage/gaps.h"

/* Further problems are counted, but not listed in JSON. */
#define PROBLEMS_MAX 10000

struct fsck_opts {
	struct admin_opts common;
	bool repair, recursive, sync_dir_stat, no_data;
	char *path;
};

#define OPTIONS struct fsck_opts
static const struct cfs_opt fsck_table[] = {
	OPT_FLAG("repair", repair, "repair faults whose repair loses no data"),
	OPT_STRING("path", path, "PATH",
		   "check only this file or directory, given from the root of the volume"),
	OPT_FLAG("recursive", recursive, "with --path: everything below it too"),
	OPT_FLAG("sync-dir-stat", sync_dir_stat,
		 "also compare the data size in the statistics of directories, which clients keep "
		 "only roughly"),
	OPT_FLAG("no-data", no_data, "do not check objects"),
	ADMIN_OBJECT_OPTIONS(common),
	{0},
};

int fsck_report(struct fsck *f, const char *kind, cfs_ino_t ino, bool repaired, const char *fmt,
		...)
{
	const char *path = "";
	char *text = NULL;
	json_t *j;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return -ENOMEM;
	if (ino && (ino != f->path_ino || !f->path)) {
		free(f->path);
		f->path = admin_path(f->a, ino);
		f->path_ino = ino;
	}
	if (ino)
		path = f->path;
	if (!path) {
		free(text);
		return -ENOMEM;
	}
	f->found++;
	f->repaired += repaired;
	progress_end(&f->p);
	if (!f->json) {
		cmd_line("%s: %s%s%s%s", kind, path, *path ? ": " : "", text,
			 repaired ? " (repaired)" : "");
	} else if (json_array_size(f->problems) < PROBLEMS_MAX) {
		j = json_pack("{s:s, s:I, s:o, s:s, s:b}", "kind", kind, "inode", (json_int_t)ino,
			      "path", admin_text(path, strlen(path)), "text", text, "repaired",
			      repaired);
		json_array_append_new(f->problems, j);
	}
	free(text);
	return 0;
}

int fsck_block(struct fsck *f, cfs_ino_t ino, const char *key, uint64_t size)
{
	if (size == BLOCK_MISSING)
		return fsck_report(f, "block", ino, false, "object %s is missing", key);
	return fsck_report(f, "block", ino, false, "object %s has %" PRIu64 " bytes", key, size);
}

static int report_lock(void *arg, cfs_ino_t ino, uint64_t sid, bool removed)
{
	return fsck_report(arg, "lock", ino, removed, "%s of session %" PRIu64 ", which is gone",
			   ino ? "locks" : "the list of locks", sid);
}

static int check_volume(struct fsck *f, bool data)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	int r = cfs_meta_dead_locks(f->a->meta, &ctx, f->repair, report_lock, f);

	if (r == 0)
		r = fsck_tree(f);
	if (r == 0)
		r = fsck_usage(f, true);
	if (r == 0 && data)
		r = fsck_data(f);
	return r;
}

static void print_summary(struct fsck *f)
{
	if (f->json) {
		admin_print_json(json_pack(
			"{s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:I, s:O}", "checked", "inodes",
			(json_int_t)f->inodes, "names", (json_int_t)f->names, "slices",
			(json_int_t)f->slices, "objects", (json_int_t)f->objects, "found",
			(json_int_t)f->found, "repaired", (json_int_t)f->repaired, "not_judged",
			(json_int_t)f->open, "problems", f->problems));
		return;
	}
	printf("checked %" PRIu64 " inodes, %" PRIu64 " names, %" PRIu64 " slices, %" PRIu64
	       " objects: ",
	       f->inodes, f->names, f->slices, f->objects);
	if (!f->found)
		printf("no problems\n");
	else
		printf("%" PRIu64 " problems, %" PRIu64 " repaired\n", f->found, f->repaired);
}

static int fsck_run(void *options, const char **args)
{
	const struct fsck_opts *o = options;
	struct fsck f = {0};
	struct admin a = {0};
	int r;

	r = admin_open(args[0], &o->common,
		       (o->repair ? ADMIN_WRITE : 0) | (o->no_data ? 0 : ADMIN_OBJECTS), &a);
	if (r != CMD_OK)
		goto out;
	if (o->repair && admin_begin_repair(&a, "cachefs fsck --repair") < 0) {
		r = CMD_SYSTEM;
		goto out;
	}
	f = (struct fsck){
		.a = &a,
		.repair = o->repair,
		.sync_dir_stat = o->sync_dir_stat,
		.json = o->common.json,
		.problems = json_array(),
	};
	r = o->path ? fsck_path(&f, o->path, o->recursive) : check_volume(&f, !o->no_data);
	if (r < 0) {
		r = cmd_error("the check could not be completed: %s", strerror(-r));
		goto out;
	}
	gaps_note_open(f.open);
	print_summary(&f);
	r = f.found > f.repaired ? CMD_DAMAGED : CMD_OK;
out:
	free(f.path);
	json_decref(f.problems);
	inostack_free(&f.stats);
	return admin_close(&a, r);
}

const struct cmd cmd_fsck = {
	.name = "fsck",
	.synopsis = "[--repair] [--path PATH [--recursive]] [OPTIONS] META-URL",
	.summary =
		"Checks names, counts, quotas and the blocks of every file; exit status 3: damage "
		"is left",
	CMD_OPTIONS(fsck_table),
	.min_args = 1,
	.max_args = 1,
	.run = fsck_run,
};
