#include "compute/wait_place.h"

#include <utility>

namespace zero::detail {
namespace {

thread_local const char* place_of_thread = "";

}  // namespace

WaitPlace::WaitPlace(const char* name) : before_(std::exchange(place_of_thread, name)) {}
WaitPlace::~WaitPlace() { place_of_thread = before_; }

const char* wait_place() { return place_of_thread; }

}  // namespace zero::detail
