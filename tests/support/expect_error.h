#pragma once
// EXPECT_ERROR(statement, Kind, "part of the text"): the statement throws zero::Error of that kind, on one
// line.

#include <gtest/gtest.h>

#include <string>

#include "zero/error.h"

#define EXPECT_ERROR(statement, error_kind, part)                                                           \
  do {                                                                                                      \
    try {                                                                                                   \
      (void)(statement);                                                                                    \
      ADD_FAILURE() << "nothing thrown by " #statement;                                                     \
    } catch (const ::zero::Error& error) {                                                                  \
      std::string text = error.what();                                                                      \
      EXPECT_EQ(::zero::to_string(error.kind()), ::zero::to_string(::zero::ErrorKind::error_kind)) << text; \
      EXPECT_NE(text.find(part), std::string::npos) << "expected \"" << (part) << "\" in: " << text;        \
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;                                                \
    }                                                                                                       \
  } while (false)
