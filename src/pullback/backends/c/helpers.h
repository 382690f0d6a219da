/* What the functions below rest on, in any dialect of C. Integers wrap; nothing traps. */

/* Floats of 16 and 8 bits lie as their bits and are computed with as float32; ties to even. */
static inline float pb_from_bfloat16(uint16_t h) { return pb_float_of((uint32_t)h << 16); }
static inline uint16_t pb_to_bfloat16(float x) {
  uint32_t bits = pb_bits_of(x), high = bits >> 16;
  return (uint16_t)(x != x ? (high | 0x40u) : (bits + 0x7FFFu + (high & 1u)) >> 16);
}
static inline float pb_from_float16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, size = h & 0x7FFFu;
  uint32_t bits = pb_bits_of(pb_float_of(size << 13) * 0x1p112f);
  bits = size >= 0x7C00u ? bits | 0x7F800000u : bits;
  bits = size > 0x7C00u ? bits | 0x7FC00000u : bits;
  return pb_float_of(bits | sign);
}
static inline uint16_t pb_to_float16(float x) {
  uint32_t bits = pb_bits_of(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
  uint32_t tiny = pb_bits_of(pb_float_of(size) + 0.5f) - 0x3F000000u;
  uint32_t found = (size - ((112u << 23) - 0xFFFu) + ((size >> 13) & 1u)) >> 13;
  found = size < 0x38800000u ? tiny : found;
  found = size >= 0x47800000u ? 0x7C00u : found;
  found = size > 0x7F800000u ? ((size >> 13) & 0x3FFu) | 0x7E00u : found;
  return (uint16_t)(found | sign);
}
/* By way of float16, which holds them: its upper byte is e5m2; e4m3fn is 2^8 times that. */
static inline float pb_from_float8_e5m2(uint8_t b) { return pb_from_float16((uint16_t)(b << 8)); }
static inline float pb_from_float8_e4m3fn(uint8_t b) {
  uint32_t void_ = (b & 0x7Fu) == 0x7Fu ? 0x7C00u : 0u;
  return pb_from_float16((uint16_t)((b & 0x80u) << 8 | (b & 0x7Fu) << 7 | void_)) * 0x1p8f;
}
/* above: what is too large lies there: infinity, or where there is none NaN */
#define PB_TO_EIGHTH(name, digits, bias, above, anchor) \
  static inline uint8_t pb_to_##name(float x) { \
    uint32_t bits = pb_bits_of(x), sign = (bits >> 24) & 0x80u, size = bits & 0x7FFFFFFFu; \
    size = size < pb_bits_of(above) ? size : pb_bits_of(above); \
    uint32_t tiny = pb_bits_of(pb_float_of(size) + (anchor)) - pb_bits_of(anchor); \
    uint32_t half_ = (1u << (22 - (digits))) - 1u, odd = (size >> (23 - (digits))) & 1u; \
    uint32_t byte = (size - ((127u - (bias)) << 23) + half_ + odd) >> (23 - (digits)); \
    byte = size < (128u - (bias)) << 23 ? tiny : byte; \
    return (uint8_t)(((bias) == 15 && x != x ? 0x7Eu : byte) | sign); \
  }
PB_TO_EIGHTH(float8_e4m3fn, 3, 7, 480.0f, 0x1p14f)
PB_TO_EIGHTH(float8_e5m2, 2, 15, 0x1p16f, 0x1p7f)
/* A float64 as the float32 that rounds to fewer bits as it does: odd in its last bit, if inexact.
   Source: Boldo and Melquiond, "When double rounding is odd", 2005. */
static inline float pb_odd(double x) {
  float near_ = (float)x;
  double back = (double)near_;
  uint32_t bits = pb_bits_of(near_);
  bool moves = back != x && x == x && !(bits & 1u);
  return moves ? pb_float_of(fabs(back) < fabs(x) ? bits + 1u : bits - 1u) : near_;
}

/* float -> integer: towards zero, at the ends of the type, NaN as 0 */
#define PB_TO(name, type, low, above) \
  static inline type pb_to_##name(double x) { \
    return x != x ? 0 : x < (low) ? (type)(low) : x >= (above) ? PB_MAX_##name : (type)x; \
  }
