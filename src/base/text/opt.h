/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Option tables. One table describes the fields of one structure; the same table serves the
 * command line ("--name value", "--name=value", "-l value"), mount options ("name=value,flag"),
 * --help and the dump of effective values. Spelling is lower case with '-'; '_' is accepted for it.
 */
#ifndef CFS_OPT_H
#define CFS_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum cfs_opt_kind {
	CFS_OPT_FLAG,	  /* bool; "name", "name=true|false|1|0", "--no-name" */
	CFS_OPT_INT,	  /* int64_t within min..max */
	CFS_OPT_SIZE,	  /* uint64_t bytes; suffix K M G T P (powers of 1024), else in `unit` */
	CFS_OPT_DURATION, /* uint64_t ms; suffix ms s m h d, else in `unit`; "0.5" allowed */
	CFS_OPT_FRACTION, /* double 0..1 */
	CFS_OPT_STRING,	  /* char *, owned by the structure, NULL when unset; min 1: not empty */
	CFS_OPT_CHOICE,	  /* int, index into `choices` (NULL-terminated) */
};

enum cfs_opt_flags {
	CFS_OPT_SECRET = 1 << 0, /* never shown; only cfs_opt_set() takes it, arguments do not */
	CFS_OPT_HIDDEN = 1 << 1, /* not in --help: for tests */
	/* A number: all bits of the field are set until a value is given; `def` is only shown. */
	CFS_OPT_UNSET = 1 << 2,
};

struct cfs_opt {
	const char *name;
	char letter; /* on a command line "-l" is the same as "--name"; 0: none */
	enum cfs_opt_kind kind;
	unsigned flags;
	size_t offset;	  /* of the field in the structure */
	uint64_t unit;	  /* of a bare SIZE, in bytes, or DURATION, in ms; 0: bytes, seconds */
	int64_t min, max; /* INT when not both 0; SIZE (bytes) and DURATION (ms) when max > 0 */
	const char *def;  /* parsed like a user's value; NULL: zero/unset */
	const char *arg;  /* stands for the value in --help, e.g. "SIZE"; NULL for flags */
	const char *help; /* one sentence, lower case, no full stop */
	const char *const *choices;
};

/* A table ends with .name == NULL. `err` receives one line that names the option and the value. */
#define CFS_OPT_ERRLEN 256

int cfs_opt_defaults(const struct cfs_opt *table, void *dst);
void cfs_opt_free(const struct cfs_opt *table, void *dst); /* frees strings */
/*
 * 0; -ENOENT when the table has no such name; -EINVAL with `err` filled. value NULL: flag given
 * bare.
 */
int cfs_opt_set(const struct cfs_opt *table, void *dst, const char *name, const char *value,
		char err[CFS_OPT_ERRLEN]);

/*
 * One argument of a command line. Returns how many entries of argv it used (1 or 2), 0 when argv[0]
 * is not an option ("-", "--", no dash), -ENOENT for an unknown option, -EINVAL with `err` filled.
 */
int cfs_opt_arg(const struct cfs_opt *table, void *dst, int argc, char *const *argv,
		char err[CFS_OPT_ERRLEN]);

/*
 * A comma separated list ("\," is a literal comma). Names that the table lacks are handed to
 * `unknown` (return 0 to go on, negative to stop); NULL stops with -ENOENT and `err` filled.
 */
typedef int (*cfs_opt_unknown_fn)(void *arg, const char *name, const char *value);
int cfs_opt_list(const struct cfs_opt *table, void *dst, const char *list,
		 cfs_opt_unknown_fn unknown, void *arg, char err[CFS_OPT_ERRLEN]);

/* '-' and '_' are the same. */
bool cfs_opt_same_name(const char *name, const char *given);

/* Two columns, wrapped at 100; default shown in brackets. */
void cfs_opt_help(const struct cfs_opt *table, FILE *out);
/* The effective value as text, secrets as "***"; buf is always terminated. */
void cfs_opt_show(const struct cfs_opt *o, const void *src, char *buf, size_t size);

/*
 * Shared scalars. -EINVAL when malformed, -ERANGE when it does not fit. K, KB and KiB are the same;
 * durations may be joined ("1h30m").
 */
int cfs_parse_size(const char *text, uint64_t unit, uint64_t *ret);
int cfs_parse_duration_ms(const char *text, uint64_t unit_ms, uint64_t *ret);

#endif
