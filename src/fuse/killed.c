/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of programs that are being killed. The kernel lets a thread with a fatal signal go only
 * when its request is answered, however long the backend takes (fs/fuse/dev.c,
 * request_wait_answer()). So such requests are answered with EINTR here while they go on. The
 * caller never sees the answer, and the operation is done or not, as after a kill a moment earlier
 * or later. Other signals wait for the true answer, as on a disk: the program goes on, and must not
 * be told that an operation failed which may still succeed.
 *
 * The kernel takes the first answer to a request and refuses the second with ENOENT. After the
 * first answer the thread has no request under way, so the kernel may close handles that the
 * request still uses: they are pinned (cfs_vfs_pin).
 *
 * A thread searches for requests that take long. FUSE_INTERRUPT is not used: it comes once, for any
 * signal. The thread sleeps while no request is under way.
 *
 * Callers in a pid namespace that is not inside the mount's have no number here (0), so their
 * requests are never answered early.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "fuse-internal.h"

/* Threads that are looked up in /proc in a round, some microseconds each; rounds are LOOK_MS apart,
 * so all requests are examined within a second. */
#define LOOKS_MAX  128
#define LOOK_MS	   100
#define PROBES	   64  /* places that are tried for a request */
#define PF_EXITING 0x4 /* include/linux/sched.h */

/* Finds the handles of a request. False: it must not be answered early. */
static bool find_handles(const struct cfs_request *rq, uint64_t fh[KILLABLE_HANDLES])
{
	const struct fuse_in_header *in = rq->in;
	const uint8_t *body = (const uint8_t *)(in + 1);
	size_t len = rq->len - sizeof(*in);
	int at = -1;

	switch (in->opcode) {
	case FUSE_GETATTR:
		if (len >= 16 &&
		    (((const struct fuse_getattr_in *)(const void *)body)->getattr_flags &
		     FUSE_GETATTR_FH))
			at = offsetof(struct fuse_getattr_in, fh);
		break;
	case FUSE_SETATTR:
		if (len >= 16 &&
		    (((const struct fuse_setattr_in *)(const void *)body)->valid & FATTR_FH))
			at = offsetof(struct fuse_setattr_in, fh);
		break;
	case FUSE_WRITE:
		/* Written-back pages have no caller: the error would go to the fsync of another
		 * process. */
		if (len < sizeof(struct fuse_write_in) ||
		    (((const struct fuse_write_in *)(const void *)body)->write_flags &
		     FUSE_WRITE_CACHE))
			return false;
		at = 0;
		break;
	case FUSE_READ:
	case FUSE_FLUSH:
	case FUSE_FSYNC:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_FSYNCDIR:
	case FUSE_FALLOCATE:
	case FUSE_LSEEK:
		at = 0;
		break;
	case FUSE_COPY_FILE_RANGE:
		if (len < sizeof(struct fuse_copy_file_range_in))
			return false;
		memcpy(&fh[1], body + offsetof(struct fuse_copy_file_range_in, fh_out), 8);
		at = 0;
		break;
	case FUSE_LOOKUP:
	case FUSE_READLINK:
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_LINK:
	case FUSE_OPEN:
	case FUSE_CREATE:
	case FUSE_OPENDIR:
	case FUSE_STATFS:
	case FUSE_ACCESS:
	case FUSE_GETXATTR:
	case FUSE_SETXATTR:
	case FUSE_LISTXATTR:
	case FUSE_REMOVEXATTR:
		break;
	default:
		return false;
	}
	if (at >= 0 && (size_t)at + 8 > len)
		return false;
	if (at >= 0)
		memcpy(&fh[0], body + at, 8);
	return true;
}

static void wake(struct cfs_fuse *f)
{
	pthread_mutex_lock(&f->killed.sleep_lock);
	atomic_store(&f->killed.asleep, false);
	pthread_cond_signal(&f->killed.wake);
	pthread_mutex_unlock(&f->killed.sleep_lock);
}

struct killable *killable_begin(struct cfs_fuse *f, const struct cfs_request *rq)
{
	uint64_t fh[KILLABLE_HANDLES] = {0};
	struct killable *r;
	unsigned i, free_state;

