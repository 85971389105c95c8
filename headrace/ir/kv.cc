#include "headrace/ir/kv.h"

#include <algorithm>
#include <array>
#include <string>

namespace headrace {
namespace {

constexpr std::array<const char*, kKvFormatCount> kNames = {"f16", "bf16", "q8", "q4"};

// Of K or of V of one kv head in one tile: 64 rows, so a multiple of kLine. What is where in it:
// kernel/kv_codec.h.
Bytes part_bytes(KvFormat format, int64_t head_dim) {
  const int64_t padded = round_up(head_dim, 16), groups = (head_dim + 31) / 32;
  switch (format) {
    case KvFormat::kF16:
    case KvFormat::kBF16: return kKvTile * padded * 2;
    case KvFormat::kQ8: return kKvTile * (padded + groups * 2);
    case KvFormat::kQ4: return kKvTile * (padded / 2 + groups * 4);
  }
  return 0;
}

}  // namespace

const char* name_of(KvFormat format) { return kNames[static_cast<size_t>(format)]; }

Result<KvFormat> kv_format_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<KvFormat>(i);
  }
  return error(Code::kUsage, "KV is held as f16, bf16, q8 or q4, not as '%s'",
               std::string(name).c_str());
}

Bytes kv_tile_bytes(KvFormat format, int64_t kv_heads, int64_t head_dim) {
  return kv_heads * 2 * part_bytes(format, head_dim);
}

Bytes kv_tail_bytes(int64_t kv_heads, int64_t head_dim) {
  return kv_tile_bytes(KvFormat::kF16, kv_heads, head_dim);
}

// A run of n rows touches at most (n + 62) / 64 tiles after its first.
int64_t kv_open_tiles(int64_t rows, int64_t sequences) {
  return (rows + (kKvTile - 2) * std::min(rows, sequences)) / kKvTile;
}

KvRun kv_run_at(const StepRows& rows, int64_t begin, int64_t open) {
  const auto at = [](const std::vector<int32_t>& v, int64_t i) { return v[static_cast<size_t>(i)]; };
  KvRun run;
  run.sequence = at(rows.sequences, begin);
  run.begin = begin;
  run.first = at(rows.positions, begin);
  run.open = open;
  for (run.end = begin + 1; run.end < rows.rows(); ++run.end) {
    if (at(rows.sequences, run.end) != run.sequence) break;
    HR_CHECK(at(rows.positions, run.end) == run.first + (run.end - begin),
             "rows of a sequence have consecutive positions");
  }
  return run;
}

KvPart kv_part(const Tensor& slot, bool store, const StepRows& rows) {
  const int64_t tiles = slot.rows, before = slot.slot.segment * tiles;
  const auto bytes_of = [&](int64_t from, int64_t to) {
    from = std::clamp<int64_t>(from - before, 0, tiles);
    to = std::clamp<int64_t>(to - before, 0, tiles);
    if (from >= to) return KvPart();
    return KvPart{round_down(from * slot.cols, kPage),
                  std::min(round_up(to * slot.cols, kPage), round_up(slot.bytes, kPage))};
  };
  for (int64_t row = 0; row < rows.rows();) {
    const KvRun run = kv_run_at(rows, row, 0);
    row = run.end;
    if (run.sequence != slot.slot.sequence) continue;
    return store ? bytes_of(run.first_tile(), run.sealed_end()) : bytes_of(0, run.first_tile());
  }
  return store ? KvPart() : bytes_of(0, before + tiles);
}

}  // namespace headrace
