/* SPDX-License-Identifier: Apache-2.0 */
/* The VFS over a metadata engine and a data layer made of arrays, which count and can interfere. */
#include <cachefs/vfs.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a metadata engine: one directory, files named "f%05u" with inode 1000 + number ---- */

#define FILES	  6000
#define FIRST_INO 1000

static struct {
	pthread_mutex_t lock;
	bool exists[FILES], sustained[FILES];
	struct cfs_attr attr[FILES];
	int calls, closed, flocks, unlocks, max_limit;
	uint64_t unlocked_owners;
	cfs_ino_t dir_asked;
	bool fill_attrs;
	struct cfs_meta_hooks hooks;
	void (*during_getattr)(void);
	void (*after_unlink)(void);
} meta;

static struct {
	uint64_t length;
	bool dirty;
	int flushes, flush_before_setattr, opened;
} data;

static struct cfs_vfs *vfs;
static struct cfs_pool *pool;

static struct cfs_attr make_attr(uint8_t type)
{
	return (struct cfs_attr){.type = type,
				 .mode = 0644,
				 .nlink = 1,
				 .parent = 1,
				 .mtime = {1000, 5},
				 .ctime = {1000, 5}};
}

static int number_of(const char *name, size_t len)
{
	char text[16] = "";

	if (len != 6 || name[0] != 'f')
		return -1;
	memcpy(text, name + 1, 5);
	return atoi(text);
}

static void fill_engine(int n)
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
	return r;
}

