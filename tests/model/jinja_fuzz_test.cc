// Random templates and conversations: any result will do, as long as there is one.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "headrace/model/chat_template.h"
#include "tokenizer_test_util.h"

namespace headrace {
namespace {

ChatOptions small_options() {
  ChatOptions options;
  options.limits.steps = 20000;
  options.limits.output_characters = 20000;
  options.now = std::tm{};
  return options;
}

void render_any(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) {
    EXPECT_FALSE(parsed.status().message().empty());
    return;
  }
  const auto pieces =
      parsed->render({{"user", "h\xC3\xA9 <|x|>"}, {"assistant", "b"}}, small_options());
  EXPECT_TRUE(pieces.ok() || !pieces.status().message().empty());
  if (!pieces.ok()) return;
  EXPECT_LE(text_of_pieces(*pieces).size(), 200000u);
}

std::vector<std::string> templates() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(data_path("chat"))) {
    if (entry.path().extension() != ".jinja") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    out.push_back(text.str());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(JinjaFuzz, DamagedTemplatesGiveAnErrorOrText) {
  std::mt19937 random(3);
  const std::vector<std::string> all = templates();
  ASSERT_FALSE(all.empty());
  for (int round = 0; round < 1500; ++round) {
    std::string source = all[random() % all.size()];
    const int changes = 1 + random() % 4;
    for (int i = 0; i < changes && !source.empty(); ++i) {
      const size_t at = random() % source.size();
      const size_t length = random() % 20;
      switch (random() % 4) {
        case 0:
          source.erase(at, length);
          break;
        case 1:
          source.insert(at, source.substr(random() % source.size(), length));
          break;
        case 2:
          source[at] = static_cast<char>(random());
          break;
        default:
          source.resize(at);
      }
    }
    render_any(source);
  }
}

TEST(JinjaFuzz, RandomSequencesOfTokensGiveAnErrorOrText) {
  const char* const parts[] = {"{{ ",
                               " }}",
                               "{% ",
                               " %}",
                               "{%- ",
                               " -%}",
                               "if ",
                               "else",
                               "endif",
                               "for ",
                               "in ",
                               "endfor",
                               "set ",
                               "macro f(a)",
                               "endmacro",
                               "f(1)",
                               "x",
                               "messages",
                               "[0]",
                               "[::-1]",
                               ".content",
                               "|",
                               "length",
                               "tojson",
                               "trim",
                               "join",
                               "list",
                               "map('upper')",
                               "sort",
                               " + ",
                               " - ",
                               " * ",
                               " ~ ",
                               " // ",
                               " ** ",
                               "'s'",
                               "2",
                               "1.5",
                               "none",
                               "true",
                               "(",
                               ")",
                               "[",
                               "]",
                               "{",
                               "}",
                               ":",
                               ",",
                               " is ",
                               "defined",
                               "not ",
                               " and ",
                               " or ",
                               "==",
                               "<",
                               "namespace(a=x)",
                               "range(5)",
                               "loop",
                               ".index",
                               "=",
                               "\n",
                               "text",
                               "{#",
                               "#}",
                               "{% for x in messages %}",
                               "{% endfor %}",
                               "{% if x %}",
                               "{% endif %}",
                               "{{ x }}",
                               "{{ x.content|tojson }}",
                               "{% set x = messages %}"};
  std::mt19937 random(4);
  for (int round = 0; round < 4000; ++round) {
    std::string source;
    const int n = 1 + random() % 25;
    for (int i = 0; i < n; ++i) source += parts[random() % std::size(parts)];
    render_any(source);
  }
}

TEST(JinjaFuzz, DamagedJsonGivesAnErrorOrText) {
  const auto parsed = ChatTemplate::parse("{{ messages|tojson }}{{ messages }}");
  ASSERT_TRUE(parsed.ok());
  const std::string whole =
      R"([{"role": "user", "content": [1, -2.5e3, null, true, "\u00e9\n"]}])";
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text = whole;
    for (int i = 0; i < 3; ++i)
      text[random() % text.size()] = static_cast<char>(random());
    const auto pieces = parsed->render_json(text, small_options());
    EXPECT_TRUE(pieces.ok() || !pieces.status().message().empty());
  }
  EXPECT_FALSE(parsed->render_json(std::string(100000, '['), small_options()).ok());
  EXPECT_FALSE(parsed->render_json("[99999999999999999999]", small_options()).ok());
}

}  // namespace
}  // namespace headrace
