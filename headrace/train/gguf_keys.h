// GgufKeys: the metadata of a GGUF file as bytes, written anew or copied from another file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/model/tokenizer_vocabulary.h"

namespace headrace {

class GgufKeys {
 public:
  void text(std::string_view key, std::string_view value);
  void u32(std::string_view key, int64_t value);
  void f32(std::string_view key, double value);
  void flag(std::string_view key, bool value);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void i32s(std::string_view key, const std::vector<int32_t>& values);
  // The keys of the GGUF file at `path` that `wanted` says yes to, byte for byte. kIo, kBadFile.
  Status copy(const std::string& path, const std::function<bool(std::string_view key)>& wanted);
  // A byte-level BPE vocabulary, filled up with unused tokens to `rows`. kUnsupported: another
  // method, or words divided by rules that GGUF has no name for.
  Status tokenizer(const Vocabulary& vocabulary, const std::string& chat_template, int64_t rows);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void head(std::string_view key, uint32_t type);
  uint64_t count_ = 0;
  std::string bytes_;
};

// A number, or a text with its length before it, as GGUF has them.
template <typename T>
void put_number(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void put_text(std::string* out, std::string_view text);

}  // namespace headrace
