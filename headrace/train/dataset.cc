// Layout of RUN/data/NAME.tokens
//   header   64 bytes: magic, version, width of a token in bytes (2, 4; 0: the tokens are in the
//            data files themselves), number of tokens, fingerprint of what they were made from
//   tokens   little-endian, from byte 64 on
#include "headrace/train/dataset.h"

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "headrace/base/safe_file.h"
#include "headrace/base/split_mix.h"
#include "headrace/model/tokenizer.h"
#include "headrace/train/dataset_text.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

constexpr size_t kPiece = 1 << 18;  // bytes read or written at a time
constexpr Bytes kHeader = 64;
constexpr uint64_t kMagic = 0x314e454b4f545248;  // "HRTOKEN1"

struct Header {
  uint64_t magic = kMagic;
  uint32_t version = 1;
  uint32_t width = 0;
  int64_t tokens = 0;
  uint64_t fingerprint = 0;
  std::array<uint64_t, 4> unused = {};
};
static_assert(sizeof(Header) == kHeader);

// ---- the order of samples ---------------------------------------------------------------------

// A permutation of [0, n): a balanced Feistel network on the smallest even number of bits that
// holds n, applied until the result lies below n (fewer than 4 times on average).
int64_t permuted(int64_t index, int64_t n, uint64_t key) {
  int half = 1;
  while (half < 31 && (int64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mixed(key + round * kSplitMixStep + right) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

// ---- what the tokens were made from -----------------------------------------------------------

class Fingerprint {
 public:
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    value_ = XXH3_64bits_withSeed(text.data(), text.size(), value_);
  }
  void add(int64_t number) { value_ = XXH3_64bits_withSeed(&number, sizeof(number), value_); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

// Letters, spaces, digits, marks and line ends in many combinations: merges that differ although
// the tokens are the same would show here.
constexpr std::string_view kProbe =
    "The quick brown fox's 1234567 jumps\n\n  over   it; they're \"done\"!?\tInternationalization "
    "na\xc3\xafve \xe4\xb8\x96\xe7\x95\x8c unbelievable re-reading 3.14159 foo_bar() { return x; "
    "}\r\n";

Status add_tokenizer(const Tokenizer* tokenizer, Fingerprint* out) {
  if (tokenizer == nullptr) return {};
  out->add(tokenizer->size());
  out->add(tokenizer->eos());
  for (int32_t id = 0; id < tokenizer->size(); ++id) out->add(tokenizer->text(id));
  HR_ASSIGN(const std::vector<int32_t> probe, tokenizer->encode(kProbe, {}));
  for (const int32_t id : probe) out->add(id);
  return {};
}

int width_of(const std::string& format, int64_t vocab) {
  if (format == "text") return vocab <= 65536 ? 2 : 4;
  return format == "u16" ? 2 : 4;
}

// ---- making the shard -------------------------------------------------------------------------

Status outside(const std::string& file, int64_t position, int64_t token, int64_t vocab) {
  return error(Code::kBadFile, "%s: token number %lld is %lld, but the vocabulary has %lld",
               file.c_str(), static_cast<long long>(position), static_cast<long long>(token),
               static_cast<long long>(vocab));
}

// Appends tokens to the shard, checked, through a small buffer.
class ShardWriter {
 public:
  ShardWriter(OutFile* out, int width, int64_t vocab) : out_(out), width_(width), vocab_(vocab) {}

  void begin_file(const std::string& name) {
    file_ = name;
    position_ = 0;
  }
  Status add(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      if (token < 0 || token >= vocab_) return outside(file_, position_, token, vocab_);
      const auto bits = static_cast<uint32_t>(token);
      const size_t at = buffer_.size();
      buffer_.resize(at + static_cast<size_t>(width_));
      std::memcpy(buffer_.data() + at, &bits, static_cast<size_t>(width_));
      ++position_;
      ++count_;
      if (buffer_.size() >= kPiece) HR_TRY(flush());
    }
    return {};
  }
  Status flush() {
    HR_TRY(out_->append(buffer_));
    buffer_.clear();
    return {};
  }
  int64_t count() const { return count_; }

 private:
  OutFile* out_;
  int width_;
  int64_t vocab_;
  std::string file_;
  int64_t position_ = 0, count_ = 0;
  std::vector<std::byte> buffer_;
};

Status tokenize_file(const std::string& path, const Tokenizer* tokenizer, ShardWriter* out) {
  HR_ASSIGN(const InFile in, InFile::open(path));
  out->begin_file(path);
  TextCutter cutter(tokenizer != nullptr && tokenizer->strips_leading_space());
  std::vector<int32_t> bytes;
  std::string piece(kPiece, '\0');
  for (Bytes begin = 0; begin < in.size(); begin += static_cast<Bytes>(piece.size())) {
    piece.resize(
        static_cast<size_t>(std::min<Bytes>(static_cast<Bytes>(kPiece), in.size() - begin)));
    HR_TRY(in.read(begin, std::as_writable_bytes(std::span(piece))));
    if (const size_t nul = piece.find('\0'); nul != std::string::npos) {
      return error(Code::kBadFile, "%s: byte %lld is NUL: this is no text", path.c_str(),
                   static_cast<long long>(begin + static_cast<Bytes>(nul)));
    }
    if (tokenizer == nullptr) {
      bytes.resize(piece.size());
      for (size_t i = 0; i < piece.size(); ++i) bytes[i] = static_cast<unsigned char>(piece[i]);
      HR_TRY(out->add(bytes));
      continue;
    }
    cutter.push(piece);
    const bool last = begin + static_cast<Bytes>(piece.size()) == in.size();
    while (auto part = cutter.next(last)) {
      auto tokens = tokenizer->encode(*part, {});
      if (!tokens.ok()) return tokens.status().within(path);
      HR_TRY(out->add(*tokens));
    }
  }
  in.forget();
  return {};
}

// The tokens of a file of tokens, checked; they stay where they are.
Result<int64_t> check_tokens(const std::string& path, int width, int64_t vocab) {
  HR_ASSIGN(const InFile in, InFile::open(path));
  if (in.size() % width != 0) {
    return error(Code::kBadFile, "%s: %lld bytes are no whole number of tokens of %d bytes",
                 path.c_str(), static_cast<long long>(in.size()), width);
  }
  std::vector<std::byte> piece(kPiece);
  for (Bytes begin = 0; begin < in.size(); begin += static_cast<Bytes>(kPiece)) {
    const auto part = std::span(piece).first(
        static_cast<size_t>(std::min<Bytes>(static_cast<Bytes>(kPiece), in.size() - begin)));
    HR_TRY(in.read(begin, part));
    for (size_t at = 0; at < part.size(); at += static_cast<size_t>(width)) {
      uint32_t token = 0;
      std::memcpy(&token, part.data() + at, static_cast<size_t>(width));
      if (token >= vocab) {
        return outside(path, (begin + static_cast<Bytes>(at)) / width, token, vocab);
      }
    }
  }
  in.forget();
  return in.size() / width;
}

}  // namespace

// A run of tokens of one file.
struct Segment {
  InFile file;
  int width = 2;
  Bytes offset = 0;   // of its first token
  int64_t begin = 0;  // number of its first token in the stream
  int64_t count = 0;
};

struct Dataset::State {
  std::vector<Segment> segments;
  int64_t tokens = 0;
  int64_t samples = 0;
  int64_t sequence = 0;
  uint64_t seed = 0;

  Status read(int64_t begin, std::span<int32_t> out) const;
};

namespace {

class Opener {
 public:
  Opener(const TrainConfig& config, const std::vector<std::string>& files, const std::string& what,
         const Tokenizer* tokenizer, int64_t vocab)
      : config_(config), files_(files), tokenizer_(tokenizer), vocab_(vocab) {
    folder_ = path_of(config, config.out) + "/data";
    shard_ = folder_ + "/" + what + ".tokens";
    text_ = config.data.format == "text";
    width_ = width_of(config.data.format, vocab);
  }

  Status open(std::vector<Segment>* out) {
    if (files_.empty()) return error(Code::kUsage, "no data files");
    HR_ASSIGN(const uint64_t fingerprint, fingerprint_of());
    HR_ASSIGN(Header header, header_of(fingerprint));
    if (header.tokens < 0) HR_TRY(make(fingerprint));
    if (text_) {
      HR_ASSIGN(InFile in, InFile::open(shard_));
      HR_TRY(in.read(0, std::as_writable_bytes(std::span(&header, 1))));
      out->push_back({std::move(in), width_, kHeader, 0, header.tokens});
      return {};
    }
    for (const std::string& file : files_) {
      HR_ASSIGN(InFile in, InFile::open(path_of(config_, file)));
      const int64_t count = in.size() / width_;
      const int64_t begin = out->empty() ? 0 : out->back().begin + out->back().count;
      out->push_back({std::move(in), width_, 0, begin, count});
    }
    return {};
  }

 private:
  // Also refuses empty files.
  Result<uint64_t> fingerprint_of() const {
    Fingerprint out;
    out.add(config_.data.format);
    out.add(vocab_);
    for (const std::string& file : files_) {
      const std::string path = path_of(config_, file);
      HR_ASSIGN(const InFile in, InFile::open(path));
      if (in.size() == 0) return error(Code::kBadFile, "%s: the file is empty", path.c_str());
      out.add(path);
      out.add(in.size());
      out.add(in.modified_ns());
    }
    if (text_) HR_TRY(add_tokenizer(tokenizer_, &out));
    return out.value();
  }

  // The header of a shard that is there and whole; tokens is -1 when it must be made.
  Result<Header> header_of(uint64_t fingerprint) const {
    Header none;
    none.tokens = -1;
    const auto in = InFile::open(shard_);
    if (!in.ok() || in->size() < kHeader) return none;
    Header header;
    HR_TRY(in->read(0, std::as_writable_bytes(std::span(&header, 1))));
    const Bytes bytes = text_ ? header.tokens * width_ : 0;
    const bool same = header.magic == kMagic && header.version == 1 &&
                      header.width == static_cast<uint32_t>(text_ ? width_ : 0) &&
                      header.fingerprint == fingerprint && header.tokens >= 0 &&
                      in->size() == kHeader + bytes;
    return same ? header : none;
  }

  Status make(uint64_t fingerprint) {
    HR_TRY(make_folders(folder_));
    HR_ASSIGN(AtomicFile shard, AtomicFile::create(shard_));
    Header header;
    header.width = static_cast<uint32_t>(text_ ? width_ : 0);
    header.fingerprint = fingerprint;
    HR_TRY(shard.file().append(std::as_bytes(std::span(&header, 1))));
    if (text_) {
      ShardWriter writer(&shard.file(), width_, vocab_);
      for (size_t i = 0; i < files_.size(); ++i) {
        const int32_t end = tokenizer_ == nullptr ? -1 : tokenizer_->eos();
        if (i > 0 && end >= 0) HR_TRY(writer.add(std::span(&end, 1)));
        HR_TRY(tokenize_file(path_of(config_, files_[i]), tokenizer_, &writer));
      }
      HR_TRY(writer.flush());
      header.tokens = writer.count();
    } else {
      for (const std::string& file : files_) {
        HR_ASSIGN(const int64_t count, check_tokens(path_of(config_, file), width_, vocab_));
        header.tokens += count;
      }
    }
    HR_TRY(shard.file().rewrite(0, std::as_bytes(std::span(&header, 1))));
    return shard.commit();
  }

  const TrainConfig& config_;
  const std::vector<std::string>& files_;
  const Tokenizer* tokenizer_;
  int64_t vocab_;
  std::string folder_, shard_;
  bool text_ = true;
  int width_ = 2;
};

}  // namespace

Status Dataset::State::read(int64_t begin, std::span<int32_t> out) const {
  std::array<std::byte, 8192> buffer;
  for (const Segment& s : segments) {
    while (!out.empty() && begin < s.begin + s.count) {
      const auto width = static_cast<size_t>(s.width);
      const size_t n = std::min(
          {out.size(), static_cast<size_t>(s.begin + s.count - begin), buffer.size() / width});
      HR_TRY(
          s.file.read(s.offset + (begin - s.begin) * s.width, std::span(buffer).first(n * width)));
      for (size_t i = 0; i < n; ++i) {
        uint32_t token = 0;
        std::memcpy(&token, buffer.data() + i * width, width);
        out[i] = static_cast<int32_t>(token);
      }
      out = out.subspan(n);
      begin += static_cast<int64_t>(n);
    }
  }
  HR_CHECK(out.empty(), "samples lie within the tokens");
  return {};
}

Dataset::Dataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dataset::~Dataset() = default;

Result<std::unique_ptr<Dataset>> Dataset::open(const TrainConfig& config,
                                               const std::vector<std::string>& files,
                                               const std::string& what, const Tokenizer* tokenizer,
                                               int64_t vocab) {
  const DataConfig& d = config.data;
  if (d.format == "text" && tokenizer == nullptr && d.tokenizer != "bytes") {
    return error(Code::kUsage, "text needs a tokenizer");
  }
  auto state = std::make_unique<State>();
  const Tokenizer* used = d.tokenizer == "bytes" ? nullptr : tokenizer;
  HR_TRY(Opener(config, files, what, used, vocab).open(&state->segments));
  for (const Segment& s : state->segments) state->tokens += s.count;
  state->sequence = config.sequence;
  state->seed = config.seed;
  state->samples = (state->tokens - 1) / config.sequence;
  if (state->tokens <= config.sequence) {
    return error(Code::kBadFile, "%s%s: %lld tokens, fewer than the %lld of one sample",
                 path_of(config, files[0]).c_str(), files.size() > 1 ? " and others" : "",
                 static_cast<long long>(state->tokens),
                 static_cast<long long>(config.sequence + 1));
  }
  return std::unique_ptr<Dataset>(new Dataset(std::move(state)));
}

int64_t Dataset::samples() const { return state_->samples; }
int64_t Dataset::tokens() const { return state_->tokens; }

Status Dataset::read(int64_t index, std::span<int32_t> inputs, std::span<int32_t> targets) const {
  const State& s = *state_;
  HR_CHECK(index >= 0, "samples are counted from 0");
  HR_CHECK(static_cast<int64_t>(inputs.size()) == s.sequence && inputs.size() == targets.size(),
           "a sample is one sequence");
  const auto epoch = static_cast<uint64_t>(index / s.samples);
  const uint64_t key = mixed(mixed(s.seed + kSplitMixStep) + epoch);
  const int64_t begin = permuted(index % s.samples, s.samples, key) * s.sequence;
  HR_TRY(s.read(begin, inputs));
  HR_TRY(s.read(begin + s.sequence, targets.last(1)));
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  return {};
}

}  // namespace headrace
