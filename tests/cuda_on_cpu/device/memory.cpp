// Memory: fresh blocks hold poison, have a fence on both sides, and hold poison again for a time after they were freed.
#include "device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

namespace device {

constexpr size_t GUARD = 1024, KEPT = 64 << 20;

struct Block {
    size_t nbytes;
    Place place;
    int device;
    bool guarded;
};

static std::map<uintptr_t, Block> blocks;
static std::deque<std::pair<unsigned char *, size_t>> freed;
static size_t freed_nbytes;
static std::map<int, size_t> limits, held;  // by device

static bool holds(const unsigned char *at, size_t nbytes, unsigned char value) {
    for (size_t i = 0; i < nbytes; i++)
        if (at[i] != value) return false;
    return true;
}

static void check(const unsigned char *at, size_t nbytes) {
    for (auto [side, words] : {std::pair{at - GUARD, "before the beginning"}, {at + nbytes, "beyond the end"}})
        if (!holds(side, GUARD, FENCE))
            fault("something was written " + std::string(words) + " of a block of " + std::to_string(nbytes) + " bytes");
}

size_t all_memory() {
    std::lock_guard guard(lock());
    auto found = limits.find(current_device());
    return found == limits.end() ? 80ul << 30 : found->second;
}

size_t free_memory() {
    std::lock_guard guard(lock());
    size_t memory = all_memory();
    return memory - std::min(memory, held[current_device()]);
}

void *allocate(size_t nbytes, Place place) {
    std::lock_guard guard(lock());
    if (place == Place::DEVICE && nbytes > free_memory()) throw Failure{OUT_OF_MEMORY};
    auto raw = (unsigned char *)std::aligned_alloc(512, (nbytes + 2 * GUARD + 511) / 512 * 512);
    if (!raw) throw Failure{OUT_OF_MEMORY};
    std::memset(raw, FENCE, nbytes + 2 * GUARD);
    std::memset(raw + GUARD, POISON, nbytes);
    blocks[(uintptr_t)raw + GUARD] = {nbytes, place, current_device(), true};
    if (place == Place::DEVICE) held[current_device()] += nbytes;
    count(place == Place::DEVICE ? "allocation" : "pinned allocation");
    return raw + GUARD;
}

void release(void *address, Place place) {
    if (!address) return;
    std::lock_guard guard(lock());
    auto found = blocks.find((uintptr_t)address);
    if (found == blocks.end() || found->second.place != place) throw Failure{INVALID_VALUE};
    if (place == Place::DEVICE) held[found->second.device] -= found->second.nbytes;
    auto at = (unsigned char *)address;
    size_t nbytes = found->second.nbytes;
    blocks.erase(found);
    check(at, nbytes);
    std::memset(at, POISON, nbytes);
    freed.emplace_back(at, nbytes);
    for (freed_nbytes += nbytes; freed_nbytes > KEPT || freed.size() > 4096; freed.pop_front()) {
        auto [oldest, size] = freed.front();
        if (!holds(oldest, size, POISON))
            fault("something was written to a block of " + std::to_string(size) + " bytes after it had been freed");
        freed_nbytes -= size;
        std::free(oldest - GUARD);
    }
}

void register_host(void *address, size_t nbytes) {
    std::lock_guard guard(lock());
    blocks[(uintptr_t)address] = {nbytes, Place::PINNED, 0, false};
}

void unregister_host(void *address) {
    std::lock_guard guard(lock());
    blocks.erase((uintptr_t)address);
}

Place place_of(const void *address, size_t nbytes) {
    std::lock_guard guard(lock());
    auto at = (uintptr_t)address;
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return Place::HOST;
    auto &[begin, block] = *--next;
    if (at >= begin + (block.nbytes ? block.nbytes : 1)) return Place::HOST;
    if (at + nbytes > begin + block.nbytes) {
        fault("a copy of " + std::to_string(nbytes) + " bytes reaches beyond a block of " + std::to_string(block.nbytes));
        throw Failure{ILLEGAL_ADDRESS};
    }
    return block.place;
}

void check_guards() {
    for (auto &[begin, block] : blocks)
        if (block.guarded) check((unsigned char *)begin, block.nbytes);
}

}  // namespace device

// How many bytes each device has from now on.
extern "C" void cuda_on_cpu_memory(int device, size_t nbytes) {
    std::lock_guard guard(device::lock());
    device::limits[device] = nbytes;
}
