/* SPDX-License-Identifier: Apache-2.0 */
#include "mounted.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"
#include "cleanup.h"

#define ANSWER_MS 2000
#define LINKS_MAX 40   /* as the kernel follows */
#define REST	  8192 /* what is left of a path, with the ends of its links */

void mounted_unescape(char *s)
{
	char *out = s;

	for (; *s; s++, out++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
			*out = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*out = *s;
		}
	}
	*out = '\0';
}

/* proc(5): id parent dev root POINT OPTIONS [tags...] - TYPE SOURCE SUPEROPTIONS */
static bool parse_line(char *line, struct mounted *ret)
{
	char *field[6], *save = NULL, *sep, *uid;
	int i;

	sep = strstr(line, " - ");
	if (!sep)
		return false;
	*sep = '\0';
	for (i = 0; i < 6; i++) {
		field[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!field[i])
			return false;
	}
	mounted_unescape(field[4]);
	snprintf(ret->point, sizeof(ret->point), "%s", field[4]);
	snprintf(ret->options, sizeof(ret->options), "%s", field[5]);
	ret->ro = !strncmp(field[5], "ro", 2);
	if (sscanf(field[2], "%*u:%u", &ret->dev_minor) != 1)
		return false;
	if (sscanf(sep + 3, "%31s %255s", ret->type, ret->source) != 2)
		return false;
	uid = strstr(sep + 3, "user_id=");
	ret->uid = uid ? (unsigned)strtoul(uid + 8, NULL, 10) : 0;
	mounted_unescape(ret->source);
	return true;
}

int mounted_at(const char *path, struct mounted *ret)
{
	cfs_auto_free char *line = NULL;
	struct mounted m;
	int r = -ENOENT;
	size_t cap = 0;
	FILE *in;

	in = fopen("/proc/self/mountinfo", "re");
	if (!in)
		return -errno;
	while (getline(&line, &cap, in) > 0) {
		if (!parse_line(line, &m) || strcmp(m.point, path))
			continue;
		*ret = m; /* later lines are mounted over earlier ones */
		r = 0;
	}
	fclose(in);
	return r;
}

int mounted_seen_by(const char *pid, const struct mounted *like, struct mounted *ret)
{
	cfs_auto_free char *line = NULL;
	char path[300];
	int r = -ENOENT;
	size_t cap = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%s/mountinfo", pid);
	in = fopen(path, "re");
	if (!in)
		return -errno;
	while (r < 0 && getline(&line, &cap, in) > 0) {
		if (parse_line(line, ret) && ret->dev_minor == like->dev_minor &&
		    ret->uid == like->uid && !strcmp(ret->source, like->source) &&
		    !strcmp(ret->type, CFS_FSTYPE))
			r = 0;
	}
	fclose(in);
	return r;
}

int mounted_ask(const char *point, uint64_t timeout_ms)
{
	struct pollfd answer = {.events = POLLIN};
	struct statvfs st;
	int pair[2], err = 0;
	bool answered;
	pid_t pid;

	if (pipe2(pair, O_CLOEXEC) < 0)
		return -errno;
	/* A thread that asks a mount that hangs could not be ended. */
	pid = fork();
	if (pid == 0) {
		/* Nor may it keep the pipes of this program's caller open. */
		close_range(STDIN_FILENO, STDERR_FILENO, 0);
		err = statvfs(point, &st) < 0 ? errno : 0;
		_exit(write(pair[1], &err, sizeof(err)) != sizeof(err));
	}
	close(pair[1]);
	answer.fd = pair[0];
	answered = pid > 0 && poll(&answer, 1, (int)CFS_MIN(timeout_ms, (uint64_t)INT_MAX)) > 0 &&
		   read(pair[0], &err, sizeof(err)) == sizeof(err);
	close(pair[0]);
	if (pid > 0 && !answered)
		kill(pid, SIGKILL);
	if (pid > 0)
		waitpid(pid, NULL, answered ? 0 : WNOHANG);
	if (pid < 0)
		return -EAGAIN;
	return answered ? -err : -ETIMEDOUT;
}

