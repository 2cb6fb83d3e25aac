/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a compressed or encrypted volume cannot be read by this client, or what this
 * client writes cannot be read by the other one.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <cachefs/object.h>

#include "base/bytes.h"
#include "filter_golden.h"
#include "unit/skip.h"
#include "unit/wait.h"

#define PASSPHRASE "JFS_RSA_PASSPHRASE"
#define GOLDEN_KEY "v/chunks/0/0/1_0_11"
#define OVERHEAD   (3 + 256 + 12 + 16) /* of encryption with RSA-2048 */

/* The same bucket with filters and without. */
static struct cfs_object_store *cooked, *raw;

static const struct variant {
	const char *name, *compression, *algo, *key;
	const uint8_t *golden;
	size_t golden_len;
} variants[] = {
	{"lz4", "lz4", NULL, NULL, golden_lz4, sizeof(golden_lz4)},
	{"zstd", "zstd", NULL, NULL, golden_zstd, sizeof(golden_zstd)},
	{"enc", "none", "aes256gcm-rsa", key_pkcs1, golden_enc, sizeof(golden_enc)},
	{"encchacha", "lz4", "chacha20-rsa", key_pkcs8, golden_encchacha, sizeof(golden_encchacha)},
	{"zstd+enc", "zstd", NULL, key_pkcs8, NULL, 0},
};

/* Skips what is not built in. */
static void open_both(const struct variant *v, const char *storage, const char *bucket)
{
	struct cfs_object_conf conf = {.storage = storage, .bucket = bucket};
	char err[256];
	int r;

	assert_int_equal(cfs_object_open(&conf, &raw, err), 0);
	conf.compression = v->compression;
	conf.encrypt_algo = v->algo;
	conf.encrypt_key = v->key;
	r = cfs_object_open(&conf, &cooked, err);
	if (r == -EOPNOTSUPP) {
		cfs_object_close(raw);
		skip_missing(v->name);
	}
	assert_int_equal(r, 0);
	assert_true(cooked->ops->whole);
}

static void close_both(void)
{
	cfs_object_close(cooked);
	cfs_object_close(raw);
}

static void put(struct cfs_object_store *o, const char *key, const void *data, size_t len)
{
	struct iovec iov = {(void *)data, len};

	assert_int_equal(o->ops->put(o, key, &iov, 1, 0, soon()), 0);
}

static ssize_t get(struct cfs_object_store *o, const char *key, uint64_t off, void *buf,
		   size_t size)
{
	struct iovec iov = {buf, size};

	return o->ops->get(o, key, off, &iov, 1, soon());
}

static void other_client_s_objects(void **state)
{
	const struct variant *v = *state;
	char buf[16] = {0};

	open_both(v, "mem", "golden");
	put(raw, GOLDEN_KEY, v->golden, v->golden_len);
	assert_int_equal(get(cooked, GOLDEN_KEY, 0, buf, sizeof(buf)), 11);
	assert_memory_equal(buf, "sgid child\n", 11);
	memset(buf, 0, sizeof(buf));
	assert_int_equal(get(cooked, GOLDEN_KEY, 5, buf, 3), 3);
	assert_memory_equal(buf, "chi", 3);
	close_both();
}

/* Objects of this client have the format's very shape. */
static void objects_of_our_own(void **state)
{
	const struct variant *v = *state;
	uint8_t buf[1024];
	ssize_t n;

	open_both(v, "mem", "own");
	put(cooked, GOLDEN_KEY, "sgid child\n", 11);
	n = get(raw, GOLDEN_KEY, 0, buf, sizeof(buf));
	assert_int_equal(n, v->golden_len);
	if (!v->key)
		assert_memory_equal(buf, v->golden, v->golden_len);
	else
		assert_memory_equal(buf, v->golden, 3);
	close_both();
}

static void fill(uint8_t *data, size_t len, bool random)
{
	uint64_t x = 88172645463325252ULL;
	size_t i;

	for (i = 0; i < len; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		data[i] = random ? (uint8_t)x : (uint8_t)(i / 100);
	}
}

