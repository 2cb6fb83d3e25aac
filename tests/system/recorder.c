/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded: writes down what a process changes below the directory RECORD_ROOT, and which of it is
 * made durable, at the end of the file RECORD_LOG. unsynced.py makes of that what a power failure
 * leaves.
 *
 * A change is recorded when it is made and before its caller goes on; a sync has a record before it
 * begins and one when it has ended: what is recorded before the first is durable at the second.
 * Syncs are not carried out: nothing here outlives the machine. Memory maps are not seen.
 */
/* The names without and with 64 are both wanted. */
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libc.h"

enum kind {
	MAKE = 1, /* path: a name for the file ino */
	WRITE,	  /* data at off of ino */
	SIZE,	  /* off: the size of ino */
	RENAME,	  /* path, to */
	LINK,	  /* path, to: a second name for ino */
	UNLINK,	  /* path */
	MKDIR,	  /* path */
	RMDIR,	  /* path */
	SYNC_FILE,
	SYNC_DIR, /* path */
	SYNC_ALL,
	SYNCED, /* ino: which sync has ended */
};

struct record {
	uint32_t magic, kind;
	uint64_t ino, off;
	uint32_t path_len, to_len, data_len, pid;
};

#define MAGIC 0x52454331

static const char *root(void)
{
	static _Atomic(const char *) text;

	/* A copy: servers write their titles over the environment. */
	if (!atomic_load(&text)) {
		const char *value = getenv("RECORD_ROOT");

		atomic_store(&text, value ? strdup(value) : "");
	}
	return atomic_load(&text);
}

static int log_fd(void)
{
	static _Atomic int fd = -1;
	int none = -1, made;

	if (atomic_load(&fd) >= 0)
		return atomic_load(&fd);
	made = CALL(open)(getenv("RECORD_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	made = made < 0 ? made : fcntl(made, F_DUPFD_CLOEXEC, 900);
	if (!atomic_compare_exchange_strong(&fd, &none, made))
		close(made);
	return atomic_load(&fd);
}

static void record(enum kind kind, uint64_t ino, uint64_t off, const char *path, const char *to,
		   const struct iovec *data, int n_data, size_t data_len)
{
	struct record r = {
		.magic = MAGIC,
		.kind = kind,
		.ino = ino,
		.off = off,
		.path_len = path ? (uint32_t)strlen(path) : 0,
		.to_len = to ? (uint32_t)strlen(to) : 0,
		.data_len = (uint32_t)data_len,
		.pid = (uint32_t)getpid(),
	};
	struct iovec v[64] = {
		{&r, sizeof(r)},
		{(void *)path, r.path_len},
		{(void *)to, r.to_len},
	};
	int i, n = 3, saved = errno;

	for (i = 0; i < n_data && data_len; i++) {
		v[n] = data[i];
		if (v[n].iov_len > data_len)
			v[n].iov_len = data_len;
		data_len -= v[n++].iov_len;
		if (n == 64 && data_len) {
			fprintf(stderr, "recorder: too many parts in a write\n");
			abort();
		}
	}
	if (CALL(writev)(log_fd(), v, n) < 0) {
		perror("recorder");
		abort();
	}
	errno = saved;
}

static int is_below(const char *path)
{
	size_t len = strlen(root());

	return len && !strncmp(path, root(), len) && (path[len] == '/' || !path[len]);
}

/* The path of a descriptor, and whether it is one of ours. */
static int fd_path(int fd, char path[PATH_MAX])
{
	char link[40];
	int saved = errno;
	ssize_t n;

	if (!*root() || fd < 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, PATH_MAX - 1);
	errno = saved;
	if (n <= 0)
		return 0;
	path[n] = '\0';
	return is_below(path);
}

static int at_path(int dir, const char *name, char path[PATH_MAX])
{
	char base[PATH_MAX];

	if (!*root())
		return 0;
	if (name[0] == '/') {
		snprintf(path, PATH_MAX, "%s", name);
		return is_below(path);
	}
	if (dir == AT_FDCWD ? !getcwd(base, sizeof(base)) : !fd_path(dir, base))
		return 0;
	if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX)
		return 0;
	return is_below(path);
}

/* Of a regular file; 0 for others. */
static uint64_t fd_ino(int fd)
{
	struct stat st;
	int saved = errno, ok = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);

	errno = saved;
	return ok ? st.st_ino : 0;
}

static void note_size(int fd)
{
	char path[PATH_MAX];
	struct stat st;

	if (fd_path(fd, path) && !fstat(fd, &st) && S_ISREG(st.st_mode))
		record(SIZE, st.st_ino, (uint64_t)st.st_size, NULL, NULL, NULL, 0, 0);
}

/* ---- names ---- */

static int open_at(int dir, const char *name, int flags, mode_t mode)
{
	char path[PATH_MAX];
	int ours = at_path(dir, name, path), fd;
	int was_there = ours && !faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW);

	fd = CALL(openat)(dir, name, flags, mode);
	if (fd < 0 || !ours)
		return fd;
	if ((flags & O_CREAT) && !was_there && fd_ino(fd))
		record(MAKE, fd_ino(fd), 0, path, NULL, NULL, 0, 0);
	if (flags & O_TRUNC)
		note_size(fd);
	return fd;
}

DEFINE_OPEN(open_at)

