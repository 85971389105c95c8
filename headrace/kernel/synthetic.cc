// Hashing follows the pattern of multiply-and-fold hashes (wyhash, Wang Yi, 2019): four independent
// lanes, so that one core reads near the speed of memory.
#include "headrace/kernel/synthetic.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace headrace {
namespace {

constexpr uint64_t kOdd[4] = {0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull,
                              0xd6e8feb86659fd93ull};
// Large operands are hashed in this many parts whatever the number of threads.
constexpr int64_t kParts = 64;
constexpr Bytes kLeastPart = 16 * kKiB;

__extension__ typedef unsigned __int128 Wide;

uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Bijective (Stafford's variant 13 of the MurmurHash3 finaliser).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t word_at(const std::byte* at, Bytes bytes = 8) {
  uint64_t word = 0;
  std::memcpy(&word, at, static_cast<size_t>(bytes));
  return word;
}

uint64_t digest_part(uint64_t seed, const std::byte* at, Bytes bytes) {
  std::array<uint64_t, 4> lane = {seed ^ kOdd[0], seed ^ kOdd[1], seed ^ kOdd[2], seed ^ kOdd[3]};
  const std::byte* const end = at + bytes;
  for (; end - at >= 32; at += 32) {
    for (size_t l = 0; l < 4; ++l) {
      // Addition after the multiply keeps a zero product from swallowing what came before.
      lane[l] = fold(lane[l] ^ word_at(at + 8 * l), kOdd[l]) + lane[l] + kOdd[3 - l];
    }
  }
  uint64_t out = static_cast<uint64_t>(bytes) * kOdd[0];
  for (; end - at >= 8; at += 8) out = mix(out ^ word_at(at)) + kOdd[1];
  if (at < end) out = mix(out ^ word_at(at, end - at)) + kOdd[2];
  for (uint64_t l : lane) out = mix(out ^ l) + kOdd[3];
  return out;
}

// Two numbers in [-1, 1): 24 bits each, so exact in f32.
uint64_t as_floats(uint64_t word) {
  std::array<float, 2> pair;
  for (size_t i = 0; i < 2; ++i) {
    const auto half = static_cast<int32_t>(static_cast<uint32_t>(word >> (32 * i)));
    pair[i] = static_cast<float>(half >> 8) * 0x1p-23f;
  }
  std::memcpy(&word, pair.data(), 8);
  return word;
}

// Writes word i as make(i), the last one cut.
template <typename Make>
void write_words(ThreadPool& pool, const Tensor& tensor, std::byte* to, Make make) {
  const bool floats = tensor.dtype == DType::kF32;
  const int64_t words = (tensor.bytes + 7) / 8;
  pool.for_range(words, 2048, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto size = static_cast<size_t>(std::min<Bytes>(8, tensor.bytes - 8 * i));
      const uint64_t made = make(i, word_at(to + 8 * i, static_cast<Bytes>(size)));
      const uint64_t word = floats ? as_floats(made) : made;
      std::memcpy(to + 8 * i, &word, size);
    }
  });
}

uint64_t digest_input(const OpContext& ctx, uint64_t seed, TensorId id, const std::byte* at) {
  const Tensor& t = ctx.graph.at(id);
  if (t.role != Role::kGathered) {
    return digest_of(seed, {at, static_cast<size_t>(t.bytes)}, ctx.pool);
  }
  const auto width = static_cast<size_t>(row_bytes(t.dtype, t.cols));
  for (int64_t r = 0; r < ctx.rows.rows(); ++r) {
    const int32_t token = ctx.rows.tokens[static_cast<size_t>(r)];
    const std::byte* row = at + r * gathered_row_stride(t) + gathered_skew(t, token);
    seed = digest_of(seed, {row, width}, ctx.pool);
  }
  return seed;
}

}  // namespace

uint64_t digest_of(uint64_t seed, std::span<const std::byte> bytes, ThreadPool& pool) {
  const auto size = static_cast<Bytes>(bytes.size());
  const Bytes part = std::max(kLeastPart, round_up((size + kParts - 1) / kParts, kLine));
  const int64_t parts = (size + part - 1) / part;
  std::array<uint64_t, kParts> digests{};
  pool.for_range(parts, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      digests[static_cast<size_t>(p)] =
          digest_part(seed, bytes.data() + p * part, std::min(part, size - p * part));
    }
  });
  uint64_t out = mix(seed + static_cast<uint64_t>(size));
  for (int64_t p = 0; p < parts; ++p) out = mix(out ^ digests[static_cast<size_t>(p)]) + kOdd[0];
  return out;
}

void synthetic_cpu(const OpContext& ctx) {
  const Op& op = ctx.op;
  uint64_t digest = mix(static_cast<uint64_t>(&op - ctx.graph.ops.data()) + kOdd[0]);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i].valid()) digest = digest_input(ctx, digest, op.inputs[i], ctx.inputs[i]);
  }
  for (size_t i = 0; i < op.updates.size(); ++i) {
    digest = digest_input(ctx, digest, op.updates[i], ctx.updates[i]);
  }
  if (!ctx.workspace.empty()) {
    std::memset(ctx.workspace.data(), static_cast<int>(digest & 0xff), ctx.workspace.size());
  }
  for (size_t j = 0; j < op.outputs.size(); ++j) {
    const uint64_t key = mix(digest + kOdd[1] * (j + 1));
    write_words(ctx.pool, ctx.graph.at(op.outputs[j]), ctx.outputs[j], [key](int64_t i, uint64_t) {
      return mix(key + kOdd[2] * static_cast<uint64_t>(i));
    });
  }
  for (size_t j = 0; j < op.updates.size(); ++j) {
    const uint64_t key = mix(digest + kOdd[3] * (j + 1));
    write_words(ctx.pool, ctx.graph.at(op.updates[j]), ctx.updates[j],
                [key](int64_t i, uint64_t was) {
                  return mix(was ^ mix(key + kOdd[2] * static_cast<uint64_t>(i)));
                });
  }
}

}  // namespace headrace