/* Every length around a page and a block, scattered as the block store does it. */
static void round_trips(void **state)
{
	static const size_t lens[] = {1,      2,      15,     16,      17,     4096,
				      131071, 131072, 131073, 4194303, 4194304};
	const struct variant *v = *state;
	uint8_t *data = malloc(4194304), *back = malloc(4194304 + 1);
	struct iovec iov[64];
	size_t i, at, n;
	char key[64];
	int k, random;

	open_both(v, "mem", "trips");
	for (random = 0; random < 2; random++) {
		for (i = 0; i < CFS_ARRAY_SIZE(lens); i++) {
			fill(data, lens[i], random);
			snprintf(key, sizeof(key), "v/chunks/0/0/%d_%zu_%zu", random, i, lens[i]);
			for (at = 0, k = 0; at < lens[i]; at += n, k++) {
				n = CFS_MIN(lens[i] - at, (size_t)131072);
				iov[k] = (struct iovec){data + at, n};
			}
			assert_int_equal(cooked->ops->put(cooked, key, iov, k, 0, soon()), 0);
			memset(back, 0, lens[i]);
			for (at = 0, k = 0; at < lens[i]; at += n, k++) {
				n = CFS_MIN(lens[i] - at, (size_t)131072);
				iov[k] = (struct iovec){back + at, n};
			}
			/* One byte more than there is. */
			iov[k++] = (struct iovec){back + lens[i], 1};
			assert_int_equal(cooked->ops->get(cooked, key, 0, iov, k, soon()), lens[i]);
			assert_memory_equal(data, back, lens[i]);
			/* Parts, at the start and further on. */
			n = lens[i] / 2;
			assert_int_equal(get(cooked, key, 0, back, n), n);
			assert_memory_equal(data, back, n);
			assert_int_equal(get(cooked, key, n, back, lens[i]), lens[i] - n);
			assert_memory_equal(data + n, back, lens[i] - n);
			assert_int_equal(get(cooked, key, lens[i], back, 1), 0);
		}
	}
	close_both();
	free(data);
	free(back);
}

/* A flipped bit, a cut, a foreign length: never bytes, always an error. */
static void damage_is_seen(void **state)
{
	const struct variant *v = *state;
	uint8_t sealed[1024], buf[64];
	size_t len;
	ssize_t n;

	open_both(v, "mem", "damage");
	put(cooked, GOLDEN_KEY, "sgid child\n", 11);
	n = get(raw, GOLDEN_KEY, 0, sealed, sizeof(sealed));
	assert_true(n > 0);
	for (len = 0; len < (size_t)n; len++) {
		put(raw, GOLDEN_KEY, sealed, len);
		assert_true(get(cooked, GOLDEN_KEY, 0, buf, sizeof(buf)) < 0);
	}
	if (v->key) {
		for (len = 0; len < (size_t)n; len++) {
			sealed[len] ^= 0x10;
			put(raw, GOLDEN_KEY, sealed, (size_t)n);
			assert_true(get(cooked, GOLDEN_KEY, 0, buf, sizeof(buf)) < 0);
			sealed[len] ^= 0x10;
		}
	}
	put(raw, "v/chunks/0/0/1_0_12", sealed, (size_t)n);
	if (strcmp(v->name, "enc") != 0)
		assert_true(get(cooked, "v/chunks/0/0/1_0_12", 0, buf, sizeof(buf)) < 0);
	assert_int_equal(get(cooked, "v/chunks/0/0/9_0_12", 0, buf, sizeof(buf)), -ENOENT);
	close_both();
}

/* The volume's id and its backups are encrypted, but never compressed. */
static void what_is_no_block(void **state)
{
	static const char uuid[] = "0123456789012345678901234567890123456";
	const struct variant *v = *state;
	struct cfs_object_info info;
	char buf[64];

	open_both(v, "mem", "others");
	put(cooked, "v/juicefs_uuid", uuid, 36);
	assert_int_equal(get(cooked, "v/juicefs_uuid", 0, buf, sizeof(buf)), 36);
	assert_memory_equal(buf, uuid, 36);
	assert_int_equal(cooked->ops->head(cooked, "v/juicefs_uuid", &info, soon()), 0);
	assert_int_equal(info.size, 36 + (v->key ? OVERHEAD : 0));
	assert_int_equal(cooked->ops->del(cooked, "v/juicefs_uuid", soon()), 0);
	assert_int_equal(cooked->ops->sync(cooked, soon()), 0);
	close_both();
}

static void expect_refused(const char *algo, const char *key, const char *what)
{
	struct cfs_object_conf conf = {
		.storage = "mem", .bucket = "keys", .encrypt_algo = algo, .encrypt_key = key};
	struct cfs_object_store *o;
	char err[256];

	assert_true(cfs_object_open(&conf, &o, err) < 0);
	assert_non_null(strstr(err, what));
}

/* The reason why a volume does not open is said in words. */
static void keys_and_algorithms(void **state)
{
	struct cfs_object_conf conf = {
		.storage = "mem", .bucket = "keys", .encrypt_key = key_pkcs1};
	struct cfs_object_store *o;
	char err[256];

	if (cfs_object_open(&conf, &o, err) == -EOPNOTSUPP)
		skip_missing("encryption");
	cfs_object_close(o);
	expect_refused("sm4gcm", key_pkcs1, "sm4gcm");
	expect_refused(NULL, "nonsense", "PEM");
	setenv(PASSPHRASE, "wrong", 1);
	expect_refused(NULL, key_pkcs1, PASSPHRASE);
	expect_refused(NULL, key_pkcs8, PASSPHRASE);
	unsetenv(PASSPHRASE);
	expect_refused(NULL, key_pkcs1, "set " PASSPHRASE);
	setenv(PASSPHRASE, "fixture-passphrase", 1);
}

