/* l_p normalization of a batch in float32, C99 with OpenMP where the compiler has it.
 *
 * A batch is rows x (channels * inner) numbers: inner = 1 for vectors and for channels last, else
 * the positions of a sample. Statistics are summed column by column, eight rows in float32 and
 * these in double. Both functions return 0, or 1 where the caller must do the work: no memory,
 * statistics that are not finite or lost digits, a mean above the limit in units of the scale.
 * Threads share out the channels; a channel's numbers do not depend on how many there are.
 * The formulas are those of lp_formulas.py.
 */

#include "columns.h"

enum { MAXIMUM = 0, AVERAGE = 1, SQUARE = 2 }; /* p = inf, 1, 2 */
#define LEAST 1.2e-28 /* average square below which the squares of float32 lose digits */

#define VALUE(r, c) x[(r) * stride + (c)]
#define CENTRED(r, c) (VALUE(r, c) - centre[c])
#define SIZE(r, c) fabsf(CENTRED(r, c))
#define POWER(r, c) (CENTRED(r, c) * CENTRED(r, c))
#define GRADIENT(r, c) g[(r) * stride + (c)]
#define PRODUCT(r, c) (GRADIENT(r, c) * CENTRED(r, c))
#define DIRECTION(r, c, order) direction(CENTRED(r, c), inverse[c], largest[c], order)
#define DIRECTION_AVERAGE(r, c) DIRECTION(r, c, AVERAGE)
#define DIRECTION_SQUARE(r, c) DIRECTION(r, c, SQUARE)
#define DIRECTION_MAXIMUM(r, c) DIRECTION(r, c, MAXIMUM)
#define IS_TIE(r, c) (SIZE(r, c) == largest[c] ? 1.0f : 0.0f)

/* The body of a function: work on all channels of a call, some at a time, shared by threads. */
#define EACH_TILE(work) \
    const int64_t step = tile_channels(channels, inner, threads); \
    int hard = 0; \
    _Pragma("omp parallel num_threads(threads) if (threads > 1) reduction(| : hard)") \
    { \
        tile t; \
        if (open_tile(&t, step, inner)) \
            hard = 1; /* and the share of this thread is left undone */ \
        _Pragma("omp for schedule(static)") \
        for (int64_t first = 0; first < channels; first += step) \
            if (!hard) \
                hard |= work(&call, &t, first, channels - first < step ? channels - first : step); \
        free(t.memory); \
    } \
    return hard;

/* ---- l_p normalization, forward ---- */

static void sum_values(const float *x, int64_t rows, int64_t stride, int64_t width,
                       double *restrict sums)
{
    clear(sums, width);
    SUM_ROWS(sums, VALUE);
}

static void sum_sizes(const float *x, int64_t rows, int64_t stride, int64_t width, int order,
                      const float *restrict centre, double *restrict sums)
{
    clear(sums, width);
    if (order == AVERAGE)
        SUM_ROWS(sums, SIZE);
    else if (order == SQUARE)
        SUM_ROWS(sums, POWER);
    else
        EACH_CELL(r, c) sums[c] = SIZE(r, c) > sums[c] ? SIZE(r, c) : sums[c];
}

/* Both sums in one pass: before centring the sizes do not wait for the mean. */
static void sum_values_and_sizes(const float *x, int64_t rows, int64_t stride, int64_t width,
                                 int order, const float *restrict centre,
                                 double *restrict values, double *restrict sizes)
{
    clear(values, width);
    clear(sizes, width);
    if (order == AVERAGE)
        EACH_COLUMN(values[c] += EIGHT(VALUE); sizes[c] += EIGHT(SIZE),
                    values[c] += VALUE(r, c); sizes[c] += SIZE(r, c));
    else
        EACH_COLUMN(values[c] += EIGHT(VALUE); sizes[c] += EIGHT(POWER),
                    values[c] += VALUE(r, c); sizes[c] += POWER(r, c));
}

static double scale(const double *sums, int64_t inner, double count, int order, double eps,
                    float *largest)
{
    if (order == AVERAGE)
        return total(sums, inner) / count + eps;
    if (order == SQUARE) {
        const double power = total(sums, inner) / count;
        return eps < LEAST && power < LEAST ? NAN : sqrt(power + eps); /* squares vanished? */
    }
    double most = 0;
    for (int64_t i = 0; i < inner; i++)
        most = sums[i] > most ? sums[i] : most;
    *largest = (float)most;
    return most + eps;
}

