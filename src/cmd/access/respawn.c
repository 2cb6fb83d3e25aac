/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/respawn.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENV_MAX = 64, REAP_LOOK_MS = 5 };

/* Variables that a program needs to start. */
static bool is_for_the_loader(const char *variable)
{
	const char *end = strchr(variable, '=');
	size_t len = end ? (size_t)(end - variable) : 0;

	return !strncmp(variable, "LD_", 3) ||
	       (len > 8 && !strncmp(variable + len - 8, "_OPTIONS", 8)); /* of sanitizers */
}

int respawn(char *const argv[], int in, int out, pid_t *ret)
{
	posix_spawn_file_actions_t actions;
	char *env[ENV_MAX + 1];
	size_t i, n = 0;
	int r = posix_spawn_file_actions_init(&actions);

	if (r)
		return -r;
	for (i = 0; environ[i] && n < ENV_MAX; i++)
		if (is_for_the_loader(environ[i]))
			env[n++] = environ[i];
	env[n] = NULL;
	r = posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	if (!r && out >= 0)
		r = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	else if (!r)
		r = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_RDWR,
						     0);
	if (!r)
		r = posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
	if (!r)
		r = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	/* /proc/self/exe is the running program, even after an upgrade of the package. */
	if (!r)
		r = posix_spawn(ret, "/proc/self/exe", &actions, NULL, argv, env);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

bool reap_child(pid_t pid, cfs_deadline_t deadline)
{
	while (waitpid(pid, NULL, WNOHANG) == 0) {
		if (cfs_deadline_passed(deadline))
			return false;
		poll(NULL, 0, REAP_LOOK_MS);
	}
	return true;
}
