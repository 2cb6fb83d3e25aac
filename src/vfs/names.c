/* SPDX-License-Identifier: Apache-2.0 */
/* Names and attributes: the metadata calls with the caches in front of them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vfs-internal.h"

#define LISTED_AT_ONCE 1000

/* The caches' time, which counts from the moment when the engine was asked. */
static uint64_t to_ms(uint64_t ns)
{
	return ns / 1000000;
}

static bool is_dotdot(const char *name, size_t len)
{
	return len == 2 && !memcmp(name, "..", 2);
}

static int check_name(size_t len)
{
	return len > CFS_NAME_MAX ? -ENAMETOOLONG : 0;
}

uint32_t entry_timeout(const struct cfs_vfs *v, const struct cfs_attr *attr)
{
	return (uint32_t)(attr->type == CFS_TYPE_DIR ? v->conf.dir_entry_timeout_ms
						     : v->conf.entry_timeout_ms);
}

/*
 * n: the inode when it is open, or NULL. Bytes that were written here are committed in the
 * background: attributes that were cached before are outdated.
 */
static bool may_use_cache(struct vnode *n)
{
	return !n || !atomic_load_explicit(&n->written, memory_order_relaxed);
}

static void overlay_and_cache(struct cfs_vfs *v, struct vnode *n, cfs_ino_t ino, uint64_t seq,
			      uint64_t asked_ns, struct cfs_attr *attr)
{
	if (n)
		vnode_overlay(n, attr, asked_ns);
	if (may_use_cache(n))
		cache_put_attr(&v->cache, seq, to_ms(asked_ns), ino, attr);
}

bool accept_attr(struct cfs_vfs *v, cfs_ino_t ino, uint64_t seq, uint64_t asked_ns,
		 struct cfs_attr *attr)
{
	auto_vnode struct vnode *n = vnode_find(v, ino);

	overlay_and_cache(v, n, ino, seq, asked_ns, attr);
	return n || !cache_changed_since(&v->cache, ino, seq);
}

void inode_changed(struct cfs_vfs *v, cfs_ino_t ino, uint64_t seq, uint64_t asked_ns,
		   struct cfs_attr *attr)
{
	struct vnode *n = attr ? vnode_find(v, ino) : NULL;

	if (n) {
		vnode_overlay(n, attr, asked_ns);
		vnode_put(n);
		attr = NULL;
	}
	cache_changed(&v->cache, seq, to_ms(asked_ns), ino, attr);
}

/* attr: as the change left it, nlink 0 when not known. seq, asked_ns: from before the change. */
static void directory_changed(struct cfs_vfs *v, cfs_ino_t dir, uint64_t seq, uint64_t asked_ns,
			      const struct cfs_attr *attr)
{
	cache_changed(&v->cache, seq, to_ms(asked_ns), dir, attr && attr->nlink ? attr : NULL);
}

static int read_attr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret, uint32_t *ret_ms)
{
	uint64_t seq, asked_ns = cfs_now_ns();
	auto_vnode struct vnode *n = vnode_find(v, ino);
	int r;

	*ret_ms = (uint32_t)v->conf.attr_timeout_ms;
	if (may_use_cache(n) && cache_get_attr(&v->cache, ino, to_ms(asked_ns), ret, ret_ms))
		return 0;
	seq = cache_seq(&v->cache);
	r = cfs_meta_getattr(v->conf.meta, ctx, ino, ret);
	if (r == 0 && ino == CFS_TRASH_INO)
		ret->length = 0; /* as other clients show it, whatever is stored */
	if (r == 0)
		overlay_and_cache(v, n, ino, seq, asked_ns, ret);
	return r;
}

int get_attr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, struct cfs_attr *ret,
	     uint32_t *ret_ms)
{
	int r = read_attr(v, ctx, ino, ret, ret_ms);
	struct cfs_attr gone;

	/* A directory that was moved back from the trash is an ordinary one. */
	if ((r == -ENOENT || (r == 0 && cfs_ino_is_trash(ret->parent))) &&
	    removed_dir_find(v, ino, &gone)) {
		*ret = gone;
		r = 0;
	}
	return r;
}

