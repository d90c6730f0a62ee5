/* Vectors, exp, products and the picking of large scores. See native.c for the legend.

   Written with the vector extensions of GCC and Clang, so that one source serves every processor;
   what they cannot say (maximum, compression) has an intrinsic where AVX-512 has one. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define VECTORS 4
#elif defined(__AVX2__)
#define LANES 8
#define VECTORS 2
#elif defined(__aarch64__)
#define LANES 4
#define VECTORS 4
#else
#define LANES 4
#define VECTORS 2
#endif

#define GROUP 4                   /* rows that a product takes together */
#define PANEL (LANES * VECTORS)   /* codes that it takes together */
#define INLINE static inline __attribute__((always_inline))

/* Keeps a value in a register, where the compiler would load it anew for each use. */
#if defined(__AVX512F__)
#define HOLD(x) __asm__("" : "+v"(x))
#elif defined(__x86_64__)
#define HOLD(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define HOLD(x) __asm__("" : "+w"(x))
#else
#define HOLD(x) ((void)0)
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vf load(const float *from) { return *(const vf_any *)from; }
INLINE void store(float *to, vf value) { *(vf_any *)to = value; }
INLINE vf spread_out(float value) { return (vf){0} + value; }
INLINE vf where(vi mask, vf value) { return (vf)((vi)value & mask); }

INLINE vf larger(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    vi first = a > b;
    return (vf)(((vi)a & first) | ((vi)b & ~first));
#endif
}

INLINE float sum_of(vf v)
{
    float parts[LANES], half = 0;
    memcpy(parts, &v, sizeof parts);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            parts[i] += parts[i + width];
    half = parts[0];
    return half;
}

INLINE float largest_of(vf v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float parts[LANES];
    memcpy(parts, &v, sizeof parts);
    for (int i = 1; i < LANES; i++)
        parts[0] = parts[i] > parts[0] ? parts[i] : parts[0];
    return parts[0];
#endif
}

static int is_finite(const float *values, int64_t count)
{
    float nothing = 0;
    for (int64_t i = 0; i < count; i++)
        nothing += values[i] * 0; /* inf * 0 is NaN */
    return nothing == 0;
}

/* exp for -87 < x <= 0, relative error below 2e-7: 2^n times a polynomial in what is left. */
INLINE vf exp_of(vf x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    vf moved = x * 1.44269504088896341f + shift;
    vf n = moved - shift;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = spread_out(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (vf)((vi)p + ((vi)moved << 23));
}

/* GROUP rows times `vectors` vectors of columns, plus `start`, a row; NULL stands for what is in c.
   It comes last, where it costs fewest digits. The order of a sum depends on nothing but `steps`, so
   equal operands give equal bits. */
INLINE void multiply_block(int vectors, int64_t steps, const float *a, int64_t a_row,
                           int64_t a_step, const float *b, int64_t b_step, const float *start,
                           float *c, int64_t c_row)
{
    vf sums[GROUP][VECTORS], right[VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[r][v] = (vf){0};
    for (int64_t s = 0; s < steps; s++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            right[v] = load(b + s * b_step + v * LANES);
            HOLD(right[v]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < GROUP; r++) {
            vf left = spread_out(a[r * a_row + s * a_step]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
        {
            float *out = c + r * c_row + v * LANES;
            store(out, sums[r][v] + load(start ? start + v * LANES : out));
        }
}

/* (rows, steps) times (steps, columns); rows a multiple of GROUP, columns one of LANES. */
static void multiply(int64_t rows, int64_t columns, int64_t steps, const float *a, int64_t a_row,
                     int64_t a_step, const float *b, int64_t b_step, const float *start, float *c,
                     int64_t c_row)
{
    for (int64_t j = 0; j < columns; j += PANEL) {
        int64_t vectors = (columns - j) / LANES;
        for (int64_t i = 0; i < rows; i += GROUP) {
            const float *left = a + i * a_row, *begin = start ? start + j : NULL;
            float *out = c + i * c_row + j;
#define BLOCK(n) multiply_block(n, steps, left, a_row, a_step, b + j, b_step, begin, out, c_row)
            if (vectors >= VECTORS)
                BLOCK(VECTORS);
#if VECTORS > 2
            else if (vectors == 3)
                BLOCK(3);
            else if (vectors == 2)
                BLOCK(2);
#endif
            else
                BLOCK(1);
#undef BLOCK
        }
    }
}

/* Places and values above `least` of a panel of scores, appended; returns the new count. */
INLINE int64_t pick(const float *scores, int32_t first, float least, int32_t *places,
                    float *values, int64_t count)
{
#if defined(__AVX512F__)
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int v = 0; v < PANEL; v += LANES) {
        __m512 some = _mm512_loadu_ps(scores + v);
        __mmask16 mask = _mm512_cmp_ps_mask(some, _mm512_set1_ps(least), _CMP_GT_OQ);
        if (!mask)
            continue;
        __m512i at = _mm512_add_epi32(steps, _mm512_set1_epi32(first + v));
        _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(mask, some));
        _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(mask, at));
        count += __builtin_popcount(mask);
    }
#else
    for (int i = 0; i < PANEL; i++) {
        places[count] = first + i;
        values[count] = scores[i];
        count += scores[i] > least;
    }
#endif
    return count;
}

/* How many of a panel's scores are above `least`. */
INLINE int64_t count_above(const float *scores, float least)
{
    vi count = {0};
    for (int v = 0; v < PANEL; v += LANES)
        count -= load(scores + v) > spread_out(least);
    int64_t total = 0;
    for (int i = 0; i < LANES; i++)
        total += count[i];
    return total;
}
