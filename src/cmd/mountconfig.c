/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountconfig.h"

#include <cachefs/meta.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cmd/jsontext.h"
#include "cmd/mountopts.h"
#include "config.h"

#define VALUE_MAX 4096

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
	json_t *j = json_pack("{s:s, s:i, s:o, s:s, s:I, s:o, s:o}", "Version", CFS_VERSION, "Pid",
			      (int)getpid(), "MountPoint", json_text(dir), "Engine",
			      cfs_meta_engine_name(m), "Sid", (json_int_t)cfs_meta_sid(m),
			      "Options", options(o), "Setting", setting(m));
	char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;

	json_decref(j);
	if (!text)
		return -ENOMEM;
	*ret = text;
	*ret_len = strlen(text);
	return 0;
}
