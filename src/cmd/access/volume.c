/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/volume.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/workers.h"
#include "cmd/access/cmd.h"
#include "cmd/access/waitstore.h"

char *volume_absolute_url(const char *url)
{
	static const char scheme[] = "sqlite3://";
	const char *path = url + sizeof(scheme) - 1;
	cfs_auto_free char *cwd = NULL;
	char *out = NULL;

	if (strncmp(url, scheme, sizeof(scheme) - 1) || *path == '/')
		return strdup(url);
	cwd = getcwd(NULL, 0);
	if (!cwd || asprintf(&out, "%s%s/%s", scheme, cwd, path) < 0)
		return NULL;
	return out;
}

bool volume_is_remote(const char *storage)
{
	return strcmp(storage, "file") != 0 && strcmp(storage, "mem") != 0;
}

char *volume_bucket(const char *storage, const char *bucket)
{
	cfs_auto_free char *cwd = NULL;
	size_t len = strlen(bucket);
	char *path;

	if (strcmp(storage, "file"))
		return strdup(bucket);
	if (*bucket != '/') {
		cwd = getcwd(NULL, 0);
		if (!cwd)
			return NULL;
	}
	if (asprintf(&path, "%s%s%s%s", cwd ? cwd : "", cwd ? "/" : "", bucket,
		     len && bucket[len - 1] == '/' ? "" : "/") < 0)
		return NULL;
	return path;
}

/* Environment variables that the program reads and that are secrets, or belong to one. */
static const char *const credential_keys[] = {
	"META_PASSWORD",
	"META_PASSWORD_FILE",
	"REDIS_PASSWORD",
	"SENTINEL_PASSWORD",
	"ACCESS_KEY",
	"SECRET_KEY",
	"SESSION_TOKEN",
	"JFS_RSA_PASSPHRASE",
	"MINIO_ACCESS_KEY",
	"MINIO_SECRET_KEY",
	"MINIO_REGION",
	"AWS_ACCESS_KEY_ID",
	"AWS_SECRET_ACCESS_KEY",
	"AWS_SESSION_TOKEN",
	"AWS_REGION",
	"AWS_DEFAULT_REGION",
	"AWS_PROFILE",
	"AWS_SHARED_CREDENTIALS_FILE",
	"AWS_CONFIG_FILE",
	"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	"AWS_CONTAINER_CREDENTIALS_FULL_URI",
	"AWS_CONTAINER_AUTHORIZATION_TOKEN",
	"AWS_EC2_METADATA_SERVICE_ENDPOINT",
	"AWS_EC2_METADATA_DISABLED",
	"JFS_S3_VHOST_STYLE",
};

static bool is_credential(const char *key)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(credential_keys); i++)
		if (!strcmp(key, credential_keys[i]))
			return true;
	return false;
}

static int read_credential_lines(FILE *in, const char *path, char err[256])
{
	cfs_auto_free char *line = NULL;
	char *key, *value;
	unsigned number = 0;
	size_t cap = 0;

	while (getline(&line, &cap, in) > 0) {
		number++;
		key = cmd_trim(line);
		if (!*key || *key == '#')
			continue;
		value = strchr(key, '=');
		if (!value || value == key)
			return cfs_fail(err, -EINVAL,
					"credentials file %s: line %u is not KEY=VALUE", path,
					number);
		*value++ = '\0';
		key = cmd_trim(key);
		if (!is_credential(key))
			return cfs_fail(err, -EINVAL,
					"credentials file %.150s: line %u: unknown key %.60s", path,
					number, key);
		if (setenv(key, cmd_trim(value), 1) < 0)
			return -errno;
	}
	if (ferror(in))
		return cfs_fail(err, -EIO, "cannot read credentials file %s: %s", path,
				strerror(errno));
	return 0;
}

int volume_read_credentials(const char *path, char err[256])
{
	struct stat st;
	FILE *in;
	int fd, r;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0) {
		r = -errno;
		return cfs_fail(err, r, "cannot open credentials file %s: %s", path, strerror(-r));
	}
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (st.st_mode & 077) ||
	    (st.st_uid != geteuid() && st.st_uid != 0)) {
		snprintf(err, 256,
			 "credentials file %s must be a regular file of mode 0600 owned by you",
			 path);
		close(fd);
		return -EPERM;
	}
	in = fdopen(fd, "r");
	if (!in) {
		r = -errno;
		close(fd);
		return r;
	}
	r = read_credential_lines(in, path, err);
	fclose(in);
	return r;
}

int volume_use_credentials(const char *path)
{
	char err[256] = "out of memory";

	if (!path || volume_read_credentials(path, err) == 0)
		return CMD_OK;
	return cmd_usage("%s", err);
}

/* ---- a backend that does not answer ---- */

