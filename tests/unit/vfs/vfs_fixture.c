/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/whole.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/bytes.h"
#include "vfs_fixture.h"

struct engine meta;
struct data_layer data;
struct cfs_vfs *vfs;

struct cfs_pool *pool;

/* ---- a metadata engine ---- */

static struct cfs_attr make_attr(uint8_t type)
{
	return (struct cfs_attr){.type = type,
				 .mode = 0644,
				 .nlink = 1,
				 .parent = 1,
				 .mtime = {1000, 5},
				 .ctime = {1000, 5}};
}

int number_of(const char *name, size_t len)
{
	char text[16] = "";

	if (len != 6 || name[0] != 'f')
		return -1;
	memcpy(text, name + 1, 5);
	return (int)strtol(text, NULL, 10);
}

void fill_engine(int n)
{
	int i;

	for (i = 0; i < n; i++) {
		meta.exists[i] = true;
		meta.attr[i] = make_attr(CFS_TYPE_FILE);
	}
}

int cfs_meta_lookup(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t len, struct cfs_entry *ret)
{
	int i = number_of(name, len), r = -ENOENT;

	pthread_mutex_lock(&meta.lock);
	meta.calls++;
	meta.dir_asked = parent;
	if (len == 1 && name[0] == '.') {
		ret->ino = parent;
		ret->attr = make_attr(CFS_TYPE_DIR);
		r = 0;
	} else if (i >= 0 && i < FILES && meta.exists[i]) {
		ret->ino = FIRST_INO + (cfs_ino_t)i;
		ret->attr = meta.attr[i];
		r = 0;
	}
	pthread_mutex_unlock(&meta.lock);
	if (meta.during_lookup)
		meta.during_lookup();
	return r;
}

int cfs_meta_getattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret)
{
	int r = 0;

	pthread_mutex_lock(&meta.lock);
	meta.calls++;
	if (ino == meta.failing)
		r = -EIO;
	else if (ino < FIRST_INO)
		*ret = make_attr(CFS_TYPE_DIR);
	else if (ino - FIRST_INO < FILES &&
		 (meta.exists[ino - FIRST_INO] || meta.sustained[ino - FIRST_INO]))
		*ret = meta.attr[ino - FIRST_INO];
	else
		r = -ENOENT;
	pthread_mutex_unlock(&meta.lock);
	if (meta.during_getattr)
		meta.during_getattr();
	return r;
}

int cfs_meta_open_file(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct cfs_attr *ret, struct cfs_slice **ret_recs, ssize_t *ret_n)
{
	*ret_recs = NULL;
	*ret_n = 0;
	return cfs_meta_getattr(m, ctx, ino, ret);
}

int cfs_meta_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret)
{
	pthread_mutex_lock(&meta.lock);
	meta.calls++;
	data.flush_before_setattr = data.flushes;
	if (set & CFS_SET_MODE)
		meta.attr[ino - FIRST_INO].mode = in->mode;
	if (set & CFS_SET_FLAGS)
		meta.attr[ino - FIRST_INO].flags = in->flags;
	*ret = meta.attr[ino - FIRST_INO];
	pthread_mutex_unlock(&meta.lock);
	return 0;
}

int cfs_meta_await_copy(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	return 0;
}

int cfs_meta_unlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t len, unsigned flags, struct cfs_removed *ret)
{
	int i = number_of(name, len), r = -ENOENT;

	pthread_mutex_lock(&meta.lock);
	if (i >= 0 && meta.exists[i]) {
		bool open = meta.hooks.is_open(meta.hooks.arg, FIRST_INO + (cfs_ino_t)i);

		meta.exists[i] = false;
		meta.sustained[i] = open;
		ret->outcome = open ? CFS_REMOVED_SUSTAINED : CFS_REMOVED_DELETED;
		ret->ino = FIRST_INO + (cfs_ino_t)i;
		ret->attr = meta.attr[i];
		r = 0;
	}
	pthread_mutex_unlock(&meta.lock);
	if (meta.after_unlink)
		meta.after_unlink();
	return r;
}