int cfs_meta_getattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret)
{
	int r = 0;

	pthread_mutex_lock(&meta.lock);
	meta.calls++;
	if (ino < FIRST_INO)
		*ret = make_attr(CFS_TYPE_DIR);
	else if (meta.exists[ino - FIRST_INO] || meta.sustained[ino - FIRST_INO])
		*ret = meta.attr[ino - FIRST_INO];
	else
		r = -ENOENT;
	pthread_mutex_unlock(&meta.lock);
	if (meta.during_getattr)
		meta.during_getattr();
	return r;
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

int cfs_meta_unlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t len, unsigned flags, struct cfs_removed *ret)
{
	int i = number_of(name, len), r = -ENOENT;

	pthread_mutex_lock(&meta.lock);
	if (i >= 0 && meta.exists[i]) {
		bool open = meta.hooks.is_open(meta.hooks.arg, FIRST_INO + (cfs_ino_t)i);

		meta.exists[i] = false;
		meta.sustained[i] = open;
		ret->fate = open ? CFS_FATE_SUSTAINED : CFS_FATE_DELETED;
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
	char name[8];
	size_t n = 0;
	int i = 0;

	meta.calls++;
	if ((int)limit > meta.max_limit)
		meta.max_limit = (int)limit;
	if (cursor->len)
		memcpy(&i, cursor->key, sizeof(i));
	for (; i < FILES && n < limit; i++) {
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
			return 0;
		*cursor = after;
		n++;
	}
	return i == FILES;
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

void cfs_data_stats(struct cfs_data *d, struct cfs_data_stats *ret)
{
	*ret = (struct cfs_data_stats){.commits = 77};
}

void cfs_store_stats(struct cfs_store *s, struct cfs_store_stats *ret)
{
	*ret = (struct cfs_store_stats){.gets = 78, .uploads_queued = 79, .get_ns = 1500000000};
}

#define REFUSE(name, ...)                                                                          \
	int name(__VA_ARGS__)                                                                      \
	{                                                                                          \
		return -ENOSYS;                                                                    \
	}
REFUSE(cfs_meta_readlink, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       char buf[CFS_SYMLINK_MAX + 1])
REFUSE(cfs_meta_link, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       cfs_ino_t parent, const char *name, size_t len, struct cfs_attr *ret)
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
REFUSE(cfs_meta_sync, struct cfs_meta *m, const struct cfs_ctx *ctx)
REFUSE(cfs_meta_truncate, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       uint64_t length, struct cfs_attr *ret)
REFUSE(cfs_meta_getlk, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
       struct cfs_plock *lock)
REFUSE(cfs_meta_setxattr, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       const char *name, const void *value, size_t size, int flags)
REFUSE(cfs_meta_removexattr, struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
       const char *name)

int cfs_meta_open_check(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_attr *attr,
			int flags)
{
	return 0;
}

ssize_t cfs_meta_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  const char *name, void *buf, size_t size)
{
	meta.calls++;
	return -ENODATA;
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

struct cfs_file {
	cfs_ino_t ino;
};
static struct cfs_file files[FILES];

int cfs_data_open(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr,
		  struct cfs_file **ret)
{
	*ret = &files[ino - FIRST_INO];
	return 0;
}

void cfs_file_put(struct cfs_file *f)
{
}

void cfs_file_refresh(struct cfs_file *f, const struct cfs_attr *attr)
{
}

void cfs_file_reopen(struct cfs_file *f, const struct cfs_attr *attr)
{
}

void cfs_file_overlay_attr(struct cfs_file *f, struct cfs_attr *attr)
{
	if (data.length)
		attr->length = data.length;
}

void cfs_file_end_stream(struct cfs_file *f, uint64_t stream)
{
}

uint32_t cfs_file_error_mark(struct cfs_file *f)
{
	return 0;
}

int cfs_file_flush(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t *seen)
{
	data.flushes++;
	data.dirty = false;
	return 0;
}

bool cfs_file_dirty(struct cfs_file *f)
{
	return data.dirty;
}

int cfs_file_write(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, bool append,
		   const struct iovec *src, int n_src, uint64_t *ret_off)
{
	*ret_off = append ? data.length : off;
	data.length = *ret_off + src[0].iov_len;
	data.dirty = true;
	return 0;
}

REFUSE(cfs_file_read, struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t stream, uint64_t off,
       uint32_t size, struct cfs_segs *ret)
REFUSE(cfs_file_fsync, struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t *seen)
REFUSE(cfs_file_truncate, struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t length,
       struct cfs_attr *ret)
REFUSE(cfs_file_fallocate, struct cfs_file *f, const struct cfs_ctx *ctx, unsigned mode,
       uint64_t off, uint64_t len, struct cfs_attr *ret)
REFUSE(cfs_file_copy_range, struct cfs_file *src, uint64_t src_off, struct cfs_file *dst,
       uint64_t dst_off, uint64_t len, const struct cfs_ctx *ctx, uint64_t *ret_copied,
       struct cfs_attr *ret_dst)
REFUSE(cfs_file_seek, struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, int whence,
       uint64_t *ret_off)
REFUSE(cfs_data_delete_slice, struct cfs_data *d, uint64_t slice, uint32_t size)

void cfs_data_queue_compact(struct cfs_data *d, cfs_ino_t ino, uint32_t indx, bool force)
{
}

/* ---- fixture ---- */

static void start(uint64_t timeout_ms, cfs_ino_t root)
{
	struct cfs_vfs_conf conf = {
		.root = root,
		.attr_timeout_ms = timeout_ms,
		.entry_timeout_ms = timeout_ms,
		.dir_entry_timeout_ms = timeout_ms,
		.hide_internal = true,
		.pool = pool,
	};

	memset(&meta, 0, sizeof(meta));
	memset(&data, 0, sizeof(data));
	pthread_mutex_init(&meta.lock, NULL);
	assert_int_equal(cfs_vfs_create(&conf, &vfs), 0);
	meta.hooks = cfs_vfs_hooks(vfs);
}

static int make_pool(void **state)
{
	return cfs_pool_create(8 << 20, &pool);
}

static int free_pool(void **state)
{
	cfs_pool_destroy(pool);
	return 0;
}

static int stop(void **state)
{
	cfs_vfs_destroy(vfs);
	vfs = NULL;
	return 0;
}

static struct cfs_ctx ctx(void)
{
	return cfs_vfs_ctx(vfs, 0, 0, 1);
}

static int lookup(const char *name, struct cfs_vfs_entry *ret)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_lookup(vfs, &c, CFS_ROOT_INO, name, strlen(name), ret);
}

static uint64_t open_file(int i, int flags)
{
	struct cfs_vfs_open o = {0};
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + (cfs_ino_t)i, flags, &o), 0);
	assert_int_not_equal(o.fh, 0);
	return o.fh;
}

static int release(uint64_t fh)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_release(vfs, &c, fh);
}

static int unlink_file(const char *name)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_unlink(vfs, &c, CFS_ROOT_INO, name, strlen(name));
}

