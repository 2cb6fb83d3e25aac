/* SPDX-License-Identifier: Apache-2.0 */
#include "activity.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "clock.h"

#define MAGIC	   0x6366732d61637476ULL
#define VERSION	   2
#define TEXT_WORDS (CFS_ACTIVITY_TEXT / sizeof(uint64_t))
#define NAME_WORDS 2
#define READ_TRIES 64
#define TID_QUEUED ((uint64_t)(pid_t)CFS_ACTIVITY_QUEUED)
#define QUEUED_MAX (CFS_ACTIVITY_THREADS / 2) /* the rest is for threads */

/*
 * Everything is words, as another thread or process reads while the owner writes. seq is odd
 * meanwhile. The stores behind it release, and the loads acquire: a reader that has seen any of
 * them sees that seq has changed, too.
 */
typedef _Atomic uint64_t word_t;

struct wait_record {
	word_t what, id, since_ms;
	word_t text[TEXT_WORDS];
};

struct record {
	word_t seq;
	word_t tid; /* 0: free. Not covered by seq */
	word_t thread[NAME_WORDS], op[NAME_WORDS];
	word_t ino, caller, since_ms;
	word_t depth; /* may exceed the waits that are kept */
	struct wait_record waits[CFS_ACTIVITY_WAITS];
};

struct table {
	word_t magic, version, size;
	word_t used;   /* records beyond it were never given out */
	word_t device; /* of the mount; 0: not mounted yet */
	struct record records[CFS_ACTIVITY_THREADS];
};

static const char *const wait_names[CFS_WAIT_COUNT] = {
	[CFS_WAIT_NONE] = "nothing",
	[CFS_WAIT_META] = "metadata",
	[CFS_WAIT_OBJECT_GET] = "object get",
	[CFS_WAIT_OBJECT_PUT] = "object put",
	[CFS_WAIT_OBJECT_DELETE] = "object delete",
	[CFS_WAIT_OBJECT_SYNC] = "object sync",
	[CFS_WAIT_BLOCK] = "block",
	[CFS_WAIT_COMMIT] = "data being stored",
	[CFS_WAIT_PEER] = "peer",
	[CFS_WAIT_DISK] = "disk cache",
	[CFS_WAIT_MEMORY] = "memory",
	[CFS_WAIT_QUEUE] = "queue",
	[CFS_WAIT_TURN] = "its turn",
	[CFS_WAIT_LOCK] = "file lock",
	[CFS_WAIT_OBJECT_LIST] = "object list",
	[CFS_WAIT_OBJECT_HEAD] = "object head",
	[CFS_WAIT_OBJECT_CREATE] = "bucket create",
	[CFS_WAIT_THREAD] = "end of thread",
};

static struct table *table; /* set once, before the threads that use it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* assigns records to threads; a leaf */
static unsigned n_queued;				 /* under the lock */
static uint64_t lowest; /* the same: all records below are in use */
static pthread_key_t at_exit;
static _Thread_local struct record *own;
static _Thread_local uint64_t waited_ms[CFS_WAIT_COUNT]; /* since the request began */
static _Thread_local bool unseen;			 /* there was no record left for it */
static _Thread_local void (*on_wait)(void);

/* ---- records ---- */

/* Up to the end of the text, or of the room for it less one byte. */
static void store_text(word_t *to, size_t words, const char *text)
{
	size_t len, i;
	uint64_t v;

	text = text ? text : "";
	len = strnlen(text, words * sizeof(uint64_t) - 1);
	for (i = 0; i <= len / sizeof(v); i++) {
		v = 0;
		memcpy(&v, text + i * sizeof(v), CFS_MIN(len - i * sizeof(v), sizeof(v)));
		atomic_store_explicit(&to[i], v, memory_order_release);
	}
}

static void put(word_t *to, uint64_t v)
{
	atomic_store_explicit(to, v, memory_order_release);
}

static uint64_t mine(word_t *from)
{
	return atomic_load_explicit(from, memory_order_relaxed);
}

static void begin(struct record *r)
{
	atomic_store_explicit(&r->seq, mine(&r->seq) + 1, memory_order_relaxed);
}

