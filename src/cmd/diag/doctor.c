/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/diag/doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/access/admin.h"
#include "cmd/access/backup.h"
#include "cmd/access/cmd.h"
#include "cmd/access/volume.h"
#include "cmd/access/waits.h"

#define STEP_MS	     15000
#define TRIES	     21
#define META_SLOW_MS 5.0
#define SKEW_MAX_S   5
#define OBJECT_SIZE  4096
#define BACKUP_OLD_S (2 * 86400)

struct doctor_opts {
	struct admin_opts admin;
	char *cache_dir;
};

#define OPTIONS struct doctor_opts
static const struct cfs_opt doctor_table[] = {
	OPT_STRING("cache-dir", cache_dir, "DIR[:DIR...]",
		   "cache directories that mounts of this host use"),
	ADMIN_OBJECT_OPTIONS(admin),
	{0},
};

static const char *const level_names[] = {"ok", "note", "change"};

void doctor_say(struct doctor *d, enum cfs_advice level, const char *what, const char *fmt, ...)
{
	static const char *const marks[] = {"ok     ", "note   ", "CHANGE "};
	static const char *const colours[] = {"\033[32m", "", "\033[1;31m"};
	char text[600];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	d->changes += level == CFS_ADVICE_CHANGE;
	if (d->checks)
		json_array_append_new(d->checks,
				      json_pack("{s:s, s:o, s:s, s:o}", "section", d->section,
						"check", admin_text(what, strlen(what)), "level",
						level_names[level], "text",
						admin_text(text, strlen(text))));
	else
		printf("%s%s%s%s: %s: %s\n", d->colour ? colours[level] : "", marks[level],
		       d->colour ? "\033[0m" : "", d->section, what, text);
	fflush(stdout);
}

static void take_advice(void *arg, enum cfs_advice level, const char *what, const char *text)
{
	doctor_say(arg, level, what, "%s", text);
}

/* ---- metadata ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return CFS_COMPARE(x, y);
}

static void check_latency(struct doctor *d, struct cfs_meta *meta)
{
	struct cfs_ctx ctx;
	struct cfs_attr attr;
	double ms[TRIES];
	uint64_t start_ns;
	unsigned i;
	int r;

	for (i = 0; i < TRIES; i++) {
		ctx = cfs_ctx_internal(STEP_MS);
		start_ns = cfs_now_ns();
		r = cfs_meta_getattr(meta, &ctx, CFS_ROOT_INO, &attr);
		if (r < 0) {
			doctor_say(d, CFS_ADVICE_CHANGE, "latency",
				   "the root directory cannot be read: %s", strerror(-r));
			return;
		}
		ms[i] = (double)(cfs_now_ns() - start_ns) / 1e6;
	}
	qsort(ms, TRIES, sizeof(*ms), by_value);
	if (ms[TRIES / 2] > META_SLOW_MS)
		doctor_say(
			d, CFS_ADVICE_CHANGE, "latency",
			"%.2f ms at least, median %.2f ms: bring the database nearer; most calls "
			"of applications wait for one request to it",
			ms[0], ms[TRIES / 2]);
	else
		doctor_say(d, CFS_ADVICE_OK, "latency", "%.3f ms at least, median %.3f ms", ms[0],
			   ms[TRIES / 2]);
}

static void check_meta(struct doctor *d, struct cfs_meta *meta)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	int r;

	doctor_say(d, CFS_ADVICE_OK, "connection", "%s answers", cfs_meta_engine_name(meta));
	check_latency(d, meta);
	r = cfs_meta_advise(meta, &ctx, take_advice, d);
	if (r < 0 && r != -ENOTSUP)
		doctor_say(d, CFS_ADVICE_NOTE, "settings", "cannot be read: %s", strerror(-r));
}

/* ---- objects ---- */

struct listed {
	const char *key;
	bool found;
	int64_t mtime_s;
};

static int take_listed(void *arg, const struct cfs_object_info *info)
{
	struct listed *l = arg;

	if (!strcmp(info->key, l->key)) {
		l->found = true;
		l->mtime_s = info->mtime_s;
	}
	return 0;
}

/* One call; true when it went well. */
static bool judge(struct doctor *d, const char *what, int r, uint64_t start_ns)
{
	const char *cause = cfs_object_cause();

	if (r >= 0) {
		doctor_say(d, CFS_ADVICE_OK, what, "%.2f ms",
			   (double)(cfs_now_ns() - start_ns) / 1e6);
		return true;
	}
	if (r == -EACCES || r == -EPERM)
		doctor_say(d, CFS_ADVICE_CHANGE, what,
			   "is not permitted: allow it to the key of the volume%s%s",
			   *cause ? ": " : "", cause);
	else
		doctor_say(d, CFS_ADVICE_CHANGE, what, "%s%s%s", strerror(-r), *cause ? ": " : "",
			   cause);
	return false;
}

static void check_object_clock(struct doctor *d, int64_t mtime_s, int64_t put_s)
{
	int64_t off_s = mtime_s < put_s ? mtime_s - put_s : CFS_MAX(mtime_s - cfs_wall_s(), 0);

	if (off_s < -SKEW_MAX_S || off_s > SKEW_MAX_S)
		doctor_say(d, CFS_ADVICE_CHANGE, "clock",
			   "%" PRId64 " s %s of this host's: synchronise this host with NTP; "
			   "requests are signed with the time",
			   off_s < 0 ? -off_s : off_s, off_s < 0 ? "behind" : "ahead");
	else
		doctor_say(d, CFS_ADVICE_OK, "clock", "agrees with this host's");
}