static void chmod_file(int i, uint16_t mode)
{
	struct cfs_attr in = {.mode = mode};
	struct cfs_vfs_attr a;
	struct cfs_ctx c = ctx();

	assert_int_equal(
		cfs_vfs_setattr(vfs, &c, FIRST_INO + (cfs_ino_t)i, 0, CFS_SET_MODE, &in, &a), 0);
}

static uint16_t mode_of(int i)
{
	struct cfs_vfs_attr a;
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + (cfs_ino_t)i, &a), 0);
	return a.attr.mode;
}

/* ---- listings ---- */

struct walk {
	int budget, got, with_attrs, last;
	uint64_t off;
	uint8_t seen[FILES];
	uint64_t offs[FILES];
};

static int take(void *arg, const struct cfs_vfs_dirent *e)
{
	struct walk *w = arg;
	int i = number_of(e->name, e->name_len);

	if (!w->budget--)
		return 1;
	w->got++;
	if (i >= 0) {
		w->offs[i] = w->off;
		w->seen[i]++;
		w->with_attrs += e->entry != NULL;
		w->last = i;
	}
	w->off = e->next_off;
	return 0;
}

static int list_some(uint64_t fh, struct walk *w, int budget)
{
	struct cfs_ctx c = ctx();

	w->budget = budget;
	w->got = 0;
	assert_int_equal(cfs_vfs_readdir(vfs, &c, fh, w->off, true, take, w), 0);
	return w->got;
}

static uint64_t open_root(void)
{
	struct cfs_ctx c = ctx();
	uint64_t fh = 0;

	assert_int_equal(cfs_vfs_opendir(vfs, &c, CFS_ROOT_INO, &fh), 0);
	return fh;
}

static void close_dir(uint64_t fh)
{
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_releasedir(vfs, &c, fh), 0);
}

/* Without it: rm -rf leaves files behind, or backups miss files, when a directory changes. */
static void listing_sees_every_lasting_entry_once(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	char name[8];
	uint64_t fh;
	int i;

	start(1000, 0);
	fill_engine(5000);
	fh = open_root();
	while (list_some(fh, w, 7)) {
		for (i = 0; i < w->last; i += 3) {
			snprintf(name, sizeof(name), "f%05d", i % 100000);
			if (meta.exists[i])
				assert_int_equal(unlink_file(name), 0);
		}
	}
	for (i = 0; i < 5000; i++)
		assert_int_equal(w->seen[i], 1);
	assert_true(meta.max_limit <= 1000);
	close_dir(fh);
	free(w);
}

/* Without it: programs that use telldir and seekdir read the wrong entries. */
static void listing_goes_back_to_any_offset(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	static const int to[] = {4999, 0, 2500, 3, 4000, 1999, 2000, 2001, 5500};
	uint64_t fh;
	size_t i;

	start(1000, 0);
	fill_engine(FILES);
	fh = open_root();
	while (list_some(fh, w, 100))
		;
	for (i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
		w->off = w->offs[to[i]];
		assert_int_equal(list_some(fh, w, 1), 1);
		assert_int_equal(w->last, to[i]);
	}
	w->off = 0;
	assert_int_equal(list_some(fh, w, 2), 2);
	assert_int_equal(w->off, 2);
	close_dir(fh);
	free(w);
}

/* Without it: a file that was just removed or changed comes back as it was, out of a listing. */
static void listing_gives_no_attributes_that_are_outdated(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh, file;

	start(60000, 0);
	fill_engine(40);
	fh = open_root();
	assert_int_equal(list_some(fh, w, 12), 12);
	assert_int_equal(w->with_attrs, 10);
	chmod_file(20, 0600);
	assert_int_equal(unlink_file("f00030"), 0);
	file = open_file(35, O_RDWR);
	w->with_attrs = 0;
	while (list_some(fh, w, 10))
		;
	/* Inodes that share a set with the three may have lost theirs too. */
	assert_in_range(w->with_attrs, 20, 27);
	close_dir(fh);
	release(file);
	free(w);
}

/* ---- caches ---- */

/* Without it: what another mount changes stays invisible for twice as long as promised, or forever.
 */
