// In place of the functions of CuPy's module `runtime`, which contains CUDA's runtime: those of the emulated devices.
//
// Other modules of CuPy call them through `runtime.__pyx_capi__`, and Python's code through the module. Each function
// has an entry for both; the types of the former are compared with those that CuPy declares.
#include <Python.h>

#include <cstring>
#include <tuple>

#include "device.hpp"

using namespace device;

namespace {

PyObject *error_type;  // runtime.CUDARuntimeError

template <class T>
constexpr const char *name_of = nullptr;
template <>
constexpr const char *name_of<int> = "int";
template <>
constexpr const char *name_of<unsigned> = "unsigned int";
template <>
constexpr const char *name_of<intptr_t> = "intptr_t";
template <>
constexpr const char *name_of<size_t> = "size_t";
template <>
constexpr const char *name_of<float> = "float";
template <>
constexpr const char *name_of<void> = "PyObject *";
template <>
constexpr const char *name_of<PyObject *> = "PyObject *";

template <class T>
T taken(PyObject *value) {
    if constexpr (std::is_same_v<T, size_t>)
        return PyLong_AsSize_t(value);
    else
        return (T)PyLong_AsLongLong(value);
}

PyObject *given(int value) { return PyLong_FromLong(value); }
PyObject *given(unsigned value) { return PyLong_FromUnsignedLong(value); }
PyObject *given(intptr_t value) { return PyLong_FromSsize_t(value); }
PyObject *given(size_t value) { return PyLong_FromSize_t(value); }
PyObject *given(float value) { return PyFloat_FromDouble(value); }
PyObject *given(PyObject *value) { return value; }

template <auto function>
struct Entry;
template <class R, class... A, R (*function)(A...)>
struct Entry<function> {
    // What Cython's functions return: None for nothing.
    using Returned = std::conditional_t<std::is_void_v<R>, PyObject *, R>;

    static Returned call(A... arguments) {
        int status = 0;
        Returned result{};
        PyThreadState *saved = std::is_same_v<R, PyObject *> ? nullptr : PyEval_SaveThread();
        try {
            if constexpr (std::is_void_v<R>)
                function(arguments...);
            else
                result = function(arguments...);
        } catch (const Failure &failure) {
            status = failure.status;
        }
        if (saved) PyEval_RestoreThread(saved);
        if (status) {
            PyObject *number = PyLong_FromLong(status);
            PyErr_SetObject(error_type, number);
            Py_XDECREF(number);
            // What CuPy takes for an error: no address, else -1.
            return std::is_pointer_v<Returned> || std::is_same_v<Returned, intptr_t> ? Returned{} : Returned(-1);
        }
        if constexpr (std::is_void_v<R>) return Py_NewRef(Py_None);
        return result;
    }

    static Returned from_cython(A... arguments, int) { return call(arguments...); }

    template <size_t... n>
    static PyObject *unpacked(PyObject *const *values, std::index_sequence<n...>) {
        std::tuple<A...> arguments{taken<A>(values[n])...};
        if (PyErr_Occurred()) return nullptr;
        auto result = std::apply(call, arguments);
        return PyErr_Occurred() ? nullptr : given(result);
    }

    static PyObject *from_python(PyObject *, PyObject *const *values, Py_ssize_t count) {
        PyObject *all[sizeof...(A) + 1];
        for (size_t i = 0; i < sizeof...(A); ++i)  // those that have a default, 0, come last
            all[i] = (Py_ssize_t)i < count ? values[i] : PyLong_FromLong(0);
        return unpacked(all, std::index_sequence_for<A...>{});
    }

