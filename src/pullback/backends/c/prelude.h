/* What C has of its own. Integers wrap (-fwrapv); nothing traps. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define IVDEP _Pragma("GCC ivdep")
#define PREFETCH(p) __builtin_prefetch(p, 0, 2)
#else
#define IVDEP
#define PREFETCH(p) ((void)(p))
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MADD(a, b, c) _Generic((c), double: fma, default: fmaf)(a, b, c)
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#endif

#define PB_TABLE static const
#define PB_ROW const
#define PB_FLOAT64 1
static inline float pb_float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t pb_bits_of(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

/* The first index that lies outside its axis; error: state, site, value. */
static void pb_fail(int64_t *error, int64_t site, int64_t value) {
  int64_t free_ = 0;
  if (__atomic_compare_exchange_n(error, &free_, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    error[1] = site;
    error[2] = value;
  }
}
