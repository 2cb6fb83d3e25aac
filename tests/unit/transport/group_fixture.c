/* SPDX-License-Identifier: Apache-2.0 */
#include "group_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MEMBERS "group.member."

void registry_open(struct registry *r)
{
	memset(r, 0, sizeof(*r));
	pthread_mutex_init(&r->lock, NULL);
}

void registry_close(struct registry *r)
{
	while (r->n > 0)
		free(r->v[--r->n].value);
	pthread_mutex_destroy(&r->lock);
}

bool registry_is_members(const char *of)
{
	return strncmp(of, MEMBERS, strlen(MEMBERS)) == 0;
}

unsigned registry_members(struct registry *r)
{
	unsigned n = 0;
	size_t i;

	pthread_mutex_lock(&r->lock);
	for (i = 0; i < r->n; i++)
		n += registry_is_members(r->v[i].key);
	pthread_mutex_unlock(&r->lock);
	return n;
}

static struct registry_record *find(struct registry *r, const char *key)
{
	size_t i;

	for (i = 0; i < r->n; i++) {
		if (strcmp(r->v[i].key, key) == 0)
			return &r->v[i];
	}
	return NULL;
}

static void set_value(struct registry_record *rec, const void *value, size_t len)
{
	free(rec->value);
	rec->value = malloc(len + 1);
	memcpy(rec->value, value, len);
	rec->value[len] = '\0';
	rec->len = len;
}

int registry_put(void *arg, const char *key, const void *value, size_t len, bool fresh)
{
	struct registry *r = arg;
	struct registry_record *rec;
	int err = r->err;

	r->bytes += strlen(key) + len;
	pthread_mutex_lock(&r->lock);
	rec = find(r, key);
	if (!err && rec && fresh)
		err = -EEXIST;
	if (!err && !rec) {
		assert_true(r->n < RECORDS_MAX);
		rec = &r->v[r->n++];
		rec->value = NULL;
		snprintf(rec->key, sizeof(rec->key), "%s", key);
	}
	if (!err)
		set_value(rec, value, len);
	pthread_mutex_unlock(&r->lock);
	return err;
}

int registry_swap(void *arg, const char *key, const void *old, size_t old_len, const void *value,
		  size_t len)
{
	struct registry *r = arg;
	struct registry_record *rec;
	int err = r->err;

	r->bytes += strlen(key) + old_len + len;
	pthread_mutex_lock(&r->lock);
	rec = find(r, key);
	if (!err && (!rec || rec->len != old_len || memcmp(rec->value, old, old_len) != 0))
		err = -ESTALE;
	if (!err)
		set_value(rec, value, len);
	pthread_mutex_unlock(&r->lock);
	return err;
}

int registry_drop(void *arg, const char *key)
{
	struct registry *r = arg;
	struct registry_record *rec;

	if (r->err)
		return r->err;
	pthread_mutex_lock(&r->lock);
	rec = find(r, key);
	if (rec) {
		free(rec->value);
		*rec = r->v[--r->n];
	}
	pthread_mutex_unlock(&r->lock);
	return 0;
}

int registry_get(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg)
{
	struct registry *r = arg;
	struct registry_record *rec;
	int err = r->err;

	r->bytes += strlen(key);
	pthread_mutex_lock(&r->lock);
	rec = find(r, key);
	if (!err && !rec)
		err = -ENOENT;
	if (!err) {
		r->bytes += rec->len;
		err = fn(fn_arg, key, rec->value, rec->len);
	}
	pthread_mutex_unlock(&r->lock);
	return err;
}

int registry_each(void *arg, const char *table, cfs_group_record_fn fn, void *fn_arg)
{
	struct registry *r = arg;
	size_t len = strlen(table), i;
	int err = r->err, given = 0;

	pthread_mutex_lock(&r->lock);
	for (i = 0; i < r->n && !err; i++) {
		if (strncmp(r->v[i].key, table, len) != 0 || r->v[i].key[len] != '/')
			continue;
		if (registry_is_members(table) && r->cut_at && given++ == r->cut_at) {
			r->cuts++;
			err = -EIO;
			break;
		}
		r->bytes += strlen(r->v[i].key) + r->v[i].len;
		err = fn(fn_arg, r->v[i].key, r->v[i].value, r->v[i].len);
	}
	pthread_mutex_unlock(&r->lock);
	return err;
}
