#include "headrace/model/gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "headrace/model/extents.h"
#include "headrace/model/file_reader.h"
#include "headrace/model/gguf_values.h"

namespace headrace {
namespace {

using enum gguf::ValueType;

// Bounds that no real file comes near; they keep a corrupt count from filling the memory.
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxKeyBytes = 65535;  // the specification's bound
constexpr uint64_t kMaxNameBytes = 255;   // the specification says 64
constexpr uint64_t kMaxStringBytes = 64 << 20;
constexpr uint64_t kMaxArrayEntries = 1 << 26;
constexpr uint64_t kMaxPoolBytes = 1u << 30;
constexpr Bytes kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxParts = 65535;

struct GgmlType {
  uint32_t id;
  const char* name;
  std::optional<DType> dtype;  // none: known, not supported
};

constexpr std::optional<DType> kNone;
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::kF32},    {1, "F16", DType::kF16},    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},  {6, "Q5_0", DType::kQ5_0},  {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},  {9, "Q8_1", kNone},         {10, "Q2_K", DType::kQ2_K},
    {11, "Q3_K", DType::kQ3_K}, {12, "Q4_K", DType::kQ4_K}, {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K}, {15, "Q8_K", kNone},        {16, "IQ2_XXS", kNone},
    {17, "IQ2_XS", kNone},      {18, "IQ3_XXS", kNone},     {19, "IQ1_S", kNone},
    {20, "IQ4_NL", kNone},      {21, "IQ3_S", kNone},       {22, "IQ2_S", kNone},
    {23, "IQ4_XS", kNone},      {24, "I8", DType::kI8},     {25, "I16", kNone},
    {26, "I32", DType::kI32},   {27, "I64", kNone},         {28, "F64", kNone},
    {29, "IQ1_M", kNone},       {30, "BF16", DType::kBF16}, {34, "TQ1_0", kNone},
    {35, "TQ2_0", kNone},       {39, "MXFP4", kNone},       {40, "NVFP4", kNone},
};

// What one file of a model holds.
struct Part {
  std::map<std::string, MetaValue, std::less<>> metadata;
  std::vector<WeightInfo> weights;  // source.file is not set
  Bytes file_bytes = 0;
};

class Parser {
 public:
  explicit Parser(FileReader& in) : in_(in) {}

  Result<Part> parse() {
    HR_TRY(preamble());
    for (uint64_t i = 0; i < keys_; ++i) HR_TRY(key_value(i));
    HR_TRY(read_alignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors_; ++i) {
      HR_ASSIGN(const uint64_t offset, tensor_info(i));
      offsets.push_back(offset);
    }
    HR_TRY(place(offsets));
    part_.file_bytes = in_.size();
    return std::move(part_);
  }

 private:
  // An error that begins with the file's name.
  template <typename... Args>
  Status bad(Code code, const char* format, Args... args) const {
    return error(code, format, args...).within(in_.path());
  }

  Status preamble();
  Status key_value(uint64_t index);
  Status value(uint32_t type, MetaValue* out);
  Status array(MetaValue* out);
  Status string_array(uint64_t count, MetaValue* out);
  template <typename Stored, typename Held>
  Status number_array(uint64_t count, MetaValue* out);
  Status bool_array(uint64_t count, MetaValue* out);
  template <typename Stored, typename Held>
  Status scalar(MetaValue* out);
  Result<std::string> string(uint64_t most, const char* what);
  Status read_alignment();
  Result<uint64_t> tensor_info(uint64_t index);
  Result<DType> tensor_type(const std::string& name);
  Status tensor_shape(WeightInfo* weight);
  Status place(const std::vector<uint64_t>& offsets);

  FileReader& in_;
  Part part_;
  uint64_t tensors_ = 0;
  uint64_t keys_ = 0;
  Bytes alignment_ = kDefaultAlignment;
  std::string key_;  // the key being read, for messages
};

