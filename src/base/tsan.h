/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ThreadSanitizer sees the order neither of liburcu, which is not built for it, nor of the kernel,
 * between an answer and a later request of a FUSE connection. These tell it: what happened before a
 * RELEASE of an address happened before a later ACQUIRE of it.
 */
#ifndef CFS_TSAN_H
#define CFS_TSAN_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CFS_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define CFS_TSAN 1
#endif

#ifdef CFS_TSAN
#include <sanitizer/tsan_interface.h>
#define CFS_TSAN_RELEASE(addr) __tsan_release(addr)
#define CFS_TSAN_ACQUIRE(addr) __tsan_acquire(addr)
#else
#define CFS_TSAN_RELEASE(addr) ((void)(addr))
#define CFS_TSAN_ACQUIRE(addr) ((void)(addr))
#endif

#endif