static void check_objects(struct doctor *d, struct cfs_object_store *o, const char *volume)
{
	unsigned char body[OBJECT_SIZE], back[OBJECT_SIZE];
	struct iovec src = {body, sizeof(body)}, dst = {back, sizeof(back)};
	int64_t put_s = cfs_wall_s();
	struct listed l = {0};
	char key[256];
	uint64_t start_ns;
	ssize_t n;
	size_t i;
	int r;

	for (i = 0; i < sizeof(body); i++)
		body[i] = (unsigned char)cfs_random_u64();
	snprintf(key, sizeof(key), "%s/testing/doctor-%08x", volume, (unsigned)cfs_random_u64());
	l.key = key;
	start_ns = cfs_now_ns();
	if (!judge(d, "put", o->ops->put(o, key, &src, 1, 0, cfs_deadline_in(STEP_MS)), start_ns))
		return;
	start_ns = cfs_now_ns();
	n = o->ops->get(o, key, 0, &dst, 1, cfs_deadline_in(STEP_MS));
	if (judge(d, "get", n < 0 ? (int)n : 0, start_ns) &&
	    (n != OBJECT_SIZE || memcmp(body, back, sizeof(body)) != 0))
		doctor_say(d, CFS_ADVICE_CHANGE, "get",
			   "other bytes came back than were stored: this store cannot be used");
	start_ns = cfs_now_ns();
	r = o->ops->list(o, key, "", take_listed, &l, cfs_deadline_in(STEP_MS));
	if (judge(d, "list", r, start_ns)) {
		if (l.found)
			check_object_clock(d, l.mtime_s, put_s);
		else
			doctor_say(
				d, CFS_ADVICE_CHANGE, "list",
				"an object that was stored is not listed: gc and fsck need that");
	}
	start_ns = cfs_now_ns();
	judge(d, "delete", o->ops->del(o, key, cfs_deadline_in(STEP_MS)), start_ns);
}

static void check_backup(struct doctor *d, struct cfs_object_store *o, const char *volume)
{
	static const char what[] = "metadata backup";
	const struct backup *latest;
	struct backup_list list;
	int64_t age_s;
	int r = backup_read_list(o, volume, cfs_deadline_in(STEP_MS), &list);

	if (r < 0) {
		doctor_say(d, CFS_ADVICE_CHANGE, what, "cannot be listed: %s", strerror(-r));
		return;
	}
	latest = backup_latest(&list, cfs_wall_s());
	age_s = latest ? CFS_MAX(cfs_wall_s() - latest->when_s, (int64_t)0) : 0;
	if (!latest)
		doctor_say(
			d, CFS_ADVICE_NOTE, what,
			"there is none: a lost database would be a lost volume; mounts make them "
			"(backup-meta), `cachefs dump --to-bucket` does");
	else if (age_s > BACKUP_OLD_S)
		doctor_say(d, CFS_ADVICE_CHANGE, what,
			   "the latest is %" PRId64 " days old: see the logs of the mounts, whose "
			   "backup-meta makes them, or run `cachefs dump --to-bucket`",
			   age_s / 86400);
	else
		doctor_say(d, CFS_ADVICE_OK, what, "the latest is %" PRId64 " minutes old",
			   age_s / 60);
	backup_free_list(&list);
}

static void check_bucket(struct doctor *d, const struct doctor_opts *o,
			 const struct cfs_setting *setting)
{
	struct cfs_object_store *objects;
	char err[256] = "";

	if (volume_open_objects(setting, o->admin.storage, o->admin.bucket, &objects, err) < 0) {
		doctor_say(d, CFS_ADVICE_CHANGE, "connection", "%s", err);
		return;
	}
	cfs_object_quiet(true);
	check_objects(d, objects, setting->name);
	check_backup(d, objects, setting->name);
	cfs_object_quiet(false);
	cfs_object_close(objects);
}

/* ---- the command ---- */

static int doctor(struct doctor *d, const char *url, const struct doctor_opts *o)
{
	struct cfs_meta_conf conf = {.read_only = true, .timeout_ms = STEP_MS};
	struct cfs_setting *setting = NULL;
	struct cfs_meta *meta = NULL;
	char err[256] = "";

	doctor_host(d, o->cache_dir);
	d->section = "metadata";
	if (volume_open(url, &conf, &meta, &setting, err) < 0) {
		doctor_say(d, CFS_ADVICE_CHANGE, "connection", "%s", err);
	} else {
		check_meta(d, meta);
		d->section = "objects";
		check_bucket(d, o, setting);
	}
	cfs_setting_free(setting);
	if (meta)
		cfs_meta_close(meta);
	if (d->checks)
		admin_print_json(json_pack("{s:I, s:O}", "changes", (json_int_t)d->changes,
					   "checks", d->checks));
	else
		printf("%u to change\n", d->changes);
	return d->changes ? CMD_DAMAGED : CMD_OK;
}

static int doctor_run(void *options, const char **args)
{
	const struct doctor_opts *o = options;
	struct doctor d = {0};
	struct waits *waits;
	int r;

	r = volume_use_credentials(o->admin.credentials);
	if (r != CMD_OK)
		return r;
	d.colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
	d.checks = o->admin.json ? json_array() : NULL;
	waits = waits_begin();
	r = doctor(&d, args[0], o);
	waits_end(waits);
	json_decref(d.checks);
	return r;
}

const struct cmd cmd_doctor = {
	.name = "doctor",
	.synopsis = "[OPTIONS] META-URL",
	.summary = "Checks this host, a volume's database and its object store, and says what to "
		   "change",
	CMD_OPTIONS(doctor_table),
	.min_args = 1,
	.max_args = 1,
	.run = doctor_run,
};
