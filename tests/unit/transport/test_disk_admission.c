/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An owner whose cache disk hangs, which is a FUSE file system here. When these fail it takes all
 * memory there is, keeps whoever asks waiting, answers nothing from its other disks, or does not
 * recover.
 */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "peer_fixture.h"
#include "unit/skip.h"

#define SMALL 4096u
#define TURNS 32u /* of a disk */
#define SOON  300 /* disk_timeout_ms where it is waited for */

/* ---- a disk that hangs on demand ---- */

#define HELD_MAX 4096

struct read_op {
	fuse_req_t req;
	size_t len;
	off_t off;
};

/*
 * Served by a process of its own: one that reads from itself, and hangs, cannot be killed. It has
 * the owner's bytes.
 */
static struct {
	char dir[32];
	pid_t pid;
	struct {
		_Atomic bool ready, hangs;
		_Atomic unsigned held;
	} *shared;

	/* The process' own. */
	struct owner o; /* only its bytes */
	struct fuse_session *session;
	pthread_mutex_t lock; /* protects what follows */
	struct read_op held[HELD_MAX];
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct stat stat_of(fuse_ino_t ino)
{
	struct stat st = {.st_ino = ino, .st_nlink = 1, .st_mode = S_IFDIR | 0700};

	if (ino != FUSE_ROOT_ID) {
		st.st_mode = S_IFREG | 0600;
		st.st_size = disk.o.len;
	}
	return st;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.ino = 2, .attr = stat_of(2), .attr_timeout = 3600};

	(void)parent;
	(void)name;
	fuse_reply_entry(req, &e);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = stat_of(ino);

	(void)fi;
	fuse_reply_attr(req, &st, 3600);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	fuse_reply_open(req, fi);
}

static void reply(const struct read_op *op)
{
	fuse_reply_buf(op->req, (const char *)disk.o.data + op->off, op->len);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t len, off_t off,
		    struct fuse_file_info *fi)
{
	struct read_op op = {.req = req, .len = CFS_MIN(len, disk.o.len - (size_t)off), .off = off};
	bool hangs;

	(void)ino;
	(void)fi;
	pthread_mutex_lock(&disk.lock);
	hangs = disk.shared->hangs && disk.shared->held < HELD_MAX;
	if (hangs)
		disk.held[disk.shared->held++] = op;
	pthread_mutex_unlock(&disk.lock);
	if (!hangs)
		reply(&op);
}

static const struct fuse_lowlevel_ops disk_ops = {
	.lookup = op_lookup,
	.getattr = op_getattr,
	.open = op_open,
	.read = op_read,
};

static void *release_held(void *arg)
{
	(void)arg;
	for (;;) {
		pthread_mutex_lock(&disk.lock);
		while (!disk.shared->hangs && disk.shared->held > 0)
			reply(&disk.held[--disk.shared->held]);
		pthread_mutex_unlock(&disk.lock);
		usleep(500);
	}
	return NULL;
}

static _Noreturn void serve_disk(void)
{
	char name[] = "disk", *argv[] = {name, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	owner_fill(&disk.o, BLOCK);
	disk.session = fuse_session_new(&args, &disk_ops, sizeof(disk_ops), NULL);
	if (!disk.session || fuse_session_mount(disk.session, disk.dir) < 0 ||
	    pthread_create(&thread, NULL, release_held, NULL) != 0)
		_exit(1);
	disk.shared->ready = true;
	fuse_session_loop(disk.session);
	_exit(0);
}

static void set_hangs(bool on)
{
	disk.shared->hangs = on;
	WAIT_FOR(on || disk.shared->held == 0);
}

/* A descriptor of the block on the disk; none of it is in the page cache. */
static int open_block(void)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/block", disk.dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	return fd;
}

/* ---- an owner with a disk that works, and one that may hang ---- */

struct two_disks {
	struct owner o;
	struct cfs_transport *t;
	struct cfs_peer *p;
	int good, bad;
};

static void use_disk(struct two_disks *d, bool bad)
{
	d->o.fd = bad ? d->bad : d->good;
	d->o.disk = bad;
}

static void begin(struct two_disks *d, unsigned disk_timeout_ms)
{
	struct cfs_transport_conf conf = {.disk_timeout_ms = disk_timeout_ms};

	owner_open_conf(&d->o, BLOCK, &conf);
	d->good = d->o.fd;
	d->bad = open_block();
	d->t = asker();
	d->p = peer_at(d->t, &d->o.addr, d->o.addr_len);
	use_disk(d, true);
}

