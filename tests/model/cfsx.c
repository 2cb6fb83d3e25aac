/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on a few files, held against plain arrays in memory, in the manner of fsx.
 *
 *     cfsx [options] DIR [DIR2...]
 *
 * Which operation comes next depends on the seed and on the model only, never on what the file
 * system answers. So a run can be repeated by its seed, and --verify can rebuild the expected
 * contents without touching a file: after a remount, or, with the --progress file of a run that was
 * cut off, as far as it is known (what was synced and not touched since must be there).
 *
 * A clone replaces a file by one that shares all data of another (cachefs clone), an operation that
 * a cut-off run may leave half done: it does not go with --progress.
 *
 * Several directories are mounts of one volume: a file moves to another of them only while no
 * handle is open (close-to-open consistency).
 *
 * Exit status: 0 right, 1 a wrong byte or error, 2 usage, 3 the mount went away.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "options.h"

#define HANDLES 4 /* two plain ones, one with O_APPEND, one with O_DIRECT */
#define LOG_OPS 65536
#define PAGE	4096ULL
#define BLOCK	(4ULL << 20)
#define CHUNK	(64ULL << 20)

static const struct {
	const char *name;
	unsigned weight;
} ops[OP_COUNT] = {
	[OP_WRITE] = {"write", 26},	 [OP_READ] = {"read", 24},
	[OP_MAPWRITE] = {"mapwrite", 7}, [OP_MAPREAD] = {"mapread", 7},
	[OP_TRUNCATE] = {"truncate", 8}, [OP_APPEND] = {"append", 6},
	[OP_REOPEN] = {"reopen", 4},	 [OP_FSYNC] = {"fsync", 3},
	[OP_SYNCALL] = {"syncall", 1},	 [OP_ALLOCATE] = {"allocate", 3},
	[OP_PUNCH] = {"punch", 5},	 [OP_ZERO] = {"zero", 5},
	[OP_COPY] = {"copy", 5},	 [OP_CLONE] = {"clone", 1},
};

struct file {
	uint8_t *data;	  /* the model: max_size bytes, zero behind size */
	uint8_t *unknown; /* 1: touched after the last sync; only when verifying a cut-off run */
	uint64_t size;
	uint64_t size_lo, size_hi; /* since the last sync */
	int fd[HANDLES];
	uint8_t *map; /* that stays; NULL: there is none */
	unsigned dir;
};

/* Drawn before it is carried out; what it depends on is the model only. */
struct op {
	uint64_t index;
	enum kind kind;
	unsigned file, src; /* src: source of a copy */
	unsigned handle, dir;
	uint64_t off, len, src_off;
	uint64_t old_size, new_size;
	bool keep_size, sync; /* keep_size, of a mapping: it stays */
};

/* Shared with a file, so that it outlives a kill. */
struct progress {
	uint64_t started; /* operations begun */
	uint64_t durable; /* everything before this one was synced */
};

static struct file files[MAX_FILES];
static struct op history[LOG_OPS];
static uint64_t n_history;
static struct progress *progress;
static uint8_t *io_buf;
static uint64_t rng_state;
static bool acting; /* false: only the model moves */

/* splitmix64 */
static uint64_t rnd(void)
{
	uint64_t z = (rng_state += 0x9E3779B97F4A7C15ULL);

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}

static uint64_t rnd_below(uint64_t n)
{
	return n ? rnd() % n : 0;
}

static void print_op(const struct op *o)
{
	printf("%8" PRIu64 " %-8s file %u", o->index, ops[o->kind].name, o->file);
	switch (o->kind) {
	case OP_REOPEN:
		printf(" in %s", conf.dirs[o->dir]);
		break;
	case OP_SYNCALL:
	case OP_FSYNC:
		break;
	case OP_CLONE:
		printf(" from file %u", o->src);
		break;
	case OP_COPY:
		printf(" from file %u at %#" PRIx64 ",", o->src, o->src_off);
		/* fall through */
	default:
		printf(" handle %u off %#" PRIx64 " len %#" PRIx64 " end %#" PRIx64, o->handle,
		       o->off, o->len, o->off + o->len);
	}
	printf(" size %#" PRIx64, o->old_size);
	if (o->new_size != o->old_size)
		printf(" -> %#" PRIx64, o->new_size);
	printf("%s%s\n", o->keep_size ? " keep" : "", o->sync ? " sync" : "");
}

