/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The setting record (volume-format section 2). A table gives the name of each field, its offset in
 * the struct and when it is written. Encoding, decoding, copying and comparing use the table.
 */
#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/text/url.h"
#include "meta/setting/setting-internal.h"

enum kind { STRING, SECRET, FLAG, INT, U32, U64, TIERS };
enum { OMIT_ZERO = 1, FIXED = 2 };

static const struct field {
	const char *name;
	enum kind kind;
	unsigned how;
	size_t offset;
} fields[] = {
#define F(name, kind, how, member)                                                                 \
	{                                                                                          \
		name, kind, how, offsetof(struct cfs_setting, member)                              \
	}
	F("Name", STRING, FIXED, name),
	F("UUID", STRING, 0, uuid),
	F("Storage", STRING, 0, storage),
	F("StorageClass", STRING, OMIT_ZERO, storage_class),
	F("Tiers", TIERS, 0, tiers),
	F("Bucket", STRING, 0, bucket),
	F("AccessKey", STRING, OMIT_ZERO, access_key),
	F("SecretKey", SECRET, OMIT_ZERO, secret_key),
	F("SessionToken", SECRET, OMIT_ZERO, session_token),
	F("BlockSize", U32, FIXED, block_size_kib),
	F("Compression", STRING, OMIT_ZERO | FIXED, compression),
	F("Shards", INT, OMIT_ZERO | FIXED, shards),
	F("HashPrefix", FLAG, OMIT_ZERO | FIXED, hash_prefix),
	F("Capacity", U64, OMIT_ZERO, capacity),
	F("Inodes", U64, OMIT_ZERO, inodes),
	F("EncryptKey", SECRET, OMIT_ZERO | FIXED, encrypt_key),
	F("EncryptAlgo", STRING, OMIT_ZERO, encrypt_algo),
	F("KeyEncrypted", FLAG, OMIT_ZERO, key_encrypted),
	F("UploadLimit", INT, OMIT_ZERO, upload_limit_mbps),
	F("DownloadLimit", INT, OMIT_ZERO, download_limit_mbps),
	F("TrashDays", INT, 0, trash_days),
	F("MetaVersion", INT, OMIT_ZERO | FIXED, meta_version),
	F("MinClientVersion", STRING, OMIT_ZERO, min_client_version),
	F("MaxClientVersion", STRING, OMIT_ZERO, max_client_version),
	F("DirStats", FLAG, OMIT_ZERO, dir_stats),
	F("UserGroupQuota", FLAG, OMIT_ZERO, user_group_quota),
	F("EnableACL", FLAG, 0, enable_acl),
	F("RangerRestUrl", STRING, OMIT_ZERO, ranger_rest_url),
	F("RangerService", STRING, OMIT_ZERO, ranger_service),
	F("KerbConf", STRING, OMIT_ZERO, kerb_conf),
	F("ChangeLog", FLAG, OMIT_ZERO, changelog),
	F("ChangeLogMaxAge", INT, OMIT_ZERO, changelog_max_age_s),
	F("ChangeLogMaxLines", INT, OMIT_ZERO, changelog_max_lines),
#undef F
};

static void *at(const struct field *f, struct cfs_setting *s)
{
	return (char *)s + f->offset;
}

static const void *at_const(const struct field *f, const struct cfs_setting *s)
{
	return (const char *)s + f->offset;
}

static const char *text_of(const struct field *f, const struct cfs_setting *s)
{
	const char *text = *(char *const *)at_const(f, s);

	return text ? text : "";
}

/* The value of a field that is a number or a flag. */
static uint64_t number_of(const struct field *f, const struct cfs_setting *s)
{
	const void *p = at_const(f, s);

	switch (f->kind) {
	case FLAG:
		return *(const bool *)p;
	case INT:
		return (uint64_t) * (const int *)p;
	case U32:
		return *(const uint32_t *)p;
	case U64:
		return *(const uint64_t *)p;
	default:
		return 0;
	}
}

