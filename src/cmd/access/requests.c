/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/requests.h"

#include <cachefs/fuse.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/logring.h"

#define MEMORY "/memfd:" CFS_ACTIVITY_NAME
#define LOG    "/memfd:" CFS_LOGRING_NAME
#define KEPT   "/memfd:" CFS_HANDOFF_NAME

/* Opens a memory mapping of a process as a descriptor of this process, or a negative errno. */
static int open_memory(pid_t pid, const char *which)
{
	char path[64], where[64];
	struct dirent *d;
	int fd = -ENOENT;
	ssize_t n;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while (fd < 0 && (d = readdir(dir))) {
		n = readlinkat(dirfd(dir), d->d_name, where, sizeof(where) - 1);
		where[n > 0 ? n : 0] = '\0';
		if (strncmp(where, which, strlen(which)) != 0)
			continue;
		fd = openat(dirfd(dir), d->d_name, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			fd = -errno;
	}
	closedir(dir);
	return fd;
}

pid_t requests_find_process(unsigned dev_minor)
{
	DIR *proc = dev_minor ? opendir("/proc") : NULL;
	struct dirent *d;
	pid_t pid = 0, found;
	int fd;

	while (proc && !pid && (d = readdir(proc))) {
		found = isdigit((unsigned char)d->d_name[0]) ? (pid_t)strtol(d->d_name, NULL, 10)
							     : 0;
		fd = found > 0 ? open_memory(found, MEMORY) : -1;
		if (fd < 0)
			continue;
		if (cfs_activity_device(fd) == dev_minor)
			pid = found;
		close(fd);
	}
	if (proc)
		closedir(proc);
	return pid;
}

int requests_print_log(pid_t pid, FILE *out)
{
	cfs_auto_close int fd = open_memory(pid, LOG);

	return fd < 0 ? fd : cfs_logring_print(fd, out);
}

int requests_print_agreement(pid_t pid, FILE *out)
{
	cfs_auto_close int fd = open_memory(pid, KEPT);

	return fd < 0 ? fd : cfs_fuse_print_agreement(fd, out);
}

size_t requests_callers(pid_t pid, pid_t *ret, size_t max)
{
	cfs_auto_close int fd = open_memory(pid, MEMORY);
	struct cfs_activity *all;
	size_t n, i, found = 0;

	if (fd < 0 || cfs_activity_read(fd, &all, &n) < 0)
		return 0;
	for (i = 0; i < n && found < max; i++) {
		if (all[i].op[0] && all[i].caller > 0)
			ret[found++] = all[i].caller;
	}
	free(all);
	return found;
}

int requests_print(pid_t pid, FILE *out)
{
	cfs_auto_close int fd = open_memory(pid, MEMORY);
	uint64_t now = cfs_now_ms();
	struct cfs_activity *all;
	char what[512], thread[16];
	size_t n, i;
	int r;

	if (fd < 0)
		return fd;
	r = cfs_activity_read(fd, &all, &n);
	if (r < 0)
		return r;
	for (i = 0; i < n; i++) {
		cfs_activity_describe(all, n, i, what, sizeof(what));
		snprintf(thread, sizeof(thread), "%d", (int)all[i].tid);
		if (all[i].op[0])
			fprintf(out,
				"%s inode=%llu pid=%d seconds=%.1f thread=%s waits_for=\"%s\"\n",
				all[i].op, (unsigned long long)all[i].ino, (int)all[i].caller,
				now > all[i].since_ms ? (double)(now - all[i].since_ms) / 1000 : 0,
				all[i].tid == CFS_ACTIVITY_QUEUED ? "none" : thread, what);
		else
			fprintf(out, "(%s) thread=%s waits_for=\"%s\"\n", all[i].thread, thread,
				what);
	}
	free(all);
	return 0;
}