static bool touches(const struct op *o, unsigned f, uint64_t at)
{
	bool resized;

	if (o->file != f || o->kind == OP_READ || o->kind == OP_MAPREAD)
		return false;
	if (o->kind == OP_CLONE)
		return true;
	resized = (at >= o->old_size) != (at >= o->new_size);
	return resized || (at >= o->off && at < o->off + o->len);
}

/* The last operations on the file, and the ones that shaped the byte in question. */
static void dump(unsigned f, uint64_t at)
{
	uint64_t first = n_history > LOG_OPS ? n_history - LOG_OPS : 0;
	unsigned shown = 0;
	uint64_t i;

	printf("last operations:\n");
	for (i = n_history > first + 24 ? n_history - 24 : first; i < n_history; i++)
		print_op(&history[i % LOG_OPS]);
	if (at == UINT64_MAX)
		return;
	printf("what shaped offset %#" PRIx64 " of file %u, latest first:\n", at, f);
	for (i = n_history; i > first && shown < 24; i--) {
		if (touches(&history[(i - 1) % LOG_OPS], f, at)) {
			print_op(&history[(i - 1) % LOG_OPS]);
			shown++;
		}
	}
}

__attribute__((noreturn, format(printf, 3, 4))) static void fail(unsigned f, uint64_t at,
								 const char *fmt, ...)
{
	int err = errno;
	va_list ap;

	va_start(ap, fmt);
	printf("FAILED seed %" PRIu64 ": ", conf.seed);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	dump(f, at);
	fflush(stdout);
	exit(at == UINT64_MAX && (err == ENOTCONN || err == ECONNABORTED) ? 3 : 1);
}

static void fail_call(const struct op *o, const char *call)
{
	int err = errno;

	print_op(o);
	errno = err;
	fail(o->file, UINT64_MAX, "%s: %s", call, strerror(err));
}

/* A mapping whose mount is gone. */
static void on_sigbus(int sig)
{
	static const char text[] = "SIGBUS: the mount went away or a mapped read failed\n";

	(void)sig;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(1);
	_exit(3);
}

/* ---- the model ---- */

static void touch(struct file *f, uint64_t off, uint64_t end)
{
	if (f->unknown && end > off)
		memset(f->unknown + off, 1, end - off);
}

static void set_size(struct file *f, uint64_t size)
{
	if (size < f->size)
		memset(f->data + size, 0, f->size - size);
	touch(f, size < f->size ? size : f->size, size < f->size ? f->size : size);
	f->size = size;
	if (size < f->size_lo)
		f->size_lo = size;
	if (size > f->size_hi)
		f->size_hi = size;
}

/* Bytes that name the operation and their place, so that a wrong one tells where it came from. */
static void fill(uint8_t *out, uint64_t op, uint64_t off, uint64_t len)
{
	uint64_t i;

	for (i = 0; i < len; i++) {
		uint64_t at = off + i;
		uint64_t z = (op + 1) * 0x9E3779B97F4A7C15ULL ^ (at >> 3) * 0xD1B54A32D192ED03ULL;

		z ^= z >> 29;
		out[i] = (uint8_t)(z >> (8 * (at & 7)));
	}
}

static void apply(const struct op *o)
{
	struct file *f = &files[o->file];
	unsigned i;

	switch (o->kind) {
	case OP_WRITE:
	case OP_MAPWRITE:
	case OP_APPEND:
		if (o->new_size > f->size)
			set_size(f, o->new_size);
		fill(f->data + o->off, o->index, o->off, o->len);
		touch(f, o->off, o->off + o->len);
		break;
	case OP_TRUNCATE:
	case OP_ALLOCATE:
		set_size(f, o->new_size);
		break;
	case OP_PUNCH:
	case OP_ZERO:
		if (o->off < f->size) {
			uint64_t end = o->off + o->len < f->size ? o->off + o->len : f->size;

			memset(f->data + o->off, 0, end - o->off);
			touch(f, o->off, end);
		}
		set_size(f, o->new_size);
		break;
	case OP_COPY:
		memcpy(io_buf, files[o->src].data + o->src_off, o->len);
		if (o->new_size > f->size)
			set_size(f, o->new_size);
		memcpy(f->data + o->off, io_buf, o->len);
		touch(f, o->off, o->off + o->len);
		break;
	case OP_CLONE:
		set_size(f, o->new_size);
		memcpy(f->data, files[o->src].data, o->new_size);
		break;
	case OP_REOPEN:
		f->dir = o->dir;
		break;
	case OP_SYNCALL:
		/* of a cut-off run, the one that was not finished counts for nothing */
		for (i = 0; i < conf.n_files && !files[i].unknown; i++)
			files[i].size_lo = files[i].size_hi = files[i].size;
		break;
	default:
		break;
	}
}

