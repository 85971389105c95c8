#include "headrace/tier/remote_tier.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "headrace/tier/open_file.h"

namespace headrace {
namespace {

// Room for node numbers up to 1023, the kernel's largest configuration.
constexpr int kMaxNodes = 1024;

Status io_error(const std::string& path, const char* what, int number) {
  const bool no_room = number == ENOSPC || number == ENOMEM;
  return error(no_room ? Code::kDoesNotFit : Code::kIo, "%s: %s: %s (errno %d)",
               path.c_str(), what, std::strerror(number), number);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Extent {
  Bytes bytes = 0;  // what to map
  std::string method;
};

// An attribute of a character device in sysfs; -1 when it has none.
Bytes device_attribute(const struct stat& device, const char* name) {
  const std::string path = text_of("/sys/dev/char/%u:%u/%s", major(device.st_rdev),
                                   minor(device.st_rdev), name);
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return -1;
  long long value = -1;
  if (std::fscanf(file, "%lld", &value) != 1) value = -1;
  std::fclose(file);
  return value;
}

Result<Extent> size_device(const std::string& path, const struct stat& found,
                           Bytes needed) {
  const Bytes size = device_attribute(found, "size");
  if (size < 0)
    return error(Code::kUnsupported, "%s: a character device without a size in sysfs",
                 path.c_str());
  const Bytes align = std::max(device_attribute(found, "align"), 2 * kMiB);
  const Bytes bytes = round_up(needed, align);
  if (bytes > size)
    return error(Code::kDoesNotFit, "%s: %s needed, the device has %s", path.c_str(),
                 human_bytes(bytes).c_str(), human_bytes(size).c_str());
  return Extent{bytes, "device-dax mapping"};
}

// Reserves the pages of a file on tmpfs or hugetlbfs, so that no later write can fail.
Result<Extent> size_file(int fd, const RemotePool& pool, Bytes needed) {
  struct statfs about;
  struct stat found;
  if (fstatfs(fd, &about) != 0 || fstat(fd, &found) != 0)
    return io_error(pool.path, "statfs", errno);
  const bool huge = about.f_type == HUGETLBFS_MAGIC;
  if (!huge && about.f_type != TMPFS_MAGIC)
    return error(Code::kUnsupported, "%s: not on tmpfs or hugetlbfs: use the file tier",
                 pool.path.c_str());
  const Bytes bytes =
      round_up(needed, huge ? static_cast<Bytes>(found.st_blksize) : kPage);
  if (pool.kind == PoolKind::kSharedFile && bytes > found.st_size)
    return error(Code::kDoesNotFit, "%s: %s needed, the pool has %s", pool.path.c_str(),
                 human_bytes(bytes).c_str(),
                 human_bytes(static_cast<Bytes>(found.st_size)).c_str());
  int rc;
  do rc = fallocate(fd, 0, 0, bytes) == 0 ? 0 : errno;
  while (rc == EINTR);
  const std::string what = text_of("cannot reserve %s", human_bytes(bytes).c_str());
  if (rc != 0) return io_error(pool.path, what.c_str(), rc);
  return Extent{bytes, huge ? "hugetlbfs mapping" : "tmpfs mapping"};
}

Result<Mapping> map_path(const RemotePool& pool, Bytes needed, TierDescription* about) {
  const bool scratch = pool.kind == PoolKind::kScratchFile;
  struct stat found = {};
  // Before open(): opening a pipe would block.
  if (!scratch && stat(pool.path.c_str(), &found) != 0)
    return io_error(pool.path, "cannot open", errno);
  if (!scratch && !S_ISREG(found.st_mode) && !S_ISCHR(found.st_mode))
    return error(Code::kUnsupported, "%s: neither a file nor a character device",
                 pool.path.c_str());
  const Descriptor fd(scratch ? open_scratch(pool.path)
                              : open(pool.path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0)
    return io_error(pool.path, scratch ? "cannot create" : "cannot open", errno);
  HR_ASSIGN(const Extent extent, S_ISCHR(found.st_mode)
                                     ? size_device(pool.path, found, needed)
                                     : size_file(fd.get(), pool, needed));
  void* base = mmap(nullptr, static_cast<size_t>(extent.bytes), PROT_READ | PROT_WRITE,
                    MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return io_error(pool.path, "mmap", errno);
  about->method = extent.method;
  return Mapping(base, extent.bytes);
}

// Memory bound to one node by mbind(2), called directly: libnuma would be a dependency
// for one system call.
Result<Mapping> map_node(int node, Bytes needed, TierDescription* about) {
  const std::string name = text_of("NUMA node %d", node);
  if (node < 0 || node >= kMaxNodes) return error(Code::kUsage, "%s", name.c_str());
  void* base = mmap(nullptr, static_cast<size_t>(needed), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return io_error(name, "mmap", errno);
  Mapping mapping(base, needed);
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kBits> mask = {};
  mask[static_cast<size_t>(node / kBits)] = 1ul << (node % kBits);
  // The kernel reads one bit less than it is told (man mbind, BUGS).
  if (syscall(SYS_mbind, base, static_cast<size_t>(needed), MPOL_BIND, mask.data(),
              kMaxNodes + 1ul, 0u) != 0)
    return error(Code::kUnsupported, "%s: mbind: %s", name.c_str(), std::strerror(errno));
  if (madvise(base, static_cast<size_t>(needed), MADV_POPULATE_WRITE) != 0)
    return io_error(name, "cannot reserve memory", errno == EFAULT ? ENOMEM : errno);
  about->method = text_of("memory of NUMA node %d", node);
  return mapping;
}

}  // namespace

Result<std::unique_ptr<MappedTier>> open_remote_tier(const RemotePool& pool,
                                                     const std::vector<Bytes>& objects,
                                                     const MappedOptions& options) {
  HR_ASSIGN(Bytes needed, MappedTier::layout(objects));
  needed = std::max(needed, kPage);
  TierDescription about;
  about.kind = "remote";
  HR_ASSIGN(Mapping mapping, pool.kind == PoolKind::kNumaNode
                                 ? map_node(pool.numa_node, needed, &about)
                                 : map_path(pool, needed, &about));
  return MappedTier::create(std::move(mapping), objects, options, std::move(about));
}

}  // namespace headrace
