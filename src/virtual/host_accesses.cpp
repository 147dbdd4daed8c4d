// Host code that follows a device pointer faults; here the fault becomes a note of who did it, and the block
// is opened so that the program goes on (Machine closes it again at the next operator).
#include <signal.h>
#include <ucontext.h>

#include "virtual/runtime.h"

namespace zero::virtual_device {
namespace {

struct sigaction previous_action {};

// The fault is the host code's own instruction, so locks and memory are as in any function that it could
// call.
void on_segmentation_fault(int signal, siginfo_t* info, void* context) {
  constexpr long long kWriteBit = 2;  // of the page fault's error code, x86-64
  Machine* found = installed_machine();
#if defined(__x86_64__)
  const bool is_write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
#else
  const bool is_write = false;
  (void)context;
  (void)kWriteBit;
#endif
  auto* address = static_cast<char*>(info->si_addr);
  if (found != nullptr && found->note_host_access(address, is_write, this_thread().last_work)) return;
  // Not ours: the instruction faults again, under whatever handled it before.
  sigaction(signal, &previous_action, nullptr);
}

}  // namespace

void catch_host_accesses() {
  struct sigaction action {};
  action.sa_sigaction = on_segmentation_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  struct sigaction before {};
  sigaction(SIGSEGV, &action, &before);
  if (before.sa_sigaction != on_segmentation_fault) previous_action = before;
}

}  // namespace zero::virtual_device
