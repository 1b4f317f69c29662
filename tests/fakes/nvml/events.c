/* Xid events: each line of the scenario is told once to a process that registered for that device. */

#define _GNU_SOURCE
#include "call.h"

struct Event1 { Device device; u64 type, data; };
struct Event2 { Device device; u64 type, data; unsigned gpu_instance, compute_instance; };

_Static_assert(sizeof(struct Event2) == 32, "nvmlEventData_t");

enum { XID_EVENT = 8, MAX_SETS = 64, LONGEST_WAIT_MS = 60000, POLL_MS = 10 };

static struct event_set {
    int taken;
    u64 registered[MAX_DEVICES]; /* event types */
} sets[MAX_SETS];

static struct delivery {
    struct event event;
    int times;
} deliveries[MAX_EVENTS];
static int delivery_count;

API int nvmlDeviceGetSupportedEventTypes(Device handle, u64 *out) {
    u64 has;
    int code = enter_device("nvmlDeviceGetSupportedEventTypes", handle);
    if (code)
        return code;
    *out = number_of(device_of(handle), "events", &has) || !has ? 0 : XID_EVENT;
    return leave(SUCCESS);
}

API int nvmlEventSetCreate(struct event_set **out) {
    int code = enter_system("nvmlEventSetCreate");
    if (code)
        return code;
    for (struct event_set *set = sets; set < sets + MAX_SETS; set++) {
        if (set->taken)
            continue;
        *set = (struct event_set){.taken = 1};
        *out = set;
        return leave(SUCCESS);
    }
    return leave(UNKNOWN);
}

static int is_set(const struct event_set *set) { return set >= sets && set < sets + MAX_SETS && set->taken; }

API int nvmlEventSetFree(struct event_set *set) {
    int code = enter_system("nvmlEventSetFree");
    if (code)
        return code;
    if (!is_set(set))
        return leave(INVALID_ARGUMENT);
    set->taken = 0;
    return leave(SUCCESS);
}

API int nvmlDeviceRegisterEvents(Device handle, u64 types, struct event_set *set) {
    u64 has;
    int code = enter_device("nvmlDeviceRegisterEvents", handle);
    if (code)
        return code;
    if (!is_set(set))
        return leave(INVALID_ARGUMENT);
    if (number_of(device_of(handle), "events", &has) || !has)
        return leave(NOT_SUPPORTED);
    set->registered[handle - handles] |= types;
    return leave(SUCCESS);
}

/* How often this process was told of such an event. */
static int *told(struct event event) {
    for (int i = 0; i < delivery_count; i++)
        if (deliveries[i].event.xid == event.xid && deliveries[i].event.device == event.device)
            return &deliveries[i].times;
    if (delivery_count == MAX_EVENTS)
        return NULL;
    deliveries[delivery_count] = (struct delivery){event, 0};
    return &deliveries[delivery_count++].times;
}

/* The next line that this process was not told of. Equal lines are counted, so that an edit elsewhere repeats none. */
static int pending(const struct event_set *set, struct Event2 *out) {
    const struct scenario *now = current();
    for (int i = 0; i < now->event_count; i++) {
        struct event event = now->events[i];
        int before = 0;
        if (event.device < 0 || event.device >= MAX_DEVICES || !(set->registered[event.device] & XID_EVENT))
            continue;
        for (int j = 0; j < i; j++)
            before += now->events[j].xid == event.xid && now->events[j].device == event.device;
        int *times = told(event);
        if (!times || *times > before)
            continue;
        ++*times;
        *out = (struct Event2){&handles[event.device], XID_EVENT, event.xid, 0xffffffff, 0xffffffff};
        return 1;
    }
    return 0;
}

/* A wait ends with an error when a device of the set is gone, but only after what was said about it. */
static int lost_of(const struct event_set *set) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        const struct section *device = set->registered[i] ? section_of(current(), &handles[i]) : NULL;
        u64 lost = 0;
        if (device && !number_of(device, "lost", &lost) && lost)
            return lost == 1 ? GPU_IS_LOST : (int)lost;
    }
    return SUCCESS;
}

static int wait_for(const char *called, struct event_set *set, struct Event2 *out, unsigned timeout_ms) {
    u64 start = now_us(CLOCK_MONOTONIC), limit = timeout_ms < LONGEST_WAIT_MS ? timeout_ms : LONGEST_WAIT_MS;
    int code = enter_system(called);
    while (!code) {
        if (!is_set(set) || !out)
            return leave(INVALID_ARGUMENT);
        if (current()->broken)
            return leave(UNKNOWN);
        if (pending(set, out))
            return leave(SUCCESS);
        code = lost_of(set);
        release();
        u64 waited = (now_us(CLOCK_MONOTONIC) - start) / 1000;
        if (!code && waited >= limit)
            return TIMEOUT;
        if (!code) {
            sleep_ms(limit - waited < POLL_MS ? (unsigned)(limit - waited) : POLL_MS);
            hold();
        }
    }
    return code;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct Event2 *out, unsigned timeout_ms) {
    return wait_for("nvmlEventSetWait_v2", set, out, timeout_ms);
}

API int nvmlEventSetWait(struct event_set *set, struct Event1 *out, unsigned timeout_ms) {
    struct Event2 event;
    int code = wait_for("nvmlEventSetWait", set, out ? &event : NULL, timeout_ms);
    if (!code)
        *out = (struct Event1){event.device, event.type, event.data};
    return code;
}
