// CapturedForward: the forward pass of a training step as somebody else wrote it down, read from
// JSON and checked. captured_step.h has the format.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/train/optimizer.h"

namespace headrace {

struct CapturedParameter {
  std::string name;
  std::vector<std::string> aliases;
  int64_t rows = 0, cols = 0;  // for the ops
  bool vector = false;         // of one dimension: f32 in every precision
  DType dtype = DType::kF32;   // that the caller has
  bool trainable = true;
  bool transposed = false;     // the caller has [cols, rows]
  int64_t group = 0;
  bool remote = false;         // remote_memory, see PlacementRule
  Bytes remote_max_bytes = 0;
  int32_t prefetch_priority = 0;
  bool table = false;          // nothing but a table: may be cut into tiles
};

// A value that an op writes, or an input.
struct CapturedValue {
  std::string name;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
};

struct CapturedConstant {
  std::string name;
  std::vector<float> values;
};

struct CapturedInput {
  CapturedValue value;
  int64_t count = 1;  // as many as there are repetitions of the micro-batch that reads it, or one
};

struct CapturedOp {
  std::string kernel, name;
  std::vector<std::string> inputs;  // of parameters, their first name
  std::vector<CapturedValue> outputs;
  std::map<Attr, double> attrs;
};

struct CapturedMicroBatch {
  std::vector<CapturedOp> ops;
  int64_t repeat = 1;
};

struct CapturedForward {
  std::string name;
  Precision precision = Precision::kF32;
  int64_t rows = 0, sequences = 1;
  std::vector<CapturedParameter> parameters;
  std::vector<CapturedConstant> constants;
  std::vector<CapturedInput> inputs;
  std::vector<CapturedMicroBatch> micro_batches;

  DType compute_dtype() const { return precision == Precision::kF32 ? DType::kF32 : DType::kBF16; }
};

constexpr size_t kMostCapturedOperands = 4096;  // of one op, tiles included

struct CapturedOptimizer {
  bool adamw = true;  // else SGD
  double clip_norm = 0;
  std::vector<StepNumbers> groups;
};

// kBadFile with the place and the reason for all that captured_step.h does not allow, but what
// verify_train_op() says of operands; kUnsupported: precisions, dtypes and ops that are not
// supported, by name. Linear in time and memory.
Result<CapturedForward> parse_captured_forward(std::string_view json);
Result<CapturedOptimizer> parse_captured_optimizer(std::string_view json);
// The part of it that looks at names: gives tied parameters their first name everywhere, and finds
// out which parameters are tables.
Status check_captured_forward(CapturedForward* forward);

}  // namespace headrace
