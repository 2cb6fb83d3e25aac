/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/admin.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/workers.h"
#include "cmd/access/cmd.h"
#include "cmd/access/replication.h"
#include "cmd/access/volume.h"
#include "cmd/access/waits.h"

#define POOL_BUDGET  (256ULL << 20) /* mapped when needed */
#define REMOVE_QUEUE 64
#define BATCH	     100

static int open_store(struct admin *a)
{
	struct cfs_store_conf store = {
		.object = a->objects,
		.volume = a->setting->name,
		.block_size = a->block_size,
		.hash_prefix = a->setting->hash_prefix,
		.get_timeout_ms = ADMIN_OBJECT_MS,
		.put_timeout_ms = ADMIN_OBJECT_MS,
	};
	struct cfs_data_conf data = {
		.meta = a->meta,
		.block_size = a->block_size,
		.flush_age_ms = 5000,
		.flush_idle_ms = 1000,
		.io_timeout_ms = ADMIN_OBJECT_MS,
	};
	int r = cfs_pool_create(POOL_BUDGET, &a->pool);

	if (r == 0) {
		store.pool = data.pool = a->pool;
		r = cfs_store_create(&store, &a->store);
	}
	if (r == 0 && (a->needs & ADMIN_DATA)) {
		data.store = a->store;
		r = cfs_data_create(&data, &a->data);
	}
	return r;
}

/* A wrong object store makes every check wrong: foreign objects look leaked, blocks look lost. */
static int open_objects(struct admin *a, const struct admin_opts *o, char err[256])
{
	int r = volume_open_objects(a->setting, o->storage, o->bucket, &a->objects, err);

	if (r == 0)
		r = volume_check_id(a->setting, a->objects, cfs_deadline_in(ADMIN_OBJECT_MS), err);
	if (r == 0) {
		snprintf(err, 256,
			 "%s/" VOLUME_ID_NAME " is not in %s %s: are the objects there?%s",
			 a->setting->name, o->storage ? o->storage : a->setting->storage,
			 o->bucket ? o->bucket : a->setting->bucket,
			 a->needs & ADMIN_ID ? " (--force does it)" : "");
		if (a->needs & ADMIN_ID)
			return -ENOENT;
		cmd_error("note: %s", err);
		err[0] = '\0';
	}
	return r < 0 ? r : open_store(a);
}

static int sync_objects(void *arg)
{
	struct admin *a = arg;

	return a->store ? cfs_store_sync(a->store, cfs_deadline_in(ADMIN_OBJECT_MS)) : 0;
}

/* ---- the replica of the metadata ---- */

/* The end of a command waits so long for the bucket; the next mount stores what is left. */
#define REPLICA_STOP_MS 30000

static int await_replica(void *arg, bool hurry, cfs_deadline_t deadline)
{
	int r = cfs_replica_wait(arg, hurry, deadline);

	if (r == -ETIMEDOUT)
		cmd_error("the replica of the metadata in the bucket lacks changes and cannot be "
			  "brought up to date");
	return r;
}

static void fenced(void *arg, const char *why)
{
	struct admin *a = arg;

	cfs_meta_refuse_changes(a->meta);
	cmd_error("the replica of the metadata belongs to another database: %s", why);
}

static void taken(void *arg)
{
	struct admin *a = arg;

	replication_note_taken(a->meta, a->setting->name);
}

static int start_replica(struct admin *a, const char *url, const struct admin_opts *o,
			 char err[256])
{
	const struct volume_objects own = {
		.storage = o->storage,
		.bucket = o->bucket,
		.upload_limit_mbps = -1,
		.download_limit_mbps = -1,
		.max_connections = 4,
		.small_buffers = true,
	};
	cfs_auto_free char *path = replication_path(url);
	struct replication how = {.mode = REPLICATION_OFF};
	struct cfs_replica_conf conf;
	int r = path ? replication_read(a->meta, &how) : 0;

	if (r < 0 || how.mode == REPLICATION_OFF)
		return r;
	r = volume_open_objects_with(a->setting, &own, &a->replica_objects, err);
	if (r < 0)
		return r;
	conf = (struct cfs_replica_conf){
		.objects = a->replica_objects,
		.volume = a->setting->name,
		.path = path,
		.keep_s = how.keep_s,
		.conditional = how.conditional,
		.take_over = how.take_over,
		.from = how.from,
		.taken = taken,
		.fenced = fenced,
		.arg = a,
	};
	r = cfs_replica_start(&conf, &a->replica, err);
	if (r == 0)
		cfs_meta_copy_to(a->meta, await_replica, a->replica, false);
	return r;
}