Status Parser::preamble() {
  char magic[4];
  HR_TRY(in_.read(magic, 4, "the magic number"));
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    return bad(Code::kBadFile, "not a GGUF file: it begins with '%s', not 'GGUF'",
               printable(std::string_view(magic, 4)).c_str());
  }
  HR_ASSIGN(const uint32_t version, in_.number<uint32_t>("the version"));
  if (version != 0 && (version & 0xffff) == 0) {
    return bad(Code::kUnsupported, "a big-endian GGUF file (version %u), not supported",
               __builtin_bswap32(version));
  }
  if (version != 2 && version != 3) {
    return bad(Code::kUnsupported, "GGUF version %u is not supported, only 2 and 3 are",
               version);
  }
  HR_ASSIGN(tensors_, in_.number<uint64_t>("the number of tensors"));
  HR_ASSIGN(keys_, in_.number<uint64_t>("the number of keys"));
  if (tensors_ > kMaxTensors) {
    return bad(Code::kBadFile,
               "%llu tensors are said to follow; at most %llu are accepted",
               static_cast<unsigned long long>(tensors_),
               static_cast<unsigned long long>(kMaxTensors));
  }
  if (keys_ > kMaxKeys) {
    return bad(Code::kBadFile, "%llu keys are said to follow; at most %llu are accepted",
               static_cast<unsigned long long>(keys_),
               static_cast<unsigned long long>(kMaxKeys));
  }
  return {};
}

Result<std::string> Parser::string(uint64_t most, const char* what) {
  HR_ASSIGN(const uint64_t length, in_.number<uint64_t>(what));
  if (length > most || length > static_cast<uint64_t>(in_.remaining())) {
    return bad(
        Code::kBadFile,
        "%s at byte %lld is said to have %llu bytes; %lld are left of the file and "
        "at most %llu are accepted",
        what, static_cast<long long>(in_.position() - 8),
        static_cast<unsigned long long>(length), static_cast<long long>(in_.remaining()),
        static_cast<unsigned long long>(most));
  }
  std::string out(length, '\0');
  HR_TRY(in_.read(out.data(), static_cast<Bytes>(length), what));
  return out;
}

Status Parser::key_value(uint64_t index) {
  key_ = text_of("number %llu", static_cast<unsigned long long>(index));
  HR_ASSIGN(std::string key, string(kMaxKeyBytes, "the name of a key"));
  key_ = printable(key);
  if (key.empty()) {
    return bad(Code::kBadFile, "key number %llu has no name",
               static_cast<unsigned long long>(index));
  }
  if (part_.metadata.find(key) != part_.metadata.end()) {
    return bad(Code::kBadFile, "key '%s' is there twice", key_.c_str());
  }
  HR_ASSIGN(const uint32_t type, in_.number<uint32_t>("the type of a key"));
  MetaValue read;
  if (Status status = value(type, &read); !status.ok()) {
    return status.within(text_of("key '%s'", key_.c_str()));
  }
  part_.metadata.emplace(std::move(key), std::move(read));
  return {};
}

template <typename Stored, typename Held>
Status Parser::scalar(MetaValue* out) {
  HR_ASSIGN(const Stored read, in_.number<Stored>("a value"));
  if constexpr (std::is_same_v<Stored, uint64_t>) {
    if (read > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return bad(Code::kUnsupported, "the value %llu does not fit 63 bits",
                 static_cast<unsigned long long>(read));
    }
  }
  out->value = static_cast<Held>(read);
  return {};
}

Status Parser::value(uint32_t type, MetaValue* out) {
  switch (type) {
    case kU8: return scalar<uint8_t, int64_t>(out);
    case kI8: return scalar<int8_t, int64_t>(out);
    case kU16: return scalar<uint16_t, int64_t>(out);
    case kI16: return scalar<int16_t, int64_t>(out);
    case kU32: return scalar<uint32_t, int64_t>(out);
    case kI32: return scalar<int32_t, int64_t>(out);
    case kU64: return scalar<uint64_t, int64_t>(out);
    case kI64: return scalar<int64_t, int64_t>(out);
    case kF32: return scalar<float, double>(out);
    case kF64: return scalar<double, double>(out);
    case kBool: {
      HR_ASSIGN(const uint8_t read, in_.number<uint8_t>("a value"));
      if (read > 1) return bad(Code::kBadFile, "a bool has the value %u", read);
      out->value = read == 1;
      return {};
    }
    case kString: {
      HR_ASSIGN(out->value, string(kMaxStringBytes, "a string"));
      return {};
    }
    case kArray: return array(out);
    default:
      return bad(Code::kBadFile, "value type %u is not one of the format's (0 to 12)",
                 type);
  }
}

