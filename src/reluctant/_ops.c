/* The element-wise operations of _ops.py, each in one pass over a batch where torch makes two to six.
 *
 * A batch is rows of one example each; what governs its elements, `by`, is one row. Every thread has its part of all rows, so
 * the sums over the batch, which are the gradients of slopes, are its own and no result depends on the number of threads.
 */
#include <string.h>

/* Where a thread's part of a row begins; the last ends where one more would begin. */
static long part(long size, int thread, int threads) { return size * thread / threads; }

/* y = value, where x is an element and c what governs it. */
#define FORWARD(name, value)                                                                                               \
    void reluctant_##name(const float *restrict from, const float *restrict by, float *restrict y, long rows, long size,   \
                          int threads) {                                                                                   \
        _Pragma("omp parallel for num_threads(threads)")                                                                   \
        for (int thread = 0; thread < threads; thread++)                                                                   \
            for (long n = 0, end = part(size, thread + 1, threads); n < rows; n++)                                         \
                for (long i = part(size, thread, threads); i < end; i++) {                                                 \
                    float x = from[n * size + i], c = by[i];                                                               \
                    y[n * size + i] = value;                                                                               \
                }                                                                                                          \
    }

/* The gradient of x, where g is that of y; and, unless `sums` is null, the sum over the batch of that of c. */
#define BACKWARD(name, to_x, to_c)                                                                                         \
    void reluctant_##name##_backward(const float *restrict grad, const float *restrict from, const float *restrict by,     \
                                     float *restrict dx, float *restrict sums, long rows, long size, int threads) {        \
        if (sums) memset(sums, 0, size * sizeof(float));                                                                   \
        _Pragma("omp parallel for num_threads(threads)")                                                                   \
        for (int thread = 0; thread < threads; thread++)                                                                   \
            for (long n = 0, first = part(size, thread, threads), end = part(size, thread + 1, threads); n < rows; n++)    \
                if (sums)                                                                                                  \
                    for (long i = first; i < end; i++) {                                                                   \
                        float g = grad[n * size + i], x = from[n * size + i], c = by[i];                                   \
                        dx[n * size + i] = to_x, sums[i] += to_c;                                                          \
                    }                                                                                                      \
                else                                                                                                       \
                    for (long i = first; i < end; i++) {                                                                   \
                        float g = grad[n * size + i], x = from[n * size + i], c = by[i];                                   \
                        dx[n * size + i] = to_x;                                                                           \
                    }                                                                                                      \
    }

FORWARD(sloped, x - c * (x < 0 ? x : 0))
BACKWARD(sloped, g - (x > 0 ? 0 : g) * c, (x > 0 ? 0 : g) * -x)

FORWARD(zeroing, c * (x > 0 ? x : 0))
BACKWARD(zeroing, (x > 0 ? g : 0) * c, (x > 0 ? g : 0) * x)

/* Here c is a floor, 0 or minus infinity, and x in the backward pass is what came out. */
FORWARD(masked, x < c ? c : x)
BACKWARD(masked, x > c ? g : 0, 0)