static void answers_are_kept_for_their_time_and_no_longer(void **state)
{
	struct cfs_vfs_entry e;
	int calls;

	start(60000, 0);
	fill_engine(3);
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(e.attr_ms, 60000);
	calls = meta.calls;
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(meta.calls, calls);
	assert_in_range(e.attr_ms, 1, 60000);
	assert_in_range(e.entry_ms, 1, 60000);
	cfs_vfs_forget(vfs, FIRST_INO + 1, 1);
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(meta.calls, calls + 1);
	stop(NULL);

	start(0, 0);
	fill_engine(3);
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(e.attr_ms, 0);
	calls = meta.calls;
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(meta.calls, calls + 1);
}

static void chmod_behind(void)
{
	meta.during_getattr = NULL;
	chmod_file(1, 0700);
}

/* Without it: a chmod that has returned is undone for the length of the attribute timeout. */
static void a_slow_answer_does_not_replace_a_change(void **state)
{
	start(60000, 0);
	fill_engine(3);
	meta.during_getattr = chmod_behind;
	assert_int_equal(mode_of(1), 0644);
	assert_int_equal(mode_of(1), 0700);
}

/* Without it: a removed or recreated name is still answered from memory. */
static void changes_of_names_are_seen_at_once(void **state)
{
	struct cfs_mknod req = {
		.parent = 1, .name = "f00002", .name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(60000, 0);
	fill_engine(3);
	c = ctx();
	assert_int_equal(lookup("f00002", &e), 0);
	assert_int_equal(unlink_file("f00002"), 0);
	assert_int_equal(lookup("f00002", &e), -ENOENT);
	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), 0);
	assert_int_equal(lookup("f00002", &e), 0);
	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), -EEXIST);
}

/* Without it: a subdirectory mount lets its users climb into the rest of the volume. */
static void nothing_is_above_the_root_of_a_subdirectory(void **state)
{
	struct cfs_vfs_entry e;

	start(1000, 77);
	assert_int_equal(lookup("..", &e), 0);
	assert_int_equal(meta.dir_asked, 0);
	assert_int_equal(e.ino, CFS_ROOT_INO);
}

/* Without it: a handle that name_to_handle_at(2) gave cannot be opened any more. */
static void any_inode_is_found_as_its_own_dot(void **state)
{
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(1000, 0);
	fill_engine(1);
	c = ctx();
	assert_int_equal(cfs_vfs_lookup(vfs, &c, FIRST_INO, ".", 1, &e), 0);
	assert_int_equal(e.ino, FIRST_INO);
	assert_int_equal(e.attr.type, CFS_TYPE_FILE);
	assert_int_equal(cfs_vfs_lookup(vfs, &c, FIRST_INO + 1, ".", 1, &e), -ENOENT);
}

static void read_special(const char *name, char *buf, size_t size)
{
	struct cfs_vfs_open o = {0};
	struct cfs_vfs_entry e;
	struct cfs_segs segs;
	struct cfs_ctx c = ctx();

	assert_int_equal(lookup(name, &e), 0);
	assert_int_equal(cfs_vfs_open(vfs, &c, e.ino, O_RDONLY, &o), 0);
	cfs_segs_init(&segs);
	assert_int_equal(cfs_vfs_read(vfs, &c, o.fh, 0, (uint32_t)size - 1, &segs), 0);
	assert_true(segs.len > 0 && segs.len < size);
	cfs_segs_copy_out(&segs, 0, buf, segs.len);
	buf[segs.len] = '\0';
	cfs_segs_release(&segs);
	assert_int_equal(release(o.fh), 0);
}

/* Without it: monitoring shows the number of one thing under the name of another. */
static void numbers_stand_beside_their_names(void **state)
{
	static char text[65536];

	start(0, 0);
	read_special(".stats", text, sizeof(text));
	assert_non_null(strstr(text, "\ncachefs_data_commits_total 77\n"));
	assert_non_null(strstr(text, "\ncachefs_object_requests_total{method=\"get\"} 78\n"));
	assert_non_null(strstr(text, "\ncachefs_store_uploads_queued 79\n"));
	assert_non_null(
		strstr(text, "\ncachefs_object_request_seconds_total{method=\"get\"} 1.500000\n"));
}

