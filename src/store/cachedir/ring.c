/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of directories, and the directory of a block by consistent hashing: 100 points per directory,
 * made of its .lock id, on a ring; a block belongs to the next point. A failed directory is skipped,
 * so only its share moves to the others.
 */
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cachedir.h"

#define REPLICAS   100
#define DIRS_MAX   256
#define GLOB_CHARS "*?["
/* The tree is not part of the key. */
#define KEY_SKIPPED sizeof(CFS_CACHEDIR_CACHED)

struct ring_point {
	uint32_t hash;
	unsigned dir;
};

struct ring {
	struct ring *replaced; /* freed at the end: readers may still use it */
	unsigned n;
	struct ring_point points[];
};

static uint32_t rotl(uint32_t v, unsigned n)
{
	return v << n | v >> (32 - n);
}

static uint32_t scramble(uint32_t k)
{
	return rotl(k * 0xCC9E2D51u, 15) * 0x1B873593u;
}

/* MurmurHash3_x86_32 (Austin Appleby, public domain) with seed 0. */
uint32_t cfs_cachedir_murmur3(const void *data, size_t len)
{
	const uint8_t *p = data;
	uint32_t h = 0, k;
	size_t i, tail = len - len % 4;

	for (i = 0; i < tail; i += 4) {
		memcpy(&k, p + i, 4);
		h = rotl(h ^ scramble(le32toh(k)), 13) * 5 + 0xE6546B64u;
	}
	for (k = 0, i = len; i > tail; i--)
		k = k << 8 | p[i - 1];
	h ^= scramble(k) ^ (uint32_t)len;
	h = (h ^ h >> 16) * 0x85EBCA6Bu;
	h = (h ^ h >> 13) * 0xC2B2AE35u;
	return h ^ h >> 16;
}

static int by_hash(const void *a, const void *b)
{
	const struct ring_point *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->dir > y->dir ? -1 : 1; /* the last one added wins, as in JuiceFS */
}

int cfs_cachedirs_add(struct cache_dirs *set, const struct cache_dir *dir)
{
	unsigned i, n;
	struct ring *old, *ring;
	char text[96];
	int len;
	CFS_LOCK_GUARD(&set->ring_lock);

	old = atomic_load(&set->ring);
	n = old ? old->n : 0;
	ring = malloc(sizeof(*ring) + (n + REPLICAS) * sizeof(ring->points[0]));
	if (!ring)
		return -ENOMEM;
	ring->replaced = old;
	ring->n = n + REPLICAS;
	if (old)
		memcpy(ring->points, old->points, n * sizeof(ring->points[0]));
	for (i = 0; i < REPLICAS; i++) {
		len = snprintf(text, sizeof(text), "%u%s", i, dir->id);
		ring->points[n + i] = (struct ring_point){
			.hash = cfs_cachedir_murmur3(text, (size_t)len),
			.dir = dir->number,
		};
	}
	qsort(ring->points, ring->n, sizeof(ring->points[0]), by_hash);
	atomic_store(&set->ring, ring);
	return 0;
}

static bool is_usable(const struct cache_dir *dir)
{
	return atomic_load_explicit(&dir->state, memory_order_relaxed) != DIR_FAILED;
}

struct cache_dir *cfs_cachedirs_find(struct cache_dirs *set, const struct cfs_block *b)
{
	const struct ring *ring = atomic_load(&set->ring);
	unsigned low = 0, high, mid, i;
	char path[CFS_CACHEDIR_PATH_MAX];
	uint32_t hash;

	if (set->n == 1)
		return is_usable(&set->v[0]) ? &set->v[0] : NULL;
	if (!ring)
		return NULL;
	cfs_cachedir_path(set, CFS_CACHEDIR_CACHED, b, path);
	hash = cfs_cachedir_murmur3(path + KEY_SKIPPED, strlen(path) - KEY_SKIPPED);
	for (high = ring->n; low < high;) {
		mid = low + (high - low) / 2;
		if (ring->points[mid].hash < hash)
			low = mid + 1;
		else
			high = mid;
	}
	for (i = 0; i < ring->n; i++) {
		struct cache_dir *dir = &set->v[ring->points[(low + i) % ring->n].dir];

		if (is_usable(dir))
			return dir;
	}
	return NULL;
}

