/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the setting that only the core uses. */
#ifndef CFS_META_SETTING_INTERNAL_H
#define CFS_META_SETTING_INTERNAL_H

#include <cachefs/meta.h>

/*
 * Secrets of a setting: AES-128-GCM under MD5(UUID), base64 of nonce, ciphertext and tag. The
 * caller frees the results. -EKEYREJECTED: encrypted under another UUID, or damaged.
 */
int cfs_secret_seal(const char *uuid, const char *clear, char **ret);
int cfs_secret_open(const char *uuid, const char *sealed, char **ret);

/* Name of the first field that differs but may not change on an existing volume; NULL: none. */
const char *cfs_setting_fixed_change(const struct cfs_setting *from, const struct cfs_setting *to);
bool cfs_setting_compressed(const struct cfs_setting *s);
/* Sets the fields that follow from others: KeyEncrypted, MinClientVersion, changelog defaults. */
int cfs_setting_normalise(struct cfs_setting *s);

/* Replaces the fields unknown to this client by a copy of those of `from`. */
int cfs_setting_take_rest(struct cfs_setting *s, const struct cfs_setting *from);
/* Raises MinClientVersion to `to` when it is lower. */
int cfs_setting_raise_version(struct cfs_setting *s, const char *to);

#endif
