/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/meta.h>
#include <cachefs/object.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text/url.h"
#include "cmd/access/cmd.h"
#include "cmd/access/replication.h"
#include "cmd/access/volume.h"
#include "cmd/access/waits.h"

#define PROBE_TIMEOUT_MS 30000
#define KEY_MAX		 (64 << 10)

static const char *const compressions[] = {"none", "lz4", "zstd", NULL};

static const char *const replicate_modes[] = {"auto", "off", "async", "sync", NULL};

static const char *const ciphers[] = {"aes256gcm-rsa", "chacha20-rsa", NULL};

struct format_opts {
	char *storage, *bucket, *credentials, *storage_class, *encrypt_rsa_key, *pem;
	uint64_t block_size, capacity;
	int64_t inodes, trash_days, shards, upload_limit, download_limit;
	int compression, encrypt_algo, replicate;
	bool hash_prefix, enable_acl, dir_stats, force, no_check;
};

#define OPTIONS struct format_opts
static const struct cfs_opt format_table[] = {
	OPT_STRING("storage", storage, "TYPE", "type of the object store", .def = "file", .min = 1),
	OPT_STRING("bucket", bucket, "PLACE", "directory (file) or endpoint of the bucket",
		   .def = "/var/jfs", .min = 1),
	OPT_STRING("storage-class", storage_class, "CLASS",
		   "storage class of objects; empty: the bucket's"),
	OPT_STRING("encrypt-rsa-key", encrypt_rsa_key, "FILE",
		   "encrypt objects, with this private key in PEM form; its passphrase is "
		   "JFS_RSA_PASSPHRASE of the environment or --credentials",
		   .min = 1),
	OPT_CHOICE("encrypt-algo", encrypt_algo, ciphers, "CIPHER", "cipher of encrypted objects",
		   .def = "aes256gcm-rsa"),
	OPT_CREDENTIALS(credentials, "ACCESS_KEY, SECRET_KEY, META_PASSWORD"),
	OPT_SIZE("block-size", block_size, "SIZE",
		 "largest object, a power of two; a bare number is in KiB", .unit = 1024,
		 .def = "4M", .min = 64 << 10, .max = 16 << 20),
	OPT_CHOICE("compress", compression, compressions, "METHOD", "compression of objects",
		   .def = "none"),
	OPT_SIZE("capacity", capacity, "SIZE",
		 "limit of the volume, a bare number is in GiB; 0: none", .unit = 1ULL << 30,
		 .def = "0", .max = INT64_MAX),
	OPT_INT("inodes", inodes, "N", "limit of the number of inodes; 0: none", .def = "0",
		.max = INT64_MAX),
	OPT_INT("trash-days", trash_days, "DAYS",
		"how long removed files stay in .trash; 0: no trash", .def = "1", .max = 36500),
	OPT_INT("shards", shards, "N", "spread blocks over N buckets; the bucket then holds one %d",
		.def = "0", .max = 256),
	OPT_INT("upload-limit", upload_limit, "MBPS",
		"bandwidth of each mount's uploads in Mbit/s; 0: no limit", .def = "0",
		.max = 10000000),
	OPT_INT("download-limit", download_limit, "MBPS",
		"bandwidth of each mount's downloads in Mbit/s; 0: no limit", .def = "0",
		.max = 10000000),
	OPT_FLAG("hash-prefix", hash_prefix, "begin object keys with a hash"),
	OPT_FLAG("enable-acl", enable_acl, "POSIX ACLs; cannot be switched off again"),
	OPT_FLAG("dir-stats", dir_stats, "keep usage per directory", .def = "true"),
	OPT_CHOICE("replicate", replicate, replicate_modes, "auto|off|async|sync",
		   "replicate the metadata (SQLite) of a fresh volume into its bucket; auto: "
		   "async, unless the bucket is on this machine or --no-check is given",
		   .def = "auto"),
	OPT_FLAG("force", force, "overwrite the setting of an existing volume"),
	OPT_FLAG("no-check", no_check,
		 "do not test the object store, and do not check whether it has a volume of that "
		 "name"),
	{0},
};

/* Options that are not given keep the volume's values. */
static int begin_with(const struct cfs_setting *s, struct format_opts *o)
{
	size_t i;

	for (i = 0; compressions[i]; i++)
		if (s->compression && !strcmp(s->compression, compressions[i]))
			o->compression = (int)i;
	o->block_size = (uint64_t)s->block_size_kib << 10;
	o->capacity = s->capacity;
	o->inodes = (int64_t)s->inodes;
	o->trash_days = s->trash_days;
	o->shards = s->shards;
	o->upload_limit = s->upload_limit_mbps;
	o->download_limit = s->download_limit_mbps;
	o->hash_prefix = s->hash_prefix;
	o->enable_acl = s->enable_acl;
	o->dir_stats = s->dir_stats;
	for (i = 0; ciphers[i]; i++)
		if (s->encrypt_algo && !strcmp(s->encrypt_algo, ciphers[i]))
			o->encrypt_algo = (int)i;
	return volume_set(&o->storage, s->storage) ? -ENOMEM : volume_set(&o->bucket, s->bucket);
}

