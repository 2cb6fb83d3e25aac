/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects as files of a local directory (volume-format section 7, "file" storage). Listing is in
 * file-list.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "file.h"

#define DIR_MODE      0777 /* umask applies */
#define FILE_MODE     0666
#define TMP_NAME_KEPT 200 /* characters of the object's name in that of its temporary file */
#define IOV_BATCH     64

/* Key to path; -EINVAL for a key that would leave the bucket. */
static int make_path(const struct cfs_object_file *o, const char *key, char path[PATH_MAX])
{
	const char *p;
	int n;

	for (p = key; (p = strstr(p, "..")) != NULL; p += 2) {
		if ((p == key || p[-1] == '/') && (p[2] == '\0' || p[2] == '/'))
			return -EINVAL;
	}
	if (key[0] == '\0' || key[0] == '/')
		return -EINVAL;
	n = snprintf(path, PATH_MAX, "%s%s", o->bucket, key);
	return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/*
 * Creates the missing directories above the last '/' of path, except those in its first `kept` bytes.
 * Other processes may do the same. Returns how many it has made.
 */
static int make_parents(char *path, size_t kept)
{
	char *slash = path + kept;
	int r, made = 0;

	while ((slash = strchr(slash + 1, '/')) != NULL) {
		*slash = '\0';
		r = mkdir(path, DIR_MODE) < 0 ? -errno : 0;
		*slash = '/';
		if (r < 0 && r != -EEXIST)
			return r;
		made += r == 0;
	}
	return made;
}

/* Like preadv2/pwritev until everything is done, or the end of the file is reached. */
static ssize_t transfer(int fd, bool writing, uint64_t off, const struct iovec *iov, int n_iov,
			int flags)
{
	size_t total = cfs_iov_len(iov, n_iov), done = 0, skip = 0;
	int first = 0;

	while (done < total) {
		struct iovec v[IOV_BATCH];
		ssize_t r;
		int n;

		while (skip >= iov[first].iov_len)
			skip -= iov[first++].iov_len;
		n = CFS_MIN(n_iov - first, IOV_BATCH);
		memcpy(v, iov + first, (size_t)n * sizeof(*v));
		v[0].iov_base = (char *)v[0].iov_base + skip;
		v[0].iov_len -= skip;
		r = writing ? pwritev(fd, v, n, (off_t)(off + done))
			    : preadv2(fd, v, n, (off_t)(off + done), flags);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			break;
		done += (size_t)r;
		skip += (size_t)r;
	}
	return (ssize_t)done;
}

/* Duplicates the nth description of the same directory that the previous process had; -1: none. */
static int desc_before(const struct cfs_object_descs *d, int fd, unsigned nth)
{
	struct stat st, have;
	unsigned i;

	if (fstat(fd, &have) < 0)
		return -1;
	for (i = 0; i < d->n_before; i++) {
		if (fstat(d->before[i], &st) == 0 && st.st_dev == have.st_dev &&
		    st.st_ino == have.st_ino && nth-- == 0)
			return fcntl(d->before[i], F_DUPFD_CLOEXEC, 0);
	}
	return -1;
}

static int open_desc(const char *bucket, struct cfs_object_descs *d, unsigned nth)
{
	int fd = open(bucket, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int before = d && fd >= 0 ? desc_before(d, fd, nth) : -1;

	if (before >= 0) {
		close(fd);
		fd = before;
	} else if (d && d->n_before) {
		d->fresh = true;
	}
	if (d && fd >= 0 && d->n < CFS_OBJECT_DESCS)
		d->fd[d->n++] = fd;
	return fd;
}

static void close_bucket(struct cfs_object_file *o)
{
	unsigned i;

	for (i = 0; i < CFS_ARRAY_SIZE(o->fd); i++) {
		if (o->fd[i] >= 0)
			close(o->fd[i]);
		o->fd[i] = -1;
	}
}

static int open_bucket(struct cfs_object_file *o, struct cfs_object_descs *d)
{
	unsigned i;
	CFS_LOCK_GUARD(&o->open_lock);

	for (i = 0; i < CFS_ARRAY_SIZE(o->fd); i++) {
		if (o->fd[i] < 0)
			o->fd[i] = open_desc(o->bucket, d, i);
		if (o->fd[i] < 0)
			return -errno;
	}
	return 0;
}

/* Opens the bucket again under the same descriptors: its path has another file system. */
static int reopen_bucket(struct cfs_object_file *o)
{
	int r = 0, fd;
	unsigned i;

	for (i = 0; i < CFS_ARRAY_SIZE(o->fd) && r == 0; i++) {
		fd = open(o->bucket, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		/* Replaced atomically, because a sync may be using it. */
		r = dup3(fd, o->fd[i], O_CLOEXEC) < 0 ? -errno : 0;
		close(fd);
	}
	return r;
}

/* 1: the path of the bucket leads to another file system than its open descriptions. */
static int is_elsewhere(struct cfs_object_file *o)
{
	struct stat there, opened;
	int r = open_bucket(o, NULL);

	if (r == 0 && (stat(o->bucket, &there) < 0 || fstat(o->fd[0], &opened) < 0))
		r = -errno;
	return r < 0 ? r : there.st_dev != opened.st_dev;
}

/*
 * Objects must be written to the file system that is synced. -ENODEV: its disk was unmounted, or
 * another one mounted over it. Until the first object is found or put, the bucket may still change.
 */
static int check_bucket(struct cfs_object_file *o)
{
	int r = is_elsewhere(o);

	if (r > 0) {
		CFS_LOCK_GUARD(&o->use_lock);

		r = is_elsewhere(o); /* another thread may have opened it again */
		if (r > 0)
			r = atomic_load(&o->used) ? -ENODEV : reopen_bucket(o);
		if (r == 0)
			atomic_store(&o->used, true);
	}
	if (r == 0)
		atomic_store(&o->used, true);
	return r == -ENOENT ? -ENODEV : r;
}

int cfs_object_file_present(struct cfs_object_file *o)
{
	return atomic_load(&o->used) ? check_bucket(o) : 0;
}

void cfs_object_file_found(struct cfs_object_file *o)
{
	if (!atomic_load(&o->used))
		check_bucket(o);
}

/* Of a key that is not found: -ENOENT, or another error when the bucket is not there. */
static int not_found(struct cfs_object_file *o)
{
	int r = cfs_object_file_present(o);

	return r < 0 ? r : -ENOENT;
}

static ssize_t file_get(struct cfs_object_store *base, const char *key, uint64_t off,
			const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	char path[PATH_MAX];
	cfs_auto_close int fd = -1;
	int r;

	r = make_path(o, key, path);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? not_found(o) : -errno;
	cfs_object_file_found(o);
	return transfer(fd, false, off, dst, n_dst, 0);
}

/*
 * With RESOLVE_CACHED (openat2(2)) the path walk fails instead of waiting, with RWF_NOWAIT (preadv2(2))
 * the read does. Any other error is -EAGAIN, too: the caller reads with waiting.
 */
static ssize_t file_get_nowait(struct cfs_object_store *base, const char *key, uint64_t off,
			       const struct iovec *dst, int n_dst)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	struct open_how how = {
		.flags = O_RDONLY | O_CLOEXEC,
		.resolve = RESOLVE_CACHED,
	};
	char path[PATH_MAX];
	cfs_auto_close int fd = -1;
	ssize_t n;
	int r;

	r = atomic_load(&o->used) ? make_path(o, key, path) : -EAGAIN;
	if (r < 0)
		return r;
	fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
	if (fd < 0)
		return -EAGAIN;
	n = transfer(fd, false, off, dst, n_dst, RWF_NOWAIT);
	return n < 0 ? -EAGAIN : n;
}

/*
 * durable: the bytes are on the disk when it returns. Returns how many directories it has made above
 * the file.
 */
static int write_tmp(const struct cfs_object_file *o, char *tmp, const struct iovec *src, int n_src,
		     bool durable)
{
	size_t len = cfs_iov_len(src, n_src);
	ssize_t n;
	int fd, r, made = 0;

	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
	if (fd < 0 && errno == ENOENT) {
		made = make_parents(tmp, strlen(o->bucket) - 1);
		if (made < 0 && made != -ENOENT)
			return made;
		made = CFS_MAX(made, 0);
		fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
	}
	if (fd < 0)
		return errno == ENOENT ? -ENODEV : -errno;
	n = transfer(fd, true, 0, src, n_src, 0);
	r = n < 0 ? (int)n : (size_t)n < len ? -EIO : 0;
	if (r == 0 && durable && fdatasync(fd) < 0)
		r = -errno;
	/* Network file systems report a full disk or quota here. */
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r < 0)
		unlink(tmp);
	return r < 0 ? r : made;
}

static int sync_folder(const char *path)
{
	cfs_auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

/* Makes the name of a file durable, and those of the `made` directories above it. Cuts the path. */
static int sync_names(char *path, int made)
{
	int r = 0;

	for (; made >= 0 && r == 0; made--) {
		*strrchr(path, '/') = '\0';
		r = sync_folder(path);
	}
	return r;
}

static int file_put(struct cfs_object_store *base, const char *key, const struct iovec *src,
		    int n_src, unsigned tier, cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	char path[PATH_MAX], tmp[PATH_MAX];
	const char *name;
	int n, r, made;

	r = make_path(o, key, path);
	if (r < 0)
		return r;
	name = strrchr(path, '/') + 1;
	n = snprintf(tmp, sizeof(tmp), "%.*s" CFS_FILE_TMP_PREFIX "%.*s" CFS_FILE_TMP_INFIX "%lu",
		     (int)(name - path), path, TMP_NAME_KEPT, name,
		     (unsigned long)(cfs_random_u64() >> 1));
	if (n >= (int)sizeof(tmp))
		return -ENAMETOOLONG;
	r = check_bucket(o);
	if (r < 0)
		return r;
	made = write_tmp(o, tmp, src, n_src, tier & CFS_OBJECT_NEW);
	if (made < 0)
		return made;
	if ((tier & CFS_OBJECT_NEW ? link(tmp, path) : rename(tmp, path)) < 0)
		r = -errno;
	if (r < 0 || tier & CFS_OBJECT_NEW)
		unlink(tmp);
	return r == 0 && tier & CFS_OBJECT_NEW ? sync_names(path, made) : r;
}

static int file_del(struct cfs_object_store *base, const char *key, cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	char path[PATH_MAX];
	int r;

	r = make_path(o, key, path);
	if (r == 0)
		r = cfs_object_file_present(o);
	if (r < 0)
		return r;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

static int file_head(struct cfs_object_store *base, const char *key, struct cfs_object_info *ret,
		     cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	char path[PATH_MAX];
	struct stat st;
	int r;

	r = make_path(o, key, path);
	if (r < 0)
		return r;
	if (stat(path, &st) < 0)
		return errno == ENOENT ? not_found(o) : -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	cfs_object_file_found(o);
	*ret = (struct cfs_object_info){
		.key = key,
		.size = (uint64_t)st.st_size,
		.mtime_s = st.st_mtim.tv_sec,
	};
	return 0;
}

static int file_sync(struct cfs_object_store *base, cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	int r = open_bucket(o, NULL), other;

	if (r < 0)
		return r;
	r = syncfs(o->fd[o->turn]) < 0 ? -errno : 0;
	o->turn = !o->turn;
	/* Syncs the other one as well, or it would report this failure again, for later puts. */
	if (r < 0 || o->both) {
		other = syncfs(o->fd[o->turn]) < 0 ? -errno : 0;
		r = r < 0 ? r : other;
	}
	o->both = false;
	return r;
}

static int file_create(struct cfs_object_store *base, cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	int r;

	r = make_parents(o->bucket, 0);
	if (r < 0)
		return r;
	if (access(o->bucket, R_OK | W_OK | X_OK) < 0)
		return -errno;
	return open_bucket(o, NULL);
}

static void file_close(struct cfs_object_store *base)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;

	close_bucket(o);
	pthread_mutex_destroy(&o->open_lock);
	pthread_mutex_destroy(&o->use_lock);
	free(o->bucket);
	free(o);
}

static const struct cfs_object_ops file_ops = {
	.name = "file",
	.get = file_get,
	.get_nowait = file_get_nowait,
	.put = file_put,
	.del = file_del,
	.head = file_head,
	.list = cfs_object_file_list,
	.sync = file_sync,
	.create = file_create,
	.close = file_close,
};

int cfs_object_open_file(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
			 char err[CFS_OBJECT_ERRLEN])
{
	struct cfs_object_file *o;
	size_t len;

	if (!conf->bucket || conf->bucket[0] != '/')
		return cfs_fail(err, -EINVAL,
				"bucket of a file storage must be an absolute path: %s",
				conf->bucket && conf->bucket[0] ? conf->bucket : "(empty)");
	o = calloc(1, sizeof(*o));
	if (!o)
		return -ENOMEM;
	len = strlen(conf->bucket);
	if (asprintf(&o->bucket, "%s%s", conf->bucket, conf->bucket[len - 1] == '/' ? "" : "/") <
	    0) {
		free(o);
		return -ENOMEM;
	}
	o->base.ops = &file_ops;
	o->fd[0] = o->fd[1] = -1;
	o->both = true;
	pthread_mutex_init(&o->open_lock, NULL);
	pthread_mutex_init(&o->use_lock, NULL);
	/* The previous process has put objects on the file system of these descriptions. */
	atomic_init(&o->used, conf->descs && conf->descs->n_before);
	/* A missing or unreadable bucket is reported by the first call. */
	open_bucket(o, conf->descs);
	*ret = &o->base;
	return 0;
}
