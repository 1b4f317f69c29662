/* A stand-in for the CUDA driver's library: what tests/gpu/workloads/devices.py calls of it, at the C ABI.
 *
 * It computes nothing. Each call is noted in the file FAKE_CUDA_LOG with the arguments as they arrived; arguments that
 * a driver would refuse are refused. FAKE_CUDA_REFUSES names a target whose PTX is not taken. Waiting for the kernel
 * `endless` never returns. The card is the folder FAKE_CUDA_CARD: its file `total` says how many MiB there are to be
 * had, and a file for each process, `START_TICKS MIB UTILIZATION`, what that one holds for as long as it lives. With
 * -DCHECK=1 the real cuda.h has to agree with each function. */

#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if CHECK
#include <cuda.h>
#define OK CUDA_SUCCESS
#define INVALID CUDA_ERROR_INVALID_VALUE
#define NO_MEMORY CUDA_ERROR_OUT_OF_MEMORY
#define NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED
#define NO_CONTEXT CUDA_ERROR_INVALID_CONTEXT
#define OLD_PTX CUDA_ERROR_UNSUPPORTED_PTX_VERSION
#define NOT_FOUND CUDA_ERROR_NOT_FOUND
#else
typedef enum {
    OK = 0,
    INVALID = 1,
    NO_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_CONTEXT = 201,
    OLD_PTX = 222,
    NOT_FOUND = 500
} CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
#define CUDAAPI
#endif

#define MIB (1024ull * 1024ull)
#define CONTEXT_MIB 300
#define FIRST_BLOCK 0x7f0000000000ull /* pointers need all their 64 bits */

static int initialized, current_context, work_launched, endless_launched;
static unsigned long long taken, next_block = FIRST_BLOCK;
static char context, module, work, endless;

static void note(const char *format, ...) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    va_list arguments;
    if (!log)
        return;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}

/* The start time of a living process; 0 for a dead one, one that is not reaped among them. */
static unsigned long long ticks_of(const char *pid) {
    char path[64], line[1024], state;
    unsigned long long ticks;
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "r");
    char *rest = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (file)
        fclose(file);
    static const char fields[] = ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
    if (!rest || sscanf(rest, fields, &state, &ticks) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : ticks;
}

static FILE *card_file(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA_CARD"), name);
    return fopen(path, mode);
}

static void tell(void) {
    char pid[32], fresh[64], from[4096], to[4096];
    snprintf(pid, sizeof pid, "%d", getpid());
    snprintf(fresh, sizeof fresh, "%s.new", pid);
    FILE *file = card_file(fresh, "w");
    if (!file)
        abort();
    fprintf(file, "%llu %llu %d", ticks_of("self"), (taken + MIB - 1) / MIB, endless_launched ? 100 : 3);
    fclose(file);
    snprintf(from, sizeof from, "%s/%s", getenv("FAKE_CUDA_CARD"), fresh);
    snprintf(to, sizeof to, "%s/%s", getenv("FAKE_CUDA_CARD"), pid);
    if (rename(from, to))
        abort();
}

static unsigned long long free_bytes(void) {
    unsigned long long mib = 0, ticks, held;
    FILE *file = card_file("total", "r");
    if (!file || fscanf(file, "%llu", &mib) != 1)
        abort();
    fclose(file);
    DIR *folder = opendir(getenv("FAKE_CUDA_CARD"));
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0]) || strchr(entry->d_name, '.'))
            continue;
        file = card_file(entry->d_name, "r");
        if (file && fscanf(file, "%llu %llu", &ticks, &held) == 2 && ticks == ticks_of(entry->d_name))
            mib = held < mib ? mib - held : 0;
        if (file)
            fclose(file);
    }
    closedir(folder);
    return mib * MIB;
}

CUresult CUDAAPI cuInit(unsigned int flags) {
    note("cuInit %u", flags);
    initialized = flags == 0;
    return flags == 0 ? OK : INVALID;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **name) {
    *name = NULL;
    if (error == NO_MEMORY)
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
    if (error == OLD_PTX)
        *name = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    return *name ? OK : INVALID;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    note("cuDeviceGet %d", ordinal);
    if (!initialized)
        return NOT_INITIALIZED;
    *device = 7;
    return ordinal == 0 ? OK : INVALID;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
    note("cuDevicePrimaryCtxRetain %d", device);
    *made = (CUcontext)&context;
    taken += CONTEXT_MIB * MIB;
    tell();
    return device == 7 ? OK : INVALID;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext wanted) {
    note("cuCtxSetCurrent %d", wanted == (CUcontext)&context);
    current_context = wanted == (CUcontext)&context;
    return current_context ? OK : INVALID;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = free_bytes();
    *total = *free + taken;
    return current_context ? OK : NO_CONTEXT;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *block, size_t bytes) {
    note("cuMemAlloc_v2 %zu", bytes);
    if (!current_context)
        return NO_CONTEXT;
    if (bytes == 0)
        return INVALID;
    if (bytes > free_bytes())
        return NO_MEMORY;
    taken += bytes;
    tell();
    *block = next_block;
    next_block += bytes;
    return OK;
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr block, unsigned char value, size_t bytes) {
    note("cuMemsetD8_v2 +%llu %u %zu", block - FIRST_BLOCK, value, bytes);
    return block >= FIRST_BLOCK && block + bytes <= next_block ? OK : INVALID;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *loaded, const void *image) {
    const char *refused = getenv("FAKE_CUDA_REFUSES"), *text = image;
    const char *target = strstr(text, ".target ");
    note("cuModuleLoadData %.5s", target ? target + 8 : "none");
    if (!current_context)
        return NO_CONTEXT;
    if (!target || !strstr(text, ".version ") || !strstr(text, ".entry work(") || !strstr(text, ".entry endless("))
        return INVALID;
    if (refused && strncmp(refused, target + 8, strlen(refused)) == 0)
        return OLD_PTX;
    *loaded = (CUmodule)&module;
    return OK;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule of, const char *name) {
    note("cuModuleGetFunction %s", name);
    *function = (CUfunction)(strcmp(name, "work") == 0 ? &work : &endless);
    if (of != (CUmodule)&module)
        return INVALID;
    return strcmp(name, "work") == 0 || strcmp(name, "endless") == 0 ? OK : NOT_FOUND;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra) {
    int works = function == (CUfunction)&work;
    if (!works && function != (CUfunction)&endless)
        return INVALID;
    note("cuLaunchKernel %s grid %u %u %u block %u %u %u shared %u stream %d extra %d word +%llu rounds %u",
         works ? "work" : "endless", gx, gy, gz, bx, by, bz, shared, stream != NULL, extra != NULL,
         *(unsigned long long *)parameters[0] - FIRST_BLOCK, works ? *(unsigned *)parameters[1] : 0);
    work_launched = works;
    endless_launched = !works;
    tell();
    return OK;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    struct timespec work_time = {0, 10 * 1000 * 1000};
    note("cuCtxSynchronize");
    while (endless_launched)
        pause();
    if (work_launched)
        nanosleep(&work_time, NULL);
    work_launched = 0;
    return current_context ? OK : NO_CONTEXT;
}
