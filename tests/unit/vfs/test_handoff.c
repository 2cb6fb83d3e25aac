/* SPDX-License-Identifier: Apache-2.0 */
/* Handoff state of a mount for another process: the memory file, and the VFS that comes from it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "unit/metric.h"
#include "unit/wait.h"
#include "vfs_fixture.h"

static struct cfs_handoff *attach(struct cfs_handoff *k)
{
	struct cfs_handoff *other;
	char err[256];

	assert_int_equal(cfs_handoff_attach(dup(cfs_handoff_fd(k)), &other, err), 0);
	return other;
}

/* Without it: a newer program reads the records of an older one as something else. */
static void other_files_are_refused(void **state)
{
	struct cfs_handoff *k, *other;
	char err[256] = "";
	int fd;

	assert_int_equal(cfs_handoff_create(&k), 0);
	cfs_handoff_header(k)->version = CFS_HANDOFF_VERSION_PASSTHROUGH + 1;
	assert_int_equal(cfs_handoff_attach(cfs_handoff_fd(k), &other, err), -EPROTO);
	assert_non_null(strstr(err, "version 4"));
	cfs_handoff_header(k)->version = CFS_HANDOFF_VERSION - 1;
	assert_int_equal(cfs_handoff_attach(cfs_handoff_fd(k), &other, err), -EPROTO);
	cfs_handoff_header(k)->version = CFS_HANDOFF_VERSION;
	cfs_handoff_header(k)->handle_bytes++;
	assert_int_equal(cfs_handoff_attach(cfs_handoff_fd(k), &other, err), -EPROTO);
	cfs_handoff_header(k)->handle_bytes--;
	cfs_handoff_header(k)->magic[0]++;
	assert_int_equal(cfs_handoff_attach(cfs_handoff_fd(k), &other, err), -EPROTO);
	cfs_handoff_close(k);
	fd = memfd_create("short", MFD_CLOEXEC);
	assert_int_equal(cfs_handoff_attach(fd, &other, err), -EPROTO);
	assert_int_equal(write(fd, CFS_HANDOFF_MAGIC, 8), 8);
	assert_int_equal(cfs_handoff_attach(fd, &other, err), -EPROTO);
	close(fd);
	assert_int_equal(cfs_handoff_attach(-1, &other, err), -EPROTO);
}

/* Without it: each death of a process leaves files open in the kernel until the mount ends. */
static void backing_ids_are_kept(void **state)
{
	struct cfs_handoff_inode *m[5], *fresh;
	struct cfs_handoff *k;
	size_t closed;
	int i;

	assert_int_equal(cfs_handoff_create(&k), 0);
	for (i = 0; i < 5; i++) {
		m[i] = cfs_handoff_add_inode(k, (uint64_t)(100 + i));
		assert_int_equal(atomic_load(&m[i]->backing), 0);
	}
	/* Of an older program these are numbers of free records. */
	atomic_store(&m[0]->backing, 7);
	cfs_handoff_mark_lost(k, NULL, 0, &closed);
	assert_int_equal(atomic_load(&cfs_handoff_header(k)->n_marked), 0);

	cfs_handoff_header(k)->version = CFS_HANDOFF_VERSION_PASSTHROUGH;
	for (i = 0; i < 5; i++)
		m[i] = cfs_handoff_add_inode(k, (uint64_t)(100 + i));
	atomic_store(&m[1]->backing, 11);
	atomic_store(&m[1]->dirty, 1);
	atomic_store(&m[4]->backing, 14);
	for (i = 0; i < 2; i++) { /* as well when the next process dies at once */
		cfs_handoff_mark_lost(k, NULL, 0, &closed);
		assert_int_equal(atomic_load(&cfs_handoff_header(k)->n_marked), 2);
		assert_int_equal(atomic_load(&cfs_handoff_inode(k, 0)->ino), 101);
		assert_int_equal(atomic_load(&cfs_handoff_inode(k, 0)->backing), 11);
		assert_int_equal(atomic_load(&cfs_handoff_inode(k, 0)->dirty), 0);
		assert_int_equal(atomic_load(&cfs_handoff_inode(k, 1)->ino), 104);
		assert_int_equal(atomic_load(&cfs_handoff_inode(k, 1)->backing), 14);
	}
	fresh = cfs_handoff_add_inode(k, 200);
	assert_ptr_equal(fresh, cfs_handoff_inode(k, 2));
	cfs_handoff_remove_inode(k, cfs_handoff_inode(k, 0));
	fresh = cfs_handoff_add_inode(k, 201);
	assert_int_equal(atomic_load(&fresh->backing), 0);
	cfs_handoff_close(k);
}

