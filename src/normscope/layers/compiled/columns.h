/* Sums over the rows of each column of a batch, and room for what a few channels need.
 *
 * The loops expect rows, width (columns), stride (from row to row) in the names around them.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { TILE = 1024 }; /* columns that are worked on together */

#define EACH_CELL(r, c) \
    for (int64_t r = 0; r < rows; r++) \
        for (int64_t c = 0; c < width; c++)

/* A statement for eight rows together (EIGHT of a term), and the one for each row left over. */
#define EACH_COLUMN(TOGETHER, ALONE) \
    do { \
        int64_t r = 0; \
        for (; r + 7 < rows; r += 8) \
            for (int64_t c = 0; c < width; c++) { \
                TOGETHER; \
            } \
        for (; r < rows; r++) \
            for (int64_t c = 0; c < width; c++) { \
                ALONE; \
            } \
    } while (0)
#define FOUR(TERM, r, c) ((TERM(r, c) + TERM(r + 1, c)) + (TERM(r + 2, c) + TERM(r + 3, c)))
#define EIGHT(TERM) (FOUR(TERM, r, c) + FOUR(TERM, r + 4, c))
#define SUM_ROWS(sums, TERM) EACH_COLUMN(sums[c] += EIGHT(TERM), sums[c] += TERM(r, c))

/* ---- whole channels of a batch that are worked on while the cache holds them ---- */

typedef struct {
    int64_t width;                       /* columns: channels of a tile times inner */
    double *sums[2];                     /* one number per column */
    float *mean, *inverse, *largest;     /* one number per column, the same within a channel */
    float *factor, *offset, *pull;
    void *memory;
} tile;

/* Channels of a tile: as many as fit, and no more than a thread's share. */
static int64_t tile_channels(int64_t channels, int64_t inner, int threads)
{
    const int64_t fit = inner < TILE ? TILE / inner : 1, share = (channels + threads - 1) / threads;
    return fit < share ? fit : share;
}

static int open_tile(tile *t, int64_t channels, int64_t inner)
{
    t->width = channels * inner;
    t->memory = malloc((size_t)t->width * (2 * sizeof(double) + 6 * sizeof(float)));
    if (!t->memory)
        return 1;
    for (int k = 0; k < 2; k++)
        t->sums[k] = (double *)t->memory + k * t->width;
    float *next = (float *)((double *)t->memory + 2 * t->width);
    float **vectors[] = {&t->mean, &t->inverse, &t->largest, &t->factor, &t->offset, &t->pull};
    for (int k = 0; k < 6; k++)
        *vectors[k] = next + k * t->width;
    return 0;
}

static void clear(double *sums, int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        sums[c] = 0;
}

static double total(const double *sums, int64_t inner)
{
    double sum = 0;
    for (int64_t i = 0; i < inner; i++)
        sum += sums[i];
    return sum;
}

static void spread(float *vector, int64_t inner, float value)
{
    for (int64_t i = 0; i < inner; i++)
        vector[i] = value;
}
