/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nullfs [-t TIMEOUT_S] [-j THREADS] [-c LIST] [-u] MOUNTPOINT: the fastest file system that the same
 * use of libfuse allows. The difference to it is the work of cachefs besides talking to the kernel.
 *
 * Session, capabilities, request sizes, threads and kinds of reply are those of src/fuse; keep them
 * so. Names and attributes live in tables in memory, and nodes are never freed. File data does not
 * exist: a write is copied to a scratch buffer, the one copy that any daemon has to make, and its
 * length kept; a read is answered from one buffer that stays in the processor's cache. Rename,
 * links and permissions are missing. Serves in the foreground until unmounted.
 *
 * -c LIST: files of a disk cache, one path a line, which are the 4 MiB blocks of any file that is
 * read: each read is a pread(2) of one of them, and its checksums are verified. Any
 * daemon that serves from such a cache has to do that.
 *
 * -u: requests come through io_uring, by the channel of src/fuse with as many entries. The kernel must
 * be told before (fuse.enable_uring).
 */
#define FUSE_USE_VERSION 312

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <isa-l.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fuse/agreement.h"
#include "fuse/device.h"
#include "fuse/ring.h"

#define MAX_IO	    (1u << 20)
#define MAX_THREADS 32
#define LISTING_MAX (32u << 10)
#define N_HASH	    (1u << 16)
#define NODES_MAX   (1u << 22)

struct node {
	struct node *hash_next; /* of the names with the same hash */
	fuse_ino_t parent;
	char *name;
	struct stat st;
	/* Of a directory: entries in order of creation, NULL where one has gone. */
	struct node **entries;
	size_t n_slots, cap_slots, n_entries, slot;
};

static double timeout_s = 1;

/* Protects everything below. */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct node **nodes; /* by inode number */
static fuse_ino_t n_nodes = FUSE_ROOT_ID;
static struct node *names[N_HASH];

static char hot[MAX_IO];

#define BLOCK	   (4u << 20)
#define SEGMENT	   (32u << 10)
#define BLOCKS_MAX 4096

/* Files of a disk cache: data, then a big-endian CRC-32C per segment. */
static struct block {
	int fd;
	uint32_t crcs[BLOCK / SEGMENT];
} *blocks;
static size_t n_blocks;

static bool open_blocks(const char *list)
{
	FILE *in = fopen(list, "re");
	char path[4096];
	size_t i;

	blocks = calloc(BLOCKS_MAX, sizeof(*blocks));
	if (!in || !blocks)
		return false;
	while (n_blocks < BLOCKS_MAX && fgets(path, sizeof(path), in)) {
		struct block *b = &blocks[n_blocks++];

		path[strcspn(path, "\n")] = '\0';
		b->fd = open(path, O_RDONLY | O_CLOEXEC);
		if (b->fd < 0 ||
		    pread(b->fd, b->crcs, sizeof(b->crcs), BLOCK) != (ssize_t)sizeof(b->crcs))
			return false;
		for (i = 0; i < BLOCK / SEGMENT; i++)
			b->crcs[i] = be32toh(b->crcs[i]);
	}
	fclose(in);
	return true;
}

/* Whole segments of one block. */
static bool read_block(size_t i, size_t off, unsigned char *dst, size_t size)
{
	const struct block *b = &blocks[i];
	size_t done;

	if (i >= n_blocks || off % SEGMENT || size % SEGMENT || size > BLOCK - off ||
	    pread(b->fd, dst, size, (off_t)off) != (ssize_t)size)
		return false;
	for (done = 0; done < size; done += SEGMENT) {
		if (~crc32_iscsi(dst + done, (int)SEGMENT, ~0u) != b->crcs[(off + done) / SEGMENT])
			return false;
	}
	return true;
}

static uint32_t hash_of(fuse_ino_t parent, const char *name)
{
	uint32_t h = 2166136261u ^ (uint32_t)parent;

	while (*name)
		h = (h ^ (uint8_t)*name++) * 16777619u;
	return h % N_HASH;
}

static struct node **find(fuse_ino_t parent, const char *name)
{
	struct node **p = &names[hash_of(parent, name)];

