// Attention of training written once over Lanes. Included by train_attention.cc and its *_avx2.cc
// and *_avx512.cc, each after its lanes_*.h.
//
// Everything is a product of blocks in f32: a tile of four rows by kTileLanes x 16 columns in
// registers, one factor broadcast, the other read as lanes. Blocks are copied out of the rows of
// qkv first: rows are so far apart that the 64 of a block share a few sets of the L1 cache.
#pragma once

#include "headrace/kernel/lanes_math.h"
#include "headrace/kernel/train_attention.h"
#include "headrace/kernel/train_elements_inl.h"

namespace headrace {
namespace {

constexpr float kNothing = -__builtin_inff();
// The maximum of no scores: finite, since a query may see no key of a block, and the difference of
// two infinities is not a number.
constexpr float kLowest = -3e38f;

inline int64_t round_up4(int64_t n) { return (n + 3) / 4 * 4; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- products

enum class Into : uint8_t { kSet, kAdd, kRescale };

// c[i][..] = sum over k in [begin, end) of a(i, k) b[k][..], i < 4; kAdd: c += it; kRescale:
// c = c * factor[i] + it. a(i, k) is a[i * a_stride + k] or, transposed, a[k * a_stride + i].
struct Product {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  int64_t begin, end;
  float* c;
  int64_t c_stride;
  const float* factor = nullptr;
};

template <int kL, bool kTransposed, Into kInto>
inline void product_tile(const Product& p, int64_t column) {
  constexpr int kRows = 4;
  Lanes sum[kRows * kL];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kL; ++i) sum[i] = Lanes::zero();
  const float *a = p.a, *b = p.b + column;
  for (int64_t k = p.begin; k < p.end; ++k) {
    Lanes right[kL];
#pragma GCC unroll 16
    for (int l = 0; l < kL; ++l) right[l] = Lanes::load(b + k * p.b_stride + 16 * l);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Lanes left =
          Lanes::splat(kTransposed ? a[k * p.a_stride + i] : a[i * p.a_stride + k]);
#pragma GCC unroll 16
      for (int l = 0; l < kL; ++l) sum[i * kL + l] = fma(left, right[l], sum[i * kL + l]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* to = p.c + i * p.c_stride + column;
#pragma GCC unroll 16
    for (int l = 0; l < kL; ++l) {
      Lanes x = sum[i * kL + l];
      if constexpr (kInto == Into::kAdd) x = Lanes::load(to + 16 * l) + x;
      if constexpr (kInto == Into::kRescale) {
        x = fma(Lanes::load(to + 16 * l), Lanes::splat(p.factor[i]), x);
      }
      x.store(to + 16 * l);
    }
  }
}

// Of the groups [first, last) of 16 columns.
template <bool kTransposed, Into kInto>
inline void product(const Product& p, int64_t first, int64_t last) {
  int64_t g = first;
  for (; g + kTileLanes <= last; g += kTileLanes) {
    product_tile<kTileLanes, kTransposed, kInto>(p, 16 * g);
  }
  if constexpr (kTileLanes > 2) {
    for (; g + 2 <= last; g += 2) product_tile<2, kTransposed, kInto>(p, 16 * g);
  }
  for (; g < last; ++g) product_tile<1, kTransposed, kInto>(p, 16 * g);
}

// ---- blocks

// Where one head of consecutive rows is.
struct HeadRows {
  const std::byte* at;  // of the first row
  int64_t stride;       // bytes from row to row
  int64_t rows;         // <= kTrainBlock
};

// As f32 [kTrainBlock][d]; absent rows and columns are 0.
template <typename C>
void load_block(const HeadRows& from, int64_t head_dim, int64_t d, float* to) {
  for (int64_t row = 0; row < from.rows; ++row) {
    const std::byte* at = from.at + row * from.stride;
    each_group(head_dim, [&](int64_t i, auto size) {
      C::load(at, i, size).store(to + row * d + i);
    });
  }
  for (int64_t i = from.rows * d; i < kTrainBlock * d; i += 16) Lanes::zero().store(to + i);
}

// to[d][kTrainBlock] = from[kTrainBlock][d] transposed.
void transpose_block(const float* from, int64_t d, float* to) {
  for (int64_t i = 0; i < kTrainBlock; i += 4) {
    for (int64_t j = 0; j < d; j += 4) {
      transpose4(from + i * d + j, d, to + j * kTrainBlock + i, kTrainBlock);
    }
  }
}

inline void fill_zero(float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) Lanes::zero().store(to + i);
}

// One query block of one head and one key block of its kv head.
struct Pair {
  const TrainAttentionShape& s;
  int64_t rows, key_rows;  // queries and keys there are
  int64_t offset;          // position of the first key minus that of the first query
  bool diagonal;           // causal, the key block is that of the queries: query i sees keys <= i
  bool whole;              // every query sees every key

