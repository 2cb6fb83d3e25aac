/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/fuse.h>
#include <cachefs/meta.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/utsname.h>

#include "base/bytes.h"
#include "base/module.h"
#include "build.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "config.h"

static const char *ring_text(const struct cfs_fuse_features *f)
{
	static const char *const of_kernel[] = {"absent", "switched off", "switched on"};

	return f->ring_built ? of_kernel[f->ring_kernel] : "not in this build";
}

static const char *const modules[] = {"metrics", "mysql", "postgresql", "rdma", "redis", "s3"};

/* Returns NULL when it can be used, else the reason. */
static const char *module_fault(const char *name, char err[256])
{
	const void *table;

	return cfs_module_load(name, &table, err) < 0 ? err : NULL;
}

static void print_modules(void)
{
	char err[256];
	size_t i;

	printf("modules:");
	for (i = 0; i < CFS_ARRAY_SIZE(modules); i++)
		if (!module_fault(modules[i], err))
			printf(" %s", modules[i]);
	printf("\n");
	for (i = 0; i < CFS_ARRAY_SIZE(modules); i++)
		if (module_fault(modules[i], err))
			printf("  %s\n", err);
}

/* Each name with null, or with its error. */
static json_t *modules_json(void)
{
	json_t *j = json_object();
	char err[256];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(modules); i++) {
		const char *fault = module_fault(modules[i], err);

		json_object_set_new(j, modules[i], fault ? json_string(fault) : json_null());
	}
	return j;
}

static int version_run(void *options, const char **args)
{
	struct cfs_fuse_features f;
	const struct json_opts *o = options;
	struct utsname un;
	json_t *j;

	cfs_fuse_features(&f);
	if (uname(&un) < 0)
		return CMD_SYSTEM;
	if (!o->json) {
		printf("cachefs %s (build %s, volume format %s, metadata version %d)\n",
		       CFS_VERSION, CFS_BUILD, CFS_COMPAT_VERSION, CFS_META_VERSION);
		printf("libfuse %s (built with %s): passthrough %s, io_uring %s\n",
		       f.libfuse_running, f.libfuse_built, f.passthrough_built ? "yes" : "no",
		       f.io_uring_built ? "yes" : "no");
		printf("kernel %s: FUSE over io_uring %s\n", un.release, ring_text(&f));
		print_modules();
		return CMD_OK;
	}
	j = json_pack("{s:s, s:s, s:s, s:i, s:{s:s, s:s, s:b, s:b}, s:{s:s, s:s}, s:o}", "version",
		      CFS_VERSION, "build", CFS_BUILD, "format", CFS_COMPAT_VERSION, "meta_version",
		      CFS_META_VERSION, "libfuse", "running", f.libfuse_running, "built",
		      f.libfuse_built, "passthrough", f.passthrough_built, "io_uring",
		      f.io_uring_built, "kernel", "release", un.release, "fuse_io_uring",
		      ring_text(&f), "modules", modules_json());
	admin_print_json(j);
	return CMD_OK;
}

const struct cmd cmd_version = {
	.name = "version",
	.synopsis = "[--json]",
	.summary = "Shows the version, the modules that are there, and what this kernel can do",
	CMD_JSON_OPTION,
	.run = version_run,
};
