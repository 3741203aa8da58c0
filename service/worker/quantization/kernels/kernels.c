/*
 * The quantizers' inner loops. Every function gives the bytes that the torch operations of the
 * modules beside it give: they are compiled where a compiler is found, and those run everywhere else.
 *
 * Compiled with -ffp-contract=off: a fused multiply-add would round once where the definitions
 * round twice. Lines are contiguous; `dtype` says what a line holds. A function that returns
 * a magnitude returns the largest of what it read, as the bits of an fp32 number without its sign:
 * as integers they are ordered as the numbers are, with infinity and then NaN above all of them.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define HAS_AVX512 1
#else
#define HAS_AVX512 0
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define HAS_FMA 1
#else
#define HAS_FMA 0
#endif

#define INLINE static inline __attribute__((always_inline))

enum { BF16 = 0, FP16 = 1, FP32 = 2 };
enum { PIECE = 1024, LANES = 16, CODES = 16 };

#define MAGNITUDE 0x7fffffffu
#define INFINITY_BITS 0x7f800000u
/* 2^-14 and 65,504 as fp32. */
#define LEAST_NORMAL_FP16 0x38800000
#define LARGEST_FP16 0x477fe000
/* bitsandbytes' floor under a scale. */
#define LEAST_SCALE 1e-38f

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* fp16's exponent has a bias of 15 and fp32's of 127: multiplied by 2^112 subnormals come right too. */
INLINE float from_fp16(uint16_t half) {
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    uint32_t magnitude = as_bits(as_float(rest) * 0x1p112f) | special;
    return as_float(magnitude | (uint32_t)(half & 0x8000) << 16);
}

INLINE float element(const void *line, int dtype, int64_t index) {
    if (dtype == BF16) return as_float((uint32_t)((const uint16_t *)line)[index] << 16);
    if (dtype == FP16) return from_fp16(((const uint16_t *)line)[index]);
    return ((const float *)line)[index];
}

INLINE void expand(const void *line, int dtype, int64_t start, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) values[i] = element(line, dtype, start + i);
}

INLINE uint32_t larger(uint32_t one, uint32_t other) { return one > other ? one : other; }

INLINE uint32_t largest_of(const float *values, int64_t count) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(as_bits(values[i]) & MAGNITUDE);
        largest = bits > largest ? bits : largest;
    }
    return (uint32_t)largest;
}

/*
 * The fp32 number nearest in fp16, ties to even; what exceeds fp16's range becomes infinity. In signed
 * integers, of which compilers know vector comparisons everywhere.
 */
INLINE float rounded_to_fp16(float value) {
    int32_t bits = (int32_t)as_bits(value), rest = bits & (int32_t)MAGNITUDE;
    int32_t normal = (rest + 0xfff + ((rest >> 13) & 1)) & ~0x1fff;
    /* Below 2^-14 the step is 2^-24, which is that of fp32 at 1/2. */
    int32_t small = (int32_t)as_bits((as_float((uint32_t)rest) + 0.5f) - 0.5f);
    int32_t result = rest < LEAST_NORMAL_FP16 ? small : normal;
    result = result > LARGEST_FP16 ? (int32_t)INFINITY_BITS : result;
    result = rest > (int32_t)INFINITY_BITS ? rest : result;
    return as_float((uint32_t)(result | (bits & ~(int32_t)MAGNITUDE)));
}

