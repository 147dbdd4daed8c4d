#pragma once
// The key-value store the ranks meet at: c10d's TCPStore on rank 0, or the launcher's.

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "zero/mesh.h"

namespace zero::detail {

/// Connects; rank 0 serves it first, on its listen_fd or on rendezvous.port. Loopback addresses are listened
/// on alone, others on all interfaces. Throws Config for a port in use, Comm naming the address where nobody
/// answers in time, also where a server accepts connections and never says a word.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& rendezvous, std::chrono::milliseconds timeout);

/// The prefix of this mesh's keys. Meshes joined one after the other on a store that stays must not read each
/// other's: the n-th join of every rank is the same mesh. Throws Comm.
std::string mesh_prefix(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& rendezvous,
                        std::chrono::milliseconds timeout);

/// A further connection to the same store, for another thread. Throws c10 errors.
c10::intrusive_ptr<c10d::Store> reopen_store(const Rendezvous& rendezvous, std::chrono::milliseconds timeout);

/// True for 127.x, ::1 and localhost.
bool is_loopback(const std::string& address);

/// The address of this host that packets to `address` leave from; "127.0.0.1" for loopback. Throws Config if
/// it has none.
std::string outgoing_address(const std::string& address);

/// Leaves `greeting` under this rank's name and blocks until all ranks have left theirs, which are returned
/// in order. Throws Comm naming the ranks that did not come, or saying that the store stopped answering.
std::vector<std::string> meet(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& rendezvous,
                              const std::string& greeting, std::chrono::milliseconds timeout);

}  // namespace zero::detail
