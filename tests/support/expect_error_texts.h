#pragma once
// Checks that a call fails with one kind of error whose message holds all the given texts.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "zero/error.h"

namespace zero::test {

inline void expect_error(ErrorKind kind, const std::vector<std::string>& texts,
                         const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.kind()), to_string(kind)) << error.what();
    for (const auto& text : texts) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << "no \"" << text << "\" in: " << error.what();
    }
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return;
  }
  FAIL() << "no error; expected a " << to_string(kind) << " error";
}

}  // namespace zero::test
