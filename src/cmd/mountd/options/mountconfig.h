/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_MOUNTCONFIG_H
#define CFS_CMD_MOUNTCONFIG_H

#include <stddef.h>

struct cfs_meta;
struct mount_opts;

/* The text of .config: identity and options of this mount, as JSON without secrets. Malloc'ed. */
int mount_config_show(struct cfs_meta *m, const struct mount_opts *o, const char *dir, char **ret,
		      size_t *ret_len);

/*
 * Prints the options that differ between the mount at dir and o. Prints nothing when the mount does
 * not answer in time.
 */
void mount_config_tell_differences(const char *dir, const struct mount_opts *o);

#endif
