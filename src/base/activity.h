/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The activity of every thread: the request it carries out, and the waits within. It explains why a
 * mount does not answer, so it must be readable when nothing else works. The records lie in shared
 * memory, a memfd named CFS_ACTIVITY_NAME, which another process may read through /proc/PID/fd
 * (`cachefs debug` does).
 *
 * A thread writes only its own record, without locks: some plain stores per request and per wait.
 * It gets a record with its first report, and returns it at its end. Threads beyond
 * CFS_ACTIVITY_THREADS are not recorded.
 *
 * A record has one request and the waits of its thread, the outermost first. A wait for the work of
 * another thread names that work by an id (a slice), and the working thread shows the same id.
 * cfs_activity_describe() follows it, so that a request that waits for a block is explained by the
 * call to the object store that fetches it.
 */
#ifndef CFS_ACTIVITY_H
#define CFS_ACTIVITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CFS_ACTIVITY_NAME    "cachefs-activity"
#define CFS_ACTIVITY_THREADS 2048
#define CFS_ACTIVITY_WAITS   4	  /* deeper ones go unseen */
#define CFS_ACTIVITY_TEXT    192  /* longer texts are cut */
#define CFS_ACTIVITY_QUEUED  (-1) /* in place of the thread that has it */

enum cfs_wait {
	CFS_WAIT_NONE,
	CFS_WAIT_META,	     /* calls of the metadata engine; text: which, or what for */
	CFS_WAIT_OBJECT_GET, /* text: key */
	CFS_WAIT_OBJECT_PUT,
	CFS_WAIT_OBJECT_DELETE,
	CFS_WAIT_OBJECT_SYNC,
	CFS_WAIT_BLOCK,	      /* another thread fetches it; text: key */
	CFS_WAIT_COMMIT,      /* another thread stores a slice; text: of which inode */
	CFS_WAIT_PEER,	      /* text: address */
	CFS_WAIT_DISK,	      /* a file of the disk cache; text: path */
	CFS_WAIT_MEMORY,      /* the budget of the pool */
	CFS_WAIT_QUEUE,	      /* room in a queue of work; text: which */
	CFS_WAIT_TURN,	      /* others change the same file */
	CFS_WAIT_LOCK,	      /* a file lock; text: held by whom. Has no deadline by design */
	CFS_WAIT_OBJECT_LIST, /* text: prefix */
	CFS_WAIT_OBJECT_HEAD,
	CFS_WAIT_OBJECT_CREATE, /* of the bucket */
	CFS_WAIT_THREAD,	/* its end; text: its name */
	CFS_WAIT_COUNT
};

/*
 * Makes the shared memory. Once, before the threads that are to be seen start and after the last
 * fork() of a process that continues as this program; until then nothing is recorded.
 */
int cfs_activity_init(void);

/* The minor number of the mount's device, by which other processes find the one that serves it. */
void cfs_activity_set_device(unsigned minor);

/* Begins the request of the calling thread. Copies at most 15 bytes of op. started_ms 0: now. */
void cfs_activity_request(const char *op, uint64_t ino, pid_t caller, uint64_t started_ms);
void cfs_activity_request_end(void);

/*
 * A request without a thread, shown as waiting for that until a thread takes it up and returns the
 * record. NULL: not recorded. text as of cfs_activity_wait().
 */
struct cfs_activity_queued;
struct cfs_activity_queued *cfs_activity_queue(const char *op, uint64_t ino, pid_t caller,
					       uint64_t started_ms, enum cfs_wait what,
					       const char *text);
void cfs_activity_dequeue(struct cfs_activity_queued *a); /* or NULL */

/*
 * Brackets a call that may block. id 0: none. text is copied and may be NULL. Calls nest; each has
 * its end.
 */
void cfs_activity_wait(enum cfs_wait what, uint64_t id, const char *text);
void cfs_activity_wait_end(void);
/*
 * Calls fn before each wait of the calling thread. NULL: calls nothing. fn must not wait, and may
 * take leaf locks only.
 */
void cfs_activity_on_wait(void (*fn)(void));
/* Replaces the text of the innermost wait. */
void cfs_activity_wait_goes_on(const char *text);

/*
 * The longest wait of the calling thread since cfs_activity_request(), and at least that long:
 * "metadata". Of waits within others the outermost counts. "": none, or unknown.
 */
const char *cfs_activity_waited(uint64_t least_ms);

/* ---- reading ---- */

struct cfs_activity {
	pid_t tid; /* or CFS_ACTIVITY_QUEUED */
	char thread[16];
	char op[16]; /* "": no request */
	uint64_t ino;
	pid_t caller;
	uint64_t since_ms; /* CLOCK_MONOTONIC, as cfs_now_ms() */
	unsigned n_waits;
	struct cfs_activity_wait {
		enum cfs_wait what;
		uint64_t id, since_ms;
		char text[CFS_ACTIVITY_TEXT];
	} waits[CFS_ACTIVITY_WAITS];
};

/*
 * Lists the threads that have a request or wait, oldest request first. fd: of another process'
 * memory, -1: our own. -EPROTO: that is of another version of the program. *ret is malloc'ed.
 */
int cfs_activity_read(int fd, struct cfs_activity **ret, size_t *ret_n);
/* The number that was set in another process' memory; 0: none, or it is of another version. */
unsigned cfs_activity_device(int fd);
/* A file lock is waited for at any depth. */
bool cfs_activity_waits_for_lock(const struct cfs_activity *a);
/*
 * The wait of all[i], followed through as many threads as it takes: "block KEY: object get KEY
 * (12.3 s)". Always terminated; "nothing known" when it does not wait or no thread has reported.
 */
void cfs_activity_describe(const struct cfs_activity *all, size_t n, size_t i, char *buf,
			   size_t size);

#endif
