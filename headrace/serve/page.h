// The page at "/": chat, and what memory is doing, in one HTML file that asks nobody but this
// server. Its source is page.html and page_markdown.js, put into the program when it is built.
#pragma once

#include <string>

#include "headrace/serve/http_message.h"

namespace headrace {

struct Page {
  std::string html;
  HttpHeaders headers;  // what the page may do (Content-Security-Policy, CSP level 3) and more
};

// A page of its own for each load: scripts and styles run only with the nonce in its header, drawn
// from the system's random numbers. Any thread.
Page make_page();

// What every HTML answer is sent with, beside its policy: types are not guessed, no frames, no
// referrer.
HttpHeaders page_headers(const std::string& policy);

}  // namespace headrace