template <typename Stored, typename Held>
Status Parser::number_array(uint64_t count, MetaValue* out) {
  if (count * sizeof(Stored) > static_cast<uint64_t>(in_.remaining())) {
    return bad(Code::kBadFile,
               "an array of %llu numbers of %zu bytes; %lld bytes are left",
               static_cast<unsigned long long>(count), sizeof(Stored),
               static_cast<long long>(in_.remaining()));
  }
  std::vector<Held> held(count);
  if constexpr (std::is_same_v<Stored, Held>) {
    HR_TRY(in_.read(held.data(), static_cast<Bytes>(count * sizeof(Held)), "an array"));
  } else {
    for (Held& entry : held) {
      HR_ASSIGN(const Stored read, in_.number<Stored>("an array"));
      if constexpr (std::is_same_v<Stored, uint64_t>) {
        if (read > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          return bad(Code::kUnsupported, "the value %llu does not fit 63 bits",
                     static_cast<unsigned long long>(read));
        }
      }
      entry = static_cast<Held>(read);
    }
  }
  out->value = std::move(held);
  return {};
}

Status Parser::bool_array(uint64_t count, MetaValue* out) {
  MetaValue bytes;
  HR_TRY((number_array<uint8_t, uint8_t>(count, &bytes)));
  std::vector<bool> held;
  for (const uint8_t byte : *bytes.as<std::vector<uint8_t>>()) {
    if (byte > 1) return bad(Code::kBadFile, "a bool has the value %u", byte);
    held.push_back(byte == 1);
  }
  out->value = std::move(held);
  return {};
}

// Two passes over the file, lengths first, so that the pool is allocated once at its
// final size.
Status Parser::string_array(uint64_t count, MetaValue* out) {
  if (count * 8 > static_cast<uint64_t>(in_.remaining())) {
    return bad(Code::kBadFile, "an array of %llu strings; %lld bytes are left",
               static_cast<unsigned long long>(count),
               static_cast<long long>(in_.remaining()));
  }
  const Bytes begin = in_.position();
  uint64_t total = 0;
  for (uint64_t i = 0; i < count; ++i) {
    HR_ASSIGN(const uint64_t length, in_.number<uint64_t>("the length of a string"));
    if (length > static_cast<uint64_t>(in_.remaining())) {
      return bad(Code::kBadFile, "string %llu is said to have %llu bytes; %lld are left",
                 static_cast<unsigned long long>(i),
                 static_cast<unsigned long long>(length),
                 static_cast<long long>(in_.remaining()));
    }
    total += length;
    if (total > kMaxPoolBytes) {
      return bad(Code::kUnsupported, "its strings are longer than %llu bytes together",
                 static_cast<unsigned long long>(kMaxPoolBytes));
    }
    HR_TRY(in_.skip(static_cast<Bytes>(length), "a string"));
  }
  in_.seek(begin);
  StringList list;
  list.pool.resize(total);
  list.ends.resize(count);
  uint64_t end = 0;
  for (uint64_t i = 0; i < count; ++i) {
    HR_ASSIGN(const uint64_t length, in_.number<uint64_t>("the length of a string"));
    // The file could have changed since the first pass.
    if (length > total - end) return bad(Code::kIo, "the file changed while it was read");
    HR_TRY(in_.read(list.pool.data() + end, static_cast<Bytes>(length), "a string"));
    end += length;
    list.ends[i] = static_cast<uint32_t>(end);
  }
  out->value = std::move(list);
  return {};
}

Status Parser::array(MetaValue* out) {
  HR_ASSIGN(const uint32_t type, in_.number<uint32_t>("the type of an array"));
  HR_ASSIGN(const uint64_t count, in_.number<uint64_t>("the length of an array"));
  if (count > kMaxArrayEntries) {
    return bad(Code::kBadFile, "an array is said to have %llu entries; %llu are accepted",
               static_cast<unsigned long long>(count),
               static_cast<unsigned long long>(kMaxArrayEntries));
  }
  switch (type) {
    case kU8: return number_array<uint8_t, uint8_t>(count, out);
    case kI8: return number_array<int8_t, int8_t>(count, out);
    case kU16: return number_array<uint16_t, int32_t>(count, out);
    case kI16: return number_array<int16_t, int32_t>(count, out);
    case kU32: return number_array<uint32_t, int64_t>(count, out);
    case kI32: return number_array<int32_t, int32_t>(count, out);
    case kU64: return number_array<uint64_t, int64_t>(count, out);
    case kI64: return number_array<int64_t, int64_t>(count, out);
    case kF32: return number_array<float, float>(count, out);
    case kF64: return number_array<double, double>(count, out);
    case kBool: return bool_array(count, out);
    case kString: return string_array(count, out);
    case kArray: return bad(Code::kUnsupported, "an array of arrays is not supported");
    default:
      return bad(Code::kBadFile, "value type %u is not one of the format's (0 to 12)",
                 type);
  }
}

