/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing of the file store: a walk in byte order of full keys. Each directory is read whole,
 * sorted and closed before the walk goes deeper, so memory is that of the directories on one path.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "file.h"

struct walk {
	struct cfs_object_file *o;
	const char *prefix, *after;
	cfs_object_list_fn fn;
	void *arg;
	cfs_deadline_t deadline;
	size_t bucket_len;
	char path[PATH_MAX]; /* bucket and the key so far */
};

/* Names of one directory. Sub-directories end in '/', as in keys, for the order. */
struct names {
	char **v;
	size_t n, cap;
};

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(struct names *names)
{
	size_t i;

	for (i = 0; i < names->n; i++)
		free(names->v[i]);
	free(names->v);
}

static int add_name(struct names *names, const char *name, bool is_dir)
{
	size_t len = strlen(name);
	char *copy;

	if (CFS_ARRAY_ROOM(names->v, names->n, names->cap) < 0)
		return -ENOMEM;
	copy = malloc(len + 2);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, name, len);
	copy[len] = is_dir ? '/' : '\0';
	copy[len + 1] = '\0';
	names->v[names->n++] = copy;
	return 0;
}

static bool is_temporary(const char *name)
{
	return strncmp(name, CFS_FILE_TMP_PREFIX, strlen(CFS_FILE_TMP_PREFIX)) == 0 &&
	       strstr(name, CFS_FILE_TMP_INFIX);
}

/* 1: directory, 0: file, -ENOENT: neither, or gone. Symbolic links are followed, as get does. */
static int entry_kind(DIR *dir, const struct dirent *e)
{
	struct stat st;

	if (e->d_type == DT_DIR)
		return 1;
	if (e->d_type == DT_REG)
		return 0;
	if (e->d_type != DT_UNKNOWN && e->d_type != DT_LNK)
		return -ENOENT;
	if (fstatat(dirfd(dir), e->d_name, &st, 0) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) ? 1 : S_ISREG(st.st_mode) ? 0 : -ENOENT;
}

static int read_names(const char *path, struct names *ret)
{
	struct dirent *e;
	DIR *dir;
	int r = 0;

	dir = opendir(path);
	if (!dir)
		return -errno;
	while (r == 0) {
		errno = 0;
		e = readdir(dir);
		if (!e) {
			r = -errno;
			break;
		}
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
		    is_temporary(e->d_name))
			continue;
		r = entry_kind(dir, e);
		if (r == -ENOENT)
			r = 0;
		else if (r >= 0)
			r = add_name(ret, e->d_name, r == 1);
	}
	closedir(dir);
	if (r == 0 && ret->n)
		qsort(ret->v, ret->n, sizeof(*ret->v), compare_names);
	return r;
}

/* Whether the key, or for a directory any key below it, is wanted. */
static bool is_wanted(const struct walk *w, const char *key, bool is_dir)
{
	size_t key_len = strlen(key), prefix_len = strlen(w->prefix);

	if (is_dir && key_len < prefix_len)
		return strncmp(key, w->prefix, key_len) == 0;
	if (strncmp(key, w->prefix, prefix_len) != 0)
		return false;
	if (strcmp(key, w->after) > 0)
		return true;
	return is_dir && strncmp(key, w->after, key_len) == 0;
}

static int report_file(struct walk *w, const char *key)
{
	struct cfs_object_info info = {.key = key};
	struct stat st;

	if (stat(w->path, &st) < 0)
		return errno == ENOENT ? cfs_object_file_present(w->o) : -errno;
	cfs_object_file_found(w->o);
	info.size = (uint64_t)st.st_size;
	info.mtime_s = st.st_mtim.tv_sec;
	return w->fn(w->arg, &info);
}

/* w->path is a directory with its '/'; len is its length. */
static int walk_dir(struct walk *w, size_t len)
{
	const char *key = w->path + w->bucket_len;
	struct names names = {0};
	size_t i;
	int r;

	r = cfs_deadline_passed(w->deadline) ? -ETIMEDOUT : read_names(w->path, &names);
	/* A directory may have been removed since its parent was read, except a bucket in use. */
	if (r == -ENOENT && (len > w->bucket_len || atomic_load(&w->o->used)))
		r = cfs_object_file_present(w->o);
	for (i = 0; r == 0 && i < names.n; i++) {
		size_t n = strlen(names.v[i]);
		bool is_dir = names.v[i][n - 1] == '/';

		if (len + n >= sizeof(w->path)) {
			r = -ENAMETOOLONG;
			break;
		}
		memcpy(w->path + len, names.v[i], n + 1);
		if (is_wanted(w, key, is_dir))
			r = is_dir ? walk_dir(w, len + n) : report_file(w, key);
	}
	w->path[len] = '\0';
	free_names(&names);
	return r;
}

int cfs_object_file_list(struct cfs_object_store *base, const char *prefix, const char *after,
			 cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct cfs_object_file *o = (struct cfs_object_file *)base;
	size_t len = strlen(o->bucket);
	struct walk *w;
	int r;

	if (len >= PATH_MAX)
		return -ENAMETOOLONG;
	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	*w = (struct walk){
		.o = o,
		.prefix = prefix,
		.after = after,
		.fn = fn,
		.arg = arg,
		.deadline = deadline,
		.bucket_len = len,
	};
	memcpy(w->path, o->bucket, len + 1);
	r = walk_dir(w, len);
	free(w);
	/* The disk may have been unmounted before, or meanwhile: an empty directory is left. */
	return r == 0 ? cfs_object_file_present(o) : r;
}
