/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "log.h"
#include "table.h"

#define MIN_BUCKETS 16

char cfs_table_readers;

#ifdef CFS_TSAN
/* Memory that liburcu itself allocates and frees between its threads. */
const char *__tsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void)
{
	return "called_from_lib:liburcu-bp.so\ncalled_from_lib:liburcu-cds.so\n"
	       "called_from_lib:liburcu-common.so\n";
}
#endif

struct cfs_table {
	struct cds_lfht *ht;
	_Atomic size_t count;
};

/* Inode numbers are consecutive; the table wants all bits mixed (finalizer of MurmurHash3). */
static unsigned long hash_key(uint64_t key)
{
	key ^= key >> 33;
	key *= 0xff51afd7ed558ccd;
	key ^= key >> 33;
	key *= 0xc4ceb9fe1a85ec53;
	key ^= key >> 33;
	return (unsigned long)key;
}

static int match(struct cds_lfht_node *lfht, const void *key)
{
	struct cfs_node *node = caa_container_of(lfht, struct cfs_node, lfht);

	CFS_TSAN_ACQUIRE(lfht);
	return node->key == *(const uint64_t *)key;
}

int cfs_table_create(size_t initial_buckets, struct cfs_table **ret)
{
	unsigned long buckets = MIN_BUCKETS;
	struct cfs_table *t;
	sigset_t all, old;

	while (buckets < initial_buckets && buckets < (1ul << 30))
		buckets <<= 1;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	/* The next two calls start threads, which inherit the mask: the main thread gets signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	urcu_bp_get_default_call_rcu_data();
	t->ht = cds_lfht_new(buckets, MIN_BUCKETS, 0, CDS_LFHT_AUTO_RESIZE | CDS_LFHT_ACCOUNTING,
			     NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!t->ht) {
		free(t);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

void cfs_table_destroy(struct cfs_table *t)
{
	int r;

	if (!t)
		return;
	/* After the destruction the caller may free data that the free functions use. */
	urcu_bp_barrier();
	r = cds_lfht_destroy(t->ht, NULL);
	if (r)
		cfs_err("table destroyed while not empty, memory is lost: entries=%zu",
			cfs_table_count(t));
	free(t);
}

struct cfs_node *cfs_table_find(struct cfs_table *t, uint64_t key)
{
	struct cds_lfht_node *found;
	struct cds_lfht_iter iter;

	cds_lfht_lookup(t->ht, hash_key(key), match, &key, &iter);
	found = cds_lfht_iter_get_node(&iter);
	return found ? caa_container_of(found, struct cfs_node, lfht) : NULL;
}

struct cfs_node *cfs_table_add(struct cfs_table *t, struct cfs_node *node)
{
	struct cds_lfht_node *in_table;

	cds_lfht_node_init(&node->lfht);
	CFS_TSAN_RELEASE(&node->lfht);
	cfs_table_read_lock();
	in_table = cds_lfht_add_unique(t->ht, hash_key(node->key), match, &node->key, &node->lfht);
	cfs_table_read_unlock();
	if (in_table == &node->lfht)
		atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
	return caa_container_of(in_table, struct cfs_node, lfht);
}

bool cfs_table_remove(struct cfs_table *t, struct cfs_node *node)
{
	int r;

	cfs_table_read_lock();
	r = cds_lfht_del(t->ht, &node->lfht);
	cfs_table_read_unlock();
	if (r == 0)
		atomic_fetch_sub_explicit(&t->count, 1, memory_order_relaxed);
	return r == 0;
}

static void call_free_fn(struct rcu_head *head)
{
	struct cfs_node *node = caa_container_of(head, struct cfs_node, rcu);

	CFS_TSAN_ACQUIRE(head);
	CFS_TSAN_ACQUIRE(&cfs_table_readers);
	node->free_fn(node);
}

void cfs_table_free_rcu(struct cfs_node *node, void (*free_fn)(struct cfs_node *node))
{
	node->free_fn = free_fn;
	CFS_TSAN_RELEASE(&node->rcu);
	urcu_bp_call_rcu(&node->rcu, call_free_fn);
}

size_t cfs_table_count(struct cfs_table *t)
{
	return atomic_load_explicit(&t->count, memory_order_relaxed);
}

void cfs_table_each(struct cfs_table *t, void (*fn)(struct cfs_node *node, void *arg), void *arg)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *found;

	cfs_table_read_lock();
	cds_lfht_first(t->ht, &iter);
	while ((found = cds_lfht_iter_get_node(&iter)) != NULL) {
		CFS_TSAN_ACQUIRE(found);
		cds_lfht_next(t->ht, &iter);
		fn(caa_container_of(found, struct cfs_node, lfht), arg);
	}
	cfs_table_read_unlock();
}