int admin_open(const char *url, const struct admin_opts *o, unsigned needs, struct admin *ret)
{
	struct cfs_meta_conf conf = {
		.read_only = !(needs & ADMIN_WRITE),
		.no_bgjob = true,
		.timeout_ms = ADMIN_STEP_MS,
	};
	const struct cfs_meta_hooks hooks = {.arg = ret, .sync_objects = sync_objects};
	char err[256] = "";
	int r;

	*ret = (struct admin){.needs = needs};
	ret->waits = waits_begin();
	r = volume_use_credentials(o->credentials);
	if (r != CMD_OK)
		return r;
	r = volume_open(url, &conf, &ret->meta, &ret->setting, err);
	if (r == 0) {
		ret->block_size = ret->setting->block_size_kib << 10;
		if (needs & ADMIN_WRITE)
			r = cfs_meta_admin_begin(ret->meta, &hooks);
	}
	if (r == 0 && (needs & ADMIN_OBJECTS))
		r = open_objects(ret, o, err);
	if (r == 0 && (needs & ADMIN_REMOVE))
		r = start_replica(ret, url, o, err);
	if (r == 0)
		return CMD_OK;
	return cmd_error("%s", err[0] ? err : strerror(-r));
}

int admin_close(struct admin *a, int status)
{
	int r = 0;

	if (a->data)
		cfs_data_destroy(a->data);
	if (a->store)
		cfs_store_destroy(a->store);
	if (a->meta && a->setting && (a->needs & ADMIN_WRITE))
		r = cfs_meta_admin_end(a->meta);
	cfs_lease_drop(a->repair);
	cfs_replica_stop(a->replica, cfs_deadline_in(REPLICA_STOP_MS));
	cfs_object_close(a->replica_objects);
	if (a->meta)
		cfs_meta_close(a->meta);
	cfs_object_close(a->objects);
	if (a->pool)
		cfs_pool_destroy(a->pool);
	cfs_setting_free(a->setting);
	waits_end(a->waits);
	if (r < 0)
		cmd_error("usage counters could not be written, run fsck: %s", strerror(-r));
	return r < 0 ? CMD_SYSTEM : status;
}

/* ---- repairs ---- */

int admin_begin_repair(struct admin *a, const char *command)
{
	char host[64] = "", holder[128], busy[256];
	int r;

	if (a->repair)
		return 0;
	gethostname(host, sizeof(host) - 1);
	snprintf(holder, sizeof(holder), "`%.40s`, host %s, process %d", command, host,
		 (int)getpid());
	r = cfs_meta_take_lease(a->meta, "lease/repair", holder, &a->repair, busy);
	if (r == -EBUSY)
		cmd_error("the volume is being repaired by %s: nothing is done here", busy);
	else if (r < 0)
		cmd_error("the lease of repairs cannot be taken, nothing is done: %s",
			  strerror(-r));
	return r;
}

int admin_may_repair(struct admin *a)
{
	int r = a->repair ? cfs_lease_check(a->repair) : -EPERM;

	if (r == -ESTALE)
		cmd_error("the lease of this repair expired and another command has taken it: "
			  "nothing more is repaired here");
	return r;
}

/* ---- sessions ---- */

static int note_session(void *arg, const struct cfs_session *s)
{
	*(bool *)arg = true;
	return 0;
}

int admin_is_mounted(struct admin *a, bool *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

	*ret = false;
	return cfs_meta_each_session(a->meta, &ctx, note_session, ret);
}

void admin_tell_uncounted(struct admin *a, const char *command)
{
	bool mounted;

	if (admin_is_mounted(a, &mounted) == 0 && mounted)
		fprintf(stderr,
			"Mounts notice within a heartbeat. Changes of files until then are not "
			"counted; run `%s`.\n",
			command);
}

/* ---- names ---- */

int admin_lookup(struct admin *a, const char *path, struct cfs_entry *ret)
{
	return volume_lookup(a->meta, ADMIN_STEP_MS, path, ret);
}

static int keep_first(void *arg, const char *path)
{
	char **ret = arg;

	*ret = strdup(path);
	return 1;
}