/* Without it: the file of another process can be cut short, and its reader dies of SIGBUS. */
static void the_file_cannot_shrink(void **state)
{
	struct cfs_handoff *k;

	assert_int_equal(cfs_handoff_create(&k), 0);
	assert_int_equal(ftruncate(cfs_handoff_fd(k), 0), -1);
	cfs_handoff_close(k);
}

/* Without it: a request is carried out twice, or the answer of another one is taken for its own. */
static void requests_are_known_again(void **state)
{
	struct cfs_handoff_request *r, *s;
	struct cfs_handoff *k, *other;
	uint64_t i;
	bool again;

	assert_int_equal(cfs_handoff_create(&k), 0);
	r = cfs_handoff_begin_request(k, 10, false, &again);
	assert_non_null(r);
	assert_false(again);
	atomic_store(&r->ino, 77);
	/* Far away, but of the same place. */
	s = cfs_handoff_begin_request(k, 10 + 2 * CFS_HANDOFF_REQUESTS, false, &again);
	assert_ptr_not_equal(r, s);
	other = attach(k);
	assert_non_null(cfs_handoff_begin_request(other, 12, true, &again));
	assert_false(again); /* the kernel sends it again, but it was not begun */
	r = cfs_handoff_begin_request(other, 10, true, &again);
	assert_true(again);
	assert_int_equal(atomic_load(&r->ino), 77);
	cfs_handoff_end_request(r);
	r = cfs_handoff_begin_request(other, 10, true, &again);
	assert_false(again);
	assert_int_equal(atomic_load(&r->ino), 0);
	/* A full table knows nothing: whatever is sent again may have been done. */
	for (i = 0; i < CFS_HANDOFF_REQUESTS; i++)
		cfs_handoff_begin_request(k, 100000 + 2 * i, false, &again);
	assert_null(cfs_handoff_begin_request(k, 4, true, &again));
	assert_true(again);
	assert_null(cfs_handoff_begin_request(k, 6, false, &again));
	assert_false(again);
	assert_null(cfs_handoff_begin_request(NULL, 8, true, &again));
	assert_true(again);
	cfs_handoff_close(other);
	cfs_handoff_close(k);
}

/* Without it: answers that went out with the last breath of many processes fill the table. */
static void old_requests_are_forgotten(void **state)
{
	struct cfs_handoff_request *r;
	struct cfs_handoff *k;
	size_t closed;
	bool again;
	int i;

	assert_int_equal(cfs_handoff_create(&k), 0);
	r = cfs_handoff_begin_request(k, 10, false, &again);
	atomic_store(&r->ino, 77);
	atomic_store(&r->fh, 78);
	for (i = 0; i < 20; i++)
		atomic_fetch_add(&cfs_handoff_header(k)->workers, 1);
	cfs_handoff_mark_lost(k, NULL, 0, &closed);
	assert_ptr_equal(cfs_handoff_begin_request(k, 10, true, &again), r);
	assert_false(again);
	/* Their records are not taken for those of the next in their place. */
	assert_int_equal(atomic_load(&r->ino), 0);
	assert_int_equal(atomic_load(&r->fh), 0);
	cfs_handoff_close(k);
}

