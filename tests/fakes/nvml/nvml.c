/* NVML itself and its devices: what begins and ends it, what the driver is, and which device is which. */

#define _GNU_SOURCE
#include "call.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct Pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };
struct Pci2 { char id[16]; unsigned domain, bus, device, device_id, subsystem_id, reserved[4]; };

_Static_assert(sizeof(struct Pci) == 68, "nvmlPciInfo_t");

static int initialize(const char *called) {
    u64 wanted;
    int code = enter(called, NULL, 0);
    if (code)
        return code;
    code = number_of(&current()->general, "init", &wanted);
    if (!code)
        code = (int)wanted;
    if (!code)
        initialized++;
    return leave(code);
}

API int nvmlInit(void) { return initialize("nvmlInit"); }
API int nvmlInit_v2(void) { return initialize("nvmlInit_v2"); }
API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return initialize("nvmlInitWithFlags");
}

API int nvmlShutdown(void) {
    int code = enter_system("nvmlShutdown");
    if (code)
        return code;
    initialized--;
    return leave(SUCCESS);
}

API const char *nvmlErrorString(int code) {
    static const char *const TEXTS[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "RM has detected an NVML/RM version mismatch.", "GPU is currently in use by other processes",
        "Insufficient memory", "No data",
    };
    if (code == ARGUMENT_VERSION_MISMATCH)
        return "Argument version mismatch";
    return code >= 0 && code < (int)(sizeof TEXTS / sizeof *TEXTS) ? TEXTS[code] : "Unknown Error";
}

static int general_text(const char *called, const char *key, char *out, unsigned length) {
    int code = enter_system(called);
    return code ? code : leave(put(out, length, text_of(&current()->general, key)));
}

API int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    return general_text("nvmlSystemGetDriverVersion", "driver", out, length);
}
API int nvmlSystemGetNVMLVersion(char *out, unsigned length) {
    return general_text("nvmlSystemGetNVMLVersion", "nvml", out, length);
}

static int cuda_version(const char *called, unsigned *out) {
    int code = enter_system(called);
    return code ? code : leave(small(&current()->general, "cuda", out));
}

API int nvmlSystemGetCudaDriverVersion(unsigned *out) { return cuda_version("nvmlSystemGetCudaDriverVersion", out); }
API int nvmlSystemGetCudaDriverVersion_v2(unsigned *out) {
    return cuda_version("nvmlSystemGetCudaDriverVersion_v2", out);
}

API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length) {
    int code = enter_system("nvmlSystemGetProcessName");
    if (code)
        return code;
    struct scenario *now = current();
    for (int i = 0; i < now->device_count; i++)
        for (int j = 0; j < now->devices[i].process_count; j++)
            if (now->devices[i].processes[j].pid == pid && now->devices[i].processes[j].name)
                return leave(put(out, length, now->devices[i].processes[j].name));
    return leave(NOT_FOUND);
}

/* --- which device ------------------------------------------------------------------------------------------------ */

static int count(const char *called, unsigned *out) {
    int code = enter_system(called);
    if (code)
        return code;
    if (out)
        *out = (unsigned)current()->device_count;
    return leave(out ? SUCCESS : INVALID_ARGUMENT);
}

API int nvmlDeviceGetCount(unsigned *out) { return count("nvmlDeviceGetCount", out); }
API int nvmlDeviceGetCount_v2(unsigned *out) { return count("nvmlDeviceGetCount_v2", out); }

/* A device that is looked for and lost, or made to fail, says so although its handle is not known yet. */
static int give_handle(const char *called, int index, int absent, Device *out) {
    int code = index < 0 ? enter_system(called) : enter_device(called, &handles[index]);
    if (code)
        return code;
    if (!out)
        return leave(INVALID_ARGUMENT);
    if (index >= 0)
        *out = &handles[index];
    return leave(index < 0 ? absent : SUCCESS);
}

static int by_index(const char *called, unsigned index, Device *out) {
    hold();
    int known = index < (unsigned)current()->device_count;
    release();
    return give_handle(called, known ? (int)index : -1, INVALID_ARGUMENT, out);
}

API int nvmlDeviceGetHandleByIndex(unsigned index, Device *out) {
    return by_index("nvmlDeviceGetHandleByIndex", index, out);
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
    return by_index("nvmlDeviceGetHandleByIndex_v2", index, out);
}

static int by_text(const char *called, const char *key, const char *wanted, Device *out) {
    int index = -1;
    hold();
    struct scenario *now = current();
    for (int i = 0; wanted && i < now->device_count; i++) {
        const char *has = text_of(&now->devices[i], key);
        /* a bus id with the short domain names the same device */
        if (!strcasecmp(has, wanted) || (!strcmp(key, "pci") && strlen(has) > 4 && !strcasecmp(has + 4, wanted)))
            index = i;
    }
    release();
    return give_handle(called, index, wanted ? NOT_FOUND : INVALID_ARGUMENT, out);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out) {
    return by_text("nvmlDeviceGetHandleByUUID", "uuid", uuid, out);
}
API int nvmlDeviceGetHandleByPciBusId(const char *id, Device *out) {
    return by_text("nvmlDeviceGetHandleByPciBusId", "pci", id, out);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device *out) {
    return by_text("nvmlDeviceGetHandleByPciBusId_v2", "pci", id, out);
}

API int nvmlDeviceGetIndex(Device handle, unsigned *out) {
    return answer_constant("nvmlDeviceGetIndex", handle, out, (unsigned)(handle - handles));
}

static int pci(const char *called, Device handle, struct Pci *out) {
    int code = enter_device(called, handle);
    if (code)
        return code;
    memset(out, 0, sizeof *out);
    const char *id = text_of(device_of(handle), "pci");
    code = put(out->id, sizeof out->id, id);
    if (!code && sscanf(id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        code = UNKNOWN;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    out->device_id = 0x250310de;
    out->subsystem_id = 0x39783842;
    return leave(code);
}

API int nvmlDeviceGetPciInfo_v3(Device handle, struct Pci *out) {
    return out ? pci("nvmlDeviceGetPciInfo_v3", handle, out) : INVALID_ARGUMENT;
}

static int pci_old(const char *called, Device handle, struct Pci2 *out) {
    struct Pci info;
    int code = out ? pci(called, handle, &info) : INVALID_ARGUMENT;
    if (code)
        return code;
    memset(out, 0, sizeof *out);
    memcpy(out->id, info.legacy, sizeof out->id);
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->device_id = info.device_id;
    out->subsystem_id = info.subsystem_id;
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo(Device handle, struct Pci2 *out) { return pci_old("nvmlDeviceGetPciInfo", handle, out); }
API int nvmlDeviceGetPciInfo_v2(Device handle, struct Pci2 *out) {
    return pci_old("nvmlDeviceGetPciInfo_v2", handle, out);
}

API int nvmlDeviceGetCudaComputeCapability(Device handle, int *major, int *minor) {
    int code = enter_device("nvmlDeviceGetCudaComputeCapability", handle);
    if (code)
        return code;
    const char *text = text_of(device_of(handle), "compute");
    return leave(sscanf(text, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED);
}
