// GgufWriter: makes the bytes of a GGUF file in memory, correct or broken on purpose. For tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::testing {

// GGUF's numbers of value types and of the tensor types used in tests.
enum GgufValue : uint32_t {
  kGgufU8, kGgufI8, kGgufU16, kGgufI16, kGgufU32, kGgufI32, kGgufF32, kGgufBool, kGgufString,
  kGgufArray, kGgufU64, kGgufI64, kGgufF64,
};
enum GgmlTensor : uint32_t {
  kGgmlF32 = 0, kGgmlF16 = 1, kGgmlQ4_0 = 2, kGgmlQ4_1 = 3, kGgmlQ5_0 = 6, kGgmlQ5_1 = 7,
  kGgmlQ8_0 = 8, kGgmlQ2_K = 10, kGgmlQ3_K = 11, kGgmlQ4_K = 12, kGgmlQ5_K = 13,
  kGgmlQ6_K = 14, kGgmlBF16 = 30,
};

template <typename T>
void put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}
inline void put_string(std::string* out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out->append(text);
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class GgufWriter {
 public:
  uint32_t version = 3;
  std::string magic = "GGUF";
  uint64_t alignment = 32;     // of the offsets; write the key too when it is not 32
  int64_t extra_tensors = 0;   // added to the count of tensors that the header states
  int64_t extra_keys = 0;      // the same for keys

  // A key with any type and any bytes after it.
  void raw(std::string_view key, uint32_t type, std::string_view value) {
    ++keys_;
    put_string(&metadata_, key);
    put(&metadata_, type);
    metadata_.append(value);
  }
  template <typename T>
  void number(std::string_view key, uint32_t type, T value) {
    std::string bytes;
    put(&bytes, value);
    raw(key, type, bytes);
  }
  void u32(std::string_view key, uint32_t value) { number(key, kGgufU32, value); }
  void f32(std::string_view key, float value) { number(key, kGgufF32, value); }
  void boolean(std::string_view key, bool value) {
    number<uint8_t>(key, kGgufBool, value ? 1 : 0);
  }
  void text(std::string_view key, std::string_view value) {
    std::string bytes;
    put_string(&bytes, value);
    raw(key, kGgufString, bytes);
  }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes;
    put<uint32_t>(&bytes, kGgufString);
    put<uint64_t>(&bytes, values.size());
    for (const std::string& value : values) put_string(&bytes, value);
    raw(key, kGgufArray, bytes);
  }
  template <typename T>
  void array(std::string_view key, uint32_t type, const std::vector<T>& values) {
    std::string bytes;
    put(&bytes, type);
    put<uint64_t>(&bytes, values.size());
    for (const T value : values) put(&bytes, value);
    raw(key, kGgufArray, bytes);
  }

  // A tensor with its data; `dims` innermost first. Its offset is the next aligned one, or
  // `offset` when that is not negative.
  void tensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
              std::string_view data, int64_t offset = -1) {
    ++tensors_;
    while (data_.size() % alignment != 0) data_.push_back('\0');
    put_string(&infos_, name);
    put<uint32_t>(&infos_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(&infos_, dim);
    put(&infos_, type);
    put<uint64_t>(&infos_, offset >= 0 ? static_cast<uint64_t>(offset) : data_.size());
    data_.append(data);
  }

  std::string bytes() const {
    std::string out = magic;
    put(&out, version);
    put<uint64_t>(&out, static_cast<uint64_t>(tensors_ + extra_tensors));
    put<uint64_t>(&out, static_cast<uint64_t>(keys_ + extra_keys));
    out += metadata_ + infos_;
    while (out.size() % alignment != 0) out.push_back('\0');
    return out + data_;
  }
  void write(const std::string& path) const { write_file(path, bytes()); }

 private:
  std::string metadata_, infos_, data_;
  int64_t tensors_ = 0, keys_ = 0;
};

}  // namespace headrace::testing
