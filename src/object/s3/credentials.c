/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials of requests: from the volume's setting, else the environment, else a profile file, else
 * the role of the instance or container. Credentials of a role expire and are renewed before.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/unwanted.h"
#include "s3.h"

#define ANONYMOUS	 "anonymous"
#define REFRESH_BEFORE_S 300
#define RETRY_AFTER_MS	 30000 /* between searches that find nothing */

struct cfs_s3_credentials {
	bool minio;
	pthread_mutex_t lock; /* protects what follows; not held while searching */
	pthread_cond_t searched;
	bool given;			/* by the setting: never searched for */
	bool searching;			/* one thread is searching */
	const struct cfs_s3_keys *keys; /* NULL: none known */
	bool refused;			/* the server calls them expired */
	cfs_deadline_t not_before;	/* next search */
};

int cfs_s3_keys_new(const char *access, const char *secret, const char *token, int64_t expires_s,
		    struct cfs_s3_keys **ret)
{
	struct cfs_s3_keys *k = calloc(1, sizeof(*k));

	if (!k)
		return -ENOMEM;
	atomic_init(&k->refs, 1);
	k->expires_s = expires_s;
	if (access) {
		k->access = strdup(access);
		k->secret = strdup(secret);
		k->token = token && *token ? strdup(token) : NULL;
		if (!k->access || !k->secret || (token && *token && !k->token)) {
			cfs_s3_keys_unref(k);
			return -ENOMEM;
		}
	}
	*ret = k;
	return 0;
}

static void wipe(char *text)
{
	if (text)
		OPENSSL_cleanse(text, strlen(text));
	free(text);
}

void cfs_s3_keys_unref(const struct cfs_s3_keys *keys)
{
	struct cfs_s3_keys *k = (struct cfs_s3_keys *)keys;

	if (!k || atomic_fetch_sub(&k->refs, 1) > 1)
		return;
	free(k->access);
	wipe(k->secret);
	wipe(k->token);
	free(k);
}

const struct cfs_s3_keys *cfs_s3_keys_ref(const struct cfs_s3_keys *keys)
{
	atomic_fetch_add(&((struct cfs_s3_keys *)keys)->refs, 1);
	return keys;
}