/* ---- drawing ---- */

/* Half of the offsets lie around borders of pages, blocks and chunks and the end of the file. */
static uint64_t draw_offset(uint64_t limit, uint64_t size)
{
	static const uint64_t steps[] = {PAGE, BLOCK, CHUNK, 128 << 10};
	uint64_t step, at;

	if (!limit)
		return 0;
	switch (rnd_below(8)) {
	case 0:
	case 1:
		at = size + rnd_below(2 * PAGE);
		at = at > PAGE ? at - PAGE : 0;
		break;
	case 2:
	case 3:
		step = steps[rnd_below(4)];
		at = rnd_below(limit / step + 1) * step + rnd_below(33);
		at = at > 16 ? at - 16 : 0;
		break;
	case 4:
		at = rnd_below(limit / PAGE + 1) * PAGE;
		break;
	default:
		at = rnd_below(limit);
	}
	return at < limit ? at : limit - 1;
}

static uint64_t draw_len(uint64_t limit)
{
	uint64_t len;

	switch (rnd_below(8)) {
	case 0:
	case 1:
		len = 1 + rnd_below(64);
		break;
	case 2:
		len = PAGE * (1 + rnd_below(32));
		break;
	case 3:
		len = 1 + rnd_below(conf.max_io);
		break;
	default:
		len = 1 + rnd_below(3 * PAGE);
	}
	if (len > conf.max_io)
		len = conf.max_io;
	return len < limit ? len : limit;
}

static enum kind draw_kind(void)
{
	unsigned total = 0, i, at;

	for (i = 0; i < OP_COUNT; i++)
		total += conf.enabled[i] ? ops[i].weight : 0;
	at = (unsigned)rnd_below(total);
	for (i = 0; i < OP_COUNT; i++) {
		if (!conf.enabled[i])
			continue;
		if (at < ops[i].weight)
			break;
		at -= ops[i].weight;
	}
	return (enum kind)i;
}

static struct op draw(uint64_t index)
{
	struct op o = {.index = index, .kind = draw_kind()};
	struct file *f, *s;

	o.file = (unsigned)rnd_below(conf.n_files);
	o.handle = (unsigned)rnd_below(2);
	o.keep_size = rnd_below(2);
	o.sync = rnd_below(4) == 0;
	o.dir = (unsigned)rnd_below(conf.n_dirs);
	if (conf.mixed && rnd_below(3) == 0)
		o.handle = 3;
	f = &files[o.file];
	o.old_size = o.new_size = f->size;

	switch (o.kind) {
	case OP_WRITE:
	case OP_ALLOCATE:
	case OP_ZERO:
	case OP_PUNCH:
		/* mostly inside or just behind the file, so that it does not fill up at once */
		o.off = draw_offset(rnd_below(4) ? f->size + 2 * PAGE : conf.max_size, f->size);
		if (o.off >= conf.max_size)
			o.off = conf.max_size - 1;
		o.len = draw_len(conf.max_size - o.off);
		if (o.kind == OP_PUNCH)
			o.keep_size = true;
		if (o.kind == OP_WRITE)
			o.keep_size = false;
		if (!o.keep_size && o.off + o.len > f->size)
			o.new_size = o.off + o.len;
		break;
	case OP_READ:
		o.off = draw_offset(f->size + PAGE, f->size);
		o.len = draw_len(conf.max_io);
		break;
	case OP_MAPWRITE:
	case OP_MAPREAD:
		if (f->size) {
			o.off = draw_offset(f->size, f->size);
			o.len = draw_len(f->size - o.off);
		}
		break;
	case OP_TRUNCATE:
		o.off = o.new_size =
			draw_offset(rnd_below(3) ? f->size + PAGE : conf.max_size, f->size);
		if (o.new_size > conf.max_size)
			o.off = o.new_size = conf.max_size;
		break;
	case OP_APPEND:
		o.handle = 2;
		o.off = f->size;
		o.len = draw_len(conf.max_size - f->size);
		o.new_size = f->size + o.len;
		break;
	case OP_COPY:
		o.src = (unsigned)rnd_below(conf.n_files);
		s = &files[o.src];
		if (!s->size)
			break;
		o.src_off = draw_offset(s->size, s->size);
		o.off = draw_offset(rnd_below(4) ? f->size + PAGE : conf.max_size, f->size);
		if (o.off >= conf.max_size)
			o.off = conf.max_size - 1;
		o.len = draw_len(s->size - o.src_off);
		if (o.len > conf.max_size - o.off)
			o.len = conf.max_size - o.off;
		/* ranges of one file may not overlap; a file that lives on another mount may be
		 * open there */
		if ((o.src == o.file && o.src_off < o.off + o.len && o.off < o.src_off + o.len) ||
		    s->dir != f->dir)
			o.len = 0;
		if (o.len && o.off + o.len > f->size)
			o.new_size = o.off + o.len;
		break;
	case OP_CLONE:
		o.src = (unsigned)rnd_below(conf.n_files);
		s = &files[o.src];
		if (o.src == o.file || s->dir != f->dir)
			break;
		o.len = o.new_size = s->size;
		break;
	default:
		break;
	}
	return o;
}

