/* SPDX-License-Identifier: Apache-2.0 */
/* cachefs doctor: the metadata and the object store are in doctor.c, this host in doctor-host.c. */
#ifndef CFS_CMD_DOCTOR_H
#define CFS_CMD_DOCTOR_H

#include <cachefs/meta.h>
#include <jansson.h>

struct doctor {
	const char *section; /* of what is said next */
	json_t *checks;	     /* with --json */
	bool colour;
	unsigned changes;
};

__attribute__((format(printf, 4, 5))) void doctor_say(struct doctor *d, enum cfs_advice level,
						      const char *what, const char *fmt, ...);

/* dirs: cache directories, separated by ':'; NULL: none. */
void doctor_host(struct doctor *d, const char *dirs);

#endif
