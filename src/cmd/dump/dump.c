/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/dump.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/utf8.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/volume.h"

struct dump_opts {
	struct admin_opts common;
	bool binary, keep_secrets, to_bucket, skip_trash;
	int compress;
};

static const char *const codecs[] = {"auto", "none", "gzip", "zstd", NULL};

#define OPTIONS struct dump_opts
static const struct cfs_opt dump_table[] = {
	OPT_FLAG("binary", binary, "the binary form: complete, smaller and faster than JSON"),
	OPT_FLAG("keep-secrets", keep_secrets,
		 "keep the secret key, the session token and the encryption key in the setting"),
	OPT_CHOICE("compress", compress, codecs, "HOW",
		   "none, gzip or zstd; auto: by the suffix of the file's name (.gz, .zst, .zstd)",
		   .def = "auto"),
	OPT_FLAG("to-bucket", to_bucket,
		 "store a backup, compressed JSON without secrets, in the volume's bucket, as "
		 "mounts and JuiceFS do"),
	OPT_FLAG("skip-trash", skip_trash, "leave the trash out; not with --binary"),
	ADMIN_OBJECT_OPTIONS(common),
	{0},
};

/* NULL: out of memory, or the setting is not JSON. */
static char *without_secrets(const char *setting)
{
	static const char *const secret[] = {"SecretKey", "SessionToken", "EncryptKey"};
	json_t *j = cfs_json_load(setting, strlen(setting), NULL);
	char *text = NULL;
	size_t i;

	for (i = 0; j && i < sizeof(secret) / sizeof(secret[0]); i++) {
		const char *v = json_string_value(json_object_get(j, secret[i]));

		if (v && *v)
			json_object_set_new(j, secret[i], json_string("removed"));
	}
	if (j)
		text = cfs_json_dump(j, JSON_INDENT(1));
	json_decref(j);
	return text;
}

int dump_setting(struct dump *d, bool keep)
{
	char *text;
	int r = cfs_meta_setting_text(d->meta, &text);

	if (r < 0)
		return r;
	if (!keep) {
		char *clean = without_secrets(text);

		free(text);
		text = clean;
	}
	d->setting = text;
	return text ? 0 : -ENOMEM;
}

int dump_damaged(struct dump *d, const struct cfs_row *row)
{
	snprintf(d->err, sizeof(d->err),
		 "inode %" PRIu64 ": the slices of chunk %u cannot be read: run fsck", row->ino,
		 row->list.indx);
	return -EBADMSG;
}

size_t dump_xattr_name(struct dump *d, const struct cfs_row *row, char ret_name[CFS_NAME_MAX + 1])
{
	const char *p = row->xattr.name, *end = p + row->xattr.name_len;
	size_t n = 0, len, odd = 0;

	for (; p < end; p += len ? len : 1, odd += !len) {
		len = cfs_utf8_len(p, (size_t)(end - p));
		if (n + (len ? len : 3) > CFS_NAME_MAX)
			break;
		if (len)
			memcpy(ret_name + n, p, len);
		else
			snprintf(ret_name + n, 4, "%%%02X", (uint8_t)*p);
		n += len ? len : 3;
	}
	ret_name[n] = '\0';
	if (odd && !d->renamed)
		cfs_warn("names of extended attributes that are not UTF-8 are dumped with %%XX: "
			 "first=%s inode=%" PRIu64,
			 ret_name, row->ino);
	d->renamed |= odd > 0;
	return n;
}

static int write_file(struct dump *d, const struct dump_opts *o, const char *path)
{
	int r = stream_create(path, (enum stream_codec)o->compress, &d->out, d->err), failed;

	if (r)
		return r;
	progress_begin(&d->p, "rows read");
	r = o->binary ? dump_binary(d) : dump_json(d);
	progress_end(&d->p);
	failed = stream_error(d->out);
	if (r)
		stream_close_out(d->out, false);
	else
		failed = r = stream_close_out(d->out, true);
	if (failed)
		snprintf(d->err, sizeof(d->err), "cannot write %.200s: %s",
			 path && strcmp(path, "-") ? path : "standard output", strerror(-failed));
	else if (r && !d->err[0])
		snprintf(d->err, sizeof(d->err), "not everything could be read: %s", strerror(-r));
	return r;
}

static void say_done(const struct dump *d, const struct dump_opts *o, const char *path)
{
	if (!path || !strcmp(path, "-"))
		return; /* stdout is the dump */
	if (o->common.json)
		admin_print_json(
			json_pack("{s:o, s:s, s:I, s:I}", "file", admin_text(path, strlen(path)),
				  "form", o->binary ? "binary" : "json", "inodes",
				  (json_int_t)d->inodes, "entries", (json_int_t)d->entries));
	else
		cmd_line("%" PRIu64 " inodes and %" PRIu64 " names dumped to %s", d->inodes,
			 d->entries, path);
}

static int to_bucket(const struct dump_opts *o, const char *url)
{
	struct dump_backup job = {
		.when_s = cfs_wall_s(),
		.skip_trash = o->skip_trash,
		.elsewhere = o->common.bucket,
	};
	struct admin a = {0};
	int r = admin_open(url, &o->common, 0, &a);

	if (r != CMD_OK)
		return admin_close(&a, r);
	job.meta = a.meta;
	job.setting = a.setting;
	r = volume_open_objects(a.setting, o->common.storage, o->common.bucket, &job.objects,
				job.err);
	if (!r)
		r = dump_backup(&job);
	if (r)
		cmd_error("%s", job.err[0] ? job.err : strerror(-r));
	else if (o->common.json)
		admin_print_json(json_pack("{s:s, s:I, s:I}", "backup", job.name, "bytes",
					   (json_int_t)job.size, "entries",
					   (json_int_t)job.entries));
	else
		cmd_line("%" PRIu64 " names backed up as %s", job.entries, job.name);
	cfs_object_close(job.objects);
	return admin_close(&a, r ? CMD_SYSTEM : CMD_OK);
}

static int dump_run(void *options, const char **args)
{
	const struct dump_opts *o = options;
	struct admin a = {0};
	struct dump d = {0};
	int r;

	if (o->to_bucket && (args[1] || o->binary || o->keep_secrets || o->compress))
		return cmd_usage(
			"--to-bucket goes without FILE, --binary, --keep-secrets and --compress");
	if (o->skip_trash && o->binary)
		return cmd_usage("--skip-trash is for JSON");
	if (o->to_bucket)
		return to_bucket(o, args[0]);
	d.skip_trash = o->skip_trash;
	r = admin_open(args[0], &o->common, 0, &a);
	if (r != CMD_OK)
		goto out;
	d.meta = a.meta;
	r = dump_setting(&d, o->keep_secrets);
	if (!r)
		r = write_file(&d, o, args[1]);
	if (r < 0)
		cmd_error("%s", d.err[0] ? d.err : strerror(-r));
	else
		say_done(&d, o, args[1]);
	r = r < 0 ? CMD_SYSTEM : CMD_OK;
out:
	free(d.setting);
	return admin_close(&a, r);
}

const struct cmd cmd_dump = {
	.name = "dump",
	.synopsis = "[--binary] [--keep-secrets] [--compress=HOW] META-URL [FILE], or --to-bucket "
		    "META-URL",
	.summary = "Writes a volume's metadata to a file",
	CMD_OPTIONS(dump_table),
	.min_args = 1,
	.max_args = 2,
	.run = dump_run,
};