static void free_secret(char *text)
{
	if (text)
		OPENSSL_cleanse(text, strlen(text));
	free(text);
}

static void free_tiers(struct cfs_tier *tiers, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		free(tiers[i].storage_class);
		free(tiers[i].tag);
	}
	free(tiers);
}

void cfs_setting_free(struct cfs_setting *s)
{
	size_t i;

	if (!s)
		return;
	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++) {
		if (fields[i].kind == STRING)
			free(*(char **)at(&fields[i], s));
		else if (fields[i].kind == SECRET)
			free_secret(*(char **)at(&fields[i], s));
	}
	free_tiers(s->tiers, s->n_tiers);
	free_secret(s->rest); /* an unknown field may be a secret */
	free(s);
}

static void freep_setting(struct cfs_setting **s)
{
	cfs_setting_free(*s);
}

#define auto_setting __attribute__((cleanup(freep_setting)))

static int add_tier(struct cfs_setting *s, int id, const char *storage_class, const char *tag)
{
	struct cfs_tier *v = reallocarray(s->tiers, s->n_tiers + 1, sizeof(*v));
	struct cfs_tier *t;

	if (!v)
		return -ENOMEM;
	s->tiers = v;
	t = &v[s->n_tiers];
	t->id = id;
	t->storage_class = strdup(storage_class ? storage_class : "");
	t->tag = strdup(tag ? tag : "");
	s->n_tiers++;
	return t->storage_class && t->tag ? 0 : -ENOMEM;
}

/* Replaces a text by a copy of another one; NULL: keeps it. */
static int replace(char **text, const char *with)
{
	char *copy = with ? strdup(with) : NULL;

	if (with && !copy)
		return -ENOMEM;
	if (with) {
		free(*text);
		*text = copy;
	}
	return 0;
}

int cfs_setting_set_tier(struct cfs_setting *s, int id, const char *storage_class, const char *tag)
{
	size_t i = 0;
	int rc = 0;

	while (i < s->n_tiers && s->tiers[i].id != id)
		i++;
	if (i == s->n_tiers)
		rc = add_tier(s, id, NULL, NULL);
	if (!rc)
		rc = replace(&s->tiers[i].storage_class, storage_class);
	return rc ? rc : replace(&s->tiers[i].tag, tag);
}

static int make_uuid(char **ret)
{
	uint8_t b[16];
	char *text;

	if (RAND_bytes(b, sizeof(b)) != 1)
		return -EIO;
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	if (asprintf(&text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		     b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
		     b[12], b[13], b[14], b[15]) < 0)
		return -ENOMEM;
	*ret = text;
	return 0;
}

int cfs_setting_new(const char *name, struct cfs_setting **ret)
{
	auto_setting struct cfs_setting *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->name = strdup(name);
	s->storage = strdup("file");
	s->bucket = strdup("/var/jfs/");
	s->compression = strdup("none");
	s->encrypt_algo = strdup("aes256gcm-rsa");
	s->min_client_version = strdup("1.1.0-A");
	if (!s->name || !s->storage || !s->bucket || !s->compression || !s->encrypt_algo ||
	    !s->min_client_version)
		return -ENOMEM;
	s->block_size_kib = 4096;
	s->trash_days = 1;
	s->meta_version = CFS_META_VERSION;
	s->dir_stats = true;
	rc = add_tier(s, 0, "", "");
	if (!rc)
		rc = make_uuid(&s->uuid);
	if (rc)
		return rc;
	*ret = s;
	s = NULL;
	return 0;
}