/* Without it: a reader of the log who falls behind takes all memory, or is not told of gaps. */
static void a_slow_reader_of_the_log_is_told_what_it_lost(void **state)
{
	char text[65536];
	struct cfs_vfs_open o = {0};
	struct cfs_vfs_entry e;
	struct cfs_segs segs;
	size_t all = 0, i, n = 20000;
	struct cfs_ctx c;

	start(0, 0);
	c = ctx();
	assert_false(cfs_vfs_logging(vfs));
	assert_int_equal(lookup(".accesslog", &e), 0);
	assert_int_equal(cfs_vfs_open(vfs, &c, e.ino, O_RDONLY, &o), 0);
	assert_true(cfs_vfs_logging(vfs));
	for (i = 0; i < n; i++)
		cfs_vfs_log(vfs, &c, "lookup", "1,a name\nwith a break", -ENOENT, 1234567);
	do {
		cfs_segs_init(&segs);
		assert_int_equal(cfs_vfs_read(vfs, &c, o.fh, all, sizeof(text) - 1, &segs), 0);
		cfs_segs_copy_out(&segs, 0, text, segs.len);
		text[segs.len] = '\0';
		all += segs.len;
		if (all == segs.len)
			assert_non_null(strstr(text, "[uid:0,gid:0,pid:1] lookup (1,a name?with a "
						     "break): No such file or directory <0.001234>"
						     "\n"));
		cfs_segs_release(&segs);
	} while (strcmp(text, "#\n") != 0);
	assert_true(all <= (1 << 20) + 100);
	cfs_vfs_log(vfs, &c, "lookup", "1,f", 0, 0);
	cfs_segs_init(&segs);
	assert_int_equal(cfs_vfs_read(vfs, &c, o.fh, all, sizeof(text) - 1, &segs), 0);
	cfs_segs_copy_out(&segs, 0, text, segs.len);
	text[segs.len] = '\0';
	cfs_segs_release(&segs);
	assert_memory_equal(text, "# ", 2);
	assert_non_null(strstr(text, " lines lost\n"));
	assert_non_null(strstr(text, "lookup (1,f): OK <0.000000>\n"));
	assert_int_equal(release(o.fh), 0);
	assert_false(cfs_vfs_logging(vfs));
}

/* Without it: an OFD lock, which nobody releases by name, is held until the mount ends. */
static void every_owner_of_a_handle_loses_its_locks_with_it(void **state)
{
	struct cfs_plock lock = {.type = CFS_LOCK_WRITE, .end = 9};
	struct cfs_ctx c;
	uint64_t fh;

	start(0, 0);
	fill_engine(1);
	c = ctx();
	fh = open_file(0, O_RDWR);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 11, &lock, false), 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 22, &lock, false), 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 22, &lock, false), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 11), 0);
	assert_int_equal(meta.unlocked_owners, 11);
	assert_int_equal(release(fh), 0);
	assert_int_equal(meta.unlocked_owners, 11 + 22);
}

/* Without it: files served over root-squash belong to root after all, or nobody may use them. */
static void identities_are_replaced(void **state)
{
	struct cfs_vfs_conf conf = {.squash_root = {true, 5, 6}};
	struct cfs_ctx c;

	assert_int_equal(cfs_vfs_create(&conf, &vfs), 0);
	c = cfs_vfs_ctx(vfs, 0, 0, 1);
	assert_true(c.uid == 5 && c.gid == 6 && c.check && c.admin && !c.n_groups);
	c = cfs_vfs_ctx(vfs, 7, 8, 1);
	assert_true(c.uid == 7 && c.gid == 8 && !c.check && !c.admin);
	cfs_vfs_destroy(vfs);
	conf.squash_all = (struct cfs_vfs_squash){true, 9, 10};
	conf.check_permissions = true;
	assert_int_equal(cfs_vfs_create(&conf, &vfs), 0);
	c = cfs_vfs_ctx(vfs, 0, 0, 1);
	assert_true(c.uid == 9 && c.gid == 10 && c.check);
	c = cfs_vfs_ctx(vfs, 7, 8, 1);
	assert_true(c.uid == 9 && c.gid == 10 && c.check && !c.n_groups);
}

/* Without it: names that the format keeps for itself can be created, and break other clients. */
static void reserved_names_are_refused(void **state)
{
	struct cfs_mknod req = {
		.parent = 1, .name = ".stats", .name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(1000, 0);
	c = ctx();
	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), -EEXIST);
	assert_int_equal(unlink_file(".trash"), -EPERM);
	assert_int_equal(lookup(".control", &e), -ENOENT);
}

