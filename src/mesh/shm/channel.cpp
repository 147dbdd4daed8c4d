#include "mesh/shm/channel.h"

#include <cstring>
#include <utility>

#include "compute/copy.h"
#include "zero/error.h"
#include "zero/memory_in_use.h"

namespace zero::detail::shm {
namespace {

class ShmTransfer final : public Transfer {
 public:
  ShmTransfer(std::shared_ptr<Conversation> conversation, std::shared_ptr<Telling> telling,
              std::shared_ptr<Reading> reading, bool awaits_copy)
      : conversation_(std::move(conversation)),
        telling_(std::move(telling)),
        reading_(std::move(reading)),
        awaits_copy_(awaits_copy) {}

  ~ShmTransfer() override {
    if (reading_) conversation_->forget(reading_);
  }

  bool output_comes_first() const override { return telling_ && telling_->in_place; }

  void wait_output(std::chrono::milliseconds timeout) override {
    if (reading_) conversation_->wait(reading_.get(), nullptr, timeout, aborted_);
    if (awaits_copy_ && !telling_->in_place) conversation_->wait(nullptr, telling_.get(), timeout, aborted_);
  }

  // A tensor that is read in place may be changed only when all have read it. A message to one rank is copied
  // or not, but never waited for by its sender unless it is read in place.
  void wait(std::chrono::milliseconds timeout) override {
    wait_output(timeout);
    if (telling_ && telling_->in_place) conversation_->wait(nullptr, telling_.get(), timeout, aborted_);
  }

  void abort() noexcept override {
    aborted_ = true;
    conversation_->wake();
  }

 private:
  std::shared_ptr<Conversation> conversation_;
  std::shared_ptr<Telling> telling_;
  std::shared_ptr<Reading> reading_;
  bool awaits_copy_;
  std::atomic<bool> aborted_{false};
};

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

at::Tensor tensor_over(char* data, int64_t numel, at::ScalarType dtype, std::function<void()> release) {
  return at::from_blob(
      data, {numel}, [release = std::move(release)](void*) { release(); }, at::TensorOptions(dtype));
}

class ShmChannel final : public Channel {
 public:
  explicit ShmChannel(std::shared_ptr<Conversation> conversation) : conversation_(std::move(conversation)) {}

  Started all_gather(at::Tensor out, at::Tensor in, int tag) override {
    const uint64_t part = in.nbytes();
    auto reading = read(tag, {out, in});
    for (int peer : others())
      reading->from.push_back({.rank = peer,
                               .message_bytes = part,
                               .offset = 0,
                               .copy_to = bytes_of(out) + static_cast<uint64_t>(peer) * part,
                               .copy_bytes = part});
    auto telling = conversation_->tell(in, -1, tag);
    char* own = bytes_of(out) + static_cast<uint64_t>(rank()) * part;
    if (own != bytes_of(in)) copy_bytes(own, bytes_of(in), part);
    // Copies of parameters would stay for as long as a rank is busy elsewhere, beside its activations.
    return start(std::move(telling), std::move(reading), /*awaits_copy=*/true);
  }

  Started exchange(at::Tensor out, at::Tensor in, int tag) override {
    const uint64_t part = in.nbytes() / static_cast<uint64_t>(ranks());
    auto reading = read(tag, {out, in});
    for (int peer : others())
      reading->from.push_back({.rank = peer,
                               .message_bytes = in.nbytes(),
                               .offset = static_cast<uint64_t>(rank()) * part,
                               .copy_to = bytes_of(out) + static_cast<uint64_t>(peer) * part,
                               .copy_bytes = part});
    return start(conversation_->tell(in, -1, tag), std::move(reading));
  }

  bool has_reduce_scatter() const override { return true; }

  Started reduce_scatter(std::vector<ReducePart> outs, at::Tensor in, int tag) override {
    const uint64_t offset = in.nbytes() / static_cast<uint64_t>(ranks()) * static_cast<uint64_t>(rank());
    auto reading = read(tag, {in});
    for (int peer : others())
      reading->from.push_back({.rank = peer, .message_bytes = in.nbytes(), .offset = offset});
    sum(*reading, std::move(outs), in, offset);
    return start(conversation_->tell(in, -1, tag), std::move(reading));
  }

