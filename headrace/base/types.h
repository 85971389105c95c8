// Strong integer types shared by every folder.
//
// Vocabulary: a TensorId names a value of a Graph, an OpId an operation of it, a TierId a level of
// the memory hierarchy (0 is always `device`), a StreamId a queue of a Program. Byte counts and
// offsets are plain 64-bit `Bytes`; intervals are half-open [begin, end).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace headrace {

// A count of bytes or a byte offset. Signed, so that a difference that goes below zero is seen.
using Bytes = int64_t;
// A count of nanoseconds, or a time since the start of a Trace.
using Nanos = int64_t;

constexpr Bytes kKiB = 1024;
constexpr Bytes kMiB = 1024 * kKiB;
constexpr Bytes kGiB = 1024 * kMiB;
// O_DIRECT transfers start and end on this boundary; so do extents that receive them.
constexpr Bytes kPage = 4 * kKiB;
// Activations and KV rows start on this boundary (one cache line, one AVX-512 register).
constexpr Bytes kLine = 64;

constexpr Bytes round_up(Bytes n, Bytes unit) { return (n + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes n, Bytes unit) { return n / unit * unit; }
constexpr int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// An integer that is only ever an index of one kind of thing; -1 means none.
template <typename Tag>
struct Id {
  int32_t value = -1;
  constexpr Id() = default;
  constexpr explicit Id(int64_t v) : value(static_cast<int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  auto operator<=>(const Id&) const = default;
};

using TensorId = Id<struct TensorTag>;
using OpId = Id<struct OpTag>;
using TierId = Id<struct TierTag>;
using StreamId = Id<struct StreamTag>;
// A position in the instruction list of a Program.
using Step = Id<struct StepTag>;

constexpr TierId kDevice{0};

}  // namespace headrace

template <typename Tag>
struct std::hash<headrace::Id<Tag>> {
  size_t operator()(headrace::Id<Tag> id) const { return std::hash<int32_t>()(id.value); }
};