#define SLOW_STEP_MS 1500

/* A step that takes longer says what it waits for, once, so that it is not taken for a hang. */
struct slow_step {
	const char *url;
	uint64_t max_ms;
	bool told; /* used by the ticker's thread only */
	struct cfs_ticker *ticker;
};

static void tell(void *arg)
{
	struct slow_step *s = arg;

	if (!s->told)
		cmd_error("waiting for a reply from %s, at most %g s", s->url,
			  (double)s->max_ms / 1000);
	s->told = true;
}

static void begin_slow_step(struct slow_step *s, const char *url, uint64_t max_ms)
{
	*s = (struct slow_step){.url = url, .max_ms = max_ms};
	if (cfs_ticker_start("slow step", SLOW_STEP_MS, tell, s, &s->ticker) < 0)
		s->ticker = NULL;
}

int volume_connect(const char *url, const struct cfs_meta_conf *conf, struct cfs_meta **ret,
		   char err[256])
{
	struct slow_step s;
	int r;

	begin_slow_step(&s, url, conf->timeout_ms);
	r = cfs_meta_open(url, conf, ret, err);
	cfs_ticker_stop(s.ticker);
	return r;
}

int volume_open(const char *url, const struct cfs_meta_conf *conf, struct cfs_meta **ret_meta,
		struct cfs_setting **ret_setting, char err[256])
{
	struct slow_step s;
	struct cfs_meta *meta;
	int r;

	begin_slow_step(&s, url, conf->timeout_ms);
	r = cfs_meta_open(url, conf, &meta, err);
	if (r == 0) {
		r = cfs_meta_load(meta, ret_setting, err);
		if (r < 0)
			cfs_meta_close(meta);
	}
	cfs_ticker_stop(s.ticker);
	if (r == 0)
		*ret_meta = meta;
	return r;
}

int volume_lookup(struct cfs_meta *meta, uint64_t step_ms, const char *path, struct cfs_entry *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(step_ms);
	struct cfs_entry e = {.ino = CFS_ROOT_INO};
	size_t len;
	int r = cfs_meta_getattr(meta, &ctx, e.ino, &e.attr);

	for (path += strspn(path, "/"); *path && r == 0; path += len, path += strspn(path, "/")) {
		len = strcspn(path, "/");
		ctx = cfs_ctx_internal(step_ms);
		r = cfs_meta_lookup(meta, &ctx, e.ino, path, len, &e);
	}
	if (r == 0)
		*ret = e;
	return r;
}

int volume_check_id(const struct cfs_setting *s, struct cfs_object_store *o,
		    cfs_deadline_t deadline, char err[256])
{
	char key[128], uuid[VOLUME_UUID_LEN + 2] = "";
	struct iovec to = {.iov_base = uuid, .iov_len = sizeof(uuid) - 1};
	ssize_t n;

	snprintf(key, sizeof(key), "%s/" VOLUME_ID_NAME, s->name);
	n = cfs_object_get(o, key, 0, &to, 1, deadline);
	if (n == -ENOENT)
		return 0;
	if (n < 0) {
		snprintf(err, 256,
			 "cannot read %s, the id of the volume whose objects these are: %s", key,
			 strerror((int)-n));
		return (int)n;
	}
	/* After the n bytes asked for, the buffer may hold remains of an encrypted object. */
	uuid[n] = '\0';
	if (n == VOLUME_UUID_LEN && !strcasecmp(uuid, s->uuid))
		return 1;
	return cfs_fail(err, -EEXIST,
			"the objects there belong to another volume: %s does not hold %s", key,
			s->uuid);
}

static int note_first(void *arg, const struct cfs_object_info *info)
{
	return 1;
}

static int note_chunk(void *arg, const struct cfs_row *row)
{
	*(bool *)arg = true;
	return 1;
}

int volume_check_place(struct cfs_meta *meta, const struct cfs_setting *s,
		       struct cfs_object_store *o, cfs_deadline_t deadline, char err[256])
{
	bool has_chunks = false;
	char prefix[128];
	int r = volume_check_id(s, o, deadline, err);

	if (r != 0)
		return CFS_MIN(r, 0);
	snprintf(prefix, sizeof(prefix), "%s/", s->name);
	r = o->ops->list(o, prefix, "", note_first, NULL, deadline);
	/* A directory that is not there takes no blocks, either. */
	if (r > 0 || r == -EACCES || r == -ENOENT)
		return 0;
	if (r < 0)
		return cfs_fail(err, r, "cannot see whether there are objects of volume %s: %s",
				s->name, strerror(-r));
	r = cfs_meta_scan(meta, CFS_TABLE_CHUNK, note_chunk, &has_chunks);
	if (r < 0)
		return cfs_fail(err, r, "the chunks cannot be read: %s", strerror(-r));
	return !has_chunks ? 0
			   : cfs_fail(err, -ENOENT,
				      "no object of volume %s is there: is the disk of the bucket "
				      "mounted, is it the right one? If so, store %s as "
				      "%s/" VOLUME_ID_NAME,
				      s->name, s->uuid, s->name);
}

