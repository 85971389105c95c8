// A step of two layers and its Program for 256 MiB: the input moves to the host between the ops
// that need it; every number can be checked by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "headrace/plan/step_plan.h"
#include "headrace/sim/simulate.h"

namespace headrace::test {

// By hand: op0 reads x at once; 1.4 ms an op at 20 GB/s each way, 10 us of latency.
inline const char* const kTwoLayers =
    R"(program "two layers" cyclic 0 arena 268435456 machine "test machine"
tier "device" capacity 268435456 load 0 store 0 latency 0
tier "host" capacity 1073741824 load 2e+10 store 2e+10 latency 10000 duplex
compute op0 cost 1
compute op1 cost 1400000
store t2 tier 1 stream 2 waits 1
detach t2 waits 2
compute op2 cost 1400000
compute op3 cost 400000 waits 2
compute op4 cost 1400000
compute op5 cost 1400000
load t2 tier 1 stream 1 waits 7
compute op6 cost 1400000 waits 8
compute op7 cost 100000
compute op8 cost 100000
resident t0 offset 201326592 bytes 33554432 steps -1 12
resident t1 offset 234881024 bytes 33554432 steps -1 12
resident t2 offset 67108864 bytes 67108864 steps 0 3
resident t3 offset 0 bytes 67108864 steps 1 7
resident t2 offset 0 bytes 67108864 steps 2 9 tier 1
resident t4 offset 134217728 bytes 67108864 steps 4 6
resident t5 offset 67108864 bytes 67108864 steps 5 8
resident t8 offset 134217728 bytes 33554432 steps 6 12
resident t6 offset 0 bytes 67108864 steps 7 10
resident t2 offset 67108864 bytes 67108864 steps 8 10
resident t7 offset 167772160 bytes 33554432 steps 9 11
graph "two layers" max_rows 1 max_output_rows 1
t0 state bf16 [ 4096 4096 ] bytes 33554432 class weight "layer.1.w"
t1 state bf16 [ 4096 4096 ] bytes 33554432 class weight "layer.2.w"
t2 activation bf16 [ 8192 4096 ] bytes 67108864 class input "x"
t3 activation bf16 [ 8192 4096 ] bytes 67108864 "layer.1.out"
t4 activation bf16 [ 8192 4096 ] bytes 67108864 "layer.2.out"
t5 activation bf16 [ 8192 4096 ] bytes 67108864 class gradient "dy"
t6 activation bf16 [ 8192 4096 ] bytes 67108864 class gradient "da"
t7 activation bf16 [ 4096 4096 ] bytes 33554432 class gradient "layer.1.grad"
t8 activation bf16 [ 4096 4096 ] bytes 33554432 class gradient "layer.2.grad"
op kernel "read" in out t2 updates attrs seconds 0 recompute 0 workspace 0 kernel "Input"
op kernel "layer.1.forward" in t2 t0 out t3 updates attrs flops 274877906944 workspace 0 kernel "MatMul"
op kernel "layer.2.forward" in t3 t1 out t4 updates attrs flops 274877906944 workspace 0 kernel "MatMul"
op kernel "loss" in t4 out t5 updates attrs seconds 4e-04 workspace 0 kernel "Loss"
op kernel "layer.2.back.w" in t3 t5 out t8 updates attrs flops 274877906944 workspace 0 kernel "MatMul"
op kernel "layer.2.back.x" in t5 t1 out t6 updates attrs flops 274877906944 workspace 0 kernel "MatMul"
op kernel "layer.1.back.w" in t2 t6 out t7 updates attrs flops 274877906944 workspace 0 kernel "MatMul"
op kernel "layer.1.step" in t7 out updates t0 attrs seconds 1e-04 workspace 0 kernel "Sgd"
op kernel "layer.2.step" in t8 out updates t1 attrs seconds 1e-04 workspace 0 kernel "Sgd"
)";

inline Program two_layers() {
  auto program = parse_program(kTwoLayers);
  EXPECT_TRUE(program.ok()) << program.status().message();
  if (!program.ok()) return {};
  const Status good = verify(*program);
  EXPECT_TRUE(good.ok()) << good.message();
  return std::move(program).value();
}

// As plan_step would tell it, the numbers written down.
inline StepPlan two_layers_plan() {
  StepPlan plan;
  plan.program = two_layers();
  plan.predicted = simulate(plan.program);
  plan.bound = {7'600'001, 151'000, 7'751'001, "64.0 MiB more than the budget are live at 'loss'"};
  Choice c;
  c.tensor = TensorId(2);
  c.way = Way::kMove;
  c.tier = TierId(1);
  c.after = OpId(1);
  c.before = OpId(6);
  c.freed_bytes = 67108864;
  c.gap_ns = 9'930'865;
  c.lead_ns = 0;
  c.added_ns = 5'300'000;
  c.move_ns = 5'300'000;
  c.compress_ns = 2'000;
  plan.choices.push_back(c);
  plan.portfolio = {{"keep everything", false, 0, 335544320},
                    {"planner", true, plan.predicted.total_ns, 268435456},
                    {"spill everything", true, 2 * plan.predicted.total_ns, 201326592}};
  plan.passes = {{"order", 9}, {"placement", 79}};
  plan.unconstrained_peak_bytes = 335544320;
  return plan;
}

}  // namespace headrace::test