/* old: the existing volume of that name; NULL: none. */
static int build_setting(const char *name, const struct format_opts *o,
			 const struct cfs_setting *old, struct cfs_setting **ret)
{
	struct cfs_setting *s;
	int r;

	r = old ? cfs_setting_copy(old, &s) : cfs_setting_new(name, &s);
	if (r < 0)
		return r;
	s->block_size_kib = (uint32_t)(o->block_size >> 10);
	s->capacity = o->capacity;
	s->inodes = (uint64_t)o->inodes;
	s->trash_days = (int)o->trash_days;
	s->shards = (int)o->shards;
	s->upload_limit_mbps = (int)o->upload_limit;
	s->download_limit_mbps = (int)o->download_limit;
	s->hash_prefix = o->hash_prefix;
	s->enable_acl = o->enable_acl;
	s->dir_stats = o->dir_stats;
	r = volume_set(&s->storage, o->storage);
	if (r == 0)
		r = volume_set_bucket(s, o->bucket);
	if (r == 0)
		r = volume_set(&s->compression, compressions[o->compression]);
	if (r == 0 && o->storage_class)
		r = volume_set(&s->storage_class, o->storage_class);
	if (r == 0 && o->storage_class)
		r = cfs_setting_set_tier(s, 0, o->storage_class, NULL);
	if (r == 0 && o->pem)
		r = volume_set(&s->encrypt_key, o->pem);
	if (r == 0 && s->encrypt_key && *s->encrypt_key)
		r = volume_set(&s->encrypt_algo, ciphers[o->encrypt_algo]);
	if (r == 0)
		r = volume_set_keys(s);
	if (r < 0) {
		cfs_setting_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct first_key {
	char testing[128]; /* below it are objects that failed probes left behind */
	char key[160];
};

static int note_key(void *arg, const struct cfs_object_info *info)
{
	struct first_key *f = arg;

	if (!strncmp(info->key, f->testing, strlen(f->testing)))
		return 0;
	snprintf(f->key, sizeof(f->key), "%s", info->key);
	return 1;
}

/*
 * Refuses a second volume of the same name in the same place. Their blocks have the same keys: each
 * volume would overwrite the other's, and take them for leaked.
 */
static int check_unused(struct cfs_object_store *store, const struct cfs_setting *s,
			cfs_deadline_t deadline, char err[256])
{
	struct first_key f = {0};
	char prefix[128];
	int r;

	snprintf(f.testing, sizeof(f.testing), "%s/testing/", s->name);
	snprintf(prefix, sizeof(prefix), "%s/", s->name);
	r = store->ops->list(store, prefix, "", note_key, &f, deadline);
	if (r == 0)
		return 0;
	if (r > 0)
		return cfs_fail(
			err, -EEXIST,
			"a volume called %.60s is there already (object %.80s): choose another "
			"name or place",
			s->name, f.key);
	/* Without the right to list, reading may be allowed. */
	if (r == -EACCES)
		fputs("cachefs: warning: the bucket may not be listed: gc, fsck, destroy, backups "
		      "and replication of the metadata need that\n",
		      stderr);
	if (r == -EACCES)
		return volume_check_id(s, store, deadline, err);
	return cfs_fail(err, r, "cannot see whether %s is in use in the object store: %s", prefix,
			strerror(-r));
}

/* Writes, reads and deletes a probe object. */
static int probe_store(struct cfs_object_store *store, const struct cfs_setting *s, char err[256])
{
	cfs_deadline_t deadline = cfs_deadline_in(PROBE_TIMEOUT_MS);
	char probe[128], data[37] = "", want[] = "cachefs probe object";
	const char *step = "create";
	int r = 0;

	snprintf(probe, sizeof(probe), "%s/testing/%010llx", s->name,
		 (unsigned long long)(cfs_random_u64() & 0xFFFFFFFFFFULL));
	if (store->ops->create)
		r = store->ops->create(store, deadline);
	if (r == 0) {
		r = check_unused(store, s, deadline, err);
		if (r < 0)
			return r;
	}
	if (r == 0) {
		step = "write to";
		r = store->ops->put(store, probe,
				    &(struct iovec){.iov_base = want, .iov_len = sizeof(want)}, 1,
				    0, deadline);
	}
	if (r == 0) {
		ssize_t n;

		step = "read from";
		n = store->ops->get(store, probe, 0,
				    &(struct iovec){.iov_base = data, .iov_len = sizeof(want)}, 1,
				    deadline);
		r = n < 0						     ? (int)n
		    : n == sizeof(want) && !memcmp(data, want, sizeof(want)) ? 0
									     : -EIO;
	}
	if (r == 0) {
		step = "delete from";
		r = store->ops->del(store, probe, deadline);
	}
	if (r < 0)
		snprintf(err, 256, "cannot %s the object store: storage=%s bucket=%s: %s", step,
			 s->storage, s->bucket, strerror(-r));
	return r;
}

/* Runs after the metadata is written, so that a failed format can be repeated. */
static int store_id(struct cfs_object_store *store, struct cfs_meta *meta,
		    const struct cfs_setting *s, char err[256])
{
	struct iovec id = {.iov_base = s->uuid, .iov_len = strlen(s->uuid)};
	struct cfs_setting *made;
	char key[128];
	int r = cfs_meta_setting(meta, &made);
	bool ours = r == 0 && !strcmp(made->uuid, s->uuid);

	if (r == 0)
		cfs_setting_free(made);
	else
		snprintf(err, 256, "the setting cannot be read again: %s", strerror(-r));
	/* Another format may have created the volume first. */
	if (r < 0 || !ours)
		return r;
	snprintf(key, sizeof(key), "%s/" VOLUME_ID_NAME, s->name);
	r = store->ops->put(store, key, &id, 1, 0, cfs_deadline_in(PROBE_TIMEOUT_MS));
	if (r < 0)
		snprintf(err, 256, "the volume is made, but its id cannot be written as %s: %s",
			 key, strerror(-r));
	return r;
}

/* Changes of a volume in use that only `config` checks before it makes them. NULL: none. */
static const char *needs_config(const struct cfs_setting *old, const struct cfs_setting *s)
{
	if (strcmp(old->storage, s->storage))
		return "storage";
	if (strcmp(old->bucket, s->bucket))
		return "bucket";
	if (old->dir_stats != s->dir_stats)
		return "dir-stats";
	return old->trash_days > 0 && s->trash_days == 0 ? "trash-days" : NULL;
}

struct format {
	const char *name;
	struct format_opts o;
	int argc; /* for parsing the options a second time */
	char **argv;
	struct cfs_setting *s; /* as it is to be */
};

static int change_volume(struct format *f, struct cfs_meta *meta, const struct cfs_setting *old,
			 char err[256])
{
	const char *what, *pos[2];
	struct replication how;
	int r = begin_with(old, &f->o);

	if (r == 0 && cmd_parse(&cmd_format, &f->o, f->argc, f->argv, pos) >= 0)
		r = -EINVAL;
	if (r == 0)
		r = build_setting(f->name, &f->o, old, &f->s);
	if (r == 0 && (strcmp(old->encrypt_key ? old->encrypt_key : "",
			      f->s->encrypt_key ? f->s->encrypt_key : "") != 0 ||
		       (f->o.pem && strcmp(old->encrypt_algo, f->s->encrypt_algo) != 0)))
		return cfs_fail(err, -EEXIST, "volume %s exists: its encryption cannot be changed",
				old->name);
	what = r == 0 && !f->o.force ? needs_config(old, f->s) : NULL;
	if (r == 0 && !what && f->o.replicate) {
		r = replication_read(meta, &how);
		if (r == 0 && (int)how.mode != f->o.replicate - 1)
			what = "replicate";
	}
	if (what)
		return cfs_fail(err, -EEXIST,
				"volume %s exists: change it by `cachefs config --%s`", old->name,
				what);
	return r < 0 ? r : cfs_meta_format(meta, f->s, f->o.force, err);
}

static enum replication_mode mode_of(const struct format *f, struct cfs_meta *meta)
{
	char err[256];

	if (f->o.replicate)
		return (enum replication_mode)(f->o.replicate - 1);
	return !f->o.no_check && volume_is_remote(f->o.storage) &&
			       !replication_check_engine(meta, err)
		       ? REPLICATION_ASYNC
		       : REPLICATION_OFF;
}

/* The volume is made. A bucket that cannot be tried fails the command if replication was asked for. */
static int replicate(const struct format *f, struct cfs_meta *meta, struct cfs_object_store *store,
		     enum replication_mode mode, char err[256])
{
	int r = replication_set(meta, store, f->s->name, mode, REPLICATION_KEEP_S, err);

	if (r == 0 || f->o.replicate)
		return r;
	fprintf(stderr,
		"cachefs: warning: the metadata is not replicated: %s: switch that on with "
		"`cachefs config --replicate async`\n",
		err);
	return 0;
}

static int make_volume(struct format *f, struct cfs_meta *meta, bool check, char err[256])
{
	struct cfs_object_store *store = NULL;
	enum replication_mode mode = mode_of(f, meta);
	struct cfs_setting *loaded;
	int r = build_setting(f->name, &f->o, NULL, &f->s);

	if (r == 0 && mode)
		r = replication_check_engine(meta, err);
	if (r == 0 && (check || f->o.pem || mode)) {
		r = volume_open_objects(f->s, NULL, NULL, &store, err);
		if (r == 0 && check)
			r = probe_store(store, f->s, err);
	}
	if (r == 0)
		r = cfs_meta_format(meta, f->s, f->o.force, err);
	if (r == 0 && mode && cfs_meta_load(meta, &loaded, err) == 0)
		cfs_setting_free(loaded);
	if (r == 0 && check)
		r = store_id(store, meta, f->s, err);
	if (r == 0 && mode)
		r = replicate(f, meta, store, mode, err);
	cfs_object_close(store);
	return r;
}

/* Reads the PEM text of a key. The text may be stored, because its passphrase protects it. */
static int read_key(struct format_opts *o, char err[256])
{
	char pem[KEY_MAX + 1];
	size_t n;
	FILE *in;

	in = fopen(o->encrypt_rsa_key, "re");
	if (!in)
		return cfs_fail(err, -errno, "cannot open the key %s: %s", o->encrypt_rsa_key,
				strerror(errno));
	n = fread(pem, 1, KEY_MAX + 1, in);
	fclose(in);
	if (n == 0 || n > KEY_MAX || memchr(pem, '\0', n))
		return cfs_fail(err, -EINVAL, "%s is not a private key in PEM form",
				o->encrypt_rsa_key);
	o->pem = strndup(pem, n);
	explicit_bzero(pem, sizeof(pem));
	if (!o->pem)
		return -ENOMEM;
	if (!strstr(o->pem, "ENCRYPTED"))
		fprintf(stderr, "cachefs: warning: the key has no passphrase: anyone who can read "
				"the metadata can read the objects\n");
	return 0;
}

static int format_volume(const char *url, struct format *f, char err[256])
{
	struct cfs_meta_conf conf = {.timeout_ms = 30000, .no_bgjob = true, .create = true};
	struct cfs_setting *old = NULL;
	struct cfs_meta *meta = NULL;
	struct waits *waits;
	char why[256];
	int r;

	r = volume_connect(url, &conf, &meta, err);
	if (r < 0)
		return r;
	r = cfs_meta_load(meta, &old, why);
	snprintf(err, 256, "out of memory");
	waits = waits_begin();
	if (r == 0 && !strcmp(old->name, f->name))
		r = change_volume(f, meta, old, err);
	else
		r = make_volume(f, meta, r == -ENODATA && !f->o.no_check, err);
	waits_end(waits);
	cfs_setting_free(old);
	cfs_meta_close(meta);
	return r;
}

static int format_run(int argc, char **argv)
{
	struct format f = {.argc = argc, .argv = argv};
	char err[256] = "", masked[256];
	const char *pos[2];
	int r;

	cfs_opt_defaults(format_table, &f.o);
	r = cmd_parse(&cmd_format, &f.o, argc, argv, pos);
	if (r >= 0)
		goto out;
	f.name = pos[1];
	r = volume_use_credentials(f.o.credentials);
	if (r != CMD_OK)
		goto out;
	r = CMD_USAGE;
	if (cfs_setting_check_name(f.name) < 0) {
		cmd_error("volume name '%s' must be 2 to 63 characters of a-z, 0-9 and '-', not "
			  "beginning or ending with '-'",
			  f.name);
		goto out;
	}
	if (f.o.block_size & (f.o.block_size - 1)) {
		cmd_error("block size must be a power of two between 64K and 16M");
		goto out;
	}
	if (f.o.storage_class && !volume_is_class(f.o.storage_class)) {
		cmd_error("--storage-class: not letters, digits, _ and -: %s", f.o.storage_class);
		goto out;
	}
	if (f.o.encrypt_rsa_key && read_key(&f.o, err) < 0) {
		cmd_error("%s", err);
		goto out;
	}
	r = CMD_SYSTEM;
	if (format_volume(pos[0], &f, err) < 0) {
		cmd_error("%s", err);
		goto out;
	}
	cfs_url_mask(pos[0], masked, sizeof(masked));
	cmd_line("volume %s formatted: meta=%s storage=%s bucket=%s", f.s->name, masked,
		 f.s->storage, f.s->bucket);
	r = CMD_OK;
out:
	cfs_setting_free(f.s);
	if (f.o.pem)
		explicit_bzero(f.o.pem, strlen(f.o.pem));
	free(f.o.pem);
	cfs_opt_free(format_table, &f.o);
	return r;
}

const struct cmd cmd_format = {
	.name = "format",
	.synopsis = "[OPTIONS] META-URL NAME",
	.summary = "Creates a volume, or changes the setting of an existing one",
	CMD_OPTIONS(format_table),
	.min_args = 2,
	.max_args = 2,
	.run_argv = format_run,
};
