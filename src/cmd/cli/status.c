/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/meta.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/text/json.h"
#include "base/text/url.h"
#include "cmd/access/admin.h"
#include "cmd/access/backup.h"
#include "cmd/access/cmd.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/progress.h"
#include "cmd/access/replication.h"
#include "cmd/access/volume.h"
#include "cmd/group/peers.h"

/* Longest wait for the bucket. */
#define BUCKET_MS 5000

struct status_opts {
	bool json;
	char *credentials;
};

#define OPTIONS struct status_opts
static const struct cfs_opt status_table[] = {
	OPT_JSON(json),
	OPT_CREDENTIALS(credentials, "META_PASSWORD"),
	{0},
};

/* -1: the record has none. */
static time_t mounted_since(json_t *info)
{
	return (time_t)backup_mark_time(json_get_text(info, "MountTime"));
}

static int64_t age_of(json_t *info)
{
	time_t since = mounted_since(info);

	return since < 0 ? -1 : (int64_t)(time(NULL) - since);
}

struct sessions {
	json_t *list;
	int64_t now_s;
};

static int add_session(void *arg, const struct cfs_session *s)
{
	struct sessions *to = arg;
	json_t *info = json_loads(s->info, 0, NULL);
	int64_t age_s = age_of(info);
	json_t *j = json_pack("{s:I, s:I, s:b, s:o, s:o}", "sid", (json_int_t)s->sid, "expire",
			      (json_int_t)s->expire_s, "stale", s->expire_s < to->now_s, "age_s",
			      age_s < 0 ? json_null() : json_integer(age_s), "info",
			      info ? info : json_object());

	return j && json_array_append_new(to->list, j) == 0 ? 0 : -1;
}

/* An outage of the bucket must not delay the rest. */
static json_t *backup_of(const struct cfs_setting *setting)
{
	char err[256] = "out of memory", name[BACKUP_NAME_LEN + 1];
	struct backup b = {0};
	int r = backup_look(setting, BUCKET_MS, &b, err);
	int64_t age_s = cfs_wall_s() - b.when_s;

	if (r == -ENOENT)
		return json_null();
	if (r < 0)
		return json_pack("{s:o}", "error", admin_text(err, strlen(err)));
	backup_name(b.when_s, name);
	return json_pack("{s:s, s:I, s:I}", "name", name, "age_s",
			 (json_int_t)(age_s > 0 ? age_s : 0), "bytes", (json_int_t)b.size);
}

static json_t *replication_of(struct cfs_meta *meta)
{
	struct replication how;
	int r = replication_read(meta, &how);

	if (r < 0)
		return json_pack("{s:s}", "error", strerror(-r));
	if (how.mode == REPLICATION_OFF)
		return json_null();
	return json_pack("{s:s, s:I, s:b}", "mode", replication_modes[how.mode], "keep_s",
			 (json_int_t)how.keep_s, "conditional", how.conditional);
}

static json_t *collect(struct cfs_meta *meta, const struct cfs_setting *setting)
{
	struct cfs_ctx ctx = cfs_ctx_internal(30000);
	cfs_auto_free char *shown = NULL;
	struct sessions sessions = {.list = json_array(), .now_s = cfs_meta_clock_s(meta)};
	json_t *groups = peers_recorded(meta);
	struct cfs_statfs st;
	json_t *s;

	if (!groups || cfs_setting_show(setting, &shown) < 0 ||
	    cfs_meta_each_session(meta, &ctx, add_session, &sessions) < 0 ||
	    cfs_meta_statfs(meta, &ctx, CFS_ROOT_INO, &st) < 0) {
		json_decref(sessions.list);
		json_decref(groups);
		return NULL;
	}
	s = cfs_json_load(shown, strlen(shown), NULL);
	return json_pack("{s:o, s:s, s:{s:I, s:I, s:I, s:I}, s:o, s:o, s:o, s:o}", "setting", s,
			 "engine", cfs_meta_engine_name(meta), "usage", "used_bytes",
			 (json_int_t)st.used_bytes, "available_bytes", (json_int_t)st.avail_bytes,
			 "used_inodes", (json_int_t)st.used_inodes, "available_inodes",
			 (json_int_t)st.avail_inodes, "sessions", sessions.list, "groups", groups,
			 "backup", backup_of(setting), "replication", replication_of(meta));
}

