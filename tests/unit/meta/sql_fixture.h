/* SPDX-License-Identifier: Apache-2.0 */
/* The SQL operations without the metadata core: an empty volume in a scratch SQLite database. */
#ifndef CFS_TEST_SQL_FIXTURE_H
#define CFS_TEST_SQL_FIXTURE_H

#include <sqlite3.h>

#include "meta/engine/engine.h"

struct fixture {
	char dir[32];
	struct cfs_engine_host host;
	cfs_ino_t open_ino; /* the file that the host has open */
	struct cfs_engine *e;
	sqlite3 *db; /* a second look at the tables */
	struct cfs_ctx ctx;
	cfs_ino_t next_ino;
};

#define FIXTURE_SID 7

int fixture_setup(void **state);
int fixture_teardown(void **state);

/* The first column of the first row; 0 without a row. */
int64_t fixture_number(struct fixture *f, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The same as hexadecimal text in a static buffer. */
const char *fixture_hex(struct fixture *f, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Each asserts success. */
cfs_ino_t fixture_make(struct fixture *f, cfs_ino_t parent, const char *name, uint8_t type);
struct cfs_attr fixture_attr(struct fixture *f, cfs_ino_t ino);
cfs_ino_t fixture_hour(struct fixture *f);

#endif
