#include "headrace/model/safetensors.h"

#include <algorithm>
#include <set>

#include "headrace/model/extents.h"
#include "headrace/model/file_reader.h"
#include "headrace/model/json_stream.h"

namespace headrace {
namespace {

constexpr Bytes kMaxHeaderBytes = 100'000'000;  // the reference reader's bound
constexpr size_t kMaxTensors = 1 << 20;
constexpr size_t kMaxDims = 8;

struct SafeType {
  const char* name;
  DType dtype;
};
constexpr SafeType kTypes[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16},
    {"I8", DType::kI8},   {"I32", DType::kI32},
};

class Header : public JsonHandler {
 public:
  std::vector<WeightInfo> weights;  // source.offset from the start of the data

  bool start_object(size_t) override {
    if (depth_ >= 2 || array_) return unexpected("an object");
    ++depth_;
    if (depth_ == 2 && !metadata_) seen_ = {};
    return true;
  }
  bool end_object() override {
    if (array_) return unexpected("the end of an object");
    --depth_;
    if (depth_ != 1 || metadata_) return true;
    return finish();
  }
  bool key(string_t& text) override {
    if (depth_ == 1) return tensor_key(text);
    if (metadata_) return true;
    field_ = text;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return stop(error(Code::kBadFile, "tensor '%s' has the unknown member '%s'",
                        printable(now_.name).c_str(), printable(field_).c_str()));
    }
    if (!seen_.insert(field_).second) {
      return stop(error(Code::kBadFile, "tensor '%s' has the member '%s' twice",
                        printable(now_.name).c_str(), field_.c_str()));
    }
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && metadata_ && !array_) return true;
    if (depth_ != 2 || field_ != "dtype" || array_) return unexpected("a string");
    for (const SafeType& type : kTypes) {
      if (text == type.name) now_.dtype = type.dtype;
      if (text == type.name) return true;
    }
    return stop(error(Code::kUnsupported,
                      "tensor '%s' has type '%s', which is not supported",
                      printable(now_.name).c_str(), printable(text).c_str()));
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || metadata_ || array_ || field_ == "dtype") {
      return unexpected("an array");
    }
    array_ = true;
    numbers_.clear();
    return true;
  }
  bool number_integer(number_integer_t value) override {
    if (!array_) return unexpected("an integer");
    if (value < 0) {
      return stop(error(Code::kBadFile, "tensor '%s': '%s' holds %lld",
                        printable(now_.name).c_str(), field_.c_str(),
                        static_cast<long long>(value)));
    }
    if (numbers_.size() == kMaxDims) {
      return stop(error(Code::kBadFile, "tensor '%s': '%s' holds more than %zu numbers",
                        printable(now_.name).c_str(), field_.c_str(), kMaxDims));
    }
    numbers_.push_back(value);
    return true;
  }
  bool end_array() override {
    if (!array_) return unexpected("the end of an array");
    array_ = false;
    return field_ == "shape" ? shape() : offsets();
  }

 protected:
  std::string where() const override {
    return now_.name.empty() ? "" : "tensor '" + printable(now_.name) + "'";
  }

 private:
  bool tensor_key(const std::string& text) {
    metadata_ = text == "__metadata__";
    now_ = WeightInfo();
    now_.name = text;
    if (text.empty()) return stop(error(Code::kBadFile, "a tensor has no name"));
    if (weights.size() == kMaxTensors) {
      return stop(error(Code::kBadFile, "more than %zu tensors", kMaxTensors));
    }
    return true;
  }
  bool shape() {
    int64_t rows = 1;
    for (const int64_t n : numbers_) {
      if (n == 0 || n > kMaxElements) {
        return stop(error(Code::kBadFile,
                          "tensor '%s': a dimension is %lld, not within 1 and %lld",
                          printable(now_.name).c_str(), static_cast<long long>(n),
                          static_cast<long long>(kMaxElements)));
      }
    }
    for (size_t i = 0; i + 1 < numbers_.size(); ++i) {
      if (__builtin_mul_overflow(rows, numbers_[i], &rows) || rows > kMaxElements) {
        return stop(error(Code::kBadFile,
                          "tensor '%s': the product of its dimensions overflows",
                          printable(now_.name).c_str()));
      }
    }
    now_.rows = rows;
    now_.cols = numbers_.empty() ? 1 : numbers_.back();
    return true;
  }
  bool offsets() {
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      return stop(error(Code::kBadFile,
                        "tensor '%s': data_offsets is not a range [begin, end)",
                        printable(now_.name).c_str()));
    }
    begin_ = numbers_[0];
    end_ = numbers_[1];
    return true;
  }
  bool finish() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (seen_.count(field) != 0) continue;
      return stop(error(Code::kBadFile, "tensor '%s' has no '%s'",
                        printable(now_.name).c_str(), field));
    }
    if (Status status = set_bytes(&now_); !status.ok()) return stop(status);
    if (end_ - begin_ != now_.source.bytes) {
      return stop(
          error(Code::kBadFile,
                "tensor '%s': its shape needs %lld bytes, its data_offsets give %lld",
                printable(now_.name).c_str(), static_cast<long long>(now_.source.bytes),
                static_cast<long long>(end_ - begin_)));
    }
    now_.source.offset = begin_;
    weights.push_back(std::move(now_));
    now_ = WeightInfo();
    return true;
  }

  int depth_ = 0;
  bool metadata_ = false;
  bool array_ = false;
  std::string field_;
  std::set<std::string> seen_;  // members of the tensor being read
  std::vector<int64_t> numbers_;
  WeightInfo now_;
  Bytes begin_ = 0, end_ = 0;
};

