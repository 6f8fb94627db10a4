/* Sums over the rows of a matrix, column by column: of its product with another one, and its own.
 *
 * A few rows together are one long row, so that narrow matrices (channels of images, which are
 * neighbours in memory) fill the processor's lanes too.
 */

#include <stdint.h>
#include <string.h>

enum { LONG = 512, ROWS = 64, KINDS = 2 }; /* numbers of a long row; rows that are summed in float */

/* Add up rows of at most LONG numbers; number c of a row belongs to column c modulo columns. */
static void add_rows(const float *one, const float *other, int64_t rows, int64_t stride,
                     int64_t width, int64_t columns, double *products, double *totals)
{
    float of_products[LONG], of_one[LONG];
    for (int64_t from = 0; from < rows; from += ROWS) {
        const int64_t to = from + ROWS < rows ? from + ROWS : rows;
        memset(of_products, 0, sizeof of_products);
        memset(of_one, 0, sizeof of_one);
        int64_t r = from;
        for (; r + 3 < to; r += 4) /* four together: the sums are read and written less often */
            for (int64_t c = 0; c < width; c++) {
                const float *x = one + r * stride + c, *y = other + r * stride + c;
                of_products[c] += (x[0] * y[0] + x[stride] * y[stride])
                                  + (x[2 * stride] * y[2 * stride] + x[3 * stride] * y[3 * stride]);
                of_one[c] += (x[0] + x[stride]) + (x[2 * stride] + x[3 * stride]);
            }
        for (; r < to; r++)
            for (int64_t c = 0; c < width; c++) {
                of_products[c] += one[r * stride + c] * other[r * stride + c];
                of_one[c] += one[r * stride + c];
            }
        for (int64_t c = 0; c < width; c++) {
            products[c % columns] += of_products[c];
            totals[c % columns] += of_one[c];
        }
    }
}

static void add_part(const float *one, const float *other, int64_t rows, int64_t columns,
                     double *products, double *totals)
{
    for (int64_t c = 0; columns > LONG && c < columns; c += LONG) {
        const int64_t width = columns - c < LONG ? columns - c : LONG;
        add_rows(one + c, other + c, rows, columns, width, width, products + c, totals + c);
    }
    if (columns > LONG)
        return;
    const int64_t together = LONG / columns, width = together * columns;
    const int64_t whole = rows / together, done = whole * width;
    add_rows(one, other, whole, width, width, columns, products, totals);
    add_rows(one + done, other + done, rows - whole * together, columns, columns, columns,
             products, totals);
}

/* For each thread the sums of the products, then the totals, of its share of the rows: the order
 * of the sums depends on the number of threads alone. */
void normscope_sums(const float *one, const float *other, int64_t rows, int64_t columns,
                    int threads, double *shares)
{
    memset(shares, 0, (size_t)(KINDS * columns * threads) * sizeof(double));
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        const int64_t from = rows * t / threads, to = rows * (t + 1) / threads;
        double *products = shares + KINDS * columns * t;
        add_part(one + from * columns, other + from * columns, to - from, columns, products,
                 products + columns);
    }
}
