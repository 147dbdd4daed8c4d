#include "mesh/hosts_channel.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/host_routes.h"
#include "mesh/ordered_sum.h"
#include "mesh/relay.h"

namespace zero::detail {
namespace {

/// Several transfers as one.
class Bundle final : public Transfer {
 public:
  void add(Channel::Started transfer, int peer) { parts_.push_back({std::move(transfer), peer}); }

  void wait(std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (auto& [transfer, peer] : parts_) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      try {
        transfer->wait(std::max(left, std::chrono::milliseconds(1)));
      } catch (const TransferError& error) {  // the part knows its own ranks only
        throw TransferError(error.what(), {peer}, error.timed_out, error.aborted);
      }
    }
  }

  void abort() noexcept override {
    for (auto& part : parts_) part.transfer->abort();
  }

 private:
  struct Part {
    Channel::Started transfer;
    int peer;
  };
  std::vector<Part> parts_;
};

/// A leg of an operation under way, and whom it waits for.
struct Leg {
  Channel::Started transfer;
  std::vector<int> peers;
};

enum class Kind : int { Part, Row, Running, Sum };

// Tells apart the messages of one operation.
int leg_tag(int tag, Kind kind, size_t first, size_t second = 0) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, by words
  for (const uint64_t word : {static_cast<uint64_t>(tag), static_cast<uint64_t>(kind),
                              static_cast<uint64_t>(first), static_cast<uint64_t>(second)})
    hash = (hash ^ word) * 1099511628211u;
  return static_cast<int>((hash ^ (hash >> 33)) & 0x7fffffff);
}

// out (+)= the rows' sum, in pieces that no further threads are woken for.
void add_up(const at::Tensor& out, const std::vector<at::Tensor>& rows, bool accumulate) {
  constexpr int64_t kPieceNumel = 32 * 1024;
  for (int64_t begin = 0; begin < out.numel(); begin += kPieceNumel) {
    const int64_t numel = std::min(kPieceNumel, out.numel() - begin);
    std::vector<at::Tensor> pieces;
    pieces.reserve(rows.size());
    for (const at::Tensor& row : rows) pieces.push_back(row.narrow(0, begin, numel));
    ordered_sum(out.narrow(0, begin, numel), pieces, accumulate);
  }
}

// The sum of `rows` so far, then one row more: fp32 from the second one on.
at::Tensor with_row(const at::Tensor& sum, const at::Tensor& row) {
  if (sum.scalar_type() == at::kFloat && row.scalar_type() == at::kFloat) {
    at::Tensor next = at::empty_like(sum);
    add_up(next, {sum, row}, false);
    return next;
  }
  at::Tensor next = sum;
  if (sum.scalar_type() != at::kFloat) {
    next = at::empty(sum.sizes(), sum.options().dtype(at::kFloat));
    add_up(next, {sum}, false);
  }
  add_up(next, {row}, true);
  return next;
}

/// What the members of a group on several hosts are made of.
struct Hosts {
  std::unique_ptr<Channel> inside;  // null for a rank that is alone on its host
  std::unique_ptr<Channel> across;
  int rank;
  HostRoutes routes;
  Communication communication;

  int host() const { return routes.host_of(rank); }
  bool is_near(int other) const { return routes.host_of(other) == host(); }
  const std::vector<int>& neighbours() const { return routes.members(host()); }
  at::Tensor part(const at::Tensor& tensor, int of) const {
    const int64_t numel = tensor.numel() / routes.ranks();
    return tensor.narrow(0, of * numel, numel);
  }
  std::vector<int> others() const {
    std::vector<int> result;
    for (int step = 1; step < routes.ranks(); ++step) result.push_back((rank + step) % routes.ranks());
    return result;
  }
  std::vector<int> other_neighbours() const {
    std::vector<int> result = neighbours();
    std::erase(result, rank);
    return result;
  }