INLINE uint16_t fp16_bits(float value) {
    float rounded = rounded_to_fp16(value);
    uint32_t bits = as_bits(rounded), rest = bits & MAGNITUDE;
    uint32_t half = rest >= 0x7f800000u ? 0x7c00u : as_bits(as_float(rest) * 0x1p-112f) >> 13;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

/* What stands for a number that lies above `rank` of 15 thresholds: 16 codes, and all pairs of them as bytes. */
typedef struct {
    float thresholds[CODES];
    int32_t codes[CODES];
    uint8_t pairs[CODES * CODES];
    int in_order;
} Book;

INLINE Book book_of(const float *thresholds, const uint8_t *codes) {
    Book book;
    book.in_order = 1;
    for (int rank = 0; rank < CODES; rank++) {
        book.thresholds[rank] = rank < CODES - 1 ? thresholds[rank] : INFINITY;
        book.codes[rank] = codes[rank];
        book.in_order &= codes[rank] == rank;
    }
    for (int pair = 0; pair < CODES * CODES; pair++)
        book.pairs[pair] = (uint8_t)(codes[pair / CODES] << 4 | codes[pair % CODES]);
    return book;
}

#if HAS_AVX512
/* One step of a binary search in sixteen lanes: go up by `step` where the threshold below is exceeded. */
INLINE __m512i search_step(__m512 values, __m512 thresholds, __m512i rank, int step) {
    __m512 threshold = _mm512_permutexvar_ps(_mm512_add_epi32(rank, _mm512_set1_epi32(step - 1)), thresholds);
    __mmask16 above = _mm512_cmp_ps_mask(values, threshold, _CMP_GT_OQ);
    return _mm512_mask_add_epi32(rank, above, rank, _mm512_set1_epi32(step));
}

INLINE void pack_codes(const Book *book, const float *values, float factor, int64_t count, uint8_t *packed) {
    __m512 thresholds = _mm512_loadu_ps(book->thresholds), factors = _mm512_set1_ps(factor);
    __m512i codes = _mm512_loadu_si512(book->codes);
    for (int64_t i = 0; i < count; i += 16) {
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(values + i), factors);
        __m512i rank = _mm512_setzero_si512();
        rank = search_step(scaled, thresholds, rank, 8);
        rank = search_step(scaled, thresholds, rank, 4);
        rank = search_step(scaled, thresholds, rank, 2);
        rank = search_step(scaled, thresholds, rank, 1);
        if (!book->in_order) rank = _mm512_permutexvar_epi32(rank, codes);
        /* As 64-bit lanes the first of two codes is the low half: first << 4 | second is their low byte. */
        __m512i pairs = _mm512_or_si512(_mm512_slli_epi64(rank, 4), _mm512_srli_epi64(rank, 32));
        _mm_storel_epi64((__m128i *)(packed + i / 2), _mm512_cvtepi64_epi8(pairs));
    }
}
#else
INLINE void pack_codes(const Book *book, const float *values, float factor, int64_t count, uint8_t *packed) {
    uint8_t ranks[PIECE];
    for (int64_t i = 0; i < count; i++) {
        float scaled = values[i] * factor;
        int32_t rank = 0;
        for (int step = 0; step < CODES - 1; step++) rank += scaled > book->thresholds[step];
        ranks[i] = (uint8_t)rank;
    }
    for (int64_t i = 0; i < count / 2; i++) packed[i] = (uint8_t)(ranks[2 * i] << 4 | ranks[2 * i + 1]);
    if (!book->in_order)
        for (int64_t i = 0; i < count / 2; i++) packed[i] = book->pairs[packed[i]];
}
#endif

/* Blocks longer than a piece are read twice: once for their scale, once for their codes. */
INLINE uint32_t block_magnitude(const void *line, int dtype, int64_t start, int64_t size, float *values) {
    uint32_t largest = 0;
    for (int64_t done = 0; done < size; done += PIECE) {
        int64_t count = size - done < PIECE ? size - done : PIECE;
        expand(line, dtype, start + done, count, values);
        largest = larger(largest, largest_of(values, count));
    }
    return largest;
}

INLINE void block_codes(const Book *book, const void *line, int dtype, int64_t start, int64_t size, float factor,
                        float *values, uint8_t *packed) {
    if (size <= PIECE) {
        pack_codes(book, values, factor, size, packed + start / 2);
        return;
    }
    for (int64_t done = 0; done < size; done += PIECE) {
        expand(line, dtype, start + done, PIECE, values);
        pack_codes(book, values, factor, PIECE, packed + (start + done) / 2);
    }
}

INLINE uint32_t scaled_blocks(const void *line, int dtype, int64_t blocks, int64_t size, const Book *book,
                              uint8_t *packed, float *absmax) {
    float values[PIECE];
    uint32_t largest = 0;
    for (int64_t block = 0; block < blocks; block++) {
        uint32_t magnitude = block_magnitude(line, dtype, block * size, size, values);
        float scale = as_float(magnitude);
        absmax[block] = scale;
        largest = larger(largest, magnitude);
        block_codes(book, line, dtype, block * size, size, 1.0f / (scale > LEAST_SCALE ? scale : LEAST_SCALE), values,
                    packed);
    }
    return largest;
}

