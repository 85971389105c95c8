#include "headrace/kernel/codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "headrace/kernel/half.h"

namespace headrace {

struct CodecScratch::State {
  struct FreeC {
    void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
  };
  struct FreeD {
    void operator()(ZSTD_DCtx* d) const { ZSTD_freeDCtx(d); }
  };
  std::unique_ptr<ZSTD_CCtx, FreeC> compress{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, FreeD> decompress{ZSTD_createDCtx()};
  std::vector<std::byte> plane;
};

namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kGrain = 16 * 1024;  // elements; a multiple of kBlock and of 8
constexpr size_t kHeader = 64;
// Fast enough to keep up with a slow link; exponents compress no better with more effort.
constexpr int kZstdLevel = 1;
constexpr int8_t kNotANumber = -128;

float element(const std::byte* from, int64_t i) {
  float v;
  std::memcpy(&v, from + 4 * i, 4);
  return v;
}
void put(std::byte* to, int64_t i, float v) { std::memcpy(to + 4 * i, &v, 4); }

uint16_t bf16_of(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void encode_bf16(const std::byte* from, std::byte* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const uint16_t half = bf16_of(element(from, i));
    std::memcpy(to + 2 * i, &half, 2);
  }
}

void decode_bf16(const std::byte* from, std::byte* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    uint16_t half;
    std::memcpy(&half, from + 2 * i, 2);
    put(to, i, bf16_to_f32(half));
  }
}

// [begin, end) starts on a block.
void encode_int8(const std::byte* from, std::byte* to, int64_t n, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; b += kBlock) {
    const int64_t last = std::min(b + kBlock, end);
    float most = 0;
    for (int64_t i = b; i < last; ++i) {
      const float v = std::fabs(element(from, i));
      if (std::isfinite(v)) most = std::max(most, v);
    }
    const double scale = most > 0 ? 127.0 / static_cast<double>(most) : 0;
    for (int64_t i = b; i < last; ++i) {
      const float v = element(from, i);
      const auto code = std::isfinite(v)
                            ? static_cast<int8_t>(std::nearbyint(static_cast<double>(v) * scale))
                            : kNotANumber;
      to[i] = static_cast<std::byte>(code);
    }
    std::memcpy(to + n + 4 * (b / kBlock), &most, 4);
  }
}

void decode_int8(const std::byte* from, std::byte* to, int64_t n, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; b += kBlock) {
    float most;
    std::memcpy(&most, from + n + 4 * (b / kBlock), 4);
    const double unit = static_cast<double>(most) / 127.0;
    for (int64_t i = b; i < std::min(b + kBlock, end); ++i) {
      const auto code = static_cast<int8_t>(from[i]);
      put(to, i, code == kNotANumber ? std::numeric_limits<float>::quiet_NaN()
                                     : static_cast<float>(code * unit));
    }
  }
}

// [begin, end) starts on a byte.
void encode_mask(const std::byte* from, std::byte* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 8) {
    unsigned bits = 0;
    for (int64_t k = i; k < std::min(i + 8, end); ++k) {
      bits |= (element(from, k) > 0 ? 1u : 0u) << (k - i);
    }
    to[i / 8] = static_cast<std::byte>(bits);
  }
}

void decode_mask(const std::byte* from, std::byte* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    put(to, i, (static_cast<unsigned>(from[i / 8]) >> (i % 8) & 1u) != 0 ? 1.0f : 0.0f);
  }
}

CodecScratch::State& of(CodecScratch* scratch) {
  HR_CHECK(scratch != nullptr, "byte planes need a scratch");
  return scratch->state();
}

using Sizes = std::array<uint64_t, kHeader / 8>;

Bytes encode_planes(const std::byte* from, int64_t n, std::byte* to, CodecScratch::State& s) {
  HR_CHECK(static_cast<size_t>(n) <= s.plane.size(), "a tensor larger than the scratch is for");
  Sizes sizes{};
  std::byte* at = to + kHeader;
  const auto size = static_cast<size_t>(n);
  for (size_t part = 0; part < 4; ++part) {
    for (size_t i = 0; i < size; ++i) s.plane[i] = from[4 * i + (3 - part)];
    // With a room of size - 1 it fails when the frame would not be smaller than the plane.
    const size_t made = size < 2 ? 0
                                 : ZSTD_compressCCtx(s.compress.get(), at, size - 1,
                                                     s.plane.data(), size, kZstdLevel);
    if (size >= 2 && ZSTD_isError(made) == 0) {
      sizes[part] = made;
      at += made;
    } else {
      std::memcpy(at, s.plane.data(), size);
      at += size;
    }
  }
  std::memcpy(to, sizes.data(), kHeader);
  return at - to;
}

