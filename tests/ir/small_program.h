// A small Graph and a small cyclic Program of it, written by hand: one attention layer of width 4
// whose two weights take turns in one slot of the arena.
#pragma once

#include <string>

#include "headrace/ir/program.h"

namespace headrace::test {

inline const char* const kSmallGraph =
    R"(graph "small" max_rows 1 max_output_rows 1
t0 gathered f32 [ 1 4 ] bytes 8192 file 0 offset 96 64 "table.rows"
t1 activation f32 [ 1 4 ] bytes 16 "x"
t2 weight f32 [ 12 4 ] bytes 192 file 0 offset 4096 192 "qkv.weight"
t3 activation f32 [ 1 12 ] bytes 48 "qkv"
t4 constant f32 [ 1 2 ] bytes 8 values 1 0.5 "inv_freq"
t5 activation f32 [ 1 4 ] bytes 16 "rope"
t6 state f16 [ 128 16 ] bytes 4096 class kv "kv.tail.0.0"
t7 activation f32 [ 1 4 ] bytes 16 "q"
t8 activation f32 [ 1 4 ] bytes 16 "attn"
t9 weight f32 [ 4 4 ] bytes 64 file 0 offset 8160 64 "out.weight"
t10 output f32 [ 1 4 ] bytes 16 "logits"
t11 state i8 [ 1 4096 ] bytes 4096 slot 0 0 0 class kv align 4096 "kv.0.0.0"
op embed "embed" in t0 out t1 updates attrs scale 1 workspace 0
op rope_table "rope" in t4 out t5 updates attrs mscale 1 workspace 0
op matmul "qkv" in t1 t2 out t3 updates attrs col_begin 0 workspace 0
op rope_kv "rope_kv" in t3 t5 out t7 updates t6 attrs heads 1 kv_heads 1 head_dim 4 workspace 0
op attention "attn" in t7 out t8 updates t6 t11 attrs scale 0.5 heads 1 kv_heads 1 head_dim 4 segment_tokens 64 segments 1 segment_count 1 workspace 128
op matmul "out" in t8 t9 - t1 out t10 updates attrs col_begin 0 workspace 0
)";

// Steps are counted from 0 at the first instruction.
inline const char* const kSmallProgram =
    R"(program "small" cyclic 1 arena 28672
tier "device" capacity 28672 load 0 store 0 latency 0
tier "file" capacity 0 load 1e9 store 1e9 latency 100
gather t0 tier 1 stream 1 waits 8
compute op0 cost 10 waits 0
compute op1 cost 10
compute op2 cost 10 waits 10
detach t2
load t9 tier 1 stream 1 waits 3
compute op3 cost 10
compute op4 cost 10
compute op5 cost 10 waits 5
detach t9
load t2 tier 1 stream 1 waits 8
# KV | slot of the two weights | gathered rows | the rest
resident t6 offset 0 bytes 4096 steps -1 11
resident t2 offset 4096 bytes 4096 steps -1 4
resident t4 offset 20480 bytes 64 steps -1 11
resident t11 offset 24576 bytes 4096 steps -1 11
resident t0 offset 12288 bytes 8192 steps 0 2
resident t1 offset 20544 bytes 64 steps 1 9
resident t5 offset 20608 bytes 64 steps 2 7
resident t3 offset 20672 bytes 64 steps 3 7
resident t9 offset 4096 bytes 8192 steps 5 9
resident t7 offset 20736 bytes 64 steps 6 8
resident t8 offset 20800 bytes 64 steps 7 9
workspace op4 offset 20864 bytes 128 steps 7 8
resident t10 offset 20992 bytes 64 steps 8 11
resident t2 offset 4096 bytes 4096 steps 10 11
)";

inline std::string small_program_text() {
  return std::string(kSmallProgram) + kSmallGraph;
}

}  // namespace headrace::test
