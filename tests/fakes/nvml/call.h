/* How a function of the library is called and answers; see call.c. */

#ifndef CALL_H
#define CALL_H

#include "scenario.h"

#include <time.h>

#define API __attribute__((visibility("default")))

extern int initialized; /* how many nvmlInit are not shut down */

/* Every call begins with one of these. On SUCCESS the lock is held and `leave` gives it back; otherwise it is not. */
int enter(const char *called, Device handle, int needs_init);
int leave(int code);
int enter_system(const char *called);
int enter_device(const char *called, Device handle);

/* For a call that holds the lock: the device of a handle, and one figure of it. */
struct section *device_of(Device handle);
int small(const struct section *device, const char *key, unsigned *out);
int put(char *out, unsigned length, const char *text);
int bytes(const struct section *device, const char *key, u64 *out);

/* Whole calls. */
int answer(const char *called, Device handle, const char *key, unsigned *out);
int answer2(const char *called, Device handle, const char *key, unsigned *out, const char *other, unsigned *out2);
int answer_large(const char *called, Device handle, const char *key, u64 *out);
int answer_text(const char *called, Device handle, const char *key, char *out, unsigned length);
int answer_constant(const char *called, Device handle, unsigned *out, unsigned number);
int answer_never(const char *called, Device handle, int never);

u64 now_us(clockid_t clock);
void sleep_ms(unsigned ms);

#endif
