/* The noise of Algorithm 1 from random bits in float32, one thread, plain C99. */

#include <math.h>
#include <stdint.h>

enum { BLOCK = 256 }; /* words of one block: an even number, since they are drawn in pairs */

typedef union { /* a random word, and later the number made of it */
    int32_t word;
    float number;
} cell;

/* The generator SFC64: 64 random bits, as two words, the lower first. */
static void draw_words(uint64_t *state, cell *to, int64_t count)
{
    uint64_t a = state[0], b = state[1], c = state[2], counter = state[3];
    for (int64_t i = 0; i < count; i += 2) {
        const uint64_t bits = a + b + counter++;
        a = b ^ (b >> 11);
        b = c + (c << 3);
        c = ((c << 24) | (c >> 40)) + bits;
        to[i].word = (int32_t)(uint32_t)bits;
        if (i + 1 < count)
            to[i + 1].word = (int32_t)(uint32_t)(bits >> 32);
    }
    state[0] = a, state[1] = b, state[2] = c, state[3] = counter;
}

/* sqrt(-2 log u), u = max(|word|, 1/2) / 2^31, by the series of atanh((m - 1) / (m + 1)). */
static inline float radius(int32_t word)
{
    const float size = fabsf((float)word);
    cell u = {.number = size < 0.5f ? 0.5f : size};
    const int32_t exponent = (u.word - 0x3f3504f3) >> 23; /* u = m 2^e, 1/sqrt(2) <= m < sqrt(2) */
    u.word -= exponent * (1 << 23);
    const float s = (u.number - 1) / (u.number + 1), z = s * s;
    const float series = s + s * z * (1 / 3.0f + z * (1 / 5.0f + z * (1 / 7.0f + z / 9.0f)));
    const float minus_log = (float)(31 - exponent) * 0.693147180559945f - 2 * series;
    return sqrtf(2 * minus_log);
}

/* Cosine and sine of pi word / 2^31 by their series, a quarter turn at a time. */
static inline void cosine_sine(int32_t word, float *cosine, float *sine)
{
    const float turn = (float)word;
    const int32_t quarter = (int32_t)rintf(turn * 0x1p-30f);
    const float t = (turn - (float)quarter * 0x1p30f) * (3.14159265358979f * 0x1p-31f), z = t * t;
    const float even = 1 + z * (-1 / 2.0f + z * (1 / 24.0f + z * (-1 / 720.0f
                       + z * (1 / 40320.0f - z / 3628800.0f))));
    const float odd = t + t * z * (-1 / 6.0f + z * (1 / 120.0f + z * (-1 / 5040.0f
                      + z / 362880.0f)));
    const float c = quarter & 1 ? odd : even, s = quarter & 1 ? even : odd;
    *cosine = (quarter + 1) & 2 ? -c : c;
    *sine = quarter & 2 ? -s : s;
}

/* Standard normal numbers in order of box_muller: all cosines of the pairs, then the sines. */
static void draw_normals(uint64_t *state, cell *scratch, float *restrict normals, int64_t count)
{
    const int64_t pairs = (count + 1) / 2;
    cell angles[BLOCK];
    float along[BLOCK], across[BLOCK];
    draw_words(state, scratch, pairs); /* the radii's */
    for (int64_t start = 0; start < pairs; start += BLOCK) {
        const int64_t some = pairs - start < BLOCK ? pairs - start : BLOCK;
        const int64_t last = count - pairs - start < some ? count - pairs - start : some;
        draw_words(state, angles, some);
        for (int64_t i = 0; i < some; i++) {
            float cosine, sine;
            const float length = radius(scratch[start + i].word);
            cosine_sine(angles[i].word, &cosine, &sine);
            along[i] = length * cosine;
            across[i] = length * sine;
        }
        for (int64_t i = 0; i < some; i++)
            normals[start + i] = along[i];
        for (int64_t i = 0; i < last; i++) /* an odd count has one sine less */
            normals[pairs + start + i] = across[i];
    }
}

/* Factors and shifts of rows samples of width numbers, and the state after them. */
void normscope_noise(uint64_t *state, const float *restrict unit_factor,
                     const float *restrict unit_shift, int64_t rows, int64_t width,
                     float factor_jitter, float shift_jitter, float *restrict factor,
                     float *restrict shift)
{
    const int64_t count = rows * width;
    cell words[BLOCK];
    draw_normals(state, (cell *)shift, factor, count);
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t some = count - start < BLOCK ? count - start : BLOCK;
        draw_words(state, words, some);
        for (int64_t i = 0; i < some; i++)
            shift[start + i] = shift_jitter * (float)words[i].word;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < width; c++) {
            factor[r * width + c] = unit_factor[c] + factor_jitter * factor[r * width + c];
            shift[r * width + c] += unit_shift[c];
        }
}
