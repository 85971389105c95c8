#include "headrace/kv/prefix_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "headrace/kv/prefix_index.h"

namespace headrace {
namespace {

class Lister {
 public:
  Lister(const std::string& folder, bool verify) : folder_(folder), verify_(verify) {}

  Status look(const std::function<bool(Bytes, Bytes)>& progress) {
    HR_ASSIGN(const std::vector<std::string> files, prefix_files(folder_));
    HR_ASSIGN(const PrefixUsage usage, prefix_usage(folder_));
    Bytes done = 0;
    for (const std::string& file : files) {
      struct stat info = {};
      if (::lstat((folder_ + "/" + file).c_str(), &info) != 0) continue;
      PrefixFileKind kind = prefix_file_kind(file);
      if (!S_ISREG(info.st_mode)) kind = PrefixFileKind::kForeign;
      switch (kind) {
        case PrefixFileKind::kEntry:
          HR_TRY(entry(file, info));
          done += info.st_size;
          break;
        case PrefixFileKind::kName: HR_TRY(name(file, info.st_size)); break;
        case PrefixFileKind::kTemporary: out_.temporary.push_back(file); break;
        case PrefixFileKind::kForeign: out_.foreign.push_back(file); break;
        case PrefixFileKind::kLock: break;
      }
      if (progress && !progress(done, std::max(done, usage.bytes))) {
        return error(Code::kCancelled, "stopped");
      }
    }
    return {};
  }

  PrefixListing finish() {
    std::sort(out_.entries.begin(), out_.entries.end(),
              [](const ListedEntry& a, const ListedEntry& b) { return a.hash < b.hash; });
    chains();
    for (size_t i = 0; i < out_.names.size(); ++i) {
      out_.names[i].kept_tokens = kept(out_.names[i].prefix);
      out_.names[i].prefix.tokens = {};
    }
    return std::move(out_);
  }

 private:
  Status bad(const std::string& file, Bytes bytes, const Status& why) {
    // Its path is said by `file`.
    std::string text = why.message();
    const std::string path = folder_ + "/" + file + ": ";
    if (text.starts_with(path)) text.erase(0, path.size());
    out_.bad.push_back({file, text, bytes});
    return {};
  }

  Status entry(const std::string& file, const struct stat& info) {
    const auto opened = PrefixFile::open(folder_ + "/" + file, verify_);
    struct stat now = {};
    if (!opened.ok() && ::lstat((folder_ + "/" + file).c_str(), &now) != 0) return {};
    if (!opened.ok()) return bad(file, info.st_size, opened.status());
    const PrefixHeader& h = opened->header();
    if (verify_) {
      const Bytes want = prefix_buffer_bytes(h.tile_bytes);
      if (want > buffer_bytes_) {
        buffer_ = make_page_bytes(want);
        buffer_bytes_ = buffer_ == nullptr ? 0 : want;
      }
      if (buffer_ == nullptr) {
        return error(Code::kDoesNotFit, "no memory for a layer of %s", human_bytes(want).c_str());
      }
      const Status right = opened->verify({buffer_.get(), static_cast<size_t>(buffer_bytes_)});
      if (!right.ok()) return bad(file, info.st_size, right);
    }
    ListedEntry e;
    e.hash = h.hash;
    e.parent = h.parent;
    e.model = h.model;
    e.format = h.format;
    e.label = h.label;
    e.first = h.first;
    e.tokens = static_cast<int64_t>(h.tokens.size());
    e.bytes = info.st_size;
    e.recompute_seconds = h.recompute_seconds;
    e.priority = h.priority;
    e.created = h.created;
    e.used = info.st_mtim.tv_sec;
    out_.entry_bytes += e.bytes;
    out_.entries.push_back(std::move(e));
    return {};
  }

  Status name(const std::string& file, Bytes bytes) {
    const std::string name = file.substr(0, file.size() - std::string_view(".prefix").size());
    auto prefix = read_named_prefix(folder_, name);
    if (!prefix.ok()) return bad(file, bytes, prefix.status());
    ListedName listed;
    listed.tokens = static_cast<int64_t>(prefix->tokens.size());
    listed.prefix = std::move(*prefix);
    out_.names.push_back(std::move(listed));
    return {};
  }

  void chains() {
    std::set<ChainHash> parents;
    for (const ListedEntry& e : out_.entries) parents.insert(e.parent);
    for (size_t i = 0; i < out_.entries.size(); ++i) {
      ListedChain chain;
      chain.last = i;
      const ListedEntry* at = &out_.entries[i];
      for (;;) {
        chain.tokens += at->tokens;
        chain.bytes += at->bytes;
        chain.recompute_seconds += at->recompute_seconds;
        if (at->first == 0) break;
        const ListedEntry* const before = out_.find(at->parent);
        // Positions go down, so that this ends whatever the files say.
        if (before == nullptr || before->first >= at->first) break;
        at = before;
      }
      ListedEntry& last = out_.entries[i];
      last.reachable = at->first == 0;
      if (last.reachable && !parents.contains(last.hash)) out_.chains.push_back(chain);
    }
  }

  // The salt of the chain is not known here: every start that entries of the same kind have is
  // tried.
  int64_t kept(const NamedPrefix& prefix) const {
    std::set<ChainHash> starts;
    for (const ListedEntry& e : out_.entries) {
      if (e.first == 0 && e.model == prefix.model && e.format == prefix.format) {
        starts.insert(e.parent);
      }
    }
    int64_t most = 0;
    for (const ChainHash start : starts) {
      if (chain_over(start, prefix.tokens) != prefix.hash) continue;
      most = std::max(most, found(start, prefix));
    }
    return most;
  }

  int64_t found(ChainHash parent, const NamedPrefix& prefix) const {
    const std::span<const int32_t> tokens(prefix.tokens);
    int64_t count = 0;
    for (int64_t n = kChainTokens; n > 0;) {
      const int64_t left = static_cast<int64_t>(tokens.size()) - count;
      n = std::min(n, round_down(left, kKvTile));
      if (n == 0) break;
      const ChainHash hash = chain_next(
          parent, tokens.subspan(static_cast<size_t>(count), static_cast<size_t>(n)));
      if (out_.find(hash) == nullptr) {
        n -= kKvTile;
        continue;
      }
      count += n;
      if (n < kChainTokens) break;
      parent = hash;
    }
    return count;
  }

  const std::string& folder_;
  const bool verify_;
  PrefixListing out_;
  PageBytes buffer_;
  Bytes buffer_bytes_ = 0;
};

}  // namespace

const ListedEntry* PrefixListing::find(ChainHash hash) const {
  const auto at = std::lower_bound(entries.begin(), entries.end(), hash,
                                   [](const ListedEntry& e, ChainHash h) { return e.hash < h; });
  return at != entries.end() && at->hash == hash ? &*at : nullptr;
}

Result<PrefixListing> list_prefixes(const std::string& folder, bool verify,
                                    const std::function<bool(Bytes, Bytes)>& progress) {
  Lister lister(folder, verify);
  HR_TRY(lister.look(progress));
  return lister.finish();
}

}  // namespace headrace
