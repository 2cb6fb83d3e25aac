/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of cachefs that need a library which most mounts do not use are modules, loaded at the
 * first use.
 *
 * "cachefs-NAME.so" lies beside the program (as in a build directory) or in the module directory.
 * It exports one symbol, `cfs_module`, and takes the functions of src/base from the program, so
 * that there is one log and one random state. A loaded module stays for the life of the process.
 */
#ifndef CFS_MODULE_H
#define CFS_MODULE_H

struct cfs_module {
	const char *version; /* CFS_MODULE_VERSION of its build: it must be the program's */
	const void *table;   /* interface expected by the users of this kind of module */
};

#define CFS_MODULE_EXPORT(t)                                                                       \
	extern const struct cfs_module cfs_module;                                                 \
	__attribute__((visibility("default"))) const struct cfs_module cfs_module = {              \
		.version = CFS_MODULE_VERSION,                                                     \
		.table = (t),                                                                      \
	}

/*
 * -ENOENT: there is no such module; -ENOEXEC: there is, and it cannot be used. err: one line.
 * Any thread.
 */
int cfs_module_load(const char *name, const void **ret_table, char err[256]);

/*
 * Opens every module that there is. From then on they are loaded as they are now, in this process
 * and those that it forks, whatever an upgrade or a removal of the package does to the files. Once,
 * before the first cfs_module_load and other threads.
 */
void cfs_module_hold(void);

#endif
