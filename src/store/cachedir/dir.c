/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cache directory. All access goes through one descriptor of <dir>/<uuid>. So an unmounted disk
 * or a removed tree is detected, and its files are not written elsewhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "cachedir.h"

#define LOCK_NAME ".lock"
/* So many faults within this time fail the directory. */
#define FAULTS_MAX  3
#define FAULTS_MS   60000
#define PARENT_MODE 0755
#define PROBE_BYTES 4096

/* ---- faults ---- */

static void set_state(struct cache_dir *dir, enum dir_state state, const char *what, int err)
{
	uint64_t retry_ms = dir->set->conf.retry_ms;
	bool changed;

	pthread_mutex_lock(&dir->lock);
	changed = (enum dir_state)atomic_load(&dir->state) < state;
	atomic_store(&dir->full, state == DIR_READ_ONLY && (err == -ENOSPC || err == -EDQUOT) &&
					 (changed || atomic_load(&dir->full)));
	if (changed) {
		atomic_store(&dir->state, state);
		dir->retry_at = cfs_deadline_in(retry_ms);
		dir->faults = 0;
	}
	pthread_mutex_unlock(&dir->lock);
	if (!changed)
		return;
	atomic_fetch_add(&dir->set->stat.failures, 1);
	cfs_warn("cache directory %s, tried again every %llu s: dir=%s op=%s error=%s",
		 state == DIR_FAILED ? "is dropped" : "takes no more blocks",
		 (unsigned long long)(retry_ms + 999) / 1000, dir->base, what, cfs_errname(err));
	if (dir->keeper)
		cfs_ticker_kick(dir->keeper);
}

static bool too_many_faults(struct cache_dir *dir)
{
	CFS_LOCK_GUARD(&dir->lock);

	atomic_fetch_add(&dir->set->stat.errors, 1);
	if (dir->faults == 0 || cfs_now_ms() - dir->fault_ms > FAULTS_MS) {
		dir->faults = 0;
		dir->fault_ms = cfs_now_ms();
	}
	return ++dir->faults >= FAULTS_MAX;
}

void cfs_cachedir_fault(struct cache_dir *dir, const char *what, int err, bool writing)
{
	switch (-err) {
	case EAGAIN:
	case EEXIST:
	case EINTR:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
		return;
	case ENOENT:
		if (writing)
			set_state(dir, DIR_FAILED, what, err);
		return;
	case EACCES:
	case EDQUOT:
	case ENOSPC:
	case EPERM:
	case EROFS:
		if (writing)
			set_state(dir, DIR_READ_ONLY, what, err);
		else if (too_many_faults(dir))
			set_state(dir, DIR_FAILED, what, err);
		return;
	case ENODEV:
	case ENOTCONN:
	case ENOTDIR:
	case ENXIO:
	case ESTALE:
		set_state(dir, DIR_FAILED, what, err);
		return;
	default:
		/* The timeout of a write is so long that one is enough. */
		if (too_many_faults(dir) || (err == -ETIMEDOUT && writing))
			set_state(dir, DIR_FAILED, what, err);
	}
}

/* ---- opening ---- */

static bool is_on_root(const struct stat *st)
{
	struct stat root;

	return stat("/", &root) == 0 && root.st_dev == st->st_dev;
}

/*
 * Creates missing directories of the path, unless it was on another file system and is now on the root
 * file system: a mount point without its disk stays empty.
 */
static int make_base(struct cache_dir *dir)
{
	cfs_auto_free char *path = strdup(dir->base);
	struct stat st;
	char *slash;

	if (!path)
		return -ENOMEM;
	while (stat(path, &st) < 0) {
		slash = strrchr(path, '/');
		if (errno != ENOENT || !slash || slash == path)
			return -errno;
		*slash = '\0';
	}
	if (dir->off_root && is_on_root(&st))
		return -ENODEV;
	while (strlen(path) < strlen(dir->base)) {
		path[strlen(path)] = '/';
		if (mkdir(path, PARENT_MODE) < 0 && errno != EEXIST)
			return -errno;
	}
	return 0;
}

/* Below a directory like /tmp, where any user may create any name. */
static bool is_below_public(const char *path)
{
	cfs_auto_free char *part = strdup(path);
	struct stat st;
	char *slash;

	while (part && (slash = strrchr(part, '/')) != NULL && slash != part) {
		*slash = '\0';
		if (stat(part, &st) == 0 && (st.st_mode & S_IWOTH))
			return true;
	}
	return false;
}

