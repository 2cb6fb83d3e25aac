/* SPDX-License-Identifier: Apache-2.0 */
/* The replication of a mount's metadata, when it is on for the volume. */
#ifndef CFS_CMD_REPLICATE_H
#define CFS_CMD_REPLICATE_H

#include "cmd/mountd/serve-internal.h"

/* With the option `restore`: restores a missing database from its replica. Negative with err. */
int replicate_restore(struct serve *s, char err[256]);
/*
 * Called before the session starts. -EPERM: the replica belongs to another database; with err.
 */
int replicate_start(struct serve *s, const struct volume_objects *objects, char err[256]);
/* Called after the last change of the metadata. */
void replicate_stop(struct serve *s);

#endif
