/* What every function of the library does: note the call, fail, hang, wait or crash where the scenario says so, and
 * answer with a figure of a device. The lock is never held while a call hangs or waits, so that other threads go on. */

#define _GNU_SOURCE
#include "call.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int initialized;

u64 now_us(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (u64)time.tv_sec * 1000000 + (u64)time.tv_nsec / 1000;
}

void sleep_ms(unsigned ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left))
        ;
}

static void note(const char *called) {
    const char *path = getenv("FAKE_NVML_LOG");
    char line[128];
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%s\n", called);
    if (write(file, line, (size_t)length) != length)
        fprintf(stderr, "NVML stand-in: %s: cannot be written\n", path);
    close(file);
}

static void crash(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none); /* a death on purpose leaves no core file behind */
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

/* Every call begins here. On SUCCESS the lock is held and `leave` gives it back; on any other code it is not. */
int enter(const char *called, Device handle, int needs_init) {
    note(called);
    hold();
    struct scenario *now = current();
    struct section *device = section_of(now, handle);
    const struct fault *fault = fault_of(now, device, DELAY, called);
    unsigned ms = fault ? fault->number : 0;
    int hangs = fault_of(now, device, HANG, called) != NULL;
    int crashes = fault_of(now, device, CRASH, called) != NULL;
    release();
    if (ms)
        sleep_ms(ms);
    while (hangs)
        pause();
    if (crashes)
        crash();

    hold();
    now = current();
    device = section_of(now, handle);
    fault = fault_of(now, device, FAIL, called);
    u64 lost = 0, reset = 0;
    int code = SUCCESS;
    if (now->broken)
        code = getenv("FAKE_NVML") ? UNKNOWN : DRIVER_NOT_LOADED;
    else if (fault)
        code = (int)fault->number;
    else if (needs_init && !initialized)
        code = UNINITIALIZED;
    else if (handle && !device)
        code = handle >= handles && handle < handles + MAX_DEVICES ? GPU_IS_LOST : INVALID_ARGUMENT;
    else if (device && !number_of(device, "lost", &lost) && lost)
        code = lost == 1 ? GPU_IS_LOST : (int)lost;
    else if (device && !number_of(device, "reset_required", &reset) && reset)
        code = RESET_REQUIRED;
    if (code)
        release();
    return code;
}

int leave(int code) {
    release();
    return code;
}

int enter_system(const char *called) { return enter(called, NULL, 1); }

int enter_device(const char *called, Device handle) {
    return enter(called, handle ? handle : (Device)&initialized, 1); /* a null handle is no handle of ours either */
}

struct section *device_of(Device handle) { return section_of(current(), handle); }

int small(const struct section *device, const char *key, unsigned *out) {
    u64 number;
    int code = number_of(device, key, &number);
    if (!out)
        return INVALID_ARGUMENT;
    if (!code)
        *out = (unsigned)number;
    return code;
}

int put(char *out, unsigned length, const char *text) {
    if (!out)
        return INVALID_ARGUMENT;
    if (!strcmp(text, "none"))
        return NOT_SUPPORTED;
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int bytes(const struct section *device, const char *key, u64 *out) {
    int code = number_of(device, key, out);
    if (!code && *out != ~0ULL)
        *out <<= 20;
    return code;
}

int answer(const char *called, Device handle, const char *key, unsigned *out) {
    int code = enter_device(called, handle);
    return code ? code : leave(small(device_of(handle), key, out));
}

int answer2(const char *called, Device handle, const char *key, unsigned *out, const char *other, unsigned *out2) {
    int code = enter_device(called, handle);
    if (code)
        return code;
    code = small(device_of(handle), key, out);
    return leave(code ? code : small(device_of(handle), other, out2));
}

int answer_large(const char *called, Device handle, const char *key, u64 *out) {
    int code = enter_device(called, handle);
    if (code)
        return code;
    return leave(out ? number_of(device_of(handle), key, out) : INVALID_ARGUMENT);
}

int answer_text(const char *called, Device handle, const char *key, char *out, unsigned length) {
    int code = enter_device(called, handle);
    return code ? code : leave(put(out, length, text_of(device_of(handle), key)));
}

int answer_constant(const char *called, Device handle, unsigned *out, unsigned number) {
    int code = enter_device(called, handle);
    if (code)
        return code;
    if (out)
        *out = number;
    return leave(out ? SUCCESS : INVALID_ARGUMENT);
}

int answer_never(const char *called, Device handle, int never) {
    int code = enter_device(called, handle);
    return code ? code : leave(never);
}
