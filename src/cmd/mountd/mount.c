/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/mount.h"

#include <cachefs/fuse.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/logring.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/silent.h"
#include "cmd/access/volume.h"
#include "cmd/mountd/options/mountconfig.h"
#include "cmd/mountd/options/mountfile.h"
#include "cmd/mountd/supervise/daemon.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"
#include "cmd/mountd/supervise/supervisor.h"
#include "cmd/mountd/supervise/worker.h"

#define ANSWER_MS 10000 /* of a mount in which another one is to be mounted */

static unsigned long change_flags(unsigned long v, const char *options)
{
	unsigned long set, clear;
	size_t len;

	for (; options && *options; options += len + (options[len] == ',')) {
		len = strcspn(options, ",");
		if (mount_opts_kernel_flag(options, len, &set, &clear))
			v = (v & ~clear) | set;
	}
	return v;
}

/*
 * mount(2) drops every flag that it is not given. So flags that the options do not name are taken
 * from the mount, unless the options are libmount's complete list (as_shown), which leaves out
 * defaults such as "suid".
 */
static unsigned long remount_flags(const struct mounted *m, const struct mount_opts *o)
{
	unsigned long v = MS_REMOUNT | (o->ro ? MS_RDONLY : 0);

	if (!o->as_shown)
		v = change_flags(v, m->options);
	return change_flags(v, o->kernel_opts);
}

/* Changes the kernel's flags only; options of cachefs stay as they are. */
static int remount(const char *point, const struct mount_opts *o)
{
	struct mounted m;
	bool ro;

	if (mounted_at(point, &m) < 0 || strcmp(m.type, CFS_FSTYPE))
		return cmd_fail(CMD_MOUNT_FAILED, "%s: not a mounted cachefs", point);
	if (!o->ro && m.ro && control_pid(point, &ro) > 0 && ro)
		return cmd_fail(
			CMD_MOUNT_FAILED,
			"%s was mounted read-only from the start: unmount it and mount it again",
			point);
	if (mount(m.source, point, m.type, remount_flags(&m, o), NULL) < 0)
		return cmd_fail(CMD_MOUNT_FAILED, "cannot remount %s: %s", point, strerror(errno));
	return CMD_OK;
}

/* Whether the existing mount may be taken over. */
static int check_takeover(const char *point, const struct mounted *m, const struct mount_opts *o,
			  bool *ret_takes_over)
{
	char path[200];
	int r;

	if (m->uid != geteuid())
		return cmd_fail(CMD_MOUNT_FAILED,
				"%s: already mounted (%s), by the user with id %u, who alone may "
				"upgrade it",
				point, m->source, m->uid);
	if (!o->supervise)
		return cmd_fail(
			CMD_MOUNT_FAILED,
			"%s: already mounted (%s); without supervise it cannot be taken over",
			point, m->source);
	mount_config_tell_differences(point, o);
	/* Descriptors inherited from the caller must not keep the mount busy for ever. */
	close_range(STDERR_FILENO + 1, ~0U, 0);
	r = handover_path(m->dev_minor, path, sizeof(path));
	if (r < 0)
		return cmd_fail(
			CMD_MOUNT_FAILED,
			"%s: already mounted (%s), and the directory of its supervisor's socket "
			"cannot be used: %s",
			point, m->source, strerror(-r));
	*ret_takes_over = true;
	return CMD_OK;
}

/* Detaches a file system whose process is gone. Returns whether the mount point is free. */
static bool clear_dead_mount(const char *point, const struct mounted *m)
{
	int r;

	if (!mounted_is_dead(point))
		return false;
	r = cfs_fuse_umount(point, true);
	if (r < 0) {
		cmd_error("%s: cannot detach the dead mount (%s): %s", point, m->source,
			  strerror(-r));
		return false;
	}
	cmd_error("%s: detached a dead mount (%s)", point, m->source);
	return true;
}

