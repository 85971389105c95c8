// The page of a metrics file: two pictures in SVG and a table, without scripts.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "headrace/train/metrics.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr double kWidth = 860, kHeight = 260, kLeft = 70, kRight = 14, kTop = 14, kBottom = 34;
// More points than there are pixels are not seen.
constexpr size_t kMostPoints = 1600;
constexpr int kMostMarks = 16;  // of an axis; nice_step() makes at most 7

struct Point {
  double x = 0, y = 0;
};

Point mean(Point a, Point b) { return {(a.x + b.x) / 2, (a.y + b.y) / 2}; }

// Values of a run of any length: means of equal runs of them, whose length is doubled whenever
// there are too many.
class Series {
 public:
  Series(const char* title, const char* css) : name(title), style(css) {}

  void add(Point p) {
    last = p;
    sum_.x += p.x, sum_.y += p.y;
    if (++count_ < run_) return;
    means_.push_back(pending());
    sum_ = {};
    count_ = 0;
    if (means_.size() < kMostPoints) return;
    for (size_t i = 0; i < kMostPoints / 2; ++i) means_[i] = mean(means_[2 * i], means_[2 * i + 1]);
    means_.resize(kMostPoints / 2);
    run_ *= 2;
  }
  // In order; the last may be of a shorter run.
  std::vector<Point> points() const {
    std::vector<Point> out = means_;
    if (count_ > 0) out.push_back(pending());
    return out;
  }
  bool empty() const { return means_.empty() && count_ == 0; }

  const char* name;
  const char* style;  // CSS class
  Point last;

 private:
  Point pending() const {
    const auto n = static_cast<double>(count_);
    return {sum_.x / n, sum_.y / n};
  }

  std::vector<Point> means_;
  Point sum_;
  int64_t count_ = 0, run_ = 1;
};

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1d2733; --soft: #6b7785; --line: #d5dbe1; --back: #fff;
  --a: #0b6fb8; --b: #c2570c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #93a0ad; --line: #36414c;
  --back: #14191e; --a: #58aef0; --b: #f09a55; } }
