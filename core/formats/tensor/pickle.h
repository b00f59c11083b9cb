// A pickle machine that runs nothing: it builds plain values, and of classes and functions it keeps the names.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ditto::formats::pickle {

struct Value;
using Ref = const Value*;  // owned by the Arena

struct None {};
struct List {
  std::vector<Ref> items;
};
struct Tuple {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;
};
struct Bytes {
  std::string_view bytes;
};
struct Global {  // a class or function, by name
  std::string_view module, name;

  bool is(std::string_view dotted) const;
  std::string text() const;  // "MODULE.NAME"
};
struct PersistentId {
  Ref id;
};
// FUNCTION(*ARGUMENTS), not called; for an instance, its class and constructor's arguments. `state` is what pickle
// would set on it. Both are kept by reference: a pickle may call one function with one tuple a million times.
struct Call {
  const Global* function;
  const Tuple* arguments;
  Ref state = nullptr;
};

// Texts are parts of the pickle, which must live as long.
struct Value {
  std::variant<None, bool, std::int64_t, double, std::string_view, Bytes, List, Tuple, Dict, Global, PersistentId, Call>
      data;

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
};

// Values may refer to themselves; a flat store needs no care when it is freed.
using Arena = std::deque<Value>;

// Runs a pickle of protocol 2 to 5 and returns its result. collections.OrderedDict() becomes a Dict.
// Throws Error(checkpoint) "WHERE: … at byte N" for what is cut off, damaged, uses other opcodes, or has over
// 4,000,000. `used`: how many bytes it had, where others may follow it.
Ref unpickle(std::string_view bytes, std::string_view where, Arena& arena, std::size_t* used = nullptr);

}  // namespace ditto::formats::pickle
