/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/options/mountfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/text/url.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/options/mountopts.h"

#define FILE_MAX  (1 << 20)
#define VALUE_MAX 4096
#define ARGS_MAX  512

/* The position of the parser, and the content of the wanted section. */
struct reader {
	const char *file, *wanted;
	unsigned line;
	bool in_section, in_wanted; /* in any section; in the wanted one */
	bool found, readable;	    /* readable: other users than the owner can read the file */
	char *url, *dir, *err;
	char *args[ARGS_MAX]; /* "-o", "NAME=VALUE" */
	int n_args;
};

__attribute__((format(printf, 2, 3))) static int bad(const struct reader *r, const char *fmt, ...)
{
	int n = snprintf(r->err, CFS_OPT_ERRLEN, "%.100s:%u: ", r->file, r->line);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->err + n, (size_t)(CFS_OPT_ERRLEN - n), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* A META-URL has one of these characters, unless it is only the host of a Redis server. */
static bool is_name(const char *text)
{
	return *text && *text != '-' && !strpbrk(text, ":/@,?[]") && strlen(text) < 64;
}

static int begin_section(struct reader *r, char *line)
{
	size_t len = strlen(line);

	if (line[len - 1] != ']')
		return bad(r, "a section is [NAME]");
	line[len - 1] = '\0';
	if (!is_name(line + 1))
		return bad(r, "a name of a volume has none of the characters :/@,?[]");
	r->in_section = true;
	r->in_wanted = !strcmp(line + 1, r->wanted);
	if (r->in_wanted && r->found)
		return bad(r, "there is another section [%s]", r->wanted);
	r->found |= r->in_wanted;
	return 0;
}

/* Refuses a password in a file that others can read. */
static int check_secret(const struct reader *r, const char *key, const char *value)
{
	char masked[VALUE_MAX + 64];

	if (!r->readable || (strcmp(key, "meta-url") != 0 && strcmp(key, "bucket") != 0))
		return 0;
	cfs_url_mask(value, masked, sizeof(masked));
	if (!strcmp(masked, value))
		return 0;
	bad(r,
	    "%s has a password, and others may read the file: chmod 0600, or put it into the file "
	    "of credentials",
	    key);
	return -EPERM;
}

static int set_place(const struct reader *r, const char *key, const char *value, char **ret)
{
	if (*ret)
		return bad(r, "%s is there twice", key);
	if (!value || (!strcmp(key, "meta-url") ? !strstr(value, "://") : *value != '/'))
		return bad(r, "%s is %s", key,
			   ret == &r->url ? "a META-URL with its scheme" : "an absolute path");
	*ret = strdup(value);
	return *ret ? 0 : -ENOMEM;
}

/* Checks an option here, where its line is known. It is applied later, with all others. */
static int add_option(struct reader *r, const char *key, const char *value)
{
	struct mount_opts scratch = {0};
	char why[CFS_OPT_ERRLEN] = "", *p;
	int n;

	n = mount_opts_set(&scratch, key, value, why);
	mount_opts_free(&scratch);
	if (n == -ENOENT || !strcmp(key, "config"))
		return bad(r, "no such option: %.64s", key);
	if (n < 0)
		return bad(r, "%s", why);
	if (n > 0)
		return 0;
	if (r->n_args + 2 > ARGS_MAX)
		return bad(r, "too many options");
	r->args[r->n_args++] = strdup("-o");
	r->args[r->n_args] = malloc(strlen(key) + (value ? 2 * strlen(value) : 0) + 2);
	if (!r->args[r->n_args - 1] || !r->args[r->n_args++])
		return -ENOMEM;
	p = stpcpy(r->args[r->n_args - 1], key);
	if (value)
		*p++ = '=';
	for (; value && *value; *p++ = *value++) {
		if (*value == ',')
			*p++ = '\\';
	}
	*p = '\0';
	return 0;
}

static int read_line(struct reader *r, char *line)
{
	char *key = cmd_trim(line), *value;
	int n;

	if (!*key || *key == '#' || *key == ';')
		return 0;
	if (*key == '[')
		return begin_section(r, key);
	if (!r->in_section)
		return bad(r, "before the first section");
	value = strchr(key, '=');
	if (value) {
		*value++ = '\0';
		value = cmd_trim(value);
		key = cmd_trim(key);
	}
	if (value && strlen(value) >= VALUE_MAX)
		return bad(r, "the value is too long");
	n = value ? check_secret(r, key, value) : 0;
	if (n < 0 || !r->in_wanted)
		return n;
	if (!strcmp(key, "meta-url"))
		return set_place(r, key, value, &r->url);
	if (!strcmp(key, "mount-point"))
		return set_place(r, key, value, &r->dir);
	return add_option(r, key, value);
}

static int read_lines(struct reader *r, FILE *in)
{
	cfs_auto_free char *line = NULL;
	size_t cap = 0;
	int n = 0;

	while (n == 0 && getline(&line, &cap, in) > 0) {
		r->line++;
		n = read_line(r, line);
	}
	return n == 0 && ferror(in) ? -EIO : n;
}

static int read_file(struct reader *r)
{
	int fd = open(r->file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), n;
	struct stat st;
	FILE *in;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX ||
	    (st.st_mode & 022) || (st.st_uid != geteuid() && st.st_uid != 0)) {
		snprintf(r->err, CFS_OPT_ERRLEN,
			 "%.150s must be a regular file that only root or you can write", r->file);
		close(fd);
		return -EPERM;
	}
	r->readable = st.st_mode & 044;
	in = fdopen(fd, "r");
	if (!in) {
		close(fd);
		return -ENOMEM;
	}
	n = read_lines(r, in);
	fclose(in);
	return n;
}

