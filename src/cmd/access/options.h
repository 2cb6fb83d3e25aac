/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of option tables. A table's structure is called OPTIONS where the table stands:
 *
 *	#define OPTIONS struct umount_opts
 *	static const struct cfs_opt umount_table[] = {
 *		OPT_FLAG("force", force, "detach at once even when busy"),
 *		OPT_DURATION("timeout", timeout_ms, "TIME", "how long to wait", .def = "300"),
 *		{0},
 *	};
 *
 * After the text follow further members of struct cfs_opt by their names.
 */
#ifndef CFS_CMD_OPTIONS_H
#define CFS_CMD_OPTIONS_H

#include <stddef.h>

#include "base/text/opt.h"

#define OPT_ROW(name_, kind_, field, arg_, help_, ...)                                             \
	{                                                                                          \
		.name = (name_), .kind = (kind_), .offset = offsetof(OPTIONS, field),              \
		.arg = (arg_), .help = (help_), ##__VA_ARGS__                                      \
	}
#define OPT_FLAG(name, field, help, ...)                                                           \
	OPT_ROW(name, CFS_OPT_FLAG, field, NULL, help, ##__VA_ARGS__)
#define OPT_INT(name, field, arg, help, ...)                                                       \
	OPT_ROW(name, CFS_OPT_INT, field, arg, help, ##__VA_ARGS__)
#define OPT_SIZE(name, field, arg, help, ...)                                                      \
	OPT_ROW(name, CFS_OPT_SIZE, field, arg, help, ##__VA_ARGS__)
#define OPT_DURATION(name, field, arg, help, ...)                                                  \
	OPT_ROW(name, CFS_OPT_DURATION, field, arg, help, ##__VA_ARGS__)
#define OPT_FRACTION(name, field, arg, help, ...)                                                  \
	OPT_ROW(name, CFS_OPT_FRACTION, field, arg, help, ##__VA_ARGS__)
#define OPT_STRING(name, field, arg, help, ...)                                                    \
	OPT_ROW(name, CFS_OPT_STRING, field, arg, help, ##__VA_ARGS__)
#define OPT_CHOICE(name, field, choices_, arg, help, ...)                                          \
	OPT_ROW(name, CFS_OPT_CHOICE, field, arg, help, .choices = (choices_), ##__VA_ARGS__)

/* Options of several commands. */
#define OPT_JSON(field) OPT_FLAG("json", field, "print JSON")
#define OPT_CREDENTIALS(field, names)                                                              \
	OPT_STRING("credentials", field, "FILE", "KEY=VALUE lines (" names ", ...), mode 0600")
#define OPT_THREADS(field, help)                                                                   \
	OPT_INT("threads", field, "N", help, .def = "10", .min = 1, .max = 256)

/* The options of a command that only has --json. */
struct json_opts {
	bool json;
};
extern const struct cfs_opt json_table[];

#endif
