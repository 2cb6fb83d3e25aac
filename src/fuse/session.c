/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a mount: mounting, the loop with its signals, unmounting. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mounted.h"
#include "base/thread.h"
#include "fuse-internal.h"

#define DEFAULT_MAX_IO (1u << 20)
#define OPTION_MAX     4096

/* The last message of libfuse, whose calls return no reason. Read while mounting only. */
static _Thread_local char last_message[200];

__attribute__((format(printf, 2, 0))) static void log_libfuse(enum fuse_log_level level,
							      const char *fmt, va_list ap)
{
	char text[sizeof(last_message)];

	vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = '\0';
	memcpy(last_message, text, sizeof(text));
	if (level <= FUSE_LOG_ERR)
		cfs_warn("libfuse: %s", text);
	else
		cfs_debug("libfuse: %s", text);
}

/* ---- mounting ---- */

static int add_option(char **list, const char *name, const char *value)
{
	char opt[OPTION_MAX];
	int n = snprintf(opt, sizeof(opt), "%s%s%s", name, value ? "=" : "", value ? value : "");

	if (n < 0 || (size_t)n >= sizeof(opt))
		return -ENAMETOOLONG;
	return fuse_opt_add_opt_escaped(list, opt) < 0 ? -ENOMEM : 0;
}

static int add_kernel_options(char **list, const char *kernel_opts)
{
	cfs_auto_free char *copy = NULL;
	char *name, *save = NULL;
	int r = 0;

	if (!kernel_opts)
		return 0;
	copy = strdup(kernel_opts);
	if (!copy)
		return -ENOMEM;
	for (name = strtok_r(copy, ",", &save); name && r == 0; name = strtok_r(NULL, ",", &save)) {
		if (!strstr(name, "symfollow"))
			r = add_option(list, name, NULL);
	}
	return r;
}

/* Applies nosymfollow, which libfuse does not know. */
static int forbid_symlinks(const struct cfs_fuse_conf *conf)
{
	const char *yes = conf->kernel_opts ? strstr(conf->kernel_opts, "nosymfollow") : NULL;
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSYMFOLLOW};

	if (!yes || strstr(yes, ",symfollow"))
		return 0;
	return mount_setattr(AT_FDCWD, conf->mount_point, 0, &attr, sizeof(attr)) < 0 ? -errno : 0;
}

static int build_args(const struct cfs_fuse_conf *conf, struct fuse_args *args)
{
	char *list = NULL, max_read[16];
	int r;

	snprintf(max_read, sizeof(max_read), "%u", conf->max_io);
	r = add_option(&list, "fsname", conf->source ? conf->source : "cachefs");
	if (r == 0)
		r = add_option(&list, "subtype", "cachefs");
	if (r == 0)
		r = add_option(&list, "max_read", max_read);
	if (r == 0 && conf->allow_other)
		r = add_option(&list, "allow_other", NULL);
	if (r == 0 && conf->default_permissions)
		r = add_option(&list, "default_permissions", NULL);
	if (r == 0)
		r = add_kernel_options(&list, conf->kernel_opts);
	if (r == 0 &&
	    (fuse_opt_add_arg(args, "cachefs") < 0 || fuse_opt_add_arg(args, "-o") < 0 ||
	     fuse_opt_add_arg(args, list) < 0 || (conf->debug && fuse_opt_add_arg(args, "-d") < 0)))
		r = -ENOMEM;
	free(list);
	return r;
}

