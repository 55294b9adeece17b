// Products of a few rows by a stored weight. Verifying a draft costs what reading the weights costs only if the weight
// is read once, for all rows, as fast as the memory gives it; libraries pack such products, or read the weight again.
//
// A thread walks through its rows of the weight in tiles: the rows of a tile side by side, each value multiplied by all
// rows of x in registers, while the next tiles are fetched (hardware alone begins anew at every 4 KiB). The sum of an
// entry of y has one order whatever the tile is, so passes over 1 and over 8 rows agree to the last bit.
//
// All products of SmolLM2-135M (538 MB, two cores with AVX-512, 2026-12-01), ms for 1 / 3 / 4 / 6 / 8 rows: 18.1 / 19.8 /
// 19.5 / 20.7 / 23.0; with one tile fetched 18.1 / 22.8 / 21.1 / 22.6 / 25.5; MKL 19.7 / 24.3 / 37.3 / - / -; adding up
// the weights takes 22. Panels handed to whichever thread is free, and x laid out for the tile, gained nothing.

#include "tensors.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace {

using Words = at::vec::Vectorized<int32_t>;
static_assert(Words::size() == LANES, "a word for each sum");
constexpr int64_t MOST_DIMS = 8;
constexpr int MOST_ROWS = 8;   // of x at a time; with more their sums do not fit the registers
constexpr int MOST_WIDE = 8;   // rows of the weight in a tile
constexpr int64_t PANEL = 48;  // rows of the weight that a cache keeps for the next 8 rows of x

// Rows of the weight in a tile beside `rows` of x: their sums take three quarters of the registers.
constexpr int wide(int rows) { return std::clamp(REGISTERS * 3 / 4 / rows, 1, MOST_WIDE); }

template <int ROWS, int WIDE>
using Sums = Floats[ROWS][WIDE];

// A weight in float32, `[out, size]`.
struct Whole {
  const float* weight;
  int64_t size;

  int64_t length() const { return size; }
  float factor(int64_t) const { return 1.f; }

  // Adds the products of `count` columns from the k-th on to the sums of the tile's rows.
  template <int ROWS, int WIDE>
  void add(Sums<ROWS, WIDE>& sums, const float* x, int64_t first, int64_t k, int64_t count) const {
    const float* w = weight + first * size;
    Floats read[WIDE];
    for (int n = 0; n < WIDE; n++) {
      __builtin_prefetch(w + (WIDE + n) * size + k);
      __builtin_prefetch(w + (2 * WIDE + n) * size + k, 0, 2);  // to the second cache
      read[n] = Floats::loadu(w + n * size + k, count);
    }
    for (int m = 0; m < ROWS; m++) {
      const Floats value = Floats::loadu(x + m * size + k, count);
      for (int n = 0; n < WIDE; n++) sums[m][n] = at::vec::fmadd(value, read[n], sums[m][n]);
    }
  }
};

// A weight in levels of few bits, as `specc::dequantise` takes it: words of a row hold `RUNS` runs of its columns.
template <int BITS>
struct Levels {
  static constexpr int RUNS = 32 / BITS;
  const int32_t* words;
  const float* scale;
  int64_t part;    // words of a row
  int64_t groups;  // factors of a row: 1, or one for each run

  int64_t length() const { return part; }
  float factor(int64_t row) const { return groups > 1 ? 1.f : scale[row]; }

  template <int ROWS, int WIDE>
  void add(Sums<ROWS, WIDE>& sums, const float* x, int64_t first, int64_t k, int64_t count) const {
    const int32_t* w = words + first * part;
    Words read[WIDE];
    for (int n = 0; n < WIDE; n++) {
      __builtin_prefetch(w + (WIDE + n) * part + k);
      read[n] = Words::loadu(w + n * part + k, count);
    }
    for (int run = 0; run < RUNS; run++) {
      Floats values[WIDE];
      for (int n = 0; n < WIDE; n++) {
        values[n] = at::vec::convert<float>((read[n] << Words(32 - BITS * (run + 1))) >> Words(32 - BITS));
        if (groups > 1) values[n] = values[n] * Floats(scale[(first + n) * groups + run]);
      }
      for (int m = 0; m < ROWS; m++) {
        const Floats value = Floats::loadu(x + (m * RUNS + run) * part + k, count);
        for (int n = 0; n < WIDE; n++) sums[m][n] = at::vec::fmadd(value, values[n], sums[m][n]);
      }
    }
  }
};

template <int ROWS, int WIDE, class Weight>
inline void tile(const Weight& weight, const float* x, float* y, int64_t out, int64_t first) {
  Sums<ROWS, WIDE> sums;
  for (auto& row : sums) std::fill(row, row + WIDE, Floats(0.f));
  const int64_t length = weight.length();
  int64_t k = 0;
  for (; k + LANES <= length; k += LANES) weight.template add<ROWS, WIDE>(sums, x, first, k, LANES);
  if (k < length) weight.template add<ROWS, WIDE>(sums, x, first, k, length - k);
  for (int m = 0; m < ROWS; m++)
    for (int n = 0; n < WIDE; n++) y[m * out + first + n] = total(sums[m][n]) * weight.factor(first + n);
}

template <int ROWS, class Weight>
void walk(const Weight& weight, const float* x, float* y, int64_t out, int64_t from, int64_t to) {
  for (; from + wide(ROWS) <= to; from += wide(ROWS)) tile<ROWS, wide(ROWS)>(weight, x, y, out, from);
  for (; from < to; from++) tile<ROWS, 1>(weight, x, y, out, from);
}

