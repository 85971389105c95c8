#include "headrace/session/batch_prefix.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr auto kWidth = static_cast<size_t>(kChainTokens);

// What of a hit is after `held` positions.
PrefixHit rest_of(const PrefixHit& hit, int64_t held) {
  PrefixHit out;
  for (const PrefixEntry& entry : hit.entries) {
    if (entry.first < held || entry.tokens != kChainTokens) continue;
    out.entries.push_back(entry);
    out.tokens += entry.tokens;
    out.bytes += entry.bytes;
    out.recompute_seconds += entry.recompute_seconds;
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<BatchPrefix>> BatchPrefix::open(const Model& model, BatchSession& session,
                                                       const PrefixSettings& settings) {
  const BatchOptions& o = session.plan().options;
  if (o.block_tokens != kChainTokens) {
    return error(Code::kUsage, "a prefix store has entries of %lld tokens, blocks have %lld",
                 static_cast<long long>(kChainTokens), static_cast<long long>(o.block_tokens));
  }
  HR_ASSIGN(auto store, open_prefix_store(model, o.kv_format, settings));
  return std::unique_ptr<BatchPrefix>(new BatchPrefix(session, std::move(store)));
}

Result<int64_t> BatchPrefix::restore(KvSequence sequence, std::span<const int32_t> tokens) {
  HR_ASSIGN(int64_t left, look_up(sequence, tokens));
  while (left > 0) left = restore_next(sequence, tokens);
  return session_.length(sequence);
}

Result<int64_t> BatchPrefix::look_up(KvSequence sequence, std::span<const int32_t> tokens) {
  found_.erase(sequence.value);
  const int64_t held = session_.length(sequence);
  if (held < 0 || held % kChainTokens != 0 || held > static_cast<int64_t>(tokens.size())) {
    return error(Code::kUsage, "sequence %d has %lld positions, not whole blocks of %zu tokens",
                 sequence.value, static_cast<long long>(held), tokens.size());
  }
  // The last token is computed in any case: its logits are wanted.
  const auto context = static_cast<size_t>(session_.plan().options.context);
  const size_t most = std::min(tokens.size(), context);
  if (most < 2) return 0;
  PrefixHit hit = rest_of(store_->lookup(tokens.first(most - 1)), held);
  const double rate = session_.plan().options.machine.tiers[1].load_bytes_per_s;
  if (hit.tokens == 0 || !restore_pays(hit, rate)) return 0;
  std::reverse(hit.entries.begin(), hit.entries.end());
  const auto count = static_cast<int64_t>(hit.entries.size());
  found_[sequence.value] = std::move(hit.entries);
  return count;
}

int64_t BatchPrefix::restore_next(KvSequence sequence, std::span<const int32_t> tokens) {
  const auto found = found_.find(sequence.value);
  if (found == found_.end()) return 0;
  std::vector<PrefixEntry>& entries = found->second;
  const PrefixEntry entry = entries.back();
  entries.pop_back();
  // The sequence may have lost something since, or have been read on.
  Status status;
  if (session_.length(sequence) != entry.first) status = error(Code::kUsage, "not the next block");
  else
    status = session_.append_block(
        sequence, tokens.subspan(static_cast<size_t>(entry.first), kWidth),
        [&](const BatchSession::BlockPart& out) {
          return store_->read(entry, [&](size_t layer, std::span<const std::byte> bytes) -> Status {
            std::copy(bytes.begin(), bytes.end(), out(static_cast<int64_t>(layer)).begin());
            return {};
          });
        });
  const auto left = static_cast<int64_t>(entries.size());
  if (status.ok() && left > 0) return left;
  found_.erase(found);  // the rest is computed
  return 0;
}

Status BatchPrefix::keep(KvSequence sequence, std::span<const int32_t> tokens,
                         double seconds_per_token) {
  const int64_t length =
      std::min(session_.length(sequence), static_cast<int64_t>(tokens.size()));
  std::vector<ChainHash>& kept = kept_[sequence.value];
  // The sequence may have been cut since, and gone on otherwise.
  size_t same = 0;
  ChainHash at = store_->root();
  while (same < kept.size() && static_cast<int64_t>((same + 1) * kWidth) <= length) {
    const ChainHash hash = chain_next(at, tokens.subspan(same * kWidth, kWidth));
    if (hash != kept[same]) break;
    at = hash;
    ++same;
  }
  kept.resize(same);
  for (size_t g = same; static_cast<int64_t>((g + 1) * kWidth) <= length; ++g) {
    const auto part = tokens.subspan(g * kWidth, kWidth);
    const auto put = store_->put(
        at, static_cast<int64_t>(g * kWidth), part,
        seconds_per_token * static_cast<double>(kWidth),
        [&](size_t layer, std::span<std::byte> out) {
          return session_.read_block(sequence, static_cast<int64_t>(g),
                                     static_cast<int64_t>(layer), out);
        });
    if (!put.ok() && put.status().code() != Code::kDoesNotFit) return put.status();
    if (!put.ok() || *put == PrefixPut::kDropped) break;
    at = chain_next(at, part);
    kept.push_back(at);
  }
  return {};
}

}  // namespace headrace
