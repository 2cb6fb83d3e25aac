/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target on every file of the directories named: what was found once stays fixed. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
	static uint8_t data[1 << 20];
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f) {
		perror(path);
		return -1;
	}
	n = fread(data, 1, sizeof(data), f);
	fclose(f);
	LLVMFuzzerTestOneInput(data, n);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned n = 0;
	int i;

	for (i = 1; i < argc; i++) {
		DIR *dir = opendir(argv[i]);
		struct dirent *e;

		while (dir && (e = readdir(dir))) {
			char path[4096];

			if (e->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "%s/%s", argv[i], e->d_name);
			if (run_file(path) < 0)
				return 1;
			n++;
		}
		if (dir)
			closedir(dir);
	}
	printf("%u inputs\n", n);
	return n == 0;
}