static int fill(struct cfs_fuse *f, const struct cfs_fuse_conf *conf)
{
	int r;

	f->conf = *conf;
	f->vfs = conf->vfs;
	f->signal_fd = f->event_fd = -1;
	f->resumes = conf->device >= 0;
	if (!f->conf.max_io)
		f->conf.max_io = DEFAULT_MAX_IO;
	if (!f->conf.max_threads)
		f->conf.max_threads = CFS_FUSE_THREADS;
	device_init(&f->device, conf->device, f->conf.max_io);
	f->channel = &f->device.channel;
	pthread_mutex_init(&f->lock, NULL);
	cfs_cond_init(&f->idle);
	pthread_mutex_init(&f->killed.lock, NULL);
	pthread_mutex_init(&f->killed.sleep_lock, NULL);
	cfs_cond_init(&f->killed.wake);
	admission_init(f);
	r = async_init(f);
	if (r == 0)
		r = loop_init(f);
	f->mount_point = strdup(conf->mount_point);
	if (r < 0 || !f->mount_point)
		return -ENOMEM;
	f->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return f->event_fd < 0 ? -errno : 0;
}

static void free_session(struct cfs_fuse *f)
{
	cfs_vfs_pass_through(f->vfs, NULL);
	cfs_vfs_on_longer(f->vfs, NULL, NULL);
	if (f->session)
		fuse_session_destroy(f->session);
	ring_destroy(f->ring);
	if (f->device.fd >= 0)
		close(f->device.fd);
	if (f->signal_fd >= 0)
		close(f->signal_fd);
	if (f->event_fd >= 0)
		close(f->event_fd);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->idle);
	pthread_mutex_destroy(&f->killed.lock);
	pthread_mutex_destroy(&f->killed.sleep_lock);
	pthread_cond_destroy(&f->killed.wake);
	free(f->killed.request);
	async_fini(f);
	admission_fini(f);
	loop_fini(f);
	free(f->mount_point);
	free(f);
}

/* Another mount may have appeared here while the volume was opened. */
static int check_mount_point(const struct cfs_fuse *f, char err[256])
{
	struct mounted m;

	if (f->conf.device >= 0 || mounted_at(f->mount_point, &m) < 0 ||
	    strcmp(m.type, CFS_FSTYPE) != 0)
		return 0;
	return cfs_fail(err, -EBUSY, "%s: already mounted (%.100s)", f->mount_point, m.source);
}

/* Gives libfuse a duplicate of the descriptor, as it closes what it is given. */
static int attach(struct cfs_fuse *f)
{
	char name[32];
	int fd = fcntl(f->device.fd, F_DUPFD_CLOEXEC, 0), r;

	if (fd < 0)
		return -errno;
	snprintf(name, sizeof(name), "/dev/fd/%d", fd);
	errno = 0;
	if (fuse_session_mount(f->session, name) == 0)
		return 0;
	r = errno ? -errno : -EIO;
	close(fd);
	return r;
}

static int mount_new(struct cfs_fuse *f)
{
	int r;

	errno = 0;
	if (fuse_session_mount(f->session, f->mount_point) != 0)
		return errno ? -errno : -EIO;
	f->device.fd = fcntl(fuse_session_fd(f->session), F_DUPFD_CLOEXEC, 0);
	if (f->device.fd >= 0)
		return 0;
	r = -errno;
	fuse_session_unmount(f->session);
	return r;
}

/* While a process holds the device open, unmounting does not end the connection. */
static void unmount_session(struct cfs_fuse *f)
{
	if (f->conf.device >= 0) {
		cfs_fuse_detach(f->mount_point, f->device.fd);
		return;
	}
	close(f->device.fd);
	f->device.fd = -1;
	fuse_session_unmount(f->session);
}

static void ring_ended(void *arg, int error)
{
	struct cfs_fuse *f = arg;

	if (error)
		cfs_err("requests cannot be read, the mount ends: mount=%s error=%s",
			f->mount_point, cfs_errname(error));
	loop_end(f, error);
}

static pid_t nudge(void *arg, unsigned cpu)
{
	const struct cfs_fuse *f = arg;
	pid_t pid = fork();
	struct statfs st;

	if (pid == 0) {
		close_range(0, ~0U, 0);
		ring_pin(cpu);
		_exit(statfs(f->mount_point, &st) < 0);
	}
	return pid;
}