int cfs_meta_close_ino(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	pthread_mutex_lock(&meta.lock);
	meta.closed++;
	assert_true(meta.sustained[ino - FIRST_INO]);
	meta.sustained[ino - FIRST_INO] = false;
	pthread_mutex_unlock(&meta.lock);
	if (meta.during_close)
		meta.during_close();
	return 0;
}

int cfs_meta_mknod(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		   struct cfs_entry *ret)
{
	int i = number_of(req->name, req->name_len), r = 0;

	pthread_mutex_lock(&meta.lock);
	if (meta.exists[i] || meta.sustained[i]) {
		r = -EEXIST;
	} else {
		meta.exists[i] = true;
		meta.attr[i] = make_attr(req->type);
	}
	ret->ino = FIRST_INO + (cfs_ino_t)i;
	ret->attr = meta.attr[i];
	pthread_mutex_unlock(&meta.lock);
	return r;
}

int cfs_meta_readdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		     size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct cfs_dirent e = {.name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_cursor after;
	char name[16];
	size_t n = 0;
	int i = 0, r = meta.during_readdir ? meta.during_readdir() : 0;

	if (r < 0)
		return r;
	pthread_mutex_lock(&meta.lock);
	meta.calls++;
	if ((int)limit > meta.max_limit)
		meta.max_limit = (int)limit;
	if (dir >= FIRST_INO)
		i = (int)(dir - FIRST_INO) + 1;
	if (cursor->len)
		memcpy(&i, cursor->key, sizeof(i));
	for (i = i < 0 ? FILES : i; i < FILES && n < limit; i++) {
		if (!meta.exists[i])
			continue;
		snprintf(name, sizeof(name), "f%05d", i % 100000);
		e.name = name;
		e.entry.ino = FIRST_INO + (cfs_ino_t)i;
		e.entry.attr = meta.attr[i];
		after.len = sizeof(i);
		memcpy(after.key, &(int){i + 1}, sizeof(i));
		e.after = &after;
		if (fn(arg, &e))
			break;
		*cursor = after;
		n++;
	}
	pthread_mutex_unlock(&meta.lock);
	return i >= FILES;
}

int cfs_meta_flock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   enum cfs_lock_type type, bool wait)
{
	meta.flocks += type == CFS_LOCK_NONE ? -1 : 1;
	return 0;
}

int cfs_meta_setlk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   const struct cfs_plock *lock, bool wait)
{
	if (lock->type == CFS_LOCK_NONE) {
		meta.unlocks = 1 + data.flushes;
		meta.unlocked_owners += owner;
	}
	return 0;
}

struct cfs_ctx cfs_ctx_internal(uint64_t timeout_ms)
{
	return (struct cfs_ctx){0};
}

void cfs_meta_stats(struct cfs_meta *m, struct cfs_meta_stats *ret)
{
	*ret = (struct cfs_meta_stats){0};
}

const char *cfs_meta_op_name(enum cfs_meta_op op)
{
	return "op";
}

static const struct below {
	uint64_t commits, gets, get_ns;
	uint32_t uploads;
} below = {77, 78, 1500000000, 79};

/* Of the layers below; the first two share a name. */
static const struct cfs_metric numbers_below[] = {
	CFS_METRIC(struct below, "object_requests_total", "method=\"get\"", "Gets", gets),
	CFS_METRIC(struct below, "object_requests_total", "method=\"put\"", NULL, commits),
	CFS_METRIC(struct below, "data_commits_total", NULL, "Commits", commits),
	CFS_METRIC(struct below, "store_uploads_queued", NULL, "Uploads", uploads),
	CFS_METRIC_NS(struct below, "object_request_seconds_total", "method=\"get\"", "Time",
		      get_ns),
};
static const struct cfs_metric_table below_table = CFS_METRIC_TABLE(numbers_below);
static struct cfs_metrics metrics;

static void create(const struct cfs_vfs_conf *conf)
{
	assert_int_equal(cfs_vfs_create(conf, &vfs), 0);
	metrics.n = 0;
	cfs_metrics_add(&metrics, &below_table, (void *)&below);
	cfs_metrics_add(&metrics, &cfs_vfs_metrics, vfs);
	meta.hooks = cfs_vfs_hooks(vfs);
}

