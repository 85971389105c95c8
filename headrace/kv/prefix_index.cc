#include "headrace/kv/prefix_index.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "headrace/base/safe_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kLockName = "store.lock";

// What making room looks at.
struct Record {
  ChainHash hash, parent;
  Bytes bytes = 0;
  double priority = 0;
  int32_t children = 0;
  bool orphan = false;
};
// With its number among the leaves.
static_assert(sizeof(Record) + sizeof(uint32_t) <= 64, "prefix_memory() counts 64");

Record* find(std::vector<Record>& records, ChainHash hash) {
  const auto at = std::lower_bound(records.begin(), records.end(), hash,
                                   [](const Record& r, ChainHash h) { return r.hash < h; });
  return at != records.end() && at->hash == hash ? &*at : nullptr;
}

// Size of a regular file; -1 when it is none or is not there.
Bytes size_of(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  return info.st_size;
}

// Calls `body(name)` for each name in the folder, in no order.
template <typename Body>
Status each_name(const std::string& folder, Body body) {
  std::error_code ec;
  fs::directory_iterator at(folder, ec);
  for (; !ec && at != fs::directory_iterator(); at.increment(ec)) {
    body(at->path().filename().string());
  }
  if (!ec) return {};
  return error(Code::kIo, "%s: read folder: %s", folder.c_str(), ec.message().c_str());
}

class Evictor {
 public:
  Evictor(const std::string& folder, Bytes bytes, int64_t entries)
      : folder_(folder), bytes_(bytes), entries_(entries) {}

  // What cannot be parsed is of no use to this version, and goes at once where there is no room. At
  // most kMostPrefixEntries are held in memory; what is beyond goes too, but for `spared`.
  Status look(ChainHash spared) {
    HR_ASSIGN(room_.left, prefix_usage(folder_));
    records_.reserve(static_cast<size_t>(std::min(room_.left.entries, kMostPrefixEntries + 1)));
    const std::string spared_path = prefix_path(folder_, spared);
    return each_name(folder_, [&](const std::string& name) {
      if (prefix_file_kind(name) != PrefixFileKind::kEntry) return;
      const std::string path = folder_ + "/" + name;
      const Bytes size = size_of(path);
      if (size < 0) return;
      const auto file = PrefixFile::open(path, false);
      const bool usable = file.ok() || file.status().code() == Code::kIo;
      const bool full = static_cast<int64_t>(records_.size()) >= kMostPrefixEntries;
      if (usable ? full && path != spared_path : !fits()) {
        remove(path, size);
      } else if (file.ok()) {
        const PrefixHeader& h = file->header();
        records_.push_back({h.hash, h.parent, size, h.priority, 0, h.first > 0});
      }
    });
  }

  void make_room(ChainHash spared) {
    std::sort(records_.begin(), records_.end(),
              [](const Record& a, const Record& b) { return a.hash < b.hash; });
    for (Record& r : records_) {
      Record* const parent = find(records_, r.parent);
      if (parent == nullptr) continue;
      ++parent->children;
      r.orphan = false;
    }
    evict_leaves(spared);
  }

  const PrefixRoom& room() const { return room_; }

 private:
  // Of two leaves, whether the other goes first; the top of a heap is its largest.
  bool later(uint32_t one, uint32_t other) const {
    const Record &a = records_[one], &b = records_[other];
    if (a.orphan != b.orphan) return b.orphan;
    if (a.priority != b.priority) return a.priority > b.priority;
    return one > other;
  }

  bool fits() const { return room_.left.bytes <= bytes_ && room_.left.entries <= entries_; }

  void remove(const std::string& path, Bytes size) {
    // Another process may have been faster; then it is gone as well.
    std::error_code ec;
    fs::remove(path, ec);
    if (ec) return;
    room_.left.bytes -= size;
    room_.left.entries -= 1;
    room_.evicted_bytes += size;
    room_.evicted += 1;
  }

  void evict_leaves(ChainHash spared) {
    double clock = prefix_clock(folder_);
    const auto order = [this](uint32_t one, uint32_t other) { return later(one, other); };
    std::vector<uint32_t> leaves;
    leaves.reserve(records_.size());
    const auto offer = [&](size_t i) {
      const Record& r = records_[i];
      if (r.children != 0 || r.hash == spared) return;
      leaves.push_back(static_cast<uint32_t>(i));
      std::push_heap(leaves.begin(), leaves.end(), order);
    };
    for (size_t i = 0; i < records_.size(); ++i) offer(i);
    while (!fits() && !leaves.empty()) {
      std::pop_heap(leaves.begin(), leaves.end(), order);
      const Record& r = records_[leaves.back()];
      leaves.pop_back();
      remove(prefix_path(folder_, r.hash), r.bytes);
      if (!r.orphan) clock = std::max(clock, r.priority);
      Record* const parent = find(records_, r.parent);
      if (parent == nullptr) continue;
      --parent->children;
      offer(static_cast<size_t>(parent - records_.data()));
    }
    write_use(prefix_lock_path(folder_), 0, clock);
  }

  const std::string& folder_;
  const Bytes bytes_;
  const int64_t entries_;
  std::vector<Record> records_;
  PrefixRoom room_;
};

}  // namespace

std::string prefix_lock_path(const std::string& folder) {
  return folder + "/" + std::string(kLockName);
}

double prefix_clock(const std::string& folder) { return read_use(prefix_lock_path(folder), 0); }

PrefixFileKind prefix_file_kind(const std::string& file_name) {
  std::string_view name = file_name;
  if (name == kLockName) return PrefixFileKind::kLock;
  const bool partial = name.ends_with(kPartial);
  if (partial) name.remove_suffix(kPartial.size());
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const bool entry = name.size() == 35 && name.ends_with(".kv") &&
                     std::all_of(name.begin(), name.begin() + 32, is_hex);
  const bool named = name.size() > 7 && name.ends_with(".prefix") && name[0] != '.';
  if (!entry && !named) return PrefixFileKind::kForeign;
  if (partial) return PrefixFileKind::kTemporary;
  return entry ? PrefixFileKind::kEntry : PrefixFileKind::kName;
}

Result<std::vector<std::string>> prefix_files(const std::string& folder) {
  std::vector<std::string> names;
  HR_TRY(each_name(folder, [&](std::string name) { names.push_back(std::move(name)); }));
  std::sort(names.begin(), names.end());
  return names;
}

Result<PrefixUsage> prefix_usage(const std::string& folder) {
  PrefixUsage usage;
  HR_TRY(each_name(folder, [&](const std::string& name) {
    if (prefix_file_kind(name) != PrefixFileKind::kEntry) return;
    const Bytes size = size_of(folder + "/" + name);
    if (size < 0) return;
    usage.entries += 1;
    usage.bytes += size;
  }));
  return usage;
}

Result<PrefixRoom> evict_prefixes(const std::string& folder, Bytes bytes, int64_t entries,
                                  ChainHash spared) {
  Evictor evictor(folder, bytes, entries);
  HR_TRY(evictor.look(spared));
  evictor.make_room(spared);
  return evictor.room();
}

int64_t remove_prefix_leftovers(const std::string& folder) {
  int64_t removed = 0;
  // What the folder refuses to show cannot be removed either; open() says why.
  (void)each_name(folder, [&](const std::string& name) {
    if (prefix_file_kind(name) != PrefixFileKind::kTemporary) return;
    const std::string path = folder + "/" + name;
    if (size_of(path) < 0) return;
    removed += AtomicFile::remove_leftover(path.substr(0, path.size() - kPartial.size()));
  });
  return removed;
}

}  // namespace headrace
