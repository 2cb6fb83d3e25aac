/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections of a database. Idle connections are a stack: the last used one, whose caches are
 * warm, is used next. A single-writer database has one more connection, for writing.
 *
 * Waiters queue. A running thread may overtake a sleeping waiter and take a returned connection,
 * which keeps the server busy. Only one waiter is woken at a time. A waiter that was overtaken once
 * gets the next connection directly, so that the wait is bounded.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text/opt.h"
#include "base/tsan.h"
#include "meta/sql/sql-internal.h"

#define MIN_CONNS 4
#define MAX_CONNS 16

/* Defaults for a database server, whose connections mostly wait for the network. */
#define SERVER_CONNS	16
#define SERVER_IDLE_S	300
#define SWEEP_PERIOD_MS 1000
#define FULL_MS		5000

#define DEFAULT_TIMEOUT_MS 30000
#define RETRY_BASE_MS	   1
#define RETRY_MAX_MS	   32

static unsigned default_conns(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return (unsigned)CFS_MIN(CFS_MAX(2 * cpus, MIN_CONNS), MAX_CONNS);
}

static int option_number(const struct cfs_url *url, const char *key, unsigned max, unsigned *num)
{
	const char *text = cfs_url_option(url, key);
	char *end;
	unsigned long v;

	if (!text)
		return 0;
	v = strtoul(text, &end, 10);
	if (!*text || *end || v > max)
		return -EINVAL;
	if (v)
		*num = (unsigned)v;
	return 0;
}

static int option_duration(const struct cfs_url *url, const char *key, uint64_t *ms)
{
	const char *text = cfs_url_option(url, key);

	return text ? cfs_parse_duration_ms(text, 1000, ms) : 0;
}

static int read_options(struct sql_db *db, const struct cfs_url *url)
{
	unsigned cpus = default_conns();
	int r;

	db->pool.max_conns = db->dialect->single_writer ? cpus : SERVER_CONNS;
	db->pool.max_idle = db->pool.max_conns;
	if (!db->dialect->single_writer)
		db->pool.idle_ms = SERVER_IDLE_S * 1000;
	r = option_number(url, "max_open_conns", 1024, &db->pool.max_conns);
	if (!r)
		r = option_number(url, "max_idle_conns", 1024, &db->pool.max_idle);
	if (!r)
		r = option_duration(url, "max_idle_time", &db->pool.idle_ms);
	return r ? r : option_duration(url, "max_life_time", &db->pool.life_ms);
}

/* Allows only characters of an unquoted identifier. */
static int make_prefix(const struct cfs_url *url, char **ret)
{
	const char *word = cfs_url_option(url, "table_prefix");

	if (!word || !*word) {
		*ret = strdup("jfs_");
		return *ret ? 0 : -ENOMEM;
	}
	for (const char *p = word; *p; p++)
		if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
		      (*p >= '0' && *p <= '9') || *p == '_'))
			return -EINVAL;
	if (asprintf(ret, "jfs_%s_", word) < 0) {
		*ret = NULL;
		return -ENOMEM;
	}
	return 0;
}

