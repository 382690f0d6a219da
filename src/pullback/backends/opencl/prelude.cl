/* What OpenCL C has of its own, under the names of C. */
#pragma OPENCL FP_CONTRACT OFF
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define INT8_MAX CHAR_MAX
#define INT16_MAX SHRT_MAX
#define INT32_MAX INT_MAX
#define INT64_MAX LONG_MAX
#define INT64_MIN LONG_MIN
#define UINT8_MAX UCHAR_MAX
#define UINT16_MAX USHRT_MAX
#define UINT32_MAX UINT_MAX
#define UINT64_MAX ULONG_MAX
#define INT64_C(n) n##L
#define UINT64_C(n) n##UL

/* A work-item is as wide as its vectors: the compiler need not look for more across work-items. */
#define PB_ALONE __attribute__((reqd_work_group_size(1, 1, 1)))
#ifdef cl_intel_vec_len_hint
#define PB_KERNEL __kernel PB_ALONE __attribute__((intel_vec_len_hint(1)))
#else
#define PB_KERNEL __kernel PB_ALONE
#endif
#define IVDEP
#define PREFETCH(p)
#define MADD(a, b, c) fma(a, b, c)
#define PB_TABLE __constant
#define PB_ROW __constant
#define pb_float_of(bits) as_float((uint32_t)(bits))
#define pb_bits_of(x) as_uint(x)
#define fabsf fabs
#define fmodf fmod
#define powf pow
#define log1pf log1p
#define copysignf copysign

/* The first index that lies outside its axis; error: state (its low word), site, value. */
static void pb_fail(__global int64_t *error, int64_t site, int64_t value) {
  if (atomic_cmpxchg((volatile __global int *)error, 0, 1) == 0) {
    error[1] = site;
    error[2] = value;
  }
}