void session_without_ring(struct cfs_fuse *f, const char *why)
{
	if (f->conf.io_uring == CFS_IO_URING_OFF)
		return;
	cfs_info("requests of the kernel come through the device: mount=%s reason=\"io_uring: "
		 "%s\"",
		 f->mount_point, why);
	f->conf.io_uring = CFS_IO_URING_OFF;
	f->channel = &f->device.channel;
	ring_destroy(f->ring);
	f->ring = NULL;
}

/*
 * The memory of a ring is that of the buffers which threads of the device would have: two for each
 * of max_threads (layers.c).
 */
static int make_ring(struct cfs_fuse *f, char why[200])
{
	unsigned queues = ring_queues();
	const struct cfs_ring_conf conf = {
		.device = &f->device.channel,
		.fd = f->device.fd,
		.depth = queues ? 2 * f->conf.max_threads / queues : 0,
		.orphans = f->conf.max_threads,
		.serve = loop_serve_ring,
		.ended = ring_ended,
		.nudge = nudge,
		.parked = WAITERS_MAX,
		.arg = f,
	};

	/* Requests that the kernel gives to a ring whose process ends are lost. */
	if (f->conf.handoff) {
		snprintf(why, 200, "a mount with a supervisor has none (supervise=false)");
		return -EOPNOTSUPP;
	}
	if (queues && conf.depth < 2) {
		snprintf(why, 200, "%u possible CPUs need max-threads=%u", queues, queues);
		return -EOPNOTSUPP;
	}
	return ring_create(&conf, &f->ring, why);
}

/* Called before the answer to FUSE_INIT, which tells the kernel. */
static int choose_channel(struct cfs_fuse *f, char err[256])
{
	char why[200];
	int r;

	if (f->conf.io_uring == CFS_IO_URING_OFF)
		return 0;
	f->needs_ring = f->conf.io_uring == CFS_IO_URING_ON;
	r = make_ring(f, why);
	if (r < 0 && f->needs_ring)
		return cfs_fail(err, r, "io_uring=on: %s", why);
	if (r < 0) {
		session_without_ring(f, why);
		return 0;
	}
	f->conf.io_uring = CFS_IO_URING_ON;
	f->channel = ring_channel(f->ring);
	return 0;
}

static int mount_session(struct cfs_fuse *f, char err[256])
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	bool resumes = f->conf.device >= 0;
	int r = check_mount_point(f, err);

	if (r < 0)
		return r;
	last_message[0] = '\0';
	/* libfuse writes its request trace to stderr, whatever our own log level. */
	if (!f->conf.debug)
		fuse_set_log_func(log_libfuse);
	r = build_args(&f->conf, &args);
	if (r < 0) {
		snprintf(err, 256, "%s: mount options: %s", f->mount_point, strerror(-r));
		goto out;
	}
	f->session = fuse_session_new(&args, &fuse_ops, sizeof(fuse_ops), f);
	if (!f->session) {
		r = -EINVAL;
		snprintf(err, 256, "%s: %s", f->mount_point,
			 last_message[0] ? last_message : "mount options refused");
		goto out;
	}
	r = resumes ? attach(f) : mount_new(f);
	if (r < 0) {
		snprintf(err, 256, "%s: %s", f->mount_point,
			 last_message[0] ? last_message : strerror(-r));
		goto out;
	}
	r = choose_channel(f, err);
	if (r == 0)
		r = resumes ? negotiate_resume(f, err) : negotiate_mount(f, err);
	if (r == 0) {
		passthrough_begin(f);
		lengthen_begin(f);
	}
	if (r == 0 && !resumes) {
		r = forbid_symlinks(&f->conf);
		if (r < 0)
			snprintf(err, 256, "%s: nosymfollow: %s", f->mount_point, strerror(-r));
	}
	if (r < 0 && !resumes)
		unmount_session(f);
out:
	fuse_opt_free_args(&args);
	return r;
}

