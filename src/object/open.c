/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the store of a volume's setting and wraps its filters around it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/module.h"
#include "filter.h"

static const struct {
	const char *name;
	cfs_object_open_fn open;
	const char *module; /* has the store, in place of the program */
} storages[] = {
	{"file", .open = cfs_object_open_file},
	{"mem", .open = cfs_object_open_mem},
	{"minio", .module = "s3"},
	{"s3", .module = "s3"},
};

static int open_module(const char *name, const struct cfs_object_conf *conf,
		       struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	const struct cfs_object_module *module;
	const void *table;
	int r;

	r = cfs_module_load(name, &table, err);
	if (r < 0)
		return r;
	module = table;
	return module->open(conf, ret, err);
}

/* Opens the store of one bucket, with retries. */
static int open_bucket(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		       char err[CFS_OBJECT_ERRLEN])
{
	struct cfs_object_store *o;
	size_t i = 0;
	int r;

	while (i < CFS_ARRAY_SIZE(storages) &&
	       (!conf->storage || strcmp(conf->storage, storages[i].name) != 0))
		i++;
	if (i == CFS_ARRAY_SIZE(storages))
		return cfs_fail(err, -EINVAL, "unknown storage: %s",
				conf->storage ? conf->storage : "(none)");
	if (storages[i].module)
		r = open_module(storages[i].module, conf, &o, err);
	else
		r = storages[i].open(conf, &o, err);
	if (r < 0)
		return r;
	if (o->ops->failure) {
		r = cfs_object_wrap_retry(o, &o);
		if (r < 0) {
			cfs_object_close(o);
			return r;
		}
	}
	*ret = o;
	return 0;
}

#ifndef CFS_HAVE_COMPRESSION
int cfs_object_wrap_compress(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			     struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	return cfs_fail(err, -EOPNOTSUPP, "compression %s is not built in", conf->compression);
}
#endif

#ifndef CFS_HAVE_ENCRYPTION
int cfs_object_wrap_encrypt(const struct cfs_object_conf *conf, struct cfs_object_store *inner,
			    struct cfs_object_store **ret, char err[CFS_OBJECT_ERRLEN])
{
	return cfs_fail(err, -EOPNOTSUPP, "encryption is not built in");
}
#endif

int cfs_object_open(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		    char err[CFS_OBJECT_ERRLEN])
{
	struct cfs_object_store *o = NULL;
	int r;

	err[0] = '\0';
	if (conf->shards > 1)
		r = cfs_object_open_shards(conf, open_bucket, &o, err);
	else
		r = open_bucket(conf, &o, err);
	if (r < 0)
		return r;

	r = cfs_object_wrap_limit(conf, o, &o);
	if (r < 0)
		goto fail;
	/* A put compresses first and encrypts then, so encryption is the inner filter. */
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

int cfs_object_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf)
{
	return o->ops->adopt ? o->ops->adopt(o, conf) : 0;
}

ssize_t cfs_object_get(struct cfs_object_store *o, const char *key, uint64_t off,
		       const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	struct cfs_object_info info;
	struct iovec whole;
	ssize_t n;

	n = o->ops->get(o, key, off, dst, n_dst, deadline);
	if (n != -CFS_OBJECT_EPART)
		return n;
	n = o->ops->head(o, key, &info, deadline);
	if (n < 0)
		return n;
	whole = (struct iovec){.iov_base = malloc(info.size + 1), .iov_len = info.size};
	if (!whole.iov_base)
		return -ENOMEM;
	n = o->ops->get(o, key, 0, &whole, 1, deadline);
	if (n >= 0 && off < (uint64_t)n)
		n = (ssize_t)cfs_iov_scatter(dst, n_dst, (uint8_t *)whole.iov_base + off,
					     (size_t)n - off);
	else if (n >= 0)
		n = 0;
	free(whole.iov_base);
	return n;
}

int cfs_object_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
			cfs_deadline_t deadline)
{
	size_t i, part;
	int r, err = 0;

	for (i = 0; i < n; i += part) {
		part = o->ops->del_many ? CFS_MIN(n - i, (size_t)CFS_OBJECT_DEL_MAX) : 1;
		if (o->ops->del_many)
			r = o->ops->del_many(o, keys + i, part, deadline);
		else
			r = o->ops->del(o, keys[i], deadline);
		err = err ? err : r;
	}
	return err;
}
