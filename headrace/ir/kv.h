// KV: how keys and values of past positions are held, and what a step moves of them.
//
// Vocabulary
//   tile     the 64 positions that start at a multiple of 64: of K and V of all kv heads of a layer.
//            Sealed once all its positions are written: it is then held in the format below, for good.
//   tail     the tile that is being filled, 16 bits an element; of one (layer, sequence).
//   slot     a run of sealed tiles of one (layer, sequence): segment s has tiles
//            [s n, (s + 1) n), n = segment_tokens / 64. A tensor i8 [n, kv_tile_bytes].
//   open     tiles after the tail's that the rows of one step fill; alive for that step alone.
//   format   how sealed tiles are held. A query sees its own tile in 16 bits and the tiles before it
//            in this format, so that results do not depend on chunks, segments or residency.
//
// How the inside of a tile lies is the kernels' business (kernel/kv_layout.h).
#pragma once

#include "headrace/ir/graph.h"

namespace headrace {

constexpr int64_t kKvTile = 64;  // positions

enum class KvFormat : uint8_t {
  kF16,
  kBF16,
  kQ8,  // 8 bits, a scale for each 32 elements of a row
  kQ4,  // 4 bits of rotated rows (block Hadamard), see kernel/kv_codec.h
};
constexpr int kKvFormatCount = 4;
const char* name_of(KvFormat format);  // "f16", "bf16", "q8", "q4"
Result<KvFormat> kv_format_from_name(std::string_view name);

// Bytes of one tile of a layer: a multiple of kLine.
Bytes kv_tile_bytes(KvFormat format, int64_t kv_heads, int64_t head_dim);
// Bytes of a tail, and of one open tile.
Bytes kv_tail_bytes(int64_t kv_heads, int64_t head_dim);
// The most open tiles that a step of `rows` rows of at most `sequences` sequences fills.
int64_t kv_open_tiles(int64_t rows, int64_t sequences);

// The rows of one sequence in a step; they are adjacent, at consecutive positions.
struct KvRun {
  int32_t sequence = 0;
  int64_t begin = 0, end = 0;  // rows
  int64_t first = 0;           // position of the first row
  int64_t open = 0;            // index of its first open tile, of tile first / 64 + 1
  int64_t last() const { return first + (end - begin) - 1; }
  int64_t first_tile() const { return first / kKvTile; }
  // Tiles [first_tile(), sealed_end()) become sealed in this step.
  int64_t sealed_end() const { return (last() + 1) / kKvTile; }
};
// The run that starts at row `begin`, its open tiles from `open` on.
KvRun kv_run_at(const StepRows& rows, int64_t begin, int64_t open);

// What a Load or Store of `slot` moves in a step with these rows: bytes of the slot, whole pages (or
// to the slot's end); empty when there is nothing: a Load brings the tiles that were sealed before the
// step, a Store saves those that this step seals. A sequence without rows in the step: a Load brings
// all of the slot.
struct KvPart {
  Bytes begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};
KvPart kv_part(const Tensor& slot, bool store, const StepRows& rows);

}  // namespace headrace
