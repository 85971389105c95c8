#include "headrace/session/prefix.h"

#include "headrace/base/system.h"
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

Result<std::unique_ptr<SessionPrefix>> SessionPrefix::open(const Model& model, Session& session,
                                                           const PrefixSettings& settings) {
  PrefixOptions o = options_for(model.config, session.plan().options.kv_format);
  o.limit_bytes = settings.limit_bytes;
  // What sparse steps have computed is not what exact ones would.
  o.layout.salt = static_cast<uint64_t>(session.plan().options.sparse_tokens);
  HR_ASSIGN(o.layout.model, model_fingerprint(model.file));
  o.layout.label = settings.label;
  HR_ASSIGN(auto store, PrefixStore::open(settings.folder, o));
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
  parent_ = store_->root();
  next_ = from_ = 0;
  lost_ = false;
  since_ = monotonic_ns();
  if (tokens.size() < 2) return 0;
  // The last token is computed in any case: its logits are wanted.
  const PrefixHit hit = store_->lookup(tokens.first(tokens.size() - 1));
  const Machine& machine = session_.plan().options.machine;
  if (hit.tokens == 0 || !restore_pays(hit, machine.tiers[1].load_bytes_per_s)) return 0;
  int64_t there = 0;
  for (const PrefixEntry& entry : hit.entries) {
    const Status status = write_entry(entry);
    // What cannot be read is computed; what cannot be written is the session's trouble.
    if (!status.ok() && !session_.failed().ok()) return status;
    if (!status.ok()) break;
    there = entry.first + entry.tokens;
    if (entry.tokens < kChainTokens) continue;
    parent_ = entry.hash;
    next_ = there;
  }
  HR_TRY(session_.set_position(there));
  from_ = there;
  since_ = monotonic_ns();
  return there;
}

Result<bool> SessionPrefix::put(std::span<const int32_t> tokens, int64_t count) {
  const Nanos took = monotonic_ns() - since_;
  const double each = session_.position() > from_
                          ? static_cast<double>(took) / 1e9 /
                                static_cast<double>(session_.position() - from_)
                          : 0;
  const int64_t tile = next_ / kKvTile;
  const auto entry = tokens.subspan(static_cast<size_t>(next_), static_cast<size_t>(count));
  HR_ASSIGN(const PrefixPut put,
            store_->put(parent_, next_, entry, each * static_cast<double>(count),
                        [&](size_t layer, std::span<std::byte> out) {
                          return session_.read_kv(static_cast<int64_t>(layer), tile,
                                                  tile + count / kKvTile, out);
                        }));
  return put != PrefixPut::kDropped;
}

Status SessionPrefix::keep(std::span<const int32_t> tokens) {
  const int64_t sealed = sealed_of(tokens);
  while (!lost_ && next_ + kChainTokens <= sealed) {
    if (!session_.holds_kv(next_ / kKvTile)) {
      lost_ = true;
      break;
    }
    HR_ASSIGN(const bool taken, put(tokens, kChainTokens));
    if (!taken) break;  // the next call tries again
    parent_ = chain_next(parent_, tokens.subspan(static_cast<size_t>(next_), kChainTokens));
    next_ += kChainTokens;
  }
  return {};
}

Status SessionPrefix::finish(std::span<const int32_t> tokens) {
  HR_TRY(keep(tokens));
  (void)store_->flush();  // room for what was not taken; stats() say why nothing is written
  HR_TRY(keep(tokens));
  const int64_t rest = sealed_of(tokens) - next_;
  if (!lost_ && rest > 0 && rest < kChainTokens && session_.holds_kv(next_ / kKvTile)) {
    HR_TRY(put(tokens, rest).status());
  }
  (void)store_->flush();
  return {};
}

}  // namespace headrace
