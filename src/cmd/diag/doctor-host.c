/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/fuse.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mounted.h"
#include "cmd/diag/doctor.h"

/* Descriptors for handles of applications, cache files and connections together. */
#define FILES_MIN 16384
/* Memory that buffers registered with io_uring or a network card may lock. */
#define LOCKED_MIN_BYTES (64ULL << 20)
#define PIPE_MIN_BYTES	 (1 << 20)
/* Default of the mount option free-space-ratio. */
#define CACHE_FREE_MIN 0.1

/* The number in a file of /proc or /sys; -1 when it contains none. */
static long long read_number(const char *path)
{
	long long v = -1;
	FILE *in = fopen(path, "re");

	if (!in)
		return -1;
	if (fscanf(in, "%lld", &v) != 1)
		v = -1;
	fclose(in);
	return v;
}

static void check_fuse(struct doctor *d)
{
	cfs_auto_close int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	struct cfs_fuse_features f;
	struct utsname un;

	if (fd < 0)
		doctor_say(
			d, CFS_ADVICE_CHANGE, "fuse device", "/dev/fuse: %s: %s", strerror(errno),
			errno == ENOENT ? "load the module fuse" : "give this user access to it");
	else
		doctor_say(d, CFS_ADVICE_OK, "fuse device", "/dev/fuse can be opened");
	cfs_fuse_features(&f);
	if (uname(&un) == 0)
		doctor_say(d, CFS_ADVICE_NOTE, "kernel", "%s", un.release);
	if (!f.ring_built)
		doctor_say(d, CFS_ADVICE_NOTE, "io_uring", "not in this build (liburing)");
	else if (f.ring_kernel == CFS_RING_ABSENT)
		doctor_say(d, CFS_ADVICE_NOTE, "io_uring",
			   "this kernel has no FUSE over io_uring (from Linux 6.14)");
	else if (f.ring_kernel == CFS_RING_SWITCHED_OFF)
		doctor_say(d, CFS_ADVICE_NOTE, "io_uring",
			   "FUSE over io_uring is switched off: echo Y > "
			   "/sys/module/fuse/parameters/enable_uring, and options fuse "
			   "enable_uring=1 in /etc/modprobe.d; mounts with supervise=false use it");
	else
		doctor_say(d, CFS_ADVICE_OK, "io_uring",
			   "FUSE over io_uring is switched on; mounts with supervise=false use it");
	doctor_say(d, CFS_ADVICE_NOTE, "libfuse", "%s, %s", f.libfuse_running,
		   f.passthrough_built ? "with passthrough" : "without passthrough (from 3.16)");
}

static void check_limits(struct doctor *d)
{
	long long pipe_size = read_number("/proc/sys/fs/pipe-max-size");
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
		if (l.rlim_max < FILES_MIN)
			doctor_say(d, CFS_ADVICE_CHANGE, "open files",
				   "at most %llu: raise the hard limit to %d (LimitNOFILE= of a "
				   "unit, or limits.conf)",
				   (unsigned long long)l.rlim_max, FILES_MIN);
		else
			doctor_say(d, CFS_ADVICE_OK, "open files", "at most %llu",
				   (unsigned long long)l.rlim_max);
	}
	if (getrlimit(RLIMIT_MEMLOCK, &l) == 0) {
		if (l.rlim_cur < LOCKED_MIN_BYTES && geteuid() != 0)
			doctor_say(d, CFS_ADVICE_NOTE, "locked memory",
				   "%llu KiB: RDMA between peers would need LimitMEMLOCK=infinity",
				   (unsigned long long)l.rlim_cur >> 10);
		else
			doctor_say(d, CFS_ADVICE_OK, "locked memory", "enough");
	}
	if (pipe_size >= 0 && pipe_size < PIPE_MIN_BYTES)
		doctor_say(d, CFS_ADVICE_CHANGE, "pipe size",
			   "at most %lld: sysctl fs.pipe-max-size=%d", pipe_size, PIPE_MIN_BYTES);
	else if (pipe_size >= 0)
		doctor_say(d, CFS_ADVICE_OK, "pipe size", "at most %lld", pipe_size);
}

/* For a directory that does not exist yet, uses the nearest existing one above it. */
static int find_fs(const char *dir, struct cfs_fstype_info *ret)
{
	cfs_auto_free char *path = strdup(dir);
	char *slash;
	int r = -ENOMEM;

	while (path && (r = cfs_fstype(path, ret)) == -ENOENT) {
		slash = strrchr(path, '/');
		if (!slash || slash == path)
			return cfs_fstype("/", ret);
		*slash = '\0';
	}
	return r;
}

static void check_cache(struct doctor *d, const char *dir)
{
	struct cfs_fstype_info fs;
	int r = find_fs(dir, &fs);

	if (r < 0)
		doctor_say(d, CFS_ADVICE_CHANGE, dir, "%s", strerror(-r));
	else if (access(dir, F_OK) == 0 && access(dir, W_OK | X_OK) < 0)
		doctor_say(d, CFS_ADVICE_CHANGE, dir, "cannot be written: %s", strerror(errno));
	else if (fs.network)
		doctor_say(d, CFS_ADVICE_CHANGE, dir,
			   "is on %s: a cache should be nearer than the object store", fs.name);
	else if (fs.free < CACHE_FREE_MIN)
		doctor_say(d, CFS_ADVICE_CHANGE, dir,
			   "%.0f %% of the %s are free, and the cache leaves 10 %% free: it will "
			   "keep next to nothing",
			   100 * fs.free, fs.name);
	else
		doctor_say(d, fs.in_memory ? CFS_ADVICE_NOTE : CFS_ADVICE_OK, dir,
			   "%llu MiB of the %s are free%s", (unsigned long long)fs.free_bytes >> 20,
			   fs.name, fs.in_memory ? ", in memory: writeback is not safe there" : "");
}

static void check_caches(struct doctor *d, const char *dirs)
{
	cfs_auto_free char *list = strdup(dirs);
	char *dir, *save = NULL;
	glob_t found;
	size_t i;

	for (dir = list ? strtok_r(list, ":", &save) : NULL; dir;
	     dir = strtok_r(NULL, ":", &save)) {
		if (glob(dir, GLOB_NOCHECK, NULL, &found) != 0)
			continue;
		for (i = 0; i < found.gl_pathc; i++)
			check_cache(d, found.gl_pathv[i]);
		globfree(&found);
	}
}

void doctor_host(struct doctor *d, const char *dirs)
{
	d->section = "host";
	check_fuse(d);
	check_limits(d);
	d->section = "disk cache";
	if (dirs && strcmp(dirs, "none") != 0)
		check_caches(d, dirs);
}
