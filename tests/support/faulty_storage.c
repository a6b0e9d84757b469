/* Storage that fails or is slow, on command: preloaded into a program, it changes how files open.

   FAULTY_STORAGE_BELOW   a part of the paths that are affected
   FAULTY_STORAGE_SWITCH  a file; while it exists it holds one line:
       "error ERRNO"      opening a file for reading fails with this error
       "slow SECONDS"     opening a file for writing takes so much longer
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*open_t)(const char *, int, ...);
typedef int (*openat_t)(int, const char *, int, ...);

static open_t real_open(void) {
  static open_t real = 0;
  if (!real) real = (open_t)dlsym(RTLD_NEXT, "open64");
  return real;
}

/* The error that opening must fail with; 0: none. Waits where storage is slow. */
static int fault_of(const char *path, int flags) {
  const char *below = getenv("FAULTY_STORAGE_BELOW"), *file = getenv("FAULTY_STORAGE_SWITCH");
  char line[64] = "";
  int is_write = (flags & O_ACCMODE) != O_RDONLY, number = 0;
  double seconds = 0;
  if (!path || !below || !file || (flags & O_DIRECTORY) || !strstr(path, below)) return 0;
  int fd = real_open()(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t length = read(fd, line, sizeof line - 1);
  close(fd);
  if (length <= 0) return 0;
  if (!is_write && sscanf(line, "error %d", &number) == 1) return number;
  if (is_write && sscanf(line, "slow %lf", &seconds) == 1) usleep((useconds_t)(seconds * 1e6));
  return 0;
}

#define MODE(flags, mode)                             \
  mode_t mode = 0;                                    \
  if ((flags) & (O_CREAT | O_TMPFILE)) {              \
    va_list list;                                     \
    va_start(list, flags);                            \
    mode = va_arg(list, mode_t);                      \
    va_end(list);                                     \
  }
#define FAIL_OR_GO_ON(path, flags)                    \
  int number = fault_of(path, flags);                 \
  if (number) {                                       \
    errno = number;                                   \
    return -1;                                        \
  }

#define OPEN(NAME)                                                   \
  int NAME(const char *path, int flags, ...) {                       \
    static open_t real = 0;                                          \
    MODE(flags, mode)                                                \
    FAIL_OR_GO_ON(path, flags)                                       \
    if (!real) real = (open_t)dlsym(RTLD_NEXT, #NAME);               \
    return real(path, flags, mode);                                  \
  }
#define OPENAT(NAME)                                                 \
  int NAME(int folder, const char *path, int flags, ...) {           \
    static openat_t real = 0;                                        \
    MODE(flags, mode)                                                \
    FAIL_OR_GO_ON(path, flags)                                       \
    if (!real) real = (openat_t)dlsym(RTLD_NEXT, #NAME);             \
    return real(folder, path, flags, mode);                          \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
