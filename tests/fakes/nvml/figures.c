/* The figures of a device. */

#define _GNU_SOURCE
#include "call.h"

#include <stdio.h>

struct Memory { u64 total, free, used; };
struct Memory2 { unsigned version; u64 total, reserved, free, used; };
struct Bar1 { u64 total, free, used; };
struct Utilization { unsigned gpu, memory; };
struct Violation { u64 reference, time; };
struct Temperature { unsigned version; int sensor, temperature; };
union Value { double real; unsigned number; unsigned long word; u64 large; };
struct Field { unsigned id, scope; long long stamp, latency; int type, code; union Value value; };

_Static_assert(sizeof(struct Memory2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct Field) == 40, "nvmlFieldValue_t");

enum { MEMORY2_VERSION = 0x02000028, TEMPERATURE_VERSION = 0x0100000C };

#define NUMBER(function, key) \
    API int function(Device handle, unsigned *out) { return answer(#function, handle, key, out); }
#define LARGE(function, key) \
    API int function(Device handle, u64 *out) { return answer_large(#function, handle, key, out); }
#define TEXT(function, key) \
    API int function(Device handle, char *out, unsigned length) { \
        return answer_text(#function, handle, key, out, length); \
    }

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_limit_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_enforced_limit_mw")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetPowerState, "pstate")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_device_max")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetDisplayActive, "display_active")
NUMBER(nvmlDeviceGetDisplayMode, "display_mode")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
LARGE(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
LARGE(nvmlDeviceGetCurrentClocksEventReasons, "event_reasons")
LARGE(nvmlDeviceGetCurrentClocksThrottleReasons, "event_reasons")
LARGE(nvmlDeviceGetSupportedClocksEventReasons, "event_reasons_supported")
LARGE(nvmlDeviceGetSupportedClocksThrottleReasons, "event_reasons_supported")

#define BUSY(function, key) \
    API int function(Device handle, unsigned *out, unsigned *period_us) { \
        if (period_us) \
            *period_us = 167000; \
        return answer(#function, handle, key, out); \
    }

BUSY(nvmlDeviceGetEncoderUtilization, "util_enc")
BUSY(nvmlDeviceGetDecoderUtilization, "util_dec")
BUSY(nvmlDeviceGetJpgUtilization, "util_jpg")
BUSY(nvmlDeviceGetOfaUtilization, "util_ofa")

#define PAIR(function, key, other) \
    API int function(Device handle, unsigned *out, unsigned *out2) { \
        return answer2(#function, handle, key, out, other, out2); \
    }

PAIR(nvmlDeviceGetEccMode, "ecc_mode", "ecc_pending")
PAIR(nvmlDeviceGetMigMode, "mig", "mig_pending")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_min_limit_mw", "power_max_limit_mw")

static int memory(const struct section *device, struct Memory2 *out) {
    int code = bytes(device, "memory_total_mib", &out->total);
    code = code ? code : bytes(device, "memory_used_mib", &out->used);
    if (code)
        return code;
    if (bytes(device, "memory_reserved_mib", &out->reserved))
        out->reserved = 0;
    int known = out->total != ~0ULL && out->used != ~0ULL && out->reserved != ~0ULL;
    out->free = !known ? ~0ULL : out->used + out->reserved < out->total ? out->total - out->used - out->reserved : 0;
    return SUCCESS;
}

/* The first version counts what the driver keeps for itself as used; the second tells it apart. */
API int nvmlDeviceGetMemoryInfo(Device handle, struct Memory *out) {
    struct Memory2 figures;
    int code = enter_device("nvmlDeviceGetMemoryInfo", handle);
    if (code)
        return code;
    code = out ? memory(device_of(handle), &figures) : INVALID_ARGUMENT;
    if (!code) {
        int known = figures.used != ~0ULL && figures.reserved != ~0ULL;
        *out = (struct Memory){figures.total, figures.free, known ? figures.used + figures.reserved : ~0ULL};
    }
    return leave(code);
}

API int nvmlDeviceGetMemoryInfo_v2(Device handle, struct Memory2 *out) {
    int code = enter_device("nvmlDeviceGetMemoryInfo_v2", handle);
    if (code)
        return code;
    if (!out)
        return leave(INVALID_ARGUMENT);
    return leave(out->version == MEMORY2_VERSION ? memory(device_of(handle), out) : ARGUMENT_VERSION_MISMATCH);
}

API int nvmlDeviceGetBAR1MemoryInfo(Device handle, struct Bar1 *out) {
    int code = enter_device("nvmlDeviceGetBAR1MemoryInfo", handle);
    if (code)
        return code;
    code = bytes(device_of(handle), "bar1_total_mib", &out->total);
    code = code ? code : bytes(device_of(handle), "bar1_used_mib", &out->used);
    out->free = out->total - out->used;
    return leave(code);
}

API int nvmlDeviceGetUtilizationRates(Device handle, struct Utilization *out) {
    u64 mig = 0;
    int code = enter_device("nvmlDeviceGetUtilizationRates", handle);
    if (code)
        return code;
    struct section *device = device_of(handle);
    if (!number_of(device, "mig", &mig) && mig == 1)
        return leave(NOT_SUPPORTED);
    code = small(device, "util_sm", &out->gpu);
    return leave(code ? code : small(device, "util_mem", &out->memory));
}

API int nvmlDeviceGetTemperature(Device handle, int sensor, unsigned *out) {
    int code = enter_device("nvmlDeviceGetTemperature", handle);
    if (code)
        return code;
    return leave(sensor ? INVALID_ARGUMENT : small(device_of(handle), "temperature", out));
}

API int nvmlDeviceGetTemperatureV(Device handle, struct Temperature *out) {
    int code = enter_device("nvmlDeviceGetTemperatureV", handle);
    if (code)
        return code;
    if (!out || out->version != TEMPERATURE_VERSION)
        return leave(out ? ARGUMENT_VERSION_MISMATCH : INVALID_ARGUMENT);
    return leave(out->sensor ? NOT_SUPPORTED : small(device_of(handle), "temperature", (unsigned *)&out->temperature));
}

API int nvmlDeviceGetTemperatureThreshold(Device handle, int threshold, unsigned *out) {
    static const char *const KEYS[] = {"shutdown_temperature", "slowdown_temperature", NULL, "gpu_max_temperature"};
    if (threshold < 0 || threshold > 3 || !KEYS[threshold])
        return answer_never("nvmlDeviceGetTemperatureThreshold", handle, NOT_SUPPORTED);
    return answer("nvmlDeviceGetTemperatureThreshold", handle, KEYS[threshold], out);
}

API int nvmlDeviceGetNumFans(Device handle, unsigned *out) {
    return answer_constant("nvmlDeviceGetNumFans", handle, out, 1);
}
API int nvmlDeviceGetFanSpeed_v2(Device handle, unsigned fan, unsigned *out) {
    if (fan)
        return answer_never("nvmlDeviceGetFanSpeed_v2", handle, INVALID_ARGUMENT);
    return answer("nvmlDeviceGetFanSpeed_v2", handle, "fan", out);
}

static int one_clock(const char *called, Device handle, int type, const char *const *keys, unsigned *out) {
    if (type < 0 || type > 3)
        return answer_never(called, handle, INVALID_ARGUMENT);
    return answer(called, handle, keys[type], out);
}

static const char *const CLOCKS[] = {"clock_graphics", "clock_sm", "clock_mem", "clock_video"};
static const char *const MAX_CLOCKS[] = {"clock_graphics_max", "clock_sm_max", "clock_mem_max", "clock_video_max"};

API int nvmlDeviceGetClockInfo(Device handle, int type, unsigned *out) {
    return one_clock("nvmlDeviceGetClockInfo", handle, type, CLOCKS, out);
}
API int nvmlDeviceGetMaxClockInfo(Device handle, int type, unsigned *out) {
    return one_clock("nvmlDeviceGetMaxClockInfo", handle, type, MAX_CLOCKS, out);
}
API int nvmlDeviceGetClock(Device handle, int type, int id, unsigned *out) {
    if (id) /* application clocks, which GeForce lacks */
        return answer_never("nvmlDeviceGetClock", handle, NOT_SUPPORTED);
    return one_clock("nvmlDeviceGetClock", handle, type, CLOCKS, out);
}

API int nvmlDeviceGetViolationStatus(Device handle, int policy, struct Violation *out) {
    static const char *const KEYS[12] = {
        "violation_power_ns",          "violation_thermal_ns",        "violation_sync_boost_ns",
        "violation_board_limit_ns",    "violation_low_utilization_ns", "violation_reliability_ns",
        [10] = "violation_app_clocks_ns", [11] = "violation_base_clocks_ns",
    };
    if (policy < 0 || policy > 11 || !KEYS[policy] || !out)
        return answer_never("nvmlDeviceGetViolationStatus", handle, INVALID_ARGUMENT);
    int code = answer_large("nvmlDeviceGetViolationStatus", handle, KEYS[policy], &out->time);
    out->reference = now_us(CLOCK_REALTIME);
    return code;
}

API int nvmlDeviceGetPcieThroughput(Device handle, int counter, unsigned *out) {
    return answer("nvmlDeviceGetPcieThroughput", handle, counter ? "pcie_rx_kib_s" : "pcie_tx_kib_s", out);
}

/* --- errors of memory -------------------------------------------------------------------------------------------- */

static int ecc_errors(const struct section *device, int uncorrected, int aggregate, u64 *out) {
    static const char *const KEYS[] = {"ecc_volatile_corrected", "ecc_volatile_uncorrected", "ecc_aggregate_corrected",
                                       "ecc_aggregate_uncorrected"};
    u64 mode = 0;
    if (number_of(device, "ecc_mode", &mode) || mode != 1)
        return NOT_SUPPORTED;
    if (uncorrected < 0 || uncorrected > 1 || aggregate < 0 || aggregate > 1 || !out)
        return INVALID_ARGUMENT;
    return number_of(device, KEYS[uncorrected + 2 * aggregate], out);
}

API int nvmlDeviceGetTotalEccErrors(Device handle, int uncorrected, int aggregate, u64 *out) {
    int code = enter_device("nvmlDeviceGetTotalEccErrors", handle);
    return code ? code : leave(ecc_errors(device_of(handle), uncorrected, aggregate, out));
}

/* All of them are in the device's memory, none in its caches. */
API int nvmlDeviceGetMemoryErrorCounter(Device handle, int uncorrected, int aggregate, int location, u64 *out) {
    int code = enter_device("nvmlDeviceGetMemoryErrorCounter", handle);
    if (code)
        return code;
    code = ecc_errors(device_of(handle), uncorrected, aggregate, out);
    if (!code && location != 2)
        *out = 0;
    return leave(code);
}

API int nvmlDeviceGetRemappedRows(Device handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                  unsigned *failed) {
    int code = enter_device("nvmlDeviceGetRemappedRows", handle);
    if (code)
        return code;
    const struct section *device = device_of(handle);
    code = small(device, "remapped_correctable", corrected);
    code = code ? code : small(device, "remapped_uncorrectable", uncorrected);
    code = code ? code : small(device, "remapped_pending", pending);
    return leave(code ? code : small(device, "remapped_failed", failed));
}

static int retired(const char *called, Device handle, int cause, unsigned *length, u64 *pages, u64 *stamps) {
    unsigned found;
    int code = enter_device(called, handle);
    if (code)
        return code;
    if (!length || cause < 0 || cause > 1)
        return leave(INVALID_ARGUMENT);
    code = small(device_of(handle), cause ? "retired_dbe" : "retired_sbe", &found);
    if (code)
        return leave(code);
    int enough = found <= *length && (!found || pages);
    for (unsigned i = 0; enough && i < found; i++) {
        pages[i] = 0x1000ULL * (i + 1);
        if (stamps)
            stamps[i] = 1700000000000000ULL + i;
    }
    *length = found;
    return leave(enough ? SUCCESS : INSUFFICIENT_SIZE);
}

API int nvmlDeviceGetRetiredPages(Device handle, int cause, unsigned *length, u64 *pages) {
    return retired("nvmlDeviceGetRetiredPages", handle, cause, length, pages, NULL);
}
API int nvmlDeviceGetRetiredPages_v2(Device handle, int cause, unsigned *length, u64 *pages, u64 *stamps) {
    return retired("nvmlDeviceGetRetiredPages_v2", handle, cause, length, pages, stamps);
}

/* --- fields ------------------------------------------------------------------------------------------------------ */

enum { NUMBER_TYPE = 1, LARGE_TYPE = 3 };

static const struct field {
    unsigned id;
    const char *key;
    int type;
} FIELDS[] = {
    {1, "ecc_mode", NUMBER_TYPE},
    {2, "ecc_pending", NUMBER_TYPE},
    {3, "ecc_volatile_corrected", LARGE_TYPE},
    {4, "ecc_volatile_uncorrected", LARGE_TYPE},
    {5, "ecc_aggregate_corrected", LARGE_TYPE},
    {6, "ecc_aggregate_uncorrected", LARGE_TYPE},
    {29, "retired_sbe", LARGE_TYPE},
    {30, "retired_dbe", LARGE_TYPE},
    {31, "retired_pending", LARGE_TYPE},
    {74, "violation_power_ns", LARGE_TYPE},
    {75, "violation_thermal_ns", LARGE_TYPE},
    {76, "violation_sync_boost_ns", LARGE_TYPE},
    {77, "violation_board_limit_ns", LARGE_TYPE},
    {78, "violation_low_utilization_ns", LARGE_TYPE},
    {79, "violation_reliability_ns", LARGE_TYPE},
    {80, "violation_app_clocks_ns", LARGE_TYPE},
    {81, "violation_base_clocks_ns", LARGE_TYPE},
    {82, "temperature_memory", NUMBER_TYPE},
    {83, "energy_mj", LARGE_TYPE},
    {94, "pcie_replays", NUMBER_TYPE},
    {142, "remapped_correctable", NUMBER_TYPE},
    {143, "remapped_uncorrectable", NUMBER_TYPE},
    {144, "remapped_pending", NUMBER_TYPE},
    {145, "remapped_failed", NUMBER_TYPE},
    {185, "power_average_mw", NUMBER_TYPE},
    {186, "power_instant_mw", NUMBER_TYPE},
    {187, "power_min_limit_mw", NUMBER_TYPE},
    {188, "power_max_limit_mw", NUMBER_TYPE},
    {189, "power_default_limit_mw", NUMBER_TYPE},
    {190, "power_enforced_limit_mw", NUMBER_TYPE},
    {191, "energy_mj", LARGE_TYPE},
    {192, "power_limit_mw", NUMBER_TYPE},
    {230, "recovery_action", NUMBER_TYPE},
    {269, "counter_sw_thermal_ns", LARGE_TYPE},
    {270, "counter_hw_thermal_ns", LARGE_TYPE},
    {271, "counter_power_brake_ns", LARGE_TYPE},
};

API int nvmlDeviceGetFieldValues(Device handle, int length, struct Field *fields) {
    int code = enter_device("nvmlDeviceGetFieldValues", handle);
    if (code)
        return code;
    if (length < 1 || !fields)
        return leave(INVALID_ARGUMENT);
    const struct section *device = device_of(handle);
    for (struct Field *field = fields; field < fields + length; field++) {
        u64 number;
        field->stamp = (long long)now_us(CLOCK_REALTIME);
        field->latency = 0;
        field->code = NOT_SUPPORTED;
        for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
            if (FIELDS[i].id != field->id)
                continue;
            field->code = number_of(device, FIELDS[i].key, &number);
            field->type = FIELDS[i].type;
            if (!field->code && field->type == LARGE_TYPE)
                field->value.large = number;
            else if (!field->code)
                field->value.number = (unsigned)number;
        }
    }
    return leave(SUCCESS);
}

/* --- what a GeForce under Linux has not -------------------------------------------------------------------------- */

API int nvmlDeviceGetDriverModel(Device handle, int *now, int *pending) {
    (void)now, (void)pending; /* Windows only */
    return answer_never("nvmlDeviceGetDriverModel", handle, NOT_SUPPORTED);
}
API int nvmlDeviceGetDriverModel_v2(Device handle, int *now, int *pending) {
    (void)now, (void)pending;
    return answer_never("nvmlDeviceGetDriverModel_v2", handle, NOT_SUPPORTED);
}
API int nvmlDeviceIsMigDeviceHandle(Device handle, unsigned *out) {
    return answer_constant("nvmlDeviceIsMigDeviceHandle", handle, out, 0);
}
API int nvmlDeviceGetMaxMigDeviceCount(Device handle, unsigned *out) {
    return answer_constant("nvmlDeviceGetMaxMigDeviceCount", handle, out, 0);
}
API int nvmlDeviceGetMigDeviceHandleByIndex(Device handle, unsigned index, Device *out) {
    (void)index, (void)out;
    return answer_never("nvmlDeviceGetMigDeviceHandleByIndex", handle, NOT_FOUND);
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device handle, Device *out) {
    (void)out;
    return answer_never("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, NOT_SUPPORTED);
}
API int nvmlDeviceGetGpuInstanceId(Device handle, unsigned *out) {
    (void)out;
    return answer_never("nvmlDeviceGetGpuInstanceId", handle, NOT_SUPPORTED);
}
API int nvmlDeviceGetComputeInstanceId(Device handle, unsigned *out) {
    (void)out;
    return answer_never("nvmlDeviceGetComputeInstanceId", handle, NOT_SUPPORTED);
}