int stale_if_gone(struct cfs_vfs *v, cfs_ino_t ino, int r)
{
	if (r != -ENOENT)
		return r;
	/* The kernel's second look-up must not find the old attributes in this cache. */
	cache_changed(&v->cache, 0, 0, ino, NULL);
	return -ESTALE;
}

/* Checks a permission that the metadata checks when it is asked: to search the directory. */
static bool may_search(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t dir)
{
	struct cfs_attr attr;
	uint32_t ms;

	return !ctx->check || (get_attr(v, ctx, dir, &attr, &ms) == 0 &&
			       cfs_meta_access(v->conf.meta, ctx, dir, X_OK, &attr) == 0);
}

static bool cached_lookup(struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len,
			  uint64_t now_ms, struct cfs_vfs_entry *ret)
{
	auto_vnode struct vnode *n = NULL;

	if (!(v->conf.entry_timeout_ms | v->conf.dir_entry_timeout_ms) ||
	    !cache_get_name(&v->cache, parent, name, len, now_ms, &ret->ino, &ret->entry_ms))
		return false;
	n = vnode_find(v, ret->ino);
	return may_use_cache(n) &&
	       cache_get_attr(&v->cache, ret->ino, now_ms, &ret->attr, &ret->attr_ms);
}

struct new_dir_listing {
	struct newdirs *dirs;
	cfs_ino_t dir;
	bool foreign;
};

static int compare_name(void *arg, const struct cfs_dirent *e)
{
	struct new_dir_listing *l = arg;

	l->foreign = !newdirs_knows(l->dirs, l->dir, e->name, e->name_len);
	return l->foreign;
}

/* True: all names in the directory are of this mount. */
static bool list_new_dir(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t dir)
{
	struct new_dir_listing l = {.dirs = &v->newdirs, .dir = dir};
	uint64_t began_ms = cfs_now_ms();
	struct cfs_cursor cursor = {0};
	int r;

	do
		r = cfs_meta_readdir(v->conf.meta, ctx, dir, false, LISTED_AT_ONCE, &cursor,
				     compare_name, &l);
	while (r == 0 && !l.foreign);
	if (r == 1 && !l.foreign) {
		newdirs_listed(&v->newdirs, dir, began_ms);
		return true;
	}
	newdirs_forget(&v->newdirs, dir);
	return false;
}

static bool is_absent(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t dir, const char *name,
		      size_t len, uint64_t now_ms)
{
	enum newdirs_answer answer;

	/* Where cachefs checks permissions, the metadata checks that the caller may search. */
	if (ctx->check || is_dotdot(name, len))
		return false;
	answer = newdirs_lookup(&v->newdirs, dir, name, len, now_ms);
	return answer == NEWDIRS_ABSENT || (answer == NEWDIRS_LIST && list_new_dir(v, ctx, dir) &&
					    !newdirs_knows(&v->newdirs, dir, name, len));
}

struct place {
	char *top; /* the path of the mount's root */
	bool inside;
};

static int compare_with_top(void *arg, const char *path)
{
	struct place *p = arg;
	size_t len;

	if (!p->top)
		return (p->top = strdup(path)) ? 0 : -ENOMEM;
	len = strlen(p->top);
	p->inside |= !strncmp(path, p->top, len) && (path[len] == '/' || !path[len]);
	return 0;
}

/*
 * Returns -ESTALE when a subdirectory mount has no name of the inode: a file handle, which an NFS
 * client may have made up, can name any inode of the volume.
 */
static int check_inside(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	struct place place = {0};
	int r;

	if (ino == v->conf.root || v->conf.root == CFS_ROOT_INO)
		return 0;
	r = cfs_meta_each_path(v->conf.meta, ctx, v->conf.root, compare_with_top, &place);
	if (!r && place.top)
		r = cfs_meta_each_path(v->conf.meta, ctx, ino, compare_with_top, &place);
	free(place.top);
	return !r && !place.inside ? -ESTALE : r;
}

/* The inode of a file handle (open_by_handle_at(2)): any inode, not only a directory. */
static int lookup_self(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct cfs_vfs_entry *ret)
{
	int r;

	ret->ino = ino_out(v, ino);
	ret->entry_ms = 0;
	if (!ino_is_special(ino)) {
		r = get_attr(v, ctx, ino, &ret->attr, &ret->attr_ms);
		if (!r)
			r = check_inside(v, ctx, ino);
	} else {
		ret->attr_ms = 0;
		r = special_getattr(v, ino, &ret->attr);
	}
	return r == 0 && ret->attr.nlink == 0 ? -ESTALE : r;
}

