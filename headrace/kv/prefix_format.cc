#include "headrace/kv/prefix_format.h"

#include <fcntl.h>
#include <unistd.h>

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::array<char, 8> kMagic = {'H', 'R', 'p', 'r', 'e', 'f', 'i', 'x'};
// Goes up with any change of this layout or of what the bytes of a tile mean.
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostLayers = 1024;
constexpr Bytes kMostTileBytes = kGiB;
constexpr int64_t kMostFirst = int64_t{1} << 40;
constexpr size_t kLabelBytes = 64;
constexpr Bytes kReadPiece = 4 * kMiB;

struct UseRecord {
  double priority;
  uint64_t check;
};

struct Fixed {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t check;  // of the header with this and `use` zero
  ChainHash hash, parent;
  uint64_t model;
  std::array<char, kLabelBytes> label;
  uint32_t format;
  uint32_t layers;
  int64_t first;
  uint32_t tokens;
  uint32_t zero;
  UseRecord use;
  double recompute_seconds;
  int64_t created;
  Bytes file_bytes;
};
static_assert(sizeof(Fixed) == 192 && offsetof(Fixed, use) == kUseOffset, "no padding");

struct LayerRecord {
  Bytes tile_bytes;
  ChainHash sum;
};
static_assert(sizeof(LayerRecord) == 24, "no padding");

Bytes header_size(size_t tokens, size_t layers) {
  return round_up(static_cast<Bytes>(sizeof(Fixed) + tokens * sizeof(int32_t) +
                                     layers * sizeof(LayerRecord)),
                  kPage);
}

UseRecord use_of(double priority) {
  return {priority, XXH3_64bits_withSeed(&priority, sizeof(priority), kVersion)};
}

// Whether it is what use_of() made.
bool valid(const UseRecord& use) {
  return std::isfinite(use.priority) && use.priority >= 0 &&
         use_of(use.priority).check == use.check;
}

uint64_t check_of(std::span<const std::byte> header) {
  Fixed fixed;
  std::memcpy(&fixed, header.data(), sizeof(fixed));
  fixed.check = 0;
  fixed.use = {};
  const uint64_t start = XXH3_64bits(&fixed, sizeof(fixed));
  const auto rest = header.subspan(sizeof(fixed));
  return XXH3_64bits_withSeed(rest.data(), rest.size(), start);
}

Status bad(const char* what) { return error(Code::kBadFile, "%s", what); }

Status check_fixed(const Fixed& f) {
  if (f.magic != kMagic) return bad("no entry of a prefix store");
  if (f.version != kVersion) {
    return error(Code::kUnsupported, "version %u; this program reads version %u", f.version,
                 kVersion);
  }
  if (f.tokens == 0 || f.tokens > kChainTokens || f.tokens % kKvTile != 0 || f.layers == 0 ||
      f.layers > kMostLayers || f.header_bytes != header_size(f.tokens, f.layers)) {
    return bad("the header's sizes do not agree");
  }
  return {};
}

Result<Fixed> fixed_of(std::span<const std::byte> bytes) {
  Fixed f;
  if (bytes.size() < sizeof(f)) return bad("ends inside the header");
  std::memcpy(&f, bytes.data(), sizeof(f));
  HR_TRY(check_fixed(f));
  return f;
}

Status check_values(const Fixed& f) {
  if (f.format >= kKvFormatCount || f.zero != 0 || f.first < 0 || f.first > kMostFirst ||
      f.first % kChainTokens != 0 || !std::isfinite(f.recompute_seconds) ||
      f.recompute_seconds < 0 || f.label.back() != 0) {
    return bad("the header has an impossible value");
  }
  return {};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
}

bool on_pages(std::span<const std::byte> out) {
  return reinterpret_cast<uintptr_t>(out.data()) % kPage == 0 && out.size() % kPage == 0;
}

}  // namespace

Bytes PrefixHeader::header_bytes() const { return header_size(tokens.size(), layers()); }

Bytes PrefixHeader::layer_bytes(size_t layer) const {
  return static_cast<Bytes>(tokens.size()) / kKvTile * tile_bytes[layer];
}

Bytes PrefixHeader::layer_begin(size_t layer) const {
  Bytes at = header_bytes();
  for (size_t i = 0; i < layer; ++i) at += round_up(layer_bytes(i), kPage);
  return at;
}

Bytes PrefixHeader::file_bytes() const { return layer_begin(layers()); }

Bytes prefix_file_bytes(const PrefixLayout& layout, int64_t tokens) {
  Bytes total = header_size(static_cast<size_t>(tokens), layout.tile_bytes.size());
  for (const Bytes tile : layout.tile_bytes) total += round_up(tokens / kKvTile * tile, kPage);
  return total;
}

