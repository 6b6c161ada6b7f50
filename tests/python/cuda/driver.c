/* A CUDA driver over host memory, for tests: every call is a line of FEEDLINE_MOCK_LOG.
 *
 * Work of a stream is put off until somebody waits for it or FEEDLINE_MOCK_LAZY queries of its
 * event have been answered "not ready", and copies read the host's memory then: what is written
 * too early arrives wrong. FEEDLINE_MOCK_FAIL=cuMemAlloc_v2:3 lets the third call of that name
 * fail; without a number, every call. FEEDLINE_MOCK_DEVICES is how many devices there are.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_READY = 600, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };

#define MOST 4096
typedef struct { void *to; const void *from; size_t bytes; uint64_t time; } Copy;
typedef struct { int live; uint64_t recorded; int queries; } Event;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static FILE *journal;
static uint64_t now = 1, done = 0;       /* work is numbered; all up to `done` has been done */
static Copy copies[MOST];
static int copy_count;
static Event events[MOST];
static int event_count, streams_made, retained, depth, calls;
static __thread int current;
static void *registered[MOST];
static void *allocated[MOST];
static int registered_count, allocated_count, streams_live, events_live;
static char fail_name[64];
static int fail_at, failures, lazy = 1;

static void finish(uint64_t until) {
    int left = 0;
    for (int i = 0; i < copy_count; i++) {
        if (copies[i].time <= until) memcpy(copies[i].to, copies[i].from, copies[i].bytes);
        else copies[left++] = copies[i];
    }
    copy_count = left;
    if (until > done) done = until;
}

static int begin(const char *name) {
    pthread_mutex_lock(&guard);
    if (!journal) {
        const char *path = getenv("FEEDLINE_MOCK_LOG");
        journal = fopen(path ? path : "/dev/null", "w");
        setvbuf(journal, NULL, _IOLBF, 0);
        const char *fail = getenv("FEEDLINE_MOCK_FAIL");
        if (fail) {
            strncpy(fail_name, fail, sizeof fail_name - 1);
            char *colon = strchr(fail_name, ':');
            if (colon) { *colon = 0; fail_at = atoi(colon + 1); }
        }
        if (getenv("FEEDLINE_MOCK_LAZY")) lazy = atoi(getenv("FEEDLINE_MOCK_LAZY"));
    }
    calls++;
    if (!strcmp(name, fail_name)) {
        failures++;
        if (!fail_at || failures == fail_at) {
            fprintf(journal, "%s FAILS\n", name);
            return 999;
        }
    }
    return 0;
}

#define ENTER(name) int failed = begin(name); const char *call = name; (void)call; \
    if (failed) { pthread_mutex_unlock(&guard); return failed; }
#define LEAVE(code, ...) do { int code_ = (code); fprintf(journal, "%s", call); \
    fprintf(journal, __VA_ARGS__); fprintf(journal, " = %d\n", code_); \
    pthread_mutex_unlock(&guard); return code_; } while (0)
#define NEEDS_CONTEXT() do { if (!current) LEAVE(INVALID_CONTEXT, " without a context"); } while (0)

static int devices(void) {
    const char *text = getenv("FEEDLINE_MOCK_DEVICES");
    return text ? atoi(text) : 1;
}