/* E8M0 is the exponent of the largest magnitude less 2, that of E2M1's largest value, and never below 0. */
INLINE uint32_t microscaled_groups(const void *line, int dtype, int64_t groups, int64_t size, const Book *book,
                                   uint8_t *packed, uint8_t *exponents) {
    float values[PIECE];
    uint32_t largest = 0;
    for (int64_t group = 0; group < groups; group++) {
        uint32_t magnitude = block_magnitude(line, dtype, group * size, size, values);
        uint32_t field = magnitude >> 23, exponent = field > 2 ? field - 2 : 0;
        exponents[group] = (uint8_t)exponent;
        largest = larger(largest, magnitude);
        /* 2^(127 - exponent), whose own field is 254 - exponent. */
        block_codes(book, line, dtype, group * size, size, as_float((254u - (exponent < 254 ? exponent : 253)) << 23),
                    values, packed);
    }
    return largest;
}

/*
 * A divisor and its reciprocal, by which a quotient is as exact as a division's and takes a third of the
 * time: the first guess is off by a unit in the last place at most, and one step with its exact remainder
 * rounds it as a division does (Markstein 1990, https://doi.org/10.1147/rd.341.0111). Remainders are exact
 * only away from the ends of fp32's range.
 */
typedef struct {
    float value, reciprocal;
    int is_midrange;
} Divisor;

INLINE Divisor divisor_of(float value) {
    Divisor divisor = {value, 1.0f / value, value > 0x1p-60f && value < 0x1p60f && HAS_FMA};
    return divisor;
}

INLINE float quotient(float value, Divisor divisor) {
    float guess = value * divisor.reciprocal;
    return fmaf(fmaf(-guess, divisor.value, value), divisor.reciprocal, guess);
}

INLINE int8_t int8_code(float steps) {
    steps = rintf(steps);
    steps = steps < -128.0f ? -128.0f : steps;
    steps = steps > 127.0f ? 127.0f : steps;
    return (int8_t)(int32_t)steps;
}

#if HAS_AVX512
INLINE __m512 sixteen_elements(const void *line, int dtype, int64_t index) {
    if (dtype == FP32) return _mm512_loadu_ps((const float *)line + index);
    __m256i halves = _mm256_loadu_si256((const __m256i *)((const uint16_t *)line + index));
    if (dtype == FP16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* The conversion to integers rounds half-way numbers to even, that to bytes cuts: no quotient comes near 2^31. */
INLINE int64_t int8_vectors(const void *line, int dtype, int64_t count, Divisor divisor, int8_t *codes) {
    __m512 value = _mm512_set1_ps(divisor.value), reciprocal = _mm512_set1_ps(divisor.reciprocal);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m512 elements = sixteen_elements(line, dtype, i), guess = _mm512_mul_ps(elements, reciprocal);
        __m512 steps = _mm512_fmadd_ps(_mm512_fnmadd_ps(guess, value, elements), reciprocal, guess);
        _mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(steps)));
    }
    return i;
}
#else
INLINE int64_t int8_vectors(const void *line, int dtype, int64_t count, Divisor divisor, int8_t *codes) {
    (void)line, (void)dtype, (void)count, (void)divisor, (void)codes;
    return 0;
}
#endif

INLINE void int8_line(const void *line, int dtype, int64_t count, float value, int8_t *codes) {
    Divisor divisor = divisor_of(value);
    int64_t done = divisor.is_midrange ? int8_vectors(line, dtype, count, divisor, codes) : 0;
    if (divisor.is_midrange)
        for (int64_t i = done; i < count; i++) codes[i] = int8_code(quotient(element(line, dtype, i), divisor));
    else
        for (int64_t i = 0; i < count; i++) codes[i] = int8_code(element(line, dtype, i) / value);
}

INLINE uint32_t int8_grouped(const void *line, int dtype, int64_t groups, int64_t size, int8_t *codes, float *scales) {
    float values[PIECE];
    uint32_t largest = 0;
    for (int64_t group = 0; group < groups; group++) {
        uint32_t magnitude = block_magnitude(line, dtype, group * size, size, values);
        float scale = 2.0f * as_float(magnitude) / 254.0f, divisor = scale > 0.0f ? scale : 1.0f;
        scales[group] = scale;
        largest = larger(largest, magnitude);
        for (int64_t i = 0; i < size; i++)
            codes[group * size + i] =
                int8_code((size <= PIECE ? values[i] : element(line, dtype, group * size + i)) / divisor);
    }
    return largest;
}

