/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/engine/changelog.h"

#include <string.h>

const char *cfs_changelog_name(const char *name, size_t len, char *buf)
{
	static const char hex[] = "0123456789ABCDEF";
	char *p = buf;

	for (size_t i = 0; i < len; i++) {
		unsigned char ch = (unsigned char)name[i];

		if (ch < 32 || ch >= 127 || strchr(",%()\"\\", ch)) {
			*p++ = '%';
			*p++ = hex[ch >> 4];
			*p++ = hex[ch & 15];
		} else {
			*p++ = (char)ch;
		}
	}
	*p = '\0';
	return buf;
}

unsigned cfs_changelog_set_bits(uint32_t set)
{
	static const struct {
		uint32_t ours;
		unsigned theirs;
	} bits[] = {
		{CFS_SET_MODE, 1},	  {CFS_SET_UID, 2},	    {CFS_SET_GID, 4},
		{CFS_SET_ATIME, 16},	  {CFS_SET_MTIME, 32},	    {CFS_SET_CTIME, 64},
		{CFS_SET_ATIME_NOW, 128}, {CFS_SET_MTIME_NOW, 256}, {CFS_SET_TIER, 1024},
		{CFS_SET_FLAGS, 1 << 15},
	};
	unsigned out = 0;

	for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
		if (set & bits[i].ours)
			out |= bits[i].theirs;
	return out;
}