static int check_mount_point(const char *point, const struct mount_opts *o, bool *ret_takes_over)
{
	struct mounted m;
	struct stat st;

	while (mounted_at(point, &m) == 0 && !strcmp(m.type, CFS_FSTYPE)) {
		if (!o->fake && clear_dead_mount(point, &m))
			continue;
		if (o->takeover && !o->fake)
			return check_takeover(point, &m, o, ret_takes_over);
		return cmd_fail(CMD_MOUNT_FAILED, "%s: already mounted (%s)", point, m.source);
	}
	if (stat(point, &st) < 0)
		return cmd_fail(CMD_MOUNT_FAILED, "mount point %s: %s", point, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return cmd_fail(CMD_MOUNT_FAILED, "mount point %s: not a directory", point);
	return CMD_OK;
}

/* For -f: opens the volume and its bucket, and mounts nothing. */
static int check_volume(const char *url, const struct mount_opts *o)
{
	struct cfs_meta_conf conf = {.read_only = true, .timeout_ms = o->meta_timeout_ms};
	struct cfs_object_store *objects;
	struct cfs_setting *setting;
	struct cfs_meta *meta;
	char err[256] = "";
	int r;

	if (volume_open(url, &conf, &meta, &setting, err) < 0)
		return cmd_fail(CMD_MOUNT_FAILED, "%s", err);
	r = volume_open_objects(setting, o->storage, o->bucket, &objects, err);
	if (r == 0)
		cfs_object_close(objects);
	else
		cmd_error("%s", err);
	cfs_setting_free(setting);
	cfs_meta_close(meta);
	return r == 0 ? CMD_OK : CMD_MOUNT_FAILED;
}

static int verify_answer(const char *point, uint64_t timeout_ms)
{
	int r = mounted_ask(point, timeout_ms);

	if (r < 0)
		return cmd_fail(CMD_MOUNT_FAILED, "%s is mounted but does not answer: %s", point,
				strerror(-r));
	return CMD_OK;
}

/* A mount point in a mount that does not answer could not even be looked up. */
static int check_way(const char *dir)
{
	char path[4096], above[4096];

	if (mounted_follow(dir, path, sizeof(path)) == 0 &&
	    control_seek_mount(dir, above, sizeof(above)) == 0 && strcmp(path, above) != 0 &&
	    mounted_ask(above, ANSWER_MS) == -ETIMEDOUT) {
		silent_error(above);
		return CMD_MOUNT_FAILED;
	}
	return CMD_OK;
}

/* Keeps the last log lines of all processes of this mount, for `cachefs debug`. */
static void keep_last_lines(void)
{
	int r = cfs_logring_create();

	if (r < 0)
		cfs_warn("the last lines of the log are not kept: error=%s", cfs_errname(r));
}

/* Makes the path absolute, because the processes of the mount change their directory. */
static int open_log(const char *file, const char *point)
{
	cfs_auto_free char *copy = strdup(file), *dir = NULL;
	size_t len = strlen(point);
	const char *name;
	char path[4400];
	int r = -ENOMEM;

	if (copy) {
		name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
		dir = realpath(dirname(copy), NULL);
		r = dir ? 0 : -errno;
	}
	if (r == 0) {
		snprintf(path, sizeof(path), "%s/%s", dir, name);
		/* Writing a log inside the mount would wait for this process itself. */
		if (!strncmp(path, point, len) && (path[len] == '/' || len == 1))
			r = -ELOOP;
		else
			r = cfs_log_file(path);
	}
	if (r == -ELOOP)
		cmd_error("log=%s: the file lies in the mount itself", file);
	else if (r < 0)
		cmd_error("log=%s: %s", file, strerror(-r));
	return r;
}

/*
 * The end of a terminal ends what runs in its foreground. Elsewhere a hang-up means nothing:
 * administrators and logrotate(8) send it to have a log opened again, which the mount does by
 * itself.
 */
static void ignore_hangup(bool foreground)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	int terminal = foreground ? open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY) : -1;

	if (terminal >= 0)
		close(terminal);
	else
		sigaction(SIGHUP, &ignore, NULL);
}

static struct supervised supervised_mount(const char *url, const char *point,
					  const struct mount_opts *o, bool takes_over)
{
	return (struct supervised){
		.url = url,
		.point = point,
		.opts = o,
		.mount_timeout_ms = o->mount_timeout_ms,
		.io_timeout_ms = o->io_timeout_ms,
		.serve = serve_mount,
		.takes_over = takes_over,
	};
}

static int mount_in_foreground(const char *url, const char *point, const struct mount_opts *o,
			       bool takes_over)
{
	struct supervised conf = supervised_mount(url, point, o, takes_over);
	struct worker w = {.link = -1, .device = -1};
	char err[256] = "";
	int r;

	if (o->supervise)
		return supervise(&conf);
	r = serve_mount(url, point, o, &w, err);
	if (err[0])
		cmd_error("%s", err);
	return r;
}

static int mount_in_background(const char *url, const char *point, const struct mount_opts *o,
			       enum cfs_log_level level, bool takes_over)
{
	struct supervised conf = supervised_mount(url, point, o, takes_over);
	struct worker w = {.link = -1, .device = -1};
	char err[256] = "";
	struct daemon *d = NULL;
	int r;