int cfs_setting_copy(const struct cfs_setting *src, struct cfs_setting **ret)
{
	auto_setting struct cfs_setting *s = malloc(sizeof(*s));
	bool ok = true;
	size_t i;
	int rc;

	if (!s)
		return -ENOMEM;
	*s = *src;
	s->tiers = NULL;
	s->n_tiers = 0;
	s->rest = NULL;
	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++) {
		char **text;

		if (fields[i].kind != STRING && fields[i].kind != SECRET)
			continue;
		text = at(&fields[i], s);
		if (!*text)
			continue;
		*text = strdup(*text);
		ok = ok && *text;
	}
	rc = ok ? cfs_setting_take_rest(s, src) : -ENOMEM;
	if (rc)
		return rc;
	for (i = 0; i < src->n_tiers; i++) {
		rc = add_tier(s, src->tiers[i].id, src->tiers[i].storage_class, src->tiers[i].tag);
		if (rc)
			return rc;
	}
	*ret = s;
	s = NULL;
	return 0;
}

/* ---- unknown fields of the record: kept in `rest` and written back unchanged ---- */

static const struct field *find_field(const char *name)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++)
		if (strcmp(fields[i].name, name) == 0)
			return &fields[i];
	return NULL;
}

/* JuiceFS stores a 64-bit integer where this struct has an int: clamps it. */
static int narrow(const json_t *v)
{
	return (int)CFS_MAX(CFS_MIN(json_integer_value(v), (json_int_t)INT_MAX),
			    (json_int_t)INT_MIN);
}

static const char *tier_key(int id, char buf[16])
{
	snprintf(buf, 16, "%d", id);
	return buf;
}

/* The unknown fields of each tier, by its id. NULL: none. */
static json_t *rest_of_tiers(const json_t *tiers)
{
	json_t *all = json_object(), *t;
	const char *key;
	char id[16];

	json_object_foreach ((json_t *)tiers, key, t) {
		json_t *rest = json_copy(t);

		json_object_del(rest, "ID");
		json_object_del(rest, "StorageClass");
		json_object_del(rest, "Tag");
		if (json_object_size(rest))
			json_object_set(all, tier_key(narrow(json_object_get(t, "ID")), id), rest);
		json_decref(rest);
	}
	if (json_object_size(all))
		return all;
	json_decref(all);
	return NULL;
}

static int gather_rest(const json_t *root, struct cfs_setting *s)
{
	json_t *all = json_object(), *v;
	const char *key;
	int rc = all ? 0 : -ENOMEM;

	json_object_foreach ((json_t *)root, key, v) {
		const struct field *f = find_field(key);
		json_t *rest = NULL;

		if (!f)
			rest = json_incref(v);
		else if (f->kind == TIERS)
			rest = rest_of_tiers(v);
		else if (f->kind == INT && json_is_integer(v) && narrow(v) != json_integer_value(v))
			rest = json_incref(v);
		if (!rc && rest && json_object_set(all, key, rest))
			rc = -ENOMEM;
		json_decref(rest);
	}
	if (!rc && json_object_size(all)) {
		s->rest = cfs_json_dump(all, JSON_COMPACT);
		rc = s->rest ? 0 : -ENOMEM;
	}
	json_decref(all);
	return rc;
}

static int put_rest_of_tiers(json_t *tiers, const json_t *rest)
{
	const char *key;
	json_t *v;
	int rc = 0;

	json_object_foreach ((json_t *)rest, key, v) {
		json_t *t = json_object_get(tiers, key);

		if (t && json_object_update_missing(t, v))
			rc = -ENOMEM;
	}
	return rc;
}

static int put_rest(const struct cfs_setting *s, json_t *root)
{
	json_t *all = s->rest ? cfs_json_load(s->rest, strlen(s->rest), NULL) : NULL, *v;
	const char *key;
	int rc = s->rest && !all ? -ENOMEM : 0;

	json_object_foreach (all, key, v) {
		const struct field *f = find_field(key);

		if (f && f->kind == TIERS)
			rc = rc ? rc : put_rest_of_tiers(json_object_get(root, key), v);
		else if (f && narrow(v) != *(const int *)at_const(f, s))
			continue; /* changed */
		else if (json_object_set(root, key, v))
			rc = -ENOMEM;
	}
	json_decref(all);
	return rc;
}