typedef struct { /* what does not change from channel to channel */
    int64_t rows, stride, inner;
    double count;
    int order, centred;
    double eps, limit;
    const float *x, *weight, *bias;
    float *output, *mean, *size, *largest;
} forward_call;

/* Some channels from the first on; whether the caller must do the work. */
static int forward_channels(const forward_call *f, const tile *t, int64_t first, int64_t some)
{
    const int64_t rows = f->rows, stride = f->stride, inner = f->inner, width = some * inner;
    const int order = f->order, centred = f->centred, together = !centred && order != MAXIMUM;
    const float *from = f->x + first * inner;
    float *restrict to = f->output + first * inner;
    const float *restrict centre = t->mean, *restrict factor = t->factor;
    const float *restrict offset = t->offset;
    int hard = 0;
    if (together) {
        spread(t->mean, width, 0);
        sum_values_and_sizes(from, rows, stride, width, order, t->mean, t->sums[0], t->sums[1]);
    } else {
        sum_values(from, rows, stride, width, t->sums[0]);
    }
    for (int64_t k = 0; k < some; k++) {
        f->mean[first + k] = (float)(total(t->sums[0] + k * inner, inner) / f->count);
        spread(t->mean + k * inner, inner, centred ? f->mean[first + k] : 0);
    }
    if (!together)
        sum_sizes(from, rows, stride, width, order, t->mean, t->sums[1]);
    for (int64_t k = 0; k < some; k++) {
        const int64_t j = first + k;
        const float mean = f->mean[j];
        const float size = (float)scale(t->sums[1] + k * inner, inner, f->count, order, f->eps,
                                        f->largest ? f->largest + j : NULL);
        const float unit = (f->weight ? f->weight[j] : 1) / size, start = f->bias ? f->bias[j] : 0;
        f->size[j] = size;
        hard |= !isfinite(mean) || !isfinite(size) || fabsf(mean / size) > f->limit;
        spread(t->factor + k * inner, inner, unit);
        spread(t->offset + k * inner, inner, centred ? start : start - mean * unit);
    }
    EACH_CELL(r, c)
    to[r * stride + c] = (from[r * stride + c] - centre[c]) * factor[c] + offset[c];
    return hard;
}

int normscope_forward(const float *x, const float *weight, const float *bias, int64_t rows,
                      int64_t channels, int64_t inner, int order, int threads, int centred,
                      double eps, double limit, float *output, float *mean, float *size,
                      float *largest)
{
    const forward_call call = {rows, channels * inner, inner, (double)(rows * inner), order,
                               centred, eps, limit, x, weight, bias, output, mean, size, largest};
    EACH_TILE(forward_channels)
}

/* ---- l_p normalization, backward ---- */

/* N times the slope h of the scale; for p = inf the sign at the largest values. */
static inline float direction(float value, float inverse, float largest, int order)
{
    if (order == SQUARE)
        return value * inverse;
    const float sign = (float)((value > 0) - (value < 0));
    return order == AVERAGE || fabsf(value) == largest ? sign : 0;
}

static void sum_products(const float *x, const float *g, int64_t rows, int64_t stride,
                         int64_t width, const float *restrict centre, double *restrict along,
                         double *restrict plain)
{
    clear(along, width);
    clear(plain, width);
    EACH_COLUMN(along[c] += EIGHT(PRODUCT); plain[c] += EIGHT(GRADIENT),
                along[c] += PRODUCT(r, c); plain[c] += GRADIENT(r, c));
}

static void sum_directions(const float *x, int64_t rows, int64_t stride, int64_t width, int order,
                           const tile *t, double *restrict sums)
{
    const float *restrict centre = t->mean, *restrict inverse = t->inverse;
    const float *restrict largest = t->largest;
    clear(sums, width);
    if (order == AVERAGE) /* a constant order each: the loops then vectorize */
        SUM_ROWS(sums, DIRECTION_AVERAGE);
    else if (order == SQUARE)
        SUM_ROWS(sums, DIRECTION_SQUARE);
    else
        SUM_ROWS(sums, DIRECTION_MAXIMUM);
}

static void count_ties(const float *x, int64_t rows, int64_t stride, int64_t width, const tile *t,
                       double *restrict sums)
{
    const float *restrict centre = t->mean, *restrict largest = t->largest;
    clear(sums, width);
    SUM_ROWS(sums, IS_TIE);
}

