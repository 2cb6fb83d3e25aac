/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/fsck.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/quota.h"

/* More are counted, but not listed in JSON. */
#define PROBLEMS_MAX 10000

struct fsck_opts {
	struct admin_opts common;
	bool repair, recursive, sync_dir_stat, no_data;
	char *path;
};

#define OPT(f) .offset = offsetof(struct fsck_opts, f)
static const struct cfs_opt fsck_table[] = {
	{.name = "repair",
	 .kind = CFS_OPT_FLAG,
	 OPT(repair),
	 .help = "put right what can be put right without losing data"},
	{.name = "path",
	 .kind = CFS_OPT_STRING,
	 OPT(path),
	 .arg = "PATH",
	 .help = "check only this file or directory, given from the root of the volume"},
	{.name = "recursive",
	 .kind = CFS_OPT_FLAG,
	 OPT(recursive),
	 .help = "with --path: everything below it too"},
	{.name = "sync-dir-stat",
	 .kind = CFS_OPT_FLAG,
	 OPT(sync_dir_stat),
	 .help = "also compare the bytes of data that directories say they have, which clients "
		 "keep loosely"},
	{.name = "no-data", .kind = CFS_OPT_FLAG, OPT(no_data), .help = "do not look at objects"},
	ADMIN_OBJECT_OPTIONS(struct fsck_opts, common),
	{0},
};
#undef OPT

int fsck_report(struct fsck *f, const char *kind, cfs_ino_t ino, bool repaired, const char *fmt,
		...)
{
	char *path = ino ? admin_path(f->a, ino) : strdup("");
	char *text = NULL;
	json_t *j;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (!path || n < 0) {
		free(path);
		return -ENOMEM;
	}
	f->found++;
	f->repaired += repaired;
	progress_end(&f->p);
	if (!f->json) {
		printf("%s: %s%s%s%s\n", kind, path, *path ? ": " : "", text,
		       repaired ? " (repaired)" : "");
	} else if (json_array_size(f->problems) < PROBLEMS_MAX) {
		j = json_pack("{s:s, s:I, s:o, s:s, s:b}", "kind", kind, "inode", (json_int_t)ino,
			      "path", admin_text(path, strlen(path)), "text", text, "repaired",
			      repaired);
		json_array_append_new(f->problems, j);
	}
	free(path);
	free(text);
	return 0;
}

static int quota_problem(void *arg, const struct quota_finding *q)
{
	static const char *const who[] = {"directory", "user", "group"};

	return fsck_report(arg, "quota", q->have.kind == CFS_QUOTA_DIR ? q->have.key : 0,
			   q->repaired,
			   "%s %" PRIu64 " uses %" PRId64 " bytes %" PRId64
			   " inodes, its row says %" PRId64 " and %" PRId64,
			   who[q->have.kind], q->have.key, q->space, q->inodes, q->have.used_space,
			   q->have.used_inodes);
}

static int check_usage(struct fsck *f)
{
	struct cfs_ctx ctx = cfs_ctx_internal(10 * ADMIN_STEP_MS);
	int64_t space, inodes;
	int r = cfs_meta_check_usage(f->a->meta, &ctx, f->repair, &space, &inodes);

	if (r < 0 || (!space && !inodes))
		return r;
	return fsck_report(f, "usage", 0, f->repair,
			   "the volume's counters lack %" PRId64 " bytes and %" PRId64 " inodes",
			   space, inodes);
}

static int check_volume(struct fsck *f, bool data)
{
	int r = fsck_tree(f);

	if (r == 0)
		r = check_usage(f);
	if (r == 0)
		r = quota_check(f->a, f->repair, quota_problem, f);
	if (r == 0 && data)
		r = fsck_data(f);
	return r;
}

static void print_summary(struct fsck *f)
{
	if (f->json) {
		admin_print_json(json_pack("{s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:O}", "checked",
					   "inodes", (json_int_t)f->inodes, "names",
					   (json_int_t)f->names, "slices", (json_int_t)f->slices,
					   "objects", (json_int_t)f->objects, "found",
					   (json_int_t)f->found, "repaired",
					   (json_int_t)f->repaired, "problems", f->problems));
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

static int fsck_run(int argc, char **argv)
{
	struct fsck_opts o = {0};
	struct fsck f = {0};
	struct admin a = {0};
	const char *url;
	int r;

	cfs_opt_defaults(fsck_table, &o);
	r = cmd_parse(&cmd_fsck, fsck_table, &o, argc, argv, &url, 1, 1);
	if (r >= 0)
		goto out;
	r = admin_open(url, &o.common,
		       (o.repair ? ADMIN_WRITE : 0) | (o.no_data ? 0 : ADMIN_OBJECTS), &a);
	if (r != CMD_OK)
		goto out;
	f = (struct fsck){
		.a = &a,
		.repair = o.repair,
		.sync_dir_stat = o.sync_dir_stat,
		.json = o.common.json,
		.problems = json_array(),
	};
	r = o.path ? fsck_path(&f, o.path, o.recursive) : check_volume(&f, !o.no_data);
	if (r < 0) {
		cmd_error("the check could not be completed: %s", strerror(-r));
		r = CMD_SYSTEM;
		goto out;
	}
	print_summary(&f);
	r = f.found > f.repaired ? CMD_DAMAGED : CMD_OK;
out:
	json_decref(f.problems);
	if (admin_close(&a) != CMD_OK)
		r = CMD_SYSTEM;
	cfs_opt_free(fsck_table, &o);
	return r;
}

const struct cmd cmd_fsck = {
	.name = "fsck",
	.synopsis = "[--repair] [--path PATH [--recursive]] [OPTIONS] META-URL",
	.summary =
		"Checks names, counts, quotas and the blocks of every file; exit status 3: damage "
		"is left",
	.run = fsck_run,
};
