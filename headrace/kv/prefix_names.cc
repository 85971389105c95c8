#include "headrace/kv/prefix_names.h"

#include <array>
#include <cstring>
#include <filesystem>

#include "headrace/base/safe_file.h"

namespace headrace {
namespace {

constexpr std::array<char, 8> kMagic = {'H', 'R', 'n', 'a', 'm', 'e', 'd', '\0'};
constexpr uint32_t kVersion = 1;
constexpr size_t kMostTokens = size_t{1} << 24;
constexpr size_t kMostName = 100;

struct Fixed {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t format;
  ChainHash sum;  // of the file with this zero
  ChainHash hash;
  uint64_t model;
  int64_t saved;
  uint64_t tokens;
};
static_assert(sizeof(Fixed) == 72, "no padding");

std::string path_of(const std::string& folder, const std::string& name) {
  return folder + "/" + name + ".prefix";
}

// Precondition: `text` has a Fixed at its start.
ChainHash sum_of(std::string text) {
  std::memset(text.data() + offsetof(Fixed, sum), 0, sizeof(ChainHash));
  return prefix_sum(std::as_bytes(std::span(text)));
}

Status bad(const std::string& path, const char* why) {
  return error(Code::kBadFile, "%s: %s", path.c_str(), why);
}

}  // namespace

Status check_prefix_name(const std::string& name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (!name.empty() && name.size() <= kMostName && name[0] != '.' &&
      name.find_first_not_of(kAllowed) == std::string::npos) {
    return {};
  }
  return error(Code::kUsage,
               "a prefix's name has 1 to %zu letters, digits, '.', '_' and '-', and does not begin "
               "with '.'",
               kMostName);
}

bool has_named_prefix(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  return check_prefix_name(name).ok() && std::filesystem::exists(path_of(folder, name), ignored);
}

namespace {

Status check_there(const std::string& folder, const std::string& name) {
  HR_TRY(check_prefix_name(name));
  if (has_named_prefix(folder, name)) return {};
  return error(Code::kUsage, "%s: there is no prefix named '%s'", folder.c_str(), name.c_str());
}

}  // namespace

Status write_named_prefix(const std::string& folder, const NamedPrefix& prefix) {
  HR_TRY(check_prefix_name(prefix.name));
  const size_t count = prefix.tokens.size();
  if (count > kMostTokens) {
    return error(Code::kUsage, "prefix '%s': %zu tokens; at most %zu are saved",
                 prefix.name.c_str(), count, kMostTokens);
  }
  Fixed f = {};
  f.magic = kMagic;
  f.version = kVersion;
  f.format = static_cast<uint32_t>(prefix.format);
  f.hash = prefix.hash;
  f.model = prefix.model;
  f.saved = prefix.saved;
  f.tokens = count;
  std::string text(sizeof(f) + count * sizeof(int32_t), '\0');
  std::memcpy(text.data(), &f, sizeof(f));
  if (count > 0) {
    std::memcpy(text.data() + sizeof(f), prefix.tokens.data(), count * sizeof(int32_t));
  }
  const ChainHash sum = sum_of(text);
  std::memcpy(text.data() + offsetof(Fixed, sum), &sum, sizeof(sum));
  return write_atomically(path_of(folder, prefix.name), text);
}

Result<NamedPrefix> read_named_prefix(const std::string& folder, const std::string& name) {
  HR_TRY(check_there(folder, name));
  const std::string path = path_of(folder, name);
  HR_ASSIGN(const std::string text,
            read_text(path, static_cast<Bytes>(sizeof(Fixed) + kMostTokens * sizeof(int32_t))));
  Fixed f;
  if (text.size() < sizeof(f)) return bad(path, "ends inside the header");
  std::memcpy(&f, text.data(), sizeof(f));
  if (f.magic != kMagic) return bad(path, "no named prefix");
  if (f.version != kVersion) {
    return error(Code::kUnsupported, "%s: version %u; this program reads version %u", path.c_str(),
                 f.version, kVersion);
  }
  if (f.tokens > kMostTokens || text.size() != sizeof(f) + f.tokens * sizeof(int32_t)) {
    return bad(path, "has not the size that its header says");
  }
  if (sum_of(text) != f.sum || f.format >= kKvFormatCount) return bad(path, "is damaged");
  NamedPrefix prefix;
  prefix.name = name;
  prefix.model = f.model;
  prefix.format = static_cast<KvFormat>(f.format);
  prefix.hash = f.hash;
  prefix.saved = f.saved;
  prefix.tokens.resize(f.tokens);
  if (f.tokens > 0) {
    std::memcpy(prefix.tokens.data(), text.data() + sizeof(f), f.tokens * sizeof(int32_t));
  }
  return prefix;
}

Result<std::vector<int32_t>> tokens_of_name(const std::string& folder, const std::string& name,
                                            uint64_t model) {
  HR_ASSIGN(NamedPrefix prefix, read_named_prefix(folder, name));
  if (prefix.model == model) return std::move(prefix.tokens);
  return error(Code::kUnsupported,
               "prefix '%s' was saved with another model (fingerprint %016llx, not %016llx)",
               name.c_str(), static_cast<unsigned long long>(prefix.model),
               static_cast<unsigned long long>(model));
}

Status remove_named_prefix(const std::string& folder, const std::string& name) {
  HR_TRY(check_there(folder, name));
  return remove_path(path_of(folder, name));
}

}  // namespace headrace
