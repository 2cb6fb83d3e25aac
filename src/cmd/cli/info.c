/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

static const char *type_name(json_int_t type)
{
	static const char *const names[] = {"?",    "file",	    "directory",	"symlink",
					    "fifo", "block device", "character device", "socket"};

	return names[type >= 1 && type <= 7 ? type : 0];
}

static void print_slice(json_t *slice)
{
	json_t *key;
	size_t i;

	printf("    at %-9lld slice %lld  size %lld  off %lld  len %lld\n",
	       json_get_int(slice, "pos"), json_get_int(slice, "id"), json_get_int(slice, "size"),
	       json_get_int(slice, "off"), json_get_int(slice, "len"));
	json_array_foreach (json_object_get(slice, "objects"), i, key)
		cmd_line("      %s", json_string_value(key));
}

static void print_info(json_t *j)
{
	json_t *path, *chunk, *slice;
	size_t i, k;

	printf("inode:  %lld\ntype:   %s\nlength: %lld\nlinks:  %lld\n", json_get_int(j, "inode"),
	       type_name(json_get_int(j, "type")), json_get_int(j, "length"),
	       json_get_int(j, "nlink"));
	if (json_get_int(j, "tier"))
		printf("tier:   %lld\n", json_get_int(j, "tier"));
	json_array_foreach (json_object_get(j, "paths"), i, path)
		cmd_line("path:   %s", json_string_value(path));
	json_array_foreach (json_object_get(j, "chunks"), i, chunk) {
		printf("  chunk %lld\n", json_get_int(chunk, "index"));
		json_array_foreach (json_object_get(chunk, "slices"), k, slice)
			print_slice(slice);
	}
	if (json_is_true(json_object_get(j, "truncated")))
		printf("  (more chunks are not shown)\n");
}

static int info_run(void *options, const char **args)
{
	const struct json_opts *o = options;
	struct inside in;
	json_t *reply;
	int r = inside_find(args[0], &in);

	if (r != CMD_OK)
		return r;
	reply = control_ask(in.point,
			    json_pack("{s:s, s:I}", "op", "info", "inode", (json_int_t)in.ino));
	r = inside_result(args[0], &in, reply);
	if (r == CMD_OK && o->json)
		admin_print_json(json_incref(reply));
	else if (r == CMD_OK)
		print_info(reply);
	json_decref(reply);
	return r;
}

const struct cmd cmd_info = {
	.name = "info",
	.synopsis = "[--json] PATH",
	.summary = "Shows the inode, slices and objects behind a path of a mount",
	CMD_JSON_OPTION,
	.min_args = 1,
	.max_args = 1,
	.on_mount = true,
	.run = info_run,
};