/* ---- open files ---- */

/* Without it: after a restart of a program an old handle reads or writes somebody else's file. */
static void stale_handles_are_refused(void **state)
{
	struct cfs_ctx c;
	uint64_t fh, other;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	fh = open_file(1, O_RDONLY);
	assert_int_equal(release(fh), 0);
	other = open_file(2, O_RDONLY);
	assert_int_not_equal(fh, other);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, fh, false), -EBADF);
	assert_int_equal(release(fh), -EBADF);
	assert_int_equal(release(0), -EBADF);
	assert_int_equal(release(UINT64_MAX), -EBADF);
	assert_int_equal(cfs_vfs_releasedir(vfs, &c, other), -EBADF);
	assert_int_equal(release(other), 0);
}

/* Without it: a file that another mount has rewritten is read from stale pages. */
static void pages_are_kept_only_while_mtime_stays(void **state)
{
	struct cfs_vfs_open o;
	struct cfs_ctx c;
	static const bool want[] = {false, true, false, true};
	size_t i;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	for (i = 0; i < 4; i++) {
		if (i == 2)
			meta.attr[1].mtime.tv_nsec++;
		assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_RDONLY, &o), 0);
		assert_int_equal(o.keep_cache, want[i]);
		release(o.fh);
	}
}

/* Without it: an unlinked temporary file loses its data while in use, or its space for ever. */
static void an_unlinked_open_file_lives_until_its_last_close(void **state)
{
	struct cfs_vfs_attr a;
	struct cfs_ctx c;
	uint64_t fh1, fh2;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	fh1 = open_file(1, O_RDWR);
	fh2 = open_file(1, O_RDONLY);
	assert_int_equal(unlink_file("f00001"), 0);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + 1, &a), 0);
	release(fh1);
	assert_int_equal(meta.closed, 0);
	release(fh2);
	assert_int_equal(meta.closed, 1);
	assert_int_equal(unlink_file("f00002"), 0);
	assert_int_equal(meta.closed, 1);
}

static uint64_t held;

static void release_behind(void)
{
	meta.after_unlink = NULL;
	release(held);
}

/* Without it: a file closed in the middle of its unlink keeps its space until the unmount. */
static void a_close_during_the_unlink_is_noticed(void **state)
{
	start(1000, 0);
	fill_engine(3);
	held = open_file(1, O_RDWR);
	meta.after_unlink = release_behind;
	assert_int_equal(unlink_file("f00001"), 0);
	assert_int_equal(meta.closed, 1);
}

/* Without it: cp -p and tar leave the time of copying on what they copied. */
static void setting_times_comes_after_pending_writes(void **state)
{
	struct iovec iov = {(char[]){"abc"}, 3};
	struct cfs_attr in = {.mtime = {5, 0}};
	struct cfs_vfs_attr a;
	struct cfs_ctx c;
	uint64_t fh, at;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	fh = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, false, &iov, 1, &at), 0);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + 1, &a), 0);
	assert_int_equal(a.attr.length, 3);
	assert_int_equal(cfs_vfs_setattr(vfs, &c, FIRST_INO + 1, fh, CFS_SET_MTIME, &in, &a), 0);
	assert_int_equal(data.flush_before_setattr, 1);
	assert_int_equal(a.attr.length, 3);
	release(fh);
}

/* Without it: a crashed or careless program blocks others; or they read what was there before. */
static void locks_go_with_the_handle_and_after_the_data(void **state)
{
	struct cfs_plock all = {.type = CFS_LOCK_WRITE, .end = INT64_MAX};
	struct cfs_ctx c;
	uint64_t fh;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	fh = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_WRITE, false), 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 42, &all, false), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 42), 0);
	assert_int_equal(meta.unlocks, 2);
	assert_int_equal(meta.flocks, 1);
	release(fh);
	assert_int_equal(meta.flocks, 0);
}

/* Without it: each write costs a metadata round trip, and listings show attributes that cannot be
 * read. */
static void security_attributes_do_not_exist_by_default(void **state)
{
	char buf[64];
	struct cfs_ctx c;
	int calls;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	calls = meta.calls;
	assert_int_equal(cfs_vfs_getxattr(vfs, &c, FIRST_INO, "security.capability", NULL, 0),
			 -ENODATA);
	assert_int_equal(meta.calls, calls);
	assert_int_equal(cfs_vfs_listxattr(vfs, &c, FIRST_INO, buf, sizeof(buf)), 14);
	assert_memory_equal(buf, "user.a\0user.b", 14);
}