int cfs_vfs_lookup(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len, struct cfs_vfs_entry *ret)
{
	uint64_t seq, asked_ns = cfs_now_ns(), now_ms = to_ms(asked_ns);
	struct cfs_entry e;
	int r = check_name(len);

	ret->entry_ms = 0;
	if (r < 0)
		return r;
	parent = ino_in(v, parent);
	if (name_is_reserved(v, parent, name, len))
		return special_lookup(v, ctx, name, len, ret);
	/* ".." of the mount's root is the root itself, also of a subdirectory mount. */
	if (parent == v->conf.root && is_dotdot(name, len))
		len = 1;
	if (len == 1 && name[0] == '.')
		return lookup_self(v, ctx, parent, ret);
	if (!cached_lookup(v, parent, name, len, now_ms, ret) || !may_search(v, ctx, parent)) {
		if (is_absent(v, ctx, parent, name, len, now_ms))
			return -ENOENT;
		seq = cache_seq(&v->cache);
		r = cfs_meta_lookup(v->conf.meta, ctx, parent, name, len, &e);
		if (!r && is_dotdot(name, len))
			r = check_inside(v, ctx, e.ino);
		if (r == -ENOENT)
			ret->entry_ms = (uint32_t)v->conf.absent_timeout_ms;
		if (r < 0)
			return r;
		*ret = (struct cfs_vfs_entry){
			.ino = e.ino,
			.attr = e.attr,
			.attr_ms = (uint32_t)v->conf.attr_timeout_ms,
			.entry_ms = entry_timeout(v, &e.attr),
		};
		if (!accept_attr(v, e.ino, seq, asked_ns, &ret->attr))
			r = get_attr(v, ctx, e.ino, &ret->attr, &ret->attr_ms);
		if (r < 0)
			return stale_if_gone(v, e.ino, r);
		if (ret->entry_ms)
			cache_put_name(&v->cache, seq, now_ms + ret->entry_ms, parent, name, len,
				       ret->ino);
	}
	if (ret->attr.type == CFS_TYPE_DIR)
		ret->attr_ms = dircache_attr_limit(&v->dircache, ret->ino, now_ms, ret->attr_ms);
	cache_told(&v->cache, ret->ino, &ret->attr);
	ret->ino = ino_out(v, ret->ino);
	return 0;
}

void cfs_vfs_forget(struct cfs_vfs *v, cfs_ino_t ino)
{
	cache_forget(&v->cache, ino_in(v, ino));
	newdirs_forget(&v->newdirs, ino_in(v, ino));
	removed_dir_forget(v, ino_in(v, ino));
}

/*
 * Gets the last known attributes of a file that another mount has removed while it is open here.
 * Without them the kernel would also repeat the open(2) that has just made the file, and make
 * another one.
 */
static bool last_attr_if_open(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_attr *ret)
{
	auto_vnode struct vnode *n = vnode_find(v, ino);
	struct cfs_file *file = n ? vnode_file(n) : NULL;

	if (file)
		cfs_file_last_attr(file, ret);
	return file;
}

int cfs_vfs_getattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_vfs_attr *ret)
{
	int r;

	ret->ino = ino;
	if (ino_is_special(ino)) {
		ret->attr_ms = 0;
		return special_getattr(v, ino, &ret->attr);
	}
	ino = ino_in(v, ino);
	r = stale_if_gone(v, ino, get_attr(v, ctx, ino, &ret->attr, &ret->attr_ms));
	if (r == 0 && ret->attr.type == CFS_TYPE_DIR)
		ret->attr_ms = dircache_attr_limit(&v->dircache, ino, cfs_now_ms(), ret->attr_ms);
	if (r == 0)
		cache_told(&v->cache, ino, &ret->attr);
	return r == -ESTALE && last_attr_if_open(v, ino, &ret->attr) ? 0 : r;
}

/* ---- setattr ---- */

static int truncate_open(struct vnode *n, const struct cfs_ctx *ctx, uint64_t length,
			 struct cfs_attr *ret)
{
	bool same = cfs_file_length(vnode_file(n)) == length;
	struct cfs_ctx late = *ctx;
	int r;