/* result = factor * g + offset + pull * direction */
static inline void put_together_by(const float *x, const float *g, int64_t rows, int64_t stride,
                                   int64_t width, int order, const tile *t,
                                   float *restrict result)
{
    const float *restrict centre = t->mean, *restrict inverse = t->inverse;
    const float *restrict largest = t->largest, *restrict factor = t->factor;
    const float *restrict offset = t->offset, *restrict pull = t->pull;
    EACH_CELL(r, c)
    {
        const float rest = offset[c] + pull[c] * DIRECTION(r, c, order);
        result[r * stride + c] = factor[c] * GRADIENT(r, c) + rest;
    }
}

static void put_together(const float *x, const float *g, int64_t rows, int64_t stride,
                         int64_t width, int order, const tile *t, float *restrict result)
{
    if (order == AVERAGE) /* a constant order each: the loops then vectorize */
        put_together_by(x, g, rows, stride, width, AVERAGE, t, result);
    else if (order == SQUARE)
        put_together_by(x, g, rows, stride, width, SQUARE, t, result);
    else
        put_together_by(x, g, rows, stride, width, MAXIMUM, t, result);
}

typedef struct {
    int64_t rows, stride, inner;
    double count;
    int order, centred;
    const float *g, *x, *weight, *mean, *size, *largest;
    float *result, *to_weight, *to_bias;
} backward_call;

/* Gradients of weight and bias, and the vectors that put_together needs. */
static void project(const backward_call *b, const tile *t, int64_t first, int64_t some)
{
    const int64_t inner = b->inner;
    for (int64_t k = 0; k < some; k++)
        spread(t->mean + k * inner, inner, b->mean[first + k]);
    sum_products(b->x + first * inner, b->g + first * inner, b->rows, b->stride, some * inner,
                 t->mean, t->sums[0], t->sums[1]);
    for (int64_t k = 0; k < some; k++) {
        const int64_t j = first + k, at = k * inner;
        const float inverse = 1 / b->size[j];
        b->to_weight[j] = (float)(total(t->sums[0] + at, inner) * inverse);
        b->to_bias[j] = (float)total(t->sums[1] + at, inner);
        spread(t->mean + at, inner, b->centred ? b->mean[j] : 0);
        spread(t->inverse + at, inner, inverse);
        spread(t->largest + at, inner, b->largest ? b->largest[j] : 0);
    }
}

static int backward_channels(const backward_call *b, const tile *t, int64_t first, int64_t some)
{
    const int64_t rows = b->rows, stride = b->stride, inner = b->inner, width = some * inner;
    const float *values = b->x + first * inner;
    project(b, t, first, some);
    if (!b->result)
        return 0;
    if (b->centred)
        sum_directions(values, rows, stride, width, b->order, t, t->sums[0]);
    if (b->order == MAXIMUM)
        count_ties(values, rows, stride, width, t, t->sums[1]);
    for (int64_t k = 0; k < some; k++) {
        const int64_t j = first + k, at = k * inner;
        const float factor = (b->weight ? b->weight[j] : 1) * t->inverse[at];
        double shares = b->count; /* all zero: no direction is left */
        if (b->order == MAXIMUM)
            shares = b->largest[j] == 0 ? INFINITY : total(t->sums[1] + at, inner);
        const double pull = -(double)factor * b->to_weight[j] / shares;
        double offset = -(double)factor * b->to_bias[j] / b->count;
        if (b->centred)
            offset -= pull * (total(t->sums[0] + at, inner) / b->count);
        spread(t->factor + at, inner, factor);
        spread(t->pull + at, inner, (float)pull);
        spread(t->offset + at, inner, (float)offset);
    }
    put_together(values, b->g + first * inner, rows, stride, width, b->order, t,
                 b->result + first * inner);
    return 0;
}

/* The input's gradient goes to result unless that is null; largest is null unless p = inf. */
int normscope_backward(const float *g, const float *x, const float *weight, const float *mean,
                       const float *size, const float *largest, int64_t rows, int64_t channels,
                       int64_t inner, int order, int threads, int centred, float *result,
                       float *to_weight, float *to_bias)
{
    const backward_call call = {rows, channels * inner, inner, (double)(rows * inner), order,
                                centred, g, x, weight, mean, size, largest, result, to_weight,
                                to_bias};
    EACH_TILE(backward_channels)
}