	if (!f->killed.started || !rq->in->pid || !find_handles(rq, fh))
		return NULL;
	/* The kernel counts in steps of two. */
	for (i = 0; i < PROBES; i++) {
		r = &f->killed.request[(rq->id.unique / 2 + i) % KILLABLE_MAX];
		free_state = KILLABLE_FREE;
		if (atomic_load_explicit(&r->state, memory_order_relaxed) != KILLABLE_FREE ||
		    !atomic_compare_exchange_strong(&r->state, &free_state, KILLABLE_CLAIMED))
			continue;
		r->unique = rq->id.unique;
		r->entry = rq->id.entry;
		r->pid = (pid_t)rq->in->pid;
		memcpy(r->fh, fh, sizeof(r->fh));
		r->start_ms = cfs_now_ms();
		atomic_store(&r->state, KILLABLE_RUNNING);
		if (atomic_load(&f->killed.asleep))
			wake(f);
		return r;
	}
	return NULL;
}

static void unpin(struct cfs_fuse *f, const uint64_t fh[KILLABLE_HANDLES],
		  const bool pinned[KILLABLE_HANDLES])
{
	unsigned i;

	for (i = 0; i < KILLABLE_HANDLES; i++)
		if (pinned[i])
			cfs_vfs_unpin(f->vfs, fh[i]);
}

bool killable_leave(struct killable *r)
{
	unsigned runs = KILLABLE_RUNNING;

	return !r || atomic_compare_exchange_strong(&r->state, &runs, KILLABLE_FREE);
}

void killable_end(struct cfs_fuse *f, struct killable *r, uint64_t ino)
{
	bool early;

	if (killable_leave(r))
		return;
	/* killed.looker is examining the request, or has answered it. */
	pthread_mutex_lock(&f->killed.lock);
	early = atomic_load(&r->state) == KILLABLE_ANSWERED;
	pthread_mutex_unlock(&f->killed.lock);
	if (early) {
		loop_answered_early(f, -1);
		unpin(f, r->fh, r->pinned);
		/* At the early answer the kernel could not know what the request would change. */
		if (ino)
			drop_inode(f, ino, -1);
	}
	atomic_store(&r->state, KILLABLE_FREE);
}

bool killable_was_answered(const struct killable *r)
{
	return r && atomic_load(&r->state) == KILLABLE_ANSWERED;
}

/* Fields of proc(5), stat. */
enum { STAT_FLAGS = 9, STAT_START = 22, STAT_PENDING = 31, STAT_EXIT = 52, STAT_COUNT };

static bool read_stat(pid_t pid, uint64_t field[STAT_COUNT])
{
	cfs_auto_close int fd = -1;
	char path[64], text[1024], *p;
	ssize_t n;
	int i;

	/* The thread's own file: the values of a process are sums over all its threads. */
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return false;
	text[n] = '\0';
	p = strrchr(text, ')'); /* ends field 2 */
	for (i = 3; p && i < STAT_COUNT; i++) {
		p = strchr(p, ' ');
		field[i] = p ? strtoull(++p, NULL, 10) : 0;
	}
	return p;
}

/* False: /proc belongs to another pid namespace, where the callers have other numbers. */
static bool proc_is_ours(void)
{
	char text[16] = "";

	return readlink("/proc/self", text, sizeof(text) - 1) > 0 &&
	       strtol(text, NULL, 10) == getpid();
}

/*
 * A request without a waiting caller, as of aio, may outlive its thread: a thread of that number
 * that started after the request is another one. A fatal signal arrives as SIGKILL
 * (kernel/signal.c). One that dumps core does not, and its thread waits for the answer.
 */
static bool is_killed(pid_t pid, uint64_t age_ms)
{
	uint64_t field[STAT_COUNT];

	if (!read_stat(pid, field) ||
	    field[STAT_START] * 1000 / (uint64_t)sysconf(_SC_CLK_TCK) > cfs_boot_ms() - age_ms)
		return false;
	if (field[STAT_PENDING] >> (SIGKILL - 1) & 1)
		return true;
	/* The thread is ending because of a signal. */
	return (field[STAT_FLAGS] & PF_EXITING) && (field[STAT_EXIT] & 0x7f);
}

bool caller_is_killed(pid_t pid, uint64_t age_ms)
{
	return pid && proc_is_ours() && is_killed(pid, age_ms);
}