static int keys_from_environment(bool minio, struct cfs_s3_keys **ret)
{
	static const char *const names[][3] = {
		{"ACCESS_KEY", "SECRET_KEY", "SESSION_TOKEN"},
		{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"},
		{"MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", NULL},
	};
	const char *access, *secret, *token;
	size_t i, n = minio ? 3 : 2;

	for (i = 0; i < n; i++) {
		access = getenv(names[i][0]);
		secret = getenv(names[i][1]);
		token = names[i][2] ? getenv(names[i][2]) : NULL;
		if (access && strcmp(access, ANONYMOUS) == 0)
			return cfs_s3_keys_new(NULL, NULL, NULL, 0, ret);
		if (access && *access && secret && *secret)
			return cfs_s3_keys_new(access, secret, token, 0, ret);
	}
	return -ENOENT;
}

/* *ret stays NULL when the setting has none. */
static int keys_from_setting(const struct cfs_object_conf *conf, struct cfs_s3_keys **ret)
{
	if (conf->access_key && strcmp(conf->access_key, ANONYMOUS) == 0)
		return cfs_s3_keys_new(NULL, NULL, NULL, 0, ret);
	if (conf->access_key && *conf->access_key && conf->secret_key && *conf->secret_key)
		return cfs_s3_keys_new(conf->access_key, conf->secret_key, conf->session_token, 0,
				       ret);
	return 0;
}

int cfs_s3_credentials_open(const struct cfs_object_conf *conf, struct cfs_s3_credentials **ret)
{
	struct cfs_s3_credentials *c = calloc(1, sizeof(*c));
	struct cfs_s3_keys *keys = NULL;
	int r = 0;

	if (!c)
		return -ENOMEM;
	c->minio = conf->storage && strcmp(conf->storage, "minio") == 0;
	pthread_mutex_init(&c->lock, NULL);
	r = cfs_cond_init(&c->searched);
	if (r == 0)
		r = keys_from_setting(conf, &keys);
	c->given = keys != NULL;
	c->keys = keys;
	if (r < 0) {
		cfs_s3_credentials_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

static bool same_text(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool same_keys(const struct cfs_s3_keys *a, const struct cfs_s3_keys *b)
{
	return same_text(a->access, b->access) && same_text(a->secret, b->secret) &&
	       same_text(a->token, b->token);
}

int cfs_s3_credentials_adopt(struct cfs_s3_credentials *c, const struct cfs_object_conf *conf)
{
	const struct cfs_s3_keys *unneeded;
	struct cfs_s3_keys *keys = NULL;
	int r = keys_from_setting(conf, &keys);

	if (r < 0)
		return r;
	unneeded = keys;
	pthread_mutex_lock(&c->lock);
	/* Found keys stay in use while the setting has none. */
	if (keys ? !c->given || !same_keys(c->keys, keys) : c->given) {
		unneeded = c->keys;
		c->keys = keys;
		c->given = keys != NULL;
		c->refused = false;
		c->not_before = 0;
	}
	pthread_mutex_unlock(&c->lock);
	cfs_s3_keys_unref(unneeded);
	return 0;
}

void cfs_s3_credentials_close(struct cfs_s3_credentials *c)
{
	if (!c)
		return;
	cfs_s3_keys_unref(c->keys);
	pthread_cond_destroy(&c->searched);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static int search(const struct cfs_s3_credentials *c, cfs_deadline_t deadline,
		  struct cfs_s3_keys **ret)
{
	int r;

	r = keys_from_environment(c->minio, ret);
	if (r == -ENOENT)
		r = cfs_s3_keys_from_profile(ret);
	if (r == -ENOENT)
		r = cfs_s3_keys_from_instance(deadline, ret);
	return r;
}

static bool is_usable(const struct cfs_s3_credentials *c)
{
	return c->keys && !c->refused && (!c->keys->expires_s || c->keys->expires_s > cfs_wall_s());
}

/* With the lock held. */
static bool wants_search(const struct cfs_s3_credentials *c)
{
	if (c->given || c->searching || !cfs_deadline_passed(c->not_before))
		return false;
	return !c->keys || c->refused ||
	       (c->keys->expires_s && c->keys->expires_s - REFRESH_BEFORE_S <= cfs_wall_s());
}

/* Called with the lock, which is dropped meanwhile. */
static void refresh(struct cfs_s3_credentials *c, cfs_deadline_t deadline)
{
	struct cfs_s3_keys *found = NULL;
	int r;

	c->searching = true;
	pthread_mutex_unlock(&c->lock);
	r = search(c, deadline, &found);
	pthread_mutex_lock(&c->lock);
	c->searching = false;
	if (c->given) {
		/* The setting got keys during the search. */
		cfs_s3_keys_unref(found);
	} else if (r == 0) {
		cfs_s3_keys_unref(c->keys);
		c->keys = found;
		c->refused = false;
		c->not_before = 0;
	} else {
		c->not_before = cfs_deadline_in(RETRY_AFTER_MS);
		if (c->keys)
			cfs_warn("credentials of the object store cannot be refreshed, trying "
				 "again in %d s: error=%s",
				 RETRY_AFTER_MS / 1000, cfs_errname(r));
	}
	pthread_cond_broadcast(&c->searched);
}

int cfs_s3_credentials_get(struct cfs_s3_credentials *c, cfs_deadline_t deadline,
			   const struct cfs_s3_keys **ret, char err[CFS_OBJECT_ERRLEN])
{
	int r = 0;
	CFS_LOCK_GUARD(&c->lock);

	if (wants_search(c))
		refresh(c, deadline);
	while (!is_usable(c) && c->searching && r == 0)
		r = cfs_unwanted_cond_wait(&c->searched, &c->lock, deadline);
	/*
	 * Keys of the setting are used even if they have expired, because the server's error is
	 * clearer than one of ours.
	 */
	if (is_usable(c) || (c->given && c->keys)) {
		*ret = cfs_s3_keys_ref(c->keys);
		return 0;
	}
	return cfs_fail(err, -EACCES, "%s",
			c->keys ? "the credentials have expired and there are no others"
				: "no credentials: give ACCESS_KEY and SECRET_KEY, a profile in "
				  "~/.aws/credentials, or a role of the instance");
}

bool cfs_s3_credentials_expired(struct cfs_s3_credentials *c, const struct cfs_s3_keys *keys)
{
	CFS_LOCK_GUARD(&c->lock);

	if (c->keys == keys && !c->given)
		c->refused = true;
	return !c->given && (c->keys != keys || cfs_deadline_passed(c->not_before));
}