template <class Weight>
void walk(const Weight& weight, const float* x, float* y, int64_t rows, int64_t out, int64_t from, int64_t to) {
  switch (rows) {
    case 1: return walk<1>(weight, x, y, out, from, to);
    case 2: return walk<2>(weight, x, y, out, from, to);
    case 3: return walk<3>(weight, x, y, out, from, to);
    case 4: return walk<4>(weight, x, y, out, from, to);
    case 5: return walk<5>(weight, x, y, out, from, to);
    case 6: return walk<6>(weight, x, y, out, from, to);
    case 7: return walk<7>(weight, x, y, out, from, to);
    default: return walk<MOST_ROWS>(weight, x, y, out, from, to);
  }
}

// `y: f32[rows, out]` from `x: f32[rows, size]`, over all threads.
template <class Weight>
void product(const Weight& weight, const float* x, float* y, int64_t rows, int64_t out, int64_t size) {
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t blocks = (out + MOST_WIDE - 1) / MOST_WIDE;
    const int64_t end = std::min(out, blocks * (thread + 1) / threads * MOST_WIDE);
    const int64_t panel = rows > MOST_ROWS ? PANEL : out;
    for (int64_t from = blocks * thread / threads * MOST_WIDE; from < end; from += panel)
      for (int64_t row = 0; row < rows; row += MOST_ROWS)
        walk(weight, x + row * size, y + row * out, std::min<int64_t>(rows - row, MOST_ROWS), out, from,
             std::min(end, from + panel));
  }
}

// A new tensor shaped as x, but for `out` in its last dimension, and the rows of it.
struct Made {
  float* data = nullptr;
  int64_t rows = 1;

  Made(const Given<float>& x, int64_t out, AtenTensorHandle* y) {
    int64_t shape[MOST_DIMS], strides[MOST_DIMS], stride = 1;
    for (int64_t d = x.dims - 1; d >= 0; stride *= shape[d--]) {
      shape[d] = d == x.dims - 1 ? out : x.shape[d];
      strides[d] = stride;
      rows *= d == x.dims - 1 ? 1 : shape[d];
    }
    void* pointer = nullptr;
    if (aoti_torch_empty_strided(x.dims, shape, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, y) ||
        aoti_torch_get_data_ptr(*y, &pointer))
      return;
    data = static_cast<float*>(pointer);
  }
};

}  // namespace

extern "C" {

// `specc::skinny_linear`, as AOTInductor calls it.
AOTITorchError aoti_torch_cpu_skinny_linear(AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* y) {
  const Given<float> rows(x, aoti_torch_dtype_float32(), 1, MOST_DIMS);
  const Given<float> stored(weight, aoti_torch_dtype_float32(), 2, 2);
  if (!rows.data || !stored.data || rows.shape[rows.dims - 1] != stored.shape[1]) return AOTI_TORCH_FAILURE;
  const Made made(rows, stored.shape[0], y);
  if (!made.data) return AOTI_TORCH_FAILURE;
  product(Whole{stored.data, stored.shape[1]}, rows.data, made.data, made.rows, stored.shape[0], stored.shape[1]);
  return AOTI_TORCH_SUCCESS;
}

// `specc::levels_linear`, likewise.
AOTITorchError aoti_torch_cpu_levels_linear(AtenTensorHandle x, AtenTensorHandle levels, AtenTensorHandle scale,
                                            int64_t bits, AtenTensorHandle* y) {
  const Given<float> rows(x, aoti_torch_dtype_float32(), 1, MOST_DIMS);
  const Given<float> factors(scale, aoti_torch_dtype_float32(), 2, 2);
  const Given<int32_t> words(levels, aoti_torch_dtype_int32(), 2, 2);
  if (!rows.data || !factors.data || !words.data || (bits != 8 && bits != 4)) return AOTI_TORCH_FAILURE;
  const int64_t out = words.shape[0], part = words.shape[1], size = part * (32 / bits);
  const int64_t groups = factors.shape[1];
  if (rows.shape[rows.dims - 1] != size || factors.shape[0] != out || (groups != 1 && groups != 32 / bits))
    return AOTI_TORCH_FAILURE;
  const Made made(rows, out, y);
  if (!made.data) return AOTI_TORCH_FAILURE;
  if (bits == 8)
    product(Levels<8>{words.data, factors.data, part, groups}, rows.data, made.data, made.rows, out, size);
  else
    product(Levels<4>{words.data, factors.data, part, groups}, rows.data, made.data, made.rows, out, size);
  return AOTI_TORCH_SUCCESS;
}

// The same without tensors, to be timed.
void specc_skinny_linear(const float* x, const float* weight, float* y, int64_t rows, int64_t out, int64_t size) {
  product(Whole{weight, size}, x, y, rows, out, size);
}

void specc_levels_linear(const float* x, const int32_t* levels, const float* scale, float* y, int64_t rows, int64_t out,
                         int64_t size, int64_t bits, int64_t groups) {
  const int64_t part = size * bits / 32;
  if (bits == 8)
    product(Levels<8>{levels, scale, part, groups}, x, y, rows, out, size);
  else
    product(Levels<4>{levels, scale, part, groups}, x, y, rows, out, size);
}

}  // extern "C"
