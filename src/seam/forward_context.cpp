#include "seam/forward_context.h"

#include <utility>

namespace zero::detail {
namespace {

thread_local ForwardContexts contexts_of_thread;

}  // namespace

const ForwardContexts& forward_contexts() { return contexts_of_thread; }

ForwardContextScope::ForwardContextScope(std::shared_ptr<const ForwardContext> context) {
  contexts_of_thread.push_back(std::move(context));
}

ForwardContextScope::~ForwardContextScope() { contexts_of_thread.pop_back(); }

}  // namespace zero::detail
