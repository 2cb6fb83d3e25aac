/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disks that write down everything that reaches them.
 *
 *	powerdisk IMAGE LOG DIR N [lose-flushes]
 *
 * Mounts on DIR a file system of N + 1 files. "disk0", "disk1", ... are equal parts of IMAGE, for loop
 * devices. "mark" takes texts, one per write. LOG gets a record for each write, flush and mark, in the order in
 * which they came: one thread serves, and a record is complete before its request is answered. So a
 * write that was answered before a flush was sent stands before the flush, and a mark stands
 * behind all that was answered before the mark was written.
 *
 * A record is six little-endian 32-bit words, and its bytes:
 *	magic	0x50575244
 *	kind	1 write, 2 flush, 3 mark
 *	offset	low, high; in IMAGE, of a flush that of the disk
 *	length	of the bytes that follow
 *	number	of the record, from 0
 *
 * The loop device makes a flush of each request of the block layer that orders one; it offers no FUA, so the
 * block layer puts a flush behind a write that asks for it. With "lose-flushes" the disks answer a flush
 * and obey every eighth only: they lie, and whatever relied on them must be found lost.
 */
#define FUSE_USE_VERSION 312
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAGIC	 0x50575244U
#define INO_MARK 2
#define INO_DISK 3 /* the first one */
#define OBEYED	 8
#define FOREVER	 86400.0

enum kind { KIND_WRITE = 1, KIND_FLUSH, KIND_MARK };

static int image = -1, out = -1;
static off_t part_size;
static unsigned n_parts;
static int lose_flushes;
static uint32_t number;
/* So that the next process takes no incomplete log for a complete one. */
static int broken;

static int record(enum kind kind, uint64_t off, const void *data, size_t len)
{
	uint32_t head[6] = {
		htole32(MAGIC),		htole32(kind),
		htole32((uint32_t)off), htole32((uint32_t)(off >> 32)),
		htole32((uint32_t)len), htole32(number++),
	};
	struct iovec v[2] = {{head, sizeof(head)}, {(void *)(uintptr_t)data, len}};

	if (!broken && writev(out, v, len ? 2 : 1) != (ssize_t)(sizeof(head) + len)) {
		perror("powerdisk: the log cannot be written");
		broken = 1;
	}
	return broken ? -EIO : 0;
}

static int is_disk(fuse_ino_t ino)
{
	return ino >= INO_DISK && ino < INO_DISK + n_parts;
}

static off_t start_of(fuse_ino_t ino)
{
	return (off_t)(ino - INO_DISK) * part_size;
}

static int attr_of(fuse_ino_t ino, struct stat *ret_st)
{
	struct stat st = {.st_ino = ino, .st_nlink = 1, .st_mode = S_IFREG | 0600};

	if (ino == FUSE_ROOT_ID) {
		st.st_mode = S_IFDIR | 0700;
		st.st_nlink = 2;
	} else if (is_disk(ino)) {
		st.st_size = part_size;
	} else if (ino != INO_MARK) {
		return -ENOENT;
	}
	*ret_st = st;
	return 0;
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.attr_timeout = FOREVER, .entry_timeout = FOREVER};

	(void)parent;
	if (!strcmp(name, "mark"))
		e.ino = INO_MARK;
	else if (!strncmp(name, "disk", 4) && name[4] >= '0' && name[4] <= '9' && !name[5])
		e.ino = INO_DISK + (fuse_ino_t)(name[4] - '0');
	if (!e.ino || attr_of(e.ino, &e.attr))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_entry(req, &e);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (attr_of(ino, &st))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_attr(req, &st, FOREVER);
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->direct_io = ino == INO_MARK;
	fuse_reply_open(req, fi);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	static char data[1 << 20];
	ssize_t n;

	(void)fi;
	if (!is_disk(ino) || size > sizeof(data)) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	n = pread(image, data, size, start_of(ino) + off);
	if (n < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, data, (size_t)n);
}

static void on_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	int r;

	(void)fi;
	if (ino == INO_MARK) {
		r = record(KIND_MARK, 0, data, size);
	} else if (!is_disk(ino) || off + (off_t)size > part_size) {
		r = -ENOSPC;
	} else {
		r = record(KIND_WRITE, (uint64_t)(start_of(ino) + off), data, size);
		if (!r && pwrite(image, data, size, start_of(ino) + off) != (ssize_t)size)
			r = -EIO;
	}
	if (r)
		fuse_reply_err(req, -r);
	else
		fuse_reply_write(req, size);
}

static void on_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	static unsigned asked;
	int r = 0;

	(void)datasync;
	(void)fi;
	if (is_disk(ino) && (!lose_flushes || ++asked % OBEYED == 0))
		r = record(KIND_FLUSH, (uint64_t)start_of(ino), NULL, 0);
	fuse_reply_err(req, -r);
}

static const struct fuse_lowlevel_ops ops = {
	.lookup = on_lookup,
	.getattr = on_getattr,
	.open = on_open,
	.read = on_read,
	.write = on_write,
	.fsync = on_fsync,
};

int main(int argc, char **argv)
{
	char *fuse_argv[] = {argv[0], (char *)"-oallow_other,fsname=powerdisk", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(2, fuse_argv);
	struct fuse_session *se;
	struct stat st;
	int r = 1;

	if (argc < 5) {
		fprintf(stderr, "usage: powerdisk IMAGE LOG DIR N [lose-flushes]\n");
		return 2;
	}
	lose_flushes = argc > 5 && !strcmp(argv[5], "lose-flushes");
	image = open(argv[1], O_RDWR | O_CLOEXEC);
	out = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (image < 0 || out < 0 || fstat(image, &st)) {
		perror("powerdisk");
		return 1;
	}
	n_parts = (unsigned)strtoul(argv[4], NULL, 10);
	if (!n_parts || n_parts > 9) {
		fprintf(stderr, "powerdisk: 1 to 9 disks\n");
		return 2;
	}
	part_size = st.st_size / n_parts;
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!se)
		return 1;
	if (!fuse_set_signal_handlers(se) && !fuse_session_mount(se, argv[3])) {
		r = fuse_session_loop(se) < 0;
		fuse_session_unmount(se);
	}
	fuse_session_destroy(se);
	return r || broken;
}
