/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/object.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/text/json.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/replication.h"
#include "cmd/access/volume.h"
#include "cmd/group/peers.h"
#include "cmd/usage/quota-usage.h"

#define NOT_GIVEN UINT64_MAX

struct config_opts {
	bool json, force, keys;
	char *credentials, *storage, *bucket, *min_client_version, *max_client_version,
		*rotate_group_key, *storage_class, *tag;
	int replicate;
	uint64_t replica_keep_ms;
	int64_t tier;
	uint64_t capacity;
	int64_t inodes, trash_days, upload_limit, download_limit;
	int dir_stats, enable_acl;
};

/* A switch whose first value is "unchanged". */
static const char *const switches[] = {"", "false", "true", NULL};
enum { AS_IT_IS, OFF, ON };

/* The names of replication_modes, after one for "unchanged". */
static const char *const replicate_modes[] = {"", "off", "async", "sync", NULL};

#define OPTIONS struct config_opts
static const struct cfs_opt config_table[] = {
	OPT_SIZE("capacity", capacity, "SIZE",
		 "limit of the volume, a bare number is in GiB; 0: none", .flags = CFS_OPT_UNSET,
		 .unit = 1ULL << 30, .max = INT64_MAX),
	OPT_INT("inodes", inodes, "N", "limit of the number of inodes; 0: none", .def = "-1",
		.min = -1, .max = INT64_MAX),
	OPT_INT("trash-days", trash_days, "DAYS",
		"how long removed files stay in .trash; 0: no trash, which needs --force",
		.def = "-1", .min = -1, .max = 36500),
	OPT_STRING("storage", storage, "TYPE",
		   "type of the object store, when the objects have been moved", .min = 1),
	OPT_STRING("bucket", bucket, "PLACE", "where the objects are, when they have been moved",
		   .min = 1),
	OPT_FLAG("keys", keys,
		 "store ACCESS_KEY, SECRET_KEY and SESSION_TOKEN of the environment or "
		 "--credentials"),
	OPT_INT("tier", tier, "N",
		"tier that --storage-class and --tag belong to; 0: files without another tier",
		.def = "0", .max = CFS_OBJECT_TIERS - 1),
	OPT_STRING("storage-class", storage_class, "CLASS",
		   "storage class of future objects; empty: the bucket's"),
	OPT_STRING("tag", tag, "KEY=VALUE", "tag of future objects; empty: none"),
	OPT_INT("upload-limit", upload_limit, "MBPS",
		"bandwidth of uploads of each client in Mbit/s; 0: no limit", .def = "-1",
		.min = -1, .max = INT32_MAX),
	OPT_INT("download-limit", download_limit, "MBPS",
		"bandwidth of downloads of each client in Mbit/s; 0: no limit", .def = "-1",
		.min = -1, .max = INT32_MAX),
	OPT_CHOICE("dir-stats", dir_stats, switches, "true|false", "keep usage per directory"),
	OPT_CHOICE("enable-acl", enable_acl, switches, "true",
		   "POSIX ACLs; cannot be switched off again"),
	OPT_STRING("min-client-version", min_client_version, "VERSION",
		   "clients older than this may not connect; empty: no limit"),
	OPT_STRING("max-client-version", max_client_version, "VERSION",
		   "clients newer than this may not connect; empty: no limit"),
	OPT_STRING("rotate-group-key", rotate_group_key, "GROUP",
		   "give a cache group a new key; members change to it within seconds", .min = 1),
	OPT_CHOICE("replicate", replicate, replicate_modes, "off|async|sync",
		   "replicate the metadata (SQLite) into the bucket from the next mount on; that "
		   "mount continues the replica of whichever database made it"),
	OPT_DURATION("replica-keep", replica_keep_ms, "TIME",
		     "with --replicate: how far back the replica reaches", .def = "1d"),
	OPT_FLAG("force", force, "make changes that look like a mistake, too"),
	OPT_FLAG("json", json, "print the setting as JSON"),
	OPT_CREDENTIALS(credentials, "META_PASSWORD, ACCESS_KEY"),
	{0},
};

