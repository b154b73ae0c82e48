/* 3x3 convolutions with a quarter of the multiplications: Winograd's F(4x4, 3x3), for AVX2.
 *
 * An image is cut into tiles of 4x4 outputs. The 6x6 inputs of a tile, and a filter, are transformed to 36 points each, by
 * additions and products with small constants. At each point the convolution is a product of matrices, tiles x channels by
 * channels x filters, and what comes out is transformed back. The gradient of the inputs is a convolution with the filters
 * turned by 180 degrees; that of the filters is the same matrix products seen from their other side.
 * (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.)
 *
 * Images have their channels last. Numbers of channels are multiples of 16. Blocks of tiles are small enough for their
 * points to stay in a cache. No result depends on the number of threads.
 */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, PANEL = 16, ROWS = 6, POINTS = 36, PADDING = 16 /* keeps the points' addresses out of one cache set */ };
enum { AHEAD = 2, LINE = 16 /* floats of a line of cache */ };

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vector load(const float *from) { return *(const anywhere *)from; }
INLINE void store(float *to, vector x) { *(anywhere *)to = x; }
INLINE long smaller(long a, long b) { return a < b ? a : b; }

/* The five transforms along one dimension. */

INLINE void of_inputs(const vector d[6], vector o[6]) {
    vector a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1], c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
    o[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    o[1] = a + b, o[2] = a - b, o[3] = c + e, o[4] = c - e;
    o[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
}

INLINE void of_filters(const vector g[3], vector o[6]) {
    vector a = (g[0] + g[2]) * (-1.0f / 6), b = g[1] * (-1.0f / 6);
    vector c = g[0] * (1.0f / 24) + g[2] * (1.0f / 6), e = g[1] * (1.0f / 12);
    o[0] = g[0] * 0.25f;
    o[1] = a + b, o[2] = a - b, o[3] = c + e, o[4] = c - e;
    o[5] = g[2];
}

INLINE void to_outputs(const vector m[6], vector o[4]) {
    vector a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
    o[0] = m[0] + a + c;
    o[1] = b + 2.0f * e;
    o[2] = a + 4.0f * c;
    o[3] = b + 8.0f * e + m[5];
}

INLINE void of_gradients(const vector y[4], vector o[6]) { /* to_outputs, transposed */
    vector a = y[0] + y[2], b = y[1] + y[3], c = y[0] + 4.0f * y[2], e = 2.0f * y[1] + 8.0f * y[3];
    o[0] = y[0];
    o[1] = a + b, o[2] = a - b, o[3] = c + e, o[4] = c - e;
    o[5] = y[3];
}

INLINE void to_filters(const vector u[6], vector o[3]) { /* of_filters, transposed */
    vector a = (u[1] + u[2]) * (-1.0f / 6), b = (u[1] - u[2]) * (-1.0f / 6), c = u[3] + u[4], e = u[3] - u[4];
    o[0] = u[0] * 0.25f + a + c * (1.0f / 24);
    o[1] = b + e * (1.0f / 12);
    o[2] = a + c * (1.0f / 6) + u[5];
}

/* The same along two: first down the columns of what is read, then along the rows. Of 8 channels at once; numbers are `row`
 * and `column` apart where they come from, and `to_row` and `to_column` where they go. */
#define TRANSFORM(name, one, from_size, to_size)                                                                           \
    INLINE void name(const float *from, long row, long column, float *to, long to_row, long to_column) {                   \
        vector half[to_size][from_size];                                                                                   \
        for (int s = 0; s < from_size; s++) {                                                                              \
            vector in[from_size], out[to_size];                                                                            \
            for (int r = 0; r < from_size; r++) in[r] = load(from + r * row + s * column);                                 \
            one(in, out);                                                                                                  \
            for (int r = 0; r < to_size; r++) half[r][s] = out[r];                                                         \
        }                                                                                                                  \
        for (int r = 0; r < to_size; r++) {                                                                                \
            vector out[to_size];                                                                                           \
            one(half[r], out);                                                                                             \
            for (int s = 0; s < to_size; s++) store(to + r * to_row + s * to_column, out[s]);                              \
        }                                                                                                                  \
    }
TRANSFORM(inputs_to_points, of_inputs, 6, 6)
TRANSFORM(filters_to_points, of_filters, 3, 6)
TRANSFORM(points_to_outputs, to_outputs, 6, 4)
TRANSFORM(gradients_to_points, of_gradients, 4, 6)
TRANSFORM(points_to_filters, to_filters, 6, 3)

/* Where tiles are in a batch of images. */

typedef struct { long height, width, down, across, tiles; } batch;
typedef struct { long image, top, left; } tile;

static batch cut(long images, long height, long width) {
    batch it = {height, width, (height + 3) / 4, (width + 3) / 4, 0};
    it.tiles = images * it.down * it.across;
    return it;
}

INLINE tile find(const batch *it, long number) {
    long of_image = it->down * it->across, rest = number % of_image;
    return (tile){number / of_image, rest / it->across * 4, rest % it->across * 4};
}

/* size x size pixels of an image, 8 channels of each; at its borders a copy that is 0 beyond it. */
typedef struct { const float *at; long row, column; } pixels;

INLINE pixels look(const float *image, const batch *it, tile where, long channels, int size, float *copy) {
    long row = it->width * channels;
    const float *from = image + (where.image * it->height + where.top) * row + where.left * channels;
    if (where.top >= 0 && where.left >= 0 && where.top + size <= it->height && where.left + size <= it->width)
        return (pixels){from, row, channels};
    memset(copy, 0, size * size * LANES * sizeof(float));
    for (int r = where.top < 0; r < smaller(size, it->height - where.top); r++)
        for (int s = where.left < 0; s < smaller(size, it->width - where.left); s++)
            store(copy + (r * size + s) * LANES, load(from + r * row + s * channels));
    return (pixels){copy, size * LANES, LANES};
}

/* Ask for the pixels of a tile that will be worked on soon: a CPU does not foresee short pieces of several rows. */
INLINE void fetch(const float *image, const batch *it, long number, long channels, int rows) {
    tile soon = find(it, smaller(number + AHEAD, it->tiles - 1));
    const float *from = image + ((soon.image * it->height + soon.top) * it->width + soon.left) * channels;
    for (int r = 0; r < rows; r++)
        for (long s = 0; s < 4 * channels; s += LINE) __builtin_prefetch(from + r * it->width * channels + s);
}

/* The points of a tile's 6x6 inputs, `apart` from each other. */
INLINE void transform_inputs(const float *x, const batch *it, tile where, long channels, float *points, long apart) {
    float copy[36 * LANES];
    where.top--, where.left--;
    pixels in = look(x, it, where, channels, 6, copy);
    inputs_to_points(in.at, in.row, in.column, points, 6 * apart, apart);
}

INLINE void transform_gradients(const float *dy, const batch *it, tile where, long channels, float *points, long apart) {
    float copy[16 * LANES];
    pixels in = look(dy, it, where, channels, 4, copy);
    gradients_to_points(in.at, in.row, in.column, points, 6 * apart, apart);
}

INLINE void write_outputs(const float *points, long apart, const float *bias, float *y, const batch *it, tile where,
                          long channels) {
    float out[16 * LANES];
    vector add = bias ? load(bias) : (vector){0};
    points_to_outputs(points, 6 * apart, apart, out, 4 * LANES, LANES);
    y += ((where.image * it->height + where.top) * it->width + where.left) * channels;
    long down = smaller(4, it->height - where.top), across = smaller(4, it->width - where.left);
    for (int r = 0; r < down; r++)
        for (int s = 0; s < across; s++)
            store(y + (r * it->width + s) * channels, load(out + (4 * r + s) * LANES) + add);
}

/* Tiles that are worked on at once: more of them where filters are large and have to come from memory each time, and no
 * more than there are for each thread. */
static long tiles_of_block(long channels, long filters, long tiles, int threads) {
    long block = smaller(channels, filters) / 4;
    block = smaller(block < 24 ? 24 : block, (tiles + threads - 1) / threads);
    return (block + ROWS - 1) / ROWS * ROWS;
}

/* out[6][16] = rows[6][depth] * panel[depth][16] */
INLINE void multiply(const float *rows, const float *panel, long depth, float *out, long stride) {
    vector sum[ROWS][2] = {{{0}}};
    for (long c = 0; c < depth; c++) {
        vector first = load(panel + c * PANEL), second = load(panel + c * PANEL + LANES);
        for (int r = 0; r < ROWS; r++) {
            float factor = rows[r * depth + c];
            sum[r][0] += factor * first, sum[r][1] += factor * second;
        }
    }
    for (int r = 0; r < ROWS; r++) store(out + r * stride, sum[r][0]), store(out + r * stride + LANES, sum[r][1]);
}

/* out[4][16] (+)= columns[depth][4 of stride] transposed * panel[depth][16] */
INLINE void accumulate(const float *columns, long stride, const float *panel, long depth, float *out, long next,
                       int begin) {
    vector sum[4][2];
    for (int r = 0; r < 4; r++)
        for (int h = 0; h < 2; h++) sum[r][h] = begin ? (vector){0} : load(out + r * next + h * LANES);
    for (long t = 0; t < depth; t++) {
        vector first = load(panel + t * PANEL), second = load(panel + t * PANEL + LANES);
        for (int r = 0; r < 4; r++) {
            float factor = columns[t * stride + r];
            sum[r][0] += factor * first, sum[r][1] += factor * second;
        }
    }
    for (int r = 0; r < 4; r++)
        for (int h = 0; h < 2; h++) store(out + r * next + h * LANES, sum[r][h]);
}

/* The points of filters w[channels][3][3][filters], as u[36][filters / 16][channels][16]. */
void reluctant_filters(const float *w, float *u, long channels, long filters, int turned, int threads) {
    long panels = filters / PANEL;
    #pragma omp parallel for num_threads(threads)
    for (long p = 0; p < panels; p++)
        for (long c = 0; c < channels; c++)
            for (int h = 0; h < PANEL; h += LANES) {
                const float *from = w + c * 9 * filters + p * PANEL + h;
                float *to = u + (p * channels + c) * PANEL + h;
                long tap = turned ? -filters : filters, point = panels * channels * PANEL;
                filters_to_points(turned ? from + 8 * filters : from, 3 * tap, tap, to, 6 * point, point);
            }
}

/* y[n][h][w][filters] = x[n][h][w][channels] convolved with what reluctant_filters made, plus bias unless it is null. */
int reluctant_convolve(const float *x, const float *u, const float *bias, float *y, long images, long height, long width,
                       long channels, long filters, int threads) {
    batch it = cut(images, height, width);
    long block = tiles_of_block(channels, filters, it.tiles, threads), panels = filters / PANEL;
    long in = block * channels + PADDING, out = block * filters + PADDING, each = POINTS * (in + out);
    float *memory = aligned_alloc(64, threads * each * sizeof(float));
    if (!memory) return 0;
    #pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long first = 0; first < it.tiles; first += block) {
        float *inputs = memory + omp_get_thread_num() * each, *outputs = inputs + POINTS * in;
        long count = smaller(block, it.tiles - first);
        for (long t = 0; t < count; t++) {
            fetch(x, &it, first + t, channels, 5);
            for (long c = 0; c < channels; c += LANES)
                transform_inputs(x + c, &it, find(&it, first + t), channels, inputs + t * channels + c, in);
        }
        for (int q = 0; q < POINTS; q++) /* the last rows of the last block may be of another: nobody reads them */
            for (long p = 0; p < panels; p++)
                for (long t = 0; t < count; t += ROWS)
                    multiply(inputs + q * in + t * channels, u + (q * panels + p) * channels * PANEL, channels,
                             outputs + q * out + t * filters + p * PANEL, filters);
        for (long t = 0; t < count; t++) {
            fetch(y, &it, first + t, filters, 4);
            for (long k = 0; k < filters; k += LANES)
                write_outputs(outputs + t * filters + k, out, bias ? bias + k : 0, y + k, &it, find(&it, first + t),
                              filters);
        }
    }
    free(memory);
    return 1;
}

