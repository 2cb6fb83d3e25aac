/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/backup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/task.h"
#include "cmd/access/admin.h"
#include "cmd/access/volume.h"

#define FOLDER "/meta/"
/* A transfer of a large backup that is slower times out. */
#define SLOWEST_BYTES_PER_MS 32
/* Ciphers take lengths of 31 bits. */
#define PIECE ((size_t)64 << 20)

enum { KEY_MAX = 128, PIECES_MAX = 256 };

static void make_key(const char *volume, const char *name, char ret[KEY_MAX])
{
	snprintf(ret, KEY_MAX, "%s" FOLDER "%s", volume, name);
}

static cfs_deadline_t deadline_of(uint64_t size)
{
	return cfs_deadline_in(ADMIN_OBJECT_MS + size / SLOWEST_BYTES_PER_MS);
}

/* ---- the list ---- */

static int add_backup(void *arg, const struct cfs_object_info *info)
{
	struct backup_list *l = arg;
	struct backup b = {.mtime_s = info->mtime_s, .size = info->size};
	const char *name = strrchr(info->key, '/');

	if (!name || !backup_time(name + 1, &b.when_s))
		return 0;
	return CFS_ARRAY_ADD(l->v, l->n, l->cap, b);
}

int backup_read_list(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline,
		     struct backup_list *ret)
{
	char prefix[KEY_MAX];
	int r;

	*ret = (struct backup_list){0};
	make_key(volume, "", prefix);
	r = o->ops->list(o, prefix, "", add_backup, ret, deadline);
	if (r < 0)
		backup_free_list(ret);
	else
		backup_sort(ret);
	return r;
}

void backup_free_list(struct backup_list *l)
{
	free(l->v);
	*l = (struct backup_list){0};
}

/* ---- the latest one, for `status` ---- */

struct look {
	struct cfs_task task; /* first */
	const struct cfs_setting *setting;
	cfs_deadline_t deadline;
	struct backup latest;
	char err[256];
};

static ssize_t look(struct cfs_task *task)
{
	struct look *l = (struct look *)task;
	const struct cfs_setting *s = l->setting;
	const struct backup *latest;
	struct cfs_object_store *o;
	struct backup_list list;
	int r = volume_open_objects(s, NULL, NULL, &o, l->err);

	if (r < 0)
		return r;
	cfs_object_quiet(true);
	r = backup_read_list(o, s->name, l->deadline, &list);
	if (r < 0)
		snprintf(l->err, sizeof(l->err), "the bucket cannot be listed: %s", strerror(-r));
	cfs_object_quiet(false);
	cfs_object_close(o);
	if (r < 0)
		return r;
	latest = backup_latest(&list, cfs_wall_s());
	if (latest)
		l->latest = *latest;
	r = latest ? 0 : -ENOENT;
	backup_free_list(&list);
	return r;
}

int backup_look(const struct cfs_setting *s, uint64_t timeout_ms, struct backup *ret, char err[256])
{
	struct look *l = cfs_task_new(sizeof(*l), look, NULL);
	struct cfs_workers *worker = NULL;
	ssize_t n = -ENOMEM;
	int r = l ? cfs_workers_create("backup-look", 1, 1, &worker) : -ENOMEM;

	if (!r) {
		l->setting = s;
		l->deadline = cfs_deadline_in(timeout_ms);
		r = cfs_task_wait(&l->task, worker, l->deadline, &n);
	}
	if (!r) {
		r = (int)n;
		*ret = l->latest;
		memcpy(err, l->err, sizeof(l->err));
		cfs_workers_destroy(worker);
	} else if (worker) {
		/* Its thread keeps what it uses, the setting too: the command ends soon. */
		snprintf(err, 256, "the bucket does not answer within %" PRIu64 " s",
			 timeout_ms / 1000);
	}
	if (l)
		cfs_task_end(&l->task);
	return r;
}

/* ---- a file in memory ---- */

struct mapping {
	uint8_t *bytes;
	size_t size;
	struct iovec v[PIECES_MAX];
	int n;
};

static int map(int fd, size_t size, struct mapping *ret)
{
	size_t at;

	*ret = (struct mapping){.size = size};
	if (CFS_DIV_UP(size, PIECE) > PIECES_MAX)
		return -EFBIG;
	ret->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ret->bytes == MAP_FAILED)
		return -errno;
	for (at = 0; at < size; at += PIECE)
		ret->v[ret->n++] = (struct iovec){ret->bytes + at, CFS_MIN(PIECE, size - at)};
	return 0;
}

static void unmap(struct mapping *m)
{
	if (m->n)
		munmap(m->bytes, m->size);
}