/* Without it: more inodes than there are records write over each other's. */
static void records_run_out(void **state)
{
	struct cfs_handoff_inode *m, *last = NULL;
	struct cfs_handoff *k;
	uint32_t i;

	assert_int_equal(cfs_handoff_create(&k), 0);
	for (i = 0; i < CFS_HANDOFF_INODES; i++) {
		m = cfs_handoff_add_inode(k, i + 1);
		assert_non_null(m);
		last = m;
	}
	assert_null(cfs_handoff_add_inode(k, 5));
	cfs_handoff_remove_inode(k, last);
	assert_ptr_equal(cfs_handoff_add_inode(k, 5), last);
	assert_null(cfs_handoff_handle(k, CFS_HANDOFF_HANDLES));
	cfs_handoff_close(k);
}

/* ---- a VFS that goes on where another one was killed ---- */

static struct cfs_handoff *handoff;

/* The process is gone: nothing is closed, and the memory of another one maps the file. */
static void die(void)
{
	struct cfs_handoff *next = attach(handoff);

	vfs_abandon();
	cfs_handoff_close(handoff);
	handoff = next;
	start_kept(handoff);
}

static void crash(struct cfs_vfs_restored *ret)
{
	static cfs_ino_t *before;

	free(before);
	die();
	*ret = (struct cfs_vfs_restored){0};
	assert_int_equal(cfs_vfs_restore(vfs, ret), 0);
	before = ret->lost_inos;
}

static void begin(void)
{
	assert_int_equal(cfs_handoff_create(&handoff), 0);
	start(0, 0);
	vfs_abandon();
	start_kept(handoff);
	fill_engine(3000);
}

static void end(void)
{
	cfs_vfs_destroy(vfs);
	vfs = NULL;
	cfs_handoff_close(handoff);
}

/* Without it: programs get EBADF from files that they have open. */
static void handles_come_back_under_their_numbers(void **state)
{
	struct cfs_vfs_restored restored;
	struct cfs_ctx c;
	struct cfs_vfs_open dir;
	uint64_t a, b, closed, fresh;

	begin();
	c = ctx();
	a = open_file(1, O_RDONLY);
	closed = open_file(2, O_RDONLY);
	b = open_file(3, O_RDWR);
	assert_int_equal(cfs_vfs_opendir(vfs, &c, CFS_ROOT_INO, &dir), 0);
	release(closed);
	meta.exists[3] = false;
	meta.sustained[3] = true;
	meta.attr[3].nlink = 0;
	crash(&restored);
	c = ctx();
	assert_int_equal(restored.handles, 3);
	assert_int_equal(restored.gone + restored.lost, 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, a, 0), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, b, 0), 0);
	/* One that was closed must not be met by a late request under the number of a fresh one. */
	fresh = open_file(4, O_RDONLY);
	assert_int_equal((uint32_t)fresh, (uint32_t)closed);
	assert_int_not_equal(fresh, closed);
	assert_int_equal(release(closed), -EBADF);
	assert_int_equal(release(fresh), 0);
	assert_int_equal(release(a), 0);
	assert_int_equal(meta.closed, 0);
	assert_int_equal(release(b), 0);
	assert_int_equal(meta.closed, 1); /* the last handle of a removed file */
	assert_int_equal(cfs_vfs_releasedir(vfs, &c, dir.fh), 0);
	end();
}

static _Atomic unsigned inside;
static _Atomic bool met, alone;

/* In the metadata. True in `met` when two threads were here at the same time. */
static void meet(void)
{
	cfs_deadline_t until = soon();

	atomic_fetch_add(&inside, 1);
	while (!atomic_load(&met) && !atomic_load(&alone)) {
		if (atomic_load(&inside) > 1)
			atomic_store(&met, true);
		else if (!cfs_backoff(0, 1, 1, until))
			atomic_store(&alone, true);
	}
	atomic_fetch_sub(&inside, 1);
}