void encode(const PrefixHeader& h, std::span<std::byte> out) {
  HR_CHECK(static_cast<Bytes>(out.size()) == h.header_bytes(), "room for the header");
  HR_CHECK(h.sums.size() == h.layers(), "a checksum for each layer");
  std::memset(out.data(), 0, out.size());
  Fixed f = {};
  f.magic = kMagic;
  f.version = kVersion;
  f.header_bytes = static_cast<uint32_t>(out.size());
  f.hash = h.hash;
  f.parent = h.parent;
  f.model = h.model;
  std::memcpy(f.label.data(), h.label.data(), std::min(h.label.size(), kLabelBytes - 1));
  f.format = static_cast<uint32_t>(h.format);
  f.layers = static_cast<uint32_t>(h.layers());
  f.first = h.first;
  f.tokens = static_cast<uint32_t>(h.tokens.size());
  f.use = use_of(h.priority);
  f.recompute_seconds = h.recompute_seconds;
  f.created = h.created;
  f.file_bytes = h.file_bytes();
  std::byte* at = out.data() + sizeof(f);
  std::memcpy(at, h.tokens.data(), h.tokens.size() * sizeof(int32_t));
  at += h.tokens.size() * sizeof(int32_t);
  for (size_t i = 0; i < h.layers(); ++i, at += sizeof(LayerRecord)) {
    const LayerRecord layer = {h.tile_bytes[i], h.sums[i]};
    std::memcpy(at, &layer, sizeof(layer));
  }
  std::memcpy(out.data(), &f, sizeof(f));
  f.check = check_of(out);
  std::memcpy(out.data(), &f, sizeof(f));
}

Result<Bytes> header_bytes_of(std::span<const std::byte> page) {
  HR_ASSIGN(const Fixed f, fixed_of(page));
  return static_cast<Bytes>(f.header_bytes);
}

Result<PrefixHeader> parse(std::span<const std::byte> bytes, Bytes file_bytes) {
  HR_ASSIGN(const Fixed f, fixed_of(bytes));
  if (bytes.size() < f.header_bytes) return bad("ends inside the header");
  if (check_of(bytes.first(f.header_bytes)) != f.check) return bad("the header is damaged");
  HR_TRY(check_values(f));
  PrefixHeader h;
  h.hash = f.hash;
  h.parent = f.parent;
  h.model = f.model;
  h.format = static_cast<KvFormat>(f.format);
  h.label = f.label.data();  // ends in a zero: checked
  h.first = f.first;
  h.recompute_seconds = f.recompute_seconds;
  h.created = f.created;
  h.use_record_ok = valid(f.use);
  h.priority = h.use_record_ok ? f.use.priority : 0;
  const std::byte* at = bytes.data() + sizeof(f);
  h.tokens.resize(f.tokens);
  std::memcpy(h.tokens.data(), at, f.tokens * sizeof(int32_t));
  at += f.tokens * sizeof(int32_t);
  h.tile_bytes.resize(f.layers);
  h.sums.resize(f.layers);
  for (size_t i = 0; i < f.layers; ++i, at += sizeof(LayerRecord)) {
    LayerRecord layer;
    std::memcpy(&layer, at, sizeof(layer));
    if (layer.tile_bytes < 0 || layer.tile_bytes > kMostTileBytes) {
      return bad("the header has an impossible tile size");
    }
    h.tile_bytes[i] = layer.tile_bytes;
    h.sums[i] = layer.sum;
  }
  if (h.file_bytes() != f.file_bytes) return bad("the header's sizes do not agree");
  if (file_bytes != f.file_bytes) {
    return error(Code::kBadFile, "has %lld bytes instead of %lld",
                 static_cast<long long>(file_bytes), static_cast<long long>(f.file_bytes));
  }
  return h;
}

ChainHash prefix_sum(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

std::string prefix_path(const std::string& folder, ChainHash hash) {
  return folder + "/" + to_text(hash) + ".kv";
}

void write_use(const std::string& path, Bytes offset, double priority) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  const UseRecord use = use_of(priority);
  (void)!::pwrite(descriptor, &use, sizeof(use), offset);
  ::close(descriptor);
}

double read_use(const std::string& path, Bytes offset) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  UseRecord use = {};
  const bool whole = ::pread(descriptor, &use, sizeof(use), offset) == sizeof(use);
  ::close(descriptor);
  return whole && valid(use) ? use.priority : 0;
}

PageBytes make_page_bytes(Bytes bytes) {
  const Bytes whole = round_up(std::max<Bytes>(bytes, 1), kPage);
  return PageBytes(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(kPage), static_cast<size_t>(whole))));
}

Bytes prefix_buffer_bytes(std::span<const Bytes> tile_bytes) {
  Bytes most = kReadPiece;
  for (const Bytes tile : tile_bytes) {
    most = std::max(most, round_up(kChainTokens / kKvTile * tile, kPage));
  }
  return most;
}