  Pair(const TrainAttentionShape& shape, int64_t query_block, int64_t key_block)
      : s(shape),
        rows(s.rows_of(query_block)),
        key_rows(s.rows_of(key_block)),
        offset((key_block - query_block) * kTrainBlock),
        diagonal(s.causal && offset == 0),
        whole(key_rows == kTrainBlock && offset + key_rows - 1 <= s.ahead() &&
              rows - 1 - offset <= s.behind()) {}

  int64_t d() const { return s.padded(); }
  int64_t groups() const { return (rows + 15) / 16; }  // of queries
  int64_t keys() const { return round_up4(key_rows); }
  // Keys that queries of group g may see.
  int64_t keys_of(int64_t g) const { return diagonal ? least(16 * g + 16, keys()) : keys(); }

  // scores[j][i] = left row j . right column i, where query i sees key j (and somewhat beyond).
  void scores(const float* left, const float* right, float* to) const {
    for (int64_t j = 0; j < keys(); j += 4) {
      const Product p{left + j * d(),  d(), right, kTrainBlock, 0, s.head_dim,
                      to + j * kTrainBlock, kTrainBlock};
      product<false, Into::kSet>(p, diagonal ? j / 16 : 0, groups());
    }
  }
  // to[j][..] += sum over queries i of weights[j][i] from[i][..].
  void add_to_keys(const float* weights, const float* from, float* to) const {
    for (int64_t j = 0; j < keys(); j += 4) {
      const Product p{weights + j * kTrainBlock, kTrainBlock, from, d(), diagonal ? j : 0,
                      round_up4(rows), to + j * d(), d()};
      product<false, Into::kAdd>(p, 0, d() / 16);
    }
  }
  // to[i][..] (+)= sum over keys j of weights[j][i] from[j][..].
  template <Into kInto>
  void add_to_queries(const float* weights, const float* from, float* to,
                      const float* factor) const {
    for (int64_t i = 0; i < rows; i += 4) {
      const Product p{weights + i, kTrainBlock, from, d(), 0, diagonal ? i + 4 : keys(),
                      to + i * d(), d(), factor == nullptr ? nullptr : factor + i};
      product<true, kInto>(p, 0, d() / 16);
    }
  }
  // x where the queries of group g see key j, else `hidden`.
  Lanes seen(Lanes x, int64_t g, int64_t j, Lanes hidden) const {
    if (whole) return x;
    if (j >= key_rows) return hidden;
    // Lanes [first, last) see it.
    const int64_t at = offset + j - 16 * g, first = at - s.ahead(), last = at + s.behind() + 1;
    const Lanes lane = Lanes::index();
    if (first > 0) x = where_less(lane, Lanes::splat(static_cast<float>(first)), hidden, x);
    if (last < 16) x = where_less(lane, Lanes::splat(static_cast<float>(last)), x, hidden);
    return x;
  }
};

// Addresses of heads and blocks in the rows of a sequence.
template <typename C>
struct Layout {
  const TrainAttentionShape& s;

