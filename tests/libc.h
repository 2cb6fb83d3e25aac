/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a program or a preloaded library that defines functions of libc in their place: CALL(name) is
 * libc's own. Included behind `#undef _FILE_OFFSET_BITS`: the names without and with 64 are both
 * defined.
 */
#ifndef TESTS_LIBC_H
#define TESTS_LIBC_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>

#define CALL(name)                                                                                 \
	({                                                                                         \
		static _Atomic(void *) found_;                                                     \
		void *fn_ = atomic_load(&found_);                                                  \
		if (!fn_) {                                                                        \
			fn_ = dlsym(RTLD_NEXT, #name);                                             \
			atomic_store(&found_, fn_);                                                \
		}                                                                                  \
		(__typeof__(&name))fn_;                                                            \
	})

#define OPEN_MODE(flags)                                                                           \
	({                                                                                         \
		mode_t mode_ = 0;                                                                  \
		if ((flags) & (O_CREAT | __O_TMPFILE)) {                                           \
			va_list ap_;                                                               \
			va_start(ap_, flags);                                                      \
			mode_ = (mode_t)va_arg(ap_, int);                                          \
			va_end(ap_);                                                               \
		}                                                                                  \
		mode_;                                                                             \
	})

/* open(2) in all of its forms. */
#define DEFINE_OPEN(open_at)                                                                       \
	int open(const char *path, int flags, ...)                                                 \
	{                                                                                          \
		return open_at(AT_FDCWD, path, flags, OPEN_MODE(flags));                           \
	}                                                                                          \
	int open64(const char *path, int flags, ...)                                               \
	{                                                                                          \
		return open_at(AT_FDCWD, path, flags, OPEN_MODE(flags));                           \
	}                                                                                          \
	int openat(int at, const char *path, int flags, ...)                                       \
	{                                                                                          \
		return open_at(at, path, flags, OPEN_MODE(flags));                                 \
	}                                                                                          \
	int openat64(int at, const char *path, int flags, ...)                                     \
	{                                                                                          \
		return open_at(at, path, flags, OPEN_MODE(flags));                                 \
	}

#endif
