// The stated meaning of kKernel ops, so that executed plans can be compared bit for bit: what a
// workload's kernels really compute is not known, but every byte that they read must matter.
//
// Meaning of op number o of the graph
//   digest  a 64-bit hash of o and of all bytes of all inputs, then of all updates as they were, in
//           the order listed. One byte changed, moved or exchanged gives another digest (but for
//           collisions of a 64-bit hash).
//   output  word i (8 bytes) of output number j is a mix of (digest, j, i); every byte is written.
//   update  word i of update number j becomes a mix of (digest, j, i) and of what it was.
//   f32     outputs and updates of dtype f32 hold numbers in [-1, 1), multiples of 2^-23, made from
//           the halves of the words: no NaN, no infinity, so that lossy codecs have a meaning.
//   workspace  every byte is overwritten: whoever else uses it at that time is found out.
// The time that the op takes on a machine is the executor's business (emulate_compute).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/kernel/kernel.h"

namespace headrace {

// kKernel. Reads all operands before it writes any, so an output may share bytes with an input.
// Gathered inputs count with the rows of the step. Nothing is allocated; ctx.pool is used.
void synthetic_cpu(const OpContext& ctx);

// Hash of `bytes`, started from `seed`; the same for any number of threads.
uint64_t digest_of(uint64_t seed, std::span<const std::byte> bytes, ThreadPool& pool);

}  // namespace headrace