CUresult cuInit(unsigned flags) { ENTER("cuInit"); LEAVE(devices() < 0 ? NO_DEVICE : 0, " %u", flags); }
CUresult cuGetErrorName(CUresult code, const char **text) {
    *text = code == 999 ? "CUDA_ERROR_UNKNOWN" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
        : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
    return 0;
}
CUresult cuGetErrorString(CUresult code, const char **text) {
    if (code == 999) { *text = "unknown error"; return 0; }
    return INVALID_VALUE;
}
CUresult cuDeviceGetCount(int *count) { ENTER("cuDeviceGetCount"); *count = devices(); LEAVE(0, " %d", *count); }
CUresult cuDeviceGet(int *device, int number) { ENTER("cuDeviceGet"); *device = number + 50; LEAVE(0, " %d", number); }
CUresult cuDeviceGetName(char *name, int bytes, int device) {
    ENTER("cuDeviceGetName"); snprintf(name, bytes, "Mock GPU %d", device - 50); LEAVE(0, " %d", device);
}
CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER("cuDevicePrimaryCtxGetState"); *flags = 0; *active = retained > 0; LEAVE(0, " %d", device);
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER("cuDevicePrimaryCtxRetain"); retained++; *context = &retained; LEAVE(0, " %d", device);
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER("cuDevicePrimaryCtxRelease_v2"); retained--;
    LEAVE(0, " %d memory %d locks %d streams %d events %d contexts %d", device, allocated_count,
          registered_count, streams_live, events_live, retained);
}
CUresult cuCtxPushCurrent_v2(void *context) {
    ENTER("cuCtxPushCurrent_v2"); (void)context; current++; depth++;
    pthread_mutex_unlock(&guard); return retained > 0 ? 0 : INVALID_CONTEXT;
}
CUresult cuCtxPopCurrent_v2(void **context) {
    ENTER("cuCtxPopCurrent_v2"); *context = &retained; current--; depth--;
    pthread_mutex_unlock(&guard); return 0;
}
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    static __thread int own;
    int before = own; own = *mode; *mode = before;
    pthread_mutex_unlock(&guard); return 0;
}
CUresult cuCtxSynchronize(void) { ENTER("cuCtxSynchronize"); NEEDS_CONTEXT(); finish(now); LEAVE(0, " "); }

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTER("cuMemHostRegister_v2"); NEEDS_CONTEXT();
    for (int i = 0; i < registered_count; i++)
        if (registered[i] == address) LEAVE(ALREADY_REGISTERED, " %p", address);
    registered[registered_count++] = address;
    LEAVE(0, " %p %zu %u", address, bytes, flags);
}
CUresult cuMemHostUnregister(void *address) {
    ENTER("cuMemHostUnregister"); NEEDS_CONTEXT();
    for (int i = 0; i < registered_count; i++)
        if (registered[i] == address) {
            registered[i] = registered[--registered_count];
            LEAVE(0, " %p", address);
        }
    LEAVE(NOT_REGISTERED, " %p", address);
}
CUresult cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    ENTER("cuMemAlloc_v2"); NEEDS_CONTEXT();
    void *place = NULL;
    if (allocated_count >= MOST || posix_memalign(&place, 256, bytes)) LEAVE(OUT_OF_MEMORY, " %zu", bytes);
    memset(place, 0xDD, bytes);
    allocated[allocated_count++] = place;
    *memory = (uint64_t)(uintptr_t)place;
    LEAVE(0, " %zu %p", bytes, place);
}
CUresult cuMemFree_v2(uint64_t memory) {
    ENTER("cuMemFree_v2"); NEEDS_CONTEXT();
    for (int i = 0; i < allocated_count; i++)
        if (allocated[i] == (void *)(uintptr_t)memory) {
            finish(now);
            free(allocated[i]);
            allocated[i] = allocated[--allocated_count];
            LEAVE(0, " 0x%llx", (unsigned long long)memory);
        }
    LEAVE(INVALID_VALUE, " 0x%llx", (unsigned long long)memory);
}
CUresult cuStreamCreate(void **stream, unsigned flags) {
    ENTER("cuStreamCreate"); NEEDS_CONTEXT();
    *stream = (void *)(uintptr_t)(0x5000 + ++streams_made); streams_live++;
    LEAVE(0, " %p %u", *stream, flags);
}
CUresult cuStreamDestroy_v2(void *stream) {
    ENTER("cuStreamDestroy_v2"); NEEDS_CONTEXT(); finish(now); streams_live--; LEAVE(0, " %p", stream);
}
static int queue(void *to, const void *from, size_t bytes) {
    if (copy_count >= MOST) finish(now);
    copies[copy_count++] = (Copy){to, from, bytes, ++now};
    return 0;
}
CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    ENTER("cuMemcpyHtoDAsync_v2"); NEEDS_CONTEXT();
    LEAVE(queue((void *)(uintptr_t)to, from, bytes), " %p %p %zu %p", (void *)(uintptr_t)to, from, bytes, stream);
}
CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    ENTER("cuMemcpyDtoHAsync_v2"); NEEDS_CONTEXT();
    LEAVE(queue(to, (void *)(uintptr_t)from, bytes), " %p %p %zu %p", to, (void *)(uintptr_t)from, bytes, stream);
}
CUresult cuEventCreate(void **event, unsigned flags) {
    ENTER("cuEventCreate"); NEEDS_CONTEXT();
    if (event_count >= MOST) LEAVE(OUT_OF_MEMORY, " too many");
    events[event_count] = (Event){1, 0, 0}; events_live++;
    *event = (void *)(uintptr_t)(0xE000 + event_count++);
    LEAVE(0, " %p %u", *event, flags);
}
static Event *find(void *event) {
    uintptr_t number = (uintptr_t)event - 0xE000;
    return number < (uintptr_t)event_count && events[number].live ? &events[number] : NULL;
}
CUresult cuEventDestroy_v2(void *event) {
    ENTER("cuEventDestroy_v2"); NEEDS_CONTEXT();
    Event *known = find(event);
    if (!known) LEAVE(INVALID_HANDLE, " %p", event);
    known->live = 0; events_live--;
    LEAVE(0, " %p", event);
}
static CUresult record(void *event) {
    Event *known = find(event);
    if (!known) return INVALID_HANDLE;
    known->recorded = ++now; known->queries = 0;
    return 0;
}
CUresult cuEventRecord(void *event, void *stream) {
    ENTER("cuEventRecord"); NEEDS_CONTEXT();
    LEAVE((uintptr_t)stream == 0xBAD ? INVALID_HANDLE : record(event), " %p %p", event, stream);
}
#ifndef WITHOUT_RECORD_ALL
CUresult cuCtxRecordEvent(void *context, void *event) {
    ENTER("cuCtxRecordEvent"); NEEDS_CONTEXT(); (void)context;
    LEAVE(record(event), " %p", event);
}
#endif
CUresult cuEventQuery(void *event) {
    ENTER("cuEventQuery"); NEEDS_CONTEXT();
    Event *known = find(event);
    if (!known) LEAVE(INVALID_HANDLE, " %p", event);
    if (known->recorded > done && known->queries++ < lazy) LEAVE(NOT_READY, " %p", event);
    finish(known->recorded);
    LEAVE(0, " %p", event);
}
CUresult cuEventSynchronize(void *event) {
    ENTER("cuEventSynchronize"); NEEDS_CONTEXT();
    Event *known = find(event);
    if (!known) LEAVE(INVALID_HANDLE, " %p", event);
    finish(known->recorded);
    LEAVE(0, " %p", event);
}
CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    ENTER("cuStreamWaitEvent"); NEEDS_CONTEXT();
    LEAVE((uintptr_t)stream == 0xBAD || !find(event) ? INVALID_HANDLE : 0, " %p %p %u", stream, event, flags);
}