static void end(struct record *r)
{
	atomic_store_explicit(&r->seq, mine(&r->seq) + 1, memory_order_release);
}

static void free_record(struct record *r)
{
	pthread_mutex_lock(&lock);
	n_queued -= mine(&r->tid) == TID_QUEUED;
	put(&r->tid, 0);
	lowest = CFS_MIN(lowest, (uint64_t)(r - table->records));
	pthread_mutex_unlock(&lock);
}

static void give_back(void *arg)
{
	own = NULL;
	unseen = true;
	free_record(arg);
}

int cfs_activity_init(void)
{
	struct table *t;
	int fd, r;

	if (table)
		return 0;
	fd = memfd_create(CFS_ACTIVITY_NAME, MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, sizeof(*t)) < 0)
		goto fail;
	t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		goto fail;
	r = -pthread_key_create(&at_exit, give_back);
	if (r < 0) {
		munmap(t, sizeof(*t));
		close(fd);
		return r;
	}
	atomic_store(&t->size, sizeof(*t));
	atomic_store(&t->version, VERSION);
	atomic_store(&t->magic, MAGIC);
	/* The descriptor stays open: it is how others find the memory. */
	table = t;
	return 0;
fail:
	r = -errno;
	close(fd);
	return r;
}

/* With the lock, under which the caller sets its tid; it is seen then. NULL: there is none left. */
static struct record *find_free(void)
{
	uint64_t i = lowest;

	while (i < CFS_ACTIVITY_THREADS && mine(&table->records[i].tid))
		i++;
	lowest = CFS_MIN(i + 1, (uint64_t)CFS_ACTIVITY_THREADS);
	if (i >= CFS_ACTIVITY_THREADS)
		return NULL;
	if (i >= mine(&table->used))
		put(&table->used, i + 1);
	return &table->records[i];
}

__attribute__((noinline)) static struct record *take_record(void)
{
	char name[16] = "";
	struct record *r;

	if (!table || unseen)
		return NULL;
	pthread_mutex_lock(&lock);
	r = find_free();
	if (r) {
		begin(r);
		put(&r->op[0], 0);
		put(&r->depth, 0);
		pthread_getname_np(pthread_self(), name, sizeof(name));
		store_text(r->thread, NAME_WORDS, name);
		end(r);
		put(&r->tid, (uint64_t)gettid());
	}
	pthread_mutex_unlock(&lock);
	unseen = !r;
	own = r;
	if (r && pthread_setspecific(at_exit, r))
		give_back(r);
	return own;
}

static inline struct record *own_record(void)
{
	return own ? own : take_record();
}

/* A few milliseconds behind at most, and much cheaper than the exact time. */
static uint64_t coarse_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* ---- writing ---- */

void cfs_activity_request(const char *op, uint64_t ino, pid_t caller, uint64_t started_ms)
{
	struct record *r = own_record();

	if (!r)
		return;
	memset(waited_ms, 0, sizeof(waited_ms));
	begin(r);
	put(&r->ino, ino);
	put(&r->caller, (uint64_t)caller);
	put(&r->since_ms, started_ms ? started_ms : coarse_ms());
	put(&r->depth, 0);
	store_text(r->op, NAME_WORDS, op);
	end(r);
}

void cfs_activity_request_end(void)
{
	struct record *r = own;

	if (!r)
		return;
	begin(r);
	put(&r->op[0], 0);
	end(r);
}

struct cfs_activity_queued *cfs_activity_queue(const char *op, uint64_t ino, pid_t caller,
					       uint64_t started_ms, enum cfs_wait what,
					       const char *text)
{
	struct record *r = NULL;

	if (!table)
		return NULL;
	pthread_mutex_lock(&lock);
	if (n_queued < QUEUED_MAX)
		r = find_free();
	if (r) {
		n_queued++;
		begin(r);
		store_text(r->thread, NAME_WORDS, NULL);
		store_text(r->op, NAME_WORDS, op);
		put(&r->ino, ino);
		put(&r->caller, (uint64_t)caller);
		put(&r->since_ms, started_ms);
		put(&r->waits[0].what, what);
		put(&r->waits[0].id, 0);
		put(&r->waits[0].since_ms, coarse_ms());
		store_text(r->waits[0].text, TEXT_WORDS, text);
		put(&r->depth, 1);
		end(r);
		put(&r->tid, TID_QUEUED);
	}
	pthread_mutex_unlock(&lock);
	return (struct cfs_activity_queued *)r;
}

