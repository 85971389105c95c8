#include "headrace/session/prefix.h"

#include <utility>

#include "headrace/model/fingerprint.h"

namespace headrace {
namespace {

// Entries that may wait to be written: one is being written, one comes.
constexpr Bytes kWaitingEntries = 3;

PrefixOptions options_for(const ModelConfig& config, KvFormat format) {
  PrefixOptions o;
  o.layout.format = format;
  o.layout.tile_bytes.assign(static_cast<size_t>(config.layers),
                             kv_tile_bytes(format, config.kv_heads, config.head_dim));
  o.staging_bytes = kWaitingEntries * prefix_file_bytes(o.layout, kChainTokens);
  return o;
}

}  // namespace

Bytes prefix_memory(const Model& model, KvFormat format) {
  return prefix_memory(options_for(model.config, format));
}

Result<std::vector<int32_t>> load_conversation(const Model& model, const std::string& folder,
                                               const std::string& name) {
  HR_TRY(check_prefix_name(name));
  if (!has_named_prefix(folder, name)) return std::vector<int32_t>();
  HR_ASSIGN(const uint64_t fingerprint, model_fingerprint(model.file));
  return tokens_of_name(folder, name, fingerprint);
}

Result<std::unique_ptr<PrefixStore>> open_prefix_store(const Model& model, KvFormat format,
                                                       const PrefixSettings& settings,
                                                       uint64_t salt) {
  PrefixOptions o = options_for(model.config, format);
  o.limit_bytes = settings.limit_bytes;
  o.layout.salt = salt;
  HR_ASSIGN(o.layout.model, model_fingerprint(model.file));
  o.layout.label = settings.label;
  return PrefixStore::open(settings.folder, o);
}

Result<std::unique_ptr<SessionPrefix>> SessionPrefix::open(const Model& model, Session& session,
                                                           const PrefixSettings& settings) {
  const SessionOptions& o = session.plan().options;
  // What sparse steps have computed is not what exact ones would.
  HR_ASSIGN(auto store, open_prefix_store(model, o.kv_format, settings,
                                          static_cast<uint64_t>(o.sparse_tokens)));
  return std::unique_ptr<SessionPrefix>(new SessionPrefix(session, std::move(store)));
}

Status SessionPrefix::write_entry(const PrefixEntry& entry) {
  const int64_t tile = entry.first / kKvTile, tiles = entry.tokens / kKvTile;
  return store_->read(entry, [&](size_t layer, std::span<const std::byte> bytes) {
    return session_.write_kv(static_cast<int64_t>(layer), tile, tile + tiles, bytes);
  });
}

Result<int64_t> SessionPrefix::restore(std::span<const int32_t> tokens) {
  HR_CHECK(session_.position() == 0, "a beginning is restored at the beginning");
  chain_.clear();
  lost_ = false;
  counted_ = 0;
  const auto context = static_cast<size_t>(session_.plan().context);
  if (tokens.size() < 2 || context < 2) return 0;
  // The last token is computed in any case: its logits are wanted.
  const PrefixHit hit = store_->lookup(tokens.first(std::min(tokens.size(), context) - 1));
  const Machine& machine = session_.plan().options.machine;
  if (hit.tokens == 0 || !restore_pays(hit, machine.tiers[1].load_bytes_per_s)) return 0;
  int64_t there = 0;
  for (const PrefixEntry& entry : hit.entries) {
    const Status status = write_entry(entry);
    // What cannot be read is computed; what cannot be written is the session's trouble.
    if (!status.ok() && !session_.failed().ok()) return status;
    if (!status.ok()) break;
    there = entry.first + entry.tokens;
    if (entry.tokens == kChainTokens) chain_.push_back(entry.hash);
  }
  HR_TRY(session_.set_position(there));
  counted_ = there;
  return there;
}

void SessionPrefix::follow(std::span<const int32_t> tokens) {
  constexpr auto kEntry = static_cast<size_t>(kChainTokens);
  ChainHash at = store_->root();
  size_t same = 0;
  for (; same < chain_.size() && (same + 1) * kEntry <= tokens.size(); ++same) {
    at = chain_next(at, tokens.subspan(same * kEntry, kEntry));
    if (at != chain_[same]) break;
  }
  if (same == chain_.size()) return;
  chain_.resize(same);
  lost_ = false;
}

void SessionPrefix::count_step() {
  const int64_t rows = session_.position() - std::exchange(counted_, session_.position());
  if (rows <= 0 || (rows == 1 && several_rows_)) return;
  if (rows > 1 && !several_rows_) {
    several_rows_ = true;
    step_ns_ = step_tokens_ = 0;
  }
  step_ns_ += session_.last_trace().total_ns;
  step_tokens_ += rows;
}

Result<bool> SessionPrefix::put(std::span<const int32_t> tokens, int64_t count) {
  const double each = step_tokens_ > 0 ? static_cast<double>(step_ns_) / 1e9 /
                                             static_cast<double>(step_tokens_)
                                       : 0;
  const int64_t tile = next() / kKvTile;
  const auto entry = tokens.subspan(static_cast<size_t>(next()), static_cast<size_t>(count));
  const ChainHash parent = chain_.empty() ? store_->root() : chain_.back();
  HR_ASSIGN(const PrefixPut put,
            store_->put(parent, next(), entry, each * static_cast<double>(count),
                        [&](size_t layer, std::span<std::byte> out) {
                          return session_.read_kv(static_cast<int64_t>(layer), tile,
                                                  tile + count / kKvTile, out);
                        }));
  if (put == PrefixPut::kDropped) return false;
  if (count == kChainTokens) chain_.push_back(chain_next(parent, entry));
  return true;
}

Status SessionPrefix::keep(std::span<const int32_t> tokens) {
  count_step();
  const int64_t sealed = sealed_of(tokens);
  if (next() + kChainTokens <= sealed) follow(tokens);
  while (!lost_ && next() + kChainTokens <= sealed) {
    lost_ = !session_.holds_kv(next() / kKvTile);
    if (lost_) break;
    HR_ASSIGN(const bool taken, put(tokens, kChainTokens));
    if (!taken) break;  // the next call tries again
  }
  return {};
}

Status SessionPrefix::finish(std::span<const int32_t> tokens) {
  follow(tokens);
  for (int64_t before = -1; before != next();) {
    before = next();
    (void)store_->flush();  // room for what was not taken; stats() say why nothing is written
    HR_TRY(keep(tokens));
  }
  const int64_t rest = sealed_of(tokens) - next();
  if (!lost_ && rest > 0 && rest < kChainTokens && session_.holds_kv(next() / kKvTile)) {
    HR_TRY(put(tokens, rest).status());
  }
  (void)store_->flush();
  return {};
}

}  // namespace headrace
