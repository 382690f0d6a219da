/* What the passes of a tiny training step over its weights take at least, written by hand.

   cc -O3 -march=native -o passes benchmarks/passes.c && ./passes

   Two rows of x, AVX-512. Of each matrix w[m][n]: y = x w', dx = dy w, w -= lr dy' x: 12 m n
   operations. Matrices lie one after the other and are all passed before one comes again, as in a
   step: six encoder layers of 64 features (192x64, 64x64, 128x64, 64x128), two layers of 255.
   Prints microseconds of each pass, the least of 2000, and of the three together as a share of the
   multiply-adds that the processor makes from registers.
*/
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PLACES 512
float x[2][PLACES], dy[2][PLACES], y[2][PLACES], dx[2][PLACES];
static volatile float rate = 1e-9f;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static __mmask16 rest(int n, int j) { return n - j >= 16 ? 0xffff : (1 << (n - j)) - 1; }

/* Sixteen sums of sixteen lanes: neighbours first, then quarters. */
static inline __m512 joined(const __m512 *s) {
    __m512 pair[8], four[4], half[2];
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++)
        pair[c] = _mm512_add_ps(_mm512_unpacklo_ps(s[2 * c], s[2 * c + 1]),
                                _mm512_unpackhi_ps(s[2 * c], s[2 * c + 1]));
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512d p = _mm512_castps_pd(pair[2 * c]), q = _mm512_castps_pd(pair[2 * c + 1]);
        four[c] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    }
#pragma GCC unroll 2
    for (int c = 0; c < 2; c++)
        half[c] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * c], four[2 * c + 1], 0x88),
                                _mm512_shuffle_f32x4(four[2 * c], four[2 * c + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], 0x88),
                         _mm512_shuffle_f32x4(half[0], half[1], 0xdd));
}

/* y[b][i] = sum[j] x[b][j] w[i][j], eight rows of w at a time; y of both rows side by side. */
static void forward(const float *w, int m, int n) {
    for (int i = 0; i < m; i += 8) {
        __m512 s[16];
        const float *row = w + (i + 8 <= m ? i : m - 8) * n;
#pragma GCC unroll 16
        for (int r = 0; r < 16; r++) s[r] = _mm512_setzero_ps();
        for (int j = 0; j < n; j += 16) {
            __mmask16 k = rest(n, j);
            __m512 p = _mm512_maskz_loadu_ps(k, x[0] + j), q = _mm512_maskz_loadu_ps(k, x[1] + j);
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) {
                __m512 v = _mm512_maskz_loadu_ps(k, row + r * n + j);
                s[r] = _mm512_fmadd_ps(p, v, s[r]);
                s[8 + r] = _mm512_fmadd_ps(q, v, s[8 + r]);
            }
        }
        _mm512_storeu_ps(y[0] + 2 * i, joined(s));
    }
}

/* dx[b][j] = sum[i] dy[b][i] w[i][j], 64 columns at a time. */
static void gradient(const float *w, int m, int n) {
    for (int j = 0; j < n; j += 64) {
        __m512 a[4], b[4];
        __mmask16 k[4];
        for (int c = 0; c < 4; c++) {
            a[c] = b[c] = _mm512_setzero_ps();
            k[c] = j + 16 * c < n ? rest(n, j + 16 * c) : 0;
        }
        for (int i = 0; i < m; i++) {
            __m512 p = _mm512_set1_ps(dy[0][i]), q = _mm512_set1_ps(dy[1][i]);
            for (int c = 0; c < 4; c++) {
                __m512 v = _mm512_maskz_loadu_ps(k[c], w + i * n + j + 16 * c);
                a[c] = _mm512_fmadd_ps(p, v, a[c]);
                b[c] = _mm512_fmadd_ps(q, v, b[c]);
            }
        }
        for (int c = 0; c < 4; c++) {
            _mm512_storeu_ps(dx[0] + j + 16 * c, a[c]);
            _mm512_storeu_ps(dx[1] + j + 16 * c, b[c]);
        }
    }
}