  Leg send(const at::Tensor& tensor, int to, int tag) const {
    return {is_near(to) ? inside->send(tensor, routes.place_of(to), tag) : across->send(tensor, to, tag),
            {to}};
  }
  Leg receive(const at::Tensor& tensor, int from, int tag) const {
    return {is_near(from) ? inside->receive(tensor, routes.place_of(from), tag)
                          : across->receive(tensor, from, tag),
            {from}};
  }
  /// To all neighbours.
  Leg tell(const at::Tensor& tensor, int tag) const {
    return {inside->broadcast(tensor, routes.place_of(rank), tag), other_neighbours()};
  }
  /// What that neighbour tells.
  Leg listen(const at::Tensor& tensor, int teller, int tag) const {
    return {inside->broadcast(tensor, routes.place_of(teller), tag), {teller}};
  }
};

void wait_all(RelayJob& job, std::vector<Leg>& legs) {
  for (Leg& leg : legs) job.wait(*leg.transfer, leg.peers);
}

// Each source's part goes to one rank of each other host, which tells its neighbours. Sources and the tensors
// where their parts are, or belong, by this rank's own reckoning the same on all.
void spread(const Hosts& hosts, RelayJob& job, const std::vector<int>& sources,
            const std::function<at::Tensor(int source)>& place, int tag) {
  std::vector<std::pair<int, Leg>> from_network;
  std::vector<Leg> rest;
  const auto teller = [&](int source) {
    return hosts.is_near(source) ? source : hosts.routes.receiver(source, hosts.host());
  };
  const bool has_neighbours = hosts.neighbours().size() > 1;
  const auto tag_of = [&](int source) { return leg_tag(tag, Kind::Part, static_cast<size_t>(source)); };
  for (const int source : sources) {
    if (!hosts.is_near(source) && teller(source) == hosts.rank)
      from_network.emplace_back(source, hosts.receive(place(source), source, tag_of(source)));
    if (has_neighbours && teller(source) != hosts.rank)
      rest.push_back(hosts.listen(place(source), teller(source), tag_of(source)));
    if (source != hosts.rank) continue;
    for (int host = 0; host < hosts.routes.hosts(); ++host)
      if (host != hosts.host())
        rest.push_back(hosts.send(place(source), hosts.routes.receiver(source, host), tag_of(source)));
    if (has_neighbours) rest.push_back(hosts.tell(place(source), tag_of(source)));
  }
  for (auto& [source, leg] : from_network) {
    job.wait(*leg.transfer, leg.peers);
    if (has_neighbours) rest.push_back(hosts.tell(place(source), tag_of(source)));
  }
  wait_all(job, rest);
}

/// A reduce-scatter on this rank: what it adds up for owners, itself among them.
class Summing {
 public:
  Summing(const Hosts& hosts, const std::vector<SumRoute>& routes, std::vector<ReducePart> outs,
          at::Tensor in, int tag)
      : hosts_(hosts), routes_(routes), outs_(std::move(outs)), in_(std::move(in)), tag_(tag) {
    numel_ = in_.numel() / hosts.routes.ranks();
  }

  void run(RelayJob& job) {
    own_row_ = make_own_row();
    // First all that others may wait for, and room for what comes.
    for (int owner = 0; owner < hosts_.routes.ranks(); ++owner) begin(owner);
    expect_own();
    // Then by owner and step, on all ranks: whoever waits for another's step waits for an earlier one.
    for (Task& task : tasks_) add(job, task);
    finish(job);
    wait_all(job, sends_);
  }

 private:
  /// A step of an owner's sum that this rank adds up.
  struct Task {
    int owner;
    size_t step;
    std::vector<at::Tensor> rows;
    std::vector<Leg> legs;  // of rows and of what comes before
    at::Tensor before;      // undefined: nothing, or what this rank has added up last
  };

  const SumRoute& route(int owner) const { return routes_[static_cast<size_t>(owner)]; }
  at::Tensor row(int owner) const { return owner == hosts_.rank ? own_row_ : hosts_.part(in_, owner); }
  at::Tensor room(bool is_row) const {
    return at::empty({numel_}, is_row ? in_.options() : in_.options().dtype(at::kFloat));
  }

