/* SPDX-License-Identifier: Apache-2.0 */
#include "uring.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "ring.h"

#define SQ_ENTRIES 4

/* The kernel is faster when one thread uses an io_uring (from Linux 6.1). */
int uring_open(struct io_uring *ret)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED,
	};
	int r = io_uring_queue_init_params(SQ_ENTRIES, ret, &p);

	if (r == 0)
		io_uring_ring_dontfork(ret);
	return r;
}

/* liburing 2.3 declares io_uring_enable_rings() and does not export it. */
int uring_enable(struct io_uring *u)
{
	long r = syscall(__NR_io_uring_register, u->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);

	return r < 0 ? -errno : 0;
}

/* Each call may be forbidden (seccomp(2)). */
static int use(struct io_uring *u)
{
	struct io_uring_sqe *sqe;
	int r = uring_enable(u);

	sqe = r == 0 ? io_uring_get_sqe(u) : NULL;
	if (!sqe)
		return r;
	io_uring_prep_nop(sqe);
	r = io_uring_submit_and_wait(u, 1);
	return CFS_MIN(r, 0);
}

int uring_check(char why[200])
{
	struct io_uring u;
	int r;

	if (access(CFS_RING_PARAMETER, F_OK) < 0) {
		snprintf(why, 200, "this kernel has no FUSE over io_uring (from Linux 6.14)");
		return -EOPNOTSUPP;
	}
	if (!ring_is_switched_on()) {
		snprintf(why, 200, "it is switched off in the kernel (%s)", CFS_RING_PARAMETER);
		return -EOPNOTSUPP;
	}
	if (ring_queues() == 0) {
		snprintf(why, 200, "the number of possible CPUs is unknown (%s)", RING_POSSIBLE);
		return -EOPNOTSUPP;
	}
	r = uring_open(&u);
	if (r == 0) {
		r = use(&u);
		io_uring_queue_exit(&u);
	}
	if (r < 0)
		snprintf(why, 200, "no io_uring can be had: %s", strerror(-r));
	return r;
}

bool ring_is_built(void)
{
	return true;
}

void ring_pin(unsigned cpu)
{
	cpu_set_t *set = CPU_ALLOC(cpu + 1);
	size_t bytes = CPU_ALLOC_SIZE(cpu + 1);

	if (!set)
		return;
	CPU_ZERO_S(bytes, set);
	CPU_SET_S(cpu, bytes, set);
	/* This fails for a CPU that is off or not ours. The scheduler then chooses one. */
	sched_setaffinity(0, bytes, set);
	CPU_FREE(set);
}