/*
 * Signals are blocked before mounting: one that arrives between mounting and serving must not kill
 * the process and leave a dead mount.
 */
static int take_signals(struct cfs_fuse *f)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	sigset_t set;

	cfs_end_signals(&set);
	f->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (f->signal_fd < 0)
		return -errno;
	pthread_sigmask(SIG_BLOCK, &set, &f->old_mask);
	sigaction(SIGPIPE, &ignore, NULL);
	return 0;
}

int cfs_fuse_mount(const struct cfs_fuse_conf *conf, struct cfs_fuse **ret, char err[256])
{
	struct cfs_fuse *f = calloc(1, sizeof(*f));
	int r = -ENOMEM;

	if (f) {
		r = fill(f, conf);
		if (r == 0)
			r = take_signals(f);
		if (r < 0)
			snprintf(err, 256, "%s: %s", conf->mount_point, strerror(-r));
		else
			r = mount_session(f, err);
		if (r < 0) {
			if (f->signal_fd >= 0)
				pthread_sigmask(SIG_SETMASK, &f->old_mask, NULL);
			free_session(f);
		}
	}
	if (r == 0)
		*ret = f;
	return r;
}

/* ---- the loop ---- */

void session_tune_read_ahead(const struct cfs_fuse *f)
{
	char path[64], text[16];
	struct mounted m;
	int fd, n;

	if (!f->conf.read_ahead_kb || mounted_at(f->mount_point, &m) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/0:%u/read_ahead_kb", m.dev_minor);
	n = snprintf(text, sizeof(text), "%u", f->conf.read_ahead_kb);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	/* Only root may write it; mounts of other users keep the kernel's value. */
	if (fd < 0 || write(fd, text, (size_t)n) != n)
		cfs_debug("the kernel's read-ahead stays as it is: mount=%s error=%s",
			  f->mount_point, cfs_errname(errno));
	if (fd >= 0)
		close(fd);
}

static void *run_control(void *arg)
{
	struct cfs_fuse *f = arg;
	struct pollfd fds[2] = {
		{.fd = f->signal_fd, .events = POLLIN},
		{.fd = f->event_fd, .events = POLLIN},
	};
	struct signalfd_siginfo info;
	bool ends, hands_over;
	uint64_t count;
	size_t i;

	if (f->conf.device >= 0) {
		session_tune_read_ahead(f);
		/* The kernel keeps names for the timeouts of the previous process's options. */
		channel_renew_names(f->channel);
	}
	/* This waits for pages that are being read, so no thread of the loop may do it. */
	for (i = 0; i < f->conf.n_wrong; i++)
		drop_inode(f, f->conf.wrong[i], 0);
	while (atomic_load(&f->looping)) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if ((fds[1].revents & POLLIN) && read(f->event_fd, &count, sizeof(count)) > 0 &&
		    !atomic_load(&f->stopping))
			continue;
		if ((fds[0].revents & POLLIN) &&
		    read(f->signal_fd, &info, sizeof(info)) == sizeof(info)) {
			cfs_info("stopping: signal=%u mount=%s", info.ssi_signo, f->mount_point);
			atomic_store(&f->signo, (int)info.ssi_signo);
			atomic_store(&f->stopping, true);
		}
		if (!atomic_load(&f->stopping))
			continue;
		hands_over = atomic_load(&f->handing_over);
		ends = atomic_load(&f->signo) || !hands_over;
		if (ends && f->conf.stopping)
			f->conf.stopping(f->conf.stopping_arg);
		if (!hands_over)
			mapped_write_back(f);
		loop_end(f, 0);
		if (ends)
			break;
	}
	return NULL;
}

static void wake(struct cfs_fuse *f)
{
	uint64_t one = 1;
	ssize_t n = write(f->event_fd, &one, sizeof(one));

	(void)n; /* A full eventfd means that the loop is awake already. */
}