	atomic_store_explicit(&n->written, true, memory_order_relaxed);
	r = cfs_file_truncate(vnode_file(n), ctx, length, ret);
	if (r < 0 || !same)
		return r;
	/* The engine leaves a file of that length unchanged, and the kernel its times to us. */
	late.now = cfs_wall();
	return cfs_meta_setattr(n->vfs->conf.meta, &late, n->node.key, CFS_SET_MTIME_NOW, ret, ret);
}

static int truncate_path(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint64_t length, struct cfs_attr *ret)
{
	auto_vnode struct vnode *n = vnode_get(v, ino);
	uint64_t asked_ns = cfs_now_ns();
	struct cfs_attr attr;
	int r;

	if (!n)
		return -ENOMEM;
	r = cfs_meta_getattr(v->conf.meta, ctx, ino, &attr);
	if (r == 0 && attr.type != CFS_TYPE_FILE)
		r = attr.type == CFS_TYPE_DIR ? -EISDIR : -EINVAL;
	if (r == 0)
		r = cfs_meta_open_check(v->conf.meta, ctx, &attr, O_WRONLY, vnode_file(n) != NULL);
	/* Also a file that is not open may have unstored bytes (close=committing). */
	if (r == 0)
		r = vnode_attach(n, &attr, asked_ns);
	return r ? r : truncate_open(n, ctx, length, ret);
}

static int change_size(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t fh,
		       uint64_t length, struct cfs_attr *ret)
{
	struct handle *h = fh ? handle_find(&v->handles, fh, HANDLE_FILE) : NULL;
	struct cfs_ctx own = permitted(ctx);

	if (length > CFS_FILE_MAX)
		return -EFBIG;
	if (h && h->vnode->node.key == ino)
		return truncate_open(h->vnode, &own, length, ret);
	return truncate_path(v, ctx, ino, length, ret);
}

int store_change(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	auto_vnode struct vnode *n =
		cfs_data_changed_files(v->conf.data) ? vnode_find(v, ino) : NULL;

	return n && vnode_file(n) ? cfs_file_store_change(vnode_file(n), ctx) : 0;
}

/* store_change() of the inode under a name. */
static int store_change_of(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent,
			   const char *name, size_t len)
{
	struct cfs_entry e;
	int r;

	if (!cfs_data_changed_files(v->conf.data))
		return 0;
	r = cfs_meta_lookup(v->conf.meta, ctx, parent, name, len, &e);
	if (r == 0)
		r = store_change(v, ctx, e.ino);
	return r == -ENOENT ? 0 : r; /* the operation that follows reports it */
}

/* 0: the change is shown here, and is stored with the file's data. -EAGAIN: store it. */
static int defer_change(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
			const struct cfs_attr *in, struct cfs_attr *ret)
{
	auto_vnode struct vnode *n = vnode_find(v, ino);
	int r = -EAGAIN;

	if (n && vnode_file(n))
		r = cfs_file_setattr(vnode_file(n), ctx, set, in, ret);
	if (r == 0)
		note_set_id(n, ret->mode);
	return r;
}

/*
 * Called before a setattr in the metadata. Stores attributes that wait for the data: they are
 * older. When the mtime is set, commits the data: a later commit would overwrite that mtime with
 * the time of the last write. Takes the time again, as these have stored a later ctime than that of
 * the request.
 */
static int settle_before_setattr(struct cfs_vfs *v, struct cfs_ctx *ctx, cfs_ino_t ino,
				 uint32_t set)
{
	auto_vnode struct vnode *n = vnode_find(v, ino);
	struct cfs_file *file = n ? vnode_file(n) : NULL;
	int r;

	if (!file)
		return 0;
	r = cfs_file_store_change(file, ctx);
	/* Errors go to the writers, whose handles have cursors of their own. */
	if (set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW) && cfs_file_dirty(file))
		cfs_file_flush(file, ctx, cfs_file_err_seq(file));
	ctx->now = cfs_wall();
	return r;
}

/*
 * Before a write or truncate by a caller other than the owner, the kernel removes setuid and setgid
 * as if by chmod(2), although the caller did not ask for it.
 */
