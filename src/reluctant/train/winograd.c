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

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vector load(const float *from) { return *(const anywhere *)from; }
INLINE void store(float *to, vector x) { *(anywhere *)to = x; }
INLINE long smaller(long a, long b) { return a < b ? a : b; }

/* The five transforms along one dimension; `s` and `t` are the strides of what is read and written. */

INLINE void of_inputs(const vector *d, int s, vector *o, int t) { /* 6 -> 6 */
    vector a = d[4 * s] - 4.0f * d[2 * s], b = d[3 * s] - 4.0f * d[s];
    vector c = d[4 * s] - d[2 * s], e = 2.0f * (d[3 * s] - d[s]);
    o[0] = 4.0f * d[0] - 5.0f * d[2 * s] + d[4 * s];
    o[t] = a + b, o[2 * t] = a - b, o[3 * t] = c + e, o[4 * t] = c - e;
    o[5 * t] = 4.0f * d[s] - 5.0f * d[3 * s] + d[5 * s];
}

INLINE void of_filters(const vector *g, int s, vector *o, int t) { /* 3 -> 6 */
    vector a = (g[0] + g[2 * s]) * (-1.0f / 6), b = g[s] * (-1.0f / 6);
    vector c = g[0] * (1.0f / 24) + g[2 * s] * (1.0f / 6), e = g[s] * (1.0f / 12);
    o[0] = g[0] * 0.25f;
    o[t] = a + b, o[2 * t] = a - b, o[3 * t] = c + e, o[4 * t] = c - e;
    o[5 * t] = g[2 * s];
}

INLINE void to_outputs(const vector *m, int s, vector *o, int t) { /* 6 -> 4 */
    vector a = m[s] + m[2 * s], b = m[s] - m[2 * s], c = m[3 * s] + m[4 * s], e = m[3 * s] - m[4 * s];
    o[0] = m[0] + a + c;
    o[t] = b + 2.0f * e;
    o[2 * t] = a + 4.0f * c;
    o[3 * t] = b + 8.0f * e + m[5 * s];
}

INLINE void of_gradients(const vector *y, int s, vector *o, int t) { /* 4 -> 6, to_outputs transposed */
    vector a = y[0] + y[2 * s], b = y[s] + y[3 * s];
    vector c = y[0] + 4.0f * y[2 * s], e = 2.0f * y[s] + 8.0f * y[3 * s];
    o[0] = y[0];
    o[t] = a + b, o[2 * t] = a - b, o[3 * t] = c + e, o[4 * t] = c - e;
    o[5 * t] = y[3 * s];
}

INLINE void to_filters(const vector *u, int s, vector *o, int t) { /* 6 -> 3, of_filters transposed */
    vector a = (u[s] + u[2 * s]) * (-1.0f / 6), b = (u[s] - u[2 * s]) * (-1.0f / 6);
    vector c = u[3 * s] + u[4 * s], e = u[3 * s] - u[4 * s];
    o[0] = u[0] * 0.25f + a + c * (1.0f / 24);
    o[t] = b + e * (1.0f / 12);
    o[2 * t] = a + c * (1.0f / 6) + u[5 * s];
}

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

INLINE long offset(const batch *it, tile at, long channels) {
    return ((at.image * it->height + at.top) * it->width + at.left) * channels;
}

/* Reads size x size pixels of 8 channels; those beyond the image are 0. */
INLINE void read(const float *from, const batch *it, tile at, long channels, int size, vector *pixels) {
    long row = it->width * channels;
    from += offset(it, at, channels);
    if (at.top >= 0 && at.left >= 0 && at.top + size <= it->height && at.left + size <= it->width) {
        for (int r = 0; r < size; r++)
            for (int s = 0; s < size; s++) pixels[r * size + s] = load(from + r * row + s * channels);
    } else {
        memset(pixels, 0, size * size * sizeof(vector));
        for (int r = at.top < 0; r < smaller(size, it->height - at.top); r++)
            for (int s = at.left < 0; s < smaller(size, it->width - at.left); s++)
                pixels[r * size + s] = load(from + r * row + s * channels);
    }
}

/* The points of a tile's inputs, 8 channels. */
INLINE void transform_inputs(const float *x, const batch *it, tile at, long channels, vector *points) {
    vector pixels[36], half[36];
    at.top--, at.left--;
    read(x, it, at, channels, 6, pixels);
    for (int s = 0; s < 6; s++) of_inputs(pixels + s, 6, half + s, 6);
    for (int r = 0; r < 6; r++) of_inputs(half + 6 * r, 1, points + 6 * r, 1);
}

INLINE void transform_gradients(const float *dy, const batch *it, tile at, long channels, vector *points) {
    vector pixels[16], half[24];
    read(dy, it, at, channels, 4, pixels);
    for (int s = 0; s < 4; s++) of_gradients(pixels + s, 4, half + s, 4);
    for (int r = 0; r < 6; r++) of_gradients(half + 4 * r, 1, points + 6 * r, 1);
}

