#include "mesh/collective.h"

#include <utility>

#include "mesh/ordered_sum.h"
#include "zero/error.h"

namespace zero::detail {

void CollectiveCheck::refuse(const std::string& problem) const {
  fail(ErrorKind::Usage,
       std::string(to_string(operation)) + " " + std::string(what) + " in group " + group.name, problem);
}

void CollectiveCheck::tensor(const at::Tensor& t, const char* name) const {
  if (!t.defined()) refuse(std::string(name) + " is an undefined tensor");
  if (!t.is_contiguous()) refuse(std::string(name) + " is not contiguous");
  if (t.device() != group.device)
    refuse(std::string(name) + " is on " + t.device().str() + ", the mesh on " + group.device.str());
}

void CollectiveCheck::numel(const at::Tensor& t, const char* name, int64_t expected,
                            const std::string& reason) const {
  if (t.numel() != expected)
    refuse(std::string(name) + " has " + std::to_string(t.numel()) + " elements, expected " +
           std::to_string(expected) + " (" + reason + ")");
}

void CollectiveCheck::same_dtype(const at::Tensor& out, const at::Tensor& in) const {
  if (out.scalar_type() != in.scalar_type())
    refuse(std::string("out is ") + c10::toString(out.scalar_type()) + ", in is " +
           c10::toString(in.scalar_type()));
}

void CollectiveCheck::member(int rank, const char* name) const {
  if (rank < 0 || rank >= group.size())
    refuse(std::string(name) + " is rank " + std::to_string(rank) + " of a group of " +
           std::to_string(group.size()));
}

// The engine's tensors are flat already: two operators, whose code has left the caches when a collective
// begins, take as long as moving 100 KiB.
at::Tensor flat_view(const at::Tensor& tensor) {
  if (tensor.dim() == 1 && !tensor.requires_grad()) return tensor;
  return tensor.detach().view(-1);
}

Work start_transfer(const std::shared_ptr<GroupState>& group, Issued issued,
                    const std::function<std::unique_ptr<Transfer>(Channel&)>& begin,
                    std::function<void()> finish) {
  auto transfer = group->begin(issued, begin);
  return Work(std::make_shared<WorkState>(group, std::move(issued), std::move(transfer), std::move(finish)));
}

Traffic traffic_of(const at::Tensor& full, int64_t times) {
  return {1, times * full.numel(), times * static_cast<int64_t>(full.nbytes())};
}

std::vector<at::Tensor> received_parts(const at::Tensor& received, const at::Tensor& in,
                                       const GroupState& group) {
  auto parts = equal_parts(received, group.size());
  parts[group.rank] = equal_parts(in, group.size())[group.rank];
  return parts;
}

}  // namespace zero::detail
