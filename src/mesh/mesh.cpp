#include "zero/mesh.h"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mesh/group_state.h"
#include "mesh/host_identity.h"
#include "mesh/neighbours.h"
#include "mesh/sigpipe.h"
#include "mesh/store.h"
#include "zero/error.h"

namespace zero {

using detail::GroupState;

struct detail::MeshState {
  // Constant after join().
  Rendezvous rendezvous;
  MeshOptions options;
  std::vector<Axis> axes;                                      // sizes resolved
  std::vector<int> hosts;                                      // of every rank
  std::shared_ptr<const std::vector<std::string>> host_names;  // of every rank; null where all are on one
  torch::Device device = torch::kCPU;

  // Destroyed last to first: channels before the monitor and the store.
  c10::intrusive_ptr<c10d::Store> store;  // keys of this mesh; null in a world of one, or of imagined others
  std::shared_ptr<Monitor> monitor;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  std::map<std::string, std::shared_ptr<GroupState>> groups;  // by name

  /// The group of that name; connected to its members, who all call this, where it is new.
  std::shared_ptr<GroupState> group(const std::string& name, const std::vector<int>& members);
  const Axis& axis(std::string_view name) const;
  std::vector<int> axis_members(std::string_view name) const;
};

namespace {

using detail::MeshState;

std::string axes_text(const std::vector<Axis>& axes) {
  std::string text;
  for (const auto& axis : axes)
    text += (text.empty() ? "" : " x ") + axis.name + "=" + std::to_string(axis.size);
  return text;
}

// Fills in the one open size. Throws Config.
std::vector<Axis> resolve_axes(std::vector<Axis> axes, int world) {
  const std::string place = "mesh axes " + axes_text(axes);
  require(!axes.empty(), ErrorKind::Config, "mesh axes", "there are none", "name at least one, e.g. dp");
  std::set<std::string> names;
  Axis* open = nullptr;
  int64_t product = 1;
  for (auto& axis : axes) {
    require(
        !axis.name.empty() && axis.name != "world" && axis.name.find_first_of(".\t\n") == std::string::npos,
        ErrorKind::Config, place, "bad name \"" + axis.name + "\"");
    require(names.insert(axis.name).second, ErrorKind::Config, place, axis.name + " is named twice");
    if (axis.size == -1) {
      require(!open, ErrorKind::Config, place, "more than one size is left open");
      open = &axis;
      continue;
    }
    require(axis.size >= 1, ErrorKind::Config, place, axis.name + " must be at least 1, or -1 for the rest");
    product *= axis.size;
    require(product <= world, ErrorKind::Config, place,
            "needs more ranks than the " + std::to_string(world) + " there are");
  }
  if (open) {
    require(world % product == 0, ErrorKind::Config, place,
            "the other axes do not divide the " + std::to_string(world) + " ranks");
    open->size = static_cast<int>(world / product);
    product = world;
  }
  require(product == world, ErrorKind::Config, place,
          "multiply to " + std::to_string(product) + ", but there are " + std::to_string(world) + " ranks");
  return axes;
}

void check_rendezvous(const Rendezvous& rendezvous) {
  require(rendezvous.size >= 1 && rendezvous.rank >= 0 && rendezvous.rank < rendezvous.size,
          ErrorKind::Config, "rendezvous",
          "rank " + std::to_string(rendezvous.rank) + " of " + std::to_string(rendezvous.size) +
              " makes no sense");
  require(rendezvous.size == 1 || (rendezvous.port > 0 && rendezvous.port <= 65535), ErrorKind::Config,
          "rendezvous", "port " + std::to_string(rendezvous.port) + " is outside 1 to 65535");
}

torch::Device choose_device(const MeshOptions& options, const Rendezvous& rendezvous) {
  if (!options.device.is_cuda() || options.device.has_index()) return options.device;
  return torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(rendezvous.local_rank));
}

// All ranks must want the same mesh; a rank with another configuration would fail later and stranger.
void compare_greetings(const std::vector<std::string>& greetings, int rank) {
  for (size_t other = 0; other < greetings.size(); ++other)
    require(greetings[other] == greetings[rank], ErrorKind::Config, "rank " + std::to_string(rank),
            "its mesh is " + greetings[rank] + ", but that of rank " + std::to_string(other) + " is " +
                greetings[other],
            "give all ranks the same configuration");
}

/// Where the ranks are, as their greetings say.
struct Places {
  std::vector<int> hosts;  // of every rank, numbered in the order of ranks
  std::vector<std::string> names;
  std::shared_ptr<detail::Neighbours> neighbours = std::make_shared<detail::Neighbours>();
};

std::string place_lines(const std::string& host) {
  return "\n" + detail::host_identity(host) + "\n" + detail::host_name(host) + "\n" +
         std::to_string(getpid());
}

// Takes off the three lines that place_lines() gave every greeting.
Places take_places(std::vector<std::string>& greetings, int rank) {
  Places places;
  std::map<std::string, int> numbers;
  std::vector<pid_t> processes;
  for (std::string& greeting : greetings) {
    const size_t host = std::min(greeting.find('\n'), greeting.size());
    const size_t process = std::max(greeting.rfind('\n'), host);
    const size_t name = std::min(greeting.find('\n', host + 1), process);
    places.hosts.push_back(
        numbers.emplace(greeting.substr(host, name - host), static_cast<int>(numbers.size())).first->second);
    places.names.push_back(
        greeting.substr(std::min(name + 1, process), process - std::min(name + 1, process)));
    processes.push_back(std::atoi(greeting.c_str() + process));
    greeting.resize(host);
  }
  const int here = places.hosts[rank];
  for (size_t other = 0; other < processes.size(); ++other)
    if (places.hosts[other] == here) places.neighbours->add(static_cast<int>(other), processes[other]);
  return places;
}

// Ranks along "tp" are neighbours, so they share a host where its ranks come one after the other and their
// number divides it. The same error on all ranks.
void check_tensor_axis(const MeshState& state) {
  int inner = 1;  // ranks of the axes behind it
  const auto is_tensor = [](const Axis& axis) { return axis.name == "tp"; };
  const auto axis = std::find_if(state.axes.begin(), state.axes.end(), is_tensor);
  if (axis == state.axes.end() || axis->size == 1 || state.options.tensor_across_hosts) return;
  for (auto behind = std::next(axis); behind != state.axes.end(); ++behind) inner *= behind->size;
  for (int rank = 0; rank < std::ssize(state.hosts); ++rank) {
    const int place = rank / inner % axis->size;
    const int first = rank - place * inner;
    if (state.hosts[rank] == state.hosts[first]) continue;
    fail(ErrorKind::Config, "mesh axes " + axes_text(state.axes),
         "ranks " + std::to_string(first) + " and " + std::to_string(rank) +
             " share layers (tp), but are on different hosts: every layer's sums would cross the network",
         "choose a tp that divides the ranks of each host, start a host's ranks one after the other, or "
         "permit "
         "it (parallel.tensor_across_hosts, MeshOptions::tensor_across_hosts)");
  }
}

// c10d reports on its log, with a stack, what comes back as an Error anyway. Who wants it sets
// TORCH_CPP_LOG_LEVEL.
void quiet_c10d() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, 3);
  });
}

