/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/silent.h"

#include <stdio.h>
#include <string.h>

#include "base/mounted.h"
#include "cmd/access/cgroup.h"
#include "cmd/access/cmd.h"
#include "cmd/access/holders.h"
#include "cmd/access/requests.h"

/* proc_pid_stat(5) */
bool silent_is_stopped(pid_t pid, pid_t *ret_parent)
{
	char path[64], line[512] = "", state = '?', *behind;
	int parent = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	in = fopen(path, "re");
	if (!in)
		return false;
	if (fgets(line, sizeof(line), in) && (behind = strrchr(line, ')')))
		sscanf(behind + 1, " %c %d", &state, &parent);
	fclose(in);
	if (ret_parent)
		*ret_parent = parent;
	return state == 'T';
}

static bool has_name_of(pid_t pid, pid_t other)
{
	char number[2][16], name[2][32];

	snprintf(number[0], sizeof(number[0]), "%d", (int)pid);
	snprintf(number[1], sizeof(number[1]), "%d", (int)other);
	holders_name(number[0], name[0], sizeof(name[0]));
	holders_name(number[1], name[1], sizeof(name[1]));
	return !strcmp(name[0], name[1]);
}

int silent_error(const char *point)
{
	struct mounted m;
	char group[512];
	pid_t pid = mounted_at(point, &m) == 0 ? requests_find_process(m.dev_minor) : 0;
	bool stopped;
	pid_t parent = 0;

	if (pid <= 0)
		return cmd_error(
			"the mount at %s does not answer, and its process is not seen from "
			"here; `cachefs umount --force %s` detaches it",
			point, point);
	stopped = silent_is_stopped(pid, &parent);
	/* Its supervisor. */
	if (stopped && parent > 1 && has_name_of(pid, parent) && silent_is_stopped(parent, NULL))
		return cmd_error("the mount at %s does not answer: its processes are stopped; "
				 "`kill -CONT %d %d` lets them go on",
				 point, (int)parent, (int)pid);
	if (stopped)
		return cmd_error("the mount at %s does not answer: its process %d is stopped; "
				 "`kill -CONT %d` lets it go on",
				 point, (int)pid, (int)pid);
	if (cgroup_frozen(pid, group, sizeof(group)))
		return cmd_error("the mount at %s does not answer: its process %d is frozen with "
				 "the control group %s, which has to be thawed",
				 point, (int)pid, group);
	return cmd_error("the mount at %s does not answer; `cachefs debug %s` collects what its "
			 "process %d waits for, `cachefs umount --force %s` detaches it",
			 point, point, (int)pid, point);
}
