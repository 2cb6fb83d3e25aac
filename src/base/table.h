/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A concurrent hash table keyed by u64, on liburcu's lock-free rculfhash (flavour: urcu-bp, whose
 * readers register themselves).
 *
 * Look-ups run inside cfs_table_read_lock()/unlock(); a node found there stays valid memory until
 * the unlock. A removed node must be freed through cfs_table_free_rcu(). Tables have threads behind
 * them that a fork() does not copy: create them after the last one.
 */
#ifndef CFS_TABLE_H
#define CFS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <urcu-bp.h>
#include <urcu/rculfhash.h>

#include "tsan.h"

struct cfs_table;

struct cfs_node {
	struct cds_lfht_node lfht;
	struct rcu_head rcu;
	void (*free_fn)(struct cfs_node *node); /* the table's, after cfs_table_free_rcu() */
	uint64_t key;
};

int cfs_table_create(size_t initial_buckets, struct cfs_table **ret);
/* Must be empty. Waits until all free functions have run: not under the read lock. */
void cfs_table_destroy(struct cfs_table *t);

extern char cfs_table_readers; /* names all readers to ThreadSanitizer, nothing else */

static inline void cfs_table_read_lock(void)
{
	urcu_bp_read_lock();
}

static inline void cfs_table_read_unlock(void)
{
	CFS_TSAN_RELEASE(&cfs_table_readers);
	urcu_bp_read_unlock();
}

/* Under the read lock. NULL when absent. */
struct cfs_node *cfs_table_find(struct cfs_table *t, uint64_t key);
/* Adds unless the key is present; returns the node that is in the table afterwards. */
struct cfs_node *cfs_table_add(struct cfs_table *t, struct cfs_node *node);
/* False when another thread has removed it already. */
bool cfs_table_remove(struct cfs_table *t, struct cfs_node *node);
/* Calls free_fn(node) after all current readers have left. */
void cfs_table_free_rcu(struct cfs_node *node, void (*free_fn)(struct cfs_node *node));
size_t cfs_table_count(struct cfs_table *t);
/* Calls fn for every node, in no order, under the read lock; fn may remove its node. */
void cfs_table_each(struct cfs_table *t, void (*fn)(struct cfs_node *node, void *arg), void *arg);

#endif
