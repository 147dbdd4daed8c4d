#include "tiers/disk_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/checked.h"
#include "base/files.h"
#include "zero/error.h"

namespace zero::tiers {
namespace {

constexpr int kMostRetries = 1000;  // of a block without progress: EINTR, EAGAIN

std::string text_of(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

uint64_t checksum_of(const std::byte* memory, int64_t bytes) {
  return XXH3_64bits(memory, static_cast<size_t>(bytes));
}

constexpr std::string_view kNameADisk = "name an existing directory on a disk, which you may write to";

[[noreturn]] void fail_here(ErrorKind kind, const DiskFileOptions& options, const std::string& problem,
                            std::string_view remedy) {
  fail(kind, options.key, options.directory.string() + " " + problem, remedy);
}

void require_disk(const DiskFileOptions& options) {
  struct statfs system {};
  if (::statfs(options.directory.c_str(), &system) != 0)
    fail_here(ErrorKind::Config, options, "cannot be used: " + text_of(errno), kNameADisk);
  const auto type = static_cast<unsigned long>(system.f_type);
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC)
    fail_here(ErrorKind::Config, options, "is in memory (tmpfs): states there would take as much of it",
              kNameADisk);
}

void require_space(const DiskFileOptions& options) {
  struct statvfs space {};
  if (::statvfs(options.directory.c_str(), &space) != 0)
    fail_here(ErrorKind::Io, options, "cannot be used: " + text_of(errno), kNameADisk);
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  if (free < static_cast<double>(options.bytes))
    fail_here(ErrorKind::Io, options,
              "has " + std::to_string(static_cast<int64_t>(free)) + " bytes free, this rank's states take " +
                  std::to_string(options.bytes),
              "free disk space, choose another directory or a lower offload.ratio");
}

}  // namespace

DiskFile::DiskFile(DiskFileOptions options) : options_(std::move(options)) {
  require(options_.block_bytes > 0 && options_.block_bytes % kAlignment == 0, ErrorKind::Usage,
          "DiskFileOptions::block_bytes",
          std::to_string(options_.block_bytes) + " is no multiple of " + std::to_string(kAlignment));
  options_.bytes = round_up(options_.bytes, kAlignment);
  require_disk(options_);
  require_space(options_);
  try {
    open();
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    device_.reset();
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

// The name is gone before anything is written, so nothing stays behind however the process ends.
void DiskFile::open() {
  std::string path = (options_.directory / "zero-states-XXXXXX").string();
  descriptor_ = ::mkostemp(path.data(), O_CLOEXEC);  // mode 0600
  if (descriptor_ < 0) fail_here(ErrorKind::Io, options_, "takes no file: " + text_of(errno), kNameADisk);
  if (::unlink(path.c_str()) != 0) fail_here(ErrorKind::Io, options_, "keeps a file: " + text_of(errno), "");
  if (options_.bytes > 0) set_aside(0, options_.bytes);
  is_direct_ = ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) | O_DIRECT) == 0;
  device_ = options_.open_device ? options_.open_device(descriptor_)
                                 : open_block_device(descriptor_, options_.queue_depth, options_.threads);
}

void DiskFile::set_aside(int64_t begin, int64_t bytes) {
  if (::fallocate(descriptor_, 0, begin, bytes) == 0) return;
  const int error = errno;
  fail_here(
      ErrorKind::Io, options_,
      "cannot set " + std::to_string(bytes) + " bytes aside for this rank's states: " + text_of(error),
      error == EOPNOTSUPP ? "choose a file system that can, such as ext4, xfs or btrfs" : remedy_for(error));
}

void DiskFile::extend(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  set_aside(options_.bytes, round_up(bytes, kAlignment));
  options_.bytes += round_up(bytes, kAlignment);
}

DiskFile::~DiskFile() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  to_do_.notify_all();
  thread_.join();
  device_.reset();
  ::close(descriptor_);
}

DiskFile::Extent DiskFile::add_extent(int64_t bytes) {
  auto room = std::make_unique<Room>();
  room->bytes = round_up(bytes, kAlignment);
  const std::lock_guard lock(mutex_);
  require(used_bytes_ + room->bytes <= options_.bytes, ErrorKind::Internal, "disk tier",
          std::to_string(used_bytes_ + room->bytes) + " bytes of states, but " +
              std::to_string(options_.bytes) + " were set aside");
  for (int64_t begin = 0; begin < room->bytes; begin += options_.block_bytes)
    room->blocks.push_back(
        {.offset = used_bytes_ + begin, .bytes = std::min(options_.block_bytes, room->bytes - begin)});
  used_bytes_ += room->bytes;
  rooms_.push_back(std::move(room));
  return static_cast<Extent>(rooms_.size()) - 1;
}

