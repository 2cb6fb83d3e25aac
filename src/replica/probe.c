/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether a bucket refuses to create an object twice. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "replica-internal.h"

#define RIVALS 8
#define ROUNDS 3

struct rival {
	struct cfs_object_store *o;
	const char *key;
	cfs_deadline_t deadline;
	pthread_t thread;
	bool started;
	int result;
};

static void name_probe(const char *volume, char ret[CHAIN_KEY])
{
	snprintf(ret, CHAIN_KEY, "%s/testing/replica-%016" PRIx64, volume, cfs_random_u64());
}

static int put_probe(struct cfs_object_store *o, const char *key, unsigned how,
		     cfs_deadline_t deadline)
{
	struct iovec iov = {(char *)"probe", 5};

	return o->ops->put(o, key, &iov, 1, how, deadline);
}

/* Creates an object twice, one after the other. */
static int probe_twice(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline)
{
	char key[CHAIN_KEY];
	int r, gone;

	name_probe(volume, key);
	r = put_probe(o, key, 0, deadline);
	if (r < 0)
		return r;
	r = put_probe(o, key, CFS_OBJECT_NEW, deadline);
	gone = o->ops->del(o, key, deadline);
	if (r == -EEXIST)
		return gone < 0 ? gone : 1;
	/* A server that refuses the condition itself does not support it either. */
	return r == 0 || r == -EOPNOTSUPP || r == -EINVAL ? 0 : r;
}

static void *compete(void *arg)
{
	struct rival *v = arg;

	v->result = put_probe(v->o, v->key, CFS_OBJECT_NEW, v->deadline);
	return NULL;
}

/* Rivals create an object at once: a server that looks first and then writes lets several. */
static int probe_at_once(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline)
{
	struct rival v[RIVALS];
	char key[CHAIN_KEY];
	int i, made = 0, r = 0, gone;

	name_probe(volume, key);
	for (i = 0; i < RIVALS; i++) {
		v[i] = (struct rival){.o = o, .key = key, .deadline = deadline};
		v[i].started = !cfs_thread_start("replica-probe", compete, &v[i], &v[i].thread);
	}
	for (i = 0; i < RIVALS; i++) {
		if (v[i].started)
			pthread_join(v[i].thread, NULL);
		else
			compete(&v[i]);
		made += !v[i].result;
		if (v[i].result && v[i].result != -EEXIST)
			r = v[i].result;
	}
	gone = o->ops->del(o, key, deadline);
	if (made > 1)
		return 0;
	if (r)
		return r;
	return gone < 0 ? gone : 1;
}

static int end_listing(void *arg, const struct cfs_object_info *info)
{
	return 1;
}

int cfs_replica_probe(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline)
{
	char prefix[CHAIN_KEY];
	int i, r;

	snprintf(prefix, sizeof(prefix), "%s/testing/", volume);
	r = o->ops->list(o, prefix, "", end_listing, NULL, deadline);
	if (r >= 0)
		r = probe_twice(o, volume, deadline);
	for (i = 0; i < ROUNDS && r == 1; i++)
		r = probe_at_once(o, volume, deadline);
	return r;
}
