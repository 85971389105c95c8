#include "headrace/kv/prefix_store.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "headrace/base/safe_file.h"
#include "headrace/tier/small_thread.h"

namespace headrace {
namespace {

Status check_layout(const PrefixLayout& layout) {
  if (layout.tile_bytes.empty() || layout.tile_bytes.size() > 1024) {
    return error(Code::kUsage, "a prefix store is for 1 to 1024 layers, not %zu",
                 layout.tile_bytes.size());
  }
  for (const Bytes tile : layout.tile_bytes) {
    if (tile >= 0 && tile <= kGiB) continue;
    return error(Code::kUsage, "a prefix store is for tiles of 0 to 1 GiB, not of %lld bytes",
                 static_cast<long long>(tile));
  }
  return {};
}

PrefixEntry entry_of(const PrefixHeader& h) {
  return {h.hash, h.first, static_cast<int64_t>(h.tokens.size()), h.file_bytes(),
          h.recompute_seconds};
}

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

Bytes prefix_memory(const PrefixOptions& options) {
  const Bytes entry = prefix_file_bytes(options.layout, kChainTokens);
  int64_t entries = kMostPrefixEntries;
  if (options.limit_bytes > 0) {
    entries = std::min<int64_t>(entries, options.limit_bytes / entry + 1);
  }
  const Bytes writing = options.staging_bytes > 0
                            ? options.staging_bytes + static_cast<Bytes>(kSmallStackBytes) +
                                  64 * entries
                            : 0;
  return writing + prefix_buffer_bytes(options.layout.tile_bytes);
}

bool restore_pays(const PrefixHit& hit, double bytes_per_second, double seconds_per_entry) {
  if (hit.tokens == 0 || !(bytes_per_second > 0)) return false;
  const double seconds = static_cast<double>(hit.bytes) / bytes_per_second +
                         static_cast<double>(hit.entries.size()) * seconds_per_entry;
  return seconds < hit.recompute_seconds;
}

PrefixStore::PrefixStore(std::string folder, const PrefixOptions& options)
    : folder_(std::move(folder)),
      options_(options),
      root_(chain_start(options.layout.model, options.layout.format, options.layout.salt)),
      buffer_bytes_(prefix_buffer_bytes(options.layout.tile_bytes)),
      writer_({folder_, options.limit_bytes, options.staging_bytes, root_}) {}

Result<std::unique_ptr<PrefixStore>> PrefixStore::open(const std::string& folder,
                                                       const PrefixOptions& options) {
  HR_TRY(check_layout(options.layout));
  HR_TRY(make_folders(folder));
  HR_TRY(prefix_usage(folder).status());  // readable
  std::unique_ptr<PrefixStore> store(new PrefixStore(folder, options));
  if (options.staging_bytes <= 0) {
    store->writer_.stop("no memory is set aside for writing");
    return store;
  }
  // The lock file is what every writer makes: where it cannot be, nothing can.
  const auto lock = FileLock::take(prefix_lock_path(folder), false);
  if (!lock.ok()) {
    store->writer_.stop("the prefix store is only read: " + lock.status().message());
    return store;
  }
  (void)remove_prefix_leftovers(folder);
  HR_TRY(store->writer_.start());
  return store;
}

bool PrefixStore::same_layout(const PrefixHeader& h) const {
  const PrefixLayout& layout = options_.layout;
  return h.model == layout.model && h.format == layout.format && h.tile_bytes == layout.tile_bytes;
}

Result<PrefixFile> PrefixStore::find(ChainHash hash, ChainHash parent, int64_t first,
                                     std::span<const int32_t> tokens, bool for_payload) const {
  HR_ASSIGN(PrefixFile file, PrefixFile::open(prefix_path(folder_, hash), for_payload));
  const PrefixHeader& h = file.header();
  if (same_layout(h) && h.hash == hash && h.parent == parent && h.first == first &&
      std::equal(h.tokens.begin(), h.tokens.end(), tokens.begin(), tokens.end())) {
    return file;
  }
  return error(Code::kUnsupported, "%s: holds something else", to_text(hash).c_str());
}

void PrefixStore::met(const Status& status, ChainHash hash) {
  if (status.code() != Code::kBadFile) return;
  {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.corrupted;
  }
  if (writer_.stopped().empty()) ::unlink(prefix_path(folder_, hash).c_str());
}

PrefixHit PrefixStore::lookup(std::span<const int32_t> tokens) {
  PrefixHit hit;
  ChainHash parent = root_;
  for (bool whole = true; whole;) {
    whole = false;
    const auto left = static_cast<int64_t>(tokens.size()) - hit.tokens;
    for (int64_t n = std::min(kChainTokens, round_down(left, kKvTile)); n > 0; n -= kKvTile) {
      const auto part = tokens.subspan(static_cast<size_t>(hit.tokens), static_cast<size_t>(n));
      const ChainHash hash = chain_next(parent, part);
      if (!is_there(prefix_path(folder_, hash))) continue;
      const auto file = find(hash, parent, hit.tokens, part, false);
      met(file.status(), hash);
      if (!file.ok()) continue;
      hit.entries.push_back(entry_of(file->header()));
      hit.tokens += n;
      hit.bytes += hit.entries.back().bytes;
      hit.recompute_seconds += hit.entries.back().recompute_seconds;
      parent = hash;
      whole = n == kChainTokens;
      break;
    }
  }
  const std::lock_guard lock(stats_mutex_);
  ++(hit.tokens > 0 ? stats_.hits : stats_.misses);
  stats_.hit_tokens += hit.tokens;
  return hit;
}

Result<PrefixFile> PrefixStore::open_again(const PrefixEntry& entry) const {
  HR_ASSIGN(PrefixFile file, PrefixFile::open(prefix_path(folder_, entry.hash), true));
  const PrefixHeader& h = file.header();
  // The hash was compared with the tokens by lookup(), and the name with the hash just now.
  if (same_layout(h) && h.first == entry.first &&
      static_cast<int64_t>(h.tokens.size()) == entry.tokens &&
      chain_next(h.parent, h.tokens) == entry.hash) {
    return file;
  }
  return error(Code::kBadFile, "%s: holds something else now", to_text(entry.hash).c_str());
}

Status PrefixStore::read_with(
    const PrefixEntry& entry,
    const std::function<Status(const PrefixFile&, std::span<std::byte>)>& body) {
  const std::lock_guard lock(buffer_mutex_);
  if (buffer_ == nullptr) buffer_ = make_page_bytes(buffer_bytes_);
  if (buffer_ == nullptr) {
    return error(Code::kDoesNotFit, "no memory for a read buffer of %s",
                 human_bytes(buffer_bytes_).c_str());
  }
  const auto file = open_again(entry);
  const Status status =
      file.ok() ? body(*file, {buffer_.get(), static_cast<size_t>(buffer_bytes_)})
                : file.status();
  return status;
}

Status PrefixStore::read(
    const PrefixEntry& entry,
    const std::function<Status(size_t, std::span<const std::byte>)>& take) {
  Status taken;  // told apart: an error of the caller's says nothing about the file
  const Status status =
      read_with(entry, [&](const PrefixFile& file, std::span<std::byte> buffer) {
        return file.read(0, file.header().layers(), buffer,
                         [&](size_t layer, std::span<const std::byte> bytes) {
                           return taken = take(layer, bytes);
                         });
      });
  if (!taken.ok()) return taken;
  met(status, entry.hash);
  if (!status.ok()) return status;
  if (writer_.stopped().empty()) {
    write_use(prefix_path(folder_, entry.hash), kUseOffset,
              prefix_clock(folder_) + entry.recompute_seconds / static_cast<double>(entry.bytes));
  }
  const std::lock_guard lock(stats_mutex_);
  stats_.read_bytes += entry.bytes;
  return {};
}

Status PrefixStore::read_layer(const PrefixEntry& entry, size_t layer, std::span<std::byte> out) {
  HR_CHECK(layer < options_.layout.tile_bytes.size(), "a layer of the model");
  const Status status =
      read_with(entry, [&](const PrefixFile& file, std::span<std::byte> buffer) {
        return file.read_layer(layer, out, buffer);
      });
  met(status, entry.hash);
  if (!status.ok()) return status;
  const std::lock_guard lock(stats_mutex_);
  stats_.read_bytes += static_cast<Bytes>(out.size());
  return {};
}

Result<PrefixPut> PrefixStore::put(
    ChainHash parent, int64_t first, std::span<const int32_t> tokens, double recompute_seconds,
    const std::function<Status(size_t, std::span<std::byte>)>& fill) {
  const auto count = static_cast<int64_t>(tokens.size());
  HR_CHECK(count > 0 && count <= kChainTokens && count % kKvTile == 0, "tiles of one entry");
  HR_CHECK(first >= 0 && first % kChainTokens == 0, "entries begin at multiples of 256");
  const ChainHash hash = chain_next(parent, tokens);
  if (writer_.queued(hash) || find(hash, parent, first, tokens, false).ok()) {
    return PrefixPut::kThere;
  }
  PrefixHeader h;
  h.hash = hash;
  h.parent = parent;
  h.model = options_.layout.model;
  h.format = options_.layout.format;
  h.label = options_.layout.label;
  h.first = first;
  h.tokens.assign(tokens.begin(), tokens.end());
  h.tile_bytes = options_.layout.tile_bytes;
  // A clock that ran backwards is no reason to fail.
  h.recompute_seconds =
      std::isfinite(recompute_seconds) ? std::max(0.0, recompute_seconds) : 0.0;
  const Bytes bytes = h.file_bytes();
  PageBytes memory = writer_.take(bytes);
  if (memory == nullptr) return PrefixPut::kDropped;
  Bytes at = h.header_bytes();
  for (size_t layer = 0; layer < h.layers(); ++layer) {
    const Bytes n = h.layer_bytes(layer);
    if (Status status = fill(layer, {memory.get() + at, static_cast<size_t>(n)}); !status.ok()) {
      writer_.put_back(std::move(memory), bytes);
      return status;
    }
    std::memset(memory.get() + at + n, 0, static_cast<size_t>(round_up(n, kPage) - n));
    at += round_up(n, kPage);
  }
  writer_.give(std::move(h), std::move(memory));
  return PrefixPut::kQueued;
}

Status PrefixStore::flush() {
  writer_.flush();
  const std::string why = writer_.stopped();
  return why.empty() ? Status() : Status(Code::kIo, why);
}

Status PrefixStore::save_name(const std::string& name, std::span<const int32_t> tokens) {
  NamedPrefix prefix;
  prefix.name = name;
  prefix.model = options_.layout.model;
  prefix.format = options_.layout.format;
  prefix.hash = chain_over(root_, tokens);
  prefix.tokens.assign(tokens.begin(), tokens.end());
  prefix.saved = static_cast<int64_t>(::time(nullptr));
  return write_named_prefix(folder_, prefix);
}

Result<std::vector<int32_t>> PrefixStore::load_name(const std::string& name) const {
  return tokens_of_name(folder_, name, options_.layout.model);
}

PrefixStats PrefixStore::stats() const {
  PrefixStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  stats.written = writer_.written();
  stats.not_writing = writer_.stopped();
  return stats;
}

}  // namespace headrace
