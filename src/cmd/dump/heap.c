/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/heap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/sets/sorter.h"
#include "cmd/sets/tempfile.h"

enum {
	PAGE = 128, /* items of the index per read */
	PAGES = 64, /* of them are kept */
	WRITE_ROOM = 256 << 10,
	SORT_MEMORY = 8 << 20,
};

struct heap_item {
	uint64_t key;
	uint64_t off;
	uint32_t sub, len;
};

struct page {
	uint64_t number; /* + 1; 0: none */
	size_t n;
	struct heap_item items[PAGE];
};

struct heap {
	FILE *data;
	int index_fd;
	uint64_t size; /* of the data */
	struct sorter *sorter;
	uint64_t n;
	uint64_t *firsts; /* key of each page's first item */
	size_t n_pages, cap;
	struct page *pages;
	uint8_t *record;
	size_t record_cap;
	char room[WRITE_ROOM]; /* of data */
};

static int compare(const void *a, const void *b)
{
	const struct heap_item *x = a, *y = b;

	return CFS_COMPARE(x->key, y->key)
		?: CFS_COMPARE(x->sub, y->sub)
		?: CFS_COMPARE(x->off, y->off);
}

int heap_create(struct heap **ret)
{
	struct heap *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->index_fd = -1;
	r = sorter_create(sizeof(struct heap_item), compare, SORT_MEMORY, &h->sorter);
	if (!r) {
		h->index_fd = temp_open();
		r = h->index_fd < 0 ? h->index_fd : temp_stream(&h->data);
	}
	if (!r)
		setvbuf(h->data, h->room, _IOFBF, WRITE_ROOM);
	if (r) {
		heap_destroy(h);
		return r;
	}
	*ret = h;
	return 0;
}

int heap_add(struct heap *h, uint64_t key, uint32_t sub, const void *data, size_t len)
{
	struct heap_item item = {.key = key, .off = h->size, .sub = sub, .len = (uint32_t)len};

	if (fwrite(data, 1, len, h->data) != len)
		return temp_error(-errno);
	h->size += len;
	return sorter_add(h->sorter, &item);
}

static int add_page(struct heap *h, const struct page *page)
{
	uint64_t off = (uint64_t)h->n_pages * PAGE * sizeof(struct heap_item);

	if (CFS_ARRAY_ROOM(h->firsts, h->n_pages, h->cap) < 0)
		return -ENOMEM;
	h->firsts[h->n_pages++] = page->items[0].key;
	h->n += page->n;
	return temp_write(h->index_fd, page->items, page->n * sizeof(page->items[0]), off);
}

int heap_seal(struct heap *h)
{
	struct page page = {0};
	int r = fflush(h->data) ? temp_error(-errno) : 0;

	if (!r)
		r = sorter_sort(h->sorter);
	while (!r && (r = sorter_next(h->sorter, &page.items[page.n])) > 0) {
		r = 0;
		if (++page.n == PAGE) {
			r = add_page(h, &page);
			page.n = 0;
		}
	}
	if (!r && page.n)
		r = add_page(h, &page);
	sorter_destroy(h->sorter);
	h->sorter = NULL;
	if (!r) {
		h->pages = calloc(PAGES, sizeof(*h->pages));
		r = h->pages ? 0 : -ENOMEM;
	}
	return r;
}

static int load_page(struct heap *h, uint64_t number, struct page **ret)
{
	struct page *p = &h->pages[number % PAGES];
	int r;

	*ret = p;
	if (p->number == number + 1)
		return 0;
	p->number = 0;
	p->n = (size_t)CFS_MIN((uint64_t)PAGE, h->n - number * PAGE);
	r = temp_read(h->index_fd, p->items, p->n * sizeof(p->items[0]),
		      number * PAGE * sizeof(p->items[0]));
	if (!r)
		p->number = number + 1;
	return r;
}

int64_t heap_find(struct heap *h, uint64_t key)
{
	size_t low = 0, high = h->n_pages;
	struct page *page;
	size_t i = 0;
	int r;

	while (low < high) { /* the first page that begins at or after the key */
		size_t mid = low + (high - low) / 2;

		if (h->firsts[mid] < key)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == 0)
		return 0;
	/* The page before may end with it. */
	r = load_page(h, low - 1, &page);
	if (r)
		return r;
	while (i < page->n && page->items[i].key < key)
		i++;
	return (int64_t)((low - 1) * PAGE + i);
}

int heap_get(struct heap *h, uint64_t at, uint64_t key, const uint8_t **ret, size_t *ret_len)
{
	const struct heap_item *item;
	struct page *page;
	int r;

	if (at >= h->n)
		return 0;
	r = load_page(h, at / PAGE, &page);
	if (r)
		return r;
	item = &page->items[at % PAGE];
	if (item->key != key)
		return 0;
	if (CFS_ARRAY_RESERVE(h->record, item->len, h->record_cap) < 0)
		return -ENOMEM;
	r = temp_read(fileno(h->data), h->record, item->len, item->off);
	*ret = h->record;
	*ret_len = item->len;
	return r ? r : 1;
}

void heap_destroy(struct heap *h)
{
	if (!h)
		return;
	sorter_destroy(h->sorter);
	if (h->data)
		fclose(h->data);
	if (h->index_fd >= 0)
		close(h->index_fd);
	free(h->firsts);
	free(h->pages);
	free(h->record);
	free(h);
}
