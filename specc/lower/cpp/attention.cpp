// Attention of a few query rows over cached slots and over rows of the step that stand in no cache yet.
//
// The query rows that share keys are taken together, a thread's share of them at a time. Keys are turned by blocks, so
// that a lane is a slot and no sum crosses lanes. What a query sees of the step's rows is put behind the slots, as if
// it were cached: a token's numbers come out the same to the last bit whether its predecessors are cached or drafted in
// this step, and whatever other rows there are.
//
// One layer of SmolLM2-135M (9 heads, 3 of keys; 30 layers in turn, two cores with AVX-512, 2026-12-01), us for 1, 5 and
// 8 rows: 34, 75, 104 behind 500 slots, 99, 234, 316 behind 1,500; without prefetch 35, 80, 112 and 134, 278, 356.

#include "tensors.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

namespace {

constexpr int64_t BLOCK = 2 * LANES;         // slots whose keys are turned together
constexpr int SCORED = REGISTERS / 4;        // query rows scored together, beside BLOCK sums each
constexpr int MIXED = REGISTERS == 32 ? 6 : 4;  // query rows whose values are mixed together, VECTORS sums each
constexpr int VECTORS = REGISTERS / 8;
constexpr int64_t AHEAD = 2 * BLOCK;  // slots fetched before their turn
constexpr float FAR = -std::numeric_limits<float>::infinity();

// `[B, heads, rows, size]` in float32 with rows that are contiguous, wherever each begins.
struct Rows {
  const float* data = nullptr;
  int64_t *shape = nullptr, *strides = nullptr;

  explicit Rows(AtenTensorHandle tensor) {
    int32_t dtype = -1;
    int64_t dims = 0;
    void* pointer = nullptr;
    if (aoti_torch_get_dtype(tensor, &dtype) || dtype != aoti_torch_dtype_float32() ||
        aoti_torch_get_dim(tensor, &dims) || dims != 4 || aoti_torch_get_sizes(tensor, &shape) ||
        aoti_torch_get_strides(tensor, &strides) || (shape[3] != 1 && strides[3] != 1) ||
        aoti_torch_get_data_ptr(tensor, &pointer))
      return;
    data = static_cast<const float*>(pointer);
  }

  bool is(int64_t batch, int64_t heads, int64_t rows, int64_t size) const {
    return data && shape[0] == batch && shape[1] == heads && shape[2] == rows && shape[3] == size;
  }
  const float* at(int64_t b, int64_t head, int64_t row = 0) const {
    return data + b * strides[0] + head * strides[1] + row * strides[2];
  }
};

struct Attention {
  Rows q, cache_k, cache_v, rows_k, rows_v;
  const int64_t* lengths;
  const bool* mask;
  int64_t mask_batches, slots;  // `mask` is one for all rows of the batch, or one for each
  float scale;
  int64_t window;  // 0: none
  float softcap;   // 0: none
  const int64_t* positions;
  const float* sinks;
  float* out;  // `[B, T, H, Dv]`
  int64_t batch, heads, groups, queries, size, values, rows, share;

  bool sees(int64_t b, int64_t t, int64_t row) const {
    return mask[((mask_batches > 1 ? b : 0) * queries + t) * rows + row];
  }
  bool is_near(int64_t b, int64_t t, int64_t row) const {
    if (!window) return true;
    const int64_t* at = positions + b * rows;
    return at[rows - queries + t] - at[row] < window;
  }
  // The first slot that a query sees; those before `lengths[b]` it sees from there on.
  int64_t first(int64_t b, int64_t t) const {
    return window ? std::max<int64_t>(0, positions[b * rows + rows - queries + t] - window + 1) : 0;
  }
};

// Memory that grows and is not cleared.
struct Buffer {
  std::unique_ptr<float[]> held;
  int64_t size = 0;

