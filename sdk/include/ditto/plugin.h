// What makes a shared library a plugin: a stamp that is read before the library is opened, and one entry function.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/version.h>

#include <ditto/exchange/foreign.h>
#include <ditto/options.h>
#include <ditto/version.h>

namespace ditto {

// A plain struct in the ELF section `.ditto.stamp`. The host reads it from the file before dlopen and runs no line of a
// library whose stamp does not match its own. Fixed-size texts are padded with NUL. Fields are only ever appended.
struct Stamp {
  std::array<char, 8> magic;     // "DITTOPLG"
  std::uint32_t size;            // sizeof(Stamp)
  std::uint32_t abi;             // kAbi of its kind's interface
  std::array<char, 16> torch;    // "2.11.0"; major and minor must be equal
  std::uint32_t cxx11_abi;       // _GLIBCXX_USE_CXX11_ABI
  std::uint32_t compiler_abi;    // __GXX_ABI_VERSION
  std::array<char, 16> cuda;     // "13.0"; empty: built without CUDA, and fits any host
  std::uint32_t build_mode;      // BuildMode bits
  std::array<char, 16> kind;     // "model"
  std::array<char, 32> id;       // "dit"
  std::array<char, 16> version;  // "1.0.0"
  std::array<char, 32> licence;  // SPDX identifier
  std::array<char, 96> summary;  // one line for `ditto plugins list`
};

// Bits of Stamp::build_mode. Libraries that differ in one do not share the layout of their classes, or not safely.
enum BuildMode : std::uint32_t {
  kBuildDebug = 1,  // assertions of the standard library are on
  kBuildAddressSanitizer = 2,
  kBuildThreadSanitizer = 4,
};

constexpr std::uint32_t build_mode() {
  std::uint32_t bits = 0;
#ifndef NDEBUG
  bits |= kBuildDebug;
#endif
#ifdef __SANITIZE_ADDRESS__
  bits |= kBuildAddressSanitizer;
#endif
#ifdef __SANITIZE_THREAD__
  bits |= kBuildThreadSanitizer;
#endif
  return bits;
}

template <size_t N>
constexpr std::array<char, N> fixed_text(std::string_view text) {
  if (text.size() >= N) throw "text too long for its place in the stamp";  // refused by the compiler
  std::array<char, N> out{};
  for (size_t i = 0; i < text.size(); ++i) out[i] = text[i];
  return out;
}

constexpr Stamp make_stamp(std::string_view kind, std::uint32_t abi, std::string_view id, std::string_view version,
                           std::string_view licence, std::string_view summary, std::string_view cuda = {}) {
  Stamp s{};
  for (size_t i = 0; i < 8; ++i) s.magic[i] = "DITTOPLG"[i];
  s.size = sizeof(Stamp);
  s.abi = abi;
  s.torch = fixed_text<16>(TORCH_VERSION);
  s.cxx11_abi = _GLIBCXX_USE_CXX11_ABI;
  s.compiler_abi = __GXX_ABI_VERSION;
  s.cuda = fixed_text<16>(cuda);
  s.build_mode = build_mode();
  s.kind = fixed_text<16>(kind);
  s.id = fixed_text<32>(id);
  s.version = fixed_text<16>(version);
  s.licence = fixed_text<32>(licence);
  s.summary = fixed_text<96>(summary);
  return s;
}

// What the entry function returns: how to declare a component's options, and how to make one. `Interface::kKind` names
// the kind, `Interface::Needs` is what the host hands to the constructor.
template <class Interface>
struct Factory {
  void (*declare)(OptionReader&);
  std::shared_ptr<Interface> (*make)(OptionReader&, const typename Interface::Needs&);
  // What a component that holds another project's file needs, and its options by the reader: those that the recipe
  // leaves open are the file's. Throws Error(config) where recipe and file disagree. nullptr: its class has no static
  // function `Needs foreign_needs(OptionReader&, const ForeignShapes&)`.
  typename Interface::Needs (*foreign_needs)(OptionReader&, const ForeignShapes&);
  // The classes whose weights it reads, as "_class_name" or "architectures" of a config.json names them: by them its
  // own folder is found among a pipeline's. nullptr: its class has no static function `std::vector<std::string>
  // foreign_classes()`.
  std::vector<std::string> (*foreign_classes)();
};

// What a plugin's options change where they do not say: what its kind says, or what is learned.
template <class Interface>
consteval Effect effect_of_options() {
  if constexpr (requires { Interface::kEffect; }) return Interface::kEffect;
  return Effect::learning;
}

template <class Interface, class Class>
constexpr auto foreign_needs_of() {
  using Function = decltype(Factory<Interface>::foreign_needs);
  if constexpr (requires { &Class::foreign_needs; }) {
    return Function(&Class::foreign_needs);
  } else {
    return Function(nullptr);
  }
}

template <class Class>
constexpr std::vector<std::string> (*foreign_classes_of())() {
  if constexpr (requires { &Class::foreign_classes; }) {
    return &Class::foreign_classes;
  } else {
    return nullptr;
  }
}

template <class Interface, class Class>
inline constexpr Factory<Interface> kFactory{
    [](OptionReader& reader) { typename Class::Options{}.read(reader); },
    [](OptionReader& reader, const typename Interface::Needs& needs) -> std::shared_ptr<Interface> {
      typename Class::Options options;
      options.read(reader);
      reader.finish();
      return std::make_shared<Class>(options, needs);
    },
    foreign_needs_of<Interface, Class>(), foreign_classes_of<Class>()};

// The name of the entry function: `extern "C" const void* ditto_plugin_entry()`, returning a Factory of the stamp's
// kind.
inline constexpr const char* kEntryName = "ditto_plugin_entry";

}  // namespace ditto

// Makes this library a plugin of kind INTERFACE. CLASS has a nested type `Options` with `read(OptionReader&)` and a
// constructor `(const Options&, const INTERFACE::Needs&)`. Stands once in a library, outside of any namespace.
#define DITTO_PLUGIN(INTERFACE, CLASS, ID, VERSION, LICENCE, SUMMARY)                                          \
  extern "C" {                                                                                                 \
  [[gnu::visibility("default")]] extern const ::ditto::Stamp ditto_plugin_stamp;                               \
  [[gnu::section(".ditto.stamp"), gnu::used]] constinit const ::ditto::Stamp ditto_plugin_stamp =              \
      ::ditto::make_stamp(::ditto::INTERFACE::kKind, ::ditto::INTERFACE::kAbi, ID, VERSION, LICENCE, SUMMARY); \
  DITTO_API const void* ditto_plugin_entry() { return &::ditto::kFactory<::ditto::INTERFACE, CLASS>; }         \
  }
