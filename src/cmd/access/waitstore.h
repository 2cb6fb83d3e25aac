/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An object store whose calls are recorded as waits of their thread (base/activity.h), so that a
 * command can say which request, of which key, is not answered.
 */
#ifndef CFS_CMD_WAITSTORE_H
#define CFS_CMD_WAITSTORE_H

#include <cachefs/object.h>

/* Takes over the store, also when it fails. bucket is shown with the key. 0 or -ENOMEM. */
int waitstore_wrap(struct cfs_object_store *inner, const char *bucket,
		   struct cfs_object_store **ret);

#endif
