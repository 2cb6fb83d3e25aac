/* SPDX-License-Identifier: Apache-2.0 */
#include "module.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "log.h"

#define PREFIX "cachefs-"
#define SUFFIX ".so"

/* Modules that are open, by their names; written by cfs_module_hold() only. */
static struct {
	char name[32];
	int fd;
} held[16];
static size_t n_held;

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

static int held_fd(const char *name)
{
	size_t i;

	for (i = 0; i < n_held; i++)
		if (strcmp(held[i].name, name) == 0)
			return held[i].fd;
	return -1;
}

/* name: of a file. */
static void hold_file(int dir, const char *name)
{
	size_t len = strlen(name), skip = strlen(PREFIX) + strlen(SUFFIX);
	char *to = held[n_held].name;

	if (n_held == CFS_ARRAY_SIZE(held) || len <= skip || len - skip >= sizeof(held[0].name) ||
	    strncmp(name, PREFIX, strlen(PREFIX)) != 0 ||
	    strcmp(name + len - strlen(SUFFIX), SUFFIX) != 0)
		return;
	memcpy(to, name + strlen(PREFIX), len - skip);
	to[len - skip] = '\0';
	if (held_fd(to) >= 0)
		return;
	held[n_held].fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	if (held[n_held].fd >= 0)
		n_held++;
}

static void hold_directory(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	if (!dir)
		return;
	while ((e = readdir(dir)))
		hold_file(dirfd(dir), e->d_name);
	closedir(dir);
}

void cfs_module_hold(void)
{
	char dir[PATH_MAX];

	if (program_dir(dir))
		hold_directory(dir);
	hold_directory(CFS_MODULE_DIR);
}

static int load_file(const char *path, const void **ret_table, char err[256])
{
	const struct cfs_module *m;
	void *handle;

	if (access(path, F_OK) < 0)
		return -ENOENT;
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return cfs_fail(err, -ENOEXEC, "module cannot be loaded: %s", dlerror());
	m = dlsym(handle, "cfs_module");
	if (!m || strcmp(m->version, CFS_MODULE_VERSION) != 0) {
		snprintf(err, 256, "module %s has another version than the program", path);
		dlclose(handle);
		return -ENOEXEC;
	}
	*ret_table = m->table;
	return 0;
}

int cfs_module_load(const char *name, const void **ret_table, char err[256])
{
	char dir[PATH_MAX], path[2 * PATH_MAX];
	int r = -ENOENT, fd = held_fd(name);

	if (fd >= 0) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		r = load_file(path, ret_table, err);
	}
	if (r == -ENOENT && program_dir(dir)) {
		snprintf(path, sizeof(path), "%s/" PREFIX "%s" SUFFIX, dir, name);
		r = load_file(path, ret_table, err);
	}
	if (r == -ENOENT) {
		snprintf(path, sizeof(path), "%s/" PREFIX "%s" SUFFIX, CFS_MODULE_DIR, name);
		r = load_file(path, ret_table, err);
	}
	if (r == -ENOENT)
		snprintf(err, 256, "module " PREFIX "%s" SUFFIX " is not installed in %s", name,
			 CFS_MODULE_DIR);
	return r;
}