  HeadRows rows(const std::byte* base, int64_t cols, int64_t column, int64_t block) const {
    const int64_t first = block * kTrainBlock;
    return {base + (first * cols + column) * C::kBytes, cols * C::kBytes, s.rows_of(block)};
  }
  HeadRows q(const std::byte* qkv, int64_t head, int64_t block) const {
    return rows(qkv, s.qkv_cols(), head * s.head_dim, block);
  }
  HeadRows k(const std::byte* qkv, int64_t kv_head, int64_t block) const {
    return rows(qkv, s.qkv_cols(), (s.heads + kv_head) * s.head_dim, block);
  }
  HeadRows v(const std::byte* qkv, int64_t kv_head, int64_t block) const {
    return rows(qkv, s.qkv_cols(), (s.heads + s.kv_heads + kv_head) * s.head_dim, block);
  }
  HeadRows o(const std::byte* o, int64_t head, int64_t block) const {
    return rows(o, s.o_cols(), head * s.head_dim, block);
  }
};

// ---- forward

// Scores become weights; the running maximum and sum follow, and factor is what the accumulator is
// to be multiplied by. A sum has four chains: keys j mod 4.
void online_softmax(const Pair& pair, float* p, float* max_of, float* sum_of, float* factor_of) {
  const Lanes scale = Lanes::splat(pair.s.scale), none = Lanes::splat(kNothing);
  for (int64_t g = 0; g < pair.groups(); ++g) {
    const int64_t keys = pair.keys_of(g);
    float* at = p + 16 * g;
    Lanes top[4] = {none, none, none, none};
    for (int64_t j = 0; j < keys; j += 4) {
#pragma GCC unroll 4
      for (int64_t c = 0; c < 4; ++c) {
        float* score = at + (j + c) * kTrainBlock;
        const Lanes x = pair.seen(Lanes::load(score) * scale, g, j + c, none);
        x.store(score);
        top[c] = max(x, top[c]);
      }
    }
    const Lanes old = Lanes::load(max_of + 16 * g);
    const Lanes now = max(max(max(top[0], top[1]), max(top[2], top[3])), old);
    Lanes total[4] = {Lanes::zero(), Lanes::zero(), Lanes::zero(), Lanes::zero()};
    for (int64_t j = 0; j < keys; j += 4) {
#pragma GCC unroll 4
      for (int64_t c = 0; c < 4; ++c) {
        float* score = at + (j + c) * kTrainBlock;
        const Lanes weight = exp_lanes(Lanes::load(score) - now);
        weight.store(score);
        total[c] = total[c] + weight;
      }
    }
    const Lanes factor = exp_lanes(old - now);
    now.store(max_of + 16 * g);
    factor.store(factor_of + 16 * g);
    fma(Lanes::load(sum_of + 16 * g), factor, (total[0] + total[1]) + (total[2] + total[3]))
        .store(sum_of + 16 * g);
  }
}

template <typename C>
void forward_block(const TrainAttentionShape& s, const TrainAttentionSequence& sequence,
                   int64_t head, int64_t block, float* scratch) {
  const Layout<C> layout{s};
  const int64_t d = s.padded(), kv_head = head / s.group();
  float* q_t = scratch;  // [d][64]
  float* k = q_t + kTrainBlock * d;
  float* v = k + kTrainBlock * d;
  float* acc = v + kTrainBlock * d;
  float* p = acc + kTrainBlock * d;  // [64 keys][64 queries]
  float* max_of = p + kTrainBlock * kTrainBlock;
  float* sum_of = max_of + kTrainBlock;
  float* factor = sum_of + kTrainBlock;
  const HeadRows q = layout.q(sequence.qkv, head, block);
  load_block<C>(q, s.head_dim, d, k);
  transpose_block(k, d, q_t);
  fill_zero(acc, kTrainBlock * d);
  fill_zero(sum_of, kTrainBlock);
  for (int64_t i = 0; i < kTrainBlock; ++i) max_of[i] = kLowest;
  for (int64_t keys = s.first_keys(block); keys <= s.last_keys(block); ++keys) {
    const Pair pair(s, block, keys);
    load_block<C>(layout.k(sequence.qkv, kv_head, keys), s.head_dim, d, k);
    load_block<C>(layout.v(sequence.qkv, kv_head, keys), s.head_dim, d, v);
    pair.scores(k, q_t, p);
    online_softmax(pair, p, max_of, sum_of, factor);
    pair.add_to_queries<Into::kRescale>(p, v, acc, factor);
  }
  for (int64_t row = 0; row < q.rows; ++row) {
    const int64_t at = block * kTrainBlock + row;
    const Lanes inverse = Lanes::splat(1.0f / sum_of[row]);
    std::byte* o = sequence.o + (at * s.o_cols() + head * s.head_dim) * C::kBytes;
    each_group(s.head_dim, [&](int64_t i, auto size) {
      C::store(Lanes::load(acc + row * d + i) * inverse, o, i, size);
    });
    // In double, so that it does not depend on how well a library rounds in f32.
    const double log_sum = __builtin_log(static_cast<double>(sum_of[row]));
    sequence.lse[at * s.heads + head] =
        static_cast<float>(static_cast<double>(max_of[row]) + log_sum);
  }
}

void forward(const TrainAttentionShape& s, const TrainAttentionSequence& sequence, int64_t head,
             int64_t block, float* scratch) {
  if (s.type == DType::kBF16) return forward_block<Bf16>(s, sequence, head, block, scratch);
  if (s.type == DType::kF16) return forward_block<F16>(s, sequence, head, block, scratch);
  forward_block<F32>(s, sequence, head, block, scratch);
}

// ---- backward

template <typename C>
struct Backward {
  const TrainAttentionShape& s;
  const TrainAttentionSequence& sequence;
  const Layout<C> layout;
  const int64_t d, kv_head;
  float *q, *q_t, *d_o, *do_t;  // of the query block
  float *k, *v;                 // of the key block
  float* dq;
  float *p, *ds;                // [64 keys][64 queries]
  float *lse, *delta;           // [64]
  float *dk, *dv;               // [blocks * 64][d]