int sql_db_init(struct sql_db *db, const struct cfs_engine_conf *conf,
		const struct cfs_engine_ops *ops, const struct sql_dialect *dialect)
{
	pthread_mutexattr_t spin;
	int r;

	db->engine = (struct cfs_engine){.ops = ops, .host = conf->host};
	db->dialect = dialect;
	db->read_only = conf->meta->read_only;
	db->timeout_ms = conf->meta->timeout_ms ? conf->meta->timeout_ms : DEFAULT_TIMEOUT_MS;
	/* Spins first: a transaction is shorter than a sleep and a wake-up. */
	pthread_mutexattr_init(&spin);
	pthread_mutexattr_settype(&spin, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(&db->write_lock, &spin);
	pthread_mutexattr_destroy(&spin);
	pthread_mutex_init(&db->pool.lock, NULL);
	pthread_mutex_init(&db->columns.lock, NULL);
	pthread_mutex_init(&db->abandoned.lock, NULL);
	TAILQ_INIT(&db->pool.waiters);
	r = read_options(db, conf->url);
	return r ? r : make_prefix(conf->url, &db->prefix);
}

void sql_db_deinit(struct sql_db *db)
{
	while (db->pool.idle) {
		struct sql_conn *c = db->pool.idle;

		db->pool.idle = c->next;
		db->dialect->disconnect(c);
	}
	if (db->writer)
		db->dialect->disconnect(db->writer);
	pthread_mutex_destroy(&db->pool.lock);
	pthread_mutex_destroy(&db->write_lock);
	pthread_mutex_destroy(&db->columns.lock);
	pthread_mutex_destroy(&db->abandoned.lock);
	free(db->columns.have);
	free(db->bare_prefix);
	free(db->prefix);
	free(db->where);
}

/* ---- connecting ---- */

static int connect_to(struct sql_db *db, bool writer, struct sql_conn **ret, char err[256])
{
	int r = db->dialect->connect(db, writer, ret, err);

	if (r)
		return r;
	cfs_host_connected(db->engine.host);
	(*ret)->db = db;
	(*ret)->writer = writer;
	(*ret)->epoch = atomic_load(&db->epoch);
	(*ret)->made_ms = (*ret)->idle_ms = cfs_now_ms();
	return 0;
}

/* Connects on a running mount: logs failures. */
static int connect_again(struct sql_db *db, bool writer, struct sql_conn **ret)
{
	char err[256] = "";
	int r = connect_to(db, writer, ret, err);

	if (r == -ENOTCONN) {
		if (!atomic_exchange(&db->away, true))
			cfs_warn("no connection to the database, operations wait: url=%s "
				 "error=%s",
				 db->where, err);
	} else if (r && r != -EAGAIN) {
		cfs_err("connection failed: url=%s error=%s", db->where, err);
	} else if (!r && atomic_exchange(&db->away, false)) {
		cfs_warn("connected to the database again: url=%s", db->where);
	}
	/* Programs would take -ENOENT, for a missing database, for a missing name. */
	return r == -ENOENT ? -EIO : r;
}

static bool is_old(const struct sql_conn *c, uint64_t now_ms)
{
	uint64_t life_ms = c->db->pool.life_ms;

	return life_ms && now_ms - c->made_ms >= life_ms;
}

static bool usable(struct sql_conn *c)
{
	return !c->broken && c->epoch == atomic_load(&c->db->epoch);
}

/* ---- the write connection ---- */

/* ThreadSanitizer does not support pthread_mutex_clocklock(). */
static int lock_until(pthread_mutex_t *lock, cfs_deadline_t deadline)
{
#ifdef CFS_TSAN
	while (pthread_mutex_trylock(lock)) {
		if (cfs_deadline_passed(deadline))
			return -ETIMEDOUT;
		sched_yield();
	}
	return 0;
#else
	struct timespec until = {.tv_sec = (time_t)(deadline / 1000),
				 .tv_nsec = (long)(deadline % 1000) * 1000000};

	return -pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, &until);
#endif
}

static int lock_writer(struct sql_db *db, cfs_deadline_t deadline)
{
	if (!pthread_mutex_trylock(&db->write_lock))
		return 0;
	return lock_until(&db->write_lock, deadline);
}

static int single_writer(struct sql_db *db, cfs_deadline_t deadline, struct sql_conn **ret)
{
	int r = lock_writer(db, deadline);

	if (r)
		return r;
	if (db->writer && !usable(db->writer)) {
		db->dialect->disconnect(db->writer);
		db->writer = NULL;
	}
	if (!db->writer)
		r = connect_again(db, true, &db->writer);
	if (r)
		pthread_mutex_unlock(&db->write_lock);
	else
		*ret = db->writer;
	return r;
}