int cfs_setting_take_rest(struct cfs_setting *s, const struct cfs_setting *from)
{
	char *rest = from->rest ? strdup(from->rest) : NULL;

	if (from->rest && !rest)
		return -ENOMEM;
	free_secret(s->rest);
	s->rest = rest;
	return 0;
}

/* ---- writing ---- */

/* JSON cannot contain text that is not UTF-8: -EINVAL. */
static json_t *encode_text(const char *text, int *rc)
{
	json_t *v = json_string(text);

	if (!v)
		*rc = -EINVAL;
	return v;
}

static json_t *encode_tiers(const struct cfs_setting *s, int *rc)
{
	json_t *all = json_object();
	size_t i;

	if (!all)
		*rc = -ENOMEM;
	for (i = 0; i < s->n_tiers && !*rc; i++) {
		const struct cfs_tier *t = &s->tiers[i];
		json_t *class = encode_text(t->storage_class, rc), *tag = encode_text(t->tag, rc);
		json_t *tier = *rc ? NULL
				   : json_pack("{s:i,s:O,s:O}", "ID", t->id, "StorageClass", class,
					       "Tag", tag);
		char key[16];

		json_decref(class);
		json_decref(tag);
		if (!*rc && json_object_set_new(all, tier_key(t->id, key), tier))
			*rc = -ENOMEM;
	}
	return all;
}

enum secrets { ENCRYPTED, MASKED };

/* The bucket of some storages of JuiceFS is a URL with a password. */
static json_t *mask_bucket(const struct cfs_setting *s, int *rc)
{
	cfs_auto_free char *masked = cfs_url_masked(s->bucket);

	if (!masked)
		*rc = -ENOMEM;
	return masked ? encode_text(masked, rc) : NULL;
}

/* NULL: leave the field out. On failure *rc is set. */
static json_t *encode_field(const struct field *f, const struct cfs_setting *s,
			    enum secrets secrets, int *rc)
{
	bool is_text = f->kind == STRING || f->kind == SECRET;
	cfs_auto_free char *sealed = NULL;

	if ((f->how & OMIT_ZERO) && (is_text ? !*text_of(f, s) : !number_of(f, s)))
		return NULL;
	switch (f->kind) {
	case STRING:
		if (secrets == MASKED && text_of(f, s) == s->bucket && strcmp(s->storage, "file"))
			return mask_bucket(s, rc);
		return encode_text(text_of(f, s), rc);
	case SECRET:
		if (secrets == MASKED)
			return json_string("***");
		if (!s->key_encrypted)
			return encode_text(text_of(f, s), rc);
		*rc = cfs_secret_seal(s->uuid, text_of(f, s), &sealed);
		return *rc ? NULL : json_string(sealed);
	case FLAG:
		return json_boolean(number_of(f, s));
	case INT:
	case U32:
		return json_integer((json_int_t)number_of(f, s));
	case U64:
		return cfs_json_u64(number_of(f, s));
	case TIERS:
		return encode_tiers(s, rc);
	}
	return NULL;
}

static int encode(const struct cfs_setting *s, enum secrets secrets, json_t **ret)
{
	json_t *root = json_object();
	int rc = root ? 0 : -ENOMEM;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(fields) && !rc; i++) {
		json_t *v = encode_field(&fields[i], s, secrets, &rc);

		if (v && json_object_set_new(root, fields[i].name, v))
			rc = rc ? rc : -ENOMEM;
	}
	/* Left out when secrets are masked: an unknown field may contain a secret. */
	if (!rc && secrets == ENCRYPTED)
		rc = put_rest(s, root);
	if (rc) {
		json_decref(root);
		return rc;
	}
	*ret = root;
	return 0;
}

int cfs_setting_encode(const struct cfs_setting *s, char **ret)
{
	json_t *root;
	char *text, *in, *out;
	int rc = encode(s, ENCRYPTED, &root);

	if (rc)
		return rc;
	text = cfs_json_dump(root, JSON_INDENT(1));
	json_decref(root);
	if (!text)
		return -ENOMEM;
	/* Removes the indentation, which the record does not have. Strings have no raw newlines. */
	for (in = out = text; *in; in++) {
		*out++ = *in;
		if (*in == '\n')
			while (in[1] == ' ')
				in++;
	}
	*out = '\0';
	*ret = text;
	return 0;
}

