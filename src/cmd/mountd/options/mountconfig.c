/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/options/mountconfig.h"

#include <cachefs/meta.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text/url.h"
#include "build.h"
#include "cmd/access/jsontext.h"
#include "cmd/mountd/options/mountopts.h"
#include "config.h"

#define VALUE_MAX  4096
#define CONFIG_MAX (64 << 10)
#define ANSWER_MS  2000

static json_t *options(const struct mount_opts *o)
{
	json_t *all = json_object();
	const struct cfs_opt *opt;
	char value[VALUE_MAX];

	for (opt = mount_table; opt->name; opt++) {
		if (opt->flags & (CFS_OPT_SECRET | CFS_OPT_HIDDEN))
			continue;
		cfs_opt_show(opt, o, value, sizeof(value));
		json_object_set_new(all, opt->name, json_text(value));
	}
	if (o->kernel_opts)
		json_object_set_new(all, "kernel", json_text(o->kernel_opts));
	return all;
}

static json_t *setting(struct cfs_meta *m)
{
	cfs_auto_free char *text = NULL;
	struct cfs_setting *s;
	json_t *j = NULL;

	if (cfs_meta_setting(m, &s) < 0)
		return json_null();
	if (cfs_setting_show(s, &text) == 0)
		j = json_loads(text, 0, NULL);
	cfs_setting_free(s);
	return j ? j : json_null();
}

int mount_config_show(struct cfs_meta *m, const struct mount_opts *o, const char *dir, char **ret,
		      size_t *ret_len)
{
	json_t *j =
		json_pack("{s:s, s:s, s:i, s:o, s:s, s:I, s:o, s:o}", "Version", CFS_VERSION,
			  "Build", CFS_BUILD, "Pid", (int)getpid(), "MountPoint", json_text(dir),
			  "Engine", cfs_meta_engine_name(m), "Sid", (json_int_t)cfs_meta_sid(m),
			  "Options", options(o), "Setting", setting(m));
	char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;

	json_decref(j);
	if (!text)
		return -ENOMEM;
	*ret = text;
	*ret_len = strlen(text);
	return 0;
}

/* A child reads the file: a thread that reads from a hung mount cannot be ended. */
static json_t *read_in_time(const char *dir)
{
	struct pollfd p = {.events = POLLIN};
	cfs_deadline_t deadline = cfs_deadline_in(ANSWER_MS);
	char path[4096 + 16], text[CONFIG_MAX];
	int pair[2], fd;
	size_t len = 0;
	ssize_t n = 0;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/.config", dir);
	if (pipe2(pair, O_CLOEXEC) < 0)
		return NULL;
	pid = fork();
	if (pid == 0) {
		fd = open(path, O_RDONLY | O_CLOEXEC);
		while (fd >= 0 && (n = read(fd, text, sizeof(text))) > 0 &&
		       write(pair[1], text, (size_t)n) == n)
			;
		_exit(0);
	}
	close(pair[1]);
	p.fd = pair[0];
	while (pid > 0 && len < sizeof(text) &&
	       poll(&p, 1, (int)cfs_deadline_left_ms(deadline)) > 0 &&
	       (n = read(pair[0], text + len, sizeof(text) - len)) > 0)
		len += (size_t)n;
	close(pair[0]);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, n == 0 && len ? 0 : WNOHANG);
	}
	return json_loadb(text, len, 0, NULL);
}

/* Options of the mount command itself, which say nothing about the running mount. */
static bool is_of_the_command(const char *name)
{
	static const char *const names[] = {"foreground", "mount_timeout", "credentials", "config"};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(names); i++) {
		if (!strcmp(names[i], name))
			return true;
	}
	return false;
}

void mount_config_tell_differences(const char *dir, const struct mount_opts *o)
{
	json_t *there = read_in_time(dir), *mine = options(o), *old;
	char before[VALUE_MAX], after[VALUE_MAX];
	const struct cfs_opt *opt;
	const char *was, *is;

	for (opt = mount_table; opt->name; opt++) {
		old = json_object_get(json_object_get(there, "Options"), opt->name);
		was = json_string_value(old);
		is = json_string_value(json_object_get(mine, opt->name));
		if (!was || !is || !strcmp(was, is) || is_of_the_command(opt->name))
			continue;
		cfs_url_mask(was, before, sizeof(before));
		cfs_url_mask(is, after, sizeof(after));
		printf("option %s: was %s, is %s\n", opt->name, *before ? before : "not given",
		       *after ? after : "not given");
	}
	fflush(stdout);
	json_decref(there);
	json_decref(mine);
}
