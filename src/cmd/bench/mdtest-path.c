/* SPDX-License-Identifier: Apache-2.0 */
/* mdtest through a mount: the system calls that an application makes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/watch.h"
#include "cmd/bench/mdtest.h"

enum { PATH_ROOM = 1024, WRITE_PIECE = 128 << 10 };

struct path_target {
	struct mdtest_target t;
	int parent_fd, top_fd;
	char top[64];
	char *stats; /* the mount's statistics file, NULL without one */
	void *piece;
};

static struct path_target *path_of(struct mdtest_target *t)
{
	return (struct path_target *)t;
}

/* "d0/d3" for a directory below the top, "." for the top; returns the length. */
static size_t dir_path(const struct mdtest_shape *s, uint64_t dir, char buf[PATH_ROOM])
{
	size_t len = 0;

	if (dir == 0) {
		memcpy(buf, ".", 2);
		return 1;
	}
	if (dir > s->width) {
		len = dir_path(s, (dir - 1) / s->width, buf);
		buf[len++] = '/';
	}
	return len +
	       (size_t)snprintf(buf + len, PATH_ROOM - len, "d%" PRIu64, (dir - 1) % s->width);
}

static void file_path(const struct mdtest_shape *s, uint64_t file, char buf[PATH_ROOM])
{
	size_t len = dir_path(s, file / s->files, buf);

	snprintf(buf + len, PATH_ROOM - len, "/f%" PRIu64, file % s->files);
}

static int path_mkdir(struct mdtest_target *t, uint64_t dir)
{
	char path[PATH_ROOM];

	dir_path(&t->shape, dir, path);
	return mkdirat(path_of(t)->top_fd, path, 0755) < 0 ? -errno : 0;
}

static int path_create(struct mdtest_target *t, uint64_t file)
{
	struct path_target *p = path_of(t);
	uint64_t left = t->shape.write_bytes;
	char path[PATH_ROOM];
	int fd, r = 0;

	file_path(&t->shape, file, path);
	fd = openat(p->top_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	while (left && !r) {
		ssize_t n = write(fd, p->piece, CFS_MIN(left, (uint64_t)WRITE_PIECE));

		if (n < 0)
			r = -errno;
		else
			left -= (uint64_t)n;
	}
	if (close(fd) < 0 && !r)
		r = -errno;
	return r;
}

static int path_stat(struct mdtest_target *t, uint64_t file)
{
	char path[PATH_ROOM];
	struct stat st;

	file_path(&t->shape, file, path);
	return fstatat(path_of(t)->top_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int path_list(struct mdtest_target *t, uint64_t dir)
{
	char path[PATH_ROOM];
	DIR *d;
	int fd, r;

	dir_path(&t->shape, dir, path);
	fd = openat(path_of(t)->top_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	d = fdopendir(fd);
	if (!d) {
		r = -errno;
		close(fd);
		return r;
	}
	do
		errno = 0;
	while (readdir(d));
	r = -errno;
	closedir(d);
	return r;
}

static int path_unlink(struct mdtest_target *t, uint64_t file)
{
	char path[PATH_ROOM];

	file_path(&t->shape, file, path);
	return unlinkat(path_of(t)->top_fd, path, 0) < 0 ? -errno : 0;
}

static int path_rmdir(struct mdtest_target *t, uint64_t dir)
{
	struct path_target *p = path_of(t);
	char path[PATH_ROOM];

	if (dir == 0)
		return unlinkat(p->parent_fd, p->top, AT_REMOVEDIR) < 0 ? -errno : 0;
	dir_path(&t->shape, dir, path);
	return unlinkat(p->top_fd, path, AT_REMOVEDIR) < 0 ? -errno : 0;
}

static bool starts(const char *line, const char *name)
{
	return strncmp(line, name, strlen(name)) == 0;
}

static bool path_requests(struct mdtest_target *t, struct mdtest_requests *ret)
{
	const char *file = path_of(t)->stats;
	FILE *f = file ? fopen(file, "re") : NULL;
	char line[512];
	bool any = false;

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		const char *value = strrchr(line, ' ');

		if (value && starts(line, "cachefs_meta_round_trips_total{")) {
			ret->round_trips += strtoull(value, NULL, 10);
			any = true;
		} else if (value && starts(line, "cachefs_meta_retries_total ")) {
			ret->retries += strtoull(value, NULL, 10);
		}
	}
	fclose(f);
	return any;
}

static int path_close(struct mdtest_target *t)
{
	struct path_target *p = path_of(t);

	if (p->top_fd >= 0)
		close(p->top_fd);
	if (p->parent_fd >= 0)
		close(p->parent_fd);
	free(p->piece);
	free(p->stats);
	free(p);
	return 0;
}

static const struct mdtest_ops path_ops = {
	.mkdir = path_mkdir,
	.create = path_create,
	.stat = path_stat,
	.list = path_list,
	.unlink = path_unlink,
	.rmdir = path_rmdir,
	.requests = path_requests,
	.close = path_close,
};

/* The statistics file is in the root of the mount. NULL: not a mount of cachefs. */
static char *find_stats(const char *path)
{
	char point[PATH_MAX], *stats;
	bool found = control_seek_mount(path, point, sizeof(point)) == 0;

	watch_mount(found ? point : NULL);
	return !found || asprintf(&stats, "%s/.stats", point) < 0 ? NULL : stats;
}

int mdtest_open_path(const char *path, const struct mdtest_shape *s, struct mdtest_target **ret)
{
	struct path_target *p = calloc(1, sizeof(*p));
	int flags = FS_SECRM_FL;

	if (!p)
		return CMD_SYSTEM;
	*p = (struct path_target){.t = {.ops = &path_ops, .shape = *s}, .top_fd = -1};
	p->piece = calloc(1, WRITE_PIECE);
	snprintf(p->top, sizeof(p->top), "mdtest.%d", (int)getpid());
	watch_path(path);
	p->parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->piece && p->parent_fd >= 0 && mkdirat(p->parent_fd, p->top, 0755) == 0)
		p->top_fd = openat(p->parent_fd, p->top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->top_fd < 0) {
		cmd_error("cannot work in %s: %s", path, strerror(errno));
		path_close(&p->t);
		return CMD_USAGE;
	}
	/* Skips the volume's trash; other file systems ignore the flag. */
	(void)ioctl(p->top_fd, FS_IOC_SETFLAGS, &flags);
	p->stats = find_stats(path);
	*ret = &p->t;
	return CMD_OK;
}
