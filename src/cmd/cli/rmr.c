/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes trees. Into the trash: by system calls, several entries at a time, so that permissions
 * hold and the kernel's caches stay right. Past the trash: by the mount itself.
 *
 * One directory stream per level is open: a mount's listing stays exact while its entries are
 * removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/workers.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/inside.h"
#include "cmd/access/jsontext.h"

#define PATHS_MAX  256
#define QUEUE	   1024
#define PROGRESS_S 300 /* the queue must move within this time */

struct rmr_opts {
	bool json, skip_trash, dry_run;
	int64_t threads;
};

#define OPTIONS struct rmr_opts
static const struct cfs_opt rmr_table[] = {
	OPT_FLAG("skip-trash", skip_trash, "remove for good; only for the user who mounted"),
	OPT_FLAG("dry-run", dry_run, "only count what would be removed"),
	OPT_THREADS(threads, "entries removed at the same time"),
	OPT_JSON(json),
	{0},
};

struct rmr {
	const struct rmr_opts *o;
	struct progress p;
	struct cfs_workers *workers;
	dev_t dev;
	_Atomic uint64_t removed, failed;
};

struct victim {
	struct cfs_job job;
	struct rmr *r;
	int dir_fd;
	char name[];
};

static void note(struct rmr *r, const char *name, int err)
{
	if (err == 0) {
		atomic_fetch_add(&r->removed, 1);
		progress_add(&r->p, 1);
	} else if (err != ENOENT) {
		atomic_fetch_add(&r->failed, 1);
		progress_end(&r->p);
		cmd_error("%s: %s", name, strerror(err));
	}
}

static void run_victim(struct cfs_job *job)
{
	struct victim *v = (struct victim *)job;
	struct rmr *r = v->r;

	note(r, v->name, unlinkat(v->dir_fd, v->name, 0) < 0 ? errno : 0);
	free(v);
}

static int submit(struct rmr *r, int dir_fd, const char *name)
{
	size_t len = strlen(name);
	struct victim *v = malloc(sizeof(*v) + len + 1);
	int e;

	if (!v)
		return -ENOMEM;
	v->job.run = run_victim;
	v->r = r;
	v->dir_fd = dir_fd;
	memcpy(v->name, name, len + 1);
	e = cfs_workers_submit(r->workers, &v->job, cfs_deadline_in(PROGRESS_S * 1000));
	if (e < 0)
		free(v);
	return e;
}

/* A directory can be removed when its entries are gone. */
static int wait_idle(struct rmr *r)
{
	return cfs_workers_drain(r->workers, cfs_deadline_in(PROGRESS_S * 1000));
}

/* ---- walking the tree ---- */

struct level {
	DIR *dir;
	char name[NAME_MAX + 1]; /* in the level above */
};

struct path {
	struct level *v;
	size_t n, cap;
};

static int enter(struct rmr *r, struct path *path, int at, const char *name)
{
	struct stat st;
	DIR *dir;
	int fd;

	if (CFS_ARRAY_ROOM(path->v, path->n, path->cap) < 0)
		return -ENOMEM;
	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	/* A file system is mounted there. */
	if (fstat(fd, &st) < 0 || st.st_dev != r->dev) {
		close(fd);
		return -EXDEV;
	}
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	path->v[path->n].dir = dir;
	snprintf(path->v[path->n].name, sizeof(path->v[path->n].name), "%s", name);
	path->n++;
	return 0;
}

