#include "headrace/serve/page.h"

#include <sys/random.h>

#include <random>
#include <string_view>

namespace headrace {

extern const char kPageHtml[];  // made by CMake from page.html

namespace {

// 128 random bits in hexadecimal.
std::string make_nonce() {
  unsigned char bits[16];
  if (::getrandom(bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    std::random_device device;
    for (unsigned char& b : bits) b = static_cast<unsigned char>(device());
  }
  static const char kDigits[] = "0123456789abcdef";
  std::string nonce;
  for (const unsigned char b : bits) {
    nonce += kDigits[b >> 4];
    nonce += kDigits[b & 15];
  }
  return nonce;
}

}  // namespace

HttpHeaders page_headers(const std::string& policy) {
  return {{"Content-Security-Policy", policy},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"},
          {"Referrer-Policy", "no-referrer"},
          {"Cache-Control", "no-store"}};
}

Page make_page() {
  const std::string nonce = make_nonce();
  constexpr std::string_view kMark = "@NONCE@";
  const std::string_view source = kPageHtml;
  Page page;
  size_t at = 0;
  for (size_t mark; (mark = source.find(kMark, at)) != std::string_view::npos;) {
    page.html += source.substr(at, mark - at);
    page.html += nonce;
    at = mark + kMark.size();
  }
  page.html += source.substr(at);
  page.headers = page_headers("default-src 'none'; script-src 'nonce-" + nonce +
                              "'; style-src 'nonce-" + nonce +
                              "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                              "form-action 'none'; frame-ancestors 'none'");
  return page;
}

}  // namespace headrace
