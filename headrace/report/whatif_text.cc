// A sweep as table, plot, CSV, JSON and page.
#include <algorithm>
#include <cmath>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/report/json_writer.h"
#include "headrace/report/timeline.h"
#include "headrace/report/timeline_page.h"
#include "headrace/report/whatif.h"

namespace headrace {
namespace {

constexpr int kColumn = 11;
constexpr int kPlotHeight = 12;
constexpr const char kMarks[] = "abcdefghijklmnopqrstuvwxyz";

std::string rate_text(double bytes_per_s) { return human_number(bytes_per_s / 1e9) + " GB/s"; }

// Four digits: neighbours of a sweep often differ in the last one.
std::string time_text(Nanos ns) {
  const auto x = static_cast<double>(ns);
  static constexpr std::pair<double, const char*> kUnits[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}};
  for (const auto& [unit, name] : kUnits) {
    if (x < unit) continue;
    const double value = x / unit;
    const int digits = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
    return text_of("%.*f %s", digits, value, name);
  }
  return human_time(ns);
}

struct Limits {
  double least = 0, most = 0;
};

Limits limits_of(const Whatif& w) {
  Limits l;
  for (const WhatifPoint& p : w.points) {
    if (!p.fits) continue;
    const auto ns = static_cast<double>(p.predicted_ns);
    l.least = l.most == 0 ? ns : std::min(l.least, ns);
    l.most = std::max(l.most, ns);
  }
  return l;
}

std::string table(const Whatif& w, const TextStyle& style) {
  std::string head = pad_right("budget", kColumn);
  for (double b : w.bandwidths) head += pad_left(rate_text(b), kColumn + 2);
  std::string out = dim(head, style) + "\n";
  for (size_t i = 0; i < w.budgets.size(); ++i) {
    out += pad_right(human_bytes(w.budgets[i]), kColumn);
    for (size_t k = 0; k < w.bandwidths.size(); ++k) {
      const WhatifPoint& p = w.at(k, i);
      out += pad_left(p.fits ? time_text(p.predicted_ns) : "does not fit", kColumn + 2);
    }
    out += "\n";
  }
  return out;
}

// Time upwards, budget to the right, a letter for each bandwidth; of those that meet the first.
std::string plot(const Whatif& w, const TextStyle& style) {
  const Limits l = limits_of(w);
  if (w.budgets.size() < 2 || l.most <= 0) return "";
  const int step = std::max(4, 60 / static_cast<int>(w.budgets.size() - 1));
  const size_t width = static_cast<size_t>(step) * (w.budgets.size() - 1) + 1;
  std::vector<std::string> rows(kPlotHeight, std::string(width, ' '));
  for (size_t k = std::min(w.bandwidths.size(), sizeof(kMarks) - 1); k-- > 0;) {
    for (size_t i = 0; i < w.budgets.size(); ++i) {
      const WhatifPoint& p = w.at(k, i);
      if (!p.fits) continue;
      const double part = l.most > l.least
          ? (static_cast<double>(p.predicted_ns) - l.least) / (l.most - l.least) : 0;
      const auto y = static_cast<size_t>(std::lround((1 - part) * (kPlotHeight - 1)));
      rows[y][i * static_cast<size_t>(step)] = kMarks[k];
    }
  }
  std::string out = "\n";
  for (int y = 0; y < kPlotHeight; ++y) {
    const double ns = l.most - (l.most - l.least) * y / (kPlotHeight - 1);
    const bool named = y == 0 || y == kPlotHeight - 1 || y == kPlotHeight / 2;
    out += pad_left(named ? time_text(static_cast<Nanos>(ns)) : "", kColumn) + " | " +
           rows[static_cast<size_t>(y)] + "\n";
  }
  out += pad_left("", kColumn) + " +-" + std::string(width, '-') + "\n";
  const std::string first = human_bytes(w.budgets.front()), last = human_bytes(w.budgets.back());
  out += pad_left("", kColumn + 3) + first +
         pad_left(last, std::max(1, static_cast<int>(width) - columns(first))) + "\n\n";
  std::string legend;
  for (size_t k = 0; k < std::min(w.bandwidths.size(), sizeof(kMarks) - 1); ++k)
    legend += (k > 0 ? ", " : "") + std::string(1, kMarks[k]) + " " + rate_text(w.bandwidths[k]);
  return out + dim(wrapped("time of the step; " + legend, 100, 2), style);
}

std::string polyline(const Whatif& w, size_t k, const Limits& l) {
  std::string out;
  const double from = static_cast<double>(w.budgets.front());
  const double span = std::max(1.0, static_cast<double>(w.budgets.back()) - from);
  for (size_t i = 0; i < w.budgets.size(); ++i) {
    const WhatifPoint& p = w.at(k, i);
    if (!p.fits) continue;
    const double x = 90 + 560 * (static_cast<double>(p.budget) - from) / span;
    const double y = 20 + 240 * (1 - static_cast<double>(p.predicted_ns) / (l.most * 1.05));
    out += text_of("%.1f,%.1f ", x, y);
  }
  return out;
}

std::string picture(const Whatif& w) {
  const Limits l = limits_of(w);
  if (l.most <= 0) return "<p>Nothing fits.</p>\n";
  static const char* const kDashes[] = {"", "6 3", "2 3", "8 3 2 3", "12 4"};
  std::string out = "<svg viewBox=\"0 0 860 310\" role=\"img\" aria-label=\"Time of the step "
                    "against the budget, a line for each bandwidth; the table holds the numbers\" "
                    "style=\"max-width:60em\" font-size=\"12\" fill=\"currentColor\">\n";
  for (int y = 0; y <= 4; ++y) {
    const double at = 20 + 60.0 * y;
    const auto ns = static_cast<Nanos>(l.most * 1.05 * (4 - y) / 4);
    out += text_of("<line x1=\"90\" x2=\"650\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"var(--line)\"/>"
                   "<text x=\"82\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", at, at, at + 4,
                   human_time(ns).c_str());
  }
  const double from = static_cast<double>(w.budgets.front());
  const double span = std::max(1.0, static_cast<double>(w.budgets.back()) - from);
  const size_t every = (w.budgets.size() + 6) / 7;
  for (size_t i = 0; i < w.budgets.size(); i += every) {
    out += text_of("<text x=\"%.1f\" y=\"280\" text-anchor=\"middle\">%s</text>\n",
                   90 + 560 * (static_cast<double>(w.budgets[i]) - from) / span,
                   human_bytes(w.budgets[i]).c_str());
  }
  for (size_t k = 0; k < w.bandwidths.size(); ++k) {
    const std::string look = text_of("stroke=\"var(--c%zu)\" stroke-width=\"2\" "
                                     "stroke-dasharray=\"%s\"", k % 6, kDashes[k % 5]);
    out += "<polyline fill=\"none\" " + look + " points=\"" + polyline(w, k, l) + "\"/>\n";
    out += text_of("<line x1=\"670\" x2=\"710\" y1=\"%zu\" y2=\"%zu\" ", 28 + 20 * k, 28 + 20 * k) +
           look + text_of("/><text x=\"718\" y=\"%zu\">%s</text>\n", 32 + 20 * k,
                          rate_text(w.bandwidths[k]).c_str());
  }
  return out +
         "<text x=\"370\" y=\"302\" text-anchor=\"middle\">budget of the device</text></svg>\n";
}

}  // namespace