void cfs_activity_dequeue(struct cfs_activity_queued *a)
{
	if (a)
		free_record((struct record *)a);
}

void cfs_activity_on_wait(void (*fn)(void))
{
	on_wait = fn;
}

void cfs_activity_wait(enum cfs_wait what, uint64_t id, const char *text)
{
	struct record *r = own_record();
	struct wait_record *w;
	uint64_t depth;

	if (on_wait)
		on_wait();
	if (!r)
		return;
	depth = mine(&r->depth);
	begin(r);
	if (depth < CFS_ACTIVITY_WAITS) {
		w = &r->waits[depth];
		put(&w->what, what);
		put(&w->id, id);
		put(&w->since_ms, coarse_ms());
		store_text(w->text, TEXT_WORDS, text);
	}
	put(&r->depth, depth + 1);
	end(r);
}

void cfs_activity_wait_end(void)
{
	struct record *r = own;

	if (!r || !mine(&r->depth))
		return;
	if (mine(&r->depth) == 1)
		waited_ms[mine(&r->waits[0].what)] += coarse_ms() - mine(&r->waits[0].since_ms);
	begin(r);
	put(&r->depth, mine(&r->depth) - 1);
	end(r);
}

void cfs_activity_wait_goes_on(const char *text)
{
	struct record *r = own;

	if (!r || !mine(&r->depth) || mine(&r->depth) > CFS_ACTIVITY_WAITS)
		return;
	begin(r);
	store_text(r->waits[mine(&r->depth) - 1].text, TEXT_WORDS, text);
	end(r);
}

const char *cfs_activity_waited(uint64_t least_ms)
{
	int i, most = 0;

	for (i = 1; i < CFS_WAIT_COUNT; i++) {
		if (waited_ms[i] > waited_ms[most])
			most = i;
	}
	return most && waited_ms[most] >= least_ms ? wait_names[most] : "";
}

/* ---- reading ---- */

static uint64_t get(word_t *from)
{
	return atomic_load_explicit(from, memory_order_acquire);
}

/* Always terminated, whatever the words are. */
static void load_text(word_t *from, size_t words, char *to)
{
	uint64_t v;
	size_t i;

	for (i = 0; i < words; i++) {
		v = get(&from[i]);
		memcpy(to + i * sizeof(v), &v, sizeof(v));
	}
	to[words * sizeof(v) - 1] = '\0';
}

static void load(struct record *r, struct cfs_activity *ret)
{
	uint64_t i, what;

	load_text(r->thread, NAME_WORDS, ret->thread);
	load_text(r->op, NAME_WORDS, ret->op);
	ret->ino = get(&r->ino);
	ret->caller = (pid_t)get(&r->caller);
	ret->since_ms = get(&r->since_ms);
	ret->n_waits = (unsigned)CFS_MIN(get(&r->depth), (uint64_t)CFS_ACTIVITY_WAITS);
	for (i = 0; i < ret->n_waits; i++) {
		struct wait_record *w = &r->waits[i];

		what = get(&w->what);
		ret->waits[i].what = what < CFS_WAIT_COUNT ? (enum cfs_wait)what : CFS_WAIT_NONE;
		ret->waits[i].id = get(&w->id);
		ret->waits[i].since_ms = get(&w->since_ms);
		load_text(w->text, TEXT_WORDS, ret->waits[i].text);
	}
}

/* A record that changes at each try belongs to a thread that does not wait. */
static bool read_record(struct record *r, struct cfs_activity *ret)
{
	uint64_t before, tid;
	int tries;

	for (tries = 0; tries < READ_TRIES; tries++) {
		tid = get(&r->tid);
		if (!tid)
			return false;
		before = get(&r->seq);
		if (before & 1)
			continue;
		load(r, ret);
		if (atomic_load_explicit(&r->seq, memory_order_relaxed) != before)
			continue;
		ret->tid = (pid_t)tid;
		return ret->op[0] || ret->n_waits;
	}
	return false;
}

