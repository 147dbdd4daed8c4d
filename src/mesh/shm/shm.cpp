// The ranks of one host through shared memory.

#include <chrono>
#include <cstring>
#include <thread>

#include "mesh/shm/channel.h"
#include "mesh/transport.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using shm::Board;
using Clock = std::chrono::steady_clock;

std::vector<uint8_t> to_bytes(const shm::SegmentName& name) {
  std::vector<uint8_t> bytes(sizeof name);
  std::memcpy(bytes.data(), &name, sizeof name);
  return bytes;
}

shm::SegmentName from_bytes(const std::vector<uint8_t>& bytes) {
  shm::SegmentName name;
  require(bytes.size() == sizeof name, ErrorKind::Comm, "shared memory",
          "rank 0 announced a board of another build", "run the same program on all ranks");
  std::memcpy(&name, bytes.data(), sizeof name);
  return name;
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const TransportOptions& options) : options_(options) {
    require(options.device.is_cpu(), ErrorKind::Unsupported, "transport shm",
            "moves CPU tensors only, device " + options.device.str(), "use transport nccl");
  }

  std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                   const std::vector<int>& hosts, const std::string& name) override {
    const int size = static_cast<int>(hosts.size());
    for (int host : hosts)
      require(host == hosts[0], ErrorKind::Config, "group " + name,
              "its ranks are on several hosts, which share no memory", "use transport auto or gloo");
    require(size <= shm::kMostRanks, ErrorKind::Unsupported, "group " + name,
            std::to_string(size) + " ranks share memory, at most " + std::to_string(shm::kMostRanks) + " can",
            "use transport gloo");
    if (rank == 0) {
      Board board = Board::create(size);
      store->set("board", to_bytes(board.name()));
      return join(std::move(board), rank, size, name);
    }
    return join(Board::open(from_bytes(store->get("board")), rank, size), rank, size, name);
  }

  std::vector<int> memories(const std::vector<int>& hosts) const override {
    return std::vector<int>(hosts.size(), 0);
  }

 private:
  std::unique_ptr<Channel> join(Board board, int rank, int size, const std::string& name) {
    board.attach(memory_->first_segment());
    const auto deadline = Clock::now() + options_.timeout;
    while (!board.attached()) {
      require(Clock::now() < deadline, ErrorKind::Comm, "group " + name,
              "not all ranks came to share memory within " + std::to_string(options_.timeout.count()) + " ms",
              "see what the other ranks printed");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return shm::make_channel(memory_, std::move(board), rank, size);
  }

  TransportOptions options_;
  std::shared_ptr<shm::HostMemory> memory_ = std::make_shared<shm::HostMemory>();
};

}  // namespace

std::shared_ptr<Transport> make_shm_transport(const TransportOptions& options) {
  return std::make_shared<ShmTransport>(options);
}

}  // namespace zero::detail
