/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

#define PATHS_MAX 256

static int compact_path(const char *path, bool json)
{
	struct progress p;
	struct inside in;
	json_t *reply;
	int r = inside_find(path, &in);

	if (r != CMD_OK)
		return r;
	progress_begin(&p, "files compacted");
	reply = control_run(in.point,
			    json_pack("{s:s, s:I}", "op", "compact", "inode", (json_int_t)in.ino),
			    &p);
	r = inside_result(path, &in, reply);
	if (r == CMD_OK && json) {
		json_object_set_new(reply, "path", admin_text(path, strlen(path)));
		admin_print_json(json_incref(reply));
	} else if (r == CMD_OK) {
		cmd_line("%s: %lld files, %lld chunks, %lld slices before, %lld after", path,
			 json_get_int(reply, "files"), json_get_int(reply, "chunks"),
			 json_get_int(reply, "records_before"),
			 json_get_int(reply, "records_after"));
	}
	if (r == CMD_OK && json_get_int(reply, "failed"))
		r = cmd_error("%s: %lld chunks could not be compacted, see the log of the mount",
			      path, json_get_int(reply, "failed"));
	json_decref(reply);
	return r;
}

static int compact_run(void *options, const char **args)
{
	const struct json_opts *o = options;
	int r = CMD_OK, one;

	for (; *args; args++) {
		one = compact_path(*args, o->json);
		r = r == CMD_OK ? one : r;
	}
	return r;
}

const struct cmd cmd_compact = {
	.name = "compact",
	.synopsis = "[--json] PATH...",
	.summary = "Merges the slices of files, and of all files below a directory",
	CMD_JSON_OPTION,
	.min_args = 1,
	.max_args = PATHS_MAX,
	.on_mount = true,
	.run = compact_run,
};