char *admin_path(struct admin *a, cfs_ino_t ino)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	char *path = NULL;

	cfs_meta_each_path(a->meta, &ctx, ino, keep_first, &path);
	if (!path && asprintf(&path, "inode %llu", (unsigned long long)ino) < 0)
		return NULL;
	return path;
}

json_t *admin_text(const char *bytes, size_t len)
{
	json_t *text = memchr(bytes, '%', len) ? NULL : json_stringn(bytes, len);
	char *escaped, *out;
	size_t i;

	if (text)
		return text;
	out = escaped = malloc(3 * len + 1);
	if (!escaped)
		return NULL;
	for (i = 0; i < len; i++) {
		unsigned char c = (unsigned char)bytes[i];

		if (c >= 0x80 || c == '%')
			out += snprintf(out, 4, "%%%02X", c);
		else
			*out++ = (char)c;
	}
	text = json_stringn(escaped, (size_t)(out - escaped));
	free(escaped);
	return text;
}

void admin_print_json(json_t *j)
{
	json_dumpf(j, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(j);
}

/* ---- removing objects ---- */

/* Keys of one request. A store without batch removal gets one key, so that all threads work. */
struct batch {
	struct cfs_job job;
	struct remover *r;
	uint64_t bytes;
	size_t n;
	char *keys[BATCH];
};

struct remover {
	struct cfs_object_store *objects;
	struct cfs_workers *workers;
	size_t batch_size;
	struct batch *next; /* being filled */
	_Atomic uint64_t objects_gone, bytes_gone, failed;
	_Atomic int err;
};

int remover_create(struct admin *a, unsigned threads, struct remover **ret)
{
	struct remover *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	r->objects = a->objects;
	r->batch_size = a->objects->ops->del_many ? BATCH : 1;
	rc = cfs_workers_create("remove", threads ? threads : 1, REMOVE_QUEUE, &r->workers);
	if (rc < 0) {
		free(r);
		return rc;
	}
	*ret = r;
	return 0;
}

static void free_batch(struct batch *b)
{
	while (b->n)
		free(b->keys[--b->n]);
	free(b);
}

static void note_failure(struct batch *b, int err)
{
	int none = 0;

	atomic_fetch_add(&b->r->failed, b->n);
	atomic_compare_exchange_strong(&b->r->err, &none, err);
}

static void remove_batch(struct cfs_job *job)
{
	struct batch *b = (struct batch *)job;
	int r = cfs_object_del_many(b->r->objects, (const char *const *)b->keys, b->n,
				    cfs_deadline_in(ADMIN_OBJECT_MS));

	if (r < 0) {
		cfs_warn("objects could not be removed, they stay: first=%s count=%zu error=%s",
			 b->keys[0], b->n, cfs_errname(r));
		note_failure(b, r);
	} else {
		atomic_fetch_add(&b->r->objects_gone, b->n);
		atomic_fetch_add(&b->r->bytes_gone, b->bytes);
	}
	free_batch(b);
}

static int submit(struct remover *r)
{
	struct batch *b = r->next;
	int rc;

	r->next = NULL;
	/* A worker takes the next batch within the deadline of one request. */
	rc = cfs_workers_submit(r->workers, &b->job, cfs_deadline_in(2 * ADMIN_OBJECT_MS));
	if (rc < 0) {
		note_failure(b, rc);
		free_batch(b);
	}
	return rc;
}

int remover_add(struct remover *r, const char *key, uint64_t size)
{
	char *copy = strdup(key);

	if (copy && !r->next)
		r->next = calloc(1, sizeof(*r->next));
	if (!copy || !r->next) {
		free(copy);
		return -ENOMEM;
	}
	r->next->job.run = remove_batch;
	r->next->r = r;
	r->next->keys[r->next->n++] = copy;
	r->next->bytes += size;
	return r->next->n == r->batch_size ? submit(r) : 0;
}

struct removed remover_finish(struct remover *r)
{
	struct removed done;

	if (r->next)
		submit(r);
	cfs_workers_destroy(r->workers);
	done = (struct removed){
		.objects = atomic_load(&r->objects_gone),
		.bytes = atomic_load(&r->bytes_gone),
		.failed = atomic_load(&r->failed),
		.err = atomic_load(&r->err),
	};
	free(r);
	return done;
}