/* w[i][j] -= rate (dy[0][i] x[0][j] + dy[1][i] x[1][j]), 64 columns at a time. */
static void update(float *w, int m, int n) {
    __m512 step = _mm512_set1_ps(rate);
    for (int j = 0; j < n; j += 64) {
        __m512 p[4], q[4];
        __mmask16 k[4];
        for (int c = 0; c < 4; c++) {
            p[c] = _mm512_loadu_ps(x[0] + j + 16 * c);
            q[c] = _mm512_loadu_ps(x[1] + j + 16 * c);
            k[c] = j + 16 * c < n ? rest(n, j + 16 * c) : 0;
        }
        for (int i = 0; i < m; i++) {
            __m512 d = _mm512_set1_ps(dy[0][i]), e = _mm512_set1_ps(dy[1][i]);
            for (int c = 0; c < 4; c++) {
                float *place = w + i * n + j + 16 * c;
                __m512 g = _mm512_fmadd_ps(e, q[c], _mm512_mul_ps(d, p[c]));
                __m512 v = _mm512_fnmadd_ps(step, g, _mm512_maskz_loadu_ps(k[c], place));
                _mm512_mask_storeu_ps(place, k[c], v);
            }
        }
    }
}

/* Operations a second of multiply-adds between registers. */
static double peak(void) {
    __m512 s[16], one = _mm512_set1_ps(0.5f);
    double best = 1;
    for (int c = 0; c < 16; c++) s[c] = one;
    for (int t = 0; t < 50; t++) {
        double start = now();
        for (int n = 0; n < 20000; n++) {
#pragma GCC unroll 16
            for (int c = 0; c < 16; c++) s[c] = _mm512_fmadd_ps(s[c], one, one);
        }
        double spent = now() - start;
        if (spent < best) best = spent;
    }
    for (int c = 0; c < 16; c++) y[0][c] += s[c][0];
    return 20000.0 * 16 * 32 / best;
}

static void measure(const char *name, const int (*shapes)[2], int count, int layers) {
    size_t size = 0, all = 0;
    for (int s = 0; s < count; s++) size += (size_t)shapes[s][0] * shapes[s][1];
    all = size * layers;
    float *w = aligned_alloc(64, (all * 4 + 4096) / 64 * 64);
    for (size_t n = 0; n < all; n++) w[n] = 1e-3f;
    double best[4] = {1, 1, 1, 1}; /* the three passes by turns; all three of a step */
    for (int t = 0; t < 2000; t++) {
        double begin = now(), start = begin;
        for (int pass = 0; pass < 3; pass++) {
            float *at = w;
            for (int l = 0; l < layers; l++)
                for (int s = 0; s < count; s++) {
                    int m = shapes[s][0], n = shapes[s][1];
                    if (pass == 0) forward(at, m, n);
                    if (pass == 1) gradient(at, m, n);
                    if (pass == 2) update(at, m, n);
                    at += (size_t)m * n;
                }
            double end = now();
            if (end - start < best[pass]) best[pass] = end - start;
            start = end;
        }
        if (start - begin < best[3]) best[3] = start - begin;
    }
    double share = 12.0 * all / peak() / best[3];
    printf("%-28s y %5.1f  dx %5.1f  w %5.1f  step %5.1f us, %2.0f %% of the peak\n", name,
           best[0] * 1e6, best[1] * 1e6, best[2] * 1e6, best[3] * 1e6, 100 * share);
    free(w);
}

int main(void) {
    static const int encoder[4][2] = {{192, 64}, {64, 64}, {128, 64}, {64, 128}};
    static const int wide[1][2] = {{255, 255}}, even[1][2] = {{256, 256}};
    for (int b = 0; b < 2; b++)
        for (int n = 0; n < PLACES; n++) x[b][n] = dy[b][n] = 1e-6f * (n + b);
    measure("encoder d 64, 1 layer", encoder, 4, 1);
    measure("encoder d 64, 6 layers", encoder, 4, 6);
    measure("two layers of 255", wide, 1, 2);
    measure("two layers of 256", even, 1, 2);
    return (int)(y[0][1] + dx[0][1]) & 0;
}