static bool kills_set_id(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint16_t mode)
{
	const uint16_t set_id = S_ISUID | S_ISGID;
	struct cfs_attr now;
	uint32_t ms;

	return get_attr(v, ctx, ino, &now, &ms) == 0 && ctx->uid != now.uid && now.mode != mode &&
	       (now.mode & ~set_id) == (mode & ~set_id) && !(mode & ~now.mode);
}

/*
 * chown(-1, -1): the kernel sends no attribute, or its own ctime, and leaves the set-id bits to us.
 * It sends the same before fallocate(2) and copy_file_range(2) by a caller that may not keep the
 * bits. For callers other than the owner these operations clear the bits themselves, and chown(2)
 * must not.
 */
static int change_nothing(struct cfs_vfs *v, struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t *set,
			  struct cfs_vfs_attr *ret)
{
	const uint16_t set_id = S_ISUID | S_ISGID;
	int r = get_attr(v, ctx, ino, &ret->attr, &ret->attr_ms);
	uint16_t mode = ret->attr.mode;

	if (r < 0)
		return r;
	*set |= CFS_SET_CTIME;
	if (ret->attr.type == CFS_TYPE_DIR || !(mode & set_id))
		return 0;
	if (ctx->uid != 0 && ctx->uid != ret->attr.uid) {
		*set = 0;
		return 0;
	}
	*set |= caller_keeps_set_id(ctx) ? CFS_SET_KILL_SUID : dropped_set_id(ctx, &ret->attr);
	return 0;
}

int cfs_vfs_setattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t fh,
		    uint32_t set, const struct cfs_attr *in, struct cfs_vfs_attr *ret)
{
	uint64_t seq = cache_seq(&v->cache), asked_ns = cfs_now_ns();
	struct cfs_attr want = *in;
	struct cfs_ctx late = *ctx;
	int r = 0;

	ret->ino = ino;
	ret->attr_ms = (uint32_t)v->conf.attr_timeout_ms;
	if (ino_is_special(ino))
		return set & (CFS_VFS_SET_SIZE) ? special_getattr(v, ino, &ret->attr) : -EPERM;
	ino = ino_in(v, ino);
	/*
	 * With writeback_cache the kernel sends a ctime of its own. It counts in ticks of the kernel,
	 * and other mounts would not see the second of two changes within one.
	 */
	want.ctime = ctx->now;
	/* The format has no times before 1970 and its clients take them for "now". */
	if ((set & CFS_SET_ATIME) && want.atime.tv_sec < 0)
		set = (set & ~(uint32_t)CFS_SET_ATIME) | CFS_SET_ATIME_NOW;
	if ((set & CFS_SET_MTIME) && want.mtime.tv_sec < 0)
		set = (set & ~(uint32_t)CFS_SET_MTIME) | CFS_SET_MTIME_NOW;
	if (ctx->check && (set & CFS_SET_MODE) && !(set & (CFS_SET_UID | CFS_SET_GID)) &&
	    kills_set_id(v, ctx, ino, want.mode))
		set = (set & ~(uint32_t)CFS_SET_MODE) | CFS_SET_KILL_SUID |
		      (want.mode & S_ISGID ? 0 : CFS_SET_KILL_SGID);
	if (set & CFS_VFS_SET_SIZE) {
		r = change_size(v, ctx, ino, fh, in->length, &ret->attr);
		if (r < 0)
			return stale_if_gone(v, ino, r);
		set &= ~CFS_VFS_SET_SIZE;
		/* A truncate by a caller that may not keep them; most files have no such bits. */
		if (set & CFS_SET_KILL_SUID)
			set = (set & ~(uint32_t)CFS_SET_KILL_SUID) |
			      dropped_set_id(ctx, &ret->attr);
	} else if (!(set & ~(uint32_t)CFS_SET_CTIME)) {
		r = change_nothing(v, &late, ino, &set, ret);
		if (r < 0 || !set)
			return stale_if_gone(v, ino, r);
		ret->attr_ms = (uint32_t)v->conf.attr_timeout_ms;
	}
	if (!set)
		goto out;
	r = defer_change(v, ctx, ino, set, &want, &ret->attr);
	if (r != -EAGAIN) {
		cache_changed(&v->cache, 0, 0, ino, NULL);
		return r;
	}
	r = settle_before_setattr(v, &late, ino, set);
	if (r < 0)
		return stale_if_gone(v, ino, r);
	want.ctime = late.now;
	seq = cache_seq(&v->cache);
	asked_ns = cfs_now_ns();
	r = cfs_meta_setattr(v->conf.meta, &late, ino, set, &want, &ret->attr);
out:
	inode_changed(v, ino, seq, asked_ns, r == 0 ? &ret->attr : NULL);
	return stale_if_gone(v, ino, r);
}