/* The write connection if it is connected and idle. */
static struct sql_conn *borrow_writer(struct sql_db *db)
{
	if (!db->dialect->single_writer || pthread_mutex_trylock(&db->write_lock))
		return NULL;
	if (db->writer && usable(db->writer))
		return db->writer;
	pthread_mutex_unlock(&db->write_lock);
	return NULL;
}

/* ---- the pool ---- */

struct sql_waiter {
	TAILQ_ENTRY(sql_waiter) link;
	pthread_cond_t wake;
	struct sql_conn *given;
	bool woken, overtaken;
};

/* Under pool.lock. Called when there may be a connection, or room for one. */
static void wake_first(struct sql_db *db)
{
	struct sql_waiter *w = TAILQ_FIRST(&db->pool.waiters);

	if (!w || w->woken)
		return;
	w->woken = true;
	pthread_cond_signal(&w->wake);
}

/* Under pool.lock. */
static void put_back(struct sql_db *db, struct sql_conn *c)
{
	struct sql_waiter *w = TAILQ_FIRST(&db->pool.waiters);

	if (w && w->overtaken) {
		TAILQ_REMOVE(&db->pool.waiters, w, link);
		w->given = c;
		pthread_cond_signal(&w->wake);
		return;
	}
	c->next = db->pool.idle;
	db->pool.idle = c;
	wake_first(db);
}

/* Under pool.lock. After the server has refused a connection, waits FULL_MS before the next one. */
static bool may_connect(const struct sql_db *db)
{
	if (db->pool.n_conns >= db->pool.max_conns)
		return false;
	return !db->pool.full_until || db->pool.n_conns < db->pool.full_conns ||
	       cfs_deadline_passed(db->pool.full_until);
}

/* Under pool.lock, after connecting failed. 0: wait for one of the existing connections. */
static int give_up(struct sql_db *db, int error)
{
	db->pool.n_conns--;
	wake_first(db);
	if (error != -ENOTCONN || !db->pool.n_conns)
		return error;
	db->pool.full_conns = db->pool.n_conns;
	db->pool.full_until = cfs_deadline_in(FULL_MS);
	return 0;
}

/* Under pool.lock. Takes an idle connection or makes one; *ret is NULL when neither is possible. */
static int take(struct sql_db *db, struct sql_conn **ret)
{
	int r;

	*ret = db->pool.idle;
	if (*ret) {
		db->pool.idle = (*ret)->next;
		return 0;
	}
	if (!may_connect(db))
		return 0;
	db->pool.n_conns++;
	pthread_mutex_unlock(&db->pool.lock);
	r = connect_again(db, !db->dialect->single_writer && !db->read_only, ret);
	pthread_mutex_lock(&db->pool.lock);
	if (!r)
		return 0;
	*ret = NULL;
	return give_up(db, r);
}

/* Under pool.lock, when no connection is idle. */
static int wait_for_one(struct sql_db *db, cfs_deadline_t deadline, struct sql_conn **ret)
{
	struct sql_waiter w = {0};
	int r = cfs_cond_init(&w.wake);

	if (r)
		return r;
	TAILQ_INSERT_TAIL(&db->pool.waiters, &w, link);
	for (;;) {
		while (!r && !w.woken && !w.given)
			r = cfs_cond_wait(&w.wake, &db->pool.lock, deadline);
		if (w.given) { /* put_back() has removed the waiter from the list */
			*ret = w.given;
			r = 0;
			break;
		}
		TAILQ_REMOVE(&db->pool.waiters, &w, link);
		if (!r)
			r = take(db, ret);
		if (r || *ret)
			break;
		w.woken = false;
		w.overtaken = true;
		TAILQ_INSERT_HEAD(&db->pool.waiters, &w, link);
	}
	if (db->pool.idle || may_connect(db))
		wake_first(db);
	pthread_cond_destroy(&w.wake);
	return r;
}