  float* of(int64_t wanted) {
    if (wanted > size) held.reset(new float[wanted]), size = wanted;
    return held.get();
  }
};

// A thread's memory: scores of its query rows, turned keys, and which of the step's rows each query row sees.
struct Scratch {
  Buffer scores, fresh, turned, sums;
  std::vector<int64_t> seen, first_seen;
};

// `turned[d * BLOCK + k] = keys[k * stride + d]` for k < BLOCK, while later keys are fetched if there are `more`. Flat,
// for tiles of a known size want to be registers.
[[gnu::flatten]] inline void turn_block(const float* keys, int64_t stride, float* turned, int64_t size, bool more) {
  for (int64_t k = 0; k < BLOCK; k += LANES) {
    int64_t d = 0;
    for (; d + LANES <= size; d += LANES) {
      if (more)
        for (int64_t lane = 0; lane < LANES; lane++) __builtin_prefetch(keys + (k + lane + AHEAD) * stride + d);
      at::vec::transpose_mxn<float, LANES, LANES>(keys + k * stride + d, stride, turned + d * BLOCK + k, BLOCK);
    }
    for (; d < size; d++)
      for (int64_t lane = 0; lane < LANES; lane++) turned[d * BLOCK + k + lane] = keys[(k + lane) * stride + d];
  }
}

// Calls `tile` with `rows` as a constant of at most MOST.
template <int MOST, class Tile>
inline void with_rows(int64_t rows, const Tile& tile) {
  if (rows == MOST)
    tile(std::integral_constant<int, MOST>{});
  else if constexpr (MOST > 1)
    with_rows<MOST - 1>(rows, tile);
}

// Splits query rows into tiles of at most MOST that are as equal as can be.
template <int MOST, class Tile>
inline void tiled(int64_t from, int64_t to, const Tile& tile) {
  for (int64_t row = from; row < to;) {
    const int64_t left = to - row, tiles = (left + MOST - 1) / MOST, rows = (left + tiles - 1) / tiles;
    with_rows<MOST>(rows, [&](auto constant) { tile(constant, row); });
    row += rows;
  }
}

// The query rows `from` to `to` of the group's `share * T`.
struct Run {
  const Attention& a;
  int64_t b, group, from, to;
  Scratch& s;

  int64_t head(int64_t row) const { return group * a.share + row / a.queries; }
  int64_t query(int64_t row) const { return row % a.queries; }

  template <int ROWS>
  void score_tile(int64_t row, float* scores, int64_t width) const {
    Floats sums[ROWS][2];
    const float* q[ROWS];
    for (int m = 0; m < ROWS; m++) {
      sums[m][0] = sums[m][1] = Floats(0.f);
      q[m] = a.q.at(b, head(row + m), query(row + m));
    }
    for (int64_t d = 0; d < a.size; d++) {
      const Floats near = Floats::loadu(s.turned.held.get() + d * BLOCK);
      const Floats next = Floats::loadu(s.turned.held.get() + d * BLOCK + LANES);
      for (int m = 0; m < ROWS; m++) {
        const Floats value(q[m][d]);
        sums[m][0] = at::vec::fmadd(value, near, sums[m][0]);
        sums[m][1] = at::vec::fmadd(value, next, sums[m][1]);
      }
    }
    for (int m = 0; m < ROWS; m++)
      for (int half = 0; half < 2; half++) {
        Floats score = sums[m][half] * Floats(a.scale);
        if (a.softcap != 0) score = (score / Floats(a.softcap)).tanh() * Floats(a.softcap);
        score.store(scores + (row + m - from) * width + half * LANES);
      }
  }

  // Scores of `count` keys, `stride` apart, at `scores[row * width ...]` of every query row.
  void score(const float* keys, int64_t stride, int64_t count, float* scores, int64_t width) const {
    float* turned = s.turned.of(a.size * BLOCK);
    for (int64_t k = 0; k < count; k += BLOCK) {
      if (k + BLOCK <= count)
        turn_block(keys + k * stride, stride, turned, a.size, k + BLOCK + AHEAD <= count);
      else
        at::vec::transpose_mxn<float>(keys + k * stride, stride, turned, BLOCK, count - k, a.size);
      tiled<SCORED>(from, to, [&](auto rows, int64_t row) { score_tile<rows()>(row, scores + k, width); });
    }
  }

  // Makes weights of the `count` scores of a row, and gives their sum.
  float soften(float* scores, int64_t count, const float* sink) const {
    Floats most(FAR), sums(0.f);
    for (int64_t i = 0; i < count; i += LANES) {
      const int64_t taken = std::min(LANES, count - i);
      most = at::vec::maximum(most, Floats::set(Floats(FAR), Floats::loadu(scores + i, taken), taken));
    }
    float top = at::vec::vec_reduce_all<float>([](auto x, auto y) { return at::vec::maximum(x, y); }, most);
    if (sink) top = std::max(top, *sink);
    for (int64_t i = 0; i < count; i += LANES) {
      const int64_t taken = std::min(LANES, count - i);
      const Floats weight = (Floats::loadu(scores + i, taken) - Floats(top)).exp();
      weight.store(scores + i, taken);
      sums = sums + Floats::set(Floats(0.f), weight, taken);
    }
    return total(sums) + (sink ? std::exp(*sink - top) : 0.f);
  }

