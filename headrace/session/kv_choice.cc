#include "headrace/session/kv_choice.h"

#include <algorithm>

#include "headrace/base/system.h"

namespace headrace {
namespace {

constexpr int64_t kSegmentTokens = 256;  // of slots that stay, and what contexts are rounded up to
constexpr int64_t kMostKept = 16;        // slots of a layer that stay
constexpr int64_t kFewestMoved = 8, kMostMoved = 32;
constexpr Bytes kMovedBytes = kMiB;
constexpr int64_t kMostSelectable = 128;  // slots of a layer, of which some are selected

}  // namespace

int64_t context_bucket(int64_t positions) { return round_up(positions, kSegmentTokens); }

int64_t kv_segment_tokens(const ModelConfig& config, const GraphOptions& o, bool moved) {
  if (!moved) return kSegmentTokens * ceil_div(o.context, kMostKept * kSegmentTokens);
  const Bytes tile = kv_tile_bytes(o.kv_format, config.kv_heads, config.head_dim);
  const int64_t tiles = ceil_div(o.context, kKvTile);
  const int64_t wanted = std::min(ceil_div(kMovedBytes, tile), ceil_div(tiles, kFewestMoved));
  return kKvTile * std::max(wanted, ceil_div(tiles, kMostMoved));
}

int64_t sparse_segment_tokens(int64_t context, int64_t selected) {
  const int64_t fine = std::clamp(selected / 8 / kKvTile * kKvTile, kKvTile, kSegmentTokens);
  return std::max(fine, kKvTile * ceil_div(context, kMostSelectable * kKvTile));
}

Machine with_scratch(Machine machine, Bytes bytes) {
  std::vector<TierInfo>& tiers = machine.tiers;
  const auto known = std::find_if(tiers.begin(), tiers.end(),
                                  [](const TierInfo& t) { return t.name == "scratch"; });
  TierInfo scratch = tiers[1];
  if (known != tiers.end()) {
    scratch = *known;
  } else if (tiers[1].group < 0) {
    tiers[1].group = scratch.group = 0;
  }
  scratch.name = "scratch";
  scratch.capacity = bytes;
  scratch.alignment = kPage;
  // Machine files of disks that nobody has written to.
  if (scratch.store_bytes_per_s <= 0) scratch.store_bytes_per_s = scratch.load_bytes_per_s;
  tiers.resize(static_cast<size_t>(kScratchTier.index()));
  tiers.push_back(scratch);
  return machine;
}

int64_t positions_that_fit(const ModelConfig& config, GraphOptions options, Bytes room,
                           Bytes (KvBytes::*measure)() const) {
  int64_t low = 0, high = ceil_div(options.context, kKvTile);  // tiles: low fit, high do not
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    options.context = middle * kKvTile;
    ((kv_bytes(config, options).*measure)() <= room ? low : high) = middle;
  }
  return low * kKvTile;
}

Status check_kv_folder(const ModelConfig& config, const GraphOptions& graph,
                       const SessionOptions& options) {
  Bytes room = options.kv_disk_bytes;
  if (room == 0) {
    HR_ASSIGN(room, free_on_disk(options.kv_folder));
  }
  const KvBytes needed = kv_bytes(config, graph);
  if (needed.on_disk() <= room) return {};
  const int64_t fit = positions_that_fit(config, graph, room, &KvBytes::on_disk);
  return error(Code::kDoesNotFit,
               "a context of %lld has %s of KV, and %s has room for %s: %lld positions "
               "(--context %lld) would fit there; or choose --kv q8 or q4, or a folder with more "
               "room (--kv-dir)",
               static_cast<long long>(graph.context), human_bytes(needed.on_disk()).c_str(),
               options.kv_folder.c_str(), human_bytes(room).c_str(),
               static_cast<long long>(fit), static_cast<long long>(fit));
}

}  // namespace headrace
