/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/url.h"
#include "base/utf8.h"
#include "cmd/cmd.h"
#include "cmd/health.h"

static const struct cmd *const commands[] = {
	&cmd_format,  &cmd_config, &cmd_mount,	 &cmd_umount,  &cmd_status,   &cmd_info,
	&cmd_summary, &cmd_rmr,	   &cmd_clone,	 &cmd_compact, &cmd_quota,    &cmd_restore,
	&cmd_warmup,  &cmd_cache,  &cmd_gc,	 &cmd_fsck,    &cmd_objbench, &cmd_mdtest,
	&cmd_dump,    &cmd_load,   &cmd_destroy, &cmd_version, &cmd_stats,    &cmd_profile,
	&cmd_debug,   &cmd_bench,  &cmd_doctor,	 NULL,
};

static const char *command_name = "cachefs";

void cmd_set_name(const char *name)
{
	command_name = name;
}

/* Words that are URLs, without their secrets: somebody may have mixed up the arguments. */
static void mask(const char *text, FILE *out)
{
	const char *sep, *url;
	char word[1024], masked[4096];
	size_t len;

	for (; (sep = strstr(text, "://")); text = url + len) {
		for (url = sep; url > text && isalnum((unsigned char)url[-1]); url--)
			;
		len = strcspn(url, " \t\n");
		while (strchr("'\",:;)", url[len - 1]))
			len--;
		snprintf(word, sizeof(word), "%.*s", (int)len, url);
		cfs_url_mask(word, masked, sizeof(masked));
		fprintf(out, "%.*s%s", (int)(url - text), text, masked);
	}
	fputs(text, out);
}

/* A name in it must not be able to command a terminal, or to look like a line of ours. */
static void print_line(const char *text, FILE *out)
{
	size_t size = CFS_PRINTABLE_MAX * strlen(text) + 1 + CFS_PRINTABLE_MAX;
	char *shown = malloc(size);

	if (shown)
		fputs(cfs_printable(text, shown, size), out);
	fputc('\n', out);
	free(shown);
}

void cmd_error(const char *fmt, ...)
{
	char *text = NULL, *shown = NULL;
	FILE *masked;
	size_t len;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	fprintf(stderr, "%s: ", command_name);
	masked = open_memstream(&shown, &len);
	if (masked) {
		mask(text, masked);
		fclose(masked);
		print_line(shown, stderr);
	}
	free(shown);
	free(text);
}

void cmd_line(const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	print_line(text, stdout);
	free(text);
}

char *cmd_trim(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	return text;
}

char **cmd_hide_secrets(int argc, char **argv)
{
	static char **copy; /* for the life of the process */
	char *masked;
	size_t len;
	int i;

	copy = calloc((size_t)argc + 1, sizeof(*copy));
	if (!copy)
		abort();
	for (i = 0; i < argc; i++) {
		copy[i] = strdup(argv[i]);
		len = strlen(argv[i]);
		masked = malloc(4 * len + 64);
		if (!copy[i] || !masked)
			abort();
		if (strstr(argv[i], "://")) {
			cfs_url_mask(argv[i], masked, 4 * len + 64);
			/* The kernel shows the original bytes: never longer than they were. */
			memset(argv[i], 0, len);
			memcpy(argv[i], masked, strnlen(masked, len));
		}
		free(masked);
	}
	return copy;
}

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

int cmd_parse(const struct cmd *cmd, const struct cfs_opt *table, void *dst, int argc, char **argv,
	      const char **pos, int min_pos, int n_pos)
{
	char err[CFS_OPT_ERRLEN] = "";
	bool options_end = false;
	int i, r, n = 0;

	memset(pos, 0, sizeof(*pos) * (size_t)n_pos);
	for (i = 1; i < argc; i += r) {
		r = 0;
		if (!options_end && !strcmp(argv[i], "--")) {
			options_end = true;
			r = 1;
			continue;
		}
		if (!options_end && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
			printf("usage: cachefs %s %s\n\n%s.\n\n", cmd->name, cmd->synopsis,
			       cmd->summary);
			cfs_opt_help(table, stdout);
			return CMD_OK;
		}
		if (!options_end)
			r = cfs_opt_arg(table, dst, argc - i, argv + i, err);
		if (r < 0) {
			if (r == -ENOENT)
				cmd_error("unknown option '%s'", argv[i]);
			else
				cmd_error("%s", err);
			return CMD_USAGE;
		}
		if (r > 0)
			continue;
		if (n == n_pos) {
			cmd_error("unexpected argument '%s'", argv[i]);
			return CMD_USAGE;
		}
		pos[n++] = argv[i];
		r = 1;
	}
	if (n < min_pos) {
		cmd_error("usage: cachefs %s %s", cmd->name, cmd->synopsis);
		return CMD_USAGE;
	}
	return -1;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Who reads the output shall not take a part of it for the whole: a full disk, a broken pipe. */
static int end(int r)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return r;
	cmd_error("the output could not be written: %s", strerror(errno));
	return r == CMD_OK ? CMD_SYSTEM : r;
}

/* What a caller has closed: else a socket or a file could be taken for stdout or stderr. */
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

	open_standard_files();
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
	wanted = strcmp(args[1], "--version") ? args[1] : "version";
	for (c = commands; *c; c++) {
		if (strcmp((*c)->name, wanted))
			continue;
		snprintf(name, sizeof(name), "cachefs %s", (*c)->name);
		cmd_set_name(name);
		return end((*c)->run(argc - 1, args + 1));
	}
	cmd_error("unknown command '%s'; `cachefs --help` lists them", args[1]);
	return CMD_USAGE;
}