/* Without it: programs with many open files get EIO, as each costs a round trip after the other. */
static void many_handles_are_restored_at_a_time(void **state)
{
	struct cfs_vfs_restored restored = {0};
	struct cfs_vfs_open dir;
	uint64_t fh[500];
	struct cfs_ctx c;
	int i, r;

	begin();
	c = ctx();
	for (i = 0; i < 400; i++)
		fh[i] = open_file(i % 150, i % 2 ? O_RDWR : O_RDONLY);
	for (; i < 500; i++) {
		assert_int_equal(
			cfs_vfs_opendir(vfs, &c, FIRST_INO + 200 + (cfs_ino_t)i % 50, &dir), 0);
		fh[i] = dir.fh;
	}
	meta.exists[7] = false;
	meta.failing = FIRST_INO + 20;
	meta.during_getattr = meet;
	die();
	assert_int_equal(cfs_vfs_restore(vfs, &restored), -EIO);
	assert_true(met);
	meta.failing = 0;
	meta.during_getattr = NULL;
	assert_int_equal(cfs_vfs_restore(vfs, &restored), 0);
	free(restored.lost_inos);
	assert_int_equal(restored.gone, 3);
	assert_int_equal(restored.handles, 497);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL), 497);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_inodes", NULL), 149);
	c = ctx();
	for (i = 0; i < 500; i++) {
		r = i < 400 ? release(fh[i]) : cfs_vfs_releasedir(vfs, &c, fh[i]);
		assert_int_equal(r, i < 400 && i % 150 == 7 ? -EBADF : 0);
	}
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL), 0);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_inodes", NULL), 0);
	end();
}

static uint64_t closing;
static bool kept_while_closing;

static void look_at_closing(void)
{
	kept_while_closing =
		atomic_load(&cfs_handoff_handle(handoff, (uint32_t)closing - 1)->fh) == closing;
}

/*
 * Without it: the space of a removed file is not given back until the end of the mount, when the
 * process is killed while the last handle is being closed.
 */
static void a_close_that_is_cut_short_is_done_again(void **state)
{
	begin();
	closing = open_file(1, O_RDWR);
	meta.during_close = look_at_closing;
	unlink_file("f00001");
	assert_int_equal(release(closing), 0);
	assert_int_equal(meta.closed, 1);
	assert_true(kept_while_closing);
	assert_int_equal(atomic_load(&cfs_handoff_handle(handoff, (uint32_t)closing - 1)->fh), 0);
	end();
}

/*
 * Without it: a handle that the dead process has made and not noted stays open for ever, or one
 * that it has noted and not made is another request's by now.
 */
static void a_request_finds_its_own_handle_only(void **state)
{
	struct cfs_vfs_restored restored;
	struct cfs_handoff_request *r;
	struct cfs_handoff_handle *k;
	struct cfs_vfs_open o;
	struct cfs_ctx c;
	uint64_t fresh;
	bool again;

	begin();
	c = ctx();
	c.record = r = cfs_handoff_begin_request(handoff, 10, false, &again);
	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_RDONLY, &o), 0);
	assert_int_equal(atomic_load(&r->fh), o.fh);
	/* It was killed between the two. */
	k = cfs_handoff_handle(handoff, (uint32_t)o.fh - 1);
	atomic_store(&k->fh, 0);
	crash(&restored);
	assert_int_equal(restored.handles, 0);
	fresh = open_file(1, O_RDONLY);
	assert_int_equal((uint32_t)fresh, (uint32_t)o.fh);
	assert_int_not_equal(fresh, o.fh);
	c = ctx();
	c.record = cfs_handoff_begin_request(handoff, 10, true, &c.replay);
	assert_true(c.replay);
	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_RDONLY, &o), 0);
	assert_int_not_equal(fresh, o.fh);
	assert_int_equal(release(fresh), 0);
	assert_int_equal(release(o.fh), 0);
	end();
}

static int open_any(int what, struct cfs_ctx *c, struct cfs_vfs_open *ret)
{
	struct cfs_vfs_entry e = {.ino = FIRST_INO + 1};

	if (what == 0)
		return cfs_vfs_open(vfs, c, e.ino, O_RDWR | O_TRUNC, ret);
	if (what == 1)
		return cfs_vfs_opendir(vfs, c, CFS_ROOT_INO, ret);
	assert_int_equal(lookup(".stats", &e), 0);
	return cfs_vfs_open(vfs, c, e.ino, O_RDONLY, ret);
}

/*
 * Without it: each death of the process during an open leaves a handle open until the unmount, or
 * what another client has written after a truncation is truncated, too.
 */
