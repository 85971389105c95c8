// HTTP requests put together by their grammar (RFC 9112), sound ones and ones with one thing wrong,
// several after each other, cut anywhere. A sound one is read as it was meant and leaves what
// follows it alone; with one thing wrong it is refused, and no byte of it is ever read as another
// request: that is how requests are smuggled past proxies. Run it with -DHEADRACE_SANITIZE=address
// to see silent damage too.
#include "headrace/serve/request_parser.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "headrace/base/split_mix.h"
#include "headrace/base/status.h"

namespace headrace {
namespace {

constexpr RequestLimits kLimits = {.header = 1024, .target = 128, .fields = 12, .body = 400};

struct Made {
  std::string bytes;
  // What it means. `status`: 0 when it is sound.
  std::string method, path, query, body;
  int status = 0;
};

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  size_t below(size_t n) { return random_.next() % n; }
  template <size_t N>
  std::string one_of(const char* const (&texts)[N]) {
    return texts[below(N)];
  }

  Made sound() {
    Made m;
    m.method = one_of({"GET", "POST", "HEAD", "OPTIONS", "DELETE", "M-SEARCH"});
    m.path = one_of({"/", "/v1/chat/completions", "/a%2Fb", "/%", "//x", "/a:b@c", "*"});
    if (m.path != "*") m.query = one_of({"", "", "x=1", "a?b", "%00"});
    const std::string before = m.path == "*" ? "" : one_of({"", "", "", "http://h:80"});
    const bool body = m.method == "POST" || below(4) == 0;
    m.bytes = one_of({"", "", "", "\r\n", "\r\n\r\n", "\n"}) + m.method + " " + before + m.path +
              (m.query.empty() ? "" : "?") + m.query + " HTTP/1.1\r\n";
    fields_ = {one_of({"Host: a", "host:a", "HOST:  a  ", "Host:"})};
    for (size_t n = below(5); n > 0; --n) {
      fields_.push_back(one_of({"X: y", "Accept: */*", "X-Empty:", "A:\t b\t", "Folded: a\r\n b",
                                "Connection: keep-alive", "Cookie: \"a=b\"; c",
                                "X: \xc3\xa9\xff"}));
    }
    if (body) {
      m.body.assign(below(3) == 0 ? below(3) : below(kLimits.body + 1), ' ');
      for (char& c : m.body) c = static_cast<char>(random_.next());
      // Bodies that look like requests, for whoever loses count.
      const std::string trap = "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
      if (m.body.size() > trap.size()) m.body.replace(below(m.body.size() - trap.size()),
                                                      trap.size(), trap);
    }
    chunked_ = body && below(2) == 0;
    if (chunked_) {
      fields_.push_back(one_of({"Transfer-Encoding: chunked", "transfer-encoding:Chunked "}));
    } else if (body) {
      const std::string n = std::to_string(m.body.size());
      fields_.push_back("Content-Length: " + (below(4) == 0 ? "00" + n : n));
      if (below(8) == 0) fields_.push_back(fields_.back());  // twice the same: RFC 9112, 6.3
    }
    return m;
  }

  // Puts the rest of `m` to its end.
  void finish(Made* m) {
    for (size_t i = fields_.size(); i > 1; --i) std::swap(fields_[i - 1], fields_[below(i)]);
    for (const std::string& field : fields_) m->bytes += field + "\r\n";
    m->bytes += "\r\n";
    if (!chunked_) {
      m->bytes += m->body;
      return;
    }
    for (size_t at = 0; at < m->body.size();) {
      const size_t n = std::min(m->body.size() - at, 1 + below(60));
      m->bytes += one_of({"", "", "0", "000"}) + text_of(below(2) ? "%zx" : "%zX", n) +
                  one_of({"", "", ";a", ";a=b", ";a=\"b;\""}) + "\r\n" + m->body.substr(at, n) +
                  "\r\n";
      at += n;
    }
    m->bytes += one_of({"0\r\n\r\n", "000\r\n\r\n", "0;x=y\r\n\r\n", "0\r\nTrailer: x\r\n\r\n"});
  }

