/* SPDX-License-Identifier: Apache-2.0 */
#include "logring.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"

#define MAGIC 0x31474f4c53464343ULL /* of this layout */

/* A writer that dies within a line leaves its number at 0: that line is left out. */
struct line {
	_Atomic uint64_t number; /* from 1; 0: being written, or never was */
	uint64_t reserved;
	char text[CFS_LOGRING_TEXT];
};

struct ring {
	uint64_t magic;
	_Atomic uint64_t next;
	struct line lines[CFS_LOGRING_LINES];
};

_Static_assert(sizeof(struct line) == 512, "lines do not share pages without need");

static struct ring *ring;

int cfs_logring_create(void)
{
	int fd = memfd_create(CFS_LOGRING_NAME, MFD_CLOEXEC);
	struct ring *at;
	int r;

	if (fd < 0)
		return -errno;
	at = ftruncate(fd, sizeof(*at)) < 0
		     ? MAP_FAILED
		     : mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		r = -errno;
		close(fd);
		return r;
	}
	/* The descriptor stays: it is how others find the memory. */
	at->magic = MAGIC;
	ring = at;
	return 0;
}

void cfs_logring_add(const char *text)
{
	struct line *l;
	uint64_t number;
	size_t len;

	if (!ring)
		return;
	number = atomic_fetch_add(&ring->next, 1) + 1;
	l = &ring->lines[(number - 1) % CFS_LOGRING_LINES];
	len = CFS_MIN(strlen(text), sizeof(l->text) - 1);
	atomic_store(&l->number, 0);
	memcpy(l->text, text, len);
	l->text[len] = '\0';
	atomic_store(&l->number, number);
}

int cfs_logring_print(int fd, FILE *out)
{
	char text[CFS_LOGRING_TEXT];
	uint64_t next, number;
	struct stat st;
	struct ring *r;
	unsigned i;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size != sizeof(*r))
		return -EPROTO;
	r = mmap(NULL, sizeof(*r), PROT_READ, MAP_SHARED, fd, 0);
	if (r == MAP_FAILED)
		return -errno;
	if (r->magic != MAGIC) {
		munmap(r, sizeof(*r));
		return -EPROTO;
	}
	next = atomic_load(&r->next);
	number = next > CFS_LOGRING_LINES ? next - CFS_LOGRING_LINES : 0;
	/* The count is another process's: it may be any number. */
	for (i = 0; i < CFS_LOGRING_LINES && number < next; i++) {
		struct line *l = &r->lines[number++ % CFS_LOGRING_LINES];

		memcpy(text, l->text, sizeof(text));
		text[sizeof(text) - 1] = '\0';
		if (atomic_load(&l->number) == number)
			fprintf(out, "%s\n", text);
	}
	munmap(r, sizeof(*r));
	return 0;
}
