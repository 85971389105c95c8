// The CSV form of problems and solutions, as MiniMalloc reads and writes it (github.com/google/
// minimalloc, README: id, lower, upper, size, and offset in solutions; lifetimes half-open).
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "headrace/plan/allocation.h"

namespace headrace {
namespace {

enum Column { kId, kLower, kUpper, kSize, kBlock, kDistance, kColumns };
constexpr std::array<const char*, kColumns> kNames = {"id",   "lower", "upper",
                                                      "size", "block", "distance"};
constexpr size_t kRequired = 4;
constexpr size_t kMostFields = 64;

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) {
    s.remove_suffix(1);
  }
  return s;
}

// Cut for messages: a line of a wrong file can be long, and not text at all.
std::string shown(std::string_view field) {
  std::string out;
  for (const char c : field.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (field.size() > 40 ? "..." : "");
}

struct Line {
  int64_t number = 0;  // from 1
  std::vector<std::string_view> fields;
};

Status split_fields(std::string_view text, Line& line) {
  line.fields.clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    line.fields.push_back(trimmed(text.substr(begin, comma - begin)));
    begin = comma + 1;
    if (line.fields.size() > kMostFields) {
      return error(Code::kBadFile, "line %lld: more than %zu fields",
                   static_cast<long long>(line.number), kMostFields);
    }
  }
  return Status();
}

// Where the columns stand; columns that we do not know (offset, hint) are passed over.
using Places = std::array<std::optional<size_t>, kColumns>;

Result<Places> read_header(const Line& line) {
  Places places;
  for (size_t f = 0; f < line.fields.size(); ++f) {
    for (size_t c = 0; c < kColumns; ++c) {
      if (line.fields[f] != kNames[c]) continue;
      if (places[c]) return error(Code::kBadFile, "line 1: two columns `%s`", kNames[c]);
      places[c] = f;
    }
  }
  for (size_t c = 0; c < kRequired; ++c) {
    if (!places[c]) {
      return error(Code::kBadFile,
                   "line 1: no column `%s` in the header `%s` (id,lower,upper,size is expected)",
                   kNames[c], shown(line.fields[0]).c_str());
    }
  }
  return places;
}

template <typename Int>
Status read_number(const Line& line, Column column, size_t place, Int* value) {
  const std::string_view field = line.fields[place];
  const auto [end, failed] = std::from_chars(field.data(), field.data() + field.size(), *value);
  if (failed == std::errc::result_out_of_range) {
    return error(Code::kBadFile, "line %lld: %s %s does not fit into %zu bits",
                 static_cast<long long>(line.number), kNames[column], shown(field).c_str(),
                 8 * sizeof(Int));
  }
  if (failed != std::errc() || end != field.data() + field.size()) {
    return error(Code::kBadFile, "line %lld: %s `%s` is no whole number",
                 static_cast<long long>(line.number), kNames[column], shown(field).c_str());
  }
  return Status();
}

Status read_buffer(const Line& line, const Places& places, AllocBuffer* b) {
  HR_TRY(read_number(line, kLower, *places[kLower], &b->lower));
  HR_TRY(read_number(line, kUpper, *places[kUpper], &b->upper));
  HR_TRY(read_number(line, kSize, *places[kSize], &b->size));
  if (places[kBlock]) HR_TRY(read_number(line, kBlock, *places[kBlock], &b->block));
  if (places[kDistance]) HR_TRY(read_number(line, kDistance, *places[kDistance], &b->distance));
  if (b->lower >= b->upper) {
    return error(Code::kBadFile, "line %lld: lower %d is not below upper %d",
                 static_cast<long long>(line.number), b->lower, b->upper);
  }
  if (b->size < 0) {
    return error(Code::kBadFile, "line %lld: a size of %lld bytes",
                 static_cast<long long>(line.number), static_cast<long long>(b->size));
  }
  return Status();
}

}  // namespace

Result<AllocProblem> parse_alloc_csv(std::string_view text, std::vector<std::string>* ids) {
  AllocProblem problem;
  ids->clear();
  std::set<std::string_view> seen;
  std::optional<Places> places;
  Line line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    ++line.number;
    if (row.empty()) continue;
    HR_TRY(split_fields(row, line));
    if (!places) {
      HR_ASSIGN(places, read_header(line));
      continue;
    }
    const auto number = static_cast<long long>(line.number);
    for (const auto& place : *places) {
      if (place && *place >= line.fields.size()) {
        return error(Code::kBadFile, "line %lld: %zu fields, fewer than the header has", number,
                     line.fields.size());
      }
    }
    const std::string_view id = line.fields[*(*places)[kId]];
    if (!seen.insert(id).second) {
      return error(Code::kBadFile, "line %lld: id `%s` occurs twice", number, shown(id).c_str());
    }
    AllocBuffer b;
    HR_TRY(read_buffer(line, *places, &b));
    problem.buffers.push_back(b);
    ids->push_back(std::string(id));
  }
  if (!places) return error(Code::kBadFile, "empty: a header id,lower,upper,size is expected");
  return problem;
}

std::string to_csv(const AllocProblem& problem, const std::vector<std::string>& ids,
                   const std::vector<Bytes>& offsets) {
  HR_CHECK(ids.size() == problem.buffers.size() && offsets.size() == ids.size(),
           "one id and one offset for each buffer");
  std::string out = "id,lower,upper,size,offset\n";
  for (size_t i = 0; i < ids.size(); ++i) {
    const AllocBuffer& b = problem.buffers[i];
    out += ids[i];
    for (const int64_t n : {int64_t{b.lower}, int64_t{b.upper}, b.size, offsets[i]}) {
      out += ',';
      out += std::to_string(n);
    }
    out += '\n';
  }
  return out;
}

}  // namespace headrace
