// What a compiled kernel exports. Every kernel includes this: it needs nothing itself.
#pragma once
#include <cstddef>

namespace device {

struct Kernel {
    void (*run)(void **arguments, const unsigned *grid, const unsigned *block);
    int count;
    const size_t *sizes;  // of its arguments
};

}  // namespace device