/* dw[filters][3][3][channels]: the gradient of the filters, where dy is that of the outputs. */
int reluctant_filter_gradient(const float *x, const float *dy, float *dw, long images, long height, long width,
                              long channels, long filters, int threads) {
    batch it = cut(images, height, width);
    long block = tiles_of_block(2 * channels, 2 * filters, it.tiles, 1);
    long in = block * channels + PADDING, out = block * filters + PADDING;
    float *inputs = aligned_alloc(64, POINTS * (in + out + channels * filters) * sizeof(float));
    if (!inputs) return 0;
    float *gradients = inputs + POINTS * in, *sums = gradients + POINTS * out;
    #pragma omp parallel num_threads(threads)
    {
        for (long first = 0; first < it.tiles; first += block) {
            long count = smaller(block, it.tiles - first);
            #pragma omp for
            for (long t = 0; t < count; t++) {
                tile where = find(&it, first + t);
                fetch(x, &it, first + t, channels, 5);
                fetch(dy, &it, first + t, filters, 4);
                for (long c = 0; c < channels; c += LANES)
                    transform_inputs(x + c, &it, where, channels, inputs + (c / PANEL * block + t) * PANEL + c % PANEL, in);
                for (long k = 0; k < filters; k += LANES)
                    transform_gradients(dy + k, &it, where, filters, gradients + t * filters + k, out);
            }
            #pragma omp for
            for (int q = 0; q < POINTS; q++)
                for (long c = 0; c < channels; c += PANEL)
                    for (long k = 0; k < filters; k += 4)
                        accumulate(gradients + q * out + k, filters, inputs + q * in + c * block, count,
                                   sums + (q * filters + k) * channels + c, channels, first == 0);
        }
        #pragma omp for
        for (long k = 0; k < filters; k++)
            for (long c = 0; c < channels; c += LANES) {
                long point = filters * channels;
                points_to_filters(sums + k * channels + c, 6 * point, point,
                                  dw + k * 9 * channels + c, 3 * channels, channels);
            }
    }
    free(inputs);
    return 1;
}
