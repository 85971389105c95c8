// Attention of a block written once over Lanes. Included by attention_avx2.cc and
// attention_avx512.cc, each after its lanes_*.h.
//
// A tile of K and V is converted to f32 once and used by every query of the block; a block of few
// queries (decode) reads 16-bit tiles as they are instead. Queries are taken a few at a
// time so that a loaded row of K or V serves several; each query's sums keep the order
// that attention_reference.cc has. Loops over registers are unrolled by pragma: GCC at
// -O2 would keep the registers in memory.
#pragma once

#include "headrace/kernel/attention_block.h"
#include "headrace/kernel/kv_codec.h"
#include "headrace/kernel/lanes_math.h"

namespace headrace {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// What K and V are read as: float, f16 bits or bf16 bits.
struct Half {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
inline Lanes load_row(const float* p) { return Lanes::load(p); }
inline Lanes load_row(const Half* p) { return Lanes::load_f16(p, Full{}); }
inline Lanes load_row(const Bf16* p) { return Lanes::load_bf16(p, Full{}); }

// Asks the memory for `count` elements that are needed soon: of tiles in 16 bits, those in f32 are in
// the cache.
template <typename T, int64_t count>
inline void fetch(const char* at, int64_t element) {
  if constexpr (sizeof(T) == 2) {
#pragma GCC unroll 16
    for (int64_t b = 0; b < 2 * count; b += kLine) __builtin_prefetch(at + 2 * element + b);
  }
}

struct Attend {
  const AttentionShape& shape;
  const AttentionBlock& block;
  const int64_t d;  // padded head_dim
  const int64_t queries;
  float* k;    // [64][d]
  float* v;    // [64][d]
  float* q;    // [queries][d]
  float* acc;  // [queries][d]
  float* p;    // [queries][64]: scores, then their exponentials
  float* max;  // [queries]
  float* sum;  // [queries]
  // Bytes from the tile to the one that comes next: another kv head's lie between, so the processor
  // does not see it coming. Decoding takes twice as long without.
  std::ptrdiff_t to_next = 0;

  Attend(const AttentionShape& s, const AttentionBlock& b);

  TileRange seen_by(int64_t query, int64_t tile) const {
    return visible_in_tile(shape, block.position + query / block.heads, tile);
  }
  void load_queries(bool rotated);
  void load_state();
  template <typename T>
  void load_tile(const T* k_tile, const T* v_tile, TileRange range);
  // Of a tile in 16 bits.
  template <typename T>
  void add_tile(int64_t tile, const void* k_tile);
  void add_sealed(int64_t tile);
  void add_own();
  // The queries that see some of the tile: [begin, end), adjacent because positions and windows
  // ascend.
  struct Queries {
    int64_t begin, end;
  };
  Queries that_see(int64_t tile) const;
  template <typename T>
  void add_queries(int64_t tile, int64_t begin, int64_t end, const T* k_tile,
                   const T* v_tile);
  template <int kQ, typename T>
  void scores(const T* k_tile, int64_t query, TileRange range);
  template <typename T>
  void all_scores(const T* k_tile, int64_t query, int64_t count, TileRange range);
  void softmax(int64_t query, TileRange seen);
  template <int kQ, int kL, typename T>
  void values_part(const T* v_tile, int64_t query, int64_t i, TileRange range);
  template <int kQ, typename T>
  void values(const T* v_tile, int64_t query, TileRange range);
  template <typename T>
  void all_values(const T* v_tile, int64_t query, int64_t count, TileRange range);
  void store();
};

Attend::Attend(const AttentionShape& s, const AttentionBlock& b)
    : shape(s),
      block(b),
      d(padded_head_dim(s.kv.head_dim)),
      queries(b.rows * b.heads),
      k(b.scratch),
      v(k + kKvTile * d),
      q(v + kKvTile * d),
      acc(q + queries * d),
      p(acc + queries * d),
      max(p + queries * kKvTile),
      sum(max + queries) {}

// Rotated: as K of sealed tiles is (kv_rotates).
void Attend::load_queries(bool rotated) {
  const int64_t head_dim = shape.kv.head_dim;
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t h = 0; h < block.heads; ++h) {
      float* to = q + (row * block.heads + h) * d;
      const float* from = block.q + row * block.row_stride + h * head_dim;
      for (int64_t i = 0; i < d; i += 16) {
        const int64_t left = head_dim - i;
        const Lanes x = left >= 16 ? Lanes::load(from + i) : Lanes::load(from + i, Part{left});
        x.store(to + i);
      }
      if (rotated) hadamard_rotate(to, head_dim, d);
    }
  }
}

