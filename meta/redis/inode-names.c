/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name of an inode in its directory. Redis finds it by reading the whole directory, so a command
 * that looks for the paths of many inodes would read it for each. A window keeps the names of a
 * directory that belong to the lowest inodes from the searched one on: inodes are mostly searched
 * in their order. A mount keeps no windows.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/redis/ops.h"

enum { WINDOWS = 4, NAMES = 50000 };

struct inode_name {
	cfs_ino_t ino;
	size_t len;
	char name[];
};

struct window {
	cfs_ino_t dir, from, to;
	struct inode_name **v;
	size_t n, cap;
};

struct rds_inode_names {
	pthread_mutex_t lock; /* protects the rest */
	struct window windows[WINDOWS];
	unsigned next; /* is replaced next */
};

static void free_window(struct window *w)
{
	while (w->n)
		free(w->v[--w->n]);
	free(w->v);
}

struct rds_inode_names *rds_inode_names_create(void)
{
	struct rds_inode_names *names = calloc(1, sizeof(*names));

	if (names)
		pthread_mutex_init(&names->lock, NULL);
	return names;
}

void rds_inode_names_destroy(struct rds_inode_names *names)
{
	size_t i;

	for (i = 0; names && i < WINDOWS; i++)
		free_window(&names->windows[i]);
	if (names)
		pthread_mutex_destroy(&names->lock);
	free(names);
}

static int compare(const void *a, const void *b)
{
	const struct inode_name *const *x = a, *const *y = b;

	return CFS_COMPARE((*x)->ino, (*y)->ino);
}

static void keep_lowest(struct window *w)
{
	if (w->n)
		qsort(w->v, w->n, sizeof(*w->v), compare);
	if (w->n > NAMES)
		w->to = w->v[NAMES - 1]->ino;
	while (w->n > NAMES)
		free(w->v[--w->n]);
}

static int add_name(void *arg, cfs_ino_t dir, const redisReply *name, const redisReply *value)
{
	struct window *w = arg;
	struct inode_name *added;
	cfs_ino_t ino;
	uint8_t type;

	if (rds_entry_decode(value->str, value->len, &type, &ino) || ino < w->from || ino > w->to ||
	    name->len > CFS_NAME_MAX)
		return 0;
	if (w->n == 2 * NAMES)
		keep_lowest(w);
	added = malloc(sizeof(*added) + name->len);
	if (!added || CFS_ARRAY_ROOM(w->v, w->n, w->cap) < 0) {
		free(added);
		return -ENOMEM;
	}
	added->ino = ino;
	added->len = name->len;
	memcpy(added->name, name->str, name->len);
	w->v[w->n++] = added;
	return 0;
}

static bool find(struct rds_inode_names *names, cfs_ino_t dir, cfs_ino_t ino, char *name,
		 size_t *ret_len)
{
	const struct inode_name key = {.ino = ino}, *k = &key;
	struct inode_name **found = NULL;
	unsigned i;
	CFS_LOCK_GUARD(&names->lock);

	/* The latest first: names may have changed since the others. */
	for (i = 1; i <= WINDOWS && !found; i++) {
		const struct window *w = &names->windows[(names->next + WINDOWS - i) % WINDOWS];

		if (w->dir == dir && w->n)
			found = bsearch(&k, w->v, w->n, sizeof(*w->v), compare);
	}
	if (!found)
		return false;
	memcpy(name, (*found)->name, (*found)->len);
	*ret_len = (*found)->len;
	return true;
}

static int read_window(struct cfs_engine *e, struct rds_inode_names *names, cfs_ino_t dir,
		       cfs_ino_t from)
{
	struct window w = {.dir = dir, .from = from, .to = UINT64_MAX}, old;
	int r = rds_each_entry(e, dir, (struct rds_cursor){0}, add_name, &w);

	keep_lowest(&w);
	if (!r) {
		pthread_mutex_lock(&names->lock);
		old = names->windows[names->next];
		names->windows[names->next] = w;
		names->next = (names->next + 1) % WINDOWS;
		pthread_mutex_unlock(&names->lock);
		w = old;
	}
	free_window(&w);
	return r;
}

/* Whether the directory has that entry. */
static int confirm(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, cfs_ino_t ino,
		   const char *name, size_t len)
{
	RDS_REQUEST(q, e);
	cfs_ino_t is = 0;
	uint8_t type;
	int r = rds_ask(&q, ctx, CFS_META_OP_other, "skb", "HGET", "d", dir, name, len);

	if (!r && rds_is_bytes(q.reply[0]))
		rds_entry_decode(q.reply[0]->str, q.reply[0]->len, &type, &is);
	return r ? r : is == ino;
}

int rds_inode_name(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, cfs_ino_t ino,
		   char *name, size_t *ret_len)
{
	struct rds_inode_names *names = rds_of(e)->inode_names;
	bool read = false;
	int r;

	for (;; read = true) {
		r = find(names, dir, ino, name, ret_len) ? confirm(e, ctx, dir, ino, name, *ret_len)
							 : 0;
		if (r || read)
			return r;
		r = read_window(e, names, dir, ino);
		if (r)
			return r;
	}
}