/* LLM.int8 rounds its weights to fp16 first. Rows longer than a piece are read twice. */
INLINE void expand_as_fp16(const void *line, int dtype, int64_t start, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) values[i] = rounded_to_fp16(element(line, dtype, start + i));
}

INLINE uint32_t row_codes(const void *line, int dtype, int64_t start, int64_t columns, int8_t *codes, float *absmax) {
    float values[PIECE];
    uint32_t magnitude = 0;
    for (int64_t done = 0; done < columns; done += PIECE) {
        int64_t count = columns - done < PIECE ? columns - done : PIECE;
        expand_as_fp16(line, dtype, start + done, count, values);
        magnitude = larger(magnitude, largest_of(values, count));
    }
    *absmax = as_float(magnitude);
    if (magnitude >= INFINITY_BITS) return magnitude;
    /* torch divides a number by a tensor so, and bitsandbytes' codes come from torch. */
    float factor = magnitude > 0 ? 1.0f / *absmax * 127.0f : 0.0f;
    for (int64_t done = 0; done < columns; done += PIECE) {
        int64_t count = columns - done < PIECE ? columns - done : PIECE;
        expand_as_fp16(line, dtype, start + done, count, values);
        for (int64_t i = 0; i < count; i++) codes[start + done + i] = (int8_t)(int32_t)rintf(values[i] * factor);
    }
    return magnitude;
}

INLINE uint32_t int8_row_codes(const void *line, int dtype, int64_t rows, int64_t columns, int8_t *codes,
                               float *absmax) {
    uint32_t largest = 0;
    for (int64_t row = 0; row < rows; row++)
        largest = larger(largest, row_codes(line, dtype, row * columns, columns, codes, absmax + row));
    return largest;
}

/* Integers in the order of the numbers, 0 for 0, and back. */
INLINE int32_t ordered(float value) {
    int32_t bits = (int32_t)as_bits(value);
    return bits ^ ((bits >> 31) & (int32_t)MAGNITUDE);
}

INLINE float in_order(int32_t place) { return as_float((uint32_t)(place ^ ((place >> 31) & (int32_t)MAGNITUDE))); }

INLINE uint32_t int4_grouped(const void *line, int dtype, int64_t groups, int64_t size, uint8_t *packed,
                             uint16_t *scales, uint8_t *zero_points) {
    float values[PIECE];
    uint8_t codes[PIECE];
    uint32_t largest = 0;
    for (int64_t group = 0; group < groups; group++) {
        expand(line, dtype, group * size, size, values);
        largest = larger(largest, largest_of(values, size));
        int32_t lowest = 0, highest = 0;
        for (int64_t i = 0; i < size; i++) {
            int32_t place = ordered(values[i]);
            lowest = place < lowest ? place : lowest;
            highest = place > highest ? place : highest;
        }
        float low = in_order(lowest), high = in_order(highest);
        float step = (high - low) / 15.0f;
        uint16_t half = fp16_bits(step > 0x1p-24f ? step : 0x1p-24f);
        float scale = from_fp16(half), zero = rintf(-low / scale);
        zero = zero > 15.0f ? 15.0f : zero;
        scales[group] = half;
        zero_points[group] = (uint8_t)(int32_t)zero;
        for (int64_t i = 0; i < size; i++) {
            float code = rintf(values[i] / scale) + zero;
            code = code < 0.0f ? 0.0f : code;
            codes[i] = (uint8_t)(int32_t)(code > 15.0f ? 15.0f : code);
        }
        for (int64_t i = 0; i < size / 2; i++)
            packed[group * size / 2 + i] = (uint8_t)(codes[2 * i] << 4 | codes[2 * i + 1]);
    }
    return largest;
}

