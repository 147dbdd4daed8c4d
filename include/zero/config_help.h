#pragma once
// What helps to write a configuration.

#include <string>

namespace zero {

/// Every key as a JSON schema (draft 2020-12), for an editor's completion and checks. It allows whatever the
/// loader does, but that words of a choice are in the case of the documentation; contradictions between keys
/// are the loader's to find.
std::string config_schema();

/// A configuration to start from, a comment above each key. With `all`, every other key too, commented out at
/// its default. parse_config reads it.
std::string config_template(bool all = false);

}  // namespace zero