#define REFUSE(name, ...)                                                                          \
	int name(__VA_ARGS__)                                                                      \
	{                                                                                          \
		return -ENOSYS;                                                                    \
	}
REFUSE(cfs_meta_readlink, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       char buf[CFS_SYMLINK_MAX + 1])
REFUSE(cfs_meta_each_path, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       cfs_path_fn fn, void *arg)
REFUSE(cfs_meta_link, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       cfs_ino_t parent, const char *name, size_t len, struct cfs_attr *ret)
REFUSE(cfs_meta_link_unnamed, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       cfs_ino_t parent, const char *name, size_t len, struct cfs_attr *ret)
REFUSE(cfs_meta_make_unnamed, struct cfs_meta *m, const struct cfs_ctx *ctx,
       const struct cfs_mknod *req, struct cfs_entry *ret)
REFUSE(cfs_meta_rmdir, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
       const char *name, size_t len, unsigned flags, struct cfs_removed *ret)
REFUSE(cfs_meta_rename, struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *req,
       struct cfs_renamed *ret)
REFUSE(cfs_meta_access, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask,
       const struct cfs_attr *attr)
REFUSE(cfs_meta_touch_atime, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       enum cfs_atime mode, struct cfs_attr *attr)
REFUSE(cfs_meta_statfs, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t root,
       struct cfs_statfs *ret)
REFUSE(cfs_meta_truncate, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       uint64_t length, struct cfs_attr *ret)
uint64_t cfs_meta_sid(struct cfs_meta *m)
{
	return meta.sid;
}

bool cfs_meta_holds_lock(struct cfs_meta *m, uint64_t sid, cfs_ino_t ino, uint64_t owner,
			 bool posix)
{
	return meta.holds_locks;
}

void cfs_meta_assume_lock(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix)
{
	meta.assumed++;
}

void cfs_meta_unlock_again(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix,
			   void *note)
{
	meta.unlocks_again += owner;
	meta.hooks.drop_unlock(meta.hooks.arg, note);
}

REFUSE(cfs_meta_getlk, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
       struct cfs_plock *lock)
REFUSE(cfs_meta_removexattr, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       const char *name)

int cfs_meta_sync_dirs(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	return 0;
}

/* Judges others only: whether they may write. */
int cfs_meta_open_check(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_attr *attr,
			int flags, bool is_open)
{
	bool judged = ctx->check && ctx->uid != 0 && (flags & O_ACCMODE) != O_RDONLY;

	return judged && !(attr->mode & 02) ? -EACCES : 0;
}

ssize_t cfs_meta_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  const char *name, void *buf, size_t size)
{
	meta.calls++;
	if (!meta.xattr_len)
		return -ENODATA;
	if (size < meta.xattr_len)
		return size ? -ERANGE : (ssize_t)meta.xattr_len;
	memset(buf, 'x', meta.xattr_len);
	return (ssize_t)meta.xattr_len;
}

int cfs_meta_setxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      const char *name, const void *value, size_t size, int flags)
{
	if (meta.xattr_len && (flags & XATTR_CREATE))
		return -EEXIST;
	meta.xattr_len = size;
	return 0;
}

ssize_t cfs_meta_listxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, char *buf,
			   size_t size)
{
	static const char names[] = "user.a\0security.x\0user.b";

	if (size)
		memcpy(buf, names, sizeof(names));
	return sizeof(names);
}

/* ---- a data layer: one length for all files ---- */

/* Its place in the array says which inode it is of. */
struct cfs_file {
	char unused;
};
static struct cfs_file files[FILES];

bool cfs_data_reads_ahead(const struct cfs_data *d)
{
	return false;
}

int cfs_data_read_ahead(struct cfs_data *d, const struct cfs_ctx *ctx, struct cfs_head *heads,
			size_t n)
{
	return 0;
}

int cfs_data_open(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr, uint64_t asked_ns,
		  struct cfs_file **ret)
{
	*ret = &files[ino - FIRST_INO];
	return 0;
}

void cfs_file_put(struct cfs_file *f)
{
}

void cfs_file_refresh(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
}

void cfs_file_reopen(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
}

