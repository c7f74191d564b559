// Copies and fills, with their directions checked. What a copy will write is poisoned at once where nothing that was
// enqueued before may still read it.
#include "device.hpp"

#include <cstring>
#include <vector>

namespace device {

static void poison(void *to, size_t nbytes, Handle stream) {
    if (stream && idle(stream)) std::memset(to, POISON, nbytes);
}

void copy(void *to, const void *from, size_t nbytes, int kind, Handle stream) {
    if (!nbytes) return;
    Place target = place_of(to, nbytes), source = place_of(from, nbytes);
    bool writes_device = target == Place::DEVICE, reads_device = source == Place::DEVICE;
    int actual = (reads_device ? 2 : 0) | (writes_device ? 1 : 0);
    if (kind != BY_ADDRESS && kind != actual) {
        fault("a copy has kind " + std::to_string(kind) + ", but the addresses are of kind " + std::to_string(actual));
        throw Failure{INVALID_VALUE};
    }
    static const char *const names[] = {"copy on the host", "upload", "download", "copy"};
    count(names[actual]);
    count(std::string(names[actual]) + " bytes", (long)nbytes);
    bool disjoint = (char *)to + nbytes <= (const char *)from || (const char *)from + nbytes <= (char *)to;
    auto begin = (const unsigned char *)from;
    if (source == Place::HOST) {  // the caller may overwrite it as soon as this returns
        enqueue(stream, [to, staged = std::vector<unsigned char>(begin, begin + nbytes)] {
            std::memcpy(to, staged.data(), staged.size());
            return true;
        });
    } else {
        if (disjoint) poison(to, nbytes, stream);
        enqueue(stream, [to, from, nbytes] {
            std::memmove(to, from, nbytes);
            return true;
        });
    }
    if (target == Place::HOST) wait_for(stream);
}

void fill(void *to, int value, size_t nbytes, Handle stream) {
    if (!nbytes) return;
    if (place_of(to, nbytes) == Place::HOST) {
        fault("a fill of host memory");
        throw Failure{INVALID_VALUE};
    }
    count("fill");
    poison(to, nbytes, stream);
    enqueue(stream, [to, value, nbytes] {
        std::memset(to, value, nbytes);
        return true;
    });
}

}  // namespace device
