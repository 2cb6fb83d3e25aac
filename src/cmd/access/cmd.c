/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/text/url.h"
#include "base/utf8.h"
#include "cmd/access/cmd.h"

static const char *command_name = "cachefs";
static char **arguments; /* with their secrets */

#define OPTIONS struct json_opts
const struct cfs_opt json_table[] = {
	OPT_JSON(json),
	{0},
};

void cmd_set_name(const char *name)
{
	command_name = name;
}

static char *find_url(char *text)
{
	char *url = strstr(text, "://");

	while (url && url > text && isalnum((unsigned char)url[-1]))
		url--;
	return url;
}

/* To the end of the word, or of an argument, whose password may have spaces. */
static size_t url_length(const char *url)
{
	size_t len = strcspn(url, " \t\n"), n;
	char **argument, *given;

	while (strchr("'\",:;)", url[len - 1]))
		len--;
	for (argument = arguments; argument && *argument; argument++) {
		given = find_url(*argument);
		n = given ? strlen(given) : 0;
		if (n > len && strncmp(url, given, n) == 0)
			len = n;
	}
	return len;
}

/* A META-URL without its scheme, or a password where none belongs. */
static bool has_bare_secret(const char *argument)
{
	static const char *const keys[] = {"password=", "passwd=",     "passphrase=", "secret=",
					   "token=",	"secret-key=", "secret_key="};
	const char *at = strrchr(argument, '@'), *colon = strchr(argument, ':');
	size_t i;

	/* Files and options have '@' as well. */
	if (at && colon && colon < at && !strchr("/.-", *argument))
		return true;
	for (i = 0; i < CFS_ARRAY_SIZE(keys); i++)
		if (strcasestr(argument, keys[i]))
			return true;
	return false;
}

/* The first argument without "://" that has a secret and is in the text. */
static char *find_bare_secret(char *text, size_t *ret_len)
{
	char **argument, *found, *first = NULL;

	for (argument = arguments; argument && *argument; argument++) {
		if (strstr(*argument, "://") || !has_bare_secret(*argument))
			continue;
		found = strstr(text, *argument);
		if (found && (!first || found < first)) {
			first = found;
			*ret_len = strlen(*argument);
		}
	}
	return first;
}

static char *find_secret(char *text, size_t *ret_len)
{
	char *url = find_url(text), *bare = find_bare_secret(text, ret_len);

	if (bare && (!url || bare < url))
		return bare;
	if (url)
		*ret_len = url_length(url);
	return url;
}

/* Masks the secrets of URLs in any word: arguments are easily given in the wrong order. */
static void mask(char *text, FILE *out)
{
	char word[1024], masked[4096], *url;
	size_t len;

	for (; (url = find_secret(text, &len)); text = url + len) {
		snprintf(word, sizeof(word), "%.*s", (int)len, url);
		cfs_url_mask(word, masked, sizeof(masked));
		fprintf(out, "%.*s%s", (int)(url - text), text, masked);
	}
	fputs(text, out);
}

/*
 * Replaces control characters: a file name must neither control a terminal nor forge a line of
 * output.
 */
static void print_line(const char *text, FILE *out)
{
	size_t size = CFS_PRINTABLE_MAX * strlen(text) + 1 + CFS_PRINTABLE_MAX;
	char *shown = malloc(size);

	if (shown)
		fputs(cfs_printable(text, shown, size), out);
	fputc('\n', out);
	free(shown);
}

__attribute__((format(printf, 1, 0))) static char *format(const char *fmt, va_list ap)
{
	char *text;

	return vasprintf(&text, fmt, ap) < 0 ? NULL : text;
}

__attribute__((format(printf, 1, 0))) static void print_error(const char *fmt, va_list ap)
{
	char *text = format(fmt, ap), *shown = NULL;
	FILE *masked;
	size_t len;

	if (!text)
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

int cmd_fail(int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	print_error(fmt, ap);
	va_end(ap);
	return status;
}

void cmd_line(const char *fmt, ...)
{
	char *text;
	va_list ap;

	va_start(ap, fmt);
	text = format(fmt, ap);
	va_end(ap);
	if (text)
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
	char **copy, *masked;
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
		if (strstr(argv[i], "://") || has_bare_secret(argv[i])) {
			cfs_url_mask(argv[i], masked, 4 * len + 64);
			/*
			 * ps(1) shows the original bytes, so they are overwritten in place. The
			 * masked text is not longer.
			 */
			memset(argv[i], 0, len);
			memcpy(argv[i], masked, strnlen(masked, len));
		}
		free(masked);
	}
	arguments = copy;
	return copy;
}

int cmd_parse(const struct cmd *cmd, void *options, int argc, char **argv, const char **args)
{
	char err[CFS_OPT_ERRLEN] = "";
	bool options_end = false;
	int i, r, n = 0;

	memset(args, 0, sizeof(*args) * (size_t)cmd->max_args);
	for (i = 1; i < argc; i += r) {
		r = 0;
		if (!options_end && !strcmp(argv[i], "--")) {
			options_end = true;
			r = 1;
			continue;
		}
		if (!options_end && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
			printf("usage: cachefs %s %s\n\n%s.\n\n%s", cmd->name, cmd->synopsis,
			       cmd->summary, cmd->heading ? cmd->heading : "");
			cfs_opt_help(cmd->options, stdout);
			return CMD_OK;
		}
		if (!options_end)
			r = cfs_opt_arg(cmd->options, options, argc - i, argv + i, err);
		if (r == -ENOENT && cmd->other_option)
			r = cmd->other_option(options, argc - i, argv + i, err);
		if (r == -ENOENT)
			return cmd_usage("unknown option '%s'", argv[i]);
		if (r < 0)
			return cmd_usage("%s", err);
		if (r > 0)
			continue;
		if (n == cmd->max_args)
			return cmd_usage("unexpected argument '%s'", argv[i]);
		args[n++] = argv[i];
		r = 1;
	}
	if (n < cmd->min_args)
		return cmd_usage("usage: cachefs %s %s", cmd->name, cmd->synopsis);
	return -1;
}

int cmd_run(const struct cmd *cmd, int argc, char **argv)
{
	cfs_auto_free const char **args = calloc((size_t)cmd->max_args + 1, sizeof(*args));
	cfs_auto_free void *options = calloc(1, cmd->options_size + 1);
	int r;

	if (!args || !options || cfs_opt_defaults(cmd->options, options) < 0) {
		cmd_error("out of memory");
		return CMD_SYSTEM;
	}
	if (cmd->defaults)
		cmd->defaults(options);
	r = cmd_parse(cmd, options, argc, argv, args);
	if (r < 0)
		r = cmd->run(options, args);
	cfs_opt_free(cmd->options, options);
	return r;
}
