/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies of a Redis server. The engine connects to a server that gives the replies of the input,
 * whatever is asked, and then closes the connection. Every operation then ends, without touching
 * memory that no reply has, and without success when its result is missing.
 *
 * The first byte of an input says what is done: an operation of the engine (its connection has
 * begun well), the beginning itself, or the beginning by way of Sentinel. The second byte says
 * whether the rest is what the server sends, or describes it: replies of all types, whose lengths
 * are right.
 */
#include <cachefs/meta.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/module.h"
#include "fuzz.h"
#include "meta/engine/engine.h"
#include "rows.h"

/* Of the module, which is linked here. */
extern const struct cfs_module cfs_module;

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
bool __wrap_cfs_backoff(unsigned attempt, unsigned base_ms, unsigned max_ms,
			cfs_deadline_t deadline);

enum { DEPTH_MAX = 4, ELEMENTS_MAX = 16, CONNECTIONS_MAX = 8, CALLS_MAX = 4 };

/* ---- the server ---- */

static struct {
	struct fuzz_in in;
	bool described;
	unsigned begun_well; /* connections that are to begin well */
	unsigned n;
	int fd[CONNECTIONS_MAX];
} server;

static void put_text(FILE *out, const uint8_t *p, size_t len)
{
	fprintf(out, "$%zu\r\n", len);
	fwrite(p, 1, len, out);
	fputs("\r\n", out);
}

static void put_input(FILE *out, size_t len)
{
	len = len < server.in.left ? len : server.in.left;
	put_text(out, server.in.p, len);
	server.in.p += len;
	server.in.left -= len;
}

static void put_error(FILE *out)
{
	static const char *const texts[] = {
		"MOVED 3999 127.0.0.1:6381",
		"MOVED ",
		"MOVED 1",
		"NOSCRIPT No matching script",
		"LOADING x",
		"READONLY x",
		"OOM x",
		"MISCONF x",
		"NOAUTH x",
		"ERR max number of clients",
		"ERR x",
		"BUSY x",
		"",
		"MASTERDOWN x",
	};

	fprintf(out, "-%s\r\n", texts[fuzz_u8(&server.in) % (sizeof(texts) / sizeof(*texts))]);
}

static void put_reply(FILE *out, unsigned depth)
{
	char text[32];
	uint8_t filled[256];
	size_t len;
	unsigned n;

	switch (fuzz_u8(&server.in) % 10) {
	case 1:
		fprintf(out, ":%d\r\n", (int8_t)fuzz_u8(&server.in));
		break;
	case 2:
		fprintf(out, ":%lld\r\n", (long long)fuzz_uint(&server.in, 8));
		break;
	case 3:
		put_input(out, fuzz_u8(&server.in));
		break;
	case 4:
		n = depth < DEPTH_MAX ? fuzz_u8(&server.in) % ELEMENTS_MAX : 0;
		fprintf(out, "*%u\r\n", n);
		while (n--)
			put_reply(out, depth + 1);
		break;
	case 5:
		put_error(out);
		break;
	case 6:
		fputs("+OK\r\n", out);
		break;
	case 7:
		len = (size_t)snprintf(text, sizeof(text), "%lld",
				       (long long)fuzz_uint(&server.in, 2));
		put_text(out, (const uint8_t *)text, len);
		break;
	case 8:
		len = fuzz_u8(&server.in);
		memset(filled, fuzz_u8(&server.in), len);
		put_text(out, filled, len);
		break;
	case 9:
		fputs("*-1\r\n", out);
		break;
	default:
		fputs("$-1\r\n", out);
	}
}

/* The replies up to the byte 255, or all that is left. */
static void put_replies(FILE *out)
{
	if (!server.described) {
		fwrite(server.in.p, 1, server.in.left, out);
		server.in.left = 0;
	}
	while (server.in.left && *server.in.p != 255)
		put_reply(out, 0);
	fuzz_u8(&server.in);
}

