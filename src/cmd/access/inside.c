/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/access/silent.h"
#include "cmd/access/watch.h"

/* A fresh name does not exist yet, so its directory is looked up instead. */
static int find_point(char *resolved, bool fresh, struct inside *ret)
{
	char *slash = fresh ? strrchr(resolved, '/') : NULL;
	int r;

	if (slash)
		*slash = '\0';
	r = control_find_mount(*resolved ? resolved : "/", ret->point, sizeof(ret->point));
	if (slash)
		*slash = '/';
	return r;
}

static int find(const char *path, bool fresh, struct inside *ret)
{
	char resolved[4096], *slash;
	struct stat st;
	int r;

	*ret = (struct inside){0};
	watch_path(path);
	r = mounted_resolve(path, resolved, sizeof(resolved));
	if (r < 0)
		return cmd_usage("%s: %s", path, strerror(-r));
	if (lstat(resolved, &st) == 0) {
		ret->ino = st.st_ino;
		ret->is_dir = S_ISDIR(st.st_mode);
	} else if (!fresh || errno != ENOENT) {
		return cmd_usage("%s: %s", path, strerror(errno));
	}
	if (fresh && ret->ino)
		return cmd_usage("%s: %s", path, strerror(EEXIST));
	if (find_point(resolved, fresh, ret) < 0)
		return CMD_USAGE;
	watch_mount(ret->point);
	if (!strcmp(resolved, ret->point))
		return CMD_OK;
	slash = strrchr(resolved, '/');
	if (strlen(slash + 1) > NAME_MAX)
		return cmd_usage("%s: %s", path, strerror(ENAMETOOLONG));
	memcpy(ret->name, slash + 1, strlen(slash + 1) + 1);
	*slash = '\0';
	memcpy(ret->dir, resolved, sizeof(ret->dir));
	if (lstat(ret->dir, &st) < 0)
		return cmd_usage("%s: %s", ret->dir, strerror(errno));
	ret->parent = st.st_ino;
	return CMD_OK;
}

int inside_find(const char *path, struct inside *ret)
{
	return find(path, false, ret);
}

int inside_find_new(const char *path, struct inside *ret)
{
	return find(path, true, ret);
}

int inside_result(const char *path, const struct inside *in, json_t *reply)
{
	int r = control_error(reply);

	if (r == 0)
		return CMD_OK;
	if (!reply && (r == -EACCES || r == -EPERM))
		cmd_error("%s: only the user who mounted %s may do this", path, in->point);
	else if (r == -ETIMEDOUT)
		return silent_error(in->point);
	else if (!reply)
		cmd_error("the mount at %s does not answer: %s", in->point, strerror(-r));
	else
		cmd_error("%s: %s", path, strerror(-r));
	return CMD_SYSTEM;
}
