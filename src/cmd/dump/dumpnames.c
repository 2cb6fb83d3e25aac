/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/dumpnames.h"

#include <string.h>

const char *const dump_counter_names[COUNTER_COUNT] = {
	"usedSpace", "totalInodes", "nextInode", "nextChunk", "nextSession", "nextTrash",
};
const char *const dump_counter_json_names[COUNTER_COUNT] = {
	"usedSpace", "usedInodes", "nextInodes", "nextChunk", "nextSession", "nextTrash",
};
const char *const dump_type_names[] = {
	"", "regular", "directory", "symlink", "fifo", "blockdev", "chardev", "socket",
};

enum dump_counter dump_counter_find(const char *const names[COUNTER_COUNT], const char *name,
				    size_t len)
{
	enum dump_counter i;

	for (i = 0; i < COUNTER_COUNT; i++)
		if (strlen(names[i]) == len && !memcmp(names[i], name, len))
			break;
	return i;
}
