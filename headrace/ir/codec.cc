#include "headrace/ir/codec.h"

#include <array>

namespace headrace {
namespace {

constexpr std::array<const char*, kCodecCount> kNames = {"none", "bf16", "int8_block", "mask",
                                                         "byte_plane"};
constexpr Bytes kPlaneHeader = 64;

}  // namespace

const char* name_of(Codec codec) { return kNames[static_cast<size_t>(codec)]; }

Result<Codec> codec_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Codec>(i);
  }
  return error(Code::kUsage, "there is no codec '%s' (none, bf16, int8_block, mask, byte_plane)",
               std::string(name).c_str());
}

bool is_lossless(Codec codec) {
  return codec == Codec::kNone || codec == Codec::kMask || codec == Codec::kBytePlane;
}

Bytes encoded_bytes(Codec codec, const Tensor& tensor) {
  if (codec == Codec::kNone) return tensor.bytes;
  if (tensor.dtype != DType::kF32) return 0;
  const int64_t elements = tensor.rows * tensor.cols;
  switch (codec) {
    case Codec::kNone: break;
    case Codec::kBf16: return 2 * elements;
    case Codec::kInt8Block: return elements + 4 * ((elements + 63) / 64);
    case Codec::kMask: return (elements + 7) / 8;
    case Codec::kBytePlane: return tensor.bytes + kPlaneHeader;
  }
  return tensor.bytes;
}

}  // namespace headrace
