/* SPDX-License-Identifier: Apache-2.0 */
/* One mount from the first connection to the last flush. */
#include <cachefs/fuse.h>
#include <cachefs/vfs.h>
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/mounted.h"
#include "base/text/url.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"
#include "cmd/group/peers.h"
#include "cmd/mountd/metrics.h"
#include "cmd/mountd/mount.h"
#include "cmd/mountd/serve-internal.h"
#include "cmd/mountd/shutdown.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"
#include "cmd/mountd/supervise/worker.h"

/* Threads of a mount that writes, reads and removes a little. */
#define THREADS_MIN 24
#define MEMORY_HINT "; see the limits of memory (ulimit -d, ulimit -v)"

void serve_lost(void *arg, const char *reason)
{
	struct serve *s = arg;
	struct cfs_fuse *f;

	cfs_err("the volume is lost, unmounting: %s", reason);
	atomic_store(&s->lost, true);
	f = atomic_load(&s->fuse);
	if (f)
		cfs_fuse_stop(f);
}

static void on_stopping(void *arg)
{
	struct serve *s = arg;

	shutdown_begin(s->shutdown);
}

/* Detaches the mount before the process exits. Only the first thread that comes here does it. */
static void abandon(void *arg)
{
	struct serve *s = arg;
	struct cfs_fuse *f = atomic_exchange(&s->fuse, NULL);

	if (f)
		cfs_fuse_abandon(f);
}

void serve_stuck(void *arg)
{
	struct serve *s = arg;

	cfs_err("a request is stuck, this process exits (watchdog-restart)");
	cfs_log_flush();
	if (worker_is_supervised(s->worker))
		abort();
	abandon(s);
	_exit(CMD_SYSTEM);
}

void serve_name_changed(void *arg, cfs_ino_t parent, const char *name, size_t len)
{
	struct serve *s = arg;
	struct cfs_fuse *f = atomic_load(&s->fuse);

	if (f)
		cfs_fuse_name_changed(f, parent == s->control.root ? CFS_ROOT_INO : parent, name,
				      len);
}

static int start_session(struct serve *s, char err[256])
{
	struct cfs_handoff *handoff = s->worker->handoff;
	struct cfs_meta_hooks hooks = cfs_vfs_hooks(s->vfs);
	int r;

	if (worker_resumes(s->worker))
		cfs_meta_resume(s->meta, atomic_load(&cfs_handoff_header(handoff)->sid),
				atomic_load(&cfs_handoff_header(handoff)->ended_sid));
	r = cfs_meta_start(s->meta, &hooks);
	/* Otherwise cfs_vfs_restore() compares it with that of the previous process first. */
	if (r == 0 && handoff && !worker_resumes(s->worker))
		atomic_store(&cfs_handoff_header(handoff)->sid, cfs_meta_sid(s->meta));
	if (r < 0)
		snprintf(err, 256, "cannot start a session on volume %s: %s", s->setting->name,
			 strerror(-r));
	return r;
}

static int start_metrics(struct serve *s, char err[256])
{
	const struct mount_parts parts = {
		.dir = s->dir,
		.o = s->o,
		.setting = s->setting,
		.meta = s->meta,
		.pool = s->pool,
		.metrics = &s->numbers,
		.vfs = s->vfs,
		.peers = s->peers,
		.started_ns = cfs_now_ns(),
	};
	int r = metrics_start(s->o->metrics, &parts, s->health, &s->metrics, err);

	if (r < 0 && !err[0])
		snprintf(err, 256, "cannot serve metrics: %s", strerror(-r));
	return r;
}