uint64_t volume_limit(int64_t given_mbps, int setting_mbps)
{
	int64_t mbps = given_mbps >= 0 ? given_mbps : setting_mbps;

	return mbps > 0 ? (uint64_t)mbps * 125000 : 0;
}

static void set_tiers(const struct cfs_setting *s, struct cfs_object_conf *conf)
{
	size_t i;

	conf->tiers[0].storage_class = s->storage_class;
	for (i = 0; i < s->n_tiers; i++) {
		const struct cfs_tier *t = &s->tiers[i];

		if (t->id >= 0 && t->id < CFS_OBJECT_TIERS)
			conf->tiers[t->id] = (struct cfs_object_class){t->storage_class, t->tag};
	}
}

static struct cfs_object_conf object_conf(const struct cfs_setting *s,
					  const struct volume_objects *with)
{
	struct cfs_object_conf conf = {
		.storage = with->storage ? with->storage : s->storage,
		.bucket = with->bucket ? with->bucket : s->bucket,
		.shards = s->shards > 1 ? (unsigned)s->shards : 0,
		.access_key = s->access_key,
		.secret_key = s->secret_key,
		.session_token = s->session_token,
		.compression = s->compression,
		.encrypt_algo = s->encrypt_algo,
		.encrypt_key = s->encrypt_key && *s->encrypt_key ? s->encrypt_key : NULL,
		.upload_limit = volume_limit(with->upload_limit_mbps, s->upload_limit_mbps),
		.download_limit = volume_limit(with->download_limit_mbps, s->download_limit_mbps),
		.max_connections = with->max_connections,
		.small_buffers = with->small_buffers,
		.descs = with->descs,
	};

	set_tiers(s, &conf);
	return conf;
}

int volume_adopt(const struct cfs_setting *s, const struct volume_objects *with,
		 struct cfs_object_store *o)
{
	struct cfs_object_conf conf = object_conf(s, with);

	return cfs_object_adopt(o, &conf);
}

int volume_open_objects_with(const struct cfs_setting *s, const struct volume_objects *with,
			     struct cfs_object_store **ret, char err[256])
{
	struct cfs_object_conf conf = object_conf(s, with);

	return cfs_object_open(&conf, ret, err);
}

int volume_open_objects(const struct cfs_setting *s, const char *storage, const char *bucket,
			struct cfs_object_store **ret, char err[256])
{
	struct volume_objects with = {
		.storage = storage,
		.bucket = bucket,
		.upload_limit_mbps = -1,
		.download_limit_mbps = -1,
	};
	struct cfs_object_store *store;
	int r = volume_open_objects_with(s, &with, &store, err);

	return r < 0 ? r : waitstore_wrap(store, bucket ? bucket : s->bucket, ret);
}

bool volume_is_class(const char *s)
{
	while (isalnum((unsigned char)*s) || *s == '_' || *s == '-')
		s++;
	return !*s;
}

int volume_set(char **field, const char *value)
{
	char *copy = value && *value ? strdup(value) : NULL;

	if (value && *value && !copy)
		return -ENOMEM;
	free(*field);
	*field = copy;
	return 0;
}

int volume_set_bucket(struct cfs_setting *s, const char *bucket)
{
	char *place = volume_bucket(s->storage, bucket);

	if (!place)
		return -ENOMEM;
	free(s->bucket);
	s->bucket = place;
	return 0;
}

int volume_set_keys(struct cfs_setting *s)
{
	char **const fields[] = {&s->access_key, &s->secret_key, &s->session_token};
	static const char *const names[] = {"ACCESS_KEY", "SECRET_KEY", "SESSION_TOKEN"};
	const char *value;
	size_t i;
	int r = 0;

	for (i = 0; i < CFS_ARRAY_SIZE(fields) && r == 0; i++) {
		value = getenv(names[i]);
		if (value && *value)
			r = volume_set(fields[i], value);
	}
	return r;
}

int volume_lost_setting(const char *name, const char *storage, const char *bucket,
			struct cfs_setting **ret)
{
	struct cfs_setting *s;
	int r = cfs_setting_new(name, &s);

	if (r)
		return r;
	r = volume_set(&s->storage, storage);
	if (!r)
		r = volume_set_bucket(s, bucket);
	if (!r)
		r = volume_set_keys(s);
	if (r)
		cfs_setting_free(s);
	else
		*ret = s;
	return r;
}
