// The version of the SDK a plugin is built against.
#pragma once

namespace ditto {

inline constexpr const char* kVersion = "0.2.0";

// Beside it each kind of plugins has an ABI number, `kAbi` of its interface. It is raised whenever a header that
// plugins of this kind are compiled with changes in a way that a compiled one can notice, and kVersion with it where
// that version was released before. sdk/abi.lock holds a hash of each kind's headers, and a test fails when they change
// while the number does not.

}  // namespace ditto
