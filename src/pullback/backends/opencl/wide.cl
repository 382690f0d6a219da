/* float32 in lanes: the steps of helpers.h. F, I, U are vectors of floats, int and uint. */
static inline F pb_poly_wide(F x, __constant float *c, int n) {
  F y = (F)(c[0]);
  for (int i = 1; i < n; ++i) y = fma(y, x, (F)(c[i]));
  return y;
}
#define PB_WIDE_POLY(x, c) pb_poly_wide(x, c, (int)(sizeof(c) / sizeof(float)))
static inline F pb_exp_wide(F x) {
  F bounded = select(x, (F)(89.0f), x > 89.0f);
  bounded = select(bounded, (F)(-104.0f), bounded < -104.0f);
  F shifted = fma(bounded, (F)(PB_LOG2E), (F)(PB_ROUND32)), n = shifted - PB_ROUND32;
  F r = fma(n, (F)(-0.693359375f), bounded);
  r = fma(n, (F)(2.12194440e-4f), r);
  F p = fma(PB_WIDE_POLY(r, PB_EXP32), r * r, r) + 1.0f;
  I e = as_I(as_U(shifted) - 0x4B400000u), near_ = e >> 1;
  p *= as_F(as_U(near_ + 127) << 23);
  return select(p * as_F(as_U(e - near_ + 127) << 23), x, x != x);
}
static inline F pb_log_wide(F x) {
  I tiny = x < 0x1p-126f;
  F normal = select(x, x * 0x1p23f, tiny);
  I bits = as_I(normal), e = (bits - 0x3F3504F3) >> 23;
  F m = as_F(bits - as_I(as_U(e) << 23)) - 1.0f;
  F power = convert_F(e) + select((F)(0.0f), (F)(-23.0f), tiny), square = m * m;
  F y = m * square * PB_WIDE_POLY(m, PB_LOG32);
  y = fma(power, (F)(-2.12194440e-4f), y);
  y = fma(square, (F)(-0.5f), y);
  y = fma(power, (F)(0.693359375f), m + y);
  y = select(x, y, x < INFINITY);
  y = select(y, (F)(-INFINITY), x == 0.0f);
  return select(y, (F)(NAN), x < 0.0f);
}
static inline F pb_tanh_wide(F x) {
  F size = fabs(x), square = x * x;
  F big = 1.0f - 2.0f / (pb_exp_wide(size * 2.0f) + 1.0f);
  F small_ = fma(PB_WIDE_POLY(square, PB_TANH32) * square, size, size);
  return copysign(select(big, small_, size < 0.9375f), x);
}
static inline F pb_erf_wide(F x) {
  F size = fabs(x), square = x * x, slope = PB_WIDE_POLY(size, PB_ERF32_LOG);
  F r = fma(slope, size, -size);
  r = select(r, (F)(-90.0f), r < -90.0f);
  F lost = fma(slope, size, -(size + r)), power = pb_exp_wide(r);
  F big = 1.0f - fma(power, lost, power);
  big = select(big, (F)(1.0f), size > 6.0f);
  F small_ = fma(PB_WIDE_POLY(square, PB_ERF32_SMALL), x, x);
  return select(small_, copysign(big, x), size > 0.92f);
}
static inline F pb_normal_cdf_wide(F x) {
  F size = fabs(x);
  size = select(size, (F)(15.0f), size > 15.0f);
  F ratio = PB_WIDE_POLY(size, PB_NORMAL32_TOP) / PB_WIDE_POLY(size, PB_NORMAL32_BELOW);
  F tail = pb_exp_wide(x * x * -0.5f) * ratio;
  return select(1.0f - tail, tail, x < 0.0f);
}