int cfs_file_setattr(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret)
{
	return -EAGAIN;
}

int cfs_file_store_change(struct cfs_file *f, const struct cfs_ctx *ctx)
{
	return 0;
}

bool cfs_file_takes_change(struct cfs_file *f)
{
	return false;
}

uint64_t cfs_data_changed_files(struct cfs_data *d)
{
	return 0;
}

struct cfs_whole_file *cfs_file_take_whole(struct cfs_file *f, const struct cfs_attr *attr,
					   uint64_t asked_ns)
{
	return NULL;
}

bool cfs_file_is_whole(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns,
		       const struct cfs_whole_file *w)
{
	return false;
}

void cfs_data_refuse_whole(struct cfs_data *d)
{
}

void cfs_whole_put(struct cfs_whole_file *w)
{
}

int cfs_whole_get_fd(struct cfs_whole_file *w)
{
	return -1;
}

void cfs_whole_put_fd(struct cfs_whole_file *w)
{
}

bool cfs_file_has_list(struct cfs_file *f)
{
	return false;
}

void cfs_file_take_list(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns,
			struct cfs_slice *recs, size_t n)
{
}

void cfs_file_overlay_attr(struct cfs_file *f, struct cfs_attr *attr)
{
	pthread_mutex_lock(&meta.lock);
	if (data.length)
		attr->length = data.length;
	pthread_mutex_unlock(&meta.lock);
}

void cfs_file_last_attr(struct cfs_file *f, struct cfs_attr *ret)
{
	*ret = (struct cfs_attr){.type = CFS_TYPE_FILE};
	cfs_file_overlay_attr(f, ret);
}

void cfs_file_end_stream(struct cfs_file *f, uint64_t stream)
{
}

uint32_t cfs_file_err_seq(struct cfs_file *f)
{
	return 0;
}

int cfs_file_flush(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t err_seq)
{
	pthread_mutex_lock(&meta.lock);
	data.flushes++;
	if (data.dirty)
		meta.attr[f - files].length = data.length;
	data.dirty = false;
	pthread_mutex_unlock(&meta.lock);
	return 0;
}

int cfs_file_fsync(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t *err_seq)
{
	return cfs_file_flush(f, ctx, *err_seq);
}

int cfs_file_flush_later(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t err_seq,
			 cfs_file_closed_fn closed, void *arg)
{
	if (data.closed)
		return 0;
	data.closed = closed;
	data.closed_arg = arg;
	return 1;
}

bool cfs_data_has_closed(struct cfs_data *d)
{
	return data.closed;
}

int cfs_data_await_closed(struct cfs_data *d, cfs_deadline_t deadline)
{
	cfs_file_closed_fn closed = data.closed;

	data.awaited++;
	data.closed = NULL;
	data.dirty = data.dirty && !closed;
	if (closed)
		closed(data.closed_arg, data.closed_err);
	return 0;
}

int cfs_data_sync_closed(struct cfs_data *d, cfs_deadline_t deadline)
{
	return cfs_data_await_closed(d, deadline);
}

void cfs_data_end_closed(struct cfs_data *d)
{
	cfs_data_await_closed(d, 0);
}

void cfs_file_set_mark(struct cfs_file *f, _Atomic uint32_t *mark)
{
	pthread_mutex_lock(&meta.lock);
	data.mark = mark;
	pthread_mutex_unlock(&meta.lock);
}

void cfs_file_drop_mark(struct cfs_file *f, _Atomic uint32_t *mark)
{
	if (data.mark == mark)
		data.mark = NULL;
}

uint64_t cfs_file_length(struct cfs_file *f)
{
	return data.length;
}

bool cfs_file_dirty(struct cfs_file *f)
{
	bool dirty;

	pthread_mutex_lock(&meta.lock);
	dirty = data.dirty;
	pthread_mutex_unlock(&meta.lock);
	return dirty;
}

int cfs_file_write(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, bool append,
		   const struct iovec *src, int n_src, uint64_t *ret_off)
{
	pthread_mutex_lock(&meta.lock);
	*ret_off = append ? data.length : off;
	data.length = *ret_off + src[0].iov_len;
	data.dirty = true;
	pthread_mutex_unlock(&meta.lock);
	return 0;
}

