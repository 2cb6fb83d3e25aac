/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/load.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cmd/access/admin.h"
#include "cmd/access/backup.h"
#include "cmd/access/cmd.h"
#include "cmd/access/replication.h"
#include "cmd/access/volume.h"
#include "cmd/access/waits.h"
#include "cmd/sets/tempfile.h"

struct load_opts {
	struct admin_opts common;
	bool restart, from_bucket, from_replica;
	char *key, *volume, *until;
	int cipher;
	int64_t shards;
};

static const char *const ciphers[] = {"aes256gcm-rsa", "chacha20-rsa", NULL};

#define OPTIONS struct load_opts
static const struct cfs_opt load_table[] = {
	OPT_FLAG("restart", restart, "remove the remains of an unfinished load, and begin again"),
	OPT_STRING("encrypt-key", key, "FILE",
		   "PEM file of the encryption key, which a dump lacks unless it was made with "
		   "--keep-secrets"),
	OPT_FLAG("from-bucket", from_bucket,
		 "load a backup, NAME or `latest`, from the bucket that --storage and --bucket "
		 "name; without it, list them"),
	OPT_FLAG("from-replica", from_replica,
		 "restore the replica of the metadata (format --replicate) from the bucket that "
		 "--storage and --bucket name, into a new SQLite file"),
	OPT_STRING(
		"until", until, "TIME",
		"with --from-replica: restore the state at this time, as in 2026-01-31T12:00:00Z, "
		"or after this entry, as in log-00000000000000a1",
		.min = 1),
	OPT_STRING("volume", volume, "NAME",
		   "with --from-bucket or --from-replica: the volume's name", .min = 1),
	OPT_CHOICE("encrypt-algo", cipher, ciphers, "CIPHER",
		   "with either and --encrypt-key: the volume's cipher", .def = "aes256gcm-rsa"),
	OPT_INT("shards", shards, "N", "with either: the volume's number of buckets", .def = "0",
		.min = 0, .max = 256),
	ADMIN_OBJECT_OPTIONS(common),
	{0},
};

/* ---- from the bucket ---- */

/* The members of a lost setting that are needed to reach the bucket. */
static int make_setting(struct load *l, const struct load_opts *o, struct cfs_setting **ret)
{
	struct cfs_setting *s;
	int r = volume_lost_setting(o->volume, o->common.storage, o->common.bucket, &s);

	if (r)
		return r;
	s->shards = (int)o->shards;
	r = volume_set(&s->encrypt_algo, ciphers[o->cipher]);
	if (!r)
		r = volume_set(&s->encrypt_key, NULL);
	if (!r && l->key_path)
		r = load_read_key(l, &s->encrypt_key);
	if (r)
		cfs_setting_free(s);
	else
		*ret = s;
	return r;
}

static void list_backups(const struct backup_list *list, bool json)
{
	json_t *all = json ? json_array() : NULL;
	char name[BACKUP_NAME_LEN + 1], size[32];
	size_t i;

	for (i = 0; i < list->n; i++) {
		backup_name(list->v[i].when_s, name);
		if (json)
			json_array_append_new(all,
					      json_pack("{s:s, s:I, s:I}", "backup", name, "bytes",
							(json_int_t)list->v[i].size, "time",
							(json_int_t)list->v[i].when_s));
		else
			cmd_line("%s  %s", name, progress_size(list->v[i].size, size));
	}
	if (json)
		admin_print_json(all);
}

/* Without it an older one would be restored in silence: this host's clock may be behind. */
static void tell_passed_over(const struct backup_list *list, const struct backup *latest)
{
	const struct backup *newest = list->n ? &list->v[list->n - 1] : NULL;
	char name[BACKUP_NAME_LEN + 1];

	if (newest == latest)
		return;
	backup_name(newest->when_s, name);
	cmd_error("note: backups up to %s are passed over, they are ahead of this host's clock: is "
		  "it right?",
		  name);
}

