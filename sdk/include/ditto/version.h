// The version of the SDK a plugin is built against.
#pragma once

#include <cstdint>

namespace ditto {

inline constexpr const char* kVersion = "0.2.0";

// Raised whenever a header of the SDK changes in a way that a compiled plugin can notice, and kVersion with it where
// that version was released before. sdk/abi.lock holds a hash of the headers, and a test fails when they change while
// this number does not.
inline constexpr std::uint32_t kAbi = 5;

}  // namespace ditto