int cfs_vfs_readlink(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     char buf[CFS_SYMLINK_MAX + 1])
{
	struct cfs_attr attr;
	uint32_t ms;
	int r;

	r = cfs_meta_readlink(v->conf.meta, ctx, ino, buf);
	if (r == 0 && keeps_atime(v, ino) && get_attr(v, ctx, ino, &attr, &ms) == 0)
		touch_atime(v, ctx, ino, &attr);
	return stale_if_gone(v, ino, r);
}

int cfs_vfs_access(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask)
{
	struct cfs_attr attr;
	uint32_t ms;
	int r;

	if (ino_is_special(ino))
		return 0;
	ino = ino_in(v, ino);
	r = get_attr(v, ctx, ino, &attr, &ms);
	if (r == 0)
		r = cfs_meta_access(v->conf.meta, ctx, ino, mask, &attr);
	return stale_if_gone(v, ino, r);
}

/* ---- changes of the tree ---- */

int cfs_vfs_mknod(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		  struct cfs_vfs_entry *ret)
{
	uint64_t seq = cache_seq(&v->cache), asked_ns = cfs_now_ns(), now_ms = to_ms(asked_ns);
	struct cfs_attr dir = {.nlink = 0};
	struct cfs_mknod in = *req;
	struct cfs_entry e;
	int r = check_name(req->name_len);
	bool made;

	if (r < 0)
		return r;
	in.parent = ino_in(v, req->parent);
	in.ret_parent = &dir;
	in.note_ino = ctx->record ? &ctx->record->ino : NULL;
	*ret = (struct cfs_vfs_entry){0};
	if (name_is_reserved(v, in.parent, req->name, req->name_len))
		return -EEXIST;
	newdirs_add(&v->newdirs, in.parent, in.name, in.name_len);
	made = replay_made(v, ctx, in.parent, in.name, in.name_len, recorded_ino(ctx), &e);
	r = made ? 0 : cfs_meta_mknod(v->conf.meta, ctx, &in, &e);
	if (r < 0 && r != -EEXIST)
		return stale_if_gone(v, in.parent, r);
	*ret = (struct cfs_vfs_entry){
		.ino = e.ino,
		.attr = e.attr,
		.attr_ms = (uint32_t)v->conf.attr_timeout_ms,
		.entry_ms = entry_timeout(v, &e.attr),
	};
	if (r < 0)
		return r;
	if (e.attr.type == CFS_TYPE_DIR && !made)
		newdirs_made(&v->newdirs, e.ino, in.parent, now_ms);
	directory_changed(v, in.parent, seq, asked_ns, &dir);
	cache_put_attr(&v->cache, seq, now_ms, e.ino, &e.attr);
	cache_told(&v->cache, e.ino, &e.attr);
	cache_name_changed(&v->cache, seq, now_ms + ret->entry_ms, in.parent, in.name, in.name_len,
			   ret->entry_ms ? e.ino : 0);
	return 0;
}

/* The reference defers the last close of an unnamed file to the end of the call. */
static int link_inode(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		      const char *name, size_t len, struct cfs_attr *ret)
{
	auto_vnode struct vnode *n = vnode_find(v, ino);
	int r;

	if (!n || !atomic_load(&n->unnamed))
		return cfs_meta_link(v->conf.meta, ctx, ino, parent, name, len, ret);
	r = cfs_meta_link_unnamed(v->conf.meta, ctx, ino, parent, name, len, ret);
	if (r == 0) {
		atomic_store(&n->unnamed, false);
		atomic_store(&n->sustained, false);
	}
	return r;
}