	while (*p && ((*p)->parent != parent || strcmp((*p)->name, name)))
		p = &(*p)->hash_next;
	return p;
}

static struct node *get(fuse_ino_t ino)
{
	return ino <= n_nodes ? nodes[ino] : NULL;
}

static int add_slot(struct node *dir, struct node *n)
{
	if (!dir->n_entries)
		dir->n_slots = 0;
	if (dir->n_slots == dir->cap_slots) {
		size_t cap = dir->cap_slots ? 2 * dir->cap_slots : 64;
		struct node **p = realloc(dir->entries, cap * sizeof(struct node *));

		if (!p)
			return -ENOMEM;
		dir->entries = p;
		dir->cap_slots = cap;
	}
	n->slot = dir->n_slots++;
	dir->entries[n->slot] = n;
	dir->n_entries++;
	return 0;
}

static int make_node(fuse_ino_t parent, const char *name, mode_t mode, const struct fuse_ctx *who,
		     struct stat *ret)
{
	struct node **link, *n, *dir = get(parent);

	if (!dir)
		return -ENOENT;
	link = find(parent, name);
	if (*link)
		return -EEXIST;
	n = calloc(1, sizeof(*n));
	if (!n || n_nodes + 1 >= NODES_MAX)
		goto no_memory;
	n->name = strdup(name);
	if (!n->name || add_slot(dir, n))
		goto no_memory;
	n->parent = parent;
	n->st.st_ino = ++n_nodes;
	n->st.st_mode = mode;
	n->st.st_nlink = S_ISDIR(mode) ? 2 : 1;
	n->st.st_uid = who->uid;
	n->st.st_gid = who->gid;
	n->st.st_blksize = 65536;
	clock_gettime(CLOCK_REALTIME, &n->st.st_mtim);
	n->st.st_atim = n->st.st_ctim = n->st.st_mtim;
	dir->st.st_mtim = dir->st.st_ctim = n->st.st_mtim;
	nodes[n_nodes] = n;
	*link = n;
	*ret = n->st;
	return 0;
no_memory:
	if (n)
		free(n->name);
	free(n);
	return -ENOMEM;
}

/* ---- replies ---- */

static void fill_entry(struct fuse_entry_param *e, const struct stat *st)
{
	memset(e, 0, sizeof(*e));
	e->ino = st->st_ino;
	e->attr = *st;
	e->attr_timeout = e->entry_timeout = timeout_s;
}

static void reply_entry(fuse_req_t req, int r, const struct stat *st)
{
	struct fuse_entry_param e;

	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	fill_entry(&e, st);
	fuse_reply_entry(req, &e);
}

/* ---- names and attributes ---- */

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct stat st;
	struct node *n;

	pthread_rwlock_rdlock(&lock);
	n = *find(parent, name);
	if (n)
		st = n->st;
	pthread_rwlock_unlock(&lock);
	reply_entry(req, n ? 0 : -ENOENT, &st);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *forgets)
{
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;
	struct node *n;

	pthread_rwlock_rdlock(&lock);
	n = get(ino);
	if (n)
		st = n->st;
	pthread_rwlock_unlock(&lock);
	if (n)
		fuse_reply_attr(req, &st, timeout_s);
	else
		fuse_reply_err(req, ENOENT);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *in, int set,
		       struct fuse_file_info *fi)
{
	struct stat st;
	struct node *n;

	pthread_rwlock_wrlock(&lock);
	n = get(ino);
	if (n) {
		if (set & FUSE_SET_ATTR_SIZE)
			n->st.st_size = in->st_size;
		if (set & FUSE_SET_ATTR_MODE)
			n->st.st_mode = (n->st.st_mode & S_IFMT) | (in->st_mode & 07777);
		st = n->st;
	}
	pthread_rwlock_unlock(&lock);
	if (n)
		fuse_reply_attr(req, &st, timeout_s);
	else
		fuse_reply_err(req, ENOENT);
}