static int mount_kernel(struct serve *s, struct cfs_fuse **ret, char err[256])
{
	char source[1024], kernel_opts[512];
	struct cfs_fuse_conf conf = {
		.vfs = s->vfs,
		.handoff = s->worker->handoff,
		.agreement = layers_agreement(s),
		.device = s->worker->device,
		.wrong = s->restored.lost_inos,
		.n_wrong = s->restored.n_lost_inos,
		.mount_point = s->dir,
		.source = source,
		.kernel_opts = kernel_opts,
		.allow_other = s->o->allow_other,
		.default_permissions = layers_kernel_checks(s),
		.writeback_cache = s->o->writeback_cache,
		.io_uring = (enum cfs_io_uring)s->o->io_uring,
		.passthrough = s->disk && s->o->passthrough == MOUNT_PASSTHROUGH_AUTO,
		/* A read-only mount cannot record locks for others. */
		.local_locks = s->o->ro,
		.posix_acl = s->setting->enable_acl && layers_kernel_checks(s),
		.drops_set_id = !s->o->xattr || !(s->o->security_xattr || s->o->capability_xattr),
		.umask = -1,
		.stopping = on_stopping,
		.stopping_arg = s,
		.debug = s->o->debug,
		.max_threads = (unsigned)s->o->max_threads,
		.max_io = layers_request_size(s->o),
		.read_ahead_kb = (uint32_t)(s->o->read_ahead >> 10),
	};
	struct mounted m;
	int lock, r;

	if (s->o->umask && mount_opts_umask(s->o->umask, &conf.umask, err) < 0)
		return -EINVAL;
	if (s->o->source)
		snprintf(source, sizeof(source), "%s", s->o->source);
	else
		cfs_url_mask(s->url, source, sizeof(source));
	snprintf(kernel_opts, sizeof(kernel_opts), "%s%s%s", s->o->ro ? "ro" : "rw",
		 s->o->kernel_opts ? "," : "", s->o->kernel_opts ? s->o->kernel_opts : "");
	/* Two processes that mount at one place at the same time must not both find it free. */
	lock = worker_resumes(s->worker) ? -1 : handover_lock();
	r = cfs_fuse_mount(&conf, ret, err);
	if (r == 0 && mounted_at(s->dir, &m) == 0)
		cfs_activity_set_device(m.dev_minor);
	handover_unlock(lock);
	return r;
}

/* Starts the parts that report the mount's state. */
static int start_watching(struct serve *s, char err[256])
{
	struct shutdown_conf shutdown = {
		.volume = s->setting->name,
		.dir = s->dir,
		.data = s->data,
		.store = s->store,
		.timeout_ms = s->o->stop_timeout_ms,
		.abandon = abandon,
		.arg = s,
	};
	int r = shutdown_create(&shutdown, &s->shutdown);

	if (r == 0 && (s->o->metrics || notify_wanted()))
		r = health_start(s->dir, &s->health);
	if (r == 0 && s->o->metrics)
		r = start_metrics(s, err);
	if (r < 0 && !err[0])
		snprintf(err, 256, "cannot watch the mount: %s", strerror(-r));
	return r;
}

/* Whether a signal that ends the mount waits for the loop. */
static bool is_to_end(void)
{
	sigset_t ends, set;

	cfs_end_signals(&ends);
	return sigpending(&set) == 0 && sigandset(&set, &set, &ends) == 0 &&
	       sigisemptyset(&set) == 0;
}

/*
 * Another process takes the mount over. Stores the data that a crash would lose, and exits without
 * closing anything: requests wait meanwhile. Returns when data cannot be stored, or when the mount
 * is to end: it then stays with this process.
 */
static void leave_mount(struct serve *s)
{
	int r = cfs_data_store(s->data, cfs_deadline_in(s->o->io_timeout_ms));

	if (r == 0 && !worker_may_leave(s->worker))
		r = -ENOTCONN;
	if (r == 0 && is_to_end())
		r = -ECANCELED;
	if (r < 0) {
		worker_stay(s->worker, r);
		return;
	}
	cfs_data_drain(s->data);
	peers_leave(s->peers);
	r = cfs_meta_leave(s->meta);
	if (r < 0)
		cfs_warn("usage could not be written, 'cachefs fsck --repair' counts it: error=%s",
			 cfs_errname(r));
	cfs_info("left the mount to another process: mount=%s", s->dir);
	cfs_log_flush();
	_exit(CMD_OK);
}

static int serve(struct serve *s, struct cfs_fuse *fuse)
{
	char status[512];
	bool leaves;
	int sig, r;

	atomic_store(&s->fuse, fuse);
	r = backups_start(s->backups);
	if (r < 0)
		cfs_warn("this mount makes no backups of the metadata: volume=%s error=%s",
			 s->setting->name, cfs_errname(r));
	cfs_info("mounted: volume=%s mount=%s sid=%llu", s->setting->name, s->dir,
		 (unsigned long long)cfs_meta_sid(s->meta));
	snprintf(status, sizeof(status), "Volume %s is mounted at %s", s->setting->name, s->dir);
	notify_start(s->health, status, &s->notify);
	do {
		sig = cfs_fuse_loop(fuse);
		leaves = atomic_load(&s->worker->leaving);
		/* A signal, or the end of the mount, may have come while it was to be left. */
		if (!leaves || sig) {
			worker_unwatch(s->worker);
			leaves = atomic_load(&s->worker->leaving);
		}
		if (leaves && (sig || cfs_fuse_has_ended(cfs_fuse_device(fuse)))) {
			/* Only a loop that ends a mount writes back what mappings hold. */
			worker_stay(s->worker, -ECANCELED);
			if (sig)
				cfs_fuse_stop(fuse);
		} else if (leaves) {
			leave_mount(s);
		}
	} while (leaves && !atomic_load(&s->lost));
	shutdown_begin(s->shutdown);
	cfs_info("unmounting: volume=%s mount=%s signal=%d", s->setting->name, s->dir,
		 sig > 0 ? sig : 0);
	/* The next mount may get the number, while this process still stores data. */
	cfs_activity_set_device(0);
	if (atomic_exchange(&s->fuse, NULL))
		cfs_fuse_unmount(fuse);
	return sig;
}