struct change {
	struct cfs_setting *s;
	bool any, moved, stats_on, stats_off;
};

static int set_string(struct change *c, char **dst, const char *value)
{
	char *copy;

	if (!value || !strcmp(*dst ? *dst : "", value))
		return 0;
	copy = strdup(value);
	if (!copy)
		return -ENOMEM;
	free(*dst);
	*dst = copy;
	c->any = true;
	return 0;
}

static void set_int(struct change *c, int *dst, int64_t value)
{
	if (value < 0 || *dst == (int)value)
		return;
	*dst = (int)value;
	c->any = true;
}

static void set_u64(struct change *c, uint64_t *dst, bool given, uint64_t value)
{
	if (!given || *dst == value)
		return;
	*dst = value;
	c->any = true;
}

static void set_switch(struct change *c, bool *dst, int value)
{
	if (value == AS_IT_IS || *dst == (value == ON))
		return;
	*dst = value == ON;
	c->any = true;
}

static int set_bucket(struct change *c, const char *bucket)
{
	cfs_auto_free char *place = NULL;

	if (!bucket)
		return 0;
	place = volume_bucket(c->s->storage, bucket);
	return place ? set_string(c, &c->s->bucket, place) : -ENOMEM;
}

static int set_keys(struct change *c)
{
	int r = set_string(c, &c->s->access_key, getenv("ACCESS_KEY"));

	if (r == 0)
		r = set_string(c, &c->s->secret_key, getenv("SECRET_KEY"));
	if (r == 0)
		r = set_string(c, &c->s->session_token, getenv("SESSION_TOKEN"));
	return r;
}

static int apply(struct change *c, const struct config_opts *o)
{
	struct cfs_setting *s = c->s;
	bool stats = s->dir_stats;
	int r;

	set_u64(c, &s->capacity, o->capacity != NOT_GIVEN, o->capacity);
	set_u64(c, &s->inodes, o->inodes >= 0, (uint64_t)o->inodes);
	set_int(c, &s->trash_days, o->trash_days);
	set_int(c, &s->upload_limit_mbps, o->upload_limit);
	set_int(c, &s->download_limit_mbps, o->download_limit);
	set_switch(c, &s->dir_stats, o->dir_stats);
	set_switch(c, &s->enable_acl, o->enable_acl);
	c->stats_on = s->dir_stats && !stats;
	c->stats_off = stats && !s->dir_stats;
	r = set_string(c, &s->storage, o->storage);
	if (r == 0)
		r = set_bucket(c, o->bucket);
	if (r == 0 && o->keys)
		r = set_keys(c);
	c->moved = o->storage || o->bucket || o->keys;
	if (r == 0 && (o->storage_class || o->tag)) {
		r = cfs_setting_set_tier(s, (int)o->tier, o->storage_class, o->tag);
		c->any = true;
	}
	/* JuiceFS versions without tiers read this field. */
	if (r == 0 && o->storage_class && o->tier == 0)
		r = set_string(c, &s->storage_class, o->storage_class);
	if (r == 0)
		r = set_string(c, &s->min_client_version, o->min_client_version);
	if (r == 0)
		r = set_string(c, &s->max_client_version, o->max_client_version);
	return r;
}

/* The place must hold this very volume: its objects must have been copied there. */
static int check_place(const struct cfs_setting *s, char err[256])
{
	struct cfs_object_store *store = NULL;
	int r = volume_open_objects(s, NULL, NULL, &store, err);

	if (r < 0)
		return r;
	r = volume_check_id(s, store, cfs_deadline_in(ADMIN_OBJECT_MS), err);
	cfs_object_close(store);
	if (r == 0)
		snprintf(err, 256, "%s/" VOLUME_ID_NAME " is not in %s %s: are the objects there?",
			 s->name, s->storage, s->bucket);
	return r > 0 ? 0 : r < 0 ? r : -ENOENT;
}