body { margin: 2rem auto; max-width: 900px; padding: 0 1rem; color: var(--ink);
  background: var(--back); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
svg { width: 100%; height: auto; } text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); } .a { stroke: var(--a); } .b { stroke: var(--b); }
polyline { fill: none; stroke-width: 1.8; } .b.dots { fill: var(--b); }
p { color: var(--soft); } dt { float: left; clear: left; width: 14rem; color: var(--soft); }
dd { margin: 0 0 0 14rem; }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// A step of 1, 2 or 5 times a power of ten that divides `range` into at most six.
double nice_step(double range) {
  if (!(range > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (range / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

struct Frame {
  double x0 = 0, x1 = 1, y0 = 0, y1 = 1;

  double px(double x) const { return kLeft + (x - x0) / (x1 - x0) * (kWidth - kLeft - kRight); }
  double py(double y) const {
    return kHeight - kBottom - (y - y0) / (y1 - y0) * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const std::vector<const Series*>& all, bool from_zero) {
  Frame f;
  bool first = true;
  for (const Series* s : all) {
    for (const Point& p : s->points()) {
      if (first) f = {p.x, p.x, p.y, p.y};
      first = false;
      f.x0 = std::min(f.x0, p.x), f.x1 = std::max(f.x1, p.x);
      f.y0 = std::min(f.y0, p.y), f.y1 = std::max(f.y1, p.y);
    }
  }
  if (from_zero) f.y0 = std::min(0.0, f.y0);
  if (f.x1 == f.x0) f.x1 = f.x0 + 1;
  // Of losses beyond 2^53, one more is the same number.
  if (f.y1 == f.y0) f.y1 = f.y0 + std::max(1.0, std::abs(f.y0));
  return f;
}

// Multiples of `step` from `from` to `to`. Counted: added to a large number, a small step is lost.
std::vector<double> marks_of(double from, double to, double step) {
  std::vector<double> out;
  const double first = std::ceil(from / step);
  for (int i = 0; i < kMostMarks; ++i) {
    const double at = (first + i) * step;
    if (!(at <= to + step * 1e-9)) break;
    out.push_back(at);
  }
  return out;
}

std::string axes(const Frame& f, const char* unit) {
  std::string out;
  const double dy = nice_step(f.y1 - f.y0), dx = nice_step(f.x1 - f.x0);
  for (const double y : marks_of(f.y0, f.y1, dy)) {
    out += text_of(
        "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
        kLeft, kWidth - kRight, f.py(y), f.py(y), kLeft - 8, f.py(y) + 4,
        std::abs(y) < dy * 1e-9 ? 0 : y);
  }
  for (const double x : marks_of(f.x0, f.x1, dx)) {
    out += text_of("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.6g</text>\n", f.px(x),
                   kHeight - 14, x);
  }
  return out + text_of("<text x=\"4\" y=\"%.1f\">%s</text>", kTop + 2, unit);
}

std::string chart(const std::vector<const Series*>& all, const char* unit, bool from_zero) {
  const bool any = std::any_of(all.begin(), all.end(), [](const Series* s) { return !s->empty(); });
  if (!any) return "<p>No values yet.</p>\n";
  const Frame f = frame_of(all, from_zero);
  std::string out = text_of("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", kWidth, kHeight);
  out += axes(f, unit);
  for (const Series* s : all) {
    if (s->empty()) continue;
    const std::vector<Point> points = s->points();
    out += text_of("<polyline class=\"%s\" points=\"", s->style);
    for (const Point& p : points) out += text_of("%.1f,%.1f ", f.px(p.x), f.py(p.y));
    out += text_of("\"><title>%s</title></polyline>\n", s->name);
    if (points.size() > 60) continue;
    for (const Point& p : points) {
      out += text_of(
          "<circle class=\"%s dots\" r=\"2\" cx=\"%.1f\" cy=\"%.1f\"><title>%s, step "
          "%.0f: %.6g</title></circle>\n",
          s->style, f.px(p.x), f.py(p.y), s->name, p.x, p.y);
    }
  }
  return out + "</svg>\n";
}

// A member that is a finite number.
bool number_in(const Json& line, const char* key, double* out) {
  const auto it = line.find(key);
  if (it == line.end() || !it->is_number()) return false;
  *out = it->get<double>();
  return std::isfinite(*out);
}

std::string fact(const char* name, const std::string& value) {
  return text_of("<dt>%s</dt><dd>%s</dd>\n", name, escaped(value).c_str());
}

}  // namespace

struct MetricsPage::State {
  Series loss{"loss", "a"}, evaluation{"evaluation loss", "b"}, peak{"peak", "a"};
  double tokens_per_s = -1, stall_share = -1;  // of the last step; below 0: none yet
  int64_t skipped = 0;

  std::string facts() const;
};

MetricsPage::MetricsPage() : state_(std::make_unique<State>()) {}
MetricsPage::MetricsPage(MetricsPage&&) noexcept = default;
MetricsPage::~MetricsPage() = default;

void MetricsPage::add(std::string_view text) {
  State& s = *state_;
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  double step = 0, value = 0;
  if (!line.is_object() || !number_in(line, "step", &step)) return;
  if (number_in(line, "loss", &value)) s.loss.add({step, value});
  if (number_in(line, "eval_loss", &value)) s.evaluation.add({step, value});
  if (!number_in(line, "peak_rss_bytes", &value)) return;
  s.peak.add({step, value / static_cast<double>(kMiB)});
  if (number_in(line, "tokens_per_s", &value)) s.tokens_per_s = value;
  if (number_in(line, "stall_share", &value)) s.stall_share = value;
  s.skipped += line.value("skipped", Json()) == Json(true) ? 1 : 0;
}

std::string MetricsPage::State::facts() const {
  std::string out;
  if (!loss.empty()) {
    out += fact("steps", text_of("%.0f", loss.last.x));
    out += fact("loss", text_of("%.4f", loss.last.y));
  }
  if (!evaluation.empty()) out += fact("evaluation loss", text_of("%.4f", evaluation.last.y));
  if (tokens_per_s >= 0) out += fact("tokens/s", text_of("%.0f", tokens_per_s));
  if (stall_share >= 0) out += fact("waiting for transfers", text_of("%.1f %%", 100 * stall_share));
  if (!peak.empty()) out += fact("peak", text_of("%.1f MiB", peak.last.y));
  if (skipped > 0) out += fact("steps skipped", std::to_string(skipped));
  return out;
}

std::string MetricsPage::html(const std::string& title) const {
  const State& s = *state_;
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" +
         escaped(title) + "</title><style>" + kStyle + "</style></head><body>\n<h1>" +
         escaped(title) + "</h1>\n<dl>\n" + s.facts() + "</dl>\n<h2>Loss</h2>\n" +
         chart({&s.loss, &s.evaluation}, "loss", false) + "<h2>Peak memory of the process</h2>\n" +
         chart({&s.peak}, "MiB", true) + "</body></html>\n";
}

}  // namespace headrace
