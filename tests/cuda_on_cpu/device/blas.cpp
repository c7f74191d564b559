// libcublas.so.13: the products of float32, TF32, bfloat16 and float64. Operands are rounded to nearest even.
#include <bit>
#include <vector>

#include "device.hpp"

using namespace device;

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { NOT_INITIALIZED = 1, INVALID = 7, EXECUTION_FAILED = 13, UNSUPPORTED = 15 };
enum { FLOAT = 0, DOUBLE = 1, BFLOAT16 = 14, FAST_TF32 = 77 };

struct Context {
    Handle stream = 0;
    int math_mode = 0, pointer_mode = 0;
};

struct Sizes {
    int transposed_a, transposed_b;
    int64_t m, n, k, lda, ldb, ldc;
};

struct BFloat16 {
    uint16_t bits;
    operator float() const { return std::bit_cast<float>((uint32_t)bits << 16); }
};

struct TF32 {  // 10 bits of the mantissa
    uint32_t bits;
    operator float() const {
        const float value = std::bit_cast<float>(bits);
        return value == value ? std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu) : value;
    }
};

// C = alpha op(A) op(B) + beta C, column by column; sums in double precision.
template <class T, class In>
void product(const Sizes &s, T alpha, const In *a, const In *b, T beta, T *c) {
    std::vector<T> columns(s.m * s.k);
    for (int64_t p = 0; p < s.k; ++p)
        for (int64_t i = 0; i < s.m; ++i) columns[p * s.m + i] = s.transposed_a ? a[i * s.lda + p] : a[p * s.lda + i];
    std::vector<double> sums(s.m);
    for (int64_t j = 0; j < s.n; ++j) {
        sums.assign(s.m, 0);
        for (int64_t p = 0; p < s.k; ++p) {
            double factor = s.transposed_b ? b[p * s.ldb + j] : b[j * s.ldb + p];
            for (int64_t i = 0; i < s.m; ++i) sums[i] += columns[p * s.m + i] * factor;
        }
        for (int64_t i = 0; i < s.m; ++i) {
            T &value = c[j * s.ldc + i];
            value = T(alpha * sums[i]) + (beta == 0 ? T(0) : beta * value);
        }
    }
}

template <class T, class In = T>
int products(Context *context, const Sizes &s, const void *alpha, const void *beta, int count,
             std::function<std::tuple<const In *, const In *, T *>(int)> operands) {
    if (s.m < 0 || s.n < 0 || s.k < 0 || s.lda < (s.transposed_a ? s.k : s.m) ||
        s.ldb < (s.transposed_b ? s.n : s.k) || s.ldc < s.m) {
        fault("a product's leading dimensions do not fit its sizes");
        return INVALID;
    }
    device::count("product");
    try {
        enqueue(context->stream, [=, alpha = *(const T *)alpha, beta = *(const T *)beta] {
            for (int i = 0; i < count; ++i) {
                auto [a, b, c] = operands(i);
                product<T, In>(s, alpha, a, b, beta, c);
            }
            return true;
        });
    } catch (const Failure &) {
        return EXECUTION_FAILED;
    }
    return 0;
}

template <class T, class In = T>
int strided(Context *context, const Sizes &s, const void *alpha, const void *a, int64_t stride_a, const void *b,
            int64_t stride_b, const void *beta, void *c, int64_t stride_c, int count) {
    return products<T, In>(context, s, alpha, beta, count, [=](int i) {
        return std::tuple((const In *)a + i * stride_a, (const In *)b + i * stride_b, (T *)c + i * stride_c);
    });
}

}  // namespace

API int cublasCreate_v2(Context **made) { return *made = new Context, 0; }
API int cublasDestroy_v2(Context *context) { return delete context, 0; }
API int cublasGetVersion_v2(Context *, int *version) { return *version = 130000, 0; }
API int cublasSetStream_v2(Context *context, Handle stream) { return context->stream = stream, 0; }
API int cublasGetStream_v2(Context *context, Handle *stream) { return *stream = context->stream, 0; }
API int cublasSetMathMode(Context *context, int mode) { return context->math_mode = mode, 0; }
API int cublasGetMathMode(Context *context, int *mode) { return *mode = context->math_mode, 0; }
API int cublasSetPointerMode_v2(Context *context, int mode) { return context->pointer_mode = mode, 0; }
API int cublasGetPointerMode_v2(Context *context, int *mode) { return *mode = context->pointer_mode, 0; }

API int cublasGemmStridedBatchedEx(Context *context, int ta, int tb, int m, int n, int k, const void *alpha,
                                   const void *a, int type, int lda, long long stride_a, const void *b, int b_type,
                                   int ldb, long long stride_b, const void *beta, void *c, int c_type, int ldc,
                                   long long stride_c, int count, int compute, int) {
    Sizes sizes{ta, tb, m, n, k, lda, ldb, ldc};
    const bool bfloat16 = type == BFLOAT16;
    if (type != FLOAT && type != DOUBLE && !bfloat16) return UNSUPPORTED;
    if (b_type != type || c_type != (bfloat16 ? FLOAT : type)) return UNSUPPORTED;
    const auto how = bfloat16               ? strided<float, BFloat16>
                     : type == DOUBLE       ? strided<double>
                     : compute == FAST_TF32 ? strided<float, TF32>
                                            : strided<float>;
    return how(context, sizes, alpha, a, stride_a, b, stride_b, beta, c, stride_c, count);
}

API int cublasGemmEx(Context *context, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int type,
                     int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                     int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(context, ta, tb, m, n, k, alpha, a, type, lda, 0, b, b_type, ldb, 0, beta, c,
                                      c_type, ldc, 0, 1, compute, algorithm);
}

template <class T>
static int batched(Context *context, const Sizes &sizes, const T *alpha, const T *const a[], const T *const b[],
                   const T *beta, T *const c[], int count) {
    return products<T, T>(context, sizes, alpha, beta, count, [=](int i) { return std::tuple(a[i], b[i], c[i]); });
}

API int cublasSgemmBatched(Context *context, int ta, int tb, int m, int n, int k, const float *alpha,
                           const float *const a[], int lda, const float *const b[], int ldb, const float *beta,
                           float *const c[], int ldc, int count) {
    return batched<float>(context, {ta, tb, m, n, k, lda, ldb, ldc}, alpha, a, b, beta, c, count);
}

API int cublasDgemmBatched(Context *context, int ta, int tb, int m, int n, int k, const double *alpha,
                           const double *const a[], int lda, const double *const b[], int ldb, const double *beta,
                           double *const c[], int ldc, int count) {
    return batched<double>(context, {ta, tb, m, n, k, lda, ldb, ldc}, alpha, a, b, beta, c, count);
}

// What else CuPy may call, and we do not: build.py lists the names.
#define ABSENT(name) \
    API int name() { \
        device::fault(#name " is not in the emulation"); \
        return UNSUPPORTED; \
    }
#include "absent.hpp"