static int note_dir_quota(void *arg, const struct cfs_quota *q)
{
	*(bool *)arg |= q->kind == CFS_QUOTA_DIR;
	return 0;
}

static int has_dir_quotas(struct admin *a, bool *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

	*ret = false;
	return cfs_meta_each_quota(a->meta, &ctx, note_dir_quota, ret);
}

/* Directory quotas need directory statistics: usage is counted from them. */
static int check_no_quotas(struct admin *a, char err[256])
{
	bool found;
	int r = has_dir_quotas(a, &found);

	if (r < 0)
		snprintf(err, 256, "cannot read the quotas: %s", strerror(-r));
	else if (found)
		snprintf(err, 256,
			 "directory quotas need directory statistics: remove them first, "
			 "`cachefs quota list` and `quota delete`");
	return r < 0 ? r : found ? -EBUSY : 0;
}

static int check_limits(struct admin *a, const struct cfs_setting *s, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_statfs st;
	int r = cfs_meta_statfs(a->meta, &ctx, CFS_ROOT_INO, &st);

	if (r < 0)
		return cfs_fail(err, r, "cannot read the usage: %s", strerror(-r));
	if (s->capacity && s->capacity < st.used_bytes)
		return cfs_fail(err, -EINVAL, "the volume uses %llu bytes already",
				(unsigned long long)st.used_bytes);
	if (s->inodes && s->inodes < st.used_inodes)
		return cfs_fail(err, -EINVAL, "the volume has %llu inodes already",
				(unsigned long long)st.used_inodes);
	return 0;
}

/* Refuses mistakes that cost data or lock every client out. */
static int judge(struct admin *a, const struct change *c, const struct cfs_setting *old,
		 char err[256])
{
	int r = c->moved ? check_place(c->s, err) : 0;

	if (r == 0 && (c->s->capacity != old->capacity || c->s->inodes != old->inodes))
		r = check_limits(a, c->s, err);
	if (r == 0 && c->stats_off)
		r = check_no_quotas(a, err);
	if (r == 0 && old->trash_days > 0 && c->s->trash_days == 0)
		r = cfs_fail(err, -EINVAL,
			     "without trash everything in it is deleted within hours");
	if (r == 0)
		r = cfs_setting_check_version(c->s, err);
	return r;
}

static int ignore(void *arg, const struct gap *gap)
{
	return 0;
}

/* Recounts usage that changed while it was not counted. */
static int recount(struct admin *a, char err[256])
{
	size_t open = 0;
	bool found;
	int r = has_dir_quotas(a, &found);

	if (r == 0 && found)
		r = admin_begin_repair(a, "cachefs config");
	if (r == 0 && found)
		r = quota_check(a, true, ignore, NULL, &open);
	gaps_note_open(open);
	if (r < 0)
		snprintf(err, 256,
			 "directory quotas could not be counted (%s): run `cachefs quota repair`",
			 strerror(-r));
	return r;
}

static int change(struct admin *a, struct change *c, const struct config_opts *o, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	int r = o->force ? 0 : judge(a, c, a->setting, err);

	if (r < 0) {
		if (strlen(err) < 220)
			memcpy(err + strlen(err), " (--force does it)",
			       sizeof(" (--force does it)"));
		return r;
	}
	/* Statistics from an earlier period would be taken for current. */
	if (c->stats_on)
		r = cfs_meta_clear_dir_stats(a->meta, &ctx);
	if (r < 0)
		snprintf(err, 256, "cannot clear the old directory statistics: %s", strerror(-r));
	else
		r = cfs_meta_format(a->meta, c->s, false, err);
	if (r == 0 && c->stats_on) {
		r = recount(a, err);
		admin_tell_uncounted(a, "cachefs fsck --repair");
	}
	return r;
}