  // This rank's own row for itself, part of which may be elsewhere.
  at::Tensor make_own_row() const {
    const at::Tensor given = hosts_.part(in_, hosts_.rank);
    if (std::none_of(outs_.begin(), outs_.end(), [](const ReducePart& out) { return out.own.defined(); }))
      return given;
    at::Tensor joined = at::empty_like(given);
    int64_t column = 0;
    for (const ReducePart& out : outs_) {
      const int64_t numel = out.out.numel();
      const at::Tensor& from = out.own.defined() ? out.own : given.narrow(0, column, numel);
      joined.narrow(0, column, numel).copy_(from);
      column += numel;
    }
    return joined;
  }

  void begin(int owner) {
    const SumRoute& way = route(owner);
    for (size_t step = 0; step < way.steps.size(); ++step) {
      const auto& [ranks, adder] = way.steps[step];
      const int row_tag = leg_tag(tag_, Kind::Row, static_cast<size_t>(owner));
      if (adder != hosts_.rank) {
        if (std::find(ranks.begin(), ranks.end(), hosts_.rank) != ranks.end())
          sends_.push_back(hosts_.send(row(owner), adder, row_tag));
        continue;
      }
      Task task{.owner = owner, .step = step, .rows = {}, .legs = {}, .before = {}};
      for (const int rank : ranks) {
        task.rows.push_back(rank == hosts_.rank ? row(owner) : room(true));
        if (rank != hosts_.rank) task.legs.push_back(hosts_.receive(task.rows.back(), rank, row_tag));
      }
      if (way.is_running && step > 0 && way.steps[step - 1].adder != hosts_.rank) {
        task.before = room(way.passes_row(step - 1));
        task.legs.push_back(hosts_.receive(task.before, way.steps[step - 1].adder,
                                           leg_tag(tag_, Kind::Running, static_cast<size_t>(owner), step)));
      }
      tasks_.push_back(std::move(task));
    }
  }

  // What others pass on to this rank as the owner.
  void expect_own() {
    const SumRoute& way = route(hosts_.rank);
    own_steps_.resize(way.steps.size());
    for (size_t step = way.is_running ? way.steps.size() - 1 : 0; step < way.steps.size(); ++step) {
      const int adder = way.steps[step].adder;
      if (adder == hosts_.rank) continue;
      own_steps_[step] = room(way.passes_row(step));
      own_legs_.push_back(hosts_.receive(own_steps_[step], adder,
                                         leg_tag(tag_, Kind::Sum, static_cast<size_t>(hosts_.rank), step)));
    }
  }

  void add(RelayJob& job, Task& task) {
    wait_all(job, task.legs);
    const SumRoute& way = route(task.owner);
    const bool goes_on = way.is_running && task.step > 0;
    at::Tensor sum = !goes_on ? at::Tensor() : task.before.defined() ? task.before : last_sum_;
    if (!sum.defined() && task.rows.size() > 1) {
      sum = room(false);
      add_up(sum, task.rows, false);
    } else {
      for (const at::Tensor& next : task.rows) sum = sum.defined() ? with_row(sum, next) : next;
    }
    task.rows.clear();
    task.before.reset();
    pass_on(task, std::move(sum));
  }

  void pass_on(const Task& task, at::Tensor sum) {
    const SumRoute& way = route(task.owner);
    const bool is_last = !way.is_running || task.step + 1 == way.steps.size();
    const int next = is_last ? task.owner : way.steps[task.step + 1].adder;
    if (next == hosts_.rank) {
      (is_last ? own_steps_[task.step] : last_sum_) = std::move(sum);
      return;
    }
    const int tag = is_last ? leg_tag(tag_, Kind::Sum, static_cast<size_t>(task.owner), task.step)
                            : leg_tag(tag_, Kind::Running, static_cast<size_t>(task.owner), task.step + 1);
    sends_.push_back(hosts_.send(sum, next, tag));
  }

