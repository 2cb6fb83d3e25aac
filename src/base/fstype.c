/* SPDX-License-Identifier: Apache-2.0 */
#include "fstype.h"

#include <errno.h>
#include <stddef.h>
#include <sys/statfs.h>

#include "bytes.h"

/* statfs(2) and the kernel's include/uapi/linux/magic.h */
static const struct {
	uint32_t magic;
	const char *name;
	bool network, in_memory;
} kinds[] = {
	{0xef53, "ext4", false, false},	     {0x58465342, "xfs", false, false},
	{0x9123683e, "btrfs", false, false}, {0x2fc12fc1, "zfs", false, false},
	{0xf2f52010, "f2fs", false, false},  {0x794c7630, "overlay", false, false},
	{0x01021994, "tmpfs", false, true},  {0x858458f6, "ramfs", false, true},
	{0x6969, "nfs", true, false},	     {0x517b, "smb", true, false},
	{0xff534d42, "cifs", true, false},   {0xfe534d42, "smb2", true, false},
	{0x00c36400, "ceph", true, false},   {0x0bd00bd0, "lustre", true, false},
	{0x47504653, "gpfs", true, false},   {0x5346414f, "afs", true, false},
	{0x01021997, "9p", true, false},     {0x65735546, "fuse", true, false},
	{0x01161970, "gfs2", true, false},   {0x7461636f, "ocfs2", true, false},
};

int cfs_fstype(const char *path, struct cfs_fstype_info *ret)
{
	struct statfs st;
	size_t i;

	if (statfs(path, &st) < 0)
		return -errno;
	*ret = (struct cfs_fstype_info){
		.name = "other",
		.free = st.f_blocks ? (double)st.f_bavail / (double)st.f_blocks : 0,
		.free_bytes = (uint64_t)st.f_bavail * (uint64_t)st.f_bsize,
	};
	for (i = 0; i < CFS_ARRAY_SIZE(kinds); i++) {
		if (kinds[i].magic != (uint32_t)st.f_type)
			continue;
		ret->name = kinds[i].name;
		ret->network = kinds[i].network;
		ret->in_memory = kinds[i].in_memory;
	}
	return 0;
}
