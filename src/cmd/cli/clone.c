/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

struct clone_opts {
	bool json, preserve;
};

#define OPTIONS struct clone_opts
static const struct cfs_opt clone_table[] = {
	OPT_FLAG("preserve", preserve, "keep owner, group and times"),
	OPT_JSON(json),
	{0},
};

static int clone_run(void *options, const char **args)
{
	const char *src = args[0], *dst = args[1];
	const struct clone_opts *o = options;
	cfs_auto_free char *hex = NULL;
	struct inside from, to;
	struct progress p;
	json_t *reply;
	int r;

	if (inside_find(src, &from) != CMD_OK)
		return CMD_USAGE;
	r = inside_find_new(dst, &to);
	if (r != CMD_OK)
		return r;
	if (strcmp(from.point, to.point))
		return cmd_usage("%s and %s are not in the same mount", src, dst);
	hex = control_hex(to.name);
	if (!hex)
		return CMD_SYSTEM;
	progress_begin(&p, "inodes cloned");
	reply = control_run(from.point,
			    json_pack("{s:s, s:I, s:I, s:s, s:b}", "op", "clone", "inode",
				      (json_int_t)from.ino, "parent", (json_int_t)to.parent, "name",
				      hex, "preserve", o->preserve),
			    &p);
	r = inside_result(dst, &from, reply);
	if (r == CMD_OK && o->json)
		admin_print_json(json_incref(reply));
	else if (r == CMD_OK)
		printf("%lld inodes cloned\n", json_get_int(reply, "copied"));
	json_decref(reply);
	return r;
}

const struct cmd cmd_clone = {
	.name = "clone",
	.synopsis = "[--preserve] [--json] SOURCE DESTINATION",
	.summary = "Copies a file or tree of a mount without copying data",
	CMD_OPTIONS(clone_table),
	.min_args = 2,
	.max_args = 2,
	.on_mount = true,
	.run = clone_run,
};