int cfs_file_truncate(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t length,
		      struct cfs_attr *ret)
{
	if (data.truncate_err)
		return data.truncate_err;
	data.length = length;
	*ret = meta.attr[f - files];
	return 0;
}

REFUSE(cfs_file_read, struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t stream, uint64_t off,
       uint32_t size, struct cfs_async *async, struct cfs_segs *ret)
REFUSE(cfs_file_fallocate, struct cfs_file *f, const struct cfs_ctx *ctx, unsigned mode,
       uint64_t off, uint64_t len, struct cfs_attr *ret)
REFUSE(cfs_file_copy_range, struct cfs_file *src, uint64_t src_off, struct cfs_file *dst,
       uint64_t dst_off, uint64_t len, const struct cfs_ctx *ctx, uint64_t *ret_copied,
       struct cfs_attr *ret_dst)
REFUSE(cfs_file_seek, struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, int whence,
       uint64_t *ret_off)
REFUSE(cfs_data_delete_slice, struct cfs_data *d, uint64_t slice, uint32_t size)
REFUSE(cfs_data_slices_used, struct cfs_data *d, uint64_t first, uint64_t n,
       cfs_deadline_t deadline)
REFUSE(cfs_data_sync_objects, struct cfs_data *d)

void cfs_data_queue_compact(struct cfs_data *d, cfs_ino_t ino, uint32_t indx, bool force)
{
}

/* ---- the mount ---- */

void start(uint64_t timeout_ms, cfs_ino_t root)
{
	struct cfs_vfs_conf conf = {
		.root = root,
		.attr_timeout_ms = timeout_ms,
		.entry_timeout_ms = timeout_ms,
		.dir_entry_timeout_ms = timeout_ms,
		.hide_internal = true,
		.pool = pool,
		.metrics = &metrics,
	};

	memset(&meta, 0, sizeof(meta));
	memset(&data, 0, sizeof(data));
	pthread_mutex_init(&meta.lock, NULL);
	create(&conf);
}

void start_kept(struct cfs_handoff *handoff)
{
	const struct cfs_vfs_conf conf = {.hide_internal = true,
					  .pool = pool,
					  .metrics = &metrics,
					  .handoff = handoff,
					  .commit_later = data.commit_later};

	create(&conf);
}

void vfs_abandon(void)
{
	static struct cfs_vfs *abandoned[64];
	static size_t n;

	assert_true(n < CFS_ARRAY_SIZE(abandoned));
	abandoned[n++] = vfs;
	vfs = NULL;
}

int make_pool(void **state)
{
	return cfs_pool_create(64 << 20, &pool);
}

int free_pool(void **state)
{
	cfs_pool_destroy(pool);
	return 0;
}

int stop(void **state)
{
	cfs_vfs_destroy(vfs);
	vfs = NULL;
	return 0;
}

struct cfs_ctx ctx(void)
{
	return cfs_vfs_ctx(vfs, 0, 0, 1);
}

int lookup(const char *name, struct cfs_vfs_entry *ret)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_lookup(vfs, &c, CFS_ROOT_INO, name, strlen(name), ret);
}

uint64_t open_file(int i, int flags)
{
	struct cfs_vfs_open o = {0};
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + (cfs_ino_t)i, flags, &o), 0);
	assert_int_not_equal(o.fh, 0);
	return o.fh;
}

int release(uint64_t fh)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_release(vfs, &c, fh);
}

int unlink_file(const char *name)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_unlink(vfs, &c, CFS_ROOT_INO, name, strlen(name));
}

void chmod_file(int i, uint16_t mode)
{
	struct cfs_attr in = {.mode = mode};
	struct cfs_vfs_attr a;
	struct cfs_ctx c = ctx();

	assert_int_equal(
		cfs_vfs_setattr(vfs, &c, FIRST_INO + (cfs_ino_t)i, 0, CFS_SET_MODE, &in, &a), 0);
}

uint16_t mode_of(int i)
{
	struct cfs_vfs_attr a;
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + (cfs_ino_t)i, &a), 0);
	return a.attr.mode;
}