/* Without it: chattr drops flags that another client has set, or accepts what it cannot keep. */
static void unknown_inode_flags_are_refused(void **state)
{
	struct cfs_ctx c;
	uint32_t flags;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	meta.attr[1].flags = 4;
	assert_int_equal(cfs_vfs_set_flags(vfs, &c, FIRST_INO + 1, 0x10), 0);
	assert_int_equal(meta.attr[1].flags, 4 | CFS_FLAG_IMMUTABLE);
	assert_int_equal(cfs_vfs_get_flags(vfs, &c, FIRST_INO + 1, &flags), 0);
	assert_int_equal(flags, 0x10);
	assert_int_equal(cfs_vfs_set_flags(vfs, &c, FIRST_INO + 1, 0x40), -EOPNOTSUPP);
}

/* ---- threads ---- */

#define ROUNDS 2000

static void *open_and_close(void *arg)
{
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	struct cfs_mknod req = {.parent = 1, .name_len = 6, .type = CFS_TYPE_FILE};
	char name[8];
	int i;

	for (i = 0; i < ROUNDS; i++) {
		struct cfs_ctx c = ctx();

		snprintf(name, sizeof(name), "f%05d", i % 4);
		req.name = name;
		if (cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o) == 0) {
			if (i % 3 == 0)
				cfs_vfs_unlink(vfs, &c, 1, name, 6);
			lookup(name, &e);
			release(o.fh);
		}
	}
	return NULL;
}

/* Without it: parallel opens, removals and closes of one file leak it or use freed memory. */
static void parallel_users_of_one_file(void **state)
{
	pthread_t t[4];
	struct cfs_vfs_stats s;
	int i;

	start(1000, 0);
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, open_and_close, NULL), 0);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	cfs_vfs_stats(vfs, &s);
	assert_int_equal(s.handles, 0);
	assert_int_equal(s.open_inodes, 0);
	for (i = 0; i < 4; i++)
		assert_false(meta.sustained[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(listing_sees_every_lasting_entry_once, stop),
		cmocka_unit_test_teardown(listing_goes_back_to_any_offset, stop),
		cmocka_unit_test_teardown(listing_gives_no_attributes_that_are_outdated, stop),
		cmocka_unit_test_teardown(answers_are_kept_for_their_time_and_no_longer, stop),
		cmocka_unit_test_teardown(a_slow_answer_does_not_replace_a_change, stop),
		cmocka_unit_test_teardown(changes_of_names_are_seen_at_once, stop),
		cmocka_unit_test_teardown(nothing_is_above_the_root_of_a_subdirectory, stop),
		cmocka_unit_test_teardown(any_inode_is_found_as_its_own_dot, stop),
		cmocka_unit_test_teardown(numbers_stand_beside_their_names, stop),
		cmocka_unit_test_teardown(a_slow_reader_of_the_log_is_told_what_it_lost, stop),
		cmocka_unit_test_teardown(every_owner_of_a_handle_loses_its_locks_with_it, stop),
		cmocka_unit_test_teardown(identities_are_replaced, stop),
		cmocka_unit_test_teardown(reserved_names_are_refused, stop),
		cmocka_unit_test_teardown(stale_handles_are_refused, stop),
		cmocka_unit_test_teardown(pages_are_kept_only_while_mtime_stays, stop),
		cmocka_unit_test_teardown(an_unlinked_open_file_lives_until_its_last_close, stop),
		cmocka_unit_test_teardown(a_close_during_the_unlink_is_noticed, stop),
		cmocka_unit_test_teardown(setting_times_comes_after_pending_writes, stop),
		cmocka_unit_test_teardown(locks_go_with_the_handle_and_after_the_data, stop),
		cmocka_unit_test_teardown(security_attributes_do_not_exist_by_default, stop),
		cmocka_unit_test_teardown(unknown_inode_flags_are_refused, stop),
		cmocka_unit_test_teardown(parallel_users_of_one_file, stop),
	};

	return cmocka_run_group_tests(tests, make_pool, free_pool);
}