void Attend::load_state() {
  for (int64_t query = 0; query < queries; ++query) {
    float* to = acc + query * d;
    if (shape.first) {
      for (int64_t i = 0; i < d; i += 16) Lanes::zero().store(to + i);
      max[query] = kMinusInfinity;
      sum[query] = 0;
      continue;
    }
    const SoftmaxState from = state_of(shape, block, query / block.heads, query % block.heads);
    for (int64_t i = 0; i < d; i += 16) Lanes::load(from.acc + i).store(to + i);
    max[query] = *from.max;
    sum[query] = *from.sum;
  }
}

// Positions `range` of the tile as f32.
template <typename T>
void Attend::load_tile(const T* k_tile, const T* v_tile, TileRange range) {
  const int64_t begin = range.lo * d, end = range.hi * d;
  for (int64_t i = begin; i < end; i += 16) load_row(k_tile + i).store(k + i);
  for (int64_t i = begin; i < end; i += 16) load_row(v_tile + i).store(v + i);
}

// Unscaled scores of kQ queries over at least `range`; what is outside of it is not meant
// to be looked at.
template <int kQ, typename T>
inline void Attend::scores(const T* k_tile, int64_t query, TileRange range) {
  constexpr int kP = kQ == 1   ? kDots
                     : kQ == 2 ? kDots / 2
                               : kDots / 4;  // positions at once
  static_assert(kQ * kP <= kDots && kKvTile % kP == 0);
  const float* q_at = q + query * d;
  const char* next = reinterpret_cast<const char*>(k_tile) + to_next;
  for (int64_t j = range.lo / kP * kP; j < range.hi; j += kP) {
    const T* k_at = k_tile + j * d;
    Lanes dot[kDots];
#pragma GCC unroll 16
    for (int i = 0; i < kDots; ++i) dot[i] = Lanes::zero();
    for (int64_t i = 0; i < d; i += 16) {
      Lanes x[kQ];
#pragma GCC unroll 16
      for (int a = 0; a < kQ; ++a) x[a] = Lanes::load(q_at + a * d + i);
      fetch<T, 16 * kP>(next, j * d + i * kP);
#pragma GCC unroll 16
      for (int b = 0; b < kP; ++b) {
        const Lanes y = load_row(k_at + b * d + i);
#pragma GCC unroll 16
        for (int a = 0; a < kQ; ++a) dot[a * kP + b] = fma(x[a], y, dot[a * kP + b]);
      }
    }
    float sums[kDots];
    tree_sums(dot, sums);
#pragma GCC unroll 16
    for (int a = 0; a < kQ; ++a) {
      float* to = p + (query + a) * kKvTile + j;
#pragma GCC unroll 16
      for (int b = 0; b < kP; ++b) to[b] = sums[a * kP + b];
    }
  }
}

// Of `count` <= kQueries queries.
template <typename T>
void Attend::all_scores(const T* k_tile, int64_t query, int64_t count, TileRange range) {
  switch (count) {
    case 4:
      return scores<4>(k_tile, query, range);
    case 3:
      return scores<3>(k_tile, query, range);
    case 2:
      return scores<2>(k_tile, query, range);
    default:
      return scores<1>(k_tile, query, range);
  }
}