  Started all_reduce(std::vector<ReducePart> outs, at::Tensor in, int tag) override {
    auto reading = read(tag, {in});
    for (int peer : others())
      reading->from.push_back({.rank = peer, .message_bytes = in.nbytes(), .offset = 0});
    sum(*reading, std::move(outs), in, 0);
    return start(conversation_->tell(in, -1, tag), std::move(reading));
  }

  Started broadcast(at::Tensor tensor, int root, int tag) override {
    if (rank() == root) return start(conversation_->tell(tensor, -1, tag), nullptr);
    return receive(std::move(tensor), root, tag);
  }

  Started send(at::Tensor tensor, int to, int tag) override {
    return start(conversation_->tell(tensor, to, tag), nullptr);
  }

  Started receive(at::Tensor tensor, int from, int tag) override {
    auto reading = read(tag, {tensor});
    reading->from.push_back({.rank = from,
                             .message_bytes = tensor.nbytes(),
                             .offset = 0,
                             .copy_to = bytes_of(tensor),
                             .copy_bytes = tensor.nbytes()});
    return start(nullptr, std::move(reading));
  }

  double worked_s() const override { return conversation_->worked_s(); }

  bool shares_memory() const override { return true; }

  at::Tensor empty(int64_t numel, at::ScalarType dtype) override {
    auto memory = conversation_->memory();
    char* block = memory->allocate(numel * c10::elementSize(dtype));
    return tensor_over(block, numel, dtype, [memory, block] { memory->release(block); });
  }

  at::Tensor together(int64_t numel, at::ScalarType dtype, int tag,
                      std::chrono::milliseconds timeout) override {
    struct Offer {
      Location data, users;
    };
    auto memory = conversation_->memory();
    const size_t bytes = numel * c10::elementSize(dtype);
    at::Tensor wire = at::empty({sizeof(Offer)}, at::kByte);
    if (rank() == 0) {
      auto [data, users] = memory->lend(bytes, ranks());
      const Offer offer{memory->locate(data, bytes).value(), memory->locate(users, sizeof *users).value()};
      std::memcpy(wire.data_ptr(), &offer, sizeof offer);
    }
    broadcast(wire, 0, tag)->wait(timeout);
    Offer offer;
    std::memcpy(&offer, wire.data_ptr(), sizeof offer);
    char* data = memory->resolve(offer.data, bytes);
    auto* users =
        reinterpret_cast<HostMemory::Users*>(memory->resolve(offer.users, sizeof(HostMemory::Users)));
    // Each rank is charged an equal part.
    const auto part = static_cast<int64_t>(bytes) / ranks();
    count_memory(part);
    return tensor_over(data, numel, dtype, [memory, users, part] {
      users->fetch_sub(1);
      count_memory(-part);
    });
  }

 private:
  int rank() const { return conversation_->rank(); }
  int ranks() const { return conversation_->ranks(); }

  // The other ranks, starting with the next, so that not all ranks read from rank 0 first.
  std::vector<int> others() const {
    std::vector<int> result;
    for (int step = 1; step < ranks(); ++step) result.push_back((rank() + step) % ranks());
    return result;
  }

  static std::shared_ptr<Reading> read(int tag, std::vector<at::Tensor> keep) {
    auto reading = std::make_shared<Reading>();
    reading->tag = tag;
    reading->keep = std::move(keep);
    return reading;
  }

  // What is read is added to `in`, from `offset` bytes on.
  static void sum(Reading& reading, std::vector<ReducePart> outs, const at::Tensor& in, uint64_t offset) {
    reading.own = bytes_of(in) + offset;
    reading.dtype = in.scalar_type();
    reading.sums = std::move(outs);
  }

  Started start(std::shared_ptr<Telling> telling, std::shared_ptr<Reading> reading,
                bool awaits_copy = false) {
    if (reading) conversation_->begin(reading);
    return std::make_unique<ShmTransfer>(conversation_, std::move(telling), std::move(reading), awaits_copy);
  }

  std::shared_ptr<Conversation> conversation_;
};

}  // namespace

std::unique_ptr<Channel> make_channel(std::shared_ptr<HostMemory> memory, Board board, int rank, int ranks) {
  return std::make_unique<ShmChannel>(
      std::make_shared<Conversation>(std::move(memory), std::move(board), rank, ranks));
}

}  // namespace zero::detail::shm
