#pragma once
// What the ranks of all axes agree on. Along other axes than "dp" (tensor, pipeline, expert parallelism) they
// may hold other parameters, or others of their elements, and some of them alike.

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero::detail {

/// What all ranks know before a step.
struct StepAgreement {
  double squared_norm = 0;  // of all gradients; not finite where some rank's are not
  std::vector<char> used;   // per parameter of this rank: had a gradient on some rank
};

/// Parameters count over all units of this rank's plan, in order.
class AxesAgreement {
 public:
  /// Gives every parameter of the model a number that all ranks know. Throws Config where ranks along an axis
  /// do not hold the same of what is said to be the same there. Collective over the mesh.
  AxesAgreement(const Mesh& mesh, const Plan& plan);

  /// Whether there are several groups along "dp".
  bool spans_other_axes() const { return dp_groups_ > 1; }
  /// Whether ranks along other axes hold the same values of a parameter, and this one is not the first.
  bool is_copy(int parameter) const { return is_copy_[parameter] != 0; }
  /// Parameters of which the ranks along an axis hold parts, in an order that is the same on each.
  struct Cut {
    std::string axis;
    std::vector<int> parameters;
    std::vector<int> counted_elsewhere;  // of them: an earlier rank has the same part
  };
  /// Throws Unsupported, naming one, where a parameter is cut and the ranks along a single axis do not hold
  /// all of it, or hold others. Collective over the mesh.
  std::vector<Cut> cuts(const Plan& plan) const;

  /// Adds up what the ranks bring: `squares` of their gradients (fp64 [1] on the mesh's device), and which
  /// parameters had one. fp64 on the mesh's device, for the functions that follow; the host does not wait for
  /// a device. One small all-reduce.
  at::Tensor add_up(const at::Tensor& squares, std::span<const int> gathered_units,
                    std::span<const char> used) const;
  /// Of what add_up() gave: the squared norm [1], and by parameter how many ranks had a gradient.
  at::Tensor squared_norm(const at::Tensor& sums) const { return sums.narrow(0, 0, 1); }
  at::Tensor used(const at::Tensor& sums) const;
  /// The same on the host. Throws Comm, naming ranks and units, where ranks of one group along "dp" had
  /// gathered units in other orders: all ranks call it.
  StepAgreement agreement(const at::Tensor& sums_on_host, std::span<const int> gathered_units) const;

  /// Several sums of each parameter, those of the first one first, added up over all ranks in place. One
  /// all-reduce; nothing where there are no sums or no other ranks.
  void sum_over_ranks(std::span<double> sums) const;
  /// fp64 [parameters, sums] on the mesh's device, the same; the host does not wait for it.
  at::Tensor sum_over_ranks(const at::Tensor& sums) const;

 private:
  void number(const Mesh& mesh, const Plan& plan);
  void find_copies(const Mesh& mesh, const Plan& plan);
  void require_same_replicas(const Mesh& mesh, const Plan& plan) const;
  // The norm, for each group along "dp" the sums of its orders and their squares, and the parameters.
  static constexpr int64_t kOrders = 1;
  int64_t uses() const { return kOrders + int64_t{2} * dp_groups_; }
  void require_same_order(std::span<const double> sums_and_squares,
                          std::span<const int> gathered_units) const;
  [[noreturn]] void name_other_order(std::span<const int> gathered_units) const;

  Mesh mesh_;
  Group everyone_;  // the ranks of all axes: those along "dp" where there are no others
  int dp_ranks_;
  int dp_group_ = 0, dp_groups_ = 1;  // which of the groups along "dp" this rank is in, of how many
  std::vector<std::string> unit_names_;
  std::vector<char> is_copy_;
  std::vector<int64_t> common_number_;  // per parameter, among those of all ranks of all axes
  int64_t common_parameters_ = 0;       // how many those are
  at::Tensor common_number_on_device_;  // int64
};

}  // namespace zero::detail