INLINE void write_outputs(const vector *points, vector bias, float *y, const batch *it, tile at, long channels) {
    vector half[24], pixels[16];
    for (int s = 0; s < 6; s++) to_outputs(points + s, 6, half + s, 6);
    for (int r = 0; r < 4; r++) to_outputs(half + 6 * r, 1, pixels + 4 * r, 1);
    y += offset(it, at, channels);
    long down = smaller(4, it->height - at.top), across = smaller(4, it->width - at.left);
    for (int r = 0; r < 4 && r < down; r++)
        for (int s = 0; s < 4 && s < across; s++)
            store(y + (r * it->width + s) * channels, pixels[4 * r + s] + bias);
}

/* Tiles that are worked on at once: more of them where filters are large and have to come from memory each time. */
static long tiles_of_block(long channels, long filters) {
    long tiles = smaller(channels, filters) / 4;
    return ((tiles < 24 ? 24 : tiles) + ROWS - 1) / ROWS * ROWS;
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
INLINE void accumulate(const float *columns, long stride, const float *panel, long depth, float *out, long next, int begin) {
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
                vector taps[9], half[18], points[POINTS];
                for (int f = 0; f < 9; f++) taps[turned ? 8 - f : f] = load(w + (c * 9 + f) * filters + p * PANEL + h);
                for (int s = 0; s < 3; s++) of_filters(taps + s, 3, half + s, 3);
                for (int r = 0; r < 6; r++) of_filters(half + 3 * r, 1, points + 6 * r, 1);
                for (int q = 0; q < POINTS; q++) store(u + ((q * panels + p) * channels + c) * PANEL + h, points[q]);
            }
}

/* y[n][h][w][filters] = x[n][h][w][channels] convolved with what reluctant_filters made, plus bias unless it is null. */
int reluctant_convolve(const float *x, const float *u, const float *bias, float *y, long images, long height, long width,
                       long channels, long filters, int threads) {
    batch it = cut(images, height, width);
    long block = tiles_of_block(channels, filters), panels = filters / PANEL;
    long in = block * channels + PADDING, out = block * filters + PADDING, each = POINTS * (in + out);
    float *memory = aligned_alloc(64, threads * each * sizeof(float));
    if (!memory) return 0;
    #pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long first = 0; first < it.tiles; first += block) {
        float *inputs = memory + omp_get_thread_num() * each, *outputs = inputs + POINTS * in;
        long count = smaller(block, it.tiles - first);
        vector points[POINTS];
        for (long t = 0; t < count; t++)
            for (long c = 0; c < channels; c += LANES) {
                transform_inputs(x + c, &it, find(&it, first + t), channels, points);
                for (int q = 0; q < POINTS; q++) store(inputs + q * in + t * channels + c, points[q]);
            }
        for (int q = 0; q < POINTS; q++) /* the last rows of the last block may be left over from another: nobody reads them */
            for (long p = 0; p < panels; p++)
                for (long t = 0; t < count; t += ROWS)
                    multiply(inputs + q * in + t * channels, u + (q * panels + p) * channels * PANEL, channels,
                             outputs + q * out + t * filters + p * PANEL, filters);
        for (long t = 0; t < count; t++)
            for (long k = 0; k < filters; k += LANES) {
                for (int q = 0; q < POINTS; q++) points[q] = load(outputs + q * out + t * filters + k);
                write_outputs(points, bias ? load(bias + k) : (vector){0}, y + k, &it, find(&it, first + t), filters);
            }
    }
    free(memory);
    return 1;
}

/* dw[filters][3][3][channels]: the gradient of the filters, where dy is that of the outputs. */
int reluctant_filter_gradient(const float *x, const float *dy, float *dw, long images, long height, long width,
                              long channels, long filters, int threads) {
    batch it = cut(images, height, width);
    long block = 2 * tiles_of_block(channels, filters);
    long in = block * channels + PADDING, out = block * filters + PADDING;
    float *inputs = aligned_alloc(64, POINTS * (in + out + channels * filters) * sizeof(float));
    if (!inputs) return 0;
    float *gradients = inputs + POINTS * in, *sums = gradients + POINTS * out;
    #pragma omp parallel num_threads(threads)
    {
        vector points[POINTS];
        for (long first = 0; first < it.tiles; first += block) {
            long count = smaller(block, it.tiles - first);
            #pragma omp for
            for (long t = 0; t < count; t++) {
                tile at = find(&it, first + t);
                for (long c = 0; c < channels; c += LANES) {
                    transform_inputs(x + c, &it, at, channels, points);
                    float *to = inputs + (c / PANEL * block + t) * PANEL + c % PANEL;
                    for (int q = 0; q < POINTS; q++) store(to + q * in, points[q]);
                }
                for (long k = 0; k < filters; k += LANES) {
                    transform_gradients(dy + k, &it, at, filters, points);
                    for (int q = 0; q < POINTS; q++) store(gradients + q * out + t * filters + k, points[q]);
                }
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
                vector half[18], taps[9];
                for (int q = 0; q < POINTS; q++) points[q] = load(sums + (q * filters + k) * channels + c);
                for (int s = 0; s < 6; s++) to_filters(points + s, 6, half + s, 6);
                for (int r = 0; r < 3; r++) to_filters(half + 6 * r, 1, taps + 3 * r, 1);
                for (int f = 0; f < 9; f++) store(dw + (k * 9 + f) * channels + c, taps[f]);
            }
    }
    free(inputs);
    return 1;
}