/* ---- the file system's side ---- */

static void file_path(char out[4096], unsigned f, unsigned dir)
{
	snprintf(out, 4096, "%s/cfsx%u", conf.dirs[dir], f);
}

static void open_file(unsigned n, bool create)
{
	static const int flags[HANDLES] = {O_RDWR, O_RDWR, O_RDWR | O_APPEND, O_RDWR | O_DIRECT};
	char path[4096];
	unsigned i;

	file_path(path, n, files[n].dir);
	for (i = 0; i < HANDLES; i++) {
		files[n].fd[i] = open(path, flags[i] | (create ? O_CREAT | O_TRUNC : 0), 0644);
		if (files[n].fd[i] < 0)
			fail(n, UINT64_MAX, "open %s: %s", path, strerror(errno));
	}
}

static void close_file(unsigned n)
{
	unsigned i;

	if (files[n].map && munmap(files[n].map, conf.max_size) < 0)
		fail(n, UINT64_MAX, "munmap of file %u: %s", n, strerror(errno));
	files[n].map = NULL;
	for (i = 0; i < HANDLES; i++) {
		if (files[n].fd[i] >= 0 && close(files[n].fd[i]) < 0)
			fail(n, UINT64_MAX, "close of file %u: %s", n, strerror(errno));
		files[n].fd[i] = -1;
	}
}

static void compare(unsigned n, uint64_t off, const uint8_t *got, uint64_t len, const char *how)
{
	const struct file *f = &files[n];
	uint64_t i, bad = 0, first = 0, last = 0;

	if (!f->unknown && !memcmp(got, f->data + off, len))
		return;
	for (i = 0; i < len; i++) {
		if (got[i] == f->data[off + i] || (f->unknown && f->unknown[off + i]))
			continue;
		if (!bad++)
			first = i;
		last = i;
	}
	if (!bad)
		return;
	printf("bytes at %#" PRIx64 ": got", off + first);
	for (i = first; i < first + 8 && i < len; i++)
		printf(" %02x", got[i]);
	printf(", want");
	for (i = first; i < first + 8 && i < len; i++)
		printf(" %02x", f->data[off + i]);
	printf("\n");
	errno = 0;
	fail(n, off + first, "%s of file %u: %" PRIu64 " wrong bytes in %#" PRIx64 "..%#" PRIx64,
	     how, n, bad, off + first, off + last + 1);
}

static void check_size(const struct op *o)
{
	struct file *f = &files[o->file];
	struct stat st;

	if (fstat(f->fd[o->handle % 2], &st) < 0)
		fail_call(o, "fstat");
	if ((uint64_t)st.st_size != o->new_size) {
		errno = 0;
		fail(o->file, UINT64_MAX, "file %u has size %#" PRIx64 ", want %#" PRIx64, o->file,
		     (uint64_t)st.st_size, o->new_size);
	}
}

static void do_write(const struct op *o)
{
	int fd = files[o->file].fd[o->handle];
	uint64_t done = 0;

	fill(io_buf, o->index, o->off, o->len);
	while (done < o->len) {
		ssize_t n = o->kind == OP_APPEND ? write(fd, io_buf + done, o->len - done)
						 : pwrite(fd, io_buf + done, o->len - done,
							  (off_t)(o->off + done));

		if (n <= 0)
			fail_call(o, "write");
		done += (uint64_t)n;
	}
}

