/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/fuse.h>
#include <cachefs/meta.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "config.h"

struct version_opts {
	bool json;
};

static const struct cfs_opt version_table[] = {
	{.name = "json",
	 .kind = CFS_OPT_FLAG,
	 .offset = offsetof(struct version_opts, json),
	 .help = "print JSON"},
	{0},
};

/* What the running kernel offers, independent of what was built in. */
static bool kernel_has_fuse_io_uring(void)
{
	return access("/sys/module/fuse/parameters/enable_uring", F_OK) == 0;
}

static int version_run(int argc, char **argv)
{
	struct cfs_fuse_features f;
	struct version_opts o;
	struct utsname un;
	json_t *j;
	int r;

	cfs_opt_defaults(version_table, &o);
	r = cmd_parse(&cmd_version, version_table, &o, argc, argv, &(const char *){NULL}, 0, 0);
	if (r >= 0)
		return r;
	cfs_fuse_features(&f);
	if (uname(&un) < 0)
		return CMD_SYSTEM;
	if (!o.json) {
		printf("cachefs %s (volume format %s, metadata version %d)\n", CFS_VERSION,
		       CFS_COMPAT_VERSION, CFS_META_VERSION);
		printf("libfuse %s (built with %s): passthrough %s, io_uring %s\n",
		       f.libfuse_running, f.libfuse_built, f.passthrough_built ? "yes" : "no",
		       f.io_uring_built ? "yes" : "no");
		printf("kernel %s: FUSE over io_uring %s\n", un.release,
		       kernel_has_fuse_io_uring() ? "present" : "absent");
		return CMD_OK;
	}
	j = json_pack("{s:s, s:s, s:i, s:{s:s, s:s, s:b, s:b}, s:{s:s, s:b}}", "version",
		      CFS_VERSION, "format", CFS_COMPAT_VERSION, "meta_version", CFS_META_VERSION,
		      "libfuse", "running", f.libfuse_running, "built", f.libfuse_built,
		      "passthrough", f.passthrough_built, "io_uring", f.io_uring_built, "kernel",
		      "release", un.release, "fuse_io_uring", kernel_has_fuse_io_uring());
	if (!j || json_dumpf(j, stdout, JSON_INDENT(2)) < 0) {
		json_decref(j);
		return CMD_SYSTEM;
	}
	putchar('\n');
	json_decref(j);
	return CMD_OK;
}

const struct cmd cmd_version = {
	.name = "version",
	.synopsis = "[--json]",
	.summary = "Shows the version and what this build and this kernel can do",
	.run = version_run,
};
