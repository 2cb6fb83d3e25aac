/* SPDX-License-Identifier: Apache-2.0 */
/* The replication of a mount's metadata, if the volume wants it. */
#ifndef CFS_CMD_REPLICATE_H
#define CFS_CMD_REPLICATE_H

#include "cmd/mountd/serve-internal.h"

/* Makes a missing database of its replica, if the options say so. Negative with err. */
int replicate_restore(struct serve *s, const char *url, char err[256]);
/* Before the session starts. -EPERM: the replica belongs to another database; with err. */
int replicate_start(struct serve *s, const struct volume_objects *objects, char err[256]);
/* After the last change. */
void replicate_stop(struct serve *s);

#endif