Result<PrefixFile> PrefixFile::open(const std::string& path, bool for_payload) {
  PrefixFile entry;
  FileTierOptions options;
  options.access = FileAccess::kRead;
  HR_ASSIGN(entry.file_, OpenFile::open(path, options, for_payload));
  const Bytes size = entry.file_.bytes();
  PageBytes bytes = make_page_bytes(kPage);
  HR_CHECK(bytes != nullptr, "a page of memory");
  const auto read_first = [&](Bytes wanted) -> Result<std::span<const std::byte>> {
    const std::span<std::byte> out(bytes.get(), static_cast<size_t>(wanted));
    HR_TRY(entry.pread_all(0, out));
    return std::span<const std::byte>(out);
  };
  if (size < kPage) return bad("ends inside the header").within(path);
  HR_ASSIGN(std::span<const std::byte> header, read_first(kPage));
  const auto wanted = header_bytes_of(header);
  if (!wanted.ok()) return wanted.status().within(path);
  if (*wanted > kPage) {
    if (size < *wanted) return bad("ends inside the header").within(path);
    bytes = make_page_bytes(*wanted);
    HR_CHECK(bytes != nullptr, "64 KiB of memory");
    HR_ASSIGN(header, read_first(*wanted));
  }
  auto parsed = parse(header, size);
  if (!parsed.ok()) return parsed.status().within(path);
  entry.header_ = std::move(*parsed);
  if (std::filesystem::path(path).filename() != to_text(entry.header_.hash) + ".kv") {
    return bad("its name is not that of its content").within(path);
  }
  return entry;
}

Status PrefixFile::pread_all(Bytes offset, std::span<std::byte> out) const {
  const Bytes begin = offset;
  while (!out.empty()) {
    const ssize_t n = ::pread(file_.fd(), out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return error(Code::kIo, "%s: read at %lld: %s", file_.path().c_str(),
                   static_cast<long long>(offset), std::strerror(errno));
    }
    if (n == 0) return bad("was cut while in use").within(file_.path());
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
  if (!file_.direct() && begin > 0) {
    (void)::posix_fadvise(file_.fd(), begin, offset - begin, POSIX_FADV_DONTNEED);
  }
  return {};
}

Status PrefixFile::check(size_t layer, std::span<const std::byte> bytes) const {
  if (prefix_sum(bytes) == header_.sums[layer]) return {};
  return error(Code::kBadFile, "%s: the KV of layer %zu is damaged", file_.path().c_str(), layer);
}

Status PrefixFile::read(
    size_t begin, size_t end, std::span<std::byte> buffer,
    const std::function<Status(size_t, std::span<const std::byte>)>& take) const {
  const auto room = static_cast<Bytes>(buffer.size());
  Bytes at = header_.layer_begin(begin);
  while (begin < end) {
    size_t next = begin;
    Bytes bytes = 0;
    for (; next < end; ++next) {
      const Bytes more = round_up(header_.layer_bytes(next), kPage);
      if (bytes + more > room) break;
      bytes += more;
    }
    HR_CHECK(next > begin, "the buffer has room for a layer");
    HR_TRY(pread_all(at, buffer.first(static_cast<size_t>(bytes))));
    at += bytes;
    for (Bytes in = 0; begin < next; ++begin) {
      const auto whole = buffer.subspan(static_cast<size_t>(in));
      const auto layer = whole.first(static_cast<size_t>(header_.layer_bytes(begin)));
      HR_TRY(check(begin, layer));
      HR_TRY(take(begin, layer));
      in += round_up(header_.layer_bytes(begin), kPage);
    }
  }
  return {};
}

Status PrefixFile::read_layer(size_t layer, std::span<std::byte> out,
                              std::span<std::byte> buffer) const {
  HR_CHECK(static_cast<Bytes>(out.size()) == header_.layer_bytes(layer), "the layer's bytes");
  Bytes at = header_.layer_begin(layer);
  if (on_pages(out)) {
    HR_TRY(pread_all(at, out));
    return check(layer, out);
  }
  const auto piece = static_cast<size_t>(round_down(static_cast<Bytes>(buffer.size()), kPage));
  HR_CHECK(piece > 0, "a page to read through");
  for (size_t done = 0; done < out.size();) {
    const size_t n = std::min(piece, out.size() - done);
    const auto pages = static_cast<size_t>(round_up(static_cast<Bytes>(n), kPage));
    HR_TRY(pread_all(at, buffer.first(pages)));
    std::memcpy(out.data() + done, buffer.data(), n);
    done += n;
    at += static_cast<Bytes>(n);
  }
  return check(layer, out);
}

Status PrefixFile::verify(std::span<std::byte> buffer) const {
  if (chain_next(header_.parent, header_.tokens) != header_.hash) {
    return bad("its hash is not that of its tokens").within(file_.path());
  }
  HR_TRY(read(0, header_.layers(), buffer, [&](size_t layer, std::span<const std::byte> bytes) {
    const size_t zeros = static_cast<size_t>(round_up(header_.layer_bytes(layer), kPage) -
                                             header_.layer_bytes(layer));
    if (all_zero({bytes.data() + bytes.size(), zeros})) return Status();
    return error(Code::kBadFile, "%s: what is behind layer %zu is not zero",
                 file_.path().c_str(), layer);
  }));
  if (!header_.use_record_ok) return bad("the use record is damaged").within(file_.path());
  return {};
}

}  // namespace headrace
