// What happened, by name, and what should not have.
#include "device.hpp"

#include <cstdio>
#include <map>

namespace device {

static std::map<std::string, long> counts;
static std::string faults;

std::recursive_mutex &lock() {
    static std::recursive_mutex mutex;
    return mutex;
}

void count(const std::string &what, long times) {
    std::lock_guard held(lock());
    counts[what] += times;
}

void fault(const std::string &text) {
    std::lock_guard held(lock());
    std::fprintf(stderr, "emulated GPU: %s\n", text.c_str());
    faults += text + "\n";
}

}  // namespace device

// Both empty what they return; the text is valid until the next call.
extern "C" const char *cuda_on_cpu_counts() {
    static std::string text;
    std::lock_guard held(device::lock());
    text.clear();
    for (auto &[what, times] : device::counts) text += what + "\t" + std::to_string(times) + "\n";
    device::counts.clear();
    return text.c_str();
}

extern "C" const char *cuda_on_cpu_faults() {
    static std::string text;
    std::lock_guard held(device::lock());
    device::check_guards();
    text.swap(device::faults);
    device::faults.clear();
    return text.c_str();
}