static int make_locked(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		       struct stat *ret)
{
	const struct fuse_ctx *who = fuse_req_ctx(req);
	int r;

	pthread_rwlock_wrlock(&lock);
	r = make_node(parent, name, mode & ~who->umask, who, ret);
	pthread_rwlock_unlock(&lock);
	return r;
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct stat st;
	int r = make_locked(req, parent, name, S_IFDIR | (mode & 07777), &st);

	reply_entry(req, r, &st);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct fuse_entry_param e;
	struct stat st;
	int r = make_locked(req, parent, name, S_IFREG | (mode & 07777), &st);

	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	fill_entry(&e, &st);
	fi->fh = st.st_ino;
	fuse_reply_create(req, &e, fi);
}

static void op_remove(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct node **link, *n, *dir;
	int r = 0;

	pthread_rwlock_wrlock(&lock);
	link = find(parent, name);
	n = *link;
	if (!n) {
		r = ENOENT;
	} else if (n->n_entries) {
		r = ENOTEMPTY;
	} else {
		dir = nodes[parent];
		dir->entries[n->slot] = NULL;
		dir->n_entries--;
		clock_gettime(CLOCK_REALTIME, &dir->st.st_mtim);
		dir->st.st_ctim = dir->st.st_mtim;
		n->st.st_nlink = 0;
		*link = n->hash_next;
	}
	pthread_rwlock_unlock(&lock);
	fuse_reply_err(req, r);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	const struct statvfs st = {
		.f_bsize = 4096,
		.f_frsize = 4096,
		.f_blocks = 1u << 30,
		.f_bfree = 1u << 30,
		.f_bavail = 1u << 30,
		.f_namemax = 255,
	};

	fuse_reply_statfs(req, &st);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	fuse_reply_err(req, ENODATA);
}

/* ---- files ---- */

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct node *n;

	pthread_rwlock_wrlock(&lock);
	n = get(ino);
	if (n && (fi->flags & O_TRUNC))
		n->st.st_size = 0;
	pthread_rwlock_unlock(&lock);
	fi->fh = ino;
	fi->keep_cache = 1;
	fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct node *n;
	off_t left;

	pthread_rwlock_rdlock(&lock);
	n = get(ino);
	left = n && n->st.st_size > off ? n->st.st_size - off : 0;
	pthread_rwlock_unlock(&lock);
	if (size > (size_t)left)
		size = (size_t)left;
	if (n_blocks) {
		static _Thread_local unsigned char *buf;

		if (!buf && posix_memalign((void **)&buf, 4096, MAX_IO))
			buf = NULL;
		if (buf && read_block((size_t)off / BLOCK, (size_t)off % BLOCK, buf, size))
			fuse_reply_buf(req, (char *)buf, size);
		else
			fuse_reply_err(req, EIO);
		return;
	}
	fuse_reply_buf(req, hot, size);
}

static void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *src, off_t off,
			 struct fuse_file_info *fi)
{
	static _Thread_local char *scratch;
	size_t size = fuse_buf_size(src);
	struct node *n;

	if (!scratch)
		scratch = malloc(MAX_IO);
	if (!scratch || src->count != 1 || (src->buf[0].flags & FUSE_BUF_IS_FD) || size > MAX_IO) {
		fuse_reply_err(req, EIO);
		return;
	}
	memcpy(scratch, src->buf[0].mem, size);
	__asm__ volatile("" : : "r"(scratch) : "memory"); /* nobody reads it */
	pthread_rwlock_wrlock(&lock);
	n = get(ino);
	if (n && n->st.st_size < off + (off_t)size)
		n->st.st_size = off + (off_t)size;
	pthread_rwlock_unlock(&lock);
	fuse_reply_write(req, size);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

/* ---- directories ---- */

static size_t add_entry(fuse_req_t req, char *buf, size_t size, const struct node *n, bool plus)
{
	struct fuse_entry_param e;

	if (!plus)
		return fuse_add_direntry(req, buf, size, n->name, &n->st, (off_t)n->slot + 1);
	fill_entry(&e, &n->st);
	return fuse_add_direntry_plus(req, buf, size, n->name, &e, (off_t)n->slot + 1);
}

/* "." and ".." are left out: the C library adds nothing, and nobody here misses them. */
static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	char buf[LISTING_MAX];
	const struct node *dir;
	size_t used = 0;

