/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/silent.h"

#include <stdio.h>
#include <string.h>

#include "base/mounted.h"
#include "cmd/access/cgroup.h"
#include "cmd/access/cmd.h"
#include "cmd/access/holders.h"
#include "cmd/access/requests.h"

/* By a signal. *ret_parent: its parent. proc_pid_stat(5) */
static bool is_stopped(pid_t pid, pid_t *ret_parent)
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

bool silent_cannot_run(pid_t pid, char why[SILENT_WHY_MAX])
{
	char group[512];
	pid_t parent;

	if (is_stopped(pid, &parent))
		snprintf(why, SILENT_WHY_MAX, "is stopped; `kill -CONT %d` lets it go on",
			 (int)pid);
	else if (cgroup_frozen(pid, group, sizeof(group)))
		snprintf(why, SILENT_WHY_MAX,
			 "is frozen with the control group %s, which has to be thawed", group);
	else
		return false;
	return true;
}

int silent_error(const char *point)
{
	char why[SILENT_WHY_MAX];
	struct mounted m;
	pid_t pid = mounted_at(point, &m) == 0 ? requests_find_process(m.dev_minor) : 0;
	pid_t parent = 0, unused;

	if (pid <= 0)
		return cmd_error(
			"the mount at %s does not answer, and its process is not seen from "
			"here; `cachefs umount --force %s` detaches it",
			point, point);
	/* Its supervisor. */
	if (is_stopped(pid, &parent) && parent > 1 && has_name_of(pid, parent) &&
	    is_stopped(parent, &unused))
		return cmd_error("the mount at %s does not answer: its processes are stopped; "
				 "`kill -CONT %d %d` lets them go on",
				 point, (int)parent, (int)pid);
	if (silent_cannot_run(pid, why))
		return cmd_error("the mount at %s does not answer: its process %d %s", point,
				 (int)pid, why);
	return cmd_error("the mount at %s does not answer; `cachefs debug %s` collects what its "
			 "process %d waits for, `cachefs umount --force %s` detaches it",
			 point, point, (int)pid, point);
}