// Turns offsets within the data into offsets of the file; the data must be covered
// exactly.
Status place(Bytes data, Bytes file_bytes, int32_t file,
             std::vector<WeightInfo>* weights) {
  std::sort(
      weights->begin(), weights->end(), [](const WeightInfo& a, const WeightInfo& b) {
        return a.source.offset != b.source.offset ? a.source.offset < b.source.offset
                                                  : a.name < b.name;
      });
  Bytes end = 0;
  for (WeightInfo& weight : *weights) {
    const std::string name = printable(weight.name);
    if (weight.source.bytes > file_bytes - data ||
        weight.source.offset > file_bytes - data - weight.source.bytes) {
      return error(
          Code::kBadFile,
          "tensor '%s' (%lld bytes at offset %lld of the data) ends past the end of "
          "the file; the data has %lld bytes",
          name.c_str(), static_cast<long long>(weight.source.bytes),
          static_cast<long long>(weight.source.offset),
          static_cast<long long>(file_bytes - data));
    }
    if (weight.source.offset != end) {
      return error(
          Code::kBadFile,
          "tensor '%s' begins at offset %lld of the data, but the tensor before it "
          "ends at %lld: overlaps and holes are not allowed",
          name.c_str(), static_cast<long long>(weight.source.offset),
          static_cast<long long>(end));
    }
    end += weight.source.bytes;
    weight.source.offset += data;
    weight.source.file = file;
  }
  if (end != file_bytes - data) {
    return error(Code::kBadFile, "the tensors cover %lld of the %lld bytes of data",
                 static_cast<long long>(end), static_cast<long long>(file_bytes - data));
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> read_safetensors(const std::string& path, int32_t file) {
  HR_ASSIGN(FileReader in, FileReader::open(path));
  HR_ASSIGN(const uint64_t length, in.number<uint64_t>("the length of the header"));
  if (length > static_cast<uint64_t>(std::min(in.remaining(), kMaxHeaderBytes))) {
    return error(
        Code::kBadFile,
        "%s: the header is said to have %llu bytes; %lld are left of the file and at "
        "most %lld are accepted",
        path.c_str(), static_cast<unsigned long long>(length),
        static_cast<long long>(in.remaining()), static_cast<long long>(kMaxHeaderBytes));
  }
  Header header;
  HR_TRY(parse_json(&in, static_cast<Bytes>(length), &header));
  SafetensorsFile out;
  out.file_bytes = in.size();
  out.weights = std::move(header.weights);
  HR_TRY(
      place(8 + static_cast<Bytes>(length), in.size(), file, &out.weights).within(path));
  return out;
}

}  // namespace headrace
