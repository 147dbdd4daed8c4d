#include "mesh/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "zero/error.h"

namespace zero::detail::shm {
namespace {

std::string system_error(int code) { return std::strerror(code); }

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct stat status_of(int fd, const std::string& place) {
  struct stat status {};
  require(fstat(fd, &status) == 0, ErrorKind::Io, place, "fstat: " + system_error(errno));
  return status;
}

}  // namespace

Segment::Segment(SegmentName name, int fd, size_t bytes) : name_(name), fd_(fd), bytes_(bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  require(mapped != MAP_FAILED, ErrorKind::Io, "shared memory",
          "cannot map " + std::to_string(bytes) + " bytes: " + system_error(errno));
  data_ = static_cast<char*>(mapped);
  madvise(mapped, bytes, MADV_HUGEPAGE);  // a wish: kernels may be built without
}

Segment Segment::create(size_t bytes) {
  File file(memfd_create("zero", MFD_CLOEXEC));
  require(file.get() >= 0, ErrorKind::Io, "shared memory", "memfd_create: " + system_error(errno));
  require(ftruncate(file.get(), static_cast<off_t>(bytes)) == 0, ErrorKind::Io, "shared memory",
          "cannot reserve " + std::to_string(bytes) + " bytes: " + system_error(errno));
  const SegmentName name{getpid(), file.get(), status_of(file.get(), "shared memory").st_ino};
  Segment segment(name, file.get(), bytes);
  file.release();
  return segment;
}

Segment Segment::open(const SegmentName& name) {
  const std::string path = "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.fd);
  const std::string place = "shared memory of process " + std::to_string(name.pid);
  File file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  require(file.get() >= 0, ErrorKind::Comm, place, "cannot open " + path + ": " + system_error(errno),
          errno == ENOENT
              ? "that process has ended; see what it printed"
              : "if processes may not look at each other here, choose another transport, e.g. gloo");
  const struct stat status = status_of(file.get(), place);
  require(status.st_ino == name.inode && status.st_size > 0, ErrorKind::Comm, place,
          path + " is not the memory that was announced", "that process has ended; see what it printed");
  Segment segment(name, file.get(), status.st_size);
  segment.fd_ = -1;
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : name_(other.name_),
      fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

bool Segment::holds(const void* address, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data_), at = reinterpret_cast<uintptr_t>(address);
  return at >= begin && at - begin <= bytes_ && bytes <= bytes_ - (at - begin);
}

}  // namespace zero::detail::shm