#define PB_MAX_int8 INT8_MAX
#define PB_MAX_uint8 UINT8_MAX
#define PB_MAX_int16 INT16_MAX
#define PB_MAX_uint16 UINT16_MAX
#define PB_MAX_int32 INT32_MAX
#define PB_MAX_uint32 UINT32_MAX
#define PB_MAX_int64 INT64_MAX
#define PB_MAX_uint64 UINT64_MAX
PB_TO(int8, int8_t, -0x1p7, 0x1p7)
PB_TO(uint8, uint8_t, 0.0, 0x1p8)
PB_TO(int16, int16_t, -0x1p15, 0x1p15)
PB_TO(uint16, uint16_t, 0.0, 0x1p16)
PB_TO(int32, int32_t, -0x1p31, 0x1p31)
PB_TO(uint32, uint32_t, 0.0, 0x1p32)
PB_TO(int64, int64_t, -0x1p63, 0x1p63)
PB_TO(uint64, uint64_t, 0.0, 0x1p64)

/* floor(a / c) and a - floor(a / c) c of integers; 0 where c is 0 */
#define PB_SIGNED(name, type) \
  static inline type pb_floordiv_##name(type a, type c) { \
    if (c == 0) return 0; \
    if (c == -1) return (type)(0 - (uint64_t)a); \
    type q = (type)(a / c); \
    return (type)(q - ((a % c != 0) & ((a < 0) != (c < 0)))); \
  } \
  static inline type pb_mod_##name(type a, type c) { \
    if (c == 0 || c == -1) return 0; \
    type r = (type)(a % c); \
    return (type)(r + ((r != 0 && (r < 0) != (c < 0)) ? c : 0)); \
  }
#define PB_UNSIGNED(name, type) \
  static inline type pb_floordiv_##name(type a, type c) { return c ? (type)(a / c) : 0; } \
  static inline type pb_mod_##name(type a, type c) { return c ? (type)(a % c) : 0; }
PB_SIGNED(int8, int8_t)
PB_SIGNED(int16, int16_t)
PB_SIGNED(int32, int32_t)
PB_SIGNED(int64, int64_t)
PB_UNSIGNED(uint8, uint8_t)
PB_UNSIGNED(uint16, uint16_t)
PB_UNSIGNED(uint32, uint32_t)
PB_UNSIGNED(uint64, uint64_t)
static inline bool pb_floordiv_bool(bool a, bool c) { return a & c; }
static inline bool pb_mod_bool(bool a, bool c) { return (void)a, (void)c, false; }

/* the floor of the exact quotient of floats, rounded once */
static inline double pb_floordiv_float64(double a, double c) {
  double quotient = a / c, floor_ = floor(quotient);
  if (!(fabs(quotient) < 0x1p53) || quotient != floor_) return floor_;
  double rest = fmod(a, c);
  if (rest == 0.0 || rest != rest) return floor_;
  bool far_ = fabs(rest) > fabs(c) / 2, unlike = (rest < 0) != (c < 0);
  return far_ != unlike ? floor_ - 1.0 : floor_;
}
static inline float pb_floordiv_float32(float a, float c) {
  return (float)pb_floordiv_float64(a, c);
}
/* C's fmod with the sign of c */
#define PB_MOD(name, type, fmod_, copysign_) \
  static inline type pb_mod_##name(type a, type c) { \
    type rest = fmod_(a, c); \
    if (rest == 0) return copysign_(rest, c); \
    return (rest < 0) != (c < 0) && rest == rest ? rest + c : rest; \
  }
PB_MOD(float32, float, fmodf, copysignf)
PB_MOD(float64, double, fmod, copysign)

/* float32, without a branch, so that compilers take many at once; steps of backends/llvm/vmath.py.
   PB_EXP32 .. are the coefficients, highest power first. */