void connect_world(MeshState& state) {
  quiet_c10d();
  detail::SigpipeBlock block;  // also for the threads that are started here
  const auto& rendezvous = state.rendezvous;
  const auto timeout = state.options.timeout;
  std::string interface = state.options.interface_address;
  if (interface.empty()) interface = detail::outgoing_address(rendezvous.address);
  // What can fail on this host alone fails before the others are met.
  const detail::TransportOptions transport{interface, state.device, timeout, state.options.communication};
  state.transport = state.options.own_transport ? state.options.own_transport(transport)
                                                : detail::make_transport(state.options.transport, transport);
  require(state.options.communication == Communication::exact || state.transport->has_fast_sums(),
          ErrorKind::Config, "mesh communication",
          "fast is NCCL's, and on " + c10::DeviceTypeName(state.device.type(), /*lower_case=*/true) +
              " transport " + state.options.transport + " adds in rank order",
          "set communication to exact, or use transport auto");
  if (auto hosts = state.transport->imagined_hosts(rendezvous.size)) {
    state.hosts = *std::move(hosts);
    check_tensor_axis(state);
    return;
  }
  auto store = detail::open_store(rendezvous, timeout);
  std::string prefix = detail::mesh_prefix(store, rendezvous, timeout);
  state.store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  std::string greeting = axes_text(state.axes) + ", transport " + state.options.transport + " on " +
                         c10::DeviceTypeName(state.device.type(), /*lower_case=*/true) + ", communication " +
                         std::string(to_string(state.options.communication)) +
                         (state.options.tensor_across_hosts ? ", tensor_across_hosts" : "");
  auto greetings = detail::meet(state.store, rendezvous, greeting + place_lines(state.options.host), timeout);
  const Places places = take_places(greetings, rendezvous.rank);
  state.hosts = places.hosts;
  if (*std::max_element(places.hosts.begin(), places.hosts.end()) > 0)
    state.host_names = std::make_shared<const std::vector<std::string>>(places.names);
  compare_greetings(greetings, rendezvous.rank);
  check_tensor_axis(state);
  detail::MonitorOptions monitor;
  monitor.rank = rendezvous.rank;
  monitor.keeps_store = rendezvous.rank == 0 && !rendezvous.external_store;
  monitor.timeout = timeout;
  monitor.neighbours = places.neighbours;
  monitor.connect = [rendezvous, prefix] {
    auto own = detail::reopen_store(rendezvous, std::chrono::seconds(3));
    return c10::make_intrusive<c10d::PrefixStore>(prefix, own);
  };
  state.monitor = std::make_shared<detail::Monitor>(monitor);
}

}  // namespace