  // `count` columns from `column` on of the values, mixed by the weights of ROWS query rows.
  template <int ROWS, int VECS>
  void mix_tile(int64_t row, int64_t start, int64_t length, int64_t width, int64_t column, int64_t count) const {
    Floats mixed[ROWS][VECS];
    const float* weights[ROWS];
    for (int m = 0; m < ROWS; m++) {
      std::fill(mixed[m], mixed[m] + VECS, Floats(0.f));
      weights[m] = s.scores.held.get() + (row + m - from) * width;
    }
    const float* values = a.cache_v.at(b, group) + column;
    const int64_t stride = a.cache_v.strides[2];
    for (int64_t slot = start; slot < length; slot++) {
      Floats value[VECS];
      if (slot + AHEAD < length)
        for (int n = 0; n < VECS; n++) __builtin_prefetch(values + (slot + AHEAD) * stride + n * LANES);
      for (int n = 0; n < VECS; n++) value[n] = Floats::loadu(values + slot * stride + n * LANES, count);
      for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < VECS; n++)
          mixed[m][n] = at::vec::fmadd(Floats(weights[m][slot - start]), value[n], mixed[m][n]);
    }
    for (int m = 0; m < ROWS; m++) {
      const int64_t place = row + m - from;
      for (int64_t i = s.first_seen[place]; i < s.first_seen[place + 1]; i++) {
        const float* fresh = a.rows_v.at(b, group, s.seen[i]) + column;
        const Floats weight(weights[m][length - start + i - s.first_seen[place]]);
        for (int n = 0; n < VECS; n++)
          mixed[m][n] = at::vec::fmadd(weight, Floats::loadu(fresh + n * LANES, count), mixed[m][n]);
      }
      float* out = a.out + ((b * a.queries + query(row + m)) * a.heads + head(row + m)) * a.values + column;
      for (int n = 0; n < VECS; n++) (mixed[m][n] / Floats(s.sums.held[place])).store(out + n * LANES, count);
    }
  }

  template <int ROWS>
  void mix(int64_t row, int64_t start, int64_t length, int64_t width) const {
    int64_t column = 0;
    for (; column + VECTORS * LANES <= a.values; column += VECTORS * LANES)
      mix_tile<ROWS, VECTORS>(row, start, length, width, column, LANES);
    for (; column < a.values; column += LANES)
      mix_tile<ROWS, 1>(row, start, length, width, column, std::min(LANES, a.values - column));
  }

  void operator()() const {
    const int64_t length = std::clamp<int64_t>(a.lengths[b], 0, a.slots), count = to - from;
    int64_t start = length / BLOCK * BLOCK;  // lanes of a slot are the same, wherever a run starts
    for (int64_t row = from; row < to; row++) start = std::min(start, a.first(b, query(row)) / BLOCK * BLOCK);
    const int64_t fresh_width = (a.rows + BLOCK - 1) / BLOCK * BLOCK;
    const int64_t width = (length - start + BLOCK - 1) / BLOCK * BLOCK + fresh_width;
    float *all = s.scores.of(count * width), *fresh = s.fresh.of(count * fresh_width), *sums = s.sums.of(count);
    s.first_seen.assign(1, 0);
    s.seen.clear();
    score(a.cache_k.at(b, group, start), a.cache_k.strides[2], length - start, all, width);
    score(a.rows_k.at(b, group), a.rows_k.strides[2], a.rows, fresh, fresh_width);
    for (int64_t row = from; row < to; row++) {
      const int64_t place = row - from, t = query(row);
      float *scores = all + place * width, *behind = scores + length - start;
      std::fill(scores, scores + std::min(a.first(b, t), length) - start, FAR);
      for (int64_t other = 0; other < a.rows; other++)
        if (a.sees(b, t, other)) {  // what the window hides keeps its place, as it would in the cache
          *behind++ = a.is_near(b, t, other) ? fresh[place * fresh_width + other] : FAR;
          s.seen.push_back(other);
        }
      s.first_seen.push_back(s.seen.size());
      sums[place] = soften(scores, behind - scores, a.sinks ? a.sinks + head(row) : nullptr);
    }
    tiled<MIXED>(from, to, [&](auto rows, int64_t row) { mix<rows()>(row, start, length, width); });
  }
};

