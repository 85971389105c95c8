#include <gtest/gtest.h>

#include "headrace/kernel/half.h"
#include "headrace/kernel/quant.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {
namespace {

constexpr int64_t kVocab = 50, kCols = 96;

// An f16 table whose values say where they are.
std::vector<uint16_t> table() {
  const auto values = normal_values(kVocab * kCols, 5);
  std::vector<uint16_t> halves;
  for (float v : values) halves.push_back(f32_to_f16(v));
  return halves;
}

StepRows tokens(std::vector<int32_t> ids) {
  StepRows step = step_of(static_cast<int64_t>(ids.size()));
  step.tokens = std::move(ids);
  return step;
}

TEST(Embed, TakesRowsFromTilesInOrderAndScalesThem) {
  OpHarness h(OpKind::kEmbed, 6);
  const int64_t tile_rows[] = {20, 1, 29};
  const auto source = table();
  int64_t first = 0;
  for (int64_t rows : tile_rows) {
    const size_t tile = h.input(DType::kF16, rows, kCols, Role::kWeight);
    std::memcpy(h.bytes(tile), source.data() + first * kCols,
                static_cast<size_t>(rows * kCols * 2));
    first += rows;
  }
  const size_t out = h.output(DType::kF32, 6, kCols);
  h.op.attrs = {{Attr::kScale, 24.0}};
  const StepRows step = tokens({0, 19, 20, 21, 49, 0});
  for (Isa isa : all_isas()) {
    IsaScope scope(isa);
    h.run(step, 2);
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t i = 0; i < kCols; ++i) {
        const int64_t at = step.tokens[static_cast<size_t>(row)] * kCols + i;
        ASSERT_EQ(h.f32(out)[row * kCols + i],
                  f16_to_f32(source[static_cast<size_t>(at)]) * 24.0f);
      }
    }
  }
}

TEST(Embed, TakesEachRowFromItsPageRoundedSupersetWhenGathered) {
  OpHarness h(OpKind::kEmbed, 3);
  const auto source = table();
  const size_t gathered = h.input(DType::kF16, kVocab, kCols, Role::kGathered);
  Tensor& tensor = h.graph.tensors[gathered];
  tensor.source = {0, 4096 * 3 + 32 * 125 + 2,
                   kVocab * kCols * 2};  // a row crosses a page
  tensor.bytes = 3 * gathered_row_stride(tensor);
  h.buffers[gathered] = Buffer(tensor.bytes);
  const StepRows step = tokens({7, 0, 49});
  for (int64_t row = 0; row < 3; ++row) {
    const int32_t token = step.tokens[static_cast<size_t>(row)];
    std::memcpy(h.bytes(gathered) + row * gathered_row_stride(tensor) +
                    gathered_skew(tensor, token),
                source.data() + token * kCols, kCols * 2);
  }
  const size_t out = h.output(DType::kF32, 3, kCols);
  h.run(step);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < kCols; ++i) {
      const int64_t at = step.tokens[static_cast<size_t>(row)] * kCols + i;
      ASSERT_EQ(h.f32(out)[row * kCols + i], f16_to_f32(source[static_cast<size_t>(at)]));
    }
  }
}

TEST(Embed, DequantisesAQuantisedTable) {
  OpHarness h(OpKind::kEmbed, 2);
  const size_t tile = h.input(DType::kQ8_0, 8, kCols, Role::kWeight);
  h.buffers[tile].fill(0x21);
  const size_t out = h.output(DType::kF32, 2, kCols);
  h.run(tokens({3, 7}));
  std::vector<float> want(kCols);
  dequantize_row(DType::kQ8_0, h.bytes(tile) + 3 * row_bytes(DType::kQ8_0, kCols), kCols,
                 want.data());
  EXPECT_EQ(h.floats(out, 1, kCols), want);
}

}  // namespace
}  // namespace headrace::test