static bool is_trusted(uid_t owner)
{
	return owner == 0 || owner == geteuid();
}

/*
 * Another user who owns the directory could read cached blocks and forge others, as the checksums are
 * in the same files. A cache-mode that lets others write permits this.
 */
static int check_owner(const struct cache_dir *dir, const struct stat *opened)
{
	struct stat named;

	if ((dir->set->conf.mode & 022) || !is_below_public(dir->path))
		return 0;
	if (fstatat(AT_FDCWD, dir->path, &named, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return is_trusted(opened->st_uid) && is_trusted(named.st_uid) ? 0 : -EPERM;
}

static void random_id(char id[64])
{
	uint64_t a = cfs_random_u64(), b = cfs_random_u64();

	snprintf(id, 64, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(a >> 32),
		 (unsigned)(a >> 16) & 0xFFFF, (unsigned)a & 0xFFF,
		 (unsigned)(b >> 48 & 0x3FFF) | 0x8000, (unsigned long long)(b & 0xFFFFFFFFFFFF));
}

static int read_id(int fd, char id[64])
{
	cfs_auto_close int in = openat(fd, LOCK_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n;

	if (in < 0)
		return -errno;
	n = read(in, id, 63);
	if (n < 0)
		return -errno;
	id[n] = '\0';
	id[strcspn(id, " \t\r\n")] = '\0';
	return id[0] ? 0 : -ENODATA;
}

/* Writes the id atomically, unless another client was faster. replace: instead of an empty file. */
static int write_id(int fd, const char *id, bool replace)
{
	char tmp[80];
	int r = 0, out;

	snprintf(tmp, sizeof(tmp), LOCK_NAME ".%016llx" CFS_CACHEDIR_TMP,
		 (unsigned long long)cfs_random_u64());
	out = openat(fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (out < 0)
		return -errno;
	if (write(out, id, strlen(id)) != (ssize_t)strlen(id))
		r = -EIO;
	close(out);
	if (r == 0 && renameat2(fd, tmp, fd, LOCK_NAME, replace ? 0 : RENAME_NOREPLACE) < 0)
		r = -errno;
	if (r == -EINVAL || r == -ENOSYS)
		r = renameat(fd, tmp, fd, LOCK_NAME) < 0 ? -errno : 0;
	if (r < 0)
		unlinkat(fd, tmp, 0);
	return r;
}

/* A lost file gets the same id again, as another id would move the directory's share of blocks. */
static int settle_id(struct cache_dir *dir, int fd)
{
	char id[64];
	int r;

	r = read_id(fd, id);
	if (r == -ENOENT || r == -ENODATA) {
		if (dir->id[0])
			snprintf(id, sizeof(id), "%s", dir->id);
		else
			random_id(id);
		/* An empty file is left by a power failure. */
		r = write_id(fd, id, r == -ENODATA);
		if (r == -EEXIST)
			r = read_id(fd, id);
		/* Not writable: an id for this run. */
		if (r == -EROFS || r == -EACCES || r == -ENOSPC || r == -EDQUOT)
			r = 0;
	}
	if (r < 0 || dir->id[0])
		return r;
	memcpy(dir->id, id, sizeof(id));
	return cfs_cachedirs_add(dir->set, dir);
}

static int open_dir(struct cache_dir *dir)
{
	unsigned mode = dir->set->dir_mode;
	cfs_auto_close int fd = -1;
	struct statfs fs;
	struct stat st;
	int r, old = atomic_load(&dir->fd);

	r = make_base(dir);
	if (r < 0)
		return r;
	if (mkdir(dir->path, mode) < 0 && errno != EEXIST && errno != EROFS)
		return -errno;
	fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return -errno;
	r = check_owner(dir, &st);
	if (r < 0)
		return r;
	if (mkdirat(fd, CFS_CACHEDIR_CACHED, mode) < 0 && errno != EEXIST && errno != EROFS)
		return -errno;
	r = settle_id(dir, fd);
	if (r < 0)
		return r;
	dir->off_root = !is_on_root(&st);
	atomic_store(&dir->in_memory,
		     fs.f_type == TMPFS_MAGIC || (unsigned long)fs.f_type == RAMFS_MAGIC);
	if (old < 0) {
		atomic_store(&dir->fd, fd);
		fd = -1;
		return 0;
	}
	/* Same descriptor number, which other threads may be using. */
	return dup3(fd, old, O_CLOEXEC) < 0 ? -errno : 0;
}

int cfs_cachedir_make_parents(struct cache_dir *dir, char *path)
{
	char *slash = path;
	int r;

	while ((slash = strchr(slash, '/')) != NULL) {
		*slash = '\0';
		r = mkdirat(atomic_load(&dir->fd), path, dir->set->dir_mode) < 0 && errno != EEXIST
			    ? -errno
			    : 0;
		*slash++ = '/';
		if (r < 0)
			return r;
	}
	return 0;
}

bool cfs_cachedir_may_stage(const struct cache_dir *dir)
{
	return atomic_load(&dir->state) == DIR_OK || atomic_load(&dir->full);
}

/* ---- repair ---- */

bool cfs_cachedir_retry_is_due(struct cache_dir *dir)
{
	CFS_LOCK_GUARD(&dir->lock);

	return atomic_load(&dir->state) != DIR_OK && cfs_deadline_passed(dir->retry_at);
}

/* Whether a block could be written. */
static int write_probe(struct cache_dir *dir)
{
	static const char zeros[PROBE_BYTES];
	uint32_t size = dir->set->conf.block_size;
	cfs_auto_close int fd = -1;
	int at = atomic_load(&dir->fd);
	char name[64];

	snprintf(name, sizeof(name), ".probe.%016llx" CFS_CACHEDIR_TMP,
		 (unsigned long long)cfs_random_u64());
	fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	/* At once: a process that is killed leaves nothing. */
	if (unlinkat(at, name, 0) < 0 || (fallocate(fd, 0, 0, size) < 0 && errno != EOPNOTSUPP) ||
	    pwrite(fd, zeros, sizeof(zeros), 0) != (ssize_t)sizeof(zeros))
		return -errno;
	return 0;
}

/* The path names another directory, or none: the next mount would not find what is written here. */
static bool is_elsewhere(const struct cache_dir *dir)
{
	struct stat named, opened;

	return fstat(atomic_load(&dir->fd), &opened) == 0 &&
	       (stat(dir->path, &named) < 0
			? errno == ENOENT || errno == ENOTDIR
			: named.st_dev != opened.st_dev || named.st_ino != opened.st_ino);
}

int cfs_cachedir_probe(struct cache_dir *dir)
{
	int r = 0;

	if (atomic_load(&dir->state) == DIR_FAILED)
		r = open_dir(dir);
	else if (is_elsewhere(dir))
		r = -ESTALE;
	return r < 0 ? r : write_probe(dir);
}

void cfs_cachedir_retried(struct cache_dir *dir, int err)
{
	pthread_mutex_lock(&dir->lock);
	dir->retry_at = cfs_deadline_in(dir->set->conf.retry_ms);
	if (err == 0) {
		atomic_store(&dir->state, DIR_OK);
		dir->faults = 0;
	}
	pthread_mutex_unlock(&dir->lock);
	if (err == 0)
		cfs_info("cache directory is used again: dir=%s", dir->base);
}

void cfs_cachedir_check_root(struct cache_dir *dir)
{
	int fd = atomic_load(&dir->fd);
	struct stat st;

	if (fstat(fd, &st) < 0)
		cfs_cachedir_fault(dir, "stat", -errno, true);
	else if (st.st_nlink == 0)
		cfs_cachedir_fault(dir, "stat", -ENOENT, true);
	else if (is_elsewhere(dir))
		set_state(dir, DIR_READ_ONLY, "find at its path", -ESTALE);
	else if (fstatat(fd, LOCK_NAME, &st, 0) < 0 && errno == ENOENT)
		write_id(fd, dir->id, false);
}

/* ---- life ---- */

int cfs_cachedir_init(struct cache_dir *dir, struct cache_dirs *set, char *base)
{
	dir->set = set;
	dir->number = (unsigned)(dir - set->v);
	dir->base = base;
	dir->fd = -1;
	pthread_mutex_init(&dir->lock, NULL);
	return asprintf(&dir->path, "%s/%s", base, set->uuid) < 0 ? -ENOMEM : 0;
}

int cfs_cachedir_start(struct cache_dir *dir)
{
	int r = open_dir(dir);

	if (r < 0)
		set_state(dir, DIR_FAILED, "open", r);
	return r;
}

void cfs_cachedir_fini(struct cache_dir *dir)
{
	if (dir->fd >= 0)
		close(dir->fd);
	pthread_mutex_destroy(&dir->lock);
	free(dir->path);
	free(dir->base);
}