int64_t DiskFile::extent_bytes(Extent extent) const {
  const std::lock_guard lock(mutex_);
  return rooms_.at(static_cast<size_t>(extent))->bytes;
}

DiskFile::Ticket DiskFile::add_request(Request request) {
  Ticket ticket = kNone;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++last_;
    Ticket& last = rooms_.at(static_cast<size_t>(request.extent))->last;
    request.after.push_back(std::exchange(last, ticket));
    requests_[ticket] = std::move(request);
    pending_.push_back(ticket);
  }
  to_do_.notify_one();
  return ticket;
}

DiskFile::Ticket DiskFile::read(Extent extent, std::byte* memory, const std::string& name,
                                std::vector<Ticket> after) {
  return add_request({.extent = extent, .memory = memory, .name = name, .after = std::move(after)});
}

DiskFile::Ticket DiskFile::write(Extent extent, std::byte* memory, const std::string& name,
                                 std::vector<Ticket> after) {
  return add_request(
      {.extent = extent, .memory = memory, .name = name, .after = std::move(after), .writes = true});
}

void DiskFile::wait(Ticket ticket) {
  if (ticket == kNone) return;
  std::unique_lock lock(mutex_);
  const auto found = requests_.find(ticket);
  require(found != requests_.end(), ErrorKind::Internal, "disk tier", "waits twice for one transfer");
  over_.wait(lock, [&] { return found->second.over; });
  const std::exception_ptr failure = found->second.failure;
  requests_.erase(found);
  if (failure) std::rethrow_exception(failure);
}

bool DiskFile::is_over(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(ticket);
  return found == requests_.end() || found->second.over;
}

DiskFileStats DiskFile::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string DiskFile::description() const {
  return device_->description() + (is_direct_ ? ", past" : ", through") + " the system's cache";
}

void DiskFile::finish_request(Request& request) {
  request.over = true;
  over_.notify_all();
}

// Those that somebody has waited for are over and gone.
bool DiskFile::may_start(const Request& request) const {
  return std::all_of(request.after.begin(), request.after.end(), [this](Ticket ticket) {
    const auto before = requests_.find(ticket);
    return before == requests_.end() || before->second.over;
  });
}

// Cuts the next request that may start into blocks: those behind one that has to wait need not.
bool DiskFile::start_next() {
  const auto place = std::find_if(pending_.begin(), pending_.end(),
                                  [this](Ticket ticket) { return may_start(requests_.at(ticket)); });
  if (place == pending_.end()) return false;
  const Ticket ticket = *place;
  pending_.erase(place);
  Request& request = requests_.at(ticket);
  for (const Ticket after : request.after) {
    const auto before = requests_.find(after);
    if (before != requests_.end() && !request.failure) request.failure = before->second.failure;
  }
  Room& room = *rooms_.at(static_cast<size_t>(request.extent));
  const bool has_values = request.writes || room.written;
  if (!request.failure && !has_values) std::memset(request.memory, 0, static_cast<size_t>(room.bytes));
  if (request.failure || !has_values || room.blocks.empty()) {
    finish_request(request);
    return true;
  }
  request.blocks_left = room.blocks.size();
  for (size_t block = 0; block < room.blocks.size(); ++block)
    ready_.push_back({.ticket = ticket, .block = block});
  return true;
}

std::exception_ptr DiskFile::error_of(const Moving& moving, int error, const std::string& problem) const {
  const Request& request = requests_.at(moving.ticket);
  const Block& block = rooms_[static_cast<size_t>(request.extent)]->blocks[moving.block];
  const std::string where = std::to_string(block.bytes) + " bytes at " + std::to_string(block.offset) +
                            " of the disk tier in " + options_.directory.string();
  if (error == 0)
    return std::make_exception_ptr(Error(ErrorKind::Corrupt, request.name, where + " " + problem,
                                         "resume from the last checkpoint, and check the disk"));
  return std::make_exception_ptr(
      Error(ErrorKind::Io, request.name,
            std::string("cannot ") + (request.writes ? "write " : "read ") + where + ": " + text_of(error),
            remedy_for(error)));
}