static int pooled(struct sql_db *db, cfs_deadline_t deadline, bool quick, struct sql_conn **ret)
{
	uint64_t commits = atomic_load_explicit(&db->commits, memory_order_relaxed);
	struct sql_conn *c = NULL;
	int r = 0;

	pthread_mutex_lock(&db->pool.lock);
	if (quick && (!db->pool.idle || db->pool.idle->commits != commits))
		c = borrow_writer(db);
	if (!c) {
		r = take(db, &c);
		if (!r && !c)
			r = wait_for_one(db, deadline, &c);
		if (c)
			c->commits = commits;
	}
	pthread_mutex_unlock(&db->pool.lock);
	if (!r)
		*ret = c;
	return r;
}

int sql_acquire_writer(struct sql_db *db, cfs_deadline_t deadline, struct sql_conn **ret)
{
	return db->dialect->single_writer ? single_writer(db, deadline, ret)
					  : pooled(db, deadline, false, ret);
}

int sql_acquire_reader(struct sql_db *db, cfs_deadline_t deadline, bool quick,
		       struct sql_conn **ret)
{
	return pooled(db, deadline, quick, ret);
}

static void disconnect_all(struct sql_conn *list)
{
	while (list) {
		struct sql_conn *c = list;

		list = c->next;
		c->db->dialect->disconnect(c);
	}
}

/* Removes connections beyond max_idle, and those idle for too long, which are at the end. */
static struct sql_conn *sweep(struct sql_db *db, uint64_t now_ms)
{
	struct sql_conn **p = &db->pool.idle, *gone;
	unsigned n = 0;

	db->pool.swept_ms = now_ms;
	for (; *p && n < db->pool.max_idle; p = &(*p)->next, n++)
		if (db->pool.idle_ms && now_ms - (*p)->idle_ms >= db->pool.idle_ms)
			break;
	gone = *p;
	*p = NULL;
	for (struct sql_conn *c = gone; c; c = c->next)
		db->pool.n_conns--;
	return gone;
}

void sql_release(struct sql_conn *c)
{
	struct sql_db *db = c->db;
	struct sql_conn *gone = NULL;
	uint64_t now_ms = 0;
	bool keep = usable(c);

	if (db->dialect->single_writer && c->writer) {
		pthread_mutex_unlock(&db->write_lock);
		return;
	}
	if (!db->dialect->single_writer) {
		c->idle_ms = now_ms = cfs_now_ms();
		keep = keep && !is_old(c, now_ms);
	}
	if (!keep)
		db->dialect->disconnect(c);
	pthread_mutex_lock(&db->pool.lock);
	if (keep) {
		put_back(db, c);
	} else {
		db->pool.n_conns--;
		wake_first(db);
	}
	if (now_ms - db->pool.swept_ms >= SWEEP_PERIOD_MS)
		gone = sweep(db, now_ms);
	pthread_mutex_unlock(&db->pool.lock);
	disconnect_all(gone);
}

void sql_forget_statements(struct sql_db *db)
{
	struct sql_conn *stale;

	atomic_fetch_add(&db->epoch, 1);
	pthread_mutex_lock(&db->pool.lock);
	stale = db->pool.idle;
	db->pool.idle = NULL;
	for (struct sql_conn *c = stale; c; c = c->next)
		db->pool.n_conns--;
	wake_first(db);
	pthread_mutex_unlock(&db->pool.lock);
	disconnect_all(stale);
}

void sql_forget_server(const struct sql_conn *c)
{
	if (c->epoch == atomic_load(&c->db->epoch))
		sql_forget_statements(c->db);
}

int sql_db_probe(struct sql_db *db, cfs_deadline_t deadline, char err[256])
{
	bool writer = !db->dialect->single_writer && !db->read_only;
	struct sql_conn *c;
	unsigned attempt = 0;
	int r;

	while ((r = connect_to(db, writer, &c, err)) == -EAGAIN)
		if (!cfs_backoff(attempt++, RETRY_BASE_MS, RETRY_MAX_MS, deadline))
			return -ETIMEDOUT;
	if (r)
		return r;
	db->pool.n_conns++;
	db->pool.idle = c;
	return 0;
}