static void a_handle_that_the_kernel_does_not_know_is_closed(void **state)
{
	struct cfs_vfs_restored restored;
	struct cfs_vfs_open first, second;
	struct cfs_ctx c;
	int what;

	for (what = 0; what < 3; what++) {
		begin();
		c = ctx();
		c.record = cfs_handoff_begin_request(handoff, 10, false, &c.replay);
		assert_int_equal(open_any(what, &c, &first), 0);
		/* As the standby does for a request without an answer. */
		cfs_handoff_released(handoff, first.fh);
		crash(&restored);
		assert_int_equal(restored.handles, 1);
		cfs_vfs_close_released(vfs);
		assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL), 0);
		c = ctx();
		c.record = cfs_handoff_begin_request(handoff, 10, true, &c.replay);
		assert_true(c.replay);
		data.truncate_err = -EIO;
		assert_int_equal(open_any(what, &c, &second), 0);
		data.truncate_err = 0;
		assert_int_not_equal(second.fh, first.fh);
		assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL), 1);
		c = ctx();
		if (what == 1)
			assert_int_equal(cfs_vfs_releasedir(vfs, &c, second.fh), 0);
		else
			assert_int_equal(release(second.fh), 0);
		end();
	}
}

/* Without it: the file occupies space until the unmount, when its caller is killed as well. */
static void a_file_without_name_and_handle_is_released(void **state)
{
	struct cfs_vfs_restored restored;
	struct cfs_handoff_request *r;
	bool again;
	int i;

	begin();
	r = cfs_handoff_begin_request(handoff, 10, false, &again);
	atomic_store(&r->flags, CFS_HANDOFF_UNNAMED);
	atomic_store(&r->ino, FIRST_INO + 1);
	meta.sustained[1] = true;
	meta.closed = 0;
	crash(&restored);
	for (i = 0; i < 2; i++) {
		cfs_vfs_close_released(vfs);
		assert_int_equal(meta.closed, 1);
	}
	/* The kernel may send the request, which makes another one. */
	r = cfs_handoff_begin_request(handoff, 10, true, &again);
	assert_true(again);
	assert_int_equal(atomic_load(&r->ino), 0);
	end();
}

/* Without it: a program is told that an attribute exists, and it is the one that it has just made.
 */
static void an_attribute_that_was_made_is_known_again(void **state)
{
	static char value[60000];
	struct cfs_ctx c;
	bool again;

	begin();
	c = ctx();
	c.record = cfs_handoff_begin_request(handoff, 10, false, &c.replay);
	memset(value, 'x', sizeof(value));
	assert_int_equal(cfs_vfs_setxattr(vfs, &c, FIRST_INO + 1, "user.a", value, sizeof(value),
					  XATTR_CREATE),
			 0);
	c.record = cfs_handoff_begin_request(handoff, 10, true, &c.replay);
	assert_int_equal(cfs_vfs_setxattr(vfs, &c, FIRST_INO + 1, "user.a", value, sizeof(value),
					  XATTR_CREATE),
			 0);
	/* Of another request it is not. */
	value[5]++;
	c.record = cfs_handoff_begin_request(handoff, 10, true, &again);
	assert_int_equal(cfs_vfs_setxattr(vfs, &c, FIRST_INO + 1, "user.a", value, sizeof(value),
					  XATTR_CREATE),
			 -EEXIST);
	end();
}

/* Without it: a record that was being written is taken for a handle. */
static void torn_records_are_no_handles(void **state)
{
	struct cfs_vfs_restored restored;
	struct cfs_handoff_handle *k;
	uint64_t fh;

	begin();
	fh = open_file(1, O_RDONLY);
	k = cfs_handoff_handle(handoff, (uint32_t)fh); /* the next one */
	k->ino = FIRST_INO + 2;
	k->kind = 1;
	crash(&restored);
	assert_int_equal(restored.handles, 1);
	/* Nonsense with a key, from a process that wrote where it should not. */
	atomic_store(&cfs_handoff_handle(handoff, (uint32_t)fh)->fh, 77);
	k = cfs_handoff_handle(handoff, (uint32_t)fh + 1);
	k->kind = 200;
	atomic_store(&k->fh, (3ULL << 32) + (uint32_t)fh + 2);
	crash(&restored);
	assert_int_equal(restored.handles, 1);
	assert_int_equal(restored.gone, 2);
	release(fh);
	end();
}

