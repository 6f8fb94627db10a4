/* Two vectors compared in one reading of them: their inner product, the first one's square, and
 * the square of their difference.
 */

#include <stdint.h>

enum { LANES = 32, BLOCK = 4096, SUMS = 3 };

/* The sums over at most BLOCK numbers, in float: 128 of them in each lane. */
static void add_block(const float *one, const float *other, int64_t count, double *sums)
{
    float inner[LANES] = {0}, square[LANES] = {0}, change[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const float x = one[i + k], y = other[i + k], d = x - y;
            inner[k] += x * y;
            square[k] += x * x;
            change[k] += d * d;
        }
    for (int k = 0; i < count; i++, k++) {
        const float x = one[i], y = other[i], d = x - y;
        inner[k] += x * y;
        square[k] += x * x;
        change[k] += d * d;
    }
    for (int k = 0; k < LANES; k++) {
        sums[0] += inner[k];
        sums[1] += square[k];
        sums[2] += change[k];
    }
}

/* Blocks are shared out evenly; the order of the sums depends on the number of threads alone. */
void normscope_comparison(const float *one, const float *other, int64_t count, int threads,
                          double *shares)
{
    const int64_t blocks = (count + BLOCK - 1) / BLOCK;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        double sums[SUMS] = {0, 0, 0};
        for (int64_t b = blocks * t / threads; b < blocks * (t + 1) / threads; b++) {
            const int64_t from = b * BLOCK, left = count - from;
            add_block(one + from, other + from, left < BLOCK ? left : BLOCK, sums);
        }
        for (int k = 0; k < SUMS; k++)
            shares[SUMS * t + k] = sums[k];
    }
}
