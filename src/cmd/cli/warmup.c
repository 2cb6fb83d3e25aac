/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

enum { PATHS_MAX = 256, BATCH = 256 };

struct warmup_opts {
	bool json, evict, check, whole;
	int64_t threads;
	char *file;
};

#define OPTIONS struct warmup_opts
static const struct cfs_opt warmup_table[] = {
	OPT_STRING("file", file, "LIST", "paths, one a line; -: standard input", .letter = 'f'),
	OPT_FLAG("evict", evict, "drop the files from the caches instead"),
	OPT_FLAG("check", check, "only report how much of the files the caches have"),
	OPT_FLAG("whole", whole,
		 "also compose each file of its blocks, so that the kernel can read it without the "
		 "mount (passthrough)"),
	OPT_INT("threads", threads, "N", "blocks at a time", .def = "10", .min = 1, .max = 64),
	OPT_JSON(json),
	{0},
};

static const char *const counted[] = {"files",	"blocks", "bytes",    "fetched", "cached",
				      "memory", "disk",	  "group",    "evicted", "declined",
				      "failed", "whole",  "not_whole"};
enum {
	FILES,
	BLOCKS,
	BYTES,
	FETCHED,
	CACHED,
	MEMORY,
	DISK,
	GROUP,
	EVICTED,
	DECLINED,
	FAILED,
	WHOLE,
	NOT_WHOLE,
	COUNTED
};

struct warmup {
	const struct warmup_opts *o;
	struct progress progress;
	/* Paths of one mount that are waiting to be sent in a request. */
	char point[4096];
	char *paths[BATCH];
	cfs_ino_t inodes[BATCH];
	size_t n;

	json_int_t sums[COUNTED];
	json_t *entries;   /* with --json */
	bool disk, memory; /* whether mounts with, and mounts without, a disk cache were met */
	bool group;	   /* a mount is in a cache group */
	int first_errno;
};

/* ", 16 MiB in the group", or an empty text without a group. */
static const char *in_group(bool member, json_int_t bytes, char text[64])
{
	char size[32];

	text[0] = '\0';
	if (member)
		snprintf(text, 64, ", %s in the group", progress_size((uint64_t)bytes, size));
	return text;
}

static void print_check(const char *path, json_t *sums)
{
	json_int_t bytes = json_get_int(sums, "bytes");
	json_t *group = json_object_get(sums, "group");
	char a[32], b[32], c[32], d[64];

	cmd_line("%s: %s, %s in memory, %s in the disk cache%s", path,
		 progress_size((uint64_t)bytes, a),
		 progress_size((uint64_t)json_get_int(sums, "memory"), b),
		 progress_size((uint64_t)json_get_int(sums, "disk"), c),
		 in_group(group, json_integer_value(group), d));
}

static void take_root(struct warmup *w, const char *path, json_t *sums)
{
	json_int_t err = json_get_int(sums, "first_errno");
	json_t *entry;
	size_t i;

	for (i = 0; i < COUNTED; i++)
		w->sums[i] += json_get_int(sums, counted[i]);
	w->group = w->group || json_object_get(sums, "group");
	if (!w->first_errno)
		w->first_errno = (int)err;
	if (w->o->check && !w->o->json)
		print_check(path, sums);
	if (w->entries) {
		entry = json_copy(sums);
		json_object_set_new(entry, "path", admin_text(path, strlen(path)));
		json_array_append_new(w->entries, entry);
	}
	if (json_get_int(sums, "failed"))
		cmd_error("%s: %lld blocks or files failed: %s", path, json_get_int(sums, "failed"),
			  strerror((int)err));
}

/* Sends a request for the collected paths. */
static int flush(struct warmup *w)
{
	const char *mode = w->o->evict ? "evict" : w->o->check ? "check" : "fetch";
	struct inside in = {0};
	json_t *inodes, *reply, *root;
	size_t i;
	int r;

	if (!w->n)
		return CMD_OK;
	inodes = json_array();
	for (i = 0; i < w->n; i++)
		json_array_append_new(inodes, json_integer((json_int_t)w->inodes[i]));
	progress_begin(&w->progress, "warmup");
	w->progress.bytes = true;
	reply = control_run(w->point,
			    json_pack("{s:s, s:s, s:o, s:I, s:b, s:b}", "op", "warmup", "mode",
				      mode, "inodes", inodes, "threads", (json_int_t)w->o->threads,
				      "count", w->progress.on, "whole", w->o->whole),
			    &w->progress);
	memcpy(in.point, w->point, sizeof(in.point));
	r = inside_result(w->paths[0], &in, reply);
	if (r == CMD_OK) {
		*(json_is_true(json_object_get(reply, "disk_cache")) ? &w->disk : &w->memory) =
			true;
		json_array_foreach (json_object_get(reply, "roots"), i, root)
			take_root(w, i < w->n ? w->paths[i] : "?", root);
	}
	json_decref(reply);
	while (w->n)
		free(w->paths[--w->n]);
	return r;
}

