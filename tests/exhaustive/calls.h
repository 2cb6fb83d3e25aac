/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that leave the process, counted, and one of them interrupted.
 *
 * The program defines the functions of libc that change files below one directory or move bytes of
 * a socket, so that its own code and all its libraries come through here. While the scene is armed
 * each call gets the next number; call `at` meets its fate:
 *
 *	DIE	the process is killed before the call. Before a recv it waits for the answer, so that
 *		the database has carried it out.
 *	AFTER	the process is killed when the call returns
 *	FAIL	the call is not made and fails with EIO
 *	CUT	the connection is closed: before a send, or before the answer is received
 *
 * A scene is shared memory: it outlives the
 * process.
 */
#ifndef EXHAUSTIVE_CALLS_H
#define EXHAUSTIVE_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fate { FATE_NONE, FATE_DIE, FATE_AFTER, FATE_FAIL, FATE_CUT };

#define CALLS_MAX 4096
#define CALL_NAME 48

struct calls {
	_Atomic bool armed;
	_Atomic uint32_t n;
	_Atomic bool met; /* call `at` was reached */
	uint32_t at;	  /* from 1; 0: none */
	enum fate fate;
	char name[CALLS_MAX][CALL_NAME]; /* of call i + 1, for people and for comparisons */
};

/*
 * dir: files below it are counted, on its file system; no other program uses that directory.
 *
 * EXHAUSTIVE_BREAK in the environment, for tests of the test: "sync:PART" makes syncs of files with
 * PART in their names do nothing.
 */
void calls_watch(struct calls *c, const char *dir);

#endif