bool mounted_is_dead(const char *point)
{
	int r = mounted_ask(point, ANSWER_MS);

	/* ECONNABORTED: the connection ended while the question was on its way. */
	return r == -ENOTCONN || r == -ECONNABORTED;
}

int mounted_resolve(const char *path, char *buf, size_t size)
{
	cfs_auto_free char *copy = strdup(path), *parent = NULL;
	char *base;
	size_t len;

	if (!copy)
		return -ENOMEM;
	len = strlen(copy);
	while (len > 1 && copy[len - 1] == '/')
		copy[--len] = '\0';
	base = strrchr(copy, '/');
	base = base ? base + 1 : copy;
	if (!*base || !strcmp(base, ".") || !strcmp(base, "..")) {
		parent = realpath(copy, NULL);
		if (!parent)
			return -errno;
		if ((size_t)snprintf(buf, size, "%s", parent) >= size)
			return -ENAMETOOLONG;
		return 0;
	}
	if (base == copy) {
		parent = realpath(".", NULL);
	} else {
		base[-1] = '\0';
		parent = realpath(base - 1 == copy ? "/" : copy, NULL);
	}
	if (!parent)
		return -errno;
	if ((size_t)snprintf(buf, size, "%s/%s", strcmp(parent, "/") ? parent : "", base) >= size)
		return -ENAMETOOLONG;
	return 0;
}

/* Appends a component to an absolute path without a slash at its end; "" is the root. */
static int append(char *path, size_t size, const char *name, size_t len)
{
	size_t at = strlen(path);

	if (at + 1 + len >= size)
		return -ENAMETOOLONG;
	path[at] = '/';
	memcpy(path + at + 1, name, len);
	path[at + 1 + len] = '\0';
	return 0;
}

static void cut(char *path)
{
	char *slash = strrchr(path, '/');

	if (slash)
		*slash = '\0';
}

/* Returns the length of the link that is at the end of the path, 0: it is none. */
static size_t read_link(const char *path, char *ret, size_t size)
{
	ssize_t n = readlink(path, ret, size - 1);

	if (n <= 0)
		return 0;
	ret[n] = '\0';
	return (size_t)n;
}

/* Puts the end of the link in place of the last component, and of what is left to walk. */
static int follow_link(char *path, const char *link, const char *left, char rest[REST])
{
	char joined[REST];

	if ((size_t)snprintf(joined, sizeof(joined), "%s%s", link, left) >= sizeof(joined))
		return -ENAMETOOLONG;
	memcpy(rest, joined, sizeof(joined));
	cut(path);
	if (*link == '/')
		*path = '\0';
	return 0;
}

int mounted_follow(const char *path, char *buf, size_t size)
{
	char link[REST / 2] = "", rest[REST], *name = rest;
	size_t len, inside = 0; /* length of the mount point that the path is below */
	unsigned links = 0;
	struct mounted m;
	int r = 0;

	if (*path != '/' && !getcwd(link, sizeof(link)))
		return -errno;
	if ((size_t)snprintf(rest, sizeof(rest), "%s/%s", link, path) >= sizeof(rest))
		return -ENAMETOOLONG;
	*buf = '\0';
	while (r == 0 && *(name += strspn(name, "/"))) {
		len = strcspn(name, "/");
		if (len == 2 && !memcmp(name, "..", 2)) {
			cut(buf);
			inside = strlen(buf) < inside ? 0 : inside;
		} else if (len != 1 || *name != '.') {
			r = append(buf, size, name, len);
		}
		name += len;
		if (r < 0 || inside || !*buf)
			continue;
		if (mounted_at(buf, &m) == 0 && !strcmp(m.type, CFS_FSTYPE)) {
			inside = strlen(buf);
		} else if (read_link(buf, link, sizeof(link))) {
			r = ++links > LINKS_MAX ? -ELOOP : follow_link(buf, link, name, rest);
			name = rest;
		}
	}
	if (r == 0 && !*buf)
		r = append(buf, size, "", 0);
	return r;
}

/* ---- kinds of file systems ---- */

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