int cfs_fuse_loop(struct cfs_fuse *f)
{
	pthread_t control;
	int r;

	atomic_store(&f->looping, true);
	r = cfs_thread_start("fuse-control", run_control, f, &control);
	if (r == 0) {
		if (f->resumes)
			channel_resend(f->channel);
		r = killable_start(f);
		if (r < 0)
			cfs_warn("killed programs wait for the answers to their requests: mount=%s "
				 "error=%s",
				 f->mount_point, cfs_errname(r));
		r = loop_run(f);
		async_drain(f);
		atomic_store(&f->looping, false);
		wake(f);
		pthread_join(control, NULL);
		waiters_stop(f);
		killable_stop(f);
	}
	return atomic_load(&f->signo) ? atomic_load(&f->signo) : r;
}

void cfs_fuse_stop(struct cfs_fuse *f)
{
	atomic_store(&f->stopping, true);
	wake(f);
}

void cfs_fuse_hand_over(struct cfs_fuse *f)
{
	atomic_store(&f->handing_over, true);
	cfs_fuse_stop(f);
}

void cfs_fuse_take_back(struct cfs_fuse *f)
{
	loop_reset(f);
	f->resumes = true;
	atomic_store(&f->handing_over, false);
	atomic_store(&f->stopping, false);
}

int cfs_fuse_device(const struct cfs_fuse *f)
{
	return f->device.fd;
}

void cfs_fuse_name_changed(struct cfs_fuse *f, cfs_ino_t parent, const char *name, size_t len)
{
	channel_drop_name(f->channel, parent, name, len);
}

bool cfs_fuse_has_ended(int device)
{
	struct pollfd p = {.fd = device};

	return device >= 0 && poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

static int run_fusermount(const char *mount_point, bool lazy)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		execlp("fusermount3", "fusermount3", lazy ? "-uqz" : "-uq", "--", mount_point,
		       (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

int cfs_fuse_umount(const char *mount_point, bool lazy)
{
	struct mounted m;
	int r;

	if (umount2(mount_point, (lazy ? MNT_DETACH : 0) | UMOUNT_NOFOLLOW) == 0)
		return 0;
	if (errno != EPERM)
		return -errno;
	r = run_fusermount(mount_point, lazy);
	/* fusermount3 tells no reason. For one's own mount it is that the mount is busy. */
	if (r == -EPERM && !lazy && mounted_at(mount_point, &m) == 0 && m.uid == geteuid())
		r = -EBUSY;
	return r;
}

int cfs_fuse_detach(const char *mount_point, int device)
{
	/* Another process may have mounted here again. */
	return cfs_fuse_has_ended(device) ? 0 : cfs_fuse_umount(mount_point, true);
}

void cfs_fuse_unmount(struct cfs_fuse *f)
{
	unmount_session(f);
	free_session(f);
}

void cfs_fuse_abandon(struct cfs_fuse *f)
{
	/* MNT_FORCE ends the connection even when other processes hold its descriptor. */
	if (umount2(f->mount_point, MNT_FORCE | MNT_DETACH) < 0)
		fuse_session_unmount(f->session);
}

#define STRING_OF(x)		     #x
#define VERSION_STRING(major, minor) STRING_OF(major) "." STRING_OF(minor)

void cfs_fuse_features(struct cfs_fuse_features *ret)
{
	*ret = (struct cfs_fuse_features){
		.libfuse_built = VERSION_STRING(FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION),
		.libfuse_running = fuse_pkgversion(),
		.ring_built = ring_is_built(),
		.ring_kernel = access(CFS_RING_PARAMETER, F_OK) < 0 ? CFS_RING_ABSENT
			       : ring_is_switched_on()		    ? CFS_RING_SWITCHED_ON
								    : CFS_RING_SWITCHED_OFF,
		.passthrough_built = true, /* with any libfuse */
#ifdef FUSE_CAP_OVER_IO_URING
		.io_uring_built = true,
#endif
	};
}