static void print_text(const char *json)
{
	json_t *s = cfs_json_load(json, strlen(json), NULL), *value;
	const char *key;

	json_object_foreach (s, key, value) {
		char *text = cfs_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT);

		/* Numbers may be stored as strings; they are printed without quotes. */
		cmd_line("%-20s %s", key, text && *text == '"' ? json_string_value(value) : text);
		free(text);
	}
	json_decref(s);
}

static int print_setting(const struct cfs_setting *s, bool json)
{
	cfs_auto_free char *shown = NULL;

	if (cfs_setting_show(s, &shown) < 0)
		return cmd_error("out of memory");
	if (json)
		puts(shown); /* not by cmd_line(), which replaces newlines */
	else
		print_text(shown);
	return CMD_OK;
}

static int set_replication(struct admin *a, const struct config_opts *o, char err[256])
{
	struct cfs_object_store *objects = NULL;
	struct cfs_setting *s = NULL;
	int r = cfs_meta_setting(a->meta, &s);

	if (r == 0)
		r = volume_open_objects(s, NULL, NULL, &objects, err);
	if (r == 0)
		r = replication_set(a->meta, objects, s->name,
				    (enum replication_mode)(o->replicate - 1),
				    o->replica_keep_ms / 1000, err);
	cfs_object_close(objects);
	cfs_setting_free(s);
	return r;
}

static bool any_change(const struct config_opts *o)
{
	return o->capacity != NOT_GIVEN || o->inodes >= 0 || o->trash_days >= 0 || o->storage ||
	       o->bucket || o->keys || o->upload_limit >= 0 || o->download_limit >= 0 ||
	       o->dir_stats || o->enable_acl || o->min_client_version || o->max_client_version ||
	       o->rotate_group_key || o->storage_class || o->tag || o->replicate;
}

/* JuiceFS ignores other tags, and S3 fails each upload whose tag has characters outside its set. */
static bool is_tag(const char *s)
{
	const char *value = strchr(s, '=');

	if (!*s)
		return true;
	if (!value || value == s || !value[1] || strchr(value + 1, '='))
		return false;
	for (; *s; s++) {
		if (!isalnum((unsigned char)*s) && !((unsigned char)*s & 0x80) &&
		    !strchr(" +-=._:/@", *s))
			return false;
	}
	return true;
}

static int config_run(void *options, const char **args)
{
	const struct config_opts *o = options;
	struct admin_opts common = {.credentials = o->credentials};
	struct change c = {0};
	struct admin a = {0};
	char err[256] = "out of memory";
	int r;

	if (o->tag && !is_tag(o->tag))
		return cmd_usage(
			"--tag: not one KEY=VALUE of letters, digits, spaces and +-._:/@: %s",
			o->tag);
	if (o->storage_class && !volume_is_class(o->storage_class))
		return cmd_usage("--storage-class: not letters, digits, _ and -: %s",
				 o->storage_class);
	r = admin_open(args[0], &common, any_change(o) ? ADMIN_WRITE : 0, &a);
	if (r != CMD_OK)
		goto out;
	r = CMD_SYSTEM;
	if (cfs_setting_copy(a.setting, &c.s) < 0 || apply(&c, o) < 0 ||
	    (c.any && change(&a, &c, o, err) < 0) ||
	    (o->rotate_group_key && peers_rotate_key(a.meta, o->rotate_group_key, err) < 0) ||
	    (o->replicate && set_replication(&a, o, err) < 0)) {
		cmd_error("%s", err);
		goto out;
	}
	cfs_setting_free(c.s);
	c.s = NULL;
	if (cfs_meta_setting(a.meta, &c.s) < 0) {
		cmd_error("out of memory");
		goto out;
	}
	r = print_setting(c.s, o->json);
out:
	cfs_setting_free(c.s);
	return admin_close(&a, r);
}

const struct cmd cmd_config = {
	.name = "config",
	.synopsis = "[OPTIONS] META-URL",
	.summary = "Shows or changes a volume's setting; mounts notice within a heartbeat",
	CMD_OPTIONS(config_table),
	.min_args = 1,
	.max_args = 1,
	.run = config_run,
};