Status Parser::read_alignment() {
  const auto it = part_.metadata.find("general.alignment");
  if (it == part_.metadata.end()) return {};
  const int64_t* value = it->second.as<int64_t>();
  if (value == nullptr) {
    return bad(Code::kBadFile, "key 'general.alignment' is %s, not an integer",
               it->second.type_name());
  }
  const auto n = static_cast<uint64_t>(*value);
  if (n < 8 || n > kMaxAlignment || (n & (n - 1)) != 0) {
    return bad(Code::kBadFile,
               "key 'general.alignment' is %lld, not a power of two from 8 to %llu",
               static_cast<long long>(*value),
               static_cast<unsigned long long>(kMaxAlignment));
  }
  alignment_ = *value;
  return {};
}

Result<DType> Parser::tensor_type(const std::string& name) {
  HR_ASSIGN(const uint32_t id, in_.number<uint32_t>("the type of a tensor"));
  for (const GgmlType& type : kGgmlTypes) {
    if (type.id != id) continue;
    if (type.dtype) return *type.dtype;
    return bad(Code::kUnsupported, "tensor '%s' has type %s (%u), which is not supported",
               name.c_str(), type.name, id);
  }
  return bad(Code::kUnsupported, "tensor '%s' has type %u, which is not known",
             name.c_str(), id);
}

// Dimensions, innermost first: the first becomes `cols`, the product of the rest `rows`.
Status Parser::tensor_shape(WeightInfo* weight) {
  const std::string name = printable(weight->name);
  HR_ASSIGN(const uint32_t dims, in_.number<uint32_t>("the dimensions of a tensor"));
  if (dims < 1 || dims > 4) {
    return bad(Code::kBadFile, "tensor '%s' has %u dimensions, not 1 to 4", name.c_str(),
               dims);
  }
  for (uint32_t d = 0; d < dims; ++d) {
    HR_ASSIGN(const uint64_t n, in_.number<uint64_t>("a dimension of a tensor"));
    if (n == 0 || n > kMaxElements) {
      return bad(Code::kBadFile, "tensor '%s': dimension %u is %llu, not 1 to %lld",
                 name.c_str(), d, static_cast<unsigned long long>(n),
                 static_cast<long long>(kMaxElements));
    }
    int64_t* to = d == 0 ? &weight->cols : &weight->rows;
    if (__builtin_mul_overflow(d == 0 ? int64_t{1} : *to, static_cast<int64_t>(n), to) ||
        *to > kMaxElements) {
      return bad(Code::kBadFile, "tensor '%s': the product of its dimensions overflows",
                 name.c_str());
    }
  }
  return {};
}

Result<uint64_t> Parser::tensor_info(uint64_t index) {
  WeightInfo weight;
  HR_ASSIGN(weight.name, string(kMaxNameBytes, "the name of a tensor"));
  if (weight.name.empty()) {
    return bad(Code::kBadFile, "tensor number %llu has no name",
               static_cast<unsigned long long>(index));
  }
  const std::string name = printable(weight.name);
  HR_TRY(tensor_shape(&weight));
  HR_ASSIGN(weight.dtype, tensor_type(name));
  HR_TRY(set_bytes(&weight).within(in_.path()));
  HR_ASSIGN(const uint64_t offset, in_.number<uint64_t>("the offset of a tensor"));
  if (offset % static_cast<uint64_t>(alignment_) != 0) {
    return bad(Code::kBadFile, "tensor '%s': offset %llu is not a multiple of %lld",
               name.c_str(), static_cast<unsigned long long>(offset),
               static_cast<long long>(alignment_));
  }
  part_.weights.push_back(std::move(weight));
  return offset;
}

// Turns offsets within the data section into extents of the file and checks them.
Status Parser::place(const std::vector<uint64_t>& offsets) {
  const Bytes data = round_up(in_.position(), alignment_);
  const Bytes space = std::max<Bytes>(in_.size() - data, 0);
  for (size_t i = 0; i < offsets.size(); ++i) {
    WeightInfo& weight = part_.weights[i];
    if (weight.source.bytes > space ||
        offsets[i] > static_cast<uint64_t>(space - weight.source.bytes)) {
      return bad(
          Code::kBadFile,
          "tensor '%s' (%lld bytes at offset %llu of the data) ends past the end of "
          "the file; the data section has %lld bytes",
          printable(weight.name).c_str(), static_cast<long long>(weight.source.bytes),
          static_cast<unsigned long long>(offsets[i]), static_cast<long long>(space));
    }
    weight.source.offset = data + static_cast<Bytes>(offsets[i]);
  }
  return check_overlaps(part_.weights).within(in_.path());
}

