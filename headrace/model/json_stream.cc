#include "headrace/model/json_stream.h"

#include <iterator>
#include <limits>

namespace headrace {
namespace {

// What the parser's iterators share: single bytes out of a block of the file.
struct Source {
  FileReader* in;
  Bytes left;  // of the document, beyond the block
  Status status;
  char block[4096];
  size_t next = 0, filled = 0;

  bool fill() {
    if (!status.ok() || left == 0) return false;
    const Bytes part = std::min<Bytes>(left, sizeof(block));
    status = in->read(block, part, "a JSON document");
    if (!status.ok()) return false;
    left -= part;
    next = 0;
    filled = static_cast<size_t>(part);
    return true;
  }
};

class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit ByteIterator(Source* source) : source_(source) { settle(); }
  reference operator*() const { return source_->block[source_->next]; }
  ByteIterator& operator++() {
    ++source_->next;
    settle();
    return *this;
  }
  ByteIterator operator++(int) {
    ByteIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const ByteIterator& other) const { return source_ == other.source_; }

 private:
  // The end is an iterator without a source.
  void settle() {
    if (source_ == nullptr || source_->next < source_->filled || source_->fill()) return;
    source_ = nullptr;
  }
  Source* source_;
};

}  // namespace

bool JsonHandler::number_unsigned(number_unsigned_t value) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return stop(error(Code::kBadFile, "the integer %llu does not fit 63 bits%s%s",
                      static_cast<unsigned long long>(value),
                      where().empty() ? "" : ", at ", where().c_str()));
  }
  return number_integer(static_cast<int64_t>(value));
}

bool JsonHandler::parse_error(size_t position, const std::string& token,
                              const nlohmann::detail::exception&) {
  return stop(error(Code::kBadFile, "not valid JSON at byte %zu, near '%s'", position,
                    printable(token).c_str()));
}

Status parse_json(FileReader* in, Bytes bytes, JsonHandler* handler) {
  Source source{in, bytes, {}, {}};
  const bool done =
      nlohmann::json::sax_parse(ByteIterator(&source), ByteIterator(nullptr), handler);
  if (!source.status.ok()) return source.status;
  if (!handler->status().ok()) return handler->status().within(in->path());
  if (!done) return error(Code::kBadFile, "%s: not valid JSON", in->path().c_str());
  return {};
}

}  // namespace headrace
