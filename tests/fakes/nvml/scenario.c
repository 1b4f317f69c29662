/* Reads the scenario file. Refuses a line that it does not understand: a misspelt key must not pass for a default. */

#define _GNU_SOURCE
#include "scenario.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef WSL
#define WSL 0
#endif

/* What a device answers where the scenario is silent: an idle GeForce RTX 3060.
 *   none       the device does not have it
 *   =KEY       as much as that key
 *   *PREFIX:N  N where a key of that prefix is written with a number, otherwise none: GeForce has no ECC, but a
 *              scenario that names one ECC figure means a device that has them all
 *   NULL       worked out from the index */
static const struct entry DEVICE_KEYS[] = {
    {"uuid", NULL},
    {"name", "NVIDIA GeForce RTX 3060"},
    {"pci", NULL},
    {"serial", "none"},
    {"minor", NULL},
    {"compute", "8.6"},
    {"architecture", "7"},
    {"brand", "5"},
    {"vbios", "94.06.25.00.9E"},
    {"memory_total_mib", "12288"},
    {"memory_used_mib", "400"},
    {"memory_reserved_mib", "240"},
    {"bar1_total_mib", "256"},
    {"bar1_used_mib", "4"},
    {"power_mw", "16000"},
    {"power_instant_mw", "=power_mw"},
    {"power_average_mw", "=power_mw"},
    {"power_limit_mw", "170000"},
    {"power_enforced_limit_mw", "=power_limit_mw"},
    {"power_default_limit_mw", "170000"},
    {"power_min_limit_mw", "100000"},
    {"power_max_limit_mw", "212000"},
    {"energy_mj", "1000000"},
    {"util_sm", "0"},
    {"util_mem", "0"},
    {"util_enc", "0"},
    {"util_dec", "0"},
    {"util_jpg", "0"},
    {"util_ofa", "0"},
    {"temperature", "38"},
    {"temperature_memory", "none"},
    {"slowdown_temperature", "95"},
    {"shutdown_temperature", "98"},
    {"gpu_max_temperature", "93"},
    {"fan", "0"},
    {"clock_graphics", "210"},
    {"clock_sm", "210"},
    {"clock_mem", "405"},
    {"clock_video", "555"},
    {"clock_graphics_max", "2130"},
    {"clock_sm_max", "2130"},
    {"clock_mem_max", "7501"},
    {"clock_video_max", "1950"},
    {"event_reasons", "0x1"},
    {"event_reasons_supported", "0x1ff"},
    {"violation_power_ns", "0"},
    {"violation_thermal_ns", "0"},
    {"violation_sync_boost_ns", "0"},
    {"violation_board_limit_ns", "0"},
    {"violation_low_utilization_ns", "0"},
    {"violation_reliability_ns", "0"},
    {"violation_app_clocks_ns", "0"},
    {"violation_base_clocks_ns", "0"},
    {"counter_sw_thermal_ns", "0"},
    {"counter_hw_thermal_ns", "0"},
    {"counter_power_brake_ns", "0"},
    {"pstate", "8"},
    {"pcie_gen", "1"},
    {"pcie_width", "16"},
    {"pcie_gen_max", "4"},
    {"pcie_width_max", "16"},
    {"pcie_gen_device_max", "4"},
    {"pcie_tx_kib_s", "0"},
    {"pcie_rx_kib_s", "0"},
    {"pcie_replays", "0"},
    {"ecc_mode", "*ecc_:1"},
    {"ecc_pending", "=ecc_mode"},
    {"ecc_volatile_corrected", "*ecc_:0"},
    {"ecc_volatile_uncorrected", "*ecc_:0"},
    {"ecc_aggregate_corrected", "*ecc_:0"},
    {"ecc_aggregate_uncorrected", "*ecc_:0"},
    {"remapped_correctable", "*remapped_:0"},
    {"remapped_uncorrectable", "*remapped_:0"},
    {"remapped_pending", "*remapped_:0"},
    {"remapped_failed", "*remapped_:0"},
    {"retired_sbe", "*retired_:0"},
    {"retired_dbe", "*retired_:0"},
    {"retired_pending", "*retired_:0"},
    {"recovery_action", "none"},
    {"mig", "none"},
    {"mig_pending", "=mig"},
    {"persistence", WSL ? "none" : "0"},
    {"display_active", "0"},
    {"display_mode", "0"},
    {"compute_mode", "0"},
    {"lost", "0"},
    {"reset_required", "0"},
    {"events", WSL ? "none" : "1"},
    {NULL, NULL},
};

static const struct entry GENERAL_KEYS[] = {
    {"driver", "560.35.03"}, {"nvml", "12.560.35.03"}, {"cuda", "12060"}, {"init", "0"}, {NULL, NULL},
};

static const char *const TEXT_KEYS[] = {"uuid", "name", "pci", "serial", "compute", "vbios", "driver", "nvml", NULL};