/*
 * A mount without threads would hang or lose what is written to it. One that resumes is not given up
 * for that.
 */
static int check_limits(const struct serve *s, char err[256])
{
	/* With less, libraries abort rather than report an error. */
	static const struct {
		int resource;
		unsigned mib;
		const char *what;
	} least[] = {{RLIMIT_DATA, 32, "data (ulimit -d)"},
		     {RLIMIT_AS, 200, "address space (ulimit -v)"}};
	struct rlimit l;
	size_t i;
	int r;

	if (worker_resumes(s->worker))
		return 0;
	for (i = 0; i < CFS_ARRAY_SIZE(least); i++) {
		if (getrlimit(least[i].resource, &l) == 0 && l.rlim_cur >> 20 < least[i].mib)
			return cfs_fail(err, -ENOMEM, "a mount needs at least %u MiB of %s",
					least[i].mib, least[i].what);
	}
	r = cfs_thread_try(THREADS_MIN);
	if (r < 0)
		snprintf(err, 256,
			 "a mount needs at least %d threads, which cannot be started: %s; see the "
			 "limits of tasks (pids.max of the control group, TasksMax of a service, "
			 "ulimit -u) and of memory (ulimit -d, ulimit -v)",
			 THREADS_MIN, strerror(-r));
	return r;
}

int serve_mount(const char *url, const char *dir, const struct mount_opts *o, struct worker *w,
		char err[256])
{
	struct serve s = {.o = o, .url = url, .dir = dir, .worker = w};
	struct cfs_fuse *fuse = NULL;
	bool session = false;
	int r, sig = 0, closed;

	/* Request threads allocate little: an arena for each core would only waste memory. */
	mallopt(M_ARENA_MAX, 2);
	r = cfs_activity_init();
	if (r < 0)
		cfs_warn("request tracing is off, there is no shared memory: error=%s",
			 cfs_errname(r));
	notify_send("STATUS=Mounting at %s", dir);
	r = check_limits(&s, err);
	if (r == 0)
		r = worker_resumes(w) ? resume_open(&s, err) : layers_open_backends(&s, err);
	if (r == 0)
		r = worker_checked(w, s.setting->uuid, o->ro, err);
	if (r == 0)
		r = layers_open(&s, err);
	if (r == -ENOMEM && !strstr(err, "ulimit"))
		snprintf(err + strlen(err), 256 - strlen(err), "%s", MEMORY_HINT);
	if (r == 0) {
		do
			r = start_session(&s, err);
		while (r < 0 && resume_tries_again(&s, r, err));
		session = r == 0;
	}
	if (r == 0)
		r = start_watching(&s, err);
	if (r == 0 && worker_resumes(w))
		r = resume_restore(&s, err);
	if (r == 0)
		r = mount_kernel(&s, &fuse, err);
	if (r == 0 && worker_resumes(w))
		resume_end_standby(&s);
	if (r == 0) {
		r = worker_ready(w, s.store, s.data, fuse, err);
		if (r == 0)
			sig = serve(&s, fuse);
		else if (!worker_resumes(w))
			cfs_fuse_unmount(fuse);
	}
	/* Exits without closing anything, as the next process resumes the mount and its session. */
	if (r < 0 && worker_resumes(w)) {
		cfs_fuse_standby_end(s.standby);
		worker_failed(w, CMD_MOUNT_FAILED, err);
		cfs_log_flush();
		_exit(CMD_MOUNT_FAILED);
	}
	free(s.restored.lost_inos);
	metrics_stop(s.metrics);
	backups_destroy(s.backups);
	notify_stop(s.notify);
	health_stop(s.health);
	closed = layers_close(&s, session);
	shutdown_end(s.shutdown);
	if (closed < 0)
		return CMD_SYSTEM;
	if (r < 0)
		return CMD_MOUNT_FAILED;
	return sig < 0 || atomic_load(&s.lost) ? CMD_SYSTEM : CMD_OK;
}