/* Copies an object of at most `size` bytes into the file. Returns its length. */
static ssize_t get(struct cfs_object_store *o, const char *key, int fd, size_t size)
{
	struct mapping m;
	ssize_t n;
	int r;

	/* The space is allocated, because a full disk would end a process that writes to a map. */
	r = size ? -posix_fallocate(fd, 0, (off_t)size) : -EBADMSG;
	if (!r)
		r = map(fd, size, &m);
	if (r < 0)
		return r;
	n = cfs_object_get(o, key, 0, m.v, m.n, deadline_of(size));
	unmap(&m);
	return n;
}

/* ---- storing a backup ---- */

/* Whether the object has the bytes of the map. */
static int compare(struct cfs_object_store *o, const char *key, const struct mapping *m, int fd)
{
	struct mapping back;
	int r;
	/* One byte more, to notice a longer object. */
	ssize_t n = get(o, key, fd, m->size + 1);

	if (n < 0)
		return (int)n;
	r = map(fd, m->size, &back);
	if (r < 0)
		return r;
	if ((size_t)n != m->size || memcmp(m->bytes, back.bytes, m->size) != 0)
		r = -EBADMSG;
	unmap(&back);
	return r;
}

int backup_upload(struct cfs_object_store *o, const char *volume, const char *name, int fd,
		  int spare_fd, char err[512])
{
	const char *step = "mapped into memory";
	char key[KEY_MAX];
	struct mapping m;
	struct stat st;
	int r = fstat(fd, &st) < 0 ? -errno : map(fd, (size_t)st.st_size, &m);

	make_key(volume, name, key);
	if (!r) {
		step = "stored";
		r = o->ops->put(o, key, m.v, m.n, 0, deadline_of(m.size));
		if (!r && o->ops->sync) {
			step = "made durable";
			r = o->ops->sync(o, cfs_deadline_in(ADMIN_OBJECT_MS));
		}
		if (!r) {
			step = "read back as it was stored";
			r = compare(o, key, &m, spare_fd);
		}
		unmap(&m);
	}
	if (r)
		snprintf(err, 512,
			 "the backup could not be %s, no other is removed: key=%s error=%.60s",
			 step, key, strerror(-r));
	return r;
}

void backup_remove_old(struct cfs_object_store *o, const char *volume, int64_t when_s)
{
	struct backup_list list;
	const struct backup *mine = NULL;
	char name[BACKUP_NAME_LEN + 1], key[KEY_MAX];
	size_t i;
	int r = backup_read_list(o, volume, cfs_deadline_in(ADMIN_OBJECT_MS), &list);

	if (r < 0) {
		cfs_warn("backups of the metadata cannot be listed, none is removed: error=%s",
			 cfs_errname(r));
		return;
	}
	for (i = 0; i < list.n; i++)
		if (list.v[i].when_s == when_s)
			mine = &list.v[i];
	backup_name(when_s, name);
	/* A clock that is ahead would make all others old. */
	if (!mine || when_s - mine->mtime_s > BACKUP_FUTURE_S) {
		cfs_warn("backups of the metadata are not rotated, %s: key=%s",
			 mine ? "the clock is ahead of the object store's"
			      : "the new one is not listed",
			 name);
		backup_free_list(&list);
		return;
	}
	backup_rotate(&list, when_s);
	for (i = 0; i < list.n; i++) {
		if (!list.v[i].drop || &list.v[i] == mine)
			continue;
		backup_name(list.v[i].when_s, name);
		make_key(volume, name, key);
		r = o->ops->del(o, key, cfs_deadline_in(ADMIN_OBJECT_MS));
		if (r < 0)
			cfs_warn("an old backup of the metadata could not be removed, the next "
				 "rotation tries again: key=%s error=%s",
				 key, cfs_errname(r));
	}
	backup_free_list(&list);
}

int backup_fetch(struct cfs_object_store *o, const char *volume, const char *name, int fd,
		 char err[256])
{
	struct cfs_object_info info;
	char key[KEY_MAX];
	ssize_t n;

	make_key(volume, name, key);
	n = o->ops->head(o, key, &info, cfs_deadline_in(ADMIN_OBJECT_MS));
	/* An encrypted object is longer than what it holds. */
	if (n >= 0)
		n = get(o, key, fd, info.size);
	if (n >= 0 && ftruncate(fd, n) < 0)
		n = -errno;
	if (n < 0)
		snprintf(err, 256, "backup %s cannot be read: %s", key, strerror((int)-n));
	return n < 0 ? (int)n : 0;
}