const char handles[MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct scenario scenario;
static struct stat seen;

void hold(void) { pthread_mutex_lock(&lock); }
void release(void) { pthread_mutex_unlock(&lock); }

static int listed(const char *const *words, const char *word) {
    for (; *words; words++)
        if (!strcmp(*words, word))
            return 1;
    return 0;
}

static void refuse(int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "NVML stand-in: %s:%d: ", getenv("FAKE_NVML"), line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    scenario.broken = 1;
}

static char *trim(char *text) {
    while (*text == ' ' || *text == '\t')
        text++;
    for (char *end = text + strlen(text); end > text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r');)
        *--end = 0;
    return text;
}

static int is_number(const char *text, u64 *number) {
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

/* Does the library have that function, in whatever version? */
static int exported(const char *name) {
    static const char *const VERSIONS[] = {"", "_v2", "_v3", NULL};
    Dl_info self;
    if (!dladdr((void *)&scenario, &self))
        return 1;
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    int found = !library;
    for (int i = 0; !found && VERSIONS[i]; i++) {
        char symbol[128];
        snprintf(symbol, sizeof symbol, "%s%s", name, VERSIONS[i]);
        found = dlsym(library, symbol) != NULL;
    }
    if (library)
        dlclose(library);
    return found;
}

static int parse_fault(struct section *section, char *key, const char *value, int line) {
    static const char *const KINDS[] = {"fail ", "hang ", "delay ", "crash "};
    for (int kind = 0; kind < 4; kind++) {
        size_t length = strlen(KINDS[kind]);
        u64 number = 0;
        if (strncmp(key, KINDS[kind], length))
            continue;
        const char *name = trim(key + length);
        if ((kind == FAIL || kind == DELAY) != (value != NULL) || (value && !is_number(value, &number)))
            refuse(line, "`fail FUNCTION = CODE`, `delay FUNCTION = MS`, `hang FUNCTION` or `crash FUNCTION`");
        else if (!exported(name))
            refuse(line, "the library has no %s", name);
        else if (section->fault_count == MAX_FAULTS)
            refuse(line, "more than %d faults", MAX_FAULTS);
        else
            section->faults[section->fault_count++] = (struct fault){kind, name, (unsigned)number};
        return 1;
    }
    return 0;
}

static void parse_process(struct section *section, char *value, int line) {
    char *rest = NULL;
    const char *pid = strtok_r(value, " \t", &rest), *mib = strtok_r(NULL, " \t", &rest);
    const char *kind = strtok_r(NULL, " \t", &rest);
    char *name = rest ? trim(rest) : NULL;
    static const char *const KINDS[] = {"compute", "graphics", "mps", NULL};
    u64 number, size = ~0ULL;
    if (!pid || !is_number(pid, &number) || !mib || (strcmp(mib, "na") && !is_number(mib, &size)) || !kind ||
        !listed(KINDS, kind)) {
        refuse(line, "`process = PID MIB|na compute|graphics|mps [NAME]`");
        return;
    }
    if (section->process_count == MAX_PROCESSES) {
        refuse(line, "more than %d processes", MAX_PROCESSES);
        return;
    }
    section->processes[section->process_count++] = (struct process){
        .pid = (unsigned)number,
        .bytes = WSL || size == ~0ULL ? ~0ULL : size << 20, /* WDDM keeps the books: NVML never knows a process's */
        .kind = *kind,
        .name = name && *name ? name : NULL,
    };
}

static void parse_share(struct section *section, const char *value, int line) {
    struct share share = {0};
    if (sscanf(value, "%u %u %u %u %u", &share.pid, &share.sm, &share.memory, &share.encoder, &share.decoder) < 3)
        refuse(line, "`process_util = PID SM MEM [ENC DEC]`");
    else if (section->share_count == MAX_PROCESSES)
        refuse(line, "more than %d process_util", MAX_PROCESSES);
    else
        section->shares[section->share_count++] = share;
}

static void parse_event(const char *text, int line) {
    struct event event;
    if (sscanf(text, "%u %d", &event.xid, &event.device) != 2)
        refuse(line, "`event XID DEVICE`");
    else if (scenario.event_count == MAX_EVENTS)
        refuse(line, "more than %d events", MAX_EVENTS);
    else
        scenario.events[scenario.event_count++] = event;
}

static void parse_entry(struct section *section, const char *key, const char *value, int line) {
    const struct entry *known = section->index < 0 ? GENERAL_KEYS : DEVICE_KEYS;
    u64 number;
    while (known->key && strcmp(known->key, key))
        known++;
    if (!known->key)
        refuse(line, "%s: no such key %s", key, section->index < 0 ? "before [device]" : "in [device]");
    else if (!listed(TEXT_KEYS, key) && strcmp(value, "none") && strcmp(value, "na") && !is_number(value, &number))
        refuse(line, "%s: %s is neither a number nor `none` nor `na`", key, value);
    else if (section->entry_count == MAX_ENTRIES)
        refuse(line, "more than %d entries", MAX_ENTRIES);
    else
        section->entries[section->entry_count++] = (struct entry){key, value};
}

static void parse_line(struct section **section, char *text, int line) {
    char *equals = strchr(text, '=');
    char *value = equals ? trim(equals + 1) : NULL;
    if (!strcmp(text, "[device]")) {
        if (scenario.device_count == MAX_DEVICES) {
            refuse(line, "more than %d devices", MAX_DEVICES);
            return;
        }
        *section = &scenario.devices[scenario.device_count];
        (*section)->index = scenario.device_count++;
        return;
    }
    if (equals)
        *equals = 0;
    text = trim(text);
    if (parse_fault(*section, text, value, line))
        return;
    if (!strcmp(text, "scramble processes") && (*section)->index < 0)
        scenario.scrambled = 1;
    else if (!strncmp(text, "event ", 6) && (*section)->index < 0)
        parse_event(text + 6, line);
    else if (!value)
        refuse(line, "`%s` is not understood", text);
    else if (!strcmp(text, "process") && (*section)->index >= 0)
        parse_process(*section, value, line);
    else if (!strcmp(text, "process_util") && (*section)->index >= 0)
        parse_share(*section, value, line);
    else
        parse_entry(*section, text, value, line);
}

static char *slurp(const char *path, struct stat *status) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    ssize_t length = -1;
    if (file < 0)
        return NULL;
    if (!fstat(file, status) && (text = malloc((size_t)status->st_size + 1)))
        length = read(file, text, (size_t)status->st_size);
    close(file);
    if (length < 0) {
        free(text);
        return NULL;
    }
    text[length] = 0;
    return text;
}

struct scenario *current(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat status;
    if (path && !stat(path, &status) && scenario.text && status.st_ino == seen.st_ino &&
        status.st_dev == seen.st_dev && status.st_size == seen.st_size &&
        status.st_mtim.tv_sec == seen.st_mtim.tv_sec && status.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return &scenario;
    free(scenario.text);
    memset(&scenario, 0, sizeof scenario);
    scenario.general.index = -1;
    if (!path || !(scenario.text = slurp(path, &seen))) {
        scenario.broken = 1;
        return &scenario;
    }
    struct section *section = &scenario.general;
    int line = 0;
    for (char *rest = scenario.text, *text; (text = strsep(&rest, "\n"));) {
        line++;
        text = trim(text);
        char *comment = *text == '#' ? text : strstr(text, " #");
        if (comment)
            *comment = 0;
        if (*(text = trim(text)))
            parse_line(&section, text, line);
    }
    return &scenario;
}

struct section *section_of(struct scenario *now, Device handle) {
    if (handle < handles || handle >= handles + MAX_DEVICES || handle - handles >= now->device_count)
        return NULL;
    return &now->devices[handle - handles];
}

/* A name without a version stands for all of them: what a binding calls GetCount is GetCount_v2 here. */
static int names(const char *function, const char *called) {
    size_t length = strlen(function);
    return !strncmp(function, called, length) &&
           (!called[length] || (!strncmp(called + length, "_v", 2) && !called[length + 3]));
}

const struct fault *fault_of(const struct scenario *now, const struct section *device, int kind, const char *called) {
    const struct section *sections[] = {device, &now->general};
    for (int i = 0; i < 2; i++)
        for (int j = 0; sections[i] && j < sections[i]->fault_count; j++)
            if (sections[i]->faults[j].kind == kind && names(sections[i]->faults[j].function, called))
                return &sections[i]->faults[j];
    return NULL;
}

static const char *written(const struct section *section, const char *key) {
    for (int i = section->entry_count; i-- > 0;) /* the last one counts */
        if (!strcmp(section->entries[i].key, key))
            return section->entries[i].value;
    return NULL;
}

/* What is worked out is kept here until the next call; the lock is held. */
static const char *from_index(int index, const char *key) {
    static char text[64];
    if (!strcmp(key, "uuid"))
        snprintf(text, sizeof text, "GPU-00000000-0000-4000-8000-%012x", index);
    else if (!strcmp(key, "pci"))
        snprintf(text, sizeof text, "00000000:%02X:00.0", index + 1);
    else
        snprintf(text, sizeof text, "%d", index);
    return text;
}

const char *text_of(const struct section *section, const char *key) {
    const char *value = written(section, key);
    const struct entry *known = section->index < 0 ? GENERAL_KEYS : DEVICE_KEYS;
    if (value)
        return value;
    while (strcmp(known->key, key))
        known++;
    value = known->value;
    if (!value)
        return from_index(section->index, key);
    if (*value == '=')
        return text_of(section, value + 1);
    if (*value == '*') {
        const char *colon = strchr(value, ':');
        for (int i = 0; i < section->entry_count; i++)
            if (!strncmp(section->entries[i].key, value + 1, (size_t)(colon - value - 1)) &&
                strcmp(section->entries[i].value, "none"))
                return colon + 1;
        return "none";
    }
    return value;
}

int number_of(const struct section *section, const char *key, u64 *number) {
    const char *text = text_of(section, key);
    if (!strcmp(text, "none"))
        return NOT_SUPPORTED;
    if (!strcmp(text, "na"))
        *number = ~0ULL;
    else if (!is_number(text, number))
        return UNKNOWN;
    return SUCCESS;
}