/* "3d 4h", "5m 6s" */
static const char *age(json_t *session, char buf[32])
{
	int64_t s = json_get_int(session, "age_s");

	if (s >= 86400)
		snprintf(buf, 32, "%" PRId64 "d %" PRId64 "h", s / 86400, s % 86400 / 3600);
	else if (s >= 3600)
		snprintf(buf, 32, "%" PRId64 "h %" PRId64 "m", s / 3600, s % 3600 / 60);
	else if (s >= 60)
		snprintf(buf, 32, "%" PRId64 "m %" PRId64 "s", s / 60, s % 60);
	else
		snprintf(buf, 32, "%" PRId64 "s", s);
	return buf;
}

static void print_session(json_t *session)
{
	json_t *info = json_object_get(session, "info");
	time_t since = mounted_since(info);
	char ago[32], when[80] = "";
	struct tm tm;

	if (since >= 0 && gmtime_r(&since, &tm)) {
		size_t n = strftime(when, sizeof(when), "  since %Y-%m-%d %H:%M:%S UTC", &tm);

		snprintf(when + n, sizeof(when) - n, ", %s ago", age(session, ago));
	}
	cmd_line("  %-4lld %s:%s  pid %lld  version %s%s%s", json_get_int(session, "sid"),
		 json_get_text(info, "HostName"), json_get_text(info, "MountPoint"),
		 json_get_int(info, "ProcessID"), json_get_text(info, "Version"), when,
		 json_is_true(json_object_get(session, "stale")) ? "  (stale)" : "");
	if (json_is_true(json_object_get(info, "Writeback")))
		cmd_line("       stages blocks in %s", json_get_text(info, "CacheDir"));
}

static void print_backup(json_t *backup)
{
	const char *error = json_get_text(backup, "error");
	char ago[32];

	if (json_is_null(backup))
		cmd_line("backup:      none of the metadata");
	else if (*error)
		cmd_line("backup:      unknown: %s", error);
	else
		cmd_line("backup:      %s ago: %s", age(backup, ago),
			 json_get_text(backup, "name"));
}

static void print_replication(json_t *how)
{
	const char *error = json_get_text(how, "error");

	if (*error)
		cmd_line("replication: unknown: %s", error);
	else
		cmd_line("replication: %s", json_is_null(how) ? "off" : json_get_text(how, "mode"));
}

static void print_limits(json_t *setting)
{
	uint64_t bytes, inodes;
	char buf[32];

	if (cfs_json_get_u64(json_object_get(setting, "Capacity"), &bytes) && bytes)
		cmd_line("capacity:    %s", progress_size(bytes, buf));
	if (cfs_json_get_u64(json_object_get(setting, "Inodes"), &inodes) && inodes)
		cmd_line("inodes:      at most %" PRIu64, inodes);
}

