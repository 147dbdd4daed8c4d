#pragma once
// Shared memory between ranks, each of whose operations begins and ends late, by chance.

#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/transport.h"

namespace zero::testing {

/// Sleeps for as long as chance will have it, now and then not at all.
class Lateness {
 public:
  Lateness(unsigned seed, std::chrono::microseconds most) : random_(seed), most_(most) {}
  void wait() {
    std::chrono::microseconds time{0};
    {
      const std::lock_guard lock(mutex_);
      if (random_() % 2 == 0)
        time = std::chrono::microseconds(random_() % static_cast<unsigned>(most_.count()));
    }
    std::this_thread::sleep_for(time);
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
  std::chrono::microseconds most_;
};

class LateTransfer final : public detail::Transfer {
 public:
  LateTransfer(std::unique_ptr<detail::Transfer> inner, std::shared_ptr<Lateness> lateness)
      : inner_(std::move(inner)), lateness_(std::move(lateness)) {}
  void wait(std::chrono::milliseconds timeout) override {
    lateness_->wait();
    inner_->wait(timeout);
  }
  bool output_comes_first() const override { return inner_->output_comes_first(); }
  void wait_output(std::chrono::milliseconds timeout) override {
    lateness_->wait();
    inner_->wait_output(timeout);
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  std::unique_ptr<detail::Transfer> inner_;
  std::shared_ptr<Lateness> lateness_;
};

class LateChannel final : public detail::Channel {
 public:
  LateChannel(std::unique_ptr<detail::Channel> inner, std::shared_ptr<Lateness> lateness)
      : inner_(std::move(inner)), lateness_(std::move(lateness)) {}

  Started all_gather(at::Tensor out, at::Tensor in, int tag) override {
    return late([&] { return inner_->all_gather(std::move(out), std::move(in), tag); });
  }
  Started exchange(at::Tensor out, at::Tensor in, int tag) override {
    return late([&] { return inner_->exchange(std::move(out), std::move(in), tag); });
  }
  Started broadcast(at::Tensor tensor, int root, int tag) override {
    return late([&] { return inner_->broadcast(std::move(tensor), root, tag); });
  }
  Started send(at::Tensor tensor, int to, int tag) override {
    return late([&] { return inner_->send(std::move(tensor), to, tag); });
  }
  Started receive(at::Tensor tensor, int from, int tag) override {
    return late([&] { return inner_->receive(std::move(tensor), from, tag); });
  }
  bool has_reduce_scatter() const override { return inner_->has_reduce_scatter(); }
  Started reduce_scatter(std::vector<detail::ReducePart> outs, at::Tensor in, int tag) override {
    return late([&] { return inner_->reduce_scatter(std::move(outs), std::move(in), tag); });
  }
  Started all_reduce(std::vector<detail::ReducePart> outs, at::Tensor in, int tag) override {
    return late([&] { return inner_->all_reduce(std::move(outs), std::move(in), tag); });
  }
  double worked_s() const override { return inner_->worked_s(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  at::Tensor empty(int64_t numel, at::ScalarType dtype) override { return inner_->empty(numel, dtype); }
  at::Tensor together(int64_t numel, at::ScalarType dtype, int tag,
                      std::chrono::milliseconds timeout) override {
    return inner_->together(numel, dtype, tag, timeout);
  }

 private:
  template <class Start>
  Started late(Start start) {
    lateness_->wait();
    return std::make_unique<LateTransfer>(start(), lateness_);
  }

  std::unique_ptr<detail::Channel> inner_;
  std::shared_ptr<Lateness> lateness_;
};

class LateTransport final : public detail::Transport {
 public:
  LateTransport(std::shared_ptr<detail::Transport> inner, std::chrono::microseconds most)
      : inner_(std::move(inner)), most_(most) {}
  std::unique_ptr<detail::Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                           const std::vector<int>& hosts, const std::string& name) override {
    const auto seed =
        static_cast<unsigned>(std::hash<std::string>()(name)) + 97u * static_cast<unsigned>(rank);
    return std::make_unique<LateChannel>(inner_->connect(std::move(store), rank, hosts, name),
                                         std::make_shared<Lateness>(seed, most_));
  }
  std::vector<int> memories(const std::vector<int>& hosts) const override { return inner_->memories(hosts); }

 private:
  std::shared_ptr<detail::Transport> inner_;
  std::chrono::microseconds most_;
};

}  // namespace zero::testing
