/* SPDX-License-Identifier: Apache-2.0 */
/* The store that a volume's setting names, with its filters around it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "object-internal.h"

static const struct {
	const char *name;
	cfs_object_open_fn open;
} storages[] = {
	{"file", cfs_object_open_file},
	{"mem", cfs_object_open_mem},
};

static int open_storage(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
			char err[CFS_OBJECT_ERRLEN])
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(storages); i++) {
		if (conf->storage && strcmp(conf->storage, storages[i].name) == 0)
			return storages[i].open(conf, ret, err);
	}
	snprintf(err, CFS_OBJECT_ERRLEN, "unknown storage: %s",
		 conf->storage ? conf->storage : "(none)");
	return -EINVAL;
}

#ifndef CFS_HAVE_COMPRESSION
int cfs_object_wrap_compress(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			     struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	snprintf(err, CFS_OBJECT_ERRLEN, "compression %s is not built in", conf->compression);
	return -EOPNOTSUPP;
}
#endif

#ifndef CFS_HAVE_ENCRYPTION
int cfs_object_wrap_encrypt(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			    struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	snprintf(err, CFS_OBJECT_ERRLEN, "encryption is not built in");
	return -EOPNOTSUPP;
}
#endif

int cfs_object_open(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		    char err[CFS_OBJECT_ERRLEN])
{
	struct cfs_object_store *o = NULL;
	int r;

	err[0] = '\0';
	r = open_storage(conf, &o, err);
	if (r < 0)
		return r;

	/* On its way down a block is compressed first, encrypted after: encryption is inside. */
	if (conf->encrypt_key && conf->encrypt_key[0]) {
		r = cfs_object_wrap_encrypt(conf, o, &o, err);
		if (r < 0)
			goto fail;
	}
	if (conf->compression && conf->compression[0] && strcmp(conf->compression, "none") != 0) {
		r = cfs_object_wrap_compress(conf, o, &o, err);
		if (r < 0)
			goto fail;
	}
	*ret = o;
	return 0;

fail:
	cfs_object_close(o);
	return r;
}

void cfs_object_close(struct cfs_object_store *o)
{
	if (o)
		o->ops->close(o);
}
