/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

struct summary_opts {
	bool json, strict;
	int64_t depth, entries;
};

#define OPTIONS struct summary_opts
static const struct cfs_opt summary_table[] = {
	OPT_INT("depth", depth, "N", "levels of directories that are listed; 0: only the sum",
		.def = "2", .min = 0, .max = 10),
	OPT_INT("entries", entries, "N", "largest entries shown of each directory", .def = "10",
		.min = 0, .max = 100),
	OPT_FLAG("strict", strict, "read every inode instead of the statistics of directories"),
	OPT_JSON(json),
	{0},
};

/* Recursion is bounded by the requested depth. */
static void print_entry(json_t *j, const char *path)
{
	json_t *entry;
	char buf[32], child[4096];
	size_t i;

	cmd_line("%12s %10lld %10lld  %s%s", progress_size((uint64_t)json_get_int(j, "size"), buf),
		 json_get_int(j, "dirs"), json_get_int(j, "files"), path,
		 !strcmp(json_string_value(json_object_get(j, "type")), "directory") ? "/" : "");
	json_array_foreach (json_object_get(j, "entries"), i, entry) {
		snprintf(child, sizeof(child), "%s/%s", path,
			 json_string_value(json_object_get(entry, "name")));
		print_entry(entry, child);
	}
}

static int summary_run(void *options, const char **args)
{
	const struct summary_opts *o = options;
	const char *path = args[0];
	struct progress p;
	struct inside in;
	size_t len = strlen(path);
	json_t *reply;
	int r = inside_find(path, &in);

	if (r != CMD_OK)
		return r;
	progress_begin(&p, "directories visited");
	reply = control_run(in.point,
			    json_pack("{s:s, s:I, s:I, s:I, s:b}", "op", "summary", "inode",
				      (json_int_t)in.ino, "depth", (json_int_t)o->depth, "entries",
				      (json_int_t)o->entries, "strict", o->strict),
			    &p);
	r = inside_result(path, &in, reply);
	while (len > 1 && path[len - 1] == '/')
		len--;
	if (r == CMD_OK)
		json_object_set_new(reply, "name", admin_text(path, len));
	if (r == CMD_OK && o->json) {
		admin_print_json(json_incref(reply));
	} else if (r == CMD_OK) {
		cmd_line("%12s %10s %10s  %s", "SIZE", "DIRS", "FILES", "PATH");
		print_entry(reply, json_string_value(json_object_get(reply, "name")));
	}
	json_decref(reply);
	return r;
}

const struct cmd cmd_summary = {
	.name = "summary",
	.synopsis = "[--depth N] [--entries N] [--strict] [--json] PATH",
	.summary = "Shows the size of a directory of a mount and of its largest entries",
	CMD_OPTIONS(summary_table),
	.min_args = 1,
	.max_args = 1,
	.on_mount = true,
	.run = summary_run,
};
