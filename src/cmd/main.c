/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/access/cmd.h"
#include "cmd/access/watch.h"
#include "cmd/dump/dump.h"
#include "cmd/mountd/supervise/health.h"

static const struct cmd *const commands[] = {
	&cmd_format,  &cmd_config, &cmd_mount, &cmd_umount,  &cmd_status,  &cmd_info,
	&cmd_summary, &cmd_rmr,	   &cmd_clone, &cmd_compact, &cmd_quota,   &cmd_tier,
	&cmd_restore, &cmd_warmup, &cmd_cache, &cmd_gc,	     &cmd_fsck,	   &cmd_objbench,
	&cmd_mdtest,  &cmd_dump,   &cmd_load,  &cmd_destroy, &cmd_version, &cmd_stats,
	&cmd_profile, &cmd_debug,  &cmd_bench, &cmd_doctor,  NULL,
};

static void usage(FILE *out)
{
	const struct cmd *const *c;

	fputs("usage: cachefs COMMAND [OPTIONS] [ARGUMENTS]\n\n"
	      "A file system for data in object storage.\n\nCommands:\n",
	      out);
	for (c = commands; *c; c++)
		fprintf(out, "  %-10s %s\n", (*c)->name, (*c)->summary);
	fputs("\n`cachefs COMMAND --help` describes a command.\n", out);
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/*
 * Fails on write errors (full disk, broken pipe), so that truncated output is never taken as
 * complete.
 */
static int end(int r)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return r;
	return cmd_fail(r == CMD_OK ? CMD_SYSTEM : r, "the output could not be written: %s",
			strerror(errno));
}

/*
 * Opens descriptors 0 to 2 that the caller has closed: otherwise a socket or a file could be taken
 * for stdout or stderr.
 */
static void open_standard_files(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

int main(int argc, char **argv)
{
	const struct cmd *const *c;
	const char *wanted;
	char **args;
	char name[64];
	int r;

	open_standard_files();
	/* A file beyond the limit of its size (ulimit -f) is EFBIG, not the end of the process. */
	signal(SIGXFSZ, SIG_IGN);
	args = cmd_hide_secrets(argc, argv);
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_WARN);
	if (argc > 0 && !strncmp(base_name(args[0]), "mount.", 6)) {
		cmd_set_name(base_name(args[0]));
		return cmd_mount_helper(argc, args);
	}
	if (argc < 2) {
		usage(stderr);
		return CMD_USAGE;
	}
	if (!strcmp(args[1], "--help") || !strcmp(args[1], "-h") || !strcmp(args[1], "help")) {
		usage(stdout);
		return CMD_OK;
	}
	if (argc == 3 && !strcmp(args[1], HEALTH_ASKER))
		return health_ask_for(args[2]);
	if (argc == 2 && !strcmp(args[1], BACKUP_CHILD))
		return end(dump_child());
	wanted = strcmp(args[1], "--version") ? args[1] : "version";
	for (c = commands; *c; c++) {
		if (strcmp((*c)->name, wanted))
			continue;
		snprintf(name, sizeof(name), "cachefs %s", (*c)->name);
		cmd_set_name(name);
		r = (*c)->on_mount ? watch_command() : -1;
		if (r >= 0)
			return r;
		return end((*c)->run_argv ? (*c)->run_argv(argc - 1, args + 1)
					  : cmd_run(*c, argc - 1, args + 1));
	}
	return cmd_usage("unknown command '%s'; `cachefs --help` lists them", args[1]);
}