static void end(struct two_disks *d)
{
	set_hangs(false);
	cfs_peer_close(d->p);
	cfs_transport_destroy(d->t);
	WAIT_FOR(d->o.releases == d->o.gets);
	d->o.fd = d->good;
	owner_close(&d->o);
	close(d->bad);
}

static struct cfs_peer_stats served(struct two_disks *d)
{
	struct cfs_peer_stats st;

	cfs_transport_stats(d->o.t, NULL, &st);
	return st;
}

static void assert_answered(struct two_disks *d, uint32_t off, uint32_t len)
{
	uint8_t *dst = malloc(len);

	assert_int_equal(ask(d->p, &d->o, off, len, dst), len);
	assert_memory_equal(dst, d->o.data + off, len);
	free(dst);
}

/* A connection that asks for n small pieces all over the block. */
static int ask_for_pieces(struct two_disks *d, unsigned n)
{
	uint8_t buf[256];
	unsigned i;
	int r, fd = raw_client(&d->o, &keys, &r);

	assert_int_equal(r, 1);
	for (i = 0; i < n; i++)
		assert_true(raw_send(
			fd, buf, get_frame(buf, i + 1, BLOCK, i * 65537 % (BLOCK - SMALL), SMALL)));
	return fd;
}

static size_t memory_in_use(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

/* ---- tests ---- */

/*
 * Many ask for pieces that must be read from a disk that hangs: memory is bounded, who waits is
 * told to go elsewhere, whoever comes later at once; the other disk's blocks are served meanwhile,
 * and all of them when the disk answers again.
 */
static void test_disk_hangs(void **state)
{
	enum { CONNS = 24, EACH = 1000 };
	struct two_disks d;
	uint8_t dst[SMALL];
	unsigned i;
	size_t before;
	uint64_t began;
	int fds[CONNS];

	(void)state;
	begin(&d, SOON);
	set_hangs(true);
	before = memory_in_use();
	for (i = 0; i < CONNS; i++)
		fds[i] = ask_for_pieces(&d, EACH);
	WAIT_FOR(d.o.gets == CONNS * EACH);
	/* 4 MiB to read into, and a KiB for each one who waits; nobody has read an answer yet. */
	assert_true(memory_in_use() - before < (4u << 20) + CONNS * EACH * 1024);
	use_disk(&d, false);
	assert_answered(&d, 4096, SMALL);
	assert_answered(&d, 0, BLOCK);
	WAIT_FOR(served(&d).inflight == TURNS);
	assert_int_equal(served(&d).errors[CFS_PEER_E_BUSY], CONNS * EACH - TURNS);
	use_disk(&d, true);
	began = cfs_now_ms();
	for (i = 0; i < 100; i++)
		assert_int_equal(ask(d.p, &d.o, 0, SMALL, dst), -EBUSY);
	assert_true(cfs_now_ms() - began < 100 * SOON / 4);
	set_hangs(false);
	WAIT_FOR(ask(d.p, &d.o, 0, SMALL, dst) == SMALL);
	for (i = 0; i < 64; i++)
		assert_answered(&d, i * 65536 + 100, SMALL);
	assert_answered(&d, 0, BLOCK);
	for (i = 0; i < CONNS; i++)
		close(fds[i]);
	end(&d);
}

/* A request that times out, or whose client disconnects, leaves the queue before the disk answers. */
static void test_leaving_the_line(void **state)
{
	enum { EACH = 500 };
	struct two_disks d;
	uint8_t dst[SMALL];
	int first, second;

	(void)state;
	begin(&d, 10 * LONG_MS);
	set_hangs(true);
	first = ask_for_pieces(&d, TURNS);
	WAIT_FOR(served(&d).inflight == TURNS);
	assert_int_equal(ask_within(d.p, &d.o, 0, SMALL, dst, 100), -ETIMEDOUT);
	WAIT_FOR(served(&d).inflight == TURNS);
	second = ask_for_pieces(&d, EACH);
	WAIT_FOR(served(&d).inflight == TURNS + EACH);
	close(second);
	WAIT_FOR(served(&d).inflight == TURNS && d.o.releases == 1 + EACH);
	set_hangs(false);
	assert_answered(&d, 0, SMALL);
	close(first);
	end(&d);
}

/* A disk that is merely slow refuses nobody: more than have a turn wait for it. */
static void test_slow_disk(void **state)
{
	enum { N = 300 };
	struct many m[N] = {0};
	struct two_disks d;
	unsigned i;
	sem_t done;

	(void)state;
	begin(&d, LONG_MS);
	sem_init(&done, 0, 0);
	set_hangs(true);
	for (i = 0; i < N; i++) {
		m[i].done = &done;
		assert_int_equal(start_one(d.p, &m[i], &d.o, i * 13007, SMALL, LONG_MS), 0);
	}
	WAIT_FOR(served(&d).inflight == N && disk.shared->held > 0);
	/* It goes on for a moment each time. */
	for (i = 0; i < N; i++) {
		while (sem_trywait(&done) < 0) {
			set_hangs(false);
			set_hangs(true);
		}
	}
	for (i = 0; i < N; i++) {
		assert_int_equal(m[i].err, 0);
		assert_memory_equal(m[i].dst, d.o.data + i * 13007, SMALL);
		free(m[i].dst);
	}
	sem_destroy(&done);
	end(&d);
}

/*
 * An answer that has begun and cannot go on ends its connection, so that nobody waits behind it;
 * from then on they are refused before they begin.
 */
static void test_answer_that_cannot_go_on(void **state)
{
	struct two_disks d;
	uint8_t buf[256], *dst = malloc(BLOCK);
	uint64_t began = cfs_now_ms();
	int fd, r;

	(void)state;
	begin(&d, SOON);
	set_hangs(true);
	fd = raw_client(&d.o, &keys, &r);
	assert_int_equal(r, 1);
	raw_send(fd, buf, get_frame(buf, 1, BLOCK, 0, BLOCK));
	WAIT_FOR(d.o.gets == 1);
	raw_send(fd, buf, get_frame(buf, 2, BLOCK, 0, BLOCK));
	assert_true(raw_is_closed(fd));
	assert_int_equal(served(&d).errors[CFS_PEER_E_TIMEOUT], 1);
	assert_true(cfs_now_ms() - began < LONG_MS / 2);
	close(fd);
	/* One may try. */
	assert_true(ask_within(d.p, &d.o, 0, SMALL, dst, 100) < 0);
	assert_int_equal(ask(d.p, &d.o, 0, BLOCK, dst), -EBUSY);
	assert_int_equal(ask(d.p, &d.o, 32768, BLOCK / 2, dst), -EBUSY);
	use_disk(&d, false);
	assert_answered(&d, 0, BLOCK);
	use_disk(&d, true);
	set_hangs(false);
	WAIT_FOR(ask(d.p, &d.o, 0, BLOCK, dst) == BLOCK);
	assert_memory_equal(dst, d.o.data, BLOCK);
	free(dst);
	end(&d);
}

static bool may_mount(void)
{
	return geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0;
}

/* Before there are threads. The mount is gone with the processes, whatever becomes of them. */
static int set_up(void **state)
{
	(void)state;
	if (!may_mount())
		return 0;
	snprintf(disk.dir, sizeof(disk.dir), "/tmp/cfs-disk.XXXXXX");
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    !mkdtemp(disk.dir))
		return -1;
	disk.shared = mmap(NULL, sizeof(*disk.shared), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	disk.pid = fork();
	if (disk.pid == 0)
		serve_disk();
	WAIT_FOR(disk.shared->ready);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (disk.pid > 0) {
		kill(disk.pid, SIGKILL);
		waitpid(disk.pid, NULL, 0);
		umount2(disk.dir, MNT_DETACH);
		rmdir(disk.dir);
	}
	return 0;
}

static int can_mount(void **state)
{
	(void)state;
	if (!may_mount())
		skip_missing("root and /dev/fuse are needed");
	return 0;
}

/* Without its disk the owner can end, whatever has failed. */
static int let_go(void **state)
{
	(void)state;
	if (disk.shared)
		disk.shared->hangs = false;
	return 0;
}

int main(void)
{
#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, can_mount, let_go)
	const struct CMUnitTest tests[] = {
		DISK_TEST(test_disk_hangs),
		DISK_TEST(test_leaving_the_line),
		DISK_TEST(test_slow_disk),
		DISK_TEST(test_answer_that_cannot_go_on),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