static void print_status(json_t *j, const char *url)
{
	json_t *s = json_object_get(j, "setting"), *u = json_object_get(j, "usage"), *session,
	       *tier;
	const char *id;
	json_int_t used = json_get_int(u, "used_bytes");
	char masked[256], buf[32];
	json_int_t days = json_get_int(s, "TrashDays");
	size_t i;

	cfs_url_mask(url, masked, sizeof(masked));
	cmd_line("volume:      %s (%s)", json_get_text(s, "Name"), json_get_text(s, "UUID"));
	cmd_line("metadata:    %s", masked);
	cmd_line("storage:     %s %s", json_get_text(s, "Storage"), json_get_text(s, "Bucket"));
	json_object_foreach (json_object_get(s, "Tiers"), id, tier) {
		if (*json_get_text(tier, "StorageClass") || *json_get_text(tier, "Tag"))
			cmd_line("tier %s:      %s%s%s", id, json_get_text(tier, "StorageClass"),
				 *json_get_text(tier, "Tag") ? " tag " : "",
				 json_get_text(tier, "Tag"));
	}
	printf("block size:  %lld KiB\n", json_get_int(s, "BlockSize"));
	cmd_line("compression: %s",
		 *json_get_text(s, "Compression") ? json_get_text(s, "Compression") : "none");
	cmd_line("encryption:  %s",
		 *json_get_text(s, "EncryptKey") ? json_get_text(s, "EncryptAlgo") : "none");
	if (days)
		cmd_line("trash:       %lld day%s", days, days == 1 ? "" : "s");
	else
		printf("trash:       none\n");
	cmd_line("used:        %s in %lld inodes", progress_size((uint64_t)used, buf),
		 json_get_int(u, "used_inodes"));
	print_limits(s);
	print_backup(json_object_get(j, "backup"));
	print_replication(json_object_get(j, "replication"));
	printf("sessions:    %zu\n", json_array_size(json_object_get(j, "sessions")));
	json_array_foreach (json_object_get(j, "sessions"), i, session)
		print_session(session);
}

static void print_groups(json_t *groups)
{
	const char *name;
	json_t *members, *m;
	char buf[32];
	size_t i;

	json_object_foreach (groups, name, members) {
		json_int_t weights[2] = {0}; /* without TLS, with TLS: each shares by itself */

		json_array_foreach (members, i, m)
			weights[json_is_true(json_object_get(m, "tls"))] +=
				json_get_int(m, "weight");
		cmd_line("cache group: %s, %zu members", name, json_array_size(members));
		json_array_foreach (members, i, m) {
			json_int_t weight = json_get_int(m, "weight");
			json_int_t bytes = json_get_int(m, "cached_bytes");
			bool tls = json_is_true(json_object_get(m, "tls"));

			cmd_line("  %s %s:%s  %s  weight %lld (%.1f %%)  cached %s  %s%s",
				 json_get_text(m, "id"), json_get_text(m, "host"),
				 json_get_text(m, "mount_point"),
				 *json_get_text(m, "address") ? json_get_text(m, "address")
							      : "no-sharing",
				 weight,
				 weights[tls] ? 100.0 * (double)weight / (double)weights[tls] : 0,
				 progress_size((uint64_t)bytes, buf),
				 tls					    ? "tls"
				 : json_is_true(json_object_get(m, "rdma")) ? "rdma"
									    : "tcp",
				 json_is_true(json_object_get(m, "fresh")) ? "  (fresh)" : "");
		}
	}
}

static int status_run(void *options, const char **args)
{
	struct cfs_meta_conf conf = {.read_only = true, .timeout_ms = 30000};
	struct cfs_setting *setting = NULL;
	struct cfs_meta *meta = NULL;
	const struct status_opts *o = options;
	char err[256] = "";
	json_t *j = NULL;
	int r;

	r = volume_use_credentials(o->credentials);
	if (r != CMD_OK)
		return r;
	r = CMD_SYSTEM;
	if (volume_open(args[0], &conf, &meta, &setting, err) < 0) {
		cmd_error("%s", err);
		goto out;
	}
	j = collect(meta, setting);
	if (!j) {
		cmd_error("cannot read the volume's counters and sessions");
		goto out;
	}
	if (o->json) {
		cfs_auto_free char *text = cfs_json_dump(j, JSON_INDENT(2));

		puts(text ? text : "");
	} else {
		print_status(j, args[0]);
		print_groups(json_object_get(j, "groups"));
	}
	r = CMD_OK;
out:
	json_decref(j);
	cfs_setting_free(setting);
	if (meta)
		cfs_meta_close(meta);
	return r;
}

const struct cmd cmd_status = {
	.name = "status",
	.synopsis = "[--json] META-URL",
	.summary = "Shows a volume's setting, usage and sessions",
	CMD_OPTIONS(status_table),
	.min_args = 1,
	.max_args = 1,
	.run = status_run,
};