static int add_path(char ***v, unsigned *n, const char *path, const char *suffix)
{
	cfs_auto_free char *copy = NULL;
	char **more;
	unsigned i;
	size_t len;

	if (*n == DIRS_MAX)
		return -E2BIG;
	if (asprintf(&copy, "%s%s", path, suffix) < 0) {
		copy = NULL;
		return -ENOMEM;
	}
	for (len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--)
		copy[len - 1] = '\0';
	for (i = 0; i < *n; i++)
		if (!strcmp((*v)[i], copy))
			return 0;
	more = reallocarray(*v, *n + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	*v = more;
	more[(*n)++] = copy;
	copy = NULL;
	return 0;
}

/*
 * The last component with a wildcard, and all above it, must exist; what follows it need not. The
 * text is modified.
 */
static int expand(char *text, char ***v, unsigned *n)
{
	size_t plain = strcspn(text, GLOB_CHARS);
	char *suffix = text + plain, *p;
	char saved;
	glob_t g;
	size_t i;
	int r;

	if (!text[plain])
		return add_path(v, n, text, "");
	while ((p = strpbrk(suffix, GLOB_CHARS)) != NULL)
		suffix = p + strcspn(p, "/");
	saved = *suffix;
	*suffix = '\0';
	r = glob(text, GLOB_ONLYDIR, NULL, &g);
	*suffix = saved;
	if (r == GLOB_NOMATCH)
		return 0;
	if (r != 0)
		return r == GLOB_NOSPACE ? -ENOMEM : -EIO;
	for (i = 0; i < g.gl_pathc && r == 0; i++)
		r = add_path(v, n, g.gl_pathv[i], suffix);
	globfree(&g);
	return r;
}

/* malloc'ed array of malloc'ed paths. Returns how many, or a negative errno. */
static int expand_list(const char *list, char ***ret)
{
	char *copy = strdup(list), *save = NULL, *p, **v = NULL;
	unsigned n = 0;
	int r = copy ? 0 : -ENOMEM;

	for (p = copy ? strtok_r(copy, ":", &save) : NULL; p && r == 0;
	     p = strtok_r(NULL, ":", &save))
		r = p[0] == '/' ? expand(p, &v, &n) : -EINVAL;
	if (r == 0 && n == 0)
		r = -ENOENT;
	free(copy);
	if (r < 0) {
		while (n > 0)
			free(v[--n]);
		free(v);
		return r;
	}
	*ret = v;
	return (int)n;
}

/* ---- life ---- */

/* Takes over the paths. */
static int add_dirs(struct cache_dirs *set, char **paths, unsigned n)
{
	unsigned i;
	int r = 0;

	set->v = calloc(n, sizeof(*set->v));
	for (i = 0; i < n; i++) {
		if (set->v && r == 0) {
			set->n = i + 1;
			r = cfs_cachedir_init(&set->v[i], set, paths[i]);
		} else {
			free(paths[i]);
		}
	}
	free(paths);
	return set->v ? r : -ENOMEM;
}

int cfs_cachedirs_init(struct cache_dirs *set, const struct cache_dirs_conf *conf)
{
	char **paths;
	int n;

	pthread_mutex_init(&set->ring_lock, NULL);
	set->conf = *conf;
	set->conf.dirs = set->conf.uuid = NULL;
	set->dir_mode = conf->mode | (conf->mode & 0444) >> 2;
	n = expand_list(conf->dirs, &paths);
	if (n < 0)
		return n;
	set->uuid = strdup(conf->uuid);
	n = add_dirs(set, paths, (unsigned)n);
	return set->uuid ? n : -ENOMEM;
}

void cfs_cachedirs_fini(struct cache_dirs *set)
{
	struct ring *ring, *next;
	unsigned i;

	for (i = 0; i < set->n; i++)
		cfs_cachedir_fini(&set->v[i]);
	for (ring = atomic_load(&set->ring); ring; ring = next) {
		next = ring->replaced;
		free(ring);
	}
	free(set->v);
	free(set->uuid);
	pthread_mutex_destroy(&set->ring_lock);
}
