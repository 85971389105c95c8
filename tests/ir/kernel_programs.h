// Small Programs of kernels, written by hand: one that uses everything a step can do, and one that
// keeps a state in another tier between cycles.
#pragma once

#include <string>

#include "headrace/ir/program.h"

namespace headrace::test {

// a is stored and comes back in two parts; b is kept as bf16 in between; c is computed twice.
inline const char* const kStepProgram =
    R"(program "step" cyclic 0 arena 1664 machine "by hand"
tier "device" capacity 1664 load 0 store 0 latency 0
tier "host" capacity 1024 load 1e9 store 5e8 latency 100 duplex
compute op0 cost 10
store t1 tier 1 stream 2 waits 0
compute op1 cost 10
detach t1 waits 1
compute op2 cost 10 waits 1
encode t2 codec bf16 cost 5
detach t2
load t1 tier 1 stream 1 range 0 128 waits 5
load t1 tier 1 stream 1 range 128 -1 waits 5
compute op3 cost 10 waits 7 8
detach t3
decode t2 codec bf16 cost 6
compute op2 cost 10
compute op4 cost 10
resident t0 offset 0 bytes 256 steps -1 14
resident t1 offset 256 bytes 256 steps 0 3
resident t1 offset 0 bytes 256 steps 1 9 tier 1
resident t2 offset 512 bytes 256 steps 2 6
resident t3 offset 256 bytes 256 steps 4 10
resident t2 offset 768 bytes 128 steps 5 12 codec bf16
resident t1 offset 512 bytes 128 steps 7 10 range 0 128
resident t1 offset 640 bytes 128 steps 8 10 range 128 128
resident t4 offset 896 bytes 256 steps 9 14
workspace op3 offset 1408 bytes 64 steps 9 10
resident t2 offset 1152 bytes 256 steps 11 14
resident t3 offset 256 bytes 256 steps 12 14
graph "step" max_rows 1 max_output_rows 0
t0 state f32 [ 1 64 ] bytes 256 class weight "w"
t1 activation f32 [ 1 64 ] bytes 256 "a"
t2 activation f32 [ 1 64 ] bytes 256 "b"
t3 activation f32 [ 1 64 ] bytes 256 "c"
t4 activation f32 [ 1 64 ] bytes 256 "d"
op kernel "f1" in t0 out t1 updates attrs workspace 0
op kernel "f2" in t1 out t2 updates attrs workspace 0
op kernel "f3" in t2 out t3 updates attrs workspace 0
op kernel "b2" in t3 t1 out t4 updates attrs workspace 64
op kernel "b1" in t4 t2 t3 out updates t0 attrs workspace 0
)";

// m comes from the host, is changed, and goes back to the same slot.
inline const char* const kStateProgram =
    R"(program "state" cyclic 1 arena 512
tier "device" capacity 512 load 0 store 0 latency 0
tier "host" capacity 256 load 1e9 store 1e9 latency 0 duplex
load t0 tier 1 stream 1 waits 3
compute op0 cost 10 waits 0
compute op1 cost 10
store t0 tier 1 stream 2 waits 2
detach t0 waits 3
resident t0 offset 0 bytes 256 steps -1 3 tier 1
resident t0 offset 0 bytes 256 steps 0 4
resident t1 offset 256 bytes 256 steps 1 5
resident t0 offset 0 bytes 256 steps 3 5 tier 1
graph "state" max_rows 1 max_output_rows 1
t0 state f32 [ 1 64 ] bytes 256 class optimizer "m"
t1 output f32 [ 1 64 ] bytes 256 "x"
op kernel "use" in t0 out t1 updates attrs workspace 0
op kernel "change" in t1 out updates t0 attrs workspace 0
)";

// y is written by two tiles of columns.
inline const char* const kTilesProgram =
    R"(program "tiles" cyclic 0 arena 20480
tier "device" capacity 20480 load 0 store 0 latency 0
tier "file" capacity 0 load 1e9 store 1e9 latency 0
gather t0 tier 1 stream 1
compute op0 cost 1 waits 0
compute op1 cost 1
compute op2 cost 1
compute op3 cost 1
resident t2 offset 0 bytes 4096 steps -1 5
resident t3 offset 4096 bytes 4096 steps -1 5
resident t0 offset 8192 bytes 8192 steps 0 2
resident t1 offset 16384 bytes 64 steps 1 5
resident t4 offset 16448 bytes 64 steps 2 5
resident t5 offset 16512 bytes 64 steps 4 5
graph "tiles" max_rows 1 max_output_rows 1
t0 gathered f32 [ 1 4 ] bytes 8192 file 0 offset 96 64 "rows"
t1 activation f32 [ 1 4 ] bytes 16 "x"
t2 weight f32 [ 2 4 ] bytes 32 file 0 offset 4096 32 "w0"
t3 weight f32 [ 2 4 ] bytes 32 file 0 offset 8192 32 "w1"
t4 activation f32 [ 1 4 ] bytes 16 "y"
t5 output f32 [ 1 4 ] bytes 16 "z"
op embed "embed" in t0 out t1 updates attrs scale 1 workspace 0
op matmul "m0" in t1 t2 out t4 updates attrs col_begin 0 workspace 0
op matmul "m1" in t1 t3 out t4 updates attrs col_begin 2 workspace 0
op softcap "cap" in t4 out t5 updates attrs softcap 1 workspace 0
)";

}  // namespace headrace::test