// Turns the scores of a query into weights, 0 where masked, and rescales its sum and
// accumulator.
void Attend::softmax(int64_t query, TileRange seen) {
  constexpr int kGroups = kKvTile / 16;
  float* weights = p + query * kKvTile;
  const Lanes scale = Lanes::splat(shape.scale), none = Lanes::splat(kMinusInfinity);
  Lanes x[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) x[g] = Lanes::load(weights + 16 * g) * scale;
  if (shape.softcap > 0) {
#pragma GCC unroll 16
    for (Lanes& s : x) s = softcap_lanes(s, Lanes::splat(shape.softcap));
  }
  if (seen.lo > 0 || seen.hi < kKvTile) {
    const Lanes lo = Lanes::splat(static_cast<float>(seen.lo));
    const Lanes hi = Lanes::splat(static_cast<float>(seen.hi));
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
      const Lanes at = Lanes::index() + Lanes::splat(16.0f * static_cast<float>(g));
      x[g] = where_less(at, lo, none, where_less(at, hi, x[g], none));
    }
  }
  const float tile_max =
      headrace::max(headrace::max(x[0], x[1]), headrace::max(x[2], x[3])).max_lane();
  const float old_max = max[query], new_max = old_max < tile_max ? tile_max : old_max;
  const Lanes rescale = exp_lanes(Lanes::splat(old_max - new_max));
  Lanes lanes = Lanes::zero();
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) {
    const Lanes weight = exp_lanes(x[g] - Lanes::splat(new_max));
    weight.store(weights + 16 * g);
    lanes = lanes + weight;
  }
  float factor[16];
  rescale.store(factor);
  max[query] = new_max;
  sum[query] = __builtin_fmaf(sum[query], factor[0], lanes.tree_sum());
  if (factor[0] == 1.0f) return;
  float* a = acc + query * d;
  for (int64_t i = 0; i < d; i += 16) (Lanes::load(a + i) * rescale).store(a + i);
}

// acc += weights . V over `range`, kL groups of elements from i on, of kQ queries.
template <int kQ, int kL, typename T>
inline void Attend::values_part(const T* v_tile, int64_t query, int64_t i,
                                TileRange range) {
  float* to = acc + query * d + i;
  const float* weights = p + query * kKvTile;
  Lanes a[kQ * kL];
#pragma GCC unroll 16
  for (int x = 0; x < kQ; ++x) {
#pragma GCC unroll 16
    for (int l = 0; l < kL; ++l) a[x * kL + l] = Lanes::load(to + x * d + 16 * l);
  }
  const char* next = reinterpret_cast<const char*>(v_tile) + to_next;
  for (int64_t j = range.lo; j < range.hi; ++j) {
    Lanes row[kL];
    fetch<T, 16 * kL>(next, j * d + i);
#pragma GCC unroll 16
    for (int l = 0; l < kL; ++l) row[l] = load_row(v_tile + j * d + i + 16 * l);
#pragma GCC unroll 16
    for (int x = 0; x < kQ; ++x) {
      const Lanes weight = Lanes::splat(weights[x * kKvTile + j]);
#pragma GCC unroll 16
      for (int l = 0; l < kL; ++l) a[x * kL + l] = fma(weight, row[l], a[x * kL + l]);
    }
  }
#pragma GCC unroll 16
  for (int x = 0; x < kQ; ++x) {
#pragma GCC unroll 16
    for (int l = 0; l < kL; ++l) a[x * kL + l].store(to + x * d + 16 * l);
  }
}

template <int kQ, typename T>
void Attend::values(const T* v_tile, int64_t query, TileRange range) {
  if (range.lo >= range.hi) return;
  int64_t i = 0;
  for (; i + 16 * kValueLanes <= d; i += 16 * kValueLanes) {
    values_part<kQ, kValueLanes>(v_tile, query, i, range);
  }
  for (; i < d; i += 16) values_part<kQ, 1>(v_tile, query, i, range);
}

template <typename T>
void Attend::all_values(const T* v_tile, int64_t query, int64_t count, TileRange range) {
  switch (count) {
    case 4:
      return values<4>(v_tile, query, range);
    case 3:
      return values<3>(v_tile, query, range);
    case 2:
      return values<2>(v_tile, query, range);
    default:
      return values<1>(v_tile, query, range);
  }
}

template <typename T>
void Attend::add_queries(int64_t tile, int64_t begin, int64_t end, const T* k_tile,
                         const T* v_tile) {
  for (int64_t query = begin; query < end; query += kQueries) {
    const int64_t count = end - query < kQueries ? end - query : kQueries;
    // Seen by any and by all of them: lo and hi never descend.
    const TileRange first = seen_by(query, tile), last = seen_by(query + count - 1, tile);
    all_scores(k_tile, query, count, {first.lo, last.hi});
    for (int64_t i = 0; i < count; ++i) softmax(query + i, seen_by(query + i, tile));
    const TileRange common{last.lo, first.hi};
    if (common.lo >= common.hi) {
      for (int64_t i = query; i < query + count; ++i)
        values<1>(v_tile, i, seen_by(i, tile));
      continue;
    }
    // What some see and others do not is added query by query, in order.
    for (int64_t i = query; i < query + count; ++i) {
      values<1>(v_tile, i, {seen_by(i, tile).lo, common.lo});
    }
    all_values(v_tile, query, count, common);
    for (int64_t i = query; i < query + count; ++i) {
      values<1>(v_tile, i, {common.hi, seen_by(i, tile).hi});
    }
  }
}

