/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging. One line per decision: "what happened: key=value key=value".
 *
 * Lines go to one sink, chosen by cfs_log_init(): stderr (with the "<n>" syslog prefix of
 * sd-daemon(3) when JOURNAL_STREAM is set), syslog(3), facility LOG_DAEMON, ident "cachefs", or a
 * file. Where there is a ring (logring.h) they are kept there, too.
 * A line identical to the one before it is counted, not written; the count follows when the text
 * changes or CFS_LOG_FOLD_MS have passed. Any thread may log. errno is preserved.
 */
#ifndef CFS_LOG_H
#define CFS_LOG_H

#include <stdbool.h>
#include <stddef.h>

/* The numbers of syslog(3). */
enum cfs_log_level {
	CFS_LOG_ERR = 3,
	CFS_LOG_WARN = 4,
	CFS_LOG_INFO = 6,
	CFS_LOG_DEBUG = 7,
};

enum cfs_log_sink { CFS_LOG_STDERR, CFS_LOG_SYSLOG, CFS_LOG_FILE };

#define CFS_LOG_FOLD_MS 5000

void cfs_log_init(enum cfs_log_sink sink, enum cfs_log_level max);
/*
 * From here on, and in children that are forked: lines are appended to the file at path, which is
 * absolute, in place of the sink, with time, process and level. A file that was moved or removed is
 * created again; as long as that fails, lines go where they went. -errno.
 */
int cfs_log_file(const char *path);
/* "error", "warning", "info", "debug"; -EINVAL for anything else. */
int cfs_log_level_parse(const char *name, enum cfs_log_level *ret);
/* Writes the pending repeat count, if any; for the end of the process and before fork. */
void cfs_log_flush(void);

__attribute__((format(printf, 2, 3))) void cfs_log(enum cfs_log_level level, const char *fmt, ...);
bool cfs_log_enabled(enum cfs_log_level level);

#define cfs_err(...)  cfs_log(CFS_LOG_ERR, __VA_ARGS__)
#define cfs_warn(...) cfs_log(CFS_LOG_WARN, __VA_ARGS__)
#define cfs_info(...) cfs_log(CFS_LOG_INFO, __VA_ARGS__)
#define cfs_debug(...)                                                                             \
	do {                                                                                       \
		if (cfs_log_enabled(CFS_LOG_DEBUG))                                                \
			cfs_log(CFS_LOG_DEBUG, __VA_ARGS__);                                       \
	} while (0)

/* Short symbolic name of a positive or negative errno ("EIO"); never NULL. */
const char *cfs_errname(int err);

/* Writes the reason of a failure for the caller to show, and returns r. */
__attribute__((format(printf, 3, 4))) int cfs_fail(char err[256], int r, const char *fmt, ...);

#endif