int cfs_setting_show(const struct cfs_setting *s, char **ret)
{
	json_t *root;
	char *text;
	int rc = encode(s, MASKED, &root);

	if (rc)
		return rc;
	text = cfs_json_dump(root, JSON_INDENT(2));
	json_decref(root);
	if (!text)
		return -ENOMEM;
	*ret = text;
	return 0;
}

/* ---- reading ---- */

static int decode_tiers(const json_t *v, struct cfs_setting *s)
{
	const char *key;
	json_t *t;
	int rc;

	/* Clients before 1.4 write no tiers: tier 0 then has the storage class of the volume. */
	if (!json_is_object(v) || json_object_size(v) == 0)
		return add_tier(s, 0, s->storage_class, "");
	json_object_foreach ((json_t *)v, key, t) {
		rc = add_tier(s, narrow(json_object_get(t, "ID")),
			      json_string_value(json_object_get(t, "StorageClass")),
			      json_string_value(json_object_get(t, "Tag")));
		if (rc)
			return rc;
	}
	return 0;
}

static int decode_field(const struct field *f, const json_t *v, struct cfs_setting *s)
{
	void *p = at(f, s);

	if (f->kind == TIERS)
		return decode_tiers(v, s);
	if (!v || json_is_null(v))
		return 0;
	switch (f->kind) {
	case STRING:
	case SECRET:
		if (!json_is_string(v))
			return -EINVAL;
		*(char **)p = strdup(json_string_value(v));
		return *(char **)p ? 0 : -ENOMEM;
	case FLAG:
		if (!json_is_boolean(v))
			return -EINVAL;
		*(bool *)p = json_is_true(v);
		return 0;
	case INT:
		if (!json_is_integer(v))
			return -EINVAL;
		*(int *)p = narrow(v);
		return 0;
	case U32:
		if (!json_is_integer(v) || json_integer_value(v) != (uint32_t)json_integer_value(v))
			return -EINVAL;
		*(uint32_t *)p = (uint32_t)json_integer_value(v);
		return 0;
	case U64:
		return cfs_json_get_u64(v, p) ? 0 : -EINVAL;
	case TIERS:
		break;
	}
	return 0;
}

static int open_secrets(struct cfs_setting *s, char err[256])
{
	size_t i;
	int rc;

	if (s->encrypt_algo && strcmp(s->encrypt_algo, "sm4gcm") == 0 && s->key_encrypted)
		return cfs_fail(
			err, -EKEYREJECTED,
			"volume %s: its secrets are sealed with SM4, which is not supported",
			s->name);
	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++) {
		char **text = at(&fields[i], s);
		char *clear;

		if (fields[i].kind != SECRET || !*text || !**text)
			continue;
		if (strcmp(*text, "removed") == 0)
			return cfs_fail(
				err, -EKEYREJECTED,
				"volume %s: %s was removed by a dump; set it again with config",
				s->name, fields[i].name);
		if (!s->key_encrypted)
			continue;
		rc = cfs_secret_open(s->uuid, *text, &clear);
		if (rc) {
			snprintf(err, 256, "volume %s: %s cannot be decrypted", s->name,
				 fields[i].name);
			return rc == -ENOMEM ? rc : -EKEYREJECTED;
		}
		free(*text);
		*text = clear;
	}
	return 0;
}