// Called without the lock: what it touches of a started request changes in this thread only.
void DiskFile::start_block(uint64_t tag) {
  Moving moving;
  BlockDevice::Transfer transfer{.tag = tag};
  Block* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    moving = moving_.at(tag);
    const Request& request = requests_.at(moving.ticket);
    Room& room = *rooms_[static_cast<size_t>(request.extent)];
    block = &room.blocks[moving.block];
    transfer.writes = request.writes;
    transfer.memory = request.memory + (block->offset - room.blocks.front().offset) + moving.moved;
  }
  transfer.offset = block->offset + moving.moved;
  transfer.bytes = block->bytes - moving.moved;
  if (transfer.writes && moving.moved == 0) block->checksum = checksum_of(transfer.memory, block->bytes);
  device_->start(transfer);
}

void DiskFile::finish_block(const Moving& moving, std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  Request& request = requests_.at(moving.ticket);
  if (failure && !request.failure) request.failure = std::move(failure);
  Room& room = *rooms_[static_cast<size_t>(request.extent)];
  (request.writes ? stats_.written_bytes : stats_.read_bytes) += room.blocks[moving.block].bytes;
  if (--request.blocks_left > 0) return;
  if (request.writes) room.written = true;
  finish_request(request);
}

void DiskFile::take_result(const BlockDevice::Result& result) {
  Moving moving;
  bool writes = false;
  const std::byte* memory = nullptr;
  Block block;
  {
    const std::lock_guard lock(mutex_);
    moving = moving_.at(result.tag);
    const Request& request = requests_.at(moving.ticket);
    const Room& room = *rooms_[static_cast<size_t>(request.extent)];
    block = room.blocks[moving.block];
    writes = request.writes;
    memory = request.memory + (block.offset - room.blocks.front().offset);
  }
  const auto give_up = [&](int error, const std::string& problem = "") {
    std::exception_ptr failure;
    {
      const std::lock_guard lock(mutex_);
      failure = error_of(moving, error, problem);
      moving_.erase(result.tag);
    }
    finish_block(moving, failure);
  };
  const auto again = [&] {
    {
      const std::lock_guard lock(mutex_);
      moving_[result.tag] = moving;
    }
    start_block(result.tag);
  };
  if (result.bytes < 0) {
    const auto error = static_cast<int>(-result.bytes);
    if ((error != EINTR && error != EAGAIN) || ++moving.retries > kMostRetries) return give_up(error);
    if (error == EAGAIN) std::this_thread::yield();
    return again();
  }
  // Nothing at all: the file ends, which it was made not to, or the device is full.
  if (result.bytes == 0) return give_up(writes ? ENOSPC : EIO);
  if (moving.moved + result.bytes < block.bytes) {
    // Of a short transfer whole sectors count; the rest of one is moved once more.
    const int64_t moved = (moving.moved + result.bytes) / kAlignment * kAlignment;
    if (moved == moving.moved && ++moving.retries > kMostRetries) return give_up(EIO);
    moving.moved = moved;
    return again();
  }
  if (!writes && checksum_of(memory, block.bytes) != block.checksum)
    return give_up(0, "are not those that were written");
  {
    const std::lock_guard lock(mutex_);
    moving_.erase(result.tag);
  }
  finish_block(moving, nullptr);
}

// The thread: starts blocks while the device has room, takes those that come back.
void DiskFile::run() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  auto busy_since = Clock::now();
  while (true) {
    while (ready_.size() < static_cast<size_t>(options_.queue_depth) && start_next()) {
    }
    if (ready_.empty() && moving_.empty()) {
      if (ends_ && pending_.empty()) return;
      to_do_.wait(lock, [this] { return ends_ || !pending_.empty(); });
      busy_since = Clock::now();
      if (pending_.empty()) return;
      continue;
    }
    std::vector<uint64_t> tags;
    while (!ready_.empty() && moving_.size() < static_cast<size_t>(options_.queue_depth)) {
      moving_[++last_tag_] = ready_.front();
      ready_.pop_front();
      tags.push_back(last_tag_);
    }
    lock.unlock();
    try {
      for (const uint64_t tag : tags) start_block(tag);
      take_result(device_->wait());
    } catch (...) {
      // The device itself is broken: memory may still be written, so nothing of it is reused. All fail alike.
      broken_ = std::current_exception();
    }
    lock.lock();
    const auto now = Clock::now();
    stats_.busy_s += std::chrono::duration<double>(now - busy_since).count();
    busy_since = now;
    if (!broken_) continue;
    moving_.clear();
    ready_.clear();
    pending_.clear();
    for (auto& [ticket, request] : requests_) {
      if (request.over) continue;
      request.failure = broken_;
      finish_request(request);
    }
    broken_ = nullptr;
  }
}

}  // namespace zero::tiers
