/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a run of cfsx: set once by parse_options(), read by everything else. */
#ifndef CFSX_OPTIONS_H
#define CFSX_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_FILES 16
#define MAX_DIRS  8

enum kind {
	OP_WRITE,
	OP_READ,
	OP_MAPWRITE,
	OP_MAPREAD,
	OP_TRUNCATE,
	OP_APPEND,
	OP_REOPEN,
	OP_FSYNC,
	OP_SYNCALL,
	OP_ALLOCATE,
	OP_PUNCH,
	OP_ZERO,
	OP_COPY,
	OP_CLONE,
	OP_COUNT,
};

struct options {
	uint64_t seed, n_ops, max_size, max_io;
	unsigned n_files, n_dirs;
	const char *dirs[MAX_DIRS];
	const char *progress_path;
	const char *clone_program;
	bool enabled[OP_COUNT];
	bool mixed; /* O_DIRECT, and mappings that stay */
	bool verify, verbose;
};
extern struct options conf;

/* Ends the program when there is nothing to run: with 0 after --help, else with 2. */
void parse_options(int argc, char **argv);

#endif