static int by_age(const void *a, const void *b)
{
	const struct cfs_activity *x = a, *y = b;

	if (!x->op[0] != !y->op[0])
		return x->op[0] ? -1 : 1;
	return (x->since_ms > y->since_ms) - (x->since_ms < y->since_ms);
}

static int collect(struct table *t, struct cfs_activity **ret, size_t *ret_n)
{
	uint64_t used = CFS_MIN(get(&t->used), (uint64_t)CFS_ACTIVITY_THREADS), i;
	struct cfs_activity *v = calloc(used + 1, sizeof(*v));
	size_t n = 0;

	if (!v)
		return -ENOMEM;
	for (i = 0; i < used; i++)
		n += read_record(&t->records[i], &v[n]);
	qsort(v, n, sizeof(*v), by_age);
	*ret = v;
	*ret_n = n;
	return 0;
}

int cfs_activity_read(int fd, struct cfs_activity **ret, size_t *ret_n)
{
	struct table *t = table;
	struct stat st;
	int r;

	if (fd < 0 && !t) {
		*ret = NULL;
		*ret_n = 0;
		return 0;
	}
	if (fd < 0)
		return collect(t, ret, ret_n);
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size != (off_t)sizeof(*t))
		return -EPROTO;
	t = mmap(NULL, sizeof(*t), PROT_READ, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		return -errno;
	if (get(&t->magic) == MAGIC && get(&t->version) == VERSION && get(&t->size) == sizeof(*t))
		r = collect(t, ret, ret_n);
	else
		r = -EPROTO;
	munmap(t, sizeof(*t));
	return r;
}

void cfs_activity_set_device(unsigned minor)
{
	if (table)
		put(&table->device, minor);
}

unsigned cfs_activity_device(int fd)
{
	uint64_t head[offsetof(struct table, records) / sizeof(word_t)];

	if (pread(fd, head, sizeof(head), 0) != sizeof(head) || head[0] != MAGIC ||
	    head[1] != VERSION)
		return 0;
	return (unsigned)head[offsetof(struct table, device) / sizeof(word_t)];
}

bool cfs_activity_waits_for_lock(const struct cfs_activity *a)
{
	unsigned i;

	for (i = 0; i < a->n_waits; i++) {
		if (a->waits[i].what == CFS_WAIT_LOCK)
			return true;
	}
	return false;
}

static bool for_others(const struct cfs_activity_wait *w)
{
	return w->what == CFS_WAIT_BLOCK || w->what == CFS_WAIT_COMMIT;
}

/* The thread whose work this wait is for: it shows the same id, and does something itself. */
static const struct cfs_activity *who_works(const struct cfs_activity *all, size_t n,
					    const struct cfs_activity_wait *w)
{
	const struct cfs_activity_wait *other;
	size_t i, k;

	for (i = 0; i < n; i++) {
		if (!all[i].n_waits || for_others(&all[i].waits[all[i].n_waits - 1]))
			continue;
		for (k = 0; k < all[i].n_waits; k++) {
			other = &all[i].waits[k];
			if (other->id == w->id &&
			    (w->what != CFS_WAIT_BLOCK || !strcmp(other->text, w->text)))
				return &all[i];
		}
	}
	return NULL;
}

void cfs_activity_describe(const struct cfs_activity *all, size_t n, size_t i, char *buf,
			   size_t size)
{
	const struct cfs_activity *a = &all[i];
	const struct cfs_activity_wait *w;
	uint64_t now = cfs_now_ms();
	size_t len = 0;
	bool first = true;

	snprintf(buf, size, "nothing known");
	/* At most two: a thread that works for others does not wait for others. */
	for (; a && a->n_waits && len < size; first = false) {
		w = &a->waits[a->n_waits - 1];
		len += (size_t)snprintf(buf + len, size - len, "%s%s%s%s (%.1f s)",
					first ? "" : ": ", wait_names[w->what],
					w->text[0] ? " " : "", w->text,
					now > w->since_ms ? (double)(now - w->since_ms) / 1000 : 0);
		a = w->id && for_others(w) ? who_works(all, n, w) : NULL;
	}
}