  void finish(RelayJob& job) {
    wait_all(job, own_legs_);
    const SumRoute& way = route(hosts_.rank);
    std::vector<at::Tensor> parts = own_steps_;
    if (way.is_running) parts = {own_steps_.back()};
    const bool are_rows = std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) {
      return part.scalar_type() == parts.front().scalar_type();
    });
    if (!are_rows) {
      at::Tensor sum = parts.front();
      for (size_t i = 1; i < parts.size(); ++i) sum = with_row(sum, parts[i]);
      parts = {sum};
    }
    int64_t column = 0;
    for (const ReducePart& out : outs_) {
      const int64_t numel = out.out.numel();
      std::vector<at::Tensor> pieces;
      for (const at::Tensor& part : parts) pieces.push_back(part.narrow(0, column, numel));
      add_up(out.out, pieces, out.accumulate);
      column += numel;
    }
  }

  const Hosts& hosts_;
  const std::vector<SumRoute>& routes_;  // by owner
  std::vector<ReducePart> outs_;
  at::Tensor in_, own_row_, last_sum_;
  int tag_;
  int64_t numel_;
  std::vector<Task> tasks_;  // by owner, then step
  std::vector<at::Tensor> own_steps_;
  std::vector<Leg> own_legs_, sends_;
};

class HostsChannel final : public Channel {
 public:
  explicit HostsChannel(Hosts hosts) : hosts_(std::move(hosts)) {}

  Started all_gather(at::Tensor out, at::Tensor in, int tag) override {
    return relay_.start([this, out = std::move(out), in = std::move(in), tag](RelayJob& job) {
      const at::Tensor own = hosts_.part(out, hosts_.rank);
      if (own.data_ptr() != in.data_ptr()) std::memcpy(own.data_ptr(), in.data_ptr(), in.nbytes());
      std::vector<int> sources = hosts_.others();
      sources.insert(sources.begin(), hosts_.rank);
      spread(
          hosts_, job, sources, [&](int source) { return hosts_.part(out, source); }, tag);
    });
  }

  Started broadcast(at::Tensor tensor, int root, int tag) override {
    return relay_.start([this, tensor = std::move(tensor), root, tag](RelayJob& job) {
      spread(
          hosts_, job, {root}, [&](int) { return tensor; }, tag);
    });
  }

  bool has_reduce_scatter() const override { return true; }

  Started reduce_scatter(std::vector<ReducePart> outs, at::Tensor in, int tag) override {
    return relay_.start([this, outs = std::move(outs), in = std::move(in), tag](RelayJob& job) {
      Summing(hosts_, routes_for(static_cast<int64_t>(in.element_size())), outs, in, tag).run(job);
    });
  }

  // Every pair by itself: these have no common order.
  Started exchange(at::Tensor out, at::Tensor in, int tag) override {
    auto bundle = std::make_unique<Bundle>();
    for (int peer : hosts_.others()) bundle->add(receive(hosts_.part(out, peer), peer, tag), peer);
    for (int peer : hosts_.others()) bundle->add(send(hosts_.part(in, peer), peer, tag), peer);
    return bundle;
  }
  Started send(at::Tensor tensor, int to, int tag) override { return hosts_.send(tensor, to, tag).transfer; }
  Started receive(at::Tensor tensor, int from, int tag) override {
    return hosts_.receive(tensor, from, tag).transfer;
  }

  double worked_s() const override {
    return (hosts_.inside ? hosts_.inside->worked_s() : 0) + hosts_.across->worked_s();
  }
  int64_t network_bytes() const override { return hosts_.across->network_bytes(); }

 private:
  // Called by the relay's thread alone.
  const std::vector<SumRoute>& routes_for(int64_t item_bytes) {
    std::vector<SumRoute>& routes = sum_routes_[item_bytes];
    for (int owner = static_cast<int>(routes.size()); owner < hosts_.routes.ranks(); ++owner)
      routes.push_back(hosts_.routes.sum_route(owner, item_bytes, hosts_.communication));
    return routes;
  }

  const Hosts hosts_;
  std::map<int64_t, std::vector<SumRoute>> sum_routes_;
  Relay relay_;  // ends before what it works with
};

}  // namespace

std::unique_ptr<Channel> make_hosts_channel(std::unique_ptr<Channel> inside, std::unique_ptr<Channel> across,
                                            int rank, const std::vector<int>& hosts,
                                            Communication communication) {
  return std::make_unique<HostsChannel>(
      Hosts{std::move(inside), std::move(across), rank, HostRoutes(hosts), communication});
}

}  // namespace zero::detail