  // As sound(), but for one thing.
  Made wrong() {
    Made m = sound();
    struct Defect {
      const char* field;
      int status;
    };
    const Defect defects[] = {
        {"Content-Length: 1, 2", 400}, {"Content-Length: -1", 400}, {"Content-Length: +1", 400},
        {"Content-Length: 1e1", 400}, {"Content-Length:", 400}, {"Content-Length: 0x1", 400},
        {"Content-Length: 184467440737095516160", 400}, {"Content-Length: 401", 413},
        {"Transfer-Encoding: gzip", 501}, {"Transfer-Encoding: chunked, gzip", 501},
        {"Transfer-Encoding: xchunked", 501}, {"Host: b", 400}, {"no colon", 400},
        {"Spaced : x", 400}, {"X: a\1b", 400}, {"X: a\x7f", 400}, {": x", 400},
        {"Content-Encoding: br", 415}, {"Expect: 200-ok", 417}};
    const Defect& d = defects[below(std::size(defects))];
    const std::string field = d.field;
    // A length beside chunks, and a wrong length beside a right one, are errors of their own.
    const bool framing = field.starts_with("Content-Length") || field.starts_with("Transfer");
    if (framing && fields_.size() > 1) {
      std::erase_if(fields_, [](std::string f) {
        std::transform(f.begin(), f.end(), f.begin(), ::tolower);
        return f.starts_with("content-length") || f.starts_with("transfer-encoding");
      });
    }
    fields_.push_back(field);
    m.status = d.status;
    finish(&m);
    return m;
  }

  Made request() {
    if (below(3) == 0) return wrong();
    Made m = sound();
    finish(&m);
    return m;
  }

 private:
  SplitMix random_;
  std::vector<std::string> fields_;
  bool chunked_ = false;
};

std::string readable(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    out += c == '\n' ? "\\n\n" : c >= ' ' && c < 0x7f ? std::string(1, c)
                                : text_of("\\x%02x", static_cast<unsigned char>(c));
  }
  return out;
}

// Reads `all` in pieces of 1 to `most` bytes, as a connection does, until an error.
class Reader {
 public:
  Reader(MemoryPool* pool, Maker* cuts, size_t most) : pool_(pool), cuts_(cuts), most_(most) {}

  std::vector<HttpRequest> requests;
  int error = 0;

  void read(const std::string& all) {
    std::string ahead;
    auto parser = std::make_unique<RequestParser>(kLimits, pool_);
    for (size_t at = 0; at < all.size() && error == 0;) {
      const size_t n = std::min(all.size() - at, 1 + cuts_->below(most_));
      ahead += all.substr(at, n);
      at += n;
      for (size_t used = 1; used > 0 && !ahead.empty() && error == 0;) {
        used = parser->feed(ahead);
        ahead.erase(0, used);
        if (parser->state() == RequestParser::State::kError) error = parser->error_status();
        if (parser->state() != RequestParser::State::kDone) continue;
        requests.push_back(parser->take());
        parser = std::make_unique<RequestParser>(kLimits, pool_);
        used = 1;
      }
    }
  }

 private:
  MemoryPool* pool_;
  Maker* cuts_;
  size_t most_;
};

TEST(FuzzRequestParser, SoundRequestsAreReadAsMeantAndUnsoundOnesEndTheConnection) {
  MemoryPool pool(1 << 20);
  Maker maker(1), cuts(2);
  int sound = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<Made> made;
    std::string all;
    for (size_t n = 1 + maker.below(4); n > 0; --n) {
      made.push_back(maker.request());
      all += made.back().bytes;
    }
    for (const size_t most : {all.size(), size_t{1}, size_t{40}}) {
      Reader reader(&pool, &cuts, most);
      reader.read(all);
      const auto first_wrong = std::find_if(made.begin(), made.end(),
                                            [](const Made& m) { return m.status != 0; });
      ASSERT_EQ(reader.requests.size(), static_cast<size_t>(first_wrong - made.begin()))
          << "error " << reader.error << "\n" << readable(all);
      ASSERT_EQ(reader.error, first_wrong == made.end() ? 0 : first_wrong->status) << readable(all);
      for (size_t k = 0; k < reader.requests.size(); ++k, ++sound) {
        const HttpRequest& r = reader.requests[k];
        ASSERT_EQ(r.method + " " + r.path + "?" + r.query,
                  made[k].method + " " + made[k].path + "?" + made[k].query) << readable(all);
        ASSERT_EQ(r.body, made[k].body) << readable(all);
      }
      refused += reader.error != 0;
    }
  }
  EXPECT_GT(sound, 30'000);
  EXPECT_GT(refused, 10'000);
  EXPECT_EQ(pool.used(), 0);
}

}  // namespace
}  // namespace headrace