std::shared_ptr<GroupState> detail::MeshState::group(const std::string& name,
                                                     const std::vector<int>& members) {
  auto& group = groups[name];
  if (group) return group;
  auto fresh = std::make_shared<GroupState>();
  fresh->name = name;
  fresh->members = members;
  fresh->rank =
      static_cast<int>(std::find(members.begin(), members.end(), rendezvous.rank) - members.begin());
  fresh->device = device;
  fresh->timeout = options.timeout;
  fresh->transport = transport;
  fresh->monitor = monitor;
  fresh->host_names = host_names;
  fresh->activity = activity;
  if (monitor) fresh->monitor_slot = monitor->add_group(name);
  fresh->memories = {0};
  if (members.size() > 1) {
    SigpipeBlock block;
    // Groups of one name are told apart by their first member, so only members take part.
    std::string key = "group/" + name + "/" + std::to_string(members.front());
    try {
      std::vector<int> member_hosts;
      member_hosts.reserve(members.size());
      for (int member : members) member_hosts.push_back(hosts[member]);
      const c10::intrusive_ptr<c10d::Store> own =
          store ? c10::make_intrusive<c10d::PrefixStore>(key, store) : nullptr;
      fresh->channel = transport->connect(own, fresh->rank, member_hosts, name);
      fresh->memories = transport->memories(member_hosts);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      fail(ErrorKind::Comm, "rank " + std::to_string(rendezvous.rank),
           "cannot connect group " + name + " of " + list_ranks(members) + ": " + one_line(e.what(), 300),
           "see what the other ranks printed");
    }
  }
  group = std::move(fresh);
  return group;
}

const Axis& detail::MeshState::axis(std::string_view name) const {
  for (const auto& axis : axes)
    if (axis.name == name) return axis;
  fail(ErrorKind::Usage, "mesh " + axes_text(axes), "has no axis \"" + std::string(name) + "\"");
}

std::vector<int> detail::MeshState::axis_members(std::string_view name) const {
  int stride = 1;  // ranks between neighbours along the axis
  size_t last = axes.size() - 1;
  for (; axes[last].name != name; --last) stride *= axes[last].size;
  int place = rendezvous.rank / stride % axes[last].size;
  std::vector<int> members;
  members.reserve(axes[last].size);
  for (int i = 0; i < axes[last].size; ++i) members.push_back(rendezvous.rank + (i - place) * stride);
  return members;
}

Mesh Mesh::from_environment(const MeshOptions& options) {
  return join(rendezvous_from_environment(), options);
}

Mesh Mesh::join(const Rendezvous& rendezvous, const MeshOptions& options) {
  check_rendezvous(rendezvous);
  require(options.timeout.count() > 0, ErrorKind::Config, "mesh timeout", "must be positive");
  auto state = std::make_shared<MeshState>();
  state->rendezvous = rendezvous;
  state->options = options;
  state->activity->trace = options.trace;
  state->axes = resolve_axes(options.axes, rendezvous.size);
  state->device = choose_device(options, rendezvous);
  if (rendezvous.size > 1) connect_world(*state);
  std::vector<int> all(rendezvous.size);
  std::iota(all.begin(), all.end(), 0);
  state->group("world", all);
  for (const auto& axis : state->axes) state->group(axis.name, state->axis_members(axis.name));
  return Mesh(state);
}

int Mesh::rank() const { return state_->rendezvous.rank; }
int Mesh::size() const { return state_->rendezvous.size; }
int Mesh::local_rank() const { return state_->rendezvous.local_rank; }
torch::Device Mesh::device() const { return state_->device; }
Communication Mesh::communication() const { return state_->options.communication; }
const Rendezvous& Mesh::rendezvous() const { return state_->rendezvous; }

std::span<const Axis> Mesh::axes() const { return state_->axes; }
Group Mesh::world() const { return Group(state_->groups.at("world")); }
Group Mesh::group(std::string_view axis) const { return Group(state_->groups.at(state_->axis(axis).name)); }

Mesh::Blocks Mesh::split(std::string_view name, int inner) const {
  const Axis& axis = state_->axis(name);
  require(
      inner >= 1 && axis.size % inner == 0, ErrorKind::Config, "splitting axis " + axis.name,
      "blocks of " + std::to_string(inner) + " do not divide its " + std::to_string(axis.size) + " ranks");
  const std::vector<int> along = state_->axis_members(name);
  const int place = group(name).rank();
  std::vector<int> block(along.begin() + place / inner * inner, along.begin() + (place / inner + 1) * inner);
  std::vector<int> across;
  for (int i = place % inner; i < axis.size; i += inner) across.push_back(along[i]);
  const std::string size = std::to_string(inner);
  return {Group(state_->group(axis.name + ".inner" + size, block)),
          Group(state_->group(axis.name + ".outer" + size, across))};
}

double Mesh::waited_s() const { return state_->activity->waited_s; }
Trace* Mesh::trace() const { return state_->activity->trace.get(); }

void Mesh::report_failure(std::string_view reason) const noexcept {
  if (state_->monitor) state_->monitor->report(std::string(reason));
}

}  // namespace zero