/* Without it: lost data is not told, or over and over again. */
static void lost_data_is_told_once_per_handle(void **state)
{
	char byte = 120;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct cfs_vfs_restored restored;
	uint64_t writer, other, calm, off;
	struct cfs_ctx c;

	begin();
	c = ctx();
	calm = open_file(2, O_RDWR);
	writer = open_file(1, O_RDWR);
	other = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_write(vfs, &c, writer, 0, false, &iov, 1, &off), 0);
	atomic_store(data.mark, 1);
	crash(&restored);
	/* The kernel may have written back through one handle what was written to the other. */
	assert_int_equal(restored.lost, 2);
	assert_int_equal(restored.n_lost_inos, 2);
	assert_int_equal(restored.lost_inos[0], FIRST_INO + 1);
	/* The second process reported it to no caller either. */
	crash(&restored);
	c = ctx();
	assert_int_equal(cfs_vfs_fsync(vfs, &c, calm), 0);
	/* Any number of closes do not take it from the fsync. */
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, writer, 0), -EIO);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, writer, 0), -EIO);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, writer), -EIO);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, writer, 0), 0);
	/* The answer may have gone with the process: the kernel asks again. */
	crash(&restored);
	c = ctx();
	assert_int_equal(restored.lost, 0);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, writer), -EIO);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, writer), 0);
	crash(&restored);
	c = ctx();
	assert_int_equal(cfs_vfs_fsync(vfs, &c, writer), 0);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, other), -EIO);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, other), 0);
	/* Stored data is not lost. */
	assert_int_equal(cfs_vfs_write(vfs, &c, writer, 0, false, &iov, 1, &off), 0);
	atomic_store(data.mark, 1);
	atomic_store(data.mark, 0);
	crash(&restored);
	c = ctx();
	assert_int_equal(restored.lost, 0);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, writer), 0);
	release(writer);
	release(other);
	release(calm);
	end();
}

struct reading {
	int n, stop_after, last;
	uint64_t off;
	bool twice;
};

static int take_name(void *arg, const struct cfs_vfs_dirent *e)
{
	struct reading *r = arg;
	int i;

	if (r->n == r->stop_after)
		return 1;
	r->off = e->next_off;
	if (e->name[0] == '.')
		return 0;
	i = number_of(e->name, e->name_len);
	r->twice |= i <= r->last;
	r->last = i;
	r->n++;
	return 0;
}

/* Without it: removing a tree leaves something behind when the mount is upgraded meanwhile. */
static void a_directory_is_read_on_from_its_place(void **state)
{
	struct reading r = {.stop_after = 1500, .last = -1};
	struct cfs_vfs_restored restored;
	struct cfs_ctx c;
	struct cfs_vfs_open dir;
	int i;

	begin();
	c = ctx();
	assert_int_equal(cfs_vfs_opendir(vfs, &c, CFS_ROOT_INO, &dir), 0);
	while (r.n < r.stop_after)
		assert_int_equal(cfs_vfs_readdir(vfs, &c, dir.fh, r.off, false, take_name, &r), 0);
	for (i = 0; i < 1400; i++)
		meta.exists[i] = false;
	crash(&restored);
	c = ctx();
	for (i = 0; i < 10; i++) {
		r.stop_after += 700;
		assert_int_equal(cfs_vfs_readdir(vfs, &c, dir.fh, r.off, false, take_name, &r), 0);
	}
	assert_int_equal(r.n, 3000);
	assert_false(r.twice);
	assert_int_equal(cfs_vfs_releasedir(vfs, &c, dir.fh), 0);
	end();
}

/* The answers to a program that writes, syncs and closes. */
static void assert_answers(uint64_t fh, int want)
{
	bool old;
	char byte = 120;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct cfs_ctx c = ctx();
	uint64_t off;

	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, false, &iov, 1, &off), want);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, fh), want);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 0), want);
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 1, CFS_LOCK_READ, false, &old), want);
}

