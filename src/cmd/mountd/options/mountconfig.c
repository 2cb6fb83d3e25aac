/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/options/mountconfig.h"

#include <cachefs/meta.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/text/url.h"
#include "build.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/live.h"
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

static json_t *read_in_time(const char *dir)
{
	cfs_auto_free char *text = NULL;
	char path[4096 + 16];
	size_t len;

	snprintf(path, sizeof(path), "%s/.config", dir);
	return live_read(path, CONFIG_MAX, ANSWER_MS, &text, &len) < 0
		       ? NULL
		       : json_loadb(text, len, 0, NULL);
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