/* E4M3: bias 7, three bits of fraction; below 2^-6 the step is 2^-9, which is that of fp32 at 2^14. */
INLINE uint8_t e4m3_code(float value) {
    uint32_t bits = as_bits(value), sign = bits >> 24 & 0x80u;
    float magnitude = as_float(bits & MAGNITUDE);
    magnitude = magnitude > 448.0f ? 448.0f : magnitude;
    uint32_t rest = as_bits(magnitude);
    uint32_t normal = ((rest + 0x7ffff + ((rest >> 20) & 1)) >> 20) - (120u << 3);
    uint32_t small = as_bits(magnitude + 16384.0f) - as_bits(16384.0f);
    return (uint8_t)((magnitude < 0x1p-6f ? small : normal) | sign);
}

INLINE void e4m3_line(const void *line, int dtype, int64_t count, float divisor, uint8_t *codes) {
    for (int64_t i = 0; i < count; i++) codes[i] = e4m3_code(element(line, dtype, i) / divisor);
}

/* Of 16 bits as of 32: without their sign numbers are ordered as integers, and half as wide are twice as many at once. */
INLINE uint32_t line_magnitude_of_halves(const uint16_t *line, int dtype, int64_t count) {
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = line[i] & 0x7fff;
        largest = bits > largest ? bits : largest;
    }
    return as_bits(element(&largest, dtype, 0));
}

INLINE uint32_t line_magnitude(const void *line, int dtype, int64_t count) {
    if (dtype != FP32) return line_magnitude_of_halves(line, dtype, count);
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(as_bits(element(line, dtype, i)) & MAGNITUDE);
        largest = bits > largest ? bits : largest;
    }
    return (uint32_t)largest;
}

INLINE uint32_t e4m3_row_codes(const void *line, int dtype, int64_t rows, int64_t columns, uint8_t *codes,
                               float *scales) {
    size_t element_bytes = dtype == FP32 ? 4 : 2;
    uint32_t largest = 0;
    for (int64_t row = 0; row < rows; row++) {
        const void *start = (const char *)line + (size_t)(row * columns) * element_bytes;
        uint32_t magnitude = line_magnitude(start, dtype, columns);
        float scale = as_float(magnitude) / 448.0f;
        scales[row] = scale;
        largest = larger(largest, magnitude);
        if (magnitude < INFINITY_BITS)
            e4m3_line(start, dtype, columns, scale > 0.0f ? scale : 1.0f, codes + row * columns);
    }
    return largest;
}

/* Sums in fp32 over a piece, sixteen lanes each, and in fp64 over the pieces. */
INLINE void piece_error(const float *values, const float *restored, float *signal, float *error, int32_t *largest) {
    for (int64_t i = 0; i < PIECE; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float value = values[i + lane], difference = restored[i + lane] - value;
            int32_t bits = (int32_t)(as_bits(difference) & MAGNITUDE);
            signal[lane] += value * value;
            error[lane] += difference * difference;
            largest[lane] = bits > largest[lane] ? bits : largest[lane];
        }
}

INLINE void line_error(const void *line, int dtype, const float *restored, int64_t count, double *sums) {
    int32_t largest[LANES] = {0};
    sums[0] = sums[1] = sums[2] = 0.0;
    for (int64_t done = 0; done < count; done += PIECE) {
        float values[PIECE] = {0}, rest[PIECE] = {0}, signal[LANES] = {0}, error[LANES] = {0};
        int64_t in_piece = count - done < PIECE ? count - done : PIECE;
        expand(line, dtype, done, in_piece, values);
        if (in_piece < PIECE) memcpy(rest, restored + done, (size_t)in_piece * sizeof *rest);
        piece_error(values, in_piece < PIECE ? rest : restored + done, signal, error, largest);
        for (int lane = 0; lane < LANES; lane++) {
            sums[0] += signal[lane];
            sums[1] += error[lane];
        }
    }
    for (int lane = 0; lane < LANES; lane++) {
        double magnitude = as_float((uint32_t)largest[lane]);
        sums[2] = magnitude > sums[2] ? magnitude : sums[2];
    }
}

/* A call for each dtype, so that the compiler makes a loop for each. */
#define BY_DTYPE(call_of)                     \
    switch (dtype) {                          \
        case BF16: return call_of(BF16);      \
        case FP16: return call_of(FP16);      \
        default: return call_of(FP32);        \
    }

uint32_t quantize_blocks(const void *line, int dtype, int64_t blocks, int64_t size, const float *thresholds,
                         const uint8_t *codes, uint8_t *packed, float *absmax) {
    Book book = book_of(thresholds, codes);
#define CALL(kind) scaled_blocks(line, kind, blocks, size, &book, packed, absmax)
    BY_DTYPE(CALL)
#undef CALL
}

