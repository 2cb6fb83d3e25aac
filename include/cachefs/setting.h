/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The setting of a volume (volume-format section 2): one record of its metadata. A setting is the
 * caller's, which frees it. Functions return 0 or a negative errno, and block on nothing.
 */
#ifndef CFS_SETTING_H
#define CFS_SETTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cfs_tier {
	int id;
	char *storage_class, *tag;
};

struct cfs_setting {
	char *name, *uuid, *storage, *storage_class, *bucket;
	char *access_key, *secret_key, *session_token, *encrypt_key, *encrypt_algo; /* decrypted */
	bool key_encrypted;
	uint32_t block_size_kib;
	char *compression; /* "none", "lz4", "zstd" */
	int shards;
	bool hash_prefix;
	uint64_t capacity, inodes; /* 0: unlimited */
	int upload_limit_mbps, download_limit_mbps;
	int trash_days;
	int meta_version;
	char *min_client_version, *max_client_version;
	bool dir_stats, user_group_quota, enable_acl, changelog;
	int changelog_max_age_s, changelog_max_lines;
	struct cfs_tier *tiers;
	size_t n_tiers;
	char *ranger_rest_url, *ranger_service, *kerb_conf;
	char *rest; /* JSON of the record's other fields, which are written back; NULL: none */
};

#define CFS_META_VERSION   1
#define CFS_COMPAT_VERSION "1.4.1" /* the level at which this client presents itself */

/* Defaults of a fresh volume, a random v4 UUID included. */
int cfs_setting_new(const char *name, struct cfs_setting **ret);
void cfs_setting_free(struct cfs_setting *s);
/* Sets class and tag of a tier; NULL leaves a value unchanged. */
int cfs_setting_set_tier(struct cfs_setting *s, int id, const char *storage_class, const char *tag);
int cfs_setting_copy(const struct cfs_setting *s, struct cfs_setting **ret);
/* *ret is malloc'ed JSON text in the form the volume stores. Secrets are encrypted when
 * key_encrypted. */
int cfs_setting_encode(const struct cfs_setting *s, char **ret);
/* err: one line without secrets. -EINVAL: not a setting; -EPROTONOSUPPORT: newer MetaVersion;
 * -EKEYREJECTED: secrets. */
int cfs_setting_decode(const char *json, size_t len, struct cfs_setting **ret, char err[256]);
/* True: it has another UUID. The rest need not be valid or known, as in one of a newer version. */
bool cfs_setting_is_of_another(const char *json, const char *uuid);
/* JSON for people: secrets replaced by "***"; malloc'ed. */
int cfs_setting_show(const struct cfs_setting *s, char **ret);
/* 2..63 of a-z, 0-9 and inner "-" (JuiceFS makes none shorter than 3, but mounts them). */
int cfs_setting_check_name(const char *name);
/* 0, or -EPROTONOSUPPORT with a reason when Min/MaxClientVersion excludes CFS_COMPAT_VERSION. */
int cfs_setting_check_version(const struct cfs_setting *s, char err[256]);

#endif
