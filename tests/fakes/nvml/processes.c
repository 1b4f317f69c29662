/* Who uses a device. */

#define _GNU_SOURCE
#include "call.h"

#include <string.h>

struct Process1 { unsigned pid; u64 bytes; };
struct Process2 { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; };
struct Sample { unsigned pid; u64 stamp; unsigned sm, memory, encoder, decoder; };

_Static_assert(sizeof(struct Process2) == 24, "nvmlProcessInfo_t");

/* What a binding shows that reads another layout than the driver wrote: half of a size as the PID, a PID within a
 * size. */
static struct Process2 scrambled(const struct process *process) {
    unsigned low = (unsigned)process->bytes, high = (unsigned)(process->bytes >> 32);
    return (struct Process2){
        .pid = low ? low : high,
        .bytes = (u64)process->pid << 32 | 0xffffffff,
        .gpu_instance = low,
        .compute_instance = high,
    };
}

static int processes(const char *called, Device handle, char kind, unsigned *length, void *out, int version) {
    int code = enter_device(called, handle);
    if (code)
        return code;
    if (!length)
        return leave(INVALID_ARGUMENT);
    const struct section *device = device_of(handle);
    unsigned found = 0, room = out ? *length : 0;
    for (int i = 0; i < device->process_count; i++) {
        const struct process *process = &device->processes[i];
        if (process->kind != kind)
            continue;
        struct Process2 info = {process->pid, process->bytes, 0xffffffff, 0xffffffff};
        if (current()->scrambled)
            info = scrambled(process);
        if (found < room && version == 1)
            ((struct Process1 *)out)[found] = (struct Process1){info.pid, info.bytes};
        else if (found < room)
            ((struct Process2 *)out)[found] = info;
        found++;
    }
    *length = found;
    return leave(found > room ? INSUFFICIENT_SIZE : SUCCESS);
}

#define PROCESSES(function, kind, version) \
    API int function(Device handle, unsigned *length, void *out) { \
        return processes(#function, handle, kind, length, out, version); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, 'c', 1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'c', 2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'c', 3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 'g', 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g', 2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g', 3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 'm', 1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm', 2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm', 3)

API int nvmlDeviceGetProcessUtilization(Device handle, struct Sample *out, unsigned *length, u64 since) {
    (void)since;
    int code = enter_device("nvmlDeviceGetProcessUtilization", handle);
    if (code)
        return code;
    if (!length)
        return leave(INVALID_ARGUMENT);
    const struct section *device = device_of(handle);
    unsigned found = (unsigned)device->share_count, room = out ? *length : 0;
    for (unsigned i = 0; i < found && i < room; i++) {
        const struct share *share = &device->shares[i];
        out[i] = (struct Sample){share->pid,    now_us(CLOCK_REALTIME), share->sm,
                                 share->memory, share->encoder,         share->decoder};
    }
    *length = found;
    return leave(!found ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : SUCCESS);
}