/* Builds argv: the options first, the URL in place of the name, and the directory at the end. */
static int build(const struct reader *r, int argc, char **argv, int at, bool has_dir, int *ret_argc,
		 char ***ret)
{
	char **v = calloc((size_t)(argc + r->n_args) + 4, sizeof(*v));
	int i, n = 0, missing = 0;

	if (!v)
		return -ENOMEM;
	v[n++] = strdup(argv[0]);
	for (i = 0; i < r->n_args; i++)
		v[n++] = strdup(r->args[i]);
	v[n++] = strdup("-o");
	if (asprintf(&v[n], "source=%s", r->wanted) < 0)
		v[n] = NULL;
	n++;
	for (i = 1; i < argc; i++)
		v[n++] = strdup(i == at ? r->url : argv[i]);
	if (!has_dir && r->dir)
		v[n++] = strdup(r->dir);
	for (i = 0; i < n; i++)
		missing += !v[i];
	if (missing) {
		mount_file_free(n, v);
		return -ENOMEM;
	}
	*ret = v;
	*ret_argc = n;
	return 1;
}

int mount_file_args(const char *file, int argc, char **argv, int at, bool has_dir, int *ret_argc,
		    char ***ret_argv, char err[CFS_OPT_ERRLEN])
{
	struct reader r = {.file = file ? file : MOUNT_FILE, .wanted = argv[at], .err = err};
	int n;

	if (!is_name(argv[at]))
		return 0;
	err[0] = '\0';
	n = read_file(&r);
	/* Without the file, the argument can only be the host of a Redis server. */
	if (n == -ENOENT && !file)
		return 0;
	if (n == 0 && !r.found)
		n = bad(&r, "no section [%s]; a Redis server of that name is redis://%s", r.wanted,
			r.wanted);
	else if (n == 0 && !r.url)
		n = bad(&r, "the section [%s] has no meta-url", r.wanted);
	if (n == 0)
		n = build(&r, argc, argv, at, has_dir, ret_argc, ret_argv);
	if (n < 0 && !err[0])
		snprintf(err, CFS_OPT_ERRLEN, "cannot read %.150s: %s", r.file, strerror(-n));
	free(r.url);
	free(r.dir);
	while (r.n_args)
		free(r.args[--r.n_args]);
	return n;
}

void mount_file_free(int argc, char **argv)
{
	int i;

	for (i = 0; i < argc; i++)
		free(argv[i]);
	free(argv);
}

bool mount_file_run(const char *file, int argc, char **argv, int at, bool has_dir,
		    int (*run)(int argc, char **argv), int *ret_status)
{
	char err[CFS_OPT_ERRLEN], **args;
	int n, r = mount_file_args(file, argc, argv, at, has_dir, &n, &args, err);

	if (r < 0) {
		*ret_status = cmd_usage("%s", err);
	} else if (r > 0) {
		*ret_status = run(n, args);
		mount_file_free(n, args);
	}
	return r != 0;
}
