#include "headrace/model/extents.h"

#include <algorithm>
#include <tuple>

#include "headrace/model/file_reader.h"

namespace headrace {

Status set_bytes(WeightInfo* weight) {
  const std::string name = printable(weight->name);
  const int block = info(weight->dtype).block_elements;
  if (weight->cols % block != 0) {
    return error(Code::kBadFile,
                 "tensor '%s': its rows of %lld elements are not whole %s blocks of %d",
                 name.c_str(), static_cast<long long>(weight->cols),
                 name_of(weight->dtype), block);
  }
  int64_t elements = 0;
  if (__builtin_mul_overflow(weight->rows, weight->cols, &elements) ||
      elements > kMaxElements) {
    return error(Code::kBadFile, "tensor '%s': %lld x %lld elements are too many",
                 name.c_str(), static_cast<long long>(weight->rows),
                 static_cast<long long>(weight->cols));
  }
  weight->source.bytes = weight->rows * row_bytes(weight->dtype, weight->cols);
  return {};
}

Status check_overlaps(const std::vector<WeightInfo>& weights) {
  std::vector<const WeightInfo*> order;
  for (const WeightInfo& weight : weights) order.push_back(&weight);
  std::sort(order.begin(), order.end(), [](const WeightInfo* a, const WeightInfo* b) {
    return std::tie(a->source.file, a->source.offset, a->name) <
           std::tie(b->source.file, b->source.offset, b->name);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const WeightInfo& before = *order[i - 1];
    const WeightInfo& after = *order[i];
    if (before.source.file != after.source.file) continue;
    if (before.source.offset + before.source.bytes <= after.source.offset) continue;
    return error(
        Code::kBadFile,
        "tensors '%s' (%lld bytes at %lld) and '%s' (%lld bytes at %lld) overlap",
        printable(before.name).c_str(), static_cast<long long>(before.source.bytes),
        static_cast<long long>(before.source.offset), printable(after.name).c_str(),
        static_cast<long long>(after.source.bytes),
        static_cast<long long>(after.source.offset));
  }
  return {};
}

Status sort_by_name(std::vector<WeightInfo>* weights) {
  std::sort(weights->begin(), weights->end(),
            [](const WeightInfo& a, const WeightInfo& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      weights->begin(), weights->end(),
      [](const WeightInfo& a, const WeightInfo& b) { return a.name == b.name; });
  if (twice == weights->end()) return {};
  return error(Code::kBadFile, "tensor '%s' is there twice",
               printable(twice->name).c_str());
}

}  // namespace headrace
