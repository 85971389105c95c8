#include "headrace/model/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

namespace headrace {
namespace {

constexpr size_t kSamples = 64;

class Hasher {
 public:
  Hasher() { XXH3_64bits_reset(&state_); }
  void bytes(const void* data, size_t n) { XXH3_64bits_update(&state_, data, n); }
  void text(std::string_view s) {
    number(s.size());
    bytes(s.data(), s.size());
  }
  template <typename T>
  void number(T x) {
    bytes(&x, sizeof(x));
  }
  uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

// Arrays (vocabularies) do not change what KV a token makes.
void add_metadata(const ModelFile& model, Hasher* hash) {
  for (const auto& [key, value] : model.metadata) {
    if (value.is_array()) continue;
    hash->text(key);
    if (const auto* x = value.as<int64_t>()) hash->number(*x);
    if (const auto* x = value.as<double>()) hash->number(*x);
    if (const auto* x = value.as<bool>()) hash->number(*x ? 1 : 0);
    if (const auto* x = value.as<std::string>()) hash->text(*x);
  }
}

struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

Status add_page(const ModelFile& model, const WeightInfo& weight, Hasher* hash) {
  const std::string& path = model.paths[static_cast<size_t>(weight.source.file)];
  const auto failed = [&] {
    return error(Code::kIo, "cannot read %s at %lld: %s", path.c_str(),
                 static_cast<long long>(weight.source.offset), std::strerror(errno));
  };
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) return failed();
  char page[kPage];
  const auto wanted = static_cast<size_t>(std::min(kPage, weight.source.bytes));
  size_t got = 0;
  while (got < wanted) {
    const ssize_t n = ::pread(file.value, page + got, wanted - got,
                              weight.source.offset + static_cast<Bytes>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    if (n == 0) return error(Code::kIo, "%s ends inside '%s'", path.c_str(), weight.name.c_str());
    got += static_cast<size_t>(n);
  }
  // What the budget covers is not to be spent on the page cache.
  (void)::posix_fadvise(file.value, weight.source.offset, 2 * kPage, POSIX_FADV_DONTNEED);
  hash->bytes(page, wanted);
  return {};
}

}  // namespace

Result<uint64_t> model_fingerprint(const ModelFile& model) {
  Hasher hash;
  add_metadata(model, &hash);
  for (const WeightInfo& w : model.weights) {
    hash.text(w.name);
    hash.number(static_cast<int64_t>(w.dtype));
    hash.number(w.rows);
    hash.number(w.cols);
  }
  const size_t step = std::max<size_t>(1, model.weights.size() / kSamples);
  for (size_t i = 0; i < model.weights.size(); i += step) {
    HR_TRY(add_page(model, model.weights[i], &hash));
  }
  return hash.digest();
}

}  // namespace headrace
