// libnvrtc.so.13: g++ compiles CuPy's sources, and what is called a cubin is a shared object.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Status { SUCCESS = 0, INVALID_INPUT = 3, COMPILATION = 6 };

struct Program {
    std::string source, log, image;
};

// Where this library lies, with prelude.hpp and what was compiled of it.
std::string folder() {
    Dl_info info;
    dladdr((void *)&folder, &info);
    std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

std::string content(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// The source without complex numbers, which need Thrust, and what makes each of its kernels known to the driver.
std::string translated(const std::string &source) {
    static const std::regex kernel(R"(__global__\s+void\s+(\w+)\s*\()");
    bool meet = source.find("__sync") != std::string::npos || source.find("__shfl") != std::string::npos;
    std::string text = std::regex_replace(source, std::regex("#include <cupy/complex.cuh>"), "") + "\n";
    for (std::sregex_iterator found(source.begin(), source.end(), kernel), end; found != end; ++found)
        text += "KERNEL(" + (*found)[1].str() + ", " + (meet ? "true" : "false") + ")\n";
    return text;
}

// Keep the source for the real NVRTC (../kernels.py).
void keep(const std::string &source) {
    const char *kept = std::getenv("CUDA_ON_CPU_SOURCES");
    if (!kept) return;
    std::string path = std::string(kept) + "/" + std::to_string(std::hash<std::string>{}(source)) + ".cu";
    std::string part = path + std::to_string(getpid());
    std::ofstream(part) << source;
    std::rename(part.c_str(), path.c_str());
}

std::string image_of(const std::string &object) {
    std::string image("cuda_on_cpu\0\0\0\0\0", 16);
    size_t nbytes = object.size();
    image.append((const char *)&nbytes, sizeof nbytes);
    return image + object + '\0';  // CuPy drops the last byte
}

int text_to(char *to, const std::string &text) { return std::memcpy(to, text.c_str(), text.size() + 1), SUCCESS; }

}  // namespace

API int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, SUCCESS; }
API const char *nvrtcGetErrorString(int status) { return status == COMPILATION ? "g++ failed" : "refused"; }
API int nvrtcGetNumSupportedArchs(int *count) { return *count = 1, SUCCESS; }
API int nvrtcGetSupportedArchs(int *archs) { return *archs = 90, SUCCESS; }

API int nvrtcCreateProgram(Program **made, const char *source, const char *, int, const char *const *,
                           const char *const *) {
    *made = new Program{source, "", ""};
    return SUCCESS;
}

API int nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

API int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    const char *given = std::getenv("TMPDIR");
    std::string scratch = std::string(given ? given : "/tmp") + "/nvrtc-XXXXXX";
    if (!mkdtemp(scratch.data())) return COMPILATION;
    keep(program->source);
    std::string source = scratch + "/kernel.cpp", object = scratch + "/kernel.so";
    std::ofstream(source) << translated(program->source);
    std::string command = content(folder() + "/g++-command") + " -shared -include '" + folder() + "/prelude.hpp'";
    for (int i = 0; i < count; ++i)
        if (!std::strncmp(options[i], "-D", 2)) command += " '" + std::string(options[i]) + "'";
    command += " '" + source + "' -o '" + object + "' 2>&1";
    FILE *compiler = popen(command.c_str(), "r");
    char line[512];
    while (compiler && std::fgets(line, sizeof line, compiler)) program->log += line;
    bool compiled = compiler && pclose(compiler) == 0;
    if (compiled) program->image = image_of(content(object));
    unlink(source.c_str());
    unlink(object.c_str());
    rmdir(scratch.c_str());
    return compiled ? SUCCESS : COMPILATION;
}

// CuPy takes from a PTX of nothing only the lines that tell the compiler's version.
static std::string ptx() {
    std::string path = folder();
    return "//" + path.substr(path.rfind('/')) + "\n";  // named after all sources of the emulation
}
API int nvrtcGetPTXSize(Program *, size_t *size) { return *size = ptx().size() + 1, SUCCESS; }
API int nvrtcGetPTX(Program *, char *to) { return text_to(to, ptx()); }
API int nvrtcGetCUBINSize(Program *program, size_t *size) { return *size = program->image.size(), SUCCESS; }
API int nvrtcGetCUBIN(Program *program, char *to) {
    return std::memcpy(to, program->image.data(), program->image.size()), SUCCESS;
}
API int nvrtcGetProgramLogSize(Program *program, size_t *size) { return *size = program->log.size() + 1, SUCCESS; }
API int nvrtcGetProgramLog(Program *program, char *to) { return text_to(to, program->log); }
API int nvrtcAddNameExpression(Program *, const char *) { return INVALID_INPUT; }
API int nvrtcGetLoweredName(Program *, const char *, const char **) { return INVALID_INPUT; }