static int open_backup(struct load *l, struct cfs_object_store *o, const char *volume,
		       const char *wanted, const struct backup_list *list)
{
	const struct backup *latest = backup_latest(list, cfs_wall_s());
	char name[BACKUP_NAME_LEN + 1];
	int64_t when_s;
	int fd, r;

	if (!strcmp(wanted, "latest"))
		tell_passed_over(list, latest);
	if (!strcmp(wanted, "latest") ? !latest : !backup_time(wanted, &when_s)) {
		snprintf(l->err, sizeof(l->err), "there is no backup %.64s of volume %.64s", wanted,
			 volume);
		return -ENOENT;
	}
	backup_name(strcmp(wanted, "latest") ? when_s : latest->when_s, name);
	fd = temp_open();
	if (fd < 0)
		return fd;
	r = backup_fetch(o, volume, name, fd, l->err);
	if (!r && !stream_is_gzip(fd)) {
		r = -EBADMSG;
		snprintf(l->err, sizeof(l->err),
			 "backup %s is not compressed JSON: that of an encrypted volume needs "
			 "--encrypt-key",
			 name);
	}
	if (r) {
		close(fd);
		return r;
	}
	return stream_open_on(fd, &l->in, l->err);
}

/* Opens l->in, or without a name prints the list. */
static int from_bucket(struct load *l, const struct load_opts *o, const char *wanted)
{
	struct backup_list list = {0};
	struct cfs_object_store *objects = NULL;
	struct cfs_setting *s = NULL;
	int r = make_setting(l, o, &s);

	if (!r)
		r = volume_open_objects(s, NULL, NULL, &objects, l->err);
	if (!r) {
		r = backup_read_list(objects, s->name, cfs_deadline_in(ADMIN_OBJECT_MS), &list);
		if (r)
			snprintf(l->err, sizeof(l->err), "backups cannot be listed: %s",
				 strerror(-r));
	}
	if (!r && wanted)
		r = open_backup(l, objects, s->name, wanted, &list);
	else if (!r)
		list_backups(&list, o->common.json);
	backup_free_list(&list);
	cfs_object_close(objects);
	cfs_setting_free(s);
	return r;
}

/* ---- loading ---- */

static int open_all(struct load *l, const struct load_opts *o, const char *url, const char *path)
{
	struct cfs_meta_conf conf = {
		.create = true,
		.no_bgjob = true,
		.timeout_ms = ADMIN_STEP_MS,
	};
	int r;

	r = o->from_bucket ? from_bucket(l, o, path) : stream_open(path, &l->in, l->err);
	if (r || !path)
		return r;
	return volume_connect(url, &conf, &l->meta, l->err);
}

static int load_all(struct load *l)
{
	int c = stream_peek(l->in), r;

	progress_begin(&l->p, "rows written");
	r = c == '{' || c == ' ' || c == '\n' ? load_json(l) : load_binary(l);
	if (!r)
		r = load_finish(l);
	progress_end(&l->p);
	return r;
}

/* After a failure the rows are removed, so that the command can be repeated. */
static void give_up(struct load *l, int r)
{
	int gone;

	cmd_error("%s", l->err[0] ? l->err : strerror(-r));
	if (!l->begun)
		return;
	gone = cfs_meta_load_abort(l->meta);
	if (gone)
		cmd_error("what was written could not be removed, use --restart: %s",
			  strerror(-gone));
}

/* A dump does not say whether its volume was replicated. */
static void advise_replication(const struct load *l)
{
	struct cfs_setting *s;
	char err[256];

	if (replication_check_engine(l->meta, err) || cfs_meta_load(l->meta, &s, err))
		return;
	if (volume_is_remote(s->storage))
		fputs("The metadata is not replicated into the bucket: switch that on with "
		      "`cachefs config --replicate async`.\n",
		      stderr);
	cfs_setting_free(s);
}

static void say_done(const struct load *l, const struct load_opts *o)
{
	if (o->common.json)
		admin_print_json(json_pack("{s:I, s:I, s:I, s:b}", "inodes", (json_int_t)l->inodes,
					   "entries", (json_int_t)l->entries, "slices",
					   (json_int_t)l->slices, "secrets_removed",
					   l->secrets_removed));
	else
		printf("%" PRIu64 " inodes and %" PRIu64 " names loaded\n", l->inodes, l->entries);
	if (l->secrets_removed)
		fputs("The dump has no secrets: set them with `cachefs config --keys`.\n", stderr);
	advise_replication(l);
}