static void do_read(const struct op *o)
{
	struct file *f = &files[o->file];
	uint64_t want = o->off >= f->size ? 0 : f->size - o->off;
	uint64_t done = 0;

	if (want > o->len)
		want = o->len;
	while (done < o->len) {
		ssize_t n = pread(f->fd[o->handle], io_buf + done, o->len - done,
				  (off_t)(o->off + done));

		if (n < 0)
			fail_call(o, "read");
		if (n == 0)
			break;
		done += (uint64_t)n;
	}
	if (done != want) {
		errno = 0;
		print_op(o);
		fail(o->file, o->off + (done < want ? done : want),
		     "read of file %u returned %#" PRIx64 " bytes, want %#" PRIx64, o->file, done,
		     want);
	}
	compare(o->file, o->off, io_buf, want, "read");
}

/* The byte at `start` in the mapping that stays. */
static uint8_t *kept_map(const struct op *o, uint64_t start)
{
	struct file *f = &files[o->file];

	if (!f->map)
		f->map = mmap(NULL, conf.max_size, PROT_READ | PROT_WRITE, MAP_SHARED,
			      f->fd[o->handle], 0);
	return f->map == MAP_FAILED ? MAP_FAILED : f->map + start;
}

static void do_map(const struct op *o)
{
	uint64_t start = o->off & ~(PAGE - 1);
	uint64_t size = o->off + o->len - start;
	int prot = PROT_READ | (o->kind == OP_MAPWRITE ? PROT_WRITE : 0);
	bool stays = conf.mixed && o->keep_size;
	uint8_t *p;

	if (!o->len)
		return;
	p = stays ? kept_map(o, start)
		  : mmap(NULL, size, prot, MAP_SHARED, files[o->file].fd[o->handle], (off_t)start);
	if (p == MAP_FAILED)
		fail_call(o, "mmap");
	if (o->kind == OP_MAPWRITE) {
		fill(p + (o->off - start), o->index, o->off, o->len);
		if (o->sync && msync(p, size, MS_SYNC) < 0)
			fail_call(o, "msync");
	} else {
		compare(o->file, o->off, p + (o->off - start), o->len, "mapped read");
	}
	if (!stays && munmap(p, size) < 0)
		fail_call(o, "munmap");
}

static void do_fallocate(const struct op *o)
{
	int mode = o->keep_size ? FALLOC_FL_KEEP_SIZE : 0;

	if (o->kind == OP_PUNCH)
		mode |= FALLOC_FL_PUNCH_HOLE;
	else if (o->kind == OP_ZERO)
		mode |= FALLOC_FL_ZERO_RANGE;
	if (fallocate(files[o->file].fd[o->handle], mode, (off_t)o->off, (off_t)o->len) < 0)
		fail_call(o, "fallocate");
}

static void do_copy(const struct op *o)
{
	off_t in = (off_t)o->src_off, out = (off_t)o->off;
	uint64_t done = 0;

	while (done < o->len) {
		ssize_t n = copy_file_range(files[o->src].fd[0], &in, files[o->file].fd[o->handle],
					    &out, o->len - done, 0);

		if (n <= 0)
			fail_call(o, "copy_file_range");
		done += (uint64_t)n;
	}
}

static void sync_file(const struct op *o, unsigned n)
{
	if (fsync(files[n].fd[0]) < 0)
		fail_call(o, "fsync");
}

static void do_clone(const struct op *o)
{
	char from[4096], to[4096], clone[] = "clone";
	char *argv[] = {(char *)conf.clone_program, clone, from, to, NULL};
	int status, err;
	pid_t pid;

	sync_file(o, o->src);
	close_file(o->file);
	file_path(from, o->src, files[o->src].dir);
	file_path(to, o->file, files[o->file].dir);
	if (unlink(to) < 0)
		fail_call(o, "unlink");
	err = posix_spawn(&pid, conf.clone_program, NULL, NULL, argv, environ);
	if (err) {
		errno = err;
		fail_call(o, "posix_spawn");
	}
	if (waitpid(pid, &status, 0) < 0)
		fail_call(o, "waitpid");
	if (status) {
		print_op(o);
		errno = 0;
		fail(o->file, UINT64_MAX, "clone: wait status %#x", (unsigned)status);
	}
	open_file(o->file, false);
}

