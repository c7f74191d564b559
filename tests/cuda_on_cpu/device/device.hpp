// What the parts of the emulated devices share. All state is guarded by `lock()`; kernels run while it is held.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "kernel.hpp"

namespace device {

// cudaError_t and CUresult, which agree in these
enum Status {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILURE = 719,
    NOT_SUPPORTED = 801,
};

struct Failure {
    int status;
};

std::recursive_mutex &lock();

// counts.cpp
void count(const std::string &what, long times = 1);
// Note what no program may do; tests fail for it.
void fault(const std::string &text);

// memory.cpp
constexpr unsigned char POISON = 0xFF;  // NaN in every type of float, -1 in integers
constexpr unsigned char FENCE = 0xFE;  // around a block; no NaN, which could be copied to it and not be seen
enum class Place { HOST, PINNED, DEVICE };
size_t all_memory();  // of each device
size_t free_memory();  // of the current device
void *allocate(size_t nbytes, Place place);
void release(void *address, Place place);
void register_host(void *address, size_t nbytes);
void unregister_host(void *address);
// Where [address, address + nbytes) lies. Throws Failure where it reaches beyond a block.
Place place_of(const void *address, size_t nbytes);
void check_guards();

// streams.cpp
using Handle = intptr_t;  // of a stream or an event; stream 0 is the null stream of the current device
using Task = std::function<bool()>;  // false: it cannot end yet, and is to be called again
int device_count();
int on_machine(int device);  // its number among all devices of the machine
void write_uuid(int device, char *uuid);  // 16 bytes, of which some are zero
int &current_device();
Handle create_stream(bool blocking);
void destroy_stream(Handle stream);
void go_on(Handle stream);  // as far as it can
void enqueue(Handle stream, Task task);
bool idle(Handle stream);  // whether the next task would begin at once
void wait_for(Handle stream);  // as the host
bool query(Handle stream);
void synchronise_device();
Handle create_event();
void destroy_event(Handle event);
void record(Handle event, Handle stream);
void wait_for_event(Handle event);
bool query_event(Handle event);
void stream_waits(Handle stream, Handle event);

// copies.cpp
enum Kind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };  // cudaMemcpyKind
void copy(void *to, const void *from, size_t nbytes, int kind, Handle stream);
void fill(void *to, int value, size_t nbytes, Handle stream);

}  // namespace device