static inline float pb_poly(float x, PB_ROW float *c, int n) {
  float y = c[0];
  for (int i = 1; i < n; ++i) y = MADD(y, x, c[i]);
  return y;
}
#define PB_POLY(x, c) pb_poly(x, c, (int)(sizeof(c) / sizeof(float)))
static inline float pb_exp(float x) {
  float bounded = x > 89.0f ? 89.0f : x;
  bounded = bounded < -104.0f ? -104.0f : bounded;
  float shifted = MADD(bounded, PB_LOG2E, PB_ROUND32), n = shifted - PB_ROUND32;
  float r = MADD(n, -0.693359375f, bounded);
  r = MADD(n, 2.12194440e-4f, r);
  float p = MADD(PB_POLY(r, PB_EXP32), r * r, r) + 1.0f;
  int32_t e = (int32_t)(pb_bits_of(shifted) - 0x4B400000u), near_ = e >> 1;
  p *= pb_float_of((uint32_t)(near_ + 127) << 23);
  return x != x ? x : p * pb_float_of((uint32_t)(e - near_ + 127) << 23);
}
static inline float pb_log(float x) {
  bool tiny = x < 0x1p-126f;
  float normal = tiny ? x * 0x1p23f : x;
  int32_t bits = (int32_t)pb_bits_of(normal), e = (bits - 0x3F3504F3) >> 23;
  float m = pb_float_of((uint32_t)(bits - (int32_t)((uint32_t)e << 23))) - 1.0f;
  float power = (float)e + (tiny ? -23.0f : 0.0f), square = m * m;
  float y = m * square * PB_POLY(m, PB_LOG32);
  y = MADD(power, -2.12194440e-4f, y);
  y = MADD(square, -0.5f, y);
  y = MADD(power, 0.693359375f, m + y);
  y = x < INFINITY ? y : x;
  y = x == 0.0f ? -INFINITY : y;
  return x < 0.0f ? NAN : y;
}
static inline float pb_tanh(float x) {
  float size = fabsf(x), square = x * x;
  float big = 1.0f - 2.0f / (pb_exp(size * 2.0f) + 1.0f);
  float small_ = MADD(PB_POLY(square, PB_TANH32) * square, size, size);
  return copysignf(size < 0.9375f ? small_ : big, x);
}
static inline float pb_erf(float x) {
  float size = fabsf(x), square = x * x, slope = PB_POLY(size, PB_ERF32_LOG);
  float r = MADD(slope, size, -size);
  r = r < -90.0f ? -90.0f : r;
  float lost = MADD(slope, size, -(size + r)), power = pb_exp(r);
  float big = 1.0f - MADD(power, lost, power);
  big = size > 6.0f ? 1.0f : big;
  float small_ = MADD(PB_POLY(square, PB_ERF32_SMALL), x, x);
  return size > 0.92f ? copysignf(big, x) : small_;
}
static inline float pb_normal_cdf(float x) {
  float size = fabsf(x);
  size = size > 15.0f ? 15.0f : size;
  float ratio = PB_POLY(size, PB_NORMAL32_TOP) / PB_POLY(size, PB_NORMAL32_BELOW);
  float tail = pb_exp(x * x * -0.5f) * ratio;
  return x < 0.0f ? tail : 1.0f - tail;
}

#define PB_FLOATS(name, type, exp_, log1p_, fabs_) \
  static inline type pb_maximum_##name(type a, type c) { return c != c ? c : c > a ? c : a; } \
  static inline type pb_minimum_##name(type a, type c) { return c != c ? c : c < a ? c : a; } \
  static inline type pb_sigmoid_##name(type x) { \
    type z = exp_(-fabs_(x)); \
    return (x < 0 ? z : 1) / (1 + z); \
  } \
  static inline type pb_softplus_##name(type x) { \
    return (x < 0 ? 0 : x) + log1p_(exp_(-fabs_(x))); \
  } \
  static inline type pb_power_##name(type x, type y) { \
    return x > 0 && x <= PB_HUGE_##name ? PB_POW_##name(x, y) : exp_(y * PB_LOG_##name(x)); \
  }
#define PB_HUGE_float32 0x1.fffffep127f
#define PB_HUGE_float64 0x1.fffffffffffffp1023
#define PB_POW_float32 powf
#define PB_POW_float64 pow
#define PB_LOG_float32 pb_log
#define PB_LOG_float64 log
PB_FLOATS(float32, float, pb_exp, log1pf, fabsf)
PB_FLOATS(float64, double, exp, log1p, fabs)
#define PB_WHOLE(name, type) \
  static inline type pb_maximum_##name(type a, type c) { return a > c ? a : c; } \
  static inline type pb_minimum_##name(type a, type c) { return a < c ? a : c; } \
  static inline type pb_abs_##name(type a) { return (type)(a < 0 ? 0 - (uint64_t)a : (uint64_t)a); }
PB_WHOLE(int8, int8_t)
PB_WHOLE(int16, int16_t)
PB_WHOLE(int32, int32_t)
PB_WHOLE(int64, int64_t)
#define PB_NATURAL(name, type) \
  static inline type pb_maximum_##name(type a, type c) { return a > c ? a : c; } \
  static inline type pb_minimum_##name(type a, type c) { return a < c ? a : c; } \
  static inline type pb_abs_##name(type a) { return a; }
PB_NATURAL(uint8, uint8_t)
PB_NATURAL(uint16, uint16_t)
PB_NATURAL(uint32, uint32_t)
PB_NATURAL(uint64, uint64_t)
static inline bool pb_maximum_bool(bool a, bool c) { return a | c; }
static inline bool pb_minimum_bool(bool a, bool c) { return a & c; }
static inline bool pb_abs_bool(bool a) { return a; }
