/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of cachefs(1). Each returns the exit status of the process: 0 done, 1 wrong usage or
 * bad input, 2 the system or a backend failed, 3 damage was found, and for mount the codes of
 * mount(8).
 */
#ifndef CFS_CMD_H
#define CFS_CMD_H

#include <stdbool.h>

#include "cmd/access/options.h"

enum {
	CMD_OK = 0,
	CMD_USAGE = 1,
	CMD_SYSTEM = 2,
	CMD_DAMAGED = 3, /* fsck, quota check, doctor: a fault was found and was not repaired */
	CMD_BUG = 4,
	CMD_INTERRUPTED = 8,
	CMD_MOUNT_FAILED = 32,
};

struct cmd {
	const char *name;
	const char *synopsis; /* what follows "cachefs NAME" */
	const char *summary;  /* one sentence without full stop */
	const struct cfs_opt *options;
	size_t options_size; /* of the structure that they fill */
	/* May be NULL. Sets what the environment decides, over the defaults of the table. */
	void (*defaults)(void *options);
	int min_args, max_args;
	/* args: NULL after the last one. Strings of the options belong to the caller. */
	int (*run)(void *options, const char **args);
	/* May be NULL: takes an argument that `options` lacks. Returns as cfs_opt_arg(). */
	int (*other_option)(void *options, int argc, char *const *argv, char err[CFS_OPT_ERRLEN]);
	const char *heading; /* of the options in --help; may be NULL */
	bool on_mount;	     /* makes system calls on a mount: watch_command() runs it */
	/* In place of all but that, for a command line of another form. argv[0] is the name. */
	int (*run_argv)(int argc, char **argv);
};

/* The members for a table of options, where its structure is OPTIONS (options.h). */
#define CMD_OPTIONS(table) .options = (table), .options_size = sizeof(OPTIONS)
#define CMD_JSON_OPTION	   .options = json_table, .options_size = sizeof(struct json_opts)

extern const struct cmd cmd_format, cmd_status, cmd_info, cmd_mount, cmd_umount, cmd_version;
extern const struct cmd cmd_objbench, cmd_mdtest, cmd_dump, cmd_load;

extern const struct cmd cmd_config, cmd_fsck, cmd_gc, cmd_rmr, cmd_restore, cmd_clone, cmd_compact,
	cmd_summary, cmd_quota, cmd_tier, cmd_destroy, cmd_warmup, cmd_cache;

extern const struct cmd cmd_stats, cmd_profile, cmd_debug, cmd_bench, cmd_doctor;

/* mount.cachefs(8): the helper that mount(8) calls. */
int cmd_mount_helper(int argc, char **argv);

/* Runs a command that has no run_argv: parses, calls run(), frees the options. */
int cmd_run(const struct cmd *cmd, int argc, char **argv);
/*
 * Parses what follows the name into options, which hold their defaults, and args (max_args entries,
 * NULL when absent). Prints help for --help. Returns -1 to go on, else the exit status.
 */
int cmd_parse(const struct cmd *cmd, void *options, int argc, char **argv, const char **args);

/*
 * "cachefs NAME: text" on stderr; without control characters, secrets of URLs masked. Returns the
 * status, for callers that end with it.
 */
__attribute__((format(printf, 2, 3))) int cmd_fail(int status, const char *fmt, ...);
#define cmd_error(...) cmd_fail(CMD_SYSTEM, __VA_ARGS__)
#define cmd_usage(...) cmd_fail(CMD_USAGE, __VA_ARGS__)
/*
 * Prints a line on stdout; control characters but the final newline are replaced. For text that
 * contains names.
 */
__attribute__((format(printf, 1, 2))) void cmd_line(const char *fmt, ...);
void cmd_set_name(const char *name);

/* Returns the text without leading and trailing white space. The end is cut off in place. */
char *cmd_trim(char *text);

/*
 * Overwrites secrets of META-URLs and option lists in argv, because ps(1) shows it. Returns a copy
 * of the original vector for parsing (never freed).
 */
char **cmd_hide_secrets(int argc, char **argv);

#endif
