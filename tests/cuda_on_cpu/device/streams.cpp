// Streams and events. The work of the null streams is done at once; that of other streams is put off until something
// waits for it. Which streams go on meanwhile, and how far, is drawn from a seed, as no program may depend on it.
#include "device.hpp"

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <random>
#include <sstream>
#include <vector>

namespace device {

struct Stream {
    int device;
    bool null, blocking, running = false;
    std::deque<Task> tasks;
    uint64_t done = 0;
    uint64_t end() const { return done + tasks.size(); }
};

using StreamPtr = std::shared_ptr<Stream>;

// A place in the work of a stream; none: over.
struct Event {
    StreamPtr stream;
    uint64_t position = 0;
};

static std::map<Handle, StreamPtr> streams;
static std::map<Handle, Event> events;
static Handle next_handle = 0x1000;

static unsigned long number_of(const char *variable, unsigned long fallback) {
    const char *given = std::getenv(variable);
    return given && *given ? std::strtoul(given, nullptr, 10) : fallback;
}

static bool drawn() {
    static std::mt19937 random(number_of("CUDA_ON_CPU_SEED", 0));
    return random() & 1;
}

// Of the machine's devices, those that CUDA_VISIBLE_DEVICES lists, in its order.
static std::vector<int> find_devices() {
    int there = (int)number_of("CUDA_ON_CPU", 1);
    std::vector<int> found;
    const char *given = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!given) {
        for (int i = 0; i < there; ++i) found.push_back(i);
        return found;
    }
    std::stringstream entries(given);
    for (std::string entry; std::getline(entries, entry, ',') && !entry.empty();) {
        int number = std::atoi(entry.c_str());
        if (number < 0 || number >= there) break;  // CUDA ignores what follows, too
        found.push_back(number);
    }
    return found;
}

static const std::vector<int> &devices() {
    static const std::vector<int> found = find_devices();
    return found;
}

int device_count() { return (int)devices().size(); }
int on_machine(int device) { return devices().at(device); }

void write_uuid(int device, char *uuid) {
    std::memset(uuid, 0, 16);
    std::memcpy(uuid, "em", 2);
    uuid[15] = (char)on_machine(device);
}

int &current_device() {
    static thread_local int current = 0;
    return current;
}

// Streams of the current device alone can be used, as in CUDA.
static StreamPtr find(Handle handle) {
    if (handle == 0 || handle == 1 || handle == 2) {  // legacy, or per thread, which nobody asks for
        auto &null = streams[-1 - current_device()];
        if (!null) null = std::make_shared<Stream>(Stream{current_device(), true, true});
        return null;
    }
    auto found = streams.find(handle);
    if (found == streams.end() || found->second->device != current_device()) throw Failure{INVALID_HANDLE};
    return found->second;
}

static bool reach(const StreamPtr &stream, uint64_t position);

// Let other streams go on.
static void stir(const Stream &needed) {
    std::vector<std::pair<StreamPtr, uint64_t>> others;  // with a place that is not beyond the end of their work
    for (auto &[_, stream] : streams)
        if (stream.get() != &needed && !stream->tasks.empty() && drawn())
            others.emplace_back(stream, stream->done + 1);
    for (auto &[stream, position] : others) reach(stream, position);
}

// Do the stream's work up to a position. False: it waits for what has not come.
static bool reach(const StreamPtr &stream, uint64_t position) {
    if (stream->running) return stream->done >= position;
    stream->running = true;
    while (stream->done < position && stream->tasks.front()()) {
        stream->tasks.pop_front();
        ++stream->done;
    }
    stream->running = false;
    return stream->done >= position;
}

static bool progress(const StreamPtr &stream, uint64_t position) {
    std::lock_guard held(lock());
    if (!stream || stream->done >= position) return true;
    stir(*stream);
    return reach(stream, position);
}

static void await(const StreamPtr &stream, uint64_t position) {
    while (!progress(stream, position)) {
        timespec pause{0, 100000};
        nanosleep(&pause, nullptr);
    }
}

Handle create_stream(bool blocking) {
    std::lock_guard held(lock());
    Handle handle = next_handle += 16;
    streams[handle] = std::make_shared<Stream>(Stream{current_device(), false, blocking});
    return handle;
}

void destroy_stream(Handle handle) {  // what it has to do is done all the same
    std::lock_guard held(lock());
    auto found = streams.find(handle);
    if (found == streams.end()) throw Failure{INVALID_HANDLE};
    reach(found->second, found->second->end());
    streams.erase(found);
}

void go_on(Handle handle) {
    std::lock_guard held(lock());
    auto found = streams.find(handle);
    if (found != streams.end()) reach(found->second, found->second->end());
}

static void add_wait(const StreamPtr &waiting, const StreamPtr &stream) {
    if (stream != waiting && !stream->tasks.empty())
        waiting->tasks.push_back([stream, position = stream->end()] { return reach(stream, position); });
}

void enqueue(Handle handle, Task task) {
    std::lock_guard held(lock());
    StreamPtr stream = find(handle);
    if (stream->blocking)  // the null stream and those that it blocks wait for each other
        for (auto &[_, other] : streams)
            if (other->device == stream->device && other->blocking && other->null != stream->null)
                add_wait(stream, other);
    stream->tasks.push_back(std::move(task));
    if (stream->null) reach(stream, stream->end());
}

bool idle(Handle handle) {
    std::lock_guard held(lock());
    return find(handle)->tasks.empty();
}

static std::pair<StreamPtr, uint64_t> end_of(Handle handle) {
    std::lock_guard held(lock());
    StreamPtr stream = find(handle);
    return {stream, stream->end()};
}

void wait_for(Handle handle) {
    auto [stream, position] = end_of(handle);
    await(stream, position);
}

bool query(Handle handle) {
    auto [stream, position] = end_of(handle);
    return progress(stream, position);
}

void synchronise_device() {
    std::vector<std::pair<StreamPtr, uint64_t>> all;
    {
        std::lock_guard held(lock());
        for (auto &[_, stream] : streams)
            if (stream->device == current_device()) all.emplace_back(stream, stream->end());
    }
    for (auto &[stream, position] : all) await(stream, position);
}

Handle create_event() {
    std::lock_guard held(lock());
    Handle handle = next_handle += 16;
    events[handle] = {};
    return handle;
}

static Event event_of(Handle handle) {
    std::lock_guard held(lock());
    auto found = events.find(handle);
    if (found == events.end()) throw Failure{INVALID_HANDLE};
    return found->second;
}

void destroy_event(Handle handle) {
    std::lock_guard held(lock());
    if (!events.erase(handle)) throw Failure{INVALID_HANDLE};
}

void record(Handle handle, Handle stream) {
    auto [found, position] = end_of(stream);
    event_of(handle);
    std::lock_guard held(lock());
    events[handle] = {found, position};
}

void wait_for_event(Handle handle) {
    Event event = event_of(handle);
    await(event.stream, event.position);
}

bool query_event(Handle handle) {
    Event event = event_of(handle);
    return progress(event.stream, event.position);
}

void stream_waits(Handle handle, Handle event_handle) {
    Event event = event_of(event_handle);
    if (!event.stream || event.stream->done >= event.position) return;
    enqueue(handle, [event] { return reach(event.stream, event.position); });
}

}  // namespace device
