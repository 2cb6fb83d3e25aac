/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail an open file or a cached attribute is lost, doubled or read after it was freed.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/table.h"

struct item {
	struct cfs_node node;
	uint64_t check; /* ~key while the item lives */
};

static _Atomic int freed;

static struct item *new_item(uint64_t key)
{
	struct item *it = calloc(1, sizeof(*it));

	assert_non_null(it);
	it->node.key = key;
	it->check = ~key;
	return it;
}

static void free_item(struct cfs_node *node)
{
	struct item *it = (struct item *)node;

	it->check = 0;
	freed++;
	free(it);
}

static void drop(struct cfs_node *node, void *arg)
{
	if (cfs_table_remove(arg, node))
		cfs_table_free_rcu(node, free_item);
}

static void add_find_remove(void **state)
{
	struct item *a = new_item(1), *twin = new_item(1);
	struct cfs_table *t;

	assert_int_equal(cfs_table_create(0, &t), 0);
	assert_ptr_equal(cfs_table_add(t, &a->node), &a->node);
	cfs_table_read_lock();
	assert_ptr_equal(cfs_table_add(t, &twin->node), &a->node);
	assert_ptr_equal(cfs_table_find(t, 1), &a->node);
	assert_null(cfs_table_find(t, 2));
	cfs_table_read_unlock();
	assert_int_equal(cfs_table_count(t), 1);
	assert_true(cfs_table_remove(t, &a->node));
	assert_false(cfs_table_remove(t, &a->node));
	cfs_table_read_lock();
	assert_null(cfs_table_find(t, 1));
	cfs_table_read_unlock();
	assert_int_equal(cfs_table_count(t), 0);
	cfs_table_free_rcu(&a->node, free_item);
	free(twin);
	freed = 0;
	cfs_table_destroy(t);
}

static void many_then_each_removes(void **state)
{
	struct cfs_table *t;
	struct cfs_node *n;
	uint64_t i;

	freed = 0;
	assert_int_equal(cfs_table_create(16, &t), 0);
	for (i = 0; i < 20000; i++)
		cfs_table_add(t, &new_item(i)->node);
	assert_int_equal(cfs_table_count(t), 20000);
	cfs_table_read_lock();
	for (i = 0; i < 20000; i++) {
		n = cfs_table_find(t, i);
		assert_non_null(n);
		assert_int_equal(n->key, i);
	}
	cfs_table_read_unlock();
	cfs_table_each(t, drop, t);
	assert_int_equal(cfs_table_count(t), 0);
	/* destroy waits for the free functions */
	cfs_table_destroy(t);
	assert_int_equal(freed, 20000);
}

#define KEYS   64
#define ROUNDS 3000

static void *churn(void *arg)
{
	struct cfs_table *t = arg;
	struct cfs_node *n;
	struct item *it;
	uint64_t i;

	for (i = 0; i < ROUNDS; i++) {
		it = new_item((i * 7) % KEYS);
		if (cfs_table_add(t, &it->node) != &it->node)
			free(it);
		cfs_table_read_lock();
		n = cfs_table_find(t, (i * 5) % KEYS);
		if (n) {
			assert_int_equal(((struct item *)n)->check, ~n->key);
			drop(n, t);
			assert_int_equal(((struct item *)n)->check, ~n->key);
		}
		cfs_table_read_unlock();
	}
	return NULL;
}

static void threads(void **state)
{
	struct cfs_table *t;
	pthread_t id[4];
	int i;

	assert_int_equal(cfs_table_create(0, &t), 0);
	for (i = 0; i < 4; i++)
		pthread_create(&id[i], NULL, churn, t);
	for (i = 0; i < 4; i++)
		pthread_join(id[i], NULL);
	assert_true(cfs_table_count(t) <= KEYS);
	cfs_table_each(t, drop, t);
	assert_int_equal(cfs_table_count(t), 0);
	cfs_table_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(add_find_remove),
		cmocka_unit_test(many_then_each_removes),
		cmocka_unit_test(threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