static bool is_usable(const struct load_opts *o, const char *file)
{
	bool from = o->from_bucket || o->from_replica;

	if (o->until && !o->from_replica)
		cmd_error("--until is for --from-replica");
	else if (o->from_bucket && o->from_replica)
		cmd_error("--from-bucket and --from-replica are two sources");
	else if (o->from_replica && file)
		cmd_error("--from-replica takes no FILE");
	else if (from && o->common.storage && o->common.bucket && o->volume)
		return true;
	else if (from)
		cmd_error("--from-bucket and --from-replica need --storage, --bucket and --volume");
	else if (o->common.storage || o->common.bucket || o->volume || o->shards)
		cmd_error("--storage, --bucket, --volume and --shards are for --from-bucket");
	else if (!file)
		cmd_error("the FILE to load is missing");
	else
		return true;
	return false;
}

/* ---- from the replica ---- */

/* A time, or the name of an entry's object. */
static int parse_until(const char *text, int64_t *ret_ms, uint64_t *ret_entry)
{
	struct tm tm = {0};
	const char *end;
	int used = 0;

	*ret_ms = INT64_MAX;
	*ret_entry = 0;
	if (!text || (sscanf(text, "log-%16" SCNx64 "%n", ret_entry, &used) == 1 && *ret_entry &&
		      !text[used]))
		return 0;
	end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (!end || *end)
		return cmd_fail(-EINVAL,
				"--until: neither a time as 2026-01-31T12:00:00Z nor an entry as "
				"log-00000000000000a1: %s",
				text);
	*ret_ms = (int64_t)timegm(&tm) * 1000;
	return 0;
}

static void say_restored(const struct cfs_replica_state *state, const char *path, bool json)
{
	time_t s = (time_t)(state->time_ms / 1000);
	char when[32] = "";
	struct tm tm;

	if (gmtime_r(&s, &tm))
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (json)
		admin_print_json(json_pack("{s:I, s:I, s:I, s:s}", "entry",
					   (json_int_t)state->place.number, "entries_read",
					   (json_int_t)state->entries, "pages",
					   (json_int_t)state->pages, "time", when));
	else
		cmd_line("%s restored, as of %s (entry %" PRIu64 " of the replica)", path, when,
			 state->place.number);
}

static int from_replica(const struct load_opts *o, const char *url)
{
	struct load l = {.key_path = o->key};
	cfs_auto_free char *path = replication_path(url);
	struct cfs_replica_state state;
	struct cfs_setting *s = NULL;
	struct waits *waits;
	uint64_t until_entry;
	int64_t until_ms;
	int r;

	if (!path)
		return cmd_usage("a replica is restored into SQLite: sqlite3:///PATH");
	if (parse_until(o->until, &until_ms, &until_entry) < 0)
		return CMD_USAGE;
	waits = waits_begin();
	r = make_setting(&l, o, &s);
	if (!r)
		r = replication_restore(s, path, until_ms, until_entry, &state, l.err);
	cfs_setting_free(s);
	waits_end(waits);
	if (r)
		cmd_error("%s", l.err[0] ? l.err : strerror(-r));
	else
		say_restored(&state, path, o->common.json);
	return r ? CMD_SYSTEM : CMD_OK;
}

static int load_run(void *options, const char **args)
{
	const struct load_opts *o = options;
	struct load l = {.restart = o->restart, .key_path = o->key};
	struct waits *waits;
	int r = volume_use_credentials(o->common.credentials);

	if (r != CMD_OK)
		return r;
	if (!is_usable(o, args[1]))
		return CMD_USAGE;
	if (o->from_replica)
		return from_replica(o, args[0]);
	waits = waits_begin();
	r = open_all(&l, o, args[0], args[1]);
	if (!r && args[1])
		r = load_all(&l);
	if (r)
		give_up(&l, r);
	else if (args[1])
		say_done(&l, o);
	if (l.in)
		stream_close_in(l.in);
	if (l.meta)
		cfs_meta_close(l.meta);
	waits_end(waits);
	load_free(&l);
	return r ? CMD_SYSTEM : CMD_OK;
}

const struct cmd cmd_load = {
	.name = "load",
	.synopsis = "[--restart] [--encrypt-key=FILE] META-URL FILE, or --from-bucket "
		    "--storage=TYPE --bucket=PLACE --volume=NAME META-URL [NAME|latest], or "
		    "--from-replica --storage=TYPE --bucket=PLACE --volume=NAME META-URL",
	.summary = "Creates a volume from a dump or a backup, in an empty database",
	CMD_OPTIONS(load_table),
	.min_args = 1,
	.max_args = 2,
	.run = load_run,
};