	if (size > sizeof(buf))
		size = sizeof(buf);
	pthread_rwlock_rdlock(&lock);
	dir = get(ino);
	for (size_t i = (size_t)off; dir && i < dir->n_slots; i++) {
		size_t n;

		if (!dir->entries[i])
			continue;
		n = add_entry(req, buf + used, size - used, dir->entries[i], plus);
		if (n > size - used)
			break;
		used += n;
	}
	pthread_rwlock_unlock(&lock);
	fuse_reply_buf(req, buf, used);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->fh = ino;
	fuse_reply_open(req, fi);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	list(req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	list(req, ino, size, off, true);
}

/* ---- session ---- */

static void want(struct fuse_conn_info *conn, unsigned cap, bool on)
{
	if (on)
		conn->want |= conn->capable & cap;
	else
		conn->want &= ~cap;
}

/* As op_init() of src/fuse/negotiate.c. */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	conn->max_write = MAX_IO;
	conn->max_read = MAX_IO;
	conn->time_gran = 1;
	conn->max_background = 64;
	conn->congestion_threshold = 48;
	want(conn, FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO, true);
	want(conn, FUSE_CAP_PARALLEL_DIROPS, true);
	want(conn, FUSE_CAP_ATOMIC_O_TRUNC, true);
	want(conn, FUSE_CAP_AUTO_INVAL_DATA, true);
	want(conn, FUSE_CAP_CACHE_SYMLINKS, true);
	want(conn, FUSE_CAP_READDIRPLUS, true);
	want(conn, FUSE_CAP_READDIRPLUS_AUTO, false);
	want(conn, FUSE_CAP_DONT_MASK, true);
	want(conn, FUSE_CAP_HANDLE_KILLPRIV, false);
	want(conn, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE, false);
}

static struct cfs_ring *ring;			/* NULL: requests come through the device */
static _Thread_local struct cfs_request *taken; /* from the ring, and carried out by this thread */

/* As amend() of src/fuse/negotiate.c, in the first answer, which agrees on the session. */
static void amend(struct init_out *out)
{
	out->flags |= FUSE_HANDLE_KILLPRIV_V2 | FUSE_PARALLEL_DIROPS;
	if (!ring)
		return;
	out->flags |= FUSE_INIT_EXT;
	out->flags2 |= INIT_OVER_IO_URING >> 32;
}

static ssize_t answer(int fd, struct iovec *iov, int count, void *userdata)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	static atomic_bool agreed;
	ssize_t len = out->len;

	if (!atomic_exchange(&agreed, true) && count == 2 &&
	    iov[1].iov_len >= sizeof(struct init_out))
		amend(iov[1].iov_base);
	if (!taken || taken->id.unique != out->unique)
		return writev(fd, iov, count);
	errno = -channel_reply(ring_channel(ring), &taken->id, "nullfs", out->error, iov, count);
	return errno ? -1 : len;
}

/* As loop_serve_ring() of src/fuse/loop.c. */
static void serve_ring(void *arg, struct cfs_request *rq, unsigned place)
{
	struct fuse_buf buf = {.mem = rq->in, .size = rq->len};

	taken = rq;
	fuse_session_process_buf(arg, &buf);
	taken = NULL;
	if (rq->opcode == FUSE_FORGET)
		channel_reply_error(ring_channel(ring), &rq->id, 0);
}

/* The loop on the device ends as well. */
static void ring_ended(void *arg, int error)
{
}

static pid_t no_child(void *arg, unsigned cpu)
{
	return -ENOSYS;
}

static void on_wake(int signo)
{
}

static bool make_ring(struct fuse_session *se, struct cfs_device *device, unsigned threads)
{
	const struct sigaction wake = {.sa_handler = on_wake};
	unsigned queues = ring_queues();
	const struct cfs_ring_conf conf = {
		.device = &device->channel,
		.fd = device->fd,
		.depth = queues ? 2 * threads / queues : 0,
		.orphans = threads,
		.serve = serve_ring,
		.ended = ring_ended,
		.nudge = no_child,
		.arg = se,
	};
	char why[200];

	sigaction(SIGUSR1, &wake, NULL);
	if (ring_create(&conf, &ring, why) == 0)
		return true;
	fprintf(stderr, "nullfs: -u: %s\n", why);
	return false;
}