/* ---- whole fixture volumes ---- */

static const char *fixtures_home(void)
{
	const char *source = getenv("CFS_SOURCE_ROOT");
	static char path[256];

	if (!source)
		fail_msg("run it with meson test, which sets CFS_SOURCE_ROOT");
	snprintf(path, sizeof(path), "%s/tests/fixtures/juicefs-1.4.1", source);
	return path;
}

static void run(const char *const *argv)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

struct contents {
	struct cfs_object_store *store;
	uint64_t hash[512];
	size_t n;
};

static int note_content(void *arg, const struct cfs_object_info *info)
{
	struct contents *c = arg;
	size_t i, len = (size_t)atoi(strrchr(info->key, '_') + 1);
	uint8_t *data = malloc(len + 1);
	uint64_t h = 14695981039346656037ULL;

	assert_true(c->n < CFS_ARRAY_SIZE(c->hash));
	assert_int_equal(get(c->store, info->key, 0, data, len + 1), len);
	for (i = 0; i < len; i++)
		h = (h ^ data[i]) * 1099511628211ULL;
	c->hash[c->n++] = h;
	free(data);
	return 0;
}

/* The blocks of a fixture volume (v NULL: a plain one); its bucket is unpacked below `root`. */
static struct contents *contents_of(const char *root, const char *name, const struct variant *v)
{
	struct contents *c = calloc(1, sizeof(*c));
	char bucket[256], archive[512], prefix[64];

	snprintf(bucket, sizeof(bucket), "%s/%s", root, name);
	snprintf(archive, sizeof(archive), "%s/%s/objects.tar.gz", fixtures_home(), name);
	snprintf(prefix, sizeof(prefix), "fix-%s/chunks/", name);
	run((const char *const[]){"mkdir", bucket, NULL});
	run((const char *const[]){"tar", "-C", bucket, "-xzf", archive, NULL});
	/* A plain volume is read past any filter. */
	open_both(v ? v : &variants[0], "file", bucket);
	c->store = v ? cooked : raw;
	assert_int_equal(c->store->ops->list(c->store, prefix, "", note_content, c, soon()), 0);
	close_both();
	assert_true(c->n > 0);
	return c;
}

/* Every block of a filtered volume is one of the plain volume with the same tree. */
static void fixture_volumes(void **state)
{
	const struct variant *v = *state;
	char root[] = "/tmp/cachefs-test-filter-XXXXXX";
	struct contents *plain, *filtered;
	size_t i, j;

	open_both(v, "mem", "probe");
	close_both();
	assert_non_null(mkdtemp(root));
	filtered = contents_of(root, v->name, v);
	plain = contents_of(root, v->key ? "hash" : "sqlite", NULL);
	for (i = 0; i < filtered->n; i++) {
		for (j = 0; j < plain->n && plain->hash[j] != filtered->hash[i]; j++)
			;
		assert_true(j < plain->n);
	}
	free(filtered);
	free(plain);
	run((const char *const[]){"rm", "-rf", root, NULL});
}

/* clang-format off */
#define VARIANT_TEST(i, what, fn) {"variant " #i ": " what, fn, NULL, NULL, (void *)&variants[i]}
#define VARIANT_TESTS(i)                                                                           \
	VARIANT_TEST(i, "round trips", round_trips),                                               \
	VARIANT_TEST(i, "damage is seen", damage_is_seen),                                         \
	VARIANT_TEST(i, "what is no block", what_is_no_block)
/* Those of which there are objects and volumes by JuiceFS. */
#define GOLDEN_TESTS(i)                                                                            \
	VARIANT_TEST(i, "other client's objects", other_client_s_objects),                         \
	VARIANT_TEST(i, "objects of our own", objects_of_our_own),                                 \
	VARIANT_TEST(i, "fixture volumes", fixture_volumes)
/* clang-format on */

int main(void)
{
	const struct CMUnitTest tests[] = {
		VARIANT_TESTS(0), VARIANT_TESTS(1),
		VARIANT_TESTS(2), VARIANT_TESTS(3),
		VARIANT_TESTS(4), GOLDEN_TESTS(0),
		GOLDEN_TESTS(1),  GOLDEN_TESTS(2),
		GOLDEN_TESTS(3),  cmocka_unit_test(keys_and_algorithms),
	};

	setenv(PASSPHRASE, "fixture-passphrase", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
