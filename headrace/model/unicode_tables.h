// Tables of the Unicode character database, each ordered by its first member
// (compositions by the first two). unicode_tables.cc is generated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

struct UnicodeTriple {
  uint32_t a, b, c;
};

struct CaseMapping {
  uint32_t from;
  uint32_t to[3];  // unused ones are 0
};

// {character, first, second or 0}: canonical decomposition, one step.
extern const UnicodeTriple kDecompositions[];
extern const size_t kDecompositionsCount;
// {first, second, composed}: canonical composition, exclusions left out.
extern const UnicodeTriple kCompositions[];
extern const size_t kCompositionsCount;
// {first of range, last of range, combining class}, class 0 left out.
extern const UnicodeTriple kCombiningClasses[];
extern const size_t kCombiningClassesCount;
// Full case mappings. kTitleCase has only those that differ from kUpperCase.
extern const CaseMapping kLowerCase[];
extern const size_t kLowerCaseCount;
extern const CaseMapping kUpperCase[];
extern const size_t kUpperCaseCount;
extern const CaseMapping kTitleCase[];
extern const size_t kTitleCaseCount;
// {first, last, 1}: characters that Python's repr() escapes.
extern const UnicodeTriple kUnprintable[];
extern const size_t kUnprintableCount;

}  // namespace headrace
