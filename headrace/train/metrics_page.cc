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

struct Point {
  double x = 0, y = 0;
};
struct Series {
  const char* name;
  const char* style;  // CSS class
  std::vector<Point> points;
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

// Means of equal runs of points, so that a picture stays small.
std::vector<Point> thinned(const std::vector<Point>& all) {
  if (all.size() <= kMostPoints) return all;
  std::vector<Point> out;
  const size_t run = (all.size() + kMostPoints - 1) / kMostPoints;
  for (size_t i = 0; i < all.size(); i += run) {
    const size_t end = std::min(all.size(), i + run);
    Point mean;
    for (size_t k = i; k < end; ++k) mean.x += all[k].x, mean.y += all[k].y;
    const auto n = static_cast<double>(end - i);
    out.push_back({mean.x / n, mean.y / n});
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

Frame frame_of(const std::vector<Series>& all, bool from_zero) {
  Frame f;
  bool first = true;
  for (const Series& s : all) {
    for (const Point& p : s.points) {
      if (first) f = {p.x, p.x, p.y, p.y};
      first = false;
      f.x0 = std::min(f.x0, p.x), f.x1 = std::max(f.x1, p.x);
      f.y0 = std::min(f.y0, p.y), f.y1 = std::max(f.y1, p.y);
    }
  }
  if (from_zero) f.y0 = std::min(0.0, f.y0);
  if (f.x1 == f.x0) f.x1 = f.x0 + 1;
  if (f.y1 == f.y0) f.y1 = f.y0 + 1;
  return f;
}

std::string axes(const Frame& f, const char* unit) {
  std::string out;
  const double dy = nice_step(f.y1 - f.y0), dx = nice_step(f.x1 - f.x0);
  for (double y = std::ceil(f.y0 / dy) * dy; y <= f.y1 + dy * 1e-9; y += dy) {
    out += text_of(
        "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
        kLeft, kWidth - kRight, f.py(y), f.py(y), kLeft - 8, f.py(y) + 4,
        std::abs(y) < dy * 1e-9 ? 0 : y);
  }
  for (double x = std::ceil(f.x0 / dx) * dx; x <= f.x1 + dx * 1e-9; x += dx) {
    out += text_of("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.6g</text>\n", f.px(x),
                   kHeight - 14, x);
  }
  return out + text_of("<text x=\"4\" y=\"%.1f\">%s</text>", kTop + 2, unit);
}

std::string chart(const std::vector<Series>& all, const char* unit, bool from_zero) {
  bool any = false;
  for (const Series& s : all) any = any || !s.points.empty();
  if (!any) return "<p>No values yet.</p>\n";
  const Frame f = frame_of(all, from_zero);
  std::string out = text_of("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", kWidth, kHeight);
  out += axes(f, unit);
  for (const Series& s : all) {
    if (s.points.empty()) continue;
    out += text_of("<polyline class=\"%s\" points=\"", s.style);
    for (const Point& p : thinned(s.points)) out += text_of("%.1f,%.1f ", f.px(p.x), f.py(p.y));
    out += text_of("\"><title>%s</title></polyline>\n", s.name);
    if (s.points.size() > 60) continue;
    for (const Point& p : s.points) {
      out += text_of(
          "<circle class=\"%s dots\" r=\"2\" cx=\"%.1f\" cy=\"%.1f\"><title>%s, step "
          "%.0f: %.6g</title></circle>\n",
          s.style, f.px(p.x), f.py(p.y), s.name, p.x, p.y);
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

std::string metrics_page(const std::string& lines, const std::string& title) {
  Series loss{"loss", "a", {}}, evaluation{"evaluation loss", "b", {}}, peak{"peak", "a", {}};
  Json last;
  double skipped = 0;
  for (size_t begin = 0; begin < lines.size();) {
    size_t end = lines.find('\n', begin);
    if (end == std::string::npos) end = lines.size();
    const Json line = Json::parse(lines.begin() + static_cast<ptrdiff_t>(begin),
                                  lines.begin() + static_cast<ptrdiff_t>(end), nullptr, false);
    begin = end + 1;
    double step = 0, value = 0;
    if (!line.is_object() || !number_in(line, "step", &step)) continue;
    if (number_in(line, "loss", &value)) loss.points.push_back({step, value});
    if (number_in(line, "eval_loss", &value)) evaluation.points.push_back({step, value});
    if (number_in(line, "peak_rss_bytes", &value)) {
      peak.points.push_back({step, value / static_cast<double>(kMiB)});
      last = line;
      skipped += line.value("skipped", Json()) == Json(true) ? 1 : 0;
    }
  }
  std::string facts;
  double value = 0;
  if (!loss.points.empty()) {
    facts += fact("steps", text_of("%.0f", loss.points.back().x));
    facts += fact("loss", text_of("%.4f", loss.points.back().y));
  }
  if (!evaluation.points.empty()) {
    facts += fact("evaluation loss", text_of("%.4f", evaluation.points.back().y));
  }
  if (number_in(last, "tokens_per_s", &value)) facts += fact("tokens/s", text_of("%.0f", value));
  if (number_in(last, "stall_share", &value)) {
    facts += fact("waiting for transfers", text_of("%.1f %%", 100 * value));
  }
  if (!peak.points.empty()) facts += fact("peak", text_of("%.1f MiB", peak.points.back().y));
  if (skipped > 0) facts += fact("steps skipped", text_of("%.0f", skipped));
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" +
         escaped(title) + "</title><style>" + kStyle + "</style></head><body>\n<h1>" +
         escaped(title) + "</h1>\n<dl>\n" + facts + "</dl>\n<h2>Loss</h2>\n" +
         chart({loss, evaluation}, "loss", false) + "<h2>Peak memory of the process</h2>\n" +
         chart({peak}, "MiB", true) + "</body></html>\n";
}

}  // namespace headrace