static int decode(const json_t *root, struct cfs_setting *s, char err[256])
{
	size_t i;
	int rc;

	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++) {
		rc = decode_field(&fields[i], json_object_get(root, fields[i].name), s);
		if (rc)
			return cfs_fail(err, rc, "the setting's field %s is not valid",
					fields[i].name);
	}
	if (!s->name || !s->uuid || !s->storage || !s->bucket || !s->block_size_kib)
		return cfs_fail(err, -EINVAL,
				"the setting lacks one of Name, UUID, Storage, Bucket, BlockSize");
	if (s->meta_version > CFS_META_VERSION)
		return cfs_fail(
			err, -EPROTONOSUPPORT,
			"volume %s has MetaVersion %d, this client understands %d: use a newer one",
			s->name, s->meta_version, CFS_META_VERSION);
	rc = gather_rest(root, s);
	if (rc)
		return cfs_fail(err, rc, "out of memory");
	return open_secrets(s, err);
}

int cfs_setting_decode(const char *json, size_t len, struct cfs_setting **ret, char err[256])
{
	auto_setting struct cfs_setting *s = calloc(1, sizeof(*s));
	json_error_t jerr;
	json_t *root;
	int rc;

	if (!s)
		return cfs_fail(err, -ENOMEM, "out of memory");
	root = cfs_json_load(json, len, &jerr);
	if (!json_is_object(root)) {
		snprintf(err, 256, "the setting is not a JSON object (line %d)",
			 root ? 1 : jerr.line);
		json_decref(root);
		return -EINVAL;
	}
	rc = decode(root, s, err);
	json_decref(root);
	if (rc)
		return rc;
	*ret = s;
	s = NULL;
	return 0;
}

bool cfs_setting_is_of_another(const char *json, const char *uuid)
{
	json_t *root = cfs_json_load(json, strlen(json), NULL);
	const char *its = json_string_value(json_object_get(root, "UUID"));
	bool another = its && strcmp(its, uuid) != 0;

	json_decref(root);
	return another;
}

/* ---- checks ---- */

/* Whether a field that is not the list of tiers has the same value. */
static bool field_equal(const struct field *f, const struct cfs_setting *a,
			const struct cfs_setting *b)
{
	if (f->kind != STRING && f->kind != SECRET)
		return number_of(f, a) == number_of(f, b);
	if (f->offset == offsetof(struct cfs_setting, compression) &&
	    (!*text_of(f, a) || !*text_of(f, b)))
		return !cfs_setting_compressed(a) && !cfs_setting_compressed(b);
	return strcmp(text_of(f, a), text_of(f, b)) == 0;
}

bool cfs_setting_compressed(const struct cfs_setting *s)
{
	return s->compression && *s->compression && strcmp(s->compression, "none") != 0;
}

const char *cfs_setting_fixed_change(const struct cfs_setting *from, const struct cfs_setting *to)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++)
		if ((fields[i].how & FIXED) && !field_equal(&fields[i], from, to))
			return fields[i].name;
	return NULL;
}

int cfs_setting_check_name(const char *name)
{
	const char *inner = "abcdefghijklmnopqrstuvwxyz0123456789-";
	size_t len = strlen(name);

	if (len < 2 || len > 63 || strspn(name, inner) != len)
		return -EINVAL;
	return name[0] == '-' || name[len - 1] == '-' ? -EINVAL : 0;
}

int cfs_setting_normalise(struct cfs_setting *s)
{
	bool tiers = s->n_tiers > 1;
	size_t i;
	int rc = cfs_setting_raise_version(s, "1.1.0-A");

	for (i = 0; i < CFS_ARRAY_SIZE(fields); i++)
		if (fields[i].kind == SECRET && *text_of(&fields[i], s))
			s->key_encrypted = true;
	if (s->changelog && !s->changelog_max_age_s && !s->changelog_max_lines)
		s->changelog_max_age_s = 7200;
	if (!rc && s->enable_acl)
		rc = cfs_setting_raise_version(s, "1.2.0-A");
	if (!rc && s->ranger_rest_url && *s->ranger_rest_url)
		rc = cfs_setting_raise_version(s, "1.3.0-A");
	if (!rc && (tiers || (s->kerb_conf && *s->kerb_conf)))
		rc = cfs_setting_raise_version(s, "1.4.0-A");
	return rc;
}