static void act(const struct op *o)
{
	struct file *f = &files[o->file];
	unsigned i;

	switch (o->kind) {
	case OP_WRITE:
	case OP_APPEND:
		do_write(o);
		break;
	case OP_READ:
		do_read(o);
		break;
	case OP_MAPWRITE:
	case OP_MAPREAD:
		do_map(o);
		break;
	case OP_TRUNCATE:
		if (ftruncate(f->fd[o->handle], (off_t)o->new_size) < 0)
			fail_call(o, "ftruncate");
		break;
	case OP_REOPEN:
		close_file(o->file);
		f->dir = o->dir;
		open_file(o->file, false);
		break;
	case OP_FSYNC:
		sync_file(o, o->file);
		break;
	case OP_SYNCALL:
		for (i = 0; i < conf.n_files; i++)
			sync_file(o, i);
		break;
	case OP_ALLOCATE:
	case OP_PUNCH:
	case OP_ZERO:
		do_fallocate(o);
		break;
	case OP_COPY:
		do_copy(o);
		break;
	case OP_CLONE:
		do_clone(o);
		break;
	default:
		break;
	}
	check_size(o);
}

static void verify_file(unsigned n)
{
	struct file *f = &files[n];
	uint64_t off = 0, end;
	struct stat st;

	if (fstat(f->fd[0], &st) < 0)
		fail(n, UINT64_MAX, "fstat: %s", strerror(errno));
	end = (uint64_t)st.st_size;
	errno = 0;
	if (end < f->size_lo || end > f->size_hi)
		fail(n, UINT64_MAX, "file %u has size %#" PRIx64 ", want %#" PRIx64 "..%#" PRIx64,
		     n, end, f->size_lo, f->size_hi);
	if (posix_fadvise(f->fd[0], 0, 0, POSIX_FADV_DONTNEED))
		fail(n, UINT64_MAX, "fadvise: %s", strerror(errno));
	while (off < end) {
		uint64_t want = end - off < conf.max_io ? end - off : conf.max_io;
		ssize_t got = pread(f->fd[0], io_buf, want, (off_t)off);

		if (got <= 0)
			fail(n, UINT64_MAX, "read of file %u at %#" PRIx64 ": %s", n, off,
			     got ? strerror(errno) : "end of file");
		compare(n, off, io_buf, (uint64_t)got, "final check");
		off += (uint64_t)got;
	}
}

/* ---- running ---- */

static void *zeros(uint64_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

static void open_progress(void)
{
	int fd = open(conf.progress_path, O_RDWR | O_CREAT, 0644);

	if (fd < 0 || ftruncate(fd, sizeof(*progress)) < 0) {
		perror(conf.progress_path);
		exit(2);
	}
	progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (progress == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	close(fd);
}

static void run(void)
{
	uint64_t total = conf.n_ops, i;
	bool cut = conf.verify && progress;
	unsigned n;

	if (cut)
		total = progress->started;
	for (i = 0; i < total; i++) {
		struct op o;

		if (cut && i == progress->durable) {
			for (n = 0; n < conf.n_files; n++) {
				files[n].unknown = zeros(conf.max_size);
				files[n].size_lo = files[n].size_hi = files[n].size;
			}
		}
		o = draw(i);
		history[n_history++ % LOG_OPS] = o;
		if (conf.verbose)
			print_op(&o);
		if (o.kind != OP_REOPEN && o.kind != OP_FSYNC && o.kind != OP_SYNCALL &&
		    o.kind != OP_TRUNCATE && !o.len)
			continue;
		if (acting) {
			if (progress)
				progress->started = i + 1;
			act(&o);
			if (progress && o.kind == OP_SYNCALL)
				progress->durable = i + 1;
		}
		apply(&o);
	}
}

int main(int argc, char **argv)
{
	struct sigaction bus = {.sa_handler = on_sigbus};
	unsigned n;

	parse_options(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("cfsx seed %" PRIu64 " ops %" PRIu64 " files %u size %#" PRIx64 "%s\n", conf.seed,
	       conf.n_ops, conf.n_files, conf.max_size, conf.verify ? " verify" : "");
	sigaction(SIGBUS, &bus, NULL);
	if (conf.progress_path)
		open_progress();
	rng_state = conf.seed;
	acting = !conf.verify;
	io_buf = zeros(conf.max_io);
	for (n = 0; n < conf.n_files; n++) {
		files[n].data = zeros(conf.max_size);
		memset(files[n].fd, -1, sizeof(files[n].fd));
		if (acting)
			open_file(n, true);
	}
	run();
	for (n = 0; n < conf.n_files; n++) {
		if (acting)
			close_file(n);
		if (!files[n].unknown)
			files[n].size_lo = files[n].size_hi = files[n].size;
		files[n].dir = conf.verify ? 0 : files[n].dir;
		open_file(n, false);
		verify_file(n);
		close_file(n);
	}
	printf("cfsx seed %" PRIu64 ": right\n", conf.seed);
	return 0;
}