static void note_two(enum kind kind, uint64_t ino, int r, int dir, const char *name, int to_dir,
		     const char *to)
{
	char path[PATH_MAX], target[PATH_MAX];

	if (r == 0 && at_path(dir, name, path) && at_path(to_dir, to, target))
		record(kind, ino, 0, path, target, NULL, 0, 0);
}

int rename(const char *from, const char *to)
{
	int r = CALL(rename)(from, to);

	note_two(RENAME, 0, r, AT_FDCWD, from, AT_FDCWD, to);
	return r;
}

int renameat(int dir, const char *from, int to_dir, const char *to)
{
	int r = CALL(renameat)(dir, from, to_dir, to);

	note_two(RENAME, 0, r, dir, from, to_dir, to);
	return r;
}

int renameat2(int dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	int r = CALL(renameat2)(dir, from, to_dir, to, flags);

	note_two(RENAME, 0, r, dir, from, to_dir, to);
	return r;
}

int linkat(int dir, const char *from, int to_dir, const char *to, int flags)
{
	int r = CALL(linkat)(dir, from, to_dir, to, flags);

	note_two(LINK, 0, r, dir, from, to_dir, to);
	return r;
}

int link(const char *from, const char *to)
{
	return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

static void note_one(enum kind kind, int r, int dir, const char *name)
{
	char path[PATH_MAX];

	if (r == 0 && at_path(dir, name, path))
		record(kind, 0, 0, path, NULL, NULL, 0, 0);
}

int unlink(const char *name)
{
	int r = CALL(unlink)(name);

	note_one(UNLINK, r, AT_FDCWD, name);
	return r;
}

int unlinkat(int dir, const char *name, int flags)
{
	int r = CALL(unlinkat)(dir, name, flags);

	note_one(flags & AT_REMOVEDIR ? RMDIR : UNLINK, r, dir, name);
	return r;
}

int rmdir(const char *name)
{
	int r = CALL(rmdir)(name);

	note_one(RMDIR, r, AT_FDCWD, name);
	return r;
}

int mkdirat(int dir, const char *name, mode_t mode)
{
	int r = CALL(mkdirat)(dir, name, mode);

	note_one(MKDIR, r, dir, name);
	return r;
}

int mkdir(const char *name, mode_t mode)
{
	return mkdirat(AT_FDCWD, name, mode);
}

/* ---- bytes ---- */

/* off < 0: what was written ends where the descriptor is. */
static void note_write(int fd, const struct iovec *v, int n, off_t off, ssize_t done)
{
	char path[PATH_MAX];
	uint64_t ino;

	if (done <= 0 || !fd_path(fd, path) || !(ino = fd_ino(fd)))
		return;
	if (off < 0)
		off = lseek(fd, 0, SEEK_CUR) - done;
	record(WRITE, ino, (uint64_t)off, NULL, NULL, v, n, (size_t)done);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	ssize_t n = CALL(write)(fd, buf, len);

	note_write(fd, &(struct iovec){(void *)buf, len}, 1, -1, n);
	return n;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	ssize_t n = CALL(pwrite)(fd, buf, len, off);

	note_write(fd, &(struct iovec){(void *)buf, len}, 1, off, n);
	return n;
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	return pwrite(fd, buf, len, off);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
	ssize_t done = CALL(writev)(fd, v, n);

	note_write(fd, v, n, -1, done);
	return done;
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t off)
{
	ssize_t done = CALL(pwritev)(fd, v, n, off);

	note_write(fd, v, n, off, done);
	return done;
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t off)
{
	return pwritev(fd, v, n, off);
}

ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t off, int flags)
{
	ssize_t done = CALL(pwritev2)(fd, v, n, off, flags);

	note_write(fd, v, n, off, done);
	return done;
}

ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off_t off, int flags)
{
	return pwritev2(fd, v, n, off, flags);
}

int ftruncate(int fd, off_t size)
{
	int r = CALL(ftruncate)(fd, size);

	if (r == 0)
		note_size(fd);
	return r;
}

int ftruncate64(int fd, off_t size)
{
	return ftruncate(fd, size);
}

int fallocate(int fd, int mode, off_t off, off_t len)
{
	int r = CALL(fallocate)(fd, mode, off, len);

	if (r == 0)
		note_size(fd);
	return r;
}

int fallocate64(int fd, int mode, off_t off, off_t len)
{
	return fallocate(fd, mode, off, len);
}

/* ---- syncs ---- */

static int sync_fd(int fd, int all)
{
	static _Atomic uint64_t numbers;
	uint64_t number = (uint64_t)getpid() << 32 | atomic_fetch_add(&numbers, 1);
	const char *hang = getenv("RECORD_HANG"); /* a sync ends when there is no such file */
	char path[PATH_MAX];
	uint64_t ino;

	if (!fd_path(fd, path))
		return -1;
	ino = fd_ino(fd);
	record(all ? SYNC_ALL : ino ? SYNC_FILE : SYNC_DIR, ino, number, path, NULL, NULL, 0, 0);
	while (hang && access(hang, F_OK) == 0)
		usleep(10000);
	record(SYNCED, number, 0, NULL, NULL, NULL, 0, 0);
	return 0;
}

int fsync(int fd)
{
	return sync_fd(fd, 0) == 0 ? 0 : CALL(fsync)(fd);
}

int fdatasync(int fd)
{
	return sync_fd(fd, 0) == 0 ? 0 : CALL(fdatasync)(fd);
}

int syncfs(int fd)
{
	return sync_fd(fd, 1) == 0 ? 0 : CALL(syncfs)(fd);
}
