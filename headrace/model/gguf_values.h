// The types of values in a GGUF file's metadata, by their numbers in the file.
//
// Source: "gguf_metadata_value_type" in ggml's docs/gguf.md.
#pragma once

#include <cstdint>

namespace headrace::gguf {

enum ValueType : uint32_t {
  kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64,
};

}  // namespace headrace::gguf
