/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

static void print_owner(json_t *owner, json_t *members)
{
	json_t *m, *cached = json_object_get(owner, "cached");
	const char *address = "", *transport = "";
	size_t i;

	json_array_foreach (members, i, m) {
		if (strcmp(json_get_text(m, "id"), json_get_text(owner, "id")) != 0)
			continue;
		address = *json_get_text(m, "address") ? json_get_text(m, "address") : "-";
		transport = strcmp(json_get_text(m, "state"), "self")
				    ? json_get_text(m, "transport")
				    : "self";
	}
	cmd_line("  %s %s %s %s", json_get_text(owner, "id"), address, transport,
		 json_is_string(cached) ? json_string_value(cached)
		 : json_is_true(cached) ? "cached"
					: "not cached");
}

static void print_blocks(json_t *reply)
{
	json_t *block, *owner, *members = json_object_get(reply, "members");
	size_t i, k;

	json_array_foreach (json_object_get(reply, "blocks"), i, block) {
		cmd_line("%s%s%s", json_get_text(block, "key"),
			 json_is_true(json_object_get(block, "memory")) ? "  in memory here" : "",
			 json_is_true(json_object_get(block, "disk")) ? "  on disk here" : "");
		json_array_foreach (json_object_get(block, "owners"), k, owner)
			print_owner(owner, members);
	}
}

static int map(const char *path, bool json)
{
	struct progress progress = {0};
	json_t *reply = NULL, *all = json_array(), *members = NULL;
	json_int_t chunk = 0;
	struct inside in;
	bool more = true;
	int r = inside_find(path, &in);

	if (r == CMD_OK && in.is_dir)
		r = cmd_usage("%s: %s; only files have blocks", path, strerror(EISDIR));
	while (r == CMD_OK && more) {
		reply = control_run(in.point,
				    json_pack("{s:s, s:I, s:I}", "op", "cache-map", "inode",
					      (json_int_t)in.ino, "chunk", chunk),
				    &progress);
		r = inside_result(path, &in, reply);
		if (r == CMD_OK) {
			chunk = json_get_int(reply, "next");
			more = json_is_true(json_object_get(reply, "more"));
			json_decref(members);
			members = json_incref(json_object_get(reply, "members"));
			if (json)
				json_array_extend(all, json_object_get(reply, "blocks"));
			else
				print_blocks(reply);
		}
		json_decref(reply);
	}
	if (r == CMD_OK && json)
		admin_print_json(json_pack("{s:O, s:O}", "members", members, "blocks", all));
	json_decref(members);
	json_decref(all);
	return r;
}

static int cache_run(void *options, const char **args)
{
	const struct json_opts *o = options;

	if (strcmp(args[0], "map"))
		return cmd_usage("unknown action '%s'; there is only map", args[0]);
	return map(args[1], o->json);
}

const struct cmd cmd_cache = {
	.name = "cache",
	.synopsis = "map [--json] PATH",
	.summary = "Shows which members of the cache group own and have each block of a file",
	CMD_JSON_OPTION,
	.min_args = 2,
	.max_args = 2,
	.on_mount = true,
	.run = cache_run,
};