  Backward(const TrainAttentionShape& shape, const TrainAttentionSequence& of, int64_t head,
           float* scratch)
      : s(shape), sequence(of), layout{shape}, d(shape.padded()), kv_head(head) {
    const int64_t block = kTrainBlock * d;
    for (float** at : {&q, &q_t, &d_o, &do_t, &k, &v, &dq}) {
      *at = scratch;
      scratch += block;
    }
    p = scratch;
    ds = p + kTrainBlock * kTrainBlock;
    lse = ds + kTrainBlock * kTrainBlock;
    delta = lse + kTrainBlock;
    dk = delta + kTrainBlock;
    dv = dk + s.blocks() * block;
  }

  // The query block with do, its statistics and delta[i] = do[i] . o[i] (FlashAttention-2, D).
  void load_queries(int64_t head, int64_t block) {
    const HeadRows from = layout.q(sequence.qkv, head, block);
    load_block<C>(from, s.head_dim, d, q);
    load_block<C>(layout.o(sequence.d_o, head, block), s.head_dim, d, d_o);
    transpose_block(q, d, q_t);
    transpose_block(d_o, d, do_t);
    const HeadRows o = layout.o(sequence.o, head, block);
    for (int64_t row = 0; row < kTrainBlock; ++row) {
      const int64_t at = block * kTrainBlock + row;
      Lanes sum = Lanes::zero();
      if (row < from.rows) {
        each_group(s.head_dim, [&](int64_t i, auto size) {
          sum = fma(Lanes::load(d_o + row * d + i), C::load(o.at + row * o.stride, i, size), sum);
        });
      }
      delta[row] = sum.tree_sum();
      lse[row] = row < from.rows ? sequence.lse[at * s.heads + head] : 0.0f;
    }
  }

  // p: scores become weights. ds: gradients of weights become those of scores before the scale.
  void gradients_of_scores(const Pair& pair) const {
    const Lanes scale = Lanes::splat(s.scale);
    for (int64_t g = 0; g < pair.groups(); ++g) {
      const int64_t keys = pair.keys_of(g);
      const Lanes minus_lse = negative(Lanes::load(lse + 16 * g));
      const Lanes mean = Lanes::load(delta + 16 * g);
      for (int64_t j = 0; j < keys; ++j) {
        float* weight = p + j * kTrainBlock + 16 * g;
        float* slope = ds + j * kTrainBlock + 16 * g;
        const Lanes x = exp_lanes(fma(Lanes::load(weight), scale, minus_lse));
        const Lanes seen = pair.seen(x, g, j, Lanes::zero());
        seen.store(weight);
        (seen * (Lanes::load(slope) - mean) * scale).store(slope);
      }
    }
  }

  void add_query_block(int64_t head, int64_t block) {
    load_queries(head, block);
    fill_zero(dq, kTrainBlock * d);
    for (int64_t keys = s.first_keys(block); keys <= s.last_keys(block); ++keys) {
      const Pair pair(s, block, keys);
      load_block<C>(layout.k(sequence.qkv, kv_head, keys), s.head_dim, d, k);
      load_block<C>(layout.v(sequence.qkv, kv_head, keys), s.head_dim, d, v);
      pair.scores(k, q_t, p);
      pair.scores(v, do_t, ds);
      gradients_of_scores(pair);
      pair.add_to_keys(p, d_o, dv + keys * kTrainBlock * d);
      pair.add_to_keys(ds, q, dk + keys * kTrainBlock * d);
      pair.template add_to_queries<Into::kAdd>(ds, k, dq, nullptr);
    }
    store(dq, layout.q(sequence.dqkv, head, block));
  }

  void store(const float* from, const HeadRows& to) const {
    for (int64_t row = 0; row < to.rows; ++row) {
      auto* at = const_cast<std::byte*>(to.at) + row * to.stride;
      each_group(s.head_dim, [&](int64_t i, auto size) {
        C::store(Lanes::load(from + row * d + i), at, i, size);
      });
    }
  }

  void run() {
    fill_zero(dk, 2 * s.blocks() * kTrainBlock * d);
    for (int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head) {
      for (int64_t block = 0; block < s.blocks(); ++block) add_query_block(head, block);
    }
    for (int64_t block = 0; block < s.blocks(); ++block) {
      store(dk + block * kTrainBlock * d, layout.k(sequence.dqkv, kv_head, block));
      store(dv + block * kTrainBlock * d, layout.v(sequence.dqkv, kv_head, block));
    }
  }
};

void backward(const TrainAttentionShape& s, const TrainAttentionSequence& sequence,
              int64_t kv_head, float* scratch) {
  if (s.type == DType::kBF16) return Backward<Bf16>(s, sequence, kv_head, scratch).run();
  if (s.type == DType::kF16) return Backward<F16>(s, sequence, kv_head, scratch).run();
  Backward<F32>(s, sequence, kv_head, scratch).run();
}

constexpr TrainAttentionOps kTrainAttention{forward, backward};

}  // namespace
}  // namespace headrace
