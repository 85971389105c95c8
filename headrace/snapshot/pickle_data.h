// PickleData: reads pickles that are nothing but data, and writes them.
//
// Python's pickle is a program for a small machine that may call any function (the pickle module's
// own documentation warns of it). Here only the instructions that make None, bools, whole numbers,
// floats, texts, bytes, lists, tuples and dicts are known; every other one is refused by name.
// Source: the opcode table and comments of Python's Lib/pickletools.py, protocols 2 to 5.
//
// Promises
//   1. No input makes it crash, loop or call anything. Memory is at most 200 times the input, beside
//      the input itself.
//   2. Values that occur several times in the file are held once.
//   3. Texts are views into the input, which must outlive this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class PickleData {
 public:
  enum class Kind : uint8_t { kNone, kBool, kInteger, kFloat, kText, kBytes, kList, kDict };
  using Ref = uint32_t;

  // kUnsupported: an instruction beyond data, with its name and offset; kBadFile: no pickle, one
  // that is cut off, or a whole number of more than 64 bits.
  static Result<PickleData> read(std::string_view input);

  Ref root() const { return root_; }
  Kind kind(Ref r) const { return nodes_[r].kind; }
  // Each gives 0, or nothing, of a value of another kind.
  int64_t integer(Ref r) const;
  double number(Ref r) const;  // of integers too
  std::string_view text(Ref r) const;
  // Of a list or tuple its items; of a dict key, value, key, value...
  std::span<const Ref> items(Ref r) const;
  // The value at a text key of a dict; kNoValue: there is none. Of equal keys the last.
  static constexpr Ref kNoValue = ~Ref{0};
  Ref find(Ref dict, std::string_view key) const;

 private:
  struct Node {
    Kind kind = Kind::kNone;
    uint32_t list = 0;      // of lists_
    union {
      int64_t integer = 0;  // kBool, kInteger; of texts the offset in input_
      double number;
    };
    uint32_t length = 0;    // of texts
  };
  friend class PickleMachine;

  std::string_view input_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Ref>> lists_;
  Ref root_ = 0;
};

// Writes one value, protocol 2 or later readers: as the calls come, without a tree.
class PickleWriter {
 public:
  PickleWriter();
  void none();
  void boolean(bool b);
  void integer(int64_t n);
  void number(double x);
  void text(std::string_view utf8);
  // Items, or keys and values by turns, follow until end().
  void begin_list();
  void begin_dict();
  void end();
  void key(std::string_view name) { text(name); }
  // The value just written (or the list just ended) may be used again: returns its number.
  uint32_t remember();
  void again(uint32_t number);
  // The whole pickle.
  std::string take();

 private:
  std::string out_;
  std::vector<char> open_;  // 'l' or 'd'
  uint32_t remembered_ = 0;
};

}  // namespace headrace