/* Without it: a program writes under a lock that another mount has by now. */
static void a_lost_lock_fails_its_handle(void **state)
{
	bool old;
	struct cfs_plock lock = {.type = CFS_LOCK_WRITE, .end = 10};
	struct cfs_vfs_restored restored;
	struct cfs_ctx c;
	uint64_t posix, bsd, plain;

	begin();
	meta.sid = 7;
	atomic_store(&cfs_handoff_header(handoff)->sid, 7);
	c = ctx();
	posix = open_file(1, O_RDWR);
	plain = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, posix, 42, &lock, false, &old), 0);
	/* Locks that were given back are not lost. */
	meta.hooks.session_ended(meta.hooks.arg, 7);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, posix), 0);
	assert_int_equal(atomic_load(&cfs_handoff_header(handoff)->ended_sid), 7);
	meta.holds_locks = true;
	meta.sid = 8;
	meta.hooks.session_ended(meta.hooks.arg, 7);
	assert_int_equal(atomic_load(&cfs_handoff_header(handoff)->sid), 8);
	assert_answers(posix, -EIO);
	assert_answers(plain, 0);
	lock.type = CFS_LOCK_NONE;
	assert_int_equal(cfs_vfs_setlk(vfs, &c, posix, 42, &lock, false, &old), 0);
	meta.assumed = 0;
	crash(&restored);
	c = ctx();
	assert_answers(posix, -EIO);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, plain), 0);
	assert_int_equal(meta.assumed, 2); /* plain has a BSD lock by now, posix had one */
	release(posix);
	release(plain);
	bsd = open_file(1, O_RDWR);
	plain = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_flock(vfs, &c, bsd, 43, CFS_LOCK_WRITE, false, &old), 0);
	meta.sid = 9; /* the session was gone when the next process wanted it */
	crash(&restored);
	assert_int_equal(atomic_load(&cfs_handoff_header(handoff)->sid), 9);
	assert_answers(bsd, -EIO);
	assert_answers(plain, 0);
	release(bsd);
	release(plain);
	meta.sid = 0;
	meta.holds_locks = false;
	end();
}

/* Without it: a lock whose file was closed in an outage stays for ever. */
static void unlocks_are_handed_over(void **state)
{
	struct cfs_vfs_restored restored;
	void *notes[3];
	int i;

	begin();
	for (i = 0; i < 3; i++)
		notes[i] = meta.hooks.note_unlock(meta.hooks.arg, FIRST_INO + 1, 100 << i, true);
	meta.hooks.drop_unlock(meta.hooks.arg, notes[1]);
	meta.unlocks_again = 0;
	crash(&restored);
	assert_int_equal(meta.unlocks_again, 500);
	/* Each was done, and dropped. */
	crash(&restored);
	assert_int_equal(meta.unlocks_again, 500);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(other_files_are_refused),
		cmocka_unit_test(backing_ids_are_kept),
		cmocka_unit_test(the_file_cannot_shrink),
		cmocka_unit_test(many_handles_are_restored_at_a_time),
		cmocka_unit_test(requests_are_known_again),
		cmocka_unit_test(old_requests_are_forgotten),
		cmocka_unit_test(records_run_out),
		cmocka_unit_test(handles_come_back_under_their_numbers),
		cmocka_unit_test(a_close_that_is_cut_short_is_done_again),
		cmocka_unit_test(a_request_finds_its_own_handle_only),
		cmocka_unit_test(a_handle_that_the_kernel_does_not_know_is_closed),
		cmocka_unit_test(a_file_without_name_and_handle_is_released),
		cmocka_unit_test(an_attribute_that_was_made_is_known_again),
		cmocka_unit_test(torn_records_are_no_handles),
		cmocka_unit_test(lost_data_is_told_once_per_handle),
		cmocka_unit_test(a_directory_is_read_on_from_its_place),
		cmocka_unit_test(a_lost_lock_fails_its_handle),
		cmocka_unit_test(unlocks_are_handed_over),
	};

	return cmocka_run_group_tests(tests, make_pool, free_pool);
}