Result<Part> parse_part(const std::string& path) {
  HR_ASSIGN(FileReader in, FileReader::open(path));
  return Parser(in).parse();
}

// An integer key of a part, or `otherwise`; another type is an error.
Result<int64_t> part_int(const Part& part, const char* key, int64_t otherwise) {
  const auto it = part.metadata.find(key);
  if (it == part.metadata.end()) return otherwise;
  const int64_t* value = it->second.as<int64_t>();
  if (value == nullptr) return ModelFile::wrong_type(key, it->second, "an integer");
  return *value;
}

// Gives part `number` of the model to `model`.
void append(Part part, const std::string& path, ModelFile* model) {
  const auto file = static_cast<int32_t>(model->paths.size());
  for (WeightInfo& weight : part.weights) {
    weight.source.file = file;
    model->weights.push_back(std::move(weight));
  }
  if (file == 0) model->metadata = std::move(part.metadata);
  model->paths.push_back(path);
  model->file_bytes.push_back(part.file_bytes);
}

// "NAME-00002-of-00003.gguf" without its last 20 characters, or nothing.
std::optional<std::string> split_stem(const std::string& path, int64_t no,
                                      int64_t count) {
  const std::string tail =
      text_of("-%05lld-of-%05lld.gguf", static_cast<long long>(no + 1),
              static_cast<long long>(count));
  if (!path.ends_with(tail)) return std::nullopt;
  return path.substr(0, path.size() - tail.size());
}

Result<ModelFile> open_parts(const std::string& stem, int64_t count) {
  ModelFile model;
  int64_t promised = -1;
  for (int64_t no = 0; no < count; ++no) {
    const std::string path =
        text_of("%s-%05lld-of-%05lld.gguf", stem.c_str(), static_cast<long long>(no + 1),
                static_cast<long long>(count));
    if (!std::filesystem::exists(path)) {
      return error(Code::kBadFile, "part %lld of %lld is missing: %s",
                   static_cast<long long>(no + 1), static_cast<long long>(count),
                   path.c_str());
    }
    HR_ASSIGN(Part part, parse_part(path));
    HR_ASSIGN(const int64_t said_no, part_int(part, "split.no", -1));
    HR_ASSIGN(const int64_t said_count, part_int(part, "split.count", -1));
    if (said_no != no || said_count != count) {
      return error(Code::kBadFile,
                   "%s: split.no is %lld and split.count is %lld, not %lld "
                   "and %lld",
                   path.c_str(), static_cast<long long>(said_no),
                   static_cast<long long>(said_count), static_cast<long long>(no),
                   static_cast<long long>(count));
    }
    if (no == 0) {
      HR_ASSIGN(promised, part_int(part, "split.tensors.count", -1));
    }
    append(std::move(part), path, &model);
  }
  if (promised >= 0 && promised != static_cast<int64_t>(model.weights.size())) {
    return error(
        Code::kBadFile, "%s: split.tensors.count is %lld, but the parts have %zu",
        model.paths[0].c_str(), static_cast<long long>(promised), model.weights.size());
  }
  return model;
}

}  // namespace

Result<ModelFile> open_gguf(const std::string& path) {
  HR_ASSIGN(Part part, parse_part(path));
  HR_ASSIGN(const int64_t count, part_int(part, "split.count", 1));
  HR_ASSIGN(const int64_t no, part_int(part, "split.no", 0));
  ModelFile model;
  if (count > 1) {
    if (count > kMaxParts || no < 0 || no >= count) {
      return error(Code::kBadFile, "%s: split.no is %lld of split.count %lld",
                   path.c_str(), static_cast<long long>(no),
                   static_cast<long long>(count));
    }
    const auto stem = split_stem(path, no, count);
    if (!stem) {
      return error(Code::kBadFile,
                   "%s: part %lld of %lld, but its name does not end in "
                   "-%05lld-of-%05lld.gguf, so the others cannot be found",
                   path.c_str(), static_cast<long long>(no + 1),
                   static_cast<long long>(count), static_cast<long long>(no + 1),
                   static_cast<long long>(count));
    }
    part = Part();  // its big arrays must not be held twice
    HR_ASSIGN(model, open_parts(*stem, count));
  } else {
    append(std::move(part), path, &model);
  }
  HR_TRY(sort_by_name(&model.weights).within(path));
  model.format = ModelFormat::kGguf;
  return model;
}

}  // namespace headrace
