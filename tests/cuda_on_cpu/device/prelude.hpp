// What g++ needs to compile CuPy's CUDA sources: qualifiers, indices, barriers, intrinsics.
#pragma once
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernel.hpp"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static
#define __shared__ static
#define __launch_bounds__(...)
#define warpSize 32

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

extern "C" void cuda_on_cpu_block(void (*)(void **), void **, int, void (*)(int));
extern "C" void cuda_on_cpu_sync_block();
extern "C" void cuda_on_cpu_sync_warp();
extern "C" uint64_t cuda_on_cpu_shuffle(uint64_t, int);
#define __syncthreads() cuda_on_cpu_sync_block()
#define __syncwarp(...) cuda_on_cpu_sync_warp()
#define __threadfence() ((void)0)

template <class T>
T __shfl_xor_sync(unsigned, T value, int lane_mask) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = cuda_on_cpu_shuffle(bits, lane_mask);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The arguments of a kernel as its types: what runs one thread, and their sizes.
template <auto kernel>
struct Threads;
template <class... Values, void (*kernel)(Values...)>
struct Threads<kernel> {
    static constexpr size_t sizes[sizeof...(Values) + 1] = {sizeof(Values)...};
    template <size_t... n>
    static void call(void **arguments, std::index_sequence<n...>) {
        kernel(*(std::remove_reference_t<Values> *)arguments[n]...);
    }
    static void one(void **arguments) { call(arguments, std::index_sequence_for<Values...>{}); }
    static void place(int t) {
        threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    }
    template <bool meet>
    static void run(void **arguments, const unsigned *grid, const unsigned *block) {
        gridDim = {grid[0], grid[1], grid[2]};
        blockDim = {block[0], block[1], block[2]};
        const int count = block[0] * block[1] * block[2];
        for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
            for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
                for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
                    if constexpr (meet) {
                        cuda_on_cpu_block(one, arguments, count, place);
                    } else {
                        for (int t = 0; t < count; ++t) place(t), one(arguments);
                    }
    }
    template <bool meet>
    static constexpr device::Kernel made{run<meet>, sizeof...(Values), sizes};
};
// meet: whether threads of the kernel meet at barriers.
#define KERNEL(name, meet) \
    extern "C" __attribute__((visibility("default"))) const device::Kernel kernel_##name; \
    const device::Kernel kernel_##name = Threads<&name>::made<meet>;

template <class To, class From>
static To as(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline float __int_as_float(int x) { return as<float>(x); }
static inline int __float_as_int(float x) { return as<int>(x); }
static inline unsigned __float_as_uint(float x) { return as<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return as<double>(x); }
static inline long long __double_as_longlong(double x) { return as<long long>(x); }
static inline int __double2hiint(double x) { return as<long long>(x) >> 32; }
static inline int __double2loint(double x) { return as<long long>(x); }
static inline double __hiloint2double(int high, int low) {
    return as<double>((long long)high << 32 | (unsigned)low);
}
template <class T>
static T __ldg(const T *p) {
    return *p;
}
template <class T>
static T __ldcg(const T *p) {
    return *p;
}

// One thread runs at a time, so nothing is in between.
template <class T, class Change>
static T atomically(T *p, Change change) {
    T old = *p;
    *p = change(old);
    return old;
}
#define ATOMIC(T) \
    static inline T atomicAdd(T *p, T v) { return atomically(p, [=](T old) -> T { return old + v; }); } \
    static inline T atomicExch(T *p, T v) { return atomically(p, [=](T) { return v; }); }
#define ATOMIC_INTEGER(T) \
    ATOMIC(T) \
    static inline T atomicCAS(T *p, T is, T v) { return atomically(p, [=](T old) { return old == is ? v : old; }); } \
    static inline T atomicMax(T *p, T v) { return atomically(p, [=](T old) { return old < v ? v : old; }); } \
    static inline T atomicMin(T *p, T v) { return atomically(p, [=](T old) { return v < old ? v : old; }); } \
    static inline T atomicAnd(T *p, T v) { return atomically(p, [=](T old) { return old & v; }); } \
    static inline T atomicOr(T *p, T v) { return atomically(p, [=](T old) { return old | v; }); } \
    static inline T atomicXor(T *p, T v) { return atomically(p, [=](T old) { return old ^ v; }); }
ATOMIC(float) ATOMIC(double) ATOMIC_INTEGER(int) ATOMIC_INTEGER(unsigned) ATOMIC_INTEGER(unsigned long long)

// CUDA's functions have overloads for float; those of C are of double alone.
using std::abs, std::isfinite, std::isinf, std::isnan, std::signbit;
#define OF_FLOAT(name) static inline float name(float x) { return name##f(x); }
OF_FLOAT(exp) OF_FLOAT(exp2) OF_FLOAT(expm1) OF_FLOAT(log) OF_FLOAT(log2) OF_FLOAT(log10) OF_FLOAT(log1p)
OF_FLOAT(sqrt) OF_FLOAT(cbrt) OF_FLOAT(sin) OF_FLOAT(cos) OF_FLOAT(tan) OF_FLOAT(sinh) OF_FLOAT(cosh) OF_FLOAT(tanh)
OF_FLOAT(asin) OF_FLOAT(acos) OF_FLOAT(atan) OF_FLOAT(asinh) OF_FLOAT(acosh) OF_FLOAT(atanh) OF_FLOAT(erf)
OF_FLOAT(floor) OF_FLOAT(ceil) OF_FLOAT(rint) OF_FLOAT(trunc)
static inline float pow(float x, float y) { return powf(x, y); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define EXTREMES(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
EXTREMES(int) EXTREMES(unsigned) EXTREMES(long) EXTREMES(unsigned long) EXTREMES(long long) EXTREMES(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

#include <cupy/atomics.cuh>
#include <cupy/carray.cuh>
#include <cupy/math_constants.h>
