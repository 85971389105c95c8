// The header of an entry: what is written is read, and any bytes at all are answered.
#include "headrace/kv/prefix_format.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/kv/prefix_files.h"

namespace headrace {
namespace {

using testing::tokens_of;

PrefixHeader made(size_t layers, int64_t tokens) {
  PrefixHeader h;
  h.parent = chain_start(1, KvFormat::kQ4);
  h.tokens = tokens_of(layers, tokens);
  h.hash = chain_next(h.parent, h.tokens);
  h.model = 77;
  h.format = KvFormat::kQ4;
  h.label = "a model";
  h.first = 512;
  for (size_t i = 0; i < layers; ++i) {
    h.tile_bytes.push_back(static_cast<Bytes>(64 * i));
    h.sums.push_back({i, i + 1});
  }
  h.recompute_seconds = 0.25;
  h.created = 1234567;
  h.priority = 3.5;
  return h;
}

std::vector<std::byte> encoded(const PrefixHeader& h) {
  std::vector<std::byte> bytes(static_cast<size_t>(h.header_bytes()));
  encode(h, bytes);
  return bytes;
}

TEST(PrefixFormat, HeadersOfAnySizeComeBack) {
  for (const size_t layers : {1, 30, 120, 121, 1024}) {
    for (const int64_t tokens : {64, 256}) {
      const PrefixHeader h = made(layers, tokens);
      const auto bytes = encoded(h);
      EXPECT_EQ(bytes.size() % kPage, 0u);
      EXPECT_EQ(*header_bytes_of(std::span(bytes).first(kPage)), h.header_bytes());
      const auto back = parse(bytes, h.file_bytes());
      ASSERT_TRUE(back.ok()) << back.status().message();
      EXPECT_EQ(back->hash, h.hash);
      EXPECT_EQ(back->parent, h.parent);
      EXPECT_EQ(back->tokens, h.tokens);
      EXPECT_EQ(back->tile_bytes, h.tile_bytes);
      EXPECT_EQ(back->sums, h.sums);
      EXPECT_EQ(back->label, h.label);
      EXPECT_EQ(back->first, h.first);
      EXPECT_EQ(back->model, h.model);
      EXPECT_EQ(back->priority, h.priority);
      EXPECT_EQ(back->recompute_seconds, h.recompute_seconds);
    }
  }
}

TEST(PrefixFormat, MutatedHeadersAreAnsweredAndNeverAccepted) {
  const PrefixHeader h = made(30, 256);
  const auto whole = encoded(h);
  SplitMix random(11);
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    auto bytes = whole;
    const int changes = 1 + random.below(3);
    for (int k = 0; k < changes; ++k) {
      // Mostly where the fields are.
      const auto at = static_cast<size_t>(random.below(random.below(4) == 0 ? bytes.size() : 200));
      bytes[at] = static_cast<std::byte>(random.below(3) == 0 ? random.below(2) * 255
                                                              : random.below(256));
    }
    // The use record is not part of the checksum.
    bool same = true;
    for (size_t at = 0; at < bytes.size(); ++at) {
      same = same && (bytes[at] == whole[at] || (at >= kUseOffset && at < kUseOffset + 16));
    }
    if (random.below(16) == 0) {
      bytes.resize(static_cast<size_t>(random.below(bytes.size())));
      same = false;
    }
    const auto header = parse(bytes, h.file_bytes());
    ASSERT_EQ(header.ok(), same) << i;
    accepted += header.ok();
    ASSERT_EQ(header.status().message().empty(), same);
    const auto size = header_bytes_of(bytes);
    ASSERT_LE(size.ok() ? *size : 0, 64 * kKiB);
  }
  EXPECT_GT(accepted, 0);
}

// Makes the header's checksum right again, as somebody would who wants to be believed.
void sign(std::vector<std::byte>* bytes) {
  constexpr size_t kFixed = 192;
  std::vector<std::byte> fixed(bytes->begin(), bytes->begin() + kFixed);
  std::memset(fixed.data() + 16, 0, 8);
  std::memset(fixed.data() + kUseOffset, 0, 16);
  const uint64_t start = XXH3_64bits(fixed.data(), kFixed);
  const uint64_t check =
      XXH3_64bits_withSeed(bytes->data() + kFixed, bytes->size() - kFixed, start);
  std::memcpy(bytes->data() + 16, &check, sizeof(check));
}

TEST(PrefixFormat, MutatedHeadersWithARightChecksumAreRefusedOrConsistent) {
  const PrefixHeader h = made(30, 256);
  const auto whole = encoded(h);
  SplitMix random(12);
  int refused = 0;
  for (int i = 0; i < 50000; ++i) {
    auto bytes = whole;
    // The fields but the checksum, and the records of the layers.
    const size_t at = random.below(2) == 0 ? static_cast<size_t>(random.below(192))
                                           : static_cast<size_t>(1216 + random.below(720));
    const uint64_t edges[] = {0, 1, 64, 255, 4095, 1u << 30, 1ull << 40, 1ull << 62, 1ull << 63,
                              ~0ull, 0x7ff8000000000000ull};
    const uint64_t edge = edges[random.below(std::size(edges))];
    std::memcpy(bytes.data() + at, &edge, random.below(2) == 0 ? 4 : 8);
    sign(&bytes);
    const auto header = parse(bytes, h.file_bytes());
    refused += !header.ok();
    if (!header.ok()) continue;
    ASSERT_EQ(header->file_bytes(), h.file_bytes());
    ASSERT_EQ(header->first % kChainTokens, 0);
    ASSERT_TRUE(header->value() >= 0 && header->priority >= 0);
    ASSERT_LT(header->label.size(), 64u);
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace headrace