static int add(struct warmup *w, const char *path)
{
	struct inside in;
	int r, flushed = CMD_OK;

	r = inside_find(path, &in);
	if (r != CMD_OK)
		return r;
	if (w->n && (w->n == BATCH || strcmp(in.point, w->point)))
		flushed = flush(w);
	memcpy(w->point, in.point, sizeof(w->point));
	w->paths[w->n] = strdup(path);
	if (!w->paths[w->n])
		return cmd_error("out of memory");
	w->inodes[w->n++] = in.ino;
	return flushed;
}

static int add_list(struct warmup *w, const char *file)
{
	FILE *in = strcmp(file, "-") ? fopen(file, "re") : stdin;
	int r = CMD_OK, one;
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;

	if (!in)
		return cmd_usage("%s: %s", file, strerror(errno));
	while ((len = getline(&line, &cap, in)) > 0) {
		if (line[len - 1] == '\n')
			line[--len] = '\0';
		if (!len)
			continue;
		one = add(w, line);
		r = r == CMD_OK ? one : r;
	}
	if (ferror(in))
		r = cmd_error("%s: %s", file, strerror(errno));
	free(line);
	if (in != stdin)
		fclose(in);
	return r;
}

static void print_sums(struct warmup *w)
{
	const struct warmup_opts *o = w->o;
	char a[32], b[32], c[32], d[64];

	if (o->check) {
		cmd_line("%lld files, %s: %s in memory, %s in the disk cache%s", w->sums[FILES],
			 progress_size((uint64_t)w->sums[BYTES], a),
			 progress_size((uint64_t)w->sums[MEMORY], b),
			 progress_size((uint64_t)w->sums[DISK], c),
			 in_group(w->group, w->sums[GROUP], d));
	} else if (o->evict) {
		cmd_line("%lld files, %s: %s dropped from the caches", w->sums[FILES],
			 progress_size((uint64_t)w->sums[BYTES], a),
			 progress_size((uint64_t)w->sums[EVICTED], b));
	} else {
		cmd_line("%lld files, %s: %s fetched into the %s, %s were there", w->sums[FILES],
			 progress_size((uint64_t)w->sums[BYTES], a),
			 progress_size((uint64_t)w->sums[FETCHED], b),
			 w->memory ? w->disk ? "caches" : "memory cache" : "disk cache",
			 progress_size((uint64_t)w->sums[CACHED], c));
	}
}

static void report(struct warmup *w)
{
	json_t *out;
	size_t i;

	if (w->memory && !w->o->evict && !w->o->check)
		cmd_error("the mount has no disk cache (cache-dir): blocks went to memory, which "
			  "keeps only the last of them");
	if (w->sums[DECLINED])
		cmd_error(
			"%lld blocks are not kept by the disk cache (cache-partial-only) and were "
			"not fetched",
			w->sums[DECLINED]);
	if (w->sums[NOT_WHOLE])
		cmd_error(
			"%lld files are not whole in the disk cache: they are short or larger than "
			"its share, a block is missing, or the mount has not passthrough=auto",
			w->sums[NOT_WHOLE]);
	if (!w->o->json) {
		print_sums(w);
		if (w->o->whole)
			cmd_line("%lld files are whole in the disk cache", w->sums[WHOLE]);
		return;
	}
	out = json_object();
	for (i = 0; i < COUNTED; i++)
		json_object_set_new(out, counted[i], json_integer(w->sums[i]));
	json_object_set_new(out, "disk_cache", json_boolean(w->disk));
	json_object_set(out, "paths", w->entries);
	admin_print_json(out);
}

static int warm(const struct warmup_opts *o, const char *const *pos)
{
	struct warmup *w = calloc(1, sizeof(*w));
	int i, one, r = CMD_OK;

	if (!w)
		return CMD_SYSTEM;
	w->o = o;
	w->entries = o->json ? json_array() : NULL;
	for (i = 0; i < PATHS_MAX && pos[i]; i++) {
		one = add(w, pos[i]);
		r = r == CMD_OK ? one : r;
	}
	if (o->file) {
		one = add_list(w, o->file);
		r = r == CMD_OK ? one : r;
	}
	one = flush(w);
	r = r == CMD_OK ? one : r;
	if (w->disk || w->memory)
		report(w);
	if (r == CMD_OK && w->sums[FAILED])
		r = CMD_SYSTEM;
	json_decref(w->entries);
	free(w);
	return r;
}

static int warmup_run(void *options, const char **args)
{
	const struct warmup_opts *o = options;

	if (o->evict + o->check + o->whole > 1)
		return cmd_usage("--evict, --check and --whole exclude each other");
	if (!args[0] && !o->file)
		return cmd_usage("usage: cachefs %s %s", cmd_warmup.name, cmd_warmup.synopsis);
	return warm(o, args);
}

const struct cmd cmd_warmup = {
	.name = "warmup",
	.synopsis = "[--evict | --check | --whole] [--threads N] [--json] PATH... | -f LIST",
	.summary = "Fetches files, and all files below directories, into the caches of their mount",
	CMD_OPTIONS(warmup_table),
	.max_args = PATHS_MAX,
	.on_mount = true,
	.run = warmup_run,
};