int cfs_vfs_link(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		 const char *name, size_t len, struct cfs_vfs_entry *ret)
{
	uint64_t seq = cache_seq(&v->cache), asked_ns = cfs_now_ns(), now_ms = to_ms(asked_ns);
	int r = check_name(len);

	if (r < 0)
		return r;
	parent = ino_in(v, parent);
	if (ino_is_special(ino) || name_is_reserved(v, parent, name, len))
		return -EPERM;
	r = store_change(v, ctx, ino);
	if (r < 0)
		return stale_if_gone(v, ino, r);
	newdirs_add(&v->newdirs, parent, name, len);
	r = link_inode(v, ctx, ino, parent, name, len, &ret->attr);
	r = replay_linked(v, ctx, r, ino, parent, name, len, &ret->attr);
	if (r == -ENOENT) /* the inode or the parent is gone */
		stale_if_gone(v, parent, r);
	if (r < 0)
		return stale_if_gone(v, ino, r);
	ret->ino = ino;
	ret->attr_ms = (uint32_t)v->conf.attr_timeout_ms;
	ret->entry_ms = entry_timeout(v, &ret->attr);
	directory_changed(v, parent, 0, 0, NULL);
	inode_changed(v, ino, seq, asked_ns, &ret->attr);
	cache_name_changed(&v->cache, seq, now_ms + ret->entry_ms, parent, name, len,
			   ret->entry_ms ? ino : 0);
	return 0;
}

/*
 * An inode has lost a name. If it lives on because this mount has it open, the last close must
 * report it.
 */
static void name_removed(struct cfs_vfs *v, const struct cfs_ctx *ctx,
			 const struct cfs_removed *what)
{
	struct vnode *n;

	if (what->outcome == CFS_REMOVED_NONE)
		return;
	cache_changed(&v->cache, 0, 0, what->ino, NULL);
	newdirs_forget(&v->newdirs, what->ino);
	if (what->outcome == CFS_REMOVED_DELETED)
		closed_take_loss(v, what->ino);
	if (what->outcome != CFS_REMOVED_SUSTAINED)
		return;
	n = vnode_find(v, what->ino);
	if (n) {
		atomic_store(&n->sustained, true);
		vnode_put(n);
	} else {
		cfs_meta_close_ino(v->conf.meta, ctx, what->ino);
	}
}

typedef int (*remove_fn)(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
			 const char *name, size_t len, unsigned flags, struct cfs_removed *ret);

/* known: the kernel knows the inode, and will forget it later. */
static int remove_name(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent,
		       const char *name, size_t len, unsigned flags, bool known, remove_fn fn)
{
	uint64_t seq = cache_seq(&v->cache), asked_ns = cfs_now_ns();
	struct cfs_removed what = {.outcome = CFS_REMOVED_NONE};
	int r = check_name(len);

	if (r < 0)
		return r;
	parent = ino_in(v, parent);
	if (name_is_reserved(v, parent, name, len))
		return -EPERM;
	r = replay_removed(ctx, fn(v->conf.meta, ctx, parent, name, len, flags, &what), -ENOENT);
	if (r == 0) {
		directory_changed(v, parent, seq, asked_ns, &what.parent);
		name_removed(v, ctx, &what);
		if (known)
			removed_dir_add(v, ctx, &what);
	}
	/* Also after a failure, which may mean that this cache has an old entry. */
	cache_name_changed(&v->cache, 0, 0, parent, name, len, 0);
	return r;
}

int cfs_vfs_unlink(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len)
{
	return remove_name(v, ctx, parent, name, len, 0, true, cfs_meta_unlink);
}

int cfs_vfs_rmdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		  size_t len)
{
	return remove_name(v, ctx, parent, name, len, 0, true, cfs_meta_rmdir);
}

int cfs_vfs_remove(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len, bool is_dir, unsigned flags)
{
	return remove_name(v, ctx, parent, name, len, flags, false,
			   is_dir ? cfs_meta_rmdir : cfs_meta_unlink);
}

void cfs_vfs_name_changed(struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len)
{
	parent = ino_in(v, parent);
	newdirs_add(&v->newdirs, parent, name, len);
	directory_changed(v, parent, 0, 0, NULL);
	cache_name_changed(&v->cache, 0, 0, parent, name, len, 0);
}

/*
 * A rename has found no source, or no target directory. Only the latter is -ESTALE: without its
 * directory the source does not exist either.
 */
