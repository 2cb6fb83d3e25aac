/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process in which a mount makes backups: it can be killed when the bucket hangs, its memory
 * ends with it, and it has the lowest priority.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/ioprio.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/volume.h"
#include "cmd/dump/dump.h"

enum { ORDER_MAX = 1 << 20, NICE = 19 };

/*
 * The mount ends its child by SIGKILL, so the child ignores signals that reach the whole process
 * group. When memory runs out, the child is killed first: a backup can be made again.
 */
static void lower_priority(void)
{
	int fd;

	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpriority(PRIO_PROCESS, 0, NICE);
	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
	mallopt(M_ARENA_MAX, 1);
	fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (write(fd, "1000", 4) < 0)
			errno = 0; /* then the kernel chooses as it likes */
		close(fd);
	}
}

static int say_latest(const struct dump_backup *job)
{
	const struct backup *latest;
	struct backup_list list;
	int r = backup_read_list(job->objects, job->setting->name, cfs_deadline_in(ADMIN_OBJECT_MS),
				 &list);

	if (r < 0)
		return r;
	latest = backup_latest(&list, job->when_s);
	printf("latest %" PRId64 "\n", latest ? latest->when_s : -1);
	backup_free_list(&list);
	return 0;
}

static int carry_out(const struct backup_order *o)
{
	struct cfs_meta_conf conf = {
		.read_only = true,
		.no_bgjob = true,
		.timeout_ms = ADMIN_STEP_MS,
	};
	struct dump_backup job = {.when_s = o->now_s, .skip_trash = o->skip_trash, .rotate = true};
	struct cfs_setting *setting = NULL;
	int r = volume_open(o->url, &conf, &job.meta, &setting, job.err);

	job.setting = setting;
	if (!r)
		r = volume_open_objects_with(setting, &o->objects, &job.objects, job.err);
	if (!r && o->make) {
		r = dump_backup(&job);
		if (!r)
			printf("stored %s %" PRIu64 "\n", job.name, job.size);
	}
	if (!r)
		r = say_latest(&job);
	if (r)
		printf("failed %.*s\n", BACKUP_LINE_MAX - 16, job.err[0] ? job.err : strerror(-r));
	cfs_object_close(job.objects);
	if (job.meta)
		cfs_meta_close(job.meta);
	cfs_setting_free(setting);
	return r ? CMD_SYSTEM : CMD_OK;
}

/* The mount may have died before lower_priority(): no signal comes then. */
static bool is_orphan(void)
{
	struct pollfd answers = {.fd = STDOUT_FILENO};

	return poll(&answers, 1, 0) > 0 && (answers.revents & (POLLHUP | POLLERR));
}

int dump_child(void)
{
	struct backup_order order;
	char *text = malloc(ORDER_MAX);
	size_t len = 0;
	ssize_t n = 1;
	int r = CMD_SYSTEM;

	lower_priority();
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (text && len < ORDER_MAX && (n = read(STDIN_FILENO, text + len, ORDER_MAX - len)) > 0)
		len += (size_t)n;
	if (text && n == 0 && !is_orphan() && backup_take_order(text, len, &order) == 0)
		r = carry_out(&order);
	free(text);
	return r;
}