static bool is_dir(int at, const struct dirent *e)
{
	struct stat st;

	if (e->d_type != DT_UNKNOWN)
		return e->d_type == DT_DIR;
	return fstatat(at, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int remove_dir(struct rmr *r, int at, const char *name)
{
	int e = wait_idle(r);

	if (e < 0)
		return e;
	note(r, name, r->o->dry_run || unlinkat(at, name, AT_REMOVEDIR) == 0 ? 0 : errno);
	return 0;
}

/* Handles one entry of the deepest directory, or leaves that directory. */
static int step(struct rmr *r, struct path *path, int top_fd)
{
	struct level *l = &path->v[path->n - 1];
	int fd = dirfd(l->dir), e;
	struct dirent *entry;
	char name[NAME_MAX + 1];

	errno = 0;
	entry = readdir(l->dir);
	if (entry && (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")))
		return 0;
	if (entry && is_dir(fd, entry)) {
		e = enter(r, path, fd, entry->d_name);
		if (e < 0 && e != -ENOMEM) {
			note(r, entry->d_name, -e);
			e = 0;
		}
		return e;
	}
	if (entry && r->o->dry_run) {
		note(r, entry->d_name, 0);
		return 0;
	}
	if (entry)
		return submit(r, fd, entry->d_name);
	if (errno)
		note(r, l->name, errno);
	/* Running removals still use the descriptor. */
	e = wait_idle(r);
	memcpy(name, l->name, sizeof(name));
	closedir(l->dir);
	path->n--;
	if (e < 0)
		return e;
	return remove_dir(r, path->n ? dirfd(path->v[path->n - 1].dir) : top_fd, name);
}

static int remove_tree(struct rmr *r, int top_fd, const char *name)
{
	struct path path = {0};
	int e = enter(r, &path, top_fd, name);

	while (e == 0 && path.n)
		e = step(r, &path, top_fd);
	wait_idle(r);
	while (path.n)
		closedir(path.v[--path.n].dir);
	free(path.v);
	return e;
}

static int by_system_calls(struct rmr *r, const char *path, const struct inside *in)
{
	struct stat st;
	/* `path` is not usable: it may end in "." or "..", and in->name is then not below it. */
	cfs_auto_close int fd = open(in->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fstatat(fd, in->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	r->dev = st.st_dev;
	if (S_ISDIR(st.st_mode))
		return remove_tree(r, fd, in->name);
	note(r, path, r->o->dry_run || unlinkat(fd, in->name, 0) == 0 ? 0 : errno);
	return 0;
}

static int by_mount(struct rmr *r, const char *path, const struct inside *in)
{
	char *hex = control_hex(in->name);
	json_t *reply = NULL;
	json_int_t failed;
	int rc;

	if (!hex)
		return CMD_SYSTEM;
	reply = control_run(in->point,
			    json_pack("{s:s, s:I, s:I, s:s, s:b}", "op", "rmr", "inode",
				      (json_int_t)in->ino, "parent", (json_int_t)in->parent, "name",
				      hex, "skip_trash", true),
			    &r->p);
	free(hex);
	rc = inside_result(path, in, reply);
	if (rc == CMD_OK) {
		failed = json_get_int(reply, "failed");
		atomic_fetch_add(&r->removed, (uint64_t)json_get_int(reply, "removed"));
		atomic_fetch_add(&r->failed, (uint64_t)failed);
		if (failed)
			cmd_error("%s: %lld entries could not be removed: %s", path, failed,
				  strerror((int)json_get_int(reply, "first_errno")));
	}
	json_decref(reply);
	return rc;
}

static int remove_path(struct rmr *r, const char *path)
{
	struct inside in;
	int e, rc = inside_find(path, &in);

	if (rc != CMD_OK)
		return rc;
	if (!in.parent)
		return cmd_usage("%s: the root of a mount cannot be removed", path);
	progress_begin(&r->p, r->o->dry_run ? "entries counted" : "entries removed");
	if (r->o->skip_trash && !r->o->dry_run) {
		rc = by_mount(r, path, &in);
	} else {
		e = by_system_calls(r, path, &in);
		if (e < 0)
			rc = cmd_error("%s: %s", path, strerror(-e));
	}
	progress_end(&r->p);
	return rc;
}

/* A deep tree needs a descriptor per level. */
static void raise_files(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
}

static int rmr_run(void *options, const char **args)
{
	const struct rmr_opts *o = options;
	struct rmr r = {.o = o};
	int rc = CMD_OK, one;

	raise_files();
	if (cfs_workers_create("rmr", (unsigned)o->threads, QUEUE, &r.workers) < 0)
		return cmd_error("out of memory");
	for (; *args; args++) {
		one = remove_path(&r, *args);
		rc = rc == CMD_OK ? one : rc;
	}
	cfs_workers_destroy(r.workers);
	if (o->json)
		admin_print_json(json_pack(
			"{s:I, s:I, s:b}", "removed", (json_int_t)atomic_load(&r.removed), "failed",
			(json_int_t)atomic_load(&r.failed), "dry_run", o->dry_run));
	else if (rc == CMD_OK)
		cmd_line("%" PRIu64 " entries %s", atomic_load(&r.removed),
			 o->dry_run ? "would be removed" : "removed");
	if (rc == CMD_OK && atomic_load(&r.failed))
		rc = CMD_SYSTEM;
	return rc;
}

const struct cmd cmd_rmr = {
	.name = "rmr",
	.synopsis = "[--skip-trash] [--dry-run] [--threads N] [--json] PATH...",
	.summary = "Removes files and whole trees of a mount",
	CMD_OPTIONS(rmr_table),
	.min_args = 1,
	.max_args = PATHS_MAX,
	.on_mount = true,
	.run = rmr_run,
};
