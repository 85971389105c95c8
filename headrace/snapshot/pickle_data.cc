#include "headrace/snapshot/pickle_data.h"

#include <bit>
#include <cstring>

namespace headrace {
namespace {

// Opcodes, as in pickletools.py.
enum Op : uint8_t {
  kMark = '(', kStop = '.', kPop = '0', kPopMark = '1', kDup = '2', kBinFloat = 'G', kBinInt = 'J',
  kBinInt1 = 'K', kBinInt2 = 'M', kNone = 'N', kBinUnicode = 'X', kAppend = 'a', kEmptyDict = '}',
  kDictOp = 'd', kAppends = 'e', kBinGet = 'h', kLongBinGet = 'j', kListOp = 'l', kEmptyList = ']',
  kBinPut = 'q', kLongBinPut = 'r', kSetItem = 's', kTupleOp = 't', kEmptyTuple = ')',
  kSetItems = 'u', kBinBytes = 'B', kShortBinBytes = 'C', kProto = 0x80, kTuple1 = 0x85,
  kTuple2 = 0x86, kTuple3 = 0x87, kNewTrue = 0x88, kNewFalse = 0x89, kLong1 = 0x8a,
  kShortBinUnicode = 0x8c, kBinUnicode8 = 0x8d, kBinBytes8 = 0x8e, kMemoize = 0x94, kFrame = 0x95,
};

struct Named {
  uint8_t op;
  const char* name;
};
// What Python would run code for, or what data alone does not need.
constexpr Named kRefused[] = {
    {'c', "GLOBAL"},      {'R', "REDUCE"},        {'b', "BUILD"},        {'i', "INST"},
    {'o', "OBJ"},         {0x81, "NEWOBJ"},       {0x92, "NEWOBJ_EX"},   {0x93, "STACK_GLOBAL"},
    {'P', "PERSID"},      {'Q', "BINPERSID"},     {0x82, "EXT1"},        {0x83, "EXT2"},
    {0x84, "EXT4"},       {'I', "INT"},           {'L', "LONG"},         {'F', "FLOAT"},
    {'S', "STRING"},      {'T', "BINSTRING"},     {'U', "SHORT_BINSTRING"}, {'V', "UNICODE"},
    {'g', "GET"},         {'p', "PUT"},           {0x8b, "LONG4"},       {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},   {0x91, "FROZENSET"},    {0x96, "BYTEARRAY8"},  {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

}  // namespace

class PickleMachine {
 public:
  explicit PickleMachine(std::string_view input) { p_.input_ = input; }

  Result<PickleData> run() {
    if (p_.input_.size() < 2 || byte(0) != kProto || byte(1) < 2 || byte(1) > 5) {
      return error(Code::kBadFile, "not a pickle of protocol 2 to 5");
    }
    at_ = 2;
    while (true) {
      start_ = at_;
      HR_ASSIGN(const uint8_t op, take(1));
      if (op == kStop) break;
      HR_TRY(step(op));
    }
    if (stack_.size() != 1 || !marks_.empty()) return bad("ends with an unfinished value");
    p_.root_ = stack_[0];
    return std::move(p_);
  }

 private:
  using Ref = PickleData::Ref;
  using Kind = PickleData::Kind;
  static constexpr size_t kMostNodes = size_t{1} << 31;

  uint8_t byte(size_t i) const { return static_cast<uint8_t>(p_.input_[i]); }

  Status bad(const char* why) const {
    return error(Code::kBadFile, "byte %zu of the pickle: %s", start_, why);
  }

  // The next `count` (at most 8) bytes as a number, least first.
  Result<uint64_t> take(size_t count) {
    if (p_.input_.size() - at_ < count) return bad("the file ends here");
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) value |= uint64_t{byte(at_ + i)} << (8 * i);
    at_ += count;
    return value;
  }

  Status push(PickleData::Node node) {
    if (p_.nodes_.size() >= kMostNodes) return bad("more than 2^31 values");
    p_.nodes_.push_back(node);
    stack_.push_back(static_cast<Ref>(p_.nodes_.size() - 1));
    return {};
  }
  Status push_integer(Kind kind, int64_t value) {
    PickleData::Node n;
    n.kind = kind;
    n.integer = value;
    return push(n);
  }
  Status push_bytes(Kind kind, uint64_t length) {
    const bool cut = p_.input_.size() - at_ < length;
    if (cut || length > UINT32_MAX) return bad("a text that is cut off");
    PickleData::Node n;
    n.kind = kind;
    n.integer = static_cast<int64_t>(at_);
    n.length = static_cast<uint32_t>(length);
    at_ += length;
    return push(n);
  }
  // A list or dict of the `count` values on top of the stack, which go.
  Status push_list(Kind kind, size_t count) {
    if (!has(count)) return bad("too few values on the stack");
    PickleData::Node n;
    n.kind = kind;
    n.list = static_cast<uint32_t>(p_.lists_.size());
    const auto from = stack_.end() - static_cast<std::ptrdiff_t>(count);
    p_.lists_.emplace_back(from, stack_.end());
    stack_.erase(from, stack_.end());
    return push(n);
  }
  Status push_float() {
    HR_ASSIGN(const uint64_t little, take(8));
    PickleData::Node n;
    n.kind = Kind::kFloat;
    n.number = std::bit_cast<double>(__builtin_bswap64(little));
    return push(n);
  }
  Status push_long() {
    HR_ASSIGN(const uint64_t length, take(1));
    if (length > 8) return bad("a whole number of more than 64 bits");
    HR_ASSIGN(uint64_t value, take(length));
    const bool negative = length > 0 && length < 8 && (value >> (8 * length - 1) & 1) != 0;
    if (negative) value |= ~uint64_t{0} << (8 * length);
    return push_integer(Kind::kInteger, static_cast<int64_t>(value));
  }

  // Whether `count` values lie above the last mark.
  bool has(size_t count) const {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back()) >= count;
  }
  // Values above the last mark, which goes.
  Result<size_t> to_mark() {
    if (marks_.empty()) return bad("no mark on the stack");
    const size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  // Moves the top `count` values into the list or dict below them.
  Status extend(Kind kind, size_t count) {
    if (!has(count + 1)) return bad("too few values on the stack");
    const size_t below = stack_.size() - count - 1;
    const PickleData::Node& target = p_.nodes_[stack_[below]];
    if (target.kind != kind) return bad("appends to what is no list or dict");
    if (kind == Kind::kDict && count % 2 != 0) return bad("a key without a value");
    std::vector<Ref>& list = p_.lists_[target.list];
    list.insert(list.end(), stack_.begin() + static_cast<std::ptrdiff_t>(below + 1), stack_.end());
    stack_.resize(below + 1);
    return {};
  }

  Status get(uint64_t number) {
    if (number >= memo_.size() || memo_[number] == PickleData::kNoValue) {
      return bad("uses a value that was not remembered");
    }
    stack_.push_back(memo_[number]);
    return {};
  }
  Status put(uint64_t number) {
    if (!has(1)) return bad("remembers a value that is not there");
    // Numbers are dense in every real pickle: there are fewer of them than bytes.
    if (number > p_.input_.size()) return bad("remembers at a number out of range");
    if (number >= memo_.size()) memo_.resize(number + 1, PickleData::kNoValue);
    memo_[number] = stack_.back();
    return {};
  }

  Status step(uint8_t op) {
    switch (op) {
      case kNone: return push({});
      case kNewTrue: return push_integer(Kind::kBool, 1);
      case kNewFalse: return push_integer(Kind::kBool, 0);
      case kBinInt: {
        HR_ASSIGN(const uint64_t v, take(4));
        return push_integer(Kind::kInteger, static_cast<int32_t>(v));
      }
      case kBinInt1: return sized_integer(1);
      case kBinInt2: return sized_integer(2);
      case kLong1: return push_long();
      case kBinFloat: return push_float();
      case kShortBinUnicode: return sized_text(Kind::kText, 1);
      case kBinUnicode: return sized_text(Kind::kText, 4);
      case kBinUnicode8: return sized_text(Kind::kText, 8);
      case kShortBinBytes: return sized_text(Kind::kBytes, 1);
      case kBinBytes: return sized_text(Kind::kBytes, 4);
      case kBinBytes8: return sized_text(Kind::kBytes, 8);
      case kEmptyList: case kEmptyTuple: return push_list(Kind::kList, 0);
      case kEmptyDict: return push_list(Kind::kDict, 0);
      case kTuple1: return push_list(Kind::kList, 1);
      case kTuple2: return push_list(Kind::kList, 2);
      case kTuple3: return push_list(Kind::kList, 3);
      case kAppend: return extend(Kind::kList, 1);
      case kSetItem: return extend(Kind::kDict, 2);
      default: return step_with_stack(op);
    }
  }
  Status sized_integer(size_t width) {
    HR_ASSIGN(const uint64_t v, take(width));
    return push_integer(Kind::kInteger, static_cast<int64_t>(v));
  }
  Status sized_text(Kind kind, size_t width) {
    HR_ASSIGN(const uint64_t length, take(width));
    return push_bytes(kind, length);
  }

  Status step_with_stack(uint8_t op) {
    switch (op) {
      case kMark: marks_.push_back(stack_.size()); return {};
      case kTupleOp: case kListOp: case kDictOp: case kAppends: case kSetItems: case kPopMark: {
        HR_ASSIGN(const size_t count, to_mark());
        if (op == kAppends) return extend(Kind::kList, count);
        if (op == kSetItems) return extend(Kind::kDict, count);
        if (op == kDictOp) {
          if (count % 2 != 0) return bad("a key without a value");
          return push_list(Kind::kDict, count);
        }
        if (op != kPopMark) return push_list(Kind::kList, count);
        stack_.resize(stack_.size() - count);
        return {};
      }
      case kPop:
        if (!has(1)) return bad("too few values on the stack");
        stack_.pop_back();
        return {};
      case kDup:
        if (!has(1)) return bad("too few values on the stack");
        stack_.push_back(stack_.back());
        return {};
      default: return step_with_memo(op);
    }
  }

  Status step_with_memo(uint8_t op) {
    switch (op) {
      case kMemoize: return put(memo_.size());
      case kBinGet: case kLongBinGet: {
        HR_ASSIGN(const uint64_t number, take(op == kBinGet ? 1 : 4));
        return get(number);
      }
      case kBinPut: case kLongBinPut: {
        HR_ASSIGN(const uint64_t number, take(op == kBinPut ? 1 : 4));
        return put(number);
      }
      case kFrame: return take(8).status();
      default: break;
    }
    for (const Named& n : kRefused) {
      if (n.op != op) continue;
      return error(Code::kUnsupported,
                   "byte %zu of the pickle: %s. Only pickles of plain data are read: nothing in a "
                   "file is ever run",
                   start_, n.name);
    }
    return bad("an instruction that no pickle has");
  }

  PickleData p_;
  size_t at_ = 0, start_ = 0;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;
  std::vector<Ref> memo_;
};

Result<PickleData> PickleData::read(std::string_view input) { return PickleMachine(input).run(); }

int64_t PickleData::integer(Ref r) const {
  const Kind k = nodes_[r].kind;
  return k == Kind::kInteger || k == Kind::kBool ? nodes_[r].integer : 0;
}

double PickleData::number(Ref r) const {
  return nodes_[r].kind == Kind::kFloat ? nodes_[r].number : static_cast<double>(integer(r));
}

std::string_view PickleData::text(Ref r) const {
  const Node& n = nodes_[r];
  if (n.kind != Kind::kText && n.kind != Kind::kBytes) return {};
  return input_.substr(static_cast<size_t>(n.integer), n.length);
}

std::span<const PickleData::Ref> PickleData::items(Ref r) const {
  const Node& n = nodes_[r];
  if (n.kind != Kind::kList && n.kind != Kind::kDict) return {};
  return lists_[n.list];
}

PickleData::Ref PickleData::find(Ref dict, std::string_view key) const {
  if (dict == kNoValue || kind(dict) != Kind::kDict) return kNoValue;
  const std::span<const Ref> all = items(dict);
  for (size_t i = all.size(); i >= 2; i -= 2) {
    if (kind(all[i - 2]) == Kind::kText && text(all[i - 2]) == key) return all[i - 1];
  }
  return kNoValue;
}

PickleWriter::PickleWriter() : out_("\x80\x03") {}

namespace {

void add_little(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

}  // namespace

void PickleWriter::none() { out_ += 'N'; }
void PickleWriter::boolean(bool b) { out_ += static_cast<char>(b ? kNewTrue : kNewFalse); }

void PickleWriter::integer(int64_t n) {
  if (n >= INT32_MIN && n <= INT32_MAX) {
    out_ += 'J';
    add_little(&out_, static_cast<uint32_t>(n), 4);
    return;
  }
  out_ += static_cast<char>(kLong1);
  out_ += '\x08';
  add_little(&out_, static_cast<uint64_t>(n), 8);
}

void PickleWriter::number(double x) {
  out_ += 'G';
  add_little(&out_, __builtin_bswap64(std::bit_cast<uint64_t>(x)), 8);
}

void PickleWriter::text(std::string_view utf8) {
  out_ += 'X';
  add_little(&out_, utf8.size(), 4);
  out_ += utf8;
}

void PickleWriter::begin_list() {
  out_ += "](";
  open_.push_back('l');
}

void PickleWriter::begin_dict() {
  out_ += "}(";
  open_.push_back('d');
}

void PickleWriter::end() {
  HR_CHECK(!open_.empty(), "a list or dict ends that was begun");
  out_ += open_.back() == 'l' ? 'e' : 'u';
  open_.pop_back();
}

uint32_t PickleWriter::remember() {
  out_ += 'r';
  add_little(&out_, remembered_, 4);
  return remembered_++;
}

void PickleWriter::again(uint32_t number) {
  out_ += 'j';
  add_little(&out_, number, 4);
}

std::string PickleWriter::take() {
  HR_CHECK(open_.empty(), "all lists and dicts have ended");
  out_ += '.';
  return std::move(out_);
}

}  // namespace headrace
