/* What the stand-in knows at this moment: the scenario file, read anew whenever it changed.
 * The format is told in standin.py. */

#ifndef SCENARIO_H
#define SCENARIO_H

#include <stddef.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { MAX_DEVICES = 16, MAX_ENTRIES = 128, MAX_FAULTS = 64, MAX_PROCESSES = 128, MAX_EVENTS = 256 };

enum { FAIL, HANG, DELAY, CRASH };

typedef unsigned long long u64;

/* A handle points at its device's place in a fixed table, so that it outlives every edit of the file. */
typedef const char *Device;

struct entry {
    const char *key, *value;
};

struct fault {
    int kind;
    const char *function;
    unsigned number; /* a return code or milliseconds */
};

struct process {
    unsigned pid;
    u64 bytes;
    char kind; /* c, g or m: compute, graphics, MPS */
    const char *name;
};

struct share {
    unsigned pid, sm, memory, encoder, decoder;
};

struct event {
    unsigned xid;
    int device;
};

struct section {
    int index; /* -1: the lines before the first [device] */
    struct entry entries[MAX_ENTRIES];
    struct fault faults[MAX_FAULTS];
    struct process processes[MAX_PROCESSES];
    struct share shares[MAX_PROCESSES];
    int entry_count, fault_count, process_count, share_count;
};

struct scenario {
    char *text;       /* what every string above points into */
    int broken;       /* the file cannot be read or understood: every call says UNKNOWN */
    int scrambled;
    struct section general, devices[MAX_DEVICES];
    int device_count;
    struct event events[MAX_EVENTS];
    int event_count;
};

extern const char handles[MAX_DEVICES];

/* Every function below wants the lock. */
void hold(void);
void release(void);
struct scenario *current(void);

/* NULL where the handle is none of ours, or where its device is not in the file any more. */
struct section *section_of(struct scenario *now, Device handle);
const struct fault *fault_of(const struct scenario *now, const struct section *device, int kind, const char *called);
const char *text_of(const struct section *section, const char *key);

/* SUCCESS with a number, or NOT_SUPPORTED. `na` is all ones. */
int number_of(const struct section *section, const char *key, u64 *number);

#endif
