// libcuda.so.1, as far as CuPy loads and launches kernels by it.
#include "device.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

using namespace device;

#define API extern "C" __attribute__((visibility("default")))

struct Function {
    const Kernel *kernel;
    std::string name;
};

static void *context() { return (void *)(intptr_t)(current_device() + 1); }

API int cuGetErrorName(int, const char **text) { return *text = "CUDA_ERROR_OF_THE_EMULATION", SUCCESS; }
API int cuGetErrorString(int, const char **text) { return *text = "an error of the emulated driver", SUCCESS; }
API int cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
API int cuInit(unsigned) { return device_count() ? SUCCESS : NO_DEVICE; }
API int cuDeviceGetCount(int *count) { return *count = device_count(), SUCCESS; }
API int cuDeviceGet(int *device, int number) { return *device = number, SUCCESS; }
API int cuDeviceGetUuid_v2(char *uuid, int device) { return write_uuid(device, uuid), SUCCESS; }
API int cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "emulated GPU"), SUCCESS; }
API int cuCtxGetCurrent(void **found) { return *found = context(), SUCCESS; }
API int cuCtxSetCurrent(void *) { return SUCCESS; }
API int cuCtxGetDevice(int *found) { return *found = current_device(), SUCCESS; }
API int cuStreamGetCtx(void *, void **found) { return *found = context(), SUCCESS; }
API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

// image: the number of bytes, and a shared object (nvrtc.cpp)
API int cuModuleLoadData(void **module, const void *image) {
    if (std::memcmp(image, "cuda_on_cpu", 11)) return INVALID_IMAGE;
    size_t nbytes;
    std::memcpy(&nbytes, (const char *)image + 16, sizeof nbytes);
    const char *folder = std::getenv("TMPDIR");
    std::string path = std::string(folder ? folder : "/tmp") + "/kernel-XXXXXX";
    int file = mkstemp(path.data());
    bool written = file >= 0 && write(file, (const char *)image + 24, nbytes) == (ssize_t)nbytes;
    if (file >= 0) close(file);
    *module = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!*module) fault(written ? dlerror() : "no kernel can be written to " + path);
    unlink(path.c_str());
    return *module ? SUCCESS : INVALID_IMAGE;
}

API int cuModuleUnload(void *) { return SUCCESS; }

API int cuModuleGetFunction(Function **function, void *module, const char *name) {
    auto kernel = (const Kernel *)dlsym(module, ("kernel_" + std::string(name)).c_str());
    if (!kernel) return NOT_FOUND;
    *function = new Function{kernel, name};
    return SUCCESS;
}

API int cuModuleGetGlobal_v2(void **, size_t *, void *, const char *) { return NOT_FOUND; }
API int cuFuncGetAttribute(int *value, int attribute, void *) { return *value = attribute ? 0 : 1024, SUCCESS; }
API int cuFuncSetAttribute(void *, int, int) { return SUCCESS; }

API int cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned, intptr_t stream, void **arguments, void **) {
    size_t threads = (size_t)block_x * block_y * block_z;
    if (!threads || threads > 1024 || !grid_x || !grid_y || !grid_z) return INVALID_VALUE;
    const Kernel &kernel = *function->kernel;
    std::vector<std::vector<char>> values;
    for (int i = 0; i < kernel.count; ++i)
        values.emplace_back((char *)arguments[i], (char *)arguments[i] + kernel.sizes[i]);
    count("launch " + function->name);
    try {
        enqueue(stream, [=, &kernel]() mutable {
            const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
            std::vector<void *> places;
            for (auto &value : values) places.push_back(value.data());
            kernel.run(places.data(), grid, block);
            return true;
        });
    } catch (const Failure &failure) {
        return failure.status;
    }
    return SUCCESS;
}
