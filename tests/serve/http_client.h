// A plain socket as HTTP client, for tests: sends any bytes, reads replies one by one.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace headrace {

struct ClientReply {
  int status = 0;  // 0: the connection ended before a whole reply
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, bool v6 = false, int receive_buffer = 0) {
    fd_ = ::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    connect_to(port, v6);
  }
  explicit HttpClient(int unconnected_fd) : fd_(unconnected_fd) {}
  HttpClient(HttpClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        connected_(other.connected_),
        left_(std::move(other.left_)) {}
  ~HttpClient() { close(); }

  void connect_to(uint16_t port, bool v6 = false) {
    int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (v6) {
      sockaddr_in6 a{};
      a.sin6_family = AF_INET6;
      a.sin6_port = htons(port);
      a.sin6_addr = in6addr_loopback;
      connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
    } else {
      sockaddr_in a{};
      a.sin_family = AF_INET;
      a.sin_port = htons(port);
      a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
    }
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  // False when the server does not take it.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Closes with a reset instead of an end.
  void reset() {
    linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

  // Waits for more bytes; false at the end of the connection.
  bool receive() {
    char buffer[65536];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    left_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  std::string read_to_end() {
    while (receive()) {
    }
    return std::exchange(left_, {});
  }
  // Until `text` has come; false when the connection ends before.
  bool read_until(std::string_view text) {
    while (left_.find(text) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }
  // The next whole reply: by Content-Length, in chunks, or to the end. `head_only`: of a HEAD.
  ClientReply read_reply(bool head_only = false) {
    ClientReply reply;
    if (!read_until("\r\n\r\n")) return reply;
    const size_t end = left_.find("\r\n\r\n") + 4;
    parse_head(left_.substr(0, end), &reply);
    left_.erase(0, end);
    if (head_only || reply.status == 204 || reply.status == 100) return reply;
    if (reply.headers.count("content-length")) {
      const size_t length = std::stoul(reply.headers["content-length"]);
      while (left_.size() < length) {
        if (!receive()) return {};
      }
      reply.body = left_.substr(0, length);
      left_.erase(0, length);
    } else if (reply.headers.count("transfer-encoding")) {
      if (!read_chunks(&reply)) reply.status = 0;
    } else {
      reply.body = read_to_end();
    }
    return reply;
  }
  ClientReply ask(std::string_view bytes) {
    if (!send(bytes)) return {};
    return read_reply();
  }

  // Received and not read as part of a reply.
  const std::string& left() const { return left_; }

 private:
  static void parse_head(const std::string& head, ClientReply* reply) {
    reply->status = std::atoi(head.c_str() + 9);
    size_t at = head.find("\r\n") + 2;
    while (at + 2 < head.size()) {
      const size_t end = head.find("\r\n", at);
      const size_t colon = head.find(':', at);
      if (colon == std::string::npos || colon > end) break;
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      reply->headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
  }
  bool read_chunks(ClientReply* reply) {
    for (;;) {
      if (!read_until("\r\n")) return false;
      const size_t size = std::strtoul(left_.c_str(), nullptr, 16);
      const size_t at = left_.find("\r\n") + 2;
      while (left_.size() < at + size + 2) {
        if (!receive()) return false;
      }
      reply->body += left_.substr(at, size);
      left_.erase(0, at + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_ = -1;
  bool connected_ = false;
  std::string left_;
};

// "GET PATH" and its fields ("Name: value\r\n..."); "POST PATH" with a body.
inline std::string get(const std::string& path, const std::string& fields = {}) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
}
inline std::string post(const std::string& path, const std::string& body,
                        const std::string& fields = {}) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body;
}

// Looks again and again until `condition` holds. The test program's own limit ends what never does.
inline void wait_until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace headrace