static void answer_early(struct cfs_fuse *f, struct killable *r, uint64_t unique)
{
	struct cfs_request_id id;
	unsigned i, runs = KILLABLE_RUNNING;
	uint64_t fh[KILLABLE_HANDLES];
	bool pinned[KILLABLE_HANDLES], early = false;

	pthread_mutex_lock(&f->killed.lock);
	if (!atomic_compare_exchange_strong(&r->state, &runs, KILLABLE_EXAMINED)) {
		pthread_mutex_unlock(&f->killed.lock);
		return;
	}
	memcpy(fh, r->fh, sizeof(fh));
	/* The slot may hold another request already. */
	for (i = 0; i < KILLABLE_HANDLES; i++)
		r->pinned[i] = r->unique == unique && fh[i] && cfs_vfs_pin(f->vfs, fh[i]);
	if (r->unique == unique) {
		id = (struct cfs_request_id){.unique = unique, .entry = r->entry};
		cfs_handoff_fail_request(f->conf.handoff, request_number(&id), true);
		early = channel_reply_error(f->channel, &id, -EINTR) == 0;
		if (!early)
			cfs_handoff_fail_request(f->conf.handoff, request_number(&id), false);
	}
	memcpy(pinned, r->pinned, sizeof(pinned));
	atomic_store(&r->state, early ? KILLABLE_ANSWERED : KILLABLE_RUNNING);
	pthread_mutex_unlock(&f->killed.lock);
	if (early)
		loop_answered_early(f, 1);
	else
		unpin(f, fh, pinned);
}

/* False: no request is under way. */
static bool look(struct cfs_fuse *f)
{
	uint64_t now_ms = cfs_now_ms(), start_ms, unique;
	unsigned i, n_looks = 0;
	struct killable *r;
	bool any = false;

	for (i = 0; i < KILLABLE_MAX && n_looks < LOOKS_MAX; i++) {
		r = &f->killed.request[(f->killed.next + i) % KILLABLE_MAX];
		if (atomic_load(&r->state) != KILLABLE_RUNNING)
			continue;
		any = true;
		unique = atomic_load(&r->unique);
		start_ms = atomic_load(&r->start_ms);
		if (start_ms + LOOK_MS > now_ms || atomic_load(&f->handing_over))
			continue;
		n_looks++;
		if (is_killed(atomic_load(&r->pid), now_ms - start_ms))
			answer_early(f, r, unique);
	}
	f->killed.next = (f->killed.next + i) % KILLABLE_MAX;
	return any;
}

static void look_and_sleep(struct cfs_fuse *f)
{
	cfs_deadline_t until;
	bool any;

	/* Set before the search: a request that the search misses then sees the flag. */
	atomic_store(&f->killed.asleep, true);
	any = look(f);
	pthread_mutex_lock(&f->killed.sleep_lock);
	while (!any && !atomic_load(&f->killed.stopping) && atomic_load(&f->killed.asleep))
		pthread_cond_wait(&f->killed.wake, &f->killed.sleep_lock);
	atomic_store(&f->killed.asleep, false);
	until = cfs_deadline_in(LOOK_MS);
	while (!atomic_load(&f->killed.stopping) && !cfs_deadline_passed(until))
		cfs_cond_wait(&f->killed.wake, &f->killed.sleep_lock, until);
	pthread_mutex_unlock(&f->killed.sleep_lock);
}

static void *run_looker(void *arg)
{
	struct cfs_fuse *f = arg;

	while (!atomic_load(&f->killed.stopping))
		look_and_sleep(f);
	return NULL;
}

int killable_start(struct cfs_fuse *f)
{
	int r;

	if (!proc_is_ours())
		return -ENOTSUP;
	if (!f->killed.request)
		f->killed.request = calloc(KILLABLE_MAX, sizeof(*f->killed.request));
	if (!f->killed.request)
		return -ENOMEM;
	atomic_store(&f->killed.stopping, false);
	r = cfs_thread_start("killed", run_looker, f, &f->killed.looker);
	f->killed.started = r == 0;
	return r;
}

void killable_stop(struct cfs_fuse *f)
{
	if (!f->killed.started)
		return;
	pthread_mutex_lock(&f->killed.sleep_lock);
	atomic_store(&f->killed.stopping, true);
	pthread_cond_signal(&f->killed.wake);
	pthread_mutex_unlock(&f->killed.sleep_lock);
	pthread_join(f->killed.looker, NULL);
	f->killed.started = false;
}
