// The names of tensors that the host itself makes or looks for. All others pass through it unread.
#pragma once

#include <string>

namespace ditto::names {

inline constexpr const char* kImage = "image";      // pixels, which may be flipped where the loader is asked to
inline constexpr const char* kLabel = "label";      // a class: what --classes asks for
inline constexpr const char* kText = "text";        // what --prompts are for
inline constexpr const char* kMask = "_mask";       // behind the name of a tensor of any length: true where it counts
inline constexpr const char* kCaption = "caption";  // UTF-8, as bytes: what an encoder makes it of
inline constexpr const char* kClean = "clean";      // x_0: what is learned, and what sampling makes
inline constexpr const char* kNoisy = "x_t";
inline constexpr const char* kTime = "time";    // of the schedule
inline constexpr const char* kInput = "x";      // what the model sees of x_t
inline constexpr const char* kInputTime = "t";  // and of its time
inline constexpr const char* kPrediction = "prediction";
inline constexpr const char* kPassed = "low";      // in a cascade, a stage's picture to the next, if it says no other
inline constexpr const char* kStratum = "time_u";  // of a validation: where in the distribution of times
inline constexpr const char* kFeatures = "features";               // of a block: what an objective may ask a model for
inline constexpr const char* kModulatedInput = "modulated_input";  // of the first block: what a cache may ask it for

// "text_empty" of "text", "text_empty_mask" of "text_mask", "text_pooled_empty" of "text_pooled": of the empty text.
inline std::string empty(const std::string& name) {
  constexpr const char* kEmpty = "_empty";
  const std::string mask = kMask;
  return name.ends_with(mask) ? name.substr(0, name.size() - mask.size()) + kEmpty + mask : name + kEmpty;
}

}  // namespace ditto::names
