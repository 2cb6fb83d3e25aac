/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A base in the making. One thread owns the structure and calls the functions; another one stores
 * pieces, or checks and tidies up, between base_start() or base_check() and base_ended().
 */
#ifndef CFS_REPLICA_BASE_H
#define CFS_REPLICA_BASE_H

#include "replica-internal.h"

struct base {
	struct cfs_object_store *o; /* set before, as what follows */
	const char *volume;
	uint64_t keep_s;
	void (*ended)(void *arg); /* on the other thread */
	void *arg;

	struct log_view view;	/* fixed before base_start() */
	uint64_t token, number; /* number: of its entry, before base_check() */
	uint32_t n;		/* pieces */
	uint8_t *refs;		/* body of its entry */
	uint64_t bytes;		/* of the pieces */
	int result;		/* of what has ended */
	atomic_bool done, stop;
	atomic_int failing; /* the store's error while pieces cannot be stored */
	bool running;
	pthread_t thread;
};

/* Stores the pieces. */
int base_start(struct base *b);
/* Reads all pieces back; when they are right, removes entries and bases that are not needed. */
int base_check(struct base *b);
/* Whether what was started has ended; once. */
bool base_ended(struct base *b);
/* Ends what is running, within a call of the store, and frees all. */
void base_drop(struct base *b);

#endif
