/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A base that is being made. One thread owns the structure and calls the functions. Between
 * base_start() or base_check() and base_ended() another thread stores pieces, or checks them and
 * removes old objects.
 */
#ifndef CFS_REPLICA_BASE_H
#define CFS_REPLICA_BASE_H

#include "replica-internal.h"

struct base {
	/* Set by the owner at first. */
	struct cfs_object_store *o;
	const char *volume;
	uint64_t keep_s;
	void (*ended)(void *arg); /* called on the other thread */
	void *arg;

	struct log_view view;	/* fixed before base_start() */
	uint64_t token, number; /* number of its entry: set before base_check() */
	uint32_t n;		/* pieces */
	uint8_t *refs;		/* body of its entry */
	uint64_t bytes;		/* of the pieces */
	int result;		/* of the thread that has ended */
	atomic_bool done, stop;
	atomic_int failing; /* the store's error while pieces cannot be stored; 0: none */
	bool running;
	pthread_t thread;
};

/* Starts a thread that stores the pieces. */
int base_start(struct base *b);
/*
 * Starts a thread that reads all pieces back. When they are right, it removes entries and bases
 * that are not needed.
 */
int base_check(struct base *b);
/* True once after the started thread has ended. */
bool base_ended(struct base *b);
/* Ends the thread, within a call of the store, and frees all. */
void base_drop(struct base *b);

#endif