std::string whatif_text(const Whatif& w, const TextStyle& style) {
  std::string out = bold(terminal_text(valid_utf8(w.workload)), style) + "\n" +
                    wrapped(text_of("time of a step on %s, by budget of the device and bandwidth "
                                    "of '%s' each way",
                                    terminal_text(valid_utf8(w.machine)).c_str(),
                                    terminal_text(valid_utf8(w.link)).c_str()), 100, 0) + "\n";
  return out + table(w, style) + plot(w, style);
}

std::string whatif_csv(const Whatif& w) {
  std::string out = "budget_bytes,bandwidth_bytes_per_s,fits,predicted_ns,bound_ns,moved_bytes,"
                    "inherited\n";
  for (const WhatifPoint& p : w.points) {
    out += text_of("%lld,%.0f,%d,%lld,%lld,%lld,%d\n", static_cast<long long>(p.budget),
                   p.bandwidth, p.fits ? 1 : 0, static_cast<long long>(p.predicted_ns),
                   static_cast<long long>(p.bound_ns), static_cast<long long>(p.moved_bytes),
                   p.inherited ? 1 : 0);
  }
  return out;
}

std::string whatif_json(const Whatif& w) {
  JsonWriter json;
  json.begin_object().field("workload", valid_utf8(w.workload));
  json.field("machine", valid_utf8(w.machine)).field("link", valid_utf8(w.link));
  json.key("points").begin_array();
  for (const WhatifPoint& p : w.points) {
    json.begin_object().field("budget_bytes", p.budget);
    json.field("bandwidth_bytes_per_s", p.bandwidth).field("fits", p.fits);
    if (p.fits) {
      json.field("predicted_s", static_cast<double>(p.predicted_ns) / 1e9);
      json.field("bound_s", static_cast<double>(p.bound_ns) / 1e9);
      json.field("moved_bytes", p.moved_bytes).field("inherited", p.inherited);
    }
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::string whatif_html(const Whatif& w) {
  const std::string name = html_text(w.workload);
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                    "style-src 'unsafe-inline'\">\n<title>" + name +
                    " - headrace whatif</title>\n<style>" + kTimelineStyle +
                    "</style>\n</head>\n<body>\n<header>\n<h1>" + name + "</h1>\n<p>Time of a step "
                    "on " + html_text(w.machine) + ", by budget of the device and bandwidth of '" +
                    html_text(w.link) + "' each way.</p>\n</header>\n<section id=\"numbers\">\n" +
                    picture(w) + "<table><thead><tr><th scope=\"col\">budget</th>";
  for (double b : w.bandwidths) out += "<th scope=\"col\">" + rate_text(b) + "</th>";
  out += "</tr></thead>\n";
  for (size_t i = 0; i < w.budgets.size(); ++i) {
    out += "<tr><th scope=\"row\">" + human_bytes(w.budgets[i]) + "</th>";
    for (size_t k = 0; k < w.bandwidths.size(); ++k) {
      const WhatifPoint& p = w.at(k, i);
      out += "<td>" + (p.fits ? time_text(p.predicted_ns) : std::string("does not fit")) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n</section>\n</body>\n</html>\n";
}

}  // namespace headrace
