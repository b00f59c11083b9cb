// A stamp that differs from what DITTO_PLUGIN writes.
#pragma once

#include <ditto/plugin.h>
#include <ditto/visibility.h>

// CHANGE is a statement that spoils `stamp`, a stamp of kind "kernels" and of the given id.
#define BROKEN_STAMP(ID, CHANGE)                                                                      \
  constexpr ditto::Stamp spoiled_stamp() {                                                            \
    ditto::Stamp stamp = ditto::make_stamp("kernels", ID, "1.0.0", "Apache-2.0", "wrong on purpose"); \
    CHANGE;                                                                                           \
    return stamp;                                                                                     \
  }                                                                                                   \
  extern "C" {                                                                                        \
  [[gnu::section(".ditto.stamp"), gnu::used,                                                          \
    gnu::visibility("default")]] extern const ditto::Stamp ditto_plugin_stamp;                        \
  constinit const ditto::Stamp ditto_plugin_stamp = spoiled_stamp();                                  \
  }

// Refused libraries must never be opened: this one would say so.
#define NEVER_CALLED                                              \
  [[gnu::constructor]] static void opened() { __builtin_trap(); } \
  extern "C" DITTO_API const void* ditto_plugin_entry() { __builtin_trap(); }
