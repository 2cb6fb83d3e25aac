/* SPDX-License-Identifier: Apache-2.0 */
#include "module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The directory of the running program; false when /proc does not tell. */
static bool program_dir(char dir[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
	char *slash;

	if (n <= 0)
		return false;
	dir[n] = '\0';
	slash = strrchr(dir, '/');
	if (!slash)
		return false;
	*slash = '\0';
	return true;
}

static int load_file(const char *path, const void **ret_table, char err[256])
{
	const struct cfs_module *m;
	void *handle;

	if (access(path, F_OK) < 0)
		return -ENOENT;
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(err, 256, "module cannot be loaded: %s", dlerror());
		return -ENOEXEC;
	}
	m = dlsym(handle, "cfs_module");
	if (!m || strcmp(m->version, CFS_MODULE_VERSION) != 0) {
		snprintf(err, 256, "module %s is of another version than the program", path);
		dlclose(handle);
		return -ENOEXEC;
	}
	*ret_table = m->table;
	return 0;
}

int cfs_module_load(const char *name, const void **ret_table, char err[256])
{
	char dir[PATH_MAX], path[2 * PATH_MAX];
	int r = -ENOENT;

	if (program_dir(dir)) {
		snprintf(path, sizeof(path), "%s/cachefs-%s.so", dir, name);
		r = load_file(path, ret_table, err);
	}
	if (r == -ENOENT) {
		snprintf(path, sizeof(path), "%s/cachefs-%s.so", CFS_MODULE_DIR, name);
		r = load_file(path, ret_table, err);
	}
	if (r == -ENOENT)
		snprintf(err, 256, "module cachefs-%s.so is not installed in %s", name,
			 CFS_MODULE_DIR);
	return r;
}