static void put_all(int fd, const char *p, size_t len)
{
	/* The rest is cut off when the socket is full. */
	if (len)
		check(send(fd, p, len, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
	check(shutdown(fd, SHUT_WR) == 0);
}

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	/* SELECT, CLUSTER INFO, the script of the first look, and INFO */
	static const char well[] = "+OK\r\n$0\r\n\r\n:0\r\n$0\r\n\r\n";
	char *text = NULL;
	size_t size = 0;
	int pair[2];
	FILE *out;

	if (server.n == CONNECTIONS_MAX) {
		errno = ECONNREFUSED;
		return -1;
	}
	check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	check(dup3(pair[0], fd, O_CLOEXEC) == fd);
	close(pair[0]);
	out = open_memstream(&text, &size);
	check(out != NULL);
	if (server.n < server.begun_well)
		fputs(well, out);
	else
		fputs(server.begun_well ? "+OK\r\n" : "", out);
	if (server.n >= server.begun_well)
		put_replies(out);
	check(fclose(out) == 0);
	put_all(pair[1], text, size);
	free(text);
	server.fd[server.n++] = pair[1];
	return 0;
}

/* No request is tried again, as the deadline had come. */
bool __wrap_cfs_backoff(unsigned attempt, unsigned base_ms, unsigned max_ms,
			cfs_deadline_t deadline)
{
	return false;
}

/* ---- the callbacks ---- */

static int take_dirent(void *arg, const struct cfs_dirent *e)
{
	touch(e->name, e->name_len);
	return 0;
}

static int take_session(void *arg, const struct cfs_session *s)
{
	touch(s->info, strlen(s->info));
	return 0;
}

static int take_parent(void *arg, cfs_ino_t parent, const char *name, size_t len)
{
	touch(name, len);
	return 0;
}

static int take_slice(void *arg, uint64_t id, uint32_t size)
{
	return 0;
}

static int take_delfile(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s)
{
	return 0;
}

static int take_dead_lock(void *arg, cfs_ino_t ino, uint64_t sid, bool removed)
{
	return 0;
}

static int take_quota(void *arg, const struct cfs_quota *q)
{
	return 0;
}

static int take_record(void *arg, const char *key, const void *value, size_t len)
{
	touch(key, strlen(key));
	touch(value, len);
	return 0;
}

static int take_row(void *arg, const struct cfs_row *row)
{
	touch_row(*(const enum cfs_meta_table *)arg, row);
	return 0;
}

static void take_advice(void *arg, enum cfs_advice level, const char *what, const char *text)
{
	touch(text, strlen(text));
}

/* ---- operations ---- */

enum { INO = 5, DIR = 3, SID = 7 };

static const struct cfs_slice slice = {.id = 9, .size = 4096, .len = 4096};
static const struct timespec now = {.tv_sec = 1700000000};

/* The outputs of most operations. */
struct out {
	struct cfs_entry entry;
	struct cfs_attr attr;
	struct cfs_usage usage;
	struct cfs_removed removed;
	struct cfs_renamed renamed;
	struct cfs_plock lock;
	struct cfs_acl acl;
	struct cfs_dir_stat stat;
	struct cfs_check found;
	struct cfs_sums sums;
	uint64_t n, other;
	int64_t a, b;
	uint32_t id;
	unsigned records;
	struct cfs_chunk_len chunks[1024];
	char link[CFS_SYMLINK_MAX + 1];
};

static void names(struct cfs_engine *e, const struct cfs_ctx *c, uint8_t which, struct out *o)
{
	const struct cfs_engine_ops *ops = e->ops;
	const struct cfs_mknod file = {
		.parent = DIR, .name = "f", .name_len = 1, .type = CFS_TYPE_FILE, .mode = 0644};
	const struct cfs_mknod known = {.parent = DIR,
					.name = "f",
					.name_len = 1,
					.type = CFS_TYPE_FILE,
					.mode = 0644,
					.ret_parent = &o->attr};
	const struct cfs_engine_link link = {.ino = INO, .parent = DIR, .name = "f", .len = 1};
	const struct cfs_engine_remove gone = {.parent = DIR, .name = "f", .name_len = 1};
	const struct cfs_engine_remove gone_dir = {
		.dir = true, .parent = DIR, .name = "f", .name_len = 1};
	const struct cfs_engine_remove kept = {
		.parent = DIR, .name = "f", .name_len = 1, .trash = CFS_TRASH_INO + 1};
	const struct cfs_engine_rename move = {.r = {.src_parent = DIR,
						     .dst_parent = 4,
						     .src_name = "f",
						     .dst_name = "g",
						     .src_len = 1,
						     .dst_len = 1}};
	struct cfs_cursor cursor = {0};
	struct cfs_attr in = {.mode = 0600, .uid = 1, .gid = 1};
	unsigned i;

	switch (which) {
	case 0:
		/* The second one may be optimistic. */
		ops->lookup(e, c, DIR, "f", 1, &o->entry);
		ops->mknod(e, c, &known, INO, &o->entry, &o->usage);
		break;
	case 1:
		ops->lookup(e, c, DIR, "f", 1, &o->entry);
		ops->remove(e, c, &gone, &o->removed, &o->usage);
		break;
	case 2:
		ops->mknod(e, c, &file, INO, &o->entry, &o->usage);
		break;
	case 3:
		ops->remove(e, c, &kept, &o->removed, &o->usage);
		break;
	case 4:
		check(ops->remove(e, c, &gone_dir, &o->removed, &o->usage) || o->removed.outcome);
		break;
	case 5:
		ops->rename(e, c, &move, &o->renamed, &o->usage);
		break;
	case 6:
		ops->link(e, c, &link, &o->attr, &o->usage);
		break;
	case 7:
		ops->getattr(e, c, INO, &o->attr);
		ops->getattr(e, c, DIR, &o->attr);
		break;
	case 8:
		ops->setattr(e, c, INO, CFS_SET_MODE | CFS_SET_UID | CFS_SET_GID, &in, &o->attr,
			     &o->usage);
		break;
	case 9:
		if (ops->readlink(e, c, INO, o->link) == 0)
			touch(o->link, strlen(o->link));
		break;
	case 10:
	case 11:
		for (i = 0; i < CALLS_MAX; i++)
			if (ops->readdir(e, c, DIR, which == 10, 100, &cursor, take_dirent, NULL))
				break;
		break;
	case 12:
		ops->each_parent(e, c, INO, take_parent, NULL);
		break;
	case 13:
		check(ops->trash_dir(e, c, "2026-11-23-10", &o->n, &o->usage) || o->n);
		break;
	case 14:
		ops->touch_atime(e, c, INO, now);
		ops->touch_dirs(e, c, &(struct cfs_dir_time){DIR, now, now}, 1);
		break;
	default:
		ops->clone_ino(e, c, INO, 6, DIR, "g", 1, true, &o->entry, &o->usage);
		ops->attach(e, c, INO, DIR, "g", 1, &o->usage);
		ops->drop_detached(e, c, INO, &o->usage);
	}
}

static void file_data(struct cfs_engine *e, const struct cfs_ctx *c, uint8_t which, struct out *o)
{
	const struct cfs_engine_ops *ops = e->ops;
	const struct cfs_copy_range copy = {.src = INO, .dst = 6, .len = 4096};
	struct cfs_head heads[2] = {{.ino = INO, .parent = DIR, .name = "f", .name_len = 1},
				    {.ino = 6}};
	struct cfs_commit commit = {.ino = INO, .slice = slice, .mtime = now};
	struct cfs_slice *v = NULL;
	ssize_t n;
	size_t i;

	switch (which) {
	case 0:
		n = ops->read_chunk(e, c, INO, 0, &v);
		touch(v, n > 0 ? (size_t)n * sizeof(*v) : 0);
		free(v);
		n = ops->read_heads(e, c, heads, 2);
		for (i = 0; i < 2; i++) {
			if (n == 0)
				touch(heads[i].records, heads[i].n_records * sizeof(*v));
			free(heads[i].records);
		}
		break;
	case 1:
		ops->commit_slice(e, c, &commit, &o->records, &o->usage);
		break;
	case 2:
		ops->truncate(e, c, INO, 1ULL << 50, &o->attr, &o->usage);
		break;
	case 3:
		ops->truncate(e, c, INO, 100, &o->attr, &o->usage);
		break;
	case 4:
		ops->fallocate(e, c, INO, CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_KEEP_SIZE, 0, 4096,
			       &o->attr, &o->usage);
		break;
	case 5:
		ops->copy_range(e, c, &copy, &o->n, &o->attr, &o->usage);
		break;
	case 6:
		ops->compact_chunk(e, c, INO, 0, &slice, 1, 0, &slice, true, take_slice, NULL);
		break;
	case 7:
		ops->compact_chunk(e, c, INO, 0, &slice, 1, 0, &slice, false, take_slice, NULL);
		break;
	case 8:
		ops->list_chunks(e, c, INO, 0, o->chunks);
		break;
	case 9:
		ops->end_sustained(e, c, SID, INO, &o->n, &o->usage);
		break;
	case 10:
		ops->each_delfile(e, c, 1700000000, 100, take_delfile, NULL);
		ops->delete_chunk(e, c, INO, take_slice, NULL);
		break;
	case 11:
		ops->drop_delfile(e, c, INO, 4096);
		break;
	case 12:
		ops->each_dead_slice(e, c, 100, take_slice, NULL);
		break;
	case 13:
		ops->orphan_slice(e, c, 9, 4096);
		ops->drop_slice(e, c, 9, 4096);
		break;
	default:
		ops->expire_delayed(e, c, 1700000000, take_slice, NULL);
	}
}

static void around(struct cfs_engine *e, const struct cfs_ctx *c, uint8_t which, struct out *o)
{
	const struct cfs_engine_ops *ops = e->ops;
	struct cfs_plock lock = {.type = CFS_LOCK_WRITE, .pid = 1, .end = INT64_MAX};
	char *text = NULL;
	void *value = NULL;
	ssize_t n;

	switch (which) {
	case 0:
		n = ops->getxattr(e, c, INO, "user.a", &value);
		touch(value, n > 0 ? (size_t)n : 0);
		free(value);
		break;
	case 1:
		n = ops->listxattr(e, c, INO, &text);
		touch(text, n > 0 ? (size_t)n : 0);
		free(text);
		break;
	case 2:
		ops->setxattr(e, c, INO, "user.a", "v", 1, 0);
		ops->removexattr(e, c, INO, "user.a");
		break;
	case 3:
		if (ops->get_acl(e, c, 3, &o->acl) == 0) {
			touch(o->acl.users, o->acl.n_users * sizeof(*o->acl.users));
			touch(o->acl.groups, o->acl.n_groups * sizeof(*o->acl.groups));
			free(o->acl.users);
			free(o->acl.groups);
		}
		break;
	case 4:
		ops->put_acl(e, c, &o->acl, &o->id);
		ops->set_acl_id(e, c, INO, false, 3, 0644, &o->attr);
		break;
	case 5:
		ops->flock(e, c, INO, SID, 1, CFS_LOCK_WRITE);
		break;
	case 6:
		ops->setlk(e, c, INO, SID, 1, &lock);
		break;
	case 7:
		ops->getlk(e, c, INO, SID, 1, &lock, &o->n, &o->other);
		break;
	case 8:
		ops->dead_locks(e, c, true, take_dead_lock, NULL);
		break;
	case 9:
		ops->new_session(e, c, "{}", 1700000000, &o->n);
		break;
	case 10:
		ops->refresh_session(e, c, SID, "{}", 1700000000);
		ops->resume_session(e, c, SID, "{}", 1700000000);
		break;
	case 11:
		ops->clean_session(e, c, SID, INT64_MAX);
		break;
	case 12:
		ops->each_session(e, c, 0, 100, take_session, NULL);
		break;
	case 13:
		if (ops->get_setting(e, c, &text) == 0) {
			touch(text, strlen(text));
			free(text);
		}
		break;
	case 14:
		o->a = o->b = INT64_MIN;
		check(ops->get_counters(e, c, &o->a, &o->b) ||
		      (o->a != INT64_MIN && o->b != INT64_MIN));
		ops->clock(e, c, &o->a);
		ops->add_counter(e, c, "nextInode", 100, &o->a);
		break;
	default:
		ops->claim_job(e, c, "lastCleanupFiles", 1700000000, 3600);
		ops->advise(e, c, &(struct cfs_adviser){.fn = take_advice});
		ops->settle(e, c);
	}
}

static void administration(struct cfs_engine *e, const struct cfs_ctx *c, uint8_t which,
			   struct out *o)
{
	const struct cfs_engine_ops *ops = e->ops;
	const struct cfs_quota quota = {.key = DIR, .max_space = 1 << 30};
	const struct cfs_row row = {.acl = {.id = 3, .rule = "x", .len = 1}};

	switch (which) {
	case 0:
		ops->get_dir_stat(e, c, DIR, &o->stat);
		break;
	case 1:
		ops->each_quota(e, c, take_quota, NULL);
		break;
	case 2:
		ops->put_quota(e, c, &quota);
		ops->add_quota_usage(e, c, NULL, &quota, 1);
		ops->del_quota(e, c, CFS_QUOTA_DIR, DIR);
		break;
	case 3:
		ops->check_inode(e, c, INO, 0, &o->found, &o->usage);
		break;
	case 4:
		ops->check_inode(e, c, INO, 0x1ffff, &o->found, &o->usage);
		break;
	case 5:
		ops->check_usage(e, c, &o->sums);
		break;
	case 6:
		ops->fix_refs(e, c, 9, 4096, 1, 2);
		ops->clear_dir_stats(e, c);
		break;
	case 7:
		ops->trim_changelog(e, c, 1700000000, 1000);
		ops->put_rows(e, c, CFS_TABLE_ACL, &row, 1);
		break;
	case 8:
		ops->get_record(e, c, "t/n", take_record, NULL);
		break;
	case 9:
		ops->each_record(e, c, "t", take_record, NULL);
		break;
	case 10:
		ops->put_record(e, c, "t/n", "v", 1, true);
		ops->swap_record(e, c, "t/n", "v", 1, "w", 1);
		ops->drop_record(e, c, "t/n");
		break;
	case 11:
		ops->create(e, c, "{}", true);
		break;
	case 12:
		ops->destroy(e, c);
		break;
	case 13:
		ops->add_usage(e, c, "{}", 1, 1, &(struct cfs_usage_dir){DIR, 1, 1, 1}, 1);
		break;
	case 14:
		ops->put_setting(e, c, "{}");
		ops->upgrade(e, c);
		break;
	default:
		break;
	}
}

static void scan(struct cfs_engine *e, const struct cfs_ctx *c, uint8_t which)
{
	enum cfs_meta_table table = which % (CFS_TABLE_COUNTER + 1);
	struct cfs_scan_pos pos = {0};
	unsigned i;

	for (i = 0; i < CALLS_MAX; i++)
		if (e->ops->scan(e, c, table, &pos, take_row, &table))
			break;
}

static void operate(struct cfs_engine *e, uint8_t which)
{
	const struct cfs_ctx c = {.now = now, .deadline = cfs_deadline_in(10000)};
	struct out *o = calloc(1, sizeof(*o));

	check(o != NULL);
	switch (which >> 4) {
	case 0:
		names(e, &c, which & 15, o);
		break;
	case 1:
		file_data(e, &c, which & 15, o);
		break;
	case 2:
		around(e, &c, which & 15, o);
		break;
	case 3:
		administration(e, &c, which & 15, o);
		break;
	default:
		scan(e, &c, which & 15);
	}
	free(o);
}

/* ---- an input ---- */

enum { BY_SENTINEL = 0xfe, BEGINNING = 0xff };

static void run(uint8_t what)
{
	static struct cfs_engine_host host = {.opens = true, .dir_stats = true, .sid = SID};
	const struct cfs_meta_conf meta = {.timeout_ms = 10000};
	const struct cfs_engine_ops *ops = cfs_module.table;
	struct cfs_engine_conf conf = {.meta = &meta, .host = &host};
	struct cfs_engine *e;
	struct cfs_url url;
	char err[256] = "";
	int r;

	check(cfs_url_parse(what == BY_SENTINEL
				    ? "redis://:pw@master,127.0.0.1:1/0?max-open-conns=1"
				    : "unix:///r?db=0&max-open-conns=1",
			    &url, err) == 0);
	conf.url = &url;
	server.begun_well = what < BY_SENTINEL;
	r = ops->open(&conf, &e, err);
	check(r == 0 || (r < 0 && *err && !server.begun_well));
	if (r == 0) {
		if (what < BY_SENTINEL)
			operate(e, what);
		ops->close(e);
	}
	cfs_url_free(&url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	uint8_t what = fuzz_u8(&in);
	unsigned i;

	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
	server.described = fuzz_u8(&in) & 1;
	server.in = in;
	server.n = 0;
	run(what);
	for (i = 0; i < server.n; i++)
		close(server.fd[i]);
	return 0;
}