/* Answers the first request, and then has the others come through the ring. */
static bool start_ring(struct fuse_session *se, struct cfs_device *device)
{
	struct fuse_buf buf = {.mem = malloc(device->channel.buffer_size)};
	struct cfs_request rq;
	bool ok = buf.mem && device->channel.ops->receive(&device->channel, buf.mem, &rq) == 0;

	if (ok) {
		buf.size = rq.len;
		fuse_session_process_buf(se, &buf);
		ok = ring_start(ring, MAX_IO) == 0;
	}
	free(buf.mem);
	return ok;
}

static ssize_t take(int fd, void *buf, size_t size, void *userdata)
{
	return read(fd, buf, size);
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.mkdir = op_mkdir,
	.unlink = op_remove,
	.rmdir = op_remove,
	.statfs = op_statfs,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write_buf = op_write_buf,
	.flush = op_flush,
	.release = op_flush,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_flush,
	.getxattr = op_getxattr,
};

static bool make_root(void)
{
	struct node *root = calloc(1, sizeof(*root));

	nodes = calloc(NODES_MAX, sizeof(struct node *));
	if (!root || !nodes)
		return false;
	root->st.st_ino = FUSE_ROOT_ID;
	root->st.st_mode = S_IFDIR | 0777;
	root->st.st_nlink = 2;
	clock_gettime(CLOCK_REALTIME, &root->st.st_mtim);
	nodes[FUSE_ROOT_ID] = root;
	memset(hot, 'x', sizeof(hot));
	return true;
}

static int serve(struct fuse_session *se, const char *dir, unsigned threads, bool on_ring)
{
	static const struct fuse_custom_io io = {.writev = answer, .read = take};
	struct cfs_device device;
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned idle = cpus > 2 ? 2 * (unsigned)cpus : 4;
	int r = 1;

	if (!config)
		return 1;
	fuse_loop_cfg_set_clone_fd(config, 0);
	fuse_loop_cfg_set_max_threads(config, threads);
	fuse_loop_cfg_set_idle_threads(config, threads < idle ? threads : idle);
	if (fuse_session_mount(se, dir) == 0 &&
	    fuse_session_custom_io(se, &io, fuse_session_fd(se)) == 0) {
		device_init(&device, fuse_session_fd(se), MAX_IO);
		if (!on_ring || (make_ring(se, &device, threads) && start_ring(se, &device)))
			r = fuse_session_loop_mt(se, config) != 0;
		ring_stop(ring);
		ring_destroy(ring);
		fuse_session_unmount(se);
	}
	fuse_loop_cfg_destroy(config);
	return r;
}

int main(int argc, char **argv)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	unsigned threads = MAX_THREADS;
	struct fuse_session *se;
	bool on_ring = false;
	char options[128];
	int o, r = 1;

	while ((o = getopt(argc, argv, "t:j:c:u")) >= 0) {
		if (o == 't')
			timeout_s = strtod(optarg, NULL);
		else if (o == 'j')
			threads = (unsigned)strtoul(optarg, NULL, 10);
		else if (o == 'c' && open_blocks(optarg))
			continue;
		else if (o == 'u')
			on_ring = true;
		else
			return 2;
	}
	if (argc - optind != 1) {
		fprintf(stderr,
			"usage: nullfs [-t TIMEOUT_S] [-j THREADS] [-c LIST] [-u] MOUNTPOINT\n");
		return 2;
	}
	snprintf(options, sizeof(options),
		 "fsname=nullfs,subtype=nullfs,max_read=%u,allow_other,default_permissions",
		 MAX_IO);
	if (!make_root() || fuse_opt_add_arg(&args, "nullfs") || fuse_opt_add_arg(&args, "-o") ||
	    fuse_opt_add_arg(&args, options))
		return 1;
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (se) {
		r = serve(se, argv[optind], threads, on_ring);
		fuse_session_destroy(se);
	}
	fuse_opt_free_args(&args);
	return r;
}
