// Uses the installed library as another project would: a mesh of this process alone, a plan, and the failure
// model.

#include <zero/error.h>
#include <zero/mesh.h>
#include <zero/plan.h>

#include <cstdio>

int main() {
  const zero::Mesh mesh = zero::Mesh::from_environment();
  zero::ModuleSpec module;
  module.parameters.push_back({.name = "weight", .shape = {64, 64}});
  const zero::Plan plan = zero::make_plan(module, {.stage = 3, .ranks = 4});
  bool refused = false;
  try {
    zero::placements_for(7);
  } catch (const zero::Error& error) {
    refused = error.kind() == zero::ErrorKind::Config;
  }
  if (mesh.size() != 1 || plan.rank.parameter_bytes != 64 * 64 * 4 / 4 || !refused) {
    std::printf("consumer: wrong: %d ranks, %lld bytes, refused %d\n", mesh.size(),
                static_cast<long long>(plan.rank.parameter_bytes), refused);
    return 1;
  }
  std::puts("consumer: ok");
}
