// The threads of a block: fibres, which change where they meet at a barrier. x86-64 only.
#include "device.hpp"

#include <sys/mman.h>

#include <algorithm>

#ifndef __x86_64__
#error "the emulation of CUDA changes between fibres in x86-64's assembler"
#endif

namespace {

enum State { RUNS, AT_WARP, AT_BLOCK, ENDED };
constexpr int MOST = 1024, WARP = 32;
constexpr size_t STACK = 64 << 10;

struct Fibre {
    void *stack;
    State state;
};

Fibre fibres[MOST];
void *scheduler;
int now;
uint64_t exchanged[MOST];
void (*body)(void **);
void **body_arguments;

// Keep the registers that a call must keep on the own stack, and go on with another.
__attribute__((naked, noinline)) void change(void **, void *) {
    __asm__(
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15;"
        "mov %rsp, (%rdi); mov %rsi, %rsp;"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}

void leave(State state) {
    fibres[now].state = state;
    change(&fibres[now].stack, scheduler);
}

void enter() {
    body(body_arguments);
    leave(ENDED);
}

char *stacks() {
    static void *made = mmap(nullptr, MOST * STACK, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) throw device::Failure{device::OUT_OF_MEMORY};
    return (char *)made;
}

// Run threads [first, last) of a warp until all wait for the block or have ended.
void run_warp(int first, int last, void (*place)(int)) {
    auto any = [&](State state) {
        return std::any_of(fibres + first, fibres + last, [&](Fibre &fibre) { return fibre.state == state; });
    };
    while (any(RUNS)) {
        for (now = first; now < last; ++now)
            if (fibres[now].state == RUNS) {
                place(now);
                change(&scheduler, fibres[now].stack);
            }
        if (!any(AT_WARP)) continue;
        if (any(AT_BLOCK)) {
            device::fault("threads of a warp wait at different barriers");
            throw device::Failure{device::LAUNCH_FAILURE};
        }
        for (int i = first; i < last; ++i)
            if (fibres[i].state == AT_WARP) fibres[i].state = RUNS;
    }
}

}  // namespace

// For kernels, which prelude.hpp compiles.
extern "C" void cuda_on_cpu_block(void (*kernel)(void **), void **arguments, int count, void (*place)(int)) {
    body = kernel;
    body_arguments = arguments;
    for (int i = 0; i < count; ++i) {
        auto top = (void **)(stacks() + (i + 1) * STACK) - 1;
        *--top = (void *)enter;
        fibres[i] = {top - 6, RUNS};  // six registers
    }
    auto waits = [](Fibre &fibre) { return fibre.state == AT_BLOCK; };
    do {
        for (int i = 0; i < count; ++i)
            if (fibres[i].state == AT_BLOCK) fibres[i].state = RUNS;
        for (int first = 0; first < count; first += WARP) run_warp(first, std::min(first + WARP, count), place);
    } while (std::any_of(fibres, fibres + count, waits));
}

extern "C" void cuda_on_cpu_sync_block() { leave(AT_BLOCK); }

extern "C" void cuda_on_cpu_sync_warp() { leave(AT_WARP); }

extern "C" uint64_t cuda_on_cpu_shuffle(uint64_t value, int lane_mask) {
    exchanged[now] = value;
    leave(AT_WARP);
    uint64_t found = exchanged[now ^ lane_mask];
    leave(AT_WARP);
    return found;
}