	r = daemon_fork(o->mount_timeout_ms, &d);
	if (r < 0)
		return cmd_error("cannot start a process: %s", strerror(-r));
	if (r == 1)
		return verify_answer(point, o->mount_timeout_ms);
	if (r > 1)
		return r - 1;
	cfs_log_init(CFS_LOG_SYSLOG, level);
	keep_last_lines();
	conf.report = w.report = d;
	/*
	 * An interrupt from the terminal is for the waiting command only. A first mount stays in
	 * the session, for a service manager that watches its process group.
	 */
	if (takes_over && setsid() < 0)
		cfs_warn("cannot leave the session of the terminal: error=%s", cfs_errname(errno));
	if (o->supervise)
		exit(supervise(&conf));
	r = serve_mount(url, point, o, &w, err);
	if (err[0])
		daemon_failed(d, r ? r : CMD_MOUNT_FAILED, err);
	exit(r);
}

int mount_volume(const char *url, const char *dir, const struct mount_opts *o, bool verbose)
{
	cfs_auto_free char *full_url = volume_absolute_url(url);
	enum cfs_log_level level;
	bool takes_over = false;
	char point[4096];
	int r;

	if (cfs_log_level_parse(o->log_level, &level) < 0)
		return cmd_usage("log-level '%s' is not one of error, warning, info, debug",
				 o->log_level);
	r = volume_use_credentials(o->credentials);
	if (r != CMD_OK)
		return r;
	r = check_way(dir);
	if (r != CMD_OK)
		return r;
	r = mounted_resolve(dir, point, sizeof(point));
	if (r < 0 || !full_url)
		return cmd_fail(CMD_MOUNT_FAILED, "mount point %s: %s", dir,
				strerror(r < 0 ? -r : ENOMEM));
	if (o->remount)
		return remount(point, o);
	r = check_mount_point(point, o, &takes_over);
	if (r != CMD_OK)
		return r;
	if (verbose)
		printf("mounting on %s\n", point);
	if (o->fake)
		return check_volume(full_url, o);
	/* In a takeover, supervise() finds out whether the running mount is a service. */
	notify_init(o->foreground || takes_over);
	if (o->log && open_log(o->log, point) < 0)
		return CMD_USAGE;
	ignore_hangup(o->foreground);
	if (!o->foreground)
		return mount_in_background(full_url, point, o, level, takes_over);
	cfs_log_init(CFS_LOG_STDERR, level);
	keep_last_lines();
	return mount_in_foreground(full_url, point, o, takes_over);
}

/* -f, -o LIST, and --NAME or --NAME=VALUE that is an option of another program. */
static int other_option(void *options, int argc, char *const *argv, char err[CFS_OPT_ERRLEN])
{
	size_t len = strcspn(argv[0], "=");
	struct mount_opts *o = options;
	char name[64];
	int r;

	if (!strcmp(argv[0], "-f") || !strcmp(argv[0], "--fake")) {
		o->fake = true;
		return 1;
	}
	if (!strcmp(argv[0], "-o"))
		return argc < 2 ? cfs_fail(err, -EINVAL, "-o needs a list of options")
		       : mount_opts_list(o, argv[1], false, err) < 0 ? -EINVAL
								     : 2;
	if (strncmp(argv[0], "--", 2) != 0 || len - 2 >= sizeof(name))
		return -ENOENT;
	snprintf(name, sizeof(name), "%.*s", (int)len - 2, argv[0] + 2);
	r = mount_opts_other_name(o, name, argv[0][len] ? argv[0] + len + 1 : NULL, err);
	return r < 0 ? r : 1;
}

static int mount_run(int argc, char **argv)
{
	struct mount_opts o = {0};
	const char *pos[2];
	int r, at = 1;

	mount_opts_defaults(&o);
	r = cmd_parse(&cmd_mount, &o, argc, argv, pos);
	while (r < 0 && argv[at] != pos[0])
		at++;
	if (r < 0 && !mount_file_run(o.config, argc, argv, at, pos[1], mount_run, &r)) {
		o.takeover = true;
		r = pos[1] ? mount_volume(pos[0], pos[1], &o, false)
			   : cmd_usage("usage: cachefs %s %s", cmd_mount.name, cmd_mount.synopsis);
	}
	mount_opts_free(&o);
	return r;
}

const struct cmd cmd_mount = {
	.name = "mount",
	.synopsis = "[-o OPTIONS] [--OPTION=VALUE...] META-URL|NAME [DIR]",
	.summary = "Mounts a volume; returns when the mount answers",
	.options = mount_table,
	.other_option = other_option,
	.heading = "Options, as --NAME=VALUE or in -o:\n\n",
	.min_args = 1,
	.max_args = 2,
	.run_argv = mount_run,
};
