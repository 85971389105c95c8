// Unicode normal form C (UAX #15), which some tokenizers ask for.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// True when `text` is surely in NFC already: nothing but bytes below U+0300. (False says
// nothing.)
bool is_nfc_quick(std::string_view text);

// `text` in NFC. Bytes that are not UTF-8 stay as they are and separate what is around
// them.
std::string to_nfc(std::string_view text);

}  // namespace headrace