Status decode_planes(std::span<const std::byte> encoded, std::byte* to, int64_t n,
                     CodecScratch::State& s) {
  HR_CHECK(static_cast<size_t>(n) <= s.plane.size(), "a tensor larger than the scratch is for");
  const auto size = static_cast<size_t>(n);
  Sizes sizes{};
  if (encoded.size() < kHeader) return error(Code::kBadFile, "byte planes without a header");
  std::memcpy(sizes.data(), encoded.data(), kHeader);
  size_t at = kHeader;
  for (size_t part = 0; part < 4; ++part) {
    const bool raw = sizes[part] == 0;
    const uint64_t bytes = raw ? size : sizes[part];
    if (bytes > encoded.size() - at) {
      return error(Code::kBadFile, "byte plane %zu of %llu bytes at %zu: there are only %zu", part,
                   static_cast<unsigned long long>(bytes), at, encoded.size());
    }
    const std::byte* plane = encoded.data() + at;
    if (!raw) {
      const size_t made =
          ZSTD_decompressDCtx(s.decompress.get(), s.plane.data(), size, plane, bytes);
      if (ZSTD_isError(made) != 0 || made != size) {
        return error(Code::kBadFile, "byte plane %zu: %s", part,
                     ZSTD_isError(made) != 0 ? ZSTD_getErrorName(made) : "too few bytes");
      }
      plane = s.plane.data();
    }
    for (size_t i = 0; i < size; ++i) to[4 * i + (3 - part)] = plane[i];
    at += bytes;
  }
  return {};
}

}  // namespace

CodecScratch::CodecScratch(std::unique_ptr<State> state) : state_(std::move(state)) {}
CodecScratch::~CodecScratch() = default;

Result<std::unique_ptr<CodecScratch>> CodecScratch::create(int64_t elements) {
  auto state = std::make_unique<State>();
  const auto refused = [elements] {
    return error(Code::kDoesNotFit, "no memory to encode byte planes of %lld bytes",
                 static_cast<long long>(elements));
  };
  if (state->compress == nullptr || state->decompress == nullptr) return refused();
  try {
    state->plane.resize(static_cast<size_t>(std::max<int64_t>(elements, 1)));
  } catch (const std::bad_alloc&) {
    return refused();
  }
  // The library sizes its tables at the first frame of a size: here, so that no later call
  // allocates.
  std::array<std::byte, 4096> sink;
  (void)ZSTD_compressCCtx(state->compress.get(), sink.data(), sink.size(), state->plane.data(),
                          state->plane.size(), kZstdLevel);
  return std::unique_ptr<CodecScratch>(new CodecScratch(std::move(state)));
}

Bytes encode(Codec codec, std::span<const std::byte> plain, std::span<std::byte> to,
             CodecScratch* scratch, ThreadPool& pool) {
  const auto n = static_cast<int64_t>(plain.size() / 4);
  const std::byte* from = plain.data();
  std::byte* out = to.data();
  const auto part = [&](auto one) {
    pool.for_range(n, kGrain, [&](int64_t begin, int64_t end, int) { one(begin, end); });
  };
  switch (codec) {
    case Codec::kNone: break;
    case Codec::kBf16:
      part([&](int64_t b, int64_t e) { encode_bf16(from, out, b, e); });
      return 2 * n;
    case Codec::kInt8Block:
      part([&](int64_t b, int64_t e) { encode_int8(from, out, n, b, e); });
      return n + 4 * ((n + kBlock - 1) / kBlock);
    case Codec::kMask:
      part([&](int64_t b, int64_t e) { encode_mask(from, out, b, e); });
      return (n + 7) / 8;
    case Codec::kBytePlane: return encode_planes(from, n, out, of(scratch));
  }
  HR_CHECK(false, "encoding by no codec");
}

Status decode(Codec codec, std::span<const std::byte> encoded, std::span<std::byte> to,
              CodecScratch* scratch, ThreadPool& pool) {
  const auto n = static_cast<int64_t>(to.size() / 4);
  const std::byte* from = encoded.data();
  std::byte* out = to.data();
  const auto part = [&](auto one) {
    pool.for_range(n, kGrain, [&](int64_t begin, int64_t end, int) { one(begin, end); });
  };
  switch (codec) {
    case Codec::kNone: break;
    case Codec::kBf16:
      part([&](int64_t b, int64_t e) { decode_bf16(from, out, b, e); });
      return {};
    case Codec::kInt8Block:
      part([&](int64_t b, int64_t e) { decode_int8(from, out, n, b, e); });
      return {};
    case Codec::kMask:
      part([&](int64_t b, int64_t e) { decode_mask(from, out, b, e); });
      return {};
    case Codec::kBytePlane: return decode_planes(encoded, out, n, of(scratch));
  }
  HR_CHECK(false, "decoding by no codec");
}

}  // namespace headrace
