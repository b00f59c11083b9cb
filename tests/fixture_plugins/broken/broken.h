// A stamp that differs from what DITTO_PLUGIN writes.
#pragma once

#include <ditto/kernels.h>
#include <ditto/plugin.h>
#include <ditto/visibility.h>

// CHANGE is a statement that spoils `stamp`, a stamp of kind "kernels" and of the given id; it may be empty.
#define BROKEN_STAMP(ID, CHANGE)                                                                             \
  constexpr ditto::Stamp spoiled_stamp() {                                                                   \
    ditto::Stamp stamp =                                                                                     \
        ditto::make_stamp("kernels", ditto::KernelSet::kAbi, ID, "1.0.0", "Apache-2.0", "wrong on purpose"); \
    CHANGE;                                                                                                  \
    return stamp;                                                                                            \
  }                                                                                                          \
  extern "C" {                                                                                               \
  [[gnu::section(".ditto.stamp"), gnu::visibility("default")]] extern const ditto::Stamp ditto_plugin_stamp; \
  [[gnu::used]] constinit const ditto::Stamp ditto_plugin_stamp = spoiled_stamp();                           \
  }

// A library that is refused is never opened: this one would end the process.
#define NEVER_CALLED                                              \
  [[gnu::constructor]] static void opened() { __builtin_trap(); } \
  extern "C" DITTO_API const void* ditto_plugin_entry() { __builtin_trap(); }
