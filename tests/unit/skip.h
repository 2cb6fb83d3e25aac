/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_TEST_SKIP_H
#define CFS_TEST_SKIP_H

#include <stdlib.h>
#include <string.h>

/* Leaves a test out for want of what scripts/test has. There, it fails. After cmocka.h. */
#define skip_missing(what)                                                                         \
	do {                                                                                       \
		const char *complete_ = getenv("CACHEFS_TEST_COMPLETE");                           \
		if (complete_ && !strcmp(complete_, "1"))                                          \
			fail_msg("%s", what);                                                      \
		print_message("skipped: %s\n", what);                                              \
		skip();                                                                            \
	} while (0)

#endif
