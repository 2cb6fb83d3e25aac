/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the floor programs of the metadata servers: threads, the clock and the report.
 *
 *	floor_SERVER WHERE COUNT CONNECTIONS
 *
 * makes, looks up and removes COUNT empty files in the root of a volume that `cachefs format` has
 * made, each thread over a connection of its own, and prints operations per second as one line of
 * JSON. Every operation is the rows (or keys) that a create, an uncached stat and an unlink of this
 * format cannot do without, in the one round trip that is the cheapest way of the server: none of
 * the judging, of the answers and of the precautions against lost ones that a file system needs.
 * The directory's times move every TOUCH_MS, as with a mount's default options.
 */
#ifndef CFS_BENCH_FLOOR_H
#define CFS_BENCH_FLOOR_H

#include <stdbool.h>
#include <stdint.h>

#define FLOOR_ROOT 1

struct floor_server {
	const char *name;
	/* One connection, used by one thread. Any error ends the program. */
	void *(*connect)(const char *where);
	void (*disconnect)(void *conn);
	/* touch: the directory's times are due. */
	void (*create)(void *conn, int64_t file, bool touch);
	void (*stat)(void *conn, int64_t file);
	void (*unlink)(void *conn, int64_t file, bool touch);
};

int floor_main(int argc, char **argv, const struct floor_server *server);
/* Says what the server said and ends the program. */
__attribute__((noreturn, format(printf, 1, 2))) void floor_fail(const char *fmt, ...);

/* The inode number, the name (returned: its length) and the moment of a file. */
int64_t floor_ino(int64_t file);
int floor_name(int64_t file, char name[32]);
int64_t floor_us(int64_t file);

#endif
