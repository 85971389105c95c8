// A headless Chromium that a test drives through the DevTools protocol over a pipe: descriptor 3
// takes commands, 4 gives answers and events, each JSON message ended by a zero byte (Chromium's
// --remote-debugging-pipe).
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/process.h"

namespace headrace::testing {

class Browser {
 public:
  using Json = nlohmann::json;

  // Path of a Chromium on this machine; empty when there is none.
  static std::string find() {
    for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser",
                             "/usr/bin/google-chrome"}) {
      if (::access(path, X_OK) == 0) return path;
    }
    return "";
  }

  explicit Browser(const std::string& program, const std::string& window = "1280,900")
      : profile_(std::filesystem::temp_directory_path()) {
    int commands[2], answers[2];
    if (::pipe2(commands, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) std::abort();
    std::vector<std::string> words = {program, "--headless=new", "--remote-debugging-pipe",
                                      "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                      "--no-first-run", "--disable-extensions",
                                      "--disable-background-networking", "--mute-audio",
                                      "--window-size=" + window,
                                      "--user-data-dir=" + (profile_ / "profile"), "about:blank"};
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      const int in = ::fcntl(commands[0], F_DUPFD, 10), out = ::fcntl(answers[1], F_DUPFD, 10);
      ::dup2(in, 3);
      ::dup2(out, 4);
      const int nowhere = ::open("/dev/null", O_RDWR);
      for (int fd : {0, 1, 2}) ::dup2(nowhere, fd);
      ::close_range(5, 1000, 0);
      ::setenv("HOME", profile_.path().c_str(), 1);
      ::execv(argv[0], argv.data());
      ::_exit(99);
    }
    ::close(commands[0]);
    ::close(answers[1]);
    in_ = commands[1];
    out_ = answers[0];
  }
  ~Browser() {
    ::close(in_);
    ::close(out_);
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Opens a tab; false when the browser does not answer.
  bool open(const std::string& url) {
    const Json target = call("Target.createTarget", {{"url", "about:blank"}});
    if (!target.contains("targetId")) return false;
    const Json session = call("Target.attachToTarget",
                              {{"targetId", target["targetId"]}, {"flatten", true}});
    session_ = session.value("sessionId", "");
    for (const char* domain : {"Page", "Runtime", "Log", "Network"}) {
      call(std::string(domain) + ".enable");
    }
    call("Page.navigate", {{"url", url}});
    return !session_.empty();
  }

  // Value of an expression; promises are waited for. A text that begins with "threw" when it
  // throws.
  Json evaluate(const std::string& expression) {
    const Json r = call("Runtime.evaluate", {{"expression", expression},
                                             {"awaitPromise", true},
                                             {"returnByValue", true}});
    if (r.contains("exceptionDetails")) return "threw " + r["exceptionDetails"].dump();
    return r.contains("result") && r["result"].contains("value") ? r["result"]["value"] : Json();
  }
  std::string text(const std::string& expression) {
    const Json v = evaluate(expression);
    return v.is_string() ? v.get<std::string>() : v.dump();
  }
  // Evaluates until it is true; false after a minute.
  bool wait_for(const std::string& expression) {
    for (int i = 0; i < 1200; ++i) {
      if (evaluate(expression) == true) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  // What a keyboard does.
  void type(const std::string& text) { call("Input.insertText", {{"text", text}}); }
  void press(const std::string& key, int code, const std::string& text = "") {
    Json down = {{"type", "keyDown"}, {"key", key}, {"windowsVirtualKeyCode", code}, {"code", key}};
    if (!text.empty()) down["text"] = text;
    call("Input.dispatchKeyEvent", down);
    call("Input.dispatchKeyEvent",
         {{"type", "keyUp"}, {"key", key}, {"windowsVirtualKeyCode", code}, {"code", key}});
  }
  void press_enter() { press("Enter", 13, "\r"); }
  void press_escape() { press("Escape", 27); }
  void press_tab() { press("Tab", 9); }

  // The accessibility tree: nodes as the browser tells them to a screen reader.
  Json accessibility() { return call("Accessibility.getFullAXTree")["nodes"]; }
  void dark(bool on) {
    call("Emulation.setEmulatedMedia",
         {{"features", {{{"name", "prefers-color-scheme"}, {"value", on ? "dark" : "light"}}}}});
  }
  void size(int width, int height) {
    call("Emulation.setDeviceMetricsOverride",
         {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}});
  }

  // Errors and refusals of its policies that the page met so far, as the console shows them.
  const std::vector<std::string>& complaints() const { return complaints_; }
  // URLs that the page asked for.
  const std::vector<std::string>& requests() const { return requests_; }

  // Result of a command of the protocol; empty when it fails.
  Json call(const std::string& method, const Json& params = Json::object()) {
    Json message = {{"id", ++id_}, {"method", method}, {"params", params}};
    if (!session_.empty() && method.rfind("Target.", 0) != 0) message["sessionId"] = session_;
    const std::string bytes = message.dump() + '\0';
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::write(in_, bytes.data() + sent, bytes.size() - sent);
      if (n <= 0) return Json::object();
      sent += static_cast<size_t>(n);
    }
    for (;;) {
      const Json answer = next();
      if (answer.is_null()) return Json::object();
      if (answer.value("id", 0) == id_) return answer.value("result", Json::object());
      note(answer);
    }
  }

 private:
  // The next message; null when none comes for a minute or the browser has ended.
  Json next() {
    size_t end;
    while ((end = left_.find('\0')) == std::string::npos) {
      pollfd wait = {out_, POLLIN, 0};
      if (::poll(&wait, 1, 60'000) <= 0) return nullptr;
      std::array<char, 65536> piece;
      const ssize_t n = ::read(out_, piece.data(), piece.size());
      if (n <= 0) return nullptr;
      left_.append(piece.data(), static_cast<size_t>(n));
    }
    Json message = Json::parse(left_.substr(0, end), nullptr, false);
    left_.erase(0, end + 1);
    return message;
  }

  void note(const Json& event) {
    const std::string method = event.value("method", "");
    if (method == "Runtime.exceptionThrown") complaints_.push_back(event["params"].dump());
    if (method == "Log.entryAdded" && event["params"]["entry"]["level"] == "error") {
      complaints_.push_back(event["params"]["entry"].value("text", ""));
    }
    if (method == "Network.requestWillBeSent") {
      requests_.push_back(event["params"]["request"].value("url", ""));
    }
  }

  Folder profile_;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  int id_ = 0;
  std::string session_;
  std::string left_;
  std::vector<std::string> complaints_;
  std::vector<std::string> requests_;
};

}  // namespace headrace::testing