uint32_t quantize_microscaled(const void *line, int dtype, int64_t groups, int64_t size, const float *thresholds,
                              const uint8_t *codes, uint8_t *packed, uint8_t *exponents) {
    Book book = book_of(thresholds, codes);
#define CALL(kind) microscaled_groups(line, kind, groups, size, &book, packed, exponents)
    BY_DTYPE(CALL)
#undef CALL
}

uint32_t quantize_int8_groups(const void *line, int dtype, int64_t groups, int64_t size, int8_t *codes,
                              float *scales) {
#define CALL(kind) int8_grouped(line, kind, groups, size, codes, scales)
    BY_DTYPE(CALL)
#undef CALL
}

uint32_t quantize_int8_rows(const void *line, int dtype, int64_t rows, int64_t columns, int8_t *codes,
                            float *absmax) {
#define CALL(kind) int8_row_codes(line, kind, rows, columns, codes, absmax)
    BY_DTYPE(CALL)
#undef CALL
}

uint32_t quantize_int4_groups(const void *line, int dtype, int64_t groups, int64_t size, uint8_t *packed,
                              uint16_t *scales, uint8_t *zero_points) {
#define CALL(kind) int4_grouped(line, kind, groups, size, packed, scales, zero_points)
    BY_DTYPE(CALL)
#undef CALL
}

uint32_t largest_magnitude(const void *line, int dtype, int64_t count) {
#define CALL(kind) line_magnitude(line, kind, count)
    BY_DTYPE(CALL)
#undef CALL
}

void quantize_int8(const void *line, int dtype, int64_t count, float divisor, int8_t *codes) {
#define CALL(kind) int8_line(line, kind, count, divisor, codes)
    BY_DTYPE(CALL)
#undef CALL
}

void quantize_e4m3(const void *line, int dtype, int64_t count, float divisor, uint8_t *codes) {
#define CALL(kind) e4m3_line(line, kind, count, divisor, codes)
    BY_DTYPE(CALL)
#undef CALL
}

uint32_t quantize_e4m3_rows(const void *line, int dtype, int64_t rows, int64_t columns, uint8_t *codes,
                            float *scales) {
#define CALL(kind) e4m3_row_codes(line, kind, rows, columns, codes, scales)
    BY_DTYPE(CALL)
#undef CALL
}

void sum_errors(const void *line, int dtype, const float *restored, int64_t count, double *sums) {
#define CALL(kind) line_error(line, kind, restored, count, sums)
    BY_DTYPE(CALL)
#undef CALL
}

/*
 * Scales less their mean as 8-bit codes, by bitsandbytes' table of 65,536 bins from -1 to 1; a block of zeros
 * has code 0.
 */
void quantize_scales(const float *centred, int64_t count, int64_t size, const uint8_t *code_of_bin, uint8_t *codes,
                     float *nested) {
    for (int64_t start = 0; start < count; start += size) {
        int64_t in_block = count - start < size ? count - start : size;
        float largest = as_float(largest_of(centred + start, in_block));
        float factor = largest > 0.0f ? 1.0f / largest : 0.0f;
        nested[start / size] = largest;
        for (int64_t i = start; i < start + in_block; i++) {
            float scaled = centred[i] * factor;
            scaled = scaled < -1.0f ? -1.0f : scaled;
            scaled = scaled > 1.0f ? 1.0f : scaled;
            int32_t bin = (int32_t)((scaled + 1.0f) * 0.5f * 65535.0f + 0.5f);
            codes[i] = largest > 0.0f ? code_of_bin[bin > 65535 ? 65535 : bin] : 0;
        }
    }
}

/* Two values a byte, times their block's scale; `pairs` are the two values of every byte. */
void restore_blocks(const uint8_t *packed, int64_t blocks, int64_t size, const float *pairs, const float *scales,
                    float *restored) {
    for (int64_t block = 0; block < blocks; block++) {
        float *values = restored + block * size;
        for (int64_t i = 0; i < size / 2; i++)
            memcpy(values + 2 * i, pairs + 2 * packed[block * size / 2 + i], 2 * sizeof *values);
        for (int64_t i = 0; i < size; i++) values[i] *= scales[block];
    }
}
