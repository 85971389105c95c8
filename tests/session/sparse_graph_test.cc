// Graphs of sessions that select KV segments: one selection a layer, read by every part of its
// attention; none in steps of several rows, whose keys are bounded all the same.
#include <gtest/gtest.h>

#include "headrace/ir/graph.h"
#include "headrace/model/build_graph.h"
#include "tests/session/small_models.h"

namespace headrace {
namespace {

GraphOptions options(int64_t rows) {
  GraphOptions o;
  o.max_rows = rows;
  o.context = 1024;
  o.segment_tokens = 128;
  o.split_attention = true;
  o.sparse_tokens = 512;
  return o;
}

TEST(SparseGraph, OneRowSelectsInEveryLayerAndEveryPartReadsTheMask) {
  const test::SmallModel m(test::streamed_llama());
  const auto g = build_graph(m.model->file, m.model->config, options(1));
  ASSERT_TRUE(g.ok()) << g.status().message();
  ASSERT_TRUE(verify(*g).ok()) << verify(*g).message();
  const auto again = parse_graph(to_text(*g));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(fingerprint(*again), fingerprint(*g));
  int64_t selections = 0, parts = 0;
  TensorId mask;
  for (const Op& op : g->ops) {
    if (op.kind == OpKind::kSelectKv) {
      ++selections;
      mask = op.outputs[0];
      EXPECT_EQ(g->at(mask).cols, 8);
    }
    if (op.kind != OpKind::kAttention) continue;
    ++parts;
    ASSERT_EQ(op.inputs.size(), 3u);
    EXPECT_EQ(op.inputs[2], mask);
  }
  EXPECT_EQ(selections, 6);
  EXPECT_EQ(parts, 6 * 8);
}

TEST(SparseGraph, SeveralRowsAttendAllAndBoundTheKeysOfTheSameState) {
  const test::SmallModel m(test::streamed_llama());
  const auto g = build_graph(m.model->file, m.model->config, options(32));
  ASSERT_TRUE(g.ok()) << g.status().message();
  ASSERT_TRUE(verify(*g).ok()) << verify(*g).message();
  int64_t keys = 0;
  for (const Tensor& t : g->tensors) keys += t.name.starts_with("kv.keys.") ? 1 : 0;
  EXPECT_EQ(keys, 6);
  for (const Op& op : g->ops) {
    EXPECT_NE(op.kind, OpKind::kSelectKv);
    if (op.kind == OpKind::kAttention) {
      EXPECT_EQ(op.inputs.size(), 2u);
    }
  }
}

TEST(SparseGraph, LayersWithAWindowSelectNothing) {
  const test::SmallModel m(test::streamed_gemma3_q4k());
  const auto g = build_graph(m.model->file, m.model->config, options(1));
  ASSERT_TRUE(g.ok()) << g.status().message();
  ASSERT_TRUE(verify(*g).ok()) << verify(*g).message();
  int64_t windows = 0;
  for (const Op& op : g->ops) {
    if (op.kind != OpKind::kAttention || op.iattr(Attr::kWindow) == 0) continue;
    ++windows;
    EXPECT_LT(op.inputs.size(), 3u);
    EXPECT_EQ(op.iattr(Attr::kSparseTokens), 0);
  }
  EXPECT_GT(windows, 0);
}

TEST(SparseGraph, IsRefusedForAttentionInOnePieceAndSeveralSequences) {
  const test::SmallModel m(test::streamed_llama());
  GraphOptions whole = options(1), two = options(1);
  whole.split_attention = false;
  two.sequences = 2;
  for (const GraphOptions& o : {whole, two}) {
    const auto g = build_graph(m.model->file, m.model->config, o);
    EXPECT_EQ(g.status().code(), Code::kUsage);
  }
}

TEST(SparseGraph, APartWithoutBoundsOrWithAMaskOfAnotherLengthIsRefused) {
  const test::SmallModel m(test::streamed_llama());
  const auto g = build_graph(m.model->file, m.model->config, options(1));
  ASSERT_TRUE(g.ok());
  for (const int broken : {0, 1, 2}) {
    Graph bad = *g;
    for (Op& op : bad.ops) {
      if (op.kind == OpKind::kAttention && broken == 0) op.attrs[Attr::kSparseTokens] = 0;
      if (op.kind == OpKind::kSelectKv && broken == 1) op.attrs[Attr::kSegments] = 7;
      if (op.kind == OpKind::kSelectKv && broken == 2) op.inputs[1] = op.inputs[0];
    }
    EXPECT_FALSE(verify(bad).ok()) << broken;
  }
}

}  // namespace
}  // namespace headrace