static int rename_missed(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t dst_parent)
{
	struct cfs_attr attr;
	int r = cfs_meta_getattr(v->conf.meta, ctx, dst_parent, &attr);

	if (r == 0 && !cfs_ino_is_trash(attr.parent))
		return -ENOENT;
	return r < 0 && r != -ENOENT ? r : stale_if_gone(v, dst_parent, -ENOENT);
}

/*
 * After a rename over a directory the kernel takes the directory that it knew under the target's
 * name for removed (vfs_rename(), S_DEAD). It knows that one from this cache. If another mount has
 * moved it meanwhile, it would look empty here while it is in use. -ESTALE: the kernel looks again.
 */
static int check_target(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_rename *req)
{
	uint64_t now_ms = to_ms(cfs_now_ns());
	cfs_ino_t known =
		cache_peek_name(&v->cache, req->dst_parent, req->dst_name, req->dst_len, now_ms);
	struct cfs_attr attr;
	struct cfs_entry e;
	uint32_t ms;
	int r;

	if (!known || ctx->replay || req->flags)
		return 0;
	if (cache_get_attr(&v->cache, known, now_ms, &attr, &ms) && attr.type != CFS_TYPE_DIR)
		return 0;
	r = cfs_meta_lookup(v->conf.meta, ctx, req->dst_parent, req->dst_name, req->dst_len, &e);
	if (r == 0 ? e.ino == known : r != -ENOENT)
		return 0;
	cache_name_changed(&v->cache, 0, 0, req->src_parent, req->src_name, req->src_len, 0);
	cache_name_changed(&v->cache, 0, 0, req->dst_parent, req->dst_name, req->dst_len, 0);
	return -ESTALE;
}

int cfs_vfs_rename(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_rename *req)
{
	struct cfs_rename in = *req;
	struct cfs_renamed res = {.victim.outcome = CFS_REMOVED_NONE};
	bool done = false;
	int r;

	if (check_name(req->src_len) < 0 || check_name(req->dst_len) < 0)
		return -ENAMETOOLONG;
	in.src_parent = ino_in(v, req->src_parent);
	in.dst_parent = ino_in(v, req->dst_parent);
	if (name_is_reserved(v, in.src_parent, in.src_name, in.src_len) ||
	    name_is_reserved(v, in.dst_parent, in.dst_name, in.dst_len))
		return -EPERM;
	r = check_target(v, ctx, &in);
	if (r == 0)
		r = replay_exchange(v, ctx, &in, &done);
	if (r == 0 && !done)
		r = closed_before_rename(v, ctx, &in);
	if (r < 0 || done)
		return r;
	r = store_change_of(v, ctx, in.src_parent, in.src_name, in.src_len);
	if (r == 0 && (in.flags & CFS_RENAME_EXCHANGE))
		r = store_change_of(v, ctx, in.dst_parent, in.dst_name, in.dst_len);
	if (r < 0)
		return r;
	if (!(in.flags & CFS_RENAME_EXCHANGE))
		replay_record_target(v, ctx, &in);
	else
		newdirs_add(&v->newdirs, in.src_parent, in.src_name, in.src_len);
	newdirs_add(&v->newdirs, in.dst_parent, in.dst_name, in.dst_len);
	r = replay_renamed(v, ctx, cfs_meta_rename(v->conf.meta, ctx, &in, &res), &in);
	if (r == 0) {
		directory_changed(v, in.src_parent, 0, 0, NULL);
		directory_changed(v, in.dst_parent, 0, 0, NULL);
		cache_changed(&v->cache, 0, 0, res.moved.ino, NULL);
		name_removed(v, ctx, &res.victim);
		removed_dir_add(v, ctx, &res.victim);
	}
	cache_name_changed(&v->cache, 0, 0, in.src_parent, in.src_name, in.src_len, 0);
	cache_name_changed(&v->cache, 0, 0, in.dst_parent, in.dst_name, in.dst_len, 0);
	return r == -ENOENT ? rename_missed(v, ctx, in.dst_parent) : r;
}

int cfs_vfs_statfs(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		   struct cfs_statfs *ret)
{
	ino = ino_is_special(ino) || cfs_ino_is_trash(ino) ? v->conf.root : ino_in(v, ino);
	return stale_if_gone(v, ino, cfs_meta_statfs(v->conf.meta, ctx, ino, ret));
}