// All query rows, in equal shares of them to the threads; false where there was no memory.
bool attend(const Attention& a) {
  std::atomic<bool> failed{false};
#pragma omp parallel
  try {
    Scratch scratch;
    const int64_t all = a.batch * a.heads * a.queries, together = a.share * a.queries;
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t end = all * (thread + 1) / threads;
    for (int64_t from = all * thread / threads; from < end;) {
      const int64_t set = from / together, first = set * together, to = std::min(end, first + together);
      Run{a, set / a.groups, set % a.groups, from - first, to - first, scratch}();
      from = to;
    }
  } catch (const std::exception&) {
    failed = true;
  }
  return !failed;
}

}  // namespace

extern "C" {

// `specc::cached_attention`, as AOTInductor calls it.
AOTITorchError aoti_torch_cpu_cached_attention(AtenTensorHandle q, AtenTensorHandle cache_k, AtenTensorHandle cache_v,
                                               AtenTensorHandle rows_k, AtenTensorHandle rows_v,
                                               AtenTensorHandle length, AtenTensorHandle mask, AtenTensorHandle bucket,
                                               double scale, int64_t* window, double* softcap,
                                               AtenTensorHandle* positions, AtenTensorHandle* sinks,
                                               AtenTensorHandle* out) {
  Attention a{Rows(q), Rows(cache_k), Rows(cache_v), Rows(rows_k), Rows(rows_v)};
  const Given<int64_t> lengths(length, aoti_torch_dtype_int64(), 1, 1);
  const Given<bool> seen(mask, aoti_torch_dtype_bool(), 3, 3);
  const Given<uint8_t> read(bucket, aoti_torch_dtype_uint8(), 1, 1);
  if (!a.q.data || !a.cache_k.data || !a.cache_v.data || !a.rows_k.data || !a.rows_v.data || !lengths.data ||
      !seen.data || read.dims != 1)
    return AOTI_TORCH_FAILURE;
  a.batch = a.q.shape[0], a.heads = a.q.shape[1], a.queries = a.q.shape[2], a.size = a.q.shape[3];
  a.groups = a.rows_k.shape[1], a.rows = a.rows_k.shape[2], a.values = a.rows_v.shape[3];
  const int64_t slots = a.cache_k.shape[2];
  if (!a.groups || a.heads % a.groups || a.queries > a.rows || !a.rows_k.is(a.batch, a.groups, a.rows, a.size) ||
      !a.rows_v.is(a.batch, a.groups, a.rows, a.values) || !a.cache_k.is(a.batch, a.groups, slots, a.size) ||
      !a.cache_v.is(a.batch, a.groups, slots, a.values) || lengths.shape[0] != a.batch ||
      (seen.shape[0] != 1 && seen.shape[0] != a.batch) || seen.shape[1] != a.queries || seen.shape[2] != a.rows)
    return AOTI_TORCH_FAILURE;
  a.share = a.heads / a.groups;
  a.lengths = lengths.data, a.mask = seen.data, a.mask_batches = seen.shape[0];
  a.slots = std::min(slots, read.shape[0]);
  a.scale = scale, a.window = window ? *window : 0, a.softcap = softcap ? *softcap : 0;
  if (window) {
    if (!positions) return AOTI_TORCH_FAILURE;
    const Given<int64_t> given(*positions, aoti_torch_dtype_int64(), 2, 2);
    if (!given.data || given.shape[0] != a.batch || given.shape[1] != a.rows) return AOTI_TORCH_FAILURE;
    a.positions = given.data;
  }
  if (sinks) {
    const Given<float> given(*sinks, aoti_torch_dtype_float32(), 1, 1);
    if (!given.data || given.shape[0] != a.heads) return AOTI_TORCH_FAILURE;
    a.sinks = given.data;
  }
  const int64_t shape[] = {a.batch, a.heads, a.queries, a.values};
  const int64_t strides[] = {a.queries * a.heads * a.values, a.values, a.heads * a.values, 1};
  void* pointer = nullptr;
  if (aoti_torch_empty_strided(4, shape, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, out) ||
      aoti_torch_get_data_ptr(*out, &pointer))
    return AOTI_TORCH_FAILURE;
  a.out = static_cast<float*>(pointer);
  return attend(a) ? AOTI_TORCH_SUCCESS : AOTI_TORCH_FAILURE;
}

}  // extern "C"