Attend::Queries Attend::that_see(int64_t tile) const {
  Queries some{0, queries};
  const auto blind = [&](int64_t query) {
    const TileRange seen = seen_by(query, tile);
    return seen.lo >= seen.hi;
  };
  while (some.begin < some.end && blind(some.begin)) ++some.begin;
  while (some.end > some.begin && blind(some.end - 1)) --some.end;
  return some;
}

template <typename T>
void Attend::add_tile(int64_t tile, const void* k_16) {
  const Queries some = that_see(tile);
  if (some.begin == some.end) return;
  const T* k_tile = static_cast<const T*>(k_16);
  const T* v_tile = k_tile + shape.kv.part_elements();
  if (some.end - some.begin <= 2 * kQueries) {
    return add_queries(tile, some.begin, some.end, k_tile, v_tile);
  }
  load_tile(k_tile, v_tile, {seen_by(some.begin, tile).lo, seen_by(some.end - 1, tile).hi});
  add_queries<float>(tile, some.begin, some.end, k, v);
}

void Attend::add_sealed(int64_t tile) {
  const std::byte* part = block.sealed_k(shape, tile);
  if (shape.format == KvFormat::kF16) return add_tile<Half>(tile, part);
  if (shape.format == KvFormat::kBF16) return add_tile<Bf16>(tile, part);
  const Queries some = that_see(tile);
  if (some.begin == some.end) return;
  const int64_t lo = seen_by(some.begin, tile).lo, hi = seen_by(some.end - 1, tile).hi;
  kv_decode_rows(shape.format, part, shape.kv.head_dim, lo, hi, k);
  kv_decode_rows(shape.format, part + shape.part_bytes, shape.kv.head_dim, lo, hi, v);
  add_queries<float>(tile, some.begin, some.end, k, v);
}

// The last tile of every query of the block; where sealed tiles are rotated it is not.
void Attend::add_own() {
  if (kv_rotates(shape.format)) {
    load_queries(false);
    for (int64_t query = 0; query < queries; ++query) {
      hadamard_rotate(acc + query * d, shape.kv.head_dim, d);
    }
  }
  if (shape.format == KvFormat::kBF16) return add_tile<Bf16>(block.own_tile(), block.own);
  add_tile<Half>(block.own_tile(), block.own);
}

void Attend::store() {
  const int64_t head_dim = shape.kv.head_dim;
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t h = 0; h < block.heads; ++h) {
      const int64_t query = row * block.heads + h;
      const float* from = acc + query * d;
      if (!shape.last) {
        const SoftmaxState to = state_of(shape, block, row, h);
        for (int64_t i = 0; i < d; i += 16) Lanes::load(from + i).store(to.acc + i);
        *to.max = max[query];
        *to.sum = sum[query];
        continue;
      }
      if (block.state != nullptr) *state_of(shape, block, row, h).max = max[query];
      if (block.state != nullptr) *state_of(shape, block, row, h).sum = sum[query];
      const Lanes inverse = Lanes::splat(1.0f / sum[query]);
      float* to = block.out + row * block.row_stride + h * head_dim;
      for (int64_t i = 0; i < head_dim; i += 16) {
        const Lanes x = Lanes::load(from + i) * inverse;
        const int64_t left = head_dim - i;
        left >= 16 ? x.store(to + i) : x.store(to + i, Part{left});
      }
    }
  }
}

inline void attend(const AttentionShape& shape, const AttentionBlock& block) {
  Attend work(shape, block);
  work.load_state();
  work.load_queries(kv_rotates(shape.format));
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const int64_t next = tile + 1 < block.tile_end ? tile + 1 : tile;
    work.to_next = block.sealed_k(shape, next) - block.sealed_k(shape, tile);
    work.add_sealed(tile);
  }
  work.to_next = 0;
  if (block.own != nullptr) work.add_own();
  work.store();
}

}  // namespace
}  // namespace headrace
