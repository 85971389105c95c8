#include "headrace/model/config_json.h"

#include <utility>

#include "headrace/model/json_stream.h"

namespace headrace {
namespace {

constexpr Bytes kMaxBytes = 16 * kMiB;
constexpr size_t kMaxDepth = 64;

class Flatten : public JsonHandler {
 public:
  Metadata metadata;

  bool start_object(size_t) override {
    if (in_array()) return nested();
    if (prefixes_.size() == kMaxDepth) return unexpected("an object nested too deep");
    prefixes_.push_back(prefixes_.empty() ? "" : path_ + ".");
    return true;
  }
  bool end_object() override {
    if (skipped_ > 0) {
      --skipped_;
      return true;
    }
    prefixes_.pop_back();
    return true;
  }
  bool key(string_t& text) override {
    if (skipped_ > 0) return true;
    path_ = prefixes_.back() + text;
    return true;
  }
  bool start_array(size_t) override {
    if (prefixes_.empty()) return unexpected("an array");
    if (in_array()) return nested();
    array_ = Array();
    array_.open = true;
    return true;
  }
  bool end_array() override {
    if (skipped_ > 0) {
      --skipped_;
      return true;
    }
    array_.open = false;
    return keep_array();
  }
  bool null() override { return scalar(MetaValue{std::monostate()}); }
  bool boolean(bool value) override {
    if (!in_array()) return scalar(MetaValue{value});
    array_.bools.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    if (!in_array()) return scalar(MetaValue{int64_t{value}});
    array_.integers.push_back(value);
    array_.numbers.push_back(static_cast<double>(value));
    return true;
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (!in_array()) return scalar(MetaValue{double{value}});
    array_.numbers.push_back(value);
    return true;
  }
  bool string(string_t& text) override {
    if (!in_array()) return scalar(MetaValue{text});
    array_.strings.push_back(text);
    return true;
  }

 protected:
  std::string where() const override { return "'" + printable(path_) + "'"; }

 private:
  struct Array {
    bool open = false;
    bool other = false;  // it holds something that we do not keep
    StringList strings;
    std::vector<bool> bools;
    std::vector<int64_t> integers;  // those of `numbers` that were integers
    std::vector<double> numbers;
  };

  bool in_array() const { return array_.open; }
  // An object or array within an array.
  bool nested() {
    array_.other = true;
    ++skipped_;
    return true;
  }
  bool scalar(MetaValue value) {
    if (prefixes_.empty()) return unexpected("a value");
    if (in_array()) {
      array_.other = true;
      return true;
    }
    return put(std::move(value));
  }
  bool keep_array() {
    const bool strings = array_.strings.size() > 0, bools = !array_.bools.empty();
    const bool numbers = !array_.numbers.empty();
    if (array_.other || strings + bools + numbers != 1) return true;
    if (strings) return put(MetaValue{std::move(array_.strings)});
    if (bools) return put(MetaValue{std::move(array_.bools)});
    if (array_.integers.size() == array_.numbers.size()) {
      return put(MetaValue{std::move(array_.integers)});
    }
    return put(MetaValue{std::move(array_.numbers)});
  }
  bool put(MetaValue value) {
    if (!metadata.emplace(path_, std::move(value)).second) {
      return stop(
          error(Code::kBadFile, "member '%s' is there twice", printable(path_).c_str()));
    }
    return true;
  }

  std::vector<std::string> prefixes_;  // of the objects we are in
  std::string path_;                   // of the member being read
  Array array_;
  int64_t skipped_ = 0;  // objects and arrays within an array that we are in
};

}  // namespace

Result<Metadata> read_config_json(const std::string& path) {
  HR_ASSIGN(FileReader in, FileReader::open(path));
  if (in.size() > kMaxBytes) {
    return error(Code::kBadFile, "%s: %lld bytes; at most %lld are accepted",
                 path.c_str(), static_cast<long long>(in.size()),
                 static_cast<long long>(kMaxBytes));
  }
  Flatten handler;
  HR_TRY(parse_json(&in, in.size(), &handler));
  return std::move(handler.metadata);
}

}  // namespace headrace