    static std::string signature() {
        std::string types;
        ((types += std::string(name_of<A>) + ", "), ...);
        std::string result = name_of<R>;
        return result + (result.back() == '*' ? "(" : " (") + types + "int __pyx_skip_dispatch";
    }
};

void check(int device) {
    if (device < 0 || device >= device_count()) throw Failure{INVALID_DEVICE};
}

int driver_version() { return 13000; }
int count_devices() { return device_count(); }
int get_device() { return current_device(); }
void set_device(int number) {
    check(number);
    current_device() = number;
}
int attribute(int which, int number) {
    check(number);
    switch (which) {
        case 1: case 2: case 3: return 1024;  // threads of a block
        case 4: return 64;
        case 5: return 2147483647;  // blocks of a grid
        case 6: case 7: return 65535;
        case 8: return 48 << 10;  // bytes of shared memory
        case 10: return 32;  // threads of a warp
        case 16: return 132;  // multiprocessors
        case 39: return 2048;
        case 75: return 9;  // compute capability
        default: return 0;
    }
}
PyObject *properties(int number) {
    check(number);
    char uuid[17] = {};  // CuPy takes it for a text, which ends with the first zero byte
    write_uuid(number, uuid);
    return Py_BuildValue("{s:y,s:y,s:i,s:i,s:i,s:i}", "name", "emulated GPU", "uuid", uuid, "major", 9, "minor", 0,
                         "multiProcessorCount", 132, "warpSize", 32);
}
PyObject *bus_id(int number) {
    check(number);
    return PyUnicode_FromFormat("0000:%02X:00.0", on_machine(number));
}
int can_access_peer(int, int) { return 0; }
void do_nothing(int) {}
void wait_for_device() {
    count("wait");
    synchronise_device();
}
PyObject *memory_info() { return Py_BuildValue("(nn)", (Py_ssize_t)free_memory(), (Py_ssize_t)all_memory()); }
size_t limit(int) { return 0; }

intptr_t device_malloc(size_t nbytes) { return (intptr_t)allocate(nbytes, Place::DEVICE); }
intptr_t host_alloc(size_t nbytes, unsigned) { return (intptr_t)allocate(nbytes, Place::PINNED); }
void device_free(intptr_t address) { release((void *)address, Place::DEVICE); }
void host_free(intptr_t address) { release((void *)address, Place::PINNED); }
void host_register(intptr_t address, size_t nbytes, unsigned) { register_host((void *)address, nbytes); }
void host_unregister(intptr_t address) { unregister_host((void *)address); }

void copy_async(intptr_t to, intptr_t from, size_t nbytes, int kind, intptr_t stream) {
    copy((void *)to, (const void *)from, nbytes, kind, stream);
}
void copy_now(intptr_t to, intptr_t from, size_t nbytes, int kind) {
    count("wait");
    copy_async(to, from, nbytes, kind, 0);
    wait_for(0);
}
void copy_peer_async(intptr_t to, int, intptr_t from, int, size_t nbytes, intptr_t stream) {
    copy_async(to, from, nbytes, DEVICE_TO_DEVICE, stream);
}
void copy_peer(intptr_t to, int, intptr_t from, int, size_t nbytes) { copy_now(to, from, nbytes, DEVICE_TO_DEVICE); }
void fill_async(intptr_t to, int value, size_t nbytes, intptr_t stream) { fill((void *)to, value, nbytes, stream); }
void fill_now(intptr_t to, int value, size_t nbytes) { fill_async(to, value, nbytes, 0); }
int memory_type(intptr_t address) { return (int)place_of((void *)address, 0); }

intptr_t stream_create() { return create_stream(true); }
intptr_t stream_create_with_flags(unsigned flags) { return create_stream(!(flags & 1)); }
intptr_t stream_create_with_priority(unsigned flags, int) { return create_stream(!(flags & 1)); }
void stream_destroy(intptr_t stream) { destroy_stream(stream); }
void stream_wait(intptr_t stream) {
    count("wait");
    wait_for(stream);
}
PyObject *stream_query(intptr_t stream) { return given(query(stream) ? SUCCESS : NOT_READY); }
void stream_wait_event(intptr_t stream, intptr_t event) { stream_waits(stream, event); }
int nothing_of(intptr_t) { return 0; }

intptr_t event_create() { return create_event(); }
intptr_t event_create_with_flags(unsigned) { return create_event(); }
void event_destroy(intptr_t event) { destroy_event(event); }
PyObject *event_query(intptr_t event) { return given(query_event(event) ? SUCCESS : NOT_READY); }
void event_record(intptr_t event, intptr_t stream) { record(event, stream); }
void event_wait(intptr_t event) {
    count("wait");
    wait_for_event(event);
}
float event_time(intptr_t, intptr_t) { return 0; }  // no time passes

struct Replacement {
    const char *name;
    void *from_cython;
    _PyCFunctionFast from_python;
    std::string signature;
};

#define OF(name, function) \
    {name, (void *)Entry<function>::from_cython, Entry<function>::from_python, Entry<function>::signature()}

const Replacement replacements[] = {
    OF("driverGetVersion", driver_version),
    OF("getDeviceCount", count_devices),
    OF("getDevice", get_device),
    OF("setDevice", set_device),
    OF("deviceGetAttribute", attribute),
    OF("getDeviceProperties", properties),
    OF("deviceGetPCIBusId", bus_id),
    OF("deviceCanAccessPeer", can_access_peer),
    OF("deviceEnablePeerAccess", do_nothing),
    OF("_deviceEnsurePeerAccess", do_nothing),
    OF("deviceSynchronize", wait_for_device),
    OF("deviceGetLimit", limit),
    OF("memGetInfo", memory_info),
    OF("malloc", device_malloc),
    OF("hostAlloc", host_alloc),
    OF("free", device_free),
    OF("freeHost", host_free),
    OF("hostRegister", host_register),
    OF("hostUnregister", host_unregister),
    OF("memcpy", copy_now),
    OF("memcpyAsync", copy_async),
    OF("memcpyPeer", copy_peer),
    OF("memcpyPeerAsync", copy_peer_async),
    OF("memset", fill_now),
    OF("memsetAsync", fill_async),
    OF("pointerGetMemoryType", memory_type),
    OF("streamCreate", stream_create),
    OF("streamCreateWithFlags", stream_create_with_flags),
    OF("streamCreateWithPriority", stream_create_with_priority),
    OF("streamDestroy", stream_destroy),
    OF("streamSynchronize", stream_wait),
    OF("streamQuery", stream_query),
    OF("streamWaitEvent", stream_wait_event),
    OF("streamIsCapturing", nothing_of),
    OF("streamGetPriority", nothing_of),
    OF("eventCreate", event_create),
    OF("eventCreateWithFlags", event_create_with_flags),
    OF("eventDestroy", event_destroy),
    OF("eventQuery", event_query),
    OF("eventRecord", event_record),
    OF("eventSynchronize", event_wait),
    OF("eventElapsedTime", event_time),
};

// The context exists. Its signature has no `__pyx_skip_dispatch`, as Python cannot call it.
PyObject *ensure_context() { return Py_NewRef(Py_None); }

bool replace(PyObject *module, PyObject *entries, const Replacement &replacement) {
    PyObject *capsule = PyDict_GetItemString(entries, replacement.name);
    if (!capsule) {
        PyErr_Format(PyExc_ImportError, "CuPy's runtime has no %s. The emulation is for CuPy 14.2.", replacement.name);
        return false;
    }
    const char *declared = PyCapsule_GetName(capsule);
    if (std::strncmp(declared, replacement.signature.c_str(), replacement.signature.size())) {
        PyErr_Format(PyExc_ImportError, "CuPy's %s is %s, but the emulation, which is for CuPy 14.2, has %s",
                     replacement.name, declared, replacement.signature.c_str());
        return false;
    }
    auto method = new PyMethodDef{replacement.name, (PyCFunction)(void *)replacement.from_python, METH_FASTCALL, ""};
    PyObject *callable = PyCFunction_New(method, nullptr);
    return callable && !PyObject_SetAttrString(module, replacement.name, callable) &&
           !PyCapsule_SetPointer(capsule, replacement.from_cython);
}

}  // namespace

extern "C" PyObject *cuda_on_cpu_enter(PyObject *module) {
    error_type = PyObject_GetAttrString(module, "CUDARuntimeError");
    PyObject *entries = PyObject_GetAttrString(module, "__pyx_capi__");
    if (!error_type || !entries) return nullptr;
    for (auto &replacement : replacements)
        if (!replace(module, entries, replacement)) return nullptr;
    PyObject *context = PyDict_GetItemString(entries, "_ensure_context");
    if (!context || PyCapsule_SetPointer(context, (void *)ensure_context)) return nullptr;
    Py_DECREF(entries);
    Py_RETURN_NONE;
}
